r"""Sums over rows with several responses: log-likelihood, score, complete and observed information.

With :math:`s_{ij}` the score of row i under component j (entries of the component's own parameters,
and :math:`e_j - w` for the logits) and :math:`R_{ij}` its responsibility,

.. math:: I = -\sum_{ij} R_{ij} \nabla^2 \log p_j(y_i)
    - \sum_i \Big[ \sum_j R_{ij} s_{ij} s_{ij}' - \bar s_i \bar s_i' \Big].

The first part is the information of the complete data, block by block; the second is missing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import sum_over_blocks
from moment_init.families.density import normalise_joint
from moment_init.responses.kinds import PredictorDerivatives, ResponseKind
from moment_init.responses.parameters import JointParameters, Layout
from moment_init.responses.rows import JointProblem, JointRows

__all__ = ["JointSums", "log_likelihood", "predictors", "row_posterior", "sum_rows"]

FloatArray = NDArray[np.float64]

_SMALLEST_TAU_SHARE = 0.05
"""Least information on a log dispersion, in rows: where the observed one is not positive, a step
must still be finite."""


@dataclass(frozen=True, slots=True, eq=False)
class JointSums:
    """Log-likelihood with its derivatives; N parameters, q of each component.

    Parameters
    ----------
    log_likelihood : float
        Without the terms that are free of all parameters.
    gradient : numpy.ndarray, shape (N,)
        The score.
    metric : numpy.ndarray, shape (N, N)
        Information of the complete data without that between predictors and dispersions: positive
        definite, its inverse times the gradient is a step of EM.
    information : numpy.ndarray, shape (N, N), or None
        Observed information.
    score_products : numpy.ndarray, shape (n_components, q, q), or None
        Sums of R s s' in each component.
    complete : numpy.ndarray, shape (n_components, q, q)
        Information of the complete data.
    totals : numpy.ndarray, shape (n_components,)
        Sums of the responsibilities.
    """

    log_likelihood: float
    gradient: FloatArray
    metric: FloatArray
    information: FloatArray | None
    score_products: FloatArray | None
    complete: FloatArray
    totals: FloatArray


def predictors(rows: JointRows, parameters: JointParameters) -> FloatArray:
    """Linear predictors of rows.

    Parameters
    ----------
    rows : JointRows
        The rows.
    parameters : JointParameters
        The parameters.

    Returns
    -------
    numpy.ndarray, shape (n_predictors, n_components, n_obs)
        The predictors.
    """
    p, r, n_predictors = parameters.coefficients.shape
    flat = parameters.coefficients.transpose(0, 2, 1).reshape(p, n_predictors * r)
    eta = (flat.T @ rows.Z.T).reshape(n_predictors, r, rows.n_obs)
    eta += parameters.biases.T[:, :, None]
    if rows.offset is not None:
        eta += rows.offset[:, None, :]
    return np.asarray(eta)


def row_posterior(
    kind: ResponseKind, rows: JointRows, parameters: JointParameters
) -> tuple[FloatArray, FloatArray, PredictorDerivatives]:
    """Log density of every row, responsibilities, and derivatives under every component.

    Parameters
    ----------
    kind : ResponseKind
        How responses depend on predictors.
    rows : JointRows
        The rows.
    parameters : JointParameters
        The parameters, in the coordinates of the rows.

    Returns
    -------
    log_density : numpy.ndarray, shape (n_obs,)
        Without `ResponseKind.log_base_measure`.
    responsibilities : numpy.ndarray, shape (n_components, n_obs)
        Posterior probabilities of the components.
    derivatives : PredictorDerivatives
        Derivatives of each component's log density.
    """
    dispersion = None if parameters.dispersion is None else parameters.dispersion.T
    derivatives = kind.derivatives(rows.y, predictors(rows, parameters), dispersion, rows.n_trials)
    joint = derivatives.value + np.log(parameters.weights)[:, None]
    log_density, shares = normalise_joint(joint)
    return log_density, shares, derivatives


def log_likelihood(problem: JointProblem, parameters: JointParameters) -> float:
    """Log-likelihood in standardised coordinates, without constants.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Standardised parameters.

    Returns
    -------
    float
        The log-likelihood.
    """

    def block(part: slice) -> tuple[FloatArray, ...]:
        rows = problem.rows.take(part)
        density, _, _ = row_posterior(problem.kind, rows, parameters)
        return (np.asarray(rows.sample_weight @ density),)

    (total,) = sum_over_blocks(block, problem.rows.n_obs, _doubles(problem))
    return float(total)


def sum_rows(
    problem: JointProblem,
    parameters: JointParameters,
    *,
    shares: FloatArray | None = None,
    has_information: bool = True,
) -> JointSums:
    """Sum log-likelihood and derivatives over the rows.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    parameters : JointParameters
        Standardised parameters.
    shares : numpy.ndarray, shape (n_components, n_obs), optional
        Responsibilities that are held; the expected complete-data log-likelihood is then summed.
    has_information : bool
        Whether to sum the observed information too.

    Returns
    -------
    JointSums
        The sums.
    """
    layout = problem.layout

    def block(part: slice) -> tuple[FloatArray, ...]:
        rows = problem.rows.take(part)
        density, posterior, derivatives = row_posterior(problem.kind, rows, parameters)
        if shares is not None:
            posterior = shares[:, part]
            joint = derivatives.value + np.log(parameters.weights)[:, None]
            density = (posterior * joint).sum(axis=0)
        return _block_sums(
            layout, rows, parameters, density, posterior, derivatives, has_information
        )

    value, gradient, complete, totals, *rest = sum_over_blocks(
        block, problem.rows.n_obs, _doubles(problem)
    )
    metric = _metric(layout, complete, totals, parameters.weights)
    information = products = None
    if rest:
        products = rest[1]
        information = _observed(layout, complete, totals, parameters.weights, *rest)
    return JointSums(float(value), gradient, metric, information, products, complete, totals)


def _doubles(problem: JointProblem) -> int:
    """Doubles that a row needs: predictors with derivatives, scores of all parameters."""
    layout = problem.layout
    return 12 * problem.kind.n_predictors * layout.n_components + 2 * layout.size


def _block_sums(
    layout: Layout,
    rows: JointRows,
    parameters: JointParameters,
    density: FloatArray,
    posterior: FloatArray,
    derivatives: PredictorDerivatives,
    has_information: bool,
) -> tuple[FloatArray, ...]:
    """Sums over some rows, in the order in which `sum_rows` reads them."""
    inputs = np.column_stack([rows.Z, np.ones(rows.n_obs)])
    weighted = posterior * rows.sample_weight
    r, q = layout.n_components, layout.component_size
    totals = weighted.sum(axis=1)
    gradient = np.zeros(layout.size)
    complete = np.zeros((r, q, q))
    for j in range(r):
        own = gradient[layout.component(j)]
        for a in range(len(layout.has_dispersion)):
            place = layout.predictor(a)
            own[place] = (weighted[j] * derivatives.first[a, j]) @ inputs
            if a in derivatives.tau:
                tau1, tau2, mixed = (each[j] for each in derivatives.tau[a])
                own[place.stop] = weighted[j] @ tau1
                complete[j, place.stop, place.stop] = -(weighted[j] @ tau2)
                crossed = -(weighted[j] * mixed) @ inputs
                complete[j, place, place.stop] = complete[j, place.stop, place] = crossed
        for (a, b), second in derivatives.second.items():
            product = inputs.T @ (inputs * -(weighted[j] * second[j])[:, None])
            complete[j, layout.predictor(a), layout.predictor(b)] = product
            complete[j, layout.predictor(b), layout.predictor(a)] = product
    gradient[layout.logits] = (totals - totals.sum() * parameters.weights)[:-1]
    value = np.asarray(rows.sample_weight @ density)
    if not has_information:
        return value, gradient, complete, totals
    parts = _missing(layout, rows, inputs, posterior, weighted, derivatives)
    return value, gradient, complete, totals, *parts


def _missing(
    layout: Layout,
    rows: JointRows,
    inputs: FloatArray,
    posterior: FloatArray,
    weighted: FloatArray,
    derivatives: PredictorDerivatives,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Products of mean scores (N, N), of each component's (r, q, q), and its sums (r, q).

    The mean scores have the responsibilities in the place of the logits.
    """
    r, q, n_obs = layout.n_components, layout.component_size, rows.n_obs
    mean_scores = np.empty((layout.size, n_obs))
    products, sums = np.empty((r, q, q)), np.empty((r, q))
    for j in range(r):
        scores = mean_scores[layout.component(j)]
        for a in range(len(layout.has_dispersion)):
            place = layout.predictor(a)
            np.multiply(inputs.T, derivatives.first[a, j], out=scores[place])
            if a in derivatives.tau:
                scores[place.stop] = derivatives.tau[a][0][j]
        products[j] = (scores * weighted[j]) @ scores.T
        sums[j] = scores @ weighted[j]
        scores *= posterior[j]
    mean_scores[layout.logits] = posterior[:-1]
    return (mean_scores * rows.sample_weight) @ mean_scores.T, products, sums


