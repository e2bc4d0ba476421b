"""Pose a fit by EM: standardised rows, restrictions, and the maps to the user's units and back.

`pose_em` standardises checked rows (inputs whitened, real responses and gating covariates scaled),
so that nothing depends on units, and puts the rows of a group together. `EMProblem` climbs from a
start under the restrictions, and maps parameters and their vector to the user's units and back.
`validate_restrictions` checks which parameters are shared between components or fixed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag, cholesky
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, as_float_array
from moment_init.data.blocks import is_mapped, read_block, row_blocks
from moment_init.data.checking import RegressionData, group_order
from moment_init.data.standardising import (
    Coordinates,
    InputRows,
    ResponseUnits,
    fit_correlation,
    response_units,
    whiten_rows,
)
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult, maximise
from moment_init.likelihood.parameters import (
    MIN_DISPERSION_RATIO,
    MIN_WEIGHT,
    LinearConstraint,
    MixtureParameters,
    parameter_count,
)
from moment_init.likelihood.rows import MAX_STORED_DOUBLES, LikelihoodRows, likelihood_rows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    LogPrior,
    likelihood_sums,
    parameter_free_log_likelihood,
)

IndexArray = NDArray[np.intp]

_SMALLEST_LENGTH = 1e-300
"""Lower limit of a length, so that the direction of a component without slopes stays finite."""


@dataclass(frozen=True, slots=True, eq=False)
class GateCoordinates:
    """Location and scale of the gating covariates."""

    mean: FloatArray  # (n_gate,)
    scales: FloatArray  # standard deviations; (n_gate,)
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Restrictions:
    """Which parameters the components share, and which are fixed.

    With several linear predictors, each has its own shared parameters.
    """

    shared_features: tuple[int, ...] = ()  # columns whose coefficients are common to all components
    has_shared_bias: bool = False
    has_shared_dispersion: bool = False
    weights: FloatArray | None = None  # fixed weights; (n_components,)
    # fixed directions in the user's units, (n_features, n_components); the rows then contain the
    # projected inputs
    directions: FloatArray | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is shared or fixed."""
        shared = self.shared_features or self.has_shared_bias or self.has_shared_dispersion
        return not shared and self.weights is None and self.directions is None

    @property
    def is_labelled(self) -> bool:
        """Whether the order of components matters, because weights or directions are fixed."""
        return self.weights is not None or self.directions is not None


