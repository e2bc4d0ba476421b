"""From checked rows to a problem with densities of its input: given, by name, or chosen."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.column_kinds import describe_discrete_columns, name_discrete
from moment_init.continuous_block import split_continuous
from moment_init.data import RegressionData, validate_features
from moment_init.exceptions import IdentifiabilityError
from moment_init.input_choice import choose_input_model, keep_gaussian
from moment_init.problem import BlockProblem, EstimationProblem, pose_problem
from moment_init.scores import Gaussian, InputModel

__all__ = ["InputModelName", "apply_features", "resolve_input"]

FloatArray = NDArray[np.float64]
InputModelName = Literal["auto", "gaussian"]


def resolve_input(
    data: RegressionData,
    input_model: InputModelName | InputModel,
    unlabelled: Any,
    rng: np.random.Generator,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """Pose the problem of rows with the density of their input.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    input_model : {"auto", "gaussian"} or InputModel
        The density; "auto" chooses one, and sets discrete columns apart.
    unlabelled : array-like or DataFrame, shape (n_rows, n_features), or None
        Rows without a response, to which the density is fitted too.
    rng : numpy.random.Generator
        Source of samples of rows.
    is_stacked : bool
        Whether moments are stacked ones, which can use several densities and a block of columns.

    Returns
    -------
    EstimationProblem
        The problem.

    Raises
    ------
    IdentifiabilityError
        If all columns are discrete and the density is to be chosen.
    ValueError
        For an unknown name, or rows with other columns.
    """
    others = _validate_unlabelled(unlabelled, data)
    if isinstance(input_model, InputModel):
        return _pose_given(data, input_model, others, is_stacked=is_stacked)
    if input_model == "gaussian":
        return pose_problem(data, _fit(Gaussian(), data, others))
    if input_model != "auto":
        raise ValueError(
            "`input_model` must be 'auto', 'gaussian' or an input model of moment_init.scores; "
            f"got {input_model!r}."
        )
    kinds = describe_discrete_columns(data.X)
    is_discrete = np.array([bool(kind) for kind in kinds])
    if is_discrete.all():
        raise IdentifiabilityError(
            "`X` must have a continuous column for moments, which need a density; got "
            f"{data.n_features} discrete ones. Use `fit_em`, whose other starts need none, or "
            "input_model='gaussian' to treat them as continuous."
        )
    if not is_discrete.any():
        return _pose_chosen(data, others, rng, is_stacked=is_stacked)
    if not is_stacked:
        return _pose_continuous(data, others, kinds, rng)
    block = split_continuous(data, is_discrete)
    inner = None if others is None else block.residuals(others)
    problem = _pose_chosen(block.data, inner, rng, is_stacked=True)
    return pose_problem(
        data,
        _fit(Gaussian(), data, others),
        choice=problem.choice,
        block=BlockProblem(problem, block, kinds),
    )


def apply_features(phi: Callable[[Any], Any], X: Any, name: str) -> Any:
    """Apply known features to rows.

    Parameters
    ----------
    phi : callable
        Maps rows to features.
    X : array-like or DataFrame, shape (n_obs, n_inputs)
        The rows.
    name : str
        What the rows are called in messages.

    Returns
    -------
    array-like or DataFrame, shape (n_obs, n_features)
        What `phi` returned.

    Raises
    ------
    TypeError
        If `phi` cannot be called.
    ValueError
        If it returns another number of rows.
    """
    if not callable(phi):
        raise TypeError(f"`phi` must be a function of rows; got {type(phi).__name__}.")
    rows = X if hasattr(X, "columns") else np.asarray(X)
    features = phi(rows)
    if np.ndim(features) != 2 or np.shape(features)[0] != np.shape(rows)[0]:
        raise ValueError(
            f"`phi` must return a table with a row for each row of `{name}` "
            f"({np.shape(rows)[0]}); got shape {np.shape(features)}."
        )
    return features


def _validate_unlabelled(unlabelled: Any, data: RegressionData) -> FloatArray | None:
    if unlabelled is None:
        return None
    features, names = validate_features(unlabelled, name="X_unlabelled")
    if features.shape[1] != data.n_features:
        raise ValueError(
            f"`X_unlabelled` must have the columns of `X` ({data.n_features}); got "
            f"{features.shape[1]}."
        )
    if hasattr(unlabelled, "columns") and names != data.feature_names:
        raise ValueError(
            f"`X_unlabelled` must have the columns of `X`, {', '.join(data.feature_names)}; got "
            f"{', '.join(names)}."
        )
    return np.asarray(features, dtype=np.float64)


def _fit[M: InputModel](model: M, data: RegressionData, others: FloatArray | None) -> M:
    """Fit a density to the rows and to those without a response."""
    if others is None:
        return model.fit_rows(data.X, data.sample_weight, data.feature_names)
    rows, weights = _all_inputs(data, others)
    return model.fit_rows(rows, weights, data.feature_names)


def _all_inputs(
    data: RegressionData, others: FloatArray | None
) -> tuple[NDArray[np.generic], FloatArray]:
    if others is None:
        return data.X, data.sample_weight
    rows = np.concatenate([np.asarray(data.X, dtype=np.float64), others])
    return rows, np.concatenate([data.sample_weight, np.ones(len(others))])


def _pose_given(
    data: RegressionData,
    model: InputModel,
    others: FloatArray | None,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """The problem under a density that the caller gave, fitted first if it is not."""
    if model.is_fitted:
        model.require_n_features(data.n_features)
    else:
        model = _fit(copy(model), data, others)  # the caller's object stays as it is
    if not is_stacked or isinstance(model, Gaussian):
        return pose_problem(data, model)
    return pose_problem(data, _fit(Gaussian(), data, others), densities=(model,))


def _pose_continuous(
    data: RegressionData,
    others: FloatArray | None,
    kinds: tuple[str, ...],
    rng: np.random.Generator,
) -> EstimationProblem:
    """The problem with discrete columns taken for Gaussian ones, as the third moment must.

    A mixture of Gaussians would have parts without width at their values.
    """
    frame = _fit(Gaussian(), data, others)
    rows, weights = _all_inputs(data, others)
    reason = (
        f"the third moment takes all columns for continuous, among them "
        f"{name_discrete(data.feature_names, kinds)}."
    )
    choice = keep_gaussian(rows, weights, data.feature_names, frame, rng, reason=reason)
    return pose_problem(data, frame, choice=choice)


def _pose_chosen(
    data: RegressionData,
    others: FloatArray | None,
    rng: np.random.Generator,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """The problem under a chosen density; the Gaussian stays in the race."""
    frame = _fit(Gaussian(), data, others)
    rows, weights = _all_inputs(data, others)
    choice = choose_input_model(rows, weights, data.feature_names, frame, rng)
    if others is not None:
        shared = f"{len(others)} rows without a response served the density too."
        choice = replace(choice, explanation=f"{choice.explanation} {shared}")
    if choice.model is frame:
        return pose_problem(data, frame, choice=choice)
    if not is_stacked:
        return pose_problem(data, choice.model, choice=choice)
    return pose_problem(data, frame, choice=choice, densities=(choice.model, frame))
