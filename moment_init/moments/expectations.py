r"""Expected functions of the response given scale and bias, and the grid of starting values.

.. math:: h_m(s, b) = E[T(y)\, He_m(z)] / \sqrt{m!}, \quad \eta = s z + b, \quad z \sim N(0, 1),

is what one component contributes to the moment of order m along its direction. Expectations given
the linear predictor are averages over representative offsets and trials. For each link, a grid of
scales, biases and dispersions provides starting values for a fit to the moments.
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

# Every second node with a density above 4e-6, for uses that need only three digits: the error is
# 6e-4 at s = 4 and a hundredth at s = 8.
ROUGH_NODES = NODES[12:-12:2]

# Number of representative pairs of offset and trials: the rows are divided into cells by trials
# and, within these, by offset, and the medians of a cell represent it. Within 12 cells of equal
# size only a few per cent of the variance of the offset are left.
MAX_CELLS = 12

# The nodes of a count reach this multiple of the largest observed count, plus `FEWEST_COUNTS`: the
# mixture may put more weight on the tail than the sample shows.
COUNT_MARGIN = 1.5
FEWEST_COUNTS = 20

# Above this count not every count is a node: the t-th node beyond it lies t + CURVATURE t^2 above
# it, so that steps grow like the square root of the count and stay below a third of its standard
# deviation. A quarter of a million counts then need 4,000 nodes.
FULL_COUNTS = 200
CURVATURE = 1.0 / 64.0

# Number of linear predictors times response nodes evaluated at a time: 2**15 values of eight
# functions are 2 MiB and stay in the cache.
CHUNK_VALUES = 2**15


@dataclass(frozen=True, slots=True)
class Condition:
    """Offset and number of trials that represent a share of the rows."""

    share: float  # share of the weight of all rows
    offset: float = 0.0  # known part of the linear predictor
    n_trials: int | None = None  # number of trials, for the binomial family


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedFunctions:
    """Conditional expectations of the whitened functions of the response."""

    family: Family
    functions: ResponseFunctions  # the functions before whitening
    function_mean: FloatArray  # means of the functions; (n_raw_functions,)
    # maps centred functions to whitened ones; (n_raw_functions, n_functions)
    function_map: FloatArray
    conditions: tuple[Condition, ...]  # offsets and trials over which expectations are averaged
    largest_count: int  # last node of an unlimited count; zero for other responses

    def given_predictor(self, eta: FloatArray, dispersion: FloatArray | None) -> FloatArray:
        """Compute the expectation of every function at every linear predictor."""
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
        """Compute the moments h_m of single components along their directions."""
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
        """Compute the expectation of the unwhitened functions under one condition."""
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
        """Return quadrature nodes and weights of the response; large counts use a thinned grid."""
        spread = None
        if dispersion is not None:
            spread = dispersion[:, None]  # not broadcast: the quantiles of a row are computed once
        if self.largest_count <= FULL_COUNTS:
            return self.family.response_nodes(
                eta, dispersion=spread, n_trials=condition.n_trials, most=self.largest_count
            )
        counts, steps = thinned_counts(self.largest_count)
        # The densities of counts are also smooth between whole numbers.
        log_density = self.family.log_density_eta(
            counts, eta[..., None], dispersion=None if spread is None else spread[..., None]
        )
        weights = np.exp(log_density) * steps
        # The last node takes the probability beyond it.
        weights[..., -1] += np.maximum(1.0 - weights.sum(axis=-1), 0.0)
        return counts, weights

    def _nodes_per_predictor(self) -> int:
        """Bound the number of nodes of the response from above."""
        trials = [condition.n_trials or 0 for condition in self.conditions]
        return max(48, len(thinned_counts(self.largest_count)[0]), *trials) + 1


def thinned_counts(largest: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes for counts and their weights: every count up to 200, then wider steps."""
    # -> (n_nodes,), (n_nodes,)
    beyond = max(0, largest - FULL_COUNTS)
    n_beyond = int(np.ceil((np.sqrt(1.0 + 4.0 * CURVATURE * beyond) - 1.0) / (2.0 * CURVATURE)))
    first = np.arange(min(largest, FULL_COUNTS) + 1.0)
    rest = np.arange(1.0, n_beyond + 1.0)
    counts = np.concatenate([first, FULL_COUNTS + rest + CURVATURE * rest**2])
    steps = np.concatenate([np.ones(len(first)), 1.0 + 2.0 * CURVATURE * rest])
    if n_beyond:
        # The slope of the integrand jumps here by 2 CURVATURE times its value. By Euler-Maclaurin,
        # the sum is less than the integral by a twelfth of this jump.
        steps[FULL_COUNTS] += CURVATURE / 6.0
    return counts, steps


