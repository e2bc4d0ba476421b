"""Parameters of a mixture of GLMs: their order in a vector, constraints, bounds, matching.

A component has one linear predictor, or P of them: one for each of several responses, or for each
class but the first. Every vector or matrix over parameters (scores, information, steps) has the
order

    component by component, in it predictor by predictor (beta, b[, log dispersion]), then for each
    component but the last the logit log(w_j / w_r) and, with a gate, its slopes

so that component j has a slice of length q = P (p + 1) plus the number of dispersions, and the
vector has r q + (r - 1)(1 + g) entries, with g gating covariates. `Layout` has the places inside a
component; `pack`, `unpack` and `move` define the order.

Shared coefficients, fixed weights and fixed directions are linear constraints: the vector of
parameters moves only in a subspace. Steps are solved for in an orthonormal basis of the subspace,
with the projected score and information.

Bounds keep parameters from diverging. A weight can go to zero, so that its component has no rows.
The standard deviation of a component can go to zero around a few rows, and the likelihood to
infinity: Hathaway's (1985) constraint keeps every deviation above a share of the largest. A
dispersion can go to the end of its range, as alpha does for counts without overdispersion.
Coefficients grow without limit under separation: the length of (beta, b) stays below the link's
`largest_predictor`, beyond which the response does not distinguish lengths. The slopes of a gate
grow likewise if its covariates separate the components.

Components have no order of their own: `match_components` matches those of two mixtures.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, as_float_array
from moment_init.families.base import Family
from moment_init.families.several import AnyFamily
from moment_init.likelihood.passes import move_inside

LARGEST_LOG_DISPERSION_STEP = 1.5
"""A step may change a dispersion by a factor of at most exp(1.5), about 4.5: the log-likelihood is
far from quadratic in the logarithm of a dispersion, and a longer step leaves the basin."""


class Layout(NamedTuple):
    """Places of the parameters of one component in its slice of the vector."""

    size: int  # number of parameters of a component, q
    # places of beta and b of each predictor, side by side; (P, p + 1)
    slopes: NDArray[np.intp]
    # places of the log dispersions, and the predictors that they belong to; (n_dispersed,)
    dispersions: NDArray[np.intp]
    dispersed: NDArray[np.intp]


@lru_cache(maxsize=256)
def layout_of(n_features: int, has_dispersion: tuple[bool, ...]) -> Layout:
    """Places of the parameters of a component with one predictor per entry of `has_dispersion`."""
    starts = np.cumsum([0, *(n_features + 1 + has for has in has_dispersion)])
    dispersed = np.flatnonzero(has_dispersion)
    slopes = starts[:-1, None] + np.arange(n_features + 1)
    return Layout(int(starts[-1]), slopes, starts[1:][dispersed] - 1, dispersed)


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParameters:
    """Parameters of a mixture of generalised linear models.

    The library works with them in standardised coordinates; results hold them in the user's units.
    With several predictors P, coefficients, biases and dispersion have a leading axis of that
    length. `slopes`, `levels` and `spreads` are views that always have it.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        Coefficients beta_j, one column per component.
    biases : numpy.ndarray, shape (n_components,)
        Biases b_j.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities w_j > 0 of the components, which sum to one.
    dispersion : numpy.ndarray, shape (n_components,), optional
        Standard deviation, alpha or shape; None for families without a dispersion, NaN for those
        of several responses that have none.
    gate : numpy.ndarray, shape (n_gate, n_components), optional
        Slopes of the gate's logits, zero for the last component: the probability of component j
        given gating covariates g is proportional to ``w_j exp(<gate_j, g>)``. None without a gate.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None
    gate: FloatArray | None = None

    @property
    def n_features(self) -> int:
        """Number of features, p."""
        return int(self.coefficients.shape[-2])

    @property
    def n_components(self) -> int:
        """Number of components, r."""
        return int(self.coefficients.shape[-1])

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component, P."""
        return 1 if self.coefficients.ndim == 2 else int(self.coefficients.shape[0])

    @property
    def n_gate(self) -> int:
        """Number of gating covariates, g; zero without a gate."""
        return 0 if self.gate is None else int(self.gate.shape[0])

    @property
    def slopes(self) -> FloatArray:
        """Coefficients, shape (P, n_features, n_components)."""
        return self.coefficients[None] if self.coefficients.ndim == 2 else self.coefficients

    @property
    def levels(self) -> FloatArray:
        """Biases, shape (P, n_components)."""
        return self.biases[None] if self.biases.ndim == 1 else self.biases

    @property
    def spreads(self) -> FloatArray | None:
        """Dispersions, shape (P, n_components); NaN for predictors without one."""
        dispersion = self.dispersion
        return dispersion[None] if dispersion is not None and dispersion.ndim == 1 else dispersion

    @property
    def layout(self) -> Layout:
        """Places of the parameters of one component."""
        spreads = self.spreads
        if spreads is None or len(spreads) == 1:
            return layout_of(self.n_features, (spreads is not None,) * self.n_predictors)
        return layout_of(self.n_features, tuple((~np.isnan(spreads[:, 0])).tolist()))

    @property
    def scales(self) -> FloatArray:
        """Lengths s_j of the coefficients, shape (n_components,) or (P, n_components)."""
        return np.asarray(np.linalg.norm(self.coefficients, axis=-2))

    @property
    def directions(self) -> FloatArray:
        """Unit directions u_j, in the shape of the coefficients; zero where the scale is zero."""
        scales = self.scales[..., None, :]
        return self.coefficients / np.where(scales > 0, scales, 1.0)

    def reorder(self, order: NDArray[np.intp]) -> "MixtureParameters":
        """Reorder the components."""
        # order: (n_components,)
        gate = None if self.gate is None else self.gate[:, order]
        return MixtureParameters(
            self.coefficients[..., order],
            self.biases[..., order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[..., order],
            None if gate is None else gate - gate[:, -1:],
        )

    def lift(self, basis: FloatArray) -> "MixtureParameters":
        """Map coefficients of projected rows ``Z @ basis`` to coefficients of the rows Z."""
        # basis: (n_features, n_subspace)
        return replace(self, coefficients=basis @ self.coefficients)


def component_size(parameters: MixtureParameters) -> int:
    """Number q of entries of one component in a parameter vector."""
    return parameters.layout.size


def parameter_count(parameters: MixtureParameters) -> int:
    """Number of free parameters."""
    r = parameters.n_components
    return r * component_size(parameters) + (r - 1) * (1 + parameters.n_gate)


def component_vectors(parameters: MixtureParameters) -> FloatArray:
    """Parameters of each component in the order of `Layout`, (n_components, q)."""
    layout = parameters.layout
    result = np.empty((parameters.n_components, layout.size))
    result[:, layout.slopes[:, :-1]] = parameters.slopes.transpose(2, 0, 1)
    result[:, layout.slopes[:, -1]] = parameters.levels.T
    if parameters.spreads is not None:
        result[:, layout.dispersions] = np.log(parameters.spreads[layout.dispersed]).T
    return result


def pack(parameters: MixtureParameters) -> FloatArray:
    """Write parameters as an unconstrained vector."""
    # -> (n_parameters,)
    logits = np.log(parameters.weights)[None]
    if parameters.gate is not None:
        logits = np.concatenate([logits, parameters.gate])
    about_last = logits[:, :-1] - logits[:, -1:]
    return np.concatenate([component_vectors(parameters).ravel(), about_last.T.ravel()])


def unpack(vector: FloatArray, like: MixtureParameters) -> MixtureParameters:
    """Read parameters from a vector; the inverse of `pack`."""
    # vector: (n_parameters,)
    r, layout = like.n_components, like.layout
    blocks = vector[: r * layout.size].reshape(r, layout.size)
    logits = np.zeros((1 + like.n_gate, r))
    logits[:, :-1] = vector[r * layout.size :].reshape(r - 1, 1 + like.n_gate).T
    odds = np.exp(logits[0] - logits[0].max())
    dispersion = None
    if like.dispersion is not None:
        spreads = np.full((like.n_predictors, r), np.nan)
        spreads[layout.dispersed] = np.exp(blocks[:, layout.dispersions].T)
        dispersion = spreads.reshape(like.dispersion.shape)
    slopes = np.ascontiguousarray(blocks[:, layout.slopes[:, :-1]].transpose(1, 2, 0))
    levels = np.ascontiguousarray(blocks[:, layout.slopes[:, -1]].T)
    return MixtureParameters(
        slopes.reshape(like.coefficients.shape),
        levels.reshape(like.biases.shape),
        odds / odds.sum(),
        dispersion,
        None if like.gate is None else logits[1:],
    )


def move(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
    """Take a step in the coordinates of `pack`."""
    # step: (n_parameters,)
    r, layout = parameters.n_components, parameters.layout
    limited = np.array(step, dtype=np.float64)
    if parameters.dispersion is not None:
        by_component = limited[: r * layout.size].reshape(r, layout.size)
        limit = LARGEST_LOG_DISPERSION_STEP
        by_component[:, layout.dispersions] = np.clip(
            by_component[:, layout.dispersions], -limit, limit
        )
    return unpack(pack(parameters) + limited, parameters)


@dataclass(frozen=True, slots=True, eq=False)
class LinearConstraint:
    """A constraint that lets the vector of parameters move only in a subspace."""

    # orthonormal basis of the directions in which the vector of parameters may move;
    # (n_parameters, n_free)
    basis: FloatArray

    @property
    def n_free(self) -> int:
        """Number of free parameters."""
        return int(self.basis.shape[1])

    def project(
        self, parameters: MixtureParameters, anchor: MixtureParameters
    ) -> MixtureParameters:
        """Nearest parameters that differ from an anchor by an allowed step."""
        at = pack(anchor)
        step = self.basis @ (self.basis.T @ (pack(parameters) - at))
        return unpack(at + step, parameters)

    @classmethod
    def spanned_by(cls, directions: FloatArray) -> "LinearConstraint":
        """Constraint with any set of allowed directions."""
        # directions: (n_parameters, n_free)
        return cls(np.linalg.qr(directions)[0])


MIN_WEIGHT = 1e-4
"""One row in ten thousand: a component this small can only be estimated from millions of rows, and
from a smaller weight EM needs ever more steps to come back."""

MIN_DISPERSION_RATIO = 0.05
"""Default of Hathaway's constraint: deviations within a factor of twenty of each other."""

