"""What may set the order of components: estimates, fits, truths, draws and arrays."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.alignment_record import OWN_GROUP
from moment_init.alignment_variables import (
    SAMPLE_DIMS,
    best_draw,
    components_last,
    default_names,
    draws_by_component,
    stack_draws,
)
from moment_init.real_arrays import as_float_array
from moment_init.relabelling import permutations_among

if TYPE_CHECKING:
    import xarray

__all__ = ["in_order_of", "reference_variables"]

_COMPONENT = "component"
"""The dim in what this package returns; a reference may have it where the draws have another."""


_ATTRIBUTES = {
    "coefficient": ("coefficients", "feature_names"),
    "direction": ("directions", "feature_names"),
    "scale": ("scales", None),
    "bias": ("biases", None),
    "weight": ("weights", None),
    "dispersion": ("dispersion", None),
    "gate": ("gate", "gate_names"),
    "gate_bias": ("gate_biases", None),
}
"""Variables, the attributes of results that hold them, and those that hold their labels."""

_LOGITS = ("gate", "gate_bias")
"""Relative to the last component in a fit, to the mean of the components in draws."""

_ELEMENT_DIMS = {"feature_names": "feature", "gate_names": "gate_feature"}

_KINDS = (
    "a MomentEstimate, an EMFit, a MixtureData, an xarray.DataTree or Dataset, or a dict of arrays"
)


def reference_variables(reference: Any, dim: str, group: str) -> dict[str, "xarray.DataArray"]:
    """Arrays of a reference by the names of their variables.

    Parameters
    ----------
    reference : object
        What `moment_init.alignment.align_components` takes.
    dim : str
        Name of the component dim in the draws.
    group : str
        Group of a DataTree that holds draws.

    Returns
    -------
    dict of xarray.DataArray
        Arrays whose last dim is the component, named `dim`; no other is named chain or draw.

    Raises
    ------
    TypeError
        For an object that sets no order.
    ValueError
        If it has no variable with a component, or draws that are not finite.
    """
    import xarray

    if isinstance(reference, xarray.DataTree):
        return _from_tree(reference, dim, group)
    if isinstance(reference, xarray.Dataset):
        return _from_dataset(reference, dim, 0)
    if isinstance(reference, Mapping):
        return {str(name): _labelled(str(name), array, dim) for name, array in reference.items()}
    if hasattr(reference, "coefficients") or hasattr(reference, "directions"):
        return _from_attributes(reference, dim)
    raise TypeError(
        f"`reference` must be {_KINDS}; got an object of type {type(reference).__name__}. Pass one "
        "of these, or None to align the draws to each other."
    )


def in_order_of(
    array: "xarray.DataArray", draws: "xarray.DataArray", dim: str, name: str
) -> NDArray[np.float64]:
    """Values of a reference with the axes and labels in the order of the draws.

    Dims are matched by name if the names agree, otherwise by place; labels along them (of features,
    of components) by name if they are the same set, otherwise by place.

    Parameters
    ----------
    array : xarray.DataArray
        The reference, with the component as the last dim.
    draws : xarray.DataArray
        The draws, with dims as in `moment_init.alignment_variables.components_last`.
    dim : str
        Name of the component dim.
    name : str
        Name of the variable, for messages.

    Returns
    -------
    numpy.ndarray
        The values, with the shape of a draw.

    Raises
    ------
    ValueError
        For another number of components or another shape, labels of which some agree and others do
        not, or values that are not finite.
    """
    target = draws.isel(chain=0, draw=0)
    _check_number(array.sizes[dim], target.sizes[dim], name)
    if set(array.dims) == set(target.dims):
        array = array.transpose(*target.dims)
    if array.shape != target.shape:
        raise ValueError(
            f"`reference` must have the shape of a draw of {name!r}, "
            f"{dict(zip(target.dims, target.shape, strict=True))}; got {array.shape}. Leave the "
            "variable out with `var_names`, or pass an array with the component as last axis."
        )
    for theirs, ours in zip(array.dims, target.dims, strict=True):
        order = _order_of_labels(array, target, str(theirs), str(ours), is_strict=ours != dim)
        array = array if order is None else array.isel({theirs: order})
    values = np.asarray(array.values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            f"`reference` must be finite; got {int((~np.isfinite(values)).sum())} values of "
            f"{name!r} that are not. Leave the variable out with `var_names`."
        )
    return values


def _check_number(theirs: int, ours: int, name: str) -> None:
    if theirs != ours:
        raise ValueError(
            f"`reference` must have as many components as the draws, {ours}; got {theirs} in "
            f"{name!r}. Pass a reference with {ours}; components are on the last axis of an array."
        )


def _order_of_labels(
    array: "xarray.DataArray",
    target: "xarray.DataArray",
    theirs: str,
    ours: str,
    *,
    is_strict: bool,
) -> list[int] | None:
    """Places of the target's labels in the array; None to go by place."""
    if theirs not in array.coords or ours not in target.coords:
        return None
    first, second = array.coords[theirs].values.tolist(), target.coords[ours].values.tolist()
    places = {label: place for place, label in enumerate(first)}
    if len(places) == len(first) and set(first) == set(second):
        return [places[label] for label in second]
    shared = set(first) & set(second)
    if shared and is_strict:
        strange = sorted(map(str, set(first) ^ set(second)))
        raise ValueError(
            f"`reference` must have the labels of {ours!r} of the draws, or none; got labels of "
            f"which {len(shared)} agree and {', '.join(strange)} are on one side only. Rename them."
        )
    return None


