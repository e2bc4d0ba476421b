"""Scores, convergence and errors, against sums by hand."""

from copy import copy
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from moment_init import simulate_mixture
from moment_init.comparison.runs import BY_ROW, ComparedRows, EMRun, check_rows, laplace_tree
from moment_init.comparison.scoring import (
    HeldOutScore,
    ScoreDifference,
    assess_convergence,
    bad_share,
    best_log_likelihood,
    compare_loo,
    count_at_best,
    errors_of,
    is_reliable,
    loo_units,
    match_to_truth,
    read_truth,
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
    return laplace_tree(EMRun(0, fitted.fit, 0.1), fitted.fit, rows_of(fitted), draws=DRAWS, seed=5)


def loo_of(tree: Any) -> Any:
    """Score of all rows or groups."""
    return score_loo(tree, np.arange(tree["log_likelihood"]["y"].shape[-1]))


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
    score = loo_of(tree)
    assert_allclose(np.ravel(score.elpd_i), expected, rtol=1e-8)
    assert float(score.elpd) == pytest.approx(np.sum(expected))
    assert float(score.se) == pytest.approx(np.sqrt(N_OBS * np.var(expected, ddof=1)))
    threshold = min(1 - 1 / np.log10(DRAWS), 0.7)
    assert bad_share(score) == pytest.approx(np.mean(np.array(shapes) > threshold))
    part = score_loo(tree, np.array([3, 7]))
    assert_allclose(np.ravel(part.elpd_i), np.array(expected)[[3, 7]], rtol=1e-8)


def test_rows_that_are_left_out_one_by_one() -> None:
    """At most a thousand, drawn at random and without repetition."""
    units = loo_units(5000, np.random.default_rng(1))
    assert len(np.unique(units)) == 1000
    assert units.max() > 4900 > 100 > units.min()
    assert_array_equal(loo_units(7, np.random.default_rng(1)), np.arange(7))


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
    found = loo_of(xr.DataTree.from_dict(groups)).elpd
    assert float(found) == pytest.approx(exact, abs=0.05)


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
    assert float(loo_of(own).elpd) == pytest.approx(float(expected.elpd), rel=1e-10)
    still = cut["posterior"].assign(held=xr.zeros_like(cut["posterior"]["scale"]))
    held = xr.DataTree.from_dict(cut | {"posterior": still})
    assert np.isfinite(loo_of(held).elpd)


def test_unit_of_loo_is_the_group(rng: np.random.Generator) -> None:
    fitted = make(rng, BOTH)
    score = loo_of(draws_of(fitted))
    assert score.n_data_points == len(set(fitted.block["groups"])) < N_OBS


def test_impossible_draws_have_no_weight(rng: np.random.Generator) -> None:
    tree = draws_of(make(rng))
    spoilt = tree.copy()
    rows = tree["log_likelihood"].to_dataset().copy(deep=True)
    rows["y"][0, :50] = -np.inf
    stats = tree["sample_stats"].to_dataset().copy(deep=True)
    stats["lp"][0, :50] = -np.inf
    spoilt["log_likelihood"], spoilt["sample_stats"] = rows, stats
    names = ("posterior", "sample_stats", "log_likelihood")
    kept = {name: tree[name].to_dataset().isel(draw=slice(50, None)) for name in names}
    assert float(loo_of(spoilt).elpd) == float(loo_of(xr.DataTree.from_dict(kept)).elpd)


def test_draws_that_do_not_vary_have_no_score(rng: np.random.Generator) -> None:
    fitted = make(rng)
    n_parameters = len(fitted.fit.laplace.undetermined)
    still = LaplaceApproximation(np.zeros((n_parameters, 0)), np.ones(n_parameters, bool))
    score = loo_of(draws_of(replace(fitted, fit=replace(fitted.fit, laplace=still))))
    assert score is None
    assert np.isnan(bad_share(score))
    assert not is_reliable(score)


def shifted(score: Any, by: float, bad: float) -> Any:
    """The score with other values, and a share of its Pareto k too large."""
    elpd = copy(score)
    elpd.elpd, elpd.elpd_i = elpd.elpd + N_OBS * by, elpd.elpd_i + by
    elpd.pareto_k = xr.zeros_like(elpd.pareto_k)
    elpd.pareto_k[: round(bad * N_OBS)] = 2.0
    return elpd


def test_only_reliable_scores_are_compared(rng: np.random.Generator) -> None:
    """However high the others are."""
    own = loo_of(draws_of(make(rng)))
    scores = {
        "high but wrong": shifted(own, 0.5, 0.05),
        "second": shifted(own, -0.1, 0.0),
        "first": shifted(own, 0.0, 0.0),
        "none": None,
    }
    assert [is_reliable(score) for score in scores.values()] == [False, True, True, False]
    table: Any = compare_loo(scores)
    assert list(table.index) == ["first", "second"]
    assert table.index.name == "method"
    assert_allclose(table["elpd_diff"], N_OBS * np.array([0.0, -0.1]), atol=1e-9)
    assert compare_loo({"wrong": scores["high but wrong"], "first": scores["first"]}).empty


def test_differences_of_held_out_scores_by_hand() -> None:
    """Weights 1, 1, 2: a row that differs by 1, one by 3, and two by 2."""
    weights = np.array([1.0, 1.0, 2.0])
    first, second = (HeldOutScore(np.array(x), weights) for x in ([1.0, 3.0, 2.0], [0.0] * 3))
    assert first.less(second) == ScoreDifference(8.0, np.sqrt(4.0 * 2.0 / 3.0))
    impossible = HeldOutScore(np.array([-np.inf, 0.0, 0.0]), weights)
    assert impossible.total[0] == -np.inf
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
    assert score.total[0] == pytest.approx(weights @ values, rel=1e-10)
    mean = np.average(values, weights=weights)
    spread = weights @ np.square(values - mean) / (weights.sum() - 1.0)
    assert score.total[1] == pytest.approx(np.sqrt(weights.sum() * spread), rel=1e-8)
    one = score_held_out(tree, rows.take(np.array([3])))
    assert one.total[0] == pytest.approx(weights[3] * values[3])
    nothing = score_held_out(tree, None)
    assert np.isnan(nothing.total).all()


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
    assert score.total[0] == pytest.approx(values.sum(), rel=1e-9)
    assert score.total[1] == pytest.approx(np.sqrt(len(labels) * values.var(ddof=1)), rel=1e-8)


# --- convergence ---------------------------------------------------------------------------------

SHAPE = (3, 200)


def chains_of(diverging: Any = None, **variables: Any) -> xr.DataTree:
    dims = ("chain", "draw", "component")
    groups = {"posterior": xr.Dataset({name: (dims, x) for name, x in variables.items()})}
    if diverging is not None:
        groups["sample_stats"] = xr.Dataset({"diverging": (dims[:2], diverging)})
    return xr.DataTree.from_dict(groups)


def test_figures_are_those_of_arviz(rng: np.random.Generator) -> None:
    bias, weight = rng.standard_normal((*SHAPE, 2)), rng.standard_normal((*SHAPE, 2))
    weight[..., 1] += 0.5 * np.arange(3)[:, None]
    diverging = np.zeros(SHAPE, bool)
    diverging[0, :7] = True
    tree = chains_of(diverging, bias=bias, weight=weight, tilt=1e6 * np.cumsum(bias, axis=1))
    found = assess_convergence(tree)
    own = tree["posterior"].to_dataset()[["bias", "weight"]]
    rhat, ess = az.rhat(own), az.ess(own, method="bulk")
    assert found.rhat_max == pytest.approx(float(rhat["weight"].max()))
    assert found.ess_bulk_min == pytest.approx(min(float(x.min()) for x in ess.values()))
    assert found.divergences == 7
    assert found.rhat_max > 1.01


def test_parameters_that_do_not_vary_are_passed_over(rng: np.random.Generator) -> None:
    bias = rng.standard_normal((*SHAPE, 2))
    with_held = np.concatenate([bias, np.ones((*SHAPE, 1))], axis=-1)
    found, expected = (assess_convergence(chains_of(bias=x)) for x in (with_held, bias))
    assert found.rhat_max == expected.rhat_max
    assert found.ess_bulk_min == expected.ess_bulk_min
    assert np.isnan(found.divergences)
    nothing = assess_convergence(chains_of(bias=np.ones((*SHAPE, 1))))
    assert np.isnan([nothing.rhat_max, nothing.ess_bulk_min]).all()


def test_chains_that_stand_still_in_different_places_never_meet() -> None:
    still = np.broadcast_to(np.arange(3.0)[:, None, None], (*SHAPE, 1))
    assert assess_convergence(chains_of(bias=still)).rhat_max > 1e6  # infinite up to rounding


def test_single_chain_has_no_rhat(rng: np.random.Generator) -> None:
    assert np.isnan(assess_convergence(chains_of(bias=rng.standard_normal((1, 200, 2)))).rhat_max)


# --- truth ---------------------------------------------------------------------------------------

COEFFICIENTS = np.array([[1.0, 0.0], [0.0, 2.0]])
TRUTH: dict[str, Any] = {
    "coefficients": COEFFICIENTS,
    "biases": [0.0, 1.0],
    "weights": [0.25, 0.75],
}


def plain_rows(X: Any, y: Any, family: str = "gaussian") -> Any:
    return check_rows(X, y, {"family": family, "link": None, **dict.fromkeys(BY_ROW)})


def tree_of(coefficients: Any, biases: Any) -> xr.DataTree:
    posterior = xr.Dataset(
        {
            "coefficient": (("chain", "draw", "feature", "component"), coefficients),
            "bias": (("chain", "draw", "component"), biases),
            "weight": (("chain", "draw", "component"), np.full(np.shape(biases), 0.5)),
            "dispersion": (("chain", "draw", "component"), np.ones(np.shape(biases))),
        }
    )
    return xr.DataTree.from_dict({"posterior": posterior})


def test_errors_by_hand(rng: np.random.Generator) -> None:
    """Two draws whose mean is the truth with labels traded, one entry off by 0.6 and one turned.

    The error is sqrt(.36 / 4) = .3; the turned component is atan(.6 / 2) from the true one.
    """
    rows = plain_rows(rng.standard_normal((50, 2)), rng.standard_normal(50))
    off = COEFFICIENTS + np.array([[0.0, 0.6], [0.0, 0.0]])
    draws = np.stack([off - 1.0, off + 1.0])[None, ..., ::-1]
    biases = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    truth = read_truth(TRUTH, rows, 2)
    error, angle = errors_of(tree_of(draws, biases), truth, rows)
    assert error == pytest.approx(0.3)
    assert angle == pytest.approx(np.degrees(np.arctan(0.3)))
    assert np.isnan(errors_of(tree_of(draws, biases), None, rows)).all()


def test_opposite_coefficients_are_half_a_turn_apart(rng: np.random.Generator) -> None:
    rows = plain_rows(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[2.0]], "biases": [0.0], "weights": [1.0]}
    tree = tree_of([[[[-2.0]]]], [[[0.0]]])
    assert errors_of(tree, read_truth(given, rows, 1), rows) == pytest.approx((4.0, 180.0))


