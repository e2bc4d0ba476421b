"""Standardised coordinates, in which everything is estimated, and the user's units.

With x = mean + L z and, for the identity link, y = shift + scale * response, a linear predictor
<beta, x> + b is <beta~, z> + b~ in standardised coordinates, where beta = L^-T beta~ and
b = b~ - <beta, mean>. The mean and covariance of the input are computed in units of its columns,
so that the user's units do not matter.
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


def fit_correlation(
    features: NDArray[np.generic],
    weights: FloatArray,
    names: tuple[str, ...],
    *,
    argument: str = "X",
) -> CorrelationFit:
    """Compute mean, standard deviations and correlations by blocks of rows."""
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
    # With few rows every correlation matrix is singular; the shrunk one must be invertible.
    tested = correlation if n_obs > n_features else shrunk
    _require_independent_columns(tested, names, argument)
    return CorrelationFit(mean=mean, scales=scales, correlation=shrunk, shrinkage=shrinkage)


def _sums_in_units(
    features: NDArray[np.generic], weights: FloatArray, centre: FloatArray, spread: FloatArray
) -> tuple[FloatArray, ...]:
    """Sum the columns and their products about a centre, in given units."""
    has_units = bool(np.any(centre != 0.0) or np.any(spread != 1.0))
    source = source_of(features)
    # Weights of one save the product with them, and half of the arithmetic in BLAS.
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
    """Tell which values have squares that are far from overflow and underflow."""
    return np.asarray((spread > SAFE_SPREADS[0]) & (spread < SAFE_SPREADS[1]))


def rough_units(
    features: NDArray[np.generic], weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Choose a rough centre and unit of each column from a sample of rows; 0 and 1 if possible.

    Sums are taken about the centre: with a large mean the variance would otherwise lose digits to
    cancellation.
    """
    # features: (n_obs, n_features), weights: (n_obs,) -> (n_features,), (n_features,)
    if source_of(features) is None:
        weighted = np.flatnonzero(weights)
        rows = weighted[:: max(1, len(weighted) // ROUGH_ROWS)]
    else:  # Dask collections: all rows are used
        rows = np.arange(0, len(weights), max(1, len(weights) // ROUGH_ROWS))
    sample = np.asarray(features[rows], dtype=np.float64)
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
