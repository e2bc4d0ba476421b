"""Where to look for scale, bias and dispersion of a component: grids as data, one for each link."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family

__all__ = ["GridPoints", "ParameterPrior", "StartGrid", "start_grid"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GridPoints:
    """Points of the grid.

    Parameters
    ----------
    scales, biases : numpy.ndarray, shape (n_points,)
        Scale and bias of each point.
    dispersion : numpy.ndarray, shape (n_points,), or None
        Dispersion of each point.
    """

    scales: FloatArray
    biases: FloatArray
    dispersion: FloatArray | None


@dataclass(frozen=True, slots=True)
class ParameterPrior:
    """Weak normal priors that keep the fit of noisy moments off the edge.

    Parameters
    ----------
    bias_mean, bias_deviation : float
        Of each bias.
    log_dispersion_mean, log_dispersion_deviation : float
        Of the logarithm of each dispersion.
    log_weight_deviation : float
        Of the logarithm of each weight around equal weights.
    """

    bias_mean: float
    bias_deviation: float
    log_dispersion_mean: float
    log_dispersion_deviation: float = 2.0
    log_weight_deviation: float = 3.0


@dataclass(frozen=True, slots=True)
class StartGrid:
    """Grid and prior of one link, in standardised coordinates.

    Parameters
    ----------
    scales : tuple of float
        Scales.
    bias_reach : float
        Biases go this far to both sides of their centre.
    n_biases : int
        Number of biases.
    dispersion : tuple of float
        Dispersions, for families that have one.
    bias_deviation : float
        Standard deviation of the prior of a bias.
    log_dispersion_mean : float
        Mean of the prior of a log dispersion.
    """

    scales: tuple[float, ...]
    bias_reach: float
    n_biases: int
    dispersion: tuple[float, ...]
    bias_deviation: float
    log_dispersion_mean: float

    def points(self, family: Family, centre: float) -> GridPoints:
        """All combinations.

        Parameters
        ----------
        family : Family
            Family of the response; says whether there is a dispersion.
        centre : float
            Centre of the biases.

        Returns
        -------
        GridPoints
            The points.
        """
        biases = centre + np.linspace(-self.bias_reach, self.bias_reach, self.n_biases)
        dispersion = self.dispersion if family.has_dispersion else (1.0,)
        axes = np.meshgrid(self.scales, biases, dispersion, indexing="ij")
        s, b, spread = (axis.ravel() for axis in axes)
        return GridPoints(s, b, spread if family.has_dispersion else None)

    def prior(self, centre: float) -> ParameterPrior:
        """The prior around a centre.

        Parameters
        ----------
        centre : float
            Centre of the biases.

        Returns
        -------
        ParameterPrior
            The prior.
        """
        return ParameterPrior(centre, self.bias_deviation, self.log_dispersion_mean)


# Half the variance of a predictor of scale .8: by so much the logarithm of the mean of exp(eta)
# exceeds the bias.
TYPICAL_LOG_EXCESS = 0.3

_BINARY_GRID = StartGrid(
    scales=(0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0),
    bias_reach=2.5,
    n_biases=11,
    dispersion=(),
    bias_deviation=3.0,
    log_dispersion_mean=0.0,
)

# Scales are those at which moments of the link differ by more than rounding; neighbours are near
# enough for the fit that follows to bridge them. The response of the identity link has variance
# one, so that scale and dispersion are at most about one there; a shape or alpha of .7 to 6
# reaches from more than exponential spread to nearly none.
_GRIDS: Mapping[str, StartGrid] = MappingProxyType(
    {
        "identity": StartGrid(
            scales=(0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7),
            bias_reach=1.2,
            n_biases=9,
            dispersion=(0.1, 0.25, 0.5, 0.8),
            bias_deviation=2.0,
            log_dispersion_mean=float(np.log(0.4)),
        ),
        "log": StartGrid(
            scales=(0.15, 0.3, 0.5, 0.7, 0.9, 1.2, 1.6),
            bias_reach=1.6,
            n_biases=9,
            dispersion=(0.7, 2.0, 6.0),
            bias_deviation=3.0,
            log_dispersion_mean=1.0,
        ),
        "logit": _BINARY_GRID,
        "probit": _BINARY_GRID,
    }
)


def start_grid(family: Family, mean_response: float) -> tuple[GridPoints, ParameterPrior]:
    """Grid and prior for a family.

    Parameters
    ----------
    family : Family
        Family of the response.
    mean_response : float
        Mean of the response, offset and trials removed, standardised for the identity link.

    Returns
    -------
    points : GridPoints
        Where to look.
    prior : ParameterPrior
        What to lean on.
    """
    grid = _GRIDS[family.link.name]
    centre = 0.0
    if family.link.third_derivative_sign == 1:  # the log link: the unit of the response is a shift
        centre = float(np.log(mean_response)) - TYPICAL_LOG_EXCESS
    return grid.points(family, centre), grid.prior(centre)
