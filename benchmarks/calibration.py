"""Simulation-based calibration: are the true parameters' ranks among posterior draws uniform?

Parameters and responses are drawn from the model itself. The anchors are fixed in advance, so the
data are used only once. If model, gradient and sampler are right, each parameter has a uniform rank
among the draws of its posterior (Talts et al. 2018). The model is compiled once and receives each
set of responses as data. The log-likelihood is ranked too: it depends on the responses and reveals
errors that no parameter shows (Modrak et al. 2023).

Chains start at the anchors, as a user's chains do. The same posteriors are sampled again from the
true parameters, which are themselves a draw of the posterior, so these chains need not find a mode.
Ranks that are uniform from the truth but not from the anchors point to chains stuck in one mode;
ranks that are uniform from neither point to an error."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from benchmarks.checkpoints import Key
from benchmarks.posterior_runs import diagnostics, quiet_sampler
from benchmarks.report import Benchmark, Figure, Options, Outcome, Row, format_table
from moment_init import simulate_mixture
from moment_init.data.checking import RegressionData, validate_data

if TYPE_CHECKING:
    import xarray

__all__ = ["BENCHMARK", "run"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FAMILIES = ("poisson", "bernoulli", "gaussian")
N_OBS, N_FEATURES, N_COMPONENTS = 150, 3, 2
ANCHOR_ANGLE = 10.0
N_REPLICATIONS, QUICK_REPLICATIONS = 240, 20
STARTS = ("anchors", "truth")

# Norms of the anchors' coefficients, where chains start: near the middle of the priors.
ANCHOR_SCALE = {"bernoulli": 3.0, "poisson": 0.7, "gaussian": 1.0}
ANCHOR_DISPERSION = 0.7

# Ranks among 99 draws take 100 values, five per bin; 200 replications put ten into each bin.
N_RANKED, N_BINS = 99, 20
N_CHAINS, N_TUNE, N_DRAWS = 2, 500, 1_000
# Chains with fewer effective draws than are ranked run again, this many times as long.
LENGTHENING, MAX_LENGTHENINGS = 4, 2
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Replications:
    """Ranks of one family, from one kind of start."""

    start: str  # where the chains start
    ranks: dict[str, IntArray]  # ranks of each scalar, one per replication
    n_short: int  # replications with fewer effective draws than were ranked
    n_divergent: int  # replications with a divergence


@dataclass(frozen=True, slots=True)
class Posteriors:
    """Parameters and responses drawn for one family, and the compiled model."""

    data: RegressionData  # the rows; their responses differ between replications
    truths: dict[str, FloatArray]  # parameters drawn from the prior, one per replication
    responses: FloatArray  # responses drawn with `truths`; (n_replications, n_obs)
    points: dict[str, FloatArray]  # unconstrained points where chains start, by kind of start
    compiled: Any  # nutpie model
    seed: int  # seed of the chains; the replication's number is added to it


def run(options: Options) -> Outcome:
    """Test the ranks of the true parameters for uniformity, variable by variable."""
    n_replications = options.data_sets(N_REPLICATIONS, QUICK_REPLICATIONS)
    with quiet_sampler():
        rows, figures = _rank_families(n_replications, options)
    settings = {
        "replications": n_replications,
        "n": N_OBS,
        "anchor_angle": ANCHOR_ANGLE,
        "ranked draws": N_RANKED,
        "p": f"chi-square test on {N_BINS} bins of ranks; Kolmogorov-Smirnov in its own column",
    }
    return Outcome(tuple(rows), tuple(figures), settings)


def _rank_families(n_replications: int, options: Options) -> tuple[list[Row], list[Figure]]:
    rows: list[Row] = []
    figures: list[Figure] = []
    for family in FAMILIES:
        keys = [(family, index) for index in range(n_replications)]
        measured = options.checkpoint.measure(
            keys, lambda key: _replicate(_prepare(str(key[0]), n_replications, options.seed), key)
        )
        both = list(measured)
        for start in STARTS if both else ():
            gathered = _gather(start, [each[start] for each in both])
            family_rows = [
                _uniformity(family, start, name, ranks) for name, ranks in gathered.ranks.items()
            ]
            print(format_table(family_rows), flush=True)
            rows += family_rows
            figures += _rank_figures(family, family_rows, gathered, is_judged=not options.is_quick)
    return rows, figures


@lru_cache(maxsize=1)
def _prepare(family: str, n_replications: int, seed: int) -> Posteriors:
    """Draw parameters and responses from the model, and compile it."""
    import nutpie
    import pymc as pm

    model, data = _anchored_model(family, seed)
    named = [*model.free_RVs, *model.deterministics]
    *parameters, responses = pm.draw([*named, model["y"]], draws=n_replications, random_seed=seed)
    truths = dict(zip([variable.name for variable in named], parameters, strict=True))
    points = {
        "anchors": np.tile(_flatten(model.initial_point()), (n_replications, 1)),
        "truth": _unconstrained(model, truths),
    }
    compiled = nutpie.compile_pymc_model(model, jitter_rvs=set())
    return Posteriors(data, truths, np.asarray(responses, dtype=np.float64), points, compiled, seed)


def _replicate(posteriors: Posteriors, key: Key) -> dict[str, Row]:
    """Ranks of the truth in the posterior of one set of responses, from each start."""
    family, index = str(key[0]), int(key[1])
    y = posteriors.responses[index]
    truth = {name: values[index] for name, values in posteriors.truths.items()}
    result: dict[str, Row] = {}
    for start in STARTS:
        begun = _starting_at(
            posteriors.compiled.with_data(y_data=y), posteriors.points[start][index]
        )
        tree, n_effective = _sample_long_enough(begun, posteriors.seed + index)
        result[start] = {
            "is short": n_effective < N_RANKED,
            "is divergent": bool(tree["sample_stats"]["diverging"].any()),
            **_ranks(tree["posterior"].to_dataset(), truth, replace(posteriors.data, y=y)),
        }
    if (index + 1) % 50 == 0:
        print(f"{family}: {index + 1} replications", flush=True)
    return result


def _gather(start: str, runs: list[Row]) -> Replications:
    marks = ("is short", "is divergent")
    n_short, n_divergent = (sum(bool(run[mark]) for run in runs) for mark in marks)
    columns = {
        name: np.array([run[name] for run in runs], dtype=np.int64)
        for name in runs[0]
        if name not in marks
    }
    return Replications(start, _without_copies(columns), n_short, n_divergent)


def _flatten(point: Mapping[str, Any]) -> FloatArray:
    return np.concatenate([np.ravel(value) for value in point.values()])


def _starting_at(compiled: Any, point: FloatArray) -> Any:
    return replace(compiled, initial_point_func=lambda _: point)


def _unconstrained(model: Any, truths: Mapping[str, FloatArray]) -> FloatArray:
    """Map the true parameters to the sampler's unconstrained scale, one row per replication."""
    import pymc as pm
    import pytensor.tensor as pt

    columns = []
    for variable in model.free_RVs:
        values = truths[variable.name]
        transform = model.rvs_to_transforms[variable]
        if transform is not None:
            value = pt.tensor(dtype="float64", shape=(None,) * variable.ndim)
            forward = pm.compile(
                [value],
                transform.forward(value, *variable.owner.inputs),
                mode="FAST_COMPILE",
                on_unused_input="ignore",
            )
            values = np.stack([forward(each) for each in values])
        columns.append(values.reshape(len(values), -1))
    return np.concatenate(columns, axis=1)