MIN_GATED_WEIGHT = 1e-280
"""With a gate the weight is only the probability at the mean of the gating covariates; a component
may be rare there and common at other values. This floor only keeps logarithms finite."""

LARGEST_GATE = 100.0
"""Largest length of a component's gate slopes on standardised covariates: a tenth of a standard
deviation then changes the odds by e^10, so that the gate jumps between neighbouring rows. Where two
components are equally likely 6.4 standard deviations from the mean, the weight at the mean is
e^-640, still above its floor: it is this bound that stops a slope without a limit, and this bound
is reported."""

_CLOSE = 1e-9
"""A bound is active within this relative distance; `enforce` is exact up to rounding."""


def move_into(
    parameters: MixtureParameters, step: FloatArray, bounds: "ParameterBounds"
) -> MixtureParameters:
    """Take a step in the coordinates of `pack`, and move its end inside the bounds."""
    # step: (n_parameters,)
    if parameters.gate is not None:
        return enforce(move(parameters, step), bounds)
    layout, spreads = parameters.layout, parameters.spreads
    slopes, levels = np.empty(parameters.slopes.shape), np.empty(parameters.levels.shape)
    new_spreads = np.empty((0, 0)) if spreads is None else np.full(spreads.shape, np.nan)
    weights = np.empty(parameters.n_components)
    is_inside = move_inside(
        parameters.slopes,
        parameters.levels,
        new_spreads if spreads is None else spreads,
        parameters.weights,
        step,
        layout.slopes,
        layout.dispersions,
        layout.dispersed,
        *bounds.numbers,
        slopes,
        levels,
        new_spreads,
        weights,
    )
    dispersion = parameters.dispersion
    moved = MixtureParameters(
        slopes.reshape(parameters.coefficients.shape),
        levels.reshape(parameters.biases.shape),
        weights,
        None if dispersion is None else new_spreads.reshape(dispersion.shape),
    )
    return moved if is_inside else enforce(moved, bounds)


