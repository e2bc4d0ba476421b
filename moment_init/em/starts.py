"""Starting values of a mixture, from several origins.

- Single: one generalised linear model for all rows, or one per component for given
  responsibilities; other starts build on these.
- Moments: the candidates of the stacked estimator, or of the moments of several responses, if they
  apply.
- Growth: components are split off one at a time where the fit is worst. The splits are moments that
  need no score function of the input: for a single component and a Gaussian input they are the
  paper's second moment with the best function of the response.
- Subsets: each component is fitted to p + 1 random rows. They all come from one component with
  probability w^(p+1), which is worth trying for small p.
- Peeling: Mix-IRLS of Zilber and Nadler (2023) finds the largest component of a linear mixture by
  regression with Cauchy weights on the residuals, removes the rows that it explains, and repeats.
  With deviance residuals, counts and positive responses can be peeled too. It works very well for
  unequal weights and fails for equal ones. It is for one response.
- Random: the baseline.
- Given: the user's estimate, fit, arrays or responsibilities.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError, as_float_array
from moment_init.data.checking import RegressionData
from moment_init.data.discrete_columns import find_discrete_columns
from moment_init.em.problem import EMProblem, Restrictions
from moment_init.em.result import EMFit
from moment_init.families.base import Family
from moment_init.families.several import Categorical
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.em_step import fit_assigned, flat_start
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.splits import split_component, split_statistics
from moment_init.moments.result import MomentEstimate
from moment_init.moments.several import pose_several
from moment_init.moments.stacked import fit_stacked, single_mixture
from moment_init.scores.choosing import pose_problem, resolve_input
from moment_init.scores.gaussian import Gaussian

SINGLE_STEPS = 50
"""Maximum number of Newton steps of a single model: it converges in ten, or is separated."""


def fit_single(problem: EMProblem) -> MaximiseResult:
    """Fit a single generalised linear model to all rows."""
    return problem.climb(
        flat_start(problem.family, problem.rows), max_steps=SINGLE_STEPS, em_steps=3, tolerance=1e-6
    )


def fit_responsibilities(problem: EMProblem, responsibilities: FloatArray) -> MixtureParameters:
    """Fit each component to given responsibilities, to its maximum."""
    # responsibilities: (n_units, n_components)
    r = problem.n_components
    start = joined([flat_start(problem.family, problem.rows)] * r, np.full(r, 1 / r))
    rows = replace(problem.rows, gate=None)
    shares = np.ascontiguousarray(responsibilities.T)
    return problem.admit(fit_assigned(problem.family, rows, start, shares))


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
    """Whether moments are informative: enough rows and columns, and no discrete columns."""
    n_obs, n_features = data.X.shape
    if n_components > n_features or n_obs < MIN_ROWS_PER_FEATURE * n_features:
        return False
    return not find_discrete_columns(data.X).any()


def tensor_starts(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator
) -> list[tuple[str, MixtureParameters]]:
    """Return the moment candidates, best first; empty if moments do not apply."""
    if problem.restrictions.directions is not None or not has_moments(data, problem.n_components):
        return []
    is_single = problem.family.n_predictors == 1
    try:
        if is_single:  # of two classes, the second against the first
            single = data.single(0) if isinstance(problem.family, Categorical) else data
            model = Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)
            posed = pose_problem(single, model)
        else:
            first = resolve_input(data.single(0), "auto", None, rng.spawn(1)[0], is_stacked=True)
            posed, _ = pose_several(data, first, problem.n_components)
        fit = fit_stacked(posed, problem.n_components, rng, is_polished=True)
    except IdentifiabilityError:
        return []
    turn = np.linalg.solve(posed.coordinates.factor, problem.coordinates[0].factor).T
    starts = [single_mixture(each) if is_single else each.free for each in fit.candidates]
    return [
        (f"tensor {rank}", replace(start, coefficients=turn @ start.coefficients))
        for rank, start in enumerate(starts, start=1)
    ]


@dataclass(frozen=True, slots=True)
class GrowthOptions:
    """Options of the growth of mixtures by splits."""

    beam: int = 2  # number of mixtures of each size that are kept
    n_splits: int = 3  # number of splits of each mixture that are tried
    n_directions: int = 2  # number of directions per component along which it may be split
    short_steps: int = 3  # EM steps after which the worse half of the splits is dropped
    race_steps: int = 8  # EM steps before the beam is chosen
    finish_steps: int = 12  # EM steps of the beam after it is chosen


def grow(problem: EMProblem, options: GrowthOptions | None = None) -> list[MaximiseResult]:
    """Grow mixtures from one component to all, by splits; the best mixture first."""
    options = options or GrowthOptions()
    beam = [fit_single(problem)]
    for _ in range(1, problem.n_components):
        children = [
            child for parent in beam for child in _children(problem, parent.parameters, options)
        ]
        short_runs = _ranked(problem, children, options.short_steps)
        n_raced = max(options.beam, len(short_runs) // 2)
        raced = _continued(problem, short_runs[:n_raced], options.race_steps - options.short_steps)
        beam = _continued(problem, raced[: options.beam], options.finish_steps)
    return beam


def _continued(
    problem: EMProblem, runs: list[MaximiseResult], n_steps: int
) -> list[MaximiseResult]:
    return _ranked(problem, [run.parameters for run in runs], n_steps)


def _ranked(
    problem: EMProblem, starts: list[MixtureParameters], n_steps: int
) -> list[MaximiseResult]:
    """Run some EM steps from each start; return the runs, best first."""
    runs = [problem.climb(start, max_steps=n_steps, em_steps=n_steps) for start in starts]
    return sorted(runs, key=_by_log_posterior, reverse=True)


def _children(
    problem: EMProblem, parent: MixtureParameters, options: GrowthOptions
) -> list[MixtureParameters]:
    """Return the most promising splits of a mixture."""
    n_directions = min(options.n_directions, parent.layout.slopes.size)
    statistics = split_statistics(problem.family, problem.rows, parent, n_directions=n_directions)
    ratios = statistics.eigenvalues / statistics.noise_edges[:, None]
    ranked = np.argsort(ratios, axis=None)[::-1][: options.n_splits]
    children = []
    for flat in ranked:
        component, direction = divmod(int(flat), n_directions)
        children.append(
            split_component(
                problem.family, parent, component, statistics.directions[component, direction]
            )
        )
    return children


def _by_log_posterior(result: MaximiseResult) -> float:
    return result.log_posterior


N_SUBSETS = 20  # number of starts in the race
SUBSET_ROWS = 600  # number of units in the sample on which they are raced
SHORT_STEPS = 6  # EM steps after which the worse half of the starts is dropped
SUBSET_STEPS = 20  # EM steps of the whole race
N_KEPT = 6  # number of starts that are kept

FIT_STEPS = 3
"""Newton steps of a component towards its few rows: one step fits a real response exactly, and with
a binary response more steps would diverge."""


def race_subsets(
    problem: EMProblem, single: MixtureParameters, rng: np.random.Generator
) -> list[MaximiseResult]:
    """Fit every component to a few rows, and race such starts on a sample of units."""
    units = np.arange(problem.rows.n_units)
    if len(units) > SUBSET_ROWS:
        units = np.sort(rng.choice(len(units), SUBSET_ROWS, replace=False))
    sample = problem.with_rows(problem.rows.take(units)).prepared()
    starts = [_subset_start(sample, single, rng) for _ in range(N_SUBSETS)]
    short_runs = _ranked(sample, starts, SHORT_STEPS)[: N_SUBSETS // 2]
    left = SUBSET_STEPS - SHORT_STEPS
    return _ranked(sample, [run.parameters for run in short_runs], left)[:N_KEPT]


def _subset_start(
    problem: EMProblem, single: MixtureParameters, rng: np.random.Generator
) -> MixtureParameters:
    """Move each component a few steps from the single model towards a few random units."""
    rows, r = problem.rows, problem.n_components
    per_unit = rows.n_obs / rows.n_units
    n_units = min(rows.n_units, max(1, int(np.ceil((rows.n_features + 1) / per_unit))))
    parts = []
    for _ in range(r):
        subset = rows.take(np.sort(rng.choice(rows.n_units, n_units, replace=False)))
        subset = replace(subset, group_starts=None, gate=None)
        end = maximise(
            problem.family,
            subset,
            replace(single, gate=None),
            max_steps=FIT_STEPS,
            em_steps=FIT_STEPS,
        )
        # an exact fit says nothing about the dispersion
        parts.append(replace(end.parameters, dispersion=single.dispersion))
    return joined(parts, np.full(r, 1 / r))


ROBUST_STEPS = 12
"""Number of rounds of reweighting; the weights hardly change after a few."""

_EXPLAINED = 13.2
"""A row is explained if its deviance is below this multiple of the median deviance. For a normal
component the median is .455 variances, so the limit is six variances and covers 98.6 % of its rows.
A lower limit would leave more rows of a large component than a small component has."""

_SMALLEST = 1e-10
"""Smallest distance of a mean response from the ends of its range, and of a deviance from zero."""


def can_peel(problem: EMProblem) -> bool:
    """Whether rows have deviances that tell which component they may come from."""
    family = problem.family
    return isinstance(family, Family) and not family.has_binary_rows


def peel(problem: EMProblem, single: MixtureParameters) -> MixtureParameters:
    """Fit components one at a time to the rows that the previous ones do not explain."""
    rows = replace(problem.rows, group_starts=None, gate=None)
    start = replace(single, gate=None)
    saturated = _saturated(problem, rows)
    left = np.ones(rows.n_obs)
    parts, counts = [], []
    for _ in range(problem.n_components):
        part, is_explained = _robust_fit(problem, rows, start, left, saturated)
        parts.append(part)
        counts.append(float(rows.sample_weight @ (left * is_explained)) + 1.0)
        rest = left * ~is_explained
        # too few rows remain: the next component uses the rows of this one again
        left = rest if np.count_nonzero(rest) > 2 * (rows.n_features + 1) else left
    weights = np.array(counts)
    return problem.admit(joined(parts, weights / weights.sum()))


def _robust_fit(
    problem: EMProblem,
    rows: LikelihoodRows,
    start: MixtureParameters,
    left: FloatArray,
    saturated: FloatArray,
) -> tuple[MixtureParameters, NDArray[np.bool_]]:
    """Fit the remaining rows with Cauchy weights; return the fit and the rows it explains."""
    parameters, shares = start, left
    is_left = left > 0.0
    for _ in range(ROBUST_STEPS):
        weighted = replace(rows, sample_weight=rows.sample_weight * shares)
        parameters = maximise(
            problem.family, weighted, parameters, max_steps=1, em_steps=1, constant=0.0
        ).parameters
        deviance = saturated - _log_density(problem, rows, parameters)
        typical = max(float(np.median(deviance[is_left])), _SMALLEST)
        shares = left / (1.0 + deviance / typical)
    close = deviance[is_left & (deviance < 2.0 * typical)]
    typical = max(float(np.median(close)) if len(close) else typical, _SMALLEST)
    return parameters, deviance < _EXPLAINED * typical


def _saturated(problem: EMProblem, rows: LikelihoodRows) -> FloatArray:
    """Compute the log density of each row with its mean at the response, with dispersion one."""
    (family,) = problem.family.members
    trials = np.ones(rows.n_obs) if rows.n_trials is None else rows.n_trials
    mean = rows.y / trials
    if not family.response_power:
        mean = np.maximum(mean, _SMALLEST)
        if family.has_trials:
            mean = np.minimum(mean, 1.0 - _SMALLEST)
    eta = family.link.link(mean)
    return _density(problem, rows, eta, np.ones(1) if family.has_dispersion else None)


def _log_density(
    problem: EMProblem, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    eta = np.asarray(rows.Z) @ parameters.coefficients[:, 0] + parameters.biases[0]
    if rows.offset is not None:
        eta = eta + rows.offset
    return _density(problem, rows, eta, None if parameters.dispersion is None else np.ones(1))


def _density(
    problem: EMProblem, rows: LikelihoodRows, eta: FloatArray, dispersion: FloatArray | None
) -> FloatArray:
    """Compute the log density of every row with dispersion one, as deviances require."""
    (family,) = problem.family.members
    return family.log_density_eta(rows.y, eta, dispersion=dispersion, n_trials=rows.n_trials)


RandomStart = Literal["assignment", "coefficients"]

ASSIGNED_SHARE = 0.9
OTHER_SHARE = 0.1
"""Shares, before normalising, of the component that a unit is assigned to and of each other one, as
in the soft assignment of flexmix."""


def random_parameters(
    problem: EMProblem, kind: RandomStart, rng: np.random.Generator
) -> MixtureParameters:
    """Draw a random start of the given kind."""
    if kind == "assignment":
        return random_assignment(problem, rng)
    return random_coefficients(problem, rng)


def random_assignment(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Fit components to units that are softly assigned at random."""
    n_units, r = problem.rows.n_units, problem.n_components
    shares = np.full((n_units, r), OTHER_SHARE)
    shares[np.arange(n_units), rng.integers(r, size=n_units)] = ASSIGNED_SHARE
    return fit_responsibilities(problem, shares / shares.sum(axis=1, keepdims=True))


