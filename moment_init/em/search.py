"""Search for the highest maximum: starts of several kinds, ranked by short runs, and moves.

Cheap and likely routes come first. The search ends when two kinds of starts have reached the best
maximum and no move leaves it, when a round of routes and moves does not improve on a maximum inside
all bounds, or when no routes are left.

With many units the search runs on a sample of them, and its result is refined on all. The
refinement begins with quasi-Newton steps, which sum only the score over all units and take the
curvature from the sample (see `moment_init.likelihood.many_rows`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.em.moves import (
    FEW_FEATURES,
    climb_with_common_dispersion,
    propose_exchanges,
    propose_moves,
    propose_zeros,
    with_common_dispersion,
)
from moment_init.em.problem import EMProblem, parameters_per_response
from moment_init.em.runs import FINISH, Portfolio, Start
from moment_init.em.starts import (
    GrowthOptions,
    can_peel,
    fit_single,
    grow,
    peel,
    race_subsets,
    random_assignment,
)
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult, free_step, rounding_of
from moment_init.likelihood.many_rows import QuasiNewton
from moment_init.likelihood.parameters import MixtureParameters, bounds_of, enforce, move
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums

Route = tuple[str, Callable[[Portfolio], None]]
MoveProposals = Callable[[EMProblem, MixtureParameters], list[MixtureParameters]]

EARLY_MOMENT_UNITS = 10_000
"""Number of units from which moments cost less than a run of EM and come early. With fewer units
they come only if cheaper starts disagree."""

MOMENT_UNITS_PER_PARAMETER = 100
"""Units per parameter from which third moments are more than noise and come before moves."""

LARGE_WEIGHT = 0.5
"""Robust regression finds a component only if it has at least this share of the rows."""

TEMPERATURES = (2.0, 3.5)
"""Temperatures T of tempering: the density of each unit is raised to the power 1/T."""

FEW_UNITS_PER_PARAMETER = 10
"""With fewer units per parameter, maxima of similar height differ only in the assignment of a few
units."""

MANY_UNITS_PER_PARAMETER = 500
"""With so many units per parameter, tempering is skipped if two kinds of starts agree on a maximum
inside all bounds. Tempering helps to leave maxima in which a component fits only a few units. Two
kinds of starts rarely agree on such a maximum, and tempering costs as much as a start."""

ORIGINS_TO_AGREE = 2
"""Number of kinds of starts that must reach a maximum before it is taken as the highest."""

LEAN_GROWTH = GrowthOptions(beam=1, n_splits=4, n_directions=2, race_steps=8, finish_steps=8)
WIDE_GROWTH = GrowthOptions(beam=3, n_splits=4, n_directions=2, race_steps=8, finish_steps=12)
"""Growth that comes first, and wider growth for data on which starts disagree."""


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """Which parts of the search run; all of them, except in benchmarks of single parts."""

    use_tensor: bool = True  # starts from moments
    use_splits: bool = True  # growth by splits, also with a common dispersion
    use_subsets: bool = True  # starts from small subsets of rows
    use_peeling: bool = True  # starts by peeling off components
    use_moves: bool = True  # drops, splits, replanting, components of zeros
    use_tempering: bool = True  # softened likelihoods, climbs with a common dispersion
    # number of random starts in each round, while kinds of starts disagree
    n_random: int = 2


def search(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: PortfolioOptions | None = None,
) -> Portfolio:
    """Search for the highest maximum of the likelihood, round by round."""
    options = options or PortfolioOptions()
    problem = problem.prepared()
    portfolio = Portfolio(problem)
    is_simple = problem.n_components == 1
    for routes in _rounds(problem, tensor_starts, rng, options):
        before = portfolio.best
        for origin, route in routes:
            portfolio.attempt(origin, route)
            if is_simple or _is_agreed(portfolio, options):
                return portfolio
        reached = portfolio.best
        _move(portfolio, options)
        is_interior = reached is not None and not reached.bounds
        if portfolio.best is reached and reached is before and is_interior:
            break  # neither new starts nor moves improved on this maximum
    return portfolio


def _is_agreed(portfolio: Portfolio, options: PortfolioOptions) -> bool:
    """Whether two kinds of starts reached the best maximum and no cheap move leaves it."""
    if len(portfolio.agreeing_origins) < ORIGINS_TO_AGREE:
        return False
    agreed = portfolio.best
    n_units = _units_per_parameter(portfolio.problem)
    is_on_bound = agreed is not None and bool(agreed.bounds)
    if options.use_tempering and (is_on_bound or n_units < MANY_UNITS_PER_PARAMETER):
        _temper(portfolio, has_common_dispersion=is_on_bound)
    if options.use_moves and portfolio.best is agreed:
        _try_moves(portfolio, "exchanges", propose_exchanges)
        _try_moves(portfolio, "zeros", propose_zeros)
    # with binary responses all starts may end slightly below the best log-likelihood
    if options.use_moves and portfolio.best is agreed and portfolio.problem.family.has_binary_rows:
        _try_moves(portfolio, "moves", propose_moves)
    # with few columns predictors cross, with few units maxima are close: starts fail together
    are_alike = (
        portfolio.problem.rows.n_features <= FEW_FEATURES or n_units < FEW_UNITS_PER_PARAMETER
    )
    if are_alike and portfolio.best is agreed:
        _move(portfolio, options)
    return portfolio.best is agreed


def _units_per_parameter(problem: EMProblem) -> float:
    """Number of units for each parameter of one response, which has rows of its own."""
    rows = problem.rows
    size = parameters_per_response(problem.family, rows.n_features) + 1 + rows.n_gate
    return rows.n_units / (size * problem.n_components)


def _move(portfolio: Portfolio, options: PortfolioOptions) -> None:
    if options.use_tempering:
        _temper(portfolio, has_common_dispersion=True)
    if options.use_moves:
        _try_moves(portfolio, "exchanges", propose_exchanges)
        _try_moves(portfolio, "zeros", propose_zeros)
        _try_moves(portfolio, "moves", propose_moves)


def _try_moves(portfolio: Portfolio, origin: str, proposals: MoveProposals) -> None:
    propose = partial(proposals, portfolio.problem)
    portfolio.attempt(origin, partial(Portfolio.move, origin=origin, propose=propose))


def _temper(portfolio: Portfolio, *, has_common_dispersion: bool) -> None:
    route = partial(
        Portfolio.temper, temperatures=TEMPERATURES, has_common_dispersion=has_common_dispersion
    )
    portfolio.attempt("tempering", route)


def _rounds(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: PortfolioOptions,
) -> Iterator[list[Route]]:
    """Yield rounds of routes, cheap and likely ones first; moves follow each round."""
    tensor: list[Route] = []
    if options.use_tensor:
        tensor = [("tensor", partial(_by_tensor, starts=tensor_starts))]
    is_large = problem.rows.n_units >= EARLY_MOMENT_UNITS
    lean: list[Route] = []
    wide: list[Route] = []
    if options.use_splits:
        lean = [("splits", partial(_by_splits, growth=LEAN_GROWTH))]
        wide = [("splits", partial(_by_splits, growth=WIDE_GROWTH))]
        if problem.family.is_unbounded:
            wide.append(("splits", _by_splits_with_common_dispersion))
    ungated: list[Route] = []
    if options.use_splits and problem.rows.gate is not None:
        ungated = [("splits ungated", _by_ungated_splits)]
    peeling: list[Route] = []
    if options.use_peeling and can_peel(problem):
        peeling = [("peeling", _by_peeling)]
    subsets: list[Route] = []
    if options.use_subsets and problem.rows.n_features <= FEW_FEATURES:
        subsets = [("subsets", partial(_by_subsets, rng=rng))]

    def random(first: int) -> list[Route]:
        ranks = range(first, first + options.n_random)
        return [
            (f"random {rank}", partial(_at_random, origin=f"random {rank}", rng=rng))
            for rank in ranks
        ]

    early, late = (tensor, subsets) if is_large else ([], [*subsets, *tensor])
    first_round, second_round = [], late
    if _units_per_parameter(problem) >= MOMENT_UNITS_PER_PARAMETER:
        first_round, second_round = late, []
    yield [*lean, *ungated, *early, *peeling, *random(1), *first_round]
    yield [*second_round, *random(1 + options.n_random)]
    yield [*wide, *random(1 + 2 * options.n_random)]


def _by_splits(portfolio: Portfolio, growth: GrowthOptions) -> None:
    grown = grow(portfolio.problem, growth)
    portfolio.race([("splits", run.parameters) for run in grown])


def _by_ungated_splits(portfolio: Portfolio) -> None:
    """Grow and fit without a gate, so that the gated mixture does not end below this fit."""
    gated = portfolio.problem
    base = replace(gated, rows=replace(gated.rows, gate=None), gate_coordinates=None)
    (grown,) = grow(base, LEAN_GROWTH)
    portfolio.finish("splits ungated", base.climb(grown.parameters, **FINISH).parameters)


def _by_splits_with_common_dispersion(portfolio: Portfolio) -> None:
    """Grow with a common dispersion, for data on which narrow components mislead."""
    (grown,) = grow(with_common_dispersion(portfolio.problem), LEAN_GROWTH)
    portfolio.finish(
        "splits", climb_with_common_dispersion(portfolio.problem, grown.parameters, **FINISH)
    )


def _by_tensor(portfolio: Portfolio, starts: Callable[[], list[Start]]) -> None:
    candidates = starts()
    if candidates:
        portfolio.race(candidates)


def _by_subsets(portfolio: Portfolio, rng: np.random.Generator) -> None:
    single = fit_single(portfolio.problem).parameters
    runs = race_subsets(portfolio.problem, single, rng)
    portfolio.race([("subsets", run.parameters) for run in runs], n_finishers=2)


def _by_peeling(portfolio: Portfolio) -> None:
    """Peel off components, if the best fit so far has a dominant one."""
    best = portfolio.best
    if best is not None and best.parameters.weights.max() < LARGE_WEIGHT:
        return
    single = fit_single(portfolio.problem).parameters
    portfolio.finish("peeling", peel(portfolio.problem, single))


def _at_random(portfolio: Portfolio, origin: str, rng: np.random.Generator) -> None:
    portfolio.finish(origin, random_assignment(portfolio.problem, rng))


SEARCH_UNITS = 20_000
"""Smallest number of units in the sample for a search. In a sample of this size, the log-likelihood
of a wrong maximum is lower by hundreds. The last climb uses all rows."""

SEARCH_UNITS_PER_PARAMETER = 200
"""Smallest number of units per parameter in that sample."""

BINARY_UNITS_PER_PARAMETER = 600
"""The same for binary responses, which say less about lengths: of three logistic components in
twenty dimensions, one diverges with 300 units per parameter, even from the truth; none with 600."""

ENLARGEMENT = 4
"""Factor by which a sample is enlarged if its maximum lies on a bound."""

MOST_PASSES = 60
"""Maximum number of passes of a refinement: twice what maxima of samples needed, at the cost of
three Newton steps. The climb that follows continues from wherever they end."""

CLOSE_GAIN = 1e-3
"""The refinement ends when a step is predicted to gain less than this share of the tolerance, so
that nothing is left to gain for the climb that follows."""

SMALLEST_SHARE = 1e-3
"""The refinement ends when steps are cut below this share without a gain."""


def search_sample(problem: EMProblem, rng: np.random.Generator, enlargement: int = 1) -> EMProblem:
    """Return the problem on a sample of units that is large enough for a search."""
    most = enlargement * search_units(problem.family, problem.rows.n_features, problem.n_components)
    n_units = problem.rows.n_units
    if n_units <= 2 * most:
        if problem.rows.source is None:
            return problem
        return problem.with_rows(problem.rows.take(np.arange(n_units)))
    chosen = np.sort(rng.choice(n_units, most, replace=False))
    return problem.with_rows(problem.rows.take(chosen))


def search_units(family: AnyFamily, n_features: int, n_components: int) -> int:
    """Return the size of the sample for a search, used if there are over twice as many units."""
    n_parameters = n_components * (parameters_per_response(family, n_features) + 1)
    per_parameter = SEARCH_UNITS_PER_PARAMETER
    if family.has_binary_rows:
        per_parameter = max(per_parameter, BINARY_UNITS_PER_PARAMETER)
    return max(SEARCH_UNITS, per_parameter * n_parameters)


def enlarged(
    problem: EMProblem,
    portfolio: Portfolio,
    from_moments: Callable[[], list[Start]],
    rng: np.random.Generator,
) -> Portfolio:
    """Climb on larger and larger samples while the best maximum lies on a bound.

    If a sample says too little about a component, its maximum lies on a bound, far from that of all
    units. The moments, which use all units, are then the better start.
    """
    times = 1
    while portfolio.best is not None and portfolio.best.bounds:
        times *= ENLARGEMENT
        sample = search_sample(problem, rng, times)
        if sample.rows.n_units <= portfolio.problem.rows.n_units:
            break
        wider = Portfolio(sample.prepared())
        for origin, start in [*from_moments(), ("sample", portfolio.best.parameters)]:
            wider.attempt(origin, partial(Portfolio.finish, origin=origin, start=start))
        if wider.best is None:
            break
        portfolio = wider
    return portfolio


def refine(
    problem: EMProblem,
    searched: EMProblem,
    sample_end: MaximiseResult,
    *,
    max_steps: int,
    tolerance: float,
) -> MaximiseResult:
    """Climb on all units from the maximum of a sample, at first with the sample's curvature."""
    near = _approach(problem, searched, sample_end)
    while near.n_iter < min(max_steps, MOST_PASSES):
        step = near.propose()
        if step is None or step.gain < CLOSE_GAIN * tolerance:
            break
        is_flat = step.gain <= rounding_of(near.sums)
        if not near.attempt(step) and (is_flat or near.share < SMALLEST_SHARE):
            break
    left = max_steps - near.n_iter
    end = problem.climb(near.parameters, max_steps=left, tolerance=tolerance, damping=0.0)
    # the climb starts by evaluating the last point of the approach again
    history = (*near.history[:-1], *end.history)
    return replace(end, history=history, n_iter=near.n_iter + end.n_iter)


