"""The runs of a comparison: the rows, fits by EM, and posteriors by NUTS.

Rows are split into those that are fitted and those that are held out. EM runs from the search
and from each random start by itself. NUTS runs from the search and from PyMC's own start; the
best draw of every chain is then climbed to the optimum it leads to. The last functions put fits,
as draws of their Laplace approximations, and posteriors into DataTrees of one form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, as_known_table, quiet_notices
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import RegressionData, group_codes, validate_data
from moment_init.em.fitting import fit_em
from moment_init.em.result import EMFit
from moment_init.em.start_values import start_values_of
from moment_init.posterior.alignment import align_components
from moment_init.posterior.draws import predictive_group
from moment_init.posterior.prediction import predict_membership
from moment_init.posterior.sampling import sample
from moment_init.progress import track
from moment_init.results import BREAKDOWNS, label, labels_of

if TYPE_CHECKING:
    import xarray


IndexArray = NDArray[np.intp]

BY_ROW = ("offset", "n_trials", "sample_weight", "groups", "gating")
"""Arguments of the data block that have one value per row."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRows:
    """Rows as they were passed and as they were checked."""

    X: Any  # inputs; (n_obs, n_features)
    y: Any  # response; (n_obs,)
    # `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`, `gating`
    block: dict[str, Any]
    checked: RegressionData  # the same rows, checked
    gating: FloatArray | None  # gating covariates, checked; (n_obs, n_gate)
    numbers: IndexArray  # positions of the rows in the user's data; (n_obs,)

    @property
    def by_row(self) -> dict[str, Any]:
        """Arguments of the data block with one value per row, as for `EMFit.to_datatree`."""
        return {name: self.block[name] for name in BY_ROW}

    @property
    def n_units(self) -> int:
        """Number of groups, or of rows if there are no groups."""
        codes = group_codes(self.checked.groups)
        return self.checked.n_obs if codes is None else int(codes.max()) + 1

    @property
    def unit_weights(self) -> FloatArray:
        """Weights of the rows, or 1 for each group, whose density contains those of its rows."""
        codes = group_codes(self.checked.groups)
        if codes is None:
            return self.checked.sample_weight
        return (np.bincount(codes, self.checked.sample_weight) > 0.0).astype(np.float64)

    @property
    def has_unequal_weights(self) -> bool:
        """Whether some sample weight is not one."""
        return bool(np.any(self.checked.sample_weight != 1.0))

    def take(self, index: IndexArray) -> "ComparedRows":
        """Select rows."""
        taken = {name: _take(self.block[name], index) for name in BY_ROW}
        return replace(
            self,
            X=_take(self.X, index),
            y=_take(self.y, index),
            block=self.block | taken,
            checked=self.checked.take(index),
            gating=None if self.gating is None else self.gating[index],
            numbers=self.numbers[index],
        )


def check_rows(X: Any, y: Any, block: dict[str, Any]) -> ComparedRows:
    """Check the data and leave out rows with weight zero."""
    # X: (n_obs, n_features), y: (n_obs,)
    X, y = as_known_table(X), as_known_table(y)
    block = {name: as_known_table(value) for name, value in block.items()}
    checked = validate_data(X, y, **block).whole("`X` and `y` must be in memory")
    rows = ComparedRows(X, y, block, checked, checked.gating, np.arange(checked.n_obs))
    weighted = np.flatnonzero(checked.sample_weight)
    return rows if len(weighted) == checked.n_obs else rows.take(weighted)


def split_rows(
    rows: ComparedRows, held_out: float, rng: np.random.Generator
) -> tuple[ComparedRows, ComparedRows | None]:
    """Hold out a random share of the rows, or of the groups with all their rows."""
    if held_out == 0.0:
        return rows, None
    codes = group_codes(rows.checked.groups)
    unit = np.arange(rows.checked.n_obs) if codes is None else codes
    n_units = rows.n_units
    n_held_out = min(max(1, round(held_out * n_units)), n_units - 1)
    is_held_out = np.isin(unit, rng.permutation(n_units)[:n_held_out])
    return rows.take(np.flatnonzero(~is_held_out)), rows.take(np.flatnonzero(is_held_out))


