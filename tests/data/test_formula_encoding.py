"""Formulas and their data: names, columns, levels, transforms that remember, what is refused."""

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.formula_encoding import Scope
from moment_init.data.formulas import FormulaDesign, read_formula

FRAME = pd.DataFrame(
    {
        "y": [1.0, 2.0, 4.0, 3.0, 6.0, 5.0],
        "age": [20.0, 30.0, 40.0, 50.0, 60.0, 80.0],
        "income": [1.0, 4.0, 2.0, 8.0, 16.0, 32.0],
        "gender": ["male", "female", "male", "other", "female", "male"],
        "is_member": [True, False, True, True, False, False],
        "size of home": [2.0, 1.0, 4.0, 3.0, 6.0, 5.0],
        "answer": ["no", "yes", "yes", "no", "yes", "no"],
        "person": ["a", "a", "b", "b", "c", "c"],
    },
    index=[5, 5, 7, 1, 0, 2],
)


def squared(values: Any) -> Any:
    return values**2


# --- columns and their names ---------------------------------------------------------------------


def test_categories_are_coded_against_the_first_level() -> None:
    design = read_formula("y ~ age + gender", FRAME)
    assert design.feature_names == ("age", "gender[T.male]", "gender[T.other]")
    encoded = design.encode_features(FRAME)
    assert_array_equal(encoded["age"], FRAME["age"])
    assert encoded["gender[T.male]"].tolist() == [1, 0, 1, 0, 0, 1]
    assert encoded["gender[T.other]"].tolist() == [0, 0, 0, 1, 0, 0]
    assert set(encoded.dtypes) == {np.dtype(np.float64)}


def test_order_of_categories_chooses_the_reference_and_empty_ones_are_left_out() -> None:
    levels = ["other", "unknown", "male", "female"]
    frame = FRAME.assign(gender=pd.Categorical(FRAME["gender"], categories=levels))
    design = read_formula("y ~ gender", frame)
    assert design.feature_names == ("gender[T.male]", "gender[T.female]")
    assert_array_equal(design.encode_features(frame)["gender[T.female]"], [0, 1, 0, 0, 1, 0])


def test_reference_can_be_named() -> None:
    design = read_formula("y ~ C(gender, contr.treatment('other'))", FRAME)
    assert [name.split("[")[-1] for name in design.feature_names] == ["T.female]", "T.male]"]


@pytest.mark.parametrize(
    ("formula", "names", "column", "values"),
    [
        ("y ~ age:is_member", ("age:is_member",), 0, [20, 0, 40, 50, 0, 0]),
        ("y ~ np.log2(income)", ("np.log2(income)",), 0, [0, 2, 1, 3, 4, 5]),
        ("y ~ {age / 10}", ("age / 10",), 0, [2, 3, 4, 5, 6, 8]),
        ("y ~ `size of home`", ("size of home",), 0, [2, 1, 4, 3, 6, 5]),
        ("y ~ I(`size of home` * 2)", ("I(`size of home` * 2)",), 0, [4, 2, 8, 6, 12, 10]),
        ("y ~ is_member", ("is_member",), 0, [1, 0, 1, 1, 0, 0]),
        ("y ~ age + squared(age)", ("age", "squared(age)"), 1, [400, 900, 1600, 2500, 3600, 6400]),
        ("y ~ abs(age - 50)", ("abs(age - 50)",), 0, [30, 20, 10, 0, 10, 30]),
        ("y ~ scipy.special.logit(income / 40)", None, 0, scipy.special.logit(FRAME.income / 40)),
    ],
)
def test_terms_are_columns(
    formula: str, names: tuple[str, ...] | None, column: int, values: Any
) -> None:
    design = read_formula(formula, FRAME, scope={"squared": squared, "scipy": scipy})
    assert names is None or design.feature_names == names
    assert_allclose(design.encode_features(FRAME).to_numpy()[:, column], values, rtol=1e-14)


def test_interaction_with_a_category_has_full_rank() -> None:
    design = read_formula("y ~ age * gender", FRAME)
    assert design.feature_names[-2:] == ("age:gender[T.male]", "age:gender[T.other]")
    with_ones = np.column_stack([np.ones(6), design.encode_features(FRAME)])
    assert np.linalg.matrix_rank(with_ones) == 5 < with_ones.shape[1] == 6  # one row of "other"


