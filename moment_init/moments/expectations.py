r"""Expected functions of the response given its linear predictor, and given scale and bias.

.. math:: h_m(s, b) = E[T(y)\, He_m(z)] / \sqrt{m!}, \quad \eta = s z + b, \quad z \sim N(0, 1),

is what one component adds to the moment of order m along its own direction.

Where to look for scale, bias and dispersion of a component: grids as data, one for each link.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.families.base import Family
from moment_init.families.response_functions import ResponseFunctions
from moment_init.moments.subspace import hermite_polynomials
from moment_init.moments.sums import StackedRows

# The trapezoidal rule with spacing h has the error exp(-2 pi a / h) on an integrand that is
# analytic in a strip of half width a: pi / s for the logistic function at scale s, so 1e-17 at
# s = 2 and 5e-5 at s = 8. At 8 the normal density is 5e-15.
NODES = np.linspace(-8.0, 8.0, 65)

# Every second node, as far as the density is above 4e-6, where three digits are enough: the error
# is 6e-4 at s = 4 and a hundredth at s = 8.
ROUGH_NODES = NODES[12:-12:2]

# Representative pairs of offset and trials: the rows are cut into at most this many cells by the
# one and, within each, by the other, and a cell is represented by its medians. The variance that
# is left within 12 cells of equal size is a few per cent of that of the offset.
MAX_CELLS = 12

# Counts up to this multiple of the largest one seen, and some more, get a node of their own:
# the mixture may put more weight on the tail than the sample shows.
COUNT_MARGIN = 1.5
FEWEST_COUNTS = 20

# Above this count not every count is a node: the t-th node beyond it is at t + CURVATURE t^2, so
# that steps grow like the square root of the count and stay below a third of its standard
# deviation. A quarter of a million counts are then 4,000 nodes.
FULL_COUNTS = 200
CURVATURE = 1.0 / 64.0

# Linear predictors times nodes of the response that are evaluated at a time: 2**15 values of eight
# functions are 2 MiB and stay in the cache.
CHUNK_VALUES = 2**15


@dataclass(frozen=True, slots=True)
class Condition:
    """Known circumstances of a share of the rows."""

    share: float  # share of the weight of all rows
    offset: float = 0.0  # known part of the linear predictor
    n_trials: int | None = None  # trials, for the binomial family


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedFunctions:
    """Conditional expectations of the whitened functions of the response."""

    family: Family  # family of the response
    functions: ResponseFunctions  # the functions before whitening
    function_mean: FloatArray  # their means; (n_raw_functions,)
    # turns centred functions into whitened ones; (n_raw_functions, n_functions)
    function_map: FloatArray
    conditions: tuple[Condition, ...]  # offsets and trials over which expectations are averaged
    largest_count: int  # where the nodes of an unlimited count end; zero for other responses

    def given_predictor(self, eta: FloatArray, dispersion: FloatArray | None) -> FloatArray:
        """Expectation of every function at every linear predictor."""
        # eta: (n_rows, n_nodes), dispersion: (n_rows,) -> (n_rows, n_nodes, n_functions)
        total = np.zeros((*eta.shape, len(self.function_mean)))
        for condition in self.conditions:
            total += condition.share * self._under(condition, eta, dispersion)
        return np.asarray((total - self.function_mean) @ self.function_map)

    def component_moments(
        self,
        scales: FloatArray,
        biases: FloatArray,
        dispersion: FloatArray | None,
        max_order: int,
        *,
        is_rough: bool = False,
    ) -> FloatArray:
        """Moments of single components along their own directions."""
        # scales, biases: (n,), dispersion: (n,) -> (n, max_order + 1, n_functions)
        nodes = ROUGH_NODES if is_rough else NODES
        density = np.exp(-(nodes**2) / 2.0)
        polynomials = hermite_polynomials(nodes, max_order) * (density / density.sum())
        result = np.empty((len(scales), max_order + 1, self.function_map.shape[1]))
        chunk = max(1, CHUNK_VALUES // (len(nodes) * self._nodes_per_predictor()))
        for start in range(0, len(scales), chunk):
            part = slice(start, start + chunk)
            eta = scales[part, None] * nodes + biases[part, None]
            spread = None if dispersion is None else dispersion[part]
            result[part] = polynomials @ self.given_predictor(eta, spread)
        return result

    def _under(
        self, condition: Condition, eta: FloatArray, dispersion: FloatArray | None
    ) -> FloatArray:
        """Expectation of the functions before whitening under one condition."""
        nodes, weights = self._nodes(condition, eta + condition.offset, dispersion)
        flat = np.ravel(nodes)
        offset = np.full(flat.shape, condition.offset) if condition.offset else None
        response = self.family.moment_response(
            flat, order=1, offset=offset, n_trials=condition.n_trials
        )
        values = self.functions(response)
        if nodes.ndim == 1:  # the nodes are the same for every predictor
            return np.asarray(weights @ values)
        by_function = np.ascontiguousarray(values.T).reshape(-1, *nodes.shape)
        return np.asarray(np.einsum("f...k,...k->...f", by_function, weights))

    def _nodes(
        self, condition: Condition, eta: FloatArray, dispersion: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        """Quadrature of the response at every predictor; large counts by a thinned grid."""
        spread = None
        if dispersion is not None:
            spread = dispersion[:, None]  # not broadcast: quantiles of a row are found once
        if self.largest_count <= FULL_COUNTS:
            return self.family.response_nodes(
                eta, dispersion=spread, n_trials=condition.n_trials, most=self.largest_count
            )
        counts, steps = thinned_counts(self.largest_count)
        # The densities of counts are smooth between whole numbers too.
        log_density = self.family.log_density_eta(
            counts, eta[..., None], dispersion=None if spread is None else spread[..., None]
        )
        weights = np.exp(log_density) * steps
        weights[..., -1] += np.maximum(1.0 - weights.sum(axis=-1), 0.0)  # what lies beyond
        return counts, weights

    def _nodes_per_predictor(self) -> int:
        """Upper bound on the number of nodes of the response."""
        trials = [condition.n_trials or 0 for condition in self.conditions]
        return max(48, len(thinned_counts(self.largest_count)[0]), *trials) + 1


def thinned_counts(largest: int) -> tuple[FloatArray, FloatArray]:
    """Nodes for counts from 0: every one of the first 200, then fewer and fewer."""
    # -> (n_nodes,), (n_nodes,)
    beyond = max(0, largest - FULL_COUNTS)
    n_beyond = int(np.ceil((np.sqrt(1.0 + 4.0 * CURVATURE * beyond) - 1.0) / (2.0 * CURVATURE)))
    first = np.arange(min(largest, FULL_COUNTS) + 1.0)
    rest = np.arange(1.0, n_beyond + 1.0)
    counts = np.concatenate([first, FULL_COUNTS + rest + CURVATURE * rest**2])
    steps = np.concatenate([np.ones(len(first)), 1.0 + 2.0 * CURVATURE * rest])
    if n_beyond:
        # Euler-Maclaurin: where the slope of the integrand jumps by 2 CURVATURE times its value a
        # sum falls short of the integral by a twelfth of the jump.
        steps[FULL_COUNTS] += CURVATURE / 6.0
    return counts, steps


def expected_functions(data: RegressionData, rows: StackedRows) -> ExpectedFunctions:
    """Prepare the expectations that belong to the functions of some rows."""
    is_unlimited_count = data.family.response_basis.has_zero_indicator
    largest = int(COUNT_MARGIN * data.y.max()) + FEWEST_COUNTS if is_unlimited_count else 0
    return ExpectedFunctions(
        family=data.family,
        functions=rows.functions,
        function_mean=rows.function_mean,
        function_map=rows.function_map,
        conditions=representative_conditions(data),
        largest_count=largest,
    )


def representative_conditions(data: RegressionData) -> tuple[Condition, ...]:
    """Choose a few pairs of offset and trials that stand for all rows.

    Offsets and trials are independent of the input in this model, so that an expectation given the
    linear predictor is an average over them. An offset of the identity link is subtracted from
    the response exactly and needs no average.
    """
    offset = None if data.family.response_power else data.offset
    columns = [column for column in (data.n_trials, offset) if column is not None]
    is_varied = [column for column in columns if np.ptp(column) > 0.0]
    cells = [np.arange(data.n_obs)]
    # Two varied columns share the cells between them: a grid of 4 by 4 and not of 12 by 12.
    n_cells = MAX_CELLS if len(is_varied) < 2 else int(np.ceil(np.sqrt(MAX_CELLS)))
    for column in is_varied:
        cells = [part for cell in cells for part in _cut(cell, column, n_cells)]
    total = data.sample_weight.sum()
    conditions = []
    for cell in cells:
        conditions.append(
            Condition(
                share=float(data.sample_weight[cell].sum() / total),
                offset=0.0 if offset is None else _middle(offset[cell]),
                n_trials=None if data.n_trials is None else int(_middle(data.n_trials[cell])),
            )
        )
    return tuple(conditions)


def _middle(values: FloatArray) -> float:
    """A median that is one of the values."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _cut(cell: NDArray[np.intp], column: FloatArray, n_cells: int) -> list[NDArray[np.intp]]:
    """Cut rows into one cell for each value, or cells of equal size where values are many."""
    order = cell[np.argsort(column[cell], kind="stable")]
    values = column[order]
    changes = np.flatnonzero(np.diff(values)) + 1
    if len(changes) < n_cells:
        return np.split(order, changes)
    return [part for part in np.array_split(order, n_cells) if len(part)]


