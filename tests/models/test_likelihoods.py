"""The PyMC component distributions against the families' own log densities."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.typing import NDArray
from pymc.pytensorf import gradient as gradient_of
from pytensor.compile.mode import Mode
from pytensor.configdefaults import config
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from scipy import special

from moment_init.families.base import Family
from moment_init.families.registry import get_family
from moment_init.models import component_distribution
from moment_init.models.likelihoods import _LIKELIHOODS

# PyTensor's rewrites without the compiler: the graphs are tiny and run once. Fused operations
# can have more operands than Python mode takes.
PYTHON_MODE = Mode(linker="py", optimizer=RewriteDatabaseQuery(["fast_run"], exclude=["fusion"]))
CASES = sorted(_LIKELIHOODS)
N_TRIALS = 7
DISPERSION = 1.7
# Neither symmetric about zero nor equally spaced: a sign or a swapped argument shows.
LINEAR_PREDICTOR = np.array([-1.9, -0.7, 0.1, 0.8, 2.3])
RESPONSES = {
    "bernoulli": np.array([0, 1, 1, 0, 1]),
    "binomial": np.array([0, 2, 7, 3, 6]),
    "poisson": np.array([0, 1, 4, 0, 12]),
    "negative_binomial": np.array([0, 1, 4, 0, 12]),
    "gaussian": np.array([-2.5, 0.3, 1.1, 0.2, 2.0]),
    "gamma": np.array([0.1, 0.9, 0.4, 3.5, 8.0]),
}
# Families bound exp(eta) at exp(300), PyMC's distributions do not.
FAR = np.array([-200.0, -40.0, -35.0, 20.0, 40.0, 200.0])
FAR_RESPONSES = {
    "bernoulli": (0, 1),
    "binomial": (0, 3, 7),
    "poisson": (0, 4, 10**6, 10**15),
    "negative_binomial": (0, 4, 10**6, 10**12),
    "gaussian": (-2.5, 1e6),
    "gamma": (1e-6, 0.9, 1e6),
}


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    """Keep inner graphs, which Python mode would otherwise send to the C compiler, in Python."""
    with config.change_flags(cxx=""):
        yield


def family_arguments(family: Family) -> dict[str, Any]:
    """Dispersion and trials that the family needs."""
    arguments: dict[str, Any] = {}
    if family.has_dispersion:
        arguments["dispersion"] = DISPERSION
    if family.has_trials:
        arguments["n_trials"] = N_TRIALS
    return arguments


def log_density(family: Family, y: NDArray[Any], eta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log density of the family, from the linear predictor."""
    return family.log_density_eta(y.astype(np.float64), eta, **family_arguments(family))


def test_every_family_and_link_has_a_distribution() -> None:
    names = {name for name, _ in _LIKELIHOODS}
    expected = {(name, link) for name in names for link in get_family(name).supported_links}
    assert set(_LIKELIHOODS) == expected
    assert names == set(RESPONSES)


@pytest.mark.parametrize(("name", "link"), CASES)
def test_logp_is_the_family_log_density(name: str, link: str) -> None:
    family = get_family(name, link)
    y = RESPONSES[name]
    distribution = component_distribution(
        name, LINEAR_PREDICTOR, link=link, **family_arguments(family)
    )
    actual = pm.logp(distribution, y).eval(mode=PYTHON_MODE)
    np.testing.assert_allclose(
        actual, log_density(family, y, LINEAR_PREDICTOR), rtol=1e-10, atol=1e-10
    )


def test_gaussian_logp_by_hand() -> None:
    """y = 1.5, mean 0.5, sd 2: -log(2) - log(2 pi)/2 - (1/2)^2/2."""
    distribution = component_distribution("gaussian", np.array([0.5]), dispersion=2.0)
    expected = -np.log(2.0) - 0.5 * np.log(2.0 * np.pi) - 0.125
    np.testing.assert_allclose(
        pm.logp(distribution, np.array([1.5])).eval(mode=PYTHON_MODE), [expected]
    )


