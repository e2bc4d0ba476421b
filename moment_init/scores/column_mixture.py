"""A smooth density of a column without a family: a mixture of normals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from moment_init.scores.column_families import LOG_ROOT_TWO_PI

__all__ = ["ColumnMixture", "fit_column_mixture"]

FloatArray = NDArray[np.float64]

# EM steps for each number of normals; the density settles long before its parts do.
STEPS = 60

# A deviation below this share of the column's would be a spike, whose third derivative is noise.
SMALLEST_DEVIATION = 0.1

# Two or three normals are skewed or bimodal already; more than six follow the noise.
MOST_NORMALS = 6


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMixture:
    """Mixture of normals on the line.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n_normals,)
        Probabilities of the normals.
    means : numpy.ndarray, shape (n_normals,)
        Their means.
    deviations : numpy.ndarray, shape (n_normals,)
        Their standard deviations.
    """

    weights: FloatArray
    means: FloatArray
    deviations: FloatArray

    @property
    def family(self) -> str:
        """What it is called."""
        return f"mixture of {len(self.weights)} normals"

    @property
    def highest_order(self) -> int:
        """Highest order up to three whose score is valid: all are."""
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
            The derivatives, each of the shape of `x`.

        Notes
        -----
        Derivatives of p over p are averages of Hermite polynomials with the normals' posterior
        probabilities; those of log p follow from them.
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


def fit_column_mixture(values: FloatArray, weights: FloatArray, n_rows: float) -> ColumnMixture:
    """Fit mixtures of normals to a standardised column, the number by BIC.

    Parameters
    ----------
    values : numpy.ndarray, shape (n_values,)
        Distinct values.
    weights : numpy.ndarray, shape (n_values,)
        Share of the rows that each stands for; they sum to one.
    n_rows : float
        Number of rows.

    Returns
    -------
    ColumnMixture
        The fit.
    """

    def criterion(fitted: ColumnMixture) -> float:
        penalty = (3 * len(fitted.weights) - 1) * np.log(n_rows) / n_rows
        return float(penalty - 2.0 * weights @ fitted.log_density(values))

    best = _em(values, weights, 2)  # a single normal is a family of its own
    for number in range(3, MOST_NORMALS + 1):
        fitted = _em(values, weights, number)
        if criterion(fitted) >= criterion(best):
            break
        best = fitted
    return best


def _em(values: FloatArray, weights: FloatArray, number: int) -> ColumnMixture:
    """EM from normals at equal quantiles."""
    edges = np.cumsum(weights)
    quantiles = (np.arange(number) + 0.5) / number
    places = np.minimum(np.searchsorted(edges, quantiles), len(values) - 1)
    fitted = ColumnMixture(
        np.full(number, 1.0 / number), values[places], np.full(number, 1.2 / np.sqrt(number))
    )
    for _ in range(STEPS):
        joint = fitted._joint(values)
        # Written out: on some hundred values most of SciPy's time would go into its preparations.
        shares = np.exp(joint - joint.max(axis=1, keepdims=True))
        shares *= (weights / shares.sum(axis=1))[:, None]
        totals = np.maximum(shares.sum(axis=0), 1e-12)  # an empty normal stays where it is
        means = shares.T @ values / totals
        variances = np.sum(shares * np.square(values[:, None] - means), axis=0) / totals
        deviations = np.maximum(np.sqrt(variances), SMALLEST_DEVIATION)
        fitted = ColumnMixture(totals / totals.sum(), means, deviations)
    return fitted
