"""The search: optima and their counts, when it stops, what it returns and what it says."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import Status, fit_em, simulate_mixture
from moment_init.data.checking import validate_data
from moment_init.em import runs as module
from moment_init.em.exploration import MASS_LIMIT, UnseenMass
from moment_init.em.information import coinciding_components
from moment_init.em.problem import EMProblem
from moment_init.em.runs import (
    FINISH,
    LEAST_REACHED,
    FitOptions,
    Runs,
    is_clearly_lower,
    is_same_optimum,
    step_seconds,
)
from moment_init.em.search import BUDGET_SECONDS, SETTLED_PATIENCE, SearchParts, search
from moment_init.em.starts import Start, bin_starts, random_assignment, tensor_starts
from moment_init.likelihood.climbing import Ending, MaximiseResult
from moment_init.likelihood.parameters import pack
from moment_init.results import StartStatus
from tests.em_fits import make_fit
from tests.likelihood_problems import VARIANTS, Variant, make_problem
from tests.search_problems import RARE, Posed, draw_mixture, pose

RANDOM_ONLY = SearchParts(
    use_tensor=False, use_growth=False, use_bins=False, use_moves=False, use_perturbations=False
)


def no_moments() -> list[Start]:
    return []


def run_search(problem: EMProblem, seed: int = 1, **options: Any) -> Runs:
    return search(problem, no_moments, np.random.default_rng(seed), **options)


def origins(runs: Runs) -> list[str]:
    return [record.origin for record in runs.records]


@pytest.fixture
def posed(seed: int) -> Posed:
    """Four components, one of them rare: random starts disagree."""
    return draw_mixture([seed, 7], 1_000, 5, RARE, noise=0.3)


def ended_at(run: MaximiseResult, log_likelihood: float) -> MaximiseResult:
    """The run as if it had ended elsewhere."""
    return replace(run, sums=replace(run.sums, log_likelihood=log_likelihood))


# --- what is counted -----------------------------------------------------------------------------


def test_optima_are_counted_by_hand(rng: np.random.Generator) -> None:
    """Optima at -90 and -100, each reached twice; -99.97 is the same as -100, -90.06 is not -90."""
    problem = pose(make_problem("gaussian", "identity", rng))
    run = replace(
        problem.climb(random_assignment(problem, rng), max_steps=100), ending=Ending.CONVERGED
    )
    runs = Runs(problem)
    for origin, value in (
        ("random 1", -100.0),
        ("random 2", -99.97),
        ("random 3", -90.0),
        ("growth", -90.04),
        ("random 4", -90.06),
    ):
        runs.add(origin, ended_at(run, value))
    stalled = replace(ended_at(run, -80.0), ending=Ending.STALLED)
    assert runs.add("random 5", stalled) is None
    assert [optimum.n_random for optimum in runs.ranked] == [1, 1, 2]
    assert runs.ranked[0].n_reached == 2
    assert runs.unseen_mass == UnseenMass(4, 3, 2, 6, 1)
    assert runs.best is not None
    assert runs.best.log_likelihood == -90.0
    assert runs.origin == "random 3"


def test_a_return_to_where_a_run_began_is_no_evidence(posed: Posed) -> None:
    runs = Runs(posed.problem)
    run = posed.problem.climb(posed.truth, **FINISH)
    optimum = runs.add("growth", run)
    assert runs.add("perturbation 1", run, source=optimum) is optimum
    assert runs.ranked[0].n_reached == 1
    runs.add("perturbation 2", run, source=None)
    assert runs.ranked[0].n_reached == 2


def test_one_optimum_in_any_order_of_its_components(posed: Posed) -> None:
    run = posed.problem.climb(posed.truth, **FINISH)
    turned = posed.problem.climb(posed.truth.reorder(np.array([2, 0, 3, 1])), **FINISH)
    assert is_same_optimum(posed.problem, run, turned)
    moved = replace(turned.parameters, biases=turned.parameters.biases + 0.1)
    assert not is_same_optimum(posed.problem, run, replace(turned, parameters=moved))


def test_an_interior_optimum_is_returned_before_a_higher_one_on_a_bound(posed: Posed) -> None:
    runs = Runs(posed.problem)
    run = posed.problem.climb(posed.truth, **FINISH)
    higher = replace(
        ended_at(run, run.log_likelihood + 5.0), bounds=("dispersion ratio of component 1",)
    )
    runs.add("random 1", higher)
    assert runs.best is higher
    runs.add("random 2", run)
    assert runs.best is run
    assert len(runs.optima) == 2


def test_a_component_with_fewer_rows_than_parameters_is_not_interior(posed: Posed) -> None:
    run = posed.problem.climb(posed.truth, **FINISH)
    assert module.is_interior(posed.problem, run)
    few = replace(run.sums, row_counts=np.array([800.0, 100.0, 93.0, 7.0]))
    assert not module.is_interior(posed.problem, replace(run, sums=few))  # 7 = 5 + 1 + 1


# --- what is not yet seen ------------------------------------------------------------------------


def test_unseen_mass_by_hand() -> None:
    assert UnseenMass(10, 2, 1, 12).mass == pytest.approx(6 / 90)
    assert UnseenMass(3, 2, 1, 3).mass == 1.0  # too few starts
    assert UnseenMass(0, 0, 0, 0).mass == 1.0
    assert UnseenMass(30, 2, 5, 40).better == pytest.approx(6 / 870 / 41 / 25)
    # the limit can be reached within thirty starts that end in one, two or three optima
    assert [UnseenMass(n, w, 1, n).mass < MASS_LIMIT for n, w in ((11, 1), (18, 2), (26, 3))] == [
        True,
        True,
        True,
    ]


def test_unseen_mass_and_its_error_are_posterior_moments() -> None:
    """Sum over the number of optima k: P(k) k! (k-1)! / ((k-W)! (N+k-1)!), U | k Beta(k-W, N+W)."""
    from scipy.special import gammaln

    n, w = 14, 3
    k = np.arange(w, 20_000)
    logs = gammaln(k + 1) + gammaln(k) - gammaln(k - w + 1) - gammaln(n + k)
    posterior = np.exp(logs - logs.max())
    posterior /= posterior.sum()
    mean = posterior @ ((k - w) / (n + k))
    square = posterior @ ((k - w) * (k - w + 1) / ((n + k) * (n + k + 1)))
    unseen = UnseenMass(n, w, 1, n)
    assert_allclose(unseen.mass, mean, rtol=1e-6)
    assert_allclose(unseen.error, np.sqrt(square - mean**2), rtol=1e-6)


# --- when it stops -------------------------------------------------------------------------------


def test_random_starts_end_when_hardly_anything_is_unseen(seed: int) -> None:
    """One optimum: eleven starts, 2 / (11 * 10) < .02, and then ways out of this optimum."""
    problem = draw_mixture([seed, 2], 600, 2, (0.6, 0.4), noise=0.3).problem
    runs = run_search(problem, options=FitOptions(), parts=RANDOM_ONLY)
    assert origins(runs) == [f"random {k}" for k in range(1, 12)]
    whole = run_search(problem)
    assert whole.unseen_mass is not None
    assert whole.unseen_mass.is_explored
    rest = origins(whole)[origins(whole).index("random 11") + 1 :]
    assert len(rest) >= SETTLED_PATIENCE
    assert all(origin.startswith("perturbation") for origin in rest)


def test_a_search_ends_early_if_the_best_optimum_stands_out(seed: int) -> None:
    """Hundreds in log-likelihood lie between the optima, and three kinds of starts agree."""
    runs = run_search(draw_mixture([seed, 7], 2_000, 10, RARE, noise=0.1).problem)
    best, *others = runs.ranked
    assert runs.stands_out
    assert best.n_reached >= LEAST_REACHED
    assert all(is_clearly_lower(runs.problem, other.run, best.run) for other in others)
    assert origins(runs)[-1].startswith("perturbation")
    assert runs.work < 0.5 * BUDGET_SECONDS
    unseen = runs.unseen_mass
    assert unseen is not None
    assert unseen.mass > MASS_LIMIT
    assert unseen.is_explored


def test_nothing_stands_out_by_little(posed: Posed) -> None:
    """Three runs to an optimum and one to another, which is lower by much less than its error."""
    runs = Runs(posed.problem)
    run = posed.problem.climb(posed.truth, **FINISH)
    for rank in range(3):
        runs.add(f"random {rank}", run)
    moved = replace(run.parameters, biases=run.parameters.biases + 0.1)
    runs.add("random 4", ended_at(replace(run, parameters=moved), run.log_likelihood - 1.0))
    assert len(runs.optima) == 2
    assert not runs.stands_out


def test_counts_that_are_not_overdispersed_are_an_interior_maximum(
    rng: np.random.Generator,
) -> None:
    """The negative binomial family ends in the Poisson family, and that is harmless."""
    X = rng.standard_normal((400, 1))
    y = rng.poisson(np.exp(np.where(rng.random(400) < 0.5, 2.0 + X[:, 0], -X[:, 0])))
    fit = fit_em(X, y, 2, family="negative_binomial", random_seed=1)
    assert fit.bounds
    assert all(bound.startswith("dispersion of") for bound in fit.bounds)
    assert fit.status is Status.OK
    assert fit.unseen_mass is not None
    assert fit.unseen_mass.n_optima == 1


def test_a_budget_ends_the_search(posed: Posed, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps that count as a second each, the time of thirty random starts is the longer."""
    monkeypatch.setattr(module, "STEP_SECONDS", 1.0)
    runs = run_search(posed.problem)
    n_random = sum(origin.startswith("random") for origin in origins(runs))
    assert n_random <= 30
    assert runs.work > 10 * BUDGET_SECONDS


