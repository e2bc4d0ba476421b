"""From the same start EM ends where flexmix does.

The reference values were made by `benchmarks/r/flexmix_reference.R`, which says how; its runs end
at rounding, so that what is left of the tolerance is ours.
"""

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from moment_init import EMFit, fit_em

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = json.loads(
    (Path(__file__).resolve().parent / "flexmix_reference.json").read_text(encoding="utf-8")
)
PROBLEMS = {problem["name"]: problem for problem in REFERENCE["problems"]}

PUBLISHED = {
    "seizure": "seizure",
    "NPreg yb": "NPreg, yb",
    "NPreg yn": "NPreg, yn",
    "tonedata gamma": "tonedata",
    "betablocker shared": "betablocker, treatment shared",
    "betablocker": "betablocker",
    "patent gate": "patent, gate",
}
"""The published model whose data a problem uses, by the problem's name."""

TOLERANCE = 1e-4

# Below the reference's own rounding: the tolerance of the comparison is not spent on ours.
TIGHT = 1e-10

FloatArray = NDArray[np.float64]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT)
    module = importlib.import_module("benchmarks.published")
    return {fit.name: fit for fit in module.load_published_fits()}


def changed_options(name: str) -> dict[str, Any]:
    """What a problem has that the published model of the same data has not."""
    if name == "tonedata gamma":
        return {"family": "gamma"}
    if name == "NPreg yb":
        return {"groups": pd.read_csv(ROOT / "tests" / "data" / "NPreg.csv")["id2"].to_numpy()}
    return {}


def start_of(problem: dict[str, Any]) -> FloatArray:
    """Flexmix's soft assignment: .9 for a row's label, .1 elsewhere, normalised."""
    labels = np.array(problem["labels"])[:, None]
    shares = np.where(labels == np.arange(problem["n_components"]), 0.9, 0.1)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def reference_coefficients(problem: dict[str, Any]) -> FloatArray:
    """Intercepts first, then the features in their order."""
    table = dict(zip(problem["parameter_names"], problem["parameters"], strict=True))
    intercepts = table.pop("coef.(Intercept)")
    slopes = [row for name, row in table.items() if name.startswith("coef.")]
    return np.array([intercepts, *slopes])


def reference_dispersion(problem: dict[str, Any]) -> FloatArray | None:
    name = problem["parameter_names"][-1]
    return None if name.startswith("coef.") else np.array(problem["parameters"][-1])


def matching(fit: EMFit, theirs: FloatArray) -> list[int]:
    """Order of our components that is nearest to theirs."""
    ours = np.vstack([fit.biases, fit.coefficients])
    orders = itertools.permutations(range(theirs.shape[1]))
    return list(min(orders, key=lambda order: float(np.abs(ours[:, list(order)] - theirs).max())))


def fit_from_the_start(name: str, published: dict[str, Any]) -> EMFit:
    """Fit a problem from the start that flexmix was given."""
    problem, model = PROBLEMS[name], published[PUBLISHED[name]]
    options = {**model.options, **changed_options(name)}
    start = start_of(problem)
    return fit_em(model.X, model.y, problem["n_components"], init=start, tolerance=TIGHT, **options)


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_start_ends_where_flexmix_ends(published: dict[str, Any], name: str) -> None:
    problem, fit = PROBLEMS[name], fit_from_the_start(name, published)
    theirs = reference_coefficients(problem)
    order = matching(fit, theirs)
    ours = np.vstack([fit.biases, fit.coefficients])[:, order]
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=TOLERANCE)
    assert fit.log_likelihood == pytest.approx(problem["log_likelihood"], abs=TOLERANCE)
    dispersion = reference_dispersion(problem)
    if dispersion is not None:
        assert fit.dispersion is not None
        np.testing.assert_allclose(fit.dispersion[order], dispersion, rtol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in PROBLEMS if PROBLEMS[name]["gate"] is None])
def test_weights_are_those_of_flexmix(published: dict[str, Any], name: str) -> None:
    problem, fit = PROBLEMS[name], fit_from_the_start(name, published)
    order = matching(fit, reference_coefficients(problem))
    np.testing.assert_allclose(fit.weights[order], problem["weights"], rtol=0.0, atol=TOLERANCE)


def test_gate_is_that_of_flexmix(published: dict[str, Any]) -> None:
    """Slopes of the logits against flexmix's first component, which size 40: relative."""
    problem, fit = PROBLEMS["patent gate"], fit_from_the_start("patent gate", published)
    order = matching(fit, reference_coefficients(problem))
    assert fit.gate is not None
    slopes = fit.gate[0, order]
    np.testing.assert_allclose(slopes[1:] - slopes[0], problem["gate"][1], rtol=TOLERANCE)
