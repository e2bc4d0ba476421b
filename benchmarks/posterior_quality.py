"""Quality of the draws of `sample`: R-hat, effective sample size, divergences, seconds.

A data set counts as good if no parameter's R-hat exceeds 1.01 and none has fewer than 400 effective
draws. Posteriors with two modes are counted separately. Two criteria, which do not depend on R-hat,
identify them: EM from posterior draws ends at a second maximum of the likelihood for 10 % or more
of the draws, or 5 % or more of the draws of some chain have switched labels, so that the chain
visited two copies of the mode.

The same model as users write it, from PyMC's default start, is measured for comparison.
"""

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.checkpoints import Key
from benchmarks.hand_written import HAND_WRITTEN
from benchmarks.measuring import number
from benchmarks.posterior_runs import diagnostics, quiet_sampler, sample_from
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row, format_table
from moment_init import MixtureData, fit_em, simulate_mixture

if TYPE_CHECKING:
    import xarray

__all__ = ["BENCHMARK", "Case", "draw_case", "run"]

FloatArray = NDArray[np.float64]

MAX_RHAT, MIN_EFFECTIVE, SHARE_BAR = 1.01, 400.0, 0.95
N_CHAINS, N_DRAWS, QUICK_DRAWS = 4, 1_000, 100
QUICK_OBS = 500

# Maxima count as different beyond a hundredth of log-likelihood, as in `fit_em`.
SAME_MAXIMUM = 0.01
CLIMBS_PER_CHAIN = 5
SECOND_SHARE, TRADED_SHARE = 0.1, 0.05

BY_HAND_DATA_SETS = 3

