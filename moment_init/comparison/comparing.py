"""The entry point `compare`: check the arguments, run the methods, score them, judge.

`assemble` turns the runs into trees of draws, figures, table, landscape and verdict. This module
has no mathematics of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import RandomSeed, make_generator, validate_n_components
from moment_init.comparison.methods import CompareOptions, MethodRuns, run_all, validate_options
from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    RANDOM_EM,
    SEARCH_EM,
    SEARCH_NUTS,
    Comparison,
)
from moment_init.comparison.runs import (
    SCORED_DRAWS,
    ComparedRows,
    EMRun,
    best_run,
    check_rows,
    complete_tree,
    converged_runs,
    laplace_tree,
    random_tree,
    relabel,
    split_rows,
    start_orders,
    typical_run,
)
from moment_init.comparison.scoring import (
    Convergence,
    MethodFigures,
    Truth,
    assess_convergence,
    compare_loo,
    errors_of,
    largest_rhat,
    match_to_truth,
    read_truth,
    score_held_out,
    score_loo,
    tabulate,
    tabulate_landscape,
)
from moment_init.comparison.verdict import StartEvidence, collect_caveats, judge
from moment_init.data.checking import require_one_response
from moment_init.data.formulas import takes_formula
from moment_init.data.simulation import MixtureData
from moment_init.families.base import Family

if TYPE_CHECKING:
    import xarray

    from moment_init.models.specification import Directions

_PACKAGES = ("moment-init", "arviz", "numpy", "nutpie", "pandas", "pymc", "scipy", "xarray")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The data and options of a comparison."""

    training: ComparedRows  # fitted rows
    held_out: ComparedRows | None  # held-out rows, if any
    truth: Truth | None  # true parameters, if known
    options: CompareOptions  # checked options
    random_seed: Any  # seed as passed by the user

    @property
    def scored_draws(self) -> int:
        """Number of Laplace draws of a fit that is scored."""
        return max(SCORED_DRAWS, self.options.nuts.draws)

    def figures(
        self,
        tree: "xarray.DataTree",
        runs: Sequence[EMRun],
        seconds: float,
        convergence: Convergence,
    ) -> MethodFigures:
        """Compute the figures of a method from its draws and its runs."""
        return MethodFigures(
            runs,
            seconds,
            score_loo(tree),
            score_held_out(tree, self.held_out),
            errors_of(tree, self.truth, self.training),
            convergence,
        )


def assemble(setting: Setting, methods: MethodRuns, rng: np.random.Generator) -> Comparison:
    """Score the methods and assemble the comparison."""
    trees = {name: run.tree for name, run in methods.nuts.items()}
    trees[SEARCH_EM] = laplace_tree(methods.search, setting.training, setting.scored_draws)
    figures = {
        name: setting.figures(run.tree, run.climbs, run.seconds, assess_convergence(run.tree))
        for name, run in methods.nuts.items()
    }
    figures[SEARCH_EM] = setting.figures(
        trees[SEARCH_EM], (methods.search,), methods.search.seconds, Convergence()
    )
    scored = _score_random(setting, methods, trees, figures)
    table = tabulate(figures)
    trees = _completed(trees, scored, setting, rng)
    caveats = collect_caveats(trees, figures, setting.training, _dropped_priors(setting))
    typical = typical_run(converged_runs(methods.random)) if scored is not None else None
    return Comparison(
        table=table,
        trees=trees,
        landscape=tabulate_landscape(methods.runs, typical),
        loo=compare_loo({name: scores.loo for name, scores in figures.items()}),
        verdict=judge(_evidence(methods, figures[RANDOM_EM], figures[SEARCH_EM])),
        truth=_labelled_truth(setting, methods),
        warnings=caveats,
        settings=_settings(setting, methods),
    )


def _score_random(
    setting: Setting,
    methods: MethodRuns,
    trees: dict[str, "xarray.DataTree"],
    figures: dict[str, MethodFigures],
) -> "xarray.DataTree | None":
    """Add the random starts and return the draws of the typical one, None if none converged.

    All starts are chains of one tree, but only single starts are scored: draws that are pooled over
    several optima approximate no posterior.
    """
    rows, nuts = setting.training, setting.options.nuts
    seconds = sum(run.seconds for run in methods.random)
    ended = converged_runs(methods.random)
    if not ended:
        figures[RANDOM_EM] = MethodFigures(methods.random, seconds)
        return None
    orders = start_orders([run.fit for run in ended if run.fit is not None], methods.fit)
    order_of = {run.start: order for run, order in zip(ended, orders, strict=True)}
    trees[RANDOM_EM] = random_tree(ended, orders, rows, nuts.draws * nuts.chains)
    typical, best = typical_run(ended), best_run(ended)
    # With the seed of the search's draws, fits at the same optimum have the same score.
    drawn = {
        run.start: relabel(
            laplace_tree(replace(run, seed=methods.search.seed), rows, setting.scored_draws),
            order_of[run.start],
        )
        for run in (typical, best)
    }
    spread = Convergence(rhat_max=largest_rhat(trees[RANDOM_EM]))
    figures[RANDOM_EM] = setting.figures(drawn[typical.start], methods.random, seconds, spread)
    chosen = setting.figures(drawn[best.start], (best,), seconds, Convergence())
    figures[BEST_RANDOM_EM] = replace(chosen, is_chosen=True)
    return drawn[typical.start]


