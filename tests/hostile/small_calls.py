"""Calls of the public functions that take no data block."""

from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from hypothesis import strategies as st

import moment_init
from moment_init.data.formulas import read_formula
from tests.hostile import answers
from tests.hostile.arguments import COMPONENT_NUMBERS, SEEDS
from tests.hostile.blocks import clean_block
from tests.hostile.contract import Call
from tests.hostile.posteriors import small_tree

__all__ = ["SMALL_CALLS"]

# --- simulate_mixture ----------------------------------------------------------------------------

_SIZES = {**{name: it for name, it in COMPONENT_NUMBERS.items() if "more" not in name}}
_SIZES.pop("2**70 components")  # a number like any other here, of more memory than there is

_SIMULATED: dict[str, tuple[dict[str, Any], bool]] = {
    "weights that do not sum to one": ({"weights": [0.5, 0.7]}, True),
    "negative weights": ({"weights": [1.5, -0.5]}, True),
    "NaN weights": ({"weights": [np.nan, 1.0]}, True),
    "weights as text": ({"weights": ["a", "b"]}, True),
    "ragged weights": ({"weights": [[0.5], [0.2, 0.3]]}, True),
    "scales of zero": ({"scales": 0.0}, True),
    "scales of infinity": ({"scales": [np.inf, 1.0]}, True),
    "complex scales": ({"scales": [1j, 1.0]}, True),
    "masked scales": ({"scales": np.ma.array([1.0, 2.0], mask=[True, False])}, True),
    "huge scales": ({"scales": 1e8}, False),
    "biases of NaN": ({"biases": [np.nan, 0.0]}, True),
    "huge biases": ({"biases": 1e300}, False),
    "negative dispersion": ({"dispersion": -1.0, "family": "gaussian"}, True),
    "tiny dispersion": ({"dispersion": 1e-8, "family": "gaussian"}, False),
    "dispersion of a family without": ({"dispersion": 1.0}, True),
    "directions of zero": ({"directions": np.zeros((3, 2))}, True),
    "directions of NaN": ({"directions": np.full((3, 2), np.nan)}, True),
    "unknown inputs": ({"inputs": "cauchy"}, True),
    "inputs of a wrong shape": ({"inputs": np.ones((2, 2))}, True),
    "inputs with NaN": ({"inputs": np.full((30, 3), np.nan)}, True),
    "inputs None": ({"inputs": None}, True),
    "inputs from a function of nothing": ({"inputs": lambda rng, n, d: None}, True),
    "trials of a family without": ({"n_trials": 3}, True),
    "trials of zero": ({"n_trials": 0, "family": "binomial"}, True),
    "short trials": ({"n_trials": [1, 2], "family": "binomial"}, True),
    "trials as text": ({"n_trials": "ten", "family": "binomial"}, True),
    "unknown family": ({"family": "x"}, True),
    "unknown link": ({"link": "x"}, True),
    "all inputs uniform": ({"inputs": "uniform"}, False),
}


@st.composite
def _simulations(draw: st.DrawFn) -> Call:
    sizes: list[Any] = [30, 3, 2]
    options: dict[str, Any] = {"random_seed": 1}
    is_refused = False
    labels: list[str] = []
    for kind in draw(st.lists(st.sampled_from(["size", "argument", "seed"]), max_size=2)):
        if kind == "size":
            labels.append(draw(st.sampled_from(sorted(_SIZES))))
            sizes[draw(st.integers(0, 2))], wrong = _SIZES[labels[-1]]
        elif kind == "seed":
            labels.append(draw(st.sampled_from(sorted(SEEDS))))
            make, wrong = SEEDS[labels[-1]]
            options["random_seed"] = make()
        else:
            labels.append(draw(st.sampled_from(sorted(_SIMULATED))))
            changed, wrong = _SIMULATED[labels[-1]]
            options |= changed
        is_refused |= wrong
    if len(labels) > 1:  # one may undo the other
        is_refused = False
    function = moment_init.simulate_mixture
    return Call(function, tuple(sizes), options, _check_data, is_refused, defects=tuple(labels))


