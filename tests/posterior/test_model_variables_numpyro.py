"""Starts for NumPyro models: sites, plates, support, and a chain that begins there.

NumPyro is no dependency of the tests, as JAX would double the time that set-up takes: these run
where it is installed.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em, initial_values, simulate_mixture
from tests.em_fits import make_fit

numpyro = pytest.importorskip("numpyro")
# JAX and NumPyro warn about their own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

MAPPING: Any = {"w": "weight", "alpha": "bias", "beta": "coefficient"}


def mixture(X: Any, y: Any, n_components: int = 2) -> None:
    """Poisson regressions with ordered intercepts; the plates name the axes of the slopes."""
    import jax
    import jax.numpy as jnp
    from numpyro import distributions as dist

    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(n_components)))
    base = dist.Normal(jnp.zeros(n_components), 5.0).to_event(1)
    alpha = numpyro.sample(
        "alpha", dist.TransformedDistribution(base, dist.transforms.OrderedTransform())
    )
    with numpyro.plate("component", n_components, dim=-2), numpyro.plate("feature", X.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0.0, 5.0))
    numpyro.deterministic("size", jnp.abs(beta).sum())
    log_rates = alpha + X @ beta.T
    densities = dist.Poisson(jnp.exp(log_rates)).log_prob(y[:, None]) + jnp.log(w)
    numpyro.factor("y", jax.nn.logsumexp(densities, axis=1).sum())


@pytest.fixture
def fit(rng: np.random.Generator) -> EMFit:
    """Three features and two components with dispersions."""
    return make_fit("gaussian", "identity", rng, with_extras=False).fit


def bound(n_features: int = 3) -> Any:
    return partial(mixture, np.zeros((4, n_features)), np.zeros(4))


def start_of(fit: EMFit, model: Any, **options: Any) -> Any:
    return initial_values(fit, model, backend="numpyro", **{"mapping": MAPPING, **options})


def test_values_have_the_order_and_axes_of_the_sites(fit: EMFit) -> None:
    values = start_of(fit, bound())
    order = np.argsort(fit.biases)
    assert_array_equal(values["alpha"], fit.biases[order])
    assert_array_equal(values["w"], fit.weights[order])
    assert_array_equal(values["beta"], fit.coefficients.T[order])


def test_chain_begins_at_the_values() -> None:
    """One step of zero length from the start: the first draw is the start."""
    import jax

    data = simulate_mixture(500, 3, 2, family="poisson", biases=[0.2, 1.5], random_seed=1)
    fit = fit_em(data.X, data.y, 2, family="poisson", random_seed=1)
    values = start_of(fit, partial(mixture, data.X, data.y))
    kernel = numpyro.infer.NUTS(mixture, init_strategy=numpyro.infer.init_to_value(values=values))
    found = kernel.init(jax.random.PRNGKey(0), 0, None, (data.X, data.y), {})
    constrained = kernel.postprocess_fn((data.X, data.y), {})(found.z)
    for name, value in values.items():
        assert_allclose(constrained[name], value, rtol=1e-5, atol=1e-6)
    # the potential is minus the log joint density: lower than at NumPyro's own start
    other = numpyro.infer.NUTS(mixture).init(jax.random.PRNGKey(0), 0, None, (data.X, data.y), {})
    assert found.potential_energy < other.potential_energy


def test_chains_are_spread_for_init_params() -> None:
    """A dict a chain, stacked on the unconstrained scale, as `MCMC.run(init_params=)` takes it."""
    import jax
    from numpyro.infer.util import unconstrain_fn

    data = simulate_mixture(500, 3, 2, family="poisson", biases=[0.2, 1.5], random_seed=1)
    fit = fit_em(data.X, data.y, 2, family="poisson", random_seed=1)
    chains = start_of(fit, partial(mixture, data.X, data.y), spread=1.0, chains=2, random_seed=1)
    assert chains[0]["alpha"][0] != chains[1]["alpha"][0]
    inner = [unconstrain_fn(mixture, (data.X, data.y), {}, chain) for chain in chains]
    stacked = jax.tree.map(lambda *values: np.stack(values), *inner)
    runs = numpyro.infer.MCMC(
        numpyro.infer.NUTS(mixture), num_warmup=50, num_samples=20, num_chains=2,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    runs.run(jax.random.PRNGKey(0), data.X, data.y, init_params=stacked)
    draws = runs.get_samples(group_by_chain=True)["alpha"]
    errors = fit.standard_errors.biases[np.argsort(fit.biases)]
    # both chains stay in the mode of the fit: 20 draws each, within six errors
    assert np.all(np.abs(np.asarray(draws) - np.sort(fit.biases)) < 6 * errors)


def test_wrong_names_and_values_are_refused(fit: EMFit) -> None:
    with pytest.raises(ValueError, match=r"'size' is a site of type 'deterministic'"):
        start_of(fit, bound(), mapping={"size": "bias"})
    with pytest.raises(ValueError, match=r"'beta' of shape \(component: 2, feature: 4\)"):
        start_of(fit, bound(4))
    with pytest.raises(ValueError, match=r"'w' must start in the support of its prior"):
        start_of(fit, bound(), mapping={**MAPPING, "w": lambda start: np.array([0.5, 0.6])})
    with pytest.raises(TypeError, match=r"without arguments.*Bind the data: functools\.partial"):
        start_of(fit, mixture)
    with pytest.raises(TypeError, match=r"`model` must be a NumPyro model .*; got int"):
        start_of(fit, 3)


def test_observed_sites_are_refused(fit: EMFit) -> None:
    from numpyro import distributions as dist

    def model() -> None:
        numpyro.sample("b", dist.Normal(np.zeros(2), 1.0))
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=np.zeros(3))

    with pytest.raises(ValueError, match=r"'y' is observed\. The free variables are 'b'"):
        start_of(fit, model, mapping={"y": "bias"})


def test_discrete_sites_are_refused(fit: EMFit) -> None:
    from numpyro import distributions as dist

    def model() -> None:
        numpyro.sample("b", dist.Poisson(np.ones(2)))

    with pytest.raises(ValueError, match="continuous variables; 'b' is of type int64"):
        start_of(fit, model, mapping={"b": "bias"})
