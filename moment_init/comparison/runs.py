"""The runs of a comparison: the rows, fits by EM, posteriors by NUTS, and their DataTrees.

Rows are split into those that are fitted and those that are held out. EM runs from the tensor
start, from the search, and from each random start by itself. NUTS runs from the tensor start, or
from the search, and from PyMC's own start; the best draw of every chain is then climbed to the
optimum it leads to. Fits become draws of their Laplace approximations, so that fits and posteriors
are DataTrees of one form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, as_known_table, quiet_notices
from moment_init.data.blocks import single_threaded_blas
from moment_init.data.checking import RegressionData, group_codes, validate_data
from moment_init.em.fitting import fit_em
from moment_init.em.result import EMFit
from moment_init.posterior.alignment import align_components
from moment_init.posterior.draws import data_model, predictive_group
from moment_init.posterior.sampling import sample
from moment_init.progress import track
from moment_init.results import BREAKDOWNS, label

if TYPE_CHECKING:
    import xarray

IndexArray = NDArray[np.intp]

TENSOR_EM, SEARCH_EM = "tensor EM", "search EM"
RANDOM_EM, BEST_RANDOM_EM = "random EM", "best random EM"
TENSOR_NUTS, SEARCH_NUTS, DEFAULT_NUTS = "tensor NUTS", "search NUTS", "default NUTS"
"""Names of the methods. The chains of ``"random EM"`` are different starts, not draws from one
distribution; ``"best random EM"`` appears in tables only."""

CLEARLY_WORSE = 1.0
"""Log-likelihood by which the tensor start may be below the search and still be the start of NUTS:
the likelihood-ratio statistic is then 2, far below the sampling variation of the log-likelihood."""

BY_ROW = ("offset", "n_trials", "sample_weight", "groups", "gating")
"""Arguments of the data block that have one value per row."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRows:
    """Rows as they were passed and as they were checked."""

    X: Any  # inputs; (n_obs, n_features)
    y: Any  # response; (n_obs,) or (n_obs, n_responses)
    # `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`, `gating`
    block: dict[str, Any]
    checked: RegressionData  # the same rows, checked
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

    def take(self, index: IndexArray) -> "ComparedRows":
        """Select rows."""
        return replace(
            self,
            X=_take(self.X, index),
            y=_take(self.y, index),
            block=self.block | {name: _take(self.block[name], index) for name in BY_ROW},
            checked=self.checked.take(index),
            numbers=self.numbers[index],
        )


