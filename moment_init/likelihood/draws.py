"""Draws of a mixture's parameters, and their evaluation on rows.

`Draws` has the arrays of `MixtureParameters` with a leading axis. Log-likelihoods, memberships,
means and replicated responses are computed draw by draw; a fit is a single draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.data.checking import require_finite_offset, require_finite_predictors
from moment_init.families.base import LARGEST_DRAWN_MEAN, Family
from moment_init.families.several import AnyFamily, Categorical
from moment_init.likelihood.gate import log_gate_density, unit_values
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import (
    doubles_per_unit,
    prior_probabilities,
    responsibilities,
    unit_log_likelihood,
)
from moment_init.likelihood.rows import LikelihoodRows, column

_SMALLEST_WEIGHT = 1e-300
"""Lower limit of the weights of a gate, so that their logarithms exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Draws of the parameters in the user's units: `MixtureParameters` with a leading axis.

    Weights are given by their logits, with a gate at gating covariates of zero, which may be so far
    from the rows that probabilities would vanish.
    """

    coefficients: FloatArray  # (n_draws, [n_predictors,] n_features, n_components)
    biases: FloatArray  # (n_draws, [n_predictors,] n_components)
    logits: FloatArray  # (n_draws, n_components)
    dispersion: FloatArray | None = None  # (n_draws, [n_predictors,] n_components)
    gate: FloatArray | None = None  # slopes of the logits; (n_draws, n_gate, n_components)

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.biases)

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the components, (n_draws, n_components)."""
        return np.asarray(softmax(self.logits, axis=-1))

    @classmethod
    def of(cls, parameters: Sequence[MixtureParameters]) -> "Draws":
        """Stack parameters."""

        def stack(name: str) -> Any:
            values = [getattr(each, name) for each in parameters]
            return None if values[0] is None else np.stack(values)

        with np.errstate(divide="ignore"):  # a weight of zero is a probability of zero
            logits = np.log(stack("weights"))
        return cls(
            stack("coefficients"), stack("biases"), logits, stack("dispersion"), stack("gate")
        )

    def at(self, draw: int) -> MixtureParameters:
        """Parameters of one draw."""
        dispersion, gate = self.dispersion, self.gate
        odds = np.exp(self.logits[draw] - self.logits[draw].max())
        weights = odds / odds.sum()
        return MixtureParameters(
            self.coefficients[draw],
            self.biases[draw],
            weights if gate is None else np.maximum(weights, _SMALLEST_WEIGHT),
            None if dispersion is None else dispersion[draw],
            None if gate is None else gate[draw],
        )

    def centred(self, rows: LikelihoodRows) -> tuple["Draws", LikelihoodRows]:
        """Centre gating covariates: at their mean no weight vanishes or overflows."""
        if rows.gate is None or self.gate is None or not rows.n_obs:
            return self, rows
        centre = rows.gate.mean(axis=0)
        logits = self.logits + np.einsum("g,dgr->dr", centre, self.gate)
        return replace(self, logits=logits), replace(rows, gate=rows.gate - centre)


def require_finite(rows: LikelihoodRows, draws: Draws) -> None:
    """Raise if predictors or logits of the rows would overflow under a draw."""
    require_finite_offset(rows.offset)
    slopes = np.moveaxis(draws.coefficients, -2, 0)
    if len(slopes):
        require_finite_predictors(read_block(rows.Z, slice(None)), slopes, "X")
    if draws.gate is not None and rows.gate is not None:
        require_finite_predictors(rows.gate, np.moveaxis(draws.gate, 1, 0), "gating")


