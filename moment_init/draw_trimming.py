"""Chains of unequal length, cut to draws that are complete.

A killed run leaves chains of unequal length, and variables of unequal length within a chain. What
was not written reads as NaN.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.draw_files import with_plain_strings

if TYPE_CHECKING:
    import xarray

__all__ = [
    "cut_chains",
    "describe_trimming",
    "draws_made",
    "largest_block",
]

IntArray = NDArray[np.int64]


def draws_made(pair: Mapping[str, "xarray.Dataset"]) -> IntArray:
    """Number of draws of each chain that are complete in all variables.

    Parameters
    ----------
    pair : mapping of str to xarray.Dataset
        `posterior` and `sample_stats`, with dims chain and draw first.

    Returns
    -------
    numpy.ndarray, shape (n_chains,)
        The numbers; a single zero if there is no posterior.

    Notes
    -----
    Only floating-point variables tell what was not written.
    """
    lengths = [
        _length(value.values, value.encoding.get("chunks", value.shape)[1])
        for dataset in pair.values()
        for value in dataset.values()
        if value.dtype.kind == "f"
    ]
    if not pair["posterior"]:
        return np.zeros(1, dtype=np.int64)
    return np.min(lengths, axis=0)


def _length(values: NDArray[Any], block: int) -> IntArray:
    """Length of each chain, (n_chains,), up to its last draw before a block without values.

    NaN before that draw count as values, those of a quantity that is not always defined. Blocks
    are written side by side, so that one can be missing before one that is there.
    """
    n_chains, n_draws = values.shape[:2]
    if n_draws == 0:
        return np.zeros(n_chains, dtype=np.int64)
    has_value = ~np.isnan(values).all(axis=tuple(range(2, values.ndim)))
    starts = np.arange(0, n_draws, block)
    is_written = np.logical_and.accumulate(
        np.logical_or.reduceat(has_value, starts, axis=1), axis=1
    )
    has_value &= np.repeat(is_written, block, axis=1)[:, :n_draws]
    return np.where(has_value, np.arange(1, n_draws + 1), 0).max(axis=1)


def largest_block(made: IntArray) -> tuple[IntArray, int]:
    """Chains and their common length that keep most draws; with equal numbers, the most chains.

    Parameters
    ----------
    made : numpy.ndarray, shape (n_chains,)
        Number of draws of each chain, not all zero.

    Returns
    -------
    chains : numpy.ndarray, shape (n_kept,)
        The chains that are kept.
    length : int
        Number of draws that are kept of each.
    """
    lengths = np.unique(made[made > 0])
    kept = lengths * np.array([(made >= length).sum() for length in lengths])
    length = int(lengths[np.argmax(kept)])
    return np.flatnonzero(made >= length), length


def describe_trimming(made: IntArray, chains: IntArray, length: int) -> str:
    """What is cut, in words.

    Parameters
    ----------
    made : numpy.ndarray, shape (n_chains,)
        Number of draws of each chain.
    chains : numpy.ndarray, shape (n_kept,)
        The chains that are kept.
    length : int
        Number of draws that are kept of each.

    Returns
    -------
    str
        The words; empty if nothing is cut.
    """
    left_out = np.setdiff1d(np.arange(made.size), chains)
    parts = [f"{length} draws kept of each chain"] if (made[chains] > length).any() else []
    if left_out.size:
        listed = ", ".join(f"{chain} ({made[chain]} draws)" for chain in left_out)
        parts.append(f"chains left out: {listed}")
    return "; ".join(parts)


def cut_chains(
    dataset: "xarray.Dataset", made: IntArray, chains: IntArray, length: int
) -> "xarray.Dataset":
    """Some chains up to a length, with a coordinate for every dim.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables with dims chain and draw.
    made : numpy.ndarray, shape (n_chains,)
        Number of draws of each chain.
    chains : numpy.ndarray, shape (n_kept,)
        The chains to keep.
    length : int
        Number of draws to keep of each. Chains that are shorter end in NaN; for that all variables
        become floating-point numbers.

    Returns
    -------
    xarray.Dataset
        The part; chains keep their numbers.
    """
    import xarray

    result = dataset.isel(chain=chains, draw=slice(length))
    if made[chains].min() < length:
        drawn = xarray.DataArray(np.arange(length) < made[chains, None], dims=("chain", "draw"))
        result = result.astype(np.float64).where(drawn)
    used = {dim for value in result.values() for dim in value.dims}
    result = result.drop_vars([name for name in result.coords if name not in used])
    ranges = {dim: np.arange(result.sizes[dim]) for dim in used if dim not in result.coords}
    return with_plain_strings(result.assign_coords({**ranges, "chain": chains}))
