"""From checked rows to a problem: coordinates, groups, projections, and what may be asked for."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.checking import RegressionData, validate_data, validate_gating
from moment_init.em.problem import Restrictions, pose_em, validate_restrictions
from moment_init.likelihood.parameters import MixtureParameters

NAMES = ["age", "income", "size"]


def draw(rng: np.random.Generator, n_obs: int = 60, **block: Any) -> RegressionData:
    """Correlated columns with locations and spreads, and counts."""
    mixed = rng.standard_normal((n_obs, 3)) @ [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]]
    X = pd.DataFrame(mixed * [10.0, 0.1, 1.0] + [50.0, -3.0, 0.0], columns=NAMES)
    family = block.pop("family", "poisson")
    y = block.pop("y", rng.poisson(3.0, n_obs))
    return validate_data(X, y, family=family, **block)


def test_inputs_are_whitened_and_come_back(rng: np.random.Generator) -> None:
    weight = rng.uniform(0.5, 2.0, 60)
    data = draw(rng, sample_weight=weight)
    problem = pose_em(data, 2)
    Z = np.asarray(problem.rows.Z)
    shares = weight / weight.sum()
    assert_allclose(shares @ Z, np.zeros(3), atol=1e-10)
    assert_allclose(Z.T @ (Z * shares[:, None]), np.eye(3), atol=1e-10)
    (coordinates,) = problem.coordinates
    back = Z @ coordinates.factor.T + coordinates.mean
    assert_allclose(back, np.asarray(data.X), rtol=1e-10)


def test_a_real_response_is_standardised_and_its_offset_taken_out(rng: np.random.Generator) -> None:
    y, offset = 100.0 + 7.0 * rng.standard_normal(60), rng.standard_normal(60)
    problem = pose_em(draw(rng, family="gaussian", y=y, offset=offset), 2)
    assert problem.rows.offset is None
    assert_allclose(problem.rows.y.mean(), 0.0, atol=1e-12)
    assert_allclose(problem.rows.y.std(), 1.0)
    (coordinates,) = problem.coordinates
    back = problem.rows.y * coordinates.response_scale + coordinates.response_shift
    assert_allclose(back + offset, y)
    assert_allclose(problem.log_jacobian, 60 * np.log((y - offset).std()))


def test_rows_of_a_group_stand_together(rng: np.random.Generator) -> None:
    """Groups in the order of their first rows, rows in theirs; everything is sorted alike."""
    groups = np.array(["b", "a", "b", "c", "a", "b"])
    block: dict[str, Any] = {"offset": np.arange(6.0), "sample_weight": np.arange(1.0, 7.0)}
    gating = np.array([5.0, 7.0, 5.0, 9.0, 7.0, 5.0])
    data = draw(rng, 6, y=np.arange(6), groups=groups, gating=gating, **block)
    problem = pose_em(data, 2)
    order = [0, 2, 5, 1, 4, 3]
    assert_array_equal(problem.rows.order, order)
    assert_array_equal(problem.rows.group_starts, [0, 3, 5])
    assert_array_equal(problem.rows.y, order)
    assert_array_equal(problem.rows.offset, order)
    assert_array_equal(problem.rows.sample_weight, np.array(order) + 1)
    gate = problem.rows.gate
    assert gate is not None
    assert len(np.unique(gate)) == 3
    assert_allclose(np.diff(gate[[0, 3, 5], 0]) > 0, True)
    plain = pose_em(draw(np.random.default_rng(1), 6, y=np.arange(6)), 2)
    assert plain.rows.order is None


def test_projections_are_scaled_and_need_no_matrix_of_all_columns(
    rng: np.random.Generator,
) -> None:
    """More columns than rows, and collinear ones: only the projections matter."""
    X = rng.standard_normal((30, 500)) + 4.0
    X[:, 1] = X[:, 0]
    data = validate_data(X, rng.poisson(2.0, 30), family="poisson")
    directions = rng.standard_normal((500, 2))
    held = validate_restrictions(data, 2, fixed_directions=directions)
    assert held.directions is not None
    assert_allclose(np.linalg.norm(held.directions, axis=0), 1.0)
    problem = pose_em(data, 2, restrictions=held)
    projected = X @ held.directions
    expected = (projected - projected.mean(axis=0)) / projected.std(axis=0)
    assert_allclose(np.asarray(problem.rows.Z, dtype=np.float64), expected, atol=1e-10)


def test_a_direction_along_which_nothing_varies_is_named(rng: np.random.Generator) -> None:
    X = rng.standard_normal((30, 2))
    X[:, 1] = 1.0 - X[:, 0]
    data = validate_data(X, rng.poisson(2.0, 30), family="poisson")
    held = validate_restrictions(data, 2, fixed_directions=[[1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"`fixed_directions` must point where .* for component 1"):
        pose_em(data, 2, restrictions=held)


@pytest.mark.parametrize(
    ("shared", "columns", "has_bias", "has_dispersion"),
    [
        (None, (), False, False),
        ("income", (1,), False, False),
        (-1, (2,), False, False),
        (np.int64(0), (0,), False, False),
        (["size", 0, "age"], (0, 2), False, False),
        ("bias", (), True, False),
        (["bias", "dispersion", 1], (1,), True, True),
    ],
)
def test_what_is_shared(
    shared: Any,
    columns: tuple[int, ...],
    has_bias: bool,
    has_dispersion: bool,
    rng: np.random.Generator,
) -> None:
    data = draw(rng, family="gaussian")
    held = validate_restrictions(data, 2, shared=shared)
    assert held.shared_features == columns
    assert (held.has_shared_bias, held.has_shared_dispersion) == (has_bias, has_dispersion)
    assert held.is_empty == (shared is None)


def test_a_column_called_intercept_is_a_column(rng: np.random.Generator) -> None:
    X = pd.DataFrame({"bias": rng.standard_normal(20)})
    data = validate_data(X, rng.poisson(2.0, 20), family="poisson")
    held = validate_restrictions(data, 2, shared="bias")
    assert (held.shared_features, held.has_shared_bias) == ((0,), False)


def test_found_components_take_the_held_label_that_fits_them(rng: np.random.Generator) -> None:
    """By rank of the weights, or by the direction they point along; labelled ones stay."""
    data = draw(rng)
    found = MixtureParameters(rng.standard_normal((3, 2)), np.zeros(2), np.array([0.8, 0.2]))
    problem = pose_em(data, 2, restrictions=Restrictions(weights=np.array([0.4, 0.6])))
    admitted = problem.admit(found)
    assert_allclose(admitted.coefficients, found.coefficients[:, ::-1])
    assert_allclose(admitted.weights, [0.4, 0.6])
    assert_allclose(problem.admit(admitted).coefficients, admitted.coefficients)

    held = validate_restrictions(data, 2, fixed_directions=np.eye(3)[:, :2])
    projected = pose_em(data, 2, restrictions=held)
    crossed = MixtureParameters(
        np.array([[0.1, 2.0], [-1.0, 0.2]]), np.array([1.0, 5.0]), np.array([0.5, 0.5])
    )
    admitted = projected.admit(crossed)
    assert_allclose(admitted.coefficients, [[2.0, 0.0], [0.0, -1.0]], atol=1e-12)
    assert_allclose(projected.admit(admitted).coefficients, admitted.coefficients)


DIRECTIONS = np.ones((3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": "weight"}, "`shared` must hold names.*got 'weight'. The columns are 'age'"),
        ({"shared": 3}, "`shared` must hold names or indices.*got 3"),
        ({"shared": [0, 1.5]}, "`shared` must hold names or indices.*got 1.5"),
        ({"shared": "dispersion"}, "`shared` must not hold 'dispersion' for family 'poisson'"),
        ({"fixed_weights": [0.5, 0.4]}, "`fixed_weights` must be 2 positive numbers that sum to"),
        ({"fixed_weights": [1.0]}, "`fixed_weights` must be 2 .*Give one for each component"),
        ({"fixed_weights": [np.nan, 0.5]}, "`fixed_weights`"),
        ({"fixed_weights": [1.0, 0.0]}, "`fixed_weights` must be 2 positive numbers"),
        ({"fixed_weights": [0.5, 0.5], "has_gate": True}, "`fixed_weights` must be None with `ga"),
        ({"fixed_directions": DIRECTIONS.T}, r"= \(3, 2\); got shape \(2, 3\)"),
        ({"fixed_directions": DIRECTIONS * np.inf}, "`fixed_directions` must be finite"),
        ({"fixed_directions": DIRECTIONS * [1.0, 0.0]}, "column of zeros; got .* component 1"),
        ({"fixed_directions": DIRECTIONS, "shared": 0}, "`shared` columns and `fixed_directions`"),
    ],
)
def test_wrong_restrictions_are_named(
    options: dict[str, Any], message: str, rng: np.random.Generator
) -> None:
    with pytest.raises(ValueError, match=message):
        validate_restrictions(draw(rng), 2, **options)


@pytest.mark.parametrize(
    ("gating", "groups", "kind", "message"),
    [
        (np.zeros((5, 1)), None, ValueError, r"`gating` must have one row per row of `X` \(6\)"),
        (np.array([0, 1, 2, 3, 4, np.nan]), None, ValueError, "`gating` must be finite"),
        (np.array(list("abcdef")), None, TypeError, "`gating` must hold real numbers"),
        (np.arange(6.0), np.array([0, 0, 1, 1, 2, 2]), ValueError, "must not vary within a group"),
    ],
)
def test_wrong_gates_are_named(
    gating: Any, groups: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        validate_gating(gating, 6, groups)


def test_a_constant_gate_is_named(rng: np.random.Generator) -> None:
    frame = pd.DataFrame({"year": rng.standard_normal(60), "site": np.ones(60)})
    with pytest.raises(ValueError, match="'site'"):
        pose_em(draw(rng, gating=frame), 2)
