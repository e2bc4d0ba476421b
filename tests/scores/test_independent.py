"""Scores of independent columns, and the choice of a density for each."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from moment_init.scores import ColumnDensity, ColumnMixture, Gaussian, Independent, stein_check
from tests.population import FloatArray
from tests.scores.oracles import assert_contractions, assert_moments, assert_recursion

COLUMNS = {
    "normal": (ColumnDensity("normal", 1.0, 2.0), stats.norm(1.0, 2.0)),
    "logistic": (ColumnDensity("logistic", 1.0, 2.0), stats.logistic(1.0, 2.0)),
    "student_t": (ColumnDensity("student_t", 1.0, 2.0, (5.0,)), stats.t(5.0, 1.0, 2.0)),
    "skew_normal": (ColumnDensity("skew_normal", 1.0, 2.0, (3.0,)), stats.skewnorm(3.0, 1.0, 2.0)),
    "gamma": (ColumnDensity("gamma", 1.0, 2.0, (8.0,)), stats.gamma(8.0, 1.0, 2.0)),
    "lognormal": (ColumnDensity("lognormal", 1.0, 2.0, (0.3,)), stats.lognorm(0.3, 1.0, 2.0)),
}
MIXTURE = ColumnMixture(np.array([0.6, 0.4]), np.array([-1.0, 2.0]), np.array([0.7, 1.0]))


def known() -> Independent:
    return Independent([*(density for density, _ in COLUMNS.values()), MIXTURE])


def draw(rng: np.random.Generator, n_obs: int) -> FloatArray:
    columns = [law.rvs(n_obs, random_state=rng) for _, law in COLUMNS.values()]
    label = rng.choice(2, n_obs, p=MIXTURE.weights)
    mixed = MIXTURE.means[label] + MIXTURE.deviations[label] * rng.standard_normal(n_obs)
    return np.column_stack([*columns, mixed])


def test_scores_are_those_of_the_papers_recursion(rng: np.random.Generator) -> None:
    assert_recursion(known(), draw(rng, 3), rng)


def test_contractions(rng: np.random.Generator) -> None:
    assert_contractions(known(), draw(rng, 40), rng)


def test_moments_are_those_of_draws(rng: np.random.Generator) -> None:
    assert_moments(known(), draw(rng, 50_000))


@pytest.mark.parametrize("name", COLUMNS)
def test_densities_are_scipys(name: str, rng: np.random.Generator) -> None:
    density, law = COLUMNS[name]
    x = law.rvs(50, random_state=rng)
    assert_allclose(density.log_density(x), law.logpdf(x), rtol=1e-9, atol=1e-12)
    assert_allclose([density.mean, density.variance], [law.mean(), law.var()], rtol=1e-10)


@pytest.mark.parametrize("name", ["skew_normal", "gamma", "lognormal"])
def test_a_negative_scale_reflects(name: str, rng: np.random.Generator) -> None:
    density, law = COLUMNS[name]
    mirrored = ColumnDensity(name, -1.0, -2.0, density.shapes)
    x = law.rvs(20, random_state=rng)
    assert_allclose(mirrored.log_density(-x), density.log_density(x), rtol=1e-12)
    signs = (-1.0, 1.0, -1.0)
    pairs = zip(signs, mirrored.derivatives(-x), density.derivatives(x), strict=True)
    for sign, actual, expected in pairs:
        assert_allclose(actual, sign * expected, rtol=1e-12)


def test_gamma_score_by_hand() -> None:
    """Gamma(4): p = x^3 e^-x / 6, so at 1 p' / p = 2, p'' / p = 1 and p''' / p = -4.

    (x^3 e^-x)' = (3 x^2 - x^3) e^-x; '' = (6 x - 6 x^2 + x^3) e^-x; ''' = (6 - 18 x + 9 x^2 - x^3).
    """
    model = Independent([ColumnDensity("gamma", shapes=(4.0,))])
    scores = [model.score([[1.0]], order).ravel()[0] for order in (1, 2, 3)]
    assert_allclose(scores, [-2.0, 1.0, 4.0], rtol=1e-12)


def test_normal_columns_are_the_gaussian(rng: np.random.Generator) -> None:
    X = rng.standard_normal((10, 2))
    model = Independent([ColumnDensity("normal", 1.0, 2.0), ColumnDensity("normal")])
    gaussian = Gaussian([1.0, 0.0], np.diag([4.0, 1.0]))
    for order in (1, 2, 3):
        assert_allclose(model.score(X, order), gaussian.score(X, order), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shape", "order"), [(0.5, 0), (1.5, 1), (2.0, 1), (3.0, 2), (3.1, 3)])
def test_gamma_columns_have_valid_scores_up_to_their_shape(shape: float, order: int) -> None:
    """The derivative of order m - 1 of x^(a - 1) vanishes at zero if a > m."""
    assert Independent([ColumnDensity("gamma", shapes=(shape,))]).highest_order == order
    assert known().highest_order == 3


def test_rows_outside_the_support(rng: np.random.Generator) -> None:
    model = Independent([ColumnDensity("gamma", shapes=(8.0,), edge=0.1)])
    assert model.log_density([[-1.0]])[0] == -np.inf
    assert_allclose(model.score([[-1.0]], 3), model.score([[0.1]], 3))


@pytest.mark.parametrize("name", ["student_t", "gamma", "lognormal", "logistic"])
def test_choice_and_fit_recover_a_family(name: str, rng: np.random.Generator) -> None:
    """A reflected column too. The mean score matches: E (l' - fitted l')^2 below 2 % of E l'^2.

    Three parameters of 30,000 rows have a relative squared error of about 3 / 30,000 in likelihood;
    the score's is larger by how much it weighs tails, and two hundred times that is ample.
    """
    density, law = COLUMNS[name]
    x = law.rvs(30_000, random_state=rng)
    model = Independent().fit(np.column_stack([x, -x + 0.3 * rng.standard_normal(len(x))]))
    chosen = model.columns_[0]
    assert chosen.family == name
    true, fitted = (each.derivatives(x[:5_000])[0] for each in (density, chosen))
    assert np.mean((true - fitted) ** 2) < 0.02 * np.mean(true**2)
    mirrored = Independent(families=[name]).fit(-x[:, None]).columns_[0]
    fitted = mirrored.derivatives(-x[:5_000])[0]
    assert np.mean((true + fitted) ** 2) < 0.02 * np.mean(true**2)


def test_normal_and_bimodal_columns(rng: np.random.Generator) -> None:
    """A normal column is called so unless a needless family gains three on held-out rows."""
    two = draw(rng, 10_000)[:, -1]
    model = Independent().fit(np.column_stack([rng.standard_normal(10_000), two]))
    assert model.columns_[0].family == "normal"
    assert model.columns_[1].family.startswith("mixture of")
    assert set(model.held_out_[1]) >= {"normal", "mixture"}
    assert "normal" in repr(model)
    assert stein_check(model, draw(rng, 5_000)[:, [-1, -1]], random_seed=0).status == "failed"


def test_fit_with_weights_is_fit_to_repeated_rows(rng: np.random.Generator) -> None:
    x, counts = COLUMNS["gamma"][1].rvs(2_000, random_state=rng), rng.integers(0, 3, 2_000)
    weighted = Independent(families="gamma").fit(x[:, None], sample_weight=counts)
    repeated = Independent(families="gamma").fit(np.repeat(x, counts)[:, None])
    first, second = (
        each.derivatives(x)[0] for each in (weighted.columns_[0], repeated.columns_[0])
    )
    # Groups of neighbouring rows are not the same ones.
    assert np.mean((first - second) ** 2) < 1e-2 * np.mean(first**2)


def test_units_do_not_matter(rng: np.random.Generator) -> None:
    X = draw(rng, 2_000)[:, [3, 4]]
    units = np.array([1e6, 1e-6])
    plain, scaled = Independent().fit(X), Independent().fit(X * units + [1e7, 0.0])
    expected = plain.score(X[:20], 3)
    actual = scaled.score(X[:20] * units + [1e7, 0.0], 3, basis=np.diag(units))
    assert_allclose(actual, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


def test_given_columns_are_kept(rng: np.random.Generator) -> None:
    model = known().fit(draw(rng, 50))
    assert model.columns_[:2] == tuple(density for density, _ in list(COLUMNS.values())[:2])
    assert model.n_fitted_ == np.inf
    with pytest.raises(ValueError, match="`input_model` must have as many features"):
        known().fit(draw(rng, 50)[:, :2])


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        (("cauchy",), "`family` must be one of gamma, logistic"),
        (("gamma",), "`shapes` must have 1 values for 'gamma'"),
        (("normal", 0.0, 0.0), "`scale` must not be zero"),
    ],
)
def test_bad_columns(parameters: tuple[Any, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ColumnDensity(*parameters)


def test_bad_families(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=r"`families` must be among normal.*got \['beta'\]"):
        Independent(families=["beta"]).fit(draw(rng, 20))
    with pytest.raises(ValueError, match="got none"):
        Independent(families=[]).fit(draw(rng, 20))
    with pytest.raises(ValueError, match=r"Independent\(\) must be fitted"):
        Independent().score(np.zeros((2, 2)), 1)
    assert repr(Independent()) == "Independent()"