def _check_data(data: moment_init.MixtureData) -> None:
    answers.check_finite("X", data.X)
    answers.check_finite("y", data.y)
    answers.check_probabilities("weights", data.weights)
    assert len(data.to_frame()) == len(data.y)


# --- matching ------------------------------------------------------------------------------------

_COLUMNS: dict[str, tuple[Any, bool]] = {
    "clean": (np.array([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]]), False),
    "float32": (np.array([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]], dtype=np.float32), False),
    "integers": (np.array([[1, 0], [0, 1], [3, 1]]), False),
    "list": ([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]], False),
    "frame": (pd.DataFrame([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]]), False),
    "huge": (1e200 * np.array([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]]), False),
    "tiny": (1e-200 * np.array([[1.0, 0.2], [0.1, 1.0], [0.0, 0.3]]), False),
    "twice the same": (np.ones((3, 2)), False),
    "a column of zeros": (np.array([[1.0, 0.0], [0.1, 0.0], [0.0, 0.0]]), True),
    "NaN": (np.array([[1.0, np.nan], [0.1, 1.0], [0.0, 0.3]]), True),
    "infinity": (np.array([[1.0, np.inf], [0.1, 1.0], [0.0, 0.3]]), True),
    "masked": (np.ma.masked_less(np.array([[1.0, 0.2], [0.1, 1.0], [-1.0, 0.3]]), 0.0), True),
    "complex": (np.ones((3, 2)) * (1 + 2j), True),
    "text": ([["a", "b"], ["c", "d"], ["e", "f"]], True),
    "flat": (np.ones(3), True),
    "deep": (np.ones((3, 2, 1)), True),
    "another shape": (np.ones((2, 2)), True),
    "empty": (np.empty((3, 0)), True),
    "no rows": (np.empty((0, 2)), True),
    "None": (None, True),
    "ragged": ([[1.0, 2.0], [3.0], [1.0, 1.0]], True),
}


@st.composite
def _matchings(draw: st.DrawFn) -> Call:
    first = draw(st.sampled_from(sorted(_COLUMNS)))
    second = draw(st.sampled_from(["clean", *sorted(_COLUMNS)]))
    is_angle = draw(st.booleans())
    function = moment_init.angles_in_degrees if is_angle else moment_init.match_components
    pair = (_COLUMNS[first][0], _COLUMNS[second][0])
    wrong = _COLUMNS[first][1] or _COLUMNS[second][1]
    if first == second == "another shape":
        wrong = False
    options = {"signed": draw(st.booleans())}
    check = _check_angles if is_angle else _check_order
    return Call(function, pair, options, check, wrong, defects=(first, second))


def _check_angles(angles: Any) -> None:
    answers.check_finite("angles", angles)
    assert len(angles) == 2


def _check_order(order: Any) -> None:
    assert sorted(order) == [0, 1]


# --- initial_values ------------------------------------------------------------------------------


@cache
def _estimates() -> dict[str, Any]:
    block = clean_block("poisson", 3, 200, 2, 2)
    fit = moment_init.fit_em(
        block.X, block.y, 2, family="poisson", init="random", n_starts=2, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    return {"fit": fit}


_STARTS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "chains": ({"chains": 2, "spread": 1.0}, False),
    "no chains": ({"chains": 0}, True),
    "half a chain": ({"chains": 1.5}, True),
    "true chains": ({"chains": True}, True),
    "negative spread": ({"spread": -1.0, "chains": 2}, True),
    "NaN spread": ({"spread": np.nan, "chains": 2}, True),
    "infinite spread": ({"spread": np.inf, "chains": 2}, True),
    "spread as text": ({"spread": "wide", "chains": 2}, True),
    "spread without chains": ({"spread": 1.0}, True),
    "huge spread": ({"spread": 1e8, "chains": 2}, False),
    "unknown parameter": ({"mapping": {"a": "nowhere"}}, True),
    "mapping a list": ({"mapping": ["bias"]}, True),
    "mapping to a number": ({"mapping": {"a": 3}}, True),
    "mapping to nothing": ({"mapping": {"bias": None}}, False),
    "function of no value": ({"mapping": {"a": lambda start: start.biases * np.nan}}, True),
    "model a word": ({"model": "model"}, True),
}


