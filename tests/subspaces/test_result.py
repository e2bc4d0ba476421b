"""The result: projections, columns matched by name, weaknesses said."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import WeakSignalWarning
from moment_init.data.standardising import Coordinates
from moment_init.subspaces.result import SubspaceEstimate, assemble_estimate

NAMES = ("age", "dose", "size")


def assemble(spectrum: list[float], directions: list[list[float]]) -> SubspaceEstimate:
    return assemble_estimate(
        np.array(directions).T,
        np.array(spectrum),
        Coordinates(np.array([1.0, 2.0, 3.0]), np.diag([1.0, 2.0, 4.0])),
        feature_names=NAMES,
        method="by_hand",
        n_obs=50,
    )


def test_basis_by_hand() -> None:
    """L = diag(1, 2, 4): (0, 0, 1) stays; (0, 1, 1) is (0, 2, 1) up to scale, less its third."""
    span = assemble([3.0, 2.0, 0.5], [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    assert_allclose(span.basis, [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]], atol=1e-15)
    assert span.warnings == ()


def test_first_direction_keeps_its_sign() -> None:
    assert_allclose(assemble([3.0], [[0.0, -2.0, 0.0]]).basis, [[0.0], [-1.0], [0.0]])


def test_projections_by_hand() -> None:
    span = assemble([3.0, 2.0, 0.5], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert_allclose(span.transform([[1.0, 2.0, 3.0], [9, 7.0, 4.0]]), [[0.0, 0.0], [1.0, 5.0]])


def test_columns_of_a_frame_are_matched_by_name() -> None:
    span = assemble([3.0, 2.0, 0.5], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    frame = pd.DataFrame({"size": [4], "age": [9], "dose": [7]})
    assert_allclose(span.transform(frame), [[1.0, 5.0]])


def test_other_columns_are_refused() -> None:
    span = assemble([3.0], [[0.0, 0.0, 1.0]])
    pattern = r"`X` must have the 3 columns of the estimate \(age, dose, size\); got 2"
    with pytest.raises(ValueError, match=pattern):
        span.transform(np.ones((4, 2)))
    frame = pd.DataFrame({"size": [4.0], "age": [9.0], "mass": [7.0]})
    with pytest.raises(ValueError, match=r"missing are \['dose'\], unknown are \['mass'\]"):
        span.transform(frame)
    with pytest.raises(ValueError, match=r"`X` must be finite; got nan"):
        span.transform([[1.0, np.nan, 1.0]])


def test_directions_in_the_noise_are_said() -> None:
    with pytest.warns(WeakSignalWarning, match=r"by_hand: 1 of 2 directions stand out") as caught:
        span = assemble([3.0, 1.1, 0.5], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert span.warnings == (str(caught[0].message),)


def test_shown_by_sizes_and_spectrum() -> None:
    text = repr(assemble([3.0, 2.0, 0.5], [[0.0, 0.0, 1.0]]))
    assert text == (
        "SubspaceEstimate(method='by_hand', n_directions=1, n_features=3, n_obs=50, "
        "spectrum=[3.00, 2.00...])"
    )


def test_result_is_frozen() -> None:
    with pytest.raises(AttributeError, match="cannot assign to field 'method'"):
        assemble([3.0], [[0.0, 0.0, 1.0]]).method = "other"  # type: ignore[misc]
