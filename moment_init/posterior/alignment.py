r"""Relabelling of draws, so that components have the same order in all of them.

`align_components` reads the parameters of the reference (an estimate, a fit, a simulated truth,
draws or arrays), matches the axes and labels of reference and draws, computes one permutation per
draw, and applies it to every group of the DataTree.

For the permutations, the compared variables are stacked into one array of draws, on scales where
one spread fits all components. Draw i then has components with vectors :math:`x_{ij}`, the
reference has :math:`c_j`. The permutation of a draw minimises

.. math:: \sum_j \sum_e (x_{i \pi(j) e} - c_{je})^2 / s_e^2 ,

twice the negative log-likelihood of independent normal errors with one variance per element e,
common to the components. Each :math:`s_e` is the median absolute error, so units and extreme draws
do not matter: first the error to the nearest component of the reference, which does not depend on
the labels, then, until nothing changes, the error to the matched component. Relabelling the draws
beforehand does not change the result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, as_float_array
from moment_init.results import dims_of, labels_of, parameters_of

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]

SAMPLE_DIMS = ("chain", "draw")

_MODEL_VARIABLES = ("coefficient", "bias", "dispersion", "weight")
"""Variables that determine a mixture of generalised linear models; `direction` and `scale` are
functions of `coefficient` and would count twice."""

_LARGEST_SIZE = 1000
"""Largest number of elements per component. Larger variables are assumed to be predictions of rows,
which follow from the parameters and would only cost time."""

_SUM_TOLERANCE = 1e-4
"""Tolerance of sums of probabilities, as draws may be stored in single precision."""

_LOG_DENSITIES = ("lp", "logp")
"""Names of the log density in the statistics of PyMC and nutpie."""


OWN_GROUP = "moment_init"

_RECORDED = ("permutation", "switched_share", "moved_share")

_SIMPLEX, _ORDERED = "_simplex__", "_ordered__"
"""How the names of two transforms of PyMC end."""

_COMPONENT = "component"
"""Component dim in the results of this package; the draws may have another name for it."""

_SMALLEST_SPREAD = 0.05
"""Smallest spread of an element relative to its range over the components of a draw. Components
twenty spreads apart cannot be confused, and an element that agrees with the reference by chance
must not dominate all others."""

_FARTHEST = 1e140
"""Upper bound of distances in spreads, so that sums of their squares do not overflow."""

_MAX_ROUNDS = 20
"""Largest number of rounds of matching and measuring. Two or three usually suffice, but a few draws
half-way between two labels could alternate."""


_KINDS = (
    "a MomentEstimate, an EMFit, a MixtureData, an xarray.DataTree or Dataset, or a dict of arrays"
)


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
    anchor. ArviZ, `predict` and ``pm.sample_posterior_predictive`` read the coefficients, which are
    right; log densities of the model itself (``pm.compute_log_prior``) are not.

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


@dataclass(frozen=True, slots=True)
class ComponentDims:
    """The dims by which variables run over components."""

    names: tuple[str, ...]  # the component dim, then the second dims of matrices over components
    size: int  # number of components
    # variables whose last dim is the component; PyMC stores the transform of a simplex under
    # another name, with one entry less
    simplexes: frozenset[str]

    def include(self, name: Any, variable: "xarray.Variable") -> bool:
        """Whether a variable has draws of components."""
        if not set(SAMPLE_DIMS) <= set(variable.dims):
            return False
        return bool(set(self.names) & set(variable.dims)) or self.is_simplex(name, variable)

    def is_simplex(self, name: Any, variable: "xarray.Variable") -> bool:
        """Whether a variable is the transform of a simplex over the components."""
        base = str(name).removesuffix(_SIMPLEX)
        is_shorter = variable.ndim > len(SAMPLE_DIMS) and variable.shape[-1] == self.size - 1
        return base != name and base in self.simplexes and is_shorter


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
    target = (
        None
        if task.reference is None
        else {
            name: in_order_of(task.reference[name], array, task.dim, name)
            for name, array in arrays.items()
        }
    )
    index = permutations(*stack(arrays, target), task.first)
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
    stacked, _ = stack({name: arrays[name] for name in names})
    if not np.isfinite(stacked).all():
        raise ValueError(
            "`reference` must have finite draws; got some that are not. Drop them, or pass a "
            "single draw or an estimate."
        )
    index = permutations(stacked, None, first)
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

    labels, variables = labels_of(result), {}
    for name, values in parameters_of(result).items():
        dims = dims_of(name, values.ndim)
        coords = {element: list(labels[element]) for element in dims if element in labels}
        array = xarray.DataArray(values, coords, dims)
        variables[name] = components_last(array.rename({_COMPONENT: dim}), dim)
    return variables


def draws_by_component(dataset: "xarray.Dataset", dim: str) -> dict[str, "xarray.DataArray"]:
    """Select the numeric variables that have a component, a chain and a draw."""
    needed = {dim, *SAMPLE_DIMS}
    return {
        str(name): array
        for name, array in dataset.data_vars.items()
        if needed <= set(array.dims) and array.dtype.kind in "iuf"
    }


def components_last(array: "xarray.DataArray", dim: str) -> "xarray.DataArray":
    """Order the dims: chain and draw if present, then the others, then the component.

    Responses without values are left out: the dispersion of a fit has NaN for some.
    """
    if "response" in array.dims:
        array = array.dropna("response", how="all")
    leading = [name for name in SAMPLE_DIMS if name in array.dims]
    others = [name for name in array.dims if name not in (*SAMPLE_DIMS, dim)]
    return array.transpose(*leading, *others, dim)


def default_names(
    arrays: Mapping[str, "xarray.DataArray"],
    common: Iterable[str],
    dim: str,
) -> list[str]:
    """Return the variables to compare if the caller names none."""
    names = [name for name in arrays if name in set(common)]
    if "coefficient" in names:
        return [name for name in _MODEL_VARIABLES if name in names]
    small = [name for name in names if _elements(arrays[name], dim) <= _LARGEST_SIZE]
    return small or names


def stack(
    arrays: Mapping[str, "xarray.DataArray"], reference: Mapping[str, FloatArray] | None = None
) -> tuple[FloatArray, FloatArray | None]:
    """Stack variables, and their reference if there is one, into arrays with the same elements."""
    # -> (n_draws, n_components, n_elements), (n_components, n_elements)
    pieces: list[list[FloatArray]] = []
    for name, array in arrays.items():
        both = [_flat(array.values, 2)]
        both += [] if reference is None else [_flat(reference[name], 0)]
        is_shares = all(map(_are_shares, both))
        is_log = name == "dispersion" and all(values.min() > 0.0 for values in both)
        pieces.append([_comparable(values, is_shares, is_log) for values in both])
    stacked = [
        np.ascontiguousarray(np.concatenate(each, axis=1).swapaxes(1, 2))
        for each in zip(*pieces, strict=True)
    ]
    return stacked[0], None if reference is None else stacked[1][0]


def best_draw(tree: "xarray.DataTree", group: str) -> int:
    """Return the index of the draw with the highest log density; 0 if it is not known."""
    sizes = [tree[group].sizes[name] for name in SAMPLE_DIMS]
    stats = "warmup_sample_stats" if group.startswith("warmup_") else "sample_stats"
    for name in _LOG_DENSITIES:
        array = tree.children[stats].dataset.get(name) if stats in tree.children else None
        if array is None or set(array.dims) != set(SAMPLE_DIMS):
            continue
        values = array.transpose(*SAMPLE_DIMS).values
        if list(values.shape) == sizes and np.isfinite(values).any():
            return int(np.where(np.isfinite(values), values, -np.inf).argmax())
    return 0


def _elements(array: "xarray.DataArray", dim: str) -> int:
    others = [size for name, size in array.sizes.items() if name not in (*SAMPLE_DIMS, dim)]
    return int(np.prod(others, dtype=np.int64))


def _flat(values: NDArray[Any], n_leading: int) -> FloatArray:
    """Reshape to (n_draws, n_elements, n_components); a single draw if `n_leading` is 0."""
    n_draws = int(np.prod(values.shape[:n_leading], dtype=np.int64))
    return np.asarray(values, dtype=np.float64).reshape(n_draws, -1, values.shape[-1])


def _are_shares(values: FloatArray) -> bool:
    """Whether the values are non-negative and sum to one over the components."""
    if values.shape[-1] == 1 or values.min() < 0.0:
        return False
    return bool(np.abs(values.sum(axis=-1) - 1.0).max() <= _SUM_TOLERANCE)


def _comparable(values: FloatArray, is_shares: bool, is_log: bool) -> FloatArray:
    r"""Transform values to a scale where one spread fits all components.

    The error of a share w of n rows has variance w (1 - w) / n, but that of :math:`\arcsin\sqrt w`
    has 1 / 4n for every w. The error of a dispersion is proportional to it, but that of its
    logarithm is constant.
    """
    if is_shares:
        return np.asarray(np.arcsin(np.sqrt(np.minimum(values, 1.0))))
    return np.asarray(np.log(values)) if is_log else values


def permutations(draws: FloatArray, reference: FloatArray | None, first: int = 0) -> IndexArray:
    """Match the components of every draw to those of a reference, or of all draws to each other.

    Without a reference the draws are matched to the medians of the matched draws of the round
    before, beginning with one draw, as in the algorithm of Stephens (2000) [1]_ with squared errors
    as loss. No order is better than another, so the most frequent labels are kept.

    References
    ----------
    .. [1] Stephens, M. (2000). Dealing with label switching in mixture models. Journal of the Royal
       Statistical Society B 62(4), 795-809. https://doi.org/10.1111/1467-9868.00265
    """
    # draws: (n_draws, n_components, n_elements), reference: (n_components, n_elements)
    # -> (n_draws, n_components)
    floor = _SMALLEST_SPREAD * np.median(np.ptp(draws, axis=1), axis=0)  # zero without differences
    centre = draws[first] if reference is None else reference
    nearest = np.full(draws.shape, np.inf)
    for component in centre:
        np.minimum(nearest, np.abs(draws - component), out=nearest)
    spreads = np.maximum(np.median(nearest, axis=(0, 1)), floor)
    result = _best_permutations(_costs(draws, centre, spreads))
    for _ in range(_MAX_ROUNDS):
        aligned = np.take_along_axis(draws, result[:, :, None], axis=1)
        centre = np.median(aligned, axis=0) if reference is None else reference
        spreads = np.maximum(np.median(np.abs(aligned - centre), axis=(0, 1)), floor)
        step = _best_permutations(_costs(aligned, centre, spreads))
        if (step == np.arange(step.shape[1])).all():
            break
        result = np.take_along_axis(result, step, axis=1)
    return result if reference is not None else result[:, np.argsort(most_frequent(result))]


def most_frequent(permutations: IndexArray) -> IndexArray:
    """Return the most frequent permutation."""
    # permutations: (n_draws, n_components) -> (n_components,)
    distinct, counts = np.unique(permutations, axis=0, return_counts=True)
    return np.asarray(distinct[counts.argmax()])


def _costs(draws: FloatArray, reference: FloatArray, spreads: FloatArray) -> FloatArray:
    """Compute squared distances, (n_draws, component of the reference, component of the draw).

    The squares are not expanded into products, so that equal components have equal costs to the
    last bit at any position.
    """
    # An element that is equal for all components of a draw carries no information.
    used = spreads > 0.0
    draws, reference = draws[..., used] / spreads[used], reference[..., used] / spreads[used]
    result = np.empty((draws.shape[0], reference.shape[0], draws.shape[1]))
    for index, component in enumerate(reference):
        difference = np.clip(draws - component, -_FARTHEST, _FARTHEST)
        np.einsum("ije,ije->ij", difference, difference, out=result[:, index])
    return result


def _best_permutations(costs: FloatArray) -> IndexArray:
    """Find the optimal permutation of every draw; the identity if it is equally good."""
    n_components = costs.shape[1]
    # If the nearest components are all different, they are the best matching.
    result = np.asarray(costs.argmin(axis=2))
    is_matching = (np.sort(result, axis=1) == np.arange(n_components)).all(axis=1)
    for index in np.flatnonzero(~is_matching):
        result[index] = linear_sum_assignment(costs[index])[1]
    best = np.take_along_axis(costs, result[:, :, None], axis=2)[..., 0].sum(axis=1)
    kept = np.diagonal(costs, axis1=1, axis2=2).sum(axis=1)
    result[kept <= best] = np.arange(n_components)
    return result


def draws_family(path: str) -> str:
    """Return whether a group holds warm-up, prior or posterior draws, by ArviZ's group names."""
    name = path.rsplit("/", 1)[-1]
    if name.startswith("warmup_"):
        return "warmup"
    is_prior = name.startswith("prior") or name.endswith("_prior")
    return "prior" if is_prior else "posterior"


