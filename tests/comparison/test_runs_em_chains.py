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
    Options,
    check_rows,
    converged_runs,
    laplace_tree,
    match_fits,
    random_tree,
    run_em,
    run_random,
    typical_run,
)
from moment_init.comparison.scoring import assess_convergence
from moment_init.likelihood.climbing import Ending
from tests.bayesian_models import fitted

DATA = simulate_mixture(
    300, 3, 2, family="gaussian", weights=[0.6, 0.4], dispersion=0.3, random_seed=4
)


def make_rows() -> ComparedRows:
    return check_rows(DATA.X, DATA.y, {"family": "gaussian", "link": None, **dict.fromkeys(BY_ROW)})


def options_of(**changed: Any) -> Options:
    given: dict[str, Any] = {
        "n_starts": 6,
        "held_out": 0.0,
        "include_default_nuts": False,
        "directions": "anchored",
        "priors": None,
        "draws": 6,
        "tune": 3,
        "chains": 2,
        "n_jobs": None,
        "progressbar": False,
        "pm_sample": {"progressbar": False, "target_accept": 0.9},
    }
    return Options(**(given | changed))


def search_run() -> Any:
    return run_em(make_rows(), 2, 0, init="search", random_seed=1)


def random_runs(n_starts: int = 6, **options: Any) -> tuple[EMRun, ...]:
    given = options_of(n_starts=n_starts, **options)
    return run_random(make_rows(), 2, given, np.random.default_rng(1))


def runs_at(*values: float) -> list[EMRun]:
    own = fitted("poisson", "log", "plain").fit
    return [EMRun(k, replace(own, log_likelihood=x), 0.1) for k, x in enumerate(values)]


def test_starts_do_not_depend_on_the_number_of_jobs() -> None:
    alone, together = random_runs(), random_runs(n_jobs=2)
    assert [run.start for run in alone] == list(range(6))
    assert [run.log_likelihood for run in alone] == [run.log_likelihood for run in together]
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
        laplace_tree(em_runs[2], search_run().fit, make_rows(), draws=10, seed=1)


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
    rows, fit = make_rows(), search_run().fit
    fits = [permuted(fit) if k % 2 else fit for k in range(6)]
    # Responsibilities of a permuted fit are permuted, too.
    fits = [
        replace(each, responsibilities=each.responsibilities[:, :: -1 if k % 2 else 1])
        for k, each in enumerate(fits)
    ]
    assert_array_equal([match_fits(each, fit)[0] for each in fits], [[0, 1], [1, 0]] * 3)
    em_runs = [EMRun(k, each, 0.1) for k, each in enumerate(fits)]
    aligned = random_tree(em_runs, fit, rows, draws=600, rng=np.random.default_rng(2))
    # independent draws: with 100 in each of 6 chains R-hat is 1.00 with a spread of about .006
    assert assess_convergence(aligned).rhat_max < 1.03
    blind: list[Any] = [
        replace(run, fit=replace(each, responsibilities=fit.responsibilities))
        for run, each in zip(em_runs, fits, strict=True)
    ]
    alone = random_tree(blind, fit, rows, draws=600, rng=np.random.default_rng(2))
    assert assess_convergence(alone).rhat_max > 1.5


def test_distance_of_fits_by_hand() -> None:
    """Half of the rows change component altogether; labels do not matter."""
    fit = search_run().fit
    first = replace(fit, responsibilities=np.array([[1.0, 0], [1, 0], [0, 1], [1, 0]]))
    second = replace(fit, responsibilities=np.array([[0.0, 1], [0, 1], [0, 1], [1, 0]]))
    assert match_fits(first, second)[1] == 0.5
    order, distance = match_fits(replace(fit, responsibilities=1 - first.responsibilities), first)
    assert distance == 0.0
    assert_array_equal(order, [1, 0])


def test_relabelled_draws_have_the_same_likelihood() -> None:
    rows, run = make_rows(), search_run()
    traded = replace(run.fit, responsibilities=run.fit.responsibilities[:, ::-1])
    tree: Any = laplace_tree(run, run.fit, rows, draws=5, seed=1)
    other: Any = laplace_tree(run, traded, rows, draws=5, seed=1)
    assert_array_equal(other["posterior"]["component"], [0, 1])
    for name in ("coefficient", "bias", "weight", "dispersion"):
        values = tree["posterior"][name].values
        assert_array_equal(other["posterior"][name].values, values[..., ::-1])
    assert other["log_likelihood"].identical(tree["log_likelihood"])


def test_chains_have_the_numbers_of_their_starts() -> None:
    rows, em_runs = make_rows(), random_runs(4)
    kept = [em_runs[0], em_runs[3]]
    tree: Any = random_tree(kept, search_run().fit, rows, draws=200, rng=np.random.default_rng(3))
    for name in ("posterior", "sample_stats", "log_likelihood", "moment_init"):
        assert_array_equal(tree[name]["chain"], [0, 3])
    assert dict(tree["log_likelihood"].sizes) == {"chain": 2, "draw": 100, "obs": 300}
    own = tree["moment_init"]
    assert_allclose(own["log_likelihood"], [run.log_likelihood for run in kept])
    assert own.attrs["typical_chain"] in (0, 3)
    assert own.attrs["family"] == "gaussian"


def test_fits_at_one_optimum_have_the_same_draws_from_one_seed() -> None:
    rows = make_rows()
    first, second = random_runs(2)
    assert first.log_likelihood == pytest.approx(second.log_likelihood, abs=1e-5)
    fit = search_run().fit
    trees = [laplace_tree(run, fit, rows, draws=50, seed=7)["posterior"] for run in (first, second)]
    for name in ("coefficient", "bias", "weight", "dispersion"):
        assert_allclose(trees[0][name], trees[1][name], rtol=1e-3, atol=1e-4)
