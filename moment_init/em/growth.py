"""Growth: one component, then two, then three, each split off where the fit is worst.

The splits are moments that need no score function of the input: at a single component and a
Gaussian input they are the paper's second moment with the best function of the response.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.em.first_steps import fit_single
from moment_init.em.problem import EMProblem
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.split_statistics import split_statistics
from moment_init.likelihood.splits import split_component

__all__ = ["GrowthOptions", "grow"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GrowthOptions:
    """How growth searches.

    Parameters
    ----------
    beam : int
        How many mixtures of each size are kept.
    n_splits : int
        How many splits of each are tried.
    n_directions : int
        How many directions of each component are candidates for a split.
    heat_steps : int
        EM steps after which the worse half of the splits is dropped.
    race_steps : int
        EM steps before the beam is chosen.
    settle_steps : int
        EM steps after it.
    """

    beam: int = 2
    n_splits: int = 3
    n_directions: int = 2
    heat_steps: int = 3
    race_steps: int = 8
    settle_steps: int = 12


def grow(problem: EMProblem, options: GrowthOptions | None = None) -> list[MaximiseResult]:
    """Grow mixtures from a single model to all components.

    Parameters
    ----------
    problem : EMProblem
        The problem.
    options : GrowthOptions, optional
        How to search.

    Returns
    -------
    list of MaximiseResult
        The last beam, best first; short runs, not maxima.
    """
    options = options or GrowthOptions()
    beam = [fit_single(problem)]
    for _ in range(1, problem.n_components):
        children = [
            child for parent in beam for child in _children(problem, parent.parameters, options)
        ]
        heats = _ranked(problem, children, options.heat_steps)
        n_raced = max(options.beam, len(heats) // 2)
        raced = _continued(problem, heats[:n_raced], options.race_steps - options.heat_steps)
        beam = _continued(problem, raced[: options.beam], options.settle_steps)
    return beam


def _continued(
    problem: EMProblem, runs: list[MaximiseResult], n_steps: int
) -> list[MaximiseResult]:
    return _ranked(problem, [run.parameters for run in runs], n_steps)


def _ranked(
    problem: EMProblem, starts: list[MixtureParameters], n_steps: int
) -> list[MaximiseResult]:
    """Some steps of EM from each of several starts, the best end first."""
    runs = [problem.climb(start, max_steps=n_steps, em_steps=n_steps) for start in starts]
    return sorted(runs, key=_by_log_likelihood, reverse=True)


def _children(
    problem: EMProblem, parent: MixtureParameters, options: GrowthOptions
) -> list[MixtureParameters]:
    """The most promising splits of a mixture."""
    n_directions = min(options.n_directions, parent.n_features + 1)
    statistics = split_statistics(problem.family, problem.rows, parent, n_directions=n_directions)
    ratios = statistics.eigenvalues / statistics.noise_edges[:, None]
    ranked = np.argsort(ratios, axis=None)[::-1][: options.n_splits]
    children = []
    for flat in ranked:
        component, direction = divmod(int(flat), n_directions)
        children.append(
            split_component(
                problem.family, parent, component, statistics.directions[component, direction]
            )
        )
    return children


def _by_log_likelihood(result: MaximiseResult) -> float:
    return result.log_likelihood
