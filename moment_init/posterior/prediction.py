r"""Predictions from the draws of a DataTree: means, replicated responses, effects, memberships.

With parameters :math:`\theta` of one draw, the probability that a row belongs to component j is

.. math:: p(j \mid x, y, \theta)
    = \frac{\pi_j f_j(y \mid x)}{\sum_k \pi_k f_k(y \mid x)},

where :math:`\pi_j` is the weight or, with a gate, its probability given the gating covariates.
The rows of a group share their component, so their densities are multiplied, and so are those of
several responses of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import RandomSeed, as_known_table, make_generator
from moment_init.data.checking import gating_table, index_of, match_columns
from moment_init.data.formula_encoding import is_frame
from moment_init.data.formulas import FormulaDesign, encode_missing
from moment_init.em.prediction import RowLayout, in_users_order, rows_for, unit_labels
from moment_init.families.base import Family
from moment_init.families.several import AnyFamily
from moment_init.likelihood.draws import (
    Draws,
    means,
    memberships,
    replicated_responses,
    require_finite,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.posterior.draws import TreeModel, design_of, labelled, read_model, stored_rows

if TYPE_CHECKING:
    import pandas
    import xarray

PredictedKind = Literal["mean", "response", "components"]

_STEP = 1e-5
"""Difference of a column for a derivative, in its standard deviations: the error of a central
difference, of order 1e-10, is then as small as that of rounding."""

_ROUNDING = 1e3 * float(np.finfo(np.float64).eps)
"""Smallest such difference relative to the largest value, for a column that hardly varies about a
large mean: it is then right to a thousandth."""


def predict(
    tree: "xarray.DataTree",
    X: Any = None,
    *,
    kind: PredictedKind = "mean",
    gating: Any = None,
    offset: Any = None,
    n_trials: Any = None,
    groups: Any = None,
    draws: int | None = None,
    random_seed: RandomSeed = None,
) -> "xarray.DataArray":
    r"""Predict the responses of rows under each draw of a posterior.

    Under one draw the mean response of a row is

    .. math:: \sum_j \pi_j\, g^{-1}(\langle\beta_j, x\rangle + b_j + o),

    with the weight, or the gate's probability, :math:`\pi_j` of component j, and the offset o.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, as returned by `sample`, `open_store` and `EMFit.to_datatree`.
    X : array-like or DataFrame, shape (n_obs, n_features), optional
        Inputs; the columns of a DataFrame are matched by name with the coordinate ``feature``. If
        the mixture was fitted by a formula, a DataFrame with its variables, from which the gating
        covariates, offset and trials are read too. Without `X` the rows of the tree are used.
    kind : {"mean", "response", "components"}, default "mean"
        The mean of the mixture, replicated responses, or the mean of each component.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Gating covariates, for draws with a gate; matched with ``gate_feature``.
    offset, n_trials : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Known part of the linear predictors, and binomial trials: zero and one by default.
    groups : array-like, shape (n_obs,), optional
        Group labels: replicated responses of a group come from the same component. Means do not
        depend on them.
    draws : int, optional
        Use at most this many draws of each chain, evenly spaced; all by default.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of replicated responses.

    Returns
    -------
    xarray.DataArray
        With the name of the kind and the dims (chain, draw, obs), then ``component`` for
        ``"components"``, and at the end ``response`` for several responses. Means of classes are
        the probabilities of all, with the dim ``class``; replicated ones are codes, as in
        ``observed_data``. Means of binomial responses are those of counts.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree, or for data that are not real numbers.
    ValueError
        For an unknown kind, for columns that are missing or unknown, wrong shapes, missing values,
        gating covariates where there is no gate or the reverse, and if the tree lacks a group or
        variable or has draws that are not finite.

    Notes
    -----
    The array takes 8 bytes per draw and mean: 160 MB for 4000 draws of 5000 rows. The formula of a
    tree is evaluated as Python code, so rows should be predicted only with trees from a source that
    you trust.

    Examples
    --------
    >>> from moment_init import fit_em, predict, simulate_mixture
    >>> data = simulate_mixture(1000, 2, 2, family="gaussian", random_seed=1)
    >>> fit = fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)
    >>> means = predict(fit.to_datatree(draws=50, random_seed=1), data.X[:3])
    >>> means.dims, means.shape
    (('chain', 'draw', 'obs'), (1, 50, 3))
    >>> bool(abs(means.mean(("chain", "draw")) - fit.predict(data.X[:3])).max() < 0.1)
    True
    """
    if kind not in get_args(PredictedKind):
        names = ", ".join(map(repr, get_args(PredictedKind)))
        raise ValueError(f"`kind` must be one of {names}; got {kind!r}. Choose one of them.")
    given = {"X": X, "gating": gating, "offset": offset, "n_trials": n_trials}
    if kind == "response":
        given["groups"] = groups
    task = _posed(tree, given, draws)
    if kind == "response":
        rng = make_generator(random_seed)
        values = replicated_responses(task.family, task.rows, task.draws, rng)
        dims: tuple[str, ...] = () if task.family.n_predictors == 1 else task.outcome_dims
        dims = ("obs", *(dim for dim in dims if dim == "response"))
    else:
        is_by_component = kind == "components"
        values = means(task.family, task.rows, task.draws, by_component=is_by_component)
        dims = ("obs", *(("component",) if is_by_component else ()), *task.outcome_dims)
    return task.labelled(in_users_order(values, task.order, axis=1), kind, dims)


def marginal_effects(
    tree: "xarray.DataTree",
    X: Any = None,
    variables: str | Sequence[str] | None = None,
    *,
    gating: Any = None,
    offset: Any = None,
    n_trials: Any = None,
    draws: int | None = None,
) -> "xarray.DataArray":
    r"""Compute average marginal effects: how the mean response changes with a column.

    For a column of numbers it is the derivative of the mean response, averaged over the rows,

    .. math:: \frac1n \sum_i \frac{\partial}{\partial x_{ik}} E[y_i \mid x_i, \theta],

    and for a column of two values, or of labels, the difference between the means of all rows with
    the second value, or another label, and with the first. The first label is the reference level
    of the formula.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, as in `predict`.
    X : array-like or DataFrame, shape (n_obs, n_features), optional
        Rows over which effects are averaged; those of the tree if left out. If the mixture was
        fitted by a formula, a DataFrame with its variables: an effect is then that of the variable
        in all terms and in the gate.
    variables : str or sequence of str, optional
        Columns of `X`, or of `gating`, whose effects are computed; by default all columns of `X`,
        with a formula all its variables.
    gating, offset, n_trials : array-like, optional
        As in `predict`. A column that `X` and `gating` have in common is changed in both.
    draws : int, optional
        Use at most this many draws of each chain, evenly spaced; all by default.

    Returns
    -------
    xarray.DataArray
        Effects named ``effect``, with the dims (chain, draw, feature), and at the end ``response``
        for several responses or ``class`` for the probabilities of classes. Effects of labels are
        named as in ``"sex[m]"``. `arviz.summary` and `arviz.plot_forest` take its `to_dataset()`.

    Raises
    ------
    TypeError
        If `tree` is not a DataTree, or for data that are not real numbers.
    ValueError
        For unknown variables, for a column that does not vary, and as in `predict`.

    Notes
    -----
    Derivatives are central differences over a hundredth of a thousandth of a standard deviation, so
    their relative error is about 1e-9. Each column costs two evaluations of all rows under all
    draws.

    Examples
    --------
    >>> from moment_init import fit_em, marginal_effects, simulate_mixture
    >>> data = simulate_mixture(1000, 2, 2, family="gaussian", random_seed=1)
    >>> fit = fit_em(data.X, data.y, 2, family="gaussian", random_seed=1)
    >>> effects = marginal_effects(fit.to_datatree(draws=50, random_seed=1), data.X)
    >>> effects.dims
    ('chain', 'draw', 'feature')
    >>> slopes = fit.coefficients @ fit.weights  # of a mean that is linear in the columns
    >>> bool(abs(effects.mean(("chain", "draw")) - slopes).max() < 0.1)
    True
    """
    import xarray

    given = {"X": X, "gating": gating, "offset": offset, "n_trials": n_trials}
    if X is None:
        given, _ = _stored(tree, given)
    given = {name: as_known_table(values) for name, values in given.items()}
    for name in ("X", "gating"):
        if is_frame(given[name]):
            given[name] = given[name].rename(columns=str)
    model = read_model(tree, draws=draws)
    design = design_of(tree, given["X"]) if is_frame(given["X"]) else None
    if design is None:
        given["X"] = _table(given["X"], model.layout.feature_names, "X")
        if given["gating"] is not None:
            gate = gating_table(given["gating"])
            given["gating"] = _table(gate, model.layout.gate_names, "gating")

    def mean_of(changed: dict[str, Any]) -> "xarray.DataArray":
        task = _posed(tree, given | changed, draws)
        weights = np.full(task.rows.n_obs, 1.0 / max(task.rows.n_obs, 1))
        values = means(task.family, task.rows, task.draws, row_weights=weights)
        return task.labelled(values, "effect", task.outcome_dims)

    default = model.layout.feature_names if design is None else design.variables
    names = default if variables is None else variables
    names = [names] if isinstance(names, str) else [str(name) for name in names]
    if not names:
        raise ValueError(
            "`variables` must name at least one column; got none. Leave it out for all columns."
        )
    effects: dict[str, xarray.DataArray] = {}
    for name in names:
        levels = None if design is None else _levels_of(design, name)
        tables = {argument: given[argument] for argument in ("X", "gating")}
        effects |= _effects_of(name, tables, mean_of, levels)
    result = xarray.concat(list(effects.values()), "feature", coords="minimal")
    result = result.assign_coords(feature=list(effects)).rename("effect")
    return result.transpose("chain", "draw", "feature", ...)


def _levels_of(design: FormulaDesign, name: str) -> list[Any] | None:
    """Return the labels of a column, the reference level first; None for a column of numbers."""
    if name not in design.label_columns:
        return None
    parts = [part for part in (design.features, design.gate) if part is not None]
    part, factor = next((p, f) for p in parts for f in p.levels if p.column_of(f) == name)
    levels = list(part.levels[factor])
    # with a base other than the first, as in C(x, contr.treatment('b')), it has no column
    bases = [level for level in levels if f"{factor}[T.{level}]" not in part.names]
    base = bases[0] if len(bases) == 1 else levels[0]
    return [base, *(level for level in levels if level != base)]


def _effects_of(
    name: str,
    tables: dict[str, Any],
    mean_of: Callable[[dict[str, Any]], "xarray.DataArray"],
    labels: list[Any] | None,
) -> dict[str, "xarray.DataArray"]:
    """Compute the slope of a column, or the contrasts of its values with the first."""
    tables = {k: table for k, table in tables.items() if is_frame(table) and name in table.columns}
    if not tables:
        raise ValueError(
            f"`variables` must name columns of `X` or `gating`; got {name!r}, which is in neither. "
            "Choose among their columns."
        )
    column = next(iter(tables.values()))[name]

    def at(values: Any) -> "xarray.DataArray":
        changed = {k: table.copy() for k, table in tables.items()}
        for table in changed.values():
            table[name] = values
        return mean_of(changed)

    levels = list(np.unique(np.asarray(column)))
    if len(levels) < 2:
        raise ValueError(
            f"`X` must have columns that vary for their effects; got one value of {name!r}. "
            "Leave it out with `variables`."
        )
    is_number = column.dtype.kind in "iuf" and labels is None
    if is_number and len(levels) > 2:
        values = np.asarray(column, dtype=np.float64)
        largest = float(np.abs(values).max())
        # divided by the largest, so that squares do not overflow
        step = largest * max(_STEP * float(np.std(values / largest)), _ROUNDING)
        if not np.finfo(np.float64).tiny < step:
            raise ValueError(
                f"`X` must have columns whose values are not all close to zero; got {name!r} with "
                f"values up to {largest:g}. Change its units."
            )
        return {name: (at(values + step) - at(values - step)) / (2.0 * step)}
    if labels is not None:  # the reference is first, whether a row has it or not
        levels = [labels[0], *(level for level in labels[1:] if column.isin([level]).any())]
    base, is_alone = at(levels[0]), is_number or column.dtype.kind == "b"
    return {name if is_alone else f"{name}[{level}]": at(level) - base for level in levels[1:]}


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
    given = {"offset": offset, "n_trials": n_trials, "gating": gating, "groups": groups}
    given = _encoded(tree, {"X": X, "y": y, **given, "sample_weight": sample_weight})
    has_response = given["y"] is not None or given["gating"] is None
    model = read_model(tree, draws=draws, family=family, link=link, is_gate_only=not has_response)
    labels = index_of(X, y, gating)
    if given["X"] is None and given["y"] is None and has_response:
        given, labels = _stored(tree, given)
        classes = model.layout.classes
        if classes is not None:  # the tree holds codes
            given["y"] = classes[given["y"].astype(np.intp)]
    if has_response:
        _require_both(given["X"], given["y"], has_gate=model.layout.gate_centre is not None)
        rows, order = rows_for(model.layout, **given)
    else:
        rows, order = _rows_before_response(model.layout, given)
    require_finite(rows, model.draws)
    drawn, centred = model.draws.centred(rows)
    resolved = model.layout.response_family if has_response else None
    values = memberships(resolved, centred, drawn, is_averaged=average)
    unit, names = unit_labels(rows, order, given["groups"], labels)
    return labelled(model, values, "membership", (unit, "component"), {unit: names})


def _posed(tree: Any, given: dict[str, Any], draws: int | None) -> "_Task":
    """Read the draws of a tree and check rows without a response for them."""
    model = read_model(tree, draws=draws)
    index = index_of(given["X"])
    given = _encoded(tree, given)
    if given["X"] is None:
        given, index = _stored(tree, given)
    rows, order = rows_for(model.layout, **given)
    require_finite(rows, model.draws)
    drawn, centred = model.draws.centred(rows)
    labels: dict[str, Any] = {"obs": np.arange(rows.n_obs) if index is None else index}
    labels["response"], labels["class"] = list(model.layout.response_names), model.layout.classes
    return _Task(model, drawn, centred, order, labels)


def _table(values: Any, names: tuple[str, ...], argument: str) -> "pandas.DataFrame":
    """Return a table with names of its columns."""
    from pandas import DataFrame

    if is_frame(values):
        return DataFrame(values)
    return DataFrame(match_columns(values, names, argument), columns=list(names))


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """Rows without a response under the draws of a tree."""

    model: TreeModel
    draws: Draws  # for the centred gating covariates of the rows
    rows: LikelihoodRows
    order: NDArray[np.intp] | None  # of the user's rows
    labels: dict[str, Any]  # of rows and of outcomes

    @property
    def outcome_dims(self) -> tuple[str, ...]:
        """The dim of several means."""
        if self.model.layout.classes is not None:
            return ("class",)
        return ("response",) if self.model.layout.response_names else ()

    @property
    def family(self) -> AnyFamily:
        """Family of the responses."""
        return self.model.layout.response_family

    def labelled(
        self, values: NDArray[Any], name: str, dims: tuple[str, ...]
    ) -> "xarray.DataArray":
        """Label values of all draws."""
        return labelled(self.model, values, name, dims, self.labels)


def _encoded(tree: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Encode a DataFrame with the variables of the tree's formula, and read what was not given."""
    given = {name: as_known_table(values) for name, values in given.items()}
    X, design = given["X"], None
    if is_frame(X):
        design = design_of(tree, X)
    if design is None:
        return given
    has_response = set(design.response.variables) <= set(X.columns)
    if given.get("y", X) is None and design.gate is not None and not has_response:
        # the probabilities of the gate, before the response is observed
        gating = design.encode_argument("gating", X)
        return given | {"X": design.encode_features(X), "gating": gating}
    encode_missing(given, design)
    return given


