"""Climb the likelihood of many rows: score of all rows, curvature of a sample.

The maximum of a sample is close to that of all rows, and so is its curvature. A pass that sums only
the score costs a twentieth of one that also sums the information, so most Newton steps are replaced
by quasi-Newton steps (`QuasiNewton`), which start from the information of a sample and need one
such pass each. With the outer products of a sample's scores they are Le Cam's steps.

`climb_on_many` climbs rows that are not whitened: they stay in the user's units, and `AllRows` maps
parameters and scores to these units and back.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sample_rows
from moment_init.data.standardising import whiten_rows
from moment_init.families.several import AnyFamily
from moment_init.likelihood.em_step import solve_information
from moment_init.likelihood.parameters import (
    MixtureParameters,
    bounds_of,
    component_size,
    enforce,
    move,
    pack,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    likelihood_sums,
    outer_product_information,
)

SMALLEST_CURVATURE = 0.2
"""Powell's damping: the curvature along a step is kept at this share of its previous value or more,
so that the information stays positive definite where the likelihood is not concave."""


class Step(NamedTuple):
    """A whole quasi-Newton step."""

    change: FloatArray  # in the directions that are free; (n_free,)
    gain: float  # gain in log-likelihood that it predicts


@dataclass(slots=True, eq=False)
class QuasiNewton:
    """State of a climb by quasi-Newton steps (BFGS): scores are summed, curvature is corrected."""

    evaluate: Callable[[MixtureParameters], LikelihoodSums]  # sums over all rows, without curvature
    # takes a step that ends inside the bounds and on the constraint
    moved: Callable[[MixtureParameters, FloatArray], MixtureParameters]
    parameters: MixtureParameters
    information: FloatArray  # of all rows, in the free directions; (n_free, n_free)
    basis: FloatArray | None = None  # orthonormal basis of the free directions, None if all are
    share: float = 1.0  # of the whole step that is tried next
    n_iter: int = 0  # number of steps tried
    sums: LikelihoodSums = field(init=False)  # at `parameters`
    history: list[float] = field(init=False)  # objective at the start and after every step
    # change of the parameters and decrease of the score along the last step that was tried
    last: tuple[FloatArray, FloatArray] | None = None

    def __post_init__(self) -> None:
        """Evaluate the start."""
        self.sums = self.evaluate(self.parameters)
        self.history = [self.sums.objective]

    def propose(self) -> Step | None:
        """Solve for a step; None if the information is not positive definite."""
        score = self._free(self.sums.score)
        change = solve_information(self.information, score)
        return None if change is None else Step(change, 0.5 * float(score @ change))

    def end_of(self, step: Step) -> MixtureParameters:
        """Return the parameters after the next share of a step."""
        change = step.change if self.basis is None else self.basis @ step.change
        return self.moved(self.parameters, self.share * change)

    def attempt(self, step: Step) -> bool:
        """Take a share of a step unless the objective falls; return whether it was taken."""
        candidate = self.end_of(step)
        sums = self.evaluate(candidate)
        self.n_iter += 1
        change = self._free(pack(candidate) - pack(self.parameters))
        self.last = change, self._free(self.sums.score - sums.score)
        self.correct()
        if sums.objective < self.sums.objective:
            self.share /= 3
            return False
        self.parameters, self.sums = candidate, sums
        self.history.append(sums.objective)
        self.share = min(1.0, 2 * self.share)
        return True

    def correct(self) -> None:
        """Make the information match the decrease of the score along the last step."""
        if self.last is None:
            return
        change, decrease = self.last
        expected = self.information @ change
        predicted, observed = float(change @ expected), float(change @ decrease)
        if not (predicted > 0.0 and np.isfinite(observed)):
            return
        if observed < SMALLEST_CURVATURE * predicted:
            mix = (1 - SMALLEST_CURVATURE) * predicted / (predicted - observed)
            decrease = mix * decrease + (1 - mix) * expected
            observed = SMALLEST_CURVATURE * predicted
        self.information = (
            self.information
            - np.outer(expected, expected) / predicted
            + np.outer(decrease, decrease) / observed
        )

    def _free(self, vector: FloatArray) -> FloatArray:
        return vector if self.basis is None else self.basis.T @ vector


@dataclass(frozen=True, slots=True, eq=False)
class AllRows:
    """All rows of a likelihood, with the map to standardised coordinates."""

    family: AnyFamily
    rows: LikelihoodRows  # rows with inputs in the user's units
    mean: FloatArray  # mean of the inputs; (n_features,)
    # lower triangular L with L L' the covariance of the inputs; (n_features, n_features)
    factor: FloatArray
    constant: float = 0.0  # part of the log-likelihood that does not depend on parameters

    def sample(self, size: int, rng: np.random.Generator) -> LikelihoodRows:
        """Take a random sample of rows and whiten it; all rows if there are no more than `size`."""
        taken = self.rows.take(sample_rows(self.rows.n_obs, size, rng))
        return whiten_inputs(taken, self.mean, self.factor)

    def whitened(self) -> LikelihoodRows:
        """Whiten all rows."""
        return self.rows.map(whiten_inputs, self.mean, self.factor)

    def hold_samples(self, sizes: Sequence[int], rng: np.random.Generator) -> None:
        """Announce the rows that will be sampled."""
        self.rows.hold(draw=partial(_draw_samples, sizes=sizes, rng=rng))

    def thin(self, stride: int) -> "AllRows":
        """Keep every `stride`-th row, without a copy and without the constant."""
        return replace(self, rows=self.rows.thin(stride), constant=0.0)

    def evaluate(self, parameters: MixtureParameters) -> LikelihoodSums:
        """Sum log-likelihood and score over the rows, without whitening them."""
        slopes = np.linalg.solve(self.factor.T, parameters.slopes)
        levels = parameters.levels - np.einsum("f,afj->aj", self.mean, slopes)
        in_user_units = replace(
            parameters,
            coefficients=slopes.reshape(parameters.coefficients.shape),
            biases=levels.reshape(parameters.biases.shape),
        )
        sums = likelihood_sums(
            self.family, self.rows, in_user_units, curvature=False, constant=self.constant
        )
        score = sums.score.copy()
        r = parameters.n_components
        by_component = score[: r * component_size(parameters)].reshape(r, -1)
        for places in parameters.layout.slopes:
            about_mean = by_component[:, places[:-1]] - by_component[:, places[-1:]] * self.mean
            by_component[:, places[:-1]] = solve_triangular(self.factor, about_mean.T, lower=True).T
        return replace(sums, score=score)


def whiten_inputs(rows: LikelihoodRows, mean: FloatArray, factor: FloatArray) -> LikelihoodRows:
    """Whiten the inputs of rows."""
    whitened = whiten_rows(mean, factor, read_block(rows.Z, slice(None)))
    return replace(rows, Z=np.ascontiguousarray(whitened))


def _draw_samples(
    rows: LikelihoodRows, *, sizes: Sequence[int], rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Draw the samples that the generator will draw."""
    copied = deepcopy(rng)
    return [sample_rows(rows.n_obs, size, copied) for size in sizes]