def _from_tree(tree: "xarray.DataTree", dim: str, group: str) -> dict[str, "xarray.DataArray"]:
    """Variables of the node itself, of its draws, or of its own group, whichever is there first."""
    for name in (None, group, OWN_GROUP):
        node = tree if name is None else tree.children.get(name)
        dataset = None if node is None else node.to_dataset()
        if dataset is not None and _component_dim(dataset, dim) is not None:
            first = best_draw(tree, name) if name is not None and _has_draws(dataset, dim) else 0
            return _from_dataset(dataset, dim, first)
    raise ValueError(
        f"`reference` must have variables with the dim {dim!r} in the group {group!r} or "
        f"{OWN_GROUP!r}; got the groups {', '.join(map(repr, tree.children)) or 'none'}. Pass the "
        "group that has them, or a dict of arrays."
    )


def _component_dim(dataset: "xarray.Dataset", dim: str) -> str | None:
    names = [name for name in (dim, _COMPONENT) if any(name in a.dims for a in dataset.values())]
    return names[0] if names else None


def _has_draws(dataset: "xarray.Dataset", dim: str) -> bool:
    name = _component_dim(dataset, dim)
    return name is not None and bool(draws_by_component(dataset, name))


def _from_dataset(dataset: "xarray.Dataset", dim: str, first: int) -> dict[str, "xarray.DataArray"]:
    """Variables without draws if there are any, else the means of the aligned draws."""
    theirs = _component_dim(dataset, dim)
    if theirs is None:
        raise ValueError(
            f"`reference` must have variables with the dim {dim!r}; got the dims "
            f"{', '.join(map(repr, dataset.dims)) or 'none'}. Rename the dim of its components."
        )
    plain = {
        str(name): array
        for name, array in dataset.data_vars.items()
        if theirs in array.dims
        and not set(SAMPLE_DIMS) & set(array.dims)
        and array.dtype.kind in "iuf"
    }
    found = plain or _means(dataset, theirs, first)
    return {
        name: components_last(array, theirs).rename({theirs: dim} if theirs != dim else {})
        for name, array in found.items()
    }


def _means(dataset: "xarray.Dataset", dim: str, first: int) -> dict[str, "xarray.DataArray"]:
    """Means over draws that were first matched to each other."""
    arrays = {k: components_last(v, dim) for k, v in draws_by_component(dataset, dim).items()}
    names = default_names(arrays, arrays, dim)
    if not names:
        raise ValueError(
            f"`reference` must have numeric variables with the dim {dim!r}; got "
            f"{', '.join(map(repr, dataset.data_vars)) or 'none'}. Pass a dict of arrays."
        )
    stacked = stack_draws({name: arrays[name] for name in names})
    if not np.isfinite(stacked).all():
        raise ValueError(
            "`reference` must have finite draws; got some that are not. Drop them, or pass one of "
            "its draws or an estimate."
        )
    index = permutations_among(stacked, first)
    result = {}
    for name in names:
        array = arrays[name]
        order = index.reshape(array.shape[:2] + (1,) * (array.ndim - 3) + (-1,))
        aligned = array.copy(data=np.take_along_axis(array.values, order, axis=-1))
        result[name] = aligned.mean(SAMPLE_DIMS)
    return result


def _labelled(name: str, array: Any, dim: str) -> "xarray.DataArray":
    """An array of a dict; without labels its last axis is the component."""
    import xarray

    if isinstance(array, xarray.DataArray):
        return _from_dataset(array.to_dataset(name=name), dim, 0)[name]
    values = as_float_array(array, "reference")
    if values.ndim == 0:
        raise ValueError(
            f"`reference` must hold arrays whose last axis is the component; got the number "
            f"{array!r} for {name!r}. Leave it out, or give a value for each component."
        )
    axes = [f"{name}_axis_{axis}" for axis in range(values.ndim - 1)]
    return xarray.DataArray(values, dims=[*axes, dim])


def _from_attributes(result: Any, dim: str) -> dict[str, "xarray.DataArray"]:
    """Variables of an estimate, a fit or a simulated truth; those it does not have are left out."""
    import xarray

    variables = {}
    for name, (attribute, label_attribute) in _ATTRIBUTES.items():
        values = getattr(result, attribute, None)
        if values is None:
            continue
        values = np.asarray(values)
        if name in _LOGITS:
            values = values - values.mean(axis=-1, keepdims=True)
        if label_attribute is None:
            variables[name] = xarray.DataArray(values, dims=[dim])
            continue
        element = _ELEMENT_DIMS[label_attribute]
        labels = getattr(result, label_attribute, None)
        coords = {} if labels is None else {element: list(labels)}
        variables[name] = xarray.DataArray(values, coords, dims=[element, dim])
    return variables