@st.composite
def _initial_values(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(sorted(_STARTS)))
    options, is_refused = _STARTS[name]
    options = dict(options)
    if draw(st.booleans()):
        label = draw(st.sampled_from(sorted(SEEDS)))
        make, wrong = SEEDS[label]
        options["random_seed"] = make()
        is_refused = is_refused or (wrong and "spread" in options)
    given = _estimates()["fit"]
    if draw(st.integers(0, 5)) == 0:
        given, is_refused = draw(st.sampled_from([None, 3.0, np.eye(2), "fit", {}])), True
    function = moment_init.initial_values
    return Call(function, (given,), options, _check_values, is_refused, defects=(name,))


def _check_values(values: Any) -> None:
    for start in values if isinstance(values, list) else [values]:
        for name, value in start.items():
            answers.check_finite(name, value)


# --- align_components, open_store ----------------------------------------------------------------


def _spoiled_tree(value: float) -> xr.DataTree:
    tree = small_tree().copy(deep=True)
    coefficient: Any = tree["posterior"]["coefficient"]
    coefficient.values[0, 1, 0, 0] = value
    return tree


_TREES: dict[str, tuple[Any, bool]] = {
    "clean": (small_tree, False),
    "NaN draw": (lambda: _spoiled_tree(np.nan), True),
    "infinite draw": (lambda: _spoiled_tree(np.inf), True),
    "huge draw": (lambda: _spoiled_tree(1e200), False),
    "no tree": (lambda: None, True),
    "a dict": (lambda: {"posterior": 1}, True),
    "empty tree": (xr.DataTree, True),
}

_REFERENCES: dict[str, tuple[Any, bool]] = {
    "none": (None, False),
    "biases": ({"bias": [0.0, 1.0]}, False),
    "NaN biases": ({"bias": [np.nan, 1.0]}, True),
    "three biases": ({"bias": [0.0, 1.0, 2.0]}, True),
    "biases as text": ({"bias": ["a", "b"]}, True),
    "complex biases": ({"bias": [1j, 0.0]}, True),
    "unknown name": ({"nowhere": [0.0, 1.0]}, True),
    "empty dict": ({}, True),
    "a number": (3.0, True),
    "a word": ("truth", True),
    "coefficients": ({"coefficient": np.eye(2)}, False),
    "flat coefficients": ({"coefficient": np.ones(3)}, True),
}

_ALIGN_OPTIONS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"dim": "nowhere"}, True),
    ({"dim": 3}, True),
    ({"var_names": "nowhere"}, True),
    ({"var_names": []}, True),
    ({"group": "nowhere"}, True),
    ({"group": None}, True),
]


@st.composite
def _alignments(draw: st.DrawFn) -> Call:
    tree = draw(st.sampled_from(["clean", "clean", *sorted(_TREES)]))
    reference = draw(st.sampled_from(["none", *sorted(_REFERENCES)]))
    options, wrong = draw(st.sampled_from(_ALIGN_OPTIONS))
    make, first = _TREES[tree]
    given, second = _REFERENCES[reference]
    if tree in ("NaN draw", "infinite draw") and reference == "biases":
        first = False  # its coefficients are not looked at
    return Call(
        moment_init.align_components,
        (make(), given),
        dict(options),
        _check_aligned,
        first or second or wrong,
        defects=(tree, reference, str(options)),
    )


def _check_aligned(tree: Any) -> None:
    answers.check_probabilities("weight", tree["posterior"]["weight"])
    assert "permutation" in tree["moment_init"]


_PATHS: list[Any] = [
    "",
    "no such folder",
    "é/\U0001f600",
    "a\0b",
    3,
    None,
    b"bytes",
    1.5,
    ["a"],
    Path(gettempdir()),
    __file__,
    np.array([1.0]),
]


