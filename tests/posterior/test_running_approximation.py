"""Laplace, Pathfinder and ADVI from the same start. What compiles is slow."""

import sys
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.configdefaults import config
from pytensor.link.numba.linker import NumbaLinker

from moment_init import fit_em, sample, simulate_mixture
from moment_init.checks import WeakSignalWarning
from moment_init.em.result import EMFit
from moment_init.posterior import running
from moment_init.posterior.mode import find_mode
from moment_init.posterior.running import SamplingOptions
from tests.bayesian_models import MODE, FakeSampler, fitted, model_of
from tests.em_fits import Fitted

DRAWS, CHAINS = 5, 2


@pytest.fixture
def _without_compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a graph is compiled, by C or by numba."""

    def refuse(*unused: Any, **options: Any) -> Any:
        raise AssertionError("a graph is compiled")

    monkeypatch.setattr(NumbaLinker, "make_all", refuse)
    with config.change_flags(cxx=""):
        yield


class FakePathfinder:
    """Stands for that of pymc-extras: notes the arguments, and gives independent draws."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def fit_pathfinder(self, **arguments: Any) -> xr.DataTree:
        self.calls.append(arguments)
        model = arguments["model"]
        assert all(value is None for value in model.rvs_to_initial_values.values())
        pm.model.fgraph.clone_model(model)  # Pathfinder does, and PyMC refuses initial values
        names = [item.name for item in [*model.free_RVs, *model.deterministics]]
        return FakeSampler()(
            model=model, draws=arguments["num_draws"], chains=1, var_names=names, random_seed=1
        )


@pytest.fixture
def pathfinder(monkeypatch: pytest.MonkeyPatch) -> FakePathfinder:
    fake = FakePathfinder()
    monkeypatch.setitem(sys.modules, "pymc_extras", cast(Any, fake))
    monkeypatch.setattr(running, "find_spec", lambda name: True)
    return fake


def approximate(start: Fitted, method: Any, **arguments: Any) -> xr.DataTree:
    given: dict[str, Any] = {"random_seed": 1, "draws": DRAWS, "chains": CHAINS, "init": start.fit}
    given |= {"family": start.fit.family, "method": method, **start.block, **arguments}
    return sample(start.X, start.y, start.fit.n_components, **given)


@pytest.mark.usefixtures("_without_compilers", "pathfinder")
@pytest.mark.parametrize("method", ["laplace", "advi", "pathfinder"])
def test_draws_are_cut_into_chains(method: Any) -> None:
    tree = approximate(fitted("gaussian", "identity", "gate"), method)
    posterior = tree["posterior"]
    assert posterior["coefficient"].dims == ("chain", "draw", "feature", "component")
    assert posterior["gate"].dims == ("chain", "draw", "component", "gate_feature")
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (CHAINS, DRAWS)
    assert_array_equal(posterior["draw"], np.arange(DRAWS))
    assert tree["moment_init"].attrs["method"] == method
    assert {"log_likelihood", "posterior_predictive"} < set(tree.children)


def test_pathfinder_gets_the_start_and_further_arguments(pathfinder: FakePathfinder) -> None:
    approximate(fitted("poisson", "log", "plain"), "pathfinder", jitter=0.5, progressbar=False)
    (call,) = pathfinder.calls
    assert set(call["initvals"]) == {"weight", "standardised_scale", "tilt", "standardised_bias"}
    assert (call["jitter"], call["progressbar"]) == (0.5, False)


@pytest.mark.usefixtures("_without_compilers")
@pytest.mark.parametrize("variant", ["plain", "both"])
def test_density_of_laplace_draws_is_that_of_the_model(variant: str) -> None:
    """With weights of rows, with groups and a gate: the tree's values against the model's."""
    start = fitted("poisson", "log", variant)
    tree = approximate(start, "laplace", directions="anchored")
    log_posterior = find_mode(model_of(start)).log_posterior
    posterior, stats = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
    model = log_posterior.model
    forward = [
        variable if transform is None else transform.forward(variable, *variable.owner.inputs)
        for variable, transform in model.rvs_to_transforms.items()
        if variable in model.free_RVs
    ]
    for draw in range(DRAWS):
        at = posterior.isel(chain=0, draw=draw)
        given = {item: at[item.name].to_numpy() for item in model.free_RVs}
        values = [value.eval(given, mode=MODE, on_unused_input="ignore") for value in forward]
        point = np.concatenate([np.ravel(value) for value in values])
        assert_allclose(stats["lp"][0, draw], log_posterior(point)[0], rtol=1e-8)
    without = approximate(start, "laplace", log_likelihood=False)
    assert set(without["sample_stats"].data_vars) == {"log_q"}


