"""The portfolio: its book-keeping, the order of its routes, and what it finds."""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.data.checking import validate_data
from moment_init.em import runs
from moment_init.em import search as module
from moment_init.em.problem import EMProblem
from moment_init.em.runs import FINISH, Portfolio, Start
from moment_init.em.search import PortfolioOptions, search
from moment_init.em.starts import random_assignment, tensor_starts
from moment_init.likelihood.climbing import Ending, MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import SAME_OPTIMUM, StartStatus
from tests.likelihood_problems import VARIANTS, Variant, make_problem
from tests.search_problems import RARE, Posed, draw_mixture, pose

NOTHING = PortfolioOptions(
    use_tensor=False,
    use_splits=False,
    use_subsets=False,
    use_peeling=False,
    use_moves=False,
    use_tempering=False,
    n_random=0,
)


def no_moments() -> list[Start]:
    return []


def run_search(
    problem: EMProblem, options: PortfolioOptions | None = None, seed: int = 1
) -> Portfolio:
    return search(problem, no_moments, np.random.default_rng(seed), options)


def from_moments(posed: Posed) -> list[Start]:
    data = validate_data(posed.data.X, posed.data.y, family=posed.data.family)
    return tensor_starts(posed.problem, data, np.random.default_rng(1))


def origins(portfolio: Portfolio) -> list[str]:
    return [record.origin for record in portfolio.records]


@pytest.fixture
def posed(seed: int) -> Posed:
    """Four components, one of them rare, on few rows: random starts disagree."""
    return draw_mixture([seed, 7], 500, 5, RARE)


def ended_at(run: MaximiseResult, log_likelihood: float) -> MaximiseResult:
    """The run as if it had ended elsewhere."""
    return replace(run, sums=replace(run.sums, log_likelihood=log_likelihood))


def test_bookkeeping_by_hand(rng: np.random.Generator) -> None:
    """Two maxima at -100 and -90, each found again within .01, and a run that ends between them."""
    problem = pose(make_problem("gaussian", "identity", rng))
    run = problem.climb(random_assignment(problem, rng), max_steps=1)
    run = replace(run, ending=Ending.CONVERGED)
    book = Portfolio(problem)
    seen = []
    for origin, value in (
        ("tensor 1", -100.0),
        ("random 1", -100.005),
        ("moves", -90.0),
        ("peeling", -95.0),
        ("random 2", -89.995),
        ("random 3", -90.004),
    ):
        book.add(origin, ended_at(run, value))
        assert book.best is not None
        seen.append((book.best.log_likelihood, sorted(book.agreeing_origins)))
    assert seen == [
        (-100.0, ["tensor"]),
        (-100.0, ["random", "tensor"]),
        (-90.0, ["moves"]),
        (-90.0, ["moves"]),
        (-89.995, ["moves", "random"]),
        (-89.995, ["moves", "random"]),
    ]
    book.fail("tensor 2", "no factor")
    assert origins(book)[-2:] == ["random 3", "tensor 2"]
    assert book.records[-1].status is StartStatus.FAILED
    assert book.records[-1].message == "no factor"
    assert np.isnan(book.records[-1].log_likelihood)
    # the user's units of the response
    assert_allclose(book.records[2].log_likelihood, -90.0 - problem.log_jacobian)


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_has_its_status(ending: Ending, rng: np.random.Generator) -> None:
    problem = pose(make_problem("poisson", "log", rng))
    run = replace(problem.climb(random_assignment(problem, rng), max_steps=1), ending=ending)
    book = Portfolio(problem)
    book.add("random 1", run)
    assert str(book.records[0].status) == str(ending)


def test_start_that_is_recognised_vouches_for_the_best(rng: np.random.Generator) -> None:
    """Its record has the log-likelihood of the maximum ahead; it is no maximum of its own."""
    problem = pose(make_problem("gaussian", "identity", rng, n_obs=1000))
    start = random_assignment(problem, rng)
    book = Portfolio(problem)
    book.finish("random 1", start)
    assert book.best is not None
    assert len(book.maxima) == 1
    book.finish("splits", start)
    assert book.records[1].status is StartStatus.RECOGNISED
    assert book.records[1].log_likelihood == book.records[0].log_likelihood
    assert book.records[1].n_iter < book.records[0].n_iter
    assert book.agreeing_origins == {"random", "splits"}
    assert len(book.maxima) == 1


