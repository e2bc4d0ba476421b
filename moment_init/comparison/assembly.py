"""From what the methods found to the comparison: trees, figures, table, verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.comparison.caveats import collect_caveats
from moment_init.comparison.convergence import Convergence, assess_convergence, largest_rhat
from moment_init.comparison.em_chains import (
    SCORED_DRAWS,
    laplace_tree,
    random_tree,
    relabel,
    start_orders,
)
from moment_init.comparison.em_runs import EMRun, best_run, converged_runs, typical_run
from moment_init.comparison.landscape import tabulate_landscape
from moment_init.comparison.methods import MethodRuns
from moment_init.comparison.options import CompareOptions
from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    RANDOM_EM,
    TENSOR_EM,
    TENSOR_NUTS,
    Comparison,
)
from moment_init.comparison.rows import ComparedRows
from moment_init.comparison.scoring import compare_loo, score_held_out, score_loo
from moment_init.comparison.tabulation import MethodFigures, tabulate
from moment_init.comparison.tree_groups import complete_tree
from moment_init.comparison.truth import Truth, errors_of, match_to_truth
from moment_init.comparison.verdict import StartEvidence, judge

if TYPE_CHECKING:
    import xarray

__all__ = ["Setting", "assemble"]

_PACKAGES = ("moment-init", "arviz", "numpy", "nutpie", "pandas", "pymc", "scipy", "xarray")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the methods were run on.

    Parameters
    ----------
    training : ComparedRows
        Rows that were fitted.
    held_out : ComparedRows or None
        Rows that were not.
    truth : Truth or None
        True parameters.
    options : CompareOptions
        What was run.
    random_seed : object
        The seed that was given.
    """

    training: ComparedRows
    held_out: ComparedRows | None
    truth: Truth | None
    options: CompareOptions
    random_seed: Any

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
        """Score draws of one method and one optimum.

        Parameters
        ----------
        tree : xarray.DataTree
            The draws.
        runs : sequence of EMRun
            Optima that the method's starts or chains led to.
        seconds : float
            How long it took.
        convergence : Convergence
            Agreement and mixing of its chains.

        Returns
        -------
        MethodFigures
            The figures.
        """
        return MethodFigures(
            runs,
            seconds,
            score_loo(tree),
            score_held_out(tree, self.held_out),
            errors_of(tree, self.truth, self.training),
            convergence,
        )


def assemble(setting: Setting, methods: MethodRuns, rng: np.random.Generator) -> Comparison:
    """Score the methods and put the comparison together.

    Parameters
    ----------
    setting : Setting
        What they were run on.
    methods : MethodRuns
        What they found.
    rng : numpy.random.Generator
        Source of the replicated responses.

    Returns
    -------
    Comparison
        The comparison.
    """
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
