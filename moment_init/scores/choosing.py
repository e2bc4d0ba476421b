r"""Choose a density of the input and pose the estimation problem under it.

Stein's identities on held-out rows tell whether the input can be Gaussian. If it cannot, moments
are formed under a mixture of Gaussians, piece by piece: :math:`E[\gamma_k T S_m^{(k)}]`, with
control variates of each piece. A slightly wrong density adds only polynomials to such moments,
control variates remove these, and no score has heavy tails. Where the true density is skewed, has
heavy tails or ends abruptly, these moments are therefore closer to the directions than moments
under the true density (`benchmarks/input_models`).

`choose_input_model` chooses between the two densities. `pose_problem` standardises the response and
fixes the coordinates. `resolve_input` goes from validated rows to an `EstimationProblem`, with a
density that the caller gave, named or left to be chosen.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError, as_known_table, is_dask
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import RegressionData, validate_features
from moment_init.data.discrete_columns import (
    ContinuousBlock,
    describe_discrete_columns,
    name_discrete,
    sampled_inputs,
    split_continuous,
)
from moment_init.data.standardising import (
    Coordinates,
    InputRows,
    ResponseUnits,
    response_units,
    with_response,
)
from moment_init.scores.base import InputModel
from moment_init.scores.gaussian import Gaussian
from moment_init.scores.gaussian_mixture import GaussianMixture
from moment_init.scores.stein import SteinCheck, SteinStatus, stein_check

SAMPLED_ROWS = 5_000
"""Number of rows to fit candidates to, and number to judge them on: a deviation of less than four
standard errors in that many rows biases a moment by about a twentieth of its terms at most."""

FEWEST_ROWS_PER_FEATURE = 50
"""With fewer rows, third moments are noise under any density, so the Gaussian is kept."""

LARGEST_GAUSSIAN_SCORE = 1.5
"""Largest mean square of S_3 of Gaussian rows, relative to its expectation 3!. S_3^2 has a standard
deviation of ten times its mean, so its mean over 5,000 rows has a relative error of about 1/7."""


@dataclass(frozen=True, slots=True, eq=False)
class InputJudgement:
    """A candidate for the density of the input, and its Stein check.

    Parameters
    ----------
    name : str
        Name of the candidate.
    model : InputModel
        The fitted density.
    check : SteinCheck
        Stein's identities on held-out rows.
    """

    name: str
    model: InputModel
    check: SteinCheck


@dataclass(frozen=True, slots=True, eq=False)
class InputChoice:
    """The chosen density of the input, and the reason for the choice.

    Parameters
    ----------
    model : InputModel
        The density.
    judgements : tuple of InputJudgement
        All candidates, best first.
    explanation : str
        The reason in words.
    """

    model: InputModel
    judgements: tuple[InputJudgement, ...]
    explanation: str

    @property
    def chosen(self) -> InputJudgement:
        """The candidate that was chosen."""
        return self.judgements[0]


def choose_input_model(
    data: Any,
    names: tuple[str, ...],
    frame: Gaussian,
    rng: np.random.Generator,
) -> InputChoice:
    """Choose between a Gaussian and a mixture of Gaussians as the density of the input."""
    # data: any rows that have `X`
    n_obs, n_features = data.n_obs, data.n_features
    if n_obs < FEWEST_ROWS_PER_FEATURE * n_features:
        reason = f"{n_obs} rows with {n_features} features are too few to distinguish densities."
        return keep_gaussian(data, names, frame, rng, reason=reason)
    rows = np.asarray(data.resample(2 * SAMPLED_ROWS, rng).X, dtype=np.float64)
    unit_weights, order = np.ones(len(rows)), rng.permutation(len(rows))
    fitted, held_out = order[: len(order) // 2], rows[order[len(order) // 2 :]]
    sampled = Gaussian().fit_rows(rows[fitted], unit_weights[fitted], names)
    gaussian = _judge("gaussian", sampled, held_out, names, rng)
    # Heavy tails inflate the standard errors, so the identities hold; the size of S_3 shows them.
    is_light = gaussian.check.score_sizes[2] < LARGEST_GAUSSIAN_SCORE
    if gaussian.check.status is SteinStatus.PASSED and is_light:
        explanation = "gaussian: all of Stein's identities hold on held-out rows."
        return InputChoice(frame, (gaussian,), explanation)
    try:
        model = GaussianMixture(random_seed=rng).fit_rows(rows[fitted], unit_weights[fitted], names)
    except (ValueError, np.linalg.LinAlgError):  # a part collapsed onto a few equal rows
        return InputChoice(frame, (gaussian,), _explain(gaussian, None))
    if len(model.pieces) == 1:
        return InputChoice(frame, (gaussian,), _explain(gaussian, None))
    mixture = _judge("gaussian_mixture", model, held_out, names, rng)
    return InputChoice(model, (mixture, gaussian), _explain(gaussian, mixture))


def drawn_inputs(data: Any, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """Draw the rows that `choose_input_model` will draw with this generator."""
    return [data.resample_index(2 * SAMPLED_ROWS, deepcopy(rng))]


def keep_gaussian(
    data: Any,
    names: tuple[str, ...],
    frame: Gaussian,
    rng: np.random.Generator,
    *,
    reason: str,
) -> InputChoice:
    """Keep the Gaussian whatever Stein's identities say, and report them."""
    rows = np.asarray(data.resample(2 * SAMPLED_ROWS, rng).X, dtype=np.float64)
    return InputChoice(frame, (_judge("gaussian", frame, rows, names, rng),), f"gaussian: {reason}")


