"""The benchmarks by name."""

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks import (
    broad_law,
    calibration,
    component_number,
    convergence_rate,
    dask_scaling,
    error_growth,
    estimate_cost,
    estimator_checks,
    exact_moments,
    first_draw,
    flexmix_speed,
    gauntlet,
    gradient_cost,
    honest_map,
    hostile_input,
    import_time,
    input_cost,
    input_gauntlet,
    input_models,
    interval_coverage,
    large_fit,
    moments_alone,
    numpyro_rate,
    out_of_core,
    overcomplete,
    peers,
    portfolio_ablation,
    posterior_quality,
    posterior_reference,
    published_fits,
    real_data,
    sampling_cost,
    several_responses,
    stacked_accuracy,
    stacked_cost,
    standard_error_coverage,
    subspace_methods,
    tensor_start,
)
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
            stacked_accuracy.BENCHMARK,
            moments_alone.BENCHMARK,
            component_number.BENCHMARK,
            standard_error_coverage.BENCHMARK,
            stacked_cost.BENCHMARK,
            input_models.BENCHMARK,
            input_cost.BENCHMARK,
            input_gauntlet.BENCHMARK,
            subspace_methods.BENCHMARK,
            overcomplete.BENCHMARK,
            published_fits.BENCHMARK,
            real_data.BENCHMARK,
            broad_law.BENCHMARK,
            tensor_start.BENCHMARK,
            gauntlet.BENCHMARK,
            honest_map.BENCHMARK,
            portfolio_ablation.BENCHMARK,
            flexmix_speed.BENCHMARK,
            peers.BENCHMARK,
            large_fit.BENCHMARK,
            out_of_core.BENCHMARK,
            dask_scaling.BENCHMARK,
            estimator_checks.BENCHMARK,
            several_responses.BENCHMARK,
            hostile_input.BENCHMARK,
            gradient_cost.BENCHMARK,
            first_draw.BENCHMARK,
            posterior_quality.BENCHMARK,
            sampling_cost.BENCHMARK,
            numpyro_rate.BENCHMARK,
            calibration.BENCHMARK,
            interval_coverage.BENCHMARK,
            posterior_reference.BENCHMARK,
        )
    }
)