def _take(values: Any, index: IndexArray) -> Any:
    """Select rows of a value per row; a single number of trials is kept."""
    if values is None or np.ndim(values) == 0:
        return values
    return values.iloc[index] if hasattr(values, "iloc") else np.asarray(values)[index]


FAILED = "failed"
"""Status of a start that broke down."""


@dataclass(frozen=True, slots=True, eq=False)
class EMRun:
    """The result of one start."""

    start: int  # number of the start or of the chain
    fit: EMFit | None  # the fit; None if the start broke down
    seconds: float  # time of the run
    seed: int  # seed of the Laplace draws
    message: str = ""  # why the start broke down; empty if it did not

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the fit; NaN if the start broke down."""
        return np.nan if self.fit is None else self.fit.log_likelihood

    @property
    def status(self) -> str:
        """How the run ended, in the words of `moment_init.results.StartStatus`."""
        if self.fit is None:
            return FAILED
        if self.fit.converged:
            return "converged"
        ended = [str(record.status) for record in self.fit.starts]
        return ended[0] if len(ended) == 1 and ended[0] != "converged" else "not_converged"


def run_search(
    rows: ComparedRows, n_components: int, rng: np.random.Generator, n_jobs: int | None
) -> EMRun:
    """Fit from the search."""
    seed = int(rng.integers(2**31))
    begin = perf_counter()
    fit = _fit(rows, n_components, init="search", random_seed=rng.spawn(1)[0], n_jobs=n_jobs)
    return EMRun(0, fit, perf_counter() - begin, seed)


def run_random(
    rows: ComparedRows,
    n_components: int,
    n_starts: int,
    rng: np.random.Generator,
    *,
    n_jobs: int | None,
    is_shown: bool,
) -> tuple[EMRun, ...]:
    """Fit from each random start by itself."""
    from joblib import Parallel, delayed  # imported only where starts are run in parallel

    seeds = rng.integers(2**31, size=n_starts).tolist()
    streams = rng.spawn(n_starts)
    tasks = (
        delayed(timed_fit)(
            rows, n_components, start, seeds[start], init="random", n_starts=1, random_seed=stream
        )
        for start, stream in enumerate(streams)
    )
    runs = Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    return tuple(track(runs, n_starts, "random starts", is_shown=is_shown))


def timed_fit(
    rows: ComparedRows, n_components: int, start: int, seed: int, **arguments: Any
) -> EMRun:
    """Fit once and record the time; an error of a broken-down fit becomes its message."""
    begin = perf_counter()
    with single_threaded_blas():
        try:
            fit, message = _fit(rows, n_components, **arguments), ""
        except BREAKDOWNS as error:
            fit, message = None, str(error)
    return EMRun(start, fit, perf_counter() - begin, seed, message)


def _fit(rows: ComparedRows, n_components: int, **arguments: Any) -> EMFit:
    with quiet_notices():  # the status of the fit has this information
        return fit_em(rows.X, rows.y, n_components, progressbar=False, **rows.block, **arguments)


# --- selecting a start ---------------------------------------------------------------------------


def converged_runs(runs: Sequence[EMRun]) -> list[EMRun]:
    """Select the runs that converged."""
    return [run for run in runs if run.fit is not None and run.fit.converged]


def typical_run(runs: Sequence[EMRun]) -> EMRun:
    """Select the run with the median log-likelihood, the lower of two middle ones."""
    ordered = sorted(runs, key=lambda run: (run.log_likelihood, run.start))
    return ordered[(len(ordered) - 1) // 2]


def best_run(runs: Sequence[EMRun]) -> EMRun:
    """Select the run with the highest log-likelihood."""
    return max(runs, key=lambda run: (run.log_likelihood, -run.start))


_SMALLEST_WEIGHT = 1e-12
"""Lower limit of the weights of a draw that is used as a start, which needs positive weights."""

_ANCHORED_PRIORS = ("scale", "tilt")
"""Priors that a model with free coefficients does not have."""

_START_ARGUMENTS = ("anchor_angle", "initvals")
"""Arguments of `sample` that set its start and its anchors."""


@dataclass(frozen=True, slots=True, eq=False)
class NutsSettings:
    """Settings of NUTS."""

    directions: Any  # how `sample` treats directions, for the search
    priors: Mapping[str, Any] | None  # the user's priors
    draws: int  # draws per chain after tuning
    tune: int | None  # tuning draws per chain; the sampler's default if None
    chains: int  # number of chains
    pm_sample: Mapping[str, Any]  # further arguments of `pymc.sample`

    @property
    def free_priors(self) -> dict[str, Any] | None:
        """The priors that also apply to a model with free coefficients."""
        if self.priors is None:
            return None
        return {name: prior for name, prior in self.priors.items() if name not in _ANCHORED_PRIORS}


def run_search_nuts(
    rows: ComparedRows, fit: EMFit, settings: NutsSettings, rng: np.random.Generator
) -> tuple["xarray.DataTree", float]:
    """Sample from the search."""
    begin = perf_counter()
    with quiet_notices():  # labels are matched and switches are counted later
        tree = sample(
            rows.X,
            rows.y,
            fit.n_components,
            **rows.block,
            random_seed=rng,
            init=fit,
            directions=settings.directions,
            priors=settings.priors,
            draws=settings.draws,
            tune=settings.tune,
            chains=settings.chains,
            log_likelihood=True,
            posterior_predictive=False,
            **settings.pm_sample,
        )
    return align_components(tree, fit), perf_counter() - begin


def run_default_nuts(
    rows: ComparedRows, fit: EMFit, settings: NutsSettings, rng: np.random.Generator
) -> tuple["xarray.DataTree", float]:
    """Sample the mixture with free coefficients from PyMC's own start, with jitter."""
    import pymc as pm

    from moment_init.models.mixture_glm import build_model
    from moment_init.models.specification import specify
    from moment_init.posterior.tree import finish_tree, header_tree

    begin = perf_counter()
    specification = specify(
        rows.checked,
        fit.n_components,
        init=fit,
        directions="free",
        anchor_angle=45.0,
        random_seed=rng,
    )
    model = build_model(specification, settings.free_priors)
    for variable in model.free_RVs:
        model.set_initval(variable, None)
    names = [variable.name for variable in [*model.free_RVs, *model.deterministics]]
    arguments = {k: v for k, v in settings.pm_sample.items() if k not in _START_ARGUMENTS}
    if settings.tune is not None:
        arguments["tune"] = settings.tune
    with single_threaded_blas():
        drawn = pm.sample(
            model=model,
            draws=settings.draws,
            chains=settings.chains,
            random_seed=int(rng.integers(2**31)),
            var_names=[name for name in names if name not in ("scale", "direction")],
            **arguments,
        )
    tree = finish_tree(
        drawn,
        specification,
        header_tree(specification),
        log_likelihood=True,
        posterior_predictive=False,
        seed=0,
        raw_names=[variable.name for variable in model.free_RVs],
    )
    return align_components(tree, fit), perf_counter() - begin


