"""The methods that are compared, run one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moment_init.comparison.em_runs import EMRun, run_random, run_tensor
from moment_init.comparison.nuts_chains import climb_chains, run_default_nuts, run_tensor_nuts
from moment_init.comparison.options import CompareOptions
from moment_init.comparison.result import DEFAULT_NUTS, RANDOM_EM, TENSOR_EM, TENSOR_NUTS
from moment_init.comparison.rows import ComparedRows
from moment_init.em import EMFit
from moment_init.em.start_records import BREAKDOWNS
from moment_init.estimation import estimate
from moment_init.notices import quiet_notices
from moment_init.results import Status

if TYPE_CHECKING:
    import xarray

__all__ = [
    "MethodRuns",
    "NutsRun",
    "make_stages",
    "run_all",
]


@dataclass(frozen=True, slots=True, eq=False)
class NutsRun:
    """Posterior of a method.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, components in the order of the tensor start.
    seconds : float
        How long it took, with the compilation and the search for a start.
    climbs : sequence of EMRun
        The optimum to which each chain leads.
    """

    tree: "xarray.DataTree"
    seconds: float
    climbs: Sequence[EMRun]


@dataclass(frozen=True, slots=True, eq=False)
class MethodRuns:
    """What the methods found.

    Parameters
    ----------
    tensor : EMRun
        The fit from the tensor start.
    random : sequence of EMRun
        The fits from random starts.
    nuts : dict of str to NutsRun
        Posteriors, that from the tensor start first.
    moment_status : str
        Status of the estimate from moments alone; empty if there is none.
    """

    tensor: EMRun
    random: Sequence[EMRun]
    nuts: dict[str, NutsRun]
    moment_status: str

    @property
    def fit(self) -> EMFit:
        """The fit from the tensor start, which sets the order of the components."""
        if self.tensor.fit is None:
            raise ValueError(f"the tensor start must lead to a fit; got: {self.tensor.message}")
        return self.tensor.fit

    @property
    def runs(self) -> dict[str, Sequence[EMRun]]:
        """Optima by method, in the order of the table."""
        climbs = {name: own.climbs for name, own in self.nuts.items()}
        return {**climbs, TENSOR_EM: (self.tensor,), RANDOM_EM: self.random}


def run_all(
    rows: ComparedRows, n_components: int, options: CompareOptions, rng: np.random.Generator
) -> MethodRuns:
    """Run every method on the same rows.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    n_components : int
        Number of components.
    options : CompareOptions
        What to run.
    rng : numpy.random.Generator
        Source of randomness; every method has a stream of its own.

    Returns
    -------
    MethodRuns
        What they found.
    """
    announce = make_stages(3 + options.include_default_nuts, is_shown=options.progressbar)
    streams = rng.spawn(5)
    announce("EM from the tensor start")
    tensor = run_tensor(rows, n_components, streams[0], options.n_jobs)
    fit = MethodRuns(tensor, (), {}, "").fit
    status = _moment_status(rows, n_components, streams[1])
    announce("NUTS from the tensor start")
    tree, seconds = run_tensor_nuts(rows, fit, options.nuts, streams[2])
    climbs = climb_chains(tree, rows, fit)
    nuts = {TENSOR_NUTS: NutsRun(tree, tensor.seconds + seconds, climbs)}
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
    return MethodRuns(tensor, random, nuts, status)


def make_stages(total: int, *, is_shown: bool) -> Callable[[str], None]:
    """Make a function that announces the parts of a run.

    Parameters
    ----------
    total : int
        Number of parts.
    is_shown : bool
        Whether to write anything.

    Returns
    -------
    callable
        Takes what begins; numbers it and writes a line to the standard error.

    Notes
    -----
    Lines, not a bar: samplers show bars of their own, and two cannot be on one screen. A terminal
    that cannot be written to never stops a run.
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
        except Exception:  # whatever a terminal does, the comparison goes on
            return

    return announce


def _moment_status(rows: ComparedRows, n_components: int, rng: np.random.Generator) -> str:
    """What the moments alone are worth here; empty with a gate, which they do not know."""
    block = dict(rows.block)
    if block.pop("gating") is not None:
        return ""
    with quiet_notices():  # the status says it
        try:
            found = estimate(rows.X, rows.y, n_components, random_seed=rng, **block)
        except BREAKDOWNS:  # among them that the moments cannot identify so many components
            return str(Status.NOT_IDENTIFIED)
    return str(found.status)
