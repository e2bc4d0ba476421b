"""`compare` from end to end, with a sampler that takes no compiler."""

import copy
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em, predict_membership, simulate_mixture
from moment_init.comparison.scoring import COLUMNS
from tests.comparison.laplace_sampler import LaplaceSampler, compare_quickly

METHODS = ["search NUTS", "search EM", "random EM"]
EASY: Any = simulate_mixture(
    200, 2, 2, family="gaussian", weights=[0.5, 0.5], dispersion=0.2, random_seed=1
)
GROUPS = {
    "posterior",
    "sample_stats",
    "log_likelihood",
    "posterior_predictive",
    "observed_data",
    "constant_data",
    "membership",
    "moment_init",
}


@pytest.fixture(scope="module")
def easy() -> Any:
    return compare_quickly(EASY.X, EASY.y, 2, family="gaussian", truth=EASY, n_starts=10)


# --- the result ----------------------------------------------------------------------------------


def test_table_has_a_row_a_method(easy: Any) -> None:
    assert list(easy.trees) == METHODS
    assert list(easy.table.index) == [*METHODS, "best random EM"]
    assert easy.table.index.name == "method"
    assert list(easy.table.columns) == list(COLUMNS)
    assert list(easy.table["n_starts"]) == [2, 1, 10, 1]
    of_samplers = ["ess_bulk_min", "ess_per_second", "divergences"]
    assert easy.table.loc["search NUTS", of_samplers].notna().all()
    assert (
        easy.table.loc[["search EM", "random EM", "best random EM"], of_samplers]
        .isna()
        .all(axis=None)
    )
    with_rhat = easy.table["rhat_max"].notna()
    assert list(easy.table.index[with_rhat]) == ["search NUTS", "random EM"]
    with_share = easy.table["share_at_best"].notna()
    assert list(easy.table.index[with_share]) == METHODS  # the best of several was chosen for it
    rest = easy.table.drop(columns=[*of_samplers, "rhat_max", "share_at_best"])
    assert np.isfinite(rest.to_numpy(dtype=float)).all()
    nuts = easy.table.loc["search NUTS"]
    assert nuts["ess_per_second"] == pytest.approx(nuts["ess_bulk_min"] / nuts["seconds"])
    assert nuts["seconds"] > easy.table.loc["search EM", "seconds"]


def test_balanced_easy_problem_needs_no_more_than_random_starts(easy: Any) -> None:
    assert easy.verdict.random_starts_suffice
    assert "enough for these data" in easy.verdict.headline
    assert easy.table.loc["random EM", "share_at_best"] == 1.0
    # independent draws about one optimum, labels matched: 1.00 with a spread of some thousandths
    assert easy.table.loc["random EM", "rhat_max"] < 1.05


def test_landscape_has_every_start(easy: Any) -> None:
    landscape = easy.landscape
    counts = landscape["method"].value_counts()
    assert dict(counts) == {"search NUTS": 2, "search EM": 1, "random EM": 10}
    assert set(landscape["status"]) == {"converged"}
    assert landscape["is_best"].dtype == bool
    best = landscape["log_likelihood"].max()
    assert_array_equal(landscape["is_best"], landscape["log_likelihood"] > best - 0.01)
    typical = landscape[landscape["is_typical"]]
    assert list(typical["method"]) == ["random EM"]
    assert (landscape["seconds"] > 0).all()
    for method in METHODS:
        own = landscape[landscape["method"] == method]
        assert easy.table.loc[method, "share_at_best"] == own["is_best"].mean()
        assert easy.table.loc[method, "log_likelihood"] == own["log_likelihood"].max()