def expected_functions(data: RegressionData, rows: StackedRows) -> ExpectedFunctions:
    """Prepare the expectations of the response functions of the given rows."""
    is_unlimited_count = data.single_family.response_basis.has_zero_indicator
    largest = int(COUNT_MARGIN * data.y.max()) + FEWEST_COUNTS if is_unlimited_count else 0
    return ExpectedFunctions(
        family=data.single_family,
        functions=rows.functions,
        function_mean=rows.function_mean,
        function_map=rows.function_map,
        conditions=representative_conditions(data),
        largest_count=largest,
    )


def representative_conditions(data: RegressionData) -> tuple[Condition, ...]:
    """Choose a few pairs of offset and trials that represent all rows.

    The model assumes that offsets and trials are independent of the input, so that an expectation
    given the linear predictor is an average over them. With the identity link the offset is
    subtracted from the response exactly and needs no average.
    """
    offset = None if data.family.response_power else data.offset
    columns = [column for column in (data.n_trials, offset) if column is not None]
    varied = [column for column in columns if np.ptp(column) > 0.0]
    cells = [np.arange(data.n_obs)]
    # Two columns that vary give a grid of 4 by 4 cells, not of 12 by 12.
    n_cells = MAX_CELLS if len(varied) < 2 else int(np.ceil(np.sqrt(MAX_CELLS)))
    for column in varied:
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
    """Return the upper median, which is one of the values."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _cut(cell: NDArray[np.intp], column: FloatArray, n_cells: int) -> list[NDArray[np.intp]]:
    """Split rows into one cell per value, or into cells of equal size if values are many."""
    order = cell[np.argsort(column[cell], kind="stable")]
    values = column[order]
    changes = np.flatnonzero(np.diff(values)) + 1
    if len(changes) < n_cells:
        return np.split(order, changes)
    return [part for part in np.array_split(order, n_cells) if len(part)]


@dataclass(frozen=True, slots=True, eq=False)
class GridPoints:
    """Points of the grid of starting values."""

    scales: FloatArray  # (n_points,)
    biases: FloatArray  # (n_points,)
    dispersion: FloatArray | None  # (n_points,); None for families without dispersion


@dataclass(frozen=True, slots=True)
class ParameterPrior:
    """Weak normal priors that keep the fit of noisy moments away from the boundary."""

    bias_mean: float  # mean of each bias
    bias_deviation: float  # standard deviation of each bias
    log_dispersion_mean: float  # mean of the logarithm of each dispersion
    log_dispersion_deviation: float = 2.0  # standard deviation of the same
    log_weight_deviation: float = 3.0  # standard deviation of a log weight around equal weights


@dataclass(frozen=True, slots=True)
class StartGrid:
    """Grid and prior of one link, in standardised coordinates."""

    scales: tuple[float, ...]
    bias_reach: float  # biases lie within this distance of their centre
    n_biases: int
    dispersion: tuple[float, ...]  # used for families with dispersion
    bias_deviation: float  # prior standard deviation of a bias
    log_dispersion_mean: float  # prior mean of a log dispersion

    def points(self, family: Family, centre: float) -> GridPoints:
        """Combine all scales, biases and dispersions."""
        biases = centre + np.linspace(-self.bias_reach, self.bias_reach, self.n_biases)
        dispersion = self.dispersion if family.has_dispersion else (1.0,)
        axes = np.meshgrid(self.scales, biases, dispersion, indexing="ij")
        s, b, spread = (axis.ravel() for axis in axes)
        return GridPoints(s, b, spread if family.has_dispersion else None)

    def prior(self, centre: float) -> ParameterPrior:
        """Centre the prior of the biases."""
        return ParameterPrior(centre, self.bias_deviation, self.log_dispersion_mean)


# Excess of log E[exp(eta)] over the bias: half the variance of a predictor of scale 0.8.
TYPICAL_LOG_EXCESS = 0.3

_BINARY_GRID = StartGrid(
    scales=(0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0),
    bias_reach=2.5,
    n_biases=11,
    dispersion=(),
    bias_deviation=3.0,
    log_dispersion_mean=0.0,
)

# At these scales the moments of the link differ by more than rounding, and the fit that follows can
# move from one scale to the next. With the identity link the response has variance one, so that
# scale and dispersion are at most about one. A shape or alpha of 0.7 to 6 covers more than
# exponential spread down to almost none.
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
    """Return the grid and the prior for a family."""
    grid = _GRIDS[family.link.name]
    centre = 0.0
    if family.link.third_derivative_sign == 1:  # log link: the unit of the response shifts the bias
        centre = float(np.log(mean_response)) - TYPICAL_LOG_EXCESS
    return grid.points(family, centre), grid.prior(centre)