def test_more_starts_and_more_time_on_request(posed: Posed) -> None:
    runs = run_search(posed.problem, options=FitOptions(n_starts=70))
    assert sum(origin.startswith("random") for origin in origins(runs)) == 70
    short = run_search(posed.problem, options=FitOptions(max_seconds=1e-3))
    assert len(short.records) < len(runs.records)
    assert short.best is not None


def test_same_seed_same_bits(posed: Posed) -> None:
    first, second = run_search(posed.problem, seed=3), run_search(posed.problem, seed=3)
    assert origins(first) == origins(second)
    assert first.best is not None
    assert second.best is not None
    assert_array_equal(pack(first.best.parameters), pack(second.best.parameters))
    other = run_search(posed.problem, seed=4)
    assert [record.log_likelihood for record in other.records] != [
        record.log_likelihood for record in first.records
    ]


def test_moments_come_first_with_many_rows(seed: int) -> None:
    """Otherwise they come after growth and bins, and before random starts."""
    for n_obs, is_first in ((6_000, True), (400, False)):
        posed = draw_mixture([seed, 3], n_obs, 3, (0.6, 0.4), noise=0.3)
        data = validate_data(posed.data.X, posed.data.y, family="gaussian")
        rng = np.random.default_rng(1)
        starts, _ = tensor_starts(posed.problem, data, rng)
        runs = search(posed.problem, partial(list, starts), rng)
        places = [k for k, origin in enumerate(origins(runs)) if origin.startswith("tensor")]
        assert (places[0] < origins(runs).index("growth")) == is_first
        assert places[0] < origins(runs).index("random 1")