def random_coefficients(problem: EMProblem, rng: np.random.Generator) -> MixtureParameters:
    """Draw coefficients of the family's typical size, and biases around those of a single model."""
    single = fit_single(problem).parameters
    r, p = problem.n_components, single.n_features
    start = joined([single] * r, np.full(r, 1 / r))
    sizes = [member.typical_scale for member in problem.family.predictor_families]
    spreads = np.array(sizes)[:, None] / np.sqrt(p)
    slopes = spreads[:, :, None] * rng.standard_normal(start.slopes.shape)
    levels = start.levels + spreads * rng.standard_normal(start.levels.shape)
    return problem.admit(
        replace(
            start,
            coefficients=slopes.reshape(start.coefficients.shape),
            biases=levels.reshape(start.biases.shape),
        )
    )


Start = tuple[str, MixtureParameters]

_EXPECTED = (
    "`init` must be 'tensor', 'random', a MomentEstimate, an EMFit, a tuple (coefficients, biases, "
    "weights[, dispersion]) or responsibilities of shape (n_obs, n_components)"
)


def given_starts(
    problem: EMProblem,
    init: Any,
    has_weight: NDArray[np.bool_] | None = None,
    feature_names: tuple[str, ...] | None = None,
    response_names: tuple[str, ...] = (),
) -> list[Start]:
    """Convert the user's `init` to starts in standardised coordinates."""
    # has_weight: (n_obs,)
    if isinstance(init, MomentEstimate):
        return _from_estimate(problem, init)
    if isinstance(init, EMFit):
        parameters = _from_fit(problem, init, feature_names, response_names)
        return [("given", _standardised(problem, parameters, has_labels=False))]
    if isinstance(init, tuple | list) and len(init) in (3, 4):
        return [("given", _standardised(problem, _from_arrays(init)))]
    if hasattr(init, "__array__"):
        shares = np.asarray(init)
        return [("given", _from_responsibilities(problem, shares, has_weight))]
    raise TypeError(f"{_EXPECTED}; got {type(init).__name__}.")