def _anchored_model(family: str, seed: int) -> tuple[Any, RegressionData]:
    """Build the model around fixed orthogonal anchors, with its rows."""
    from moment_init.models import mixture_glm

    coefficients = ANCHOR_SCALE[family] * np.eye(N_FEATURES, N_COMPONENTS)
    biases, weights = np.zeros(N_COMPONENTS), np.full(N_COMPONENTS, 1.0 / N_COMPONENTS)
    dispersion = np.full(N_COMPONENTS, ANCHOR_DISPERSION) if family == "gaussian" else None
    simulated = simulate_mixture(
        N_OBS,
        N_FEATURES,
        N_COMPONENTS,
        family=family,
        directions=np.eye(N_FEATURES, N_COMPONENTS),
        scales=ANCHOR_SCALE[family],
        dispersion=dispersion,
        biases=biases,
        weights=weights,
        random_seed=seed,
    )
    start = (coefficients, biases, weights, *(() if dispersion is None else (dispersion,)))
    model = mixture_glm(
        simulated.X,
        simulated.y,
        N_COMPONENTS,
        family=family,
        init=start,
        anchor_angle=ANCHOR_ANGLE,
    )
    return model, validate_data(simulated.X, simulated.y, family=family)


def _sample_long_enough(compiled: Any, seed: int) -> tuple["xarray.DataTree", float]:
    """Sample, longer if needed; return the draws and the worst effective sample size."""
    import nutpie

    n_draws = N_DRAWS
    for _ in range(MAX_LENGTHENINGS + 1):
        tree = nutpie.sample(
            compiled,
            draws=n_draws,
            tune=N_TUNE,
            chains=N_CHAINS,
            cores=1,
            seed=seed,
            save_warmup=False,
            progress_bar=False,
        )
        _, smallest = diagnostics(tree["posterior"].to_dataset())
        if smallest >= N_RANKED:
            break
        n_draws *= LENGTHENING
    return tree, smallest


