"""Log-likelihood and time of the default call, random starts, and EM from truth and moments."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.map_cells import MapCell
from benchmarks.random_mixtures import draw, truth_of
from moment_init import EMFit, MixtureData, estimate, fit_em
from moment_init.results import BREAKDOWNS

__all__ = ["N_RANDOM", "TOLERANCE", "Measurement", "measure"]

# The likelihood-ratio statistic between two maxima is twice this, which is far below the sampling
# variation of the log-likelihood itself.
TOLERANCE = 1.0

N_RANDOM = 10
"""Least number of random starts per data set, even if the default call's time allows fewer."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Log-likelihoods and CPU seconds on one data set."""

    default: float  # log-likelihood of the default call
    truth: float  # log-likelihood of EM from the truth
    # log-likelihood of EM from moments alone; None with fewer features than components, minus
    # infinity if the moments give no estimate
    moments: float | None
    # log-likelihoods of the random starts, in their order; minus infinity if one broke down
    random: tuple[float, ...]
    default_seconds: float  # CPU time of the default call
    start_seconds: float  # mean CPU time of a random start
    fixed_seconds: float  # CPU time of a call without a start
    all_seconds: float  # CPU time of everything on this data set

    @property
    def goal(self) -> float:
        """Smallest log-likelihood that counts as the optimum."""
        values = [self.default, self.truth, *self.random]
        return max(values if self.moments is None else [*values, self.moments]) - TOLERANCE

    def starts_within(self, share: float) -> int:
        """Number of random starts that fit into a share of the default call's time."""
        return _n_starts(share * self.default_seconds, self.fixed_seconds, self.start_seconds)

    def reached_within(self, share: float) -> bool:
        """Whether one of the random starts that fit into a share of the time is at the optimum."""
        return any(value >= self.goal for value in self.random[: self.starts_within(share)])


def measure(cell: MapCell, seed: Sequence[int]) -> Measurement:
    """Draw a data set and fit it from the default start, random starts, the truth and moments."""
    begin = time.process_time()
    run_seed, number, index = seed
    data = draw(cell.mixture, run_seed, 1000 * number + index)  # cells have different data sets
    seeds: list[int] = np.random.default_rng([*seed]).integers(2**31, size=4).tolist()
    truth, _ = _fit(data, init=truth_of(data))  # this call also warms up the caches
    _, fixed = _fit(data, init=truth_of(data), max_iter=0)
    default, default_seconds = _fit(data, random_seed=seeds[0], n_jobs=1)
    starts, random_seconds = _random_starts(data, seeds[1], N_RANDOM)
    each = max(random_seconds - fixed, time.get_clock_info("process_time").resolution) / N_RANDOM
    n_more = _n_starts(default_seconds, fixed, each) - N_RANDOM
    if n_more > 0:
        starts += _random_starts(data, seeds[2], n_more)[0]
    return Measurement(
        default.log_likelihood,
        truth.log_likelihood,
        _from_moments(data, seeds[3]),
        tuple(starts),
        default_seconds,
        each,
        fixed,
        time.process_time() - begin,
    )


def _n_starts(seconds: float, fixed_seconds: float, start_seconds: float) -> int:
    return max(0, math.floor((seconds - fixed_seconds) / start_seconds))


def _fit(data: MixtureData, **options: Any) -> tuple[EMFit, float]:
    """Fit, and return its CPU time, which load on the machine affects less than wall time."""
    start = time.process_time()
    fit = _quietly(
        lambda: fit_em(
            *(data.X, data.y, data.weights.size), family=data.family, progressbar=False, **options
        )
    )
    return fit, time.process_time() - start


def _random_starts(data: MixtureData, seed: int, n_starts: int) -> tuple[list[float], float]:
    """Log-likelihood of each random start, and CPU time of the call."""
    fit, seconds = _fit(data, init="random", n_starts=n_starts, n_jobs=1, random_seed=seed)
    ends = [start.log_likelihood for start in fit.starts]
    return [-math.inf if math.isnan(value) else value for value in ends], seconds


def _from_moments(data: MixtureData, seed: int) -> float | None:
    """Log-likelihood of EM from moments alone, without the polish."""
    if data.X.shape[1] < data.weights.size:
        return None
    arguments = data.X, data.y, data.weights.size
    try:
        start = _quietly(
            lambda: estimate(*arguments, family=data.family, polish=False, random_seed=seed)
        )
        return _fit(data, init=start)[0].log_likelihood
    except BREAKDOWNS:  # includes moments that do not identify the components
        return -math.inf


def _quietly[Result](function: Callable[[], Result]) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the log-likelihood shows failures
        return function()
