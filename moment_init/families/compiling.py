"""Functions compiled by numba, with a cache on disk that follows every function they inline.

`scalar` marks a plain Python function of numbers that compiled code may call; it stays a plain
function, which tests and coverage see. `Compiled` wraps a loop that is compiled when it is first
called: numba is imported then, not before.

Numba keys its own cache by the file of the compiled function alone, so that a change of a scalar
function in another file would leave stale machine code behind. Here the key is a digest of the byte
code and the constants of all functions that are reached from the compiled one.
"""

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np

# functions that are marked, but not yet known to numba, and whether they are always inlined
_MARKED: list[tuple[Callable[..., Any], bool]] = []
_LOCK = threading.Lock()
_CONSTANTS = (bool, int, float, complex, str, bytes, np.generic, type(None))

NUMBA_OPTIONS: dict[str, Any] = {
    "nogil": True,  # blocks of rows run in threads
    "error_model": "numpy",  # a division by zero gives infinity, without a branch
}
"""Options of every compiled loop. There is no `fastmath`: the same rows give the same bits."""


def scalar[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled code call a function, which stays a plain Python function."""
    _MARKED.append((function, True))
    return function


def loop[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled code call a loop over rows, which stays a plain Python function."""
    _MARKED.append((function, False))
    return function


def register_scalars() -> None:
    """Tell numba about the functions that `scalar` has marked since the last call."""
    from numba.extending import register_jitable

    with _LOCK:
        while _MARKED:
            function, is_inlined = _MARKED.pop()
            # calls would keep the compiler from processing several rows at once
            register_jitable(error_model="numpy", forceinline=is_inlined)(function)


def digest_of(function: Callable[..., Any]) -> str:
    """Digest of the code and constants of a function and of all functions that it calls."""
    digest = hashlib.sha256(repr(sorted(NUMBA_OPTIONS.items())).encode())
    for part in _parts_of(function, set()):
        digest.update(part + b"\0")
    return digest.hexdigest()[:20]


def _parts_of(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield what the machine code of a value depends on, as bytes."""
    if isinstance(value, _CONSTANTS):
        yield repr(value).encode()
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts_of(item, seen)
    elif isinstance(value, frozenset):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _parts_of(value.co_consts, seen)
        yield " ".join(value.co_names + value.co_varnames).encode()
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        yield str(value.__module__).encode()  # numba imports it when it reads a file
        yield from _parts_of((value.__code__, value.__defaults__), seen)
        for name in sorted(_names_in(value.__code__)):
            if name in value.__globals__:
                yield from _parts_of(value.__globals__[name], seen)
        for cell in value.__closure__ or ():
            yield from _parts_of(cell.cell_contents, seen)
    else:  # modules, and functions that numba knows
        yield getattr(value, "__name__", type(value).__name__).encode()


def _names_in(code: CodeType) -> set[str]:
    """Names of globals in a code object and in those nested in it."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names_in(inner) for inner in nested))


class Compiled:
    """A loop that is compiled at its first call."""

    __slots__ = ("_dispatcher", "name", "python")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.python = function  # the same function, not compiled
        self.name = name
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        if self._dispatcher is None:
            self._dispatcher = _compile(self.python, self.name)
        return self._dispatcher(*arguments)


def _compile(function: Callable[..., Any], name: str) -> Any:
    """Make numba's dispatcher with a cache on disk, if a folder for it can be written."""
    from numba import config, njit
    from numba.core.caching import CompileResultCacheImpl, FunctionCache

    register_scalars()
    dispatcher = njit(**NUMBA_OPTIONS)(function)
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    digest = digest_of(function)

    class Files(CompileResultCacheImpl):
        """Numba's files, in its own choice of folders, named after the digest."""

        def get_filename_base(self, fullname: str, abiflags: str) -> str:
            version = f"{sys.version_info.major}{sys.version_info.minor}{abiflags}"
            return f"{name}-{digest}.py{version}"

    class Cache(FunctionCache):
        """Numba's cache with the digest as key, which closures do not change."""

        _impl_class = Files

        def _index_key(self, signature: Any, codegen: Any) -> Any:
            return signature, codegen.magic_tuple(), digest

        def load_overload(self, signature: Any, target: Any) -> Any:
            found = super().load_overload(signature, target)  # type: ignore[no-untyped-call]
            if found is None:
                _announce()
            return found

    try:
        dispatcher._cache = Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder can be written: compile in every process
        _announce()
    return dispatcher


@cache
def _announce() -> None:
    """Say once that functions are being compiled, so that nobody waits in silence."""
    print("moment_init: compiling; later calls use the result.", file=sys.stderr)  # noqa: T201
