"""The case studies of counts: patents, and demand for medical care."""

import importlib
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from scripts.studies import ROOT
from tests.bayesian_models import evaluate

PATENTS, MEDICAL = (ROOT / "case_studies" / name for name in ("patents", "medical_care"))


def module(name: str) -> ModuleType:
    """A module of a case study: these are packages of the repository's root."""
    return importlib.import_module(f"case_studies.{name}")


@cache
def patents() -> Any:
    """The study of patents at its small size, once for all tests."""
    return module("patents.run").run_study(quick=True)


@cache
def survey() -> Any:
    """Features, visits and checksum."""
    return module("medical_care.run").read_survey()


@pytest.fixture(autouse=True)
def _root_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def stated_checksum(folder: Path) -> str:
    (checksum,) = re.findall(r"\b[0-9a-f]{64}\b", (folder / "README.md").read_text("utf-8"))
    return str(checksum)


@pytest.mark.parametrize("folder", [PATENTS, MEDICAL], ids=lambda path: path.name)
def test_numbers_of_the_readme_are_printed_by_the_notebook(folder: Path) -> None:
    """All with a decimal point: what is printed as 0.86 is stated as 0.86."""
    notebook = json.loads((folder / "notebook.ipynb").read_text("utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    printed = "".join("".join(output.get("text", [])) for output in outputs)
    pattern = r"(?<![\d.])-?\d+\.\d+(?![\d.]*\d)"
    stated = set(re.findall(pattern, (folder / "README.md").read_text("utf-8")))
    assert len(stated) > 10
    assert stated - set(re.findall(pattern, printed)) == set()


# --- patents -------------------------------------------------------------------------------------


def test_patents_are_the_file_that_the_readme_names() -> None:
    assert patents().checksum == stated_checksum(PATENTS)
    assert len(patents().firms) == 70


def test_patents_fit_is_the_published_one() -> None:
    """A log-likelihood 1e-6 below the maximum is sqrt(2e-6) standard errors from it, at most."""
    study = patents()
    fit, reference = study.fit, study.reference
    assert study.choice.chosen == 3
    assert fit.log_likelihood == pytest.approx(reference.log_likelihood, abs=1e-4)
    assert fit.log_likelihood == pytest.approx(-197.675, abs=5e-4)
    errors = fit.standard_errors
    difference = np.abs(fit.coefficients[0, study.order] - reference.elasticities)
    assert (difference < 2.0 * np.sqrt(2e-6) * errors.coefficients[0, study.order]).all()
    assert fit.bic < study.ungated.bic


def test_patent_draws_follow_from_the_parameters() -> None:
    """Patents at a budget of one million dollars are exp(bias), at e millions exp(bias + slope)."""
    study = patents()
    posterior = study.tree["posterior"].to_dataset().isel(component=study.order, chain=0)
    at = module("patents.run").patent_draws(study, np.array([1.0, np.e]))
    np.testing.assert_allclose(at[:, 0], np.exp(posterior["bias"]), rtol=1e-12)
    slopes = posterior["coefficient"].isel(feature=0)
    np.testing.assert_allclose(at[:, 1] / at[:, 0], np.exp(slopes), rtol=1e-12)


def test_gate_draws_are_probabilities_about_those_of_the_fit() -> None:
    """The gate at a share of zero is the softmax of its biases."""
    study = patents()
    draws = module("patents.run").gate_draws(study, np.array([0.0, 0.05]))
    np.testing.assert_allclose(draws.sum(axis=2), 1.0, rtol=1e-12)
    biases = study.tree["posterior"]["gate_bias"].isel(component=study.order, chain=0).to_numpy()
    expected = np.exp(biases) / np.exp(biases).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(draws[:, 0], expected, rtol=1e-10)


def test_priors_of_patents_follow_the_spread_of_ordinary_firms() -> None:
    """Quartiles at -1 and 1, hence an ordinary deviation of 2 / 1.349; budgets e^-2 to e^2."""
    run = module("patents.run")
    grid = np.linspace(-2.0, 2.0, 5)
    firms = pd.DataFrame({"RDS": grid, "lgRD": grid})
    deviations = run.prior_deviations(firms)
    assert deviations["coefficient"] == pytest.approx(1.5 * np.sqrt(2.0))
    assert deviations["gate"] == pytest.approx(2.0 * np.sqrt(2.0) * 1.349 / 2.0)
    far = pd.DataFrame({"RDS": [*grid[:4], 200.0], "lgRD": grid})
    factor = np.std(far["RDS"]) / np.sqrt(2.0)
    assert run.prior_deviations(far)["gate"] == pytest.approx(factor * deviations["gate"])


def test_patents_are_sampled_from_the_fit_with_these_priors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model that the options make has a gate whose slopes have the deviation stated."""
    run = module("patents.run")
    study = patents()
    calls: list[dict[str, Any]] = []

    def note(*arguments: Any, **options: Any) -> xr.DataTree:
        calls.append(options)
        return xr.DataTree()

    monkeypatch.setattr(run, "sample", note)
    deviations = run.prior_deviations(study.firms)
    run._sample(study.fit, study.firms, priors=run._priors(deviations), random_seed=1)
    (options,) = calls
    assert options["init"] is study.fit
    assert set(options["priors"]) == set(deviations)
    with pm.Model(coords={"component": range(3)}) as model:
        ours = options["priors"]["gate"]("ours", ("component",))
        stated = pm.ZeroSumNormal("stated", deviations["gate"], dims="component")
    point = {f"{name}_zerosum__": np.array([3.0, -1.0]) for name in ("ours", "stated")}
    densities = evaluate(model, [model.logp(vars=[ours]), model.logp(vars=[stated])], point)
    assert densities[0] == pytest.approx(densities[1], rel=1e-12)


def test_patents_report_has_both_fits_and_the_data() -> None:
    study = patents()
    text = module("patents.report").describe(study)
    (line,) = re.findall(r"^log-likelihood .*$", text, flags=re.MULTILINE)
    assert line.split()[1:] == ["-197.675", "-197.675"]
    assert study.checksum in text
    counts = re.search(r"^firms, most probably +(\d+) +(\d+) +(\d+)$", text, flags=re.MULTILINE)
    assert counts is not None
    assert sum(map(int, counts.groups())) == 70


def test_patents_figure_shows_every_firm() -> None:
    study = patents()
    lines, _ = module("patents.figures").draw_classes(study).axes
    points = [
        collection.get_offsets()
        for collection in lines.collections
        if str(collection.get_label()).endswith("firms)")
    ]
    shown = np.concatenate(points)
    expected = study.firms.assign(budget=np.exp(study.firms["lgRD"]))[["budget", "Patents"]]
    np.testing.assert_allclose(
        shown[np.lexsort(shown.T)], expected.to_numpy()[np.lexsort(expected.to_numpy().T)]
    )


# --- medical care --------------------------------------------------------------------------------


def test_survey_is_that_of_the_readme() -> None:
    X, y, checksum = survey()
    assert checksum == stated_checksum(MEDICAL)
    assert X.shape == (4406, 7)
    assert y.max() == 89


def test_sixteen_features_hold_those_of_the_study() -> None:
    """Hospital stays are a feature of the study only."""
    wide, visits = module("medical_care.wider").read_all_features()
    X, y, _ = survey()
    names = {"chronic condition": "chronic", "year of schooling": "school"}
    kept = X.drop(columns="hospital stay").rename(columns=names)
    pd.testing.assert_frame_equal(wide[list(kept)], kept)
    np.testing.assert_array_equal(visits, y)
    assert wide.shape == (4406, 16)


def test_flexmix_tables_hold_every_start_and_the_best_fits() -> None:
    reference = module("medical_care.run").read_reference()
    assert set(reference.starts["family"]) == {"poisson", "negative_binomial"}
    table = reference.fits.query("family == 'negative_binomial'")
    weights = table.query("parameter == 'weight'").sort_values("component")["value"].to_numpy()
    assert weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert (np.diff(weights) < 0).all()
    names = set(module("medical_care.run").COLUMNS.values())
    assert names <= set(table["parameter"])


@cache
def three_classes() -> Any:
    """The fit of three classes, climbed from flexmix's end: no search."""
    run = module("medical_care.run")
    X, y, _ = survey()
    table = run.read_reference().fits.query("family == 'negative_binomial'")
    wide = table.pivot(index="parameter", columns="component", values="value")
    start = (
        wide.loc[[run.COLUMNS[name] for name in X]].to_numpy(),
        wide.loc["(Intercept)"].to_numpy(),
        wide.loc["weight"].to_numpy(),
        wide.loc["theta"].to_numpy(),
    )
    return run.fit_em(X, y, 3, family=run.FAMILY, init=start)


def test_flexmix_ends_at_a_maximum_of_ours() -> None:
    """flexmix stops at steps of 1e-4 of a climb that slows by 1 % or more a step: 0.01 to go."""
    fit = three_classes()
    starts = module("medical_care.run").read_reference().starts
    theirs = starts.query("family == 'negative_binomial'")["log_likelihood"].max()
    assert 0.0 <= fit.log_likelihood - theirs < 0.01
    assert fit.converged


def test_expected_counts_add_up_to_the_people() -> None:
    """Counts below 1,000 hold everyone but a tail of E[y^2] / 1000^2 at most (Markov)."""
    run = module("medical_care.run")
    X, *_ = survey()
    fit = three_classes()
    expected = run.expected_counts(fit, X, np.arange(1000.0))
    means = fit.predict(X, kind="components")
    tail = np.mean(means + means**2 * (1.0 + 1.0 / fit.dispersion), axis=0) / 1000.0**2
    shares = expected.sum(axis=0) / (len(X) * fit.weights)
    assert (shares <= 1.0 + 1e-9).all()
    assert (1.0 - shares <= tail).all()
    assert tail.max() < 0.01
    np.testing.assert_allclose(
        run.no_visit_shares(fit, X), expected[0] / (len(X) * fit.weights), rtol=1e-12
    )


@cache
def medical() -> Any:
    """A study without its search and its sampling: one fit, draws about it."""
    run = module("medical_care.run")
    X, y, checksum = survey()
    fit = three_classes()
    choice = run.select_components(X, y, [1], family=run.FAMILY, random_seed=0)
    single = choice.fit
    poisson = {1: run.fit_em(X, y, 1, family="poisson", random_seed=0)}
    poisson[3] = poisson[1]
    tree = fit.to_datatree(X, y, draws=50, random_seed=0)
    order = np.argsort(run.no_visit_shares(fit, X))
    return run.Study(
        X=X,
        y=y,
        checksum=checksum,
        moments=run.moments_said(X, y, 0),
        choice=choice,
        wider=choice,
        poisson=poisson,
        single=single,
        fit=fit,
        reference=run.read_reference(),
        tree=tree,
        membership=fit.responsibilities[:, order],
        is_sampled=False,
    )


def test_classes_come_by_their_share_without_a_visit() -> None:
    study = medical()
    shares = module("medical_care.run").no_visit_shares(study.fit, study.X)[study.order]
    assert (np.diff(shares) > 0).all()
    assert shares.size == len(module("medical_care.run").CLASSES)


def test_rate_ratios_are_those_of_the_draws() -> None:
    study = medical()
    ratios = module("medical_care.run").rate_ratios(study)
    draws = study.tree["posterior"]["coefficient"].isel(chain=0, component=study.order)
    np.testing.assert_allclose(np.log(ratios), draws.transpose("draw", "feature", "component"))


def test_medical_report_compares_with_flexmix() -> None:
    """A log-likelihood 0.01 below the maximum is sqrt(0.02) standard errors from it, at most."""
    study = medical()
    text = module("medical_care.report").describe(study)
    (line,) = re.findall(r"^negative_binomial .*$", text, flags=re.MULTILINE)
    ours, theirs, hits = re.findall(r"-?\d+(?:\.\d+)?", line)[:3]
    assert float(ours) == pytest.approx(float(theirs), abs=0.02)
    assert int(hits) >= 1
    (difference,) = re.findall(r"coefficient: ([\d.]+)", text)
    assert float(difference) < np.sqrt(0.02) * study.fit.standard_errors.coefficients.max()
    assert "people without a visit: 683" in text


def test_medical_figures_show_every_effect_and_every_count() -> None:
    figures = module("medical_care.figures")
    study = medical()
    (effects,) = figures.draw_effects(study).axes
    assert [label.get_text() for label in effects.get_yticklabels()] == list(study.X)
    (visits,) = figures.draw_visits(study).axes
    observed = next(line for line in visits.lines if line.get_label() == "observed")
    expected = [int((study.y == count).sum()) for count in range(figures.LARGEST_SHOWN + 1)]
    assert list(observed.get_ydata()) == expected


def test_medical_posterior_starts_at_the_fit_with_free_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = module("medical_care.run")
    calls: list[dict[str, Any]] = []

    def note(*arguments: Any, **options: Any) -> xr.DataTree:
        calls.append(options)
        return xr.DataTree()

    monkeypatch.setattr(run, "sample", note)
    run._sample(*survey()[:2], three_classes(), random_seed=1)
    (options,) = calls
    assert options["directions"] == "free"
    assert options["init"] is three_classes()


@pytest.mark.slow
def test_medical_study_runs_at_its_small_size(tmp_path: Path) -> None:
    assert module("medical_care.run").main(["--quick", "--output", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["effects.png", "visits.png"]