def test_dot_is_every_other_column_but_those_given_as_arguments() -> None:
    frame = FRAME[["y", "age", "income", "person"]]
    design = read_formula("y ~ .", frame, groups="person")
    assert design.feature_names == ("age", "income")


def test_gate_has_columns_of_its_own() -> None:
    design = read_formula("y ~ age | income + gender", FRAME)
    assert design.feature_names == ("age",)
    assert design.gate_names == ("income", "gender[T.male]", "gender[T.other]")
    assert read_formula("y ~ age", FRAME, gating="income + gender").gate_names == design.gate_names


def test_gate_of_an_intercept_is_none() -> None:
    assert read_formula("y ~ age | 1", FRAME).gate is None


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("Int64", [1, 2, 3, 4, 5, 6]),
        ("Float64", [1.5, 2, 3, 4, 5, 6]),
        ("boolean", [True, False, True, True, False, False]),
        ("float32", [1.5, 2, 3, 4, 5, 6]),
        ("uint8", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_numbers_of_any_type_are_numbers(dtype: str, values: list[Any]) -> None:
    frame = FRAME.assign(z=pd.Series(values, dtype=dtype, index=FRAME.index))
    design = read_formula("y ~ z + poly(age, 2)", frame)
    assert_array_equal(design.encode_features(frame)["z"], np.asarray(values, dtype=np.float64))


@pytest.mark.parametrize("dtype", ["object", "str", "string", "category"])
def test_labels_of_any_type_are_categories(dtype: Any) -> None:
    frame = FRAME.assign(gender=FRAME["gender"].astype(dtype))
    design = read_formula("y ~ gender", frame)
    assert design.feature_names == ("gender[T.male]", "gender[T.other]")
    assert_array_equal(design.encode_features(frame.iloc[2:])["gender[T.male]"], [1, 0, 0, 1])


# --- new rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ center(age) + scale(income)",
        "y ~ poly(age, 2)",
        "y ~ bs(age, df=4)",
        "y ~ cr(age, df=3)",
        "y ~ age * gender",
        "y ~ C(gender) + squared(age)",
        "y ~ age | scale(income) + gender",
    ],
)
def test_new_rows_are_encoded_as_the_first(formula: str) -> None:
    """Means, knots and levels of a single row alone would give other values."""
    design = read_formula(formula, FRAME, scope={"squared": squared})
    whole = design.rows(FRAME)
    for made in (design, copy.deepcopy(design), pickle.loads(pickle.dumps(design))):
        part = made.rows(FRAME.iloc[[4]])
        assert_allclose(part["X"], whole["X"].iloc[[4]], rtol=1e-12, atol=1e-14)
        if "gating" in whole:
            assert_allclose(part["gating"], whole["gating"].iloc[[4]], rtol=1e-12)


def test_known_transforms_remember_what_they_should() -> None:
    """Mean of age is 280/6; income has mean 10.5, sum of squares 1365, so variance 703.5/5."""
    design = read_formula("y ~ center(age) + scale(income)", FRAME)
    new = pd.DataFrame({"age": [0.0], "income": [10.5 + np.sqrt(703.5 / 5)]})
    assert_allclose(design.encode_features(new), [[-280 / 6, 1.0]], rtol=1e-12)


def test_own_transforms_come_before_the_callers() -> None:
    design = read_formula("y ~ center(age)", FRAME, scope={"center": squared})
    assert_allclose(design.encode_features(FRAME)["center(age)"].sum(), 0.0, atol=1e-10)


def test_rows_have_what_the_call_named() -> None:
    design = read_formula(
        "y ~ age",
        FRAME,
        offset="np.log(income)",
        n_trials="size of home",
        sample_weight="income / 2",
        groups="person",
    )
    rows = design.rows(FRAME)
    assert_allclose(rows["offset"], np.log(FRAME["income"]), rtol=1e-14)
    assert_array_equal(rows["n_trials"], FRAME["size of home"])
    assert_array_equal(rows["sample_weight"], FRAME["income"] / 2)
    assert rows["groups"].tolist() == FRAME["person"].tolist()
    assert "y" not in design.rows(FRAME.drop(columns="y"), has_response=False)
    assert design.attributes == {
        "formula": "y ~ age",
        "formula_offset": "np.log(income)",
        "formula_n_trials": "size of home",
        "formula_sample_weight": "income / 2",
        "formula_groups": "person",
    }