def _from_estimate(problem: EMProblem, estimate: MomentEstimate) -> list[Start]:
    """Return starts from an estimate and its candidates."""
    starts = []
    coefficients, biases, weights = estimate.coefficients, estimate.biases, estimate.weights
    if coefficients is not None and biases is not None and weights is not None:
        parameters = MixtureParameters(coefficients, biases, weights, estimate.dispersion)
        starts.append(("estimate", _standardised(problem, parameters)))
    starts += [
        (f"tensor {rank}", _standardised(problem, candidate))
        for rank, candidate in enumerate(estimate.candidates, start=1)
    ]
    if not starts:
        raise ValueError(
            "`init` must be an estimate with scales, biases and weights; got one with directions "
            "only. Use method='stacked', or pass its directions as `fixed_directions`."
        )
    return starts


def _from_fit(
    problem: EMProblem,
    fit: EMFit,
    feature_names: tuple[str, ...] | None,
    response_names: tuple[str, ...],
) -> MixtureParameters:
    """Return the parameters of a fit for these columns; drop its gate if the problem has none."""
    parameters = fit.parameters
    if problem.rows.gate is None:
        parameters = replace(fit.centred_parameters, gate=None)
    names = fit.feature_names
    if feature_names is not None and sorted(names) == sorted(feature_names):
        order = [names.index(name) for name in feature_names]
        parameters = replace(parameters, coefficients=parameters.coefficients[..., order, :])
    if parameters.n_predictors == 1:
        return parameters
    names = fit.response_names
    if sorted(names) != sorted(response_names):
        raise ValueError(
            "`init` must be a fit of the same responses or classes, "
            f"{', '.join(response_names) or 'one response'}; got one of {', '.join(names)}."
        )
    order, dispersion = [names.index(name) for name in response_names], parameters.dispersion
    return replace(
        parameters,
        coefficients=parameters.coefficients[order],
        biases=parameters.biases[order],
        dispersion=None if dispersion is None else dispersion[order],
    )