def climb_chains(tree: "xarray.DataTree", rows: ComparedRows, fit: EMFit) -> tuple[EMRun, ...]:
    """Climb from the best draw of every chain to the optimum it leads to."""
    values = tree["log_likelihood"]["y"].transpose("chain", "draw", ...)
    best = np.nan_to_num(values.values @ rows.unit_weights, nan=-np.inf).argmax(axis=1)
    posterior = tree["posterior"].to_dataset()
    return tuple(
        timed_fit(
            rows,
            fit.n_components,
            int(chain),
            0,
            init=_fit_of_draw(posterior.isel(chain=place, draw=draw), fit),
        )
        for place, (chain, draw) in enumerate(zip(posterior["chain"].values, best, strict=True))
    )


def _fit_of_draw(draw: "xarray.Dataset", fit: EMFit) -> EMFit:
    """Return the fit with the parameters of a draw."""

    def read(name: str, *dims: str) -> FloatArray:
        return np.asarray(draw[name].transpose(*dims, "component").values, dtype=np.float64)

    weights = np.maximum(read("weight"), _SMALLEST_WEIGHT)
    changed: dict[str, Any] = {
        "coefficients": read("coefficient", "feature"),
        "biases": read("bias"),
        "weights": weights / weights.sum(),
    }
    if fit.dispersion is not None:
        changed["dispersion"] = read("dispersion")
    if fit.gate is not None:  # logits of a fit are relative to the last component
        gate, level = read("gate", "gate_feature"), read("gate_bias")
        changed |= {"gate": gate - gate[:, -1:], "gate_biases": level - level[-1]}
    return replace(fit, **changed)


