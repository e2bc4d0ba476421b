"""Independent columns, each with its own density.

`ColumnDensity` is a member of a parametric family, with derivatives of its log-density up to the
third; `ColumnMixture` is a mixture of normals, for columns that no family fits. `fit_column` fits
the families by maximum likelihood and chooses one on held-out rows. `Independent` is the input
model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, gammaln, log_ndtr, logsumexp

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block
from moment_init.scores.base import ClosedFormContraction, InputModel, RowTerms

Derivatives = tuple[FloatArray, FloatArray, FloatArray]

LOG_ROOT_TWO_PI = 0.5 * float(np.log(2.0 * np.pi))


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A location-scale family on the line, in standard form."""

    name: str
    n_shapes: int  # number of shape parameters
    is_positive: bool  # whether the support of the standard form is (0, inf)
    # maps standardised values u and shapes to the log-density
    log_density: Callable[[FloatArray, tuple[float, ...]], FloatArray]
    # maps u and shapes to the first three derivatives of the log-density in u
    derivatives: Callable[[FloatArray, tuple[float, ...]], Derivatives]
    # maps shapes to the mean and variance of u
    moments: Callable[[tuple[float, ...]], tuple[float, float]]
    # maps shapes to the highest order (at most 3) with a valid score
    highest_order: Callable[[tuple[float, ...]], int] = lambda shapes: 3


