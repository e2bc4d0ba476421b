"""The map between standardised coordinates, where everything is estimated, and the user's units.

With x = mean + L z and, for the identity link, y = shift + scale * response, a linear predictor
<beta, x> + b is <beta~, z> + b~ in standardised coordinates, where beta = L^-T beta~ and
b = b~ - <beta, mean>.

Mean and covariance of the input on the scale of its columns, so that units do not matter.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, source_of, sum_over_blocks
from moment_init.row_sources.columns import known_scatter


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Location and scale of inputs and response."""

    mean: FloatArray  # mean of the input; (n_features,)
    # lower triangular L with L L' the covariance of the input; (n_features, n_features)
    factor: FloatArray
    # subtracted from the response, or for other links from the linear predictor
    response_shift: float = 0.0
    # the response is divided by it; one unless the link is the identity
    response_scale: float = 1.0

    def coefficients_to_user(
        self, coefficients: FloatArray, biases: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Map coefficients and biases to the user's units."""
        # coefficients: (n_features, n_components), biases: (n_components,) -> (n_features,
        # n_components), (n_components,)
        slopes = self.response_scale * self._unwhiten(coefficients)
        intercepts = self.response_scale * biases + self.response_shift - self.mean @ slopes
        return slopes, np.asarray(intercepts)

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
        """Map unit directions to unit directions in the user's units."""
        # directions: (n_features, n_components) -> (n_features, n_components), (n_components,)
        mapped = self._unwhiten(directions)
        lengths = np.linalg.norm(mapped, axis=0)
        return mapped / lengths, self.response_scale * lengths

    def _unwhiten(self, columns: FloatArray) -> FloatArray:
        """The product of the inverse transpose of L and the columns."""
        return np.asarray(solve_triangular(self.factor, columns, lower=True, trans="T"))


# Sampling moves the eigenvalues of a correlation matrix by about 2 sqrt(d / n) (Marchenko-Pastur).
# Below 16 rows per column that is more than one half, and shrinkage pays.
SHRINK_BELOW_ROWS_PER_FEATURE = 16

# A standard deviation below this share of a column's mean is rounding, not variation.
CONSTANT_TOLERANCE = 1e-12

# Rows from which a rough centre is taken; its error only costs digits, a few hundred are plenty.
ROUGH_ROWS = 1000

# A mean of so many standard deviations costs two of the sixteen digits of a variance that is
# summed about zero, and spares a subtraction. Spreads in this range have squares, and variances of
# coefficients have ratios, that neither overflow nor vanish.
SMALL_MEAN = 10.0
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
    # correlation matrix, shrunk where rows are few; (n_features, n_features)
    correlation: FloatArray
    shrinkage: float  # share of the correlation matrix that was replaced by the identity


def fit_correlation(
    features: NDArray[np.generic],
    weights: FloatArray,
    names: tuple[str, ...],
    *,
    argument: str = "X",
) -> CorrelationFit:
    """Fit mean, standard deviations and correlations by blocks of rows."""
    # features: (n_obs, n_features), weights: (n_obs,)
    n_obs, n_features = features.shape
    source, total = source_of(features), weights.sum()
    known = known_scatter(features, weights)
    if known is not None and _is_safe(np.sqrt(np.diag(known.products) / total)).all():
        centre, spread, shift = known.mean, np.ones(n_features), np.zeros(n_features)
        covariance = known.products / total
    else:
        centre, spread = rough_units(features, weights)
        first, second = _sums_in_units(features, weights, centre, spread)
        shift = first / total
        covariance = second / total - np.outer(shift, shift)
    rough_scales = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    mean, scales = centre + spread * shift, spread * rough_scales
    _require_variation(mean, scales, names, argument)
    correlation = covariance / np.outer(rough_scales, rough_scales)
    np.fill_diagonal(correlation, 1.0)
    shrinkage = 0.0
    if n_obs < SHRINK_BELOW_ROWS_PER_FEATURE * n_features:
        rows: Any = read_block(features, slice(None)) if source is None else features
        standardised = (rows - mean) / scales
        fourth = weights @ np.square(np.square(standardised).sum(axis=1)) / total
        shrinkage = _ledoit_wolf_shrinkage(correlation, float(fourth), n_obs)
    shrunk = (1.0 - shrinkage) * correlation + shrinkage * np.eye(n_features)
    # Few rows make every matrix singular; what shrinkage leaves of it must still be invertible.
    tested = correlation if n_obs > n_features else shrunk
    _require_independent_columns(tested, names, argument)
    return CorrelationFit(mean=mean, scales=scales, correlation=shrunk, shrinkage=shrinkage)


def _sums_in_units(
    features: NDArray[np.generic], weights: FloatArray, centre: FloatArray, spread: FloatArray
) -> tuple[FloatArray, ...]:
    """Sums and products of the columns about a centre, in given units."""
    has_units = bool(np.any(centre != 0.0) or np.any(spread != 1.0))
    source = source_of(features)
    # Weights of one spare the product, and BLAS half the arithmetic.
    constant = getattr(weights, "constant", None)
    is_plain = bool(np.all(weights == 1.0)) if source is None else constant == 1.0

    def block_sums(rows: slice) -> tuple[FloatArray, ...]:
        z = read_block(features, rows)
        if has_units:
            z = (z - centre) / spread
        weighted = z if is_plain else z * weights[rows, None]
        return np.dot(weights[rows], z), np.dot(weighted.T, z)

    return sum_over_blocks(block_sums, len(weights), 3 * features.shape[1], source=source)


def _is_safe(spread: FloatArray) -> NDArray[np.bool_]:
    """Whether squares of such values are far from overflow and underflow."""
    return np.asarray((spread > SAFE_SPREADS[0]) & (spread < SAFE_SPREADS[1]))


def rough_units(
    features: NDArray[np.generic], weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Centre and unit of each column, from rows spread over the data; 0 and 1 wherever they serve.

    Sums are taken about it: a large common level would otherwise cancel away the digits of the
    variance.
    """
    # features: (n_obs, n_features), weights: (n_obs,) -> (n_features,), (n_features,)
    if source_of(features) is None:
        weighted = np.flatnonzero(weights)
        rows = weighted[:: max(1, len(weighted) // ROUGH_ROWS)]
    else:  # all rows count there
        rows = np.arange(0, len(weights), max(1, len(weights) // ROUGH_ROWS))
    sample = np.asarray(features[rows], dtype=np.float64)
    largest = np.abs(sample).max(axis=0)
    size = np.where(largest > 0.0, largest, 1.0)  # sums of larger values, or squares, overflow
    centre, spread = size * (sample / size).mean(axis=0), size * (sample / size).std(axis=0)
    is_safe = _is_safe(spread)
    is_near = is_safe & (np.abs(centre) <= SMALL_MEAN * spread)
    unit = np.where(is_safe | (spread == 0.0), 1.0, spread)
    return np.where(is_near, 0.0, centre), unit


def _require_variation(
    mean: FloatArray, scales: FloatArray, names: tuple[str, ...], argument: str
) -> None:
    """Raise for constant columns and name them."""
    constant = scales <= CONSTANT_TOLERANCE * np.abs(mean)
    if constant.any():
        listed = ", ".join(repr(name) for name, flag in zip(names, constant, strict=True) if flag)
        raise ValueError(
            f"`{argument}` must not have constant columns; got {listed}. "
            "Drop them: every component has an intercept of its own."
        )
    require_safe_spreads(scales, names, argument)


def require_safe_spreads(scales: FloatArray, names: tuple[str, ...], argument: str = "X") -> None:
    """Raise for columns whose squares are no numbers, and name the first."""
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
    """Shrinkage intensity of Ledoit and Wolf (2004) towards the identity.

    The ratio of the sampling variance of the matrix to its squared distance from the identity.
    """
    squared_norm = float(np.square(correlation).sum())
    distance = squared_norm - correlation.shape[0]
    variance = max(0.0, fourth_moment - squared_norm) / n_obs
    return 1.0 if distance <= variance else variance / distance


def _require_independent_columns(
    correlation: FloatArray, names: tuple[str, ...], argument: str
) -> None:
    """Raise for collinear columns and name those that take part."""
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
    """Whiten some rows."""
    # mean: (n_features,), factor: (n_features, n_features), rows: (n_rows, n_features) -> (n_rows,
    # n_features)
    centred = np.asarray(rows, dtype=np.float64) - mean
    return np.asarray(solve_triangular(factor, centred.T, lower=True).T)
