"""Bayesian mixtures evaluated in plain Python, which takes no compiler, for the tests of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
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
