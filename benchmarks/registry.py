"""The benchmarks by name."""

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks import convergence_rate, error_growth, estimate_cost, exact_moments, import_time
from benchmarks.report import Benchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        benchmark.name: benchmark
        for benchmark in (
            exact_moments.BENCHMARK,
            convergence_rate.BENCHMARK,
            error_growth.BENCHMARK,
            estimate_cost.BENCHMARK,
            import_time.BENCHMARK,
        )
    }
)
