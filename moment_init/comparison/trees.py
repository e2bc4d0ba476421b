"""The DataTree of every method.

Fits by EM become chains of Laplace draws, with components in a common order. Every tree then gets
the groups of data, replicated responses and membership.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.runs import ComparedRows, EMRun, best_run, typical_run
from moment_init.em.result import EMFit
from moment_init.em.start_values import DIMS, start_values_of
from moment_init.posterior.alignment import align_components
from moment_init.posterior.draws import PosteriorDraws, draw_responses
from moment_init.posterior.membership import predict_membership

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]

SCORED_DRAWS = 400
"""Fewest draws of a fit that is scored. Pareto k is then fitted to a tail of 3 √400 = 60 draws,
with a standard error of (1 + k) / √60, about .2, and a threshold of 1 - 1 / log10(400) = .62."""

_FEWEST_DRAWS = 100
"""Fewest draws that are kept per start. They are independent, so the mean of a start is known to a
tenth of a standard deviation when R-hat is computed."""

_MATCHED = ("coefficient", "bias", "weight", "dispersion")
"""Variables that are used to match components."""


def laplace_tree(run: EMRun, rows: ComparedRows, draws: int) -> "xarray.DataTree":
    """Draw from the Laplace approximation of a fit, with the log-likelihoods of the rows."""
    if run.fit is None:
        raise ValueError(f"`run` must have led to a fit; got one that broke down: {run.message}")
    fit = _with_unique_root(run.fit)
    tree = fit.to_datatree(rows.X, rows.y, draws=draws, random_seed=run.seed, **rows.by_row)
    for name, node in tree.children.items():
        if "chain" in node.dims:
            tree[name] = node.to_dataset().assign_coords(chain=[run.start])
    return tree


def _with_unique_root(fit: EMFit) -> EMFit:
    """Return the fit with the triangular root of its covariance.

    This root is unique; others depend on the signs of eigenvectors, which depend on rounding. Fits
    that ended at the same optimum therefore have the same draws for the same seed.
    """
    triangle = np.linalg.qr(fit.laplace.root.T, mode="r")
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)
    root = triangle.T * signs
    return replace(fit, laplace=replace(fit.laplace, root=root))


def start_orders(fits: Sequence[EMFit], reference: EMFit) -> IndexArray:
    """Find the order of each fit's components that is closest to a reference."""
    # -> (n_fits, n_components)
    import xarray

    values = [start_values_of(fit).variables() for fit in fits]
    maxima = xarray.Dataset(
        {
            name: (
                ("chain", "draw", *DIMS[name]),
                np.stack([variables[name] for variables in values])[:, None],
            )
            for name in _MATCHED
            if name in values[0]
        },
        {"chain": np.arange(len(fits)), "draw": [0], "feature": list(reference.feature_names)},
    )
    aligned = align_components(xarray.DataTree.from_dict({"posterior": maxima}), reference)
    permutation = aligned["moment_init"]["permutation"].transpose("chain", "draw", "component")
    return np.asarray(permutation.values[:, 0], dtype=np.intp)


def relabel(tree: "xarray.DataTree", order: IndexArray) -> "xarray.DataTree":
    """Reorder the components of the draws of a fit."""
    # order: (n_components,)
    posterior = tree["posterior"].to_dataset()
    labels = posterior["component"].values
    result = tree.copy()
    result["posterior"] = posterior.isel(component=order).assign_coords(component=labels)
    return result


def random_tree(
    runs: Sequence[EMRun], orders: IndexArray, rows: ComparedRows, draws: int
) -> "xarray.DataTree":
    """Draw from the Laplace approximations of several fits, one chain per start."""
    # orders: (n_runs, n_components)
    import xarray

    kept = max(_FEWEST_DRAWS, draws // len(runs))
    trees = [
        relabel(laplace_tree(run, rows, kept), order)
        for run, order in zip(runs, orders, strict=True)
    ]
    groups = {
        name: xarray.concat(
            [tree[name].to_dataset() for tree in trees], "chain", combine_attrs="drop_conflicts"
        )
        for name in ("posterior", "sample_stats", "log_likelihood")
    }
    groups["observed_data"] = trees[0]["observed_data"].to_dataset()
    groups["moment_init"] = _own_group(runs, orders, trees[0])
    return xarray.DataTree.from_dict(groups)


def _own_group(
    runs: Sequence[EMRun], orders: IndexArray, first: "xarray.DataTree"
) -> "xarray.Dataset":
    """Record log-likelihood, time and order of every start, and the typical and best start."""
    import xarray

    known = first["moment_init"].attrs
    kept = ("family", "link", "inference_library", "inference_library_version")
    return xarray.Dataset(
        {
            "log_likelihood": ("chain", [run.log_likelihood for run in runs]),
            "seconds": ("chain", [run.seconds for run in runs]),
            "permutation": (("chain", "component"), orders.astype(np.int64)),
        },
        {"chain": [run.start for run in runs], "component": np.arange(orders.shape[1])},
        attrs={name: known[name] for name in kept}
        | {"typical_chain": typical_run(runs).start, "best_chain": best_run(runs).start},
    )


_PREDICTIVE_DRAWS = 1000
"""Draws of all chains from which responses are replicated: a probability of one in ten is then
known to a tenth of its value."""

_FEWEST_PREDICTIVE_DRAWS = 100
"""Fewest draws per chain, so that single chains can be inspected."""


def complete_tree(
    tree: "xarray.DataTree",
    constant: "xarray.Dataset",
    rows: ComparedRows,
    rng: np.random.Generator,
    *,
    membership_of: "xarray.DataTree | None" = None,
) -> "xarray.DataTree":
    """Add data, replicated responses and memberships; label rows by their position in the data."""
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
    """Replicate the responses of every row, from some draws of every chain."""
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
    """Label rows by their position in the user's data, which the split changes."""
    for name, node in tree.children.items():
        dataset = node.to_dataset()
        if "obs" in dataset.dims:
            tree[name] = dataset.assign_coords(obs=rows.numbers)
    return tree
