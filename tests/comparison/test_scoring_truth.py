"""True parameters: what is refused, and errors by hand."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import simulate_mixture
from moment_init.comparison.runs import BY_ROW, check_rows
from moment_init.comparison.scoring import errors_of, match_to_truth, read_truth

COEFFICIENTS = np.array([[1.0, 0.0], [0.0, 2.0]])
TRUTH: dict[str, Any] = {
    "coefficients": COEFFICIENTS,
    "biases": [0.0, 1.0],
    "weights": [0.25, 0.75],
}


def rows_of(X: Any, y: Any, family: str = "gaussian") -> Any:
    return check_rows(X, y, {"family": family, "link": None, **dict.fromkeys(BY_ROW)})


def tree_of(coefficients: Any, biases: Any) -> xr.DataTree:
    posterior = xr.Dataset(
        {
            "coefficient": (("chain", "draw", "feature", "component"), coefficients),
            "bias": (("chain", "draw", "component"), biases),
        }
    )
    return xr.DataTree.from_dict({"posterior": posterior})


def test_errors_by_hand(rng: np.random.Generator) -> None:
    """Two draws whose mean is the truth with labels traded, one entry off by 0.6 and one turned.

    The error is sqrt(.36 / 4) = .3; the turned component is atan(.6 / 2) from the true one.
    """
    rows = rows_of(rng.standard_normal((50, 2)), rng.standard_normal(50))
    off = COEFFICIENTS + np.array([[0.0, 0.6], [0.0, 0.0]])
    draws = np.stack([off - 1.0, off + 1.0])[None, ..., ::-1]
    biases = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    truth = read_truth(TRUTH, 2, 2)
    error, angle = errors_of(tree_of(draws, biases), truth, rows)
    assert error == pytest.approx(0.3)
    assert angle == pytest.approx(np.degrees(np.arctan(0.3)))
    assert np.isnan(errors_of(tree_of(draws, biases), None, rows)).all()


def test_opposite_coefficients_are_half_a_turn_apart(rng: np.random.Generator) -> None:
    rows = rows_of(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[2.0]], "biases": [0.0], "weights": [1.0]}
    tree = tree_of([[[[-2.0]]]], [[[0.0]]])
    assert errors_of(tree, read_truth(given, 1, 1), rows) == pytest.approx((4.0, 180.0))


def test_component_without_slopes_has_no_angle(rng: np.random.Generator) -> None:
    rows = rows_of(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[0.0]], "biases": [0.0], "weights": [1.0]}
    error, angle = errors_of(tree_of([[[[0.5]]]], [[[0.0]]]), read_truth(given, 1, 1), rows)
    assert error == pytest.approx(0.5)
    assert np.isnan(angle)


def test_parallel_components_are_matched_by_their_intercepts(rng: np.random.Generator) -> None:
    rows = rows_of(rng.standard_normal((50, 1)), rng.standard_normal(50))
    given = {"coefficients": [[1.0, 1.0]], "biases": [0.0, 5.0], "weights": [0.5, 0.5]}
    truth = read_truth(given, 1, 2)
    assert truth is not None
    order = match_to_truth(np.array([[1.0, 1.0]]), np.array([4.9, 0.1]), truth, rows)
    assert_array_equal(order, [1, 0])
    dataset = truth.to_dataset(order, ("a",))
    assert_array_equal(dataset["bias"], [5.0, 0.0])
    assert_array_equal(dataset["direction"], [[1.0, 1.0]])


def test_simulated_data_are_a_truth() -> None:
    data = simulate_mixture(50, 3, 2, family="gaussian", random_seed=1)
    truth = read_truth(data, 3, 2)
    assert truth is not None
    assert_array_equal(truth.coefficients, data.coefficients)
    dataset = truth.to_dataset(np.array([0, 1]), ("a", "b", "c"))
    assert set(dataset) == {"coefficient", "direction", "scale", "bias", "weight", "dispersion"}
    assert_allclose(dataset["scale"] * dataset["direction"], dataset["coefficient"].T)
    assert read_truth(None, 3, 2) is None


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
        read_truth(TRUTH | changed, 2, 2)


def test_truth_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a MixtureData or a mapping .* got list"):
        read_truth([1.0], 2, 2)
    with pytest.raises(TypeError, match="`truth` must have biases of real numbers"):
        read_truth(TRUTH | {"biases": ["a", "b"]}, 2, 2)
