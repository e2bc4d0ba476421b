"""From what the methods found to the comparison: trees, figures, table, verdict.

The entry point `compare`: checks arguments, runs the methods, holds no mathematics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import RandomSeed, make_generator, validate_n_components
from moment_init.comparison.landscape import MethodFigures, tabulate, tabulate_landscape
from moment_init.comparison.methods import CompareOptions, MethodRuns, run_all, validate_options
from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    RANDOM_EM,
    TENSOR_EM,
    TENSOR_NUTS,
    Comparison,
)
from moment_init.comparison.runs import (
    ComparedRows,
    EMRun,
    best_run,
    check_rows,
    converged_runs,
    split_rows,
    typical_run,
)
from moment_init.comparison.scoring import (
    Convergence,
    Truth,
    assess_convergence,
    compare_loo,
    errors_of,
    largest_rhat,
    match_to_truth,
    read_truth,
    score_held_out,
    score_loo,
)
from moment_init.comparison.trees import (
    SCORED_DRAWS,
    complete_tree,
    laplace_tree,
    random_tree,
    relabel,
    start_orders,
)
from moment_init.comparison.verdict import StartEvidence, collect_caveats, judge
from moment_init.data.formulas import takes_formula
from moment_init.data.simulation import MixtureData
from moment_init.families.base import Family
from moment_init.responses.data import require_one_response

if TYPE_CHECKING:
    import xarray

    from moment_init.models.specification import Directions

_PACKAGES = ("moment-init", "arviz", "numpy", "nutpie", "pandas", "pymc", "scipy", "xarray")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the methods were run on."""

    training: ComparedRows  # rows that were fitted
    held_out: ComparedRows | None  # rows that were not
    truth: Truth | None  # true parameters
    options: CompareOptions  # what was run
    random_seed: Any  # the seed that was given

    @property
    def scored_draws(self) -> int:
        """Laplace draws of a fit that is scored."""
        return max(SCORED_DRAWS, self.options.nuts.draws)

    def figures(
        self,
        tree: "xarray.DataTree",
        runs: Sequence[EMRun],
        seconds: float,
        convergence: Convergence,
    ) -> MethodFigures:
        """Score draws of one method and one optimum."""
        return MethodFigures(
            runs,
            seconds,
            score_loo(tree),
            score_held_out(tree, self.held_out),
            errors_of(tree, self.truth, self.training),
            convergence,
        )