def has_same_draws(dataset: "xarray.Dataset", permutation: "xarray.DataArray") -> bool:
    """Whether a group has the same draws as a permutation, by number and by labels if any."""
    return all(
        dataset.sizes.get(name) == permutation.sizes[name]
        and (
            name not in dataset.indexes
            or name not in permutation.indexes
            or dataset.indexes[name].equals(permutation.indexes[name])
        )
        for name in SAMPLE_DIMS
    )


def has_fewer_draws(dataset: "xarray.Dataset", permutation: "xarray.DataArray") -> bool:
    """Whether all draws of a group occur in a permutation, by their labels."""
    return all(
        name in dataset.indexes
        and name in permutation.indexes
        and permutation.indexes[name].is_unique
        and bool(dataset.indexes[name].isin(permutation.indexes[name]).all())
        for name in SAMPLE_DIMS
    )


def permute_dataset(
    dataset: "xarray.Dataset", permutation: "xarray.DataArray", dims: ComponentDims
) -> tuple["xarray.Dataset", list[str]]:
    """Permute the components of each draw in all variables; also return skipped variables."""
    order = permutation.transpose(*SAMPLE_DIMS, ...).values
    if (order == np.arange(dims.size)).all():
        return dataset, []
    result, skipped = dataset.copy(), []
    for name, variable in dataset.variables.items():
        if not dims.include(name, variable):
            continue
        if str(name).endswith(_ORDERED):  # logarithms of differences between neighbours
            skipped.append(str(name))
            continue
        values = _permuted_variable(str(name), variable, order, dims)
        # A DataArray would lose the encoding.
        result[name] = variable.copy(deep=False, data=values)
    return result, skipped


