"""Small data blocks of every family, and what can be wrong with them.

A defect is a function that changes a block. Those in `REFUSED` leave nothing that could be fitted:
an answer is then a failure. Those in `DEGENERATE` may be answered or refused. Those in `STORED`
change how the values are stored, not the values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import sparse

from moment_init import simulate_mixture

__all__ = [
    "DEGENERATE",
    "FAMILIES",
    "REFUSED",
    "SEVERAL_RESPONSES",
    "STORED",
    "Block",
    "blocks",
    "clean_block",
    "n_rows",
]

FAMILIES = ("bernoulli", "binomial", "poisson", "negative_binomial", "gaussian", "gamma")

COUNTS = ("poisson", "negative_binomial")


@dataclass(frozen=True)
class Block:
    """Inputs and response, and the names of what is wrong with them."""

    X: Any
    y: Any
    family: str
    n_components: int = 2
    options: Mapping[str, Any] | None = None
    defects: tuple[str, ...] = ()
    is_refused: bool = False

    @property
    def keywords(self) -> dict[str, Any]:
        """Family and the rest of the data block."""
        return {"family": self.family, **(self.options or {})}


def n_rows(block: Block) -> int:
    """How many rows a response has, one at least; some number if it has none to count."""
    y = block.y
    has_rows = y.ndim > 0 if isinstance(y, np.ndarray) else isinstance(y, pd.Series | list | tuple)
    return max(len(y), 1) if has_rows else 20


Defect = Callable[[Block, np.random.Generator], Block]


def clean_block(family: str, seed: int, n_obs: int, n_features: int, n_components: int) -> Block:
    """Rows of a mixture, nothing wrong with them but that they are few."""
    data = simulate_mixture(n_obs, n_features, 2, family=family, random_seed=seed)
    y = np.array(data.y)
    y[:2] = [0.5, 1.5] if family in ("gaussian", "gamma") else [0, 1]  # never constant
    options = {} if data.n_trials is None else {"n_trials": data.n_trials}
    return Block(np.array(data.X), y, family, n_components, options)


# --- values that nothing can be made of ----------------------------------------------------------


def _with_entry(values: Any, value: Any, rng: np.random.Generator, dtype: Any = None) -> Any:
    changed = np.array(values, dtype=dtype or np.float64)
    changed.flat[rng.integers(changed.size)] = value
    return changed


def _bad_entry(argument: str, value: Any, dtype: Any = None) -> Defect:
    def put(block: Block, rng: np.random.Generator) -> Block:
        old = getattr(block, argument)
        return replace(block, **{argument: _with_entry(old, value, rng, dtype)})

    return put


def _made(argument: str, make: Callable[[Any], Any]) -> Defect:
    def change(block: Block, rng: np.random.Generator) -> Block:
        return replace(block, **{argument: make(np.asarray(getattr(block, argument)))})

    return change


def _masked(values: Any) -> Any:
    mask = np.zeros(values.shape, dtype=bool)
    mask.flat[-1] = True
    return np.ma.array(values, mask=mask)


def _missing_frame(values: Any) -> pd.DataFrame:
    frame = pd.DataFrame(values, columns=[f"c{k}" for k in range(values.shape[1])]).convert_dtypes()
    frame.iloc[0, 0] = pd.NA
    return frame


def _missing_series(values: Any) -> Any:
    series = pd.Series(values).convert_dtypes()
    series.iloc[-1] = pd.NA
    return series


def _impossible(block: Block, rng: np.random.Generator) -> Block:
    """A response outside the family's range; a gaussian one has no such value but infinity."""
    worst = {"bernoulli": 2.0, "binomial": 1e6, "gaussian": np.inf, "gamma": 0.0}
    return _bad_entry("y", worst.get(block.family, -1.0))(block, rng)


def _fraction(block: Block, rng: np.random.Generator) -> Block:
    """Half a count; a gaussian or gamma response has none but a missing one."""
    value = np.nan if block.family in ("gaussian", "gamma") else 0.5
    return _bad_entry("y", value)(block, rng)


def _dates(values: Any) -> Any:
    days = np.arange(values.size).reshape(values.shape)
    return np.datetime64("2020-01-01") + days


