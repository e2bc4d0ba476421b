"""Arguments beside X and y that are wrong, or right and seldom seen.

Each entry is a function of the number of rows that gives the keywords to change, and whether only
an error is right.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tests.hostile.blocks import FAMILIES, Block, blocks, n_rows

__all__ = [
    "COMPONENT_NUMBERS",
    "DATA_ARGUMENTS",
    "FIT_ARGUMENTS",
    "SEARCH_ARGUMENTS",
    "SEEDS",
    "Entry",
    "argued_blocks",
]

Entry = tuple[Callable[[int], dict[str, Any]], bool]


def _given(name: str, make: Callable[[int], Any], *, is_refused: bool) -> Entry:
    return lambda n_obs: {name: make(n_obs)}, is_refused


def _refused(name: str, make: Callable[[int], Any]) -> Entry:
    return _given(name, make, is_refused=True)


def _open(name: str, make: Callable[[int], Any]) -> Entry:
    return _given(name, make, is_refused=False)


COMPONENT_NUMBERS: dict[str, tuple[Any, bool]] = {
    "0 components": (0, True),
    "-1 components": (-1, True),
    "1.5 components": (1.5, True),
    "2.0 components": (2.0, True),
    "True components": (True, True),
    "NumPy's true components": (np.True_, True),
    "no number of components": (None, True),
    "'two' components": ("two", True),
    "NaN components": (np.nan, True),
    "an array of components": (np.array([2]), True),
    "more components than rows": (10_000, True),
    "2**70 components": (2**70, True),
    "numpy components": (np.int64(2), False),
    "small numpy components": (np.uint8(1), False),
    "many components": (9, False),
}

SEEDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "int": (lambda: 5, False),
    "zero": (lambda: 0, False),
    "large int": (lambda: 2**100, False),
    "numpy int": (lambda: np.int64(5), False),
    "small numpy int": (lambda: np.uint8(5), False),
    "sequence": (lambda: [1, 2, 3], False),
    "tuple": (lambda: (1, 2), False),
    "array": (lambda: np.arange(3), False),
    "generator": (lambda: np.random.default_rng(1), False),
    "other generator": (lambda: np.random.Generator(np.random.MT19937(1)), False),
    "seed sequence": (lambda: np.random.SeedSequence(3), False),
    "None": (lambda: None, False),
    "negative": (lambda: -1, True),
    "float": (lambda: 1.5, True),
    "whole float": (lambda: 1.0, True),
    "text": (lambda: "seed", True),
    "legacy generator": (lambda: np.random.RandomState(1), True),
    "negative in a sequence": (lambda: [1, -2], True),
    "NaN": (lambda: float("nan"), True),
    "dict": (lambda: {"seed": 1}, True),
    "bytes": (lambda: b"12", True),
}


def _halves(n_obs: int) -> Any:
    return np.arange(n_obs) % 2


def _one_bad(value: float) -> Callable[[int], Any]:
    return lambda n_obs: np.r_[np.ones(n_obs - 1), value]


DATA_ARGUMENTS: dict[str, Entry] = {
    "negative weight": _refused("sample_weight", _one_bad(-1.0)),
    "NaN weight": _refused("sample_weight", _one_bad(np.nan)),
    "infinite weight": _refused("sample_weight", _one_bad(np.inf)),
    "weights of zero": _refused("sample_weight", np.zeros),
    "short weights": _refused("sample_weight", lambda n: np.ones(n - 1)),
    "weights of two columns": _refused("sample_weight", lambda n: np.ones((n, 2))),
    "letters as weights": _refused("sample_weight", lambda n: ["w"] * n),
    "complex weights": _refused("sample_weight", lambda n: np.ones(n, complex)),
    "one weight": _open("sample_weight", lambda n: np.eye(n)[0]),
    "some weights zero": _open("sample_weight", lambda n: np.arange(n) % 2),
    "tiny weights": _open("sample_weight", lambda n: np.full(n, 1e-8)),
    "huge weights": _open("sample_weight", lambda n: np.full(n, 1e8)),
    "uneven weights": _open("sample_weight", lambda n: np.logspace(-8, 8, n)),
    "nullable weights": _open("sample_weight", lambda n: pd.Series(np.ones(n), dtype="Float64")),
    "weights as booleans": _open("sample_weight", lambda n: np.arange(n) > 3),
    "NaN offset": _refused("offset", _one_bad(np.nan)),
    "short offset": _refused("offset", lambda n: np.zeros(n - 1)),
    "offset a number": _refused("offset", lambda n: 0.5),
    "huge offset": _open("offset", lambda n: np.linspace(-1e8, 1e8, n)),
    "constant offset": _open("offset", lambda n: np.full(n, 3)),
    "zero trials": _refused("n_trials", _one_bad(0.0)),
    "negative trials": _refused("n_trials", lambda n: -1),
    "half a trial": _refused("n_trials", lambda n: 1.5),
    "trials as text": _refused("n_trials", lambda n: "ten"),
    "short trials": _refused("n_trials", lambda n: np.full(n - 1, 10)),
    "missing group": _refused("groups", lambda n: [*range(n - 1), None]),
    "NaN group": _refused("groups", _one_bad(np.nan)),
    "missing date": _refused("groups", lambda n: pd.Series([pd.NaT] * n)),
    "short groups": _refused("groups", lambda n: np.arange(n - 1)),
    "groups in two columns": _refused("groups", lambda n: np.zeros((n, 2))),
    "group a word": _refused("groups", lambda n: "school"),
    "one group": _open("groups", np.zeros),
    "a group a row": _open("groups", np.arange),
    "groups of all kinds": _open("groups", lambda n: [(1, "é", 2.5, "a")[k % 4] for k in range(n)]),
    "groups by name": _open("groups", lambda n: pd.Categorical(np.array(["ä", "ö"])[_halves(n)])),
    "unknown family": _refused("family", lambda n: "student"),
    "no family": _refused("family", lambda n: None),
    "family a number": _refused("family", lambda n: 3),
    "family in capitals": _refused("family", lambda n: "POISSON"),
    "unknown link": _refused("link", lambda n: "cauchit"),
    "link a number": _refused("link", lambda n: 1),
}

FIT_ARGUMENTS: dict[str, Entry] = {
    "NaN in gating": _refused("gating", _one_bad(np.nan)),
    "short gating": _refused("gating", lambda n: np.arange(n - 1.0)),
    "gating of letters": _refused("gating", lambda n: ["a"] * n),
    "deep gating": _refused("gating", lambda n: np.ones((n, 1, 1))),
    "constant gating": _refused("gating", np.ones),
    "gating": _open("gating", lambda n: np.linspace(-1.0, 1.0, n)),
    "huge gating": _open("gating", lambda n: np.c_[np.arange(n) % 3, np.linspace(0.0, 1e8, n)]),
    "gating that separates": _open("gating", lambda n: np.arange(n) > n // 2),
    "unknown start": _refused("init", lambda n: "kmeans"),
    "start of NaN": _refused("init", lambda n: np.full((n, 2), np.nan)),
    "start a number": _refused("init", lambda n: 1.0),
    "start None": _refused("init", lambda n: None),
}

SEARCH_ARGUMENTS: dict[str, Entry] = {
    "random starts": _open("init", lambda n: "random"),
    "no iterations": _open("max_iter", lambda n: 0),
    "gaussian gate alone": _refused("gate", lambda n: "gaussian"),
    "unknown gate": _refused("gate", lambda n: "hard"),
    "unknown column shared": _refused("shared", lambda n: "nowhere"),
    "column out of range shared": _refused("shared", lambda n: 17),
    "shared intercept": _open("shared", lambda n: "bias"),
    "weights held that do not sum to one": _refused("fixed_weights", lambda n: [0.5, 0.7]),
    "weights held as text": _refused("fixed_weights", lambda n: ["a", "b"]),
    "ragged weights held": _refused("fixed_weights", lambda n: [[0.5], [0.2, 0.3]]),
    "directions held of NaN": _refused("fixed_directions", lambda n: np.full((3, 2), np.nan)),
    "directions held as text": _refused("fixed_directions", lambda n: "x"),
    "ratio of zero": _refused("min_dispersion_ratio", lambda n: 0.0),
    "ratio of NaN": _refused("min_dispersion_ratio", lambda n: np.nan),
    "half an iteration": _refused("max_iter", lambda n: 1.5),
    "negative iterations": _refused("max_iter", lambda n: -1),
    "iterations as text": _refused("max_iter", lambda n: "ten"),
    "tolerance of NaN": _refused("tolerance", lambda n: np.nan),
    "negative tolerance": _refused("tolerance", lambda n: -1.0),
    "no starts": _refused("n_starts", lambda n: 0),
    "half a start": _refused("n_starts", lambda n: 2.5),
    "unknown random start": _refused("random_start", lambda n: "dice"),
    "no jobs": _refused("n_jobs", lambda n: 0),
}


@st.composite
def argued_blocks(
    draw: st.DrawFn,
    *,
    entries: Mapping[str, Entry],
    families: tuple[str, ...] = FAMILIES,
    answered: tuple[str, ...] = (),
) -> Block:
    """Blocks whose other arguments have a defect too, more often than not."""
    block = draw(blocks(families, answered))
    kind = draw(st.sampled_from(["plain", "plain", "entry", "number", "seed"]))
    seed: Callable[[], Any] = lambda: 1  # noqa: E731
    seed_is_refused = False
    label: str | None = None
    if kind == "number":
        label = draw(st.sampled_from(sorted(COMPONENT_NUMBERS)))
        number, is_refused = COMPONENT_NUMBERS[label]
        block = replace(block, n_components=number, is_refused=block.is_refused or is_refused)
    elif kind == "seed":
        label = draw(st.sampled_from(sorted(SEEDS)))
        seed, seed_is_refused = SEEDS[label]
    elif kind == "entry":
        label = draw(st.sampled_from(sorted(entries)))
        make, is_refused = entries[label]
        options = {**(block.options or {}), **make(n_rows(block))}
        block = replace(block, options=options, is_refused=block.is_refused or is_refused)
    labels = block.defects if label is None else (*block.defects, label)
    return replace(
        block,
        defects=labels,
        is_refused=block.is_refused or seed_is_refused,
        options={**(block.options or {}), "random_seed": seed()},
    )