def test_modules_are_pickled_by_name() -> None:
    scope = pickle.loads(pickle.dumps(Scope(scipy=scipy, squared=squared, degree=3)))
    assert scope["scipy"] is scipy
    assert scope["degree"] == 3
    assert scope["squared"](3) == 9


def test_design_says_what_it_is() -> None:
    design = read_formula("answer ~ age | income", FRAME, groups="person")
    assert repr(design) == (
        "FormulaDesign: answer ~ age | income\nfeatures: age\ngating: income\ngroups: person\n"
        "response_levels: no = 0, yes = 1"
    )


# --- the response --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "values", "levels"),
    [
        ("y", [1, 2, 4, 3, 6, 5], None),
        ("np.log(y)", np.log([1, 2, 4, 3, 6, 5]), None),
        ("is_member", [1, 0, 1, 1, 0, 0], None),
        ("{y > 3}", [0, 0, 1, 0, 1, 1], None),
        ("answer", [0, 1, 1, 0, 1, 0], ("no", "yes")),
        ('{gender == "male"}', [1, 0, 1, 0, 0, 1], None),
    ],
)
def test_responses_are_numbers(left: str, values: Any, levels: Any) -> None:
    design = read_formula(f"{left} ~ age", FRAME)
    assert_allclose(design.encode_response(FRAME), values, rtol=1e-14)
    assert design.response_levels == levels


def test_second_category_of_a_response_is_one() -> None:
    frame = FRAME.assign(answer=pd.Categorical(FRAME["answer"], categories=["yes", "no"]))
    design = read_formula("answer ~ age", frame)
    assert design.response_levels == ("yes", "no")
    assert_array_equal(design.encode_response(frame.iloc[:2]), [1, 0])
    assert_array_equal(design.encode_response(frame.iloc[[1]]), [0])


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("age + income", "a response left of '~'"),
        ("~ age", "a response left of '~'"),
        ("y | age ~ income", "a response left of '~'"),
        ("y ~ age | income | gender", "at most one bar"),
        ("y ~ 0 + age", "formula with an intercept; .* Leave out '0 \\+' or '- 1'"),
        ("y ~ age - 1", "formula with an intercept"),
        ("y ~ age | 0 + income", "formula with an intercept"),
        ("y ~ 1", "an input right of '~'"),
        ("y ~", "an input right of '~'"),
        ("y ~ age +", "must be a formula; got 'y ~ age \\+': Operator `\\+`"),
        ("y ~ bs(age", "must be a formula; got"),
        ("y ~ f(age))", "must be a formula; got"),
        ("y ~ {age +}", "must be a formula; got"),
        ("y ~ agee", "missing are 'agee'. Its columns are y, age, .*. Did you mean 'age'?"),
        ("y ~ zzz", "missing are 'zzz'. .* Rename or add them"),
        ("y ~ cube(age)", "missing are 'cube'"),
        ("y ~ `size of flat`", "missing are 'size of flat'"),
        ("y + gender ~ age", "several columns of numbers; .* with labels among several responses"),
        ("gender ~ age", "with 3 levels. Use family='categorical' for more levels"),
        ("y ~ C(gender, levels=['male', 'female'])", "outside of the nominated levels"),
        ("y ~ weight", "'weight' from outside the DataFrame, with one value"),
    ],
)
def test_wrong_formulas_are_refused(formula: str, message: str) -> None:
    scope = {"weight": [1.0] * 6}
    formula = formula.replace("weight", "np.sqrt(weight)")
    with pytest.raises(ValueError, match=message):
        read_formula(formula, FRAME, scope=scope)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": "exposure"}, "missing are 'exposure'"),
        ({"offset": "np.log(age"}, "`offset` must be a column or an expression of columns; got"),
        ({"offset": "gender"}, "`offset` must give one number per row; got 'gender' with 3 levels"),
        ({"sample_weight": "poly(age, 2)"}, "`sample_weight` must give one number .* 2 columns"),
        ({"groups": "family"}, "`groups` must be a column .*; got 'family', which is not a column"),
        ({"gating": "incme"}, "missing are 'incme'"),
    ],
)
def test_wrong_names_in_arguments_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_formula("y ~ age", FRAME, **arguments)  # type: ignore[arg-type]


def test_two_places_for_a_gate_are_refused() -> None:
    with pytest.raises(ValueError, match="`gating` must be None with a formula that has a bar"):
        read_formula("y ~ age | income", FRAME, gating="gender")


