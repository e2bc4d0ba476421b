"""Starts of a mixture with several responses: a single model, given shares, splits, random ones."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from moment_init.responses.climbing import climb, short_climb
from moment_init.responses.parameters import JointParameters
from moment_init.responses.points import FreePoint
from moment_init.responses.rows import JointProblem
from moment_init.responses.sums import sum_rows

__all__ = ["fit_pooled", "fit_shares", "grow", "mean_predictors", "random_shares", "splits_of"]

FloatArray = NDArray[np.float64]

SHARE_STEPS = 4
"""Newton steps of the M-step from given responsibilities: each doubles the digits."""

SPLITS_EACH = 2
"""Directions in which each component is split."""

CHILD_DEVIATION = 0.6
"""Deviation of a child over that of its parent: a mixture of two hides less spread in each."""

SHORT_STEPS, BEAM_STEPS, BEAM = 8, 12, 2
"""Steps of EM after a split; those of the few that are kept; and how many are."""

ASSIGNED_SHARE = 0.9
"""Responsibility of the component to which a row is assigned at random."""


def fit_pooled(problem: JointProblem) -> JointParameters:
    """Fit a single component.

    Parameters
    ----------
    problem : JointProblem
        The problem.

    Returns
    -------
    JointParameters
        The maximum of the likelihood with one component.
    """
    single = problem.with_components(1)
    p, n_predictors = problem.rows.Z.shape[1], problem.kind.n_predictors
    dispersion = None
    if any(problem.kind.has_dispersion):
        dispersion = np.where(problem.kind.has_dispersion, 1.0, np.nan)[None]
    start = JointParameters(
        np.zeros((p, 1, n_predictors)), mean_predictors(problem)[None], np.ones(1), dispersion
    )
    return climb(FreePoint.inside(single, start), max_steps=60, tolerance=1e-4).point.parameters


def mean_predictors(problem: JointProblem) -> FloatArray:
    """Predictors of the mean responses.

    Parameters
    ----------
    problem : JointProblem
        The problem.

    Returns
    -------
    numpy.ndarray, shape (n_predictors,)
        The link's values at the means, less the mean offset.
    """
    rows = problem.rows
    shares = rows.sample_weight / rows.total_weight
    levels = np.zeros(problem.kind.n_predictors)
    for a, family in enumerate(problem.kind.families):
        if family is None:
            # Half a row of a class that a sample of the rows has none of.
            least = 0.5 / rows.n_obs
            own, reference = (shares @ (rows.y[0] == code) for code in (a + 1, 0))
            levels[a] = np.log(max(own, least) / max(reference, least))
            continue
        trials = rows.n_trials[a] if family.has_trials and rows.n_trials is not None else 1.0
        mean = np.asarray((shares @ rows.y[a]) / (shares @ np.broadcast_to(trials, rows.n_obs)))
        level = float(family.link.link(mean))
        if not np.isfinite(level):  # a sample of the rows whose responses are all the same
            even = family.link.mean(np.zeros(()))
            level = float(family.link.link((rows.n_obs * mean + even) / (rows.n_obs + 1)))
        levels[a] = level
        if rows.offset is not None:
            levels[a] -= float(shares @ rows.offset[a])
    return levels


def fit_shares(
    problem: JointProblem, shares: FloatArray, pooled: JointParameters
) -> JointParameters:
    """Fit every component to rows weighted by given responsibilities: an M-step.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    shares : numpy.ndarray, shape (n_components, n_obs)
        Responsibilities.
    pooled : JointParameters
        A single model, from which Newton's steps start.

    Returns
    -------
    JointParameters
        The parameters.
    """
    r = problem.n_components
    weights = np.maximum(shares @ problem.rows.sample_weight, 1e-8)
    layout = problem.layout
    point = FreePoint(problem, _repeated(pooled, r, weights / weights.sum()))
    for _ in range(SHARE_STEPS):
        sums = sum_rows(problem, point.parameters, shares=shares, has_information=False)
        step = np.linalg.solve(sums.metric, sums.gradient)
        step = np.clip(step, -point.limits, point.limits)
        step[layout.logits] = 0.0
        moved = point.moved(step)
        for _ in range(5):
            value = sum_rows(problem, moved.parameters, shares=shares, has_information=False)
            if value.log_likelihood >= sums.log_likelihood:
                break
            step = step / 4.0
            moved = point.moved(step)
        point = moved
    return point.parameters


def _repeated(pooled: JointParameters, r: int, weights: FloatArray) -> JointParameters:
    return JointParameters(
        np.repeat(pooled.coefficients, r, axis=1),
        np.repeat(pooled.biases, r, axis=0),
        weights,
        None if pooled.dispersion is None else np.repeat(pooled.dispersion, r, axis=0),
    )


def random_shares(problem: JointProblem, rng: np.random.Generator) -> FloatArray:
    """Assign rows to components at random, softly.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    numpy.ndarray, shape (n_components, n_obs)
        Responsibilities.
    """
    r, n_obs = problem.n_components, problem.rows.n_obs
    if r == 1:
        return np.ones((1, n_obs))
    shares = np.full((r, n_obs), (1.0 - ASSIGNED_SHARE) / (r - 1))
    shares[rng.integers(r, size=n_obs), np.arange(n_obs)] = ASSIGNED_SHARE
    return shares


def splits_of(
    problem: JointProblem, parameters: JointParameters, *, n_each: int = SPLITS_EACH
) -> list[tuple[float, int, JointParameters]]:
    r"""Split components where one model hides two: the information-matrix test.

    With :math:`A = \sum_i R_i s_i s_i'` and C the complete information of a component, over all of
    its predictors, the leading eigenvectors of :math:`A - C` relative to C are the directions in
    which the scores vary more than one model allows.

    Parameters
    ----------
    problem : JointProblem
        The problem of as many components as the parameters have.
    parameters : JointParameters
        The parameters.
    n_each : int
        How many splits of each component.

    Returns
    -------
    list of tuple of float, int and JointParameters
        Expected gain, the component that is split, and the mixture with one component more; the
        largest gain first.
    """
    layout = problem.layout
    sums = sum_rows(problem, parameters)
    if sums.score_products is None:
        raise ValueError("score products are summed with the information")
    places = np.concatenate(
        [
            np.arange(layout.component_size)[layout.predictor(a)]
            for a in range(len(layout.has_dispersion))
        ]
    )  # not the dispersions
    found = []
    for j in range(layout.n_components):
        own = layout.component(j)
        metric = sums.metric[own, own][np.ix_(places, places)]
        excess = sums.score_products[j][np.ix_(places, places)] - metric
        values, vectors = eigh(excess, metric)
        for index in range(len(values) - 1, max(-1, len(values) - 1 - n_each), -1):
            move = np.zeros(layout.component_size)
            move[places] = vectors[:, index] * np.sqrt(max(sums.totals[j], 1e-8))
            # Half the squared excess in standard errors: what a test of it would show.
            gain = 0.25 * values[index] * abs(values[index]) * sums.totals[j]
            found.append((float(gain), j, _children(problem, parameters, j, move)))
    return sorted(found, key=lambda each: -each[0])


def _children(
    problem: JointProblem, parameters: JointParameters, j: int, move: FloatArray
) -> JointParameters:
    """The mixture with component j replaced by two, one on each side of it."""
    larger = problem.with_components(problem.n_components + 1).layout
    doubled = parameters.take([*range(parameters.n_components), j])
    weights = parameters.weights[[*range(parameters.n_components), j]].copy()
    weights[[j, -1]] /= 2.0
    dispersion = doubled.dispersion
    if dispersion is not None:
        dispersion = dispersion.copy()
        for a, family in enumerate(problem.kind.families):
            power = None if family is None else family.deviation_power
            if power is not None:
                dispersion[[j, -1], a] *= CHILD_DEVIATION ** (1 / power)
    vector = larger.pack(JointParameters(doubled.coefficients, doubled.biases, weights, dispersion))
    vector[larger.component(j)] += move
    vector[larger.component(parameters.n_components)] -= move
    return larger.unpack(vector)


def grow(problem: JointProblem, pooled: JointParameters) -> list[JointParameters]:
    """Add components one by one, each by a split, and keep the best few on the way.

    Parameters
    ----------
    problem : JointProblem
        The problem.
    pooled : JointParameters
        A single model.

    Returns
    -------
    list of JointParameters
        The best mixtures of all components, best first.
    """
    beam = [pooled]
    for number in range(2, problem.n_components + 1):
        before, now = problem.with_components(number - 1), problem.with_components(number)
        candidates = [
            each
            for parameters in beam
            for _, _, each in splits_of(before, parameters)[: 2 * SPLITS_EACH]
        ]
        runs = [short_climb(FreePoint.inside(now, each), SHORT_STEPS) for each in candidates]
        runs.sort(key=lambda run: -run.value)
        longer = [short_climb(run.point, BEAM_STEPS) for run in runs[:BEAM]]
        longer.sort(key=lambda run: -run.value)
        beam = [run.point.parameters for run in longer]
    return beam
