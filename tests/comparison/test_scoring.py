"""Leave-one-out and held-out scores, against sums by hand."""

from copy import copy
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from moment_init.comparison.runs import BY_ROW, ComparedRows, EMRun, check_rows, laplace_tree
from moment_init.comparison.scoring import (
    HeldOutScore,
    LooScore,
    ScoreDifference,
    compare_loo,
    score_held_out,
    score_loo,
)
from moment_init.em.information import LaplaceApproximation
from tests.em_fits import Fitted, make_fit
from tests.likelihood_problems import BOTH, PLAIN, Variant

FloatArray = NDArray[np.float64]

N_OBS, DRAWS = 80, 400


def rows_of(fitted: Fitted) -> ComparedRows:
    block = {"family": fitted.fit.family, "link": fitted.fit.link, **dict.fromkeys(BY_ROW)}
    return check_rows(fitted.X, fitted.y, block | fitted.block)


def make(rng: np.random.Generator, variant: Variant = PLAIN, **options: Any) -> Fitted:
    return make_fit("gaussian", "identity", rng, variant=variant, n_obs=N_OBS, **options)


def draws_of(fitted: Fitted) -> Any:
    return laplace_tree(EMRun(0, fitted.fit, 0.1, 5), rows_of(fitted), DRAWS)


def smoothed(log_ratios: FloatArray) -> tuple[FloatArray, float]:
    """Pareto-smoothed log weights of one row, from ArviZ's function for arrays."""
    ratios: Any = xr.DataArray(-log_ratios[None], dims=("chain", "draw"))
    weights, shape = ratios.azstats.psislw(r_eff=1.0, dim=["chain", "draw"])
    return np.ravel(weights), float(shape)


def test_loo_of_laplace_draws_by_hand(rng: np.random.Generator) -> None:
    """Weights of a row are p(draw) / q(draw) / p(row | draw), smoothed in their tail."""
    tree = draws_of(make(rng))
    stats, values = tree["sample_stats"], tree["log_likelihood"]["y"].values[0]
    correction = (stats["lp"] - stats["log_q"]).values[0]
    expected, shapes = [], []
    for row in values.T:
        weights, shape = smoothed(correction - row)
        expected.append(logsumexp(weights + row) - logsumexp(weights))
        shapes.append(shape)
    score = score_loo(tree)
    assert_allclose(np.ravel(score.elpd.elpd_i), expected, rtol=1e-8)
    found = score.columns
    assert found["elpd_loo"] == pytest.approx(np.sum(expected))
    assert found["elpd_se"] == pytest.approx(np.sqrt(N_OBS * np.var(expected, ddof=1)))
    assert found["pareto_k_max"] == pytest.approx(max(shapes))
    threshold = min(1 - 1 / np.log10(DRAWS), 0.7)
    assert found["pareto_k_bad"] == pytest.approx(np.mean(np.array(shapes) > threshold))
    lppd = logsumexp(values, axis=0) - np.log(DRAWS)
    assert found["p_loo"] == pytest.approx(np.sum(lppd) - np.sum(expected))


def test_loo_of_laplace_draws_is_that_of_rows_left_out(rng: np.random.Generator) -> None:
    """For a normal mean of known spread both the draws and the answer are exact."""
    n, draws = 30, 4000
    y = rng.standard_normal(n)
    mean = y.mean() + rng.standard_normal(draws) / np.sqrt(n)
    rows = norm.logpdf(y, mean[:, None])
    log_q = norm.logpdf(mean, y.mean(), 1 / np.sqrt(n))
    sampling = ("chain", "draw")
    groups = {
        "posterior": xr.Dataset({"mean": (sampling, mean[None])}),
        "log_likelihood": xr.Dataset({"y": ((*sampling, "obs"), rows[None])}),
        "sample_stats": xr.Dataset(
            {"lp": (sampling, rows.sum(axis=1)[None]), "log_q": (sampling, log_q[None])}
        ),
    }
    others = (y.sum() - y) / (n - 1)
    exact = norm.logpdf(y, others, np.sqrt(1 + 1 / (n - 1))).sum()
    # the weights of 4000 draws vary by 1 / (n - 1) and less: a relative error of 1e-3 each
    found = score_loo(xr.DataTree.from_dict(groups)).columns["elpd_loo"]
    assert found == pytest.approx(exact, abs=0.05)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")  # 400 draws are few
