"""What an alignment leaves in the group ``moment_init`` of a DataTree."""

from typing import TYPE_CHECKING

import numpy as np

from moment_init.alignment_groups import has_same_draws
from moment_init.alignment_variables import SAMPLE_DIMS
from moment_init.relabelling import most_frequent

if TYPE_CHECKING:
    import xarray

__all__ = ["OWN_GROUP", "check_size", "record_permutation", "without_record"]

OWN_GROUP = "moment_init"

_RECORDED = ("permutation", "switched_share", "moved_share")


def check_size(path: str, name: str, size: int, expected: int) -> None:
    """Refuse a dim that has another size elsewhere in the tree.

    Parameters
    ----------
    path : str
        The group.
    name : str
        The dim.
    size, expected : int
        Its size there, and in the group that is aligned.

    Raises
    ------
    ValueError
        If they differ.
    """
    if size != expected:
        raise ValueError(
            f"`tree` must have the same {name!r} in all groups; got {size} in {path!r} and "
            f"{expected} in the group that is aligned. Rename the dim or drop the group."
        )


def record_permutation(
    tree: "xarray.DataTree", permutation: "xarray.DataArray", attrs: dict[str, str]
) -> "xarray.Dataset":
    """The group of this package, with the permutations since the original tree and their shares.

    Parameters
    ----------
    tree : xarray.DataTree
        The tree before it was aligned, perhaps not for the first time.
    permutation : xarray.DataArray
        Permutations with dims chain, draw, component.
    attrs : dict of str
        Attributes to add; ``alignment_group`` is among them.

    Returns
    -------
    xarray.Dataset
        The group with what it held, ``permutation``, ``switched_share`` and ``moved_share``.

    Raises
    ------
    ValueError
        If the group has a dim of the permutation with another size.
    """
    import xarray

    node = tree.children.get(OWN_GROUP)
    own = xarray.Dataset() if node is None else node.to_dataset(inherit=False)
    values = permutation.values.astype(np.int64)
    earlier = own.get("permutation")
    is_same = own.attrs.get("alignment_group") == attrs["alignment_group"]
    if earlier is not None and is_same and earlier.dims == permutation.dims:
        if has_same_draws(own, permutation) and earlier.shape == permutation.shape:
            values = np.take_along_axis(earlier.values, values, axis=-1)
    own = without_record(own)
    for name, size in permutation.sizes.items():
        check_size(OWN_GROUP, str(name), own.sizes.get(name, size), size)
    coords = {name: array for name, array in permutation.coords.items() if name not in own.coords}
    usual = np.stack([most_frequent(chain) for chain in values])
    n_moved = (values != np.arange(values.shape[-1])).any(axis=-1).mean()
    own = own.assign_coords(coords).assign(
        permutation=(permutation.dims, values),
        switched_share=("chain", (values != usual[:, None]).any(axis=-1).mean(axis=1)),
        moved_share=float(n_moved),
    )
    own.attrs = {**own.attrs, **attrs}
    return own


def without_record(own: "xarray.Dataset") -> "xarray.Dataset":
    """Remove what an earlier call recorded, and the labels of draws that nothing else uses.

    Parameters
    ----------
    own : xarray.Dataset
        The group.

    Returns
    -------
    xarray.Dataset
        The group without them.
    """
    own = own.drop_vars(_RECORDED, errors="ignore")
    used = {dim for array in own.data_vars.values() for dim in array.dims}
    return own.drop_vars([name for name in SAMPLE_DIMS if name in own.coords and name not in used])
