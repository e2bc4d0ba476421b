"""Relabelling of draws, so that components have the same order in all of them.

`align_components` reads the parameters of the reference (an estimate, a fit, a simulated truth,
draws or arrays), matches the axes and labels of reference and draws, computes one permutation per
draw (`moment_init.posterior.relabelling`), and applies it to every group of the DataTree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import as_float_array
from moment_init.posterior.relabelling import (
    OWN_GROUP,
    SAMPLE_DIMS,
    ComponentDims,
    best_draw,
    check_size,
    components_last,
    default_names,
    draws_by_component,
    draws_family,
    has_fewer_draws,
    has_same_draws,
    permutations_among,
    permutations_to,
    permute_dataset,
    record_permutation,
    stack_draws,
    stack_with_reference,
    without_record,
)

if TYPE_CHECKING:
    import xarray

_COMPONENT = "component"
"""Component dim in the results of this package; the draws may have another name for it."""


_ATTRIBUTES: dict[str, tuple[str, tuple[str, ...]]] = {
    "coefficient": ("coefficients", ("response", "feature")),
    "direction": ("directions", ("response", "feature")),
    "scale": ("scales", ("response",)),
    "bias": ("biases", ("response",)),
    "weight": ("weights", ()),
    "dispersion": ("dispersion", ("response",)),
    "gate": ("gate", ("gate_feature",)),
    "gate_bias": ("gate_biases", ()),
}
"""For each variable, the attribute of a result that holds it, and its dims before the component;
results of one response do not have the first dim, `response`."""

_LOGITS = ("gate", "gate_bias")
"""Variables relative to the last component in a fit, but to the components' mean in draws."""

_LABELS = {
    "feature": "feature_names",
    "gate_feature": "gate_names",
    "response": "response_names",
}
"""The attribute of a result that holds the labels of a dim."""

_KINDS = (
    "a MomentEstimate, an EMFit, a MixtureData, an xarray.DataTree or Dataset, or a dict of arrays"
)


def reference_variables(reference: Any, dim: str, group: str) -> dict[str, "xarray.DataArray"]:
    """Return the arrays of a reference by variable name."""
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
    """Return the values of a reference with axes and labels in the order of the draws.

    Dims are matched by name if the names agree, otherwise by position. The labels along a dim (of
    features, of components) are matched by name if both have the same set, otherwise by position.
    """
    target = draws.isel(chain=0, draw=0)
    _check_number(array.sizes[dim], target.sizes[dim], name)
    if set(array.dims) == set(target.dims):
        array = array.transpose(*target.dims)
    if array.shape != target.shape:
        raise ValueError(
            f"`reference` must have the shape of a draw of {name!r}, "
            f"{dict(zip(target.dims, target.shape, strict=True))}; got {array.shape}. Leave the "
            "variable out with `var_names`, or pass an array with the component as its last axis."
        )
    for theirs, ours in zip(array.dims, target.dims, strict=True):
        order = _order_of_labels(array, target, str(theirs), str(ours), is_strict=ours != dim)
        array = array if order is None else array.isel({theirs: order})
    values = np.asarray(array.values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            f"`reference` must be finite; got {int((~np.isfinite(values)).sum())} values of "
            f"{name!r} that are not. Leave this variable out with `var_names`."
        )
    return values


def _check_number(theirs: int, ours: int, name: str) -> None:
    if theirs != ours:
        raise ValueError(
            f"`reference` must have as many components as the draws, {ours}; got {theirs} in "
            f"{name!r}. Pass a reference with {ours}; the component is the last axis of an array."
        )


def _order_of_labels(
    array: "xarray.DataArray",
    target: "xarray.DataArray",
    theirs: str,
    ours: str,
    *,
    is_strict: bool,
) -> list[int] | None:
    """Return the positions of the target's labels in the array; None to match by position."""
    if theirs not in array.coords or ours not in target.coords:
        return None
    first, second = array.coords[theirs].values.tolist(), target.coords[ours].values.tolist()
    places = {label: place for place, label in enumerate(first)}
    if len(places) == len(first) and set(first) == set(second):
        return [places[label] for label in second]
    shared = set(first) & set(second)
    if shared and is_strict:
        different = sorted(map(str, set(first) ^ set(second)))
        raise ValueError(
            f"`reference` must have the same labels of {ours!r} as the draws, or none; "
            f"{len(shared)} agree, but {', '.join(different)} are on one side only. Rename them."
        )
    return None