SCORED_DRAWS = 400
"""Fewest draws of a fit that is scored. Pareto k is then fitted to a tail of 3 √400 = 60 draws,
with a standard error of (1 + k) / √60, about .2, and a threshold of 1 - 1 / log10(400) = .62."""

_FEWEST_DRAWS = 100
"""Fewest draws that are kept per start. They are independent, so the mean of a start is known to a
tenth of a standard deviation when R-hat is computed."""

_MATCHED = ("coefficient", "bias", "weight", "dispersion")
"""Variables that are used to match components."""


def laplace_tree(run: EMRun, rows: ComparedRows, draws: int) -> "xarray.DataTree":
    """Draw from the Laplace approximation of a fit, with the log-likelihoods of the rows."""
    if run.fit is None:
        raise ValueError(f"`run` must have led to a fit; got one that broke down: {run.message}")
    fit = _with_unique_root(run.fit)
    tree = fit.to_datatree(rows.X, rows.y, draws=draws, random_seed=run.seed, **rows.by_row)
    for name, node in tree.children.items():
        if "chain" in node.dims:
            tree[name] = node.to_dataset().assign_coords(chain=[run.start])
    return tree


def _with_unique_root(fit: EMFit) -> EMFit:
    """Return the fit with the triangular root of its covariance.

    This root is unique; others depend on the signs of eigenvectors, which depend on rounding. Fits
    that ended at the same optimum therefore have the same draws for the same seed.
    """
    triangle = np.linalg.qr(fit.laplace.root.T, mode="r")
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)
    root = triangle.T * signs
    return replace(fit, laplace=replace(fit.laplace, root=root))


def start_orders(fits: Sequence[EMFit], reference: EMFit) -> IndexArray:
    """Find the order of each fit's components that is closest to a reference."""
    # -> (n_fits, n_components)
    import xarray

    values = [start_values_of(fit).variables() for fit in fits]
    known = [name for name in _MATCHED if name in values[0]]
    maxima = label(
        "posterior",
        {name: np.stack([variables[name] for variables in values])[:, None] for name in known},
        labels_of(reference),
    )
    aligned = align_components(xarray.DataTree.from_dict({"posterior": maxima}), reference)
    permutation = aligned["moment_init"]["permutation"].transpose("chain", "draw", "component")
    return np.asarray(permutation.values[:, 0], dtype=np.intp)


def relabel(tree: "xarray.DataTree", order: IndexArray) -> "xarray.DataTree":
    """Reorder the components of the draws of a fit."""
    # order: (n_components,)
    posterior = tree["posterior"].to_dataset()
    labels = posterior["component"].values
    result = tree.copy()
    result["posterior"] = posterior.isel(component=order).assign_coords(component=labels)
    return result


