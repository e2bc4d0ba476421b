"""Runs of PyMC for `sample`: NUTS, or a fast approximation (Laplace, Pathfinder, ADVI).

Both build the model of a specification, start it at the specification's starting values without
PyMC's jitter, and complete the resulting DataTree with `moment_init.posterior.tree`.
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
from moment_init.models.priors import log_prior_group
from moment_init.models.specification import Specification
from moment_init.posterior.initial_values import initial_values
from moment_init.posterior.store import sample_into_store
from moment_init.posterior.tree import ORDER, finish_tree, header_tree

_JAX_SAMPLERS = ("numpyro", "blackjax")

_OF_CHAINS = frozenset(
    {"cores", "discard_tuned_samples", "init", "nuts", "nuts_sampler", "step", "target_accept"}
)
"""Arguments of `pymc.sample` that apply to chains only."""

_OF_PYMC = frozenset(step.name for step in pm.step_methods.STEP_METHODS).union(
    *(
        inspect.signature(function).parameters
        for function in (mcmc.sample, pm.NUTS.__init__, BaseHMC.__init__)
    )
)
"""Arguments that `pymc.sample` reads: its own, those of NUTS, and one dict per step method."""


@dataclass(frozen=True, slots=True, eq=False)
class SamplingOptions:
    """Options of a run."""

    draws: int  # number of draws per chain, without the warm-up
    tune: int | None  # number of warm-up draws per chain; PyMC's default if None
    chains: int
    store: Any  # folder to which draws are written during sampling
    log_likelihood: bool | None  # whether to add this group; None: unless it is too large
    posterior_predictive: bool | None  # whether to add this group; None: unless it is too large
    # seeds of the initial values, the sampler and the replicated responses
    seeds: tuple[int, int, int]
    pm_sample: Mapping[str, Any]  # further arguments of `pymc.sample`


def require_known_arguments(names: Iterable[str], method: str) -> None:
    """Raise for arguments that nothing would read: PyMC silently ignores unknown ones."""
    if method != "nuts":
        foreign = sorted(set(names) & _OF_CHAINS)
        if foreign:
            raise TypeError(
                f"`sample` does not take {', '.join(foreign)} with method={method!r}, which runs "
                "no chains. Leave it out."
            )
        return
    unknown = sorted(set(names) - _OF_PYMC)
    if unknown:
        raise TypeError(
            f"`sample` takes its own arguments and those of pymc.sample; got {', '.join(unknown)}. "
            "Check the spelling; arguments of another sampler go into the dict `nuts`."
        )


def sample_specification(
    specification: Specification, priors: Mapping[str, Any] | None, options: SamplingOptions
) -> xarray.DataTree:
    """Sample from the posterior of a specification."""
    model = build_model(specification, priors, projects_once=True)
    arguments = _sampler_arguments(specification, model, options)
    header = header_tree(specification)
    with single_threaded_blas(), _compiling_of(model, arguments):
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
    return _finish(tree, specification, header, model, options)


def _finish(
    tree: xarray.DataTree,
    specification: Specification,
    header: xarray.DataTree,
    model: pm.Model,
    options: SamplingOptions,
) -> xarray.DataTree:
    """Complete the result of a sampler or an approximation."""
    tree.update(log_prior_group(model, tree["posterior"].to_dataset()))
    return finish_tree(
        tree,
        specification,
        header,
        log_likelihood=options.log_likelihood,
        posterior_predictive=options.posterior_predictive,
        seed=options.seeds[2],
        raw_names=[variable.name for variable in model.free_RVs],
    )


def _compiling_of(model: pm.Model, arguments: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which nutpie compiles the model with a cache on disk."""
    if arguments["nuts_sampler"] != "nutpie" or find_spec("nutpie") is None:
        return nullcontext()
    from moment_init.posterior.nutpie_callbacks import compiling_once

    return compiling_once(model)


