"""Starts for Stan programs: declarations, axes, constraints, and JSON as cmdstanpy takes it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em, initial_values
from moment_init.em.start_values import StartValues
from moment_init.posterior.model_variables import Declaration, read_parameters
from tests.em_fits import make_fit

PROGRAM = """
// real hidden;  a comment that declares nothing
data {
  int<lower=1> N; int<lower=1> K; int<lower=1> D;
  matrix[N, D] X;
  vector[N] y;
}
transformed data { real half = 0.5; }
parameters {
  simplex[K] w;            /* weights; vector[D] no; */
  ordered[K] alpha;
  array[K] vector[D] beta;
  vector<lower=0, upper=1e3>[K] sigma;
  real extra;
}
transformed parameters {
  matrix[N, K] eta;
  for (k in 1:K) { eta[, k] = alpha[k] + X * beta[k]; }
}
model { w ~ dirichlet(rep_vector(1, K)); }
"""
MAPPING: Any = {"w": "weight", "alpha": "bias", "beta": "coefficient", "sigma": "dispersion"}


@pytest.fixture
def fit(rng: np.random.Generator) -> EMFit:
    """Three features and two components with dispersions."""
    return make_fit("gaussian", "identity", rng, with_extras=False).fit


def stan_values(fit: EMFit, program: Any, mapping: Any, **options: Any) -> Any:
    return initial_values(fit, program, mapping=mapping, backend="stan", **options)


def block(declarations: str) -> str:
    return f"parameters {{ {declarations} }}"


def test_values_have_the_declared_shapes_and_order(fit: EMFit) -> None:
    values = stan_values(fit, PROGRAM, MAPPING)
    assert list(values) == ["w", "alpha", "beta", "sigma"]  # `extra` is left to Stan
    order = np.argsort(fit.biases)
    assert_array_equal(values["alpha"], fit.biases[order])
    assert_array_equal(values["beta"], fit.coefficients.T[order])
    assert_array_equal(values["w"], fit.weights[order])
    assert fit.dispersion is not None
    assert_array_equal(values["sigma"], fit.dispersion[order])


def test_values_are_json(fit: EMFit) -> None:
    """Lists and numbers only, an outer list for the array and an inner one for its vectors."""
    values = stan_values(fit, PROGRAM, MAPPING)
    assert json.loads(json.dumps(values)) == values
    assert [len(row) for row in values["beta"]] == [3, 3]
    assert isinstance(values["beta"][0][0], float)


def test_program_may_be_a_path_or_an_object(fit: EMFit, tmp_path: Path) -> None:
    expected = stan_values(fit, PROGRAM, MAPPING)
    path = tmp_path / "mixture.stan"
    path.write_text(PROGRAM, encoding="utf-8")

    class Compiled:
        """As a CmdStanModel, which knows its program."""

        def code(self) -> str:
            return PROGRAM

    for program in (path, str(path), Compiled()):
        assert stan_values(fit, program, MAPPING) == expected


@pytest.mark.parametrize(
    ("declaration", "is_transposed"),
    [
        ("matrix[D, K] beta;", False),
        ("matrix[K, D] beta;", True),
        ("array[K] row_vector[D] beta;", True),
        ("array[D] vector[K] beta;", False),
        ("vector[D] beta[K];", True),  # arrays of old programs
        ("array[D, K] real beta;", False),
        ("matrix[3, 2] beta;", False),
        ("matrix[2, 3] beta;", True),
    ],
)
def test_axes_follow_the_declaration(fit: EMFit, declaration: str, is_transposed: bool) -> None:
    program = block(f"simplex[K] w; {declaration}")
    values = stan_values(fit, program, {"w": "weight", "beta": "coefficient"})
    expected = fit.coefficients.T if is_transposed else fit.coefficients
    assert_array_equal(values["beta"], expected)


def test_names_of_the_data_model_need_no_entry(fit: EMFit) -> None:
    program = block("vector[K] bias; simplex[K] weight; matrix[K, D] coefficient; real other;")
    values = stan_values(fit, program, None)
    assert list(values) == ["bias", "weight", "coefficient"]


def test_axes_that_nothing_tells_apart_are_refused(fit: EMFit) -> None:
    with pytest.raises(ValueError, match=r"matrix beta of sizes \[A, B\] in more than one way"):
        stan_values(fit, block("matrix[A, B] beta;"), {"beta": "coefficient"})
    with pytest.raises(ValueError, match=r"matrix beta of sizes \[A, A\] in no way"):
        stan_values(fit, block("matrix[A, A] beta;"), {"beta": "coefficient"})
    found = stan_values(
        fit, block("matrix[A, B] beta;"), {"beta": lambda start: start.coefficients}
    )
    assert_array_equal(found["beta"], fit.coefficients)


def test_single_component_may_lack_its_axis(rng: np.random.Generator) -> None:
    X = rng.standard_normal((200, 3))
    fit = fit_em(X, rng.poisson(np.exp(0.3 * X[:, 0])), 1, family="poisson", random_seed=1)
    program = block("real alpha; vector[D] beta;")
    values = stan_values(fit, program, {"alpha": "bias", "beta": "coefficient"})
    assert values["alpha"] == fit.biases[0]
    assert_array_equal(values["beta"], fit.coefficients[:, 0])


def test_several_components_need_their_axis(fit: EMFit) -> None:
    with pytest.raises(ValueError, match="does not fit into the model's variable 'alpha'"):
        stan_values(fit, block("real alpha;"), {"alpha": "bias"})


def test_chains_are_spread_jointly_and_inside(fit: EMFit) -> None:
    """Draws of an EM fit's normal approximation, in one order of the components."""
    values = stan_values(fit, PROGRAM, MAPPING, spread=1.0, chains=4, random_seed=1)
    assert len(values) == 4
    assert len({chain["alpha"][0] for chain in values}) == 4
    for chain in values:
        assert chain["alpha"] == sorted(chain["alpha"])
        assert_allclose(np.sum(chain["w"]), 1.0, atol=1e-8)
    with pytest.raises(ValueError, match=r"`chains` must be given .* no PyMC model"):
        stan_values(fit, PROGRAM, MAPPING, spread=1.0)


