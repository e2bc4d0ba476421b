"""Each benchmark runs at its small size and leaves a complete record."""

import importlib
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from moment_init import angles_in_degrees, simulate_mixture

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "exact_moments",
    "convergence_rate",
    "error_growth",
    "estimate_cost",
    "import_time",
    "stacked_accuracy",
    "moments_alone",
    "component_number",
    "standard_error_coverage",
    "stacked_cost",
    "input_models",
    "input_cost",
    "input_gauntlet",
    "subspace_methods",
    "overcomplete",
    "published_fits",
    "real_data",
    "broad_law",
    "tensor_start",
    "gauntlet",
    "honest_map",
    "portfolio_ablation",
    "flexmix_speed",
    "peers",
    "large_fit",
    "out_of_core",
    "dask_scaling",
    "estimator_checks",
    "several_responses",
    "hostile_input",
)
# They compile PyMC models, for minutes: tests/test_posterior_benchmarks.py and
# tests/models/test_mixture_op_cost.py have their quick forms.
COMPILED_NAMES = (
    "gradient_cost",
    "first_draw",
    "posterior_quality",
    "sampling_cost",
    "numpyro_rate",
    "calibration",
    "interval_coverage",
    "posterior_reference",
)
# Half a minute or more each, even at their small size; tests of what they measure are elsewhere.
SLOW_NAMES = (
    "published_fits",
    "real_data",
    "broad_law",
    "error_growth",
    "overcomplete",
    "honest_map",
    "portfolio_ablation",
    "peers",
    "several_responses",
    "estimator_checks",
    "dask_scaling",
    "out_of_core",
    "input_models",
)
RECORD_FIELDS = {
    "benchmark",
    "commit",
    "date",
    "description",
    "figures",
    "is_quick",
    "machine",
    "rows",
    "seconds",
    "seed",
    "settings",
    "versions",
}


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of `benchmarks`, which lies under the root and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("__main__", monkeypatch)


@pytest.fixture
def exact_moments(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("exact_moments", monkeypatch)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("report", monkeypatch)


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("fitting", monkeypatch)


@pytest.fixture
def mixtures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("mixtures", monkeypatch)


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("rivals", monkeypatch)


def read_record(folder: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_NAMES else []) for name in NAMES],
)
def test_quick_run_leaves_a_complete_record(
    command_line: ModuleType,
    capsys: pytest.CaptureFixture[str],
    name: str,
    tmp_path: Path,
    seed: int,
) -> None:
    arguments = [name, "--quick", "--seed", str(seed), "--output", str(tmp_path)]
    assert command_line.main(arguments) == 0
    record = read_record(tmp_path, name)
    assert set(record) == RECORD_FIELDS
    assert (record["benchmark"], record["is_quick"], record["seed"]) == (name, True, seed)
    assert {"python", "moment-init", "numpy", "scipy", "tensorly"} <= set(record["versions"])
    assert {"processor", "n_cores", "load_average", "blas"} <= set(record["machine"])
    assert record["rows"]
    assert record["figures"]
    printed = capsys.readouterr().out
    for figure in record["figures"]:
        assert set(figure) == {"name", "value", "bar", "is_met"}
        assert math.isfinite(figure["value"])
        assert f"{figure['name']}: " in printed


def test_exact_moments_are_all_recovered_by_both_methods(
    exact_moments: ModuleType, seed: int
) -> None:
    row = exact_moments.measure_cell(
        exact_moments.get_family("bernoulli", "logit"), 4, 2, [seed, 0, 4]
    )
    assert (row["power"], row["tensorly"]) == ("2/2", "2/2")


def test_registry_holds_the_benchmarks_tested_here(command_line: ModuleType) -> None:
    assert tuple(command_line.BENCHMARKS) == NAMES + COMPILED_NAMES


def test_module_runs_from_the_root() -> None:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", "no_such"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "no benchmark called 'no_such'; choose from exact_moments, " in result.stderr


