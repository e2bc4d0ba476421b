"""PyTensor's flags, changed for a while.

PyTensor keeps its flags for the whole process and restores them without a lock: of two threads that
change one at once, the last may restore what the first had set. Whoever changes a flag in this
package does it here, one thread at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytensor.configdefaults import config

__all__ = ["changed_flags"]

_lock = threading.RLock()


@contextmanager
def changed_flags(**flags: Any) -> Iterator[None]:
    """Change flags of PyTensor while the context lasts.

    Parameters
    ----------
    **flags
        Flags by name. ``cxx=""`` evaluates small graphs without a C compiler: in a process that has
        not compiled anything, its start alone would take seconds.

    Yields
    ------
    None
        Nothing.
    """
    with _lock, config.change_flags(**flags):
        yield
