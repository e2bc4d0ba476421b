"""What `fit_em` returns: fields, criteria, starts and printed tables."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.em.assembly import assemble_fit
from moment_init.em.result import EMFit
from moment_init.em.runs import Runs
from moment_init.results import StartRecord, StartStatus, Status
from tests.em_fits import GATE_NAMES, NAMES, Fitted, make_fit
from tests.likelihood_problems import BOTH, GATED, GROUPS, PLAIN, VARIANTS, WEIGHTS, Variant


@pytest.fixture
def gaussian(rng: np.random.Generator) -> Fitted:
    return make_fit("gaussian", "identity", rng)


def with_starts(fit: EMFit, *ends: tuple[float, StartStatus]) -> EMFit:
    records = [
        StartRecord(f"random {index}", fit.log_likelihood - below, 7, status)
        for index, (below, status) in enumerate(ends)
    ]
    return replace(fit, starts=tuple(records))


CONVERGED, OVERTAKEN, FAILED = (
    StartStatus.CONVERGED,
    StartStatus.OVERTAKEN,
    StartStatus.FAILED,
)


# --- fields --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_shapes(variant: str, rng: np.random.Generator) -> None:
    fitted = make_fit("gamma", "log", rng, variant=VARIANTS[variant])
    fit = fitted.fit
    assert fit.n_components == 2
    assert fit.coefficients.shape == fit.directions.shape == (3, 2)
    assert fit.biases.shape == fit.weights.shape == fit.scales.shape == (2,)
    assert fit.dispersion is not None
    assert fit.dispersion.shape == (2,)
    assert fit.responsibilities.shape == (600, 2)
    assert (fit.family, fit.link, fit.n_obs) == ("gamma", "log", 600)
    assert fit.feature_names == tuple(NAMES)
    has_gate = VARIANTS[variant].gated
    assert fit.gate_names == (tuple(GATE_NAMES) if has_gate else ())
    assert (fit.gate is None) is (fit.gate_biases is None) is not has_gate
    assert fit.n_parameters == 10 + 1 + 2 * has_gate
    assert fit.covariance is not None
    assert fit.covariance.shape == (fit.n_parameters, fit.n_parameters)
    assert fit.converged
    assert (fit.status, fit.warnings, fit.bounds) == (Status.OK, (), ())


def test_components_come_by_decreasing_weight(gaussian: Fitted) -> None:
    fit = gaussian.fit
    assert fit.weights[0] > fit.weights[1]
    flipped = gaussian.end.parameters.reorder(np.array([1, 0]))
    lean = replace(gaussian.end.sums, missing_information=None)  # so that it is made again
    end = replace(gaussian.end, parameters=flipped, sums=lean)
    other = assemble_fit(gaussian.problem, gaussian.data, end, Runs(gaussian.problem))
    for name in ("coefficients", "biases", "weights", "dispersion", "responsibilities"):
        assert_allclose(getattr(other, name), getattr(fit, name), rtol=1e-9, atol=1e-12)


def test_held_weights_keep_the_order(rng: np.random.Generator) -> None:
    fitted = make_fit("gaussian", "identity", rng, fixed_weights=WEIGHTS[::-1])
    assert_allclose(fitted.fit.weights, WEIGHTS[::-1], rtol=1e-12)


def test_likelihood_is_that_of_the_users_response(gaussian: Fitted) -> None:
    """By hand, in the user's units; its history ends there and never falls."""
    fit, data = gaussian.fit, gaussian.data
    assert fit.dispersion is not None
    assert data.offset is not None
    means = gaussian.X.to_numpy() @ fit.coefficients + fit.biases + data.offset[:, None]
    squares = np.square((gaussian.y[:, None] - means) / fit.dispersion)
    densities = np.exp(-squares / 2) / (np.sqrt(2 * np.pi) * fit.dispersion)
    expected = data.sample_weight @ np.log(densities @ fit.weights)
    assert_allclose(fit.log_likelihood, expected, rtol=1e-10)
    assert_allclose(fit.history[-1], fit.log_likelihood, rtol=1e-12)
    assert np.all(np.diff(fit.history) >= 0.0)


@pytest.mark.parametrize("variant", [PLAIN, GROUPS])
def test_criteria_by_hand(variant: Variant, rng: np.random.Generator) -> None:
    fitted = make_fit("poisson", "log", rng, variant=variant)
    fit = fitted.fit
    shares, counts = fit.responsibilities, fitted.data.sample_weight
    units = float(counts.sum())
    if variant.grouped:
        _, first = np.unique(fitted.block["groups"], return_index=True)
        shares, counts, units = shares[first], np.ones(len(first)), float(len(first))
    entropy = -counts @ (shares * np.log(shares)).sum(axis=1)
    assert_allclose(fit.n_units, units, rtol=1e-12)
    assert_allclose(fit.aic, -2 * fit.log_likelihood + 18, rtol=1e-12)
    assert_allclose(fit.bic, -2 * fit.log_likelihood + 9 * np.log(units), rtol=1e-12)
    assert_allclose(fit.icl, fit.bic + 2 * entropy, rtol=1e-10)


