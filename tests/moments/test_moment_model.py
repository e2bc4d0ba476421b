"""Exact moments give back all parameters, for every family."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.likelihood.parameters import MixtureParameters, match_components, pack, unpack
from moment_init.moments.expectations import Condition, ExpectedFunctions, start_grid
from moment_init.moments.moment_model import MomentModel
from moment_init.moments.subspace import hermite_basis
from moment_init.moments.tensor import cp_candidates, stack_slices
from tests.population import FAMILY_LINKS, FloatArray

N_TRIALS = 4
SIZE = 3


def mixture_of(family: Family) -> MixtureParameters:
    """Three components of a size that is usual for the family, in no symmetric position."""
    directions = np.array([[1.0, 0.3, -0.4], [0.2, -1.0, 0.5], [-0.3, 0.4, 1.0]])
    directions /= np.linalg.norm(directions, axis=0)
    scale = {"identity": 0.8, "log": 0.6}.get(family.link.name, 1.8)
    return MixtureParameters(
        coefficients=directions * scale * np.array([1.0, 0.7, 1.3]),
        biases=np.array([0.4, -0.3, 0.1]) * scale,
        weights=np.array([0.45, 0.3, 0.25]),
        dispersion=_dispersion(family),
    )


def _dispersion(family: Family) -> FloatArray | None:
    if not family.has_dispersion:
        return None
    base = 0.3 if family.link.name == "identity" else 3.0
    return base * np.array([1.0, 1.4, 0.7])


def responses(family: Family, mixture: MixtureParameters, rng: np.random.Generator) -> FloatArray:
    """A sample that settles location and scale of the functions."""
    component = rng.choice(3, 20_000, p=mixture.weights)
    z = rng.standard_normal((20_000, SIZE))
    eta = np.einsum("na,an->n", z, mixture.coefficients[:, component]) + mixture.biases[component]
    spread = None if mixture.dispersion is None else mixture.dispersion[component]
    y = family.sample(family.link.mean(eta), dispersion=spread, n_trials=N_TRIALS, rng=rng)
    return family.moment_response(y, order=1, n_trials=N_TRIALS)


def model_of(family: Family, rng: np.random.Generator) -> MomentModel:
    response = responses(family, mixture_of(family), rng)
    functions = family.fit_response_functions(response)
    values = functions(response)
    deviations = values.std(axis=0)
    expected = ExpectedFunctions(
        family=family,
        functions=functions,
        function_mean=values.mean(axis=0),
        function_map=np.diag(1.0 / deviations),
        conditions=(Condition(1.0, n_trials=N_TRIALS if family.has_trials else None),),
        largest_count=400 if family.response_basis.has_zero_indicator else 0,
    )
    grid, prior = start_grid(family, float(response.mean()))
    # So many rows that the prior says nothing.
    return MomentModel(expected, hermite_basis(SIZE, 3), 1e15, grid, prior)


def integrate_response(model: MomentModel, eta: FloatArray, dispersion: float | None) -> FloatArray:
    """E[T(y) | eta] by summing or integrating the density itself, not by the family's nodes."""
    family = model.expected.family
    if family.name == "gaussian":
        points = np.linspace(-9.0, 9.0, 8001)
        measure = np.full(points.shape, points[1] - points[0])
    elif family.name == "gamma":
        logs = np.linspace(-22.0, 9.0, 8001)
        points = np.exp(logs)
        measure = points * (logs[1] - logs[0])
    else:
        most = {"bernoulli": 1, "binomial": N_TRIALS}.get(family.name, 800)
        points = np.arange(most + 1.0)
        measure = np.ones(points.shape)
    density = family.log_density_eta(
        points,
        eta[:, None],
        dispersion=dispersion,
        n_trials=N_TRIALS if family.has_trials else None,
    )
    response = family.moment_response(points, order=1, n_trials=N_TRIALS)
    values = model.expected.functions(response) - model.expected.function_mean
    return np.asarray((np.exp(density) * measure) @ (values @ model.expected.function_map))