def test_component_without_slopes_has_no_angle(rng: np.random.Generator) -> None:
    rows = plain_rows(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[0.0]], "biases": [0.0], "weights": [1.0]}
    error, angle = errors_of(tree_of([[[[0.5]]]], [[[0.0]]]), read_truth(given, rows, 1), rows)
    assert error == pytest.approx(0.5)
    assert np.isnan(angle)


def test_parallel_components_are_matched_by_their_intercepts(rng: np.random.Generator) -> None:
    rows = plain_rows(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[1.0, 1.0]], "biases": [0.0, 5.0], "weights": [0.5, 0.5]}
    truth = read_truth(given, rows, 2)
    assert truth is not None
    order = match_to_truth(np.array([[1.0, 1.0]]), np.array([4.9, 0.1]), truth, rows)
    assert_array_equal(order, [1, 0])
    dataset = truth.to_dataset(order, rows)
    assert_array_equal(dataset["bias"], [5.0, 0.0])
    assert_array_equal(dataset["direction"], [[1.0, 1.0]])


def test_simulated_data_are_a_truth() -> None:
    data = simulate_mixture(50, 3, 2, family="gaussian", random_seed=1)
    rows = plain_rows(data.X, data.y)
    truth = read_truth(data, rows, 2)
    assert truth is not None
    assert_array_equal(truth.coefficients, data.coefficients)
    dataset = truth.to_dataset(np.array([0, 1]), rows)
    assert set(dataset) == {"coefficient", "direction", "scale", "bias", "weight", "dispersion"}
    assert_allclose(dataset["scale"] * dataset["direction"], dataset["coefficient"].T)
    assert read_truth(None, rows, 2) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": None}, r"missing are \['weights'\], unknown are \[\]"),
        ({"weight": [0.5, 0.5]}, r"unknown are \['weight'\]"),
        ({"coefficients": np.eye(3)}, r"finite coefficients of shape \(2, 2\); got shape \(3, 3\)"),
        ({"biases": [0.0, np.nan]}, "`truth` must have finite biases"),
        ({"dispersion": [1.0]}, r"finite dispersion of shape \(2,\)"),
        ({"weights": [0.5, 0.6]}, "weights of zero or more that sum to one"),
        ({"weights": [1.5, -0.5]}, "weights of zero or more that sum to one"),
    ],
)
def test_wrong_truth_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_truth(TRUTH | changed, plain_rows(np.eye(2), [0.0, 1.0]), 2)


def test_truth_of_a_wrong_type_is_refused() -> None:
    rows = plain_rows(np.eye(2), [0.0, 1.0])
    with pytest.raises(TypeError, match=r"must be a MixtureData or a mapping .* got list"):
        read_truth([1.0], rows, 2)
    with pytest.raises(TypeError, match="`truth` must have biases of real numbers"):
        read_truth(TRUTH | {"biases": ["a", "b"]}, rows, 2)


# --- landscape -----------------------------------------------------------------------------------


def test_best_optimum_is_the_highest_interior_one(rng: np.random.Generator) -> None:
    """A failed run is none, and ends on a bound count only if there is nothing else."""
    fit = make(rng).fit
    inside = [EMRun(k, replace(fit, log_likelihood=x), 0.1) for k, x in enumerate((-9.0, -7.0))]
    bounded = EMRun(2, replace(fit, log_likelihood=-1.0, bounds=("weight 1",)), 0.1)
    runs = {"random EM": [*inside, bounded, EMRun(3, None, 0.1, "broke")]}
    assert best_log_likelihood(runs) == -7.0
    assert count_at_best(runs["random EM"], -7.0) == 1
    assert best_log_likelihood({"random EM": [bounded]}) == -1.0
