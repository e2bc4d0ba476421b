"""Data, models and rules of the benchmarks of EM."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of `benchmarks`, which lies under the root and is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module(f"benchmarks.{name}")


def test_published_models_have_the_rows_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    published = load("published", monkeypatch)
    sizes = {fit.name: fit.X.shape for fit in published.load_published_fits()}
    assert sizes == {
        "seizure": (140, 3),
        "betablocker, treatment shared": (44, 1),
        "betablocker": (44, 1),
        "patent, gate": (70, 1),
        "patent": (70, 1),
        "fabricfault": (32, 1),
        "NPreg, yn": (200, 2),
        "NPreg, yp": (200, 1),
        "NPreg, yb": (200, 1),
        "tonedata": (150, 1),
        "CO2data": (28, 1),
    }
    for fit in published.load_published_fits():
        assert fit.y.shape == (len(fit.X),)
        assert not fit.X.isna().to_numpy().any()


def test_starts_needed_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of subsets of the starts, counted; more than were run where those do not suffice."""
    gauntlet = load("gauntlet", monkeypatch)
    needed = gauntlet.starts_needed_by_data_set
    assert needed([20, 20], 20) == 1
    # One data set of two whose starts succeed half the time: C(2, N) / C(4, N) / 2 fail.
    assert needed([4, 2], 4, share=0.75) == 1
    assert needed([4, 2], 4, share=0.9) == 2
    assert needed([4, 2], 4) == 3
    # Alike, two starts in three would be 99 % within five; one data set of three never succeeds.
    assert needed([20, 20, 0], 20) == 21


def test_every_mixture_of_the_gauntlet_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    mixtures = load("random_mixtures", monkeypatch)
    for mixture in mixtures.GAUNTLET:
        data = mixtures.draw(mixture.resized(60), seed, 0)
        assert data.X.shape == (60, mixture.n_features)
        expected = mixture.weights or [1.0 / mixture.n_components] * mixture.n_components
        np.testing.assert_allclose(data.weights, expected)
        start = mixtures.truth_of(data)
        assert len(start) == (4 if mixture.family == "gaussian" else 3)


def test_relative_noise_is_a_share_of_the_spread_of_the_means(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A standard deviation of 50,000 bounded means has a relative error of .005: six of them."""
    mixtures = load("random_mixtures", monkeypatch)
    polynomial = next(each for each in mixtures.GAUNTLET if "polynomial" in each.name)
    data = mixtures.draw(polynomial.resized(50_000), seed, 0)
    means = (data.X @ data.coefficients + data.biases)[np.arange(50_000), data.labels]
    assert data.dispersion is not None
    np.testing.assert_allclose(data.dispersion, 0.1 * means.std(), rtol=0.03)
    np.testing.assert_allclose(data.X[:, 1], data.X[:, 0] ** 4)


def test_table_of_the_r_script_is_read_by_component(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two components of a weight, a bias, two coefficients and a dispersion each."""
    peers = load("peers_in_r", monkeypatch)

    def write_table(arguments: list[str]) -> None:
        header = ["method", "seed", "seconds", "iterations", "own", "comparable", *"1234567890"]
        cells = ["flexmix", 1, 0.5, 12, -3.25, -3.0, 0.25, 1, 2, 3, "NA", 0.75, 4, 5, 6, "NA"]
        lines = [",".join(map(str, line)) for line in (header, cells)]
        Path(arguments[-1]).write_text("\n".join(lines), encoding="utf-8")

    monkeypatch.setattr(peers, "_run_script", write_table)
    runs = peers.run_peers(
        tmp_path / "data.csv",
        2,
        family="poisson",
        method="flexmix",
        tolerance=1e-6,
        n_starts=1,
        seed=1,
    )
    run = runs[0]
    assert len(runs) == 1
    assert (run.seconds, run.n_iter) == (0.5, 12)
    assert (run.log_likelihood, run.comparable_likelihood) == (-3.25, -3.0)
    coefficients, biases, weights = run.start
    np.testing.assert_array_equal(coefficients, [[2.0, 5.0], [3.0, 6.0]])
    np.testing.assert_array_equal(biases, [1.0, 4.0])
    np.testing.assert_array_equal(weights, [0.25, 0.75])


def test_missing_peers_leave_our_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    speed, report = load("flexmix_speed", monkeypatch), load("report", monkeypatch)
    monkeypatch.setattr(speed, "has_peers", lambda: False)
    outcome = speed.run(report.Options(is_quick=True, seed=1))
    assert outcome.settings["peers"].startswith("Rscript, flexmix or mixtools is missing")
    assert [figure.bar for figure in outcome.figures] == [None]
    assert outcome.rows[0]["flexmix s"] is None


def test_real_problems_have_their_rows_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = load("real_tables", monkeypatch).load_real_problems()
    assert len(problems) == len({problem.name for problem in problems}) == 45
    for problem in problems:
        assert problem.y.shape == (len(problem.X),)
        assert not problem.X.isna().to_numpy().any()
        assert ("gating" in problem.options) == ("gate" in problem.name)
        assert ("groups" in problem.options) == ("groups" in problem.name)
        assert (problem.options["shared"] is not None) == ("shared" in problem.name) or (
            problem.name in {"orob2_k2"}
        )
    published = next(each for each in problems if each.name == "mus03_gate_k3")
    assert published.published == pytest.approx(published.best, abs=1e-4) == -4712.3871


def test_flexmix_ran_on_real_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = load("real_tables", monkeypatch)
    problems = {problem.name: problem for problem in tables.load_real_problems()}
    flexmix = tables.load_flexmix()
    assert flexmix.keys() <= problems.keys()
    for name, runs in flexmix.items():
        assert 0.0 <= runs.share(problems[name].best - 0.05) <= 1.0
        assert 0 < len(runs.ends) <= 10
        assert runs.seconds_ratio > 0.0
    interior = [name for name in flexmix if not problems[name].is_degenerate]
    assert len(interior) > 30
    record = json.loads(tables.FLEXMIX_FILE.read_text(encoding="utf-8"))
    assert set(record["versions"]) == {"R", "flexmix"}
    assert record["left out"].keys() <= problems.keys() - flexmix.keys()


def test_shares_of_flexmix_count_failed_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three starts one reaches -10.05, one ends lower and one failed."""
    runs = load("real_tables", monkeypatch).FlexmixRuns(np.array([-10.02, -11.0, -np.inf]), 2.0)
    assert runs.share(-10.05) == pytest.approx(1 / 3)


def test_broad_law_takes_turns_and_depends_on_the_seed_only(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    broad = load("broad_problems", monkeypatch)
    problems = [broad.draw_problem(seed, index) for index in range(0, 96, 7)]
    assert {each.form for each in problems} == {"plain", "gate", "groups"}
    for each in problems:
        assert each.X.shape == (len(each.y), each.truth[0].shape[0])
        assert np.isfinite(each.X).all()
        assert np.isfinite(each.y).all()
        assert each.truth[0].shape[1] == each.n_components
    again = broad.draw_problem(seed, 7)
    np.testing.assert_array_equal(again.y, problems[1].y)
