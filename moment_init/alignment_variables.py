"""Variables by which components are told apart, as one array of draws."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray

__all__ = [
    "SAMPLE_DIMS",
    "best_draw",
    "components_last",
    "default_names",
    "draws_by_component",
    "stack_draws",
    "stack_with_reference",
]

FloatArray = NDArray[np.float64]

SAMPLE_DIMS = ("chain", "draw")

_MODEL_VARIABLES = ("coefficient", "bias", "dispersion", "weight")
"""What determines a mixture of generalised linear models; `direction` and `scale` are functions of
`coefficient` and would count twice."""

_LARGEST_SIZE = 1000
"""Elements of a component. A variable with more is taken for predictions of rows, which follow from
the parameters and would only cost time."""

_SUM_TOLERANCE = 1e-4
"""Distance from one of a sum of probabilities; draws may be stored in single precision."""

_LOG_DENSITIES = ("lp", "logp")
"""The names of the log density that PyMC and nutpie give."""


def draws_by_component(dataset: "xarray.Dataset", dim: str) -> dict[str, "xarray.DataArray"]:
    """Numeric variables with a component, a chain and a draw.

    Parameters
    ----------
    dataset : xarray.Dataset
        A group.
    dim : str
        Name of the component dim.

    Returns
    -------
    dict of xarray.DataArray
        The variables by name.
    """
    needed = {dim, *SAMPLE_DIMS}
    return {
        str(name): array
        for name, array in dataset.data_vars.items()
        if needed <= set(array.dims) and array.dtype.kind in "iuf"
    }


def components_last(array: "xarray.DataArray", dim: str) -> "xarray.DataArray":
    """Order the dims: chain and draw if there, others in their order, component.

    Parameters
    ----------
    array : xarray.DataArray
        A variable with the component dim.
    dim : str
        Name of that dim.

    Returns
    -------
    xarray.DataArray
        The same variable, transposed.
    """
    leading = [name for name in SAMPLE_DIMS if name in array.dims]
    others = [name for name in array.dims if name not in (*SAMPLE_DIMS, dim)]
    return array.transpose(*leading, *others, dim)


def default_names(
    arrays: Mapping[str, "xarray.DataArray"],
    common: Iterable[str],
    dim: str,
) -> list[str]:
    """Variables by which to match if the caller names none.

    Parameters
    ----------
    arrays : mapping of str to xarray.DataArray
        Variables of the draws.
    common : iterable of str
        Those of them that the reference has as well.
    dim : str
        Name of the component dim.

    Returns
    -------
    list of str
        The names; those of the models of this package if there are coefficients, else all but
        predictions of rows.
    """
    names = [name for name in arrays if name in set(common)]
    if "coefficient" in names:
        return [name for name in _MODEL_VARIABLES if name in names]
    small = [name for name in names if _elements(arrays[name], dim) <= _LARGEST_SIZE]
    return small or names


def stack_draws(arrays: Mapping[str, "xarray.DataArray"]) -> FloatArray:
    """Put variables into one array of draws.

    Parameters
    ----------
    arrays : mapping of str to xarray.DataArray
        Variables with dims as in `components_last`.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_components, n_elements)
        Draws, chain after chain.
    """
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
    """Put variables and their reference into arrays with the same elements.

    Parameters
    ----------
    arrays : mapping of str to xarray.DataArray
        Variables with dims as in `components_last`.
    reference : mapping of str to numpy.ndarray
        The reference of each, with the same dims but chain and draw.

    Returns
    -------
    draws : numpy.ndarray, shape (n_draws, n_components, n_elements)
        Draws, chain after chain.
    reference : numpy.ndarray, shape (n_components, n_elements)
        The reference.
    """
    draw_pieces, reference_pieces = [], []
    for name, array in arrays.items():
        values, target = _flat(array.values, 2), _flat(reference[name], 0)
        is_shares = _are_shares(values) and _are_shares(target)
        is_log = _are_log(name, values) and _are_log(name, target)
        draw_pieces.append(_comparable(values, is_shares, is_log))
        reference_pieces.append(_comparable(target, is_shares, is_log))
    return _elements_last(draw_pieces), _elements_last(reference_pieces)[0]


def best_draw(tree: "xarray.DataTree", group: str) -> int:
    """Index of the draw with the highest log density, the first where it is not known.

    Parameters
    ----------
    tree : xarray.DataTree
        Tree with the group and perhaps its ``sample_stats``.
    group : str
        Name of the group.

    Returns
    -------
    int
        The index, chain after chain.
    """
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
    """Values as (n_draws, n_elements, n_components); without leading dims a single draw."""
    n_draws = int(np.prod(values.shape[:n_leading], dtype=np.int64))
    return np.asarray(values, dtype=np.float64).reshape(n_draws, -1, values.shape[-1])


def _elements_last(pieces: list[FloatArray]) -> FloatArray:
    """One array (n_draws, n_components, n_elements)."""
    return np.ascontiguousarray(np.concatenate(pieces, axis=1).swapaxes(1, 2))


def _are_shares(values: FloatArray) -> bool:
    """Whether the components share a total of one."""
    if values.shape[-1] == 1 or values.min() < 0.0:
        return False
    return bool(np.abs(values.sum(axis=-1) - 1.0).max() <= _SUM_TOLERANCE)


def _are_log(name: str, values: FloatArray) -> bool:
    return name == "dispersion" and bool(values.min() > 0.0)


def _comparable(values: FloatArray, is_shares: bool, is_log: bool) -> FloatArray:
    r"""Values on a scale where one spread fits all components.

    The error of a share w of n rows has variance w (1 - w) / n, that of :math:`\arcsin\sqrt w` has
    1 / 4n for every w; the error of a dispersion is proportional to it, that of its logarithm is
    not.
    """
    if is_shares:
        return np.asarray(np.arcsin(np.sqrt(np.minimum(values, 1.0))))
    return np.asarray(np.log(values)) if is_log else values
