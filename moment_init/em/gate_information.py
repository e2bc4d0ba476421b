"""How well a fit with a Gaussian gate is determined: its whole information and standard errors.

The user's vector of parameters is that of the experts and weights, followed by the gate's in the
order of `moment_init.likelihood.gate_density`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from moment_init.em.gaussian_gate import GatedProblem, GatedRun
from moment_init.em.information import (
    LaplaceApproximation,
    StandardErrors,
    free_basis,
    invert_information,
    standard_errors_of,
    to_user_matrix,
)
from moment_init.likelihood.gate_density import GaussianGate, gate_derivatives, gate_size
from moment_init.likelihood.parameters import MixtureParameters, parameter_count

__all__ = ["gated_laplace_of", "gated_standard_errors"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

_ROUNDING = 1e-10
"""A standard error below this share of the variance is that of one that is held: it would take 1e20
rows to estimate a variance so well."""


def gated_laplace_of(
    gated: GatedProblem, run: GatedRun, order: IndexArray
) -> tuple[LaplaceApproximation, tuple[str, ...]]:
    """Invert the observed information of the joint likelihood, in the user's units.

    Parameters
    ----------
    gated : GatedProblem
        The problem.
    run : GatedRun
        Where a climb ended.
    order : numpy.ndarray of int, shape (n_components,)
        Which component comes first, second, and so on.

    Returns
    -------
    laplace : LaplaceApproximation
        Of the user's vector of parameters.
    warnings : tuple of str
        What is not determined.
    """
    likelihood = gated.likelihood(run.at.mixture)
    sums = run.end.sums
    if sums.missing_information is None:
        sums = likelihood.sums(run.at, missing=True)
    basis = free_basis(likelihood.constraint, likelihood.active(run.at), len(sums.score))
    of_mixture = to_user_matrix(gated.base, run.at.mixture, order)
    of_gate = np.kron(np.eye(len(order))[order], np.diag(_user_factors(gated.coordinates.scales)))
    return invert_information(sums, basis, block_diag(of_mixture, of_gate) @ basis)


def gated_standard_errors(
    parameters: MixtureParameters, gate: GaussianGate, laplace: LaplaceApproximation
) -> StandardErrors:
    """Standard errors of parameters on their natural scale.

    Parameters
    ----------
    parameters : MixtureParameters
        The user's experts and weights.
    gate : GaussianGate
        The user's gate.
    laplace : LaplaceApproximation
        Of the vector of both.

    Returns
    -------
    StandardErrors
        The errors, those of the gate's covariances by the delta method.
    """
    first, n_gate = parameter_count(parameters), gate.n_gate
    own = LaplaceApproximation(laplace.root[:first], laplace.undetermined[:first])
    errors = standard_errors_of(parameters, own, None)
    blocks = laplace.root[first:].reshape(gate.n_components, gate_size(n_gate), -1)
    is_flat = laplace.undetermined[first:].reshape(gate.n_components, -1)
    changes = np.einsum("jabs,jsk->jabk", gate_derivatives(gate).of_covariances, blocks)
    of_covariances = np.linalg.norm(changes, axis=3)
    spreads = np.sqrt(np.einsum("jaa->ja", gate.covariances))
    is_held = of_covariances < _ROUNDING * spreads[:, :, None] * spreads[:, None, :]
    of_covariances[is_held] = 0.0
    of_covariances[is_flat[:, n_gate:].any(axis=1)] = np.nan
    of_means = np.linalg.norm(blocks[:, :n_gate], axis=2)
    of_means[is_flat[:, :n_gate]] = np.nan
    return replace(errors, gate_means=of_means.T, gate_covariances=of_covariances)


def _user_factors(scales: FloatArray) -> FloatArray:
    """What the entries of one density's vector are multiplied with: logarithms are only shifted."""
    first, second = np.tril_indices(len(scales))
    return np.concatenate([scales, np.where(first == second, 1.0, scales[first])])
