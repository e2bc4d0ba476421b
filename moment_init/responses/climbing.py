r"""Sums over rows with several responses: log-likelihood, score, complete and observed information.

With :math:`s_{ij}` the score of row i under component j (entries of the component's own parameters,
and :math:`e_j - w` for the logits) and :math:`R_{ij}` its responsibility,

.. math:: I = -\sum_{ij} R_{ij} \nabla^2 \log p_j(y_i)
    - \sum_i \Big[ \sum_j R_{ij} s_{ij} s_{ij}' - \bar s_i \bar s_i' \Big].

The first part is the information of the complete data, block by block; the second is missing.

From a start to a maximum of a likelihood: steps of EM, then Newton's, damped.

A step of EM is the complete-data information's inverse times the score (Lange 1995: one Newton step
of the M-step, which for the identity link is the M-step). Newton's step has the observed
information, damped by a multiple of the complete one where it is not positive definite or does not
lead upwards. A step is taken only if the log-likelihood does not fall.

References
----------
K. Lange (1995), A gradient algorithm locally equivalent to the EM algorithm, JRSS B 57, 425-437.

Points of the two likelihoods: coefficients free, or tied to one direction a component.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from moment_init.checks import FloatArray
from moment_init.data.blocks import sum_over_blocks
from moment_init.families.base import normalise_joint
from moment_init.responses.kinds import PredictorDerivatives, ResponseKind
from moment_init.responses.parameters import (
    JointParameters,
    JointProblem,
    JointRows,
    Layout,
    TiedParameters,
    TiedPlaces,
    enforce,
    held_entries,
)
from moment_init.results import StartStatus

_SMALLEST_TAU_SHARE = 0.05
"""Least information on a log dispersion, in rows: where the observed one is not positive, a step
must still be finite."""


@dataclass(frozen=True, slots=True, eq=False)
class JointSums:
    """Log-likelihood with its derivatives; N parameters, q of each component."""

    log_likelihood: float  # without the terms that are free of all parameters
    gradient: FloatArray  # the score; (N,)
    # information of the complete data without that between predictors and dispersions: positive
    # definite, its inverse times the gradient is a step of EM; (N, N)
    metric: FloatArray
    information: FloatArray | None  # observed information; (N, N)
    score_products: FloatArray | None  # sums of R s s' in each component; (n_components, q, q)
    complete: FloatArray  # information of the complete data; (n_components, q, q)
    totals: FloatArray  # sums of the responsibilities; (n_components,)


def predictors(rows: JointRows, parameters: JointParameters) -> FloatArray:
    """Linear predictors of rows."""
    # -> (n_predictors, n_components, n_obs)
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
    """Log density of every row, responsibilities, and derivatives under every component."""
    # -> (n_obs,), (n_components, n_obs), ...
    dispersion = None if parameters.dispersion is None else parameters.dispersion.T
    derivatives = kind.derivatives(rows.y, predictors(rows, parameters), dispersion, rows.n_trials)
    joint = derivatives.value + np.log(parameters.weights)[:, None]
    log_density, shares = normalise_joint(joint)
    return log_density, shares, derivatives


def log_likelihood(problem: JointProblem, parameters: JointParameters) -> float:
    """Log-likelihood in standardised coordinates, without constants."""

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
    """Sum log-likelihood and derivatives over the rows."""
    # shares: (n_components, n_obs)
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


EM_STEPS = 12
"""Steps of EM before Newton's: from a rough start they are the safer ones."""

LARGEST_STEP = 2.0
"""Largest change of a logit or of the logarithm of a dispersion in one step."""

FIRST_DAMPING, LARGEST_DAMPING, NO_DAMPING = 1e-2, 1e6, 1e-6
"""Damping after a first failure; beyond which a run has stalled; and below which it is dropped."""

HALVINGS = 12
"""How often a step of EM is halved before a run has stalled."""

FLAT_SHARE = 0.1
"""Where no step of Newton's leads upwards a run has converged if EM is predicted to gain less than
this share of the tolerance."""

ROUNDING = 1e-11
"""Relative fall of the log-likelihood that is rounding."""


class System(NamedTuple):
    """What a step is computed from."""

    gradient: FloatArray  # the score; (N,)
    metric: FloatArray  # A positive definite matrix, that of EM; (N, N)
    information: FloatArray | None  # observed information; (N, N)
    held: NDArray[np.bool_]  # entries that do not move; (N,)


class Point(Protocol):
    """Parameters at which a likelihood is evaluated."""

    @property
    def value(self) -> float:
        """Log-likelihood."""

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step, (N,)."""

    def system(self, *, has_information: bool) -> System:
        """Derivatives."""

    def moved(self, step: FloatArray) -> Self:
        """Parameters after a step, inside their bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Climb[P: Point]:
    """A finished run."""

    point: P  # where it ended
    history: tuple[float, ...]  # log-likelihood at the start and after every step
    status: StartStatus  # how it ended

    @property
    def value(self) -> float:
        """Log-likelihood at the end."""
        return self.history[-1]

    @property
    def n_iter(self) -> int:
        """Number of steps."""
        return len(self.history) - 1


