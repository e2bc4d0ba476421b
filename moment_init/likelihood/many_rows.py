"""All rows of a likelihood in the user's units, seen from standardised coordinates.

Many rows are not whitened: parameters and scores are mapped to the user's units and back.

Le Cam's steps on many rows: the score of all of them, the curvature of a sample.

A step costs one pass without curvature, a fraction of a Newton step. Rows stay in the user's units:
parameters and scores are mapped to them and back.
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
    """All rows of a likelihood, with the way to standardised coordinates."""

    family: Family  # the response family
    rows: LikelihoodRows  # the rows, inputs in the user's units
    mean: FloatArray  # mean of the inputs; (n_features,)
    # lower triangular L with L L' the covariance of the inputs; (n_features, n_features)
    factor: FloatArray
    constant: float = 0.0  # log-likelihood terms that no parameter enters

    def sample(self, size: int, rng: np.random.Generator) -> LikelihoodRows:
        """Take a random sample of rows, whitened; all rows if there are not more."""
        taken = self.rows.take(sample_rows(self.rows.n_obs, size, rng))
        centred = read_block(taken.Z, slice(None)) - self.mean
        whitened = solve_triangular(self.factor, centred.T, lower=True).T
        return replace(taken, Z=np.ascontiguousarray(whitened))

    def hold_samples(self, sizes: Sequence[int], rng: np.random.Generator) -> None:
        """Read rows that will be sampled, in one pass if they are not in memory."""
        rows = self.rows
        if rows.source is not None:
            copied = deepcopy(rng)
            wanted = [sample_rows(rows.n_obs, size, copied) for size in sizes]
            hold_rows((rows.Z, rows.y, rows.sample_weight, rows.offset, rows.n_trials), wanted)

    def thin(self, stride: int) -> "AllRows":
        """Take every so manieth row, without a copy and without constant."""
        return replace(self, rows=self.rows.take(slice(None, None, stride)), constant=0.0)

    def evaluate(self, parameters: MixtureParameters) -> tuple[float, FloatArray]:
        """Sum log-likelihood and score over the rows, none of them whitened."""
        # -> ..., (n_parameters,)
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


# Rows for the curvature. The square of its relative error is the rate at which it lets gains
# shrink: a few times parameters / rows, as scores have heavier tails than normal ones.
CURVATURE_SHARE = 1.0 / 20.0
CURVATURE_ROWS = 20_000
MOST_CURVATURE_ROWS = 200_000
CURVATURE_ROWS_PER_PARAMETER = 200

# The first steps are made on every 16th row, then on every fourth, wherever that leaves so many for
# each parameter: the former only if they promise to gain a multiple of what sampling is off by, a
# half of a unit for each parameter; both until the last leaves a small share of that to gain. On
# all rows 3/2 of a unit for each parameter are then left.
APPROACHES = ((16, 2.0), (4, 0.0))
APPROACH_ROWS_PER_PARAMETER = 100
APPROACH_GAIN_PER_PARAMETER = 1.0 / 32.0

# Steps that gain more than this for each parameter lead to where the curvature is another one.
LONG_STEP_PER_PARAMETER = 4.0

# A sample of rows decides between starts if one leads by so many standard errors of the sum of the
# rows' differences, and by a unit for each parameter, which it may owe to being fitted to the
# sample. Starts between which it does not are compared on every so manieth row.
DECISIVE_ERRORS = 5.0
COMPARISON_STRIDE = 4

# Steps end with one whose gain is known to a unit of log-likelihood beforehand, and is not
# evaluated any more: BIC charges more than five units for a parameter. The share by which a gain
# is off is at most the root of the rate at which gains shrink, and mostly a third of it. What is
# left to gain must be small too: a half of a unit for each parameter is a standard error, so that
# parameters are within a fourteenth of one. Before a rate is seen, it is taken to be a tenth.
LARGEST_ERROR = 1.0
LEFT_GAIN_PER_PARAMETER = 1.0 / 400.0
EXPECTED_RATE = 0.1
MAX_STEPS = 12

# A score that decreases along a step by less than this share of what was expected says that the
# step has left the region where a quadratic model holds.
SMALLEST_CURVATURE = 0.01


class Optimum(NamedTuple):
    """Where a search ended."""

    parameters: MixtureParameters  # in standardised coordinates
    log_likelihood: float  # log-likelihood of all rows
    information: FloatArray  # information of all rows; (n_parameters, n_parameters)
    has_converged: bool  # whether the last step promised less than the tolerance


class _Step(NamedTuple):
    """A step that was evaluated."""

    change: FloatArray  # of the parameters, in the order of `pack`
    decrease: FloatArray  # of the score
    gain: float  # that was predicted


@dataclass(frozen=True, slots=True, eq=False)
class _Curvature:
    """Sum of the outer products of the scores of some rows, with what steps have told."""

    family: Family
    rows: LikelihoodRows
    products: FloatArray

    @classmethod
    def at(
        cls, family: Family, rows: LikelihoodRows, parameters: MixtureParameters
    ) -> "_Curvature":
        """The curvature of some rows."""
        return cls(family, rows, outer_product_information(family, rows, parameters))

    def information(self, total_weight: float) -> FloatArray:
        """Information of rows of this weight."""
        return total_weight / self.rows.total_weight * self.products

    def updated(self, step: _Step, total_weight: float) -> "_Curvature":
        """Agree with the decrease of the score along a step (Broyden, Fletcher, Goldfarb, Shanno).

        What single rows of heavy tails add to the curvature, or do not as they are not among these
        rows, is in the score of all rows.
        """
        expected = self.products @ step.change
        decrease = self.rows.total_weight / total_weight * step.decrease
        seen, promised = float(decrease @ step.change), float(expected @ step.change)
        if promised <= 0.0 or seen < SMALLEST_CURVATURE * promised:
            return self
        change = np.outer(decrease, decrease) / seen - np.outer(expected, expected) / promised
        return replace(self, products=self.products + change)


def curvature_rows(n_obs: int, n_parameters: int) -> int:
    """How many rows give the curvature near the maximum."""
    size = min(max(CURVATURE_ROWS, int(CURVATURE_SHARE * n_obs)), MOST_CURVATURE_ROWS)
    return max(size, CURVATURE_ROWS_PER_PARAMETER * n_parameters)


def best_start(
    likelihood: AllRows, starts: Sequence[MixtureParameters], sample: LikelihoodRows
) -> MixtureParameters:
    """Choose the start with the largest likelihood."""
    bounds = bounds_of(likelihood.family)
    held = [enforce(start, bounds) for start in starts]
    rivals = _undecided(likelihood.family, held, sample) if len(held) > 1 else [0]
    if len(rivals) == 1:
        return starts[rivals[0]]
    thinned = likelihood.thin(COMPARISON_STRIDE)
    values = [thinned.evaluate(held[rival])[0] for rival in rivals]
    return starts[rivals[int(np.argmax(values))]]


def _undecided(
    family: Family, starts: Sequence[MixtureParameters], sample: LikelihoodRows
) -> list[int]:
    """Which starts may be the best, as far as a sample of rows tells."""
    weight = sample.sample_weight
    by_row = np.stack([unit_log_likelihood(family, sample, each) * weight for each in starts])
    leads = by_row[np.argmax(by_row.sum(axis=1))] - by_row  # (n_starts, n_rows)
    errors = np.sqrt(np.square(leads).sum(axis=1))
    limits = DECISIVE_ERRORS * errors + parameter_count(starts[0])
    return [int(each) for each in np.flatnonzero(leads.sum(axis=1) <= limits)]


def climb_on_many(
    likelihood: AllRows,
    start: MixtureParameters,
    sample: LikelihoodRows,
    rng: np.random.Generator,
) -> Optimum:
    """Climb to the maximum of the likelihood of many rows.

    A few passes over every 16th row, two over every fourth, two or three over all of them.
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
    """Steps on some rows: to an optimum or, where `far_gain` is given, to near an optimum.

    No step is made if the first would gain less than `far_gain`.
    """

    likelihood: AllRows
    n_parameters: int
    far_gain: float | None = None

    def run(
        self, parameters: MixtureParameters, curvature: _Curvature
    ) -> tuple[Optimum, _Curvature]:
        """Where the steps lead, and what the curvature has become."""
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
            there, score_there = self.likelihood.evaluate(candidate)
            step = _Step(pack(candidate) - pack(parameters), score - score_there, gain)
            curvature = curvature.updated(step, weight)
            if there < log_likelihood:
                fraction /= 2.0
                continue
            parameters, log_likelihood, score = candidate, there, score_there
            last, fraction = step, min(1.0, 2.0 * fraction)
            curvature, rate = self._renew(curvature, step, parameters, score)
        information = curvature.information(weight)
        return Optimum(parameters, log_likelihood, information, False), curvature

    def _is_last(self, gain: float, rate: float, last: _Step | None) -> bool:
        """Whether a step need not be evaluated any more."""
        if self.far_gain is None:
            is_small = gain * rate < LEFT_GAIN_PER_PARAMETER * self.n_parameters
            return is_small and gain * float(np.sqrt(rate)) < LARGEST_ERROR
        return last is not None and gain * rate < APPROACH_GAIN_PER_PARAMETER * self.n_parameters

    def _renew(
        self, curvature: _Curvature, step: _Step, parameters: MixtureParameters, score: FloatArray
    ) -> tuple[_Curvature, float]:
        """The curvature after a step, taken anew if it served badly, and the rate of gains."""
        weight = self.likelihood.rows.total_weight
        change = solve_information(curvature.information(weight), score)
        rate = 1.0 if change is None else min(1.0, 0.5 * float(score @ change) / step.gain)
        is_slow = self.far_gain is None and not self._is_last(rate * step.gain, rate, step)
        if not is_slow and step.gain < LONG_STEP_PER_PARAMETER * self.n_parameters:
            return curvature, rate
        renewed = _Curvature.at(curvature.family, curvature.rows, parameters)
        return renewed.updated(step, weight), rate
