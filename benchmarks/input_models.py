"""Non-Gaussian inputs: the chosen density compared with the true one and the Gaussian.

The data are bernoulli mixtures of two components with four features and inputs of every kind; the
random coefficients give linear predictors of a fixed standard deviation. "auto" is the default
call; it is compared with the true density and the Gaussian as `input_model`, polished and by
moments alone. Uniform and Gamma(2) columns have no third-order score: the status must say so.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.input_kinds import INPUT_KINDS, DrawnMixture, draw_mixture
from benchmarks.mixtures import timed, worst_cosine
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row
from moment_init import Status
from moment_init.moments.result import MomentEstimate

__all__ = ["BENCHMARK", "run"]

N_DATA_SETS, QUICK_DATA_SETS = 20, 1
N_OBS, QUICK_OBS = 50_000, 3_000
N_FEATURES, N_COMPONENTS = 4, 2

SHARE_BAR, ABSOLUTE_BAR = 0.95, 0.9
NO_SCORE = ("gamma(2)", "uniform")

Measurement = dict[str, Any]


def run(options: Options) -> Outcome:
    """Compute the mean worst |cos| for every kind of inputs and every density."""
    n_data_sets = options.data_sets(N_DATA_SETS, QUICK_DATA_SETS)
    rows: list[Row] = []
    figures: list[Figure] = []
    for number, kind in enumerate(INPUT_KINDS):
        measured = [
            _measure(
                _draw(kind, QUICK_OBS if options.is_quick else N_OBS, [options.seed, number, i]),
                options.seed + i,
            )
            for i in range(n_data_sets)
        ]
        rows.append(_row(kind, measured))
        figures += _figures(kind, measured, is_judged=not options.is_quick)
    settings = {
        "data_sets": n_data_sets,
        "cosine": "mean over data sets of the worst |cos| of a direction, after matching",
        "alone": "moments without the polish by likelihood",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _draw(kind: str, n_obs: int, seed: Sequence[int]) -> DrawnMixture:
    return draw_mixture(kind, (n_obs, N_FEATURES, N_COMPONENTS), seed)


def _measure(drawn: DrawnMixture, seed: int) -> Measurement:
    """Worst cosines under each density, polished and not; status and chosen density of "auto"."""
    models: dict[str, Any] = {"auto": "auto", "gaussian": "gaussian"}
    if drawn.density is not None:
        models["true"] = drawn.density
    measured: Measurement = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status is reported
        for name, model in models.items():
            for suffix, polish in (("", True), (" alone", False)):
                result, seconds = timed(drawn.data, seed, input_model=model, polish=polish)
                measured[name + suffix] = worst_cosine(result, drawn.data)
                measured[name + suffix + " s"] = seconds
                if name == "auto" and polish:
                    measured["status"] = result.status
                    measured["chosen"] = _chosen(result)
    return measured


def _row(kind: str, measured: Sequence[Measurement]) -> Row:
    names = ("auto", "true", "gaussian")
    row: Row = {"inputs": kind}
    for suffix in ("", " alone"):
        row |= {name + suffix: _mean(measured, name + suffix) for name in names}
    worst = min(each["auto"] for each in measured)
    chosen = Counter(each["chosen"] for each in measured)
    return row | {
        "auto min": worst,
        "chosen": ", ".join(f"{name} {count}" for name, count in chosen.most_common()),
        "input_assumption": _share_of_status(measured),
        "auto s / gaussian s": fmean(each["auto s"] for each in measured)
        / fmean(each["gaussian s"] for each in measured),
    }


def _figures(kind: str, measured: Sequence[Measurement], *, is_judged: bool) -> list[Figure]:
    if kind in NO_SCORE:
        values = {
            "mean worst |cos| of the default call": fmean(each["auto"] for each in measured),
            "share of data sets whose status names the assumption": _share_of_status(measured),
        }
        return [
            Figure(
                f"{kind}: {name}",
                value,
                f">= {ABSOLUTE_BAR:g}",
                value >= ABSOLUTE_BAR if is_judged else None,
            )
            for name, value in values.items()
        ]
    figures = []
    for suffix, words in (("", "default call"), (" alone", "moments alone")):
        references = [_mean(measured, name + suffix) for name in ("true", "gaussian")]
        best = max(value for value in references if value is not None)
        share = fmean(each["auto" + suffix] for each in measured) / best
        figures.append(
            Figure(
                f"{kind}: |cos| of the {words} over the better of true density and Gaussian",
                share,
                f">= {SHARE_BAR:g}",
                share >= SHARE_BAR if is_judged else None,
            )
        )
    return figures


def _chosen(result: MomentEstimate) -> str:
    return "" if result.input_choice is None else result.input_choice.chosen.name


def _share_of_status(measured: Sequence[Measurement]) -> float:
    return fmean(each["status"] is Status.INPUT_ASSUMPTION for each in measured)


def _mean(measured: Sequence[Measurement], name: str) -> float | None:
    return fmean(each[name] for each in measured) if name in measured[0] else None


BENCHMARK = Benchmark(
    "input_models", "worst |cos| for inputs that are not Gaussian, by density assumed", run
)
