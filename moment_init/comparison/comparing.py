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
from moment_init.comparison.result import Comparison
from moment_init.comparison.runs import (
    BEST_RANDOM_EM,
    RANDOM_EM,
    SCORED_DRAWS,
    SEARCH_EM,
    TENSOR_EM,
    ComparedRows,
    EMRun,
    IndexArray,
    MethodRuns,
    Options,
    check_rows,
    complete_tree,
    converged_runs,
    laplace_tree,
    random_tree,
    run_all,
    split_rows,
    typical_run,
)
from moment_init.comparison.scoring import (
    Convergence,
    MethodFigures,
    Truth,
    assess_convergence,
    best_log_likelihood,
    compare_loo,
    errors_of,
    loo_units,
    match_to_truth,
    read_truth,
    score_held_out,
    score_loo,
    tabulate,
    tabulate_landscape,
)
from moment_init.comparison.verdict import collect_caveats, judge
from moment_init.data.formulas import takes_formula
from moment_init.data.simulation import MixtureData
from moment_init.em.result import EMFit
from moment_init.families.base import Family

if TYPE_CHECKING:
    import xarray

    from moment_init.models.specification import Directions

_PACKAGES = ("moment-init", "arviz", "numpy", "nutpie", "pandas", "pymc", "scipy", "xarray")

_DIRECTIONS = ("anchored", "fixed", "free")

_OWN_ARGUMENTS = (
    "init",
    "log_likelihood",
    "method",
    "model",
    "posterior_predictive",
    "return_inferencedata",
    "store",
    "trace",
    "var_names",
)
"""Arguments of `sample` and `pymc.sample` that a comparison sets itself or needs."""


