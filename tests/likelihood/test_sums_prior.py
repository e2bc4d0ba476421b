"""The log prior of the climb: derivatives, coordinates, and maxima that exist only with it."""

from dataclasses import replace

import numpy as np
import pytest

from moment_init import simulate_mixture
from moment_init.checks import FloatArray
from moment_init.families.registry import get_family
from moment_init.families.several import AnyFamily, join_families
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import MixtureParameters, pack, unpack
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import LogPrior, likelihood_sums, whitened_precision


def _problem(
    family: AnyFamily, rng: np.random.Generator
) -> tuple[LikelihoodRows, MixtureParameters, LogPrior]:
    """Forty rows of responses, two components, and a prior with numbers for each predictor."""
    n, d, r, p = 40, 3, 2, family.n_predictors
    columns = []
    for member in family.members:
        mean = member.link.mean(0.3 * rng.normal(size=n))
        dispersion = 1.5 if member.has_dispersion else None
        columns.append(member.sample(mean, dispersion=dispersion, rng=rng))
    y = columns[0] if p == 1 else np.asfortranarray(np.column_stack(columns))
    rows = LikelihoodRows(rng.normal(size=(n, d)), y, rng.uniform(0.5, 2.0, size=n))
    shape = () if p == 1 else (p,)
    spreads = np.where(
        [[member.has_dispersion] for member in family.members],
        rng.uniform(0.5, 2.0, size=(p, r)),
        np.nan,
    )
    parameters = MixtureParameters(
        rng.normal(size=(*shape, d, r)),
        rng.normal(size=(*shape, r)),
        np.array([0.7, 0.3]),
        spreads.reshape(*shape, r) if family.has_dispersion else None,
    )
    roots = rng.normal(size=(p, d, d))
    prior = LogPrior(
        roots @ roots.transpose(0, 2, 1) + np.eye(d),
        rng.normal(size=p),
        rng.uniform(1.0, 3.0, size=p),
        1.7,
        rng.normal(size=p),
        rng.uniform(0.5, 1.0, size=p),
        1.3,
    )
    return rows.prepared(family), parameters, prior


FAMILIES: dict[str, AnyFamily] = {
    "poisson": get_family("poisson"),
    "gamma": get_family("gamma"),
    "several": join_families((get_family("poisson"), get_family("gaussian"))),
}


@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_are_those_of_the_value(name: str, has_gate: bool) -> None:
    """Central differences of the log prior, and of its gradient, against what is added."""
    rng = np.random.default_rng(3)
    family = FAMILIES[name]
    rows, parameters, prior = _problem(family, rng)
    if has_gate:
        rows = replace(rows, gate=rng.normal(size=(rows.n_obs, 2)))
        parameters = replace(parameters, gate=np.array([[0.5, 0.0], [-1.0, 0.0]]))
    at = pack(parameters)
    plain = likelihood_sums(family, rows, parameters)
    added = prior.add_to(plain, parameters)

    def gradient(vector: FloatArray) -> FloatArray:
        return prior.add_to(plain, unpack(vector, parameters)).score - plain.score

    def value(vector: FloatArray) -> float:
        return prior.add_to(plain, unpack(vector, parameters)).objective - plain.objective

    step = 1e-5
    units = np.eye(len(at)) * step
    slopes = [(value(at + unit) - value(at - unit)) / (2 * step) for unit in units]
    np.testing.assert_allclose(gradient(at), slopes, rtol=1e-6, atol=1e-7)
    curvature = [(gradient(at - unit) - gradient(at + unit)) / (2 * step) for unit in units]
    np.testing.assert_allclose(
        added.information() - plain.information(), curvature, rtol=1e-6, atol=1e-6
    )
    assert added.log_likelihood == plain.log_likelihood


def test_whitened_precision_is_that_of_scaled_columns() -> None:
    """Independent normals on scaled columns, with two columns of correlation 0.9."""
    covariance = np.array([[4.0, 5.4], [5.4, 9.0]])
    factor, scales = np.linalg.cholesky(covariance), np.sqrt(np.diag(covariance))
    deviations = np.array([0.5, 2.0])
    beta = np.array([0.3, -0.2])  # in the user's units
    whitened = factor.T @ beta
    quadratic = whitened @ whitened_precision(factor, deviations) @ whitened
    assert quadratic == pytest.approx(np.sum((scales * beta / deviations) ** 2), rel=1e-12)


@pytest.mark.parametrize("data_seed", [0, 1, 2])
def test_climb_reaches_the_maximum_of_the_posterior(data_seed: int) -> None:
    """The gradient vanishes at the end, the objective never falls, and few steps are needed."""
    data = simulate_mixture(400, 2, 2, family="gaussian", random_seed=data_seed)
    family = get_family("gaussian")
    rows = LikelihoodRows(data.X, data.y, np.ones(400))
    start = MixtureParameters(
        data.coefficients + 0.3, data.biases, data.weights, np.array([0.5, 0.5])
    )
    prior = LogPrior(
        np.eye(2)[None] / 0.3**2,
        np.zeros(1),
        np.ones(1),
        5.0,
        np.zeros(1),
        np.full(1, 0.2),
    )
    end = maximise(family, rows, start, max_steps=200, em_steps=4, tolerance=1e-9, prior=prior)
    assert end.converged
    assert np.all(np.diff(end.history) >= -1e-9)
    errors = np.sqrt(np.diag(np.linalg.inv(end.information)))
    assert np.all(np.abs(end.sums.score * errors) < 1e-3)
    plain = maximise(family, rows, start, max_steps=200, em_steps=4, tolerance=1e-9)
    assert np.linalg.norm(end.parameters.coefficients) < np.linalg.norm(
        plain.parameters.coefficients
    )
    assert end.log_posterior > prior.add_to(plain.sums, plain.parameters).objective
    assert end.log_likelihood < plain.log_likelihood


def test_separated_rows_have_an_interior_maximum_with_a_prior() -> None:
    """Without a prior the coefficients run to their bound; with one they stay finite."""
    x = np.linspace(-1.0, 1.0, 50)[:, None]
    y = (x[:, 0] > 0.1).astype(float)
    rows = LikelihoodRows(x, y, np.ones(50))
    family = get_family("bernoulli")
    start = MixtureParameters(np.zeros((1, 1)), np.zeros(1), np.ones(1))
    flat = maximise(family, rows, start, max_steps=300, em_steps=3, tolerance=1e-8)
    assert flat.bounds
    prior = LogPrior(np.full((1, 1, 1), 2.5**-2), np.zeros(1), np.full(1, 2.5), 1.0)
    end = maximise(family, rows, start, max_steps=300, em_steps=3, tolerance=1e-8, prior=prior)
    assert end.converged
    assert not end.bounds
    assert 1.0 < end.parameters.coefficients[0, 0] < 20.0