@pytest.mark.parametrize(("bounds", "n_rounds"), [((), 2), (("deviation of component 1",), 3)])
def test_a_maximum_on_a_bound_does_not_end_a_search(
    bounds: tuple[str, ...],
    n_rounds: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second round finds nothing better: that is the end for a maximum inside all bounds."""
    problem = pose(make_problem("gaussian", "identity", rng))
    run = replace(problem.climb(random_assignment(problem, rng), max_steps=1), bounds=bounds)
    taken: list[int] = []

    def route(book: Portfolio, number: int) -> None:
        taken.append(number)
        book.best = run

    rounds = [[("random 1", partial(route, number=number))] for number in range(3)]
    monkeypatch.setattr(module, "_rounds", lambda *_: iter(rounds))
    monkeypatch.setattr(module, "_move", lambda *_: None)
    search(problem, list, rng)
    assert taken == list(range(n_rounds))


@pytest.mark.parametrize("bounds", [(), ("deviation of component 1",)])
def test_agreement_on_a_bound_is_released_from_equal_deviations(
    bounds: tuple[str, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = pose(make_problem("gaussian", "identity", rng))
    run = replace(problem.climb(random_assignment(problem, rng), max_steps=1), bounds=bounds)
    asked: list[bool] = []
    monkeypatch.setattr(
        Portfolio,
        "temper",
        lambda self, *, has_common_dispersion, **_: asked.append(has_common_dispersion),
    )
    monkeypatch.setattr(module, "_move", lambda *_: None)
    book = Portfolio(problem, best=run, agreeing_origins={"random", "splits"})
    assert module._is_agreed(book, PortfolioOptions())
    assert asked == [bool(bounds)]


def test_moves_that_break_down_are_not_tried_again(posed: Posed) -> None:
    def propose(at: MixtureParameters) -> list[MixtureParameters]:
        raise FloatingPointError("overflow")

    book = Portfolio(posed.problem)
    book.finish("random 1", random_assignment(posed.problem, np.random.default_rng(1)))
    for _ in range(2):
        book.attempt("moves", partial(Portfolio.move, origin="moves", propose=propose))
    assert [record.status for record in book.records].count(StartStatus.FAILED) == 1


def test_ways_out_of_a_maximum_are_tried_once(posed: Posed) -> None:
    calls: list[float] = []

    def propose(at: MixtureParameters) -> list[MixtureParameters]:
        calls.append(1.0)
        return []

    book = Portfolio(posed.problem)
    book.finish("random 1", random_assignment(posed.problem, np.random.default_rng(1)))
    assert not book.move("moves", propose)
    assert not book.move("moves", propose)
    assert len(calls) == 1
    assert book.tried == {"moves"}


def test_race_runs_the_best_to_the_end(rng: np.random.Generator) -> None:
    """Those that lose are on record as raced, after those that ran to the end."""
    problem = pose(make_problem("gaussian", "identity", rng))
    starts = [(f"random {rank}", random_assignment(problem, rng)) for rank in (1, 2, 3)]
    book = Portfolio(problem)
    book.race(starts, n_finishers=2)
    statuses = [record.status for record in book.records]
    assert statuses[2] is StartStatus.RACED
    assert StartStatus.RACED not in statuses[:2]
    assert sorted(origins(book)) == ["random 1", "random 2", "random 3"]
    empty = Portfolio(problem)
    empty.temper([2.0])
    assert not empty.move("moves", lambda _: [])
    assert empty.records == []


@pytest.mark.parametrize("index", range(5))
def test_the_optimum_of_an_imbalanced_mixture_is_reached(index: int) -> None:
    """The best maximum is the one that a climb from the truth finds."""
    posed = draw_mixture([index, 0], 2000, 10, RARE)
    top = posed.problem.climb(posed.truth, **FINISH).log_likelihood
    rng = np.random.default_rng(index)
    found = search(posed.problem, partial(from_moments, posed), rng)
    assert found.best is not None
    assert found.best.log_likelihood > top - SAME_OPTIMUM


def test_single_random_starts_mostly_miss_it() -> None:
    """Ten starts, two for each of the data sets above: one in ten reaches the optimum."""
    reached = []
    for index in range(5):
        posed = draw_mixture([index, 0], 2000, 10, RARE)
        top = posed.problem.climb(posed.truth, **FINISH).log_likelihood
        for start in np.random.default_rng(index).spawn(2):
            end = posed.problem.climb(random_assignment(posed.problem, start), **FINISH)
            reached.append(end.log_likelihood > top - 1.0)
    assert np.mean(reached) < 0.5


def test_same_seed_same_records(posed: Posed) -> None:
    first, again = (run_search(posed.problem, seed=3) for _ in range(2))
    assert origins(first) == origins(again)
    for one, other in zip(first.records, again.records, strict=True):
        assert (one.log_likelihood, one.n_iter) == (other.log_likelihood, other.n_iter)
    assert first.best is not None
    assert again.best is not None
    assert first.best.history == again.best.history


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("use_tensor", "tensor"),
        ("use_splits", "splits"),
        ("use_peeling", "peeling"),
        ("use_subsets", "subsets"),
    ],
)
def test_parts_can_be_switched_off_and_on(option: str, kind: str, seed: int) -> None:
    """Alone it is the only origin; without it all the others run."""
    posed = draw_mixture([seed, 7], 400, 4, (0.7, 0.2, 0.1))
    moments = partial(from_moments, posed)
    alone = replace(NOTHING, **{option: True})
    found = search(posed.problem, moments, np.random.default_rng(1), alone)
    assert {origin.split()[0] for origin in origins(found)} == {kind}
    without = replace(PortfolioOptions(), **{option: False})
    found = search(posed.problem, moments, np.random.default_rng(1), without)
    assert kind not in {origin.split()[0] for origin in origins(found)}
    assert found.best is not None


def test_random_starts_alone(posed: Posed) -> None:
    """Two kinds never agree, so that rounds go on until one finds nothing better."""
    found = run_search(posed.problem, replace(NOTHING, n_random=2))
    names = origins(found)
    assert names == [f"random {rank}" for rank in range(1, len(names) + 1)]
    assert len(names) in (4, 6)
    assert run_search(posed.problem, NOTHING).records == []


@pytest.mark.parametrize(
    ("option", "owner", "name"),
    [
        ("use_moves", module, "propose_moves"),
        ("use_moves", module, "propose_zeros"),
        ("use_tempering", runs, "tempered"),
        ("use_tempering", runs, "climb_with_common_dispersion"),
    ],
)
def test_moves_and_tempering_can_be_switched_off(
    option: str, owner: ModuleType, name: str, posed: Posed, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    options = replace(NOTHING, n_random=1)
    run_search(posed.problem, options)
    assert calls == []
    run_search(posed.problem, replace(options, **{option: True}))
    assert calls


def test_two_kinds_that_agree_end_the_search(rng: np.random.Generator) -> None:
    """No random start is run, though there are five to come."""
    problem = pose(make_problem("gaussian", "identity", rng, n_obs=1000))
    options = replace(NOTHING, use_splits=True, use_peeling=True, n_random=5)
    found = run_search(problem, options)
    assert origins(found) == ["splits", "peeling"]
    assert found.agreeing_origins == {"splits", "peeling"}


def test_moments_are_not_asked_for_where_cheaper_starts_agree(rng: np.random.Generator) -> None:
    problem = pose(make_problem("gaussian", "identity", rng, n_obs=1000))

    def never() -> list[Start]:
        raise AssertionError("not to be asked for")

    found = search(problem, never, rng)
    assert len(found.agreeing_origins) >= 2


def test_one_component_is_one_start(rng: np.random.Generator) -> None:
    found = run_search(pose(make_problem("poisson", "log", rng), 1))
    assert origins(found) == ["splits"]
    assert found.best is not None
    assert found.best.converged


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_groups_and_gates(family: str, variant: Variant, rng: np.random.Generator) -> None:
    """The optimum that a climb from the truth finds, or a better one."""
    link = {"gaussian": "identity", "poisson": "log"}[family]
    drawn = make_problem(family, link, rng, n_obs=800, variant=variant)
    problem = pose(drawn)
    top = problem.climb(problem.to_standardised(drawn.truth), **FINISH).log_likelihood
    best = run_search(problem).best
    assert best is not None
    assert best.log_likelihood > top - SAME_OPTIMUM
    assert (best.parameters.gate is None) == (not variant.gated)


def test_restrictions_hold_in_every_part(rng: np.random.Generator) -> None:
    problem = pose(
        make_problem("gaussian", "identity", rng), shared=[1], fixed_weights=[0.35, 0.65]
    )
    best = run_search(problem, PortfolioOptions(n_random=1)).best
    assert best is not None
    user = problem.to_user(best.parameters)
    assert_allclose(user.coefficients[1, 0], user.coefficients[1, 1])
    assert_allclose(user.weights, [0.35, 0.65])


@pytest.mark.parametrize(
    ("broken", "origin", "part"),
    [
        ("grow", "splits", "use_splits"),
        ("peel", "peeling", "use_peeling"),
        ("random_assignment", "random 1", "use_splits"),
    ],
)
def test_a_route_that_breaks_down_is_on_record(
    broken: str, origin: str, part: str, posed: Posed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part and random starts: the other of the two goes on."""

    def failing(*_: Any) -> Any:
        raise np.linalg.LinAlgError("no factor")

    monkeypatch.setattr(module, broken, failing)
    found = run_search(posed.problem, replace(NOTHING, n_random=1, **{part: True}))
    failed = [record for record in found.records if record.status is StartStatus.FAILED]
    assert (failed[0].origin, failed[0].message) == (origin, "no factor")
    assert found.best is not None


def test_moves_that_break_down_leave_the_best(
    posed: Posed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise FloatingPointError("overflow")

    monkeypatch.setattr(module, "propose_moves", failing)
    monkeypatch.setattr(runs, "tempered", failing)
    found = run_search(
        posed.problem, replace(NOTHING, n_random=1, use_moves=True, use_tempering=True)
    )
    failed = {record.origin for record in found.records if record.status is StartStatus.FAILED}
    assert failed == {"moves", "tempering"}
    assert found.best is not None
