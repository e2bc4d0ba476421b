"""The portfolio: starts of several origins, ranked by short runs, and moves between them.

Cheap and likely routes come first. A search ends when starts of two kinds have reached the best
maximum and no move leaves it, when a round of routes and moves finds nothing better than a maximum
inside all bounds, or when the routes are used up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.em.moves import (
    FEW_FEATURES,
    climb_with_common_dispersion,
    propose_moves,
    propose_zeros,
    with_common_dispersion,
)
from moment_init.em.problem import EMProblem
from moment_init.em.runs import FINISH, Portfolio, Start
from moment_init.em.starts import (
    GrowthOptions,
    fit_single,
    grow,
    peel,
    race_subsets,
    random_assignment,
)
from moment_init.likelihood.parameters import MixtureParameters

Route = tuple[str, Callable[[Portfolio], None]]
MoveProposals = Callable[[EMProblem, MixtureParameters], list[MixtureParameters]]

EARLY_MOMENT_UNITS = 10_000
"""With so many units moments cost less than a run of EM, and come early; with fewer they come when
cheaper starts disagree."""

MOMENT_UNITS_PER_PARAMETER = 100
"""With so many units a parameter third moments are more than noise, and are asked before moves."""

LARGE_WEIGHT = 0.5
"""Robust regression finds a component that has at least half of the rows."""

TEMPERATURES = (2.0, 3.5)
"""Inverse powers of the likelihood from which a maximum is cooled again."""

FEW_UNITS_PER_PARAMETER = 10
"""With fewer, maxima that differ by the components of single units lie close together."""

MANY_UNITS_PER_PARAMETER = 500
"""Tempering leaves maxima that few units hold up; with so many units a parameter there are none on
which starts of two kinds agree, and a climb back from a softened likelihood costs as much as a
start."""

ORIGINS_TO_AGREE = 2
"""A maximum is believed to be the highest once starts of so many kinds have reached it."""

LEAN_GROWTH = GrowthOptions(beam=1, n_splits=4, n_directions=2, race_steps=8, settle_steps=8)
WIDE_GROWTH = GrowthOptions(beam=3, n_splits=4, n_directions=2, race_steps=8, settle_steps=12)
"""Growth that comes first, and growth for data on which starts do not agree."""


@dataclass(frozen=True, slots=True)
class PortfolioOptions:
    """Which parts of the portfolio run; all of them unless a part is to be measured."""

    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_tensor: bool = True
    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_splits: bool = True
    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_subsets: bool = True
    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_peeling: bool = True
    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_moves: bool = True
    # starts from moments, from growth by splits (with deviations held together too), from small
    # subsets of rows, by peeling; moves that drop, split and replant, and one to a component of
    # zeros; runs that are tempered, or released from equal deviations
    use_tempering: bool = True
    # random starts before the wide growth, and again after it, while kinds disagree
    n_random: int = 2


def search(
    problem: EMProblem,
    tensor_starts: Callable[[], list[Start]],
    rng: np.random.Generator,
    options: PortfolioOptions | None = None,
) -> Portfolio:
    """Search for the highest maximum of the likelihood."""
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
        found = portfolio.best
        _move(portfolio, options)
        is_held = found is None or bool(found.bounds)
        if portfolio.best is found and found is before and not is_held:
            break  # neither new starts nor moves found anything better than a maximum of its own
    return portfolio


def _is_agreed(portfolio: Portfolio, options: PortfolioOptions) -> bool:
    """Whether two kinds of starts reached the best maximum and no cheap way leads out of it."""
    if len(portfolio.agreeing_origins) < ORIGINS_TO_AGREE:
        return False
    agreed = portfolio.best
    n_units = _units_per_parameter(portfolio.problem)
    is_held = agreed is not None and bool(agreed.bounds)
    if options.use_tempering and (is_held or n_units < MANY_UNITS_PER_PARAMETER):
        _temper(portfolio, has_common_dispersion=is_held)
    if options.use_moves and portfolio.best is agreed:
        _try_moves(portfolio, "zeros", propose_zeros)
    # a binary response says so little that all starts may end a few units below the best
    if options.use_moves and portfolio.best is agreed and portfolio.problem.family.has_binary_rows:
        _try_moves(portfolio, "moves", propose_moves)
    # curves in few dimensions cross, few units tell maxima hardly apart: there starts err alike
    are_alike = (
        portfolio.problem.rows.n_features <= FEW_FEATURES or n_units < FEW_UNITS_PER_PARAMETER
    )
    if are_alike and portfolio.best is agreed:
        _move(portfolio, options)
    return portfolio.best is agreed


def _units_per_parameter(problem: EMProblem) -> float:
    rows = problem.rows
    size = rows.n_features + 2 + problem.family.has_dispersion + rows.n_gate
    return rows.n_units / (size * problem.n_components)


def _move(portfolio: Portfolio, options: PortfolioOptions) -> None:
    if options.use_tempering:
        _temper(portfolio, has_common_dispersion=True)
    if options.use_moves:
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
    """Rounds of routes, the cheap and likely ones first; moves follow each round."""
    tensor: list[Route] = []
    if options.use_tensor:
        tensor = [("tensor", partial(_by_tensor, starts=tensor_starts))]
    is_large = problem.rows.n_units >= EARLY_MOMENT_UNITS
    lean: list[Route] = []
    wide: list[Route] = []
    if options.use_splits:
        lean = [("splits", partial(_by_splits, growth=LEAN_GROWTH))]
        wide = [("splits", partial(_by_splits, growth=WIDE_GROWTH))]
        if problem.family.deviation_power is not None:
            wide.append(("splits", _by_splits_with_common_dispersion))
    ungated: list[Route] = []
    if options.use_splits and problem.rows.gate is not None:
        ungated = [("splits ungated", _by_ungated_splits)]
    peeling: list[Route] = []
    if options.use_peeling and not problem.family.has_binary_rows:
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
    asked, later = [], late
    if _units_per_parameter(problem) >= MOMENT_UNITS_PER_PARAMETER:
        asked, later = late, []
    yield [*lean, *ungated, *early, *peeling, *random(1), *asked]
    yield [*later, *random(1 + options.n_random)]
    yield [*wide, *random(1 + 2 * options.n_random)]


def _by_splits(portfolio: Portfolio, growth: GrowthOptions) -> None:
    grown = grow(portfolio.problem, growth)
    portfolio.race([("splits", run.parameters) for run in grown])


def _by_ungated_splits(portfolio: Portfolio) -> None:
    """Grow and fit without a gate: a gated mixture contains it, and shall not end below."""
    gated = portfolio.problem
    base = replace(gated, rows=replace(gated.rows, gate=None), gate_coordinates=None)
    (grown,) = grow(base, LEAN_GROWTH)
    portfolio.finish("splits ungated", base.climb(grown.parameters, **FINISH).parameters)


def _by_splits_with_common_dispersion(portfolio: Portfolio) -> None:
    """Grow with deviations held together, for data on which narrow components mislead."""
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
    """Peel where the best fit so far has a component that stands out by its size."""
    best = portfolio.best
    if best is not None and best.parameters.weights.max() < LARGE_WEIGHT:
        return
    single = fit_single(portfolio.problem).parameters
    portfolio.finish("peeling", peel(portfolio.problem, single))


def _at_random(portfolio: Portfolio, origin: str, rng: np.random.Generator) -> None:
    portfolio.finish(origin, random_assignment(portfolio.problem, rng))
