"""Densities of a single column, with derivatives of their logarithm up to the third."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln, log_ndtr

__all__ = ["COLUMN_FAMILIES", "ColumnDensity", "ColumnFamily"]

FloatArray = NDArray[np.float64]
Derivatives = tuple[FloatArray, FloatArray, FloatArray]

LOG_ROOT_TWO_PI = 0.5 * float(np.log(2.0 * np.pi))


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A location-scale family on the line, in standard form.

    Parameters
    ----------
    name : str
        What it is called.
    n_shapes : int
        Number of shape parameters.
    is_positive : bool
        Whether the standard form lives on (0, inf).
    log_density : callable
        Maps standardised values u and shapes to the log-density.
    derivatives : callable
        Maps the same to the first three derivatives of it in u.
    moments : callable
        Maps shapes to mean and variance of u.
    highest_order : callable
        Maps shapes to the highest order up to three whose score is valid.
    """

    name: str
    n_shapes: int
    is_positive: bool
    log_density: Callable[[FloatArray, tuple[float, ...]], FloatArray]
    derivatives: Callable[[FloatArray, tuple[float, ...]], Derivatives]
    moments: Callable[[tuple[float, ...]], tuple[float, float]]
    highest_order: Callable[[tuple[float, ...]], int] = lambda shapes: 3


@dataclass(frozen=True, slots=True)
class ColumnDensity:
    """A member of a family: the density of one column.

    Parameters
    ----------
    family : str
        Name of the family, one of `COLUMN_FAMILIES`.
    location : float
        Where the standard form has its zero.
    scale : float
        Size of its unit; negative where the form is reflected.
    shapes : tuple of float
        Shape parameters, as many as the family has.
    edge : float
        Positive forms only: smaller standardised values are treated as this one, so that a row
        just outside the support has finite scores.
    """

    family: str
    location: float = 0.0
    scale: float = 1.0
    shapes: tuple[float, ...] = ()
    edge: float = 1e-3

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises
        ------
        ValueError
            For an unknown family, a wrong number of shapes, or a scale of zero.
        """
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
        """Highest order up to three whose score is valid."""
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
            The derivatives, each of the shape of `x`.
        """
        u = self._inside((x - self.location) / self.scale)
        first, second, third = COLUMN_FAMILIES[self.family].derivatives(u, self.shapes)
        return first / self.scale, second / self.scale**2, third / self.scale**3

    def _inside(self, u: FloatArray) -> FloatArray:
        """Standardised values, moved into the support."""
        return np.maximum(u, self.edge) if COLUMN_FAMILIES[self.family].is_positive else u


def _normal_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray(-0.5 * np.square(u) - LOG_ROOT_TWO_PI)


def _normal_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    return -u, np.full_like(u, -1.0), np.zeros_like(u)


def _logistic_log(u: FloatArray, shapes: tuple[float, ...]) -> FloatArray:
    return np.asarray(-np.abs(u) - 2.0 * np.log1p(np.exp(-np.abs(u))))


def _logistic_derivatives(u: FloatArray, shapes: tuple[float, ...]) -> Derivatives:
    share = expit(u)
    slope = share * expit(-u)
    return 1.0 - 2.0 * share, -2.0 * slope, -2.0 * slope * (1.0 - 2.0 * share)


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


def _gamma_order(shapes: tuple[float, ...]) -> int:
    """The density is u^(a - 1) at zero: its derivative of order m - 1 vanishes there if a > m."""
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
            ColumnFamily(
                "normal", 0, False, _normal_log, _normal_derivatives, lambda shapes: (0.0, 1.0)
            ),
            ColumnFamily(
                "logistic",
                0,
                False,
                _logistic_log,
                _logistic_derivatives,
                lambda shapes: (0.0, float(np.pi**2 / 3.0)),
            ),
            ColumnFamily(
                "student_t", 1, False, _student_log, _student_derivatives, _student_moments
            ),
            ColumnFamily("skew_normal", 1, False, _skew_log, _skew_derivatives, _skew_moments),
            ColumnFamily(
                "gamma",
                1,
                True,
                _gamma_log,
                _gamma_derivatives,
                lambda shapes: (shapes[0], shapes[0]),
                _gamma_order,
            ),
            ColumnFamily(
                "lognormal",
                1,
                True,
                _lognormal_log,
                _lognormal_derivatives,
                _lognormal_moments,
            ),
        )
    }
)
"""Families by name, fewest parameters first."""
