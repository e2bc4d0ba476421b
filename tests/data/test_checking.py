"""The data block: what is accepted, what is kept, and the message for everything else."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from moment_init.data.checking import (
    RegressionData,
    validate_data,
    validate_features,
    validate_row_vector,
)

N_OBS = 8
X = np.arange(2.0 * N_OBS).reshape(N_OBS, 2) ** 1.5
BINARY = np.tile([0.0, 1.0], N_OBS // 2)
COUNTS = np.arange(float(N_OBS))


def changed(values: Any, index: Any, value: float) -> Any:
    copy = np.array(values, dtype=np.float64)
    copy[index] = value
    return copy


def check(features: Any = X, y: Any = BINARY, **options: Any) -> RegressionData:
    return validate_data(features, y, **{"family": "bernoulli", **options})


# --- what is accepted ----------------------------------------------------------------------------


def test_plain_arrays_are_kept_as_they_are() -> None:
    data = check()
    assert data.X is X
    assert (data.n_obs, data.n_features) == (N_OBS, 2)
    assert data.feature_names == ("x0", "x1")
    assert (data.family.name, data.family.link_name) == ("bernoulli", "logit")
    assert_array_equal(data.y, BINARY)
    assert_array_equal(data.sample_weight, np.ones(N_OBS))
    assert data.offset is None
    assert data.n_trials is None
    assert data.groups is None


def test_the_link_can_be_chosen() -> None:
    assert check(link="probit").family.link_name == "probit"


def test_frame_keeps_its_names_and_takes_nullable_columns() -> None:
    frame = pd.DataFrame({"age": X[:, 0], 7: pd.array(range(N_OBS), dtype="Int64")})
    data = check(frame, pd.Series(BINARY))
    assert data.feature_names == ("age", "7")
    assert_array_equal(data.X, np.column_stack([X[:, 0], np.arange(N_OBS)]))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_, object])
def test_real_types_are_accepted(dtype: Any) -> None:
    features = np.array([[0, 1], [1, 1]] * 4).astype(dtype)
    checked, _ = validate_features(features)
    assert_array_equal(checked.astype(np.float64), features.astype(np.float64))


def test_lists_are_accepted() -> None:
    data = check(X.tolist(), BINARY.astype(int).tolist())
    assert_array_equal(data.X, X)
    assert data.y.dtype == np.float64


def test_optional_vectors_are_converted() -> None:
    data = check(
        y=COUNTS,
        family="binomial",
        n_trials=7,
        offset=list(range(N_OBS)),
        sample_weight=np.arange(N_OBS),
        groups=list("aabbccdd"),
    )
    assert_array_equal(data.n_trials, np.full(N_OBS, 7.0))
    assert data.offset is not None
    assert data.offset.dtype == data.sample_weight.dtype == np.float64
    assert data.groups is not None
    assert data.groups.shape == (N_OBS,)


def test_constant_counts_of_varying_trials_are_accepted() -> None:
    trials = np.arange(2.0, 2.0 + N_OBS)
    assert_array_equal(check(y=np.ones(N_OBS), family="binomial", n_trials=trials).n_trials, trials)


def test_arguments_may_be_read_only() -> None:
    locked = X.copy()
    locked.flags.writeable = False
    assert check(locked).X is locked


# --- X -------------------------------------------------------------------------------------------

BAD_FEATURES: list[tuple[str, Any, type[Exception], str]] = [
    (
        "nan",
        changed(X, (3, 1), np.nan),
        ValueError,
        "finite; got nan in row 3, column 'x1'. Drop or",
    ),
    ("inf", changed(X, (5, 0), -np.inf), ValueError, "finite; got -inf in row 5, column 'x0'"),
    ("missing", pd.DataFrame({"a": [1.0, None] * 4}), ValueError, "got nan in row 1, column 'a'"),
    (
        "nullable",
        pd.DataFrame({"a": pd.array([1, 2, pd.NA, 4] * 2, dtype="Int64")}),
        ValueError,
        "got nan in row 2, column 'a'",
    ),
    ("vector", X[:, 0], ValueError, r"two-dimensional, .* got shape \(8,\). Use `X.reshape"),
    ("cube", X[None], ValueError, r"two-dimensional, .* got shape \(1, 8, 2\)"),
    ("no columns", X[:, :0], ValueError, r"at least 2 rows and 1 column; got shape \(8, 0\)"),
    ("one row", X[:1], ValueError, r"at least 2 rows and 1 column; got shape \(1, 2\)"),
    ("no rows", X[:0], ValueError, r"at least 2 rows and 1 column; got shape \(0, 2\)"),
    ("sparse", sparse.csr_array(X), TypeError, "must be dense; got csr_array. Pass `X.toarray"),
    (
        "sparse frame",
        pd.DataFrame({"a": pd.arrays.SparseArray(BINARY)}),
        TypeError,
        "must be dense; got DataFrame",
    ),
    (
        "objects",
        np.array([["a", 1.0]] * N_OBS, dtype=object),
        TypeError,
        "real numbers; got objects",
    ),
    ("strings", np.array([["a", "b"]] * N_OBS), TypeError, "real numbers; got dtype <U1. Convert"),
    ("complex", X + 1j, TypeError, "real numbers; got dtype complex128"),
    ("dates", X.astype("datetime64[s]"), TypeError, "real numbers; got dtype datetime64"),
    ("none", None, ValueError, r"`X` must be two-dimensional, .* got shape \(\)"),
    (
        "text column",
        pd.DataFrame({"a": X[:, 0], "city": ["x", "y"] * 4}),
        TypeError,
        r"real numbers; got columns city \(.*\). Encode or drop",
    ),
    (
        "categories",
        pd.DataFrame({"kind": pd.Categorical(["x", "y"] * 4)}),
        TypeError,
        r"got columns kind \(category\)",
    ),
    (
        "duplicate names",
        pd.DataFrame(X, columns=["a", "a"]),
        ValueError,
        r"distinct column names; got \['a'\] more than once. Rename",
    ),
]


@pytest.mark.parametrize(
    ("features", "error", "match"),
    [case[1:] for case in BAD_FEATURES],
    ids=[case[0] for case in BAD_FEATURES],
)
def test_bad_features(features: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check(features)


def test_a_missing_value_far_down_is_found(rng: np.random.Generator) -> None:
    features = rng.standard_normal((200_000, 2))
    features[150_001, 1] = np.nan
    with pytest.raises(ValueError, match="got nan in row 150001, column 'x1'"):
        validate_features(features)


def test_the_callers_name_is_in_the_message() -> None:
    with pytest.raises(ValueError, match="`inputs` must be two-dimensional"):
        validate_features(X[:, 0], name="inputs")


# --- y and the other vectors ---------------------------------------------------------------------

BAD_RESPONSES: list[tuple[str, Any, type[Exception], str]] = [
    (
        "nan",
        changed(BINARY, 2, np.nan),
        ValueError,
        r"`y` must be finite; got nan in row 2 \(1 such",
    ),
    ("inf", changed(BINARY, 0, np.inf), ValueError, "`y` must be finite; got inf in row 0"),
    ("short", BINARY[:-1], ValueError, r"`y` must have shape \(8,\), one value .* got \(7,\)"),
    ("cube", BINARY[:, None, None], ValueError, r"`y` must have shape \(8,\), .* got \(8, 1, 1\)"),
    ("strings", np.array(["0", "1"] * 4), TypeError, "`y` must hold real numbers; got dtype"),
    ("labels", np.array(["no", 1] * 4, dtype=object), TypeError, "`y` must hold real numbers"),
    ("complex", BINARY + 0j, TypeError, "`y` must hold real numbers; got dtype complex128"),
    ("constant", np.ones(N_OBS), ValueError, "`y` must vary; got 1 in all 8 rows"),
]


@pytest.mark.parametrize(
    ("y", "error", "match"),
    [case[1:] for case in BAD_RESPONSES],
    ids=[case[0] for case in BAD_RESPONSES],
)
def test_bad_responses(y: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check(y=y)


@pytest.mark.parametrize(
    ("family", "options", "value", "match"),
    [
        ("bernoulli", {}, 2.0, "only 0 and 1 for family 'bernoulli'; got 2 in row 4"),
        ("binomial", {"n_trials": 9}, -1.0, "successes, 0 or more, .*; got -1 in row 4"),
        ("binomial", {"n_trials": 9}, 10.0, "must not exceed `n_trials` .*; got 10 in row 4"),
        ("binomial", {"n_trials": 9}, 0.5, "whole numbers of successes.*; got 0.5 in row 4"),
        ("poisson", {}, -1.0, "whole numbers, 0 or more, for family 'poisson'; got -1 in row 4"),
        ("poisson", {}, 1.5, "whole numbers, 0 or more, for family 'poisson'; got 1.5 in row 4"),
        ("negative_binomial", {}, -1.0, "for family 'negative_binomial'; got -1 in row 4"),
        ("gamma", {}, -1.0, "above 0 for family 'gamma'; got -1 in row 4"),
    ],
)
def test_responses_outside_the_range(
    family: str, options: dict[str, Any], value: float, match: str
) -> None:
    y = changed(BINARY if family != "gamma" else COUNTS + 1.0, 4, value)
    with pytest.raises(ValueError, match=match):
        check(y=y, family=family, **options)


def test_gamma_does_not_take_zero() -> None:
    with pytest.raises(ValueError, match="above 0 for family 'gamma'; got 0 in row 0"):
        check(y=COUNTS, family="gamma")


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"offset": COUNTS[:3]}, ValueError, r"`offset` must have shape \(8,\), .* got \(3,\)"),
    (
        {"offset": changed(COUNTS, 1, np.nan)},
        ValueError,
        "`offset` must be finite; got nan in row 1",
    ),
    ({"offset": ["a"] * N_OBS}, TypeError, "`offset` must hold real numbers"),
    ({"sample_weight": COUNTS[:3]}, ValueError, r"`sample_weight` must have shape \(8,\)"),
    ({"sample_weight": COUNTS - 2}, ValueError, "non-negative and not all zero; got -2 in row 0"),
    ({"sample_weight": np.zeros(N_OBS)}, ValueError, "non-negative and not all zero; got 0 in row"),
    ({"sample_weight": changed(COUNTS, 3, np.inf)}, ValueError, "`sample_weight` must be finite"),
    (
        {"groups": list("abc")},
        ValueError,
        r"`groups` must have shape \(8,\), one label .* got \(3,\)",
    ),
    ({"groups": changed(COUNTS, 6, np.nan)}, ValueError, "not be missing; got nan in row 6. Give"),
    ({"groups": ["a"] * 7 + [None]}, ValueError, "`groups` must not be missing; got None in row 7"),
    (
        {"groups": pd.array([1, 2, pd.NA, 4] * 2, dtype="Int64")},
        ValueError,
        "`groups` must not be missing; got .* in row 2",
    ),
    (
        {"groups": pd.array(["a", "b", pd.NA, "d"] * 2, dtype="string")},
        ValueError,
        "`groups` must not be missing; got .* in row 2",
    ),
    ({"n_trials": 3}, ValueError, "`n_trials` must be None for family 'bernoulli'; only 'bin"),
    ({"family": "normal"}, ValueError, "`family` must be one of 'bernoulli', .* got 'normal'"),
    ({"family": 3}, TypeError, "`family` must be a string or a Family; got int"),
    ({"link": "log"}, ValueError, "`link` must be one of 'logit', 'probit' for family 'bernoulli'"),
]


@pytest.mark.parametrize(("options", "error", "match"), BAD_OPTIONS)
def test_bad_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check(**options)


@pytest.mark.parametrize(
    ("n_trials", "match"),
    [
        (None, "`n_trials` is needed for family 'binomial'|`n_trials`"),
        (0, "`n_trials` must be whole numbers of at least 1; got 0 in row 0"),
        (changed(np.full(N_OBS, 9.0), 2, 2.5), "at least 1; got 2.5 in row 2"),
        ([3, 4], r"`n_trials` must have shape \(8,\)"),
        (np.nan, "`n_trials` must be finite; got nan"),
    ],
)
def test_bad_trials(n_trials: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check(family="binomial", n_trials=n_trials)


def test_row_vector_is_not_copied_where_it_need_not_be() -> None:
    assert validate_row_vector(COUNTS, "offset", N_OBS) is COUNTS
