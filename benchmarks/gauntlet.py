"""Where random starts fail: the default call against random starts, and the time of each.

A run succeeds if its log-likelihood is within 1 of that of EM started at the truth, or above it.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from benchmarks.random_mixtures import GAUNTLET, RandomMixture, draw, fit_timed, truth_of
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import MixtureData

__all__ = ["BENCHMARK", "run", "starts_needed"]

N_DATA_SETS, QUICK_DATA_SETS = 40, 1

# The small size takes every other of the first five, and at most this many rows.
QUICK_ROWS, QUICK_OBS = slice(0, 5, 2), 1_000

# The likelihood-ratio statistic of one maximum against another is twice this: far below the
# sampling variation of the log-likelihood itself.
TOLERANCE = 1.0

SHARE = 0.99
"""Share of data sets that is asked for, and that random starts are given the time to reach."""

N_RANDOM = 3

Measurement = dict[str, float]


def run(options: Options) -> Outcome:
    """Fit every mixture of the gauntlet by every method.

    Parameters
    ----------
    options : Options
        Size and seed.

    Returns
    -------
    Outcome
        Shares of success and mean seconds, by mixture.
    """
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures: list[Figure] = []
    for mixture in GAUNTLET[QUICK_ROWS] if options.is_quick else GAUNTLET:
        sized = mixture.resized(min(mixture.n_obs, QUICK_OBS)) if options.is_quick else mixture
        measured = [
            _measure(draw(sized, options.seed, index), options.seed + index)
            for index in range(n_data_sets)
        ]
        rows.append(_row(sized, measured))
        print(f"{rows[-1]}", flush=True)  # minutes a row
        figures += _figures(sized, measured, is_judged=not options.is_quick)
    settings = {
        "data_sets": n_data_sets,
        "success": f"log-likelihood >= that of EM from the truth - {TOLERANCE:g}",
        "1 random": f"mean over {N_RANDOM} starts a data set, each a call of its own",
        "starts needed": (
            f"random starts for {SHARE:.0%} at the pooled success rate; data sets differ in it, "
            "so more are needed in truth"
        ),
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def starts_needed(rate: float, share: float = SHARE) -> float:
    """Random starts of which one succeeds with a given probability.

    Parameters
    ----------
    rate : float
        Success rate p of a single start.
    share : float, default 0.99
        Probability asked for.

    Returns
    -------
    float
        log(1 - share) / log(1 - p), one at least; infinity if p is zero.
    """
    if rate <= 0.0:
        return math.inf
    if rate >= share:
        return 1.0
    return math.log1p(-share) / math.log1p(-rate)


def _measure(data: MixtureData, seed: int) -> Measurement:
    """Successes and seconds of each method on one data set, one after the other."""
    truth, truth_seconds = fit_timed(data, seed, init=truth_of(data))
    goal = truth.log_likelihood - TOLERANCE
    portfolio, portfolio_seconds = fit_timed(data, seed, n_jobs=1)
    # Seeds of the random starts must differ from each other and between data sets.
    singles = [
        fit_timed(data, N_RANDOM * seed + start, init="random", n_starts=1, n_jobs=1)
        for start in range(N_RANDOM)
    ]
    reached = [fit.log_likelihood >= goal for fit, _ in singles]
    return {
        "portfolio": float(portfolio.log_likelihood >= goal),
        "1 random": fmean(reached),
        "best of 3": float(any(reached)),
        "portfolio s": portfolio_seconds,
        "1 random s": fmean(seconds for _, seconds in singles),
        "best of 3 s": sum(seconds for _, seconds in singles),
        "truth s": truth_seconds,
        "gain": portfolio.log_likelihood - truth.log_likelihood,
    }


def _row(mixture: RandomMixture, measured: Sequence[Measurement]) -> Row:
    shares = {name: _mean(measured, name) for name in ("1 random", "best of 3", "portfolio")}
    seconds = {f"{name} s": _mean(measured, f"{name} s") for name in (*shares, "truth")}
    return {
        "mixture": mixture.name,
        "n": mixture.n_obs,
        "d": mixture.n_features,
        "r": mixture.n_components,
        **shares,
        **seconds,
        "starts needed": starts_needed(shares["1 random"]),
        "lowest gain": min(each["gain"] for each in measured),
    }


def _figures(
    mixture: RandomMixture, measured: Sequence[Measurement], *, is_judged: bool
) -> list[Figure]:
    name = (
        f"{mixture.name}, n = {mixture.n_obs:,}, d = {mixture.n_features}, "
        f"r = {mixture.n_components}"
    )
    share = _mean(measured, "portfolio")
    in_starts = _mean(measured, "portfolio s") / _mean(measured, "1 random s")
    # Infinitely many starts leave a ratio of zero.
    ratio = in_starts / starts_needed(_mean(measured, "1 random"))
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
    ]
    if mixture.is_raced:
        is_met = in_starts < N_RANDOM if is_judged else None
        figures.append(
            Figure(f"{name}: seconds in random starts", in_starts, f"< {N_RANDOM}", is_met)
        )
    return figures


def _mean(measured: Sequence[Measurement], name: str) -> float:
    return fmean(each[name] for each in measured)


BENCHMARK = Benchmark(
    "gauntlet", "share of data sets at the optimum, portfolio against random starts", run
)