def test_loo_of_a_posterior_is_that_of_arviz(rng: np.random.Generator) -> None:
    tree = draws_of(make(rng))
    cut = {
        name: xr.concat(
            [tree[name].to_dataset().isel(draw=slice(k, None, 2)) for k in (0, 1)],
            "chain",
            join="override",
        ).assign_coords(chain=[0, 1], draw=np.arange(DRAWS // 2))
        for name in ("posterior", "log_likelihood")
    }
    own = xr.DataTree.from_dict(cut)
    with np.errstate(all="ignore"):
        expected = az.loo(own, pointwise=True)
    assert score_loo(own).columns["elpd_loo"] == pytest.approx(float(expected.elpd), rel=1e-10)
    still = cut["posterior"].assign(held=xr.zeros_like(cut["posterior"]["scale"]))
    held = xr.DataTree.from_dict(cut | {"posterior": still})
    assert np.isfinite(score_loo(held).columns["elpd_loo"])


def test_unit_of_loo_is_the_group(rng: np.random.Generator) -> None:
    fitted = make(rng, BOTH)
    score = score_loo(draws_of(fitted))
    assert score.elpd.n_data_points == len(set(fitted.block["groups"])) < N_OBS


def test_impossible_draws_have_no_weight(rng: np.random.Generator) -> None:
    tree = draws_of(make(rng))
    spoilt = tree.copy()
    rows = tree["log_likelihood"].to_dataset().copy(deep=True)
    rows["y"][0, :50] = -np.inf
    stats = tree["sample_stats"].to_dataset().copy(deep=True)
    stats["lp"][0, :50] = -np.inf
    spoilt["log_likelihood"], spoilt["sample_stats"] = rows, stats
    score = score_loo(spoilt)
    assert score.n_dropped == 50
    names = ("posterior", "sample_stats", "log_likelihood")
    kept = {name: tree[name].to_dataset().isel(draw=slice(50, None)) for name in names}
    assert score.columns == score_loo(xr.DataTree.from_dict(kept)).columns


def test_draws_that_do_not_vary_have_no_score(rng: np.random.Generator) -> None:
    fitted = make(rng)
    n_parameters = len(fitted.fit.laplace.undetermined)
    still = LaplaceApproximation(np.zeros((n_parameters, 0)), np.ones(n_parameters, bool))
    score = score_loo(draws_of(replace(fitted, fit=replace(fitted.fit, laplace=still))))
    assert score.elpd is None
    assert "tail values are the same" in score.message
    assert np.isnan(list(score.columns.values())).all()


def test_comparison_leaves_out_what_has_no_score(rng: np.random.Generator) -> None:
    score = score_loo(draws_of(make(rng)))
    table = compare_loo({"a": score, "b": LooScore(None, "no"), "c": score})
    assert set(table.index) == {"a", "c"}
    assert table.index.name == "method"
    assert table.loc["a", "elpd"] == pytest.approx(score.columns["elpd_loo"])
    assert_allclose(table["elpd_diff"], 0.0)
    assert table["is_reliable"].dtype == bool
    empty = compare_loo({"b": LooScore(None, "no")})
    assert empty.empty
    assert list(empty.columns) == list(table.columns)


def shifted(score: LooScore, by: float, bad: float) -> LooScore:
    """The score with other values, and a share of its Pareto k too large."""
    elpd = copy(score.elpd)
    n_bad = round(bad * N_OBS)
    elpd.elpd, elpd.elpd_i = elpd.elpd + N_OBS * by, elpd.elpd_i + by
    elpd.pareto_k = xr.zeros_like(elpd.pareto_k)
    elpd.pareto_k[:n_bad] = 2.0
    return LooScore(elpd)


def test_unreliable_scores_are_ranked_last(rng: np.random.Generator) -> None:
    """However high they are; differences are from the best of the others."""
    own = score_loo(draws_of(make(rng)))
    scores = {
        "high but wrong": shifted(own, 0.5, 0.05),
        "second": shifted(own, -0.1, 0.0),
        "first": shifted(own, 0.0, 0.0),
        "wrong": shifted(own, 0.2, 1.0),
        "none": LooScore(None, "no"),
    }
    assert [score.is_reliable for score in scores.values()] == [False, True, True, False, False]
    table: Any = compare_loo(scores)
    assert list(table.index) == ["first", "second", "high but wrong", "wrong"]
    assert list(table["rank"]) == [0, 1, 2, 3]
    assert list(table["is_reliable"]) == [True, True, False, False]
    assert_allclose(table["elpd_diff"], N_OBS * np.array([0.0, -0.1, 0.5, 0.2]), atol=1e-9)
    assert_allclose(table["p_worse"].iloc[1:], [1.0, 0.0, 0.0], atol=1e-9)
    assert_allclose(table["weight"], [1.0, 0.0, 0.0, 0.0], atol=1e-3)
    wrong = {name: scores[name] for name in ("wrong", "high but wrong")}
    alone: Any = compare_loo(wrong)
    assert list(alone.index) == ["high but wrong", "wrong"]
    assert not alone["is_reliable"].any()
    assert list(alone.columns) == list(table.columns)


def test_differences_of_scores(rng: np.random.Generator) -> None:
    own, other = (score_loo(draws_of(make(rng))) for _ in range(2))
    own, other = shifted(own, 0.0, 0.0), shifted(other, 0.0, 0.0)
    each = np.ravel(own.elpd.elpd_i) - np.ravel(other.elpd.elpd_i)
    found = own.less(other)
    assert found is not None
    assert found.value == pytest.approx(each.sum())
    assert found.error == pytest.approx(np.sqrt(N_OBS * each.var(ddof=1)))
    assert own.less(shifted(other, 0.0, 0.05)) is None
    assert LooScore(None, "no").less(own) is None


def test_differences_of_held_out_scores_by_hand() -> None:
    """Weights 1, 1, 2: a row that differs by 1, one by 3, and two by 2."""
    weights = np.array([1.0, 1.0, 2.0])
    first, second = (HeldOutScore(np.array(x), weights) for x in ([1.0, 3.0, 2.0], [0.0] * 3))
    assert first.less(second) == ScoreDifference(8.0, np.sqrt(4.0 * 2.0 / 3.0))
    impossible = HeldOutScore(np.array([-np.inf, 0.0, 0.0]), weights)
    assert impossible.elpd == -np.inf
    assert impossible.less(second) is None
    assert HeldOutScore().less(second) is None


@pytest.mark.parametrize(
    ("value", "error", "is_clear"),
    [(-5.0, 1.0, True), (5.0, 3.0, False), (3.9, 0.1, False), (0.0, 0.0, False)],
)
def test_differences_that_are_more_than_noise(value: float, error: float, is_clear: bool) -> None:
    assert ScoreDifference(value, error).is_clear == is_clear


def mixture_density(draw: Any, X: FloatArray, y: FloatArray, offset: FloatArray) -> FloatArray:
    """Densities of rows under each component, weighted, by SciPy."""
    eta = X @ draw["coefficient"].values + draw["bias"].values + offset[:, None]
    return np.asarray(norm.pdf(y[:, None], eta, draw["dispersion"].values))


def test_held_out_rows_by_scipy(rng: np.random.Generator) -> None:
    fitted, new = make(rng), make(rng)
    tree, rows = draws_of(fitted), rows_of(new)
    total = np.zeros(N_OBS)
    for index in range(DRAWS):
        draw = tree["posterior"].to_dataset().isel(chain=0, draw=index)
        each = mixture_density(draw, new.X.to_numpy(), new.y, new.block["offset"])
        total += each @ draw["weight"].values
    values, weights = np.log(total / DRAWS), new.block["sample_weight"]
    score = score_held_out(tree, rows)
    assert score.elpd == pytest.approx(weights @ values, rel=1e-10)
    mean = np.average(values, weights=weights)
    spread = weights @ np.square(values - mean) / (weights.sum() - 1.0)
    assert score.se == pytest.approx(np.sqrt(weights.sum() * spread), rel=1e-8)
    one = score_held_out(tree, rows.take(np.array([3])))
    assert one.elpd == pytest.approx(weights[3] * values[3])
    nothing = score_held_out(tree, None)
    assert np.isnan([nothing.elpd, nothing.se]).all()


def test_held_out_groups_by_scipy(rng: np.random.Generator) -> None:
    """Rows of a group have one component, drawn with the probabilities of the gate."""
    fitted, new = make(rng, BOTH), make(rng, BOTH)
    tree = draws_of(fitted)
    labels = list(dict.fromkeys(new.block["groups"]))
    total = np.zeros(len(labels))
    for index in range(DRAWS):
        draw = tree["posterior"].to_dataset().isel(chain=0, draw=index)
        each = mixture_density(draw, new.X.to_numpy(), new.y, new.block["offset"])
        logits = new.block["gating"].to_numpy() @ draw["gate"].values.T + draw["gate_bias"].values
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for place, label in enumerate(labels):
            own = new.block["groups"] == label
            powers = each[own] ** new.block["sample_weight"][own, None]
            total[place] += shares[own][0] @ powers.prod(axis=0)
    values = np.log(total / DRAWS)
    score = score_held_out(tree, rows_of(new))
    assert score.elpd == pytest.approx(values.sum(), rel=1e-9)
    assert score.se == pytest.approx(np.sqrt(len(labels) * values.var(ddof=1)), rel=1e-8)
