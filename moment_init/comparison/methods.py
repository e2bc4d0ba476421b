"""The methods of a comparison: their options, checked, and their runs.

`validate_options` checks all arguments except the data. `run_all` runs the methods one after
another: EM and NUTS from the search, NUTS from PyMC's own start, and EM from random starts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import quiet_notices
from moment_init.comparison.result import DEFAULT_NUTS, RANDOM_EM, SEARCH_EM, SEARCH_NUTS
from moment_init.comparison.runs import (
    ComparedRows,
    EMRun,
    NutsSettings,
    climb_chains,
    run_default_nuts,
    run_random,
    run_search,
    run_search_nuts,
)
from moment_init.em.result import EMFit
from moment_init.moments.estimation import estimate
from moment_init.results import BREAKDOWNS, Status

if TYPE_CHECKING:
    import xarray

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


@dataclass(frozen=True, slots=True, eq=False)
class CompareOptions:
    """The checked options of a comparison."""

    n_starts: int  # number of random starts
    held_out: float  # share of the rows, or groups, to hold out
    include_default_nuts: bool  # whether to sample from PyMC's own start as well
    n_jobs: int | None  # random starts that run in parallel
    progressbar: bool  # whether to show progress
    nuts: NutsSettings  # settings of NUTS


def validate_options(
    *,
    n_starts: Any,
    held_out: Any,
    include_default_nuts: Any,
    directions: Any,
    priors: Any,
    draws: Any,
    tune: Any,
    chains: Any,
    n_jobs: Any,
    progressbar: Any,
    pm_sample: Mapping[str, Any],
) -> CompareOptions:
    """Check the options of a comparison."""
    for name, value in {"n_starts": n_starts, "draws": draws, "chains": chains}.items():
        _require_whole(name, value, 1)
    if tune is not None:
        _require_whole("tune", tune, 0)
    if n_jobs is not None and (not _is_whole(n_jobs) or n_jobs == 0):
        raise ValueError(
            f"`n_jobs` must be a whole number other than 0, or None; got {n_jobs!r}. Use -1 for "
            "all cores."
        )
    if directions not in _DIRECTIONS:
        raise ValueError(
            f"`directions` must be one of {', '.join(map(repr, _DIRECTIONS))}; got {directions!r}. "
            "Choose one of these."
        )
    if priors is not None and not isinstance(priors, Mapping):
        raise TypeError(
            "`priors` must be a mapping of names to priors, or None; got "
            f"{type(priors).__name__}. Pass a dict, see `moment_init.models.mixture_glm`."
        )
    refused = sorted(set(_OWN_ARGUMENTS) & set(pm_sample))
    if refused:
        raise TypeError(
            "`compare` takes all arguments of `pymc.sample` except those it sets itself; got "
            f"{', '.join(refused)}. Leave them out, or call `moment_init.sample`."
        )
    # PyMC logs what it samples even without a progress bar.
    silent = {} if progressbar else {"quiet": True}
    arguments = {"progressbar": bool(progressbar), **silent, **pm_sample}
    nuts = NutsSettings(
        directions,
        None if priors is None else dict(priors),
        int(draws),
        None if tune is None else int(tune),
        int(chains),
        arguments,
    )
    return CompareOptions(
        int(n_starts),
        _checked_share(held_out),
        _checked_flag(include_default_nuts),
        None if n_jobs is None else int(n_jobs),
        bool(progressbar),
        nuts,
    )


def _checked_share(held_out: Any) -> float:
    is_number = isinstance(held_out, int | float | np.integer | np.floating)
    if not is_number or isinstance(held_out, bool) or not 0.0 <= held_out < 1.0:
        raise ValueError(
            "`held_out` must be a share of the rows from 0 to less than 1; got "
            f"{held_out!r}. Use 0.2 for a fifth, or 0 to fit all rows."
        )
    return float(held_out)


def _checked_flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"`include_default_nuts` must be True or False; got {value!r}. Pass one of these."
        )
    return bool(value)


def _require_whole(name: str, value: Any, smallest: int) -> None:
    if not _is_whole(value) or value < smallest:
        raise ValueError(
            f"`{name}` must be a whole number, {smallest} or more; got {value!r}. Change it."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, eq=False)
class NutsRun:
    """The posterior of a method."""

    tree: "xarray.DataTree"  # draws, with components in the order of the search
    seconds: float  # time, including compilation and the search for a start
    climbs: Sequence[EMRun]  # the optimum that each chain leads to


@dataclass(frozen=True, slots=True, eq=False)
class MethodRuns:
    """The results of all methods."""

    search: EMRun  # the fit from the search
    random: Sequence[EMRun]  # the fits from random starts
    nuts: dict[str, NutsRun]  # posteriors by method, the search first
    moment_status: str  # status of the estimate from moments alone; empty with a gate

    @property
    def fit(self) -> EMFit:
        """The fit from the search, which defines the order of the components."""
        if self.search.fit is None:
            raise ValueError(f"the search must lead to a fit; got: {self.search.message}")
        return self.search.fit

    @property
    def runs(self) -> dict[str, Sequence[EMRun]]:
        """Optima by method, in the order of the table."""
        climbs = {name: run.climbs for name, run in self.nuts.items()}
        return {**climbs, SEARCH_EM: (self.search,), RANDOM_EM: self.random}


def run_all(
    rows: ComparedRows, n_components: int, options: CompareOptions, rng: np.random.Generator
) -> MethodRuns:
    """Run every method on the same rows."""
    announce = make_stages(3 + options.include_default_nuts, is_shown=options.progressbar)
    streams = rng.spawn(5)
    announce("EM from the search")
    search = run_search(rows, n_components, streams[0], options.n_jobs)
    fit = MethodRuns(search, (), {}, "").fit
    status = _moment_status(rows, n_components, streams[1])
    announce("NUTS from the search")
    tree, seconds = run_search_nuts(rows, fit, options.nuts, streams[2])
    climbs = climb_chains(tree, rows, fit)
    nuts = {SEARCH_NUTS: NutsRun(tree, search.seconds + seconds, climbs)}
    if options.include_default_nuts:
        announce("NUTS from PyMC's own start")
        tree, seconds = run_default_nuts(rows, fit, options.nuts, streams[3])
        nuts[DEFAULT_NUTS] = NutsRun(tree, seconds, climb_chains(tree, rows, fit))
    announce(f"EM from random starts ({options.n_starts})")
    random = run_random(
        rows,
        n_components,
        options.n_starts,
        streams[4],
        n_jobs=options.n_jobs,
        is_shown=options.progressbar,
    )
    return MethodRuns(search, random, nuts, status)


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


def _moment_status(rows: ComparedRows, n_components: int, rng: np.random.Generator) -> str:
    """Return the status of the estimate from moments alone; empty with a gate."""
    block = dict(rows.block)
    if block.pop("gating") is not None:
        return ""
    with quiet_notices():  # the status has this information
        try:
            result = estimate(rows.X, rows.y, n_components, random_seed=rng, **block)
        except BREAKDOWNS:  # for example if moments cannot identify the components
            return str(Status.NOT_IDENTIFIED)
    return str(result.status)