# Rows for the curvature. Gains shrink at a rate that is the square of its relative error: a few
# times parameters / rows, because scores have heavier tails than the normal.
CURVATURE_SHARE = 1.0 / 20.0
CURVATURE_ROWS = 20_000
MOST_CURVATURE_ROWS = 200_000
CURVATURE_ROWS_PER_PARAMETER = 200

# The first steps use every 16th row, the next ones every fourth, if that leaves enough rows per
# parameter. Steps on every 16th row are taken only if they predict a gain of a multiple of the
# sampling error, which is half a unit per parameter. Both stages end when the predicted remaining
# gain is a small share of the sampling error. About 1.5 units per parameter then remain to be
# gained on all rows.
APPROACHES = ((16, 2.0), (4, 0.0))
APPROACH_ROWS_PER_PARAMETER = 100
APPROACH_GAIN_PER_PARAMETER = 1.0 / 32.0

# Steps that gain more than this per parameter end where the curvature is different.
LONG_STEP_PER_PARAMETER = 4.0

# The last step is one whose gain is predicted to within a unit of log-likelihood; it is taken
# without evaluation. For comparison, BIC charges more than five units per parameter. The relative
# error of a predicted gain is at most the root of the rate at which gains shrink, and usually a
# third of that. What is left to gain must be small too: half a unit per parameter is one standard
# error, so parameters are within a fourteenth of one. Until a rate is observed, a tenth is assumed.
LARGEST_ERROR = 1.0
LEFT_GAIN_PER_PARAMETER = 1.0 / 400.0
EXPECTED_RATE = 0.1
MAX_STEPS = 12


