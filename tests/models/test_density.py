"""The fused likelihood: its three implementations against each other, and inside a PyMC model."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.compile.maker import function
from pytensor.compile.mode import Mode, optdb
from pytensor.configdefaults import config
from pytensor.gradient import grad
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from moment_init.families.base import LARGEST_DRAWN_MEAN, Family
from moment_init.families.registry import get_family
from moment_init.models.density import mixture_log_density, mixture_response
from moment_init.models.kernels import KERNELS
from moment_init.models.likelihoods import component_distribution
from moment_init.models.mixture_loops import MixtureLayout, mixture_loop
from moment_init.models.mixture_op import MixtureLogDensity, symbolic_mixture

# As in test_likelihoods.py: rewrites without the compiler.
PYTHON_MODE = Mode(linker="py", optimizer=RewriteDatabaseQuery(["fast_run"], exclude=["fusion"]))
CASES = sorted(KERNELS)
N_OBS, N_COMPONENTS = 12, 3
N_TRIALS = 7
DISPERSION = np.array([0.5, 3.0, 250.0])
WEIGHTS = np.array([0.2, 0.3, 0.5])
GROUPS = np.array([3, 0, 3, 1, 0, 2, 2, 3, 1, 1, 0, 4])
FIRST_ROWS = np.array([0, 1, 0, 3, 1, 5, 5, 0, 3, 3, 1, 11])
# Which optional inputs: weights of each row, sample weights, groups.
LAYOUTS = [(False, False, False), (True, True, False), (False, False, True), (True, True, True)]
# Sums of a few terms, each exact to a few units in the last place.
ROUNDING = 1e-12


@pytest.fixture(autouse=True)
def _without_c_compiler() -> Iterator[None]:
    """Keep inner graphs, which Python mode would otherwise send to the C compiler, in Python."""
    with config.change_flags(cxx=""):
        yield


def responses(name: str, rng: np.random.Generator) -> NDArray[Any]:
    """Responses of every size that a family has."""
    draws: dict[str, NDArray[Any]] = {
        "bernoulli": rng.integers(0, 2, N_OBS),
        "binomial": rng.integers(0, N_TRIALS + 1, N_OBS),
        "poisson": rng.poisson(np.resize([1.0, 9.0, 40.0], N_OBS)),
        "negative_binomial": rng.poisson(np.resize([1.0, 9.0, 400.0], N_OBS)),
        "gaussian": rng.normal(size=N_OBS),
        "gamma": rng.gamma(1.0, size=N_OBS),
    }
    return draws[name]


class Problem:
    """Inputs of one mixture, in the order of the operation and of its loops."""

    def __init__(
        self,
        family: Family,
        rng: np.random.Generator,
        options: tuple[bool, bool, bool],
        *,
        is_far_out: bool = False,
    ) -> None:
        has_row_weights, has_sample_weight, has_groups = options
        self.family = family
        self.layout = MixtureLayout(
            has_row_weights, family.has_dispersion, family.has_trials, has_sample_weight, has_groups
        )
        self.operation = MixtureLogDensity(family.name, family.link.name, self.layout)
        eta = rng.normal(size=(N_OBS, N_COMPONENTS))
        if is_far_out:
            eta[:3] = [[-35.0, 35.0, 1.0], [800.0, -800.0, 2.0], [-800.0, -800.0, -801.0]]
        log_weight = np.log(WEIGHTS)
        if has_row_weights:
            gate = np.exp(rng.normal(size=(N_OBS, N_COMPONENTS)))
            log_weight = np.log(gate / gate.sum(axis=1, keepdims=True))
        response = responses(family.name, rng)
        possible = [
            DISPERSION,
            np.full(N_OBS, N_TRIALS),
            rng.uniform(0.2, 2.0, N_OBS) if has_sample_weight else None,
            GROUPS,
        ]
        optional = zip(possible, self.layout[1:], strict=True)
        self.inputs: list[Any] = [
            response,
            eta,
            log_weight,
            *(value for value, is_there in optional if is_there),
        ]
        self.variables: list[Any] = [
            pt.TensorType(value.dtype, shape=(None,) * value.ndim)() for value in self.inputs
        ]

    @property
    def n_outputs(self) -> int:
        return 3 + self.layout.has_dispersion + self.layout.has_groups

    def perform(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Outputs by NumPy."""
        storage: list[list[Any]] = [[None] for _ in range(self.n_outputs)]
        node: Any = self.operation(*self.variables)
        self.operation.perform(node[0].owner, inputs or self.inputs, storage)
        return [cell[0] for cell in storage]

    def run_loop(self) -> list[NDArray[Any]]:
        """Outputs by the loop, in Python."""
        loop = mixture_loop(self.family.name, self.family.link.name, self.layout)
        return list(loop(*self.inputs))

    def value_and_gradients(self) -> list[Any]:
        """All outputs, and the derivatives of the rows' sum with unequal coefficients."""
        outputs: Any = self.operation(*self.variables)
        total = (outputs[0] * pt.as_tensor(np.arange(1.0, N_OBS + 1.0))).sum()
        gradients: Any = grad(total, self.differentiable)
        return [*outputs, *gradients]

    @property
    def differentiable(self) -> list[Any]:
        return self.variables[1:4] if self.layout.has_dispersion else self.variables[1:3]