def check_rows(X: Any, y: Any, block: dict[str, Any]) -> ComparedRows:
    """Check the data and leave out rows with weight zero."""
    X, y = as_known_table(X), as_known_table(y)
    block = {name: as_known_table(value) for name, value in block.items()}
    checked = validate_data(X, y, **block).whole("`X` and `y` must be in memory")
    rows = ComparedRows(X, y, block, checked, np.arange(checked.n_obs))
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


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The checked options of a comparison."""

    n_starts: int  # number of random starts
    held_out: float  # share of the rows, or groups, to hold out
    include_default_nuts: bool  # whether to sample from PyMC's own start as well
    directions: Any  # how `sample` treats directions
    priors: Mapping[str, Any] | None  # the user's priors
    draws: int  # draws per chain after tuning
    tune: int | None  # tuning draws per chain; the sampler's default if None
    chains: int  # number of chains
    n_jobs: int | None  # random starts that run in parallel
    progressbar: bool  # whether to show progress
    pm_sample: Mapping[str, Any]  # further arguments of `pymc.sample`

    @property
    def free_priors(self) -> dict[str, Any] | None:
        """The priors that also apply to a model with free coefficients."""
        if self.priors is None:
            return None
        return {name: prior for name, prior in self.priors.items() if name not in _ANCHORED_PRIORS}


_ANCHORED_PRIORS = ("scale", "tilt")
"""Priors that a model with free coefficients does not have."""

# --- EM ------------------------------------------------------------------------------------------

FAILED = "failed"
"""Status of a start that broke down."""


@dataclass(frozen=True, slots=True, eq=False)
class EMRun:
    """The result of one start."""

    start: int  # number of the start or of the chain
    fit: EMFit | None  # the fit; None if the start broke down
    seconds: float  # time of the run
    message: str = ""  # why the start broke down; empty if it did not

    @property
    def is_interior(self) -> bool:
        """Whether the run led to a fit that lies on no bound."""
        return self.fit is not None and not self.fit.bounds

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


def run_em(rows: ComparedRows, n_components: int, start: int, **arguments: Any) -> EMRun:
    """Fit once and record the time; an error of a broken-down fit becomes its message."""
    begin, fit, message = perf_counter(), None, ""
    with single_threaded_blas(), quiet_notices():  # the status of the fit has this information
        try:
            fit = fit_em(rows.X, rows.y, n_components, progressbar=False, **rows.block, **arguments)
        except BREAKDOWNS as error:
            message = str(error)
    return EMRun(start, fit, perf_counter() - begin, message)


def run_random(
    rows: ComparedRows, n_components: int, options: Options, rng: np.random.Generator
) -> tuple[EMRun, ...]:
    """Fit from each random start by itself."""
    from joblib import Parallel, delayed  # imported only where starts are run in parallel

    number = options.n_starts
    tasks = (
        delayed(run_em)(rows, n_components, start, init="random", n_starts=1, random_seed=stream)
        for start, stream in enumerate(rng.spawn(number))
    )
    runs = Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks)
    return tuple(track(runs, number, "random starts", is_shown=options.progressbar))


def converged_runs(runs: Sequence[EMRun]) -> list[EMRun]:
    """Select the runs that converged."""
    return [run for run in runs if run.fit is not None and run.fit.converged]


def typical_run(runs: Sequence[EMRun]) -> EMRun:
    """Select the run with the median log-likelihood, the lower of two middle ones."""
    ordered = sorted(runs, key=lambda run: (run.log_likelihood, run.start))
    return ordered[(len(ordered) - 1) // 2]


def match_fits(fit: EMFit, reference: EMFit) -> tuple[IndexArray, float]:
    """Match components by the rows that they claim.

    Returns the order of the components of the fit, and the mean distance between the
    responsibilities in that order.
    """
    costs = np.array(
        [
            np.abs(column[:, None] - fit.responsibilities).sum(axis=0)
            for column in reference.responsibilities.T
        ]
    )
    matched = linear_sum_assignment(costs)
    distance = float(costs[matched].sum()) / (2.0 * len(fit.responsibilities))
    return np.asarray(matched[1], dtype=np.intp), distance


# --- NUTS ----------------------------------------------------------------------------------------

_SMALLEST_WEIGHT = 1e-12
"""Lower limit of the weights of a draw that is used as a start, which needs positive weights."""

_START_ARGUMENTS = ("anchor_angle", "initvals")
"""Arguments of `sample` that set its start and its anchors."""


@dataclass(frozen=True, slots=True, eq=False)
class NutsRun:
    """The posterior of a method."""

    tree: "xarray.DataTree"  # draws, with components in the order of the reference fit
    seconds: float  # time, including compilation and the search for a start
    climbs: Sequence[EMRun]  # the optimum that each chain leads to


def run_nuts(
    rows: ComparedRows, start: EMRun, fit: EMFit, options: Options, rng: np.random.Generator
) -> NutsRun:
    """Sample from a fit."""
    begin = perf_counter()
    with quiet_notices():  # labels are matched and switches are counted later
        tree = sample(
            rows.X,
            rows.y,
            fit.n_components,
            **rows.block,
            random_seed=rng,
            init=fit,
            directions=options.directions,
            priors=options.priors,
            draws=options.draws,
            tune=options.tune,
            chains=options.chains,
            log_likelihood=True,
            posterior_predictive=False,
            **options.pm_sample,
        )
    tree = align_components(tree, fit)
    seconds = start.seconds + perf_counter() - begin
    return NutsRun(tree, seconds, climb_chains(tree, rows, fit))


def run_default_nuts(
    rows: ComparedRows, fit: EMFit, options: Options, rng: np.random.Generator
) -> NutsRun:
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
    model = build_model(specification, options.free_priors)
    for variable in model.free_RVs:
        model.set_initval(variable, None)
    names = [variable.name for variable in [*model.free_RVs, *model.deterministics]]
    arguments = {k: v for k, v in options.pm_sample.items() if k not in _START_ARGUMENTS}
    if options.tune is not None:
        arguments["tune"] = options.tune
    with single_threaded_blas():
        drawn = pm.sample(
            model=model,
            draws=options.draws,
            chains=options.chains,
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
    tree = align_components(tree, fit)
    return NutsRun(tree, perf_counter() - begin, climb_chains(tree, rows, fit))


def climb_chains(tree: "xarray.DataTree", rows: ComparedRows, fit: EMFit) -> tuple[EMRun, ...]:
    """Climb from the best draw of every chain to the optimum it leads to."""
    values = tree["log_likelihood"]["y"].transpose("chain", "draw", ...)
    best = np.nan_to_num(values.values @ rows.unit_weights, nan=-np.inf).argmax(axis=1)
    posterior = tree["posterior"].to_dataset()
    starts = [
        (int(chain), _fit_of_draw(posterior.isel(chain=[place], draw=[draw]), rows, fit))
        for place, (chain, draw) in enumerate(zip(posterior["chain"].values, best, strict=True))
    ]
    return tuple(run_em(rows, fit.n_components, chain, init=start) for chain, start in starts)


def _fit_of_draw(posterior: "xarray.Dataset", rows: ComparedRows, fit: EMFit) -> EMFit:
    """Return the fit with the parameters of a posterior of one draw."""
    draw = data_model(posterior, rows.checked).draws
    weights = np.maximum(posterior["weight"].to_numpy().ravel(), _SMALLEST_WEIGHT)
    changed: dict[str, Any] = {
        "coefficients": draw.coefficients[0],
        "biases": draw.biases[0],
        "weights": weights / weights.sum(),
        "dispersion": None if draw.dispersion is None else draw.dispersion[0],
    }
    if draw.gate is not None:  # logits of a fit are relative to the last component
        gate, level = draw.gate[0], draw.logits[0]
        changed |= {"gate": gate - gate[:, -1:], "gate_biases": level - level[-1]}
    return replace(fit, **changed)


# --- all methods ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class MethodRuns:
    """The results of all methods."""

    tensor: EMRun  # the fit from the tensor start; without one if there are no moments
    search: EMRun  # the fit from the search
    random: Sequence[EMRun]  # the fits from random starts
    nuts: Mapping[str, NutsRun]  # posteriors by method; the first is that from our start

    @property
    def start(self) -> EMRun:
        """The start of NUTS: the tensor start, or the search if that is clearly better.

        An end on a bound is worse than any interior one, as in `fit_em`.
        """
        is_as_good = self.tensor.log_likelihood >= self.search.log_likelihood - CLEARLY_WORSE
        is_as_good &= self.tensor.is_interior or not self.search.is_interior
        return self.tensor if self.tensor.fit is not None and is_as_good else self.search

    @property
    def reference(self) -> EMFit:
        """The fit that defines the order of the components."""
        if self.start.fit is None:
            raise ValueError(self.start.message)  # the error of the search
        return self.start.fit

    @property
    def em(self) -> dict[str, Sequence[EMRun]]:
        """Runs of EM by method."""
        single = {TENSOR_EM: (self.tensor,), SEARCH_EM: (self.search,)}
        return {**single, RANDOM_EM: self.random}

    @property
    def by_method(self) -> dict[str, Sequence[EMRun]]:
        """Optima by method, in the order of the table."""
        return {**self.em, **{name: run.climbs for name, run in self.nuts.items()}}


def run_starts(
    rows: ComparedRows,
    n_components: int,
    options: Options,
    rng: np.random.Generator,
    announce: Callable[[str], None] = lambda text: None,
) -> MethodRuns:
    """Run EM from every kind of start."""
    streams = rng.spawn(3)
    announce("EM from the tensor start")
    tensor = run_em(rows, n_components, 0, init="tensor", random_seed=streams[0])
    announce("EM from the search")
    jobs = {"n_jobs": options.n_jobs}
    search = run_em(rows, n_components, 0, init="search", random_seed=streams[1], **jobs)
    announce(f"EM from random starts ({options.n_starts})")
    random = run_random(rows, n_components, options, streams[2])
    return MethodRuns(tensor, search, random, {})


def run_all(
    rows: ComparedRows, n_components: int, options: Options, rng: np.random.Generator
) -> MethodRuns:
    """Run every method on the same rows."""
    announce = make_stages(4 + options.include_default_nuts, is_shown=options.progressbar)
    streams = rng.spawn(3)
    methods = run_starts(rows, n_components, options, streams[0], announce)
    fit = methods.reference
    name = TENSOR_NUTS if methods.start is methods.tensor else SEARCH_NUTS
    announce(f"NUTS from {'the tensor start' if name == TENSOR_NUTS else 'the search'}")
    nuts = {name: run_nuts(rows, methods.start, fit, options, streams[1])}
    if options.include_default_nuts:
        announce("NUTS from PyMC's own start")
        nuts[DEFAULT_NUTS] = run_default_nuts(rows, fit, options, streams[2])
    return replace(methods, nuts=nuts)


def make_stages(total: int, *, is_shown: bool) -> Callable[[str], None]:
    """Make a function that prints one line per stage of a run.

    There is no progress bar, because samplers show their own. A terminal that cannot be written to
    never stops a run.
    """
    count = 0

    def announce(description: str) -> None:
        nonlocal count
        count += 1
        if not is_shown:
            return
        try:
            from rich.console import Console

            line = f"compare {count}/{total}: {description}"
            Console(stderr=True).print(line, markup=False, highlight=False)
        except Exception:  # an error of the terminal must not stop the comparison
            return

    return announce


# --- DataTrees -----------------------------------------------------------------------------------

SCORED_DRAWS = 400
"""Fewest draws of a fit that is scored. Pareto k is then fitted to a tail of 3 √400 = 60 draws,
with a standard error of (1 + k) / √60, about .2, and a threshold of 1 - 1 / log10(400) = .62."""

_FEWEST_DRAWS = 100
"""Fewest draws that are kept per start. They are independent, so the mean of a start is known to a
tenth of a standard deviation when R-hat is computed."""

_PREDICTIVE_DRAWS = 1000
"""Draws of all chains from which responses are replicated, and at least a hundred per chain: a
probability of one in ten is then known to a tenth of its value."""


def laplace_tree(
    run: EMRun, reference: EMFit, rows: ComparedRows, *, draws: int, seed: int
) -> "xarray.DataTree":
    """Draw from the Laplace approximation of a fit, with components in the reference's order."""
    if run.fit is None:
        raise ValueError(f"`run` must have led to a fit; got one that broke down: {run.message}")
    order, _ = match_fits(run.fit, reference)
    fit = _with_unique_root(run.fit)
    tree = fit.to_datatree(rows.X, rows.y, draws=draws, random_seed=seed, **rows.by_row)
    for name in ("posterior", "sample_stats", "log_likelihood"):
        tree[name] = tree[name].to_dataset().assign_coords(chain=[run.start])
    posterior = tree["posterior"].to_dataset()
    labels = posterior["component"].values
    tree["posterior"] = posterior.isel(component=order).assign_coords(component=labels)
    return tree


