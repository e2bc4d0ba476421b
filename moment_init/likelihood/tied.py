r"""Mixtures with several linear predictors in which those of a component share one direction.

With :math:`\beta_{ja} = s_{ja} u_j`, a component has a unit direction u_j and, for each predictor
a, a scale s_ja of either sign, a bias and, if its family has one, a dispersion. The vector of
parameters has the order

    component by component (u, scales, biases[, log dispersions]), then for each component but the
    last the logit log(w_j / w_r)

Derivatives follow from those of the free mixture by the chain rule, component by component. One
entry of each component is redundant: a longer u_j with smaller scales gives the same mixture. The
information has a large value in this direction, so that no step is taken along it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
from moment_init.likelihood.em_step import dispersion_steps, gate_step, solve_blocks
from moment_init.likelihood.parameters import (
    LARGEST_LOG_DISPERSION_STEP,
    ActiveBound,
    LinearConstraint,
    MixtureParameters,
    ParameterBounds,
    active_bounds,
    bounds_of,
    enforce,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    parameter_free_log_likelihood,
)

_SHORTEST = 1e-12
"""Smallest length by which a direction is divided."""

_SMALLEST_INFORMATION = 1.0
"""The information along the redundant length of a direction is the mean of the diagonal of its
component, and at least this, so that it is positive for a component without rows too."""


@dataclass(frozen=True, slots=True, eq=False)
class TiedParameters:
    """Parameters of a mixture in which all predictors of a component have one direction."""

    directions: FloatArray  # unit directions u_j; (n_features, n_components)
    # scales s_ja, of either sign: the coefficients are s_ja u_j; (P, n_components)
    scales: FloatArray
    biases: FloatArray  # (P, n_components)
    weights: FloatArray  # probabilities of the components; (n_components,)
    # NaN for predictors without one, None if none has one; (P, n_components)
    dispersion: FloatArray | None = None

    @property
    def free(self) -> MixtureParameters:
        """The same mixture by its coefficients."""
        coefficients = self.scales[:, None, :] * self.directions
        return MixtureParameters(coefficients, self.biases, self.weights, self.dispersion)

    def reorder(self, order: NDArray[np.intp]) -> "TiedParameters":
        """Reorder the components."""
        # order: (n_components,)
        return TiedParameters(
            self.directions[:, order],
            self.scales[:, order],
            self.biases[:, order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[:, order],
        )


@dataclass(frozen=True, slots=True)
class TiedPlaces:
    """Places of the parameters of one component in its slice of the vector."""

    n_features: int
    n_predictors: int
    n_dispersions: int

    @property
    def size(self) -> int:
        """Number of parameters of a component, m."""
        return self.n_features + 2 * self.n_predictors + self.n_dispersions

    @property
    def direction(self) -> slice:
        """Where the direction is."""
        return slice(0, self.n_features)

    @property
    def scales(self) -> slice:
        """Where the scales are."""
        return slice(self.n_features, self.n_features + self.n_predictors)

    @property
    def biases(self) -> slice:
        """Where the biases are."""
        return slice(self.scales.stop, self.scales.stop + self.n_predictors)

    @property
    def dispersions(self) -> slice:
        """Where the log dispersions are."""
        return slice(self.biases.stop, self.size)


def places_of(parameters: TiedParameters) -> TiedPlaces:
    """Places of the parameters of one component."""
    n_dispersions = len(parameters.free.layout.dispersed)
    return TiedPlaces(len(parameters.directions), len(parameters.scales), n_dispersions)


def pack_tied(parameters: TiedParameters) -> FloatArray:
    """Write parameters as an unconstrained vector."""
    # -> (n_parameters,)
    logits = np.log(parameters.weights)
    parts = [parameters.directions, parameters.scales, parameters.biases]
    if parameters.dispersion is not None:
        parts.append(np.log(parameters.dispersion[parameters.free.layout.dispersed]))
    return np.concatenate([np.concatenate(parts).T.ravel(), logits[:-1] - logits[-1]])


def unpack_tied(vector: FloatArray, like: TiedParameters) -> TiedParameters:
    """Read parameters from a vector; directions are brought to length one."""
    # vector: (n_parameters,)
    places, r = places_of(like), len(like.weights)
    blocks = vector[: r * places.size].reshape(r, places.size).T
    directions = blocks[places.direction]
    lengths = np.maximum(np.linalg.norm(directions, axis=0), _SHORTEST)
    logits = np.append(vector[r * places.size :], 0.0)
    odds = np.exp(logits - logits.max())
    dispersion = None
    if like.dispersion is not None:
        dispersion = np.full_like(like.dispersion, np.nan)
        dispersion[like.free.layout.dispersed] = np.exp(blocks[places.dispersions])
    return TiedParameters(
        directions / lengths,
        blocks[places.scales] * lengths,
        blocks[places.biases].copy(),
        odds / odds.sum(),
        dispersion,
    )


def component_jacobians(parameters: TiedParameters) -> FloatArray:
    """Derivatives of the free parameters of each component in the tied ones, (r, q, m)."""
    places, layout = places_of(parameters), parameters.free.layout
    p, r = parameters.directions.shape
    result = np.zeros((r, layout.size, places.size))
    for a, at in enumerate(layout.slopes):
        result[:, at[:-1], np.arange(p)] = parameters.scales[a][:, None]
        result[:, at[:-1], places.scales.start + a] = parameters.directions.T
        result[:, at[-1], places.biases.start + a] = 1.0
    result[:, layout.dispersions, np.arange(places.size)[places.dispersions]] = 1.0
    return result


@dataclass(frozen=True, slots=True, eq=False)
class TiedLikelihood:
    """The likelihood of a mixture with one direction per component, to be climbed."""

    family: AnyFamily
    rows: LikelihoodRows
    bounds: ParameterBounds
    constraint: LinearConstraint | None  # holds the directions if they are held
    constant: float  # part of the log-likelihood that does not depend on parameters

    @classmethod
    def of(
        cls,
        family: AnyFamily,
        rows: LikelihoodRows,
        like: TiedParameters,
        *,
        holds_directions: bool = False,
        constant: float | None = None,
    ) -> "TiedLikelihood":
        """Prepare the likelihood of rows, for parameters of the shapes of `like`."""
        constraint = None
        if holds_directions:
            n_logits, size = len(like.weights) - 1, places_of(like).size
            by_component = np.eye(size)[:, len(like.directions) :]
            blocks = [by_component] * len(like.weights)
            constraint = LinearConstraint(np.asarray(block_diag(*blocks, np.eye(n_logits))))
        if constant is None:
            constant = parameter_free_log_likelihood(family, rows)
        return cls(family, rows.prepared(family), bounds_of(family), constraint, constant)

    def sums(self, parameters: TiedParameters, *, missing: bool) -> LikelihoodSums:
        """Log-likelihood, score and information of all parameters, by the chain rule.

        What the curvature of the tie takes from the information is counted as missing: EM steps
        have a positive definite information without it, and Newton steps have the observed one.
        """
        mixture, places = parameters.free, places_of(parameters)
        free = likelihood_sums(
            self.family, self.rows, mixture, missing=missing, constant=self.constant
        )
        jacobians = component_jacobians(parameters)
        r, q, _ = jacobians.shape
        scores = free.score[: r * q].reshape(r, q)
        transposed = jacobians.transpose(0, 2, 1)
        information = transposed @ np.asarray(free.component_information) @ jacobians
        if self.constraint is None:
            information += _fixed_lengths(parameters, information)
        missing_information = None
        if free.missing_information is not None:
            curvatures = np.zeros((r, places.size, places.size))
            by_scale = scores[:, mixture.layout.slopes[:, :-1]].transpose(0, 2, 1)
            curvatures[:, places.direction, places.scales] = by_scale
            curvatures[:, places.scales, places.direction] = by_scale.transpose(0, 2, 1)
            whole = block_diag(*jacobians, np.eye(r - 1))
            missing_information = whole.T @ free.missing_information @ whole
            missing_information += block_diag(*curvatures, np.zeros((r - 1, r - 1)))
        tied_scores = np.einsum("jqm,jq->jm", jacobians, scores)
        return replace(
            free,
            score=np.concatenate([tied_scores.ravel(), free.score[r * q :]]),
            component_information=information,
            missing_information=missing_information,
        )

    def moved(self, parameters: TiedParameters, step: FloatArray) -> TiedParameters:
        """Take a step that ends inside the bounds."""
        # step: (n_parameters,)
        places, r = places_of(parameters), len(parameters.weights)
        limited, limit = np.array(step, dtype=np.float64), LARGEST_LOG_DISPERSION_STEP
        by_component = limited[: r * places.size].reshape(r, places.size)[:, places.dispersions]
        by_component[:] = np.clip(by_component, -limit, limit)
        return self.admit(unpack_tied(pack_tied(parameters) + limited, parameters))

    def admit(self, parameters: TiedParameters) -> TiedParameters:
        """Move parameters inside the bounds; a predictor that is too long shrinks as a whole."""
        inside = enforce(parameters.free, self.bounds)
        scales = np.einsum("pj,apj->aj", parameters.directions, inside.slopes)
        return TiedParameters(
            parameters.directions, scales, inside.biases, inside.weights, inside.dispersion
        )

    def em_moved(
        self, parameters: TiedParameters, sums: LikelihoodSums, share: float
    ) -> TiedParameters:
        """Take a share of an EM step: one scoring step per component, weights in closed form."""
        places, r = places_of(parameters), len(parameters.weights)
        scores = sums.score[: r * places.size].reshape(r, places.size)
        information = np.asarray(sums.component_information)
        step = np.zeros_like(sums.score)
        by_component = step[: r * places.size].reshape(r, places.size)
        slopes = slice(0 if self.constraint is None else places.scales.start, places.biases.stop)
        found = solve_blocks(information[:, slopes, slopes], scores[:, slopes])
        if found is not None:
            by_component[:, slopes] = found
        spreads = np.arange(places.size)[places.dispersions]
        by_component[:, spreads] = dispersion_steps(
            information[:, spreads, spreads], scores[:, spreads]
        )
        weights = gate_step(sums, parameters.free)
        if weights is not None:
            step[r * places.size :] = weights
        return self.moved(parameters, share * step)

    def active(self, parameters: TiedParameters) -> list[ActiveBound]:
        """Find the bounds on which the parameters lie."""
        bounds = active_bounds(parameters.free, self.bounds)
        if not bounds:
            return []
        whole = block_diag(*component_jacobians(parameters), np.eye(len(parameters.weights) - 1))
        return [replace(bound, inward=bound.inward @ whole) for bound in bounds]


def _fixed_lengths(parameters: TiedParameters, information: FloatArray) -> FloatArray:
    """Information about the length of each u_j, along which the mixture does not change."""
    # information: (n_components, m, m) -> (n_components, m, m)
    places = places_of(parameters)
    along = np.zeros(information.shape[:2])
    along[:, places.direction] = parameters.directions.T
    along[:, places.scales] = -parameters.scales.T
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    sizes = np.einsum("jmm->j", information) / places.size
    sizes = np.maximum(sizes, _SMALLEST_INFORMATION)
    return np.asarray(sizes[:, None, None] * along[:, :, None] * along[:, None, :])