def _from_arrays(arrays: tuple[Any, ...] | list[Any]) -> MixtureParameters:
    try:
        parts = [None if part is None else as_float_array(part, "init") for part in arrays]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{_EXPECTED}; got a tuple with entries that are not arrays ({error})."
        ) from error
    coefficients, biases, weights = parts[:3]
    if coefficients is None or biases is None or weights is None:
        raise TypeError(f"{_EXPECTED}; got None for one of the first three entries.")
    if weights.size and np.all(weights > 0):
        weights = weights / weights.sum()
    return MixtureParameters(coefficients, biases, weights, parts[3] if len(parts) == 4 else None)


def _from_responsibilities(
    problem: EMProblem, shares: NDArray[np.generic], has_weight: NDArray[np.bool_] | None
) -> MixtureParameters:
    shares = _checked_shares(problem, shares, has_weight)
    ordered = shares[slice(None) if problem.order is None else problem.order]
    starts = problem.rows.group_starts
    if starts is not None:  # a group has one component: use the mean over its rows
        sizes = np.diff(np.append(starts, len(ordered)))
        ordered = np.add.reduceat(ordered, starts, axis=0) / sizes[:, None]
    # components keep the order of the columns, so restrictions are applied afterwards
    free = fit_responsibilities(replace(problem, restrictions=Restrictions()), ordered)
    if problem.restrictions.directions is not None:
        free = replace(free, coefficients=np.diag(np.diag(free.coefficients)))
    return problem.admit(_with_fixed_weights(problem, free))