REFUSED: dict[str, Defect] = {
    "NaN in X": _bad_entry("X", np.nan),
    "infinity in X": _bad_entry("X", np.inf),
    "minus infinity in X": _bad_entry("X", -np.inf),
    "NaN in float32 X": _bad_entry("X", np.nan, np.float32),
    "None in X": _bad_entry("X", None, object),
    "text in X": _bad_entry("X", "seven", object),
    "complex in object X": _bad_entry("X", 1.0 + 2.0j, object),
    "NaN in y": _bad_entry("y", np.nan),
    "infinity in y": _bad_entry("y", np.inf),
    "None in y": _bad_entry("y", None, object),
    "text in y": _bad_entry("y", "seven", object),
    "impossible y": _impossible,
    "fraction in y": _fraction,
    "masked X": _made("X", _masked),
    "masked y": _made("y", _masked),
    "complex X": _made("X", lambda values: values + 1j),
    "complex y": _made("y", lambda values: values + 1j),
    "dates in X": _made("X", _dates),
    "dates in y": _made("y", _dates),
    "durations in X": _made("X", lambda values: _dates(values) - np.datetime64("2020-01-01")),
    "letters in X": _made("X", lambda values: np.full(values.shape, "é")),
    "bytes in X": _made("X", lambda values: np.full(values.shape, b"\xff")),
    "sparse X": _made("X", lambda values: sparse.csr_array(values)),
    "sparse matrix X": _made("X", lambda values: sparse.coo_matrix(values)),
    "sparse y": _made("y", lambda values: sparse.csr_array(values[:, None])),
    "sparse columns": _made("X", lambda values: pd.DataFrame(values).astype(pd.SparseDtype(float))),
    "missing in nullable X": _made("X", _missing_frame),
    "missing in nullable y": _made("y", _missing_series),
    "dates in a column": _made("X", lambda values: pd.DataFrame(_dates(values))),
    "duplicate names": _made(
        "X", lambda v: pd.DataFrame(np.c_[v, v[:, :1] ** 2], columns=["ä"] * (v.shape[1] + 1))
    ),
    "names alike as text": _made(
        "X", lambda v: pd.DataFrame(np.c_[v[:, 0], v[:, 0] ** 2], columns=[1, "1"])
    ),
    "short y": _made("y", lambda values: values[:-1]),
    "long y": _made("y", lambda values: np.r_[values, values[:1]]),
    "y of two columns": _made("y", lambda values: np.c_[values, values]),
    "y a number": _made("y", lambda values: values[0]),
    "y None": _made("y", lambda values: None),
    "flat X": _made("X", lambda values: values[:, 0]),
    "deep X": _made("X", lambda values: values[:, :, None]),
    "X a number": _made("X", lambda values: 3.0),
    "X None": _made("X", lambda values: None),
    "X a dict": _made("X", lambda values: {"a": values}),
    "ragged X": _made("X", lambda values: [[1.0, 2.0], [3.0]]),
    "ragged y": _made("y", lambda values: [[1.0, 2.0], [3.0]]),
    "X without columns": _made("X", lambda values: values[:, :0]),
    "X without rows": _made("X", lambda values: values[:0]),
    "records": _made("X", lambda values: np.zeros(len(values), dtype=[("a", float), ("b", int)])),
    "nothing": lambda block, rng: replace(block, X=np.empty((0, 2)), y=np.empty(0)),
    "constant y": _made("y", lambda values: np.ones(len(values))),
}


SEVERAL_RESPONSES = ("y of two columns",)
"""What is answered where several responses are."""


# --- values that may be too little ---------------------------------------------------------------


def _rescaled(size: float) -> Defect:
    def change(block: Block, rng: np.random.Generator) -> Block:
        X = np.array(block.X, dtype=np.float64)
        X[:, rng.integers(X.shape[1])] *= size
        return replace(block, X=X)

    return change


def _rescaled_response(size: float) -> Defect:
    """A gaussian or gamma response in other units; counts have no units."""

    def change(block: Block, rng: np.random.Generator) -> Block:
        return replace(block, y=block.y * size) if block.family in ("gaussian", "gamma") else block

    return change


def _separated(block: Block, rng: np.random.Generator) -> Block:
    """The first column decides a binary response, the size of any other."""
    first = block.X[:, 0]
    y = np.where(first > np.median(first), block.y.max(), block.y.min())
    y[np.argmax(first)], y[np.argmin(first)] = block.y.max(), block.y.min()
    return replace(block, y=y)


def _few_rows(number: int) -> Defect:
    def change(block: Block, rng: np.random.Generator) -> Block:
        trials = (block.options or {}).get("n_trials")
        options = block.options if trials is None else {"n_trials": trials[:number]}
        return replace(block, X=block.X[:number], y=block.y[:number], options=options)

    return change


def _outlier(block: Block, rng: np.random.Generator) -> Block:
    X = _with_entry(block.X, 1e8, rng)
    return replace(block, X=X)


def _response_outlier(block: Block, rng: np.random.Generator) -> Block:
    if block.family in ("bernoulli", "binomial"):
        return block
    return _bad_entry("y", 1e8)(block, rng)


def _repeated_rows(block: Block, rng: np.random.Generator) -> Block:
    rows = np.arange(len(block.y)) % 5
    return replace(block, X=block.X[rows], y=block.y[rows])


def _more_columns(block: Block, rng: np.random.Generator) -> Block:
    return replace(block, X=rng.standard_normal((len(block.X), len(block.X) + 3)))