def _from_tree(tree: "xarray.DataTree", dim: str, group: str) -> dict[str, "xarray.DataArray"]:
    """Read the node itself, its draws or the package's group, whichever has components first."""
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
    """Read the variables without draws if there are any, else the means of the aligned draws."""
    theirs = _component_dim(dataset, dim)
    if theirs is None:
        raise ValueError(
            f"`reference` must have variables with the dim {dim!r}; got the dims "
            f"{', '.join(map(repr, dataset.dims)) or 'none'}. Rename its component dim."
        )
    plain = {
        str(name): array
        for name, array in dataset.data_vars.items()
        if theirs in array.dims
        and not set(SAMPLE_DIMS) & set(array.dims)
        and array.dtype.kind in "iuf"
    }
    variables = plain or _means(dataset, theirs, first)
    return {
        name: components_last(array, theirs).rename({theirs: dim} if theirs != dim else {})
        for name, array in variables.items()
    }


def _means(dataset: "xarray.Dataset", dim: str, first: int) -> dict[str, "xarray.DataArray"]:
    """Compute the means of the draws, after matching the draws to each other."""
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
            "`reference` must have finite draws; got some that are not. Drop them, or pass a "
            "single draw or an estimate."
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
    """Label an array of a dict; the last axis of a plain array is the component."""
    import xarray

    if isinstance(array, xarray.DataArray):
        return _from_dataset(array.to_dataset(name=name), dim, 0)[name]
    values = as_float_array(array, "reference")
    if values.ndim == 0:
        raise ValueError(
            f"`reference` must hold arrays whose last axis is the component; got the number "
            f"{array!r} for {name!r}. Leave it out, or give one value per component."
        )
    axes = [f"{name}_axis_{axis}" for axis in range(values.ndim - 1)]
    return xarray.DataArray(values, dims=[*axes, dim])


def _from_attributes(result: Any, dim: str) -> dict[str, "xarray.DataArray"]:
    """Read the variables that an estimate, a fit or a simulated truth has."""
    import xarray

    variables = {}
    for name, (attribute, all_dims) in _ATTRIBUTES.items():
        values = getattr(result, attribute, None)
        if values is None:
            continue
        values = np.asarray(values)
        if name in _LOGITS:
            values = values - values.mean(axis=-1, keepdims=True)
        dims = all_dims[len(all_dims) + 1 - values.ndim :]
        known = {element: getattr(result, _LABELS[element], None) for element in dims}
        coords = {element: list(labels) for element, labels in known.items() if labels is not None}
        variables[name] = components_last(xarray.DataArray(values, coords, [*dims, dim]), dim)
    return variables


_SECOND_DIMS = ("{}_2", "{}_bis")
"""Names of the second dim of a matrix over components, in this package and in ArviZ."""