COMMON = ("coefficient", "bias", "weight")
OURS = "sample, anchored"
GATE_SLOPE = 1.5


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of data set, with one row of the summary for each entry of `directions`."""

    family: str  # family of the response
    n_obs: int
    n_features: int
    n_components: int
    n_data_sets: int = 10  # data sets at full size
    directions: tuple[str, ...] = ("anchored",)  # treatments of the directions
    # norms of the coefficients; if None, values that suit the family
    scales: tuple[float, ...] | None = None
    is_gated: bool = False  # whether a covariate sets the weights


CASES = (
    Case("bernoulli", 5_000, 5, 3, 20, ("anchored", "fixed"), (3.5, 4.0, 4.5)),
    Case("poisson", 2_000, 5, 3),
    Case("gaussian", 2_000, 5, 3),
    Case("bernoulli", 5_000, 4, 2, scales=(3.5, 4.5), is_gated=True),
    Case("gaussian", 2_000, 4, 2, is_gated=True),
)


def run(options: Options) -> Outcome:
    """Sample every data set, judge its draws and print one line for each."""
    rows: list[Row] = []
    figures: list[Figure] = []
    with quiet_sampler():
        for case in CASES[:1] if options.is_quick else CASES:
            case_rows = _run_case(case, options)
            rows += case_rows
            for directions in case.directions:
                runs = [row for row in case_rows if row["directions"] == directions]
                if runs:
                    figures += _figures(runs, is_judged=not options.is_quick)
        if not options.is_quick:
            side_by_side = _run_by_hand(options)
            rows += side_by_side
            figures += _ratios(side_by_side)
    settings = {
        "good": f"R-hat <= {MAX_RHAT} and {MIN_EFFECTIVE:g} or more effective draws (bulk)",
        "two modes": f"{SECOND_SHARE:.0%} or more of {N_CHAINS * CLIMBS_PER_CHAIN} draws climb to "
        f"a second maximum, or {TRADED_SHARE:.0%} or more of a chain's draws had switched labels",
        "chains": N_CHAINS,
        "draws": QUICK_DRAWS if options.is_quick else N_DRAWS,
        "ESS/s": "smallest effective sample size over seconds of sampling, without compilation",
        "call s": "the whole call: fit, compilation, sampling, alignment",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _run_case(case: Case, options: Options) -> list[Row]:
    """Yield one row for each data set and treatment of its directions."""
    name = case.family + (", gate" if case.is_gated else "")
    keys = [(name, index) for index in range(options.data_sets(case.n_data_sets, 1))]
    measured = options.checkpoint.measure(keys, lambda key: _run_data_set(case, options, key))
    return [row for each in measured for row in each["rows"]]


def _run_data_set(case: Case, options: Options, key: Key) -> dict[str, list[Row]]:
    name, index = str(key[0]), int(key[1])
    data, gating = draw_case(case, options, index)
    start = time.perf_counter()
    fit = fit_em(
        *(data.X, data.y, case.n_components),
        family=case.family,
        gating=gating,
        progressbar=False,
        random_seed=[options.seed, index],
    )
    fit_seconds = time.perf_counter() - start
    rows: list[Row] = []
    for directions in case.directions:
        start = time.perf_counter()
        tree = sample_from(
            fit,
            data,
            gating=gating,
            directions=directions,
            draws=QUICK_DRAWS if options.is_quick else N_DRAWS,
            chains=N_CHAINS,
            random_seed=options.seed,
        )
        seconds = time.perf_counter() - start
        row = {
            "family": name,
            "n": len(data.y),
            "directions": directions,
            "data set": index,
            **_quality(tree, seconds + fit_seconds),
            **_modes(tree, data, is_gated=case.is_gated),
        }
        print(format_table([row]).split("\n", index > 0)[-1], flush=True)
        rows.append(row)
    return {"rows": rows}


def _draw(case: Case, options: Options, index: int) -> MixtureData:
    return simulate_mixture(
        QUICK_OBS if options.is_quick else case.n_obs,
        case.n_features,
        case.n_components,
        family=case.family,
        scales=case.scales,
        random_seed=[options.seed, index],
    )


def draw_case(case: Case, options: Options, index: int) -> tuple[MixtureData, FloatArray | None]:
    """Draw data and, for a gated case, the covariate that sets the weights of two components."""
    data = _draw(case, options, index)
    if not case.is_gated:
        return data, None
    rng = np.random.default_rng([options.seed, index, 1])
    covariate = rng.standard_normal(len(data.y))
    labels = (rng.random(len(data.y)) < expit(GATE_SLOPE * covariate)).astype(np.int64)
    predictors = (data.X @ data.coefficients + data.biases)[np.arange(len(labels)), labels]
    if data.dispersion is None:
        y = (rng.random(len(labels)) < expit(predictors)).astype(np.float64)
    else:
        y = predictors + data.dispersion[labels] * rng.standard_normal(len(labels))
    return replace(data, y=y, labels=labels), covariate[:, None]


def _quality(tree: "xarray.DataTree", seconds: float) -> Row:
    """Unrounded diagnostics of the parameters that vary."""
    worst, effective = diagnostics(tree["posterior"].to_dataset())
    sampling = float(tree["posterior"].attrs["sampling_time"])
    return {
        "R-hat": worst,
        "ESS": effective,
        "divergent": int(tree["sample_stats"]["diverging"].sum()),
        "sampling s": sampling,
        "call s": seconds,
        "ESS/s": effective / sampling,
        "good": worst <= MAX_RHAT and effective >= MIN_EFFECTIVE,
    }


def _modes(tree: "xarray.DataTree", data: MixtureData, *, is_gated: bool) -> Row:
    """Shares that identify two modes, and whether there are two.

    Fixed directions have one mode by construction; EM cannot start from the draws of a gate.
    """
    group = tree["moment_init"]
    switched = float(group["switched_share"].max()) if "switched_share" in group else None
    second = None
    if switched is not None and not is_gated:
        second = second_share(_climb(tree["posterior"].to_dataset(), data))
    return {
        "traded": switched,
        "second maximum": second,
        "two modes": (switched or 0.0) >= TRADED_SHARE or (second or 0.0) >= SECOND_SHARE,
    }


def _climb(posterior: "xarray.Dataset", data: MixtureData) -> list[float]:
    """Log-likelihoods of the maxima that EM reaches from draws of each chain."""
    names = [*COMMON, *(["dispersion"] if "dispersion" in posterior else [])]
    ends = []
    for chain in range(posterior.sizes["chain"]):
        last = posterior.sizes["draw"] - 1
        for draw in np.linspace(0, last, CLIMBS_PER_CHAIN).astype(int):
            point = posterior.isel(chain=chain, draw=draw)
            init = tuple(point[name].transpose(..., "component").to_numpy() for name in names)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fit that ends at a bound still counts
                fit = fit_em(
                    data.X,
                    data.y,
                    data.weights.size,
                    family=data.family,
                    init=init,
                    progressbar=False,
                )
            ends.append(float(fit.log_likelihood))
    return ends


def second_share(ends: Sequence[float]) -> float:
    """Share of EM runs that do not end at the most frequent maximum."""
    ordered = sorted(ends)
    labels = np.cumsum(np.diff(ordered, prepend=ordered[0]) > SAME_MAXIMUM)
    # Count before dividing, so that rounding cannot put a share at the limit below it.
    return (len(ordered) - Counter(labels.tolist()).most_common(1)[0][1]) / len(ordered)


def _figures(rows: Sequence[Row], *, is_judged: bool) -> list[Figure]:
    name = f"{rows[0]['family']}, {rows[0]['directions']}"
    single = [bool(row["good"]) for row in rows if not row["two modes"]]
    figures = [
        Figure(f"{name}: share of good runs", float(np.mean([bool(r["good"]) for r in rows]))),
        Figure(f"{name}: runs with two modes", len(rows) - len(single)),
        Figure(f"{name}: divergences", sum(int(number(row, "divergent")) for row in rows)),
        Figure(f"{name}: median ESS/s", float(np.median([number(r, "ESS/s") for r in rows]))),
    ]
    if single:
        share = float(np.mean(single))
        judged = Figure(
            f"{name}: share of good runs among the {len(single)} with one mode",
            share,
            f">= {SHARE_BAR:g}",
            share >= SHARE_BAR if is_judged else None,
        )
        figures.insert(0, judged)
    return figures


def _run_by_hand(options: Options) -> list[Row]:
    """Compare `sample` with hand-written models on the first data sets of the first case."""
    n_data_sets = min(BY_HAND_DATA_SETS, options.data_sets(BY_HAND_DATA_SETS, 1))
    keys = [("by hand", index) for index in range(n_data_sets)]
    measured = options.checkpoint.measure(
        keys, lambda key: {"rows": _run_side_by_side(options, int(key[1]))}
    )
    return [row for each in measured for row in each["rows"]]


def _run_side_by_side(options: Options, index: int) -> list[Row]:
    """Sample one data set with `sample` and with the hand-written models.

    The latter are judged both as sampled and after alignment.
    """
    import pymc as pm

    from moment_init.posterior.alignment import align_components

    data, seed = _draw(CASES[0], options, index), options.seed
    start = time.perf_counter()
    fit = fit_em(data.X, data.y, data.weights.size, progressbar=False, random_seed=[seed, index])
    tree = sample_from(fit, data, draws=N_DRAWS, chains=N_CHAINS, random_seed=seed)
    common: Row = {"by hand": index}
    rows = [{**common, "model": OURS, **_quality(tree, time.perf_counter() - start)}]
    for name, build in HAND_WRITTEN.items():
        start = time.perf_counter()
        tree = pm.sample(
            N_DRAWS,
            chains=N_CHAINS,
            model=build(data),
            random_seed=seed,
            progressbar=False,
        )
        seconds = time.perf_counter() - start
        for kind, each in {"as it is": tree, "aligned": align_components(tree)}.items():
            each["posterior"].attrs.setdefault("sampling_time", _sampling_time(tree, seconds))
            model = f"{name} by hand, labels {kind}"
            rows.append({**common, "model": model, **_quality(each, seconds)})
    print(format_table(rows), flush=True)
    return rows


def _sampling_time(tree: "xarray.DataTree", seconds: float) -> float:
    """Seconds of sampling, or of the whole call if the sampler does not report them."""
    return float(tree["posterior"].attrs.get("sampling_time", seconds))


def _ratios(rows: Sequence[Row]) -> list[Figure]:
    """Median ratio of the ESS/s of `sample` to that of each hand-written model."""
    ours = {row["by hand"]: number(row, "ESS/s") for row in rows if row["model"] == OURS}
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["model"] != OURS:
            ratio = ours[row["by hand"]] / number(row, "ESS/s")
            ratios.setdefault(str(row["model"]), []).append(ratio)
    return [
        Figure(f"ESS/s of {OURS} over {model}, median of {len(each)}", float(np.median(each)))
        for model, each in ratios.items()
    ]


BENCHMARK = Benchmark(
    "posterior_quality",
    "R-hat, effective draws and seconds of `sample`, and of models by hand",
    run,
)
