"""Bayesian mixtures evaluated in plain Python, which takes no compiler, for the tests of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pytensor.compile.mode import Mode
from pytensor.configdefaults import config
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from moment_init.models import mixture_glm
from tests.em_fits import Fitted, make_fit
from tests.likelihood_problems import VARIANTS

FloatArray = NDArray[np.float64]

# The fewest rewrites: each graph runs a few times only, and rewriting is most of the cost.
MODE = Mode(linker="py", optimizer=RewriteDatabaseQuery(["minimum_compile"], exclude=["fusion"]))
COMPILE: dict[str, Any] = {"mode": MODE}

N_OBS = 300


@dataclass(frozen=True)
class Built:
    """A model with the fit that it starts from, and its values there."""

    model: pm.Model
    fitted: Fitted
    log_likelihood: float
    logp: float
    gradient: FloatArray
    values: dict[str, FloatArray]


@cache
def fitted(family: str, link: str, variant: str, *, with_extras: bool = True) -> Fitted:
    """A small fit; the same for every test that asks."""
    rng = np.random.default_rng(20240229)
    return make_fit(
        family, link, rng, variant=VARIANTS[variant], n_obs=N_OBS, with_extras=with_extras
    )


@cache
def built(family: str, link: str, variant: str, directions: Any) -> Built:
    """A model that starts at such a fit."""
    start = fitted(family, link, variant)
    model = model_of(start, directions=directions)
    names = [variable.name for variable in model.deterministics]
    outputs = [model.logp(vars=model.observed_RVs), model.logp(), model.dlogp()]
    first, second, gradient, *values = evaluate(model, [*outputs, *model.deterministics])
    return Built(
        model,
        start,
        float(first),
        float(second),
        gradient,
        dict(zip(names, values, strict=True)),
    )


def model_of(start: Fitted, **arguments: Any) -> pm.Model:
    """The model of a fit's rows that starts at it."""
    given = {"init": start.fit, **start.block, **arguments}
    fit = start.fit
    return mixture_glm(
        start.X, start.y, fit.n_components, family=fit.family, link=fit.link, **given
    )


def evaluate(
    model: pm.Model, outputs: Sequence[Any], point: dict[str, Any] | None = None
) -> list[Any]:
    """Values of tensors of a model at a point, by default its initial point."""
    with config.change_flags(cxx=""):
        compiled = model.compile_fn(
            model.replace_rvs_by_values(list(outputs)),
            inputs=model.value_vars,
            mode=MODE,
            on_unused_input="ignore",
        )
        return list(compiled(model.initial_point() if point is None else point))


def draw(variables: Any, draws: int, seed: int) -> Any:
    """Prior draws of variables."""
    with config.change_flags(cxx=""):
        return pm.draw(variables, draws, random_seed=seed, mode=MODE)


class FakeSampler:
    """Stands for `pymc.sample`: notes its arguments and gives draws near the model's start.

    Parameters
    ----------
    switched : sequence of int
        Draws of every chain in which the components trade places.
    size : float
        Spread of the draws on the unconstrained scale.
    """

    def __init__(self, switched: Sequence[int] = (), size: float = 0.01) -> None:
        self.calls: list[dict[str, Any]] = []
        self._switched = switched
        self._size = size

    def __call__(self, *, model: pm.Model, **arguments: Any) -> xr.DataTree:
        self.calls.append({"model": model, **arguments})
        names, shape = arguments["var_names"], (arguments["chains"], arguments["draws"])
        rng = np.random.default_rng(arguments["random_seed"])
        with config.change_flags(cxx=""):
            variables = model.replace_rvs_by_values([model[name] for name in names])
            compiled = model.compile_fn(
                variables, inputs=model.value_vars, mode=MODE, on_unused_input="ignore"
            )
            start = model.initial_point()
        draws = [
            compiled({name: self._near(value, rng) for name, value in start.items()})
            for _ in range(shape[0] * shape[1])
        ]
        values = {
            name: np.reshape([draw[k] for draw in draws], (*shape, *np.shape(draws[0][k])))
            for k, name in enumerate(names)
        }
        return self._as_tree(model, values, shape)

    def _near(self, value: Any, rng: np.random.Generator) -> FloatArray:
        return np.asarray(value + self._size * rng.standard_normal(np.shape(value)))

    def _as_tree(
        self, model: pm.Model, values: dict[str, FloatArray], shape: tuple[int, int]
    ) -> xr.DataTree:
        dims = {name: model.named_vars_to_dims[name] for name in values}
        sampling = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
        used = {dim for own in dims.values() for dim in own}
        coords = {dim: np.asarray(model.coords[dim]) for dim in used}
        posterior = xr.Dataset(
            {name: (("chain", "draw", *dims[name]), value) for name, value in values.items()},
            {**sampling, **coords},
        )
        for draw_ in self._switched:
            for variable in posterior.data_vars.values():
                if "component" in variable.dims:
                    at = variable[{"draw": draw_}]
                    variable[{"draw": draw_}] = at.isel(component=slice(None, None, -1)).to_numpy()
        stats = xr.Dataset({"diverging": (("chain", "draw"), np.zeros(shape, bool))}, sampling)
        return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
