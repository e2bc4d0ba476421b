"""Decomposition of symmetric tensors: exact moments of every family, and TensorLy beside it."""

import warnings
from typing import Any, Literal

import numpy as np
import pytest
import tensorly
from numpy.testing import assert_allclose, assert_array_equal
from tensorly.decomposition import parafac, symmetric_parafac_power_iteration

from moment_init.likelihood.parameters import match_components
from moment_init.moments.paper import decomposition
from moment_init.moments.paper.decomposition import (
    Decomposition,
    decompose_tensor,
    refine_components,
)
from moment_init.moments.paper.power_iteration import symmetric_coefficients
from moment_init.moments.paper.recovery import choose_signs
from moment_init.moments.paper.whitening import leading_subspace
from tests.population import (
    FAMILY_LINKS,
    FloatArray,
    PopulationMixture,
    cubes_tensor,
    random_mixture,
    symmetric_noise,
    unit_columns,
)

type Method = Literal["power", "tensorly"]
METHODS: list[Method] = ["power", "tensorly"]
N_COMPONENTS = [1, 2, 3, 4, 5, 6]


def direction_error(fit: Decomposition, mixture: PopulationMixture) -> float:
    """Largest error of a matched direction, signs settled as `estimate` settles them."""
    first_order, _ = symmetric_coefficients(mixture.first_moment(), fit.directions)
    family = mixture.family
    is_positive = family.response_power or family.link.third_derivative_sign == 1
    signs = choose_signs(first_order, fit.coefficients, is_third_positive=is_positive)
    directions = fit.directions * signs
    index = match_components(directions, mixture.directions, signed=True)
    return float(np.linalg.norm(directions[:, index] - mixture.directions, axis=0).max())


def check_exact_moments(
    family: str, link: str, n_components: int, n_models: int, method: Method, seed: int
) -> None:
    rng = np.random.default_rng([seed, n_components])
    for _ in range(n_models):
        n_features = int(rng.integers(6, 13))
        mixture = random_mixture(family, link, n_features, n_components, rng)
        fit = decompose_tensor(mixture.third_moment(), n_components, rng, method=method)
        assert direction_error(fit, mixture) < 1e-6
        index = match_components(fit.directions, mixture.directions)
        signs = np.sign(np.sum(fit.directions[:, index] * mixture.directions, axis=0))
        expected = mixture.moment_coefficients(3)
        assert_allclose(fit.coefficients[index] * signs, expected, rtol=1e-5)
        assert fit.is_definite
        assert fit.residual < 1e-9


# --- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_two_cubes_by_hand(method: Method, rng: np.random.Generator) -> None:
    """T = 3 e_1^3 - 2 v^3, v = (3, 4)/5: components up to sign, the larger coefficient first."""
    directions = np.array([[1.0, 0.6], [0.0, 0.8]])
    fit = decompose_tensor(cubes_tensor(np.array([3.0, -2.0]), directions), 2, rng, method=method)
    signs = np.sign(np.sum(fit.directions * directions, axis=0))
    assert_allclose(fit.directions * signs, directions, atol=1e-10)
    assert_allclose(fit.coefficients * signs, [3.0, -2.0], rtol=1e-10)
    assert fit.n_attempts == 1
    assert fit.singular_values.shape == (2,)


# --- exact population moments --------------------------------------------------------------------


@pytest.mark.parametrize("n_components", N_COMPONENTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_exact_moments_give_the_directions(
    family: str, link: str, n_components: int, seed: int
) -> None:
    check_exact_moments(family, link, n_components, 3, "power", seed)


@pytest.mark.parametrize("n_components", [1, 3, 6])
@pytest.mark.parametrize(
    ("family", "link"), [("bernoulli", "logit"), ("poisson", "log"), ("gaussian", "identity")]
)
def test_exact_moments_give_the_directions_by_tensorly(
    family: str, link: str, n_components: int, seed: int
) -> None:
    check_exact_moments(family, link, n_components, 2, "tensorly", seed)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_components", N_COMPONENTS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_exact_moments_of_twenty_models(
    family: str, link: str, n_components: int, method: Method, seed: int
) -> None:
    check_exact_moments(family, link, n_components, 20, method, seed + 1)


def test_the_random_models_have_mixed_signs(rng: np.random.Generator) -> None:
    """Of ten logistic models with three components some mix positive and negative lambda_j."""
    mixtures = [random_mixture("bernoulli", "logit", 6, 3, rng) for _ in range(10)]
    signs = [set(np.sign(mixture.moment_coefficients(3))) for mixture in mixtures]
    assert {-1.0, 1.0} in signs