def _with_unique_root(fit: EMFit) -> EMFit:
    """Return the fit with the triangular root of its covariance.

    This root is unique; others depend on the signs of eigenvectors, which depend on rounding. Fits
    that ended at the same optimum therefore have the same draws for the same seed.
    """
    triangle = np.linalg.qr(fit.laplace.root.T, mode="r")
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)
    return replace(fit, laplace=replace(fit.laplace, root=triangle.T * signs))


def random_tree(
    runs: Sequence[EMRun],
    reference: EMFit,
    rows: ComparedRows,
    *,
    draws: int,
    rng: np.random.Generator,
) -> "xarray.DataTree":
    """Draw from the Laplace approximations of several fits, one chain per start."""
    import xarray

    kept = max(_FEWEST_DRAWS, draws // len(runs))
    seeds = rng.integers(2**31, size=len(runs)).tolist()
    trees = [
        laplace_tree(run, reference, rows, draws=kept, seed=seed)
        for run, seed in zip(runs, seeds, strict=True)
    ]
    groups = {
        name: xarray.concat(
            [tree[name].to_dataset() for tree in trees], "chain", combine_attrs="drop_conflicts"
        )
        for name in ("posterior", "sample_stats", "log_likelihood")
    }
    groups["observed_data"] = trees[0]["observed_data"].to_dataset()
    known = trees[0]["moment_init"].attrs
    names = ("family", "link", "reference_class", "classes")
    values = {
        "log_likelihood": (("chain",), [run.log_likelihood for run in runs]),
        "seconds": (("chain",), [run.seconds for run in runs]),
    }
    groups["moment_init"] = label(
        "moment_init",
        values,
        {"chain": [run.start for run in runs]},
        attrs={name: known[name] for name in names if name in known}
        | {"typical_chain": typical_run(runs).start},
    )
    return xarray.DataTree.from_dict(groups)


def complete_tree(
    tree: "xarray.DataTree",
    constant: "xarray.Dataset",
    rows: ComparedRows,
    rng: np.random.Generator,
) -> "xarray.DataTree":
    """Add data and replicated responses; label rows by their position in the user's data."""
    import xarray

    result = tree.copy()
    posterior = tree["posterior"].to_dataset()
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    kept = min(n_draws, max(_FEWEST_DRAWS, _PREDICTIVE_DRAWS // n_chains))
    chosen = posterior.isel(draw=np.arange(kept) * n_draws // kept)
    result["constant_data"] = xarray.DataTree(constant)
    result["posterior_predictive"] = xarray.DataTree(predictive_group(chosen, rows.checked, rng))
    for name, node in result.children.items():
        dataset = node.to_dataset()
        if "obs" in dataset.dims:
            result[name] = dataset.assign_coords(obs=rows.numbers)
    return result