def _stored(tree: Any, given: dict[str, Any]) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """Read the rows of the tree, and their labels."""
    others = [name for name, values in given.items() if values is not None]
    if others:
        rows = "`X` and `y`" if "y" in given else "`X`"
        raise ValueError(
            f"{rows} must be given with other data of the rows; got only {', '.join(others)}. Pass "
            f"{rows}, or none of these for the rows of the tree."
        )
    found = stored_rows(tree, has_response="y" in given)
    labels = found.pop("index")
    return {name: found[name] for name in given}, labels


# --- rows ----------------------------------------------------------------------------------------


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
    layout: RowLayout, given: dict[str, Any]
) -> tuple[LikelihoodRows, NDArray[np.intp] | None]:
    """Make rows for the gate alone; `X` is optional, but checked."""
    response_names = ("offset", "n_trials", "sample_weight")
    names = [name for name in response_names if given[name] is not None]
    if names:
        raise ValueError(
            f"`{names[0]}` must be None without `y`, as it belongs to the response; got values. "
            "Pass the response, or leave it out."
        )
    if given["X"] is None:
        n_obs = len(np.atleast_1d(np.asarray(given["gating"])))
        given = given | {"X": np.zeros((n_obs, len(layout.feature_names)))}
    return rows_for(layout, **given)