def _checked_shares(
    problem: EMProblem, shares: NDArray[np.generic], has_weight: NDArray[np.bool_] | None
) -> FloatArray:
    """Check responsibilities; return those of rows with positive weight, with sum one."""
    n_obs, r = problem.rows.n_obs if has_weight is None else len(has_weight), problem.n_components
    is_numeric = shares.dtype.kind in "biuf"
    if shares.shape != (n_obs, r) or not is_numeric or not np.all(np.isfinite(shares)):
        raise ValueError(
            f"{_EXPECTED}; got an array of shape {shares.shape} and type {shares.dtype}, but "
            f"shape ({n_obs}, {r}) with finite entries is needed."
        )
    values = shares.astype(np.float64)[slice(None) if has_weight is None else has_weight]
    totals = values.sum(axis=1, keepdims=True)
    if values.min() < 0.0 or totals.min() <= 0.0 or values.sum(axis=0).min() <= 0.0:
        raise ValueError(
            "`init` as responsibilities must not have negative entries, nor rows or columns of "
            "zeros; got at least one. Give every row a component, and every component a row."
        )
    return np.asarray(values / totals)


def _with_fixed_weights(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """Set the fixed weights, if any, without reordering the components."""
    fixed_weights = problem.restrictions.weights
    return parameters if fixed_weights is None else replace(parameters, weights=fixed_weights)


def _standardised(
    problem: EMProblem, parameters: MixtureParameters, *, has_labels: bool = True
) -> MixtureParameters:
    """Check the shapes, standardise the parameters, and fill in a missing dispersion.

    Components without labels, such as those of a fit, which are sorted by weight, are matched to
    fixed weights or directions.
    """
    parameters = _checked(problem, parameters)
    standardised = problem.to_standardised(_projected(problem, parameters))
    if problem.family.has_dispersion and parameters.dispersion is None:
        r = problem.n_components
        single = joined([fit_single(problem).parameters] * r, np.full(r, 1 / r))
        standardised = replace(standardised, dispersion=single.dispersion)
    return problem.admit(_with_fixed_weights(problem, standardised) if has_labels else standardised)


def _projected(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    """With fixed directions, replace coefficients by their lengths along these directions."""
    directions = problem.restrictions.directions
    if directions is None:
        return parameters
    lengths = np.einsum("dj,dj->j", directions, parameters.coefficients)
    return replace(parameters, coefficients=np.diag(lengths))


def _checked(problem: EMProblem, parameters: MixtureParameters) -> MixtureParameters:
    directions, family = problem.restrictions.directions, problem.family
    p = problem.rows.n_features if directions is None else directions.shape[0]
    r = problem.n_components
    axis = () if family.n_predictors == 1 else (family.n_predictors,)
    wanted = {"coefficients": (*axis, p, r), "biases": (*axis, r), "weights": (r,)}
    if parameters.dispersion is not None:
        wanted["dispersion"] = (*axis, r)
    if parameters.gate is not None:
        wanted["gate"] = (problem.rows.n_gate, r)
    has_dispersion = np.array([member.has_dispersion for member in family.predictor_families])
    for name, shape in wanted.items():
        values = getattr(parameters, name)
        is_right = values.shape == shape
        if is_right and name == "dispersion" and family.has_dispersion:
            values = np.where(has_dispersion[:, None], values, 1.0)  # others need none
        if not is_right or not np.all(np.isfinite(values)):
            raise ValueError(
                f"`init` must have finite {name} of shape {shape}; got shape {values.shape}. "
                "Give a start for the same columns and number of components."
            )
    is_positive = bool(np.all(parameters.weights > 0.0))
    if parameters.spreads is not None:
        is_positive = is_positive and not np.any(parameters.spreads[has_dispersion] <= 0.0)
    if not is_positive:
        raise ValueError("`init` must have positive weights and dispersion; got zero or less.")
    if parameters.spreads is None:
        return parameters
    if not family.has_dispersion:
        raise ValueError(
            f"`init` must not have a dispersion for family {family.name!r}, which has none."
        )
    spreads = np.where(has_dispersion[:, None], parameters.spreads, np.nan)
    return replace(parameters, dispersion=spreads.reshape(parameters.biases.shape))