def _approach(problem: EMProblem, searched: EMProblem, sample_end: MaximiseResult) -> QuasiNewton:
    """Begin at the maximum of a sample, with its information scaled to all units."""
    start = problem.admit(sample_end.parameters)
    constraint = problem.constraint(start)
    sample_sums = sample_end.sums
    if sample_sums.missing_information is None:
        sample_sums = likelihood_sums(searched.family, searched.rows, sample_end.parameters)
    basis = None if constraint is None else constraint.basis
    information = sample_sums.information(free_step(sample_sums, basis, 0.0)[1])
    if basis is not None:
        information = basis.T @ information @ basis
    information *= problem.rows.total_weight / searched.rows.total_weight
    bounds = bounds_of(
        problem.family,
        min_weight=0.0 if problem.restrictions.weights is not None else problem.min_weight,
        min_dispersion_ratio=problem.min_dispersion_ratio,
    )

    def evaluate(parameters: MixtureParameters) -> LikelihoodSums:
        return likelihood_sums(
            problem.family, problem.rows, parameters, curvature=False, constant=problem.constant
        )

    def moved(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
        inside = enforce(move(parameters, step), bounds)
        return inside if constraint is None else constraint.project(inside, parameters)

    return QuasiNewton(evaluate, moved, start, information, basis)