# --- identities ----------------------------------------------------------------------------------


def tensor_and_truth(rng: np.random.Generator) -> tuple[FloatArray, PopulationMixture]:
    mixture = random_mixture("bernoulli", "probit", 6, 3, rng)
    return mixture.third_moment(), mixture


def test_permuting_the_features_permutes_the_directions(rng: np.random.Generator) -> None:
    tensor, mixture = tensor_and_truth(rng)
    order = rng.permutation(6)
    fit = decompose_tensor(tensor[np.ix_(order, order, order)], 3, rng)
    index = match_components(fit.directions, mixture.directions[order])
    cosines = np.sum(fit.directions[:, index] * mixture.directions[order], axis=0)
    assert_allclose(np.abs(cosines), 1.0, rtol=1e-10)


@pytest.mark.parametrize("factor", [1e-12, -1.0, 1e12])
def test_the_scale_of_the_tensor_scales_the_coefficients(
    factor: float, rng: np.random.Generator
) -> None:
    tensor, mixture = tensor_and_truth(rng)
    fit = decompose_tensor(factor * tensor, 3, rng)
    index = match_components(fit.directions, mixture.directions)
    signs = np.sign(np.sum(fit.directions[:, index] * mixture.directions, axis=0))
    assert_allclose(fit.directions[:, index] * signs, mixture.directions, atol=1e-8)
    expected = factor * mixture.moment_coefficients(3)
    assert_allclose(fit.coefficients[index] * signs, expected, rtol=1e-8)


def test_components_come_with_the_largest_first(rng: np.random.Generator) -> None:
    tensor, _ = tensor_and_truth(rng)
    fit = decompose_tensor(tensor, 3, rng)
    assert np.all(np.diff(np.abs(fit.coefficients)) <= 0.0)
    assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-12)
    assert_allclose(cubes_tensor(fit.coefficients, fit.directions), tensor, atol=1e-12)


# --- against TensorLy ----------------------------------------------------------------------------


def tensorly_factors(tensor: FloatArray, n_components: int, seed: int) -> FloatArray:
    cp = parafac(
        tensorly.tensor(tensor),
        rank=n_components,
        init="svd",
        n_iter_max=2000,
        tol=1e-15,
        random_state=seed,
        normalize_factors=True,
    )
    return np.asarray(cp[1][0])


def test_agrees_with_parafac_on_exact_tensors(rng: np.random.Generator, seed: int) -> None:
    """ALS stops at a relative error of about 1e-8, the square root of double precision."""
    for _ in range(3):
        directions = unit_columns(np.eye(5, 3) + 0.2 * rng.standard_normal((5, 3)))
        tensor = cubes_tensor(np.array([2.0, -1.5, 1.0]), directions)
        ours = decompose_tensor(tensor, 3, rng).directions
        theirs = tensorly_factors(tensor, 3, seed)
        index = match_components(theirs, ours)
        signs = np.sign(np.sum(theirs[:, index] * ours, axis=0))
        assert_allclose(theirs[:, index] * signs, ours, atol=1e-5)


def test_succeeds_where_tensorlys_power_method_on_the_raw_tensor_fails(
    rng: np.random.Generator,
) -> None:
    """Oblique components are no eigenvectors of the raw tensor, so that no iteration finds them.

    At cosines of about 0.5 the error is of the order of a tenth; ours is that of rounding.
    """
    state = np.random.get_state()  # noqa: NPY002
    try:
        for _ in range(2):
            directions = unit_columns(np.eye(4, 3) + 0.5)
            coefficients = rng.uniform(0.8, 1.2, 3)
            tensor = cubes_tensor(coefficients, directions)
            np.random.seed(int(rng.integers(2**31)))  # noqa: NPY002
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, raw = symmetric_parafac_power_iteration(
                    tensorly.tensor(tensor), rank=3, n_repeat=20, n_iteration=20
                )
            assert worst_error(np.asarray(raw), directions) > 0.05
            for method in METHODS:
                ours = decompose_tensor(tensor, 3, rng, method=method).directions
                assert worst_error(ours, directions) < 1e-8
    finally:
        np.random.set_state(state)  # noqa: NPY002


def worst_error(estimated: FloatArray, directions: FloatArray) -> float:
    estimated = unit_columns(estimated)
    index = match_components(estimated, directions)
    signs = np.sign(np.sum(estimated[:, index] * directions, axis=0))
    return float(np.linalg.norm(estimated[:, index] * signs - directions, axis=0).max())


