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

from moment_init.checks import FloatArray, WeakSignalWarning, notify
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import RegressionData
from moment_init.models.mixture_glm import build_model
from moment_init.models.priors import log_prior_group
from moment_init.models.specification import Specification
from moment_init.posterior.mode import PosteriorMode, find_mode, in_python
from moment_init.posterior.model_variables import pick_at_random
from moment_init.posterior.store import sample_into_store
from moment_init.posterior.tree import ORDER, finish_tree, header_tree

_STARTS = 40
"""Number of draws among which each chain picks its start. Two of four chains pick the same in one
of seven runs; they separate with their first momentum."""

_JAX_SAMPLERS = ("numpyro", "blackjax")

_WARM_UP, _SKEWED_WARM_UP = 200, 500
"""Default numbers of warm-up draws where nutpie samples in whitened coordinates: the step size must
be found, and little else. A skewed posterior needs more: of negative binomial data, one of two runs
with 200 had a chain that stayed behind (R-hat 1.29), and none with 500."""

_IN_COORDINATES = (
    "include_transformed",
    "store_gradient",
    "store_mass_matrix",
    "store_unconstrained",
)
"""Options of nutpie whose results are in the coordinates that it samples in."""

_OF_CHAINS = frozenset(
    {"cores", "discard_tuned_samples", "init", "nuts", "nuts_sampler", "step", "target_accept"}
)
"""Arguments of `pymc.sample` that apply to chains only."""

_OF_DISPLAY = frozenset({"progressbar", "quiet"})
"""Arguments of `pymc.sample` that also apply where there are no chains."""

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
        is_ours = method != "pathfinder"  # which has arguments of its own
        foreign = sorted(set(names) - _OF_DISPLAY if is_ours else set(names) & _OF_CHAINS)
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
    with single_threaded_blas():
        mode = find_mode(model).settled(np.random.default_rng(options.seeds[0]))
        arguments = _sampler_arguments(mode, options)
    header = header_tree(specification)
    with single_threaded_blas(), _compiling_of(mode, arguments):
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


def _compiling_of(
    mode: PosteriorMode, arguments: Mapping[str, Any]
) -> AbstractContextManager[None]:
    """Return a context in which nutpie compiles the model with a cache on disk."""
    if not _takes_whitened(arguments):
        return nullcontext()
    from moment_init.posterior.nutpie_callbacks import compiling_once

    return compiling_once(mode)


def _takes_whitened(arguments: Mapping[str, Any]) -> bool:
    """Whether nutpie can sample in our coordinates.

    It cannot if another version compiles the model, or if its results are to be in the coordinates
    of the model's unconstrained values.
    """
    if arguments["nuts_sampler"] != "nutpie" or find_spec("nutpie") is None:
        return False
    from moment_init.posterior.nutpie_callbacks import knows_nutpie

    compiling = set(arguments.get("compile_kwargs") or {})
    asked = {**(arguments.get("nuts") or {}), **(arguments.get("idata_kwargs") or {}), **arguments}
    return (
        knows_nutpie()
        and compiling <= {"jitter_rvs"}
        and arguments.get("backend") is None
        and not any(asked.get(name) for name in _IN_COORDINATES)
    )


def _sampler_arguments(mode: PosteriorMode, options: SamplingOptions) -> dict[str, Any]:
    """Collect the arguments of `pymc.sample`: the user's, and our defaults for the others."""
    user_arguments = dict(options.pm_sample)
    older_name = user_arguments.pop("nuts_sampler_kwargs", None)  # of `nuts`
    if older_name:
        user_arguments["nuts"] = {**older_name, **(user_arguments.get("nuts") or {})}
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
    model = mode.log_posterior.model
    free = [variable.name for variable in model.free_RVs]
    unknown = sorted(map(str, set(user_values) - set(free)))
    if unknown:
        raise ValueError(
            f"`initvals` must name free variables of the model, {', '.join(free)}; got "
            f"{', '.join(unknown)}. Pass standardised values, or change `init`."
        )
    points = mode.draw_starts(_STARTS, np.random.default_rng(options.seeds[0]))
    start = pick_at_random(mode.log_posterior.variables(points, free)) | dict(user_values)
    arguments: dict[str, Any] = {
        "draws": options.draws,
        "tune": options.tune,
        "chains": options.chains,
        "random_seed": options.seeds[1],
        "var_names": _sampled_names(model, has_store=options.store is not None),
        "initvals": start,
    }
    arguments = _without_jitter(arguments | user_arguments, model, start)
    if options.tune is None:
        is_short = mode.is_settled and _takes_whitened(arguments)
        needed = _WARM_UP if mode.is_normal else _SKEWED_WARM_UP
        arguments["tune"] = needed if is_short else None
    return {name: value for name, value in arguments.items() if name != "tune" or value is not None}


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


