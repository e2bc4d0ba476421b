"""Posteriors from the search and from PyMC's own, with a sampler that takes no compiler."""

from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em
from moment_init.comparison.runs import (
    BY_ROW,
    ComparedRows,
    EMRun,
    check_rows,
    climb_chains,
    run_default_nuts,
    run_nuts,
)
from tests.bayesian_models import FakeSampler, fitted
from tests.comparison.laplace_sampler import LaplaceSampler
from tests.comparison.test_runs_em_chains import options_of
from tests.em_fits import Fitted

DRAWS, CHAINS = 6, 2


def rows_of(start: Fitted) -> ComparedRows:
    block = {"family": start.fit.family, "link": start.fit.link, **dict.fromkeys(BY_ROW)}
    return check_rows(start.X, start.y, block | start.block)


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    fake = FakeSampler()
    monkeypatch.setattr(pm, "sample", fake)
    return fake


def check_tree(tree: Any, start: Fitted) -> None:
    posterior = tree["posterior"]
    assert {"coefficient", "direction", "scale", "bias", "weight"} <= set(posterior.data_vars)
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (CHAINS, DRAWS)
    assert np.isfinite(tree["log_likelihood"]["y"]).all()
    assert "posterior_predictive" not in tree.children
    assert "permutation" in tree["moment_init"]
    assert_array_equal(tree["observed_data"]["y"], start.y)


def test_nuts_starts_at_the_fit(sampler: FakeSampler) -> None:
    start = fitted("poisson", "log", "both")
    rng = np.random.default_rng(1)
    begun = EMRun(0, start.fit, 100.0)
    run = run_nuts(rows_of(start), begun, start.fit, options_of(), rng)
    check_tree(run.tree, start)
    assert run.seconds > 100.0
    (call,) = sampler.calls
    assert (call["draws"], call["tune"], call["chains"]) == (DRAWS, 3, CHAINS)
    assert call["target_accept"] == 0.9
    # draws of the fake sampler are within some hundredths of the start on the unconstrained scale
    mean = run.tree["posterior"]["weight"].mean(("chain", "draw"))
    assert_allclose(mean, start.fit.weights, atol=0.02)


def test_default_nuts_knows_nothing_of_the_start(sampler: FakeSampler) -> None:
    start = fitted("gaussian", "identity", "gate")
    priors = {"scale": pm.HalfNormal.dist(2.0), "bias": pm.Normal.dist(0.0, 2.0)}
    given = options_of(priors=priors, tune=None, pm_sample={"progressbar": False, "initvals": {}})
    run = run_default_nuts(rows_of(start), start.fit, given, np.random.default_rng(1))
    check_tree(run.tree, start)
    assert run.seconds > 0.0
    (call,) = sampler.calls
    assert not {"initvals", "init", "tune", "compile_kwargs"} & set(call)
    model = call["model"]
    assert "standardised_coefficient" in model.named_vars
    assert "tilt" not in model.named_vars
    assert all(value is None for value in model.rvs_to_initial_values.values())
    assert list(given.free_priors or {}) == ["bias"]
    assert set(priors) == {"scale", "bias"}
    assert options_of().free_priors is None


def tree_about(fits: list[EMFit], start: Fitted) -> Any:
    """A chain of draws about each fit."""
    others = dict(enumerate(fits))
    arguments = {**dict.fromkeys(BY_ROW), **start.block, "family": fits[0].family}
    return LaplaceSampler(others=others)(
        start.X,
        start.y,
        fits[0].n_components,
        init=fits[0],
        link=fits[0].link,
        draws=8,
        chains=len(fits),
        random_seed=np.random.default_rng(1),
        **arguments,
    )


@pytest.mark.parametrize("variant", ["plain", "both"])
def test_every_chain_is_climbed_to_its_optimum(variant: str) -> None:
    start = fitted("gaussian", "identity", variant)
    tree = tree_about([start.fit, start.fit], start)
    runs = climb_chains(tree, rows_of(start), start.fit)
    assert [run.start for run in runs] == [0, 1]
    values = [run.log_likelihood for run in runs]
    assert_allclose(values, start.fit.log_likelihood, atol=1e-3)
    weights = np.ones(tree["log_likelihood"].sizes.get("group", 0))
    if variant == "plain":
        weights = start.block["sample_weight"]
    best = (tree["log_likelihood"]["y"].values @ weights).max()
    assert min(values) > best


def test_climb_begins_at_the_best_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start that a chain gives has the log-likelihood of its best draw, gate included."""
    start = fitted("gaussian", "identity", "gate")
    tree = tree_about([start.fit], start)
    seen: list[EMFit] = []

    def look(*args: Any, init: EMFit, **options: Any) -> EMFit:
        seen.append(init)
        return fit_em(*args, init=init, max_iter=0, **options)

    monkeypatch.setattr("moment_init.comparison.runs.fit_em", look)
    (run,) = climb_chains(tree, rows_of(start), start.fit)
    best = (tree["log_likelihood"]["y"].values @ start.block["sample_weight"]).max()
    assert run.log_likelihood == pytest.approx(best, rel=1e-9)
    assert len(seen) == 1
    assert seen[0].gate is not None
    assert_allclose(seen[0].gate[:, -1], 0.0)


def test_chain_that_cannot_be_climbed_is_recorded() -> None:
    start = fitted("gaussian", "identity", "plain")
    tree = tree_about([start.fit, start.fit], start)
    posterior = tree["posterior"].to_dataset().copy(deep=True)
    posterior["coefficient"][1] = np.nan
    tree["posterior"] = posterior
    runs = climb_chains(tree, rows_of(start), start.fit)
    assert [run.status for run in runs] == ["converged", "failed"]
    assert "`init` must have finite coefficients" in runs[1].message
