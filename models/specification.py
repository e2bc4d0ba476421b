r"""What a Bayesian mixture is built from: checked rows, coordinates, starting values and anchors.

`specify` checks the arguments, finds the starting values (a fit by `fit_em`, unless the user gives
one) and standardises the coordinates. Directions can be anchored at those of the starting values:

.. math:: u_j = \frac{a_j + \kappa Q_j \zeta_j}{\sqrt{1 + \kappa^2 |\zeta_j|^2}},
    \qquad \kappa = \frac{\tan(\text{angle})}{\sqrt{d - 1}}, \qquad \zeta_j \sim N(0, I)

with a_j the anchor, a unit vector, and Q_j an orthonormal basis of its complement. The tangent of
the angle between u_j and its anchor is :math:`\kappa |\zeta_j|`, which has root mean square
tan(angle): half to two thirds of the prior lie within that angle. Directions beyond 90 degrees
cannot be reached, so a component cannot turn into its mirror image. With several linear predictors
(several responses, or classes) each of them has its own direction and anchor.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import (
    ConvergenceWarning,
    FloatArray,
    RandomSeed,
    as_float_array,
    notify,
    validate_n_components,
)
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates
from moment_init.em.fitting import fit_em
from moment_init.em.given import refuse_draws
from moment_init.em.priors import coefficient_units, typical_level
from moment_init.em.problem import GateCoordinates, find_coordinates
from moment_init.em.result import EMFit
from moment_init.em.start_values import StartValues, start_values_of
from moment_init.moments.result import MomentEstimate

_SMALLEST_COSINE = 0.05
"""Smallest cosine between a direction and its anchor (87 degrees): the tilt would be infinite at 90
degrees."""


def tilt_per_unit(anchor_angle: float, n_features: int) -> float:
    """Return kappa, the tangent of the angle that corresponds to one unit of tilt."""
    if n_features == 1:
        return 0.0
    return float(np.tan(np.radians(anchor_angle)) / np.sqrt(n_features - 1))


def anchor_bases(anchors: FloatArray) -> FloatArray:
    """Compute orthonormal bases of the complements of unit vectors."""
    # anchors: (n_features, n_components) -> (n_components, n_features, n_features - 1)
    n_features = anchors.shape[0]
    bases = []
    for anchor in anchors.T:
        # The reflection that maps the first axis to -sign(a_1) a maps the other axes to a basis.
        normal = anchor.copy()
        normal[0] += np.copysign(1.0, anchor[0])
        reflection = np.eye(n_features) - 2.0 * np.outer(normal, normal) / (normal @ normal)
        bases.append(reflection[:, 1:])
    return np.stack(bases)


def tilts_of(
    directions: FloatArray, anchors: FloatArray, bases: FloatArray, kappa: float
) -> FloatArray:
    r"""Compute the tilts of given directions, the inverse of the module's equation.

    .. math:: \zeta_j = Q_j' u_j / (\kappa \langle u_j, a_j \rangle)
    """
    # directions, anchors: (n_features, n_components),
    # bases: (n_components, n_features, n_features - 1) -> (n_components, n_features - 1)
    if kappa == 0.0:
        return np.zeros(bases.shape[::2])
    cosines = np.maximum(np.sum(directions * anchors, axis=0), _SMALLEST_COSINE)
    across = np.einsum("jdt,dj->jt", bases, directions)
    return np.asarray(across / (kappa * cosines[:, None]))


_SMALLEST_LENGTH = 1e-8
"""Length of a coefficient vector below which its component has no direction."""


def require_fitting_init(init: Any, data: RegressionData, n_components: int) -> None:
    """Raise if an estimate or a fit has another shape, other columns or another family."""
    refuse_draws(init)
    if not isinstance(init, MomentEstimate | EMFit):
        return
    if init.n_components != n_components:
        raise ValueError(
            f"`init` must have `n_components` ({n_components}) components; got one with "
            f"{init.n_components}. Change `n_components`, or estimate again."
        )
    if len(init.feature_names) != data.X.shape[1]:
        raise ValueError(
            f"`init` must have the {data.X.shape[1]} features of `X`; got one with "
            f"{len(init.feature_names)}. Estimate from the same columns."
        )
    _require_same_names("init", "X", init.feature_names, data.feature_names)
    if (init.family, init.link) != (data.family.name, data.family.link_name):
        raise ValueError(
            f"`init` must be of the family {data.family.name} ({data.family.link_name}); got one "
            f"of {init.family} ({init.link}). Pass the `family` and `link` of the fit."
        )
    if len(init.response_names) != len(data.response_names):
        raise ValueError(
            f"`init` must have the responses or classes of `y`, {list(data.response_names)}; got "
            f"one with {list(init.response_names)}. Fit the same responses."
        )
    _require_same_names("init", "y", init.response_names, data.response_names)


def _require_same_names(
    first: str, second: str, names: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Raise if both sides name their columns and the names or their order differ."""
    unnamed = tuple(f"{second[0].lower()}{index}" for index in range(len(names)))
    if names != expected and unnamed not in (names, expected):
        raise ValueError(
            f"`{first}` must come from the columns of `{second}`, in their order: "
            f"{list(expected)}; got {list(names)}. Reorder the columns, or fit again."
        )