class Optimum(NamedTuple):
    """End of a climb."""

    parameters: MixtureParameters  # in standardised coordinates
    log_likelihood: float  # log-likelihood of all rows
    information: FloatArray  # information of all rows; (n_parameters, n_parameters)
    has_converged: bool  # whether the predicted gain of the last step was small enough


def curvature_rows(n_obs: int, n_parameters: int) -> int:
    """Number of rows for the curvature near the maximum."""
    size = min(max(CURVATURE_ROWS, int(CURVATURE_SHARE * n_obs)), MOST_CURVATURE_ROWS)
    return max(size, CURVATURE_ROWS_PER_PARAMETER * n_parameters)


def climb_on_many(
    likelihood: AllRows,
    start: MixtureParameters,
    sample: LikelihoodRows,
    rng: np.random.Generator,
) -> Optimum:
    """Climb to the maximum of the likelihood of many rows.

    It takes a few passes over every 16th row, two over every fourth, and two or three over all.
    """
    n_obs, n_parameters = likelihood.rows.n_obs, parameter_count(start)
    start = enforce(start, bounds_of(likelihood.family))
    near = _Stage(likelihood, sample).curvature(start)
    for stride, far_gain in APPROACHES:
        if n_obs >= stride * APPROACH_ROWS_PER_PARAMETER * n_parameters:
            stage = _Stage(likelihood.thin(stride), sample, far_gain * n_parameters)
            end = stage.run(start, near)
            start, near = end.parameters, end.information / stage.likelihood.rows.total_weight
    last = _Stage(likelihood, likelihood.sample(curvature_rows(n_obs, n_parameters), rng))
    return last.run(start, last.curvature(start))


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """Steps on some rows, to an optimum or, if `far_gain` is given, close to an optimum.

    No step is taken if the first predicts a gain below `far_gain`.
    """

    likelihood: AllRows
    sample: LikelihoodRows  # the rows whose scores give the curvature
    far_gain: float | None = None

    def curvature(self, parameters: MixtureParameters) -> FloatArray:
        """Mean outer product of the scores of the sample, (n_parameters, n_parameters)."""
        products = outer_product_information(self.likelihood.family, self.sample, parameters)
        return products / self.sample.total_weight

    def run(self, start: MixtureParameters, curvature: FloatArray) -> Optimum:
        """Take the steps."""
        # curvature: information of one row, (n_parameters, n_parameters)
        weight = self.likelihood.rows.total_weight
        bounds = bounds_of(self.likelihood.family)

        def moved(parameters: MixtureParameters, change: FloatArray) -> MixtureParameters:
            return enforce(move(parameters, change), bounds)

        search = QuasiNewton(self.likelihood.evaluate, moved, start, weight * curvature)
        least = -np.inf if self.far_gain is None else self.far_gain
        rate, is_first = EXPECTED_RATE, True
        for _ in range(MAX_STEPS):
            step = search.propose()
            if step is None or (is_first and step.gain < least):
                break
            if search.share == 1.0 and self._is_last(step, rate, is_first=is_first):
                value = search.sums.log_likelihood + step.gain
                return Optimum(search.end_of(step), value, search.information, True)
            if search.attempt(step):
                rate, is_first = self._renew(search, step), False
        value = search.sums.log_likelihood
        return Optimum(search.parameters, value, search.information, False)

    def _is_last(self, step: Step, rate: float, *, is_first: bool = False) -> bool:
        """Whether a step can be taken without evaluating it."""
        left, n_parameters = step.gain * rate, len(step.change)
        if self.far_gain is None:
            is_small = left < LEFT_GAIN_PER_PARAMETER * n_parameters
            return is_small and step.gain * float(np.sqrt(rate)) < LARGEST_ERROR
        return not is_first and left < APPROACH_GAIN_PER_PARAMETER * n_parameters

    def _renew(self, search: QuasiNewton, step: Step) -> float:
        """Recompute a curvature that predicted badly; return the rate at which gains shrink."""
        following = search.propose()
        rate = 1.0 if following is None else min(1.0, following.gain / step.gain)
        is_slow = self.far_gain is None and not self._is_last(
            step._replace(gain=rate * step.gain), rate
        )
        if is_slow or step.gain >= LONG_STEP_PER_PARAMETER * len(step.change):
            weight = self.likelihood.rows.total_weight
            search.information = weight * self.curvature(search.parameters)
            search.correct()
        return rate