def test_parameters_are_those_at_gating_covariates_zero(rng: np.random.Generator) -> None:
    """`weights` are the gate's probabilities at the mean covariates, `parameters` at zero."""
    fitted = make_fit("gaussian", "identity", rng, variant=GATED)
    fit = fitted.fit
    there = fitted.problem.to_user(fitted.end.parameters)
    order = np.argsort(-fitted.end.parameters.weights)
    assert_allclose(fit.parameters.weights, there.reorder(order).weights, rtol=1e-10)
    assert fit.gate is not None
    assert fit.gate_biases is not None
    assert fit.gate_centre is not None
    logits = fit.gate_biases + fit.gate_centre @ fit.gate
    assert_allclose(np.log(fit.weights[0] / fit.weights[1]), logits[0] - logits[1], rtol=1e-9)
    assert_array_equal(fit.gate[:, -1], 0.0)
    assert fit.gate_biases[-1] == 0.0


def test_results_are_frozen(gaussian: Fitted) -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field"):
        gaussian.fit.biases = np.zeros(2)  # type: ignore[misc]


# --- status --------------------------------------------------------------------------------------


def test_an_unfinished_search_says_so(rng: np.random.Generator) -> None:
    fit = make_fit("bernoulli", "logit", rng, max_steps=1).fit
    assert not fit.converged
    assert fit.status is Status.NOT_CONVERGED
    assert any("did not converge (out_of_steps" in warning for warning in fit.warnings)


# --- starts --------------------------------------------------------------------------------------


def test_share_of_best_counts_converged_starts(gaussian: Fitted) -> None:
    """Of four that converged, two are within .01; one that was overtaken and one that failed."""
    fit = with_starts(
        gaussian.fit,
        (0.0, CONVERGED),
        (0.005, CONVERGED),
        (0.02, CONVERGED),
        (30.0, CONVERGED),
        (0.0, OVERTAKEN),
        (np.nan, FAILED),
    )
    assert fit.share_of_best == 0.5
    assert fit.reached_best == (2, 4)
    assert "best log-likelihood reached by 2 of 4 converged starts (6 in all)" in repr(fit)


def test_one_start_says_nothing_about_others(gaussian: Fitted) -> None:
    assert gaussian.fit.share_of_best is None
    assert with_starts(gaussian.fit, (0.0, CONVERGED), (0.0, OVERTAKEN)).share_of_best is None


def test_starts_come_as_a_table(gaussian: Fitted) -> None:
    fit = with_starts(gaussian.fit, (0.0, CONVERGED), (np.nan, FAILED))
    fit = replace(fit, starts=(replace(fit.starts[0], bounds=("a", "b")), fit.starts[1]))
    table = fit.starts_table
    names = ["origin", "log_likelihood", "n_iter", "status", "bounds", "message", "is_sampled"]
    assert list(table.columns) == names
    assert list(table["status"]) == ["converged", "failed"]
    assert list(table["bounds"]) == ["a, b", ""]
    assert table["log_likelihood"].isna().tolist() == [False, True]


# --- printed tables ------------------------------------------------------------------------------


def test_printed_table(rng: np.random.Generator) -> None:
    fit = make_fit("gaussian", "identity", rng, variant=BOTH).fit
    lines = repr(fit).splitlines()
    expected = "EMFit: 2 components, 3 features, gaussian (identity), 600 rows, status ok"
    assert lines[0] == expected
    assert lines[1].split() == ["component", "0", "component", "1"]
    labels = [*NAMES, "bias", "dispersion", "average weight", "rows", "gate: bias"]
    labels += [f"gate: {name}" for name in GATE_NAMES]
    assert [line[: len(label)] for line, label in zip(lines[2:], labels, strict=False)] == labels
    assert len({len(line) for line in lines[1 : 2 + len(labels)]}) == 1  # right-aligned
    value, error = lines[2].split()[1:3]
    assert float(value) == pytest.approx(fit.coefficients[0, 0], rel=1e-2)
    assert float(error.strip("()")) == pytest.approx(
        fit.standard_errors.coefficients[0, 0], rel=0.05
    )
    assert f"log-likelihood {fit.log_likelihood:.2f} (13 parameters)" in lines[-2]
    assert f"BIC {fit.bic:.1f}" in lines[-2]


def test_printed_table_of_what_is_held(rng: np.random.Generator) -> None:
    fit = make_fit("poisson", "log", rng, fixed_weights=WEIGHTS).fit
    assert "0.65 (fixed)" in repr(fit)


def test_printed_table_of_what_is_not_determined(gaussian: Fitted) -> None:
    flat = replace(gaussian.fit.laplace, undetermined=np.ones(11, dtype=bool))
    fit = replace(gaussian.fit, laplace=flat, warnings=("singular & flat",))
    assert "(nan)" in repr(fit)
    assert repr(fit).splitlines()[-1] == "! singular & flat"
    assert "<li>singular &amp; flat</li>" in fit._repr_html_()


def test_notebook_table_escapes_names(gaussian: Fitted) -> None:
    html = gaussian.fit._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "component 1" in html
    assert "<ul>" not in html
