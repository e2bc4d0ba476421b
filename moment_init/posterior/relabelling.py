r"""Permutations that bring the components of many draws into one order.

First the compared variables are stacked into one array of draws, on scales where one spread fits
all components. Draw i then has components with vectors :math:`x_{ij}`, the reference has
:math:`c_j`. The permutation of a draw minimises

.. math:: \sum_j \sum_e (x_{i \pi(j) e} - c_{je})^2 / s_e^2 ,

twice the negative log-likelihood of independent normal errors with one variance per element e,
common to the components. Each :math:`s_e` is the median absolute error, so units and extreme draws
do not matter: first the error to the nearest component of the reference, which does not depend on
the labels, then, until nothing changes, the error to the matched component. Relabelling the draws
beforehand does not change the result.

Finally the permutations are applied to the variables of a DataTree, and recorded in its group
``moment_init``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray

if TYPE_CHECKING:
    import xarray

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


def stack_draws(arrays: Mapping[str, "xarray.DataArray"]) -> FloatArray:
    """Stack variables into one array of draws."""
    # -> (n_draws, n_components, n_elements)
    pieces = []
    for name, array in arrays.items():
        values = _flat(array.values, 2)
        is_shares, is_log = _are_shares(values), _are_log(name, values)
        pieces.append(_comparable(values, is_shares, is_log))
    return _elements_last(pieces)


def stack_with_reference(
    arrays: Mapping[str, "xarray.DataArray"],
    reference: Mapping[str, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Stack variables and their reference into arrays with the same elements."""
    # -> (n_draws, n_components, n_elements), (n_components, n_elements)
    draw_pieces, reference_pieces = [], []
    for name, array in arrays.items():
        values, target = _flat(array.values, 2), _flat(reference[name], 0)
        is_shares = _are_shares(values) and _are_shares(target)
        is_log = _are_log(name, values) and _are_log(name, target)
        draw_pieces.append(_comparable(values, is_shares, is_log))
        reference_pieces.append(_comparable(target, is_shares, is_log))
    return _elements_last(draw_pieces), _elements_last(reference_pieces)[0]


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


def _elements_last(pieces: list[FloatArray]) -> FloatArray:
    """Join the pieces to one array, (n_draws, n_components, n_elements)."""
    return np.ascontiguousarray(np.concatenate(pieces, axis=1).swapaxes(1, 2))


def _are_shares(values: FloatArray) -> bool:
    """Whether the values are non-negative and sum to one over the components."""
    if values.shape[-1] == 1 or values.min() < 0.0:
        return False
    return bool(np.abs(values.sum(axis=-1) - 1.0).max() <= _SUM_TOLERANCE)


def _are_log(name: str, values: FloatArray) -> bool:
    return name == "dispersion" and bool(values.min() > 0.0)


def _comparable(values: FloatArray, is_shares: bool, is_log: bool) -> FloatArray:
    r"""Transform values to a scale where one spread fits all components.

    The error of a share w of n rows has variance w (1 - w) / n, but that of :math:`\arcsin\sqrt w`
    has 1 / 4n for every w. The error of a dispersion is proportional to it, but that of its
    logarithm is constant.
    """
    if is_shares:
        return np.asarray(np.arcsin(np.sqrt(np.minimum(values, 1.0))))
    return np.asarray(np.log(values)) if is_log else values


IndexArray = NDArray[np.intp]

_SMALLEST_SPREAD = 0.05
"""Smallest spread of an element relative to its range over the components of a draw. Components
twenty spreads apart cannot be confused, and an element that agrees with the reference by chance
must not dominate all others."""

_FARTHEST = 1e140
"""Upper bound of distances in spreads, so that sums of their squares do not overflow."""

_MAX_ROUNDS = 20
"""Largest number of rounds of matching and measuring. Two or three usually suffice, but a few draws
half-way between two labels could alternate."""


def permutations_to(draws: FloatArray, reference: FloatArray) -> IndexArray:
    """Match the components of every draw to those of a reference."""
    # draws: (n_draws, n_components, n_elements), reference: (n_components, n_elements)
    # -> (n_draws, n_components)
    floor = _smallest_spreads(draws)
    spreads = _nearest_spreads(draws, reference, floor)
    result = _best_permutations(_costs(draws, reference, spreads))
    for _ in range(_MAX_ROUNDS):
        aligned = _permuted(draws, result)
        spreads = _matched_spreads(aligned, reference, floor)
        step = _best_permutations(_costs(aligned, reference, spreads))
        if _is_identity(step):
            break
        result = np.take_along_axis(result, step, axis=1)
    return result


def permutations_among(draws: FloatArray, first: int) -> IndexArray:
    """Match the components of all draws to each other.

    The draws are matched to the medians of the matched draws of the round before, as in the
    algorithm of Stephens (2000) [1]_ with squared errors as loss. No order is better than another,
    so the most frequent labels are kept.

    References
    ----------
    .. [1] Stephens, M. (2000). Dealing with label switching in mixture models. Journal of the Royal
       Statistical Society B 62(4), 795-809. https://doi.org/10.1111/1467-9868.00265
    """
    # draws: (n_draws, n_components, n_elements) -> (n_draws, n_components)
    floor = _smallest_spreads(draws)
    spreads = _nearest_spreads(draws, draws[first], floor)
    result = _best_permutations(_costs(draws, draws[first], spreads))
    for _ in range(_MAX_ROUNDS):
        aligned = _permuted(draws, result)
        centre = np.median(aligned, axis=0)
        spreads = _matched_spreads(aligned, centre, floor)
        step = _best_permutations(_costs(aligned, centre, spreads))
        if _is_identity(step):
            break
        result = np.take_along_axis(result, step, axis=1)
    return np.asarray(result[:, np.argsort(most_frequent(result))])


def most_frequent(permutations: IndexArray) -> IndexArray:
    """Return the most frequent permutation."""
    # permutations: (n_draws, n_components) -> (n_components,)
    distinct, counts = np.unique(permutations, axis=0, return_counts=True)
    return np.asarray(distinct[counts.argmax()])


def _permuted(draws: FloatArray, permutations: IndexArray) -> FloatArray:
    return np.take_along_axis(draws, permutations[:, :, None], axis=1)


def _is_identity(permutations: IndexArray) -> bool:
    return bool((permutations == np.arange(permutations.shape[1])).all())


def _smallest_spreads(draws: FloatArray) -> FloatArray:
    """Compute the lower bounds of the spreads, (n_elements,); zero if components are equal."""
    return np.asarray(_SMALLEST_SPREAD * np.median(np.ptp(draws, axis=1), axis=0))


def _nearest_spreads(draws: FloatArray, reference: FloatArray, floor: FloatArray) -> FloatArray:
    """Compute the spread of each element about the reference's nearest component."""
    nearest = np.full(draws.shape, np.inf)
    for component in reference:
        np.minimum(nearest, np.abs(draws - component), out=nearest)
    return np.asarray(np.maximum(np.median(nearest, axis=(0, 1)), floor))


def _matched_spreads(aligned: FloatArray, reference: FloatArray, floor: FloatArray) -> FloatArray:
    """Compute the spread of each element about the reference's matched component."""
    return np.asarray(np.maximum(np.median(np.abs(aligned - reference), axis=(0, 1)), floor))


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


_SIMPLEX = "_simplex__"

_ORDERED = "_ordered__"


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


OWN_GROUP = "moment_init"

_RECORDED = ("permutation", "switched_share", "moved_share")


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
