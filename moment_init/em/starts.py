"""Starting values of a mixture, from several origins.

- Single: one generalised linear model for all rows, or one per component for given
  responsibilities; other starts build on these.
- Moments: the candidates of the stacked estimator, or of the moments of several responses, if they
  apply.
- Growth: components are split off one at a time where the fit is worst. The splits are moments that
  need no score function of the input: for a single component and a Gaussian input they are the
  paper's second moment with the best function of the response.
- Bins: quantile bins of the response, and of the residuals of a single model, as components.
- Random: units assigned at random, or random coefficients. They fail on different data.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError
from moment_init.data.blocks import sum_over_blocks
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates
from moment_init.em.problem import EMProblem
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.em_step import fit_assigned, flat_start
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import (
    doubles_per_unit,
    posterior_of_block,
    responsibilities,
)
from moment_init.likelihood.rows import predictor_pairs
from moment_init.likelihood.splits import split_component, split_statistics
from moment_init.moments.several import pose_several
from moment_init.moments.stacked import MOMENT_ROWS, fit_stacked, single_mixture
from moment_init.moments.subspace import COUNTED_EIGENVALUE
from moment_init.scores.choosing import (
    COUNTED_ROWS,
    ContinuousBlock,
    find_discrete_columns,
    pose_problem,
    resolve_input,
    sampled_inputs,
    split_continuous,
)
from moment_init.scores.gaussian import Gaussian

Start = tuple[str, MixtureParameters]

SINGLE_STEPS = 50
"""Maximum number of Newton steps of a single model: it converges in ten, or is separated."""


def fit_single(problem: EMProblem) -> MaximiseResult:
    """Fit a single generalised linear model to all rows."""
    alone = problem.ungated()
    return alone.climb(
        flat_start(alone.family, alone.rows), max_steps=SINGLE_STEPS, em_steps=3, tolerance=1e-6
    )


MSTEP_STEPS, MSTEP_TOLERANCE = 100, 1e-8
"""Limits of an M-step from given responsibilities, which is taken to its end."""


def fit_responsibilities(
    problem: EMProblem, by_unit: FloatArray, *, is_exact: bool = False
) -> MixtureParameters:
    """Run the M-step from given responsibilities; if exact, with the gate and shared parameters."""
    # by_unit: (n_units, n_components)
    r = problem.n_components
    flat = joined([flat_start(problem.family, problem.rows)] * r, np.full(r, 1 / r))
    shares = np.ascontiguousarray(by_unit.T)
    if not is_exact:
        rows = replace(problem.rows, gate=None)
        return problem.admit(fit_assigned(problem.family, rows, flat, shares))
    start = problem.admit(flat)
    return fit_assigned(
        problem.family,
        problem.rows,
        start,
        shares,
        constraint=problem.constraint(start),
        max_steps=MSTEP_STEPS,
        tolerance=MSTEP_TOLERANCE,
    )


def joined(parts: list[MixtureParameters], weights: FloatArray) -> MixtureParameters:
    """Join single models into a mixture without a gate."""
    # weights: (n_components,)
    dispersions = [part.dispersion for part in parts if part.dispersion is not None]
    return MixtureParameters(
        np.concatenate([part.coefficients for part in parts], axis=-1),
        np.concatenate([part.biases for part in parts], axis=-1),
        np.asarray(weights, dtype=np.float64),
        np.concatenate(dispersions, axis=-1) if dispersions else None,
    )


MIN_ROWS_PER_FEATURE = 20
"""With fewer rows per column, the covariance of the input is too noisy for third moments."""


def has_moments(data: RegressionData, n_components: int) -> bool:
    """Whether moments are informative: enough rows and enough columns with a density."""
    n_continuous = int(np.sum(~find_discrete_columns(sampled_inputs(data))))
    return n_components <= n_continuous and data.n_obs >= MIN_ROWS_PER_FEATURE * n_continuous


def tensor_starts(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator, *, is_forced: bool = False
) -> tuple[list[Start], bool]:
    """Return the moment candidates, best first, and whether the moments show a direction.

    There are none where moments do not apply; if rows are few, only if asked for (`is_forced`).
    What moments cannot know, the coefficients of discrete columns, a gate and groups, is filled in
    by one M-step.
    """
    data.hold([data.n_obs // COUNTED_ROWS, data.n_obs // MOMENT_ROWS])
    is_discrete = find_discrete_columns(sampled_inputs(data))
    is_known = is_forced and not is_discrete.all()
    if problem.restrictions.directions is not None:
        return [], False
    if not (is_known or has_moments(data, problem.n_components)):
        return [], False
    is_single = problem.family.n_predictors == 1
    block = split_continuous(data, is_discrete) if is_discrete.any() else None
    if block is not None and not is_single:
        return [], False
    used = data if block is None else block.data
    try:
        if is_single:  # of two classes, the second against the first
            single = used.map(RegressionData.single, 0)
            model = Gaussian().fit_data(used, used.feature_names)
            posed = pose_problem(single, model)
        else:
            single = data.map(RegressionData.single, 0)
            first = resolve_input(single, "auto", None, rng.spawn(1)[0], is_stacked=True)
            posed, _ = pose_several(data, first, problem.n_components)
        fit = fit_stacked(posed, problem.n_components, rng, is_polished=True)
    except IdentifiabilityError:
        return [], False
    starts = [single_mixture(each) if is_single else each.free for each in fit.candidates]
    if block is not None:
        starts = [_lifted(problem, block, posed.coordinates, each) for each in starts]
    else:
        turn = np.linalg.solve(posed.coordinates.factor, problem.coordinates[0].factor).T
        starts = [replace(each, coefficients=turn @ each.coefficients) for each in starts]
    rows = problem.rows
    if block is not None or rows.gate is not None or rows.group_starts is not None:
        starts = [_completed(problem, each) for each in starts]
    has_signal = bool(fit.moments.spectrum[0] > COUNTED_EIGENVALUE)
    named = [(f"tensor {rank}", start) for rank, start in enumerate(starts, start=1)]
    return named, has_signal


def _lifted(
    problem: EMProblem, block: ContinuousBlock, coordinates: Coordinates, start: MixtureParameters
) -> MixtureParameters:
    """Map parameters of the continuous columns to all columns."""
    coefficients, biases = block.lift(
        start.coefficients, start.biases, coordinates, problem.coordinates[0]
    )
    return replace(start, coefficients=coefficients, biases=biases)


def _completed(problem: EMProblem, start: MixtureParameters) -> MixtureParameters:
    """Run an M-step from the responsibilities that a start implies."""
    shares = responsibilities(problem.family, replace(problem.rows, gate=None), start)
    starts = problem.rows.group_starts
    by_unit = shares if starts is None else shares[starts]
    return fit_responsibilities(problem, by_unit, is_exact=True)


GROWTH_SPLITS = 4
"""Number of splits of each mixture that are tried."""

GROWTH_DIRECTIONS = 2
"""Number of directions per component along which it may be split."""

SHORT_STEPS, RACE_STEPS = 3, 16
"""EM steps of every split, after which the worse half is dropped, and of the rest."""


def grow(problem: EMProblem) -> MixtureParameters:
    """Grow a mixture from one component to all, each time by the best of several splits."""
    parameters = fit_single(problem).parameters
    for _ in range(1, problem.n_components):
        children = _ranked(problem, _children(problem, parameters), SHORT_STEPS)
        kept = [run.parameters for run in children[: max(1, len(children) // 2)]]
        parameters = _ranked(problem, kept, RACE_STEPS - SHORT_STEPS)[0].parameters
    return parameters


def _ranked(
    problem: EMProblem, starts: list[MixtureParameters], n_steps: int
) -> list[MaximiseResult]:
    """Run some EM steps from each start; return the runs, best first."""
    runs = [problem.climb(start, max_steps=n_steps, em_steps=n_steps) for start in starts]
    return sorted(runs, key=lambda run: run.log_posterior, reverse=True)


def _children(problem: EMProblem, parent: MixtureParameters) -> list[MixtureParameters]:
    """Return the most promising splits of a mixture."""
    n_directions = min(GROWTH_DIRECTIONS, parent.layout.slopes.size)
    statistics = split_statistics(problem.family, problem.rows, parent, n_directions=n_directions)
    ratios = statistics.eigenvalues / statistics.noise_edges[:, None]
    children = []
    for flat in np.argsort(ratios, axis=None)[::-1][:GROWTH_SPLITS]:
        component, direction = divmod(int(flat), n_directions)
        vector = statistics.directions[component, direction]
        children.append(split_component(problem.family, parent, component, vector))
    return children


RandomStart = Literal["both", "assignment", "coefficients"]

ASSIGNED_SHARE = 0.9
OTHER_SHARE = 0.1
"""Shares, before normalising, of the component that a unit is assigned to and of each other one, as
in the soft assignment of flexmix."""


def softly_assigned(labels: NDArray[np.intp], n_components: int) -> FloatArray:
    """Responsibilities of units that are softly assigned to components."""
    # labels: (n_units,) -> (n_units, n_components)
    shares = np.full((len(labels), n_components), OTHER_SHARE)
    shares[np.arange(len(labels)), labels] = ASSIGNED_SHARE
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def random_parameters(
    problem: EMProblem, kind: RandomStart, rank: int, rng: np.random.Generator
) -> MixtureParameters:
    """Draw a random start: an assignment, coefficients, or one of them in turn."""
    if kind == "assignment" or (kind == "both" and rank % 2):
        return random_assignment(problem, rng)
    return random_coefficients(problem, rng)


def random_assignment(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Fit components to units that are softly assigned at random."""
    labels = rng.integers(problem.n_components, size=problem.rows.n_units)
    return fit_responsibilities(problem, softly_assigned(labels, problem.n_components))


