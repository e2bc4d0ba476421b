"""Standardised coordinates, in which everything is estimated, and the user's units.

With x = mean + L z and, for the identity link, y = shift + scale * response, a linear predictor
<beta, x> + b is <beta~, z> + b~ in standardised coordinates, where beta = L^-T beta~ and
b = b~ - <beta, mean>. The mean and covariance of the input are computed in units of its columns,
so that the user's units do not matter.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import Rows, read_block
from moment_init.families.several import Categorical

if TYPE_CHECKING:
    from moment_init.data.checking import RegressionData


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Location and scale of the inputs and the response."""

    mean: FloatArray  # mean of the input; (n_features,)
    # lower triangular L, where L L' is the covariance of the input; (n_features, n_features)
    factor: FloatArray
    # subtracted from the response (identity link) or from the linear predictor (other links)
    response_shift: float = 0.0
    # divides the response; one unless the link is the identity
    response_scale: float = 1.0

    def coefficients_to_user(
        self, coefficients: FloatArray, biases: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases to the user's units."""
        # coefficients: (n_features, n_components), biases: (n_components,) -> (n_features,
        # n_components), (n_components,)
        slopes = self.response_scale * self._unwhiten(coefficients)
        user_biases = self.response_scale * biases + self.response_shift - self.mean @ slopes
        return slopes, np.asarray(user_biases)

    def coefficients_to_standardised(
        self, coefficients: FloatArray, biases: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases from the user's units."""
        # coefficients: (n_features, n_components), biases: (n_components,) -> (n_features,
        # n_components), (n_components,)
        slopes = self.factor.T @ coefficients / self.response_scale
        levels = biases + self.mean @ coefficients - self.response_shift
        return np.asarray(slopes), np.asarray(levels / self.response_scale)

    def directions_to_user(self, directions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map unit directions to the user's units; also return the factors of their scales."""
        # directions: (n_features, n_components) -> (n_features, n_components), (n_components,)
        mapped = self._unwhiten(directions)
        lengths = np.linalg.norm(mapped, axis=0)
        return mapped / lengths, self.response_scale * lengths

    def _unwhiten(self, columns: FloatArray) -> FloatArray:
        """Multiply columns by the inverse transpose of L."""
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))


# Sampling moves the eigenvalues of a correlation matrix by about 2 sqrt(d / n) (Marchenko-Pastur).
# Below 16 rows per column that is more than one half, and shrinkage helps.
SHRINK_BELOW_ROWS_PER_FEATURE = 16

# A standard deviation below this share of a column's mean is rounding, not variation.
CONSTANT_TOLERANCE = 1e-12

# Number of rows for a rough centre: its error only costs digits, so a few hundred are enough.
ROUGH_ROWS = 1000

# A mean of up to this many standard deviations needs no subtraction: it costs two of the sixteen
# digits of a variance that is summed about zero.
SMALL_MEAN = 10.0

# Squares of standard deviations in this range, and ratios of variances of coefficients, neither
# overflow nor vanish.
SAFE_SPREADS = (1e-75, 1e75)

# Columns are collinear when the correlation matrix has an eigenvalue below this: inverting it
# would leave fewer than six of sixteen digits.
COLLINEAR_TOLERANCE = 1e-10

# A column takes part in a collinear set if its loading in the null direction exceeds this.
COLLINEAR_LOADING = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class CorrelationFit:
    """Location, scale and correlation of the columns."""

    mean: FloatArray  # weighted means; (n_features,)
    scales: FloatArray  # weighted standard deviations; (n_features,)
    # correlation matrix, shrunk if there are few rows; (n_features, n_features)
    correlation: FloatArray
    shrinkage: float  # weight of the identity in the shrunk matrix


class Scatter(NamedTuple):
    """Weighted sums of some rows."""

    total: float  # sum of the weights, positive
    mean: FloatArray  # weighted mean; (n_features,)
    products: FloatArray  # weighted products of the deviations from it; (n_features, n_features)


@dataclass(frozen=True, slots=True, eq=False)
class InputRows(Rows):
    """Rows of columns with their weights, such as any rows that have `X`."""

    X: NDArray[np.generic]  # (n_obs, n_features)
    sample_weight: FloatArray  # (n_obs,)
    scatter: Scatter | None = None  # sums that are known

    common = ("n_features",)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    def take(self, index: NDArray[np.intp] | slice) -> "InputRows":
        """Select rows."""
        return InputRows(self.X[index], self.sample_weight[index])


def fit_correlation(rows: Any, names: tuple[str, ...], *, argument: str = "X") -> CorrelationFit:
    """Compute mean, standard deviations and correlations of rows that have `X`."""
    # rows: `InputRows`, or any rows with their attributes
    n_obs, n_features = rows.n_obs, rows.n_features
    total, known = rows.total_weight, rows.scatter
    if known is not None and _is_safe(np.sqrt(np.diag(known.products) / total)).all():
        centre, spread, shift = known.mean, np.ones(n_features), np.zeros(n_features)
        covariance = known.products / total
    else:
        centre, spread = rough_units(rows)
        first, second = rows.sum(_sums_in_units, centre, spread, doubles=3 * n_features)
        shift = first / total
        covariance = second / total - np.outer(shift, shift)
    rough_scales = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    mean, scales = centre + spread * shift, spread * rough_scales
    _require_variation(mean, scales, names, argument)
    correlation = covariance / np.outer(rough_scales, rough_scales)
    np.fill_diagonal(correlation, 1.0)
    shrinkage = 0.0
    if n_obs < SHRINK_BELOW_ROWS_PER_FEATURE * n_features:
        (fourth,) = rows.sum(_fourth_powers, mean, scales, doubles=3 * n_features)
        shrinkage = _ledoit_wolf_shrinkage(correlation, float(fourth) / total, n_obs)
    shrunk = (1.0 - shrinkage) * correlation + shrinkage * np.eye(n_features)
    # With few rows every correlation matrix is singular; the shrunk one must be invertible.
    tested = correlation if n_obs > n_features else shrunk
    _require_independent_columns(tested, names, argument)
    return CorrelationFit(mean=mean, scales=scales, correlation=shrunk, shrinkage=shrinkage)


def _sums_in_units(
    rows: InputRows, centre: FloatArray, spread: FloatArray, block: slice
) -> tuple[FloatArray, ...]:
    """Sum the columns and their products about a centre, in given units."""
    z, weights = read_block(rows.X, block), rows.sample_weight[block]
    if np.any(centre != 0.0) or np.any(spread != 1.0):
        z = (z - centre) / spread
    # Weights of one save the product with them, and half of the arithmetic in BLAS.
    weighted = z if np.all(weights == 1.0) else z * weights[:, None]
    return np.dot(weights, z), np.dot(weighted.T, z)


def _fourth_powers(
    rows: InputRows, mean: FloatArray, scales: FloatArray, block: slice
) -> tuple[FloatArray, ...]:
    """Sum the squared lengths of standardised rows, squared."""
    lengths = np.square((read_block(rows.X, block) - mean) / scales).sum(axis=1)
    return (np.array(rows.sample_weight[block] @ np.square(lengths)),)


def _is_safe(spread: FloatArray) -> NDArray[np.bool_]:
    """Tell which values have squares that are far from overflow and underflow."""
    return np.asarray((spread > SAFE_SPREADS[0]) & (spread < SAFE_SPREADS[1]))


def rough_units(rows: Any) -> tuple[FloatArray, FloatArray]:
    """Choose a rough centre and unit of each column from a sample of rows; 0 and 1 if possible.

    Sums are taken about the centre: with a large mean the variance would otherwise lose digits to
    cancellation.
    """
    # -> (n_features,), (n_features,)
    sample = np.asarray(rows.spread(ROUGH_ROWS).X, dtype=np.float64)
    largest = np.abs(sample).max(axis=0)
    size = np.where(largest > 0.0, largest, 1.0)  # avoids overflow of sums and squares
    centre, spread = size * (sample / size).mean(axis=0), size * (sample / size).std(axis=0)
    is_safe = _is_safe(spread)
    is_near = is_safe & (np.abs(centre) <= SMALL_MEAN * spread)
    unit = np.where(is_safe | (spread == 0.0), 1.0, spread)
    return np.where(is_near, 0.0, centre), unit


def _require_variation(
    mean: FloatArray, scales: FloatArray, names: tuple[str, ...], argument: str
) -> None:
    """Raise for constant columns, and name them."""
    constant = scales <= CONSTANT_TOLERANCE * np.abs(mean)
    if constant.any():
        listed = ", ".join(repr(name) for name, flag in zip(names, constant, strict=True) if flag)
        raise ValueError(
            f"`{argument}` must not have constant columns; got {listed}. "
            "Drop them: every component has its own bias."
        )
    require_safe_spreads(scales, names, argument)


def require_safe_spreads(scales: FloatArray, names: tuple[str, ...], argument: str = "X") -> None:
    """Raise for columns whose squares would overflow or vanish, and name the first."""
    # scales: (n_features,)
    smallest, largest = SAFE_SPREADS
    is_safe = (scales > smallest) & (scales < largest)
    if not is_safe.all():
        column = int(np.argmin(is_safe))
        raise ValueError(
            f"`{argument}` must have columns with standard deviations from {smallest:g} to "
            f"{largest:g}; got {scales[column]:g} for {names[column]!r}. Change its units."
        )


def _ledoit_wolf_shrinkage(correlation: FloatArray, fourth_moment: float, n_obs: int) -> float:
    """Compute the shrinkage of Ledoit and Wolf (2004) towards the identity.

    It is the sampling variance of the matrix over its squared distance from the identity.
    """
    squared_norm = float(np.square(correlation).sum())
    distance = squared_norm - correlation.shape[0]
    variance = max(0.0, fourth_moment - squared_norm) / n_obs
    return 1.0 if distance <= variance else variance / distance


def _require_independent_columns(
    correlation: FloatArray, names: tuple[str, ...], argument: str
) -> None:
    """Raise for collinear columns, and name them."""
    eigenvalues, eigenvectors = eigh(correlation)
    null = eigenvalues < COLLINEAR_TOLERANCE
    if not null.any():
        return
    loadings = np.abs(eigenvectors[:, null]).max(axis=1)
    listed = ", ".join(
        repr(name)
        for name, loading in zip(names, loadings, strict=True)
        if loading > COLLINEAR_LOADING
    )
    raise ValueError(
        f"`{argument}` must not have collinear columns; got a linear relation among {listed} "
        f"(smallest eigenvalue of the correlation matrix {eigenvalues[0]:.1e}). Drop one of them."
    )


def whiten_rows(mean: FloatArray, factor: FloatArray, rows: NDArray[np.generic]) -> FloatArray:
    """Whiten rows: the inverse of L times the centred rows."""
    # mean: (n_features,), factor: (n_features, n_features), rows: (n_rows, n_features) -> (n_rows,
    # n_features)
    centred = np.asarray(rows, dtype=np.float64) - mean
    return np.asarray(solve_triangular(factor, centred.T, lower=True).T)


ResponseUnits = tuple[tuple[float, float], ...]
"""Shift and scale of the response of each linear predictor."""


def response_units(data: "RegressionData") -> ResponseUnits:
    """Mean and standard deviation of responses with the identity link; zero and one of others."""
    has_units = np.array([each.response_power for each in data.family.predictor_families])
    shifts, scales = np.zeros(len(has_units)), np.ones(len(has_units))
    known: Scatter | None = data.response_scatter
    if known is not None and has_units.any():
        shifts[has_units] = known.mean[has_units]
        scales[has_units] = np.sqrt(np.diag(known.products) / known.total)[has_units]
    elif has_units.any():
        total, doubles = data.total_weight, 4 * len(has_units)
        (means,) = data.sum(_response_sums, total, shifts, 1, doubles=doubles)
        shifts[has_units] = means[has_units]
        (squares,) = data.sum(_response_sums, total, shifts, 2, doubles=doubles)
        scales[has_units] = np.sqrt(squares[has_units])
    return tuple(zip(shifts.tolist(), scales.tolist(), strict=True))


def _response_sums(
    data: "RegressionData", total: float, shifts: FloatArray, power: int, block: slice
) -> tuple[FloatArray, ...]:
    """Sum powers of shifted responses with weights that add up to one."""
    shares = data.sample_weight[block] / total
    values = moment_responses(data, block)
    pairs = zip(values, shifts, strict=True)
    if power == 1:
        return (np.array([shares @ value for value in values]),)
    return (np.array([shares @ np.square(value - shift) for value, shift in pairs]),)


def moment_responses(data: "RegressionData", block: slice) -> list[FloatArray]:
    """Responses of a block without offsets and trials, one by one."""
    width = len(data.family.members)
    y = data.y[block].reshape(-1, width)
    offset = None if data.offset is None else data.offset[block].reshape(-1, width)
    trials = None if data.n_trials is None else data.n_trials[block].reshape(-1, width)
    return [
        member.moment_response(
            y[:, index],
            order=1,
            offset=None if offset is None else offset[:, index],
            n_trials=None if trials is None or not member.has_trials else trials[:, index],
        )
        for index, member in enumerate(data.family.members)
    ]


def with_response(data: "RegressionData", units: ResponseUnits) -> "RegressionData":
    """Add the response that moments use: without offset and trials, and standardised."""
    if isinstance(data.family, Categorical):
        return replace(data, response=data.y)
    pairs = zip(moment_responses(data, slice(None)), units, strict=True)
    columns = [
        value if unit == (0.0, 1.0) else (value - unit[0]) / unit[1] for value, unit in pairs
    ]
    return replace(data, response=columns[0] if len(columns) == 1 else np.array(columns).T)
