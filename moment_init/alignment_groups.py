"""Permutations carried through the groups of a DataTree: who follows whom, and the variables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.alignment_variables import SAMPLE_DIMS

if TYPE_CHECKING:
    import xarray

__all__ = ["ComponentDims", "draws_family", "has_fewer_draws", "has_same_draws", "permute_dataset"]

_SIMPLEX = "_simplex__"

_ORDERED = "_ordered__"


@dataclass(frozen=True, slots=True)
class ComponentDims:
    """How variables show that they run over components.

    Parameters
    ----------
    names : tuple of str
        Names of dims, that of the components first, then second dims of matrices over them.
    size : int
        Number of components.
    simplexes : frozenset of str
        Variables whose last dim is the component: PyMC stores the transform of one that sums to
        one with an entry less, under a name of its own.
    """

    names: tuple[str, ...]
    size: int
    simplexes: frozenset[str]

    def include(self, name: Any, variable: "xarray.Variable") -> bool:
        """Whether a variable has draws of components.

        Parameters
        ----------
        name : str
            Its name.
        variable : xarray.Variable
            The variable.

        Returns
        -------
        bool
            True if it must be permuted.
        """
        if not set(SAMPLE_DIMS) <= set(variable.dims):
            return False
        return bool(set(self.names) & set(variable.dims)) or self.is_simplex(name, variable)

    def is_simplex(self, name: Any, variable: "xarray.Variable") -> bool:
        """Whether a variable is the transform of one that sums to one over components.

        Parameters
        ----------
        name : str
            Its name.
        variable : xarray.Variable
            The variable.

        Returns
        -------
        bool
            True if it has an entry less than there are components.
        """
        base = str(name).removesuffix(_SIMPLEX)
        is_shorter = variable.ndim > len(SAMPLE_DIMS) and variable.shape[-1] == self.size - 1
        return base != name and base in self.simplexes and is_shorter


def draws_family(path: str) -> str:
    """Which draws a group holds, by the names that ArviZ gives; labels of draws do not tell.

    Parameters
    ----------
    path : str
        Path of the group.

    Returns
    -------
    str
        "warmup", "prior" or "posterior".
    """
    name = path.rsplit("/", 1)[-1]
    if name.startswith("warmup_"):
        return "warmup"
    is_prior = name.startswith("prior") or name.endswith("_prior")
    return "prior" if is_prior else "posterior"


def has_same_draws(dataset: "xarray.Dataset", permutation: "xarray.DataArray") -> bool:
    """Whether a group has the draws of a permutation, by number and by labels where there are any.

    Parameters
    ----------
    dataset : xarray.Dataset
        The group.
    permutation : xarray.DataArray
        A permutation for each draw.

    Returns
    -------
    bool
        True if it has.
    """
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
    """Whether a group has some of the draws of a permutation, by their labels.

    Parameters
    ----------
    dataset : xarray.Dataset
        The group.
    permutation : xarray.DataArray
        A permutation for each draw.

    Returns
    -------
    bool
        True if each of its draws has a permutation.
    """
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
    """Permute the components of each draw in all variables that have them.

    Parameters
    ----------
    dataset : xarray.Dataset
        A group.
    permutation : xarray.DataArray
        Permutations with dims chain, draw, component.
    dims : ComponentDims
        How to tell such variables.

    Returns
    -------
    dataset : xarray.Dataset
        The group with new variables in the place of those permuted; attributes, encoding and all
        other variables are kept.
    skipped : list of str
        Variables that could not be permuted.
    """
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
        # Not through a DataArray, which would lose the encoding.
        result[name] = variable.copy(deep=False, data=values)
    return result, skipped


def _permuted_variable(
    name: str, variable: "xarray.Variable", order: NDArray[np.intp], dims: ComponentDims
) -> NDArray[Any]:
    sample_axes = [variable.dims.index(dim) for dim in SAMPLE_DIMS]
    values = variable.values
    if dims.is_simplex(name, variable):
        # PyMC subtracts the mean logarithm and drops the last entry: the entries sum to zero.
        last = -values.sum(axis=-1, keepdims=True)
        full = np.concatenate([values, last], axis=-1)
        return _permuted(full, order, sample_axes, full.ndim - 1)[..., :-1]
    axes = [variable.dims.index(dim) for dim in dims.names if dim in variable.dims]
    for axis in axes:
        values = _permuted(values, order, sample_axes, axis)
    return values


def _permuted(
    values: NDArray[Any], order: NDArray[np.intp], sample_axes: Sequence[int], axis: int
) -> NDArray[Any]:
    """A copy with the components along one axis permuted, in all draws that move alike at once."""
    result = values.copy()
    # Views: what is written to them is written to the result.
    target = np.moveaxis(result, [*sample_axes, axis], [0, 1, -1])
    source = np.moveaxis(values, [*sample_axes, axis], [0, 1, -1])
    for here, there in np.ndindex(order.shape[-1], order.shape[-1]):
        if here != there:
            moved = np.nonzero(order[..., here] == there)
            target[..., here][moved] = source[..., there][moved]
    return result