def climb[P: Point](
    start: P, *, max_steps: int, tolerance: float = 1e-6, em_steps: int = EM_STEPS
) -> Climb[P]:
    """Climb from a start."""
    point, history = start, [start.value]
    for _ in range(min(em_steps, max_steps)):
        found = _em_step(point)
        if found is None:
            break
        gain = found.value - point.value
        point = found
        history.append(point.value)
        if gain < tolerance:
            break
    damping = 0.0
    while True:
        step, damping, is_converged = _newton_step(point, damping, tolerance)
        if is_converged and step is None:
            return Climb(point, tuple(history), StartStatus.CONVERGED)
        if len(history) > max_steps:
            return Climb(point, tuple(history), StartStatus.OUT_OF_STEPS)
        if step is None:
            return Climb(point, tuple(history), StartStatus.STALLED)
        point = step
        history.append(point.value)
        if is_converged:
            return Climb(point, tuple(history), StartStatus.CONVERGED)


def short_climb[P: Point](start: P, n_steps: int) -> Climb[P]:
    """Take some steps of EM."""
    point, history = start, [start.value]
    for _ in range(n_steps):
        found = _em_step(point)
        if found is None:
            break
        point = found
        history.append(point.value)
    return Climb(point, tuple(history), StartStatus.RACED)


def _em_step[P: Point](point: P) -> P | None:
    """A step of EM, halved until the log-likelihood does not fall; None if it cannot rise."""
    system = point.system(has_information=False)
    step = _solve(system.metric, system)
    if step is None:
        return None
    return _line_search(point, step)


def _line_search[P: Point](point: P, step: FloatArray) -> P | None:
    step = np.clip(step, -point.limits, point.limits)
    for _ in range(HALVINGS):
        found = point.moved(step)
        if _is_higher(found.value, point.value):
            return found
        step = step / 2.0
    return None


def _is_higher(new: float, old: float) -> bool:
    return bool(np.isfinite(new)) and new >= old - ROUNDING * (1.0 + abs(old))


def _newton_step[P: Point](
    point: P, damping: float, tolerance: float
) -> tuple[P | None, float, bool]:
    """A step, the damping of the next one, and whether the run has converged with it.

    None with True: nothing to gain; None with False: no step leads upwards.
    """
    system = point.system(has_information=True)
    if system.information is None:
        raise ValueError("the observed information is needed for Newton's step")
    while damping <= LARGEST_DAMPING:
        step = _solve(system.information + damping * system.metric, system)
        if step is not None:
            predicted = 0.5 * float(step @ system.gradient)
            limited = np.clip(step, -point.limits, point.limits)
            found = point.moved(limited)
            if _is_higher(found.value, point.value):
                is_small = predicted < tolerance and damping <= FIRST_DAMPING
                if found.value <= point.value:
                    # Rounding: there is nothing above within reach.
                    return None, damping, is_small
                gain = found.value - point.value
                damping = _relaxed(damping) if gain > 0.25 * predicted else damping
                return found, damping, is_small
            if predicted < tolerance and damping <= FIRST_DAMPING:
                return None, damping, True
        damping = max(4.0 * damping, FIRST_DAMPING)
    gained = _em_step(point)
    if gained is None or gained.value - point.value < tolerance:
        # A flat place: the information is singular, and EM does not move either.
        flat = _solve(system.metric, system)
        decrement = np.inf if flat is None else 0.5 * float(flat @ system.gradient)
        return None, 0.0, decrement < FLAT_SHARE * tolerance
    return gained, 0.0, False


def _relaxed(damping: float) -> float:
    return 0.0 if damping < NO_DAMPING else damping / 8.0


def _solve(matrix: FloatArray, system: System) -> FloatArray | None:
    """Step for the entries that move; None if the matrix is not positive definite."""
    free = ~system.held
    step = np.zeros(len(free))
    if not free.any():
        return step
    if not np.isfinite(system.gradient).all() or not np.isfinite(matrix).all():
        return None
    inner = matrix[np.ix_(free, free)]
    # Scaled to a unit diagonal: parameters differ in units and in how many rows speak of them.
    diagonal = np.diag(inner)
    if diagonal.min() <= 0.0:
        return None
    roots = np.sqrt(diagonal)
    try:
        factor = cho_factor(inner / np.outer(roots, roots))
    except np.linalg.LinAlgError:
        return None
    step[free] = cho_solve(factor, system.gradient[free] / roots) / roots
    return step


