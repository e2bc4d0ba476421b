"""Sampling from the start: `sample`'s engine, which needs PyMC."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pymc as pm
import xarray
from numpy.typing import NDArray
from pymc.sampling import mcmc
from pymc.step_methods.hmc.base_hmc import BaseHMC
from pytensor.compile.mode import get_mode
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from moment_init.blocks import single_threaded_blas
from moment_init.draw_store import sample_into_store
from moment_init.model_starts import initial_values
from moment_init.models.model_building import build_model
from moment_init.models.posterior_tree import ORDER, finish_tree, header_tree
from moment_init.models.specification import Specification

__all__ = [
    "SamplingOptions",
    "compiling_of",
    "require_known_arguments",
    "sample_specification",
    "sampler_arguments",
]

FloatArray = NDArray[np.float64]

_JAX_SAMPLERS = ("numpyro", "blackjax")

_OF_CHAINS = frozenset(
    {"cores", "discard_tuned_samples", "init", "nuts", "nuts_sampler", "step", "target_accept"}
)
"""Arguments of `pymc.sample` that mean something for chains only."""

_OF_PYMC = frozenset(step.name for step in pm.step_methods.STEP_METHODS).union(
    *(
        inspect.signature(function).parameters
        for function in (mcmc.sample, pm.NUTS.__init__, BaseHMC.__init__)
    )
)
"""Further arguments that `pymc.sample` reads: its own, those of NUTS, and a dict for each step."""


@dataclass(frozen=True, slots=True, eq=False)
class SamplingOptions:
    """How to sample.

    Parameters
    ----------
    draws : int
        Draws of each chain that are kept.
    tune : int or None
        Draws of each chain that tune the sampler; PyMC's default if None.
    chains : int
        Number of chains.
    store : str, path-like or None
        Folder to which draws are written as they are made.
    log_likelihood, posterior_predictive : bool or None
        Whether to add these groups; None for if they are not too large.
    seeds : tuple of int
        Seeds of the starts, the sampler and the replicated responses.
    pm_sample : mapping of str to object
        Further arguments of `pymc.sample`.
    """

    draws: int
    tune: int | None
    chains: int
    store: Any
    log_likelihood: bool | None
    posterior_predictive: bool | None
    seeds: tuple[int, int, int]
    pm_sample: Mapping[str, Any]


def require_known_arguments(names: Iterable[str], method: str) -> None:
    """Refuse further arguments that nothing would read: PyMC passes over those it does not know.

    Parameters
    ----------
    names : iterable of str
        Names of the further arguments of `moment_init.sample`.
    method : str
        How it samples.

    Raises
    ------
    TypeError
        For unknown ones, and for those of chains where there are none.
    """
    if method != "nuts":
        foreign = sorted(set(names) & _OF_CHAINS)
        if foreign:
            raise TypeError(
                f"`sample` must not have {', '.join(foreign)} with method={method!r}, which runs "
                "no chains. Leave it out."
            )
        return
    unknown = sorted(set(names) - _OF_PYMC)
    if unknown:
        raise TypeError(
            f"`sample` must have arguments of its own or of pymc.sample; got {', '.join(unknown)}. "
            "Check the spelling; arguments of a sampler of its own go into `nuts`, a dict."
        )


def sample_specification(
    specification: Specification, priors: Mapping[str, Any] | None, options: SamplingOptions
) -> xarray.DataTree:
    """Sample from the posterior of a specification.

    Parameters
    ----------
    specification : Specification
        Data, start and anchors.
    priors : mapping of str to prior, or None
        The user's priors.
    options : SamplingOptions
        How to sample.

    Returns
    -------
    xarray.DataTree
        The groups that `moment_init.sample` describes.
    """
    model = build_model(specification, priors, projects_once=True)
    arguments = sampler_arguments(
        model, options, lambda: start_of(specification, model, options.seeds[0])
    )
    header = header_tree(specification)
    with single_threaded_blas(), compiling_of(model, arguments):
        if options.store is None:
            tree = pm.sample(model=model, **arguments)
        else:
            tree = sample_into_store(
                options.store,
                pm.sample,
                {"model": model, **arguments},
                header=header,
                variables=arguments["var_names"],
            )
    return finish_tree(
        tree,
        specification,
        header,
        log_likelihood=options.log_likelihood,
        posterior_predictive=options.posterior_predictive,
        seed=options.seeds[2],
        raw_names=[variable.name for variable in model.free_RVs],
    )


def compiling_of(model: pm.Model, arguments: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A context in which nutpie compiles the model so that the next process need not.

    Parameters
    ----------
    model : pymc.Model
        The model.
    arguments : mapping of str to object
        Arguments of `pymc.sample`, with `nuts_sampler`.

    Returns
    -------
    context manager
        One that does nothing for other samplers.
    """
    if arguments["nuts_sampler"] != "nutpie" or find_spec("nutpie") is None:
        return nullcontext()
    from moment_init.models.nutpie_compiling import compiling_once

    return compiling_once(model)