@dataclass(frozen=True, slots=True)
class ColumnDensity:
    """Density of one column, a member of a family.

    Parameters
    ----------
    family : str
        Name of the family, one of `COLUMN_FAMILIES`.
    location : float
        Value at which the standardised value is zero.
    scale : float
        Size of one standardised unit; negative if the standard form is reflected.
    shapes : tuple of float
        Shape parameters, as many as the family has.
    edge : float
        Only for families on (0, inf): smaller standardised values are replaced by this one, so
        that a row just outside the support has finite scores.
    """

    family: str
    location: float = 0.0
    scale: float = 1.0
    shapes: tuple[float, ...] = ()
    edge: float = 1e-3

    def __post_init__(self) -> None:
        """Validate the parameters."""
        if self.family not in COLUMN_FAMILIES:
            raise ValueError(
                f"`family` must be one of {', '.join(sorted(COLUMN_FAMILIES))}; "
                f"got {self.family!r}."
            )
        expected = COLUMN_FAMILIES[self.family].n_shapes
        if len(self.shapes) != expected or self.scale == 0.0:
            raise ValueError(
                f"`shapes` must have {expected} values for {self.family!r} and `scale` must not "
                f"be zero; got shapes {self.shapes} and scale {self.scale}."
            )

    @property
    def highest_order(self) -> int:
        """Highest order (at most 3) with a valid score."""
        return COLUMN_FAMILIES[self.family].highest_order(self.shapes)

    @property
    def mean(self) -> float:
        """Mean of the column."""
        return self.location + self.scale * COLUMN_FAMILIES[self.family].moments(self.shapes)[0]

    @property
    def variance(self) -> float:
        """Variance of the column."""
        return self.scale**2 * COLUMN_FAMILIES[self.family].moments(self.shapes)[1]

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log-density of values.

        Parameters
        ----------
        x : numpy.ndarray
            The values.

        Returns
        -------
        numpy.ndarray
            The log-density; minus infinity outside the support.
        """
        family = COLUMN_FAMILIES[self.family]
        u = (x - self.location) / self.scale
        values = family.log_density(self._inside(u), self.shapes) - np.log(abs(self.scale))
        return np.where(u > 0.0, values, -np.inf) if family.is_positive else values

    def derivatives(self, x: FloatArray) -> Derivatives:
        """First three derivatives of the log-density.

        Parameters
        ----------
        x : numpy.ndarray
            The values.

        Returns
        -------
        tuple of numpy.ndarray
            The derivatives, each with the shape of `x`.
        """
        u = self._inside((x - self.location) / self.scale)
        first, second, third = COLUMN_FAMILIES[self.family].derivatives(u, self.shapes)
        return first / self.scale, second / self.scale**2, third / self.scale**3

    def _inside(self, u: FloatArray) -> FloatArray:
        """Move standardised values into the support."""
        return np.maximum(u, self.edge) if COLUMN_FAMILIES[self.family].is_positive else u


def _normal_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray(-0.5 * np.square(u) - LOG_ROOT_TWO_PI)


def _normal_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    return -u, np.full_like(u, -1.0), np.zeros_like(u)


def _normal_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    return 0.0, 1.0


def _logistic_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray(-np.abs(u) - 2.0 * np.log1p(np.exp(-np.abs(u))))


def _logistic_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    share = expit(u)
    slope = share * expit(-u)
    return 1.0 - 2.0 * share, -2.0 * slope, -2.0 * slope * (1.0 - 2.0 * share)


def _logistic_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    return 0.0, float(np.pi**2 / 3.0)


def _student_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    (degrees,) = shapes
    constant = gammaln((degrees + 1.0) / 2.0) - gammaln(degrees / 2.0)
    constant -= 0.5 * np.log(np.pi * degrees)
    return np.asarray(constant - 0.5 * (degrees + 1.0) * np.log1p(np.square(u) / degrees))


def _student_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    (degrees,) = shapes
    square = np.square(u)
    width, size = degrees + square, degrees + 1.0
    third = 2.0 * size * u * (3.0 * degrees - square) / width**3
    return -size * u / width, -size * (degrees - square) / width**2, third


def _student_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    return 0.0, shapes[0] / (shapes[0] - 2.0) if shapes[0] > 2.0 else float("inf")


def _skew_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray(np.log(2.0) + _normal_log(u, ()) + log_ndtr(shapes[0] * u))


def _skew_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    (slant,) = shapes
    t = slant * u
    mills = np.exp(_normal_log(t, ()) - log_ndtr(t))  # phi / Phi
    first = -mills * (t + mills)
    second = -mills - t * first - 2.0 * mills * first
    return -u + slant * mills, slant**2 * first - 1.0, slant**3 * second


def _skew_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    mean = np.sqrt(2.0 / np.pi) * shapes[0] / np.sqrt(1.0 + shapes[0] ** 2)
    return float(mean), float(1.0 - mean**2)


def _gamma_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray((shapes[0] - 1.0) * np.log(u) - u - gammaln(shapes[0]))


def _gamma_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    power = shapes[0] - 1.0
    return power / u - 1.0, -power / np.square(u), 2.0 * power / u**3


def _gamma_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    return shapes[0], shapes[0]


def _gamma_order(shapes: tuple[float, ...]) -> int:
    """Highest valid order: near 0, p is u^(a - 1), whose derivative m - 1 vanishes if a > m."""
    return sum(shapes[0] > order for order in (1, 2, 3))


def _lognormal_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    v = np.log(u)
    return np.asarray(_normal_log(v / shapes[0], ()) - v - np.log(shapes[0]))


def _lognormal_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    precision = shapes[0] ** -2
    v = precision * np.log(u)
    second = 1.0 + v - precision
    return -(1.0 + v) / u, second / np.square(u), (precision - 2.0 * second) / u**3


def _lognormal_moments(shapes: tuple[float, ...]) -> tuple[float, float]:
    growth = np.exp(shapes[0] ** 2)
    return float(np.sqrt(growth)), float(growth * (growth - 1.0))


COLUMN_FAMILIES: Mapping[str, ColumnFamily] = MappingProxyType(
    {
        family.name: family
        for family in (
            ColumnFamily("normal", 0, False, _normal_log, _normal_derivatives, _normal_moments),
            ColumnFamily(
                "logistic", 0, False, _logistic_log, _logistic_derivatives, _logistic_moments
            ),
            ColumnFamily(
                "student_t", 1, False, _student_log, _student_derivatives, _student_moments
            ),
            ColumnFamily("skew_normal", 1, False, _skew_log, _skew_derivatives, _skew_moments),
            ColumnFamily(
                "gamma", 1, True, _gamma_log, _gamma_derivatives, _gamma_moments, _gamma_order
            ),
            ColumnFamily(
                "lognormal", 1, True, _lognormal_log, _lognormal_derivatives, _lognormal_moments
            ),
        )
    }
)
"""Families by name, those with the fewest parameters first."""


# EM steps for each number of normals; the density converges long before its parts do.
STEPS = 60

# A deviation below this share of the column's is a spike, whose third derivative is noise.
SMALLEST_DEVIATION = 0.1

# Two or three normals can already be skewed or bimodal; more than six follow the noise.
MOST_NORMALS = 6


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMixture:
    """Mixture of normals, the density of one column.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n_normals,)
        Probabilities of the normals.
    means : numpy.ndarray, shape (n_normals,)
        Means of the normals.
    deviations : numpy.ndarray, shape (n_normals,)
        Standard deviations of the normals.
    """

    weights: FloatArray
    means: FloatArray
    deviations: FloatArray

    @property
    def family(self) -> str:
        """Name of the density."""
        return f"mixture of {len(self.weights)} normals"

    @property
    def highest_order(self) -> int:
        """Highest order (at most 3) with a valid score: always 3."""
        return 3

    @property
    def mean(self) -> float:
        """Mean of the column."""
        return float(self.weights @ self.means)

    @property
    def variance(self) -> float:
        """Variance of the column."""
        spread = np.square(self.deviations) + np.square(self.means - self.mean)
        return float(self.weights @ spread)

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log-density of values.

        Parameters
        ----------
        x : numpy.ndarray
            The values.

        Returns
        -------
        numpy.ndarray
            The log-density.
        """
        return np.asarray(logsumexp(self._joint(x), axis=-1))

    def derivatives(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """First three derivatives of the log-density.

        Parameters
        ----------
        x : numpy.ndarray
            The values.

        Returns
        -------
        tuple of numpy.ndarray
            The derivatives, each with the shape of `x`.

        Notes
        -----
        The derivatives of p, divided by p, are averages of Hermite polynomials weighted by the
        normals' posterior probabilities. The derivatives of log p follow from them.
        """
        joint = self._joint(x)
        shares = np.exp(joint - logsumexp(joint, axis=-1, keepdims=True))
        u = (x[..., None] - self.means) / self.deviations
        first = (shares * -u / self.deviations).sum(axis=-1)
        square = np.square(u)
        second = (shares * (square - 1.0) / self.deviations**2).sum(axis=-1)
        third = (shares * u * (3.0 - square) / self.deviations**3).sum(axis=-1)
        return first, second - first**2, third - 3.0 * first * second + 2.0 * first**3

    def _joint(self, x: FloatArray) -> FloatArray:
        u = (x[..., None] - self.means) / self.deviations
        constants = np.log(self.weights) - np.log(self.deviations) - LOG_ROOT_TWO_PI
        return np.asarray(-0.5 * np.square(u) + constants)


type Column = ColumnDensity | ColumnMixture


def fit_column_mixture(values: FloatArray, weights: FloatArray, n_rows: float) -> ColumnMixture:
    """Fit mixtures of normals to a standardised column and choose their number by BIC."""
    # values: (n_values,), weights: (n_values,)

    def criterion(fitted: ColumnMixture) -> float:
        penalty = (3 * len(fitted.weights) - 1) * np.log(n_rows) / n_rows
        return float(penalty - 2.0 * weights @ fitted.log_density(values))

    best = _em(values, weights, 2)  # a single normal is one of the families
    for number in range(3, MOST_NORMALS + 1):
        fitted = _em(values, weights, number)
        if criterion(fitted) >= criterion(best):
            break
        best = fitted
    return best


def _em(values: FloatArray, weights: FloatArray, number: int) -> ColumnMixture:
    """Run EM from normals placed at equally spaced quantiles."""
    edges = np.cumsum(weights)
    quantiles = (np.arange(number) + 0.5) / number
    places = np.minimum(np.searchsorted(edges, quantiles), len(values) - 1)
    fitted = ColumnMixture(
        np.full(number, 1.0 / number), values[places], np.full(number, 1.2 / np.sqrt(number))
    )
    for _ in range(STEPS):
        joint = fitted._joint(values)
        # Written out: on a few hundred values SciPy's `logsumexp` is mostly overhead.
        shares = np.exp(joint - joint.max(axis=1, keepdims=True))
        shares *= (weights / shares.sum(axis=1))[:, None]
        totals = np.maximum(shares.sum(axis=0), 1e-12)  # no division by zero for an empty normal
        means = shares.T @ values / totals
        variances = np.sum(shares * np.square(values[:, None] - means), axis=0) / totals
        deviations = np.maximum(np.sqrt(variances), SMALLEST_DEVIATION)
        fitted = ColumnMixture(totals / totals.sum(), means, deviations)
    return fitted


# Names that `fit_column` accepts, grouped by number of parameters, simplest first.
CHOICE_GROUPS = (
    ("normal", "logistic"),
    ("student_t", "skew_normal", "gamma", "lognormal"),
    ("mixture",),
)
COLUMN_CHOICES = tuple(name for group in CHOICE_GROUPS for name in group)
SKEWED = frozenset({"skew_normal", "gamma", "lognormal"})

# Skewed families are tried only if the column's skewness is more than this many standard errors
# from zero; heavy-tailed ones only if its excess kurtosis is not this many below zero.
SCREENING = 2.0

# A column is reduced to this many groups of neighbouring rows plus the single outermost rows: the
# tails keep their shape, and the cost of a likelihood does not depend on the number of rows.
GROUPS = 400
SINGLE_ROWS = 100

# Every `HELD_OUT`-th row judges the families fitted to the other rows.
HELD_OUT = 5

# A family replaces a simpler one if its held-out log-likelihood is higher by a standard error of
# the difference, and by three in total. A family with p superfluous parameters gains nothing on
# average, with a standard deviation of sqrt(.25 p) on a quarter as many rows as were fitted: three
# is then four standard deviations or more.
STANDARD_ERRORS = 1.0
LEAST_GAIN = 3.0

# Log-likelihood that a row outside the support of a fitted family costs. The edge is only known up
# to the distance between the outermost rows, so one row in thousands must not rule a family out.
PRICE_OUTSIDE = 10.0

# Bounds of the shapes, which are optimised on the log scale: a t with 2.05 degrees of freedom only
# just has a variance; a gamma with shape 400 and a lognormal with shape .03 have a skewness of .1.
SHAPE_BOUNDS = {
    "student_t": (2.05, 200.0),
    "skew_normal": (0.05, 30.0),
    "gamma": (1.05, 400.0),
    "lognormal": (0.03, 1.5),
}


def fit_column(
    x: FloatArray, weights: FloatArray, choices: tuple[str, ...]
) -> tuple[Column, dict[str, float]]:
    """Fit every allowed family to a column and choose one by held-out log-likelihood.

    Also return the mean log-likelihood of each choice on held-out rows, minus the normal's.
    """
    # x: (n_obs,), weights: (n_obs,)
    total = weights.sum()
    mean = float(weights @ x / total)
    deviation = float(np.sqrt(weights @ np.square(x - mean) / total))
    z = (x - mean) / deviation
    everything = _reduce(z, weights)
    if len(choices) == 1:
        return _in_units(_fit(choices[0], *everything), mean, deviation), {}
    tested = np.arange(len(z)) % HELD_OUT == 0
    training = _reduce(z[~tested], weights[~tested])
    rows, shares = z[tested], weights[tested] / weights[tested].sum()
    reference = _normal_log(rows, ())
    kept, held_out = "", dict[str, float]()
    kept_gain = np.full(len(rows), -np.inf)
    for group in CHOICE_GROUPS:
        tried = [name for name in group if name in choices and _is_possible(name, *everything)]
        gains = {name: _gain(_fit(name, *training), rows, reference) for name in tried}
        held_out.update({name: float(shares @ gain) for name, gain in gains.items()})
        best = max(tried, key=held_out.__getitem__, default="")
        if best and _is_better(gains[best], kept_gain, shares):
            kept, kept_gain = best, gains[best]
    kept = kept or choices[0]
    return _in_units(_fit(kept, *everything), mean, deviation), held_out


def _is_possible(name: str, values: FloatArray, shares: FloatArray, n_rows: float) -> bool:
    """Whether the skewness and kurtosis of a standardised column allow a family."""
    if name in SKEWED:
        return bool(abs(shares @ values**3) > SCREENING * np.sqrt(6.0 / n_rows))
    if name in ("logistic", "student_t"):
        return bool(shares @ values**4 - 3.0 > -SCREENING * np.sqrt(24.0 / n_rows))
    return True


def _gain(density: Column, rows: FloatArray, reference: FloatArray) -> FloatArray:
    """Log-likelihood of rows above a reference, with a finite cost for rows off the support."""
    values = density.log_density(rows)
    return np.where(np.isfinite(values), values, reference - PRICE_OUTSIDE) - reference


def _is_better(gain: FloatArray, other: FloatArray, shares: FloatArray) -> bool:
    """Whether a log-likelihood is clearly higher than another, or there is no other."""
    if not np.isfinite(other).all():
        return True
    difference = gain - other
    mean = float(shares @ difference)
    error = np.sqrt(np.square(shares) @ np.square(difference - mean))
    n_rows = 1.0 / np.square(shares).sum()
    return bool(mean > max(STANDARD_ERRORS * error, LEAST_GAIN / n_rows))


def _reduce(z: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Group neighbouring rows: means and weight shares of groups, and effective number of rows."""
    order = np.argsort(z)
    values, sizes = z[order], weights[order]
    n_rows = float(sizes.sum() ** 2 / np.square(sizes).sum())
    if len(values) > GROUPS + 2 * SINGLE_ROWS:
        outer = np.arange(SINGLE_ROWS)
        inner = np.linspace(SINGLE_ROWS, len(values) - SINGLE_ROWS, GROUPS, endpoint=False)
        starts = np.concatenate([outer, inner.astype(int), len(values) - SINGLE_ROWS + outer])
        totals = np.add.reduceat(sizes, starts)
        # A group without weight is dropped below, so its value does not matter.
        values = np.add.reduceat(sizes * values, starts) / np.maximum(totals, 1e-300)
        sizes = totals
    has_weight = sizes > 0.0
    return values[has_weight], sizes[has_weight] / sizes.sum(), n_rows


def _fit(name: str, values: FloatArray, shares: FloatArray, n_rows: float) -> Column:
    """Fit one family to a standardised column."""
    if name == "mixture":
        return fit_column_mixture(values, shares, n_rows)
    if name == "normal":
        mean = float(shares @ values)
        return ColumnDensity(name, mean, float(np.sqrt(shares @ np.square(values - mean))))
    sign = 1.0 if shares @ values**3 >= 0.0 else -1.0
    build, start, bounds = _parametrise(name, values, sign)

    def loss(parameters: FloatArray) -> float:
        return -float(shares @ build(parameters).log_density(values))

    optimum = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return build(optimum.x)


type _Build = Callable[[FloatArray], ColumnDensity]
type _Bounds = list[tuple[float | None, float | None]]


def _parametrise(name: str, values: FloatArray, sign: float) -> tuple[_Build, FloatArray, _Bounds]:
    """Map from free parameters to a density of a standardised column, with start and bounds.

    The free parameters are location, log scale and log shape. For a family on (0, inf) the first is
    instead the log of the distance of the location below all values.
    """
    shape_bounds = [tuple(np.log(SHAPE_BOUNDS[name]))] if name in SHAPE_BOUNDS else []
    is_positive, lowest = COLUMN_FAMILIES[name].is_positive, float((sign * values).min())

    def build(parameters: FloatArray) -> ColumnDensity:
        scale, *shapes = (float(value) for value in np.exp(parameters[1:]))
        if not is_positive:
            return ColumnDensity(name, float(parameters[0]), sign * scale, tuple(shapes))
        distance = float(np.exp(parameters[0]))
        # Half the distance of the outermost row from the edge: no observed row is closer to it.
        edge = 0.5 * distance / scale
        return ColumnDensity(name, sign * (lowest - distance), sign * scale, tuple(shapes), edge)

    if not is_positive:
        starts = {"logistic": [0.0, -0.6], "student_t": [0.0, -0.1, np.log(8.0)]}
        start = np.array(starts.get(name, [-sign, 0.3, np.log(2.0)]))
        return build, start, [(-4.0, 4.0), (-4.0, 4.0), *shape_bounds]
    # The sample skewness gives the starting shape: 4 / skewness^2 for the gamma and, to first
    # order, skewness / 3 for the lognormal.
    skewness = float(np.clip(np.mean((sign * values) ** 3), 0.2, 2.0))
    if name == "gamma":
        guess = [4.0 / skewness**2, skewness / 2.0]
        depth = guess[0] * guess[1]
    else:
        guess = [skewness / 3.0, 3.0 / skewness]
        depth = guess[1] * np.exp(guess[0] ** 2 / 2.0)
    distance = max(depth + lowest, 0.05)
    start = np.log([distance, guess[1], guess[0]])
    return build, start, [(-8.0, 5.0), (-8.0, 5.0), *shape_bounds]


def _in_units(density: Column, mean: float, deviation: float) -> Column:
    """Undo the standardisation of the column."""
    if isinstance(density, ColumnMixture):
        return ColumnMixture(
            density.weights, mean + deviation * density.means, deviation * density.deviations
        )
    return replace(
        density, location=mean + deviation * density.location, scale=deviation * density.scale
    )


class Independent(InputModel):
    r"""Independent columns: :math:`\log p(x) = \sum_j l_j(x_j)`.

    All derivatives of the log-density are diagonal.

    Parameters
    ----------
    columns : sequence of ColumnDensity or ColumnMixture, optional
        Known densities, one per column; fitted by default.
    families : sequence of str, optional
        Families to choose from for each column: "normal", "logistic", "student_t", "skew_normal",
        "gamma", "lognormal", "mixture" (of normals); all by default.

    Attributes
    ----------
    columns_ : tuple of ColumnDensity or ColumnMixture
        Densities of the columns after `fit`.
    held_out_ : tuple of dict
        For each column, the log-likelihood per held-out row of each family, minus the normal's.

    Notes
    -----
    Every family is fitted to four fifths of the rows of a column and judged on the others; it has
    to be clearly better than a simpler one. Columns are first reduced to 600 points, which costs
    O(n log n) per column; a family then takes a few milliseconds. Correlated columns are not
    independent: the identity E[S_1 x'] = I of `stein_check` then fails.
    """

    columns_: tuple[Column, ...]
    held_out_: tuple[dict[str, float], ...] = ()

    def __init__(
        self,
        columns: Sequence[Column] | None = None,
        *,
        families: Sequence[str] = COLUMN_CHOICES,
    ) -> None:
        self.columns = columns
        self.families = families

    def __repr__(self) -> str:
        """Name the densities of the columns."""
        if self.is_fitted:
            return f"Independent({', '.join(column.family for column in self.columns_)})"
        return "Independent()"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit a density to each column, unless the densities were given.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Validated inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Column names for error messages.

        Returns
        -------
        Independent
            This object, fitted.
        """
        choices = _checked_families(self.families)
        if self.columns is not None:
            return self._keep_given(features.shape[1])
        self._fit_moments(features, weights, names)  # of the rows, including correlations
        fitted = [
            fit_column(read_block(features, slice(None))[:, index], weights, choices)
            for index in range(features.shape[1])
        ]
        self.columns_, self.held_out_ = zip(*fitted, strict=True)
        return self

    @property
    def highest_order(self) -> int:
        """Highest order with a valid score in every column."""
        self._require_fitted()
        return min(column.highest_order for column in self.columns_)

    def _use_given(self) -> None:
        if self.columns is None:
            raise self._not_given()
        self.columns_ = tuple(self.columns or ())
        mean = np.array([column.mean for column in self.columns_])
        self.set_moments(mean, np.diag([column.variance for column in self.columns_]))

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x); minus infinity outside the support.
        """
        self._require_fitted()
        rows = np.asarray(X, dtype=np.float64)
        terms = [
            column.log_density(values) for column, values in zip(self.columns_, rows.T, strict=True)
        ]
        return np.asarray(np.sum(terms, axis=0))

    def contract(self, basis: FloatArray) -> ClosedFormContraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        ClosedFormContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()

        def rows(X: FloatArray) -> RowTerms:
            columns = zip(self.columns_, X.T, strict=True)
            parts = zip(*(column.derivatives(values) for column, values in columns), strict=True)
            first, second, third = (np.stack(terms, axis=1) for terms in parts)
            return RowTerms(-first @ basis, second, third)

        return ClosedFormContraction(rows, np.zeros((basis.shape[1],) * 2), basis)


def _checked_families(families: Sequence[str]) -> tuple[str, ...]:
    """Validate the names of the families."""
    names = (families,) if isinstance(families, str) else tuple(families)
    unknown = [name for name in names if name not in COLUMN_CHOICES]
    if unknown or not names:
        raise ValueError(
            f"`families` must be among {', '.join(COLUMN_CHOICES)}; got {unknown or 'none'}."
        )
    return names
