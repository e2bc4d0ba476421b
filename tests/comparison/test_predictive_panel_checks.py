"""Deviations of responses from predictions: cases by hand, coverage of the band, which draws."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.comparison.drawing import typical_start
from moment_init.comparison.predictive_panel import (
    BAND_PROBABILITY,
    PIT_GRID,
    PredictiveCheck,
    calibration_deviations,
    check_predictions,
    count_bins,
    equal_bins,
    pit_deviations,
    rootogram_deviations,
    simultaneous_band,
)
from moment_init.comparison.result import Comparison
from tests.comparison.examples import make_example

N_ERRORS = 5.0
"""Standard errors that an average may be off: once in two million."""


def test_rootogram_of_four_rows() -> None:
    """Replicates have (1, 2, 1) and (3, 0, 1) rows of 0, 1 and 2 or more: (2, 1, 1) on average."""
    replicated = np.array([[0.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 9.0]])
    found = rootogram_deviations(
        np.array([[0.0, 0.0, 0.0, 7.0]]), replicated=replicated, edges=np.array([0.0, 1.0, 2.0])
    )
    assert_allclose(found, [[np.sqrt(3) - np.sqrt(2), -1.0, 0.0]])


def test_calibration_of_four_rows() -> None:
    """Of 3 trials 1 succeeds where 1.5 are expected, of 6 trials 4 where 3 are."""
    found = calibration_deviations(
        np.array([[1.0, 0.0, 3.0, 1.0]]),
        predicted=np.array([0.5, 0.5, 0.5, 0.5]),
        trials=np.array([1.0, 2.0, 4.0, 2.0]),
        bins=np.array([0, 0, 1, 1]),
    )
    assert_allclose(found, [[-0.5 / 3, 1 / 6]])


def test_transform_of_three_rows() -> None:
    """One response is below all replicates, one ties with the middle one, one is above all."""
    replicated = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    found = pit_deviations(np.array([[0.0, 2.0, 9.0]]), replicated=replicated)
    shares = np.where(PIT_GRID < 0.5, 1 / 3, 2 / 3)
    assert_allclose(found[0], shares - PIT_GRID, atol=1e-12)


def test_exchangeable_responses_have_a_flat_transform(rng: np.random.Generator) -> None:
    """Ranks among exchangeable values are uniform, whatever the distribution of each row."""
    n_obs = 4000
    drawn = np.exp(rng.standard_normal((101, n_obs)) * rng.uniform(0.1, 3.0, n_obs))
    found = pit_deviations(drawn[:1], replicated=drawn[1:])[0]
    # A rank among 100 moves a share by a hundredth at most; the rest is binomial.
    error = np.sqrt(PIT_GRID * (1 - PIT_GRID) / n_obs)
    assert np.all(np.abs(found) < N_ERRORS * error + 0.01)


def test_narrow_predictions_are_above_zero_on_the_left(rng: np.random.Generator) -> None:
    """Replicates of half the spread: responses are too often below, or above, nearly all."""
    drawn = rng.standard_normal((101, 2000))
    found = pit_deviations(drawn[:1], replicated=0.5 * drawn[1:])[0]
    assert found[PIT_GRID < 0.2].min() > 0
    assert found[PIT_GRID > 0.8].max() < 0


def test_band_holds_its_share_of_curves(rng: np.random.Generator) -> None:
    """The quantile and the share are each known to sqrt(.94 x .06 / 4000) = 0.004."""
    spread = np.array([0.1, 1.0, 5.0, 2.0])
    first, second = spread * rng.standard_normal((2, 4000, 4))
    inside = np.all(np.abs(second) <= simultaneous_band(first), axis=1).mean()
    assert abs(inside - BAND_PROBABILITY) < N_ERRORS * 0.004 * np.sqrt(2)


def test_band_of_constant_points_is_zero() -> None:
    assert_array_equal(simultaneous_band(np.zeros((10, 3))), np.zeros(3))


def test_spread_of_binary_rows_is_binomial(rng: np.random.Generator) -> None:
    n_sets, n_obs = 2000, 400
    predicted = rng.uniform(0.05, 0.95, n_obs)
    bins = equal_bins(predicted)
    data = (rng.random((n_sets, n_obs)) < predicted).astype(float)
    found = calibration_deviations(data, predicted=predicted, trials=np.ones(n_obs), bins=bins)
    size = np.bincount(bins)
    exact = np.sqrt(np.bincount(bins, weights=predicted * (1 - predicted))) / size
    assert_allclose(found.std(axis=0), exact, rtol=N_ERRORS / np.sqrt(2 * n_sets))


def test_bins_of_probabilities_are_of_one_size() -> None:
    assert_array_equal(np.bincount(equal_bins(np.linspace(1.0, 0.0, 250))), np.full(10, 25))
    assert_array_equal(np.bincount(equal_bins(np.zeros(30))), [30])


@pytest.mark.parametrize("largest", [3, 40, 100_000])
def test_bins_of_counts_have_rows_enough(largest: int, rng: np.random.Generator) -> None:
    observed = np.floor(rng.uniform(0, 1, 500) ** 3 * (largest + 1))
    edges, labels = count_bins(observed)
    bins = np.searchsorted(edges, observed, side="right") - 1
    assert np.bincount(bins, minlength=len(edges)).min() >= 5
    assert edges[0] == 0
    assert len(edges) == len(labels) <= 16
    assert labels[-1] == f"≥{edges[-1]:.0f}"


def test_bins_of_counts_by_hand() -> None:
    """Six zeros, five ones, then 2 and 3 together, and the two tens join them."""
    observed = np.repeat([0.0, 1.0, 2.0, 3.0, 10.0], [6, 5, 3, 2, 2])
    edges, labels = count_bins(observed)
    assert_array_equal(edges, [0, 1, 2])
    assert labels == ("0", "1", "≥2")


def test_bins_of_equal_counts() -> None:
    edges, labels = count_bins(np.zeros(50))
    assert_array_equal(edges, [0])
    assert labels == ("≥0",)


def checked(comparison: Comparison) -> PredictiveCheck:
    """The check of a comparison that has replicated responses."""
    check = check_predictions(comparison)
    if check is None:
        raise TypeError("There are no replicated responses.")
    return check


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("poisson", "rootogram"),
        ("bernoulli", "calibration"),
        ("binomial", "calibration"),
        ("gaussian", "pit"),
    ],
)
def test_check_suits_the_family(family: str, kind: str) -> None:
    comparison = make_example(family=family)
    check = checked(comparison)
    assert check.kind == kind
    assert list(check.curves) == list(comparison.trees)
    for curve in check.curves.values():
        assert curve.positions.shape == curve.deviations.shape == check.band.shape
        assert np.isfinite(curve.deviations).all()


@pytest.mark.parametrize("family", ["poisson", "bernoulli", "gaussian"])
def test_other_responses_leave_the_band(family: str) -> None:
    """Responses of which a third are set to their largest value are not those of the mixture."""
    comparison = make_example(family=family)
    trees = {name: tree.copy() for name, tree in comparison.trees.items()}
    for tree in trees.values():
        y = tree["observed_data"]["y"].to_numpy().copy()
        y[::3] = y.max()
        tree["observed_data"] = xr.Dataset({"y": ("obs", y)})
    check = checked(replace(comparison, trees=trees))
    for curve in check.curves.values():
        assert np.any(np.abs(curve.deviations) > check.band)


def test_random_starts_are_not_pooled() -> None:
    """Nonsense in the chains of all starts but the typical one changes nothing."""
    comparison = make_example(family="gaussian")
    tree = comparison.trees["random EM"].copy()
    y = tree["posterior_predictive"]["y"]
    spoiled = y.where(y["chain"] == typical_start(comparison), 1e6)
    tree["posterior_predictive"] = xr.Dataset({"y": spoiled})
    other = checked(replace(comparison, trees={**comparison.trees, "random EM": tree}))
    expected = checked(comparison).curves["random EM"].deviations
    assert_array_equal(other.curves["random EM"].deviations, expected)


@pytest.mark.parametrize("with_gate", [False, True])
def test_predicted_shares_are_those_of_replicates(with_gate: bool) -> None:
    """Both average over the same draws; what is left is the noise of replicated responses."""
    comparison = make_example(family="binomial", with_gate=with_gate, with_groups=True)
    check = checked(comparison)
    tree = comparison.trees["search NUTS"]
    trials = tree["constant_data"]["n_trials"].to_numpy()
    shares = tree["posterior_predictive"]["y"].sum("obs").to_numpy().ravel() / trials.sum()
    curve = check.curves["search NUTS"]
    bins = len(curve.positions)
    # Ten trials a row and 24 rows a bin: bins have as many trials.
    error = shares.std() / np.sqrt(shares.size)
    assert abs(curve.positions.sum() / bins - shares.mean()) < N_ERRORS * error


def test_trees_without_replicates() -> None:
    comparison = make_example()
    trees = {}
    for name, tree in comparison.trees.items():
        kept = {own: node for own, node in tree.children.items() if own != "posterior_predictive"}
        trees[name] = xr.DataTree.from_dict({own: node.to_dataset() for own, node in kept.items()})
    assert check_predictions(replace(comparison, trees=trees)) is None