def test_missed_bar_of_a_full_run_is_an_error(
    command_line: ModuleType,
    report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    figure = report.Figure("ratio", 41.0, "<= 40", False)
    missed = report.Benchmark(
        "missed", "always", lambda options: report.Outcome(({"n": 1},), (figure,), {})
    )
    monkeypatch.setattr(command_line, "BENCHMARKS", {"missed": missed})
    assert command_line.main(["--output", str(tmp_path)]) == 1
    assert command_line.main(["--output", str(tmp_path), "--quick"]) == 0


@pytest.mark.parametrize("n_components", [1, 3, 6])
def test_random_models_stay_within_their_limits(
    exact_moments: ModuleType, n_components: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    family = exact_moments.get_family("bernoulli", "logit")
    for _ in range(20):
        model = exact_moments.draw_model(family, n_components, rng)
        sizes = np.abs(model.coefficients)
        assert 6 <= model.directions.shape[0] <= 12
        assert np.linalg.cond(model.directions) <= 20.0
        assert sizes.min() >= 1e-3 * sizes.max()


def test_tensor_of_a_model_worked_by_hand(exact_moments: ModuleType) -> None:
    """T = 2 e_1^3 - 3 v^3, v = (3, 4) / 5: T_111 = 2 - 3 * 27 / 125, T_122 = -3 * 48 / 125."""
    directions = np.array([[1.0, 0.6], [0.0, 0.8]])
    tensor = exact_moments.ExactModel(directions, np.array([2.0, -3.0])).tensor
    np.testing.assert_allclose(tensor[0, 0, 0], 2.0 - 81.0 / 125.0, rtol=1e-14)
    np.testing.assert_allclose(tensor[0, 1, 1], -144.0 / 125.0, rtol=1e-14)


def test_fitted_exponent_of_a_power_law(fitting: ModuleType) -> None:
    exponent, error = fitting.fitted_exponent([1.0, 2.0, 5.0], [3.0, 3.0 * 2**-0.5, 3.0 * 5**-0.5])
    assert exponent == pytest.approx(-0.5, abs=1e-12)
    assert error < 1e-7


def test_missed_bar_is_said(report: ModuleType) -> None:
    figures = (
        report.Figure("ratio", 41.0, "<= 40", False),
        report.Figure("share", 1.0, "1", True),
        report.Figure("slope", -0.5),
    )
    text = report.format_outcome(report.Outcome(({"n": 10_000, "s": None},), figures, {}))
    assert text.splitlines() == [
        "     n  s",
        "10,000  -",
        "",
        "ratio: 41   (bar: <= 40)   MISSED",
        "share: 1   (bar: 1)   met",
        "slope: -0.5",
    ]


def test_number_of_data_sets_can_be_asked_for(
    command_line: ModuleType,
    report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = []

    def run(options: Any) -> Any:
        numbers.append(options.data_sets(20, 1))
        return report.Outcome(({"n": 1},), (), {})

    monkeypatch.setattr(command_line, "BENCHMARKS", {"sets": report.Benchmark("sets", "", run)})
    for arguments in ([], ["--quick"], ["--datasets", "7"], ["--quick", "--datasets", "7"]):
        assert command_line.main(["--output", str(tmp_path), *arguments]) == 0
    assert numbers == [20, 1, 7, 7]
    with pytest.raises(SystemExit, match="2"):
        command_line.main(["--datasets", "0"])
    assert "must be 1 or more; got 0" in capsys.readouterr().err


def test_errors_of_parameters_are_those_of_the_worst_component(
    mixtures: ModuleType, seed: int
) -> None:
    """Estimate and truth differ by what is put in; the components come in another order."""
    data = mixtures.draw(mixtures.MIXTURES[2].resized(2_000), seed, 0)
    result, _ = mixtures.timed(data, seed)
    moved = replace(
        result,
        directions=data.directions[:, ::-1],
        scales=(data.scales * np.array([1.0, 1.2]))[::-1],
        biases=(data.biases - np.array([0.3, 0.1]))[::-1],
        weights=(data.weights + np.array([0.05, -0.05]))[::-1],
    )
    errors = mixtures.parameter_errors(moved, data)
    assert (errors.scale, errors.bias, errors.weight) == pytest.approx((0.2, 0.3, 0.05))
    assert errors.angle == pytest.approx(0.0, abs=1e-6)
    turned = replace(moved, directions=moved.directions * np.array([1.0, -1.0]))
    assert mixtures.parameter_errors(turned, data).angle > 45.0
    assert mixtures.worst_cosine(turned, data) == pytest.approx(1.0)


def test_scales_are_drawn_around_the_stated_one(mixtures: ModuleType, seed: int) -> None:
    scales = [mixtures.draw(mixtures.MIXTURES[0].resized(50), seed, i).scales for i in range(20)]
    assert 1.4 <= np.min(scales) < np.max(scales) <= 2.6


def test_moment_regression_finds_the_directions_of_linear_mixtures(
    mixtures: ModuleType, rivals: ModuleType, seed: int
) -> None:
    """Angles of y^3's regression fall as n^-1/2 and are about 2 degrees at these rows."""
    data = simulate_mixture(
        100_000,
        3,
        2,
        family="gaussian",
        directions=np.array([[1.0, 0.6], [0.0, 0.8], [0.0, 0.0]]),
        weights=[0.4, 0.6],
        scales=[2.0, 1.5],
        biases=[0.5, -0.5],
        dispersion=0.3,
        random_seed=seed,
    )
    directions = rivals.moment_regression(mixtures.pose(data), 2, np.random.default_rng(seed))
    assert angles_in_degrees(directions, data.directions).max() < 10.0


def test_cosines_of_spans_with_the_truth(
    mixtures: ModuleType, rivals: ModuleType, seed: int
) -> None:
    """All columns hold every direction; those orthogonal to one hold nothing of it."""
    data = simulate_mixture(2_000, 4, 1, family="poisson", scales=0.7, random_seed=seed)
    problem = mixtures.pose(data)
    assert rivals.subspace_cosine(problem, np.eye(4), data) == pytest.approx(1.0)
    others = np.linalg.svd(data.directions.T)[2][1:].T
    assert rivals.span_cosine(others, data) == pytest.approx(0.0, abs=1e-12)
