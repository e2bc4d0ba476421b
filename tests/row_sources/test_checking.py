"""The data block of a Dask input is checked by the rules of arrays in memory."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from moment_init.data import validate_data
from moment_init.row_sources.columns import RowColumn

RNG = np.random.default_rng(1)
X = RNG.normal(size=(50, 2))
Y = RNG.integers(2, size=50).astype(float)


def _lazy(values: Any) -> Any:
    return da.from_array(np.asarray(values), chunks=((20, 30), *((n,) for n in values.shape[1:])))


def test_few_rows_are_read_whole() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=3)
    data = validate_data(frame, _lazy(Y), family="bernoulli", groups=_lazy(Y))
    assert isinstance(data.X, np.ndarray)
    assert data.feature_names == ("a", "b")
    assert_array_equal(data.X, X)
    assert_array_equal(data.groups, Y)


@pytest.mark.usefixtures("nothing_whole")
def test_many_rows_stay_where_they_are() -> None:
    weights = np.arange(50.0) % 3
    data: Any = validate_data(
        _lazy(X), Y, family="binomial", n_trials=3, sample_weight=_lazy(weights)
    )
    assert isinstance(data.X, RowColumn)
    assert data.X.shape == (50, 2)
    assert data.feature_names == ("x0", "x1")
    counted = data.counted()
    assert_array_equal(counted.X[np.arange(33)], X[weights > 0.0])
    taken = counted.take(np.array([5, 2]))
    assert_array_equal(taken.y, Y[weights > 0.0][[5, 2]])
    assert_array_equal(taken.n_trials, [3.0, 3.0])
    assert counted.counted() is counted


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize(
    ("changed", "value", "message"),
    [
        ("X", np.nan, "Block 1, which begins at row 20: `X` must be finite; got nan in row 5"),
        ("y", 2.0, "Block 1, which begins at row 20: `y` must hold only 0 and 1"),
        ("sample_weight", -1.0, "Block 1, which begins at row 20: `sample_weight` must be non-neg"),
        ("offset", np.inf, "Block 1, which begins at row 20: `offset` must be finite"),
    ],
)
def test_wrong_values_name_block_and_row(changed: str, value: float, message: str) -> None:
    given = {"X": X.copy(), "y": Y.copy(), "sample_weight": np.ones(50), "offset": np.zeros(50)}
    given[changed][25] = value
    lazy = {name: _lazy(values) for name, values in given.items()}
    with pytest.raises(ValueError, match=message):
        validate_data(lazy.pop("X"), lazy.pop("y"), family="bernoulli", **lazy)


@pytest.mark.usefixtures("nothing_whole")
def test_what_holds_for_all_rows_together() -> None:
    with pytest.raises(ValueError, match="`y` must vary; got 1"):
        validate_data(_lazy(X), da.ones(50), family="bernoulli")
    with pytest.raises(ValueError, match="`sample_weight` must not be all zero"):
        validate_data(_lazy(X), Y, family="bernoulli", sample_weight=da.zeros(50))
    with pytest.raises(ValueError, match="`groups` must be None for a Dask input"):
        validate_data(_lazy(X), Y, family="bernoulli", groups=Y)
    with pytest.raises(ValueError, match="`y` must have 1 axis"):
        validate_data(_lazy(X), _lazy(X), family="bernoulli")
    with pytest.raises(ValueError, match="`n_trials` must be whole numbers"):
        validate_data(_lazy(X), Y, family="binomial", n_trials=0.5)
    frame = dd.from_pandas(pd.DataFrame({"a": list("pq"), "b": [1.0, 2.0]}), npartitions=1)
    with pytest.raises(TypeError, match="`X` must hold real numbers; got columns a"):
        validate_data(frame, da.ones(2), family="bernoulli")


@pytest.mark.usefixtures("nothing_whole")
def test_blocks_of_frames_must_have_the_same_rows() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=2)
    other = dd.from_pandas(pd.Series(Y[:49]), npartitions=2)
    with pytest.raises(ValueError, match="columns must have the same rows; got `X` 25, `y` 24"):
        validate_data(frame, other, family="bernoulli")
