"""Warnings that are given, kept back or filtered without a trace in other threads.

Python has one list of warning filters for all threads. A thread that changes it for a while and
puts it back can leave the change of another one behind for good.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock

__all__ = ["changed_filters", "notify", "quiet_notices"]

_IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)

_FILTERS_LOCK = RLock()


def notify(message: str, category: type[Warning], *, stacklevel: int) -> None:
    """Give a warning of this library, unless the caller keeps it back.

    Parameters
    ----------
    message : str
        What it says.
    category : type
        Class of the warning.
    stacklevel : int
        As for `warnings.warn`, counted from the caller.
    """
    if not _IS_QUIET.get():
        warnings.warn(message, category, stacklevel=stacklevel + 1)


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