def log_likelihoods(
    family: AnyFamily, rows: LikelihoodRows, draws: Draws, *, is_joint: bool = False
) -> FloatArray:
    r"""Log-likelihood of every row, or group, under every draw.

    .. math:: \log \sum_j w_j \prod_{i \in g} p(y_i \mid \eta_{ij})^{c_i}

    with c the sample weights. Without groups it is the log density of each row and ignores the
    weights. The joint one includes the density of gating covariates under a Gaussian gate.
    """
    # -> (n_draws, n_units)
    with np.errstate(over="ignore"):  # of products of columns, which are not used
        prepared = rows.prepared(family)

    def evaluate(parameters: MixtureParameters, draw: int) -> FloatArray:
        values = unit_log_likelihood(family, prepared, parameters)
        return values + log_gate_density(parameters, unit_values(rows)[0]) if is_joint else values

    return np.asarray(_over_draws(evaluate, draws, rows, (rows.n_units,)))


def memberships(
    family: AnyFamily | None, rows: LikelihoodRows, draws: Draws, *, is_averaged: bool = False
) -> FloatArray:
    """Probabilities of the components of every unit, or of the gate alone without a family.

    The probabilities of all draws, or their means.
    """
    # -> (n_draws, n_units, n_components) or (n_units, n_components)
    prepared = rows if family is None else rows.prepared(family)
    first = slice(None) if rows.group_starts is None else rows.group_starts

    def evaluate(parameters: MixtureParameters, draw: int) -> FloatArray:
        if family is None:
            return _prior(rows, parameters)
        return responsibilities(family, prepared, parameters)[first]

    shape = (rows.n_units, draws.biases.shape[-1])
    return np.asarray(_over_draws(evaluate, draws, rows, shape, is_averaged=is_averaged))


def means(
    family: AnyFamily,
    rows: LikelihoodRows,
    draws: Draws,
    *,
    by_component: bool = False,
    is_averaged: bool = False,
    row_weights: FloatArray | None = None,
) -> FloatArray:
    r"""Mean responses, numbers of successes for binomial ones, or probabilities of all classes.

    .. math:: \sum_j \pi_j\, g(\langle\beta_j, x\rangle + b_j)

    or each term of the sum by itself, without its weight; of every row, or summed over the rows.
    """
    # row_weights: (n_obs,) -> ([n_draws,] [n_obs][, n_components][, n_outcomes])

    def evaluate(parameters: MixtureParameters, draw: int) -> FloatArray:
        values = np.moveaxis(family.means(_predictors(rows, parameters)), 0, -1)
        if rows.n_trials is not None:
            values = values * rows.n_trials.reshape(rows.n_obs, 1, -1)
        if not by_component:
            prior = _of_rows(rows, _prior(rows, parameters))
            values = (values * prior[..., None]).sum(axis=1)
        values = values if has_outcomes else values[..., 0]
        return values if row_weights is None else np.tensordot(row_weights, values, axes=1)

    has_outcomes = isinstance(family, Categorical) or len(family.members) > 1
    n_outcomes = (family.n_classes,) if isinstance(family, Categorical) else (len(family.members),)
    shape: tuple[int, ...] = (rows.n_obs,) if row_weights is None else ()
    shape += (draws.biases.shape[-1],) if by_component else ()
    shape += n_outcomes if has_outcomes else ()
    return np.asarray(_over_draws(evaluate, draws, rows, shape, is_averaged=is_averaged))


