r"""Observed information of a fit, its inverse and standard errors.

The information is inverted in standardised coordinates, on the directions that restrictions and
active bounds leave free. The result is mapped to the user's vector of parameters, in the order of
`moment_init.likelihood.parameters`, as a root :math:`R` of the covariance :math:`R R'`. If the
information is singular, only its positive part is inverted, and the parameters that depend on the
rest are marked as undetermined. With a Gaussian gate the information is that of the joint
likelihood, and the parameters of the gate follow in the order of `moment_init.likelihood.gate`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, null_space
from scipy.stats import chi2

from moment_init.checks import FloatArray
from moment_init.em.gaussian_gate import GatedProblem, GatedRun
from moment_init.em.problem import EMProblem
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.gate import GaussianGate, gate_derivatives, gate_size
from moment_init.likelihood.parameters import (
    ActiveBound,
    LinearConstraint,
    MixtureParameters,
    active_bounds,
    bounds_of,
    component_size,
    component_vectors,
    parameter_count,
)
from moment_init.likelihood.sums import LikelihoodSums

BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.intp]

_SMALLEST_INFORMATION = 1e-8
"""Eigenvalues of the information below this share of the complete-data one count as zero. Both are
sums with a relative rounding error of about 1e-13, and an estimate with only this share left has
ten thousand times the standard error that known components would give."""

_SMALLEST_LOADING = 1e-10
"""A parameter is undetermined if more than this share of its squared loadings lies in directions
without information. Eigenvectors have errors of about 1e-16 / 1e-8 = 1e-8, so squared loadings
below 1e-16 are rounding."""

_SMALLEST_DIAGONAL = 1e-12
"""Lower limit of the diagonal of the complete-data information, by which entries are scaled."""


@dataclass(frozen=True, slots=True, eq=False)
class LaplaceApproximation:
    """Normal approximation of the likelihood at its maximum.

    Parameters
    ----------
    root : numpy.ndarray, shape (n_parameters, n_determined)
        Root R of the covariance R R' of the user's vector of parameters. Its columns are linearly
        independent; parameters that are fixed or lie on a bound have rows of zeros.
    undetermined : numpy.ndarray of bool, shape (n_parameters,)
        Parameters for which the information is singular.
    """

    root: FloatArray
    undetermined: BoolArray

    @property
    def covariance(self) -> FloatArray | None:
        """Covariance (n_parameters, n_parameters); NaN where undetermined, None if all are."""
        if self.undetermined.all():
            return None
        result = self.root @ self.root.T
        result[self.undetermined] = np.nan
        result[:, self.undetermined] = np.nan
        return np.asarray(result)


@dataclass(frozen=True, slots=True, eq=False)
class StandardErrors:
    """Standard errors: NaN where the information is singular, zero for fixed parameters.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        Standard errors of the coefficients. With several responses or classes, those of
        coefficients, biases and dispersion have a leading axis, as in `EMFit`.
    biases, weights : numpy.ndarray, shape (n_components,)
        Standard errors of biases and weights; of weights by the delta method from the logits.
    dispersion : numpy.ndarray, shape (n_components,), or None
        Standard errors of the dispersion, by the delta method from its logarithm.
    gate : numpy.ndarray, shape (n_gate, n_components), or None
        Standard errors of the slopes of the gate; zero for the last component, the reference.
    gate_biases : numpy.ndarray, shape (n_components,), or None
        Standard errors of the logits of the gate at covariates zero.
    gate_means : numpy.ndarray, shape (n_gate, n_components), or None
        Standard errors of the means of a Gaussian gate.
    gate_covariances : numpy.ndarray, shape (n_components, n_gate, n_gate), or None
        Standard errors of the covariances of a Gaussian gate, by the delta method from their roots.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None
    gate: FloatArray | None = None
    gate_biases: FloatArray | None = None
    gate_means: FloatArray | None = None
    gate_covariances: FloatArray | None = None


def laplace_of(
    problem: EMProblem, end: MaximiseResult, order: IndexArray | None = None
) -> tuple[LaplaceApproximation, tuple[str, ...]]:
    """Invert the observed information at the end of a run, in the user's units."""
    # order: (n_components,)
    at = end.parameters
    active = active_bounds_of(problem, at)
    basis = free_basis(problem.constraint(at), active, parameter_count(at))
    lift = to_user_matrix(problem, at, order) @ basis
    return invert_information(curved_sums(problem, end), basis, lift)


