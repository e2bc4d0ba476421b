"""Parameters of a mixture of GLMs: their order in a vector, linear constraints and bounds.

Every vector or matrix over parameters (scores, information, steps) has the order

    component by component (beta_j, b_j[, log dispersion_j]), then for each component but the last
    the logit log(w_j / w_r) and, with a gate, its slopes

so that component j has a slice of length q = p + 1 (+ 1 with a dispersion) and the vector has
r q + (r - 1)(1 + g) entries, with g gating covariates. `pack`, `unpack` and `move` define this
order.

Shared coefficients, fixed weights and fixed directions are linear constraints: the vector of
parameters moves only in a subspace. Steps are solved for in an orthonormal basis of the subspace,
with the projected score and information.

Bounds keep parameters from diverging. A weight can go to zero, so that its component has no rows.
The standard deviation of a component can go to zero around a few rows, and the likelihood to
infinity: Hathaway's (1985) constraint keeps every deviation above a share of the largest. A
dispersion can go to the end of its range, as alpha does for counts without overdispersion.
Coefficients grow without limit under separation: the length of (beta_j, b_j) stays below the link's
`largest_predictor`, beyond which the response does not distinguish lengths. The slopes of a gate
grow likewise if its covariates separate the components.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.families.base import Family

LARGEST_LOG_DISPERSION_STEP = 1.5
"""A step may change a dispersion by a factor of at most exp(1.5), about 4.5: the log-likelihood is
far from quadratic in the logarithm of a dispersion, and a longer step leaves the basin."""


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParameters:
    """Parameters of a mixture of generalised linear models.

    The library works with them in standardised coordinates; results hold them in the user's units.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        Coefficients beta_j, one column per component.
    biases : numpy.ndarray, shape (n_components,)
        Biases b_j.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities w_j > 0 of the components, which sum to one.
    dispersion : numpy.ndarray, shape (n_components,), optional
        Standard deviation, alpha or shape; None for families without a dispersion.
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
        return int(self.coefficients.shape[0])

    @property
    def n_components(self) -> int:
        """Number of components, r."""
        return int(self.coefficients.shape[1])

    @property
    def n_gate(self) -> int:
        """Number of gating covariates, g; zero without a gate."""
        return 0 if self.gate is None else int(self.gate.shape[0])

    @property
    def scales(self) -> FloatArray:
        """Lengths s_j of the coefficients, shape (n_components,)."""
        return np.asarray(np.linalg.norm(self.coefficients, axis=0))

    @property
    def directions(self) -> FloatArray:
        """Unit directions u_j, shape (n_features, n_components); zero where the scale is zero."""
        scales = self.scales
        return self.coefficients / np.where(scales > 0, scales, 1.0)

    def reorder(self, order: NDArray[np.intp]) -> "MixtureParameters":
        """Reorder the components."""
        # order: (n_components,)
        gate = None if self.gate is None else self.gate[:, order]
        return MixtureParameters(
            self.coefficients[:, order],
            self.biases[order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[order],
            None if gate is None else gate - gate[:, -1:],
        )

    def lift(self, basis: FloatArray) -> "MixtureParameters":
        """Map coefficients of projected rows ``Z @ basis`` to coefficients of the rows Z."""
        # basis: (n_features, n_subspace)
        return replace(self, coefficients=basis @ self.coefficients)


def component_size(parameters: MixtureParameters) -> int:
    """Number q of entries of one component in a parameter vector."""
    return parameters.n_features + 1 + (parameters.dispersion is not None)


def parameter_count(parameters: MixtureParameters) -> int:
    """Number of free parameters."""
    r = parameters.n_components
    return r * component_size(parameters) + (r - 1) * (1 + parameters.n_gate)


def pack(parameters: MixtureParameters) -> FloatArray:
    """Write parameters as an unconstrained vector."""
    # -> (n_parameters,)
    blocks = [parameters.coefficients, parameters.biases[None]]
    if parameters.dispersion is not None:
        blocks.append(np.log(parameters.dispersion)[None])
    logits = np.log(parameters.weights)[None]
    if parameters.gate is not None:
        logits = np.concatenate([logits, parameters.gate])
    about_last = logits[:, :-1] - logits[:, -1:]
    return np.concatenate([np.concatenate(blocks).T.ravel(), about_last.T.ravel()])


def unpack(vector: FloatArray, like: MixtureParameters) -> MixtureParameters:
    """Read parameters from a vector; the inverse of `pack`."""
    # vector: (n_parameters,)
    p, r, q = like.n_features, like.n_components, component_size(like)
    blocks = vector[: r * q].reshape(r, q)
    logits = np.zeros((1 + like.n_gate, r))
    logits[:, :-1] = vector[r * q :].reshape(r - 1, 1 + like.n_gate).T
    odds = np.exp(logits[0] - logits[0].max())
    return MixtureParameters(
        np.ascontiguousarray(blocks[:, :p].T),
        blocks[:, p].copy(),
        odds / odds.sum(),
        None if like.dispersion is None else np.exp(blocks[:, p + 1]),
        None if like.gate is None else logits[1:],
    )


def move(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
    """Take a step in the coordinates of `pack`."""
    # step: (n_parameters,)
    p, r, q = parameters.n_features, parameters.n_components, component_size(parameters)
    limited = np.array(step, dtype=np.float64)
    if parameters.dispersion is not None:
        limit = LARGEST_LOG_DISPERSION_STEP
        by_component = limited[: r * q].reshape(r, q)
        by_component[:, p + 1] = np.clip(by_component[:, p + 1], -limit, limit)
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

MIN_GATED_WEIGHT = 1e-12
"""With a gate the weight is only the probability at the mean of the gating covariates; a component
may be rare there and common at other values."""

LARGEST_GATE = 40.0
"""Largest length of a component's gate slopes on standardised covariates: one standard deviation
then changes the odds by e^40, which no number of rows distinguishes from a jump."""

_CLOSE = 1e-9
"""A bound is active within this relative distance; `enforce` is exact up to rounding."""


@dataclass(frozen=True, slots=True)
class ParameterBounds:
    """Bounds of the parameters of one family."""

    min_weight: float  # smallest weight of a component
    deviation_power: float | None  # see `FamilyDensity`; None if the likelihood is bounded
    # smallest ratio of two components' deviations, used if `deviation_power` is given
    min_dispersion_ratio: float
    dispersion: tuple[float, float]  # smallest and largest value
    largest_predictor: float  # largest length of (beta_j, b_j)


@dataclass(frozen=True, slots=True, eq=False)
class ActiveBound:
    """A bound on which the parameters lie."""

    label: str  # which bound of which component
    # gradient of the bounded quantity: a step with a negative inner product leaves the bounds;
    # (n_parameters,)
    inward: FloatArray


def bounds_of(
    family: Family,
    *,
    min_weight: float = MIN_WEIGHT,
    min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
) -> ParameterBounds:
    """Collect the bounds of a family."""
    return ParameterBounds(
        min_weight,
        family.deviation_power,
        min_dispersion_ratio,
        family.dispersion_bounds,
        family.link.largest_predictor,
    )


def enforce(parameters: MixtureParameters, bounds: ParameterBounds) -> MixtureParameters:
    """Move parameters to the nearest point inside the bounds, one kind of bound at a time."""
    lengths = np.hypot(parameters.scales, parameters.biases)
    shrink = np.minimum(1.0, bounds.largest_predictor / np.maximum(lengths, 1e-300))
    dispersion = parameters.dispersion
    if dispersion is not None:
        dispersion = _bounded_dispersion(dispersion, bounds)
    gate, min_weight = parameters.gate, bounds.min_weight
    if gate is not None:
        steepness = np.maximum(np.linalg.norm(gate, axis=0), LARGEST_GATE)
        gate, min_weight = gate * (LARGEST_GATE / steepness), MIN_GATED_WEIGHT
    return MixtureParameters(
        parameters.coefficients * shrink,
        parameters.biases * shrink,
        _bounded_weights(parameters.weights, min_weight),
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


def _bounded_dispersion(dispersion: FloatArray, bounds: ParameterBounds) -> FloatArray:
    result = np.clip(dispersion, *bounds.dispersion)
    power = bounds.deviation_power
    if power is None:
        return result
    deviation = result**power
    floor = bounds.min_dispersion_ratio * deviation.max()
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
    dispersion, q = parameters.dispersion, component_size(parameters)
    if dispersion is None:
        return []
    active = []

    def add(label: str, entries: dict[int, float]) -> None:
        inward = np.zeros(parameter_count(parameters))
        for j, value in entries.items():
            inward[(j + 1) * q - 1] += value
        active.append(ActiveBound(label, inward))

    power = bounds.deviation_power
    if power is not None:
        deviation = dispersion**power
        largest = int(np.argmax(deviation))
        floor = bounds.min_dispersion_ratio * deviation[largest]
        for j in np.flatnonzero(deviation <= floor * (1 + _CLOSE)):
            add(f"dispersion ratio of component {j}", {int(j): power, largest: -power})
    for end, sign in zip(bounds.dispersion, (1.0, -1.0), strict=True):
        for j in np.flatnonzero(sign * (dispersion - end) <= _CLOSE * end):
            add(f"dispersion of component {j}", {int(j): sign})
    return active


def _active_lengths(parameters: MixtureParameters, bounds: ParameterBounds) -> list[ActiveBound]:
    p, q = parameters.n_features, component_size(parameters)
    lengths = np.hypot(parameters.scales, parameters.biases)
    active = []
    for j in np.flatnonzero(lengths >= bounds.largest_predictor * (1 - _CLOSE)):
        inward = np.zeros(parameter_count(parameters))
        inward[j * q : j * q + p] = -parameters.coefficients[:, j] / lengths[j]
        inward[j * q + p] = -parameters.biases[j] / lengths[j]
        active.append(ActiveBound(f"length of component {j}", inward))
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
