"""Splits of components, and moves out of a local maximum: drop one component and split another."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.families import Family
from moment_init.likelihood.maximise import MaximiseResult, maximise
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.split_statistics import SplitStatistics, misfit, split_statistics

__all__ = ["MovesResult", "drop_and_split", "improve", "misfit", "split_component"]

FloatArray = NDArray[np.float64]

_FINISH_EM_STEPS = 4
"""EM steps at the head of a finishing run: a raced move may still be outside Newton's basin."""

_CHILD_DEVIATION = 0.6
"""Children explain part of their parent's deviation as difference of their means: two children at
+- v with as much variance between as within them leave a share of 0.7; a little less than that, as
a child that starts too wide takes its sibling's rows."""

_NO_DIFFERENCE = 1e-9
"""Ratios and losses whose largest is smaller than this do not rank anything."""


@dataclass(frozen=True, slots=True, eq=False)
class MovesResult:
    """Where a search by moves ended.

    Parameters
    ----------
    parameters : MixtureParameters
        The best parameters found.
    log_likelihood : float
        Their log-likelihood.
    n_moves : int
        How many moves were taken.
    statistics : SplitStatistics
        Of the best parameters; its `misfit` says whether more is to be had.
    """

    parameters: MixtureParameters
    log_likelihood: float
    n_moves: int
    statistics: SplitStatistics


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
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    log_likelihood: float,
    *,
    max_rounds: int = 6,
    n_pairs: int = 6,
    race_steps: int = 10,
    n_finishers: int = 2,
    finish_steps: int = 40,
    min_gain: float = 0.5,
) -> MovesResult:
    """Drop one component and split another for as long as that raises the likelihood.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        A maximum to leave.
    log_likelihood : float
        Its log-likelihood.
    max_rounds : int, default 6
        Most moves that are taken.
    n_pairs : int, default 6
        How many pairs (drop, split) race in each round.
    race_steps : int, default 10
        EM steps of a race.
    n_finishers : int, default 2
        How many of a round's best are run to the end.
    finish_steps : int, default 40
        Most steps of a finishing run.
    min_gain : float, default 0.5
        Log-likelihood that a move must gain to be taken; less is within the tolerance of two runs
        towards the same maximum.

    Returns
    -------
    MovesResult
        Never worse than the start.
    """
    n_moves = 0
    statistics = split_statistics(family, rows, parameters)
    while n_moves < max_rounds:
        raced = [
            maximise(
                family,
                rows,
                drop_and_split(family, parameters, drop, split, statistics.directions[split, 0]),
                max_steps=race_steps,
                em_steps=race_steps,
            )
            for drop, split in _best_pairs(statistics, n_pairs)
        ]
        raced.sort(key=_by_log_likelihood, reverse=True)
        finished = [
            maximise(
                family,
                rows,
                run.parameters,
                max_steps=finish_steps,
                em_steps=_FINISH_EM_STEPS,
            )
            for run in raced[:n_finishers]
        ]
        best = max(finished, key=_by_log_likelihood, default=None)
        if best is None or best.log_likelihood < log_likelihood + min_gain:
            break
        parameters, log_likelihood, n_moves = best.parameters, best.log_likelihood, n_moves + 1
        statistics = split_statistics(family, rows, parameters)
    return MovesResult(parameters, log_likelihood, n_moves, statistics)


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
    return MixtureParameters(coefficients, biases, weights / weights.sum(), dispersion)