def _completed(
    trees: dict[str, "xarray.DataTree"],
    typical: "xarray.DataTree | None",
    setting: Setting,
    rng: np.random.Generator,
) -> dict[str, "xarray.DataTree"]:
    """Add data, replicated responses and membership to the trees."""
    constant = trees[SEARCH_NUTS]["constant_data"].to_dataset()
    return {
        name: complete_tree(
            tree,
            constant,
            setting.training,
            stream,
            membership_of=typical if name == RANDOM_EM else None,
        )
        for (name, tree), stream in zip(trees.items(), rng.spawn(len(trees)), strict=True)
    }


def _evidence(methods: MethodRuns, random: MethodFigures, search: MethodFigures) -> StartEvidence:
    """Collect the evidence for the verdict."""
    scored = [method.loo for method in (random, search) if method.loo.elpd is not None]
    return StartEvidence(
        methods.runs,
        methods.moment_status,
        loo_difference=random.loo.less(search.loo),
        held_out_difference=random.held_out.less(search.held_out),
        has_unreliable_loo=not all(score.is_reliable for score in scored),
    )


def _labelled_truth(setting: Setting, methods: MethodRuns) -> "xarray.Dataset | None":
    """Label the truth, with its components in the order of the search."""
    if setting.truth is None:
        return None
    fit, rows = methods.fit, setting.training
    order = match_to_truth(fit.coefficients, fit.biases, setting.truth, rows)
    return setting.truth.to_dataset(order, rows.checked.feature_names)


def _dropped_priors(setting: Setting) -> list[str]:
    """List the priors that default NUTS does not use, if it was run."""
    nuts = setting.options.nuts
    if not setting.options.include_default_nuts or nuts.priors is None:
        return []
    return [name for name in nuts.priors if name not in (nuts.free_priors or {})]


def _settings(setting: Setting, methods: MethodRuns) -> dict[str, Any]:
    """Record sizes, family, options, seed and versions."""
    rows, options, data = setting.training, setting.options, setting.training.checked
    seed = setting.random_seed
    versions = {
        name: version(name) for name in _PACKAGES if find_spec(name.replace("-", "_")) is not None
    }
    return {
        "family": data.family.name,
        "link": data.family.link_name,
        "n_components": methods.fit.n_components,
        "n_features": data.n_features,
        "n_obs": data.n_obs + (0 if setting.held_out is None else setting.held_out.checked.n_obs),
        "n_training": data.n_obs,
        "n_held_out": 0 if setting.held_out is None else setting.held_out.checked.n_obs,
        "n_groups": None if data.groups is None else rows.n_units,
        "gating": methods.fit.gate_names,
        "has_offset": data.offset is not None,
        "has_sample_weight": rows.has_unequal_weights,
        "n_starts": options.n_starts,
        "starts_in_search": len(methods.fit.starts),
        "search_status": str(methods.fit.status),
        "moment_status": methods.moment_status,
        "directions": options.nuts.directions,
        "priors": tuple(options.nuts.priors or ()),
        "draws": options.nuts.draws,
        "tune": options.nuts.tune,
        "chains": options.nuts.chains,
        "random_seed": seed if seed is None or isinstance(seed, int) else str(seed),
        "versions": versions,
    }


