"""Warnings that are given, kept back or filtered without a trace in other threads.

Python has one list of warning filters for all threads. A thread that changes it for a while and
puts it back can leave the change of another one behind for good.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock

__all__ = ["changed_filters", "notify", "quiet_notices"]

_IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)

_FILTERS_LOCK = RLock()

_PACKAGES = ("moment_init", "moment_init.models", "sklearn")


def notify(message: str, category: type[Warning]) -> None:
    """Give a warning of this library at the line that called it, unless the caller keeps it back.

    However many functions lie between: decorators for formulas and for several responses come and
    go. Scikit-learn's own lie between, too, where a method of an estimator was called.

    Parameters
    ----------
    message : str
        What it says.
    category : type
        Class of the warning.
    """
    if not _IS_QUIET.get():
        warnings.warn(message, category, skip_file_prefixes=_own_folders())


def _own_folders() -> tuple[str, ...]:
    modules = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    return tuple(f"{folder}{os.sep}" for module in modules for folder in module.__path__)


@contextmanager
def quiet_notices() -> Iterator[None]:
    """Keep back what `notify` gives, in this thread: for callers that say it in their own words.

    Yields
    ------
    None
        Nothing; the notices are given again afterwards.
    """
    token = _IS_QUIET.set(True)
    try:
        yield
    finally:
        _IS_QUIET.reset(token)


@contextmanager
def changed_filters() -> Iterator[None]:
    """Change the filters for warnings of other libraries, one thread at a time.

    Yields
    ------
    None
        Nothing; the filters are put back afterwards.
    """
    with _FILTERS_LOCK, warnings.catch_warnings():
        yield
