"""Groups of rows: labels of any kind, the order they give, and covariates of groups."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from moment_init.data.checking import group_order, require_constant_in_groups, validate_groups


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a", "b", "c", "a"]),
        np.array([7, 3, 7, -1, 3]),
        np.array([0.5, 0.25, 0.5, np.inf, 0.25]),
        np.array([(1, 2), "x", (1, 2), False, "x"], dtype=object),
    ],
)
def test_order_by_hand(labels: Any) -> None:
    """Groups in the order of their first rows, the rows of each in theirs."""
    order, starts = group_order(labels)
    assert_array_equal(order, [0, 2, 1, 4, 3])
    assert_array_equal(starts, [0, 2, 4])


def test_no_groups_no_order() -> None:
    assert validate_groups(None, 5) is None
    assert group_order(None) == (None, None)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.arange(4), r"`groups` must have shape \(5,\), .*got \(4,\)"),
        (np.zeros((5, 1)), r"`groups` must have shape \(5,\), .*got \(5, 1\)"),
        ([1.0, 2.0, np.nan, 1.0, 2.0], "`groups` must not be missing; got nan in row 2"),
        (np.array(["a", None, "b", "a", "b"]), "`groups` must not be missing; got None in row 1"),
    ],
)
def test_wrong_labels_are_named(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_groups(groups, 5)


def test_covariates_must_not_vary_within_a_group() -> None:
    groups = np.array([1, 2, 1, 2])
    values = np.array([[0.0, 1.0], [5.0, 2.0], [0.0, 1.0], [5.0, 2.5]])
    with pytest.raises(ValueError, match=r"`gating` must not vary .*column 'size', which varies"):
        require_constant_in_groups(values, ("age", "size"), groups)
    require_constant_in_groups(values[:, :1], ("age",), groups)
    require_constant_in_groups(values, ("age", "size"), None)