@st.composite
def _stores(draw: st.DrawFn) -> Call:
    path = draw(st.sampled_from(_PATHS))
    options = draw(st.sampled_from([{}, {"warmup": False}, {"trim": False}]))
    return Call(moment_init.open_store, (path,), dict(options), None, True, defects=(repr(path),))


# --- read_formula --------------------------------------------------------------------------------

_FORMULAS: list[tuple[Any, bool]] = [
    ("y ~ a + b", False),
    ("y ~ a + größe", False),
    ("y ~ a | b", False),
    ("y ~ a + C(letter)", False),
    ("y ~ `x 1` + a", False),
    ("y ~ log(a)", False),
    ("y ~ 年齢", False),
    ("y ~ nowhere", True),
    ("~ a", True),
    ("y ~", True),
    ("y", True),
    ("", True),
    ("y ~ a ~ b", True),
    ("y ~ (a", True),
    ("y ~ a | b | a", True),
    ("y + a ~ b", False),
    ("y + nowhere ~ b", True),
    ("letter ~ a", False),
    ("\0", True),
    ("y ~ missing", True),
    ("y ~ infinite", False),  # read as it is; a fit refuses it
    ("y ~ day", True),
    ("y ~ imaginary", True),
    (3, True),
    (None, True),
    (b"y ~ a", True),
    (["y", "a"], True),
]


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"y": rng.integers(0, 2, 12), "a": rng.uniform(1.0, 2.0, 12)})
    frame["b"] = np.arange(12) % 5
    frame["größe"], frame["年齢"], frame["x 1"] = frame["a"] ** 2, frame["a"] ** 3, frame["a"] + 1
    frame["letter"] = ["é", "b"] * 6
    frame["missing"] = [np.nan] + [1.0] * 11
    frame["infinite"] = [np.inf, *range(11)]
    frame["day"] = pd.date_range("2020-01-01", periods=12)
    frame["imaginary"] = np.ones(12) * 1j
    return frame


_FRAMES: dict[str, tuple[Any, bool]] = {
    "frame": (_frame, False),
    "nullable": (lambda: _frame().convert_dtypes(), False),
    "without rows": (lambda: _frame().iloc[:0], False),
    "one row": (lambda: _frame().iloc[1:2], False),
    "duplicate columns": (lambda: pd.concat([_frame(), _frame()[["a"]]], axis=1), False),
    "array": (lambda: np.ones((3, 2)), True),
    "None": (lambda: None, True),
    "dict": (lambda: {"y": [1, 0], "a": [1.0, 2.0]}, True),
    "series": (lambda: pd.Series([1.0, 2.0], name="y"), True),
}


@st.composite
def _readings(draw: st.DrawFn) -> Call:
    formula, first = draw(st.sampled_from(_FORMULAS))
    name = draw(st.sampled_from(["frame", "frame", *sorted(_FRAMES)]))
    make, second = _FRAMES[name]
    options, third = draw(
        st.sampled_from(
            [
                ({}, False),
                ({"groups": "letter"}, False),
                ({"groups": "nowhere"}, True),
                ({"offset": "nowhere"}, True),
                ({"offset": "a"}, False),
                ({"sample_weight": "letter"}, True),
                ({"n_trials": "missing"}, name != "one row"),
            ]
        )
    )
    return Call(
        _read_and_encode,
        (formula, make()),
        {**options, "scope": {"log": np.log}},
        None,
        (first or third or second) and name != "without rows",
        defects=(repr(formula), name, str(options)),
    )


def _read_and_encode(formula: Any, frame: Any, **options: Any) -> None:
    design = read_formula(formula, frame, **options)
    encoded = design.encode_features(frame)
    assert encoded.shape == (len(frame), len(design.feature_names))
    if "infinite" not in formula:
        answers.check_finite("features", encoded)
    assert len(design.feature_names) > 0


SMALL_CALLS: dict[str, st.SearchStrategy[Call]] = {
    "simulate_mixture": _simulations(),
    "match_components": _matchings(),
    "initial_values": _initial_values(),
    "align_components": _alignments(),
    "open_store": _stores(),
    "read_formula": _readings(),
}
"""Calls by the name of what is called."""