def _ranks(
    posterior: "xarray.Dataset", truth: Mapping[str, FloatArray], data: RegressionData
) -> dict[str, int]:
    """Count the thinned draws below the truth, for each scalar."""
    stacked = posterior.stack(sample=("chain", "draw"))
    chosen = np.linspace(0, stacked.sizes["sample"] - 1, N_RANKED).round().astype(int)
    result: dict[str, int] = {}
    for name, value in truth.items():
        draws = stacked[name].transpose("sample", ...).to_numpy()[chosen]
        below = (draws < value).sum(axis=0)
        for place in np.ndindex(below.shape):
            result[f"{name}{list(place)}"] = int(below[place])
    chain, draw = np.divmod(chosen, posterior.sizes["draw"])
    result["log-likelihood"] = _likelihood_rank(posterior, (chain, draw), truth, data)
    return result


def _likelihood_rank(
    posterior: "xarray.Dataset",
    chosen: tuple[IntArray, IntArray],
    truth: Mapping[str, FloatArray],
    data: RegressionData,
) -> int:
    from moment_init.likelihood.draws import Draws, log_likelihoods
    from moment_init.posterior.draws import evaluation_rows

    names = [name for name in ("coefficient", "bias", "weight", "dispersion") if name in truth]
    sets = []
    for name in names:
        draws = posterior[name].transpose("chain", "draw", ...).to_numpy()[chosen]
        sets.append(np.concatenate([draws, truth[name][None]]))
    sets[2] = np.log(sets[2])
    values = log_likelihoods(data.family, evaluation_rows(data)[0], Draws(*sets)).sum(axis=-1)
    return int((values[:-1] < values[-1]).sum())


def _without_copies(ranks: dict[str, IntArray]) -> dict[str, IntArray]:
    """Drop scalars whose ranks always equal, or always mirror, those of another."""
    kept: dict[str, IntArray] = {}
    for name, values in ranks.items():
        if not any(
            np.array_equal(values, other) or np.array_equal(N_RANKED - values, other)
            for other in kept.values()
        ):
            kept[name] = values
    return kept


def _uniformity(family: str, start: str, name: str, ranks: IntArray) -> Row:
    """Test the ranks of a variable for uniformity."""
    per_bin = (N_RANKED + 1) // N_BINS
    counts = np.bincount(ranks // per_bin, minlength=N_BINS)
    # The middle of a rank's cell, so that steps of a hundredth remain.
    positions = (ranks + 0.5) / (N_RANKED + 1)
    return {
        "family": family,
        "start": start,
        "variable": name,
        "replications": len(ranks),
        "p": float(chisquare(counts).pvalue),
        "p (KS)": float(kstest(positions, "uniform").pvalue),
        # In standard errors of the mean of uniform ranks.
        "mean rank z": float((positions.mean() - 0.5) * np.sqrt(12.0 * len(ranks))),
    }


def _rank_figures(
    family: str, rows: list[Row], measured: Replications, *, is_judged: bool
) -> list[Figure]:
    number, case = len(rows), f"{family}, from the {measured.start}"
    n_small = sum(float(str(row["p"])) < LEVEL / number for row in rows)
    n_small_ks = sum(float(str(row["p (KS)"])) < LEVEL / number for row in rows)
    n_replications = int(str(rows[0]["replications"]))
    return [
        Figure(
            f"{case}: variables of {number} with p < {LEVEL:g}/{number}",
            n_small,
            "0",
            n_small == 0 if is_judged else None,
        ),
        Figure(f"{case}: the same by Kolmogorov-Smirnov", n_small_ks),
        Figure(f"{case}: smallest p", min(float(str(row["p"])) for row in rows)),
        Figure(
            f"{case}: share of replications worth fewer than {N_RANKED} draws",
            measured.n_short / n_replications,
        ),
        Figure(
            f"{case}: share of replications with divergences",
            measured.n_divergent / n_replications,
        ),
    ]


BENCHMARK = Benchmark("calibration", "ranks of the truth in posteriors", run)
