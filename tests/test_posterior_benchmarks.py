"""Rules of the benchmarks of the posterior; their runs, which compile, are mocked or slow."""

import importlib
import json
import math
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray
from numpy.typing import NDArray
from pytensor.configdefaults import config
from scipy.linalg import null_space

from moment_init import MixtureData, fit_em, simulate_mixture
from moment_init.models import mixture_glm
from moment_init.models.specification import anchor_bases
from tests.bayesian_models import MODE

ROOT = Path(__file__).resolve().parents[1]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of `benchmarks`, which lies under the root and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(f"benchmarks.{name}")


def posterior_about(
    data: MixtureData,
    rng: np.random.Generator,
    order: tuple[int, ...] = (0, 1),
    n_draws: int = 500,
    spread: float = 0.1,
) -> xarray.Dataset:
    """Independent draws about the truth, its components in a given order."""
    truth = {
        "coefficient": (("feature", "component"), data.coefficients),
        "scale": (("component",), data.scales),
        "bias": (("component",), data.biases),
        "weight": (("component",), data.weights),
    }
    variables = {
        name: (
            ("chain", "draw", *dims),
            values[..., list(order)] + spread * rng.standard_normal((4, n_draws, *values.shape)),
        )
        for name, (dims, values) in truth.items()
    }
    return xarray.Dataset(variables)