def standardised_errors(
    sums: LikelihoodSums, constraint: LinearConstraint | None, active: list[ActiveBound]
) -> FloatArray:
    """Standard errors of the standardised parameters; NaN where the information is singular."""
    # -> (n_parameters,)
    basis = free_basis(constraint, active, len(sums.score))
    laplace, _ = invert_information(sums, basis, basis)
    errors = np.linalg.norm(laplace.root, axis=1)
    errors[laplace.undetermined] = np.nan
    return errors


COINCIDENCE_LEVEL = 0.05
"""Level of the test whether two components coincide. A fit cuts one component where its parts
differ most, so that the test finds only some: 21 of 60 fits with two components to data from one
have a doubtful status. A level of 1e-4 finds half of them, but doubts true components of classes
and of a few hundred counts, too."""


def coinciding_components(
    parameters: MixtureParameters, laplace: LaplaceApproximation
) -> list[tuple[int, int]]:
    """Pairs of components whose parameters do not differ by more than their errors (Wald test)."""
    r, q = parameters.n_components, component_size(parameters)
    vectors, blocks = component_vectors(parameters), laplace.root[: r * q].reshape(r, q, -1)
    is_flat = laplace.undetermined[: r * q].reshape(r, q)
    pairs = []
    for j, k in zip(*np.triu_indices(r, k=1), strict=True):
        root = blocks[j] - blocks[k]
        errors = np.linalg.norm(root, axis=1)
        free = (errors > 0.0) & ~(is_flat[j] | is_flat[k])
        gap = ((vectors[j] - vectors[k])[free]) / errors[free]
        directions, sizes, _ = np.linalg.svd(root[free] / errors[free, None], full_matrices=False)
        is_determined = sizes > _SMALLEST_LOADING
        scores = (gap @ directions)[is_determined] / sizes[is_determined]
        if len(scores) and scores @ scores < chi2.isf(COINCIDENCE_LEVEL, len(scores)):
            pairs.append((int(j), int(k)))
    return pairs


def invert_information(
    sums: LikelihoodSums, basis: FloatArray, lift: FloatArray
) -> tuple[LaplaceApproximation, tuple[str, ...]]:
    """Invert the positive part of an observed information; warn about the rest."""
    # basis: (n_parameters, n_free), lift: (n_user_parameters, n_free)
    information = basis.T @ sums.information() @ basis
    complete = np.diag(basis.T @ sums.complete_information @ basis)
    if not np.all(np.isfinite(information)):
        nothing = LaplaceApproximation(np.zeros((len(lift), 0)), np.any(lift != 0.0, axis=1))
        return nothing, ("The information is not finite: there are no standard errors.",)
    scale = np.sqrt(np.maximum(np.abs(complete), _SMALLEST_DIAGONAL))
    values, vectors = np.linalg.eigh(information / np.outer(scale, scale))
    loadings = (lift / scale) @ vectors
    is_positive = values > _SMALLEST_INFORMATION
    flat = np.square(loadings[:, ~is_positive]).sum(axis=1)
    undetermined = flat > _SMALLEST_LOADING * np.square(loadings).sum(axis=1)
    root = loadings[:, is_positive] / np.sqrt(values[is_positive])
    return LaplaceApproximation(root, undetermined), _warn_of_flat(values, undetermined)


def active_bounds_of(problem: EMProblem, parameters: MixtureParameters) -> list[ActiveBound]:
    """Return the bounds of a problem that are active at given parameters."""
    has_fixed_weights = problem.restrictions.weights is not None
    bounds = bounds_of(
        problem.family,
        min_weight=0.0 if has_fixed_weights else problem.min_weight,
        min_dispersion_ratio=problem.min_dispersion_ratio,
    )
    return active_bounds(parameters, bounds)


def centring_matrix(parameters: MixtureParameters, centre: FloatArray | None) -> FloatArray:
    """Return the matrix that shifts logits from covariates zero to the centre of the gate."""
    # centre: (n_gate,) -> (n_parameters, n_parameters)
    result = np.eye(parameter_count(parameters))
    if centre is not None:
        for row in _logit_rows(parameters):
            result[row, row + 1 : row + 1 + len(centre)] = centre
    return result


