"""Maximum likelihood on many rows: time of the default call over that of one random start."""

import warnings

from benchmarks.measuring import number, seconds_of
from benchmarks.mixtures import Mixture, describe, draw
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import EMFit, MixtureData, fit_em

__all__ = ["BENCHMARK", "run"]

MIXTURE = Mixture("bernoulli", 1_000_000, 20, 3, 2.0, bar=1 / 3)
"""Mixtures to fit; `bar` is the largest allowed time over that of a random start."""

QUICK_OBS = 3_000


def run(options: Options) -> Outcome:
    """Time both fits on one data set."""
    mixture = MIXTURE.resized(QUICK_OBS) if options.is_quick else MIXTURE
    data = draw(mixture, options.seed, 0)
    rows = [_row(mixture, data, init, options.seed) for init in ("search", "random")]
    default, random = (number(row, "s") for row in rows)
    gap = number(rows[0], "log-likelihood") - number(rows[1], "log-likelihood")
    is_met = None if options.is_quick else default / random <= mixture.bar
    ratio = Figure(
        f"{mixture.family}, n = {mixture.n_obs:,}: seconds over those of a random start",
        default / random,
        f"<= {mixture.bar:.3g}",
        is_met,
    )
    figures = (ratio, Figure("log-likelihood above that of the random start", gap))
    return Outcome(tuple(rows), figures, {"random": "one start, to convergence"})


def _row(mixture: Mixture, data: MixtureData, init: str, seed: int) -> Row:
    fits: list[EMFit] = []

    def fit() -> None:
        fits.append(
            fit_em(
                data.X,
                data.y,
                mixture.n_components,
                family=mixture.family,
                init=init,
                n_starts=1 if init == "random" else None,
                progressbar=False,
                random_seed=seed,
            )
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows of twenty columns are separated
        seconds = seconds_of(fit)
    return {
        **describe(mixture),
        "init": init,
        "s": seconds,
        "iterations": fits[0].n_iter,
        "log-likelihood": fits[0].log_likelihood,
    }


BENCHMARK = Benchmark("large_fit", "time of a fit to a million rows, by start", run)
