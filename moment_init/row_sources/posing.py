"""The estimation problem of rows that are elsewhere: passes where arrays in memory are one product.

It is `moment_init.scores.choosing` for such rows: the same densities, chosen on the same sample of
rows.
"""

from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError, is_dask
from moment_init.data.blocks import resample_rows, sum_over_blocks
from moment_init.data.checking import RegressionData
from moment_init.data.discrete_columns import ContinuousBlock, describe_discrete_columns
from moment_init.data.standardising import ROUGH_ROWS, Coordinates
from moment_init.families.base import Family
from moment_init.likelihood.many_rows import APPROACHES
from moment_init.moments.stacked import MOMENT_ROWS, SEARCH_ROWS
from moment_init.row_sources.columns import (
    MOST_HELD,
    RowColumn,
    gather_columns,
    hold_rows,
    map_columns,
)
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import (
    SAMPLED_ROWS,
    BlockProblem,
    EstimationProblem,
    InputChoice,
    choose_input_model,
)
from moment_init.scores.gaussian import Gaussian

BoolArray = NDArray[np.bool_]

CENTRE_ROWS = 1000
"""Rows at the head from which a rough centre is taken, as for arrays in memory."""


def require_features_in_memory(*tables: Any) -> None:
    """Raise for a Dask collection to which known features would be applied."""
    if is_dask(*tables):
        raise TypeError(
            "`phi` must be None for a Dask input; got a function. Apply it to the blocks first: "
            "`X.map_blocks(phi)`, or `X.map_partitions(phi)`."
        )


def require_supported(
    data: RegressionData,
    *,
    method: str,
    polish: bool,
    unlabelled: Any,
    known: Any,
) -> None:
    """Raise for what needs all rows in memory."""
    about = f"for a Dask input of {data.n_obs} rows, which are not read whole"
    if method != "stacked":
        raise ValueError(
            f"`method` must be 'stacked' {about}; got {method!r}. Use it, or pass a sample as "
            "arrays."
        )
    if unlabelled is not None:
        raise ValueError(
            f"`X_unlabelled` must be None {about}. Fit an input model to those rows, and pass it "
            "as `input_model`."
        )
    if known is not None:
        raise ValueError(
            f"`known_scales` and `known_biases` must be None {about}. Leave them out, or pass a "
            "sample as arrays."
        )
    if not polish and (data.offset is not None or data.n_trials is not None):
        raise ValueError(
            f"`polish` must be True with `offset` or `n_trials` {about}; got False. Leave it out."
        )


def resolve_dask_input(
    data: RegressionData,
    input_model: str | InputModel,
    rng: np.random.Generator,
    *,
    polish: bool,
) -> EstimationProblem:
    """Pose the problem of rows that are elsewhere, with the density of their input."""
    _hold_samples(data, rng, has_choice=input_model == "auto", polish=polish)
    if isinstance(input_model, InputModel):
        problem = _pose_given(data, input_model)
    elif input_model == "gaussian":
        problem = pose_dask(data, _gaussian(data))
    elif input_model != "auto":
        raise ValueError(
            "`input_model` must be 'auto', 'gaussian' or an input model of moment_init.scores; "
            f"got {input_model!r}."
        )
    else:
        problem = _pose_auto(data, rng)
    _require_held(problem.source, polish=polish)
    return problem