@dataclass(frozen=True, slots=True, eq=False)
class GridPoints:
    """Points of the grid."""

    scales: FloatArray  # scale and bias of each point; (n_points,)
    biases: FloatArray  # scale and bias of each point; (n_points,)
    dispersion: FloatArray | None  # dispersion of each point; (n_points,)


@dataclass(frozen=True, slots=True)
class ParameterPrior:
    """Weak normal priors that keep the fit of noisy moments off the edge."""

    bias_mean: float  # of each bias
    bias_deviation: float  # of each bias
    log_dispersion_mean: float  # of the logarithm of each dispersion
    log_dispersion_deviation: float = 2.0  # of the logarithm of each dispersion
    log_weight_deviation: float = 3.0  # of the logarithm of each weight around equal weights


@dataclass(frozen=True, slots=True)
class StartGrid:
    """Grid and prior of one link, in standardised coordinates."""

    scales: tuple[float, ...]  # scales
    bias_reach: float  # biases go this far to both sides of their centre
    n_biases: int  # number of biases
    dispersion: tuple[float, ...]  # dispersions, for families that have one
    bias_deviation: float  # standard deviation of the prior of a bias
    log_dispersion_mean: float  # mean of the prior of a log dispersion

    def points(self, family: Family, centre: float) -> GridPoints:
        """All combinations."""
        biases = centre + np.linspace(-self.bias_reach, self.bias_reach, self.n_biases)
        dispersion = self.dispersion if family.has_dispersion else (1.0,)
        axes = np.meshgrid(self.scales, biases, dispersion, indexing="ij")
        s, b, spread = (axis.ravel() for axis in axes)
        return GridPoints(s, b, spread if family.has_dispersion else None)

    def prior(self, centre: float) -> ParameterPrior:
        """The prior around a centre."""
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
    """Grid and prior for a family."""
    grid = _GRIDS[family.link.name]
    centre = 0.0
    if family.link.third_derivative_sign == 1:  # the log link: the unit of the response is a shift
        centre = float(np.log(mean_response)) - TYPICAL_LOG_EXCESS
    return grid.points(family, centre), grid.prior(centre)