def test_tensorly_leaves_the_global_generator_alone(rng: np.random.Generator) -> None:
    tensor, _ = tensor_and_truth(rng)
    before = np.random.get_state()  # noqa: NPY002
    decompose_tensor(tensor, 3, rng, method="tensorly")
    after = np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]


# --- refinement ----------------------------------------------------------------------------------


def test_refinement_takes_rough_directions_to_exact_ones(rng: np.random.Generator) -> None:
    directions = unit_columns(np.eye(4, 3) + 0.2 * rng.standard_normal((4, 3)))
    tensor = cubes_tensor(np.array([1.0, -2.0, 1.5]), directions)
    rough = unit_columns(directions + 0.02 * rng.standard_normal((4, 3)))
    refined = refine_components(tensor, rough)
    # The sweeps stop when the relative error changes by less than 1e-10: its root is 1e-5.
    assert worst_error(refined, directions) < 1e-4 < 0.01 < worst_error(rough, directions)
    assert symmetric_coefficients(tensor, refined)[1] < symmetric_coefficients(tensor, rough)[1]


@pytest.mark.parametrize("method", METHODS)
def test_directions_are_those_of_tensorly(
    method: Method, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another `parafac` in its place, the decomposition returns what that one returns."""
    basis, _ = leading_subspace(tensor := tensor_and_truth(rng)[0], 3)
    factors = [unit_columns(rng.standard_normal((3, 3)))] * 3
    starts = []

    def other_parafac(tensor: FloatArray, **settings: Any) -> tuple[FloatArray, list[FloatArray]]:
        starts.append(settings["init"].factors[1])
        return np.ones(3), factors

    expected = basis @ factors[0]
    plain = decompose_tensor(tensor, 3, np.random.default_rng(1), method=method).directions
    assert worst_error(plain, expected) > 0.01
    monkeypatch.setattr(decomposition, "parafac", other_parafac)
    replaced = decompose_tensor(tensor, 3, np.random.default_rng(1), method=method).directions
    assert worst_error(replaced, expected) < 1e-12
    # What it starts from are the components that whitening and power iteration have found.
    assert len(starts) == 1
    assert worst_error(basis @ starts[0], plain) < 1e-6


def test_a_sweep_that_breaks_down_keeps_the_start(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def singular(*_: Any, **__: Any) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    start = unit_columns(rng.standard_normal((3, 2)))
    monkeypatch.setattr(decomposition, "parafac", singular)
    assert_array_equal(refine_components(symmetric_noise(rng, 3), start), start)


def test_refinement_of_equal_columns_keeps_unit_vectors() -> None:
    """Two equal columns make every normal matrix of the sweeps singular."""
    tensor = cubes_tensor(np.array([1.0, 2.0]), np.eye(3)[:, :2])
    same = np.repeat(unit_columns(np.ones((3, 1))), 2, axis=1)
    refined = refine_components(tensor, same)
    assert np.all(np.isfinite(refined))
    assert_allclose(np.linalg.norm(refined, axis=0), 1.0, rtol=1e-10)


# --- noise and degenerate tensors ----------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_noise_is_decomposed_without_an_error(method: Method, rng: np.random.Generator) -> None:
    """Whatever the tensor: unit directions, finite coefficients, an honest account."""
    for size in (2, 2, 2, 2, 2, 2, 3, 4):
        tensor = symmetric_noise(rng, size)
        fit = decompose_tensor(tensor, size, rng, method=method)
        assert np.all(np.isfinite(fit.coefficients))
        assert_allclose(np.linalg.norm(fit.directions, axis=0), 1.0, rtol=1e-8)
        assert 0.0 <= fit.residual <= 1.0 + 1e-12
        assert 1 <= fit.n_attempts <= 5


def test_more_components_than_the_tensor_has_are_not_definite(rng: np.random.Generator) -> None:
    tensor = cubes_tensor(np.array([2.0, 1.0]), np.eye(4)[:, :2])
    fit = decompose_tensor(tensor, 3, rng)
    assert not fit.is_definite
    assert fit.singular_values[2] < 1e-12
    assert np.all(np.isfinite(fit.directions))


def test_zero_tensor_gives_no_signal(rng: np.random.Generator) -> None:
    fit = decompose_tensor(np.zeros((3, 3, 3)), 2, rng)
    assert_array_equal(fit.coefficients, np.zeros(2))
    assert not fit.is_definite


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits(method: Method, seed: int, rng: np.random.Generator) -> None:
    tensor, _ = tensor_and_truth(rng)
    first, again = (
        decompose_tensor(tensor, 3, np.random.default_rng(seed), method=method).directions
        for _ in range(2)
    )
    assert first.tobytes() == again.tobytes()
