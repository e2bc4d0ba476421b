"""The data block of a Dask input is checked by the rules of arrays in memory."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from moment_init.data.checking import validate_data
from moment_init.data.dask_rows import DaskRows

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


def test_columns_of_many_types_are_those_of_a_frame_in_memory() -> None:
    frame = pd.DataFrame({"a": X[:, 0].astype(np.float32), "b": Y > 0.0})
    frame["c"] = pd.array(np.arange(50), dtype="Int64")
    lazy = dd.from_pandas(frame.assign(y=pd.array(Y.astype(int), dtype="Int64")), npartitions=3)
    expected = validate_data(frame, Y, family="bernoulli")
    found = validate_data(lazy[["a", "b", "c"]], lazy["y"], family="bernoulli")
    assert_array_equal(found.X, expected.X)
    assert_array_equal(found.y, Y)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_READ_WHOLE", "FEW_ROWS"):
            patch.setattr(f"moment_init.data.dask_rows.{name}", 0)
        blocks: Any = validate_data(lazy[["a", "b", "c"]], lazy["y"], family="bernoulli")
    assert isinstance(blocks, DaskRows)
    assert_array_equal(blocks.take(np.arange(50)).X, expected.X)
    assert_array_equal(blocks.take(np.arange(50)).y, Y)


def test_groups_alone_may_be_of_dask() -> None:
    data = validate_data(X, Y, family="bernoulli", groups=_lazy(Y))
    assert data.X is X
    assert_array_equal(data.groups, Y)


@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize("kind", ["category", "string", "datetime64[ns]"])
def test_columns_that_are_no_numbers_raise_before_anything_is_read(kind: Any) -> None:
    def never(_: pd.DataFrame) -> pd.DataFrame:
        raise AssertionError("read")

    meta = pd.DataFrame({"a": [1.0], "b": pd.Series([0]).astype(kind)})
    lazy = dd.from_pandas(meta, npartitions=1).map_partitions(never, meta=meta)
    with pytest.raises(TypeError, match=r"`X` must hold real numbers; got columns b"):
        validate_data(lazy, da.ones(1), family="bernoulli")


@pytest.mark.usefixtures("nothing_whole")
def test_empty_blocks_hold_no_rows() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]).assign(y=Y), npartitions=5)
    some = frame.map_partitions(lambda part: part[part.index % 20 >= 10], meta=frame._meta)
    data: Any = validate_data(some[["a", "b"]], some["y"], family="bernoulli")
    kept = np.arange(50) % 20 >= 10
    assert 0 in data.table.sizes
    assert_array_equal(data.take(np.arange(kept.sum())).X, X[kept])
    assert_array_equal(data.thin(2).y, Y[kept][::2])
    none = frame[frame["a"] > 1e6]
    with pytest.raises(ValueError, match="`X` must have at least 2 rows; got 0"):
        validate_data(none[["a", "b"]], none["y"], family="bernoulli")


@pytest.mark.usefixtures("nothing_whole")
def test_many_rows_stay_where_they_are() -> None:
    weights = np.arange(50.0) % 3
    data: Any = validate_data(
        _lazy(X), Y, family="binomial", n_trials=3, sample_weight=_lazy(weights)
    )
    assert isinstance(data, DaskRows)
    assert (data.n_obs, data.n_features, data.total_weight) == (50, 2, weights.sum())
    assert data.feature_names == ("x0", "x1")
    with pytest.raises(TypeError, match="Rows of a Dask input are not read whole"):
        np.asarray(data.X)
    with pytest.raises(ValueError, match="`method` must be 'a' for a Dask input of 50 rows"):
        data.whole("`method` must be 'a'")
    counted = data.drop_zero_weights()
    assert_array_equal(counted.take(np.arange(33)).X, X[weights > 0.0])
    taken = counted.take(np.array([5, 2]))
    assert_array_equal(taken.y, Y[weights > 0.0][[5, 2]])
    assert_array_equal(taken.n_trials, [3.0, 3.0])
    assert counted.drop_zero_weights() is counted


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
    with pytest.raises(ValueError, match="`y` must vary by more than"):
        validate_data(_lazy(X), _lazy(1e80 * X[:, 0]), family="gaussian")
    masked = np.ma.MaskedArray(np.ones(50), mask=Y > 0.0)
    with pytest.raises(ValueError, match="`sample_weight` must not have masked values"):
        validate_data(_lazy(X), _lazy(Y), family="bernoulli", sample_weight=masked)
    with pytest.raises(ValueError, match="`groups` must have all rows of a group in one block"):
        validate_data(_lazy(X), Y, family="bernoulli", groups=Y)
    responses = np.column_stack([Y, np.full(50, 2.0)])
    with pytest.raises(ValueError, match="response 'y1': `y` must vary; got 2 in all 50 rows"):
        validate_data(_lazy(X), _lazy(responses), family="poisson")
    with pytest.raises(ValueError, match="at least two classes"):
        validate_data(_lazy(X), _lazy(np.full(50, "a")), family="categorical")
    with pytest.raises(ValueError, match="`y` must have shape"):
        validate_data(_lazy(X), _lazy(X)[:, :, None], family="bernoulli")
    with pytest.raises(ValueError, match="`n_trials` must be whole numbers"):
        validate_data(_lazy(X), Y, family="binomial", n_trials=0.5)
    frame = dd.from_pandas(pd.DataFrame({"a": list("pq"), "b": [1.0, 2.0]}), npartitions=1)
    with pytest.raises(TypeError, match="`X` must hold real numbers; got columns a"):
        validate_data(frame, da.ones(2), family="bernoulli")


@pytest.mark.usefixtures("nothing_whole")
def test_one_column_is_one_response() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=2)
    column = dd.from_pandas(pd.DataFrame({"y": Y}), npartitions=2)
    for inputs, y in ((_lazy(X), _lazy(Y)[:, None]), (frame, column)):
        data = validate_data(inputs, y, family="bernoulli")
        assert_array_equal(data.take(np.arange(50)).y, Y)


@pytest.mark.usefixtures("nothing_whole")
def test_blocks_of_frames_must_have_the_same_rows() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=2)
    other = dd.from_pandas(pd.Series(Y[:49]), npartitions=2)
    with pytest.raises(ValueError, match="columns must have the same rows; got `X` 25, `y` 24"):
        validate_data(frame, other, family="bernoulli")