@pytest.mark.parametrize(("name", "link"), CASES)
def test_logp_and_gradient_are_those_of_the_family_far_out(name: str, link: str) -> None:
    """At |eta| = 40 a probability that is formed before its logarithm is exactly 0 or 1.

    The log densities of huge counts are differences of log gamma functions: an error of a few
    rounding units in them, here eight, remains in the difference.
    """
    family = get_family(name, link)
    eta = pt.vector("eta", dtype="float64")
    distribution = component_distribution(name, eta, link=link, **family_arguments(family))
    for y in FAR_RESPONSES[name]:
        response = np.full(FAR.shape, y)
        logp = pm.logp(distribution, response)
        gradient = gradient_of(logp.sum(), [eta])
        value, slope = (graph.eval({eta: FAR}, mode=PYTHON_MODE) for graph in (logp, gradient))
        expected = family.log_density_derivatives(
            response.astype(np.float64), FAR, **family_arguments(family)
        )
        rounding = 8 * np.finfo(np.float64).eps * abs(special.gammaln(abs(y) + 1.0))
        np.testing.assert_allclose(value, expected.value, rtol=1e-10, atol=1e-10 + rounding)
        np.testing.assert_allclose(slope, expected.eta1, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "gamma", "negative_binomial"])
def test_gradient_in_the_dispersion_is_that_of_the_family(name: str) -> None:
    family, y = get_family(name), RESPONSES[name]
    dispersion = pt.vector("dispersion", dtype="float64")
    logp = pm.logp(component_distribution(name, LINEAR_PREDICTOR, dispersion=dispersion), y)
    values = np.array([0.3, 1.7, 40.0, 2.0, 5.0])
    slope = gradient_of(logp.sum(), [dispersion]).eval({dispersion: values}, mode=PYTHON_MODE)
    expected = family.log_density_derivatives(
        y.astype(np.float64), LINEAR_PREDICTOR, dispersion=values
    ).tau1
    assert expected is not None
    np.testing.assert_allclose(slope, expected / values, rtol=1e-9)


@pytest.mark.parametrize(("name", "link"), CASES)
def test_mixture_has_finite_logp_and_gradient(name: str, link: str) -> None:
    family = get_family(name, link)
    X = LINEAR_PREDICTOR[:, np.newaxis] * np.array([1.0, -0.4])
    with pm.Model() as model:
        share = pm.Uniform("share")
        coefficient = pm.Normal("coefficient", shape=(2, 2))
        eta = X @ coefficient
        components = [
            component_distribution(name, eta[:, j], link=link, **family_arguments(family))
            for j in range(2)
        ]
        pm.Mixture(
            "y", w=pt.stack([share, 1.0 - share]), comp_dists=components, observed=RESPONSES[name]
        )
    point = {
        "share_interval__": np.array(0.3),
        "coefficient": np.array([[0.9, -0.3], [0.2, 1.4]]),
    }
    evaluate = model.compile_fn([model.logp(), model.dlogp()], mode=PYTHON_MODE)
    logp, gradient = evaluate(point)
    assert np.isfinite(logp)
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient != 0.0)


def test_link_defaults_to_the_family_own() -> None:
    y = RESPONSES["bernoulli"]
    default = component_distribution("bernoulli", LINEAR_PREDICTOR)
    logit = component_distribution("bernoulli", LINEAR_PREDICTOR, link="logit")
    np.testing.assert_array_equal(
        pm.logp(default, y).eval(mode=PYTHON_MODE), pm.logp(logit, y).eval(mode=PYTHON_MODE)
    )


@pytest.mark.parametrize("name", ["gaussian", "gamma", "negative_binomial"])
def test_missing_dispersion_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`dispersion` must be given for family '{name}'"):
        component_distribution(name, LINEAR_PREDICTOR)


def test_missing_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="`n_trials` must be given for family 'binomial'"):
        component_distribution("binomial", LINEAR_PREDICTOR)


@pytest.mark.parametrize("name", ["dispersion", "n_trials"])
def test_superfluous_argument_is_refused(name: str) -> None:
    superfluous: dict[str, Any] = {name: 3.0}
    with pytest.raises(ValueError, match=rf"`{name}` must be None for family 'poisson'.*got 3\.0"):
        component_distribution("poisson", LINEAR_PREDICTOR, **superfluous)


def test_unknown_link_is_refused() -> None:
    with pytest.raises(ValueError, match="identity"):
        component_distribution("poisson", LINEAR_PREDICTOR, link="identity")
