"""Which density a column has: families fitted by likelihood, chosen on rows they have not seen."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from moment_init.scores.column_families import COLUMN_FAMILIES, ColumnDensity
from moment_init.scores.column_mixture import ColumnMixture, fit_column_mixture

__all__ = ["COLUMN_CHOICES", "FittedColumn", "fit_column"]

FloatArray = NDArray[np.float64]

# Names that `fit_column` knows, in groups of equally many parameters, simplest first.
CHOICE_GROUPS = (
    ("normal", "logistic"),
    ("student_t", "skew_normal", "gamma", "lognormal"),
    ("mixture",),
)
COLUMN_CHOICES = tuple(name for group in CHOICE_GROUPS for name in group)
SKEWED = frozenset({"skew_normal", "gamma", "lognormal"})

# Families without skewness or with more of it are not tried where the column's is so many
# standard errors from what they could have; likewise heavy tails where the kurtosis is low.
SCREENING = 2.0

# A column is reduced to this many groups of neighbouring rows, and the outermost rows one by one:
# tails keep their shape, and a likelihood costs the same whatever the number of rows.
GROUPS = 400
SINGLE_ROWS = 100

# One row in so many judges the families that the others have fitted.
HELD_OUT = 5

# A family replaces a simpler one if its held-out log-likelihood is better by a standard error of
# the difference, and by three in total. Of nested families the needless one gains nothing, with a
# deviation of sqrt(.25 p) for p needless parameters on a quarter as many rows as were fitted:
# three is then four deviations or more.
STANDARD_ERRORS = 1.0
LEAST_GAIN = 3.0

# A row outside the support of a fitted family costs so much log-likelihood: the edge is uncertain
# by the distance of the outermost rows, so that one row among thousands must not rule it out.
PRICE_OUTSIDE = 10.0

# Shapes are searched for on the log scale between these: a t of 2.05 degrees has a variance just
# so; a gamma of shape 400 has a skewness of .1, and a lognormal of .03 the same.
SHAPE_BOUNDS = {
    "student_t": (2.05, 200.0),
    "skew_normal": (0.05, 30.0),
    "gamma": (1.05, 400.0),
    "lognormal": (0.03, 1.5),
}


@dataclass(frozen=True, slots=True, eq=False)
class FittedColumn:
    """The density that was chosen for a column.

    Parameters
    ----------
    density : ColumnDensity or ColumnMixture
        The density.
    held_out : dict of str to float
        Mean log-likelihood of each choice on the rows held out, less the normal's.
    """

    density: ColumnDensity | ColumnMixture
    held_out: dict[str, float]


def fit_column(x: FloatArray, weights: FloatArray, choices: tuple[str, ...]) -> FittedColumn:
    """Fit a column by every family that may be chosen, and choose.

    Parameters
    ----------
    x : numpy.ndarray, shape (n_obs,)
        Values of the column.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    choices : tuple of str
        Names out of `COLUMN_CHOICES`.

    Returns
    -------
    FittedColumn
        The density in the units of the column, fitted to all rows.
    """
    total = weights.sum()
    mean = float(weights @ x / total)
    deviation = float(np.sqrt(weights @ np.square(x - mean) / total))
    z = (x - mean) / deviation
    everything = _reduce(z, weights)
    if len(choices) == 1:
        return FittedColumn(_in_units(_fit(choices[0], *everything), mean, deviation), {})
    tested = np.arange(len(z)) % HELD_OUT == 0
    training = _reduce(z[~tested], weights[~tested])
    rows, shares = z[tested], weights[tested] / weights[tested].sum()
    reference = -0.5 * np.square(rows) - 0.5 * np.log(2.0 * np.pi)
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
    return FittedColumn(_in_units(_fit(kept, *everything), mean, deviation), held_out)


def _is_possible(name: str, values: FloatArray, shares: FloatArray, n_rows: float) -> bool:
    """Whether skewness and kurtosis of a standardised column speak against a family."""
    if name in SKEWED:
        return bool(abs(shares @ values**3) > SCREENING * np.sqrt(6.0 / n_rows))
    if name in ("logistic", "student_t"):
        return bool(shares @ values**4 - 3.0 > -SCREENING * np.sqrt(24.0 / n_rows))
    return True


def _gain(
    density: ColumnDensity | ColumnMixture, rows: FloatArray, reference: FloatArray
) -> FloatArray:
    """Log-likelihood of rows over a reference, a row outside the support at a finite price."""
    values = density.log_density(rows)
    return np.where(np.isfinite(values), values, reference - PRICE_OUTSIDE) - reference


def _is_better(gain: FloatArray, other: FloatArray, shares: FloatArray) -> bool:
    """Whether a log-likelihood exceeds another clearly, or there is no other."""
    if not np.isfinite(other).all():
        return True
    difference = gain - other
    mean = float(shares @ difference)
    error = np.sqrt(np.square(shares) @ np.square(difference - mean))
    n_rows = 1.0 / np.square(shares).sum()
    return bool(mean > max(STANDARD_ERRORS * error, LEAST_GAIN / n_rows))


def _reduce(z: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Groups of neighbouring rows: their means and shares of the weight, and the number of rows."""
    order = np.argsort(z)
    values, sizes = z[order], weights[order]
    n_rows = float(sizes.sum() ** 2 / np.square(sizes).sum())
    if len(values) > GROUPS + 2 * SINGLE_ROWS:
        outer = np.arange(SINGLE_ROWS)
        inner = np.linspace(SINGLE_ROWS, len(values) - SINGLE_ROWS, GROUPS, endpoint=False)
        starts = np.concatenate([outer, inner.astype(int), len(values) - SINGLE_ROWS + outer])
        totals = np.add.reduceat(sizes, starts)
        # A group may have no weight at all; its place does not matter then.
        values = np.add.reduceat(sizes * values, starts) / np.maximum(totals, 1e-300)
        sizes = totals
    is_counted = sizes > 0.0
    return values[is_counted], sizes[is_counted] / sizes.sum(), n_rows