def _metric(
    layout: Layout, complete: FloatArray, totals: FloatArray, weights: FloatArray
) -> FloatArray:
    result = np.zeros((layout.size, layout.size))
    for j in range(layout.n_components):
        block = complete[j].copy()
        for a, has_dispersion in enumerate(layout.has_dispersion):
            if has_dispersion:
                place = layout.predictor(a).stop
                information = max(block[place, place], _SMALLEST_TAU_SHARE * totals[j], 1e-8)
                block[place] = block[:, place] = 0.0
                block[place, place] = information
        # What keeps a component without rows from making the matrix singular.
        block[np.diag_indices_from(block)] += 1e-10 * (1.0 + np.diag(block).max())
        result[layout.component(j), layout.component(j)] = block
    result[layout.logits, layout.logits] = totals.sum() * _weight_covariance(weights)
    return result


def _weight_covariance(weights: FloatArray) -> FloatArray:
    """Covariance of the indicators of all components but the last."""
    return np.asarray((np.diag(weights) - np.outer(weights, weights))[:-1, :-1])


def _observed(
    layout: Layout,
    complete: FloatArray,
    totals: FloatArray,
    weights: FloatArray,
    mean_products: FloatArray,
    products: FloatArray,
    sums: FloatArray,
) -> FloatArray:
    """Observed information from its parts.

    In the place of the logits the score e_j - w differs from e_j, and the mean score from the
    responsibilities, by w only, which cancels in a covariance.
    """
    result = mean_products.copy()
    logits = np.arange(layout.size)[layout.logits]
    result[np.ix_(logits, logits)] -= np.diag(totals[:-1])
    result[np.ix_(logits, logits)] += totals.sum() * _weight_covariance(weights)
    for j in range(layout.n_components):
        own = layout.component(j)
        result[own, own] += complete[j] - products[j]
        if j < layout.n_components - 1:
            result[own, logits[j]] -= sums[j]
            result[logits[j], own] -= sums[j]
    return result
