"""Parameters of a mixture with several linear predictors a component, and their one order.

The vector holds component by component, and within it predictor by predictor, (beta_ja, b_ja[, log
dispersion_ja]); then for each component but the last the logit log(w_j / w_r).

Parameters of components with one direction each, and their place among free ones.

Rows with several responses in standardised coordinates, and the way back to the user's units.

Bounds of the parameters of several predictors: as in `moment_init.likelihood.parameters`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky

from moment_init.checks import FloatArray
from moment_init.data.standardising import Coordinates, fit_correlation, whiten_rows
from moment_init.likelihood.parameters import MIN_WEIGHT
from moment_init.responses.data import ResponsesData
from moment_init.responses.kinds import ResponseKind


@dataclass(frozen=True, slots=True, eq=False)
class JointParameters:
    """Parameters of a mixture whose rows have several predictors."""

    coefficients: FloatArray  # the coefficients beta_ja; (n_features, n_components, n_predictors)
    biases: FloatArray  # the intercepts b_ja; (n_components, n_predictors)
    weights: FloatArray  # probabilities of the components; (n_components,)
    # dispersion; NaN where a response has none, None if no response has one; (n_components,
    # n_predictors)
    dispersion: FloatArray | None = None

    @property
    def n_features(self) -> int:
        """Number of features, p."""
        return int(self.coefficients.shape[0])

    @property
    def n_components(self) -> int:
        """Number of components, r."""
        return int(self.coefficients.shape[1])

    @property
    def n_predictors(self) -> int:
        """Number of predictors of a component, P."""
        return int(self.coefficients.shape[2])

    @property
    def scales(self) -> FloatArray:
        """Lengths of the coefficients, shape (n_components, n_predictors)."""
        return np.asarray(np.linalg.norm(self.coefficients, axis=0))

    @property
    def directions(self) -> FloatArray:
        """Unit directions, shape (n_features, n_components, n_predictors)."""
        scales = self.scales
        return np.asarray(self.coefficients / np.where(scales > 0.0, scales, 1.0))

    def take(self, order: NDArray[np.intp] | list[int]) -> "JointParameters":
        """Take components in a given order; the weights are made to sum to one."""
        weights = self.weights[order]
        return JointParameters(
            self.coefficients[:, order],
            self.biases[order],
            weights / weights.sum(),
            None if self.dispersion is None else self.dispersion[order],
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the parameters in their vector."""

    n_features: int  # sizes p and r
    n_components: int  # sizes p and r
    has_dispersion: tuple[bool, ...]  # whether each predictor comes with a dispersion

    @property
    def component_size(self) -> int:
        """Number of entries that a component owns, q."""
        return len(self.has_dispersion) * (self.n_features + 1) + sum(self.has_dispersion)

    @property
    def size(self) -> int:
        """Number of parameters, r q + r - 1."""
        return self.n_components * self.component_size + self.n_components - 1

    @property
    def logits(self) -> slice:
        """Where the logits are."""
        return slice(self.n_components * self.component_size, self.size)

    def predictor(self, index: int) -> slice:
        """Where (beta, b) of a predictor are within a component."""
        start = index * (self.n_features + 1) + sum(self.has_dispersion[:index])
        return slice(start, start + self.n_features + 1)

    def component(self, index: int) -> slice:
        """Where the parameters of a component are."""
        return slice(index * self.component_size, (index + 1) * self.component_size)

    def pack(self, parameters: JointParameters) -> FloatArray:
        """Write parameters as a vector."""
        # -> (size,)
        vector = np.empty(self.size)
        for j in range(self.n_components):
            own = vector[self.component(j)]
            for a, has_dispersion in enumerate(self.has_dispersion):
                place = self.predictor(a)
                own[place] = [*parameters.coefficients[:, j, a], parameters.biases[j, a]]
                if has_dispersion and parameters.dispersion is not None:
                    own[place.stop] = np.log(parameters.dispersion[j, a])
        logits = np.log(parameters.weights)
        vector[self.logits] = logits[:-1] - logits[-1]
        return vector

    def unpack(self, vector: FloatArray) -> JointParameters:
        """Read parameters from a vector; the inverse of `pack`."""
        # vector: (size,)
        coefficients, biases, log_dispersion = self.entries(vector)
        dispersion = np.exp(log_dispersion) if any(self.has_dispersion) else None
        logits = np.append(vector[self.logits], 0.0)
        odds = np.exp(logits - logits.max())
        return JointParameters(coefficients, biases, odds / odds.sum(), dispersion)

    def entries(self, vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Entries of a vector that belong to components, as they are."""
        # vector: (size,) -> (n_features, n_components, n_predictors), (n_components, n_predictors),
        # (n_components, n_predictors)
        p, r, n_predictors = self.n_features, self.n_components, len(self.has_dispersion)
        coefficients, biases = np.empty((p, r, n_predictors)), np.empty((r, n_predictors))
        log_dispersion = np.full((r, n_predictors), np.nan)
        for j in range(r):
            own = vector[self.component(j)]
            for a, has_dispersion in enumerate(self.has_dispersion):
                place = self.predictor(a)
                coefficients[:, j, a], biases[j, a] = own[place][:p], own[place][p]
                if has_dispersion:
                    log_dispersion[j, a] = own[place.stop]
        return coefficients, biases, log_dispersion


@dataclass(frozen=True, slots=True, eq=False)
class TiedParameters:
    """Parameters of a mixture in which all predictors of a component have one direction."""

    directions: FloatArray  # unit directions u_j; (n_features, n_components)
    # scales s_ja, of either sign: the coefficients are s_ja u_j; (n_components, n_predictors)
    scales: FloatArray
    biases: FloatArray  # intercepts; (n_components, n_predictors)
    weights: FloatArray  # probabilities of the components; (n_components,)
    dispersion: FloatArray | None = None  # dispersion; (n_components, n_predictors)

    @property
    def free(self) -> JointParameters:
        """The same mixture by its coefficients."""
        coefficients = self.directions[:, :, None] * self.scales[None]
        return JointParameters(coefficients, self.biases, self.weights, self.dispersion)

    def take(self, order: NDArray[np.intp]) -> "TiedParameters":
        """Take components in another order."""
        return TiedParameters(
            self.directions[:, order],
            self.scales[order],
            self.biases[order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[order],
        )


@dataclass(frozen=True, slots=True)
class TiedPlaces:
    """Places of tied parameters in their vector, against those of free ones."""

    layout: Layout  # places of the free ones

    @property
    def component_size(self) -> int:
        """Entries of one component."""
        has_dispersion = self.layout.has_dispersion
        return self.layout.n_features + 2 * len(has_dispersion) + sum(has_dispersion)

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.layout.n_components * self.component_size + self.layout.n_components - 1

    def direction(self, component: int) -> slice:
        """Where a direction is."""
        start = component * self.component_size
        return slice(start, start + self.layout.n_features)

    def scale(self, component: int, predictor: int) -> int:
        """Where a scale is; bias and log dispersion follow."""
        before = sum(self.layout.has_dispersion[:predictor])
        first = (component * self.component_size) + self.layout.n_features
        return first + 2 * predictor + before

    def _pairs(self) -> list[tuple[int, int, int, slice]]:
        """Component, predictor, place of its scale, and place of its (beta, b) when free."""
        layout = self.layout
        result = []
        for j in range(layout.n_components):
            for a in range(len(layout.has_dispersion)):
                start, own = layout.component(j).start, layout.predictor(a)
                place = slice(start + own.start, start + own.stop)
                result.append((j, a, self.scale(j, a), place))
        return result

    def pack(self, parameters: TiedParameters) -> FloatArray:
        """Write parameters as a vector."""
        # -> (size,)
        vector = np.empty(self.size)
        for j, a, place, _ in self._pairs():
            vector[self.direction(j)] = parameters.directions[:, j]
            vector[place], vector[place + 1] = parameters.scales[j, a], parameters.biases[j, a]
            if self.layout.has_dispersion[a] and parameters.dispersion is not None:
                vector[place + 2] = np.log(parameters.dispersion[j, a])
        logits = np.log(parameters.weights)
        vector[self.layout.n_components * self.component_size :] = logits[:-1] - logits[-1]
        return vector

    def unpack(self, vector: FloatArray) -> TiedParameters:
        """Read parameters from a vector; directions are brought to length one."""
        # vector: (size,)
        layout = self.layout
        r, n_predictors = layout.n_components, len(layout.has_dispersion)
        scales, biases = np.empty((r, n_predictors)), np.empty((r, n_predictors))
        dispersion = np.full((r, n_predictors), np.nan) if any(layout.has_dispersion) else None
        for j, a, place, _ in self._pairs():
            scales[j, a], biases[j, a] = vector[place], vector[place + 1]
            if layout.has_dispersion[a] and dispersion is not None:
                dispersion[j, a] = np.exp(vector[place + 2])
        directions = np.column_stack([vector[self.direction(j)] for j in range(r)])
        lengths = np.maximum(np.linalg.norm(directions, axis=0), 1e-12)
        logits = np.append(vector[r * self.component_size :], 0.0)
        odds = np.exp(logits - logits.max())
        return TiedParameters(
            directions / lengths, scales * lengths[:, None], biases, odds / odds.sum(), dispersion
        )

    def jacobian(self, parameters: TiedParameters) -> FloatArray:
        """Derivative of the free vector in the tied one, (N, M)."""
        layout, p = self.layout, self.layout.n_features
        result = np.zeros((layout.size, self.size))
        for j, a, place, own in self._pairs():
            slopes = slice(own.start, own.start + p)
            result[slopes, self.direction(j)] = parameters.scales[j, a] * np.eye(p)
            result[slopes, place] = parameters.directions[:, j]
            result[own.stop - 1, place + 1] = 1.0
            if layout.has_dispersion[a]:
                result[own.stop, place + 2] = 1.0
        n_logits = layout.n_components - 1
        result[layout.size - n_logits :, self.size - n_logits :] = np.eye(n_logits)
        return result

    def curvature(self, gradient: FloatArray) -> FloatArray:
        """Second derivatives of the free vector times the score in it, (M, M)."""
        # gradient: (N,)
        result = np.zeros((self.size, self.size))
        for j, _, place, own in self._pairs():
            slopes = gradient[own.start : own.stop - 1]
            result[self.direction(j), place] = result[place, self.direction(j)] = slopes
        return result

    def gauge(self, parameters: TiedParameters) -> FloatArray:
        """Unit directions along which nothing changes: longer u_j, smaller s_ja, (M, r)."""
        result = np.zeros((self.size, self.layout.n_components))
        for j, a, place, _ in self._pairs():
            result[self.direction(j), j] = parameters.directions[:, j]
            result[place, j] = -parameters.scales[j, a]
        return np.asarray(result / np.linalg.norm(result, axis=0))

    def held(self, full: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Entries that are held, from those of the free vector: scales, not directions."""
        # full: (N,) -> (M,)
        result = np.zeros(self.size, dtype=bool)
        for _, a, place, own in self._pairs():
            result[place : place + 2] = full[own.start]
            if self.layout.has_dispersion[a]:
                result[place + 2] = full[own.stop]
        n_logits = self.layout.n_components - 1
        result[self.size - n_logits :] = full[self.layout.logits]
        return result

    def min_limit(self, full: FloatArray) -> NDArray[np.bool_]:
        """Entries whose change in one step is limited."""
        # full: (N,) -> (M,)
        return self.held(np.isfinite(full))


@dataclass(frozen=True, slots=True, eq=False)
class JointRows:
    """Rows over which a likelihood is summed."""

    Z: FloatArray  # inputs without a column of ones; (n_obs, n_features)
    y: FloatArray  # responses; (n_responses, n_obs)
    sample_weight: FloatArray  # weights; (n_obs,)
    offset: FloatArray | None = None  # known part of the predictors; (n_predictors, n_obs)
    n_trials: FloatArray | None = None  # trials; (n_responses, n_obs)

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return int(self.Z.shape[0])

    @property
    def total_weight(self) -> float:
        """Number of rows that these rows stand for."""
        return float(self.sample_weight.sum())

    def take(self, index: NDArray[np.intp] | slice) -> "JointRows":
        """Select rows."""
        return JointRows(
            self.Z[index],
            self.y[:, index],
            self.sample_weight[index],
            None if self.offset is None else self.offset[:, index],
            None if self.n_trials is None else self.n_trials[:, index],
        )


@dataclass(frozen=True, slots=True, eq=False)
class JointProblem:
    """Rows in standardised coordinates, and what is needed to fit them."""

    kind: ResponseKind  # how responses depend on predictors
    # whitened inputs; responses with the identity link have mean zero and variance one
    rows: JointRows
    coordinates: tuple[Coordinates, ...]  # the way to the user's units, one for each predictor
    n_components: int  # number of components
    min_dispersion_ratio: float  # hathaway's constraint

    @property
    def layout(self) -> Layout:
        """Places of the parameters in their vector."""
        return Layout(self.rows.Z.shape[1], self.n_components, self.kind.has_dispersion)

    @property
    def log_likelihood_shift(self) -> float:
        """What takes a log-likelihood to the user's units, with all constants."""
        rows = self.rows
        base = self.kind.log_base_measure(rows.y, rows.n_trials)
        logs = sum(np.log(each.response_scale) for each in self.coordinates)
        return float(rows.sample_weight @ base) - rows.total_weight * float(logs)

    def with_components(self, n_components: int) -> "JointProblem":
        """The same rows for another number of components."""
        return replace(self, n_components=n_components)

    def sample(self, n_rows: int, rng: np.random.Generator) -> "JointProblem":
        """Some of the rows, at random."""
        if self.rows.n_obs <= n_rows:
            return self
        index = np.sort(rng.choice(self.rows.n_obs, n_rows, replace=False))
        return replace(self, rows=self.rows.take(index))

    def to_user(self, parameters: JointParameters) -> JointParameters:
        """Map parameters to the user's units."""
        mapped = [
            where.coefficients_to_user(parameters.coefficients[:, :, a], parameters.biases[:, a])
            for a, where in enumerate(self.coordinates)
        ]
        scales = np.array([where.response_scale for where in self.coordinates])
        return JointParameters(
            np.stack([slopes for slopes, _ in mapped], axis=2),
            np.stack([levels for _, levels in mapped], axis=1),
            parameters.weights,
            None if parameters.dispersion is None else parameters.dispersion * scales,
        )

    def to_standardised(self, parameters: JointParameters) -> JointParameters:
        """Map parameters from the user's units."""
        mapped = [
            where.coefficients_to_standardised(
                parameters.coefficients[:, :, a], parameters.biases[:, a]
            )
            for a, where in enumerate(self.coordinates)
        ]
        scales = np.array([where.response_scale for where in self.coordinates])
        return JointParameters(
            np.stack([slopes for slopes, _ in mapped], axis=2),
            np.stack([levels for _, levels in mapped], axis=1),
            parameters.weights,
            None if parameters.dispersion is None else parameters.dispersion / scales,
        )

    def user_jacobian(self) -> FloatArray:
        """Derivative of the user's vector of parameters in the standardised one, (N, N)."""
        layout = self.layout
        p = layout.n_features
        result = np.eye(layout.size)
        for a, where in enumerate(self.coordinates):
            unit = Coordinates(where.mean, where.factor, 0.0, where.response_scale)
            slopes, levels = unit.coefficients_to_user(
                np.eye(p, p + 1), np.append(np.zeros(p), 1.0)
            )
            block = np.vstack([slopes, levels])
            for j in range(layout.n_components):
                start = layout.component(j).start + layout.predictor(a).start
                result[start : start + p + 1, start : start + p + 1] = block
        return result


def pose_joint(data: ResponsesData, n_components: int, min_dispersion_ratio: float) -> JointProblem:
    """Standardise rows."""
    fitted = fit_correlation(data.X, data.sample_weight, data.feature_names)
    factor = fitted.scales[:, None] * cholesky(fitted.correlation, lower=True)
    shares = data.sample_weight / data.sample_weight.sum()
    y, offset, coordinates = data.y.copy(), data.offset, []
    for index, has_units in enumerate(data.kind.has_units):
        shift, scale = 0.0, 1.0
        if has_units:
            if offset is not None:
                y[index] -= offset[index]
            shift = float(shares @ y[index])
            scale = float(np.sqrt(shares @ np.square(y[index] - shift)))
            y[index] = (y[index] - shift) / scale
        coordinates.append(Coordinates(fitted.mean, factor, shift, scale))
    if offset is not None:
        # The identity link's offsets are subtracted from the response.
        offset = np.where(np.array(data.kind.has_units)[:, None], 0.0, offset)
    rows = JointRows(
        whiten_rows(fitted.mean, factor, data.X), y, data.sample_weight, offset, data.n_trials
    )
    return JointProblem(data.kind, rows, tuple(coordinates), n_components, min_dispersion_ratio)


_CLOSE = 1e-9
"""A bound holds when it is this close, relative."""


def enforce(problem: JointProblem, parameters: JointParameters) -> JointParameters:
    """Move parameters inside the bounds."""
    lengths = _lengths(parameters)
    shrink = np.minimum(1.0, problem.kind.largest_predictor / np.maximum(lengths, 1e-300))
    dispersion = parameters.dispersion
    if dispersion is not None:
        low, high = _dispersion_range(problem, dispersion)
        dispersion = np.clip(dispersion, low, high)
    weights = np.maximum(parameters.weights, min(MIN_WEIGHT, 0.5 / parameters.n_components))
    return JointParameters(
        parameters.coefficients * shrink,
        parameters.biases * shrink,
        weights / weights.sum(),
        dispersion,
    )


def active_bounds(problem: JointProblem, parameters: JointParameters) -> tuple[str, ...]:
    """Say on which bounds parameters lie."""
    names = problem.kind.names
    found = [f"weight of component {j}" for j in np.flatnonzero(_low_weights(parameters))]
    is_long = _lengths(parameters) >= problem.kind.largest_predictor * (1 - _CLOSE)
    found += [f"length of component {j}, {names[a]}" for j, a in np.argwhere(is_long)]
    if parameters.dispersion is not None:
        low, high = _dispersion_range(problem, parameters.dispersion)
        value = parameters.dispersion
        is_there = (value <= low * (1 + _CLOSE)) | (value >= high * (1 - _CLOSE))
        found += [f"dispersion of component {j}, {names[a]}" for j, a in np.argwhere(is_there)]
    return tuple(found)


def held_entries(
    problem: JointProblem, parameters: JointParameters, gradient: FloatArray
) -> NDArray[np.bool_]:
    """Entries of the vector that a bound holds: the gradient points outwards there."""
    # gradient: (N,) -> (N,)
    layout = problem.layout
    held = np.zeros(layout.size, dtype=bool)
    is_long = _lengths(parameters) >= problem.kind.largest_predictor * (1 - _CLOSE)
    for j, a in np.argwhere(is_long):
        start = layout.component(j).start
        place = slice(start + layout.predictor(a).start, start + layout.predictor(a).stop)
        outwards = np.append(parameters.coefficients[:, j, a], parameters.biases[j, a])
        held[place] = outwards @ gradient[place] > 0.0
    if parameters.dispersion is not None:
        low, high = _dispersion_range(problem, parameters.dispersion)
        for j, a in np.argwhere(np.isfinite(parameters.dispersion)):
            place = layout.component(j).start + layout.predictor(a).stop
            value, slope = parameters.dispersion[j, a], gradient[place]
            is_low = value <= low[j, a] * (1 + _CLOSE) and slope < 0.0
            held[place] = is_low or (value >= high[j, a] * (1 - _CLOSE) and slope > 0.0)
    low_weights = _low_weights(parameters)[:-1]
    held[layout.logits] = low_weights & (gradient[layout.logits] < 0.0)
    return held


def _lengths(parameters: JointParameters) -> FloatArray:
    """Lengths of (beta, b), (n_components, n_predictors)."""
    squares = np.square(parameters.coefficients).sum(axis=0) + np.square(parameters.biases)
    return np.asarray(np.sqrt(squares))


def _low_weights(parameters: JointParameters) -> NDArray[np.bool_]:
    return np.asarray(parameters.weights <= MIN_WEIGHT * (1 + 1e-3))


def _dispersion_range(
    problem: JointProblem, dispersion: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest dispersion of every component and predictor."""
    low, high = np.zeros_like(dispersion), np.full_like(dispersion, np.inf)
    for a, family in enumerate(problem.kind.families):
        if family is None or not family.has_dispersion:
            continue
        low[:, a], high[:, a] = family.dispersion_bounds
        power = family.deviation_power
        if power is None:
            continue
        # Hathaway: the ratio of two deviations is bounded, from the side of the smaller one.
        deviation = np.clip(dispersion[:, a], *family.dispersion_bounds) ** power
        end = (problem.min_dispersion_ratio * deviation.max()) ** (1 / power)
        if power > 0:
            low[:, a] = np.maximum(low[:, a], end)
        else:
            high[:, a] = np.minimum(high[:, a], end)
    return low, high