def replicated_responses(
    family: AnyFamily, rows: LikelihoodRows, draws: Draws, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw the responses of every row from every draw; rows of a group share a component."""
    # -> (n_draws, n_obs[, n_responses])
    generators = rng.spawn(draws.n_draws)

    def evaluate(parameters: MixtureParameters, draw: int) -> FloatArray:
        generator = generators[draw]
        cumulative = np.cumsum(_prior(rows, parameters), axis=-1)
        # The last sum is one up to rounding; leaving it out keeps the result in range.
        uniform = generator.random((rows.n_units, 1))
        chosen = _of_rows(rows, (uniform > cumulative[:, :-1]).sum(axis=-1))
        eta = _predictors(rows, parameters)[:, np.arange(rows.n_obs), chosen]
        spreads = None if parameters.spreads is None else parameters.spreads[:, chosen]
        return _sample(family, rows, eta, spreads, generator)

    several = (len(family.members),) if len(family.members) > 1 else ()
    dtype = response_dtype(family)
    shape = (rows.n_obs, *several)
    return np.asarray(_over_draws(evaluate, draws, rows, shape, dtype=dtype))


def response_dtype(family: AnyFamily) -> np.dtype[Any]:
    """Return the smallest dtype of responses: there is one per draw and row."""

    def of(member: Family) -> type:
        if member.has_binary_rows:
            return np.int8
        is_whole = member.has_unlimited_counts or member.has_trials
        return np.int64 if is_whole or isinstance(member, Categorical) else np.float64

    return np.result_type(*map(of, family.members))


def _over_draws(
    function: Callable[[MixtureParameters, int], FloatArray],
    draws: Draws,
    rows: LikelihoodRows,
    shape: tuple[int, ...],
    *,
    is_averaged: bool = False,
    dtype: Any = np.float64,
) -> NDArray[Any]:
    """Evaluate a function of the parameters under every draw, or average it over the draws."""
    result = np.empty((0 if is_averaged else draws.n_draws, *shape), dtype)

    def evaluate(part: slice) -> tuple[FloatArray, ...]:
        total = np.zeros(shape if is_averaged else ())
        with np.errstate(over="ignore", divide="ignore"):  # extreme draws, and weights of zero
            for draw in range(part.start, part.stop):
                values = function(draws.at(draw), draw)
                if is_averaged:
                    total += values
                else:
                    result[draw] = values
        return (total,)

    doubles = rows.n_units * doubles_per_unit(rows, draws.at(0))
    (total,) = sum_over_blocks(evaluate, draws.n_draws, doubles)
    return total / draws.n_draws if is_averaged else result


def _prior(rows: LikelihoodRows, parameters: MixtureParameters) -> FloatArray:
    """Probabilities of the components of every unit before the response is observed."""
    # -> (n_units, n_components)
    if parameters.gate is None:
        return np.broadcast_to(parameters.weights, (rows.n_units, parameters.n_components))
    design = np.hstack([np.ones((rows.n_units, 1)), unit_values(rows)[0]])
    return prior_probabilities(parameters, design).T


def _of_rows(rows: LikelihoodRows, values: Any) -> Any:
    """Repeat values of units for their rows."""
    if rows.group_starts is None:
        return values
    return np.repeat(values, np.diff(np.append(rows.group_starts, rows.n_obs)), axis=0)


def _predictors(rows: LikelihoodRows, parameters: MixtureParameters) -> FloatArray:
    """Linear predictors of every row, (n_predictors, n_obs, n_components)."""
    eta: FloatArray = np.matmul(read_block(rows.Z, slice(None)), parameters.slopes)
    eta += parameters.levels[:, None]
    if rows.offset is not None:
        eta += np.atleast_2d(rows.offset.T)[..., None]
    return eta


def _sample(
    family: AnyFamily,
    rows: LikelihoodRows,
    eta: FloatArray,
    spreads: FloatArray | None,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw responses at linear predictors."""
    # eta, spreads: (n_predictors, n_obs) -> (n_obs[, n_responses])
    if isinstance(family, Categorical):
        return family.sample(family.means(eta), rng=rng)
    drawn = []
    for index, (member, predictor) in enumerate(zip(family.members, eta, strict=True)):
        mean = member.link.mean(predictor)
        if member.has_unlimited_counts:
            mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
        spread = spreads[index] if member.has_dispersion and spreads is not None else None
        trials = None
        if member.has_trials and rows.n_trials is not None:
            trials = column(rows.n_trials, index)
        drawn.append(member.sample(mean, dispersion=spread, n_trials=trials, rng=rng))
    return drawn[0] if len(drawn) == 1 else np.stack(drawn, axis=-1)