def random_tree(
    runs: Sequence[EMRun], orders: IndexArray, rows: ComparedRows, draws: int
) -> "xarray.DataTree":
    """Draw from the Laplace approximations of several fits, one chain per start."""
    # orders: (n_runs, n_components)
    import xarray

    kept = max(_FEWEST_DRAWS, draws // len(runs))
    trees = [
        relabel(laplace_tree(run, rows, kept), order)
        for run, order in zip(runs, orders, strict=True)
    ]
    groups = {
        name: xarray.concat(
            [tree[name].to_dataset() for tree in trees], "chain", combine_attrs="drop_conflicts"
        )
        for name in ("posterior", "sample_stats", "log_likelihood")
    }
    groups["observed_data"] = trees[0]["observed_data"].to_dataset()
    groups["moment_init"] = _own_group(runs, orders, trees[0])
    return xarray.DataTree.from_dict(groups)


def _own_group(
    runs: Sequence[EMRun], orders: IndexArray, first: "xarray.DataTree"
) -> "xarray.Dataset":
    """Record log-likelihood, time and order of every start, and the typical and best start."""
    values = {
        "log_likelihood": (("chain",), [run.log_likelihood for run in runs]),
        "seconds": (("chain",), [run.seconds for run in runs]),
        "permutation": (("chain", "component"), orders.astype(np.int64)),
    }
    known = first["moment_init"].attrs
    attrs = {name: known[name] for name in ("family", "link")}
    attrs |= {"typical_chain": typical_run(runs).start, "best_chain": best_run(runs).start}
    return label("moment_init", values, {"chain": [run.start for run in runs]}, attrs=attrs)


_PREDICTIVE_DRAWS = 1000
"""Draws of all chains from which responses are replicated: a probability of one in ten is then
known to a tenth of its value."""

_FEWEST_PREDICTIVE_DRAWS = 100
"""Fewest draws per chain, so that single chains can be inspected."""


def complete_tree(
    tree: "xarray.DataTree",
    constant: "xarray.Dataset",
    rows: ComparedRows,
    rng: np.random.Generator,
    *,
    membership_of: "xarray.DataTree | None" = None,
) -> "xarray.DataTree":
    """Add data, replicated responses and memberships; label rows by their position in the data."""
    import xarray

    result = tree.copy()
    result["constant_data"] = xarray.DataTree(constant)
    result["posterior_predictive"] = xarray.DataTree(_replicated(tree, rows, rng))
    source = tree if membership_of is None else membership_of
    shares = predict_membership(
        source,
        rows.checked.X,
        rows.checked.y,
        offset=rows.checked.offset,
        n_trials=rows.checked.n_trials,
        gating=rows.gating,
        groups=rows.checked.groups,
        sample_weight=rows.checked.sample_weight,
        average=True,
    )
    membership = shares.to_dataset(name="probability")
    membership.attrs["chains"] = source["posterior"].to_dataset()["chain"].values.tolist()
    result["membership"] = xarray.DataTree(membership)
    return _with_row_numbers(result, rows)


def _replicated(
    tree: "xarray.DataTree", rows: ComparedRows, rng: np.random.Generator
) -> "xarray.Dataset":
    """Replicate the responses of every row, from some draws of every chain."""
    posterior = tree["posterior"].to_dataset()
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    kept = min(n_draws, max(_FEWEST_PREDICTIVE_DRAWS, _PREDICTIVE_DRAWS // n_chains))
    chosen = posterior.isel(draw=np.arange(kept) * n_draws // kept)
    return predictive_group(chosen, rows.checked, rng)


def _with_row_numbers(tree: "xarray.DataTree", rows: ComparedRows) -> "xarray.DataTree":
    """Label rows by their position in the user's data, which the split changes."""
    for name, node in tree.children.items():
        dataset = node.to_dataset()
        if "obs" in dataset.dims:
            tree[name] = dataset.assign_coords(obs=rows.numbers)
    return tree