def _sampler_arguments(
    specification: Specification, model: pm.Model, options: SamplingOptions
) -> dict[str, Any]:
    """Collect the arguments of `pymc.sample`: the user's, and our defaults for the others."""
    user_arguments = dict(options.pm_sample)
    refused = sorted({"model", "trace", "return_inferencedata"} & set(user_arguments))
    if refused:
        raise TypeError(
            f"`sample` takes all arguments of pymc.sample except `model`, `trace` and "
            f"`return_inferencedata`; got {', '.join(refused)}. To use these, build the model with "
            "moment_init.models.mixture_glm and call pymc.sample."
        )
    user_values = user_arguments.pop("initvals", None) or {}
    if not isinstance(user_values, Mapping):
        raise TypeError(
            "`initvals` must be a dict of values by variable, which replace the starting values; "
            f"got {type(user_values).__name__}. Use random variables for values that differ "
            "between chains."
        )
    free = [variable.name for variable in model.free_RVs]
    unknown = sorted(map(str, set(user_values) - set(free)))
    if unknown:
        raise ValueError(
            f"`initvals` must name free variables of the model, {', '.join(free)}; got "
            f"{', '.join(unknown)}. Pass standardised values, or change `init`."
        )
    start = _start_of(specification, model, options.seeds[0]) | dict(user_values)
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
    return _without_jitter(arguments | user_arguments, model, start)


def _start_of(specification: Specification, model: pm.Model, seed: int) -> dict[str, Any]:
    """Return the initial values of the chains: one draw around the fit per chain."""
    free = {variable.name for variable in model.free_RVs}
    values = specification.standardised_values(specification.start)
    names = [name for name in values if name in free]
    if specification.origin is None:
        return {name: values[name] for name in names}
    mapping: dict[str, Any] = {variable.name: None for variable in model.free_RVs}
    for name in names:
        mapping[name] = lambda parameters, name=name: specification.standardised_values(parameters)[
            name
        ]
    return initial_values(
        specification.origin, model, mapping=mapping, spread=1.0, random_seed=seed
    )


def _sampled_names(model: pm.Model, *, has_store: bool) -> list[str]:
    """Return the names of the variables to sample, in the order in which they are shown.

    Scales and directions follow from the coefficients and are computed after sampling, except with
    a store, which must be complete at any time.
    """
    names = {variable.name for variable in [*model.free_RVs, *model.deterministics]}
    shown = [name for name in ORDER if name in names]
    raw = [variable.name for variable in model.free_RVs if variable.name not in shown]
    derived = () if has_store else ("scale", "direction")
    return [name for name in [*shown, *raw] if name not in derived]


def _without_jitter(
    arguments: dict[str, Any], model: pm.Model, start: Mapping[str, Any]
) -> dict[str, Any]:
    """Switch off PyMC's jitter of initial values, with the argument of the chosen sampler."""
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
    """Whether nutpie can be used: it is installed, and no user's step or callback is given."""
    unsupported = ("step", "callback")
    mode = get_mode((arguments.get("compile_kwargs") or {}).get("mode"))
    return (
        find_spec("nutpie") is not None
        and all(arguments.get(name) is None for name in unsupported)
        and isinstance(mode.linker, NumbaLinker | JAXLinker)
    )


_ADVI_STEPS = 20_000
"""Default number of ADVI steps. Started at the mode, the means hardly move; standard deviations,
which start too wide, converge within about ten thousand steps of the default optimiser."""


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
    return _finish(_in_chains(tree, options), specification, header, model, options)


def _take_start(model: pm.Model, specification: Specification) -> dict[str, Any]:
    """Remove the initial values from the model, which PyMC cannot copy with them; return them."""
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
        # Started so close to the mode, the default optimiser would stop before its estimate of
        # the curvature is accurate.
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
        # A small distance between the paths' starts: the default of 2 leaves the mode.
        "jitter": 0.1,
        # Parallel paths would fork a process that has threads.
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
    """Divide independent draws into the requested number of chains."""
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
