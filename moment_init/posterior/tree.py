"""The DataTree that `sample` returns, made from the result of a PyMC sampler.

`header_tree` makes the groups that are known before sampling: data, starting values and versions.
`finish_tree` orders the posterior, adds log-likelihoods and replicated responses, and aligns the
components with the starting values.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from moment_init.checks import WeakSignalWarning, notify
from moment_init.data.checking import RegressionData
from moment_init.likelihood.draws import response_dtype
from moment_init.models.specification import Directions, Specification
from moment_init.moments.result import MomentEstimate
from moment_init.posterior.alignment import align_components
from moment_init.posterior.draws import log_likelihood_group, predictive_group, row_coords
from moment_init.results import label, labels_of, model_attributes, parameters_of, versions

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

LARGEST_GROUP = 100_000_000
"""Number of values above which log-likelihoods and replicated responses are made only on request:
each group then takes 0.8 GB."""


def header_tree(specification: Specification) -> xarray.DataTree:
    """Make the groups that are known before sampling: data, starting values and versions."""
    data = specification.data
    labels = row_coords(data) | labels_of(data)
    constant: dict[str, Any] = {"X": np.asarray(data.X, dtype=np.float64)}
    given = {name: getattr(data, name) for name in ("offset", "n_trials", "sample_weight")}
    constant |= {name: value for name, value in given.items() if value is not None}
    if data.groups is not None:
        groups = np.asarray(data.groups)
        constant["groups"] = groups if groups.dtype.kind in "iuf" else groups.astype(str)
    if specification.gating is not None and specification.gate_coordinates is not None:
        constant["gating"] = specification.gating
        labels["gate_feature"] = list(specification.gate_coordinates.names)
    groups_of_tree = {
        "observed_data": label("observed_data", {"y": _as_responses(data)}, labels),
        "constant_data": label("constant_data", constant, labels),
        "moment_init": _own_group(specification, labels),
    }
    return xarray.DataTree.from_dict(groups_of_tree)


def _as_responses(data: RegressionData) -> NDArray[Any]:
    """Convert the responses to the dtype of replicated ones, if they fit into it."""
    dtype = response_dtype(data.family)
    if dtype.kind == "f" or np.any(data.y > np.iinfo(dtype).max // 2):
        return data.y
    return data.y.astype(dtype)


def _own_group(specification: Specification, labels: dict[str, Any]) -> xarray.Dataset:
    """Make the group of starting values, their estimate and diagnostics, and model settings."""
    origin, given = specification.origin, specification.given
    data, dispersed = specification.data, specification.dispersed
    values = {f"initial_{k}": v for k, v in parameters_of(specification.start).items()}
    values["anchor"] = specification.anchors
    spreads = values.get("initial_dispersion")
    is_partial = spreads is not None and len(dispersed) < specification.n_predictors
    group = label("moment_init", values, labels | {"component": range(specification.n_components)})
    if is_partial:  # as in the model, the dim holds the responses that have a dispersion
        rows = group["initial_dispersion"].isel(response=dispersed)
        renamed = rows.rename(response="dispersed_response")
        group = group.assign(initial_dispersion=renamed)
    if origin is not None:
        own = origin.to_datatree()["moment_init"].to_dataset()
        # with the labels of the rows, where the fit has none
        merged = xarray.merge([group[[]], own, group], compat="override", join="override")
        group = merged.assign_attrs(own.attrs)
    if given is not None:
        group = _with_estimate(group, given)
    attrs = {
        "directions": specification.directions,
        "anchor_angle": specification.anchor_angle,
        "init": "arrays" if origin is None else type(given or origin).__name__,
        **model_attributes(data.family.name, data.family.link_name, data.classes),
        **data.formula,
        **versions(),
    }
    return group.assign_attrs(attrs)


def _with_estimate(group: xarray.Dataset, given: MomentEstimate) -> xarray.Dataset:
    """Add an estimate and its diagnostics under names that begin with `estimate_`."""
    tree = given.to_datatree()
    values = tree["posterior"].to_dataset().isel(chain=0, draw=0, drop=True)
    combined = xarray.merge([values, tree["moment_init"].to_dataset()], compat="override")
    renamed = combined.rename({name: f"estimate_{name}" for name in combined.data_vars})
    attrs = {f"estimate_{name}": value for name, value in tree["moment_init"].attrs.items()}
    merged = xarray.merge([group, renamed], compat="override", join="override")
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
    data = replace(specification.data, gating=specification.gating)
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    result: dict[str, xarray.Dataset] = {}
    if _is_wanted(log_likelihood, n_draws * data.n_obs, "log_likelihood"):
        result["log_likelihood"] = log_likelihood_group(posterior, data)
    if _is_wanted(posterior_predictive, n_draws * data.y.size, "posterior_predictive"):
        rng = np.random.default_rng(seed)
        result["posterior_predictive"] = predictive_group(posterior, data, rng)
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