def require_fitting_gate(init: Any, gate: GateCoordinates | None) -> None:
    """Raise if the model cannot start from the gate of a fit."""
    if not isinstance(init, EMFit):
        return
    has_gate = init.gate is not None or init.gate_means is not None
    if init.gate_means is not None:
        raise ValueError(
            "`init` must have a softmax gate or none; got a fit with a gaussian gate. Fit again "
            "with gate='softmax', or pass (coefficients, biases, weights)."
        )
    if gate is None and has_gate:
        raise ValueError(
            "`gating` must be given with an `init` that has a gate; got None. Pass the covariates "
            "of the fit, or a fit without a gate."
        )
    if gate is None or init.gate is None:
        return
    if len(init.gate_names) != len(gate.names):
        raise ValueError(
            f"`init` must have the {len(gate.names)} gating covariates of `gating`; got a fit with "
            f"{len(init.gate_names)}. Pass the `gating` of the fit."
        )
    _require_same_names("init", "gating", init.gate_names, gate.names)


def values_from_arrays(init: Any, data: RegressionData, n_components: int) -> StartValues:
    """Read starting values from (coefficients, biases, weights[, dispersion])."""
    if len(init) not in (3, 4):
        raise ValueError(
            "`init` must be (coefficients, biases, weights) or (coefficients, biases, weights, "
            f"dispersion); got a sequence of {len(init)}."
        )
    arrays = [as_float_array(values, "init") for values in init]
    has_dispersion = [family.has_dispersion for family in data.family.predictor_families]
    levels = (len(has_dispersion), n_components)[len(has_dispersion) == 1 :]
    slopes = (*levels[:-1], data.n_features, n_components)
    is_read = np.reshape(has_dispersion, (*levels[:-1], 1))  # which dispersions are read
    names = ("coefficients", "biases", "weights", "dispersion")
    shapes = (slopes, levels, (n_components,), levels)
    for name, values, shape in zip(names, arrays, shapes, strict=False):
        is_finite = np.isfinite(values)
        if name == "dispersion" and values.shape == shape:
            is_finite |= ~is_read
        if values.shape != shape or not np.all(is_finite):
            raise ValueError(
                f"`init`: {name} must be finite, of shape {shape}; got shape {values.shape}."
            )
    coefficients, biases, weights = arrays[:3]
    if np.any(weights <= 0):
        raise ValueError(f"`init`: weights must be positive; got {weights}.")
    dispersion = None
    if len(arrays) == 4:
        if not data.family.has_dispersion:
            raise ValueError(
                f"`init`: dispersion must be left out for family {data.family.name!r}, which has "
                f"none; got {arrays[3]}."
            )
        dispersion = np.where(is_read, arrays[3], np.nan)
        if np.any(dispersion <= 0):
            raise ValueError(f"`init`: dispersion must be positive; got {arrays[3]}.")
    scales = np.linalg.norm(coefficients, axis=-2)
    return StartValues(
        directions=coefficients / np.maximum(scales, _SMALLEST_LENGTH)[..., None, :],
        coefficients=coefficients,
        scales=scales,
        biases=biases,
        weights=weights / weights.sum(),
        dispersion=dispersion,
    )


Directions = Literal["anchored", "fixed", "free"]


