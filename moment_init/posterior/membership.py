r"""Membership of rows in components, from the draws of a posterior.

With parameters :math:`\theta` of one draw, the probability that a row belongs to component j is

.. math:: p(j \mid x, y, \theta)
    = \frac{\pi_j f_j(y \mid x)}{\sum_k \pi_k f_k(y \mid x)},

where :math:`\pi_j` is the weight or, with a gate, its probability given the gating covariates.
The rows of a group share their component, so their densities are multiplied.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.data.checking import require_finite_offset, require_finite_predictors
from moment_init.em.datatree import unit_coordinate
from moment_init.em.prediction import rows_for
from moment_init.families.base import Family, normalise_joint
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.posterior.draws import (
    ExpertDraws,
    MixtureDraws,
    RowLayout,
    family_of,
    posterior_of,
    read_draws,
    stored_rows,
)
from moment_init.responses.draws import has_responses, joint_membership

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]

_BLOCK_ROWS = 4096
"""Rows that are evaluated together: NumPy's overhead per call, some microseconds, is then less than
a tenth of the arithmetic for a single draw."""

_DOUBLES = 24
"""Doubles per row, draw and component. Six arrays are in memory at once (linear predictors,
densities and the families' intermediate results). Four times that keeps them in one cache;
`sum_over_blocks` would otherwise fill four, which takes 1.2 to 1.9 times as long."""

_LOWEST_LOG_DENSITY = -1e290
"""Lower bound of log densities: probabilities stay defined for rows that are impossible under all
components of a draw, and sums over a group do not overflow."""


def predict_membership(
    tree: "xarray.DataTree",
    X: Any = None,
    y: Any = None,
    *,
    gating: Any = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    family: str | Family | None = None,
    link: str | None = None,
    draws: int | None = None,
    average: bool = False,
) -> "xarray.DataArray":
    """Compute the probability of each component for rows, or groups of rows, under each draw.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws in the group ``posterior``: ``coefficient``, ``bias``, ``weight``, for families that
        have one ``dispersion``, and with a gate ``gate`` and ``gate_bias`` (or ``gate_mean`` and
        ``gate_covariance``), in the user's units, as returned by `sample` and `EMFit.to_datatree`.
        Draws of several responses have the dim ``response``.
    X : array-like or DataFrame, shape (n_obs, n_features), optional
        Inputs; the columns of a DataFrame are matched by name with the coordinate ``feature``.
        Without `X` and `y` the rows of the tree are used: ``X``, ``offset``, ``n_trials``,
        ``gating``, ``groups`` and ``sample_weight`` of ``constant_data``, ``y`` of
        ``observed_data``.
    y : array-like, shape (n_obs,), optional
        Response. With `gating` but no `y` the result is the gate's probability, before the response
        is observed; without a gate this would be ``weight`` for all rows, and raises an error.
        Several responses have the shape (n_obs, n_responses). Classes are given by their labels.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Gating covariates, for draws with a gate; matched with ``gate_feature``.
    offset, n_trials : array-like, shape (n_obs,), optional
        Known part of the linear predictor, and number of binomial trials.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row within its group; it has no effect without groups.
    groups : array-like, shape (n_obs,), optional
        Group labels; the rows of a group share their component.
    family : str or Family, optional
        Family of the response, or one per response; by default the attribute of the group
        ``moment_init``.
    link : str, optional
        Link; by default the attribute of that group if the family is the same, else the family's
        default link.
    draws : int, optional
        Use at most this many draws of each chain, evenly spaced; all by default.
    average : bool, default False
        Return the mean over chains and draws, computed block by block.

    Returns
    -------
    xarray.DataArray
        Probabilities, named ``membership``, that sum to one over the components. The dims are
        (chain, draw, obs, component), or (obs, component) if averaged. With groups the dim
        ``group`` replaces ``obs``, with the groups in the order of their first rows.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree, or for data that are not real numbers.
    ValueError
        If the tree lacks a required group or variable or has draws that are not finite, if the
        family is unknown, if only some of the arguments that belong together are given, and for
        wrong shapes or columns, missing values, and impossible responses.

    Notes
    -----
    To average draws, the labels must have the same meaning in all of them: see
    `moment_init.align_components`. Draws and rows are evaluated in blocks, in the log domain. The
    array of all draws takes 8 bytes per draw, row and component: 480 MB for 4000 draws, 5000 rows
    and three components.

    Draws of several responses, or of classes, have no groups and no gate; `groups` and `gating`
    then raise an error.

    Examples
    --------
    >>> import numpy as np, xarray
    >>> dims = ("chain", "draw", "component")
    >>> posterior = xarray.Dataset(
    ...     {
    ...         "coefficient": (("chain", "draw", "feature", "component"), [[[[0.0, 0.0]]]]),
    ...         "bias": (dims, [[[-1.0, 1.0]]]),
    ...         "weight": (dims, [[[0.5, 0.5]]]),
    ...     }
    ... )
    >>> tree = xarray.DataTree.from_dict({"posterior": posterior})
    >>> mean = predict_membership(tree, [[0.3], [0.7]], [0, 1], family="bernoulli", average=True)
    >>> mean.round(3).values.tolist()
    [[0.731, 0.269], [0.269, 0.731]]
    """
    posterior = posterior_of(tree, draws)
    data = {"offset": offset, "n_trials": n_trials, "gating": gating, "groups": groups}
    data["sample_weight"] = sample_weight
    if has_responses(posterior):
        if X is None and y is None:
            _require_nothing(data)
        return joint_membership(
            tree, posterior, X, y, **data, family=family, link=link, average=average
        )
    has_response = y is not None or gating is None
    resolved = family_of(tree, family, link) if has_response else None
    parameters, layout = read_draws(posterior, resolved)
    labels = None
    if X is None and y is None and has_response:
        _require_nothing(data)
        X, y, data, labels = stored_rows(tree)
    if resolved is None:
        rows, order = _rows_before_response(layout, X, data)
    else:
        _require_both(X, y, has_gate=layout.gate_centre is not None)
        rows, order = rows_for(layout.as_fit(), X, y, **data)
    _require_finite(rows, parameters)
    values = _evaluate(rows, parameters, is_averaged=average)
    unit, numbers = unit_coordinate(rows, order, data["groups"])
    labels = numbers if labels is None or unit == "group" else labels
    return _labelled(values, posterior, unit, labels)


# --- rows ----------------------------------------------------------------------------------------


def _require_nothing(data: dict[str, Any]) -> None:
    given = [name for name, value in data.items() if value is not None]
    if given:
        raise ValueError(
            "`X` and `y` must be given with other data of the rows; got only "
            f"{', '.join(given)}. Pass `X` and `y`, or none of these for the rows of the tree."
        )


def _require_both(X: Any, y: Any, *, has_gate: bool) -> None:
    if X is not None and y is not None:
        return
    if X is None:
        raise ValueError(
            "`X` must be given with `y`; got None. Pass both, or neither for the rows of the tree."
        )
    remedy = (
        "Pass `gating` alone for the probabilities of the gate"
        if has_gate
        else "Without a response the probabilities are tree['posterior']['weight']"
    )
    raise ValueError(f"`y` must be given with `X`; got None. Pass the response. {remedy}.")


def _rows_before_response(
    layout: RowLayout, X: Any, data: dict[str, Any]
) -> tuple[LikelihoodRows, IndexArray | None]:
    """Make rows for the gate alone; `X` is optional, but checked."""
    response_names = ("offset", "n_trials", "sample_weight")
    given = [name for name in response_names if data[name] is not None]
    if given:
        raise ValueError(
            f"`{given[0]}` must be None without `y`, as it belongs to the response; got values. "
            "Pass the response, or leave it out."
        )
    n_obs = len(X) if X is not None else len(np.atleast_1d(np.asarray(data["gating"])))
    inputs = np.zeros((n_obs, len(layout.feature_names))) if X is None else X
    return rows_for(layout.as_fit(), inputs, np.zeros(n_obs), **data)


def _require_finite(rows: LikelihoodRows, draws: MixtureDraws) -> None:
    """Raise if predictors or logits of the rows would overflow under a draw."""
    require_finite_offset(rows.offset)
    if draws.experts is not None:
        slopes = np.moveaxis(draws.experts.coefficients, -1, 0)
        require_finite_predictors(read_block(rows.Z, slice(None)), slopes, "X")
    if draws.slopes is not None and rows.gate is not None:
        require_finite_predictors(rows.gate, np.moveaxis(draws.slopes, -1, 0), "gating")


# --- probabilities -------------------------------------------------------------------------------


def _evaluate(rows: LikelihoodRows, draws: MixtureDraws, *, is_averaged: bool) -> FloatArray:
    """Compute the probabilities, (n_draws, n_units, n_components), or their means over draws."""
    n_components, n_draws = draws.logits.shape
    shape = (rows.n_units, n_components)
    result = np.empty(shape if is_averaged else (n_draws, *shape))
    step = max(1, _BLOCK_ROWS * rows.n_units // rows.n_obs)
    for start in range(0, rows.n_units, step):
        block = slice(start, min(start + step, rows.n_units))
        block_rows = rows.take(block)
        target = None if is_averaged else result[:, block]
        function = partial(_sum_draws, block_rows, draws, target)
        sums = sum_over_blocks(function, n_draws, _DOUBLES * n_components * block_rows.n_obs)
        if is_averaged:
            result[block] = sums[0].T / n_draws
    return result


def _sum_draws(
    rows: LikelihoodRows, draws: MixtureDraws, target: FloatArray | None, part: slice
) -> tuple[FloatArray, ...]:
    """Sum the probabilities of all units over some draws, or write them to the target."""
    joint = draws.logits[:, part, None] + np.zeros(rows.n_units)
    if draws.slopes is not None and rows.gate is not None:
        covariates = rows.gate if rows.group_starts is None else rows.gate[rows.group_starts]
        joint += draws.slopes[:, part] @ covariates.T
    if draws.experts is not None:
        density = _log_densities(rows, draws.experts, part)
        if rows.group_starts is not None:
            density *= rows.sample_weight
            density = np.add.reduceat(density, rows.group_starts, axis=2)
        joint += density
    _, shares = normalise_joint(joint)
    if target is None:
        return (shares.sum(axis=1),)
    target[part] = shares.transpose(1, 2, 0)
    return ()


def _log_densities(rows: LikelihoodRows, experts: ExpertDraws, part: slice) -> FloatArray:
    """Compute the log densities of the responses, (n_components, n_draws, n_obs)."""
    eta = experts.coefficients[:, part] @ read_block(rows.Z, slice(None)).T
    eta += experts.biases[:, part, None]
    if rows.offset is not None:
        eta += rows.offset
    dispersion = None if experts.dispersion is None else experts.dispersion[:, part, None]
    with np.errstate(over="ignore"):  # an extreme draw has a density of zero
        density = experts.family.log_density_eta(
            rows.y, eta, dispersion=dispersion, n_trials=rows.n_trials
        )
    return np.maximum(density, _LOWEST_LOG_DENSITY, out=density)


def _labelled(
    values: FloatArray, posterior: "xarray.Dataset", unit: str, labels: NDArray[Any]
) -> "xarray.DataArray":
    import xarray

    dims: tuple[str, ...] = (unit, "component")
    if values.ndim == 3:
        dims = ("chain", "draw", *dims)
        shape = (posterior.sizes["chain"], posterior.sizes["draw"])
        values = values.reshape(shape + values.shape[1:])
    coords = {name: posterior.coords[name] for name in dims if name in posterior.coords}
    return xarray.DataArray(values, {**coords, unit: labels}, dims, name="membership")