def test_values_without_a_program_are_lists(fit: EMFit) -> None:
    values = stan_values(fit, None, {"b": "bias", "beta": lambda start: start.coefficients.T})
    assert values == {"b": fit.biases.tolist(), "beta": fit.coefficients.T.tolist()}


@pytest.mark.parametrize(
    ("kind", "value", "is_allowed"),
    [
        ("simplex", [0.25, 0.75], True),
        ("simplex", [0.0, 1.0], False),
        ("simplex", [0.5, 0.6], False),
        ("ordered", [-1.0, 2.0], True),
        ("ordered", [2.0, -1.0], False),
        ("positive_ordered", [1.0, 2.0], True),
        ("positive_ordered", [-1.0, 2.0], False),
        ("unit_vector", [0.6, 0.8], True),
        ("unit_vector", [0.6, 0.9], False),
        ("vector", [0.6, np.nan], False),
        ("vector", [[0.6]], False),
    ],
)
def test_declared_constraints(kind: str, value: list[Any], is_allowed: bool) -> None:
    assert Declaration("a", kind, ("K",)).allows(np.array(value)) is is_allowed


def test_values_outside_of_the_declaration_are_refused(fit: EMFit) -> None:
    mapping = {"alpha": lambda start: -np.ones(2)}
    with pytest.raises(ValueError, match=r"'alpha' must start inside .* between 0 and inf; got \["):
        stan_values(fit, block("vector<lower=0>[K] alpha;"), mapping)
    # A bound that is no number is Stan's to check.
    assert stan_values(fit, block("vector<lower=floor>[K] alpha;"), mapping)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("X", "is data"), ("half", "is data"), ("eta", "is computed from others"), ("z", "is not in")],
)
def test_names_that_are_no_parameters_are_refused(fit: EMFit, name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' {reason}.*free variables are 'w', 'alpha'"):
        stan_values(fit, PROGRAM, {name: "bias"})


def test_what_is_no_program_is_refused(fit: EMFit) -> None:
    with pytest.raises(TypeError, match=r"`model` must be a Stan program.*; got int"):
        stan_values(fit, 3, MAPPING)
    with pytest.raises(ValueError, match="`model` must be a Stan program that declares parameters"):
        stan_values(fit, "model { }", MAPPING)


def test_covariances_of_a_gate_have_two_equal_axes() -> None:
    covariances = np.array([np.diag([1.0, 2.0]), np.diag([3.0, 4.0]), np.eye(2)])
    start = StartValues(np.ones((4, 3)), biases=np.zeros(3), gate_covariances=covariances)
    program = block("vector[K] b; array[K] cov_matrix[G] omega;")
    variables, _ = read_parameters(program, start, {"b": "bias", "omega": "gate_covariance"})
    assert variables["omega"].shape == (3, 2, 2)
    assert variables["omega"].dims == ("component", "gate_feature", "gate_feature_2")