@dataclass(frozen=True, eq=False)
class FreePoint:
    """Every predictor of a component has coefficients of its own."""

    problem: JointProblem  # the problem
    parameters: JointParameters  # standardised parameters inside the bounds

    @classmethod
    def inside(cls, problem: JointProblem, parameters: JointParameters) -> "FreePoint":
        """A point at given parameters, moved inside the bounds."""
        order = np.argsort(parameters.weights, kind="stable")
        return cls(problem, enforce(problem, parameters.take(order)))

    @cached_property
    def _light_sums(self) -> JointSums:
        """Sums without information: a step of EM begins where the one before was evaluated."""
        return sum_rows(self.problem, self.parameters, has_information=False)

    @property
    def value(self) -> float:
        """Log-likelihood in standardised coordinates."""
        return self._light_sums.log_likelihood

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step."""
        return _limits(self.problem.layout)

    def system(self, *, has_information: bool) -> System:
        """Derivatives of the log-likelihood."""
        sums = sum_rows(self.problem, self.parameters) if has_information else self._light_sums
        held = held_entries(self.problem, self.parameters, sums.gradient)
        return System(sums.gradient, sums.metric, sums.information, held)

    def moved(self, step: FloatArray) -> "FreePoint":
        """Take a step."""
        # step: (N,)
        layout = self.problem.layout
        there = layout.unpack(layout.pack(self.parameters) + step)
        return FreePoint(self.problem, enforce(self.problem, there))


@dataclass(frozen=True, eq=False)
class TiedPoint:
    """All predictors of a component have one direction: beta_ja = s_ja u_j.

    The vector holds component by component u_j and, predictor by predictor, (s_ja, b_ja[, log
    dispersion_ja]); then the logits. One entry of each component is redundant, the length of u_j.
    """

    problem: JointProblem  # the problem
    parameters: TiedParameters  # standardised parameters inside the bounds
    holds_directions: bool = False  # whether directions do not move

    @classmethod
    def inside(
        cls, problem: JointProblem, parameters: TiedParameters, *, holds_directions: bool = False
    ) -> "TiedPoint":
        """A point at given parameters, moved inside the bounds."""
        ordered = parameters.take(np.argsort(parameters.weights, kind="stable"))
        return cls(problem, _enforced(problem, ordered), holds_directions)

    @cached_property
    def _light_sums(self) -> JointSums:
        """Sums without information."""
        return sum_rows(self.problem, self.parameters.free, has_information=False)

    @property
    def value(self) -> float:
        """Log-likelihood in standardised coordinates."""
        return self._light_sums.log_likelihood

    @property
    def limits(self) -> FloatArray:
        """Largest change of each entry in one step."""
        full = _limits(self.problem.layout)
        return np.asarray(np.where(self.places.min_limit(full), LARGEST_STEP, np.inf))

    @property
    def places(self) -> TiedPlaces:
        """Places of the parameters in their vector."""
        return TiedPlaces(self.problem.layout)

    def system(self, *, has_information: bool) -> System:
        """Derivatives of the log-likelihood, by the chain rule."""
        sums = sum_rows(self.problem, self.parameters.free) if has_information else self._light_sums
        jacobian = self.places.jacobian(self.parameters)
        gradient = sums.gradient @ jacobian
        metric = jacobian.T @ sums.metric @ jacobian
        fixing = np.zeros_like(metric)
        if not self.holds_directions:  # directions that are held leave scales determined
            gauge = self.places.gauge(self.parameters)
            fixing = gauge @ gauge.T * max(np.diag(metric).mean(), 1.0)
        information = None
        if sums.information is not None:
            curvature = self.places.curvature(sums.gradient)
            information = jacobian.T @ sums.information @ jacobian - curvature + fixing
        metric = metric + fixing
        metric[np.diag_indices_from(metric)] += 1e-10 * np.diag(metric).max()
        return System(gradient, metric, information, self._held(sums.gradient))

    def _held(self, gradient: FloatArray) -> NDArray[np.bool_]:
        full = held_entries(self.problem, self.parameters.free, gradient)
        held = self.places.held(full)
        if self.holds_directions:
            for j in range(self.problem.n_components):
                held[self.places.direction(j)] = True
        return held

    def moved(self, step: FloatArray) -> "TiedPoint":
        """Take a step."""
        # step: (M,)
        there = self.places.unpack(self.places.pack(self.parameters) + step)
        return TiedPoint(self.problem, _enforced(self.problem, there), self.holds_directions)


def _limits(layout: Layout) -> FloatArray:
    """Limits of a step: logits and log dispersions."""
    result = np.full(layout.size, np.inf)
    for j in range(layout.n_components):
        for a, has_dispersion in enumerate(layout.has_dispersion):
            if has_dispersion:
                result[layout.component(j).start + layout.predictor(a).stop] = LARGEST_STEP
    result[layout.logits] = LARGEST_STEP
    return result


def _enforced(problem: JointProblem, parameters: TiedParameters) -> TiedParameters:
    """Tied parameters inside the bounds: a predictor that is too long is shrunk as a whole."""
    inside = enforce(problem, parameters.free)
    scales = np.einsum("pj,pja->ja", parameters.directions, inside.coefficients)
    return TiedParameters(
        parameters.directions, scales, inside.biases, inside.weights, inside.dispersion
    )
