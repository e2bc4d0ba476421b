"""Fits from starts of their own, and their draws as chains."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em, simulate_mixture
from moment_init.comparison import runs
from moment_init.comparison.runs import (
    BY_ROW,
    ComparedRows,
    EMRun,
    best_run,
    check_rows,
    converged_runs,
    laplace_tree,
    random_tree,
    relabel,
    run_random,
    run_search,
    start_orders,
    typical_run,
)
from moment_init.comparison.scoring import largest_rhat
from moment_init.likelihood.climbing import Ending
from tests.bayesian_models import fitted

DATA = simulate_mixture(
    300, 3, 2, family="gaussian", weights=[0.6, 0.4], dispersion=0.3, random_seed=4
)


def make_rows() -> ComparedRows:
    return check_rows(DATA.X, DATA.y, {"family": "gaussian", "link": None, **dict.fromkeys(BY_ROW)})


def random_runs(n_starts: int = 6, **options: Any) -> tuple[EMRun, ...]:
    given: dict[str, Any] = {"n_jobs": None, "is_shown": False} | options
    return run_random(make_rows(), 2, n_starts, np.random.default_rng(1), **given)


def runs_at(*values: float) -> list[EMRun]:
    own = fitted("poisson", "log", "plain").fit
    return [EMRun(k, replace(own, log_likelihood=x), 0.1, k) for k, x in enumerate(values)]


def test_starts_do_not_depend_on_the_number_of_jobs() -> None:
    alone, together = random_runs(), random_runs(n_jobs=2)
    assert [run.start for run in alone] == list(range(6))
    assert [run.log_likelihood for run in alone] == [run.log_likelihood for run in together]
    assert [run.seed for run in alone] == [run.seed for run in together]
    assert len({run.seed for run in alone}) == 6
    assert {run.status for run in alone} == {"converged"}
    assert all(run.seconds > 0 for run in alone)


def test_start_that_breaks_down_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def break_the_third(*args: Any, **options: Any) -> EMFit:
        nonlocal count
        count += 1
        if count == 3:
            raise np.linalg.LinAlgError("no factor")
        return fit_em(*args, **options)

    monkeypatch.setattr(runs, "fit_em", break_the_third)
    em_runs = random_runs()
    assert [run.status for run in em_runs] == [*["converged"] * 2, "failed", *["converged"] * 3]
    assert em_runs[2].message == "no factor"
    assert np.isnan(em_runs[2].log_likelihood)
    assert [run.start for run in converged_runs(em_runs)] == [0, 1, 3, 4, 5]
    with pytest.raises(ValueError, match="got one that broke down: no factor"):
        laplace_tree(em_runs[2], make_rows(), 10)


def test_start_that_does_not_converge_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        runs, "fit_em", lambda *args, **options: fit_em(*args, max_iter=1, **options)
    )
    (run,) = random_runs(1)
    assert run.status == str(Ending.OUT_OF_STEPS)
    assert converged_runs([run]) == []
    (searched,) = runs_at(-1.0)
    assert searched.fit is not None
    stopped = replace(searched.fit, converged=False, starts=searched.fit.starts * 2)
    assert replace(searched, fit=stopped).status == "not_converged"


def test_typical_run_has_the_lower_median() -> None:
    assert typical_run(runs_at(3.0, 1.0, 2.0)).start == 2
    assert typical_run(runs_at(4.0, 1.0, 2.0, 3.0)).start == 2
    assert typical_run(runs_at(1.0, 1.0, 1.0)).start == 1
    assert best_run(runs_at(1.0, 3.0, 3.0)).start == 1


def permuted(fit: EMFit) -> EMFit:
    """The same mixture with its two components in the other order."""
    changed = {
        name: getattr(fit, name)[..., ::-1]
        for name in ("coefficients", "biases", "weights", "dispersion")
    }
    size = fit.coefficients.shape[0] + 2  # coefficients, bias and log dispersion of a component
    root = fit.laplace.root
    # the logit of the weight is relative to the other component and changes its sign
    flipped = np.concatenate([root[size : 2 * size], root[:size], -root[2 * size :]])
    return replace(fit, **changed, laplace=replace(fit.laplace, root=flipped))


def test_permuted_starts_agree_after_alignment() -> None:
    """Same optimum, labels of every second start traded: R-hat is about one after alignment."""
    rows = make_rows()
    search = run_search(rows, 2, np.random.default_rng(1), None)
    assert search.fit is not None
    seeds = np.random.default_rng(2).integers(2**31, size=6).tolist()
    fits = [permuted(search.fit) if k % 2 else search.fit for k in range(6)]
    em_runs = [
        EMRun(k, fit, 0.1, seed) for k, (fit, seed) in enumerate(zip(fits, seeds, strict=True))
    ]
    orders = start_orders(fits, search.fit)
    assert_array_equal(orders, [[0, 1], [1, 0]] * 3)
    aligned = random_tree(em_runs, orders, rows, 600)
    # independent draws: with 100 in each of 6 chains R-hat is 1.00 with a spread of about .006
    assert largest_rhat(aligned) < 1.03
    alone = random_tree(em_runs, np.tile([0, 1], (6, 1)), rows, 600)
    assert largest_rhat(alone) > 1.5


def test_relabelled_draws_have_the_same_likelihood() -> None:
    rows = make_rows()
    run = run_search(rows, 2, np.random.default_rng(1), None)
    tree: Any = laplace_tree(run, rows, 5)
    other: Any = relabel(tree, np.array([1, 0]))
    assert_array_equal(other["posterior"]["component"], [0, 1])
    for name in ("coefficient", "bias", "weight", "dispersion"):
        values = tree["posterior"][name].values
        assert_array_equal(other["posterior"][name].values, values[..., ::-1])
    assert other["log_likelihood"].identical(tree["log_likelihood"])


def test_chains_have_the_numbers_of_their_starts() -> None:
    rows, em_runs = make_rows(), random_runs(4)
    kept = [em_runs[0], em_runs[3]]
    tree: Any = random_tree(kept, np.tile([0, 1], (2, 1)), rows, 200)
    for name in ("posterior", "sample_stats", "log_likelihood", "moment_init"):
        assert_array_equal(tree[name]["chain"], [0, 3])
    assert dict(tree["log_likelihood"].sizes) == {"chain": 2, "draw": 100, "obs": 300}
    own = tree["moment_init"]
    assert_allclose(own["log_likelihood"], [run.log_likelihood for run in kept])
    assert own.attrs["typical_chain"] in (0, 3)
    assert own.attrs["family"] == "gaussian"
    first: Any = laplace_tree(em_runs[3], rows, 30)["posterior"]["coefficient"]
    assert_array_equal(tree["posterior"]["coefficient"].sel(chain=3)[:30], first.values[0])


def test_fits_at_one_optimum_have_the_same_draws_from_one_seed() -> None:
    rows = make_rows()
    first, second = (replace(run, seed=7) for run in random_runs(2))
    assert first.log_likelihood == pytest.approx(second.log_likelihood, abs=1e-5)
    trees = [laplace_tree(run, rows, 50)["posterior"] for run in (first, second)]
    for name in ("coefficient", "bias", "weight", "dispersion"):
        assert_allclose(trees[0][name], trees[1][name], rtol=1e-3, atol=1e-4)