def test_steps_cost_more_with_more_rows(seed: int) -> None:
    few, many = (draw_mixture([seed, 1], n, 3, (0.6, 0.4)).problem for n in (100, 100_000))
    assert step_seconds(many) > 3 * step_seconds(few)


# --- what it finds -------------------------------------------------------------------------------


def test_the_maximum_of_rare_components_is_found(posed: Posed) -> None:
    truth = posed.problem.climb(posed.truth, **FINISH)
    runs = run_search(posed.problem)
    assert runs.best is not None
    assert runs.best.log_likelihood > truth.log_likelihood - 0.05


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("family", "link"), [("gaussian", "identity"), ("bernoulli", "logit")])
def test_all_variants_are_searched(
    family: str, link: str, variant: Variant, rng: np.random.Generator
) -> None:
    problem = pose(make_problem(family, link, rng, variant=variant, n_obs=300))
    runs = run_search(problem)
    failed = [record for record in runs.records if record.status is StartStatus.FAILED]
    assert not failed
    assert runs.best is not None


def test_one_component_is_one_run(rng: np.random.Generator) -> None:
    runs = run_search(pose(make_problem("poisson", "log", rng), 1))
    assert origins(runs) == ["single"]


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
def test_bins_are_of_the_response_and_of_residuals(family: str, seed: int) -> None:
    """The first component has the lowest responses, or residuals; shares of bins are equal."""
    problem = draw_mixture([seed, 6], 900, 3, (0.4, 0.3, 0.3), family=family).problem
    (first, of_response), (second, of_residuals) = bin_starts(problem)
    assert (first, second) == ("bins of response", "bins of residuals")
    for start in (of_response, of_residuals):
        assert_allclose(start.weights, 1 / 3, atol=1e-6)
        assert np.all(np.diff(start.biases) > 0.0)


