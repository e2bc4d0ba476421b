"""Measure the time and memory of a call."""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.report import Row

__all__ = [
    "BYTES_PER_DOUBLE",
    "extra_peak_bytes",
    "number",
    "seconds_and_processor_seconds",
    "seconds_of",
]

BYTES_PER_DOUBLE = 8


def seconds_of(function: Callable[[], Any]) -> float:
    """Time a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def seconds_and_processor_seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Time a call in wall seconds and in CPU seconds over all threads."""
    start, processor_start = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - processor_start


def extra_peak_bytes(function: Callable[[], Any]) -> int:
    """Peak memory allocated during a call; NumPy reports its arrays to tracemalloc."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        function()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


def number(row: Row, column: str) -> float:
    """Convert a cell of a table to a number."""
    return float(str(row[column]))