def assert_all_close(actual: list[Any], expected: list[Any], rtol: float = 1e-10) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=ROUNDING)


def test_bernoulli_worked_by_hand() -> None:
    """y = 1, eta = (log 3, 0), weights 1/4 and 3/4: P = 3/16 + 6/16, shares 1/3 and 2/3.

    The derivatives in eta are 1/3 * 1/4 and 2/3 * 1/2.
    """
    layout = MixtureLayout(False, False, False, False, False)
    eta = np.array([[np.log(3.0), 0.0]])
    value, share, slope = mixture_loop("bernoulli", "logit", layout)(
        np.array([1]), eta, np.log([0.25, 0.75])
    )
    np.testing.assert_allclose(value, [np.log(9 / 16)])
    np.testing.assert_allclose(share, [[1 / 3, 2 / 3]])
    np.testing.assert_allclose(slope, [[1 / 12, 1 / 3]])


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(("name", "link"), CASES)
def test_loop_is_the_numpy_evaluation_near_and_far_out(
    name: str, link: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(get_family(name, link), rng, options, is_far_out=True)
    expected = problem.perform()
    assert all(np.all(np.isfinite(part)) for part in expected)
    assert_all_close(problem.run_loop(), expected)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[3]])
@pytest.mark.parametrize(("name", "link"), CASES)
def test_numpy_evaluation_is_the_mixture_of_pymc_densities(
    name: str, link: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(get_family(name, link), rng, options)
    named = problem.operation.named(problem.variables)
    written_out = symbolic_mixture(problem.family, named)
    actual = function(problem.variables, written_out, mode=PYTHON_MODE)(*problem.inputs)
    assert_all_close(actual, problem.perform(), rtol=1e-9)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
def test_operation_is_written_out_for_jax(
    options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """By the rewrites of JAX's mode alone, which need no JAX."""
    problem = Problem(get_family("gaussian"), rng, options)
    graph = FunctionGraph(problem.variables, problem.value_and_gradients(), clone=True)
    optdb.query(RewriteDatabaseQuery(include=["jax"])).rewrite(graph)
    assert not any(isinstance(node.op, MixtureLogDensity) for node in graph.apply_nodes)
    actual = function(graph.inputs, graph.outputs, mode=PYTHON_MODE)(*problem.inputs)
    expected = function(problem.variables, problem.value_and_gradients(), mode=PYTHON_MODE)
    assert_all_close(actual, expected(*problem.inputs))


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("name", ["bernoulli", "binomial", "negative_binomial"])
def test_gradient_is_a_central_difference(
    name: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """Along a random direction; the error h^2 / 6 times third derivatives, at most about 100."""
    problem = Problem(get_family(name), rng, options)
    n_parameters = len(problem.differentiable)
    results = function(problem.variables, problem.value_and_gradients(), mode=PYTHON_MODE)(
        *problem.inputs
    )
    step, coefficients = 1e-5, np.arange(1.0, N_OBS + 1.0)
    for position, gradient in enumerate(results[-n_parameters:], start=1):
        direction = rng.normal(size=gradient.shape)
        values = []
        for sign in (1.0, -1.0):
            moved = list(problem.inputs)
            moved[position] = moved[position] + sign * step * direction
            values.append(coefficients @ problem.perform(*moved)[0])
        difference = (values[0] - values[1]) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(difference, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
@pytest.mark.parametrize("name", ["bernoulli", "gamma"])
def test_gradient_can_be_differentiated_again(
    name: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    """A Hessian times a vector against the difference of two gradients."""
    problem = Problem(get_family(name), rng, options)
    wanted = problem.differentiable
    gradients = problem.value_and_gradients()[-len(wanted) :]
    values = problem.inputs[1 : 1 + len(wanted)]
    directions = [rng.normal(size=value.shape) for value in values]
    along = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    second: Any = grad(along, wanted)
    evaluate = function(problem.variables, gradients, mode=PYTHON_MODE)
    step, sides = 1e-5, []
    for sign in (1.0, -1.0):
        moved = list(problem.inputs)
        for position, direction in enumerate(directions, start=1):
            moved[position] = moved[position] + sign * step * direction
        sides.append(evaluate(*moved))
    products = function(problem.variables, list(second), mode=PYTHON_MODE)(*problem.inputs)
    for product, upper, lower in zip(products, *sides, strict=True):
        scale = max(1.0, np.abs(product).max())
        np.testing.assert_allclose(product, (upper - lower) / (2 * step), atol=1e-5 * scale)


def test_value_of_a_group_stands_on_its_first_row(rng: np.random.Generator) -> None:
    problem = Problem(get_family("poisson"), rng, (False, False, True))
    value, share, slope, first = problem.perform()
    np.testing.assert_array_equal(first, FIRST_ROWS)
    is_first = first == np.arange(N_OBS)
    assert np.all(value[~is_first] == 0.0)
    assert np.all(share[~is_first] == 0.0)
    np.testing.assert_allclose(share[is_first].sum(axis=1), 1.0)
    y, eta, log_weight = (np.asarray(value, dtype=np.float64) for value in problem.inputs[:3])
    density = problem.family.log_density_eta(y[:, None], eta)
    rows = GROUPS == 3
    joint = log_weight + density[rows].sum(axis=0)
    assert value[0] == pytest.approx(np.log(np.exp(joint).sum()))
    np.testing.assert_allclose(slope[rows], share[0] * (y[rows, None] - np.exp(eta[rows])))


def test_groups_of_one_row_are_rows(rng: np.random.Generator) -> None:
    grouped = Problem(get_family("gaussian"), rng, (False, False, True))
    order = rng.permutation(N_OBS)
    single = Problem(get_family("gaussian"), rng, (False, False, False))
    expected = single.perform(*grouped.inputs[:4])
    assert_all_close(grouped.perform(*grouped.inputs[:4], order)[:-1], expected)


def test_negative_group_is_refused(rng: np.random.Generator) -> None:
    problem = Problem(get_family("gaussian"), rng, (False, False, True))
    problem.inputs[-1] = GROUPS - 1
    with pytest.raises(ValueError, match="`group` must be >= 0; got a negative index"):
        problem.run_loop()


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(("name", "link"), CASES)
def test_zero_weight_takes_a_component_out(
    name: str, link: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(get_family(name, link), rng, options, is_far_out=True)
    problem.inputs[2] = problem.inputs[2].copy()
    problem.inputs[2][..., 1] = -np.inf
    outputs = problem.perform()
    assert_all_close(problem.run_loop(), outputs)
    for derivative in outputs[1 : 3 + problem.layout.has_dispersion]:
        assert np.all(np.isfinite(derivative))
        assert np.all(derivative[:, 1] == 0.0)


@pytest.mark.parametrize("options", [LAYOUTS[0], LAYOUTS[2]])
@pytest.mark.parametrize("name", ["bernoulli", "gaussian"])
def test_nothing_alive_is_impossible_and_has_no_slope(
    name: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    problem = Problem(get_family(name), rng, options)
    problem.inputs[2] = np.full(N_COMPONENTS, -np.inf)
    for outputs in (problem.perform(), problem.run_loop()):
        assert np.all(np.isneginf(outputs[0][FIRST_ROWS if options[2] else slice(None)]))
        assert all(np.all(part == 0.0) for part in outputs[1:3])


def test_not_a_number_is_not_hidden(rng: np.random.Generator) -> None:
    for name in ("bernoulli", "gaussian"):
        problem = Problem(get_family(name), rng, LAYOUTS[0])
        problem.inputs[1][2, 0] = np.nan
        value = problem.run_loop()[0]
        assert np.isnan(value[2])
        assert np.isfinite(np.delete(value, 2)).all()


def check_numba(name: str, link: str, options: Any, rng: np.random.Generator) -> None:
    problem = Problem(get_family(name, link), rng, options, is_far_out=True)
    graph = problem.value_and_gradients()
    expected = function(problem.variables, graph, mode=PYTHON_MODE)(*problem.inputs)
    compiled = function(problem.variables, graph, mode="NUMBA")
    assert_all_close(compiled(*problem.inputs), expected)
    # The columns of another array: not contiguous.
    problem.inputs[1] = np.asfortranarray(problem.inputs[1])
    assert_all_close(compiled(*problem.inputs), expected)


@pytest.mark.parametrize(("name", "options"), [("bernoulli", LAYOUTS[0]), ("poisson", LAYOUTS[2])])
def test_numba_is_the_numpy_evaluation(
    name: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    check_numba(name, get_family(name).link.name, options, rng)


@pytest.mark.slow
@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize(("name", "link"), CASES)
def test_numba_is_the_numpy_evaluation_everywhere(
    name: str, link: str, options: tuple[bool, bool, bool], rng: np.random.Generator
) -> None:
    check_numba(name, link, options, rng)


def test_scalars_stand_for_equal_entries() -> None:
    eta, log_weight = np.array([[0.1, 2.0], [-1.0, 0.4]]), np.log([0.3, 0.7])
    for arguments, full in (
        ({"dispersion": 0.7}, {"dispersion": np.full(2, 0.7)}),
        ({"n_trials": 5}, {"n_trials": np.full(2, 5)}),
    ):
        family = "gaussian" if "dispersion" in arguments else "binomial"
        one, other = (
            mixture_log_density(np.array([1, 2]), eta, log_weight, family=family, **given).eval(
                mode=PYTHON_MODE
            )
            for given in (arguments, full)
        )
        np.testing.assert_array_equal(one, other)


def test_arguments_are_checked() -> None:
    eta, log_weight = np.zeros((2, 2)), np.log([0.5, 0.5])
    with pytest.raises(ValueError, match="`dispersion` must be given for family 'gaussian'"):
        mixture_log_density(np.array([1, 2]), eta, log_weight, family="gaussian")
    with pytest.raises(ValueError, match="`n_trials` must be None for family 'poisson'"):
        mixture_log_density(np.array([1, 2]), eta, log_weight, family="poisson", n_trials=3)
    with pytest.raises(ValueError, match="`eta` must have 2 dimensions; got 1"):
        mixture_log_density(np.array([1, 2]), eta[0], log_weight, family="poisson")
    with pytest.raises(ValueError, match="`log_weight` must have 1 or 2 dimensions; got 0"):
        mixture_log_density(np.array([1, 2]), eta, 0.0, family="poisson")


def build_model(name: str, y: NDArray[Any], X: NDArray[Any], **arguments: Any) -> pm.Model:
    """A mixture of two components with everything that has rows in `pm.Data`."""
    with pm.Model() as model:
        features = pm.Data("X", X, dims=("obs", "feature"))
        observed = pm.Data("y_data", y, dims="obs")
        share = pm.Uniform("share")
        coefficient = pm.Normal("coefficient", 0.0, 5.0, shape=(X.shape[1], 2))
        mixture_response(
            "y",
            features @ coefficient,
            pt.log(pt.stack([share, 1.0 - share])),
            family=name,
            observed=observed,
            dims="obs",
            **arguments,
        )
    return model


POINT = {"share_interval__": np.array(0.3), "coefficient": np.array([[0.9, -0.3], [0.2, 1.4]])}


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_model_has_the_logp_and_gradient_of_a_mixture_by_hand(
    dtype: type, rng: np.random.Generator
) -> None:
    X = rng.normal(size=(N_OBS, 2))
    y: NDArray[Any] = responses("bernoulli", rng).astype(dtype)
    ours = build_model("bernoulli", y, X)
    with pm.Model() as by_hand:
        share = pm.Uniform("share")
        eta = X @ pm.Normal("coefficient", 0.0, 5.0, shape=(2, 2))
        components = [component_distribution("bernoulli", eta[:, j]) for j in range(2)]
        pm.Mixture("y", w=pt.stack([share, 1.0 - share]), comp_dists=components, observed=y)
    results = [
        model.compile_fn([model.logp(), model.dlogp()], mode=PYTHON_MODE)(POINT)
        for model in (ours, by_hand)
    ]
    assert_all_close(results[0], results[1])


@pytest.mark.parametrize(("name", "link"), CASES)
def test_every_family_makes_a_distribution(name: str, link: str, rng: np.random.Generator) -> None:
    """Observed or not, with a finite log density at a start where PyMC needs one."""
    family = get_family(name, link)
    arguments: dict[str, Any] = {"link": link}
    if family.has_dispersion:
        arguments["dispersion"] = DISPERSION[:2]
    if family.has_trials:
        arguments["n_trials"] = N_TRIALS
    X = rng.normal(size=(N_OBS, 2))
    model = build_model(name, responses(name, rng), X, **arguments)
    expected = np.float64 if name in {"gaussian", "gamma"} else np.int64
    assert model["y"].dtype == np.dtype(expected)
    assert f"y ~ {type(family).__name__}Mixture" in model.str_repr()
    logp = model.compile_fn(model.logp(), mode=PYTHON_MODE)(model.initial_point())
    assert np.isfinite(logp)
    with pm.Model():
        y = mixture_response("y", X, np.log([0.5, 0.5]), family=name, **arguments)
    draws = pm.draw(y, draws=2, random_seed=1, mode=PYTHON_MODE)
    assert draws.shape == (2, N_OBS)
    family.validate_response(draws[0], N_TRIALS if family.has_trials else None)


def draws_of(name: str, eta: NDArray[Any], log_weight: Any, seed: int, **given: Any) -> Any:
    with pm.Model():
        y = mixture_response("y", eta, log_weight, family=name, **given)
    return pm.draw(y, random_seed=seed, mode=PYTHON_MODE)


def test_draws_have_the_moments_of_the_mixture(seed: int) -> None:
    """Mean 0.2 * 1 + 0.8 * 5; four standard errors, six in 100,000 fail."""
    n_obs, weights, means = 40_000, np.array([0.2, 0.8]), np.array([1.0, 5.0])
    eta = np.tile(np.log(means), (n_obs, 1))
    y = draws_of("poisson", eta, np.log(weights), seed)
    mean = weights @ means
    second = weights @ (means + means**2)
    fourth = weights @ (means + 7 * means**2 + 6 * means**3 + means**4)
    assert abs(y.mean() - mean) < 4 * np.sqrt((second - mean**2) / n_obs)
    assert abs(np.mean(y**2.0) - second) < 4 * np.sqrt((fourth - second**2) / n_obs)


def test_draws_of_a_gate_follow_each_row(seed: int) -> None:
    """Component 1 has y near 100; four standard errors of a proportion in each half."""
    n_obs = 20_000
    eta = np.tile([0.0, 100.0], (n_obs, 1))
    share = np.where(np.arange(n_obs) < n_obs // 2, 0.1, 0.7)
    log_weight = np.log(np.column_stack([1.0 - share, share]))
    y = draws_of("gaussian", eta, log_weight, seed, dispersion=np.array([1.0, 2.0]))
    for half, expected in ((y[: n_obs // 2], 0.1), (y[n_obs // 2 :], 0.7)):
        error = np.sqrt(expected * (1 - expected) / half.size)
        assert abs(np.mean(half > 50.0) - expected) < 4 * error
    # The spread of each component is its own: sd / sqrt(2 m) is its standard error.
    for part, deviation in ((y[y < 50.0], 1.0), (y[y > 50.0], 2.0)):
        assert abs(part.std() - deviation) < 4 * deviation / np.sqrt(2 * part.size)


def test_rows_of_a_group_are_drawn_from_one_component(seed: int) -> None:
    n_groups = 4_000
    group = np.random.default_rng(seed).permutation(np.repeat(np.arange(n_groups), 3))
    eta = np.tile([0.0, 100.0], (group.size, 1))
    y = draws_of("gaussian", eta, np.log([0.7, 0.3]), seed, dispersion=1.0, group=group)
    n_high = np.bincount(group, weights=y > 50.0)
    assert set(n_high) == {0.0, 3.0}
    assert abs(np.mean(n_high == 3.0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / n_groups)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_of_absurd_means_can_be_drawn(name: str, seed: int) -> None:
    given = {"dispersion": 1e-3} if name == "negative_binomial" else {}
    y = draws_of(name, np.full((500, 1), 250.0), np.zeros(1), seed, **given)
    assert np.all(y >= 0)
    assert y.max() > LARGEST_DRAWN_MEAN / 10


def test_draws_take_a_size(seed: int) -> None:
    with pm.Model():
        y = mixture_response("y", np.zeros((4, 2)), np.log([0.5, 0.5]), family="bernoulli")
    batch = change_dist_size(y, (3, 2))
    assert pm.draw(batch, random_seed=seed, mode=PYTHON_MODE).shape == (3, 2, 4)


def test_predictions_and_log_likelihood_of_a_model(rng: np.random.Generator) -> None:
    """Prior, posterior predictive and pointwise log likelihood; then another number of rows."""
    X, y = rng.normal(size=(N_OBS, 2)), responses("poisson", rng)
    model = build_model("poisson", y, X)
    keywords: dict[str, Any] = {"random_seed": 1, "compile_kwargs": {"mode": PYTHON_MODE}}
    with model:
        prior = pm.sample_prior_predictive(4, **keywords)
    assert prior["prior_predictive"]["y"].dtype == np.int64
    np.testing.assert_array_equal(prior["observed_data"]["y"], y)
    tree = xr.DataTree.from_dict({"posterior": prior["prior"].to_dataset()})
    quiet: dict[str, Any] = {"model": model, "progressbar": False}
    pointwise = pm.compute_log_likelihood(
        tree, extend_inferencedata=False, compile_kwargs={"mode": PYTHON_MODE}, **quiet
    )
    draw = prior["prior"].isel(chain=0, draw=2)
    share, eta = float(draw["share"]), X @ draw["coefficient"].to_numpy()
    density = model_density(y, eta, share)
    np.testing.assert_allclose(pointwise["y"].isel(chain=0, draw=2), density, rtol=1e-10)
    with model:
        pm.set_data({"X": X[:5], "y_data": y[:5]}, coords={"obs": range(5)})
    predicted = pm.sample_posterior_predictive(tree, predictions=True, **keywords, **quiet)
    assert predicted["predictions"]["y"].shape == (1, 4, 5)


def model_density(y: NDArray[Any], eta: NDArray[Any], share: float) -> NDArray[Any]:
    """Log density of a Poisson mixture of two, by the family and NumPy."""
    density = get_family("poisson").log_density_eta(y[:, None].astype(float), eta)
    result: NDArray[Any] = np.logaddexp.reduce(density + np.log([share, 1 - share]), axis=1)
    return result


def test_numba_draws_without_a_warning(seed: int) -> None:
    """Warnings are errors here, and PyTensor warns of what it has to call Python for."""
    with pm.Model():
        y = mixture_response("y", np.zeros((4, 2)), np.log([0.5, 0.5]), family="bernoulli")
    draws = pm.draw(y, draws=20, random_seed=seed, mode="NUMBA")
    assert draws.shape == (20, 4)
    assert 0 < draws.mean() < 1
    assert len({tuple(draw) for draw in draws}) > 1
