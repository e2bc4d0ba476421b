r"""Choose a density of the input and pose the estimation problem under it.

Stein's identities on held-out rows tell whether the input can be Gaussian. If it cannot, moments
are formed under a mixture of Gaussians, piece by piece: :math:`E[\gamma_k T S_m^{(k)}]`, with
control variates of each piece. A slightly wrong density adds only polynomials to such moments,
control variates remove these, and no score has heavy tails. Where the true density is skewed, has
heavy tails or ends abruptly, these moments are therefore closer to the directions than moments
under the true density (`benchmarks/input_models`).

A discrete column has values that recur, so it has no density and no score. But with x = (c, q), c
continuous and q discrete, Theorem 9 of the paper holds given q: the components of
:math:`E[T(y)\, S_m(c \mid q)]` are the parts of the directions that belong to c. The mean of c is
assumed to be linear in q, :math:`c = a + M'q + e`, and the scores are those of e. A mixture in e is
also one in x,

.. math:: \langle \beta, e \rangle = \langle \beta, c \rangle - \langle M \beta, q \rangle
    - \langle \beta, a \rangle,

and the likelihood of all columns starts from it.

`describe_discrete_columns` finds these columns, `split_continuous` sets them apart.
`choose_input_model` chooses between the two densities. `pose_problem` standardises the response and
fixes the coordinates. `resolve_input` goes from validated rows to an `EstimationProblem`, with a
density that the caller gave, named or left to be chosen.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, IdentifiabilityError, as_known_table, is_dask
from moment_init.data.blocks import read_block, single_threaded_blas
from moment_init.data.checking import RegressionData, validate_features
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

BoolArray = NDArray[np.bool_]

MIN_DISTINCT_VALUES = 10
"""A column with at most this many distinct values is discrete."""

COUNTED_ROWS = 1000
"""Number of rows on which distinct values are counted."""

CENTRE_ROWS = 1000
"""Rows at the head from which a rough centre is taken."""


def sampled_inputs(data: RegressionData) -> NDArray[np.generic]:
    """Take about a thousand evenly spaced rows, in which discrete columns are looked for."""
    return data.thin(data.n_obs // COUNTED_ROWS).X


def find_discrete_columns(X: NDArray[np.generic]) -> BoolArray:
    """Find the columns with few distinct values: binary, one-hot, or whole numbers."""
    # X: (n_obs, n_features) -> (n_features,)
    sample = np.asarray(X[:: max(1, len(X) // COUNTED_ROWS)])
    limit = min(MIN_DISTINCT_VALUES, len(sample) // 2)
    return np.array([len(np.unique(column)) <= limit for column in sample.T])


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousBlock:
    """The continuous columns after regression on the discrete ones."""

    data: RegressionData  # the rows, with the residuals e of the continuous columns as inputs
    is_discrete: BoolArray  # which of all columns are discrete; (n_features,)
    intercept: FloatArray  # a of the regression; (n_continuous,)
    slopes: FloatArray  # M of the regression; (n_discrete, n_continuous)

    def residuals(self, X: FloatArray) -> FloatArray:
        """Compute the residuals of the continuous columns for other rows."""
        # X: (n_rows, n_features) -> (n_rows, n_continuous)
        return _residuals(X, self.is_discrete, self.intercept, self.slopes)

    def lift(
        self, coefficients: FloatArray, biases: FloatArray, block: Coordinates, full: Coordinates
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases of the block to those of all columns."""
        # coefficients: (n_continuous, n_components) -> (n_features, n_components)
        slopes, biases = block.coefficients_to_user(coefficients, biases)
        shifted = biases - self.intercept @ slopes
        return full.coefficients_to_standardised(self._place(slopes), shifted)

    def linear_map(self, block: Coordinates, full: Coordinates) -> FloatArray:
        """Compute the matrix by which `lift` maps coefficients."""
        # -> (n_features, n_continuous)
        n_continuous = len(self.intercept)
        in_units, _ = block.coefficients_to_user(np.eye(n_continuous), np.zeros(n_continuous))
        lifted, _ = full.coefficients_to_standardised(self._place(in_units), np.zeros(n_continuous))
        return lifted

    def span(self, subspace: FloatArray, block: Coordinates, full: Coordinates) -> FloatArray:
        """Compute a basis of the lifted subspace together with all discrete columns."""
        # subspace: (n_continuous, k) -> (n_features, k + n_discrete)
        axes = full.factor.T[:, self.is_discrete]
        columns = np.concatenate([self.linear_map(block, full) @ subspace, axes], axis=1)
        return np.asarray(np.linalg.qr(columns)[0])

    def _place(self, slopes: FloatArray) -> FloatArray:
        """Map coefficients of the residuals to those of all columns."""
        # slopes: (n_continuous, n_components) -> (n_features, n_components)
        placed = np.empty((len(self.is_discrete), slopes.shape[1]))
        placed[~self.is_discrete] = slopes
        placed[self.is_discrete] = -self.slopes @ slopes
        return placed


