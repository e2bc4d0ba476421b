"""Effective draws of `sample` per gradient and per second, against nutpie's own defaults.

Every data set is sampled twice from the same fit: by `sample` as it is, and with nutpie's defaults,
which sample the model's unconstrained values themselves, adapt a diagonal mass matrix and warm up
longer. A compile option makes nutpie compile the model, and so use its defaults. Gradients are
those of the draws that are kept. Seconds are those of sampling, with warm-up, without compiling and
fitting. `z` is the largest difference between the two means of a parameter in its standard errors.
"""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.checkpoints import Key
from benchmarks.measuring import number
from benchmarks.posterior_quality import Case, draw_case
from benchmarks.posterior_runs import diagnostics, quiet_sampler, sample_from
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row, format_table
from moment_init import fit_em

if TYPE_CHECKING:
    import xarray

__all__ = ["BENCHMARK", "run"]

N_CHAINS, N_DRAWS, QUICK_DRAWS = 4, 1_000, 50

GRADIENT_BAR, SECOND_BAR, NO_WORSE_BAR = 2.5, 3.0, 1.0

CASES = (
    Case("bernoulli", 2_000, 5, 3, 3, scales=(3.5, 4.0, 4.5)),
    Case("poisson", 2_000, 5, 3, 3),
    Case("gaussian", 2_000, 5, 3, 2),
    Case("negative_binomial", 2_000, 5, 3, 2),
    Case("gamma", 2_000, 5, 3, 2),
    Case("poisson", 2_000, 5, 3, 1, ("free", "fixed")),
    Case("gaussian", 2_000, 4, 2, 1, is_gated=True),
    Case("poisson", 500, 2, 2, 1),
    Case("poisson", 5_000, 30, 3, 1),
    Case("gaussian", 50_000, 5, 3, 1),
)
BARRED = {"bernoulli", "poisson"}

OURS, NUTPIE = "sample", "nutpie's defaults"
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {},
    # the default of nutpie, which does nothing but say that nutpie compiles the model
    NUTPIE: {"compile_kwargs": {"freeze_model": False}},
}


def run(options: Options) -> Outcome:
    """Sample every data set in both ways and print one line for each."""
    rows: list[Row] = []
    with quiet_sampler():
        for case in CASES[1:2] if options.is_quick else CASES:
            kind = f"{case.family} {case.n_obs} {case.n_features}" + " gate" * case.is_gated
            keys = [
                (kind, directions, index)
                for directions in case.directions
                for index in range(options.data_sets(case.n_data_sets, 1))
            ]
            measured = options.checkpoint.measure(keys, partial(_sample_both, case, options))
            rows += [row for each in measured for row in each["rows"]]
    settings = {
        "chains": N_CHAINS,
        "draws": QUICK_DRAWS if options.is_quick else N_DRAWS,
        "ESS": "smallest bulk effective sample size of a parameter",
        "ESS/kgrad": "of it for each thousand gradients of the draws that are kept",
        "ESS/s": "of it for each second of sampling with warm-up",
    }
    return Outcome(tuple(rows), tuple(_figures(rows, is_judged=not options.is_quick)), settings)


def _sample_both(case: Case, options: Options, key: Key) -> dict[str, list[Row]]:
    kind, directions, index = str(key[0]), str(key[1]), int(key[2])
    data, gating = draw_case(case, options, index)
    fit = fit_em(
        *(data.X, data.y, case.n_components),
        family=case.family,
        gating=gating,
        priors="default",
        progressbar=False,
        random_seed=[options.seed, index],
    )
    rows: list[Row] = []
    posteriors = []
    for name, settings in SETTINGS.items():
        start = time.perf_counter()
        tree = sample_from(
            fit,
            data,
            gating=gating,
            directions=directions,
            draws=QUICK_DRAWS if options.is_quick else N_DRAWS,
            chains=N_CHAINS,
            random_seed=options.seed,
            **settings,
        )
        call = time.perf_counter() - start
        posteriors.append(tree["posterior"].to_dataset())
        row: Row = {"model": kind, "directions": directions, "data set": index, "sampler": name}
        row |= _cost(tree)
        row |= {"call s": call, "z": _difference(*posteriors) if len(posteriors) == 2 else 0.0}
        rows.append(row)
    print(format_table(rows), flush=True)
    return {"rows": rows}


def _cost(tree: "xarray.DataTree") -> Row:
    worst, effective = diagnostics(tree["posterior"].to_dataset())
    gradients = int(tree["sample_stats"]["n_steps"].sum())
    seconds = float(tree["posterior"].attrs["sampling_time"])
    return {
        "R-hat": worst,
        "ESS": effective,
        "divergent": int(tree["sample_stats"]["diverging"].sum()),
        "gradients": gradients,
        "ESS/kgrad": 1e3 * effective / gradients,
        "sampling s": seconds,
        "ESS/s": effective / seconds,
    }


def _difference(first: "xarray.Dataset", second: "xarray.Dataset") -> float:
    """Largest difference of the means of a parameter, in standard errors."""
    import arviz as az

    names = ["coefficient", "bias", "weight"]
    means = [each[names].mean(("chain", "draw")) for each in (first, second)]
    errors = [az.mcse(each[names]) for each in (first, second)]
    return max(
        float(
            np.abs((means[0][name] - means[1][name]) / np.hypot(errors[0][name], errors[1][name]))
            .max()
            .item()
        )
        for name in names
    )


def _figures(rows: list[Row], *, is_judged: bool) -> list[Figure]:
    figures = []
    for kind in dict.fromkeys((str(row["model"]), str(row["directions"])) for row in rows):
        chosen = [row for row in rows if (row["model"], row["directions"]) == kind]
        ours, theirs = ([row for row in chosen if row["sampler"] == name] for name in SETTINGS)
        is_barred = kind[0].split()[0] in BARRED and kind[0].endswith("2000 5")
        is_barred &= kind[1] == "anchored"
        for unit, high in (("ESS/kgrad", GRADIENT_BAR), ("ESS/s", SECOND_BAR)):
            pairs = zip(ours, theirs, strict=True)
            ratio = float(np.median([number(a, unit) / number(b, unit) for a, b in pairs]))
            bar = high if is_barred else NO_WORSE_BAR
            figures.append(
                Figure(
                    f"{', '.join(kind)}: {unit} over nutpie's defaults, median of {len(ours)}",
                    ratio,
                    f">= {bar:g}",
                    ratio >= bar if is_judged else None,
                )
            )
    return figures


BENCHMARK = Benchmark(
    "sampling_cost", "effective draws of `sample` per gradient and per second", run
)
