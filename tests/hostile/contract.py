"""What holds after every call: an answer or a clear error, and nothing else has changed."""

import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

__all__ = ["Call", "check_call"]

ARGUMENT = r"`\w+"
"""How messages of the library name an argument."""

SKLEARN_CHECKS = "sklearn/utils/"
"""scikit-learn's own checks of arrays, whose messages its estimators share."""

PYTENSOR_SETTINGS = ("floatX", "mode", "linker", "optimizer", "cxx", "warn_float64", "on_opt_error")

LONGEST_CALL = 60.0
"""Seconds of the processor after which a call hangs; the slowest takes two."""


@dataclass(frozen=True)
class Call:
    """A function and what it is called with.

    `is_refused` says that only an error is right, `check` what an answer must be. `defects` is for
    the reader of a failure.
    """

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    check: Any = None
    is_refused: bool = False
    defects: tuple[str, ...] = ()


def check_call(call: Call) -> str:
    """Call, and see that all that was promised holds; whether it was answered or refused."""
    before = deepcopy((call.arguments, call.options))
    state = _global_state()
    result, error = None, None
    with warnings.catch_warnings(record=True) as told, _limited():
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        try:
            result = call.function(*call.arguments, **call.options)
            if call.check is not None:
                call.check(result)
        except (ValueError, TypeError, OSError) as caught:
            error = caught
        assert warnings.filters == filters, "the filters of warnings changed"
    _check_global_state(state)
    assert same((call.arguments, call.options), before), "an argument changed"
    wrong = [warning for warning in told if not issubclass(warning.category, UserWarning)]
    assert not wrong, str(wrong[0])
    if error is None:
        assert not call.is_refused, f"an answer to what has none: {result!r}"
        return "answered"
    _check_error(error)
    return "refused"


def _check_error(error: Exception) -> None:
    """An error must be one that was meant: of the library, and about an argument."""
    if isinstance(error, np.linalg.LinAlgError | UnicodeError):
        raise error
    if re.search(ARGUMENT, str(error)) is None and not _is_by_sklearn(error):
        raise error


def _is_by_sklearn(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(SKLEARN_CHECKS in Path(frame.filename).as_posix() for frame in frames)


def same(first: Any, second: Any) -> bool:
    """Whether two arguments are the same, type, storage and values."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.random.Generator):
        return True  # whoever gives one wants it to go on
    if isinstance(first, pd.DataFrame | pd.Series):
        return first.equals(second) and list(first.index) == list(second.index)
    if isinstance(first, np.ndarray):
        return _same_arrays(first, second)
    if sparse.issparse(first):
        return bool(first.shape == second.shape and (first != second).nnz == 0)
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, int | float | str | None):
        return repr(first) == repr(second)
    return True  # results of this library, which are frozen


def _same_arrays(first: Any, second: Any) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.flags.writeable != second.flags.writeable and first.dtype != object:
        # deepcopy makes read-only arrays writeable; one that was writeable must still be
        return not first.flags.writeable
    if first.dtype == object:
        return repr(first.tolist()) == repr(second.tolist())
    return bool(first.tobytes() == second.tobytes())


def _global_state() -> dict[str, Any]:
    found: dict[str, Any] = {
        "generator": _generator_state(),
        "floating point": np.geterr(),
        "printing": np.get_printoptions(),
        "filters": list(warnings.filters),
        "recursion": sys.getrecursionlimit(),
    }
    if "pytensor" in sys.modules:
        from pytensor.configdefaults import config

        # Not all of it: some values are looked for when they are read, with a warning.
        found["PyTensor"] = [getattr(config, name) for name in PYTENSOR_SETTINGS]
    if "sklearn" in sys.modules:
        from sklearn import get_config

        found["scikit-learn"] = get_config()
    return found


def _generator_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 (that it is left alone)
    return name, np.asarray(keys).tobytes(), *rest


def _check_global_state(before: dict[str, Any]) -> None:
    after = _global_state()
    for name, value in before.items():
        assert repr(after[name]) == repr(value), f"global state changed: {name}"


@contextmanager
def _limited() -> Iterator[None]:
    """Stop a call that hangs, by the processor's time: others may use the machine."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutErrorOfTest(f"longer than {LONGEST_CALL} s")

    earlier = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_CALL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, earlier)


class TimeoutErrorOfTest(BaseException):
    """Not an Exception, which a search that takes failures for granted would catch."""