def test_second_share_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four climbs end within a hundredth of each other."""
    benchmark = load("posterior_quality", monkeypatch)
    assert benchmark.second_share([-10.0, -10.004, -12.0, -10.008]) == pytest.approx(0.25)
    assert benchmark.second_share([-3.0, -3.0]) == 0.0


def test_ranks_that_are_uniform_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank twice fills all bins alike; low ranks only fill ten of twenty."""
    benchmark = load("calibration", monkeypatch)
    everywhere = np.repeat(np.arange(benchmark.N_RANKED + 1), 2)
    row = benchmark._uniformity("gaussian", "anchors", "bias[0]", everywhere)
    assert row["p"] == pytest.approx(1.0)
    assert row["mean rank z"] == pytest.approx(0.0, abs=1e-9)
    low = benchmark._uniformity("gaussian", "anchors", "bias[0]", everywhere // 2)
    assert float(str(low["p"])) < 1e-6
    assert float(str(low["p (KS)"])) < 1e-6
    measured = benchmark.Replications("anchors", {}, n_short=2, n_divergent=1)
    figures = benchmark._rank_figures("gaussian", [row, low], measured, is_judged=True)
    assert [figure.value for figure in figures[:2]] == [1, 1]
    assert figures[0].is_met is False
    assert figures[3].value == pytest.approx(0.01)


def test_copies_and_complements_are_tested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load("calibration", monkeypatch)
    first = np.array([3, 50, 99])
    ranks = {"a": first, "b": first, "c": benchmark.N_RANKED - first, "d": np.array([1, 2, 3])}
    assert list(benchmark._without_copies(ranks)) == ["a", "d"]


def test_rank_counts_thinned_draws_below_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws 0, 1, ..., 1999 over two chains; a truth between the halves is above 50 of 99."""
    benchmark = load("calibration", monkeypatch)
    monkeypatch.setattr(benchmark, "_likelihood_rank", lambda *arguments: 7)
    draws = np.arange(2000.0).reshape(2, 1000, 1)
    posterior = xarray.Dataset({"bias": (("chain", "draw", "component"), draws)})
    ranks = benchmark._ranks(posterior, {"bias": np.array([1000.5])}, None)
    assert ranks == {"bias[0]": 50, "log-likelihood": 7}


def test_log_likelihood_of_the_truth_is_ranked_with_its_responses(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    """Draws far from the truth explain its data worse: it ranks above all of them."""
    benchmark = load("calibration", monkeypatch)
    data = simulate_mixture(400, 2, 2, scales=3.0, random_seed=seed)
    far = posterior_about(data, rng, n_draws=30, spread=0.0)
    far["coefficient"] = -10.0 * far["coefficient"]
    rows = benchmark.validate_data(data.X, data.y, family="bernoulli")
    truth = {"coefficient": data.coefficients, "bias": data.biases, "weight": data.weights}
    chosen = np.divmod(np.arange(99), 30)
    assert benchmark._likelihood_rank(far, chosen, truth, rows) == 99


def test_coverage_is_counted_after_matching(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    """Draws centred at the truth cover it, in any order of components; far ones do not."""
    benchmark = load("interval_coverage", monkeypatch)
    data = simulate_mixture(50, 3, 2, directions=np.eye(3, 2), random_seed=seed)
    covered = benchmark._coverage(posterior_about(data, rng, (1, 0)), data)
    assert set(covered.values()) == {1.0}
    shifted = posterior_about(data, rng).assign(bias=lambda these: these["bias"] + 1.0)
    assert benchmark._coverage(shifted, data)["bias"] == 0.0


def test_overall_coverage_weighs_scalars_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale, bias, weight and four coefficients of a component: 1, 1, 1, 0.5 give 5 of 7."""
    benchmark = load("interval_coverage", monkeypatch)
    shares = {"scale": 1.0, "bias": 1.0, "weight": 1.0, "coefficient": 0.5}
    rows = [
        benchmark._coverage_row(directions, name, [share, share])
        for directions in ("anchored", "fixed")
        for name, share in shares.items()
    ]
    anchored, fixed = benchmark._coverage_figures(rows, is_judged=True)
    assert anchored.value == pytest.approx(5 / 7)
    assert (anchored.is_met, fixed.is_met) == (False, None)


def test_diagnostics_leave_out_what_is_held(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    """Independent draws: R-hat near 1; of 2000, a smallest effective number far above 400."""
    runs = load("posterior_runs", monkeypatch)
    data = simulate_mixture(50, 3, 2, random_seed=seed)
    posterior = posterior_about(data, rng)
    held = (1.0 + 1e-16 * rng.standard_normal((4, 500, 2))) / 3.0
    worst, effective = runs.diagnostics(
        posterior.assign(direction=(("chain", "draw", "component"), held))
    )
    assert (worst, effective) == runs.diagnostics(posterior)
    # The standard error of a rank-normalised R-hat of independent draws is about 1 / 500.
    assert 0.99 < worst < 1.02
    assert effective > 1000.0


def test_chains_at_different_places_are_not_good(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    benchmark = load("posterior_quality", monkeypatch)
    data = simulate_mixture(50, 3, 2, random_seed=seed)
    posterior = posterior_about(data, rng)
    stats = xarray.Dataset({"diverging": (("chain", "draw"), np.zeros((4, 500), dtype=bool))})
    posterior.attrs["sampling_time"] = 2.0
    apart = posterior.assign(bias=posterior["bias"] + xarray.DataArray(range(4), dims="chain"))
    for draws, is_good in ((posterior, None), (apart, False)):
        tree = xarray.DataTree.from_dict({"posterior": draws, "sample_stats": stats})
        row = benchmark._quality(tree, 5.0)
        assert row["ESS/s"] == pytest.approx(float(str(row["ESS"])) / 2.0)
        assert row["divergent"] == 0
        expected = float(str(row["R-hat"])) <= 1.01 and float(str(row["ESS"])) >= 400
        assert row["good"] is (expected if is_good is None else is_good)


def test_posteriors_with_two_modes_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One good run, and a bad one with two modes: all of those with one mode are good."""
    benchmark = load("posterior_quality", monkeypatch)
    common = {"family": "bernoulli", "directions": "anchored", "divergent": 1, "ESS/s": 3.0}
    rows = [
        {**common, "good": True, "two modes": False},
        {**common, "good": False, "two modes": True},
    ]
    figures = benchmark._figures(rows, is_judged=True)
    assert [figure.value for figure in figures] == [1.0, 0.5, 1, 2, 3.0]
    assert figures[0].is_met is True
    assert all(math.isfinite(each.value) for each in benchmark._figures(rows[1:], is_judged=True))


@pytest.mark.parametrize(("traded", "has_two"), [(0.0, False), (0.3, True)])
def test_two_modes_are_told_by_traded_labels(
    monkeypatch: pytest.MonkeyPatch, traded: float, has_two: bool, seed: int
) -> None:
    benchmark = load("posterior_quality", monkeypatch)
    monkeypatch.setattr(benchmark, "_climb", lambda *arguments: [-5.0] * 20)
    own = xarray.Dataset({"switched_share": ("chain", [0.0, traded])})
    tree = xarray.DataTree.from_dict({"moment_init": own, "posterior": xarray.Dataset()})
    data = simulate_mixture(20, 2, 2, random_seed=seed)
    row = benchmark._modes(tree, data, is_gated=False)
    assert row == {"traded": traded, "second maximum": 0.0, "two modes": has_two}


def test_climbs_from_draws_about_one_maximum_end_there(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    benchmark = load("posterior_quality", monkeypatch)
    monkeypatch.setattr(benchmark, "CLIMBS_PER_CHAIN", 2)
    data = simulate_mixture(
        1000, 2, 2, family="poisson", directions=np.eye(2), biases=1.0, random_seed=seed
    )
    ends = benchmark._climb(posterior_about(data, rng, n_draws=20, spread=0.01), data)
    assert len(ends) == 8
    assert benchmark.second_share(ends) == 0.0


def test_gated_data_follow_their_covariate(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """P(covariate > 0 | second component) = E[expit(1.5 |z|)] = .73, with an error of .03 here."""
    benchmark = load("posterior_quality", monkeypatch)
    report = load("report", monkeypatch)
    for case in benchmark.CASES:
        data, gating = benchmark.draw_case(case, report.Options(True, seed), 0)
        assert data.family == case.family
        assert (gating is None) is not case.is_gated
        if gating is not None:
            assert gating.shape == (len(data.y), 1)
            assert np.mean(gating[data.labels == 1, 0] > 0.0) > 0.6


def test_models_by_hand_are_one_model(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    written = load("hand_written", monkeypatch)
    data = simulate_mixture(40, 3, 2, random_seed=seed)
    values = []
    for build in written.HAND_WRITTEN.values():
        model = build(data)
        point = model.initial_point()
        shift = np.random.default_rng(seed)
        point = {name: shift.standard_normal(np.shape(value)) for name, value in point.items()}
        values.append(float(model.compile_logp(mode="FAST_COMPILE")(point)))
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_first_draw_shares_caches_between_two_processes_only(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    benchmark = load("first_draw", monkeypatch)
    report = load("report", monkeypatch)
    environments: list[dict[str, str]] = []

    def answer(command: list[str], env: dict[str, str], **options: Any) -> SimpleNamespace:
        compile(command[2], "script", "exec")
        environments.append(env)
        seconds = 3.0 * len(environments)
        record = json.dumps({"wall": seconds, "cpu": 2.0, "compile": 1.0})
        return SimpleNamespace(stdout=f"NUTS\n{record}\n")

    monkeypatch.setattr(subprocess, "run", answer)
    outcome = benchmark.run(report.Options(False, seed))
    folders = [env["NUMBA_CACHE_DIR"] for env in environments]
    assert folders[0] == folders[1] != folders[2]
    assert all("base_compiledir=" in env["PYTENSOR_FLAGS"] for env in environments)
    assert not Path(folders[0]).exists()
    assert [row["wall s"] for row in outcome.rows] == [3.0, 6.0, 9.0]
    assert [figure.is_met for figure in outcome.figures] == [True, False, None]


@pytest.mark.parametrize("directions", ["anchored", "free"])
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_reference_is_the_model_up_to_a_constant(
    monkeypatch: pytest.MonkeyPatch, family: str, directions: Any, rng: np.random.Generator
) -> None:
    """The transforms differ by linear maps only: so do the log densities, by a constant."""
    benchmark = load("posterior_reference", monkeypatch)
    data = benchmark._simulate(family, 5)
    options: dict[str, Any] = {"family": family, "progressbar": False, "random_seed": 5}
    fit = fit_em(data.X, data.y, 2, init="random", n_starts=1, **options)
    reference, to_user = benchmark._reference(data, fit, directions)
    model = mixture_glm(data.X, data.y, 2, family=family, init=fit, directions=directions)
    vectors = reference.start + 0.3 * rng.standard_normal((4, reference.start.size))
    with config.change_flags(cxx=""):
        logp = model.compile_logp(mode=MODE)
        found = [float(logp(_as_point(reference, vector))) for vector in vectors]
        own = model.replace_rvs_by_values([model[name] for name in ("coefficient", "bias")])
        mapped = model.compile_fn(own, inputs=model.value_vars, mode=MODE, on_unused_input="ignore")
        expected = mapped(_as_point(reference, vectors[0]))
    # Log densities are sums over 300 rows: rounding is relative to them, not to their differences.
    rounding = 1e-12 * np.max(np.abs(found))
    np.testing.assert_allclose(
        np.diff(found), np.diff(reference.log_density(vectors)), rtol=0.0, atol=rounding
    )
    draws = to_user(vectors[None, :1])
    order = np.argsort(draws["bias"].to_numpy()[0, 0])
    matched = np.argsort(expected[1])
    for name, value in zip(("coefficient", "bias"), expected, strict=True):
        np.testing.assert_allclose(
            draws[name].to_numpy()[0, 0][..., order], value[..., matched], rtol=1e-9, atol=1e-12
        )


def _as_point(reference: Any, vector: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """A vector of the reference as unconstrained values of the model."""
    n_features = reference.anchors.shape[0]
    # PyMC's logits sum to zero: half the reference's logit, which is their difference.
    point = {"weight_simplex__": vector[:1] / 2.0}
    if reference.directions == "free":
        point["standardised_coefficient"] = vector[1 : 1 + 2 * n_features].reshape(n_features, 2)
        rest = vector[1 + 2 * n_features :]
    else:
        point["standardised_scale_log__"] = vector[1:3]
        tilts = vector[3 : 1 + 2 * n_features].reshape(2, n_features - 1)
        bases = anchor_bases(reference.anchors)
        # The same tangent vector in two orthonormal bases.
        point["tilt"] = np.stack(
            [
                bases[j].T @ null_space(reference.anchors[:, j : j + 1].T) @ tilts[j]
                for j in range(2)
            ]
        )
        rest = vector[1 + 2 * n_features :]
    point["standardised_bias"] = rest[:2]
    if reference.family == "gaussian":
        point["standardised_dispersion_log__"] = rest[2:]
    return point


def test_ensemble_of_walkers_samples_a_known_posterior(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Correlated normals: means and variances within five standard errors of chains' means."""
    benchmark = load("posterior_reference", monkeypatch)
    covariance = np.array([[1.0, 0.8], [0.8, 4.0]])
    precision = np.linalg.inv(covariance)
    normal = SimpleNamespace(
        start=np.zeros(2),
        log_density=lambda x: -0.5 * np.einsum("...i,ij,...j", x, precision, x),
    )
    chains = benchmark._sample_with_ensembles(normal, 2_000, seed)
    for power, expected in ((1, np.zeros(2)), (2, np.diag(covariance))):
        means = (chains**power).mean(axis=1)
        error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        # Student's t with three degrees of freedom: beyond ten with a probability of 0.2 %.
        assert np.all(np.abs(means.mean(axis=0) - expected) < 10.0 * error)


def test_comparison_sees_a_shift_and_a_wider_spread(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    """Same distribution: z below five; a tenth of a deviation or of the spread: far above."""
    benchmark = load("posterior_reference", monkeypatch)
    data = simulate_mixture(50, 3, 2, random_seed=seed)
    pair = [posterior_about(data, rng, n_draws=5_000)[["bias"]] for _ in range(2)]
    shifted = pair[1] + 0.01
    wider = pair[1].mean() + 1.1 * (pair[1] - pair[1].mean())
    others = (pair[1], shifted, wider)
    same, moved, spread = (benchmark._compare(pair[0], other, {})[0] for other in others)
    assert max(same["max |z| mean"], same["max |z| sd"]) < 5.0
    assert moved["max |z| mean"] > 5.0
    assert spread["max |z| sd"] > 5.0
    figure = benchmark._figures([same, moved], is_judged=True)[0]
    assert (figure.value, figure.is_met) == (moved["max |z| mean"], False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["posterior_quality", "sampling_cost", "calibration", "posterior_reference", "first_draw"],
)
def test_quick_run_leaves_a_complete_record(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path, seed: int
) -> None:
    command_line = load("__main__", monkeypatch)
    arguments = [name, "--quick", "--seed", str(seed), "--output", str(tmp_path)]
    assert command_line.main(arguments) == 0
    record = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert record["rows"]
    assert all(math.isfinite(figure["value"]) for figure in record["figures"])