def split_continuous(data: RegressionData, is_discrete: BoolArray) -> ContinuousBlock:
    """Regress the continuous columns on the discrete ones and keep the residuals."""
    # is_discrete: (n_features,)
    head = data.take(np.arange(min(CENTRE_ROWS, data.n_obs))).X
    centre = np.asarray(np.asarray(head, dtype=np.float64).mean(axis=0))  # against cancellation
    gram, cross = data.sum(_regression_sums, is_discrete, centre, doubles=2 * data.n_features)
    fitted = np.linalg.lstsq(gram, cross, rcond=None)[0]
    slopes = fitted[1:]
    intercept = fitted[0] + centre[~is_discrete] - centre[is_discrete] @ slopes
    continuous = data.map(_keep_residuals, is_discrete, intercept, slopes)
    return ContinuousBlock(continuous, is_discrete, intercept, slopes)


def _regression_sums(
    data: RegressionData, is_discrete: BoolArray, centre: FloatArray, block: slice
) -> tuple[FloatArray, ...]:
    """Sum products of the discrete columns with each other and with the continuous ones."""
    x = read_block(data.X, block) - centre
    design = np.column_stack([np.ones(len(x)), x[:, is_discrete]])
    weighted = (design * data.sample_weight[block, None]).T
    return np.dot(weighted, design), np.dot(weighted, x[:, ~is_discrete])


def _keep_residuals(
    data: RegressionData, is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray
) -> RegressionData:
    """Replace the inputs by the residuals of the continuous columns."""
    residuals = _residuals(read_block(data.X, slice(None)), is_discrete, intercept, slopes)
    pairs = zip(data.feature_names, is_discrete, strict=True)
    return replace(
        data, X=residuals, feature_names=tuple(name for name, other in pairs if not other)
    )


def _residuals(
    X: FloatArray, is_discrete: BoolArray, intercept: FloatArray, slopes: FloatArray
) -> FloatArray:
    return np.asarray(X[:, ~is_discrete] - intercept - X[:, is_discrete] @ slopes)


LARGEST_ATOM = 0.1
"""Largest share of the rows that one value may have in a column with a density. Whole numbers with
standard deviation s have a share of 0.4 / s at their mode. From s = 4 on, rounding adds 0.5 % to a
variance and has no other effect on moments."""

FEWEST_EQUAL = 5
"""Up to this many equal values may be due to rounding when there are few rows."""

FEWEST_EXPECTED = 5.0
"""Two indicators belong to one factor if no row has both, though this many would by chance. For
independent indicators that happens about once in a hundred times."""


def describe_discrete_columns(X: NDArray[np.generic]) -> tuple[str, ...]:
    """Say for each column why it has no density; empty if it has one.

    About a thousand rows are used. Whole numbers with many values count as having a density if no
    value has more than a tenth of the rows: moments cannot tell the difference.
    """
    # X: (n_obs, n_features)
    sample = np.asarray(X[:: max(1, len(X) // COUNTED_ROWS)], dtype=np.float64)
    is_few = find_discrete_columns(sample)
    kinds = [_describe(*pair) for pair in zip(sample.T, is_few, strict=True)]
    for column in _one_hot_columns(sample, [kind == "binary" for kind in kinds]):
        kinds[column] = "one-hot"
    return tuple(kinds)


def name_discrete(names: Sequence[str], kinds: Sequence[str]) -> str:
    """List the discrete columns with their kinds."""
    return ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True) if kind)


def _describe(column: FloatArray, is_few: bool) -> str:
    values, counts = np.unique(column, return_counts=True)
    is_whole = bool(np.all(values == np.round(values)))
    if is_few and len(values) <= 2:
        return "binary"
    if is_few:
        return f"whole numbers, {len(values)} values" if is_whole else f"{len(values)} values"
    most = int(counts.max())
    if most <= max(LARGEST_ATOM * len(column), FEWEST_EQUAL):
        return ""
    where = f"{most / len(column):.0%} of them {values[counts.argmax()]:g}"
    return f"whole numbers, {where}" if is_whole else f"values that recur, {where}"


def _one_hot_columns(sample: FloatArray, is_binary: Sequence[bool]) -> list[int]:
    """Find indicators of one factor: never one in the same row, though some would be by chance."""
    columns = [j for j, kept in enumerate(is_binary) if kept and sample[:, j].min() == 0.0]
    ones = sample[:, columns] / sample[:, columns].max(axis=0, initial=1.0)
    together, totals = ones.T @ ones, ones.sum(axis=0)
    expected = np.outer(totals, totals) / len(sample)
    is_exclusive = (together == 0.0) & (expected > FEWEST_EXPECTED)
    return [column for column, flag in zip(columns, is_exclusive.any(axis=1), strict=True) if flag]


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
