"""Where random starts fail: success and time of the default call and of random starts.

A run succeeds if its log-likelihood is at least that of EM started at the truth, minus 1. In the
row with priors, the log-posterior takes the place of the log-likelihood in all runs. The success of
random starts varies more between data sets than within one: on some data sets nearly all
succeed, on others none. The number of starts needed is therefore counted for each data set.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.random_mixtures import GAUNTLET, RandomMixture, draw, fit_timed, truth_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData
from moment_init.comparison.verdict import starts_needed

__all__ = ["BENCHMARK", "run", "starts_needed_by_data_set"]

N_DATA_SETS, QUICK_DATA_SETS = 40, 1

# The quick size takes every other of the first five mixtures, and at most this many rows.
QUICK_ROWS, QUICK_OBS = slice(0, 5, 2), 1_000

# The likelihood-ratio statistic between two maxima is twice this, which is far below the sampling
# variation of the log-likelihood itself.
TOLERANCE = 1.0

SHARE = 0.99
"""Required share of successful data sets; random starts are given the time to reach it."""

N_RANDOM, QUICK_RANDOM = 20, 4
"""Random starts per data set, in one call."""

BERNOULLI = next(mixture for mixture in GAUNTLET if mixture.family == "bernoulli")
WITH_PRIORS = replace(
    BERNOULLI, name=f"{BERNOULLI.name}, with priors", is_raced=False, priors="default"
)
"""The likelihood of some of these data sets has no maximum; the posterior density has one."""

N_BEST = 3
"""Users typically run this many starts; the portfolio is compared with the best of them."""

Measurement = dict[str, float]


def run(options: Options) -> Outcome:
    """Measure success and time of every method on every mixture."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    n_random = QUICK_RANDOM if options.is_quick else N_RANDOM
    rows: list[Row] = []
    figures: list[Figure] = []
    for mixture in GAUNTLET[QUICK_ROWS] if options.is_quick else (*GAUNTLET, WITH_PRIORS):
        sized = mixture.resized(min(mixture.n_obs, QUICK_OBS)) if options.is_quick else mixture
        measured = [
            _measure(draw(sized, options.seed, index), options.seed + index, n_random, sized.priors)
            for index in range(n_data_sets)
        ]
        rows.append(_row(sized, measured, n_random))
        print(f"{rows[-1]}", flush=True)  # each row takes minutes
        figures += _figures(sized, measured, n_random, is_judged=not options.is_quick)
    settings = {
        "data_sets": n_data_sets,
        "success": f"log-likelihood >= that of EM from the truth - {TOLERANCE:g}",
        "1 random": f"mean over {n_random} starts per data set, in one call",
        "starts needed": (
            f"fewest random starts of which one succeeds on {SHARE:.0%} of data sets, by the "
            f"successes among {n_random} on each; {n_random + 1} where more are needed than that"
        ),
        "starts needed, pooled": "the same if starts had one success rate on all data sets",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def starts_needed_by_data_set(
    n_successes: Sequence[int], n_starts: int, share: float = SHARE
) -> int:
    """Fewest random starts N that succeed on a share of data sets, each with its own rate.

    With k of n starts successful on a data set, 1 - C(n - k, N) / C(n, N) of the subsets of size N
    hold a success. Returns n + 1 if no N up to n is enough.
    """
    for n_run in range(1, n_starts + 1):
        subsets = math.comb(n_starts, n_run)
        failing = fmean(math.comb(n_starts - each, n_run) / subsets for each in n_successes)
        if 1.0 - failing >= share:
            return n_run
    return n_starts + 1


def _measure(data: MixtureData, seed: int, n_random: int, priors: str | None) -> Measurement:
    """Successes and seconds of each method on one data set."""
    given = {"n_jobs": 1, "priors": priors}
    truth, truth_seconds = fit_timed(data, seed, init=truth_of(data), **given)
    goal = truth.objective - TOLERANCE
    portfolio, portfolio_seconds = fit_timed(data, seed, **given)
    random, random_seconds = fit_timed(data, seed, init="random", n_starts=n_random, **given)
    reached = [start.objective >= goal for start in random.starts]  # a failed start has NaN
    return {
        "portfolio": float(portfolio.objective >= goal),
        "1 random": fmean(reached),
        f"best of {N_BEST}": float(any(reached[:N_BEST])),
        "portfolio s": portfolio_seconds,
        "1 random s": random_seconds / n_random,
        f"best of {N_BEST} s": N_BEST * random_seconds / n_random,
        "truth s": truth_seconds,
        "gain": portfolio.objective - truth.objective,
        "successes": sum(reached),
    }


def _row(mixture: RandomMixture, measured: Sequence[Measurement], n_random: int) -> Row:
    names = ("1 random", f"best of {N_BEST}", "portfolio")
    shares = {name: _mean(measured, name) for name in names}
    seconds = {f"{name} s": _mean(measured, f"{name} s") for name in (*shares, "truth")}
    return {
        "mixture": mixture.name,
        "n": mixture.n_obs,
        "d": mixture.n_features,
        "r": mixture.n_components,
        **shares,
        **seconds,
        "starts needed": _needed(measured, n_random),
        "starts needed, pooled": starts_needed(shares["1 random"], SHARE),
        "lowest gain": min(each["gain"] for each in measured),
    }


def _figures(
    mixture: RandomMixture, measured: Sequence[Measurement], n_random: int, *, is_judged: bool
) -> list[Figure]:
    name = (
        f"{mixture.name}, n = {mixture.n_obs:,}, d = {mixture.n_features}, "
        f"r = {mixture.n_components}"
    )
    share = _mean(measured, "portfolio")
    in_starts = _mean(measured, "portfolio s") / _mean(measured, "1 random s")
    ratio = in_starts / _needed(measured, n_random)
    # Zero if infinitely many starts would be needed.
    pooled = in_starts / starts_needed(_mean(measured, "1 random"), SHARE)
    figures = [
        Figure(
            f"{name}: share at the optimum",
            share,
            f">= {SHARE:g}",
            share >= SHARE if is_judged else None,
        ),
        Figure(
            f"{name}: seconds over those of the random starts needed",
            ratio,
            "<= 1",
            ratio <= 1.0 if is_judged else None,
        ),
        Figure(f"{name}: the same, were data sets alike", pooled),
    ]
    if mixture.is_raced:
        is_met = in_starts < N_BEST if is_judged else None
        figures.append(
            Figure(f"{name}: seconds in random starts", in_starts, f"< {N_BEST}", is_met)
        )
    return figures


def _needed(measured: Sequence[Measurement], n_random: int) -> int:
    return starts_needed_by_data_set([int(each["successes"]) for each in measured], n_random)


def _mean(measured: Sequence[Measurement], name: str) -> float:
    return fmean(each[name] for each in measured)


BENCHMARK = Benchmark(
    "gauntlet", "share of data sets at the optimum, portfolio against random starts", run
)