def validate_options(options: Options) -> Options:
    """Check the options of a comparison."""
    for name, least in {"n_starts": 1, "draws": 1, "chains": 1, "tune": 0}.items():
        value = getattr(options, name)
        if not (_is_whole(value) and value >= least) and not (name == "tune" and value is None):
            raise ValueError(
                f"`{name}` must be a whole number, {least} or more; got {value!r}. Change it."
            )
    if options.n_jobs is not None and (not _is_whole(options.n_jobs) or options.n_jobs == 0):
        raise ValueError(
            f"`n_jobs` must be a whole number other than 0, or None; got {options.n_jobs!r}. Use "
            "-1 for all cores."
        )
    if options.directions not in _DIRECTIONS:
        raise ValueError(
            f"`directions` must be one of {', '.join(map(repr, _DIRECTIONS))}; got "
            f"{options.directions!r}. Choose one of these."
        )
    if options.priors is not None and not isinstance(options.priors, Mapping):
        raise TypeError(
            "`priors` must be a mapping of names to priors, or None; got "
            f"{type(options.priors).__name__}. Pass a dict, see `moment_init.models.mixture_glm`."
        )
    share = options.held_out
    is_number = isinstance(share, int | float | np.integer | np.floating)
    if not is_number or isinstance(share, bool) or not 0.0 <= share < 1.0:
        raise ValueError(
            f"`held_out` must be a share of the rows from 0 to less than 1; got {share!r}. Use 0.2 "
            "for a fifth, or 0 to fit all rows."
        )
    if not isinstance(options.include_default_nuts, bool | np.bool_):
        raise TypeError(
            "`include_default_nuts` must be True or False; got "
            f"{options.include_default_nuts!r}. Pass one of these."
        )
    refused = sorted(set(_OWN_ARGUMENTS) & set(options.pm_sample))
    if refused:
        raise TypeError(
            "`compare` takes all arguments of `pymc.sample` except those it sets itself; got "
            f"{', '.join(refused)}. Leave them out, or call `moment_init.sample`."
        )
    return options


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The data and options of a comparison."""

    training: ComparedRows  # fitted rows
    held_out: ComparedRows | None  # held-out rows, if any
    truth: Truth | None  # true parameters, if known
    options: Options  # checked options
    units: IndexArray  # rows, or groups, that leave-one-out scores
    seed: int  # seed of the Laplace draws that are scored

    def draws_of(self, run: EMRun, methods: MethodRuns) -> "xarray.DataTree":
        """Draw from a fit; fits at the same optimum have the same draws, and so the same scores."""
        draws = max(SCORED_DRAWS, self.options.draws)
        return laplace_tree(run, methods.reference, self.training, draws=draws, seed=self.seed)

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
            score_loo(tree, self.units),
            score_held_out(tree, self.held_out),
            errors_of(tree, self.truth, self.training),
            convergence,
        )


def assemble(
    setting: Setting, methods: MethodRuns, rng: np.random.Generator, random_seed: RandomSeed
) -> Comparison:
    """Score the methods and assemble the comparison."""
    draw_stream, *streams = rng.spawn(7)
    trees: dict[str, xarray.DataTree] = {}
    figures: dict[str, MethodFigures] = {}
    for name, run in ((TENSOR_EM, methods.tensor), (SEARCH_EM, methods.search)):
        figures[name] = MethodFigures((run,), run.seconds)
        if run.fit is not None:
            trees[name] = setting.draws_of(run, methods)
            figures[name] = setting.figures(trees[name], (run,), run.seconds, Convergence())
    _score_random(setting, methods, trees, figures, draw_stream)
    for name, sampled in methods.nuts.items():
        trees[name], mixing = sampled.tree, assess_convergence(sampled.tree)
        figures[name] = setting.figures(sampled.tree, sampled.climbs, sampled.seconds, mixing)
    nuts = next(iter(methods.nuts))
    constant = trees[nuts]["constant_data"].to_dataset()
    runs, ended = methods.by_method, converged_runs(methods.random)
    start = TENSOR_EM if methods.start is methods.tensor else SEARCH_EM
    return Comparison(
        table=tabulate(figures, best_log_likelihood(runs)),
        trees={
            name: complete_tree(tree, constant, setting.training, stream)
            for (name, tree), stream in zip(trees.items(), streams, strict=False)
        },
        landscape=tabulate_landscape(runs, typical_run(ended) if ended else None),
        loo=compare_loo({name: scored.loo for name, scored in figures.items()}),
        verdict=judge(runs, figures[RANDOM_EM].held_out.less(figures[start].held_out)),
        truth=_labelled_truth(setting, methods.reference),
        warnings=collect_caveats(trees, figures, _dropped_priors(setting.options)),
        settings=_settings(setting, methods, random_seed),
    )


def _score_random(
    setting: Setting,
    methods: MethodRuns,
    trees: dict[str, "xarray.DataTree"],
    figures: dict[str, MethodFigures],
    rng: np.random.Generator,
) -> None:
    """Add the random starts, if any converged.

    All starts are chains of one tree, but only single starts are scored: draws that are pooled over
    several optima approximate no posterior.
    """
    seconds = sum(run.seconds for run in methods.random)
    figures[RANDOM_EM] = MethodFigures(methods.random, seconds)
    ended = converged_runs(methods.random)
    if not ended:
        return
    number = setting.options.draws * setting.options.chains
    tree = random_tree(ended, methods.reference, setting.training, draws=number, rng=rng)
    trees[RANDOM_EM], spread = tree, assess_convergence(tree)
    typical = typical_run(ended)
    drawn = setting.draws_of(typical, methods)
    scored = setting.figures(drawn, methods.random, seconds, spread)
    figures[RANDOM_EM] = replace(scored, typical=typical)
    best = max(ended, key=lambda run: (run.is_interior, run.log_likelihood, -run.start))
    drawn = setting.draws_of(best, methods)
    scored = setting.figures(drawn, (best,), seconds, Convergence())
    figures[BEST_RANDOM_EM] = replace(scored, is_chosen=True)


def _labelled_truth(setting: Setting, fit: EMFit) -> "xarray.Dataset | None":
    """Label the truth, with its components in the order of a fit."""
    if setting.truth is None:
        return None
    order = match_to_truth(fit.coefficients, fit.biases, setting.truth, setting.training)
    return setting.truth.to_dataset(order, setting.training)


def _dropped_priors(options: Options) -> list[str]:
    """List the priors that default NUTS does not use, if it was run."""
    if not options.include_default_nuts or options.priors is None:
        return []
    return [name for name in options.priors if name not in (options.free_priors or {})]


def _settings(setting: Setting, methods: MethodRuns, seed: RandomSeed) -> dict[str, Any]:
    """Record sizes, family, options, seed and versions."""
    rows, options, data = setting.training, setting.options, setting.training.checked
    n_held_out = 0 if setting.held_out is None else setting.held_out.checked.n_obs
    fit = methods.reference
    installed = [name for name in _PACKAGES if find_spec(name.replace("-", "_")) is not None]
    return {
        "family": fit.family,
        "link": fit.link,
        "n_components": fit.n_components,
        "n_features": data.n_features,
        "n_obs": data.n_obs + n_held_out,
        "n_training": data.n_obs,
        "n_held_out": n_held_out,
        "n_groups": None if data.groups is None else rows.n_units,
        "gating": fit.gate_names,
        "n_starts": options.n_starts,
        "search_status": None if methods.search.fit is None else str(methods.search.fit.status),
        "directions": options.directions,
        "priors": tuple(options.priors or ()),
        "draws": options.draws,
        "tune": options.tune,
        "chains": options.chains,
        "random_seed": seed if seed is None or isinstance(seed, int) else str(seed),
        "versions": {name: version(name) for name in installed},
    }


@takes_formula
def compare(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family | Sequence[str | Family] = "bernoulli",
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
    r"""Compare the tensor start with random starts, by EM and NUTS, on the same rows.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs; the column names of a DataFrame become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,) or (n_obs, n_responses), or DataFrame
        Response, several responses, or labels of classes; or the data of a formula. `offset`,
        `groups`, ... may then be column names.
    n_components : int
        Number of components.
    family : str, Family, or sequence of these, default "bernoulli"
        Family of the response, or one for each of several; with a formula, by default chosen from
        the values of the response.
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
        `coefficients`, `biases`, `weights` and optionally `dispersion`, with the shapes that
        `fit_em` returns.
    held_out : float, default 0.2
        Share of the rows, or groups, to hold out for prediction; 0 for none.
    include_default_nuts : bool, default False
        Whether to also sample the same mixture with free coefficients from PyMC's own start, with
        jitter. This is slow.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        How NUTS from our start treats directions, see `sample`.
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
    ``"tensor EM"`` is ``fit_em(init="tensor")``: the moment estimate and the climb from it, nothing
    else. NUTS starts there (``"tensor NUTS"``), or at the fit of the search (``"search NUTS"``) if
    there are no moments or if the search ended more than 1 higher in log-likelihood.

    Fits by EM are compared through draws of their Laplace approximation; the leave-one-out score
    corrects for the approximation (`arviz.loo_approximate_posterior`). Random starts are chains of
    one tree. Their components are matched by the rows that they claim, with one permutation per
    start, so R-hat shows whether the starts disagree. Only single starts are scored: ``"random
    EM"`` has the figures of the typical start, which has the median log-likelihood, and ``"best
    random EM"`` those of the best of `n_starts`. For both, ``seconds`` is the time of all starts.

    From its best draw, every chain of NUTS is climbed to the optimum it belongs to. An optimum is
    the "best found" if it is within .01 of the highest log-likelihood of any start or chain. This
    does not prove that no better optimum exists.

    Leave-one-out scores at most 1,000 rows or groups. A score is not shown if more than 1 % of its
    Pareto k values are too large. With sample weights it leaves out one copy of a row while the
    other copies stay; the held-out score counts each row by its weight.

    The group ``posterior_predictive`` has about a thousand draws per method. The row labels ``obs``
    are positions in `X`.

    Examples
    --------
    .. code-block:: python

        data = simulate_mixture(2000, 5, 3, weights=[0.7, 0.2, 0.1], random_seed=1)
        comparison = compare(data.X, data.y, 3, truth=data, random_seed=1)
        comparison.verdict.headline
        comparison.plot("landscape")  # displayed by a notebook
        comparison.to_html("comparison.html")
    """
    # PyMC logs what it samples even without a progress bar.
    silent = {} if progressbar else {"quiet": True}
    options = validate_options(
        Options(
            n_starts=n_starts,
            held_out=held_out,
            include_default_nuts=include_default_nuts,
            directions=directions,
            priors=priors,
            draws=draws,
            tune=tune,
            chains=chains,
            n_jobs=n_jobs,
            progressbar=bool(progressbar),
            pm_sample={"progressbar": bool(progressbar), **silent, **pm_sample_kwargs},
        )
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
    number = validate_n_components(n_components, rows.checked.n_obs)
    known = read_truth(truth, rows, number)
    split, run, finish = make_generator(random_seed).spawn(3)
    training, rest = split_rows(rows, options.held_out, split)
    methods = run_all(training, number, options, run)
    units = loo_units(training.n_units, split)
    setting = Setting(training, rest, known, options, units, int(finish.integers(2**31)))
    return assemble(setting, methods, finish, random_seed)