def random_coefficients(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Draw coefficients of the family's typical size, and biases around those of a single model."""
    single = fit_single(problem).parameters
    r = problem.n_components
    start = joined([single] * r, np.full(r, 1 / r))
    drawn = add_noise(problem, start, np.ones(r), rng)
    return problem.admit(with_slopes(start, drawn.slopes - start.slopes, drawn.levels))


def add_noise(
    problem: EMProblem, parameters: MixtureParameters, sizes: FloatArray, rng: np.random.Generator
) -> MixtureParameters:
    """Add normal noise to slopes and levels, in units of the family's typical size."""
    # sizes: of each component; (n_components,)
    typical = [member.typical_scale for member in problem.family.predictor_families]
    spreads = np.array(typical)[:, None] / np.sqrt(max(1, parameters.n_features)) * sizes
    slopes = spreads[:, None] * rng.standard_normal(parameters.slopes.shape)
    levels = spreads * rng.standard_normal(parameters.levels.shape)
    return with_slopes(parameters, parameters.slopes + slopes, parameters.levels + levels)


def with_slopes(
    parameters: MixtureParameters, slopes: FloatArray, levels: FloatArray
) -> MixtureParameters:
    """Replace coefficients and biases, given with a leading axis of predictors."""
    # slopes: (P, n_features, n_components), levels: (P, n_components)
    return replace(
        parameters,
        coefficients=slopes.reshape(parameters.coefficients.shape),
        biases=levels.reshape(parameters.biases.shape),
    )


def bin_starts(problem: EMProblem) -> list[Start]:
    """Fit components to quantile bins of the response, and of the residuals of a single model."""
    flat = flat_start(problem.family, problem.rows)
    models = {"bins of response": flat, "bins of residuals": fit_single(problem).parameters}
    r = problem.n_components
    starts = []
    for origin, model in models.items():
        residuals = unit_residuals(problem, model)
        ranks = np.argsort(np.argsort(residuals, kind="stable"), kind="stable")
        shares = softly_assigned(ranks * r // len(ranks), r)
        starts.append((origin, fit_responsibilities(problem, shares)))
    return starts


def unit_residuals(problem: EMProblem, single: MixtureParameters) -> FloatArray:
    """Pearson residuals of a single model, summed over the rows of a unit.

    Of several responses or classes, the first principal component of their residuals.
    """
    # -> (n_units,)
    rows, n_predictors = problem.rows, problem.family.n_predictors
    residuals = np.empty((rows.n_units, n_predictors))

    def write_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(problem.family, rows, replace(single, gate=None), units)
        _, first, second, _ = block.derivatives
        pairs = predictor_pairs(n_predictors, len(second))
        for place, (a, b) in enumerate(pairs):
            if a != b:
                continue
            excess, variance = first[a, 0] * block.weight, -second[place, 0] * block.weight
            if block.is_grouped:
                excess = np.add.reduceat(excess, block.starts)
                variance = np.add.reduceat(variance, block.starts)
            residuals[units, a] = excess / np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
        return ()

    sum_over_blocks(write_block, rows.n_units, doubles_per_unit(rows, single))
    if n_predictors == 1:
        return residuals[:, 0]
    return np.asarray(residuals @ np.linalg.eigh(residuals.T @ residuals)[1][:, -1])


_SMALLEST_VARIANCE = 1e-10
"""Lower limit of the variance of a score, which is zero where a mean is at the end of its range."""
