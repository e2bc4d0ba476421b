"""Log densities and their derivatives against references with 25 digits, and finite differences.

`make_density_reference.py` wrote the references and explains them. A quantity that is a sum of
terms of different signs may miss its reference by a share of the sum of their absolute values.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.checks import FloatArray
from moment_init.families.registry import get_family
from moment_init.families.several import softmax_rows

REFERENCE: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("density_reference.json").read_text(encoding="utf-8")
)
ENTRIES = REFERENCE["families"]
KINDS = list(dict.fromkeys((entry["family"], entry["link"]) for entry in ENTRIES))
QUANTITIES = ("value", "eta1", "eta2", "tau1", "tau2", "eta_tau")

DERIVATIVE_TOLERANCE = 1e-10
VALUE_TOLERANCE = 1e-12

SHARE_OF_TERMS = 1e-13
"""Share of the sum of the absolute terms that an error may reach: 450 rounding units. An argument
such as ``eta - log(alpha)`` alone brings about 40 of them, at eta = -40 and alpha = 1e7."""

SMALLEST = 1e-300
"""Numbers below it, nearly subnormal, are compared with zero."""

STEP = 2.0**-10

each_kind = pytest.mark.parametrize(
    ("name", "link"), KINDS, ids=[f"{name}-{link}" for name, link in KINDS]
)


def column(entries: list[dict[str, Any]], key: str) -> FloatArray:
    return np.array([float(entry[key]) for entry in entries])


def arguments(entries: list[dict[str, Any]]) -> dict[str, FloatArray]:
    keys = ("dispersion", "n_trials")
    return {key: column(entries, key) for key in keys if entries[0][key] is not None}


def entries_of(name: str, link: str) -> list[dict[str, Any]]:
    return [entry for entry in ENTRIES if (entry["family"], entry["link"]) == (name, link)]


def quantities_of(entries: list[dict[str, Any]]) -> list[str]:
    return [quantity for quantity in QUANTITIES if quantity in entries[0]]


def misses(found: FloatArray, entries: list[dict[str, Any]], quantity: str) -> list[str]:
    """Describe the points at which a quantity is not the reference."""
    reference = column(entries, quantity)
    size = np.array([entry["sizes"][quantity] for entry in entries])
    is_value = quantity in ("value", "log_base_measure")
    relative = VALUE_TOLERANCE if is_value else DERIVATIVE_TOLERANCE
    tolerance = relative * np.abs(reference) + SHARE_OF_TERMS * size + SMALLEST
    keys = ("y", "eta", "dispersion", "n_trials")
    return [
        f"{quantity} at {[entries[i][key] for key in keys]}: {found[i]!r}, not {reference[i]!r}"
        for i in np.flatnonzero(~(np.abs(found - reference) <= tolerance))
    ]


@each_kind
def test_values_and_derivatives_are_those_of_the_reference(name: str, link: str) -> None:
    entries = entries_of(name, link)
    result = get_family(name, link).log_density_derivatives(
        column(entries, "y"), column(entries, "eta"), **arguments(entries)
    )
    for quantity in QUANTITIES:
        found = getattr(result, quantity)
        assert (found is None) == (quantity not in entries[0])
        if found is not None:
            assert misses(found, entries, quantity) == []


@each_kind
def test_base_measure_is_that_of_the_reference(name: str, link: str) -> None:
    entries = entries_of(name, link)
    base = get_family(name, link).log_base_measure(
        column(entries, "y"), n_trials=arguments(entries).get("n_trials")
    )
    assert misses(base, entries, "log_base_measure") == []


@pytest.mark.parametrize(("factor", "share"), [(0.99, 0.85), (1 + 1e-8, 0.7)])
@each_kind
def test_a_wrong_factor_is_noticed(name: str, link: str, factor: float, share: float) -> None:
    """At most points; the others are differences of far larger terms."""
    entries = entries_of(name, link)
    for quantity in quantities_of(entries):
        reference = column(entries, quantity)
        n_nonzero = np.count_nonzero(np.abs(reference) > SMALLEST)
        assert misses(reference, entries, quantity) == []
        assert len(misses(factor * reference, entries, quantity)) >= share * n_nonzero


@each_kind
def test_derivatives_are_finite_differences_of_the_order_below(name: str, link: str) -> None:
    r"""Central differences with steps h and h/2 differ by three times the error of the second.

    The error of a difference is :math:`h^2 f''' / 6 + O(h^4)`, and rounding adds the error of f
    over h. The tolerance is thus the difference itself, three times the error.
    """
    entries = [
        entry
        for entry in entries_of(name, link)
        if abs(entry["eta"]) < 3 and entry["y"] < 100 and 0.1 < (entry["dispersion"] or 1) < 100
    ]
    assert len(entries) >= 8
    family, given = get_family(name, link), arguments(entries)
    y, eta = column(entries, "y"), column(entries, "eta")

    def at(quantity: str, variable: str, shift: float) -> FloatArray:
        changed, moved = dict(given), eta
        if variable == "tau":
            changed["dispersion"] = given["dispersion"] * np.exp(shift)
        else:
            moved = eta + shift
        result: FloatArray = getattr(family.log_density_derivatives(y, moved, **changed), quantity)
        return result

    for quantity, below, variable in (
        ("eta1", "value", "eta"),
        ("eta2", "eta1", "eta"),
        ("tau1", "value", "tau"),
        ("tau2", "tau1", "tau"),
        ("eta_tau", "eta1", "tau"),
        ("eta_tau", "tau1", "eta"),
    ):
        if quantity not in entries[0]:
            continue
        coarse, fine = (
            (at(below, variable, h) - at(below, variable, -h)) / (2 * h) for h in (STEP, STEP / 2)
        )
        rounding = SHARE_OF_TERMS * np.array([entry["sizes"][below] for entry in entries]) / STEP
        error = np.abs(at(quantity, variable, 0.0) - fine)
        assert np.all(error <= np.abs(coarse - fine) + rounding)
        assert np.all(np.abs(coarse - fine) <= 1e-5 * (1 + np.abs(fine)))  # the test is sharp


@pytest.mark.parametrize("loop", [softmax_rows.python, softmax_rows], ids=["python", "compiled"])
@pytest.mark.parametrize("n_classes", sorted({e["n_classes"] for e in REFERENCE["categorical"]}))
def test_classes_are_those_of_the_reference(n_classes: int, loop: Any) -> None:
    """Nothing is a difference of probabilities, so that small numbers are exact too.

    The log probability alone is a difference of predictors, of the size of the largest.
    """
    entries = [e for e in REFERENCE["categorical"] if e["n_classes"] == n_classes]
    eta = np.array([entry["eta"] for entry in entries]).T  # (p, n)
    first, second = np.empty_like(eta), np.empty((n_classes * (n_classes - 1) // 2, eta.shape[1]))
    value = np.zeros((1, len(entries)))
    loop(column(entries, "y"), eta[:, None], value, first[:, None], second[:, None])
    gradient = np.array([entry["gradient"] for entry in entries], dtype=np.float64)
    hessian = np.array([entry["hessian"] for entry in entries], dtype=np.float64)
    assert_allclose(value[0], column(entries, "value"), rtol=1e-14)
    assert_allclose(first.T, gradient, rtol=1e-14)
    assert_allclose(second.T, hessian[:, *np.triu_indices(n_classes - 1)], rtol=1e-14)