def sampler_arguments(
    model: pm.Model, options: SamplingOptions, draw_start: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Put the arguments of `pymc.sample` together: ours where the user gave none.

    Parameters
    ----------
    model : pymc.Model
        The model.
    options : SamplingOptions
        How to sample.
    draw_start : callable
        Returns the initial values; it is called after the user's arguments are checked.

    Returns
    -------
    dict of str to object
        The arguments, all but `model`.

    Raises
    ------
    TypeError
        For arguments that `sample` does not take.
    """
    given = dict(options.pm_sample)
    refused = sorted({"model", "trace", "return_inferencedata"} & set(given))
    if refused:
        raise TypeError(
            f"`sample` takes all arguments of pymc.sample but `model`, `trace` and "
            f"`return_inferencedata`; got {', '.join(refused)}. Build the model with "
            "moment_init.models.mixture_glm and call pymc.sample for these."
        )
    own = given.pop("initvals", None) or {}
    if not isinstance(own, Mapping):
        raise TypeError(
            "`initvals` must be a dict of values by variable, which replace those of the start; "
            f"got {type(own).__name__}. Random variables as values differ between chains."
        )
    free = [variable.name for variable in model.free_RVs]
    strangers = sorted(map(str, set(own) - set(free)))
    if strangers:
        raise ValueError(
            f"`initvals` must name free variables of the model, {', '.join(free)}; got "
            f"{', '.join(strangers)}. Give standardised values, or start elsewhere by `init`."
        )
    start = draw_start() | dict(own)
    arguments: dict[str, Any] = {
        "draws": options.draws,
        "tune": options.tune,
        "chains": options.chains,
        "random_seed": options.seeds[1],
        "var_names": _sampled_names(model, has_store=options.store is not None),
        "initvals": start,
    }
    if options.tune is None:
        del arguments["tune"]
    return _without_jitter(arguments | given, model, start)


def start_of(specification: Specification, model: pm.Model, seed: int) -> dict[str, Any]:
    """Where the chains start: draws about the fit, one for each chain.

    Parameters
    ----------
    specification : Specification
        What the model was built from.
    model : pymc.Model
        The model.
    seed : int
        Seed of the draws.

    Returns
    -------
    dict of str to array or TensorVariable
        Initial values of the free variables; the start itself where it has no standard errors.
    """
    free = {variable.name for variable in model.free_RVs}
    values = specification.standardised_values(specification.start)
    names = [name for name in values if name in free]
    if specification.origin is None:
        return {name: values[name] for name in names}
    mapping: dict[str, Any] = {variable.name: None for variable in model.free_RVs}
    for name in names:
        mapping[name] = lambda there, name=name: specification.standardised_values(there)[name]
    return initial_values(
        specification.origin, model, mapping=mapping, spread=1.0, random_seed=seed
    )


def _sampled_names(model: pm.Model, *, has_store: bool) -> list[str]:
    """Variables that are stored, in the order in which they are shown.

    Scales and directions follow from coefficients and are computed afterwards, at once, but in a
    store that must be complete at any moment.
    """
    names = {variable.name for variable in [*model.free_RVs, *model.deterministics]}
    shown = [name for name in ORDER if name in names]
    raw = [variable.name for variable in model.free_RVs if variable.name not in shown]
    derived = () if has_store else ("scale", "direction")
    return [name for name in [*shown, *raw] if name not in derived]


def _without_jitter(
    arguments: dict[str, Any], model: pm.Model, start: Mapping[str, Any]
) -> dict[str, Any]:
    """Switch off the jitter that PyMC adds to a start, in the way that each sampler knows."""
    sampler = arguments.get("nuts_sampler")
    if sampler is None:
        sampler = "nutpie" if _takes_nutpie(arguments) else "pymc"
        arguments = arguments | {"nuts_sampler": sampler}
    if sampler == "nutpie":
        rest = {variable for variable in model.free_RVs if variable.name not in start}
        compiling = {"jitter_rvs": rest, **(arguments.get("compile_kwargs") or {})}
        return arguments | {"compile_kwargs": compiling}
    if sampler in _JAX_SAMPLERS:
        return arguments | {"nuts": {"jitter": False, **(arguments.get("nuts") or {})}}
    return {"init": "adapt_diag"} | arguments


def _takes_nutpie(arguments: Mapping[str, Any]) -> bool:
    """Whether nutpie can do what is asked: it has no steps or callbacks of one's own."""
    own_only = ("step", "callback")
    mode = get_mode((arguments.get("compile_kwargs") or {}).get("mode"))
    return (
        find_spec("nutpie") is not None
        and all(arguments.get(name) is None for name in own_only)
        and isinstance(mode.linker, NumbaLinker | JAXLinker)
    )
