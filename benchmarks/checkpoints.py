"""Store the measurements of a long run, so that an interrupted run can continue.

Each measurement is appended to a file as one line. A rerun with the same seed and code reads the
lines instead of measuring again.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Checkpoint", "Key", "code_digest"]

ROOT = Path(__file__).resolve().parents[1]
CODE = ("benchmarks", "models", "moment_init")

Key = tuple[str | int, ...]


class Checkpoint:
    """Measurements by key, in memory and, if there is a file, on disk."""

    def __init__(self, path: Path | None = None, seconds: float = math.inf) -> None:
        self.path = path
        self.deadline = time.monotonic() + seconds
        self.n_left_out = 0
        self._known = {} if path is None else _read(path)

    def measure(
        self, keys: Iterable[Key], measurement: Callable[[Key], dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yield each key's measurement, measuring missing ones until the time is up."""
        for key in keys:
            if key in self._known:
                yield self._known[key]
            elif time.monotonic() >= self.deadline:
                self.n_left_out += 1
            else:
                yield self._keep(key, measurement(key))

    def discard(self) -> None:
        """Delete the stored measurements, so that a rerun measures again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _keep(self, key: Key, value: dict[str, Any]) -> dict[str, Any]:
        self._known[key] = value
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, value]) + "\n")
        return value


def _read(path: Path) -> dict[Key, dict[str, Any]]:
    """Read the measurements of earlier runs; skip a line that was cut off."""
    known: dict[Key, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if line.endswith("\n"):
            key, value = json.loads(line)
            known[tuple(key)] = value
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]), encoding="utf-8")
    return known


def code_digest() -> str:
    """Hash library and benchmarks, so that measurements of other code are not mixed in."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
