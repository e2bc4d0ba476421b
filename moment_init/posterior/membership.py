r"""Membership of rows in components, from the draws of a posterior.

With parameters :math:`\theta` of one draw, the probability that a row belongs to component j is

.. math:: p(j \mid x, y, \theta)
    = \frac{\pi_j f_j(y \mid x)}{\sum_k \pi_k f_k(y \mid x)},

where :math:`\pi_j` is the weight or, with a gate, its probability given the gating covariates.
The rows of a group share their component, so their densities are multiplied, and so are those of
several responses of a row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.data.checking import require_finite_offset, require_finite_predictors
from moment_init.em.datatree import unit_coordinate
from moment_init.em.prediction import rows_for
from moment_init.families.base import Family
from moment_init.families.several import AnyFamily, Categorical
from moment_init.likelihood.gate import unit_values
from moment_init.likelihood.posterior import prior_probabilities, responsibilities
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.posterior.draws import (
    PosteriorDraws,
    RowLayout,
    class_names,
    doubles_of_draw,
    family_of,
    posterior_of,
    prepare_rows,
    read_draws,
    stored_rows,
)

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]


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
    family: str | Family | Sequence[str | Family] | None = None,
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
    y : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Response. With `gating` but no `y` the result is the gate's probability, before the response
        is observed; without a gate this would be ``weight`` for all rows, and raises an error.
        Several responses have the shape (n_obs, n_responses). Classes are given by their labels.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Gating covariates, for draws with a gate; matched with ``gate_feature``.
    offset, n_trials : array-like, shape (n_obs,) or (n_obs, n_responses), optional
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
        Return the mean over chains and draws, without storing the probabilities of each draw.

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
    `moment_init.align_components`. Draws are evaluated one by one, in the log domain. The array of
    all draws takes 8 bytes per draw, row and component: 480 MB for 4000 draws, 5000 rows and three
    components.

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
    has_response = y is not None or gating is None
    resolved = family_of(tree, family, link) if has_response else None
    classes = class_names(tree) if isinstance(resolved, Categorical) else None
    parameters, layout = read_draws(posterior, resolved, classes)
    labels = None
    if X is None and y is None and has_response:
        _require_nothing(data)
        X, y, data, labels = stored_rows(tree)
        y = y if classes is None else classes[y.astype(np.intp)]  # the tree holds codes
    if resolved is None:
        rows, order = _rows_before_response(layout, X, data)
    else:
        _require_both(X, y, has_gate=layout.gate_centre is not None)
        rows, order = rows_for(layout.as_fit(), X, y, **data)
    _require_finite(rows, parameters)
    values = _evaluate(resolved, rows, parameters, is_averaged=average)
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


def _require_finite(rows: LikelihoodRows, draws: PosteriorDraws) -> None:
    """Raise if predictors or logits of the rows would overflow under a draw."""
    require_finite_offset(rows.offset)
    inputs, slopes = read_block(rows.Z, slice(None)), np.moveaxis(draws.coefficients, -2, 0)
    if len(slopes):
        require_finite_predictors(inputs, slopes, "X")
    if draws.gate is not None and rows.gate is not None:
        require_finite_predictors(rows.gate, np.moveaxis(draws.gate, 1, 0), "gating")


# --- probabilities -------------------------------------------------------------------------------


def _evaluate(
    family: AnyFamily | None, rows: LikelihoodRows, draws: PosteriorDraws, *, is_averaged: bool
) -> FloatArray:
    """Compute the probabilities, (n_draws, n_units, n_components), or their means over draws."""
    shape = (rows.n_units, draws.weights.shape[1])
    result = np.empty((0 if is_averaged else draws.n_draws, *shape))
    rows, centre = prepare_rows(rows, family)
    design = np.hstack([np.ones((rows.n_units, 1)), unit_values(rows)[0]])
    first = slice(None) if rows.group_starts is None else rows.group_starts

    def evaluate(part: slice) -> tuple[FloatArray, ...]:
        total = np.zeros(shape)
        with np.errstate(over="ignore", divide="ignore"):  # extreme draws, and weights of zero
            for draw in range(part.start, part.stop):
                parameters = draws.at(draw, centre)
                if family is None:
                    shares = prior_probabilities(parameters, design).T
                else:
                    shares = responsibilities(family, rows, parameters)[first]
                if is_averaged:
                    total += shares
                else:
                    result[draw] = shares
        return (total,) if is_averaged else ()

    sums = sum_over_blocks(evaluate, draws.n_draws, doubles_of_draw(rows, draws))
    return sums[0] / draws.n_draws if is_averaged else result


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
