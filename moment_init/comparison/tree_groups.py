"""Groups that the tree of every method has: data, replicated responses, membership."""

from typing import TYPE_CHECKING

import numpy as np

from moment_init.comparison.rows import ComparedRows
from moment_init.membership import predict_membership
from moment_init.predictive import PosteriorDraws, draw_responses

if TYPE_CHECKING:
    import xarray

__all__ = ["complete_tree"]

_PREDICTIVE_DRAWS = 1000
"""Draws from which responses are replicated, in all: the share of a value that one response in ten
has is then known to a tenth of itself."""

_FEWEST_PREDICTIVE_DRAWS = 100
"""Draws of a chain that are used at least, so that one chain can be looked at by itself."""


def complete_tree(
    tree: "xarray.DataTree",
    constant: "xarray.Dataset",
    rows: ComparedRows,
    rng: np.random.Generator,
    *,
    membership_of: "xarray.DataTree | None" = None,
) -> "xarray.DataTree":
    """Add the data, replicated responses and memberships; label rows by their place in the data.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws of a method. It is not changed.
    constant : xarray.Dataset
        Group ``constant_data`` as `moment_init.sample` makes it.
    rows : ComparedRows
        The rows that were fitted.
    rng : numpy.random.Generator
        Source of the replicated responses.
    membership_of : xarray.DataTree, optional
        Draws that say to which component rows belong, where those of `tree` are of several optima.

    Returns
    -------
    xarray.DataTree
        The tree with ``constant_data``, ``posterior_predictive`` (evenly spaced draws, 1000 in all
        and at least 100 of a chain) and ``membership``, means over the draws.
    """
    import xarray

    result = tree.copy()
    result["constant_data"] = xarray.DataTree(constant)
    result["posterior_predictive"] = xarray.DataTree(_replicated(tree, rows, rng))
    source = tree if membership_of is None else membership_of
    shares = predict_membership(
        source,
        rows.checked.X,
        rows.checked.y,
        offset=rows.checked.offset,
        n_trials=rows.checked.n_trials,
        gating=rows.gating,
        groups=rows.checked.groups,
        sample_weight=rows.checked.sample_weight,
        average=True,
    )
    membership = shares.to_dataset(name="probability")
    membership.attrs["chains"] = source["posterior"].to_dataset()["chain"].values.tolist()
    result["membership"] = xarray.DataTree(membership)
    return _with_row_numbers(result, rows)


def _replicated(
    tree: "xarray.DataTree", rows: ComparedRows, rng: np.random.Generator
) -> "xarray.Dataset":
    """Responses of every row, from some draws of every chain."""
    import xarray

    posterior = tree["posterior"].to_dataset()
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    kept = min(n_draws, max(_FEWEST_PREDICTIVE_DRAWS, _PREDICTIVE_DRAWS // n_chains))
    chosen = posterior.isel(draw=np.arange(kept) * n_draws // kept)
    values = draw_responses(PosteriorDraws.of(chosen), rows.checked, rng, rows.gating)
    return xarray.Dataset(
        {"y": (("chain", "draw", "obs"), values.reshape(n_chains, kept, -1))},
        {"chain": chosen["chain"], "draw": chosen["draw"], "obs": np.arange(rows.checked.n_obs)},
        attrs=dict(tree["posterior"].attrs),
    )


def _with_row_numbers(tree: "xarray.DataTree", rows: ComparedRows) -> "xarray.DataTree":
    """Rows labelled by their place in the user's data, which a split changes."""
    for name, node in tree.children.items():
        dataset = node.to_dataset()
        if "obs" in dataset.dims:
            tree[name] = dataset.assign_coords(obs=rows.numbers)
    return tree