def population_moments(model: MomentModel, mixture: MixtureParameters) -> FloatArray:
    """Full tensors of the population by Gauss-Hermite quadrature, then their distinct entries."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(90)
    weights = weights / weights.sum()
    polynomials = [np.ones_like(nodes), nodes, nodes**2 - 1, nodes**3 - 3 * nodes]
    total = np.zeros((model.expected.function_map.shape[1], model.basis.size))
    for j in range(mixture.n_components):
        scale, direction = mixture.scales[j], mixture.directions[:, j]
        spread = None if mixture.dispersion is None else float(mixture.dispersion[j])
        means = integrate_response(model, scale * nodes + mixture.biases[j], spread)
        for order in range(4):
            along = (weights * polynomials[order]) @ means  # E[T He_m]
            entries = model.basis.indices[order]
            # E[T S_m] has the entries along * u_a u_b ...; the basis divides by sqrt(prod k!).
            factor = np.array([1.0, 1.0, 2.0, 6.0])[order] / model.basis.multiplicities[order]
            powers = direction[entries].prod(axis=1) / np.sqrt(factor)
            columns = model.basis.columns(order)
            total[:, columns] += mixture.weights[j] * np.outer(along, powers)
    return total


@pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
def test_predicted_moments_are_those_of_the_population(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """To the accuracy of the families' quadrature of the response, 1e-6."""
    family = get_family(name, link)
    model, mixture = model_of(family, rng), mixture_of(family)
    assert_allclose(model.predict(mixture), population_moments(model, mixture), atol=2e-6)


@pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
def test_exact_moments_give_back_all_parameters(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """Directions come from the decomposition, all the rest from the grid and the fit."""
    family = get_family(name, link)
    model, mixture = model_of(family, rng), mixture_of(family)
    moments = model.predict(mixture)
    (best, *_) = cp_candidates(stack_slices(moments, model.basis), 3, rng)
    start = model.start(best.directions, moments)
    fit = model.fit(start, moments, None, max_steps=300, tolerance=1e-15)
    order = match_components(fit.parameters.coefficients, mixture.coefficients, signed=True)
    found = fit.parameters.reorder(order)
    assert_allclose(found.coefficients, mixture.coefficients, atol=1e-5)
    assert_allclose(found.biases, mixture.biases, atol=1e-5)
    assert_allclose(found.weights, mixture.weights, atol=1e-5)
    if mixture.dispersion is not None:
        assert found.dispersion is not None
        assert_allclose(found.dispersion, mixture.dispersion, rtol=1e-4)


@pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
def test_jacobian_by_differences(name: str, link: str, rng: np.random.Generator) -> None:
    family = get_family(name, link)
    model, mixture = model_of(family, rng), mixture_of(family)
    vector, step = pack(mixture), 1e-5
    numerical = np.empty((*model.predict(mixture).shape, len(vector)))
    for index in range(len(vector)):
        move = np.zeros_like(vector)
        move[index] = step
        upper, lower = (model.predict(unpack(vector + sign * move, mixture)) for sign in (1, -1))
        numerical[..., index] = (upper - lower) / (2 * step)
    assert_allclose(model.jacobian(mixture), numerical, atol=2e-5)


def test_moments_of_the_identity_by_hand(rng: np.random.Generator) -> None:
    """T = y for a gaussian response with eta = s z + b: h_0 = b, h_1 = s, h_2 = h_3 = 0."""
    model = model_of(get_family("gaussian"), rng)
    expected = model.expected
    moments = expected.component_moments(np.array([0.7]), np.array([0.2]), np.array([0.3]), 3)[0]
    scale = expected.functions.scale / expected.function_map[0, 0]
    location = expected.functions.location + expected.function_mean[0] * expected.functions.scale
    assert_allclose(moments[:, 0] * scale, [0.2 - location, 0.7, 0.0, 0.0], atol=1e-10)


def test_prior_decides_without_rows(rng: np.random.Generator) -> None:
    """With hardly a row behind the moments biases and weights go to the prior's centre."""
    family = get_family("poisson")
    model, mixture = model_of(family, rng), mixture_of(family)
    weak = MomentModel(model.expected, model.basis, 1e-8, model.grid, model.prior)
    fit = weak.fit(mixture, model.predict(mixture), None, max_steps=100)
    assert_allclose(fit.parameters.weights, 1 / 3, atol=1e-3)
    assert_allclose(fit.parameters.biases, model.prior.bias_mean, atol=1e-3)
    assert fit.jacobian.shape == (model.predict(mixture).size + 6, len(pack(mixture)))