def _permuted_variable(
    name: str, variable: "xarray.Variable", order: NDArray[np.intp], dims: ComponentDims
) -> NDArray[Any]:
    sample_axes = [variable.dims.index(dim) for dim in SAMPLE_DIMS]
    values = variable.values
    if dims.is_simplex(name, variable):
        # PyMC subtracts the mean logarithm and drops the last entry; all entries sum to zero.
        last = -values.sum(axis=-1, keepdims=True)
        full = np.concatenate([values, last], axis=-1)
        return _permuted_along(full, order, sample_axes, full.ndim - 1)[..., :-1]
    axes = [variable.dims.index(dim) for dim in dims.names if dim in variable.dims]
    for axis in axes:
        values = _permuted_along(values, order, sample_axes, axis)
    return values


def _permuted_along(
    values: NDArray[Any], order: NDArray[np.intp], sample_axes: Sequence[int], axis: int
) -> NDArray[Any]:
    """Copy values with the components along one axis permuted, one pair of positions at once."""
    result = values.copy()
    # Writing to the view `target` writes to the result.
    target = np.moveaxis(result, [*sample_axes, axis], [0, 1, -1])
    source = np.moveaxis(values, [*sample_axes, axis], [0, 1, -1])
    for new, old in np.ndindex(order.shape[-1], order.shape[-1]):
        if new != old:
            moved = np.nonzero(order[..., new] == old)
            target[..., new][moved] = source[..., old][moved]
    return result