def assemble(setting: Setting, methods: MethodRuns, rng: np.random.Generator) -> Comparison:
    """Score the methods and put the comparison together."""
    trees = {name: own.tree for name, own in methods.nuts.items()}
    trees[TENSOR_EM] = laplace_tree(methods.tensor, setting.training, setting.scored_draws)
    figures = {
        name: setting.figures(own.tree, own.climbs, own.seconds, assess_convergence(own.tree))
        for name, own in methods.nuts.items()
    }
    figures[TENSOR_EM] = setting.figures(
        trees[TENSOR_EM], (methods.tensor,), methods.tensor.seconds, Convergence()
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
        loo=compare_loo({name: own.loo for name, own in figures.items()}),
        verdict=judge(_evidence(methods, figures[RANDOM_EM], figures[TENSOR_EM])),
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
    """Add the random starts; returns the draws of the typical one, None if none converged.

    All starts are chains of one tree, but only single ones are scored: a posterior that is pooled
    over optima is nobody's.
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
    # From the noise of the tensor start's draws: fits at one optimum then have one score.
    drawn = {
        run.start: relabel(
            laplace_tree(replace(run, seed=methods.tensor.seed), rows, setting.scored_draws),
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
    """Trees with data, replicated responses and membership."""
    constant = trees[TENSOR_NUTS]["constant_data"].to_dataset()
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


def _evidence(methods: MethodRuns, random: MethodFigures, tensor: MethodFigures) -> StartEvidence:
    """What the verdict rests on."""
    scored = [own.loo for own in (random, tensor) if own.loo.elpd is not None]
    return StartEvidence(
        methods.runs,
        methods.moment_status,
        loo_difference=random.loo.less(tensor.loo),
        held_out_difference=random.held_out.less(tensor.held_out),
        has_unreliable_loo=not all(score.is_reliable for score in scored),
    )


def _labelled_truth(setting: Setting, methods: MethodRuns) -> "xarray.Dataset | None":
    """The truth with its components in the order of the tensor start."""
    if setting.truth is None:
        return None
    fit, rows = methods.fit, setting.training
    order = match_to_truth(fit.coefficients, fit.biases, setting.truth, rows)
    return setting.truth.to_dataset(order, rows.checked.feature_names)


def _dropped_priors(setting: Setting) -> list[str]:
    """Priors that default NUTS has no use for, if it was run."""
    nuts = setting.options.nuts
    if not setting.options.include_default_nuts or nuts.priors is None:
        return []
    return [name for name in nuts.priors if name not in (nuts.free_priors or {})]


def _settings(setting: Setting, methods: MethodRuns) -> dict[str, Any]:
    """Sizes, family, seeds and versions."""
    rows, options, data = setting.training, setting.options, setting.training.checked
    seed = setting.random_seed
    versions = {
        name: version(name) for name in _PACKAGES if find_spec(name.replace("-", "_")) is not None
    }
    return {
        "family": data.family.name,
        "link": data.family.link.name,
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
        "starts_in_tensor_search": len(methods.fit.starts),
        "tensor_status": str(methods.fit.status),
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
    r"""Compare the tensor start with random starts, by EM and by NUTS, on the same rows.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs; names of a DataFrame's columns become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,), or DataFrame
        Response; or the formula's data, whose columns `offset`, `groups`, ... may then name.
    n_components : int
        Number of components.
    family : str or Family, default "bernoulli"
        Family of the response; with a formula, by default the one that suits its values.
    link : str, optional
        Its link; the family's own by default.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Trials behind binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        How often each row counts; rows of weight zero are left out.
    groups : array-like, shape (n_obs,), optional
        Labels of groups whose rows share their component. A group is held out, and left out, as a
        whole.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the split, the starts and the samplers. All but seconds is the same for one seed.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend: a mixture of experts.
    n_starts : int, default 20
        Number of random starts of EM.
    truth : MixtureData or mapping of str to array-like, optional
        What is behind simulated data: what `simulate_mixture` returned, or `coefficients`,
        `biases`, `weights` and perhaps `dispersion`, with shapes as there.
    held_out : float, default 0.2
        Share of the rows, or groups, that is held out to be predicted; 0 for none.
    include_default_nuts : bool, default False
        Whether to sample the same mixture from PyMC's own start as well, with free coefficients and
        its jitter. It is slow.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        What is done about directions in NUTS from the tensor start, see `sample`.
    priors : mapping of str to prior, optional
        Priors of NUTS, see `moment_init.models.mixture_glm`.
    draws : int, default 1000
        Draws of each chain that are kept, and Laplace draws of each fit by EM that is scored; of
        these there are 400 at least.
    tune : int, optional
        Draws of each chain that tune the sampler; the sampler's default if left out.
    chains : int, default 4
        Number of chains of NUTS.
    n_jobs : int, optional
        Random starts that run at once, through joblib; 1 by default.
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
        For arguments of a wrong type.
    ValueError
        For wrong values, as `fit_em` and `sample`, and if the search from the tensor start ends in
        no fit. A random start that breaks down is recorded in `landscape`.

    Notes
    -----
    Fits by EM are compared as draws of their Laplace approximation, whose leave-one-out weights
    correct for it (`arviz.loo_approximate_posterior`). Random starts are chains of one tree, their
    components matched by one permutation a start, so that R-hat shows whether starts disagree. Only
    single starts are scored: ``"random EM"`` has the figures of the typical start, that of the
    median log-likelihood, and ``"best random EM"`` those of the best of `n_starts`. ``seconds``
    of both are those of all starts.

    Every chain of NUTS is climbed from its best draw, to the optimum it belongs to. An optimum is
    the "best found" if it is within .01 of the highest log-likelihood of any start or chain; that
    there is none better is never known.

    A leave-one-out score with more than one in a hundred Pareto k too large is not relied on: `loo`
    ranks it below the others (``is_reliable``), and the verdict cites rows held out instead.

    The group ``posterior_predictive`` has about a thousand draws of every method. Row labels
    ``obs`` are places in `X`.

    Examples
    --------
    .. code-block:: python

        data = simulate_mixture(2000, 5, 3, weights=[0.7, 0.2, 0.1], random_seed=1)
        comparison = compare(data.X, data.y, 3, truth=data, random_seed=1)
        comparison.verdict.headline
        comparison.figure()  # a notebook shows it
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
    require_one_response("compare", y, family)
    rows = check_rows(X, y, block)
    number = validate_n_components(n_components, rows.checked.n_obs)
    true = read_truth(truth, rows.checked.n_features, number)
    split, run, finish = make_generator(random_seed).spawn(3)
    training, rest = split_rows(rows, options.held_out, split)
    methods = run_all(training, number, options, run)
    return assemble(Setting(training, rest, true, options, random_seed), methods, finish)