def align_components(
    tree: "xarray.DataTree",
    reference: Any = None,
    *,
    dim: str | Sequence[str] = "component",
    var_names: str | Sequence[str] | Mapping[str, str] | None = None,
    group: str = "posterior",
) -> "xarray.DataTree":
    r"""Relabel draws so that components have the same order in all of them.

    The likelihood of a mixture does not change when its components are permuted, so their order can
    differ between chains and even within a chain (label switching). Each draw is given the
    permutation :math:`\pi` that brings it closest to the reference,

    .. math:: \min_\pi \sum_j \sum_e (x_{\pi(j) e} - c_{je})^2 / s_e^2 ,

    summed over the elements e of the compared variables. Each is divided by its spread, so units do
    not matter and well-determined elements count most.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws of any model that has a dim for its components. The tree is not changed.
    reference : object, optional
        What sets the order: a MomentEstimate, an EMFit or a MixtureData; an xarray.Dataset; an
        xarray.DataTree, of which the means of the draws (first matched to each other) are used or,
        without draws, the group ``moment_init``; or a dict of DataArrays, or of arrays whose last
        axis is the component. By default the draws are matched to each other, beginning with the
        one with the highest log density, and the most frequent labels are kept.
    dim : str or sequence of str, default "component"
        Name of the component dim. Further names are other dims over the same components: second
        dims, as of a transition matrix (``component_2`` and ``component_bis`` are recognised), or
        dims of variables that PyMC named automatically (``["slope_dim_0", "weight_dim_0"]``).
    var_names : str, sequence of str or mapping of str to str, optional
        Variables to compare; a mapping gives, for each name in `tree`, the name in the reference.
        By default ``coefficient``, ``bias``, ``dispersion`` and ``weight`` if both have the first,
        otherwise all variables that both have, except predictions of rows (more than 1000 elements
        per component).
    group : str, default "posterior"
        Group whose draws are compared.

    Returns
    -------
    xarray.DataTree
        The tree with permuted components, in every variable that has the dims ``chain``, ``draw``
        and component; coordinates and other variables stay. The group ``moment_init`` gains
        ``permutation`` (chain, draw, component), the original position of each component;
        ``switched_share`` (chain), the share of draws whose permutation is not the most frequent
        one of their chain; ``moved_share``, the share of draws that were permuted; and attributes
        that begin with ``alignment``.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree or `reference` has an unsupported type.
    ValueError
        If the group, the dim or a variable is missing, if the reference has another number of
        components, another shape or no variable in common, or if draws are not finite.

    Notes
    -----
    Other groups get the permutation of `group` if their chains and draws have the same labels, or a
    subset of them. Draws of the warm-up (``warmup_...``) and of the prior are different draws, even
    if their labels agree; they are matched separately if their group has the compared variables.
    Groups without any permutation, and variables with an ordered transform, are left unchanged and
    listed in the attribute ``alignment_left_alone``. Simplex-transformed variables
    (``..._simplex__``) are permuted on the scale on which PyMC stores them.

    Logits are permuted without further change, so the logits of a gate should sum to zero over the
    components, as they do in the trees of this package. If they are relative to one component,
    subtract their mean over the components first.

    ``tilt`` is relative to the anchor of its component, and after a permutation belongs to another
    anchor. ArviZ and `predict_membership`, which read coefficients, can use an aligned tree; the
    model itself (``pm.sample_posterior_predictive``) cannot.

    Weights are compared as arcsines of square roots and dispersions as logarithms, scales on which
    the spread is the same for large and small components.

    Aligning a second time changes nothing, and ``permutation`` still refers to the original tree.
    The cost is one pass over the compared variables per component and a copy of the permuted ones:
    less than a second for 4000 draws of three components with twenty features.

    Examples
    --------
    >>> import numpy as np, xarray
    >>> draws = np.array([[[0.0, 5.0], [0.1, 5.2], [4.9, 0.2]]])  # the last draw is switched
    >>> posterior = xarray.Dataset({"mean": (("chain", "draw", "component"), draws)})
    >>> tree = xarray.DataTree.from_dict({"posterior": posterior})
    >>> aligned = align_components(tree, {"mean": [0.0, 5.0]})
    >>> aligned["posterior"]["mean"].values[0, 2].tolist()
    [0.2, 4.9]
    >>> round(float(aligned["moment_init"]["moved_share"]), 2)
    0.33
    """
    import xarray

    task = _pose(tree, reference, dim, var_names, group)
    result = tree.copy()
    permutations, left = _all_permutations(result, task)
    nodes = dict(result.subtree_with_keys)
    for path, permutation in permutations.items():
        dataset = nodes[path].to_dataset(inherit=False)
        nodes[path].dataset, skipped = permute_dataset(dataset, permutation, task.dims)
        left.extend(f"{path}/{name}" for name in skipped)
    attrs = {
        "alignment_reference": "none" if reference is None else type(reference).__name__,
        "alignment_group": task.group,
        "alignment_variables": ", ".join(task.names),
        "alignment_groups": ", ".join(sorted(permutations)),
        "alignment_left_alone": ", ".join(sorted(left)),
    }
    record = record_permutation(tree, permutations[task.group], attrs)
    if OWN_GROUP in result.children:
        result.children[OWN_GROUP].dataset = record
    else:
        result[OWN_GROUP] = xarray.DataTree(record)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """The variables to compare and the reference."""

    group: str
    dims: ComponentDims
    names: dict[str, str]  # name in the draws -> name in the reference
    reference: dict[str, "xarray.DataArray"] | None
    first: int  # index of the draw to begin with if there is no reference

    @property
    def dim(self) -> str:
        return self.dims.names[0]