def check_size(path: str, name: str, size: int, expected: int) -> None:
    """Raise if a dim has another size than in the aligned group."""
    if size != expected:
        raise ValueError(
            f"`tree` must have the same {name!r} in all groups; got {size} in {path!r} and "
            f"{expected} in the aligned group. Rename the dim or drop the group."
        )


def record_permutation(
    tree: "xarray.DataTree", permutation: "xarray.DataArray", attrs: dict[str, str]
) -> "xarray.Dataset":
    """Return the package's group with the permutations since the original tree."""
    import xarray

    node = tree.children.get(OWN_GROUP)
    record = xarray.Dataset() if node is None else node.to_dataset(inherit=False)
    values = permutation.values.astype(np.int64)
    earlier = record.get("permutation")
    is_same = record.attrs.get("alignment_group") == attrs["alignment_group"]
    if earlier is not None and is_same and earlier.dims == permutation.dims:
        if has_same_draws(record, permutation) and earlier.shape == permutation.shape:
            values = np.take_along_axis(earlier.values, values, axis=-1)
    record = without_record(record)
    for name, size in permutation.sizes.items():
        check_size(OWN_GROUP, str(name), record.sizes.get(name, size), size)
    coords = {
        name: array for name, array in permutation.coords.items() if name not in record.coords
    }
    usual = np.stack([most_frequent(chain) for chain in values])
    n_moved = (values != np.arange(values.shape[-1])).any(axis=-1).mean()
    record = record.assign_coords(coords).assign(
        permutation=(permutation.dims, values),
        switched_share=("chain", (values != usual[:, None]).any(axis=-1).mean(axis=1)),
        moved_share=float(n_moved),
    )
    record.attrs = {**record.attrs, **attrs}
    return record


def without_record(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """Remove the record of an earlier alignment, and labels of draws that nothing else uses."""
    dataset = dataset.drop_vars(_RECORDED, errors="ignore")
    used = {dim for array in dataset.data_vars.values() for dim in array.dims}
    return dataset.drop_vars(
        [name for name in SAMPLE_DIMS if name in dataset.coords and name not in used]
    )
