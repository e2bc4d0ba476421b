"""Fast approximations of the posterior from the same start: Laplace, Pathfinder, ADVI."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
import xarray

from moment_init.blocks import single_threaded_blas
from moment_init.models.model_building import build_model
from moment_init.models.posterior_tree import finish_tree, header_tree
from moment_init.models.sampling import SamplingOptions
from moment_init.models.specification import Specification

__all__ = ["approximate_specification"]

_ADVI_STEPS = 20_000
"""Steps of ADVI unless `n` is given. From a start in the mode the means hardly move; the standard
deviations, which start too wide, settle within some ten thousand steps of the default optimiser."""


def approximate_specification(
    specification: Specification,
    priors: Mapping[str, Any] | None,
    options: SamplingOptions,
    method: str,
) -> xarray.DataTree:
    """Approximate the posterior of a specification.

    Parameters
    ----------
    specification : Specification
        Data, start and anchors.
    priors : mapping of str to prior, or None
        The user's priors.
    options : SamplingOptions
        Number of draws and chains, seeds; its further arguments go to the approximation.
    method : {"laplace", "pathfinder", "advi"}
        Which approximation.

    Returns
    -------
    xarray.DataTree
        The groups that `moment_init.sample` describes; draws of an approximation are independent,
        and are cut into chains.

    Raises
    ------
    ImportError
        If pymc-extras is needed and not installed.
    """
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