@dataclass(frozen=True, slots=True, eq=False)
class EMProblem:
    """Rows to fit by a mixture with a given number of components."""

    family: AnyFamily
    n_components: int
    rows: LikelihoodRows  # standardised rows; the rows of a group are contiguous
    # of inputs and response in the user's units, one for each linear predictor
    coordinates: tuple[Coordinates, ...]
    gate_coordinates: GateCoordinates | None = None  # of the gating covariates
    restrictions: Restrictions = Restrictions()
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO  # Hathaway's constraint
    # part of the log-likelihood that does not depend on parameters, once `prepared`
    constant: float | None = None
    prior: LogPrior | None = None  # None for maximum likelihood

    @property
    def log_jacobian(self) -> float:
        """Constant to subtract from a log-likelihood to get it in the user's units."""
        return self.rows.total_weight * float(np.log(self._response_scales).sum())

    @property
    def _response_scales(self) -> FloatArray:
        return np.array([where.response_scale for where in self.coordinates])

    def with_rows(self, rows: LikelihoodRows) -> "EMProblem":
        """Return the same problem with other rows, for instance a sample."""
        return replace(self, rows=rows, constant=None)

    def prepared(self) -> "EMProblem":
        """Return the same problem with quantities precomputed that every climb needs."""
        if self.constant is not None:
            return self
        constant = parameter_free_log_likelihood(self.family, self.rows)
        return replace(self, rows=self.rows.prepared(self.family), constant=constant)

    def climb(self, start: MixtureParameters, **options: Any) -> MaximiseResult:
        """Climb under the restrictions from a start with any number of components."""
        admissible = self._shortened(self.admit(start))
        return maximise(
            self.family,
            self.rows,
            admissible,
            min_weight=0.0 if self._holds_weights(start) else self.min_weight,
            min_dispersion_ratio=self.min_dispersion_ratio,
            constraint=self.constraint(admissible),
            constant=self.constant,
            prior=self.prior,
            **options,
        )

    def sums(self, parameters: MixtureParameters, *, curvature: bool = True) -> LikelihoodSums:
        """Sum log-likelihood and derivatives over the rows, and add those of the log prior."""
        sums = likelihood_sums(
            self.family, self.rows, parameters, curvature=curvature, constant=self.constant
        )
        return sums if self.prior is None else self.prior.add_to(sums, parameters)

    def _shortened(self, parameters: MixtureParameters) -> MixtureParameters:
        """Shorten too long predictors of all components alike, so that restrictions hold."""
        if self.restrictions.is_empty:
            return parameters  # each is shortened alone
        slopes, levels = parameters.slopes, parameters.levels
        lengths = np.hypot(np.linalg.norm(slopes, axis=1), levels).max(axis=1)  # (P,)
        largest = [family.link.largest_predictor for family in self.family.predictor_families]
        share = np.minimum(1.0, np.array(largest) / np.maximum(lengths, _SMALLEST_LENGTH))
        return replace(
            parameters,
            coefficients=(slopes * share[:, None, None]).reshape(parameters.coefficients.shape),
            biases=(levels * share[:, None]).reshape(parameters.biases.shape),
        )

    def ungated(self) -> "EMProblem":
        """Return the same problem without a gate."""
        return replace(self, rows=self.rows.map(replace, gate=None), gate_coordinates=None)

    def own_starts(self, rng: np.random.Generator) -> list[tuple[str, MixtureParameters]]:
        """Return starts of a kind that only this problem has."""
        return []

    @property
    def min_weight(self) -> float:
        """Smallest weight of a component: a tenth of a unit, and at most 1e-4."""
        return min(MIN_WEIGHT, 0.1 / self.rows.total_units)

    def blank(self, n_components: int) -> MixtureParameters:
        """Return parameters without slopes, with equal weights and dispersions of one."""
        family = self.family
        axis = () if family.n_predictors == 1 else (family.n_predictors,)
        has_dispersion = [member.has_dispersion for member in family.predictor_families]
        spreads = np.repeat(np.where(has_dispersion, 1.0, np.nan), n_components)
        return MixtureParameters(
            np.zeros((*axis, self.rows.n_features, n_components)),
            np.zeros((*axis, n_components)),
            np.full(n_components, 1 / n_components),
            spreads.reshape((*axis, n_components)) if family.has_dispersion else None,
            None if self.rows.gate is None else np.zeros((self.rows.n_gate, n_components)),
        )

    def free_count(self, n_components: int) -> int:
        """Number of free parameters of a mixture with a number of components."""
        blank = self.blank(n_components)
        constraint = self.constraint(blank)
        return parameter_count(blank) if constraint is None else constraint.n_free

    def to_user(self, parameters: MixtureParameters) -> MixtureParameters:
        """Map parameters to the user's units."""
        predictors = zip(self.coordinates, parameters.slopes, parameters.levels, strict=True)
        mapped = [where.coefficients_to_user(*predictor) for where, *predictor in predictors]
        gate, weights = parameters.gate, parameters.weights
        if gate is not None and self.gate_coordinates is not None:
            gate = gate / self.gate_coordinates.scales[:, None]
            weights = _shift_logits(weights, -self.gate_coordinates.mean @ gate)
        spreads = parameters.spreads
        if spreads is not None:
            spreads = spreads * self._response_scales[:, None]
        return _rebuilt(parameters, mapped, spreads, weights, gate)

    def to_standardised(
        self, parameters: MixtureParameters, gate_centre: FloatArray | None = None
    ) -> MixtureParameters:
        """Map parameters from the user's units; the inverse of `to_user`.

        Their weights are those at `gate_centre`, or at gating covariates zero.
        """
        # gate_centre: (n_gate,)
        predictors = zip(self.coordinates, parameters.slopes, parameters.levels, strict=True)
        mapped = [
            where.coefficients_to_standardised(*predictor) for where, *predictor in predictors
        ]
        gate, weights = parameters.gate, parameters.weights
        if self.gate_coordinates is not None:
            if gate is None:
                gate = np.zeros((self.rows.n_gate, parameters.n_components))
            shift = self.gate_coordinates.mean - (0.0 if gate_centre is None else gate_centre)
            weights = _shift_logits(weights, shift @ gate)
            gate = gate * self.gate_coordinates.scales[:, None]
        spreads = parameters.spreads
        if spreads is not None:
            spreads = spreads / self._response_scales[:, None]
        return _rebuilt(parameters, mapped, spreads, weights, gate)

    def admit(self, parameters: MixtureParameters) -> MixtureParameters:
        """Apply the restrictions: average shared parameters and set fixed ones."""
        if self.rows.gate is not None and parameters.gate is None:
            slopes = np.zeros((self.rows.n_gate, parameters.n_components))
            parameters = replace(parameters, gate=slopes)
        restrictions = self.restrictions
        if restrictions.is_empty:
            return parameters
        parameters = self._labelled(parameters)
        # without the gate: at covariates zero, far from the rows, weights may be zero to rounding
        user, shares = self.to_user(replace(parameters, gate=None)), parameters.weights
        shared = list(restrictions.shared_features)
        slopes, levels, dispersion = user.slopes.copy(), user.levels, user.dispersion
        slopes[:, shared] = (slopes[:, shared] @ shares)[..., None]
        if self._holds_directions(parameters):  # component j uses the j-th projection only
            slopes = np.diag(np.diag(slopes[0]))[None]
        if restrictions.has_shared_bias:
            levels = np.repeat((levels @ shares)[:, None], len(shares), axis=1)
        if user.spreads is not None and restrictions.has_shared_dispersion:
            common = np.exp(np.log(user.spreads) @ shares)
            dispersion = np.repeat(common, len(shares)).reshape(user.biases.shape)
        admitted = self.to_standardised(
            replace(
                user,
                coefficients=slopes.reshape(user.coefficients.shape),
                biases=levels.reshape(user.biases.shape),
                dispersion=dispersion,
            )
        )
        weights = restrictions.weights if self._holds_weights(parameters) else parameters.weights
        return replace(admitted, weights=np.asarray(weights), gate=parameters.gate)

    def constraint(self, parameters: MixtureParameters) -> LinearConstraint | None:
        """Return the restrictions as a constraint on the vector of standardised parameters."""
        if self.restrictions.is_empty:
            return None
        allowed = self._allowed_moves(parameters)
        return LinearConstraint.spanned_by(self.standardising_matrix(parameters) @ allowed)

    def standardising_matrix(self, parameters: MixtureParameters) -> FloatArray:
        """Return the linear part of the map from the user's vector to the standardised one."""
        # -> (n_parameters, n_parameters)
        layout = parameters.layout
        component = np.eye(layout.size)  # logarithms of dispersions are only shifted
        for where, places in zip(self.coordinates, layout.slopes, strict=True):
            scale = where.response_scale
            component[np.ix_(places[:-1], places[:-1])] = where.factor.T / scale
            component[places[-1], places[:-1]] = where.mean / scale
            component[places[-1], places[-1]] = 1 / scale
        logit = np.ones((1, 1))
        if self.gate_coordinates is not None:
            logit = block_diag(1.0, np.diag(self.gate_coordinates.scales))
            logit[0, 1:] = self.gate_coordinates.mean
        r = parameters.n_components
        return np.asarray(block_diag(*[component] * r, *[logit] * (r - 1)))

    def _holds_weights(self, parameters: MixtureParameters) -> bool:
        """Whether weights are fixed: not before all components exist."""
        return (
            self.restrictions.weights is not None and parameters.n_components == self.n_components
        )

    def _holds_directions(self, parameters: MixtureParameters) -> bool:
        """Whether directions are fixed: not before all components exist."""
        return (
            self.restrictions.directions is not None
            and parameters.n_components == self.n_components
        )

    def _labelled(self, parameters: MixtureParameters) -> MixtureParameters:
        """Match components to the closest fixed directions, or to fixed weights by size."""
        if self._holds_directions(parameters):
            coefficients = parameters.coefficients
            lengths = np.maximum(np.linalg.norm(coefficients, axis=0), _SMALLEST_LENGTH)
            shares = np.square(coefficients / lengths)  # (direction, component)
            if np.all(shares == np.diag(np.diag(shares))):
                return parameters
            return parameters.reorder(linear_sum_assignment(shares, maximize=True)[1])
        fixed_weights = self.restrictions.weights
        is_partial = parameters.n_components != self.n_components
        if fixed_weights is None or is_partial or np.allclose(parameters.weights, fixed_weights):
            return parameters
        order = np.empty(self.n_components, dtype=np.intp)
        order[np.argsort(fixed_weights, kind="stable")] = np.argsort(
            parameters.weights, kind="stable"
        )
        return parameters.reorder(order)

    def _allowed_moves(self, parameters: MixtureParameters) -> FloatArray:
        """Return the directions in the user's vector that the restrictions leave free."""
        restrictions, layout = self.restrictions, parameters.layout
        r, size = parameters.n_components, layout.size
        columns = [*restrictions.shared_features]
        if restrictions.has_shared_bias:
            columns.append(parameters.n_features)
        shared = set(layout.slopes[:, columns].ravel().tolist())
        if restrictions.has_shared_dispersion:
            shared.update(layout.dispersions.tolist())
        moves = []
        for entry in range(size):
            owners = range(r)
            if self._holds_directions(parameters) and entry < parameters.n_features:
                owners = range(entry, entry + 1)
            entries = [component * size + entry for component in owners]
            groups = [entries] if entry in shared else [[index] for index in entries]
            moves += groups
        n_logits = (r - 1) * (1 + parameters.n_gate)
        if not self._holds_weights(parameters):
            moves += [[r * size + index] for index in range(n_logits)]
        result = np.zeros((r * size + n_logits, len(moves)))
        for index, indices in enumerate(moves):
            result[indices, index] = 1.0
        return result


