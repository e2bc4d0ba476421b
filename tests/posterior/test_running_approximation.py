"""Laplace, Pathfinder and ADVI from the same start. What compiles is slow."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_array_equal
from pytensor.configdefaults import config

from moment_init import fit_em, sample, simulate_mixture
from moment_init.em.result import EMFit
from moment_init.posterior import running
from moment_init.posterior.running import SamplingOptions
from tests.bayesian_models import FakeSampler, fitted

DRAWS, CHAINS = 5, 2


@pytest.fixture
def _without_c_compiler() -> Iterator[None]:
    with config.change_flags(cxx=""):
        yield


class FakeExtras:
    """Stands for pymc-extras: notes the arguments, and gives independent draws in one chain."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}

    def fit_laplace(self, **arguments: Any) -> xr.DataTree:
        self.calls["laplace"] = arguments
        return self._draws(arguments, arguments["draws"])

    def fit_pathfinder(self, **arguments: Any) -> xr.DataTree:
        self.calls["pathfinder"] = arguments
        return self._draws(arguments, arguments["num_draws"])

    def _draws(self, arguments: dict[str, Any], n_draws: int) -> xr.DataTree:
        model = arguments["model"]
        assert all(value is None for value in model.rvs_to_initial_values.values())
        pm.model.fgraph.clone_model(model)  # both do, and refuse initial values
        names = [item.name for item in [*model.free_RVs, *model.deterministics]]
        return FakeSampler()(model=model, draws=n_draws, chains=1, var_names=names, random_seed=1)


@pytest.fixture
def extras(monkeypatch: pytest.MonkeyPatch) -> FakeExtras:
    fake = FakeExtras()
    monkeypatch.setattr(running, "_require_extras", lambda method: fake)
    return fake


@pytest.mark.usefixtures("_without_c_compiler")
@pytest.mark.parametrize("method", ["laplace", "pathfinder"])
def test_draws_are_cut_into_chains(extras: FakeExtras, method: Any) -> None:
    start = fitted("gaussian", "identity", "gate")
    tree = sample(
        start.X,
        start.y,
        2,
        family="gaussian",
        init=start.fit,
        method=method,
        draws=DRAWS,
        chains=CHAINS,
        random_seed=1,
        **start.block,
    )
    posterior = tree["posterior"]
    assert posterior["coefficient"].dims == ("chain", "draw", "feature", "component")
    assert posterior["gate"].dims == ("chain", "draw", "component", "gate_feature")
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (CHAINS, DRAWS)
    assert_array_equal(posterior["draw"], np.arange(DRAWS))
    assert tree["moment_init"].attrs["method"] == method
    assert {"log_likelihood", "posterior_predictive"} < set(tree.children)


@pytest.mark.usefixtures("_without_c_compiler")
@pytest.mark.parametrize("method", ["laplace", "pathfinder"])
def test_start_is_given_and_further_arguments_win(extras: FakeExtras, method: Any) -> None:
    start = fitted("poisson", "log", "plain")
    given: dict[str, Any] = {
        "random_seed": 2,
        "draws": DRAWS,
        "chains": CHAINS,
        "progressbar": False,
    }
    choices: dict[str, dict[str, Any]] = {
        "laplace": {"optimize_method": "BFGS"},
        "pathfinder": {"jitter": 0.5},
    }
    own = choices[method]
    sample(
        start.X,
        start.y,
        2,
        family="poisson",
        init=start.fit,
        method=method,
        **own,
        **given,
        **start.block,
    )
    call = extras.calls[method]
    assert set(call["initvals"]) == {"weight", "standardised_scale", "tilt", "standardised_bias"}
    assert own.items() <= call.items()
    assert call["progressbar"] is False


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