def _fit(
    name: str, values: FloatArray, shares: FloatArray, n_rows: float
) -> ColumnDensity | ColumnMixture:
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

    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return build(found.x)


type _Build = Callable[[FloatArray], ColumnDensity]
type _Bounds = list[tuple[float | None, float | None]]


def _parametrise(name: str, values: FloatArray, sign: float) -> tuple[_Build, FloatArray, _Bounds]:
    """Map from free parameters to a density, with start and bounds; the column is standardised.

    Free are location and log scale, and the log of the shape. A positive form has its location
    below all values, by the exponential of its first parameter.
    """
    shape_bounds = [tuple(np.log(SHAPE_BOUNDS[name]))] if name in SHAPE_BOUNDS else []
    bounds: _Bounds = [(-4.0, 4.0), (-4.0, 4.0), *shape_bounds]
    if not COLUMN_FAMILIES[name].is_positive:

        def build(parameters: FloatArray) -> ColumnDensity:
            shapes = tuple(float(value) for value in np.exp(parameters[2:]))
            scale = sign * float(np.exp(parameters[1]))
            return ColumnDensity(name, float(parameters[0]), scale, shapes)

        starts = {"logistic": [0.0, -0.6], "student_t": [0.0, -0.1, np.log(8.0)]}
        return build, np.array(starts.get(name, [-sign, 0.3, np.log(2.0)])), bounds
    lowest = float((sign * values).min())

    def build_positive(parameters: FloatArray) -> ColumnDensity:
        distance, scale, shape = (float(value) for value in np.exp(parameters))
        # Half the distance of the outermost row from the edge: a row farther out is not known.
        edge = 0.5 * distance / scale
        return ColumnDensity(name, sign * (lowest - distance), sign * scale, (shape,), edge)

    # The skewness of values in standard units starts gamma (4 / skewness^2) and lognormal
    # (a third of it, to first order).
    skewness = float(np.clip(np.mean((sign * values) ** 3), 0.2, 2.0))
    if name == "gamma":
        guess = [4.0 / skewness**2, skewness / 2.0]
        depth = guess[0] * guess[1]
    else:
        guess = [skewness / 3.0, 3.0 / skewness]
        depth = guess[1] * np.exp(guess[0] ** 2 / 2.0)
    distance = max(depth + lowest, 0.05)
    start = np.log([distance, guess[1], guess[0]])
    return build_positive, start, [(-8.0, 5.0), (-8.0, 5.0), *shape_bounds]


def _in_units(
    density: ColumnDensity | ColumnMixture, mean: float, deviation: float
) -> ColumnDensity | ColumnMixture:
    """Undo the standardisation of the column."""
    if isinstance(density, ColumnMixture):
        return ColumnMixture(
            density.weights, mean + deviation * density.means, deviation * density.deviations
        )
    return replace(
        density, location=mean + deviation * density.location, scale=deviation * density.scale
    )