def standard_errors_of(
    parameters: MixtureParameters, laplace: LaplaceApproximation, centre: FloatArray | None
) -> StandardErrors:
    r"""Compute standard errors of the parameters on their natural scale.

    The delta method uses :math:`\partial w_j / \partial l_k = w_j (\delta_{jk} - w_k)` for weights
    with logits l, and :math:`\phi` times the error of :math:`\log\phi` for a dispersion.
    """
    # centre: (n_gate,)
    r, layout = parameters.n_components, parameters.layout
    q, places = layout.size, layout.slopes
    errors = np.linalg.norm(laplace.root, axis=1)
    errors[laplace.undetermined] = np.nan
    blocks = errors[: r * q].reshape(r, q)
    gate = np.zeros((1 + parameters.n_gate, r))
    gate[:, :-1] = errors[r * q :].reshape(r - 1, 1 + parameters.n_gate).T
    has_gate = parameters.gate is not None
    slopes = blocks[:, places[:, :-1]].transpose(1, 2, 0)  # (P, n_features, r)
    dispersion = None
    if parameters.spreads is not None:
        spreads = parameters.spreads.copy()
        spreads[layout.dispersed] *= blocks[:, layout.dispersions].T
        dispersion = spreads.reshape(parameters.biases.shape)
    return StandardErrors(
        coefficients=slopes.reshape(parameters.coefficients.shape),
        biases=blocks[:, places[:, -1]].T.reshape(parameters.biases.shape),
        weights=_weight_errors(parameters, laplace, centre),
        dispersion=dispersion,
        gate=gate[1:] if has_gate else None,
        gate_biases=gate[0] if has_gate else None,
    )


def _weight_errors(
    parameters: MixtureParameters, laplace: LaplaceApproximation, centre: FloatArray | None
) -> FloatArray:
    """Compute the errors of the weights at the centre; all NaN if a logit is undetermined."""
    rows = _logit_rows(parameters)
    if laplace.undetermined[rows.start if rows else len(laplace.undetermined) :].any():
        return np.full(parameters.n_components, np.nan)
    logits = (centring_matrix(parameters, centre) @ laplace.root)[rows]
    weights = parameters.weights
    jacobian = (np.diag(weights) - np.outer(weights, weights))[:, :-1]
    return np.asarray(np.linalg.norm(jacobian @ logits, axis=1))


def _logit_rows(parameters: MixtureParameters) -> range:
    """Return the positions of the logits in the vector; each is followed by its gate slopes."""
    first = parameters.n_components * component_size(parameters)
    return range(first, parameter_count(parameters), 1 + parameters.n_gate)


def curved_sums(problem: EMProblem, end: MaximiseResult) -> LikelihoodSums:
    """Return the sums at the end of a run, with the curvature, which EM steps do not compute."""
    if end.sums.missing_information is not None:
        return end.sums
    return problem.sums(end.parameters)


def free_basis(
    constraint: LinearConstraint | None, active: list[ActiveBound], n_parameters: int
) -> FloatArray:
    """Return orthonormal directions that restrictions and active bounds leave free."""
    # -> (n_parameters, n_free)
    basis = np.eye(n_parameters) if constraint is None else constraint.basis
    if not active:
        return basis
    normals = np.array([bound.inward for bound in active])
    return np.asarray(basis @ null_space(normals @ basis))


def to_user_matrix(
    problem: EMProblem, parameters: MixtureParameters, order: IndexArray | None
) -> FloatArray:
    """Return the linear part of the map from the standardised vector to the user's."""
    # order: (n_components,) -> (n_user_parameters, n_parameters)
    standardising = problem.standardising_matrix(parameters)
    to_user = np.linalg.solve(standardising, np.eye(len(standardising)))
    if problem.restrictions.directions is not None:
        to_user = _lifting_matrix(parameters, problem.restrictions.directions) @ to_user
    if order is None:
        return to_user
    n_logits = (parameters.n_components - 1) * (1 + parameters.n_gate)
    size = (len(to_user) - n_logits) // parameters.n_components
    return _ordering_matrix(order, size, 1 + parameters.n_gate) @ to_user


