"""Sampling from the start: `sample`'s engine, which needs PyMC.

Fast approximations of the posterior from the same start: Laplace, Pathfinder, ADVI.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import xarray
from pymc.sampling import mcmc
from pymc.step_methods.hmc.base_hmc import BaseHMC
from pytensor.compile.mode import get_mode
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from moment_init.data.blocks import single_threaded_blas
from moment_init.models.mixture_glm import build_model
from moment_init.models.specification import Specification
from moment_init.posterior.initial_values import initial_values
from moment_init.posterior.store import sample_into_store
from moment_init.posterior.tree import ORDER, finish_tree, header_tree

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
    """How to sample."""

    draws: int  # draws of each chain that are kept
    tune: int | None  # draws of each chain that tune the sampler; PyMC's default if None
    chains: int  # number of chains
    store: Any  # folder to which draws are written as they are made
    log_likelihood: bool | None  # whether to add these groups; None for if they are not too large
    # whether to add these groups; None for if they are not too large
    posterior_predictive: bool | None
    seeds: tuple[int, int, int]  # seeds of the starts, the sampler and the replicated responses
    pm_sample: Mapping[str, Any]  # further arguments of `pymc.sample`


def require_known_arguments(names: Iterable[str], method: str) -> None:
    """Refuse further arguments that nothing would read: PyMC passes over those it does not know."""
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
    """Sample from the posterior of a specification."""
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
    """A context in which nutpie compiles the model so that the next process need not."""
    if arguments["nuts_sampler"] != "nutpie" or find_spec("nutpie") is None:
        return nullcontext()
    from moment_init.posterior.nutpie_callbacks import compiling_once

    return compiling_once(model)


def sampler_arguments(
    model: pm.Model, options: SamplingOptions, draw_start: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Put the arguments of `pymc.sample` together: ours where the user gave none."""
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
    """Where the chains start: draws about the fit, one for each chain."""
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


_ADVI_STEPS = 20_000
"""Steps of ADVI unless `n` is given. From a start in the mode the means hardly move; the standard
deviations, which start too wide, settle within some ten thousand steps of the default optimiser."""


def approximate_specification(
    specification: Specification,
    priors: Mapping[str, Any] | None,
    options: SamplingOptions,
    method: str,
) -> xarray.DataTree:
    """Approximate the posterior of a specification."""
    model = build_model(specification, priors, projects_once=True)
    start = _take_start(model, specification)
    with single_threaded_blas():
        tree = _METHODS[method](model, start, options)
    header = header_tree(specification)
    header["moment_init"].attrs["method"] = method
    return finish_tree(
        _in_chains(tree, options),
        specification,
        header,
        log_likelihood=options.log_likelihood,
        posterior_predictive=options.posterior_predictive,
        seed=options.seeds[2],
        raw_names=[variable.name for variable in model.free_RVs],
    )


def _take_start(model: pm.Model, specification: Specification) -> dict[str, Any]:
    """Values at which to start, taken out of the model: PyMC copies no model that has its own."""
    values = specification.standardised_values(specification.start)
    start = {}
    for variable in model.free_RVs:
        model.set_initval(variable, None)
        if variable.name in values:
            start[variable.name] = values[variable.name]
    return start


def _laplace(
    model: pm.Model, start: Mapping[str, Any], options: SamplingOptions
) -> xarray.DataTree:
    extras = _require_extras("laplace")
    arguments: dict[str, Any] = {
        "model": model,
        "initvals": dict(start),
        "jitter_rvs": [],
        # The start is all but the mode: the default optimiser would stop before its running
        # estimate of the curvature is one.
        "optimize_method": "trust-ncg",
        "use_hessp": True,
        "include_transformed": False,
        "draws": options.draws * options.chains,
        "random_seed": options.seeds[1],
    }
    return extras.fit_laplace(**(arguments | dict(options.pm_sample)))


def _pathfinder(
    model: pm.Model, start: Mapping[str, Any], options: SamplingOptions
) -> xarray.DataTree:
    extras = _require_extras("pathfinder")
    arguments: dict[str, Any] = {
        "model": model,
        "initvals": dict(start),
        # Paths start apart on the unconstrained scale, by little: the default of 2 leaves the mode.
        "jitter": 0.1,
        # Paths in processes of their own would be forked from one that has threads.
        "parallel": False,
        "num_draws": options.draws * options.chains,
        "random_seed": options.seeds[1],
    }
    return extras.fit_pathfinder(**(arguments | dict(options.pm_sample)))


def _advi(model: pm.Model, start: Mapping[str, Any], options: SamplingOptions) -> xarray.DataTree:
    arguments: dict[str, Any] = {
        "n": _ADVI_STEPS,
        "method": "advi",
        "model": model,
        "start": dict(start),
        "random_seed": options.seeds[1],
    }
    approximation = pm.fit(**(arguments | dict(options.pm_sample)))
    return approximation.sample(
        options.draws * options.chains, random_seed=int(options.seeds[1]), return_inferencedata=True
    )


_METHODS: Mapping[
    str, Callable[[pm.Model, Mapping[str, Any], SamplingOptions], xarray.DataTree]
] = MappingProxyType({"laplace": _laplace, "pathfinder": _pathfinder, "advi": _advi})


def _in_chains(tree: xarray.DataTree, options: SamplingOptions) -> xarray.DataTree:
    """Cut independent draws into the chains that were asked for."""
    posterior = tree["posterior"].to_dataset()
    total = posterior.sizes["chain"] * posterior.sizes["draw"]
    if posterior.sizes["chain"] == options.chains or total != options.chains * options.draws:
        return tree
    chain, draw = np.divmod(np.arange(total), options.draws)
    flat = posterior.stack(row=("chain", "draw")).reset_index("row", drop=True)
    flat = flat.assign_coords(chain=("row", chain), draw=("row", draw))
    cut = flat.set_index(row=("chain", "draw")).unstack("row")
    result = tree.copy()
    result["posterior"] = xarray.DataTree(cut.transpose("chain", "draw", ...))
    return result


def _require_extras(method: str) -> Any:
    if find_spec("pymc_extras") is None:
        raise ImportError(
            f"method={method!r} needs pymc-extras, which is not installed. Run `pip install "
            "'moment-init[approximation]'`, or use method='advi' or 'nuts'."
        )
    import pymc_extras

    return pymc_extras