def _rebuilt(
    like: MixtureParameters,
    mapped: list[tuple[FloatArray, FloatArray]],
    spreads: FloatArray | None,
    weights: FloatArray,
    gate: FloatArray | None,
) -> MixtureParameters:
    """Join mapped coefficients, biases and dispersions of all predictors, in the usual shapes."""
    # mapped: ((n_features, n_components), (n_components,)) of each predictor, spreads:
    # (P, n_components)
    return MixtureParameters(
        np.stack([slopes for slopes, _ in mapped]).reshape(like.coefficients.shape),
        np.stack([levels for _, levels in mapped]).reshape(like.biases.shape),
        weights,
        None if spreads is None else spreads.reshape(like.biases.shape),
        gate,
    )


def _shift_logits(weights: FloatArray, shift: FloatArray) -> FloatArray:
    """Add a shift to the logits of weights."""
    logits = np.log(weights) + shift
    odds = np.exp(logits - logits.max())
    return np.asarray(odds / odds.sum())


def parameters_per_response(family: AnyFamily, n_features: int) -> int:
    """Number of parameters of a component, without its weight, for each response."""
    sizes = [n_features + 1 + member.has_dispersion for member in family.predictor_families]
    return -(-sum(sizes) // len(family.members))


GateKind = Literal["softmax", "gaussian"]

BIAS, DISPERSION = "bias", "dispersion"
"""Names that `shared` accepts besides those of columns."""

_WEIGHT_TOLERANCE = 1e-8
"""Largest distance of the sum of fixed weights from one, for rounding of decimal fractions."""

_SMALLEST_SPREAD = 1e-12
"""Ratio of the spread of a projection to its mean below which the spread is rounding error."""


@dataclass(frozen=True, slots=True, eq=False)
class EMCoordinates:
    """Maps from the user's units to those of the rows of a problem."""

    inputs: Coordinates  # mean and factor, or mean and spread of the projections on directions
    units: ResponseUnits  # of the response of each linear predictor
    gate: GateCoordinates | None = None
    directions: FloatArray | None = None  # fixed directions; (n_features, n_components)

    @property
    def of_predictors(self) -> tuple[Coordinates, ...]:
        """Coordinates of each linear predictor."""
        mean, factor = self.inputs.mean, self.inputs.factor
        return tuple(Coordinates(mean, factor, *unit) for unit in self.units)


def find_coordinates(data: RegressionData, directions: FloatArray | None = None) -> EMCoordinates:
    """Find the standardised coordinates of rows, by sums over them."""
    if directions is not None:
        inputs = _projected_coordinates(data, directions)
    else:
        fitted = fit_correlation(data, data.feature_names)
        factor = fitted.scales[:, None] * cholesky(fitted.correlation, lower=True)
        inputs = Coordinates(fitted.mean, factor)
    gate = None
    if data.gating is not None:
        fitted = fit_correlation(data.map(_gating_rows), data.gate_names, argument="gating")
        gate = GateCoordinates(fitted.mean, fitted.scales, data.gate_names)
    return EMCoordinates(inputs, response_units(data), gate, directions)


def pose_em(
    data: RegressionData,
    n_components: int,
    *,
    restrictions: Restrictions | None = None,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
) -> EMProblem:
    """Standardise rows, sort them by group and set up the problem."""
    restrictions = restrictions or Restrictions()
    coordinates = find_coordinates(data, restrictions.directions)
    return EMProblem(
        data.family,
        n_components,
        data.map(standardise_rows, coordinates),
        coordinates.of_predictors,
        coordinates.gate,
        restrictions,
        min_dispersion_ratio,
    )


def standardise_rows(data: RegressionData, coordinates: EMCoordinates) -> LikelihoodRows:
    """Standardise rows and sort them by group."""
    rows = likelihood_rows(data, coordinates.units)
    order, starts = group_order(data.groups)

    def sort(values: FloatArray | None, layout: Literal["C", "F"] = "F") -> Any:
        if values is None or order is None:
            return values
        return np.asarray(values[order], order=layout)

    inputs, whitening = data.X, None
    if coordinates.directions is None and is_mapped(inputs) and inputs.size > MAX_STORED_DOUBLES:
        whitening = coordinates.inputs.mean, coordinates.inputs.factor
    else:
        inputs = sort(_standardised_inputs(data, coordinates), "C")
    gate = None
    if data.gating is not None and coordinates.gate is not None:
        gate = (data.gating - coordinates.gate.mean) / coordinates.gate.scales

    return LikelihoodRows(
        Z=inputs,
        y=sort(rows.y),
        sample_weight=sort(rows.sample_weight),
        offset=sort(rows.offset),
        n_trials=sort(rows.n_trials),
        gate=sort(gate, "C"),
        group_starts=starts,
        order=order,
        whitening=whitening,
    )


def _standardised_inputs(data: RegressionData, coordinates: EMCoordinates) -> FloatArray:
    """Whiten the inputs, or scale their projections, block by block."""
    mean, factor = coordinates.inputs.mean, coordinates.inputs.factor
    directions = coordinates.directions
    result = np.empty((data.n_obs, len(mean)))
    if directions is None:
        for rows in row_blocks(data.n_obs, 3 * data.n_features):
            result[rows] = whiten_rows(mean, factor, read_block(data.X, rows))
        return result
    for rows in row_blocks(data.n_obs, 2 * data.n_features):
        result[rows] = read_block(data.X, rows) @ directions
    return np.asarray((result - mean) / np.diag(factor))


def _gating_rows(data: RegressionData) -> InputRows:
    """The gating covariates as columns."""
    return InputRows(np.asarray(data.gating), data.sample_weight)


def validate_gate_kind(gate: Any, gating: Any) -> None:
    """Check `gate`, and that a Gaussian gate has gating covariates."""
    if not isinstance(gate, str) or gate not in get_args(GateKind):
        raise ValueError(f"`gate` must be 'softmax' or 'gaussian'; got {gate!r}. Choose one.")
    if gate == "gaussian" and gating is None:
        raise ValueError(
            "`gate` must be 'softmax', the default, without `gating`; got 'gaussian'. Pass the "
            "covariates on which the weights depend as `gating`."
        )


def validate_restrictions(
    data: RegressionData,
    n_components: int,
    *,
    shared: Any = None,
    fixed_weights: ArrayLike | None = None,
    fixed_directions: ArrayLike | None = None,
    has_gate: bool = False,
) -> Restrictions:
    """Check which parameters are shared and fixed."""
    # fixed_weights: (n_components,), fixed_directions: (n_features, n_components)
    columns, has_bias, has_dispersion = _shared_entries(shared, data)
    weights = None
    if fixed_weights is not None:
        if has_gate:
            raise ValueError(
                "`fixed_weights` must be None with `gating`, which sets the weights of every row. "
                "Drop one of them."
            )
        weights = _checked_weights(fixed_weights, n_components)
    directions = None
    if fixed_directions is not None:
        if data.family.n_predictors > 1:
            raise ValueError(
                "`fixed_directions` must be None with several responses or classes, whose "
                "coefficients may have several directions. Leave it out, or fit one response."
            )
        if columns:
            raise ValueError(
                "`shared` columns and `fixed_directions` cannot be combined: a direction fixes the "
                "ratios of all coefficients. Drop one of them."
            )
        directions = _checked_directions(fixed_directions, data.n_features, n_components)
    return Restrictions(columns, has_bias, has_dispersion, weights, directions)


def validate_dispersion_ratio(min_dispersion_ratio: Any) -> float:
    """Check the ratio of Hathaway's constraint."""
    is_real = isinstance(min_dispersion_ratio, int | float | np.integer | np.floating)
    if not is_real or not 0.0 < min_dispersion_ratio <= 1.0:
        raise ValueError(
            f"`min_dispersion_ratio` must be above 0 and at most 1; got {min_dispersion_ratio!r}."
        )
    return float(min_dispersion_ratio)


def _projected_coordinates(data: RegressionData, directions: FloatArray) -> Coordinates:
    """Mean and spread of the projections of the inputs, without a matrix of all columns."""
    doubles, total = 2 * data.n_features, data.total_weight
    zeros = np.zeros(directions.shape[1])
    (mean,) = data.sum(_projection_sums, directions, total, zeros, 1, doubles=doubles)
    (squares,) = data.sum(_projection_sums, directions, total, mean, 2, doubles=doubles)
    spread = np.sqrt(squares)
    is_flat = spread <= _SMALLEST_SPREAD * np.abs(mean)
    if is_flat.any():
        raise ValueError(
            "`fixed_directions` must point where `X` varies; got one for component "
            f"{int(np.argmax(is_flat))} along which all rows are equal. Check the columns."
        )
    return Coordinates(mean, np.diag(spread))


def _projection_sums(
    data: RegressionData,
    directions: FloatArray,
    total: float,
    centre: FloatArray,
    power: int,
    block: slice,
) -> tuple[FloatArray, ...]:
    """Sum powers of centred projections with weights that add up to one."""
    shares = data.sample_weight[block] / total
    projected = read_block(data.X, block) @ directions - centre
    return (shares @ projected**power,)


def _shared_entries(shared: Any, data: RegressionData) -> tuple[tuple[int, ...], bool, bool]:
    """Return the indices of shared columns, and whether bias and dispersion are shared."""
    if shared is None:
        return (), False, False
    is_single = isinstance(shared, str) or not isinstance(shared, Iterable)
    entries: Sequence[Any] = [shared] if is_single else list(shared)
    columns: set[int] = set()
    for entry in entries:
        is_index = isinstance(entry, int | np.integer) and not isinstance(entry, bool)
        if isinstance(entry, str) and entry in data.feature_names:
            columns.add(data.feature_names.index(entry))
        elif is_index and str(entry) in data.feature_names:
            columns.add(data.feature_names.index(str(entry)))  # a DataFrame's own integer label
        elif is_index and -data.n_features <= entry < data.n_features:
            columns.add(int(entry) % data.n_features)
        elif not isinstance(entry, str) or entry not in (BIAS, DISPERSION):
            raise ValueError(
                f"`shared` must hold names or indices of columns, {BIAS!r} or {DISPERSION!r}; "
                f"got {entry!r}. The columns are {', '.join(map(repr, data.feature_names))}."
            )
    # a column called "bias" or "dispersion" takes precedence
    names = {entry for entry in entries if isinstance(entry, str)} - set(data.feature_names)
    if DISPERSION in names and not data.family.has_dispersion:
        raise ValueError(
            f"`shared` must not hold {DISPERSION!r} for family {data.family.name!r}, which has "
            "no dispersion. Drop it."
        )
    return tuple(sorted(columns)), BIAS in names, DISPERSION in names


def _checked_weights(fixed_weights: ArrayLike, n_components: int) -> FloatArray:
    weights = as_float_array(fixed_weights, "fixed_weights")
    is_right = weights.shape == (n_components,) and bool(np.all(weights > 0.0))
    if not is_right or abs(weights.sum() - 1.0) > _WEIGHT_TOLERANCE:
        raise ValueError(
            f"`fixed_weights` must be {n_components} positive numbers that sum to one; got "
            f"{fixed_weights!r}. Give one for each component, divided by their sum."
        )
    return weights / weights.sum()


def _checked_directions(
    fixed_directions: ArrayLike, n_features: int, n_components: int
) -> FloatArray:
    directions = as_float_array(fixed_directions, "fixed_directions")
    if directions.shape != (n_features, n_components) or not np.all(np.isfinite(directions)):
        raise ValueError(
            f"`fixed_directions` must be finite, of shape (n_features, n_components) = "
            f"({n_features}, {n_components}); got shape {directions.shape}."
        )
    lengths = np.linalg.norm(directions, axis=0)
    if lengths.min() == 0.0:
        raise ValueError(
            "`fixed_directions` must not have a column of zeros; got one for component "
            f"{int(np.argmin(lengths))}. Give every component a direction."
        )
    return np.asarray(directions / lengths)