@pytest.mark.usefixtures("_without_compilers")
@pytest.mark.parametrize("family", [["gaussian", "poisson"], "categorical"])
def test_several_responses_and_classes(family: Any, rng: np.random.Generator) -> None:
    """Draws about the fit: means within a fifth of a deviation of the mode's neighbourhood."""
    X = rng.standard_normal((400, 2))
    label = rng.random(400) < 0.5
    level = np.where(label, 1.0, -1.0)
    y: Any = rng.integers(0, 3, 400)
    if family != "categorical":
        y = np.column_stack([level * X[:, 0] + rng.normal(0, 0.3, 400), rng.poisson(np.exp(level))])
    tree = sample(
        *(X, y, 2), family=family, method="laplace", draws=200, chains=2, random_seed=1,
        init="search" if family != "categorical" else "random",
    )  # fmt: skip
    posterior = tree["posterior"]
    assert posterior["coefficient"].dims == ("chain", "draw", "response", "feature", "component")
    assert tree["log_likelihood"]["y"].shape == (2, 200, 400)
    start = tree["moment_init"]["initial_coefficient"]
    spread = posterior["coefficient"].std(("chain", "draw"))
    assert float((abs(posterior["coefficient"].mean(("chain", "draw")) - start) / spread).max()) < 2


def test_flat_direction_is_reported() -> None:
    start = fitted("poisson", "log", "plain")
    with pytest.warns(WeakSignalWarning, match="does not fall off in some direction"):
        approximate(start, "laplace", priors={"tilt": with_flat_extra})


def with_flat_extra(name: str, dims: Any) -> Any:
    """A prior with a variable that nothing depends on."""
    pm.Normal("unused", 0.0, 1e3)
    return pm.Normal(name, dims=dims)


def test_cutting_keeps_the_order_of_draws() -> None:
    values = np.arange(6.0)[None, :, None] + np.zeros((1, 6, 2))
    posterior = xr.Dataset(
        {"bias": (("chain", "draw", "component"), values)},
        {"chain": [0], "draw": np.arange(6), "component": [0, 1]},
    )
    options = SamplingOptions(3, None, 2, None, None, None, (1, 2, 3), {})
    tree = running._in_chains(xr.DataTree.from_dict({"posterior": posterior}), options)
    assert_array_equal(
        tree["posterior"].to_dataset()["bias"][..., 0], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    )
    assert_array_equal(tree["posterior"]["component"], [0, 1])


# --- real approximations -------------------------------------------------------------------------

N_DRAWS = 500


@pytest.fixture(scope="module")
def problem() -> tuple[Any, EMFit]:
    data = simulate_mixture(
        1500, 2, 2, family="poisson", biases=[1.0, 0.3], scales=[0.7, 0.7], random_seed=1
    )
    return data, fit_em(data.X, data.y, 2, family="poisson", random_seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the packages' own
@pytest.mark.parametrize("method", ["laplace", "pathfinder", "advi"])
def test_approximation_is_near_the_fit(problem: tuple[Any, EMFit], method: Any) -> None:
    """With 1500 rows the posterior is all but normal about the maximum.

    Means are within half a standard error of it: priors and skewness move them by less. Standard
    deviations of ADVI's independent normals fall short of the marginal ones, by a third where
    parameters correlate by .75, and Pathfinder's are rough.
    """
    data, fit = problem
    tree = sample(
        data.X,
        data.y,
        2,
        family="poisson",
        init=fit,
        method=method,
        draws=N_DRAWS,
        chains=2,
        random_seed=3,
        progressbar=False,
    )
    posterior = tree["posterior"]
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (2, N_DRAWS)
    errors = fit.standard_errors
    for name, centre, error in (
        ("coefficient", fit.coefficients, errors.coefficients),
        ("bias", fit.biases, errors.biases),
        ("weight", fit.weights, errors.weights),
    ):
        means = posterior[name].mean(("chain", "draw")).to_numpy()
        ratios = posterior[name].std(("chain", "draw")).to_numpy() / error
        assert np.all(np.abs(means - centre) < 0.5 * error), name
        low, high = (0.85, 1.15) if method == "laplace" else (0.6, 1.4)
        assert np.all((ratios > low) & (ratios < high)), name
