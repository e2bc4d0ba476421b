"""The grid of the honest map: families, weights, sizes, rows per parameter."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Literal

from benchmarks.random_mixtures import RandomMixture

__all__ = ["CELLS", "QUICK_CELLS", "SHAPES", "WEIGHTS", "MapCell", "Weights"]

Weights = Literal["balanced", "uneven", "rare"]

SHAPES = ((2, 3), (8, 2), (8, 4), (20, 3))
"""Features and components: fewer features than components, few or many of either."""

WEIGHTS: Mapping[Weights, Mapping[int, tuple[float, ...] | None]] = MappingProxyType(
    {
        "balanced": {2: None, 3: None, 4: None},
        "uneven": {2: (0.75, 0.25), 3: (0.6, 0.3, 0.1), 4: (0.45, 0.3, 0.15, 0.1)},
        "rare": {2: (0.95, 0.05), 3: (0.85, 0.1, 0.05), 4: (0.7, 0.15, 0.1, 0.05)},
    }
)


@dataclass(frozen=True, slots=True)
class _Signal:
    """Standard deviation of the linear predictor, and numbers of rows per parameter."""

    predictor_sd: float
    bias_sd: float
    noise: float | None
    rows_per_parameter: tuple[int, ...]


# A binary response carries less information: with ten rows per parameter, its maximum is far
# from the truth, whichever start finds it.
SIGNALS: Mapping[str, _Signal] = MappingProxyType(
    {
        "gaussian": _Signal(1.0, 0.5, 0.3, (10, 80)),
        "poisson": _Signal(1.0, 0.7, None, (10, 80)),
        "bernoulli": _Signal(3.0, 0.5, None, (40, 160)),
    }
)


@dataclass(frozen=True, slots=True)
class MapCell:
    """A cell of the map: a kind of random mixture."""

    family: str  # family of the response
    weights: Weights  # key of `WEIGHTS`
    n_features: int
    n_components: int
    rows_per_parameter: int  # number of rows over number of free parameters

    @property
    def n_parameters(self) -> int:
        """Number of coefficients, biases, free weights and (if any) dispersions."""
        per_component = self.n_features + 1 + (SIGNALS[self.family].noise is not None)
        return self.n_components * per_component + self.n_components - 1

    @property
    def mixture(self) -> RandomMixture:
        """The mixture to draw from."""
        signal = SIGNALS[self.family]
        return RandomMixture(
            f"{self.family}, {self.weights}",
            self.family,
            self.rows_per_parameter * self.n_parameters,
            self.n_features,
            self.n_components,
            coefficient_sd=signal.predictor_sd / math.sqrt(self.n_features),
            bias_sd=signal.bias_sd,
            weights=WEIGHTS[self.weights][self.n_components],
            noise=signal.noise,
        )


CELLS = tuple(
    MapCell(family, weights, *shape, rows)
    for family, signal in SIGNALS.items()
    for shape, weights, rows in product(SHAPES, WEIGHTS, signal.rows_per_parameter)
)

QUICK_CELLS = tuple(
    MapCell(family, weights, 8, 2, rows)
    for family, rows in (("gaussian", 10), ("poisson", 10))
    for weights in WEIGHTS
)