# --- what the result says ------------------------------------------------------------------------


def test_the_result_says_what_was_explored(seed: int) -> None:
    data = simulate_mixture(600, 3, 2, family="poisson", weights=[0.6, 0.4], random_seed=seed)
    fit = fit_em(data.X, data.y, 2, family="poisson", random_seed=1)
    assert fit.status is Status.OK
    assert fit.unseen_mass is not None
    assert fit.unseen_mass.mass < MASS_LIMIT
    assert fit.origin in {start.origin for start in fit.starts}
    text = repr(fit)
    assert "not yet seen with probability about" in text
    assert f"first from: {fit.origin}" in text
    assert "not yet seen" in fit._repr_html_()
    tree = fit.to_datatree(draws=10)
    assert_allclose(tree["moment_init"]["unseen_mass"], fit.unseen_mass.mass)
    assert tree["moment_init"].attrs["origin"] == fit.origin
    assert fit_em(data.X, data.y, 2, family="poisson", init=fit).unseen_mass is None


def test_a_rugged_likelihood_is_not_explored() -> None:
    """Few rows, five components: random starts end in many optima, and time is short."""
    data = simulate_mixture(150, 3, 5, family="poisson", random_seed=2)
    with pytest.warns(UserWarning, match="random starts? ended in"):
        fit = fit_em(data.X, data.y, 5, family="poisson", max_seconds=0.1, random_seed=1)
    assert fit.unseen_mass is not None
    assert fit.unseen_mass.mass > 0.1
    assert fit.status in {Status.NOT_EXPLORED, Status.NOT_IDENTIFIED}
    assert "! " in repr(fit)


def test_a_search_without_time_says_that_it_has_not_explored() -> None:
    data = simulate_mixture(300, 3, 3, family="poisson", random_seed=2)
    with pytest.warns(UserWarning, match="1 random start ended in 1 optimum"):
        fit = fit_em(data.X, data.y, 3, family="poisson", max_seconds=1e-6, random_seed=1)
    assert fit.unseen_mass is not None
    assert fit.unseen_mass.mass == 1.0
    assert fit.status is not Status.OK


def test_components_coincide_within_large_errors_only(rng: np.random.Generator) -> None:
    fit = make_fit("gaussian", "identity", rng).fit
    assert coinciding_components(fit.centred_parameters, fit.laplace) == []
    wide = replace(fit.laplace, root=1e3 * fit.laplace.root)
    assert coinciding_components(fit.centred_parameters, wide) == [(0, 1)]


def test_a_start_beyond_the_bounds_keeps_what_is_shared(rng: np.random.Generator) -> None:
    """The largest predictor of a logit is 100: the components are shortened alike."""
    made = make_fit("bernoulli", "logit", rng, n_obs=400, shared=["age"])
    parameters = made.problem.to_standardised(made.fit.parameters)
    far = replace(parameters, biases=np.array([500.0, -5.0]))
    end = made.problem.to_user(made.problem.climb(far, max_steps=5).parameters)
    assert_allclose(end.coefficients[0, 0], end.coefficients[0, 1], rtol=1e-8)