def test_missing_values_are_counted_by_column() -> None:
    gender = FRAME["gender"].where(FRAME["y"] > 1.0)
    frame = FRAME.assign(age=[np.nan, 1, 2, np.nan, 3, 4], gender=gender)
    message = (
        r"`y` must have no missing values in the columns of the formula; got them in 2 of 6 rows: "
        r"age \(2\), gender \(1\)\. Impute them, or pass `y\.dropna\(subset=\['age', 'gender'\]\)`"
    )
    with pytest.raises(ValueError, match=message):
        read_formula("y ~ age + income + gender", frame)
    assert read_formula("y ~ income", frame).feature_names == ("income",)


def test_missing_groups_are_refused() -> None:
    person = FRAME["person"].where(FRAME["y"] > 1.0)
    with pytest.raises(ValueError, match=r"1 of 6 rows: person \(1\)"):
        read_formula("y ~ age", FRAME.assign(person=person), groups="person")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gender": "child"}, r"got 'child' in column 'gender' \(6 rows\), which has 'female', "),
        ({"person": "z"}, r"got 'z' in column 'person'"),
        ({"age": 200.0}, "beyond upper and/or lower bounds"),
        ({"age": np.nan}, r"6 of 6 rows: age \(6\)"),
        ({"income": -1.0, "is_member": "child"}, "is_member"),
    ],
)
def test_rows_that_the_formula_cannot_encode_are_refused(
    change: dict[str, Any], message: str
) -> None:
    design = read_formula("y ~ bs(age, df=4) + gender + C(person) + is_member", FRAME)
    with pytest.raises(ValueError, match=message):
        design.encode_features(FRAME.assign(**change))


def test_levels_of_an_expression_that_are_new_are_refused() -> None:
    design = read_formula("y ~ C(np.floor(age / 40))", FRAME)
    with pytest.raises(ValueError, match="not seen in original dataset"):
        design.encode_features(FRAME.assign(age=400.0))


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda design, frame: design.encode_features(frame), "missing are 'age'. Add them, or"),
        (lambda design, frame: design.encode_response(frame), "must have the response if `y`"),
        (lambda design, frame: design.encode_argument("offset", frame), r"np.zeros\(len\(X\)\)"),
        (lambda design, frame: design.encode_argument("groups", frame), r"np.arange\(len\(X\)\)"),
        (lambda design, frame: design.encode_argument("n_trials", frame), r"np.ones\(len\(X\)\)"),
    ],
)
def test_rows_without_a_column_are_refused(encode: Any, message: str) -> None:
    design = read_formula(
        "y ~ age", FRAME, offset="income", groups="person", n_trials="size of home"
    )
    with pytest.raises(ValueError, match=message):
        encode(design, FRAME[["answer"]])


def test_terms_that_are_no_numbers_are_refused() -> None:
    frame = FRAME.assign(day=pd.date_range("2024-01-01", periods=6))
    with pytest.raises(TypeError, match=r"got day \(datetime64.*Convert them"):
        read_formula("y ~ day", frame)
    with pytest.raises(TypeError, match=r"real numbers or categories; got age \* 1j \(complex128"):
        read_formula("y ~ {age * 1j}", frame)
    assert read_formula("y ~ {day.dt.day}", frame).feature_names == ("day.dt.day",)


def test_names_that_stand_twice_are_refused() -> None:
    twice = pd.concat([FRAME, FRAME[["age"]]], axis=1)
    with pytest.raises(ValueError, match=r"distinct column names; got some of \['age'\]"):
        read_formula("y ~ age", twice)
    with pytest.raises(ValueError, match="terms have distinct names"):
        read_formula("y ~ Intercept", FRAME.rename(columns={"age": "Intercept"}))


def test_data_other_than_a_frame_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`y` must be a pandas\.DataFrame .*; got ndarray"):
        read_formula("y ~ age", FRAME.to_numpy())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`data` must be a pandas\.DataFrame .*; got dict"):
        read_formula("y ~ age", FRAME).rows({"age": [1.0]})  # type: ignore[arg-type]


def test_lack_of_formulaic_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ImportError, match=r"pip install 'moment-init\[formula\]'"):
        read_formula("y ~ age", FRAME)


def test_a_frame_that_is_encoded_already_is_told_from_a_raw_one() -> None:
    design: FormulaDesign = read_formula("y ~ center(age) + income", FRAME)
    assert design.has_features_of(design.encode_features(FRAME))
    assert not design.has_features_of(FRAME)
    assert not design.has_features_of(FRAME[["income"]])
