"""Splits of components, and moves out of a local maximum: drop one component and split another."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family
from moment_init.likelihood.maximise import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.split_statistics import SplitStatistics, split_statistics

__all__ = [
    "Climb",
    "Proposals",
    "drop_and_split",
    "improve",
    "propose_drops_and_splits",
    "split_component",
]

FloatArray = NDArray[np.float64]

_RACE_EM_STEPS = 3
"""EM steps of a race before slow progress turns it to Newton's steps."""

_FINISH_EM_STEPS = 4
"""EM steps of a finishing run before it may be given up: the increments of the first say little."""

_CHILD_DEVIATION = 0.6
"""Children explain part of their parent's deviation as difference of their means: two children at
+- v with as much variance between as within them leave a share of 0.7; a little less than that, as
a child that starts too wide takes its sibling's rows."""

_NO_DIFFERENCE = 1e-9
"""Ratios and losses whose largest is smaller than this do not rank anything."""


Climb = Callable[..., MaximiseResult]
"""Maps a start and options of `maximise` to where the climb ended."""

Proposals = Callable[[MixtureParameters], list[MixtureParameters]]
"""Maps a mixture to mixtures of the same size from which to climb."""


def split_component(
    family: Family, parameters: MixtureParameters, component: int, direction: FloatArray
) -> MixtureParameters:
    """Replace a component by two children at ``beta +- v`` with half its weight each.

    Parameters
    ----------
    family : Family
        The response family.
    parameters : MixtureParameters
        The mixture.
    component : int
        The component to split.
    direction : numpy.ndarray, shape (n_features + 1,)
        The vector v, the bias last.

    Returns
    -------
    MixtureParameters
        A mixture with one component more: one child in the parent's place, the other at the end.
    """
    appended = np.append(np.arange(parameters.n_components), component)
    doubled = parameters.reorder(appended)
    return _plant_children(family, doubled, component, parameters.n_components, direction)


def drop_and_split(
    family: Family,
    parameters: MixtureParameters,
    drop: int,
    split: int,
    direction: FloatArray,
) -> MixtureParameters:
    """Take one component away and split another, so that their number stays.

    Parameters
    ----------
    family : Family
        The response family.
    parameters : MixtureParameters
        The mixture.
    drop : int
        The component to drop; one of the children takes its place.
    split : int
        The component to split, another one.
    direction : numpy.ndarray, shape (n_features + 1,)
        The vector v of the split, the bias last.

    Returns
    -------
    MixtureParameters
        The mixture after the move; the weights that are left are scaled to sum to one.
    """
    order = np.arange(parameters.n_components)
    order[drop] = split
    return _plant_children(family, parameters.reorder(order), split, drop, direction)


def improve(
    climb: Climb,
    propose: Proposals,
    current: MaximiseResult,
    *,
    max_rounds: int = 6,
    race_steps: int = 10,
    n_finishers: int = 2,
    finish_steps: int = 150,
    tolerance: float = 1e-3,
    min_gain: float = 0.1,
) -> tuple[MaximiseResult, int]:
    """Leave a maximum by proposed moves for as long as that raises the likelihood.

    Parameters
    ----------
    climb : callable
        Climbs from parameters, with the options of `maximise`.
    propose : callable
        Maps parameters to starts that differ from them in one or two components.
    current : MaximiseResult
        A maximum to leave.
    max_rounds : int, default 6
        Most moves that are taken.
    race_steps : int, default 10
        Steps of a race, by EM while that is fast.
    n_finishers : int, default 2
        How many of a round's best are run to the end.
    finish_steps : int, default 150
        Most steps of a finishing run.
    tolerance : float, default 1e-3
        Tolerance of a finishing run.
    min_gain : float, default 0.1
        Log-likelihood that a move must gain to be taken; less is within the tolerance of two runs
        towards the same maximum.

    Returns
    -------
    end : MaximiseResult
        Never worse than the start.
    n_moves : int
        How many moves were taken.
    """
    n_moves = 0
    while n_moves < max_rounds:
        raced = _raced(climb, propose(current.parameters), race_steps, 2 * n_finishers)
        target = current.log_likelihood + min_gain
        for run in raced[:n_finishers]:
            end = climb(
                run.parameters,
                max_steps=finish_steps,
                em_steps=_FINISH_EM_STEPS,
                max_em_steps=finish_steps // 3,
                tolerance=tolerance,
                target=target,
            )
            if end.log_likelihood >= target:
                break
        else:
            break
        current, n_moves = end, n_moves + 1
    return current, n_moves


def propose_drops_and_splits(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters, *, n_pairs: int = 6
) -> list[MixtureParameters]:
    """Mixtures with the least useful components dropped and the worst fitting ones split.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        A fitted mixture.
    n_pairs : int, default 6
        How many pairs (drop, split).

    Returns
    -------
    list of MixtureParameters
        The most promising moves first.
    """
    statistics = split_statistics(family, rows, parameters)
    return [
        drop_and_split(family, parameters, drop, split, statistics.directions[split, 0])
        for drop, split in _best_pairs(statistics, n_pairs)
    ]


def _raced(
    climb: Climb, starts: list[MixtureParameters], n_steps: int, n_kept: int
) -> list[MaximiseResult]:
    """Short runs, best first: all of them a few steps of EM, the best of these to the end."""
    short = _RACE_EM_STEPS
    heats = [climb(start, max_steps=short, em_steps=short) for start in starts]
    heats.sort(key=_by_log_likelihood, reverse=True)
    # one that leads back to a known maximum is not followed
    kept = [run for run in heats if run.recognised is None][:n_kept]
    more = n_steps - short
    runs = [climb(run.parameters, max_steps=more, max_em_steps=more) for run in kept]
    runs = [run for run in runs if run.recognised is None]
    return sorted(runs, key=_by_log_likelihood, reverse=True)


def _by_log_likelihood(result: MaximiseResult) -> float:
    return result.log_likelihood


def _best_pairs(statistics: SplitStatistics, n_pairs: int) -> list[tuple[int, int]]:
    """Pairs (drop, split): most to gain by the split, least to lose by the drop, both relative."""
    if len(statistics.ratios) == 1:
        return []
    gains = statistics.ratios / max(float(statistics.ratios.max()), _NO_DIFFERENCE)
    losses = statistics.drop_losses / max(float(statistics.drop_losses.max()), _NO_DIFFERENCE)
    components = range(len(gains))
    pairs = [(drop, split) for drop in components for split in components if drop != split]
    pairs.sort(key=lambda pair: gains[pair[1]] - losses[pair[0]], reverse=True)
    return pairs[:n_pairs]


def _plant_children(
    family: Family, doubled: MixtureParameters, first: int, second: int, direction: FloatArray
) -> MixtureParameters:
    """Move two copies of a parent apart, halve their weights and narrow them."""
    children = np.array([first, second])
    signs = np.array([1.0, -1.0])
    coefficients, biases = doubled.coefficients.copy(), doubled.biases.copy()
    weights, dispersion = doubled.weights.copy(), doubled.dispersion
    coefficients[:, children] += signs * direction[:-1, None]
    biases[children] += signs * direction[-1]
    weights[children] /= 2
    if dispersion is not None and family.deviation_power is not None:
        dispersion = dispersion.copy()
        dispersion[children] *= _CHILD_DEVIATION ** (1 / family.deviation_power)
    return MixtureParameters(
        coefficients, biases, weights / weights.sum(), dispersion, doubled.gate
    )
