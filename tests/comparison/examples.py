"""Comparisons made by hand from draws about a known truth: nothing is fitted or sampled.

Tensor methods draw about the truth. Random starts do so too in a share of the cases; the others
have the coefficients of two components mixed, as in a local maximum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.special import logsumexp

from moment_init import predict_membership, simulate_mixture
from moment_init.comparison.result import Comparison, Verdict
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.simulation import MixtureData
from moment_init.posterior.draws import log_likelihood_group, predictive_group

FloatArray = NDArray[np.float64]

SCALES = {"bernoulli": 2.0, "binomial": 1.5, "poisson": 0.7, "gaussian": 1.0}
"""Lengths of coefficients that keep counts small and probabilities away from the ends."""

DISPERSION = 0.5
"""Standard deviation of a gaussian response about its component."""

SPREAD = 0.08
"""Standard deviation of the draws about the parameters."""

GOOD_K = 0.7
"""Pareto k above which a score is not believed."""

AWKWARD_NAMES = ("<b>age</b>", "cost in $ and $", "größe & ψ", "a" * 40)
"""Names that break HTML, mathematical text and labels that expect a word."""


@dataclass(frozen=True)
class Example:
    """What to make; see `make_example`."""

    family: str = "poisson"
    n_components: int = 3
    n_features: int = 4
    n_obs: int = 240
    share_at_best: float = 0.4
    n_starts: int = 10
    n_draws: int = 60
    gap: float = 40.0
    with_truth: bool = True
    with_default_nuts: bool = False
    with_gate: bool = False
    with_groups: bool = False
    with_failures: bool = False
    with_random: bool = True
    feature_names: tuple[str, ...] | None = None
    seed: int = 3


@cache
def make_example(**options: Any) -> Comparison:
    """A comparison; the same for every test that asks with the same fields of `Example`."""
    example = Example(**options)
    rng = np.random.default_rng(example.seed)
    truth = _simulate(example)
    data, gating = _rows(example, truth, rng)
    trees = {
        method: _tree(example, truth, data, gating, shifts, rng)
        for method, shifts in _shifts(example).items()
    }
    landscape = _landscape(example, rng)
    scores = {method: _loo(tree, method, landscape, rng) for method, tree in trees.items()}
    table = _table(example, trees, landscape, scores)
    return Comparison(
        table=table,
        trees=trees,
        landscape=landscape,
        loo=_compared(scores),
        verdict=_verdict(example),
        truth=_truth(example, truth, data) if example.with_truth else None,
        warnings=("Pareto k exceeds 0.7 for <3> rows of random EM.",),
        settings={
            "family": example.family,
            "n_obs": example.n_obs,
            "n_features": example.n_features,
            "n_components": example.n_components,
            "random_seed": example.seed,
            "versions": {"numpy": np.__version__, "arviz": az.__version__},
        },
    )


def _simulate(example: Example) -> MixtureData:
    weights = np.linspace(2.0, 1.0, example.n_components)
    return simulate_mixture(
        example.n_obs,
        example.n_features,
        example.n_components,
        family=example.family,
        weights=weights / weights.sum(),
        scales=SCALES[example.family],
        dispersion=DISPERSION if example.family == "gaussian" else None,
        random_seed=example.seed,
    )


def _rows(
    example: Example, truth: MixtureData, rng: np.random.Generator
) -> tuple[RegressionData, FloatArray | None]:
    names = example.feature_names or tuple(f"x{index}" for index in range(example.n_features))
    frame = pd.DataFrame(truth.X, columns=list(names))
    groups = np.arange(example.n_obs) // 3 if example.with_groups else None
    data = validate_data(
        frame, truth.y, family=example.family, n_trials=truth.n_trials, groups=groups
    )
    if not example.with_gate:
        return data, None
    gating = rng.standard_normal((example.n_obs, 2))
    return data, gating if groups is None else gating[3 * groups]


def _shifts(example: Example) -> dict[str, list[float]]:
    """How much of the second component is mixed into the first, by method and chain."""
    methods = {"search NUTS": [0.0] * 4, "default NUTS": [0.0, 0.0, 0.5, 1.0], "search EM": [0.0]}
    if not example.with_default_nuts:
        del methods["default NUTS"]
    if not example.with_random:
        return methods
    return {**methods, "random EM": [float(value) for value in ~_is_at_best(example)]}


def _is_at_best(example: Example) -> NDArray[np.bool_]:
    n_best = round(example.share_at_best * example.n_starts)
    return np.asarray(np.arange(example.n_starts) % example.n_starts < n_best)


def _posterior(
    example: Example,
    truth: MixtureData,
    names: Sequence[str],
    shifts: Sequence[float],
    rng: np.random.Generator,
) -> xr.Dataset:
    shape = (len(shifts), example.n_draws)

    def about(values: FloatArray) -> FloatArray:
        return np.asarray(values + SPREAD * rng.standard_normal((*shape, *values.shape)))

    coefficient = about(truth.coefficients)
    other = coefficient[..., -1].copy()
    mixed = np.asarray(shifts)[:, None, None] * 0.5
    coefficient[..., -1] += mixed * (coefficient[..., 0] - other)
    coefficient[..., 0] += mixed * (other - coefficient[..., 0])
    scale = np.linalg.norm(coefficient, axis=2)
    logits = about(np.log(truth.weights))
    weight = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    by_component = ("chain", "draw", "component")
    by_feature = ("chain", "draw", "feature", "component")
    variables: dict[str, Any] = {
        "coefficient": (by_feature, coefficient),
        "direction": (by_feature, coefficient / scale[:, :, None]),
        "scale": (by_component, scale),
        "bias": (by_component, about(truth.biases)),
        "weight": (by_component, weight),
    }
    coords: dict[str, Any] = {"feature": list(names), "component": np.arange(len(truth.weights))}
    if truth.dispersion is not None:
        noise = np.exp(about(np.log(truth.dispersion)))
        variables["dispersion"] = (by_component, noise)
    if example.with_gate:
        gate = about(np.zeros((len(truth.weights), 2)))
        variables["gate"] = (("chain", "draw", "component", "gate_feature"), gate)
        variables["gate_bias"] = (by_component, logits - logits.mean(axis=-1, keepdims=True))
        coords["gate_feature"] = ["year", "size"]
    coords |= {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    return xr.Dataset(variables, coords)


def _tree(
    example: Example,
    truth: MixtureData,
    data: RegressionData,
    gating: FloatArray | None,
    shifts: Sequence[float],
    rng: np.random.Generator,
) -> xr.DataTree:
    posterior = _posterior(example, truth, data.feature_names, shifts, rng)
    rows = replace(data, gating=gating)
    constant: dict[str, Any] = {"X": (("obs", "feature"), np.asarray(data.X))}
    if gating is not None:
        constant["gating"] = (("obs", "gate_feature"), gating)
    if data.n_trials is not None:
        constant["n_trials"] = ("obs", data.n_trials)
    if data.groups is not None:
        constant["groups"] = ("obs", data.groups)
    coords = {
        name: posterior.coords[name]
        for name in ("feature", "gate_feature")
        if name in posterior.coords
    }
    own = xr.Dataset(attrs={"family": data.family.name, "link": data.family.link_name})
    tree = xr.DataTree.from_dict(
        {
            "posterior": posterior,
            "log_likelihood": log_likelihood_group(posterior, rows),
            "posterior_predictive": predictive_group(posterior, rows, rng),
            "observed_data": xr.Dataset({"y": ("obs", data.y)}),
            "constant_data": xr.Dataset(constant, coords),
            "moment_init": own,
        }
    )
    probability = predict_membership(tree, average=True)
    tree["membership"] = xr.Dataset({"probability": probability})
    return tree


def _landscape(example: Example, rng: np.random.Generator) -> pd.DataFrame:
    best = -500.0
    at_best = _is_at_best(example)
    below = example.gap * np.exp(rng.standard_normal(example.n_starts))
    values = np.where(at_best, best, best - below)
    status = np.full(example.n_starts, "converged", dtype=object)
    if example.with_failures:
        values[-1], status[-1] = np.nan, "failed"
    if not example.with_random:
        values[:], status[:] = np.nan, "failed"
    rows = [("search NUTS", chain, best, "converged") for chain in range(4)]
    if example.with_default_nuts:
        ends = (best, best, best - 0.5 * example.gap, best - example.gap)
        rows += [("default NUTS", chain, end, "converged") for chain, end in enumerate(ends)]
    rows += [("search EM", 0, best, "converged")]
    starts = zip(values, status, strict=True)
    rows += [("random EM", start, value, how) for start, (value, how) in enumerate(starts)]
    frame = pd.DataFrame(rows, columns=["method", "start", "log_likelihood", "status"])
    frame["is_best"] = frame["log_likelihood"] == best
    frame["seconds"] = 0.25
    frame["is_typical"] = False
    ended = frame[frame["method"] == "random EM"].dropna(subset=["log_likelihood"])
    if not ended.empty:
        ordered = ended.sort_values("log_likelihood", kind="stable")
        frame.loc[ordered.index[(len(ordered) - 1) // 2], "is_typical"] = True
    return frame


@dataclass(frozen=True)
class Score:
    """Leave-one-out scores of rows or groups by plain importance sampling, without smoothing."""

    elpd: FloatArray
    p: float
    pareto_k: FloatArray

    @property
    def se(self) -> float:
        return float(np.sqrt(self.elpd.size * self.elpd.var()))


def _loo(
    tree: xr.DataTree, method: str, landscape: pd.DataFrame, rng: np.random.Generator
) -> Score:
    """Scores, of the typical start where there are several optima; shapes are invented."""
    values = tree["log_likelihood"]["y"].to_numpy()
    if method == "random EM":
        values = values[[landscape.loc[landscape["is_typical"], "start"].item()]]
    values = values.reshape(-1, values.shape[-1])
    count = np.log(len(values))
    elpd = count - logsumexp(-values, axis=0)
    p = float((logsumexp(values, axis=0) - count - elpd).sum())
    return Score(elpd, p, rng.normal(0.2, 0.15, values.shape[-1]))


def _compared(scores: dict[str, Score]) -> pd.DataFrame:
    """What `arviz.compare` gives, but for the weights."""
    names = sorted(scores, key=lambda name: -scores[name].elpd.sum())
    best = scores[names[0]].elpd
    rows = []
    for name in names:
        score, difference = scores[name], scores[name].elpd - best
        n_bad = int((score.pareto_k > GOOD_K).sum())
        row = {
            "elpd_diff": difference.sum(),
            "dse": np.sqrt(difference.size * difference.var()),
            "diag_elpd": f"{n_bad} k\u0302 > {GOOD_K:.2f}" if n_bad else "",
            "p": score.p,
            "elpd": score.elpd.sum(),
            "se": score.se,
            "is_reliable": n_bad <= 0.01 * score.pareto_k.size,
        }
        rows.append(row)
    return pd.DataFrame(rows, index=names)


def _table(
    example: Example,
    trees: dict[str, xr.DataTree],
    landscape: pd.DataFrame,
    scores: dict[str, Score],
) -> pd.DataFrame:
    rows = {}
    for index, (method, tree) in enumerate(trees.items()):
        own = landscape[landscape["method"] == method]
        score, is_nuts = scores[method], method.endswith("NUTS")
        rows[method] = {
            "log_likelihood": own["log_likelihood"].max(),
            "share_at_best": own["is_best"].mean(),
            "n_starts": len(own),
            "elpd_loo": score.elpd.sum(),
            "elpd_se": score.se,
            "p_loo": score.p,
            "pareto_k_max": score.pareto_k.max(),
            "pareto_k_bad": (score.pareto_k > GOOD_K).mean(),
            "elpd_held_out": score.elpd.sum() / 4,
            "elpd_held_out_se": score.se / 2,
            "rhat_max": _largest_rhat(tree) if method != "search EM" else np.nan,
            "ess_bulk_min": 180.0 if is_nuts else np.nan,
            "ess_per_second": 45.0 if is_nuts else np.nan,
            "divergences": 0.0 if is_nuts else np.nan,
            "error": 0.05 * (index + 1) if example.with_truth else np.nan,
            "error_angle": 3.0 * (index + 1) if example.with_truth else np.nan,
            "seconds": 0.5 * (index + 1),
        }
    if example.with_random:
        rows["best random EM"] = {**rows["search EM"], "share_at_best": np.nan, "seconds": 2.5}
    else:
        rows["random EM"] = {"share_at_best": 0.0, "n_starts": example.n_starts, "seconds": 2.5}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis("method")


def _largest_rhat(tree: xr.DataTree) -> float:
    found = az.rhat(tree["posterior"].to_dataset()[["coefficient", "bias"]])
    return max(float(values.max()) for values in found.data_vars.values())


def _verdict(example: Example) -> Verdict:
    suffices = example.share_at_best > 0.7
    share = f"{example.share_at_best:.0%} of {example.n_starts} random starts reach it."
    if suffices:
        return Verdict("Random starts are enough for these data.", (share,), True)
    headline = "Random starts are not enough: most end below the best optimum found."
    return Verdict(headline, (share, "The search <reaches> it & stays there."), False)


def _truth(example: Example, truth: MixtureData, data: RegressionData) -> xr.Dataset:
    variables: dict[str, Any] = {
        "coefficient": (("feature", "component"), truth.coefficients),
        "bias": ("component", truth.biases),
        "weight": ("component", truth.weights),
    }
    if truth.dispersion is not None:
        variables["dispersion"] = ("component", truth.dispersion)
    coords = {"feature": list(data.feature_names), "component": np.arange(example.n_components)}
    return xr.Dataset(variables, coords)