def _pose(tree: Any, reference: Any, dim: Any, var_names: Any, group: str) -> _Task:
    """Check the arguments and collect the variables to compare."""
    dataset = _group_of(tree, group)
    names = (dim,) if isinstance(dim, str) else _checked_dims(dim)
    names += tuple(name.format(names[0]) for name in _SECOND_DIMS)
    arrays = _comparable_draws(dataset, names, group)
    target = None if reference is None else reference_variables(reference, names[0], group)
    simplexes = frozenset(name for name, array in arrays.items() if array.dims[-1] == names[0])
    dims = ComponentDims(names, int(dataset.sizes[names[0]]), simplexes)
    matched = _matched_names(arrays, target, var_names, names[0])
    return _Task(group.strip("/"), dims, matched, target, best_draw(tree, group))


def _checked_dims(dim: Any) -> tuple[str, ...]:
    """Return several dim names as a tuple, or raise."""
    is_sequence = isinstance(dim, Sequence) and len(dim) > 0
    if not is_sequence or not all(isinstance(name, str) for name in dim):
        raise TypeError(f"`dim` must be the name of a dim, or several names; got {dim!r}.")
    return tuple(dim)


def _group_of(tree: Any, group: Any) -> "xarray.Dataset":
    import xarray

    if not isinstance(tree, xarray.DataTree):
        raise TypeError(
            f"`tree` must be an xarray.DataTree; got an object of type {type(tree).__name__}. Make "
            "one with arviz.convert_to_datatree or xarray.DataTree.from_dict."
        )
    paths = [path for path, _ in tree.subtree_with_keys if path != "."]
    if not isinstance(group, str) or group.strip("/") not in paths:
        raise ValueError(
            f"`group` must be a group of the tree; got {group!r}, and the tree has "
            f"{', '.join(map(repr, paths)) or 'none'}. Name one of them."
        )
    return dict(tree.subtree_with_keys)[group.strip("/")].to_dataset()


def _comparable_draws(
    dataset: "xarray.Dataset", dims: tuple[str, ...], group: str
) -> dict[str, "xarray.DataArray"]:
    """Select the draws with one component dim, not those over pairs of components."""
    arrays = {
        name: array
        for name, array in draws_by_component(dataset, dims[0]).items()
        if not set(dims[1:]) & set(array.dims)
    }
    if not arrays:
        raise ValueError(
            f"`dim` must be a dim of numeric variables of {group!r} besides chain and draw; "
            f"got {dims[0]!r}, and the group has {', '.join(map(repr, dataset.dims)) or 'no dims'}."
            " Pass the name of the component dim."
        )
    if 0 in (dataset.sizes[name] for name in (*SAMPLE_DIMS, dims[0])):
        raise ValueError(
            f"`tree` must have draws of components in {group!r}; got sizes {dict(dataset.sizes)}. "
            "Sample first."
        )
    return arrays


def _matched_names(
    arrays: Mapping[str, "xarray.DataArray"],
    reference: Mapping[str, Any] | None,
    var_names: Any,
    dim: str,
) -> dict[str, str]:
    """Map the names of the variables to compare to their names in the reference."""
    available = arrays if reference is None else reference
    if var_names is None:
        names = default_names(arrays, available, dim)
        result = {name: name for name in names}
    elif isinstance(var_names, Mapping):
        result = dict(var_names)
    else:
        names = [var_names] if isinstance(var_names, str) else list(var_names)
        result = {name: name for name in names}
    unknown = [name for name in result if name not in arrays]
    unknown += [name for name in result.values() if name not in available]
    # Two variables must not be compared with the same variable of the reference.
    unknown += [name for name in set(result.values()) if list(result.values()).count(name) > 1]
    if not result or unknown:
        raise ValueError(
            f"`var_names` must name variables that both the draws and the reference have; got "
            f"{', '.join(map(repr, unknown)) or 'none in common'}. The draws have "
            f"{', '.join(map(repr, arrays))}, the reference has "
            f"{', '.join(map(repr, available)) or 'none'}. "
            "Pass a mapping of their names, {'in the draws': 'in the reference'}."
        )
    return result