def _judge(
    name: str,
    model: InputModel,
    held_out: FloatArray,
    names: tuple[str, ...],
    rng: np.random.Generator,
) -> InputJudgement:
    return InputJudgement(name, model, stein_check(model, held_out, names=names, random_seed=rng))


def _explain(gaussian: InputJudgement, mixture: InputJudgement | None) -> str:
    """Explain the choice in one or two sentences."""
    if gaussian.check.status is SteinStatus.PASSED:
        size = gaussian.check.score_sizes[2]
        reason = f"tails are heavy (the mean square of S_3 is {size:.1f} times a Gaussian's)"
    else:
        reason = gaussian.check.message.rstrip(".")
    if mixture is None:
        return f"gaussian: no mixture of Gaussians fits better, though {reason}."
    n_pieces = len(mixture.model.pieces)
    return (
        f"gaussian_mixture: moments within {n_pieces} Gaussians, because under one {reason}. "
        f"Under the mixture: {mixture.check.message}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class EstimationProblem:
    """Rows, densities of their input and coordinates: what every estimator starts from."""

    data: RegressionData  # validated rows
    # fitted density of the input, whose mean and covariance set the coordinates
    input_model: InputModel
    coordinates: Coordinates  # maps between standardised coordinates and the user's units
    # densities whose scores the moments use, the preferred one first; if empty, `input_model`
    densities: tuple[InputModel, ...] = ()
    choice: InputChoice | None = None  # how the densities were chosen, if they were
    # problem of the continuous columns, which the moments use if other columns are discrete
    block: "BlockProblem | None" = None
    units: ResponseUnits = ((0.0, 1.0),)  # of the response of each linear predictor

    @property
    def response(self) -> FloatArray:
        """Response after removing offset and trials, standardised for the identity link."""
        return np.asarray(self.data.response)

    @property
    def source(self) -> "EstimationProblem":
        """The problem that moments are computed from."""
        return self if self.block is None else self.block.problem

    def thin(self, stride: int) -> "EstimationProblem":
        """Keep every `stride`-th row, without a copy; input model and coordinates stay the same."""
        return replace(self, data=self.data.thin(stride))


@dataclass(frozen=True, slots=True, eq=False)
class BlockProblem:
    """The problem of the continuous columns, if other columns are discrete."""

    problem: EstimationProblem  # problem of the continuous columns alone
    block: ContinuousBlock  # maps back to all columns
    # for each column of `X`, why it has no density, in words; empty if it has one
    kinds: tuple[str, ...]

    def discrete_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the discrete columns."""
        pairs = zip(names, self.block.is_discrete, strict=True)
        return tuple(name for name, is_discrete in pairs if is_discrete)


@single_threaded_blas()  # threaded sums over rows differ in the last bits
def pose_problem(
    data: RegressionData,
    input_model: InputModel,
    *,
    choice: InputChoice | None = None,
    densities: tuple[InputModel, ...] = (),
    block: BlockProblem | None = None,
) -> EstimationProblem:
    """Standardise the response and fix the coordinates."""
    units = response_units(data)
    coordinates = Coordinates(input_model.mean_, input_model.standardising_basis, *units[0])
    posed = data.map(with_response, units)
    return EstimationProblem(posed, input_model, coordinates, densities, choice, block, units)


InputModelName = Literal["auto", "gaussian"]


def resolve_input(
    data: RegressionData,
    input_model: InputModelName | InputModel,
    unlabelled: Any,
    rng: np.random.Generator,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """Pose the estimation problem of validated rows with a density of their input."""
    # unlabelled: (n_rows, n_features)
    extra_rows = _validate_unlabelled(unlabelled, data)
    if isinstance(input_model, InputModel):
        return _pose_given(data, input_model, extra_rows, is_stacked=is_stacked)
    if input_model == "gaussian":
        return pose_problem(data, _fit(Gaussian(), data, extra_rows))
    if input_model != "auto":
        raise ValueError(
            "`input_model` must be 'auto', 'gaussian' or an input model of moment_init.scores; "
            f"got {input_model!r}."
        )
    kinds = describe_discrete_columns(sampled_inputs(data))
    is_discrete = np.array([bool(kind) for kind in kinds])
    if is_discrete.all():
        raise IdentifiabilityError(
            "`X` must have a continuous column for moments, which need a density; got "
            f"{data.n_features} discrete ones. Use `fit_em`, whose other starts need none, or "
            "input_model='gaussian' to treat them as continuous."
        )
    if not is_discrete.any():
        return _pose_chosen(data, extra_rows, rng, is_stacked=is_stacked)
    if not is_stacked:
        return _pose_continuous(data, extra_rows, kinds, rng)
    block = split_continuous(data, is_discrete)
    inner = None if extra_rows is None else block.residuals(extra_rows)
    problem = _pose_chosen(block.data, inner, rng, is_stacked=True)
    return pose_problem(
        data,
        _fit(Gaussian(), data, extra_rows),
        choice=problem.choice,
        block=BlockProblem(problem, block, kinds),
    )


def apply_features(phi: Callable[[Any], Any], X: Any, name: str) -> Any:
    """Apply the known features `phi` to rows."""
    # X: (n_obs, n_inputs) -> (n_obs, n_features)
    if not callable(phi):
        raise TypeError(f"`phi` must be a function of rows; got {type(phi).__name__}.")
    if is_dask(X):
        raise TypeError(
            f"`phi` must be None for a Dask input; got a function. Apply it to the blocks of "
            f"`{name}` first: `X.map_blocks(phi)`, or `X.map_partitions(phi)`."
        )
    X = as_known_table(X)
    rows = X if hasattr(X, "columns") else np.asarray(X)
    features = phi(rows)
    if np.ndim(features) != 2 or np.shape(features)[0] != np.shape(rows)[0]:
        raise ValueError(
            f"`phi` must return a table with one row for each row of `{name}` "
            f"({np.shape(rows)[0]}); got shape {np.shape(features)}."
        )
    return features


def _validate_unlabelled(unlabelled: Any, data: RegressionData) -> FloatArray | None:
    if unlabelled is None:
        return None
    features, names = validate_features(as_known_table(unlabelled), name="X_unlabelled")
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


def _fit[M: InputModel](model: M, data: RegressionData, extra_rows: FloatArray | None) -> M:
    """Fit a density to the rows, and to rows without a response if there are any."""
    rows = _all_inputs(data, extra_rows)
    if isinstance(model, Gaussian):
        return model.fit_data(rows, data.feature_names)
    rows = rows.whole("`input_model` must be fitted, or 'auto' or 'gaussian',")
    return model.fit_rows(rows.X, rows.sample_weight, data.feature_names)


def _all_inputs(data: RegressionData, extra_rows: FloatArray | None) -> Any:
    """Inputs of all rows, with those that have no response."""
    if extra_rows is None:
        return data
    rows = np.concatenate([np.asarray(data.X, dtype=np.float64), extra_rows])
    return InputRows(rows, np.concatenate([data.sample_weight, np.ones(len(extra_rows))]))


def _pose_given(
    data: RegressionData,
    model: InputModel,
    extra_rows: FloatArray | None,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """Pose the problem under the caller's density, fitted first if necessary."""
    if model.is_fitted:
        model.require_n_features(data.n_features)
    else:
        model = _fit(copy(model), data, extra_rows)  # leaves the caller's object unchanged
    if not is_stacked or isinstance(model, Gaussian):
        return pose_problem(data, model)
    return pose_problem(data, _fit(Gaussian(), data, extra_rows), densities=(model,))


def _pose_continuous(
    data: RegressionData,
    extra_rows: FloatArray | None,
    kinds: tuple[str, ...],
    rng: np.random.Generator,
) -> EstimationProblem:
    """Pose the problem with discrete columns treated as Gaussian, as the third moment requires.

    A mixture of Gaussians would have parts of zero width at their values.
    """
    frame = _fit(Gaussian(), data, extra_rows)
    reason = (
        f"the third moment treats all columns as continuous, including "
        f"{name_discrete(data.feature_names, kinds)}."
    )
    rows = _all_inputs(data, extra_rows)
    choice = keep_gaussian(rows, data.feature_names, frame, rng, reason=reason)
    return pose_problem(data, frame, choice=choice)


def _pose_chosen(
    data: RegressionData,
    extra_rows: FloatArray | None,
    rng: np.random.Generator,
    *,
    is_stacked: bool,
) -> EstimationProblem:
    """Pose the problem under a chosen density; the Gaussian stays a candidate."""
    frame = _fit(Gaussian(), data, extra_rows)
    rows = _all_inputs(data, extra_rows)
    choice = choose_input_model(rows, data.feature_names, frame, rng)
    if extra_rows is not None:
        shared = f"The density was also fitted to {len(extra_rows)} rows without a response."
        choice = replace(choice, explanation=f"{choice.explanation} {shared}")
    if choice.model is frame:
        return pose_problem(data, frame, choice=choice)
    if not is_stacked:
        return pose_problem(data, choice.model, choice=choice)
    return pose_problem(data, frame, choice=choice, densities=(choice.model, frame))
