"""Which draws stand for a method: random starts are not draws of one distribution."""

from typing import TYPE_CHECKING

from moment_init.comparison.result import RANDOM_EM

if TYPE_CHECKING:
    import xarray

    from moment_init.comparison.result import Comparison

__all__ = ["reference_method", "representative", "typical_start"]


def reference_method(comparison: "Comparison") -> str:
    """Name the method that the others are drawn against.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    str
        The first of its trees.
    """
    return next(iter(comparison.trees))


def typical_start(comparison: "Comparison") -> int | None:
    """Find the random start that stands for all.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    int or None
        Its number; None if no random start converged.
    """
    landscape = comparison.landscape
    found = landscape.loc[landscape["is_typical"].astype(bool), "start"]
    return None if found.empty else int(found.iloc[0])


def representative(comparison: "Comparison", method: str, group: str) -> "xarray.Dataset":
    """Select the draws that stand for a method.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    method : str
        One of its trees.
    group : str
        Group of the tree.

    Returns
    -------
    xarray.Dataset
        The group; of random starts only the typical one.
    """
    dataset = comparison.trees[method][group].to_dataset()
    start = typical_start(comparison)
    if method != RANDOM_EM or start is None or "chain" not in dataset.dims:
        return dataset
    return dataset.sel(chain=[start])
