"""The DataTree that `sample` returns, made from the result of a PyMC sampler.

`header_tree` makes the groups that are known before sampling: data, starting values and versions.
`finish_tree` orders the posterior, adds log-likelihoods and replicated responses, and aligns the
components with the starting values.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from moment_init.checks import WeakSignalWarning, notify
from moment_init.data.checking import RegressionData
from moment_init.em.start_values import dims_of
from moment_init.models.specification import Directions, Specification
from moment_init.moments.result import MomentEstimate
from moment_init.posterior.alignment import align_components
from moment_init.posterior.draws import (
    PosteriorDraws,
    draw_responses,
    library,
    log_likelihood_group,
    response_dtype,
)

ORDER = (
    "coefficient",
    "direction",
    "scale",
    "bias",
    "weight",
    "dispersion",
    "gate",
    "gate_bias",
)
"""Variables of the posterior, in the order in which they are shown."""

NOTABLE_SHARE = 0.01
"""Share of a chain's draws with switched labels above which a warning is given."""

_PACKAGES = ("pymc", "arviz", "nutpie", "pytensor")

LARGEST_GROUP = 100_000_000
"""Number of values above which log-likelihoods and replicated responses are made only on request:
each group then takes 0.8 GB."""


def header_tree(specification: Specification) -> xarray.DataTree:
    """Make the groups that are known before sampling: data, starting values and versions."""
    data = specification.data
    obs: dict[str, Any] = {"obs": np.arange(data.n_obs)}
    response = {"response": list(data.response_names)} if specification.response_dims else {}
    constant: dict[str, Any] = {"X": (("obs", "feature"), np.asarray(data.X, dtype=np.float64))}
    coords: dict[str, Any] = obs | {"feature": list(data.feature_names)}
    for name in ("offset", "n_trials", "sample_weight"):
        value = getattr(data, name)
        if value is not None:
            constant[name] = (("obs", "response")[: value.ndim], value)
            coords |= response if value.ndim == 2 else {}
    if data.groups is not None:
        labels = np.asarray(data.groups)
        constant["groups"] = ("obs", labels if labels.dtype.kind in "iuf" else labels.astype(str))
    if specification.gating is not None and specification.gate_coordinates is not None:
        constant["gating"] = (("obs", "gate_feature"), specification.gating)
        coords["gate_feature"] = list(specification.gate_coordinates.names)
    groups = {
        "observed_data": _by_row(_as_responses(data), data),
        "constant_data": xarray.Dataset(constant, coords),
        "moment_init": _own_group(specification),
    }
    for dataset in groups.values():
        dataset.attrs = library() | dataset.attrs
    return xarray.DataTree.from_dict(groups)


def _by_row(
    values: NDArray[Any], data: RegressionData, sampling: dict[str, Any] | None = None
) -> xarray.Dataset:
    """Label responses of the rows; those of each draw have the dims of sampling first."""
    # values: (..., n_obs) or (..., n_obs, n_responses)
    coords = {**(sampling or {}), "obs": np.arange(data.n_obs)}
    if data.y.ndim == 2:
        coords["response"] = list(data.response_names)
    return xarray.Dataset({"y": (tuple(coords), values)}, coords)