DEGENERATE: dict[str, Defect] = {
    "a constant column": _made("X", lambda v: np.c_[v, np.full(len(v), 3.0)]),
    "a column of zeros": _made("X", lambda v: np.c_[v, np.zeros(len(v))]),
    "a column twice": _made("X", lambda v: np.c_[v, v[:, 0]]),
    "a column nearly twice": _made(
        "X", lambda v: np.c_[v, v[:, 0] + 1e-7 * np.arange(len(v)) ** 2]
    ),
    "a column almost constant": _made("X", lambda v: np.c_[v, np.eye(len(v))[:, 3]]),
    "more columns than rows": _more_columns,
    "a tiny column": _rescaled(1e-8),
    "a huge column": _rescaled(1e8),
    "an immense column": _rescaled(1e200),
    "a column among the largest doubles": _rescaled(1e307),
    "a vanishing column": _rescaled(1e-200),
    "a subnormal column": _rescaled(1e-310),
    "a tiny response": _rescaled_response(1e-8),
    "a huge response": _rescaled_response(1e8),
    "an immense response": _rescaled_response(1e200),
    "a shifted column": _made("X", lambda v: v + 1e6),
    "perfect separation": _separated,
    "one row": _few_rows(1),
    "two rows": _few_rows(2),
    "seven rows": _few_rows(7),
    "an outlier in X": _outlier,
    "an outlier in y": _response_outlier,
    "repeated rows": _repeated_rows,
    "binary columns": _made("X", lambda v: (v > 0).astype(np.float64)),
    "whole columns": _made("X", lambda v: np.round(3 * v)),
    "one distinct row": _made("X", lambda v: np.tile(v[:1], (len(v), 1))),
}


# --- the same values, stored otherwise -----------------------------------------------------------


def _strided(values: Any) -> Any:
    wide = np.zeros((2 * values.shape[0], *(2 * size for size in values.shape[1:])))
    view = wide[tuple(slice(1, None, 2) for _ in values.shape)]
    view[...] = values
    return view


def _read_only(values: Any) -> Any:
    copy = np.array(values)
    copy.flags.writeable = False
    return copy


def _framed(values: Any, *, is_nullable: bool = False) -> pd.DataFrame:
    names = ["größe", "x 1", "年齢", "`tick`", "a|b"] + [f"c{k}" for k in range(values.shape[1])]
    frame = pd.DataFrame(values, columns=names[: values.shape[1]])
    return frame.astype("Float64") if is_nullable else frame


def _multi_indexed(values: Any) -> pd.DataFrame:
    names = pd.MultiIndex.from_product([["a"], range(values.shape[1])])
    return pd.DataFrame(values, columns=names)


STORED: dict[str, Defect] = {
    "list": lambda block, rng: replace(block, X=block.X.tolist(), y=block.y.tolist()),
    "Fortran order": _made("X", np.asfortranarray),
    "strided": _made("X", _strided),
    "strided y": _made("y", _strided),
    "backwards": _made("X", lambda v: np.array(v[::-1, ::-1])[::-1, ::-1]),
    "read-only": lambda block, rng: replace(block, X=_read_only(block.X), y=_read_only(block.y)),
    "big-endian": _made("X", lambda v: v.astype(">f8")),
    "big-endian y": _made("y", lambda v: v.astype(">f8")),
    "object": _made("X", lambda v: v.astype(object)),
    "object y": _made("y", lambda v: v.astype(object)),
    "nothing masked": _made("X", np.ma.array),
    "long double": _made("X", lambda v: v.astype(np.longdouble)),
    "matrix": _made("X", lambda v: np.array(v).view(np.matrix)),
    "frame": _made("X", _framed),
    "nullable frame": _made("X", lambda v: _framed(v, is_nullable=True)),
    "column multi-index": _made("X", _multi_indexed),
    "series": _made("y", lambda v: pd.Series(v, index=np.arange(len(v))[::-1], name="é")),
    "nullable series": _made("y", lambda v: pd.Series(v).astype("Float64")),
    "tuple": _made("y", tuple),
}


# --- strategies ----------------------------------------------------------------------------------

KINDS = ("degenerate", "stored", "degenerate", "refused", "stored", "both")
"""What is wrong; twice what can be answered."""


@st.composite
def blocks(
    draw: st.DrawFn, families: tuple[str, ...] = FAMILIES, answered: tuple[str, ...] = ()
) -> Block:
    """Blocks with one or two defects; those of `answered` need not be refused here."""
    # A single integer: of several, hypothesis would try many examples with equal ones.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = rng.integers(24, 41), rng.integers(1, 4), rng.integers(1, 3)
    family = draw(st.sampled_from(families))
    block = clean_block(family, int(rng.integers(2**32)), *map(int, sizes))
    kinds = draw(st.sampled_from(KINDS))
    names: list[str] = []
    is_refused = False
    if kinds in ("degenerate", "both"):
        names.append(draw(st.sampled_from(sorted(DEGENERATE))))
        block = DEGENERATE[names[-1]](block, rng)
    if kinds in ("refused", "both"):
        names.append(draw(st.sampled_from(sorted(REFUSED))))
        block, is_refused = REFUSED[names[-1]](block, rng), names[-1] not in answered
    elif kinds == "stored" or draw(st.booleans()):
        names.append(draw(st.sampled_from(sorted(STORED))))
        block = STORED[names[-1]](block, rng)
    return replace(block, defects=tuple(names), is_refused=is_refused)
