"""Climb the likelihood of many rows by Le Cam's steps: score of all rows, curvature of a sample.

A step costs one pass without curvature, a fraction of a Newton step. Rows are not whitened: they
stay in the user's units, and `AllRows` maps parameters and scores to these units and back.
`best_start` chooses a start on a sample of rows; `climb_on_many` takes the steps.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sample_rows
from moment_init.families.base import Family
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
from moment_init.likelihood.posterior import unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import likelihood_sums, outer_product_information
from moment_init.row_sources.columns import hold_rows


@dataclass(frozen=True, slots=True, eq=False)
class AllRows:
    """All rows of a likelihood, with the map to standardised coordinates."""

    family: Family
    rows: LikelihoodRows  # rows with inputs in the user's units
    mean: FloatArray  # mean of the inputs; (n_features,)
    # lower triangular L with L L' the covariance of the inputs; (n_features, n_features)
    factor: FloatArray
    constant: float = 0.0  # part of the log-likelihood that does not depend on parameters

    def sample(self, size: int, rng: np.random.Generator) -> LikelihoodRows:
        """Take a random sample of rows and whiten it; all rows if there are no more than `size`."""
        taken = self.rows.take(sample_rows(self.rows.n_obs, size, rng))
        centred = read_block(taken.Z, slice(None)) - self.mean
        whitened = solve_triangular(self.factor, centred.T, lower=True).T
        return replace(taken, Z=np.ascontiguousarray(whitened))

    def hold_samples(self, sizes: Sequence[int], rng: np.random.Generator) -> None:
        """Load the rows that will be sampled in one pass, if the rows are not in memory."""
        rows = self.rows
        if rows.source is not None:
            copied = deepcopy(rng)
            wanted = [sample_rows(rows.n_obs, size, copied) for size in sizes]
            hold_rows((rows.Z, rows.y, rows.sample_weight, rows.offset, rows.n_trials), wanted)

    def thin(self, stride: int) -> "AllRows":
        """Keep every `stride`-th row, without a copy and without the constant."""
        return replace(self, rows=self.rows.take(slice(None, None, stride)), constant=0.0)

    def evaluate(self, parameters: MixtureParameters) -> tuple[float, FloatArray]:
        """Sum log-likelihood and score over the rows, without whitening them."""
        # -> log-likelihood, score (n_parameters,)
        slopes = solve_triangular(self.factor, parameters.coefficients, lower=True, trans="T")
        in_user_units = replace(
            parameters,
            coefficients=np.asarray(slopes),
            biases=np.asarray(parameters.biases - self.mean @ slopes),
        )
        sums = likelihood_sums(
            self.family, self.rows, in_user_units, curvature=False, constant=self.constant
        )
        score = sums.score.copy()
        p, r = parameters.coefficients.shape
        by_component = score[: r * component_size(parameters)].reshape(r, -1)
        about_mean = by_component[:, :p] - by_component[:, [p]] * self.mean
        by_component[:, :p] = solve_triangular(self.factor, about_mean.T, lower=True).T
        return sums.log_likelihood, score


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

# A sample decides between two starts if their log-likelihoods differ by more than this many
# standard errors plus one unit per parameter, which overfitting the sample may account for.
# Undecided starts are compared on every `COMPARISON_STRIDE`-th row.
DECISIVE_ERRORS = 5.0
COMPARISON_STRIDE = 4

# The last step is one whose gain is predicted to within a unit of log-likelihood; it is taken
# without evaluation. For comparison, BIC charges more than five units per parameter. The relative
# error of a predicted gain is at most the root of the rate at which gains shrink, and usually a
# third of that. What is left to gain must be small too: half a unit per parameter is one standard
# error, so parameters are within a fourteenth of one. Until a rate is observed, a tenth is assumed.
LARGEST_ERROR = 1.0
LEFT_GAIN_PER_PARAMETER = 1.0 / 400.0
EXPECTED_RATE = 0.1
MAX_STEPS = 12

# If the score decreases along a step by less than this share of the prediction, the step has left
# the region where the quadratic model holds.
SMALLEST_CURVATURE = 0.01


class Optimum(NamedTuple):
    """End of a climb."""

    parameters: MixtureParameters  # in standardised coordinates
    log_likelihood: float  # log-likelihood of all rows
    information: FloatArray  # information of all rows; (n_parameters, n_parameters)
    has_converged: bool  # whether the predicted gain of the last step was small enough


class _Step(NamedTuple):
    """A step that was evaluated."""

    change: FloatArray  # change of the parameters, in the order of `pack`
    decrease: FloatArray  # decrease of the score
    gain: float  # predicted gain in log-likelihood


@dataclass(frozen=True, slots=True, eq=False)
class _Curvature:
    """Sum of outer products of the scores of some rows, updated by the steps taken."""

    family: Family
    rows: LikelihoodRows
    products: FloatArray

    @classmethod
    def at(
        cls, family: Family, rows: LikelihoodRows, parameters: MixtureParameters
    ) -> "_Curvature":
        """Compute the curvature of some rows."""
        return cls(family, rows, outer_product_information(family, rows, parameters))

    def information(self, total_weight: float) -> FloatArray:
        """Information of rows with this total weight."""
        return total_weight / self.rows.total_weight * self.products

    def updated(self, step: _Step, total_weight: float) -> "_Curvature":
        """Update the curvature to match the decrease of the score along a step (BFGS).

        The score of all rows includes heavy-tailed rows that the sample over-represents or lacks.
        """
        expected = self.products @ step.change
        decrease = self.rows.total_weight / total_weight * step.decrease
        observed, predicted = float(decrease @ step.change), float(expected @ step.change)
        if predicted <= 0.0 or observed < SMALLEST_CURVATURE * predicted:
            return self
        change = np.outer(decrease, decrease) / observed - np.outer(expected, expected) / predicted
        return replace(self, products=self.products + change)


def curvature_rows(n_obs: int, n_parameters: int) -> int:
    """Number of rows for the curvature near the maximum."""
    size = min(max(CURVATURE_ROWS, int(CURVATURE_SHARE * n_obs)), MOST_CURVATURE_ROWS)
    return max(size, CURVATURE_ROWS_PER_PARAMETER * n_parameters)


def best_start(
    likelihood: AllRows, starts: Sequence[MixtureParameters], sample: LikelihoodRows
) -> MixtureParameters:
    """Choose the start with the highest likelihood."""
    bounds = bounds_of(likelihood.family)
    admissible = [enforce(start, bounds) for start in starts]
    rivals = _undecided(likelihood.family, admissible, sample) if len(admissible) > 1 else [0]
    if len(rivals) == 1:
        return starts[rivals[0]]
    thinned = likelihood.thin(COMPARISON_STRIDE)
    values = [thinned.evaluate(admissible[rival])[0] for rival in rivals]
    return starts[rivals[int(np.argmax(values))]]


def _undecided(
    family: Family, starts: Sequence[MixtureParameters], sample: LikelihoodRows
) -> list[int]:
    """Indices of the starts that may be the best, judged on a sample of rows."""
    weight = sample.sample_weight
    by_row = np.stack([unit_log_likelihood(family, sample, start) * weight for start in starts])
    leads = by_row[np.argmax(by_row.sum(axis=1))] - by_row  # (n_starts, n_rows)
    errors = np.sqrt(np.square(leads).sum(axis=1))
    limits = DECISIVE_ERRORS * errors + parameter_count(starts[0])
    return [int(index) for index in np.flatnonzero(leads.sum(axis=1) <= limits)]


def climb_on_many(
    likelihood: AllRows,
    start: MixtureParameters,
    sample: LikelihoodRows,
    rng: np.random.Generator,
) -> Optimum:
    """Climb to the maximum of the likelihood of many rows.

    It takes a few passes over every 16th row, two over every fourth, and two or three over all.
    """
    family, n_parameters = likelihood.family, parameter_count(start)
    n_obs = likelihood.rows.n_obs
    start = enforce(start, bounds_of(family))
    curvature = _Curvature.at(family, sample, start)
    for stride, far_gain in APPROACHES:
        if n_obs >= stride * APPROACH_ROWS_PER_PARAMETER * n_parameters:
            climb = _Climb(likelihood.thin(stride), n_parameters, far_gain * n_parameters)
            near, curvature = climb.run(start, curvature)
            start = near.parameters
    rows = likelihood.sample(curvature_rows(n_obs, n_parameters), rng)
    return _Climb(likelihood, n_parameters).run(start, _Curvature.at(family, rows, start))[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Climb:
    """Steps on some rows, to an optimum or, if `far_gain` is given, close to an optimum.

    No step is taken if the first predicts a gain below `far_gain`.
    """

    likelihood: AllRows
    n_parameters: int
    far_gain: float | None = None

    def run(
        self, parameters: MixtureParameters, curvature: _Curvature
    ) -> tuple[Optimum, _Curvature]:
        """Take the steps; return their end and the updated curvature."""
        weight = self.likelihood.rows.total_weight
        bounds = bounds_of(self.likelihood.family)
        log_likelihood, score = self.likelihood.evaluate(parameters)
        fraction, rate = 1.0, EXPECTED_RATE
        last: _Step | None = None
        for _ in range(MAX_STEPS):
            information = curvature.information(weight)
            change = solve_information(information, score)
            if change is None:
                break
            gain = 0.5 * float(score @ change)
            if last is None and self.far_gain is not None and gain < self.far_gain:
                break
            candidate = enforce(move(parameters, fraction * change), bounds)
            if fraction == 1.0 and self._is_last(gain, rate, last):
                return Optimum(candidate, log_likelihood + gain, information, True), curvature
            candidate_value, candidate_score = self.likelihood.evaluate(candidate)
            step = _Step(pack(candidate) - pack(parameters), score - candidate_score, gain)
            curvature = curvature.updated(step, weight)
            if candidate_value < log_likelihood:
                fraction /= 2.0
                continue
            parameters, log_likelihood, score = candidate, candidate_value, candidate_score
            last, fraction = step, min(1.0, 2.0 * fraction)
            curvature, rate = self._renew(curvature, step, parameters, score)
        information = curvature.information(weight)
        return Optimum(parameters, log_likelihood, information, False), curvature

    def _is_last(self, gain: float, rate: float, last: _Step | None) -> bool:
        """Whether a step can be taken without evaluating it."""
        if self.far_gain is None:
            is_small = gain * rate < LEFT_GAIN_PER_PARAMETER * self.n_parameters
            return is_small and gain * float(np.sqrt(rate)) < LARGEST_ERROR
        return last is not None and gain * rate < APPROACH_GAIN_PER_PARAMETER * self.n_parameters

    def _renew(
        self, curvature: _Curvature, step: _Step, parameters: MixtureParameters, score: FloatArray
    ) -> tuple[_Curvature, float]:
        """Curvature after a step, recomputed if it predicted badly, and the rate of gains."""
        weight = self.likelihood.rows.total_weight
        change = solve_information(curvature.information(weight), score)
        rate = 1.0 if change is None else min(1.0, 0.5 * float(score @ change) / step.gain)
        is_slow = self.far_gain is None and not self._is_last(rate * step.gain, rate, step)
        if not is_slow and step.gain < LONG_STEP_PER_PARAMETER * self.n_parameters:
            return curvature, rate
        renewed = _Curvature.at(curvature.family, curvature.rows, parameters)
        return renewed.updated(step, weight), rate