def _as_responses(data: RegressionData) -> NDArray[Any]:
    """Convert the responses to the dtype of replicated ones, if they fit into it."""
    dtype = response_dtype(data)
    if dtype.kind == "f" or np.any(data.y > np.iinfo(dtype).max // 2):
        return data.y
    return data.y.astype(dtype)


def _own_group(specification: Specification) -> xarray.Dataset:
    """Make the group of starting values, their estimate and diagnostics, and model settings."""
    origin, given = specification.origin, specification.given
    group = xarray.Dataset()
    if origin is not None:
        group = origin.to_datatree()["moment_init"].to_dataset()
    if given is not None:
        group = _with_estimate(group, given)
    data, dispersed = specification.data, specification.dispersed
    start = {
        name: (dims_of(name, value.ndim), value)
        for name, value in specification.start.variables().items()
    }
    group = group.assign_coords(
        component=np.arange(specification.n_components),
        feature=list(data.feature_names),
    )
    if specification.response_dims:
        group = group.assign_coords(response=list(data.response_names))
    if "dispersion" in start and len(dispersed) < specification.n_predictors:
        # As in the model: the dim holds the responses that have a dispersion.
        start["dispersion"] = (
            ("dispersed_response", "component"),
            start["dispersion"][1][dispersed],
        )
        names = [data.response_names[index] for index in dispersed]
        group = group.assign_coords(dispersed_response=names)
    group = group.assign({f"initial_{name}": variable for name, variable in start.items()})
    slopes = (*specification.response_dims, "feature", "component")
    group = group.assign(anchor=(slopes, specification.anchors))
    if specification.gate_coordinates is not None:
        group = group.assign_coords(gate_feature=list(specification.gate_coordinates.names))
    group.attrs |= {
        "family": data.family.name,
        "link": data.family.link_name,
        "directions": specification.directions,
        "anchor_angle": specification.anchor_angle,
        "init": "arrays" if origin is None else type(given or origin).__name__,
        **{f"{name}_version": version(name) for name in _PACKAGES if find_spec(name)},
    }
    if data.classes is not None:
        group.attrs["reference_class"] = str(data.classes[0])
        group.attrs["classes"] = "\n".join(map(str, data.classes))
    return group


def _with_estimate(group: xarray.Dataset, given: MomentEstimate) -> xarray.Dataset:
    """Add an estimate and its diagnostics under names that begin with `estimate_`."""
    tree = given.to_datatree()
    values = tree["posterior"].to_dataset().isel(chain=0, draw=0, drop=True)
    combined = xarray.merge([values, tree["moment_init"].to_dataset()], compat="override")
    renamed = combined.rename({name: f"estimate_{name}" for name in combined.data_vars})
    attrs = {f"estimate_{name}": value for name, value in tree["moment_init"].attrs.items()}
    merged = xarray.merge([group, renamed], compat="override")
    return merged.assign_attrs(group.attrs | attrs)


def finish_tree(
    tree: xarray.DataTree,
    specification: Specification,
    header: xarray.DataTree,
    *,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    seed: int,
    raw_names: list[str],
) -> xarray.DataTree:
    """Complete the result of a sampler."""
    groups = {
        name: node.to_dataset()
        for name, node in tree.children.items()
        if name not in ("constant_data", "observed_data", "moment_init")
    }
    for name in ("posterior", "warmup_posterior"):
        if name in groups:
            groups[name] = _ordered_posterior(groups[name], raw_names)
    groups |= {name: node.to_dataset() for name, node in header.children.items()}
    posterior = groups["posterior"]
    if _has_parameters(posterior, specification):
        groups |= _row_groups(posterior, specification, log_likelihood, posterior_predictive, seed)
    elif log_likelihood or posterior_predictive:
        raise ValueError(
            "`var_names` must contain all parameters for `log_likelihood` and "
            f"`posterior_predictive`; got {sorted(map(str, posterior.data_vars))}. Leave it out."
        )
    return _match_labels(groups, specification.directions)


def _match_labels(groups: dict[str, xarray.Dataset], directions: Directions) -> xarray.DataTree:
    """Relabel free components to match the starting values; else report label switching."""
    finished = xarray.DataTree.from_dict(groups)
    if directions == "fixed" or "coefficient" not in groups["posterior"]:
        return finished
    reference = _start_reference(groups["moment_init"])
    if directions == "free":
        return align_components(finished, reference)
    # Anchors and priors identify the components, so the draws keep their labels.
    needed = {name: groups[name] for name in ("posterior", "moment_init")}
    record = align_components(xarray.DataTree.from_dict(needed), reference)["moment_init"]
    shares = {name: record[name] for name in ("switched_share", "moved_share")}
    finished["moment_init"] = finished["moment_init"].to_dataset().assign(shares)
    switched = float(shares["switched_share"].max())
    if switched > NOTABLE_SHARE:
        notify(
            f"Labels of components switch in {switched:.0%} of a chain's draws: anchors are close. "
            "Summaries by component then mix components. Use `align_components(tree, ...)` with a "
            "fit or estimate, or a smaller `anchor_angle`.",
            WeakSignalWarning,
        )
    return finished


def _has_parameters(posterior: xarray.Dataset, specification: Specification) -> bool:
    """Whether the posterior has all parameters: `var_names` may leave some out."""
    needed = {"coefficient", "bias", "weight"}
    if specification.data.family.has_dispersion:
        needed.add("dispersion")
    if specification.gating is not None:
        needed |= {"gate", "gate_bias"}
    return needed <= set(posterior.data_vars)


def _start_reference(group: xarray.Dataset) -> xarray.Dataset:
    """Return the starting values under the names of the posterior."""
    names = {f"initial_{name}": name for name in ORDER if f"initial_{name}" in group}
    return group[list(names)].rename(names)


def _ordered_posterior(posterior: xarray.Dataset, raw_names: list[str]) -> xarray.Dataset:
    """Order the parameters: first those in the user's units, then the standardised ones."""
    if "coefficient" in posterior:
        coefficient = posterior["coefficient"]
        scale = (coefficient**2).sum("feature") ** 0.5
        posterior = posterior.assign(scale=scale, direction=coefficient / scale)
    shown = [name for name in ORDER if name in posterior]
    raw = [name for name in raw_names if name in posterior and name not in shown]
    others = [str(name) for name in posterior.data_vars if name not in {*shown, *raw}]
    return _used_coords(posterior[[*shown, *raw, *others]])


def _used_coords(dataset: xarray.Dataset) -> xarray.Dataset:
    """Drop coordinates of dims that no variable has."""
    used = {dim for variable in dataset.data_vars.values() for dim in variable.dims}
    return dataset.drop_vars([name for name in dataset.coords if name not in used])


def _row_groups(
    posterior: xarray.Dataset,
    specification: Specification,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    seed: int,
) -> dict[str, xarray.Dataset]:
    """Make the groups of log-likelihoods and replicated responses, if wanted."""
    data, gating = specification.data, specification.gating
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    n_values = shape[0] * shape[1] * data.n_obs
    sampling = {name: posterior.coords[name].to_numpy() for name in ("chain", "draw")}
    result: dict[str, xarray.Dataset] = {}
    if _is_wanted(log_likelihood, n_values, "log_likelihood"):
        result["log_likelihood"] = log_likelihood_group(posterior, data, gating)
    n_values = shape[0] * shape[1] * data.y.size
    if _is_wanted(posterior_predictive, n_values, "posterior_predictive"):
        rng = np.random.default_rng(seed)
        replicated = draw_responses(PosteriorDraws.of(posterior), data, rng, gating)
        replicated = replicated.reshape(*shape, *data.y.shape)
        result["posterior_predictive"] = _by_row(replicated, data, sampling)
    for dataset in result.values():
        dataset.attrs = library()
    return result


def _is_wanted(asked: bool | None, n_values: int, name: str) -> bool:
    """Whether to make a group of the tree."""
    if asked is None and n_values > LARGEST_GROUP:
        notify(
            f"group {name!r} was left out: it would hold {n_values:.1e} values. Pass {name}=True "
            f"to add it, or {name}=False to silence this warning.",
            UserWarning,
        )
        return False
    return asked is not False