def approximate_specification(
    specification: Specification,
    priors: Mapping[str, Any] | None,
    options: SamplingOptions,
    method: str,
) -> xarray.DataTree:
    """Approximate the posterior of a specification."""
    model = build_model(specification, priors, projects_once=True)
    with single_threaded_blas():
        tree = _METHODS[method](model, options)
    header = header_tree(specification)
    header["moment_init"].attrs["method"] = method
    tree = _finish(_in_chains(tree, options), specification, header, model, options)
    return _with_density(tree, specification.data)


def _laplace(model: pm.Model, options: SamplingOptions) -> xarray.DataTree:
    """Draw from the normal approximation at the mode."""
    mode = find_mode(model)
    if not mode.is_regular:
        notify(
            "The log posterior does not fall off in some direction at its mode, so the Laplace "
            "approximation says nothing about its width there. Use method='nuts', or stronger "
            "priors.",
            WeakSignalWarning,
        )
    return _independent_draws(mode, options)


def _advi(model: pm.Model, options: SamplingOptions) -> xarray.DataTree:
    """Draw from the independent normals that are closest to the posterior."""
    mode = find_mode(model).with_independent_values(np.random.default_rng(options.seeds[0]))
    return _independent_draws(mode, options)


def _independent_draws(mode: PosteriorMode, options: SamplingOptions) -> xarray.DataTree:
    """Make a tree of draws from a normal approximation."""
    shape = (options.chains, options.draws)
    rng = np.random.default_rng(options.seeds[1])
    points, log_densities = mode.draw_normal(options.chains * options.draws, rng)
    model = mode.log_posterior.model
    values = mode.log_posterior.variables(points, _sampled_names(model, has_store=False))
    coords = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    dims = {
        name: ("chain", "draw", *_dims_of(model, name, value)) for name, value in values.items()
    }
    variables = {
        name: (dims[name], value.reshape(*shape, *value.shape[1:]))
        for name, value in values.items()
    }
    used = set().union(*dims.values())
    coords |= {
        name: list(labels)
        for name, labels in model.coords.items()
        if name in used and labels is not None
    }
    stats = {
        "log_q": (("chain", "draw"), log_densities.reshape(shape)),
        "log_prior": (("chain", "draw"), mode.log_posterior.log_priors(points).reshape(shape)),
    }
    return xarray.DataTree.from_dict(
        {
            "posterior": xarray.Dataset(variables, coords),
            "sample_stats": xarray.Dataset(
                stats, {name: coords[name] for name in ("chain", "draw")}
            ),
        }
    )


def _with_density(tree: xarray.DataTree, data: RegressionData) -> xarray.DataTree:
    """Add the log posterior density of draws whose log prior and log-likelihood are known."""
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree else xarray.Dataset()
    if "log_prior" not in stats:
        return tree
    prior = stats["log_prior"]
    stats = stats.drop_vars("log_prior")
    if "log_likelihood" in tree:
        rows = tree["log_likelihood"]["y"]
        weights = data.sample_weight if data.groups is None else 1.0  # groups contain them
        stats = stats.assign(lp=prior + (rows * weights).sum(str(rows.dims[2])))
    tree["sample_stats"] = stats
    return tree


def _dims_of(model: pm.Model, name: str, value: FloatArray) -> tuple[str, ...]:
    """Return the dims of a variable, with PyMC's names for those without a name."""
    dims = model.named_vars_to_dims.get(name) or (None,) * (value.ndim - 1)
    return tuple(f"{name}_dim_{axis}" if dim is None else dim for axis, dim in enumerate(dims))


def _pathfinder(model: pm.Model, options: SamplingOptions) -> xarray.DataTree:
    """Run the Pathfinder of pymc-extras from the model's initial values, without compiling."""
    if find_spec("pymc_extras") is None:
        raise ImportError(
            "method='pathfinder' needs pymc-extras, which is not installed. Run `pip install "
            "'moment-init[approximation]'`, or use method='laplace', 'advi' or 'nuts'."
        )
    import pymc_extras

    start = {variable.name: model.rvs_to_initial_values[variable] for variable in model.free_RVs}
    for variable in model.free_RVs:
        model.set_initval(variable, None)  # PyMC cannot copy a model with initial values
    arguments: dict[str, Any] = {
        "model": model,
        "initvals": {name: value for name, value in start.items() if value is not None},
        # A small distance between the paths' starts: the default of 2 leaves the mode.
        "jitter": 0.1,
        # Parallel paths would fork a process that has threads.
        "parallel": False,
        "num_draws": options.draws * options.chains,
        "random_seed": options.seeds[1],
        "compile_kwargs": {"mode": in_python()},
    }
    return pymc_extras.fit_pathfinder(**(arguments | dict(options.pm_sample)))


_METHODS: Mapping[str, Callable[[pm.Model, SamplingOptions], xarray.DataTree]] = MappingProxyType(
    {"laplace": _laplace, "pathfinder": _pathfinder, "advi": _advi}
)


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