def test_trees_have_the_same_groups_and_rows(easy: Any) -> None:
    numbers = easy.trees["search NUTS"]["observed_data"]["obs"].values
    assert len(numbers) == easy.settings["n_training"] == 160
    for tree in easy.trees.values():
        assert set(tree.children) == GROUPS
        names = {"coefficient", "direction", "scale", "bias", "weight", "dispersion"}
        assert names <= set(tree["posterior"].data_vars)
        for name in ("observed_data", "constant_data", "log_likelihood", "posterior_predictive"):
            assert_array_equal(tree[name]["obs"], numbers)
        assert_array_equal(tree["observed_data"]["y"], EASY.y[numbers])
        assert_array_equal(tree["constant_data"]["X"], EASY.X[numbers])
        assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "obs")
        assert_allclose(tree["membership"]["probability"].sum("component"), 1.0)
        assert len(az.summary(tree, var_names=["weight"])) == 2
    assert_array_equal(
        easy.trees["random EM"]["posterior"]["chain"],
        easy.landscape.loc[easy.landscape["method"] == "random EM", "start"],
    )


def test_membership_is_the_mean_over_draws_of_one_optimum(easy: Any) -> None:
    tree = easy.trees["search EM"]
    assert_allclose(
        tree["membership"]["probability"], predict_membership(tree).mean(("chain", "draw"))
    )
    random = easy.trees["random EM"]
    assert random["membership"].attrs["chains"] == [random["moment_init"].attrs["typical_chain"]]
    assert easy.trees["search NUTS"]["membership"].attrs["chains"] == [0, 1]


def test_components_are_those_of_the_search(easy: Any) -> None:
    """Means of all methods and the truth agree to a tenth: labels mean the same everywhere."""
    assert easy.truth is not None
    for tree in easy.trees.values():
        mean = tree["posterior"]["coefficient"].mean(("chain", "draw"))
        assert_allclose(mean, easy.truth["coefficient"].transpose(*mean.dims), atol=0.1)


def test_errors_are_those_of_the_means(easy: Any) -> None:
    assert easy.truth is not None
    mean = easy.trees["search NUTS"]["posterior"]["coefficient"].mean(("chain", "draw"))
    error = np.sqrt(np.square(mean - easy.truth["coefficient"]).mean())
    assert easy.table.loc["search NUTS", "error"] == pytest.approx(float(error))
    cosines = (mean * easy.truth["direction"]).sum("feature") / np.sqrt(
        np.square(mean).sum("feature")
    )
    angle = np.degrees(np.arccos(cosines.min()))
    assert easy.table.loc["search NUTS", "error_angle"] == pytest.approx(float(angle), rel=1e-6)


def test_loo_compares_all_rows_of_the_table(easy: Any) -> None:
    assert set(easy.loo.index) == set(easy.table.index)
    columns = {"rank", "elpd_diff", "dse", "elpd", "se", "p", "weight", "is_reliable"}
    assert columns <= set(easy.loo.columns)
    shares = easy.table["pareto_k_bad"].reindex(easy.loo.index)
    assert_array_equal(easy.loo["is_reliable"], shares <= 0.01)
    assert easy.loo["is_reliable"].is_monotonic_decreasing
    assert_allclose(easy.loo["elpd"].sort_index(), easy.table["elpd_loo"].sort_index())
    # one optimum and one seed: the scores of single starts agree up to where climbs end
    assert_allclose(
        easy.table.loc["search EM", "elpd_loo"], easy.table.loc["random EM", "elpd_loo"], rtol=1e-3
    )


def test_scored_fits_have_enough_draws(easy: Any) -> None:
    """The chains of NUTS have 40 draws; those of random starts serve R-hat."""
    assert easy.settings["draws"] == 40
    assert dict(easy.trees["search EM"]["posterior"].sizes)["draw"] == 400
    assert dict(easy.trees["random EM"]["posterior"].sizes)["draw"] == 100


def test_settings_say_what_was_run(easy: Any) -> None:
    expected = {
        "family": "gaussian",
        "link": "identity",
        "n_components": 2,
        "n_features": 2,
        "n_obs": 200,
        "n_training": 160,
        "n_held_out": 40,
        "n_starts": 10,
        "random_seed": 1,
        "search_status": "ok",
    }
    assert {name: easy.settings[name] for name in expected} == expected
    assert {"moment-init", "arviz", "pymc"} <= set(easy.settings["versions"])