def _hold_samples(
    data: RegressionData, rng: np.random.Generator, *, has_choice: bool, polish: bool
) -> None:
    """Read the samples of rows that are known beforehand, in one pass instead of one each."""
    column: Any = data.X
    source, n_obs = column.source, data.n_obs
    steps = {max(1, n_obs // ROUGH_ROWS), max(1, n_obs // MOMENT_ROWS)}
    if polish:
        steps |= {max(1, n_obs // (2 * MOMENT_ROWS)), *(stride for stride, _ in APPROACHES)}
    held = {step for step in steps if step > 1 and n_obs // step * source.width <= MOST_HELD}
    # What is a part of another sample needs no copy of its own.
    alone = [step for step in held if not any(step % other == 0 for other in held - {step})]
    samples = [np.arange(0, n_obs, step) for step in sorted(alone)]
    if has_choice:  # drawn from a copy: the choice draws them again
        drawn = resample_rows(_weights_in_memory(data), 2 * SAMPLED_ROWS, deepcopy(rng))
        samples.append(np.unique(drawn))
    hold_rows((data.X, data.y, data.offset, data.n_trials, data.sample_weight), samples)


def _require_held(problem: EstimationProblem, *, polish: bool) -> None:
    """Moments under a density other than the Gaussian need rows that are held in memory."""
    if all(isinstance(each, Gaussian) for each in problem.densities):
        return
    data = problem.data
    stride = max(1, data.n_obs // SEARCH_ROWS) if polish else 1
    n_columns = data.n_features + 4  # beside the inputs response, weights, offset and trials
    if data.n_obs // stride * n_columns > MOST_HELD:
        raise ValueError(
            f"`input_model` must be 'gaussian' for a Dask input of {data.n_obs} rows whose moments "
            "are not formed in memory, as is so without `polish` or for many columns; got "
            f"{type(problem.densities[0]).__name__}. Use it, or pass a sample as arrays."
        )


def pose_dask(
    data: RegressionData,
    input_model: InputModel,
    *,
    choice: InputChoice | None = None,
    densities: tuple[InputModel, ...] = (),
    block: BlockProblem | None = None,
) -> EstimationProblem:
    """Standardise the response and settle the coordinates, as `pose_problem` does in memory."""
    response, shift, scale = standardised_response(data)
    coordinates = Coordinates(input_model.mean_, input_model.standardising_basis, shift, scale)
    return EstimationProblem(data, input_model, response, coordinates, densities, choice, block)


def standardised_response(data: RegressionData) -> tuple[Any, float, float]:
    """Response without offset and trials, of mean zero and variance one for the identity link."""
    response: Any = map_columns(
        partial(_moment_response, data.single_family), data.y, data.offset, data.n_trials
    )
    if not data.family.response_power:
        return response, 0.0, 1.0
    weights = data.sample_weight
    total = weights.sum()
    shift = float(weights @ response / total)
    scale = float(np.sqrt(weights @ np.square(response - shift) / total))
    return (response - shift) / scale, shift, scale


def _moment_response(
    family: Family, y: FloatArray, offset: FloatArray | None, n_trials: FloatArray | None
) -> FloatArray:
    return family.moment_response(y, order=1, offset=offset, n_trials=n_trials)


def _gaussian(data: RegressionData) -> Gaussian:
    return Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)


def _pose_given(data: RegressionData, model: InputModel) -> EstimationProblem:
    """The problem under a density that the caller gave."""
    if model.is_fitted:
        model.require_n_features(data.n_features)
    elif isinstance(model, Gaussian):
        model = copy(model).fit_rows(data.X, data.sample_weight, data.feature_names)
    else:
        raise ValueError(
            "`input_model` must be fitted, or 'auto' or 'gaussian', for a Dask input; got "
            f"{type(model).__name__} that is not. Fit it to a sample of the rows first."
        )
    if isinstance(model, Gaussian):
        return pose_dask(data, model)
    return pose_dask(data, _gaussian(data), densities=(model,))


def _pose_auto(data: RegressionData, rng: np.random.Generator) -> EstimationProblem:
    """The problem under a chosen density, discrete columns set apart."""
    kinds = describe_discrete_columns(data.X)
    is_discrete = np.array([bool(kind) for kind in kinds])
    if is_discrete.all():
        raise IdentifiabilityError(
            "`X` must have a continuous column for moments, which need a density; got "
            f"{data.n_features} discrete ones. Use `fit_em`, whose other starts need none, or "
            "input_model='gaussian' to treat them as continuous."
        )
    if not is_discrete.any():
        return _pose_chosen(data, rng)
    block = _split_continuous(data, is_discrete)
    inner = _pose_chosen(block.data, rng)
    return pose_dask(
        data, _gaussian(data), choice=inner.choice, block=BlockProblem(inner, block, kinds)
    )


def _pose_chosen(data: RegressionData, rng: np.random.Generator) -> EstimationProblem:
    frame = _gaussian(data)
    choice = choose_input_model(data.X, _weights_in_memory(data), data.feature_names, frame, rng)
    if choice.model is frame:
        return pose_dask(data, frame, choice=choice)
    return pose_dask(data, frame, choice=choice, densities=(choice.model, frame))


def _weights_in_memory(data: RegressionData) -> FloatArray:
    """Weights from which rows are drawn: eight bytes a row if they differ, else next to nothing."""
    weights: Any = data.sample_weight
    if weights.constant is not None:
        return np.broadcast_to(np.float64(weights.constant), (data.n_obs,))
    return gather_columns([weights], np.arange(data.n_obs))[0]


def _split_continuous(data: RegressionData, is_discrete: BoolArray) -> ContinuousBlock:
    """Residuals of the continuous columns, as `split_continuous` forms them in memory."""
    X, weights = data.X, data.sample_weight
    head = np.asarray(X[np.arange(min(CENTRE_ROWS, data.n_obs))], dtype=np.float64)
    centre = np.asarray(head.mean(axis=0))  # against cancellation

    def sums(block: slice) -> tuple[FloatArray, ...]:
        x = np.asarray(X[block], dtype=np.float64) - centre
        design = np.column_stack([np.ones(len(x)), x[:, is_discrete]])
        weighted = (design * weights[block, None]).T
        return weighted @ design, weighted @ x[:, ~is_discrete]

    column: RowColumn = X  # type: ignore[assignment]
    gram, cross = sum_over_blocks(sums, data.n_obs, 2 * data.n_features, source=column.source)
    fitted = np.linalg.lstsq(gram, cross, rcond=None)[0]
    slopes = fitted[1:]
    intercept = fitted[0] + centre[~is_discrete] - centre[is_discrete] @ slopes
    residuals: Any = map_columns(
        partial(_residuals, is_discrete, intercept, slopes), X, n_columns=int((~is_discrete).sum())
    )
    names = tuple(
        name for name, other in zip(data.feature_names, is_discrete, strict=True) if not other
    )
    return ContinuousBlock(
        replace(data, X=residuals, feature_names=names), is_discrete, intercept, slopes
    )


def _residuals(
    is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray, X: NDArray[np.generic]
) -> FloatArray:
    rows = np.asarray(X, dtype=np.float64)
    return np.asarray(rows[:, ~is_discrete] - intercept - rows[:, is_discrete] @ slopes)