@dataclass(frozen=True, slots=True, eq=False)
class Specification:
    """Everything that a model is built from."""

    data: RegressionData  # checked rows, in the user's units and order
    n_components: int
    # maps between standardised coordinates and the user's units, one for each linear predictor
    coordinates: tuple[Coordinates, ...]
    gating: FloatArray | None  # gating covariates; (n_obs, n_gate)
    gate_coordinates: GateCoordinates | None  # means, scales and names of the gating covariates
    directions: Directions  # whether directions are anchored, fixed or free
    anchor_angle: float  # prior angle between a direction and its anchor, in degrees
    start: StartValues  # starting values, in the user's units
    # the fit that gave the starting values, whose errors spread the chains; None for arrays
    origin: MomentEstimate | EMFit | None
    # unit anchors in standardised coordinates; in the shape of the coefficients
    anchors: FloatArray
    given: MomentEstimate | None = None  # the user's estimate from which `origin` was fitted

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.anchors.shape[-2])

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component."""
        return len(self.coordinates)

    @property
    def response_dims(self) -> tuple[str, ...]:
        """Leading dims of coefficients, biases and dispersions: none for a single predictor."""
        return () if self.n_predictors == 1 else ("response",)

    @property
    def kappa(self) -> float:
        """Tangent of the angle per unit of tilt."""
        return tilt_per_unit(self.anchor_angle, self.n_features)

    @property
    def dispersed(self) -> NDArray[np.intp]:
        """Predictors whose family has a dispersion."""
        return np.flatnonzero([each.has_dispersion for each in self.data.family.predictor_families])

    @property
    def anchor_columns(self) -> FloatArray:
        """Anchors of all predictors as columns, (n_features, n_predictors * n_components)."""
        return as_columns(self.anchors)

    @property
    def bases(self) -> FloatArray:
        """Bases of the complements of the columns, (n_columns, n_features, n_features - 1)."""
        return anchor_bases(self.anchor_columns)

    @property
    def units(self) -> FloatArray:
        """Shift and scale of the linear predictors, (2, n_predictors)."""
        pairs = [(where.response_shift, where.response_scale) for where in self.coordinates]
        return np.array(pairs).T

    @property
    def has_tilt(self) -> bool:
        """Whether directions can tilt: they are anchored and there is more than one feature."""
        return self.directions == "anchored" and self.n_features > 1

    def to_user_columns(self, columns: FloatArray) -> FloatArray:
        """Map coefficients of standardised inputs to those of the user's columns."""
        # columns: (n_features, n_predictors * any), predictor by predictor
        parts = np.split(columns, self.n_predictors, axis=1)
        pairs = zip(self.coordinates, parts, strict=True)
        mapped = [
            where.coefficients_to_user(part, np.zeros(part.shape[1]))[0] for where, part in pairs
        ]
        return np.concatenate(mapped, axis=1)

    def standardised_values(self, values: StartValues) -> dict[str, FloatArray]:
        """Compute the values of the model's free variables from parameters in the user's units."""
        if values.coefficients is None or values.biases is None:
            raise ValueError("`init` must have coefficients and biases; got directions only.")
        slopes, biases = _standardised(self.coordinates, values.coefficients, values.biases)
        result = {"standardised_bias": biases}
        lengths = np.maximum(np.linalg.norm(slopes, axis=-2), _SMALLEST_LENGTH)
        if self.directions == "free":
            units = coefficient_units(self.coordinates)
            result["standardised_coefficient"] = values.coefficients / units
        elif self.directions == "fixed":
            along = np.sum(slopes * self.anchors, axis=-2)
            result["standardised_scale"] = np.maximum(along, _SMALLEST_LENGTH)
        else:
            result["standardised_scale"] = lengths
        if self.has_tilt:
            directions = as_columns(slopes / lengths[..., None, :])
            tilts = tilts_of(directions, self.anchor_columns, self.bases, self.kappa)
            result["tilt"] = tilts.reshape((*lengths.shape, -1))
        if values.dispersion is not None:
            scale = self.units[1][:, None] if self.response_dims else self.units[1]
            spreads = values.dispersion / scale
            result["standardised_dispersion"] = (
                spreads[self.dispersed] if self.response_dims else spreads
            )
        return result | self._mixing_values(values)

    def _mixing_values(self, values: StartValues) -> dict[str, FloatArray]:
        """Return the weights, or the gate's slopes and its logits at the mean covariates."""
        if values.weights is None:
            raise ValueError("`init` must have weights; got none.")
        if self.gate_coordinates is None:
            return {"weight": values.weights / values.weights.sum()}
        n_gate = self.gate_coordinates.mean.size
        slopes = np.zeros((n_gate, self.n_components)) if values.gate is None else values.gate
        logits = np.log(np.maximum(values.weights, np.finfo(np.float64).tiny))
        if values.gate_biases is not None:
            logits = values.gate_biases + self.gate_coordinates.mean @ slopes
        slopes = slopes * self.gate_coordinates.scales[:, None]
        return {
            "standardised_gate": slopes - slopes.mean(axis=1, keepdims=True),
            "standardised_gate_bias": logits - logits.mean(),
        }


