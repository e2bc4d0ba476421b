"""Rows that a DataTree holds beside its draws, and their log-likelihoods."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data import RegressionData, validate_data
from moment_init.membership_draws import family_of
from moment_init.predictive import PosteriorDraws, draw_log_likelihoods

if TYPE_CHECKING:
    import xarray

__all__ = ["log_likelihood_group", "stored_log_likelihood", "stored_rows"]

FloatArray = NDArray[np.float64]

_NAMES = ("offset", "n_trials", "gating", "groups", "sample_weight")
"""What may belong to rows beside inputs and response."""


def stored_rows(
    tree: "xarray.DataTree",
) -> tuple[Any, Any, dict[str, Any], NDArray[Any] | None]:
    """Read the rows of a tree.

    Parameters
    ----------
    tree : xarray.DataTree
        With ``X`` in constant_data and ``y`` in observed_data.

    Returns
    -------
    X : DataFrame or numpy.ndarray
        Inputs, with the names of columns if the tree has them.
    y : numpy.ndarray
        Response.
    data : dict
        Offset, trials, gating covariates, groups and weights; None for what is not there.
    labels : numpy.ndarray or None
        Labels of the rows, if they have any.

    Raises
    ------
    ValueError
        If inputs or response are missing.
    """
    nodes = [tree.children.get(name) for name in ("constant_data", "observed_data")]
    constant, observed = ({} if node is None else node.to_dataset() for node in nodes)
    if "X" not in constant or "y" not in observed:
        raise ValueError(
            "`X` and `y` must be given for a tree without 'X' in constant_data or 'y' in "
            f"observed_data; got neither, and a tree with the groups {', '.join(tree.children)}. "
            "Pass the rows."
        )
    data = {name: _plain(constant[name]) if name in constant else None for name in _NAMES}
    response = observed["y"]
    rows = response.dims[:1]  # the next are responses
    labels = [response.coords[name].values for name in rows if name in response.coords]
    return _plain(constant["X"]), response.values, data, (*labels, None)[0]


def stored_log_likelihood(tree: "xarray.DataTree") -> "xarray.Dataset":
    """Log-likelihoods of the rows of a tree under its draws.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws with their rows, family and link, as `moment_init.sample` makes it.

    Returns
    -------
    xarray.Dataset
        The group ``log_likelihood``.

    Raises
    ------
    ValueError
        If the tree has no rows, no family, or lacks a parameter.
    """
    X, y, data, _ = stored_rows(tree)
    gating = data.pop("gating")
    rows = validate_data(X, y, family=family_of(tree, None, None), **data)
    covariates = None if gating is None else np.asarray(gating, dtype=np.float64)
    return log_likelihood_group(tree["posterior"].to_dataset(), rows, covariates)


def log_likelihood_group(
    posterior: "xarray.Dataset", data: RegressionData, gating: FloatArray | None
) -> "xarray.Dataset":
    """Log-likelihoods of rows, or groups of rows, as a group of a DataTree.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws.
    data : RegressionData
        The rows.
    gating : numpy.ndarray, shape (n_obs, n_gate), or None
        Gating covariates.

    Returns
    -------
    xarray.Dataset
        Variable ``y`` with dims (chain, draw, obs), or (chain, draw, group).
    """
    import xarray

    values = draw_log_likelihoods(PosteriorDraws.of(posterior), data, gating)
    unit, labels = _unit(data)
    shape = (posterior.sizes["chain"], posterior.sizes["draw"], -1)
    coords = {name: posterior.coords[name] for name in ("chain", "draw")}
    attrs = {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }
    return xarray.Dataset(
        {"y": (("chain", "draw", unit), values.reshape(shape))}, {**coords, unit: labels}, attrs
    )


def _unit(data: RegressionData) -> tuple[str, NDArray[Any]]:
    """Dim of the log-likelihood and its labels: rows, or groups in the order of their first."""
    if data.groups is None:
        return "obs", np.arange(data.n_obs)
    labels = np.asarray(data.groups)
    _, first = np.unique(labels, return_index=True)
    labels = labels[np.sort(first)]
    return "group", labels if labels.dtype.kind in "iuf" else labels.astype(str)


def _plain(array: "xarray.DataArray") -> Any:
    """Values of a stored variable; with the names of columns if it has any."""
    dims = [name for name in ("feature", "gate_feature") if name in array.dims]
    if array.ndim != 2 or not dims:
        return array.values
    array = array.transpose(..., dims[0])
    return array.to_pandas() if dims[0] in array.coords else array.values