def _lifting_matrix(parameters: MixtureParameters, directions: FloatArray) -> FloatArray:
    """Return the matrix from one coefficient per fixed direction to those of all columns."""
    p = parameters.n_features
    rest = np.eye(component_size(parameters) - p)
    blocks = []
    for component, direction in enumerate(directions.T):
        lifted = np.zeros((len(direction), p))
        lifted[:, component] = direction
        blocks.append(block_diag(lifted, rest))
    n_logits = (parameters.n_components - 1) * (1 + parameters.n_gate)
    return np.asarray(block_diag(*blocks, np.eye(n_logits)))


def _ordering_matrix(order: IndexArray, size: int, gate_size: int) -> FloatArray:
    """Return the permutation of components, with logits relative to the new last one."""
    chosen = np.eye(len(order))[order]
    about_last = (chosen - chosen[-1])[:-1, :-1]  # the old last logit is zero
    return np.asarray(
        block_diag(np.kron(chosen, np.eye(size)), np.kron(about_last, np.eye(gate_size)))
    )


def _warn_of_flat(values: FloatArray, undetermined: BoolArray) -> tuple[str, ...]:
    n_flat = int(np.sum(values <= _SMALLEST_INFORMATION))
    if n_flat == 0:
        return ()
    reason = "is singular"
    if values.min() < -_SMALLEST_INFORMATION:
        reason = "is singular or negative (so this is not a maximum)"
    return (
        f"The information {reason} in {n_flat} of {len(values)} directions. The standard errors of "
        f"{int(undetermined.sum())} parameters are NaN, and draws vary in the other directions "
        "only. Use fewer components or more rows, or run the search longer.",
    )


_ROUNDING = 1e-10
"""Relative standard error below which a variance of the gate counts as fixed: only 1e20 rows could
estimate a variance so well."""


def gated_laplace_of(
    gated: GatedProblem, run: GatedRun, order: IndexArray
) -> tuple[LaplaceApproximation, tuple[str, ...]]:
    """Invert the observed information of the joint likelihood, in the user's units."""
    # order: (n_components,)
    likelihood = gated.likelihood(run.at.mixture)
    sums = run.sums
    if sums.missing_information is None:
        sums = likelihood.sums(run.at, missing=True)
    basis = free_basis(likelihood.constraint, likelihood.active(run.at), len(sums.score))
    of_mixture = to_user_matrix(gated, run.at.mixture, order)
    of_gate = np.kron(np.eye(len(order))[order], np.diag(_user_factors(gated.gating.scales)))
    return invert_information(sums, basis, block_diag(of_mixture, of_gate) @ basis)


def gated_standard_errors(
    parameters: MixtureParameters, gate: GaussianGate, laplace: LaplaceApproximation
) -> StandardErrors:
    """Compute standard errors with a Gaussian gate, on the natural scale of the parameters."""
    first, n_gate = parameter_count(parameters), gate.n_gate
    of_mixture = LaplaceApproximation(laplace.root[:first], laplace.undetermined[:first])
    errors = standard_errors_of(parameters, of_mixture, None)
    blocks = laplace.root[first:].reshape(gate.n_components, gate_size(n_gate), -1)
    is_flat = laplace.undetermined[first:].reshape(gate.n_components, -1)
    changes = np.einsum("jabs,jsk->jabk", gate_derivatives(gate).of_covariances, blocks)
    of_covariances = np.linalg.norm(changes, axis=3)
    spreads = np.sqrt(np.einsum("jaa->ja", gate.covariances))
    is_fixed = of_covariances < _ROUNDING * spreads[:, :, None] * spreads[:, None, :]
    of_covariances[is_fixed] = 0.0
    of_covariances[is_flat[:, n_gate:].any(axis=1)] = np.nan
    of_means = np.linalg.norm(blocks[:, :n_gate], axis=2)
    of_means[is_flat[:, :n_gate]] = np.nan
    return replace(errors, gate_means=of_means.T, gate_covariances=of_covariances)


def _user_factors(scales: FloatArray) -> FloatArray:
    """Return the factors of the entries of one density's vector; logarithms are only shifted."""
    first, second = np.tril_indices(len(scales))
    return np.concatenate([scales, np.where(first == second, 1.0, scales[first])])