@takes_formula
def compare(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    n_starts: int = 20,
    truth: MixtureData | Mapping[str, ArrayLike] | None = None,
    held_out: float = 0.2,
    include_default_nuts: bool = False,
    directions: "Directions" = "anchored",
    priors: Mapping[str, Any] | None = None,
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    n_jobs: int | None = None,
    progressbar: bool = True,
    **pm_sample_kwargs: Any,
) -> Comparison:
    r"""Compare the search with random starts, by EM and NUTS, on the same rows.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs; the column names of a DataFrame become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,), or DataFrame
        Response; or the data of a formula. `offset`, `groups`, ... may then be column names.
    n_components : int
        Number of components.
    family : str or Family, default "bernoulli"
        Family of the response; with a formula, by default chosen from the values of the response.
    link : str, optional
        Link of the family; its default link if left out.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Number of trials of binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        How often each row counts; rows with weight zero are left out.
    groups : array-like, shape (n_obs,), optional
        Group labels; all rows of a group share one component. Whole groups are held out, and left
        out by leave-one-out.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the split, the starts and the samplers. It fixes all results except times.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates of the weights, for a mixture of experts.
    n_starts : int, default 20
        Number of random starts of EM.
    truth : MixtureData or mapping of str to array-like, optional
        True parameters of simulated data: the result of `simulate_mixture`, or a mapping with
        `coefficients`, `biases`, `weights` and optionally `dispersion`, with the same shapes.
    held_out : float, default 0.2
        Share of the rows, or groups, to hold out for prediction; 0 for none.
    include_default_nuts : bool, default False
        Whether to also sample the same mixture with free coefficients from PyMC's own start, with
        jitter. This is slow.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        How NUTS from the search treats directions, see `sample`.
    priors : mapping of str to prior, optional
        Priors of NUTS, see `moment_init.models.mixture_glm`.
    draws : int, default 1000
        Draws per chain after tuning. Also the number of Laplace draws of each fit by EM that is
        scored, which is at least 400.
    tune : int, optional
        Tuning draws per chain; the sampler's default if left out.
    chains : int, default 4
        Number of chains of NUTS.
    n_jobs : int, optional
        Number of random starts that run in parallel, with joblib; 1 by default.
    progressbar : bool, default True
        Whether to show progress.
    **pm_sample_kwargs
        Passed to ``pymc.sample``: `target_accept`, `cores`, `nuts_sampler`, ...

    Returns
    -------
    Comparison
        Table, draws by method, landscape of optima, leave-one-out comparison and verdict.

    Raises
    ------
    TypeError
        If an argument has a wrong type.
    ValueError
        If an argument has a wrong value, as in `fit_em` and `sample`, or if the search leads
        to no fit. A random start that breaks down is recorded in `landscape`.

    Notes
    -----
    Fits by EM are compared through draws of their Laplace approximation; the leave-one-out score
    corrects for the approximation (`arviz.loo_approximate_posterior`). Random starts are chains of
    one tree. Their components are matched by one permutation per start, so R-hat shows whether the
    starts disagree. Only single starts are scored: ``"random EM"`` has the figures of the typical
    start, which has the median log-likelihood, and ``"best random EM"`` those of the best of
    `n_starts`. For both, ``seconds`` is the time of all starts.

    From its best draw, every chain of NUTS is climbed to the optimum it belongs to. An optimum is
    the "best found" if it is within .01 of the highest log-likelihood of any start or chain. This
    does not prove that no better optimum exists.

    A leave-one-out score is not reliable if more than 1 % of its Pareto k values are too large.
    `loo` ranks it below the others (``is_reliable``), and the verdict cites held-out rows instead.

    The group ``posterior_predictive`` has about a thousand draws per method. The row labels ``obs``
    are positions in `X`.

    Examples
    --------
    .. code-block:: python

        data = simulate_mixture(2000, 5, 3, weights=[0.7, 0.2, 0.1], random_seed=1)
        comparison = compare(data.X, data.y, 3, truth=data, random_seed=1)
        comparison.verdict.headline
        comparison.figure()  # displayed by a notebook
        comparison.to_html("comparison.html")
    """
    options = validate_options(
        n_starts=n_starts,
        held_out=held_out,
        include_default_nuts=include_default_nuts,
        directions=directions,
        priors=priors,
        draws=draws,
        tune=tune,
        chains=chains,
        n_jobs=n_jobs,
        progressbar=progressbar,
        pm_sample=pm_sample_kwargs,
    )
    block = {
        "family": family,
        "link": link,
        "offset": offset,
        "n_trials": n_trials,
        "sample_weight": sample_weight,
        "groups": groups,
        "gating": gating,
    }
    rows = check_rows(X, y, block)
    require_one_response(rows.checked, "compare")
    number = validate_n_components(n_components, rows.checked.n_obs)
    known = read_truth(truth, rows.checked.n_features, number)
    split, run, finish = make_generator(random_seed).spawn(3)
    training, rest = split_rows(rows, options.held_out, split)
    methods = run_all(training, number, options, run)
    return assemble(Setting(training, rest, known, options, random_seed), methods, finish)
