r"""What lies outside the subspace, and how far all of it can be trusted.

To first order the part of a direction outside the subspace enters only the moments with one place
outside, and linearly: :math:`E[T_k z_\perp H_t(V'z)] = \sum_j \sqrt{m}\, w_j h_{m,k}(s_j, b_j)\,
u_j^{t}\, u_{j\perp}` with m = |t| + 1. Weighted least squares gives it from all functions and
orders at once.
"""

import numpy as np
from numpy.typing import NDArray

from moment_init.likelihood.parameters import MixtureParameters, pack, unpack
from moment_init.stacked.moment_model import MomentFit, MomentModel
from moment_init.stacked.noise import MomentNoise
from moment_init.stacked.projection import ProjectedMoments

__all__ = ["jackknife_coefficients", "lift_parameters"]

FloatArray = NDArray[np.float64]


def lift_parameters(
    projected: ProjectedMoments,
    model: MomentModel,
    parameters: MixtureParameters,
    noise: MomentNoise,
    *,
    left_out: int | None = None,
) -> MixtureParameters:
    """Carry a mixture from the subspace to all dimensions, with the part outside of it.

    Parameters
    ----------
    projected : ProjectedMoments
        Moments about the subspace.
    model : MomentModel
        The model of the moments.
    parameters : MixtureParameters
        The mixture inside the subspace, coefficients (k, r).
    noise : MomentNoise
        Covariance that weighs the moments.
    left_out : int, optional
        A part of the rows to leave out.

    Returns
    -------
    MixtureParameters
        The mixture with coefficients (n_features, r); inside the subspace they are unchanged.

    Notes
    -----
    A prior of unit variance on the part outside, against unit directions, is one row's worth of
    information: it decides only where the moments say nothing.
    """
    if projected.contraction_sums is None:
        return parameters.lift(projected.subspace)
    observed = projected.contraction(left_out=left_out)
    _, moments = model.component_moments(parameters)
    return _lift(projected, model, parameters, noise, moments, observed)


def _lift(
    projected: ProjectedMoments,
    model: MomentModel,
    parameters: MixtureParameters,
    noise: MomentNoise,
    moments: FloatArray,
    observed: FloatArray,
) -> MixtureParameters:
    """`lift_parameters` from moments of the components, and those with one place outside."""
    directions = parameters.directions
    weighted = moments * parameters.weights[:, None, None]
    design = np.concatenate(
        [
            np.sqrt(order + 1.0)
            * np.einsum(
                "qj,jf->fqj", model.basis.monomials(directions, order), weighted[:, order + 1]
            )
            for order in range(model.basis.max_order)
        ],
        axis=1,
    )  # (m, q2, r)
    n_components = design.shape[2]
    flat = design.reshape(-1, n_components)
    solved = noise.solve_lower(design).reshape(-1, n_components)
    by_moment = observed.reshape(len(flat), -1)  # (m q2, d)
    information = model.effective_n * (flat.T @ solved) + np.eye(n_components)
    outside = np.linalg.solve(information, model.effective_n * (solved.T @ by_moment)).T
    coefficients = (projected.subspace @ directions + outside) * parameters.scales
    return MixtureParameters(
        coefficients, parameters.biases, parameters.weights, parameters.dispersion
    )


def jackknife_coefficients(
    projected: ProjectedMoments, model: MomentModel, fit: MomentFit, noise: MomentNoise
) -> FloatArray:
    """Coefficients with each part of the rows left out in turn.

    Inside the subspace the parameters move along the linearised fit; outside they are solved for
    again. Nothing but sums that are there already is used.

    Parameters
    ----------
    projected : ProjectedMoments
        Moments about the subspace.
    model : MomentModel
        The model of the moments.
    fit : MomentFit
        The weighted fit.
    noise : MomentNoise
        Covariance that weighed it.

    Returns
    -------
    numpy.ndarray, shape (n_parts, n_features, n_components)
        The replicates; (n_parts - 1) / n_parts times the sum of squared deviations from their mean
        estimates the variance.
    """
    moments = projected.moments()
    inverse = np.linalg.pinv(fit.jacobian)
    vector = pack(fit.parameters)
    n_prior = fit.jacobian.shape[0] - moments.size
    parts = range(len(projected.gram_sums))
    moved = []
    for part in parts:
        difference = projected.moments(left_out=part) - moments
        change = np.sqrt(model.effective_n) * noise.whiten(difference)
        step = inverse @ np.append(change, np.zeros(n_prior))
        moved.append(unpack(vector + step, fit.parameters))
    if projected.contraction_sums is None:
        return np.stack([each.lift(projected.subspace).coefficients for each in moved])
    of_parts = np.split(model.moments_of_all(moved), len(moved))
    return np.stack(
        [
            _lift(
                projected, model, moved[part], noise, of_parts[part],
                projected.contraction(left_out=part),
            ).coefficients
            for part in parts
        ]
    )  # fmt: skip