@dataclass(frozen=True, slots=True)
class ParameterBounds:
    """Bounds of the parameters."""

    families: tuple[Family, ...]  # the family of each linear predictor
    min_weight: float  # smallest weight of a component
    # smallest ratio of two components' deviations, for families with an unbounded likelihood
    min_dispersion_ratio: float

    @property
    def numbers(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The bounds as arrays for `move_inside`."""
        return _bound_numbers(self)

    @property
    def largest_predictors(self) -> FloatArray:
        """Largest length of (beta, b) of each predictor, (P, 1)."""
        return np.array([[family.link.largest_predictor] for family in self.families])


@lru_cache(maxsize=64)
def _bound_numbers(bounds: ParameterBounds) -> tuple[FloatArray, FloatArray, FloatArray]:
    families = bounds.families
    # with the power zero all deviations are one, and their ratio is inside its bound
    ranges = [(*family.dispersion_bounds, family.deviation_power or 0.0) for family in families]
    limits = LARGEST_LOG_DISPERSION_STEP, bounds.min_dispersion_ratio, bounds.min_weight
    largest = [family.link.largest_predictor for family in families]
    return np.array(largest), np.array(ranges), np.array(limits)


@dataclass(frozen=True, slots=True, eq=False)
class ActiveBound:
    """A bound on which the parameters lie."""

    label: str  # which bound of which component
    # gradient of the bounded quantity: a step with a negative inner product leaves the bounds;
    # (n_parameters,)
    inward: FloatArray


def bound_parts(bound: str) -> tuple[str, int, int | None]:
    """Split the label of a bound into its kind, its component and its response or class."""
    kind, _, rest = bound.partition(" of component ")
    component, *of_predictor = rest.split(" of ")
    predictor = int(of_predictor[0].split()[-1]) if of_predictor else None
    return kind, int(component), predictor


def bounds_of(
    family: AnyFamily,
    *,
    min_weight: float = MIN_WEIGHT,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
) -> ParameterBounds:
    """Collect the bounds of a family."""
    return ParameterBounds(family.predictor_families, min_weight, min_dispersion_ratio)


def enforce(parameters: MixtureParameters, bounds: ParameterBounds) -> MixtureParameters:
    """Move parameters to the nearest point inside the bounds, one kind of bound at a time."""
    lengths = np.maximum(_lengths(parameters), 1e-300)  # (P, n_components)
    shrink = np.minimum(1.0, bounds.largest_predictors / lengths)
    dispersion = parameters.dispersion
    if parameters.spreads is not None and dispersion is not None:
        pairs = zip(parameters.spreads, bounds.families, strict=True)
        spreads = [
            _bounded_dispersion(spread, family, bounds.min_dispersion_ratio)
            if family.has_dispersion
            else spread
            for spread, family in pairs
        ]
        dispersion = np.array(spreads).reshape(dispersion.shape)
    gate, weights, min_weight = parameters.gate, parameters.weights, bounds.min_weight
    if gate is not None:
        share = LARGEST_GATE / np.maximum(np.linalg.norm(gate, axis=0), LARGEST_GATE)
        gate, weights, min_weight = gate * share, _flattened(weights, share), MIN_GATED_WEIGHT
    return MixtureParameters(
        (parameters.slopes * shrink[:, None]).reshape(parameters.coefficients.shape),
        (parameters.levels * shrink).reshape(parameters.biases.shape),
        _bounded_weights(weights, min_weight),
        dispersion,
        gate,
    )


def active_bounds(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    """Find the bounds on which the parameters lie."""
    return [
        *_active_weights(parameters, bounds),
        *_active_dispersion(parameters, bounds),
        *_active_lengths(parameters, bounds),
        *_active_gate(parameters),
    ]


def _lengths(parameters: MixtureParameters) -> FloatArray:
    """Length of (beta, b) of each predictor and component, (P, n_components)."""
    return np.asarray(np.hypot(np.linalg.norm(parameters.slopes, axis=1), parameters.levels))


def _flattened(weights: FloatArray, share: FloatArray) -> FloatArray:
    """Shrink logits with the gate's slopes: a component and the last stay equal where they are.

    Otherwise the gate would move, and most rows would change their component.
    """
    # share: (n_components,)
    if np.all(share == 1.0):
        return weights
    logits = np.log(np.maximum(weights, MIN_GATED_WEIGHT))
    logits = share * (logits - logits[-1])
    odds = np.exp(logits - logits.max())
    return np.asarray(odds / odds.sum())


def _bounded_weights(weights: FloatArray, smallest: float) -> FloatArray:
    """Raise small weights to the floor and shrink the others in proportion."""
    smallest = min(smallest, 0.5 / len(weights))
    result = weights / weights.sum()
    low = np.zeros(len(weights), dtype=bool)
    while np.any(result < smallest):
        low |= result <= smallest
        result = np.where(low, smallest, weights)
        result[~low] *= (1 - smallest * low.sum()) / weights[~low].sum()
    return result


def _bounded_dispersion(
    dispersion: FloatArray, family: Family, smallest_ratio: float
) -> FloatArray:
    result = np.clip(dispersion, *family.dispersion_bounds)
    power = family.deviation_power
    if power is None:
        return result
    deviation = result**power
    floor = smallest_ratio * deviation.max()
    return np.where(deviation < floor, floor ** (1 / power), result)


def _active_weights(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    """Find weights on their bound; the gradient of log w_j in the logits is (e_j - w)[:-1]."""
    if parameters.gate is not None:
        return []
    r = parameters.n_components
    first = r * component_size(parameters)
    active = []
    for j in np.flatnonzero(parameters.weights <= bounds.min_weight * (1 + _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        inward[first:] = (np.arange(r) == j)[:-1] - parameters.weights[:-1]
        active.append(ActiveBound(f"weight of component {j}", inward))
    return active


def _active_dispersion(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    if parameters.spreads is None:
        return []
    layout = parameters.layout
    active = []
    for a, place in zip(layout.dispersed, layout.dispersions, strict=True):
        family, dispersion = bounds.families[a], parameters.spreads[a]
        of_response = f" of response {a}" if parameters.n_predictors > 1 else ""

        def add(
            label: str, entries: dict[int, float], place: int = place, end: str = of_response
        ) -> None:
            inward = np.zeros(parameter_count(parameters))
            for j, value in entries.items():
                inward[j * layout.size + place] += value
            active.append(ActiveBound(label + end, inward))

        _add_dispersion_bounds(dispersion, family, bounds.min_dispersion_ratio, add)
    return active


def _add_dispersion_bounds(
    dispersion: FloatArray,
    family: Family,
    smallest_ratio: float,
    add: Callable[[str, dict[int, float]], None],
) -> None:
    """Add the active bounds of one predictor's dispersions, (n_components,)."""
    power = family.deviation_power
    if power is not None:
        deviation = dispersion**power
        largest = int(np.argmax(deviation))
        floor = smallest_ratio * deviation[largest]
        for j in np.flatnonzero(deviation <= floor * (1 + _CLOSE)):
            add(f"dispersion ratio of component {j}", {int(j): power, largest: -power})
    for end, sign in zip(family.dispersion_bounds, (1.0, -1.0), strict=True):
        for j in np.flatnonzero(sign * (dispersion - end) <= _CLOSE * end):
            add(f"dispersion of component {j}", {int(j): sign})


def _active_lengths(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    layout, lengths = parameters.layout, _lengths(parameters)
    active = []
    for a, j in np.argwhere(lengths >= bounds.largest_predictors * (1 - _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        vector = np.append(parameters.slopes[a, :, j], parameters.levels[a, j])
        inward[j * layout.size + layout.slopes[a]] = -vector / lengths[a, j]
        of_predictor = f" of predictor {a}" if parameters.n_predictors > 1 else ""
        active.append(ActiveBound(f"length of component {j}{of_predictor}", inward))
    return active


def _active_gate(parameters: MixtureParameters) -> list[ActiveBound]:
    if parameters.gate is None:
        return []
    first, width = parameters.n_components * component_size(parameters), 1 + parameters.n_gate
    steepness = np.linalg.norm(parameters.gate, axis=0)
    active = []
    for j in np.flatnonzero(steepness >= LARGEST_GATE * (1 - _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        slopes = slice(first + j * width + 1, first + (j + 1) * width)
        inward[slopes] = -parameters.gate[:, j] / steepness[j]
        active.append(ActiveBound(f"gate slope of component {j}", inward))
    return active


def match_components(
    estimated: ArrayLike, reference: ArrayLike, *, signed: bool = False
) -> NDArray[np.intp]:
    """Match columns to reference columns by the largest total cosine.

    Parameters
    ----------
    estimated : array-like, shape (n_features, n_components)
        Columns to reorder.
    reference : array-like, shape (n_features, n_components)
        Columns that set the order.
    signed : bool
        Whether opposite directions are different; by default they are the same.

    Returns
    -------
    numpy.ndarray of int, shape (n_components,)
        Index such that ``estimated[:, index]`` is in the order of `reference`.

    Raises
    ------
    TypeError
        For columns that are not real numbers.
    ValueError
        If the shapes differ, and for columns that are zero, missing or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> match_components(np.array([[0.0, -1.0], [1.0, 0.1]]), np.eye(2))
    array([1, 0])
    """
    return _matched(*_unit_pair(estimated, reference), signed=signed)


def angles_in_degrees(
    estimated: ArrayLike, reference: ArrayLike, *, signed: bool = False
) -> FloatArray:
    """Angle of each reference column to its matched estimate.

    Parameters
    ----------
    estimated : array-like, shape (n_features, n_components)
        Estimated columns in any order.
    reference : array-like, shape (n_features, n_components)
        Reference columns.
    signed : bool
        Whether opposite directions are 180 degrees apart; by default they are the same.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Angles in degrees, in the order of `reference`.

    Raises
    ------
    TypeError
        For columns that are not real numbers.
    ValueError
        If the shapes differ, and for columns that are zero, missing or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> angles_in_degrees(np.array([[0.0, -1.0], [1.0, 0.0]]), np.eye(2))
    array([0., 0.])
    """
    first, second = _unit_pair(estimated, reference)
    first = first[:, _matched(first, second, signed=signed)]
    if not signed:
        first = first * np.where(np.sum(first * second, axis=0) < 0.0, -1.0, 1.0)
    # The arc cosine would lose half the digits of a small angle.
    half = np.arctan2(
        np.linalg.norm(first - second, axis=0), np.linalg.norm(first + second, axis=0)
    )
    return np.asarray(np.degrees(2.0 * half))


def _unit_columns(columns: ArrayLike, name: str) -> FloatArray:
    matrix = as_float_array(columns, name)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.all(np.isfinite(matrix)):
        raise ValueError(
            f"`{name}` must be finite, of shape (n_features, n_components); got shape "
            f"{matrix.shape} with {int(np.sum(~np.isfinite(matrix)))} values that are not finite."
        )
    largest = np.abs(matrix).max(axis=0)
    if not largest.all():
        raise ValueError(
            f"`{name}` must have a direction in every column; got column {int(np.argmin(largest))} "
            "of zeros. Leave it out."
        )
    scaled = matrix / largest  # squares neither overflow nor underflow
    return np.asarray(scaled / np.linalg.norm(scaled, axis=0))


def _unit_pair(estimated: ArrayLike, reference: ArrayLike) -> tuple[FloatArray, FloatArray]:
    first, second = _unit_columns(estimated, "estimated"), _unit_columns(reference, "reference")
    if first.shape != second.shape:
        raise ValueError(
            f"`estimated` must have the shape of `reference`, {second.shape}; got {first.shape}."
        )
    return first, second


def _matched(first: FloatArray, second: FloatArray, *, signed: bool) -> NDArray[np.intp]:
    """Order of the first unit columns with the largest total cosine to the second."""
    cosines = first.T @ second
    gains = cosines if signed else np.abs(cosines)
    _, index = linear_sum_assignment(-gains.T)
    return np.asarray(index)
