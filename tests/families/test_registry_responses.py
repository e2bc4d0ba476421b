"""Several responses and classes at the boundary: shapes, names, codes, and what is refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from moment_init.data.checking import (
    RegressionData,
    match_offset,
    match_response,
    match_trials,
    require_one_response,
    validate_data,
)
from moment_init.families.registry import class_codes, get_family, parse_family, response_families
from moment_init.families.several import SeveralResponses, categorical

N_OBS = 12
X = np.arange(2.0 * N_OBS).reshape(N_OBS, 2) ** 1.5
COUNTS = np.column_stack([np.arange(N_OBS) % 5, np.arange(N_OBS) % 3]).astype(float)
LABELS = np.array(["train", "bus", "car"] * 4)


def check(y: Any = COUNTS, **options: Any) -> RegressionData:
    return validate_data(X, y, **{"family": "poisson", **options})


def masked(values: Any) -> Any:
    mask = np.zeros(np.shape(values), dtype=bool)
    mask.flat[-1] = True
    return np.ma.array(values, mask=mask)


# --- one response --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        lambda y: y[:, None],
        lambda y: y[:, None].tolist(),
        lambda y: pd.DataFrame({"visits": y}),
        lambda y: np.asfortranarray(y[:, None]),
    ],
    ids=["array", "list", "frame", "fortran"],
)
def test_one_column_is_one_response(shape: Any) -> None:
    one, column = check(COUNTS[:, 0]), check(shape(COUNTS[:, 0]))
    assert_array_equal(column.y, one.y)
    assert column.y.shape == (N_OBS,)
    assert column.family == one.family
    assert column.response_names == ()
    assert column.classes is None
    require_one_response(column, "this")


def test_one_family_in_a_list_is_that_of_one_response() -> None:
    assert check(COUNTS[:, 0], family=["poisson"]).family == get_family("poisson")


def test_one_column_of_offsets_and_trials_is_a_vector() -> None:
    offset, trials = np.arange(N_OBS)[:, None], np.full((N_OBS, 1), 9.0)
    data = check(COUNTS[:, :1], family="binomial", offset=offset, n_trials=trials)
    assert_array_equal(data.offset, np.arange(N_OBS))
    assert_array_equal(data.n_trials, np.full(N_OBS, 9.0))


# --- several responses ---------------------------------------------------------------------------


def test_several_responses_have_an_axis_and_names() -> None:
    data = check()
    assert_array_equal(data.y, COUNTS)
    assert data.y.flags.f_contiguous
    assert data.family == SeveralResponses((get_family("poisson"),) * 2)
    assert data.response_names == ("y0", "y1")
    assert check(pd.DataFrame(COUNTS, columns=["a", 7])).response_names == ("a", "7")


def test_each_response_may_have_its_family() -> None:
    for family in (["poisson", "gaussian"], (get_family("poisson"), "gaussian")):
        data = check(family=family)
        assert (data.family.name, data.family.link_name) == ("poisson, gaussian", "log, identity")
    assert check(family=data.family).family == data.family
    assert check(family="bernoulli", y=COUNTS > 0, link="probit").family.link_name == "probit"


def test_offsets_and_trials_are_given_to_every_response() -> None:
    offset, trials = np.arange(float(N_OBS)), np.arange(9, 9 + N_OBS)
    data = check(family=["binomial", "poisson"], offset=offset, n_trials=trials)
    assert_array_equal(data.offset, np.column_stack([offset, offset]))
    assert_array_equal(data.n_trials, np.column_stack([trials, np.ones(N_OBS)]))
    given = np.asfortranarray(np.column_stack([trials, np.full(N_OBS, 5.0)]))
    data = check(family=["binomial", "poisson"], offset=given, n_trials=given)
    assert_array_equal(data.offset, given)
    assert_array_equal(data.n_trials, np.column_stack([trials, np.ones(N_OBS)]))
    assert np.all(given[:, 1] == 5.0)  # the caller's array is left as it is


def test_rows_are_taken_of_all_columns() -> None:
    weights = np.arange(N_OBS) % 2
    data = check(offset=COUNTS, sample_weight=weights, groups=np.arange(N_OBS) // 4)
    kept = data.drop_zero_weights()
    assert_array_equal(kept.y, COUNTS[1::2])
    assert_array_equal(kept.offset, COUNTS[1::2])
    assert_array_equal(kept.groups, np.arange(N_OBS)[1::2] // 4)
    assert kept.y.flags.f_contiguous
    assert data.take(slice(0, 4)).y.flags.f_contiguous
    assert kept.response_names == data.response_names


def test_a_response_alone() -> None:
    data = check(family=["binomial", "gaussian"], n_trials=9, offset=COUNTS)
    first, second = data.single(0), data.single(1)
    assert (first.family.name, second.family.name) == ("binomial", "gaussian")
    assert_array_equal(second.y, COUNTS[:, 1])
    assert_array_equal(second.offset, COUNTS[:, 1])
    assert_array_equal(first.n_trials, np.full(N_OBS, 9.0))
    assert second.n_trials is None
    assert first.response_names == ()
    assert first.single(0) is first


# --- classes -------------------------------------------------------------------------------------


def test_labels_become_codes() -> None:
    for labels in (LABELS, LABELS[:, None], pd.Series(LABELS, dtype="category"), LABELS.tolist()):
        data = check(labels, family="categorical")
        assert_array_equal(data.y, [2.0, 0.0, 1.0] * 4)
        assert data.family == categorical(3)
        assert data.response_names == ("car", "train")
        assert_array_equal(data.classes, ["bus", "car", "train"])
    assert check(labels, family="categorical", link="softmax").family == data.family


def test_numbers_are_labels_in_their_own_order() -> None:
    data = check(np.array([10, 2, 100] * 4), family="categorical")
    assert_array_equal(data.y, [1.0, 0.0, 2.0] * 4)
    assert data.response_names == ("10", "100")


def test_a_family_of_classes_takes_codes() -> None:
    codes = [2.0, 0.0, 1.0] * 4
    data = check(codes, family=categorical(4))
    assert_array_equal(data.y, codes)
    assert data.family.n_predictors == 3
    assert data.response_names == ("1", "2", "3")
    with pytest.raises(ValueError, match="codes from 0 to 1 for family 'categorical'"):
        check(codes, family=categorical(2))


def test_two_classes_have_one_predictor() -> None:
    offset = np.arange(float(N_OBS))
    data = check(COUNTS[:, 0] > 2, family="categorical", offset=offset[:, None])
    assert data.family.n_predictors == 1
    assert data.response_names == ("True",)
    assert_array_equal(data.offset, offset)
    assert_array_equal(data.single(0).offset, offset)


def test_offsets_of_classes() -> None:
    offset = np.arange(2.0 * N_OBS).reshape(N_OBS, 2)
    assert_array_equal(check(LABELS, family="categorical", offset=offset).offset, offset)
    with pytest.raises(ValueError, match=r"`offset` must be finite, of shape \(12,\) or \(12, 2\)"):
        check(LABELS, family="categorical", offset=np.ones((N_OBS, 3)))


def test_a_class_against_the_others() -> None:
    data = check(LABELS, family="categorical", offset=np.ones(N_OBS), groups=LABELS)
    single = data.single(1)
    assert single.family == get_family("bernoulli")
    assert_array_equal(single.y, LABELS == "train")
    assert single.offset is None
    assert_array_equal(single.groups, LABELS)
    assert (single.response_names, single.classes) == ((), None)


def test_classes_are_those_of_rows_with_weight() -> None:
    with pytest.raises(ValueError, match=r"`y`.*'car', of row 2, in rows of weight zero only"):
        check(LABELS, family="categorical", sample_weight=LABELS != "car")
    with pytest.raises(ValueError, match="at least two classes in rows of positive weight"):
        check(LABELS, family="categorical", sample_weight=LABELS == "car")
    weights = np.ones(N_OBS)
    weights[:3] = 0.0
    assert len(check(LABELS, family="categorical", sample_weight=weights).response_names) == 2


# --- what is refused -----------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"offset": "long"}, TypeError, "`offset` must hold real numbers"),
    ({"offset": np.full((N_OBS, 2), "x")}, TypeError, "`offset` must hold real numbers"),
    ({"offset": np.ones((N_OBS, 3))}, ValueError, r"`offset` must be finite, of shape \(12,\) or"),
    ({"offset": np.full(N_OBS, np.nan)}, ValueError, "`offset` must be finite"),
    ({"offset": masked(COUNTS)}, ValueError, "`offset` must not have masked"),
    ({"n_trials": 3}, ValueError, "`n_trials` must be None for family 'poisson'"),
    ({"family": np.array(["poisson"] * 2)}, TypeError, "`family` must be a string or a Family"),
    ({"family": [None, "poisson"]}, TypeError, "`family` must be a string or a Family"),
    ({"family": ["poisson"]}, ValueError, "one for each of the 2 responses; got 1"),
    ({"family": ["poisson"] * 2, "link": "log"}, ValueError, "`link` must be None where each"),
    ({"family": ["poisson", "categorical"]}, ValueError, "must not hold 'categorical' beside"),
    ({"family": "categorical"}, ValueError, r"one label per row .* got shape \(12, 2\)"),
    (
        {"y": COUNTS[:, 0], "family": ["poisson"] * 2},
        ValueError,
        "`y` must have a column for each response.*got one column",
    ),
    ({"y": [[1.0, 2.0], [3.0]]}, ValueError, "`y` must be a full array"),
    ({"y": [["a"], ["b", "c"]], "family": "categorical"}, ValueError, "`y` must be a full array"),
    ({"y": COUNTS[:, :0]}, ValueError, "`y` must have at least one column"),
    ({"y": COUNTS[:-1]}, ValueError, r"response 'y0': `y` must have shape \(12,\)"),
    ({"y": COUNTS - [0, 1]}, ValueError, "`y`, response 'y1': .* got -1 in row 0"),
    ({"y": COUNTS * [1, 0]}, ValueError, "`y`, response 'y1': `y` must vary"),
    ({"y": np.full((N_OBS, 2), "x")}, TypeError, "`y` must hold real numbers"),
    ({"y": sparse.csr_array(COUNTS)}, TypeError, "`y` must be dense"),
    ({"y": masked(COUNTS)}, ValueError, "`y` must not have masked"),
    ({"y": masked(COUNTS[:, :1])}, ValueError, "`y` must not have masked"),
    ({"y": pd.DataFrame(COUNTS, columns=["a", "a"])}, ValueError, "distinct column names"),
    (
        {"y": pd.DataFrame({"a": [1, pd.NA] * 6, "b": COUNTS[:, 0]})},
        TypeError,
        "`y`, response 'a': `y` must hold real numbers",
    ),
    ({"y": masked(LABELS), "family": "categorical"}, ValueError, "`y` must not have masked"),
    ({"y": LABELS, "family": "categorical", "link": "log"}, ValueError, "one of 'softmax'"),
    ({"y": LABELS, "family": "categorical", "n_trials": 3}, ValueError, "family 'categorical'"),
    (
        {"y": pd.Series(["a", pd.NA] * 6, dtype="string"), "family": "categorical"},
        ValueError,
        "`y` must not have missing labels",
    ),
    ({"y": [1.0, np.nan] * 6, "family": "categorical"}, ValueError, "`y` must be finite"),
    ({"y": np.array(["a", 1] * 6, dtype=object), "family": "categorical"}, TypeError, "one type"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_errors_name_the_argument(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check(**options)


@pytest.mark.parametrize("trials", [0, 2.5, -1, np.nan, np.ones(7), "ten", masked(np.ones(N_OBS))])
def test_trials_are_checked(trials: Any) -> None:
    for family in ("binomial", ["binomial", "poisson"]):
        with pytest.raises((TypeError, ValueError), match="`n_trials`"):
            check(family=family, n_trials=trials)
    with pytest.raises(ValueError, match="response 'y0': `n_trials` is needed"):
        check(family=["binomial", "poisson"])


def test_several_responses_of_dask() -> None:
    dask = pytest.importorskip("dask.array")
    lazy = dask.from_array(COUNTS, chunks=(6, 2))
    for y, family in ((lazy, "poisson"), (lazy[:, 0], "categorical"), (lazy[:, :1], ["poisson"])):
        expected, found = (check(np.asarray(each), family=family) for each in (y, y.compute()))
        assert_array_equal(found.y, expected.y)
        assert found.response_names == expected.response_names
    assert_array_equal(check(lazy[:, :1]).y, COUNTS[:, 0])


def test_where_several_responses_are_not_supported() -> None:
    for data, number in ((check(), "2 responses"), (check(LABELS, family="categorical"), "3 cl")):
        with pytest.raises(ValueError, match=f"not supported by `this`; got {number}"):
            require_one_response(data, "this")
    with pytest.raises(ValueError, match="not supported by `this`"):
        require_one_response(check(COUNTS[:, 0] > 0, family="categorical"), "this")


# --- new rows ------------------------------------------------------------------------------------


def test_new_responses_are_matched_by_name() -> None:
    family = parse_family("poisson, gaussian", "log, identity")
    frame = pd.DataFrame({"b": COUNTS[:, 1], "other": "text", "a": COUNTS[:, 0]})
    found = match_response(frame, family, ("a", "b"), None, N_OBS)
    assert_array_equal(found, COUNTS)
    assert found.flags.f_contiguous
    assert_array_equal(match_response(COUNTS.tolist(), family, ("a", "b"), None, N_OBS), COUNTS)
    with pytest.raises(ValueError, match=r"responses of the fit; missing are \['a'\]"):
        match_response(frame[["b"]], family, ("a", "b"), None, N_OBS)
    with pytest.raises(ValueError, match=r"the 2 responses of the fit, \(n_obs, 2\); got shape"):
        match_response(COUNTS[:, :1], family, ("a", "b"), None, N_OBS)
    with pytest.raises(ValueError, match=r"`y`, response 'a': .* got -1 in row 0"):
        match_response(COUNTS - 1, family, ("a", "b"), None, N_OBS)


def test_a_new_response_need_not_vary() -> None:
    poisson = get_family("poisson")
    for y in (np.ones(3), np.ones((3, 1)), pd.DataFrame({"any": np.ones(3)})):
        assert_array_equal(match_response(y, poisson, (), None, 3), np.ones(3))
    with pytest.raises(ValueError, match=r"`y` must have shape \(3,\), .* got \(3, 2\)"):
        match_response(np.ones((3, 2)), poisson, (), None, 3)


def test_new_successes_need_their_trials() -> None:
    family = parse_family("binomial, poisson", "logit, log")
    trials = match_trials(9, family, N_OBS)
    assert_array_equal(
        match_response(COUNTS, family, ("a", "b"), None, N_OBS, n_trials=trials), COUNTS
    )
    few = match_trials(3, family, N_OBS)
    with pytest.raises(ValueError, match=r"`y`, response 'a': .*exceed `n_trials`"):
        match_response(COUNTS, family, ("a", "b"), None, N_OBS, n_trials=few)
    assert match_trials(None, family, N_OBS) is None


def test_new_labels_are_those_of_the_fit() -> None:
    classes = np.array(["bus", "car", "train"])
    found = match_response(LABELS[:2], categorical(3), ("car", "train"), classes, 2)
    assert_array_equal(found, [2.0, 0.0])
    with pytest.raises(ValueError, match=r"labels among .* got 'walk' in row 1"):
        match_response(["bus", "walk"], categorical(3), ("car", "train"), classes, 2)


def test_classes_may_be_known_by_their_names() -> None:
    """A DataTree has names of classes; those of 2, 10 and 100 are not in the order of names."""
    assert_array_equal(class_codes(np.array([10, 2]), np.array(["2", "10", "100"])), [1.0, 0.0])
    with pytest.raises(ValueError, match=r"labels among .* got '2' in row 0"):
        class_codes(np.array(["2"]), np.array([2, 10]))


def test_an_offset_has_the_shape_of_the_predictors() -> None:
    assert match_offset(None, 2, 3) is None
    assert_array_equal(match_offset([1.0, 2.0], 2, 3), [[1.0] * 3, [2.0] * 3])
    assert_array_equal(match_offset([[1.0], [2.0]], 2, 1), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"`offset` must have shape \(2,\)"):
        match_offset(np.ones((2, 2)), 2, 1)


def test_families_by_response() -> None:
    assert response_families("gaussian", None, 2) == (get_family("gaussian"),) * 2
    both = SeveralResponses((get_family("gaussian"), get_family("bernoulli", "probit")))
    assert response_families(both, None, 2) == both.members