def _all_permutations(
    tree: "xarray.DataTree", task: _Task
) -> tuple[dict[str, "xarray.DataArray"], list[str]]:
    """Return the permutation of each group, and the groups that have none."""
    datasets = _groups_with_components(tree, task.dims)
    main = datasets.pop(task.group)
    _check_finite(main, task)
    permutation = _matched(main, task)
    if datasets:
        task = _with_reference(task, main, permutation)
    leaders, result, left = {task.group: permutation}, {task.group: permutation}, []
    # Groups that have the compared variables come first, so that the others can follow them.
    for path in sorted(datasets, key=lambda path: not _has_variables(datasets[path], task)):
        family = draws_family(path)
        related = [order for name, order in leaders.items() if draws_family(name) == family]
        order = _permutation_of(datasets[path], task, related)
        if order is None:
            left.append(path)
            continue
        result[path] = order
        if _has_variables(datasets[path], task):
            leaders[path] = order
    return result, left


def _groups_with_components(
    tree: "xarray.DataTree", dims: ComponentDims
) -> dict[str, "xarray.Dataset"]:
    datasets = {}
    for path, node in tree.subtree_with_keys:
        dataset = node.to_dataset()
        if path == OWN_GROUP:
            dataset = without_record(dataset)
        if not any(dims.include(name, array) for name, array in dataset.variables.items()):
            continue
        for name in dims.names:
            check_size(path, name, dataset.sizes.get(name, dims.size), dims.size)
        datasets[path] = dataset
    return datasets


def _has_variables(dataset: "xarray.Dataset", task: _Task) -> bool:
    return set(task.names) <= set(draws_by_component(dataset, task.dim))


def _permutation_of(
    dataset: "xarray.Dataset", task: _Task, related: list["xarray.DataArray"]
) -> "xarray.DataArray | None":
    """Return the permutation of a group: of the same draws, its own, or of a superset."""
    for order in related:
        if has_same_draws(dataset, order):
            return order
    if _has_variables(dataset, task):
        return None if _count_infinite(_arrays(dataset, task)) else _matched(dataset, task)
    for order in related:
        if has_fewer_draws(dataset, order):
            return order.sel({name: dataset.indexes[name] for name in SAMPLE_DIMS})
    return None


def _arrays(dataset: "xarray.Dataset", task: _Task) -> dict[str, "xarray.DataArray"]:
    """Return the variables to compare, by their names in the reference."""
    return {theirs: components_last(dataset[ours], task.dim) for ours, theirs in task.names.items()}


def _count_infinite(arrays: Mapping[str, "xarray.DataArray"]) -> dict[str, int]:
    """Count the draws that are not finite, for each variable that has any."""
    counts = {
        name: int((~np.isfinite(array.values)).any(axis=tuple(range(2, array.ndim))).sum())
        for name, array in arrays.items()
    }
    return {name: count for name, count in counts.items() if count}


def _check_finite(dataset: "xarray.Dataset", task: _Task) -> None:
    counts = _count_infinite(_arrays(dataset, task))
    if counts:
        raise ValueError(
            "`tree` must have finite draws of the compared variables; got "
            f"{', '.join(f'{count} draws of {name!r}' for name, count in counts.items())} with NaN "
            f"or infinite values in {task.group!r}. Drop these draws, or leave the variable out "
            "with `var_names`."
        )


def _matched(dataset: "xarray.Dataset", task: _Task) -> "xarray.DataArray":
    """Match the draws of a group to the reference or to each other."""
    import xarray

    arrays = _arrays(dataset, task)
    if task.reference is None:
        index = permutations_among(stack_draws(arrays), task.first)
    else:
        target = {
            name: in_order_of(task.reference[name], array, task.dim, name)
            for name, array in arrays.items()
        }
        index = permutations_to(*stack_with_reference(arrays, target))
    dims = (*SAMPLE_DIMS, task.dim)
    shape = [dataset.sizes[name] for name in dims]
    coords = {name: dataset.coords[name] for name in dims if name in dataset.indexes}
    return xarray.DataArray(index.reshape(shape), coords, dims)


def _with_reference(task: _Task, main: "xarray.Dataset", permutation: "xarray.DataArray") -> _Task:
    """Use the means of the aligned draws as the reference, if there is none."""
    if task.reference is not None:
        return task
    aligned, _ = permute_dataset(main[list(task.names)], permutation, task.dims)
    means = {name: array.mean(SAMPLE_DIMS) for name, array in _arrays(aligned, task).items()}
    return replace(task, reference=means)