def test_same_seed_same_table(easy: Any) -> None:
    X, y = EASY.X.copy(), EASY.y.copy()
    again = compare_quickly(X, y, 2, family="gaussian", truth=EASY, n_starts=10)
    timed = ["seconds", "ess_per_second"]
    pd.testing.assert_frame_equal(again.table.drop(columns=timed), easy.table.drop(columns=timed))
    pd.testing.assert_frame_equal(
        again.landscape.drop(columns="seconds"), easy.landscape.drop(columns="seconds")
    )
    assert again.verdict.headline == easy.verdict.headline
    for method, tree in easy.trees.items():
        for group in ("posterior", "posterior_predictive"):
            assert again.trees[method][group].equals(tree[group])
    assert_array_equal(X, EASY.X)
    assert_array_equal(y, EASY.y)


# --- kinds of data -------------------------------------------------------------------------------


def test_names_groups_gate_and_weights_go_through() -> None:
    """Everything at once, all rows fitted: no argument is changed and units are groups."""
    rng = np.random.default_rng(3)
    n = 240
    data = simulate_mixture(
        n, 2, 2, family="binomial", weights=[0.6, 0.4], scales=2.0, n_trials=6, random_seed=3
    )
    frame = pd.DataFrame(data.X, columns=["age", "<b>"], index=np.arange(n) + 7)
    groups = pd.Series([f"g{k // 2}" for k in range(n)])
    given: dict[str, Any] = {
        "offset": 0.1 * rng.standard_normal(n),
        "n_trials": data.n_trials,
        "sample_weight": rng.integers(0, 3, n).astype(float),
        "groups": groups,
        "gating": pd.DataFrame({"year": np.repeat(rng.standard_normal(n // 2), 2)}),
    }
    before = copy.deepcopy((frame, data.y, given))
    sampler = LaplaceSampler()
    found = compare_quickly(
        frame, data.y, 2, family="binomial", sampler=sampler, held_out=0.25, **given
    )
    pd.testing.assert_frame_equal(frame, before[0])
    assert_array_equal(data.y, before[1])
    for name, values in given.items():
        assert_array_equal(values, before[2][name])
    weights = given["sample_weight"]
    tree = found.trees["random EM"]
    assert list(tree["posterior"]["feature"].values) == ["age", "<b>"]
    assert list(tree["posterior"]["gate_feature"].values) == ["year"]
    assert tree["membership"]["probability"].dims == ("group", "component")
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "group")
    assert np.all(weights[tree["observed_data"]["obs"].values] > 0)
    call = sampler.calls[0]
    assert_array_equal(call["offset"], given["offset"][tree["observed_data"]["obs"].values])
    fitted_groups = set(call["groups"])
    counted = set(groups[weights > 0])
    assert len(fitted_groups) == round(0.75 * len(counted)) == found.settings["n_groups"]
    rest = found.table.drop(
        columns=["rhat_max", "ess_bulk_min", "ess_per_second", "divergences", "error"]
    )
    rest = rest.drop(columns=["error_angle", "share_at_best"])
    assert np.isfinite(rest.to_numpy(dtype=float)).all()
    assert found.table["error"].isna().all()
    assert found.truth is None
    assert any("leaves out a group with all its rows" in text for text in found.warnings)
    assert found.settings["moment_status"] == ""


def test_weighted_rows_are_said_to_be_left_out_one_copy_at_a_time() -> None:
    data = simulate_mixture(150, 2, 2, family="poisson", random_seed=2)
    weights = np.random.default_rng(1).integers(1, 3, 150)
    found = compare_quickly(
        data.X, data.y, 2, family="poisson", sample_weight=weights, held_out=0, n_starts=2
    )
    assert found.settings["n_held_out"] == 0
    assert found.settings["n_training"] == 150
    assert found.table[["elpd_held_out", "elpd_held_out_se"]].isna().all(axis=None)
    assert any("one copy of a row while its other copies stay" in text for text in found.warnings)
    assert any("2 starts say little" in text for text in found.warnings)
    fit = fit_em(data.X, data.y, 2, family="poisson", sample_weight=weights, random_seed=1)
    assert found.table.loc["search EM", "log_likelihood"] == pytest.approx(
        fit.log_likelihood, abs=0.01
    )


def test_one_component_has_one_optimum() -> None:
    data = simulate_mixture(120, 2, 1, family="poisson", random_seed=2)
    found = compare_quickly(data.X, data.y, 1, family="poisson", truth=data)
    assert found.verdict.random_starts_suffice
    assert (found.table["share_at_best"].dropna() == 1.0).all()
    assert found.table["error_angle"].max() < 30.0


# --- what goes wrong -----------------------------------------------------------------------------


def broken_after(n_sound: int) -> Any:
    """`fit_em` whose random starts break down after some."""
    count = 0

    def fit(*args: Any, init: Any, **options: Any) -> EMFit:
        nonlocal count
        if isinstance(init, str) and init == "random":
            count += 1
            if count > n_sound:
                raise FloatingPointError("overflow")
        return fit_em(*args, init=init, **options)

    return fit


def test_failed_starts_are_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moment_init.comparison.runs.fit_em", broken_after(2))
    found = compare_quickly(EASY.X, EASY.y, 2, family="gaussian")
    own = found.landscape[found.landscape["method"] == "random EM"]
    assert list(own["status"]) == ["converged", "converged", "failed", "failed"]
    assert list(own["message"]) == ["", "", "overflow", "overflow"]
    assert found.table.loc["random EM", "share_at_best"] == 0.5
    assert found.trees["random EM"]["posterior"].sizes["chain"] == 2
    assert any("2 of 4 starts broke down, the first with: overflow" in x for x in found.warnings)
    assert not found.verdict.random_starts_suffice


def test_comparison_without_any_random_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moment_init.comparison.runs.fit_em", broken_after(0))
    found = compare_quickly(EASY.X, EASY.y, 2, family="gaussian")
    assert list(found.trees) == METHODS[:2]
    assert list(found.table.index) == METHODS
    row = found.table.loc["random EM"]
    assert (row["share_at_best"], row["n_starts"]) == (0.0, 4)
    assert np.isnan(row["elpd_loo"])
    assert "No random start converged." in found.verdict.reasons
    assert "No random start converged." in repr(found)
    assert "No random start converged." in found._repr_html_()
    page = found.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "None of them converged" in page
    assert "4 of 4 starts broke down, the first with: overflow" in page


def test_traded_labels_are_matched_and_said(easy: Any) -> None:
    sampler = LaplaceSampler(switched=(0,), n_divergent=3)
    found = compare_quickly(
        EASY.X, EASY.y, 2, family="gaussian", truth=EASY, n_starts=1, sampler=sampler
    )
    text = "\n".join(found.warnings)
    assert "search NUTS: 3 divergent transitions" in text
    assert "components switched labels in 50% of a chain's draws" in text
    assert found.table.loc["search NUTS", "divergences"] == 3
    ours, theirs = (own.trees["search NUTS"]["posterior"] for own in (found, easy))
    for name in ("coefficient", "bias", "weight"):
        assert_array_equal(ours[name], theirs[name])


def test_progress_is_said_only_if_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    data = simulate_mixture(80, 2, 1, family="poisson", random_seed=2)
    compare_quickly(data.X, data.y, 1, family="poisson", n_starts=1)
    assert capfd.readouterr() == ("", "")
    compare_quickly(data.X, data.y, 1, family="poisson", n_starts=1, progressbar=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "compare 1/3: EM from the search" in err
    assert "compare 3/3: EM from random starts (1)" in err