def specify(
    data: RegressionData,
    n_components: Any,
    *,
    init: Any,
    directions: Any,
    anchor_angle: Any,
    random_seed: RandomSeed,
    progressbar: bool = False,
) -> Specification:
    """Check the arguments of checked rows in memory, and find the starting values."""
    if directions not in get_args(Directions):
        raise ValueError(
            f"`directions` must be one of {', '.join(map(repr, get_args(Directions)))}; got "
            f"{directions!r}."
        )
    require_angle(anchor_angle)
    number = validate_n_components(n_components, data.n_obs)
    require_fitting_init(init, data, number)
    if data.n_features == 1 and directions == "anchored":
        # With a single column an anchor is a sign, and would cut off every slope at zero.
        directions = "free"
    start, origin = _find_start(data, number, init, directions, random_seed, progressbar)
    found = find_coordinates(data)
    require_fitting_gate(init, found.gate)
    coordinates = tuple(
        replace(where, response_shift=typical_level(where, data, index))
        for index, where in enumerate(found.of_predictors)
    )
    return Specification(
        data=data,
        n_components=number,
        coordinates=coordinates,
        gating=data.gating,
        gate_coordinates=found.gate,
        directions=directions,
        anchor_angle=float(anchor_angle),
        start=start,
        origin=origin,
        anchors=_anchors(coordinates, start),
        given=init if isinstance(init, MomentEstimate) else None,
    )


def require_angle(anchor_angle: Any) -> None:
    """Raise if the prior angle between a direction and its anchor is not in (0, 90)."""
    is_number = isinstance(anchor_angle, int | float | np.number)
    if not is_number or isinstance(anchor_angle, bool) or not 0 < float(anchor_angle) < 90:
        raise ValueError(
            "`anchor_angle` must be an angle in degrees between 0 and 90, both excluded; got "
            f"{anchor_angle!r}. Use directions='fixed' for directions that do not move."
        )


def _find_start(
    data: RegressionData,
    n_components: int,
    init: Any,
    directions: Directions,
    random_seed: RandomSeed,
    progressbar: bool,
) -> tuple[StartValues, MomentEstimate | EMFit | None]:
    """Find the starting values and the fit that they come from."""
    if isinstance(init, EMFit):
        return start_values_of(init), init
    if isinstance(init, tuple | list):
        return values_from_arrays(init, data, n_components), None
    options: dict[str, Any] = {"init": init, "priors": "default"}
    if isinstance(init, MomentEstimate):
        has_coefficients = init.coefficients is not None and init.weights is not None
        options["init"] = init if has_coefficients else "search"
        is_held = directions == "fixed" or not has_coefficients
        if is_held and data.family.n_predictors == 1:
            options["fixed_directions"] = init.directions
    options |= {"random_seed": random_seed, "progressbar": progressbar}
    fit = fit_em(data, None, n_components, **options)
    return start_values_of(fit), fit


def _anchors(coordinates: tuple[Coordinates, ...], start: StartValues) -> FloatArray:
    """Scale the starting coefficients to unit columns, in standardised coordinates."""
    columns = start.directions if start.coefficients is None else start.coefficients
    slopes, _ = _standardised(coordinates, columns, np.zeros_like(columns[..., 0, :]))
    lengths = np.linalg.norm(slopes, axis=-2, keepdims=True)
    is_flat = lengths < _SMALLEST_LENGTH
    if np.any(is_flat):
        flat = np.flatnonzero(is_flat.reshape(-1, slopes.shape[-1]).any(axis=0))
        notify(
            f"components {flat.tolist()} of the starting values have no slopes and so no "
            "direction. Their anchors are arbitrary. Use directions='free', or fewer components.",
            ConvergenceWarning,
        )
        n_features, n_components = slopes.shape[-2:]
        axes = np.eye(n_features)[:, np.arange(n_components) % n_features]
        slopes = np.where(is_flat, axes, slopes)
        lengths = np.linalg.norm(slopes, axis=-2, keepdims=True)
    return np.asarray(slopes / lengths)


def _standardised(
    coordinates: tuple[Coordinates, ...], coefficients: FloatArray, biases: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Map coefficients and biases from the user's units, predictor by predictor."""
    # coefficients: (n_features, n_components), biases: (n_components,), with several predictors on
    # a leading axis
    slopes = coefficients.reshape(-1, *coefficients.shape[-2:])
    levels = biases.reshape(-1, biases.shape[-1])
    mapped = [
        where.coefficients_to_standardised(*predictor)
        for where, *predictor in zip(coordinates, slopes, levels, strict=True)
    ]
    return (
        np.stack([first for first, _ in mapped]).reshape(coefficients.shape),
        np.stack([second for _, second in mapped]).reshape(biases.shape),
    )


def as_columns(values: FloatArray) -> FloatArray:
    """Put the columns of all predictors side by side."""
    # values: (n_features, n_components) or (n_predictors, n_features, n_components)
    # -> (n_features, n_predictors * n_components)
    return values if values.ndim == 2 else np.concatenate(list(values), axis=1)
