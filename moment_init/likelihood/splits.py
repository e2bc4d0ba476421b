r"""Split components to leave a local maximum, where one component stands for two.

With z = (x, 1), u = d log p_j / d eta, V = -d^2 log p_j / d eta^2 and responsibilities R,

.. math:: M_j = \sum R (u^2 - V) z z', \qquad C_j = \sum R V z z'.

With groups, the score of a group and its information replace u z and V z z'. Under the true model
the mean of M_j is zero (the information-matrix equality). If component j stands for two with
coefficients beta +- v, M_j is positive along v: the top generalised eigenvectors of (M_j, C_j) are
the directions in which to split it.

`improve` leaves a local maximum by moves that drop one component and split another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import sum_over_blocks
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import BlockPosterior, doubles_per_unit, posterior_of_block
from moment_init.likelihood.rows import LikelihoodRows, predictor_pairs, weighted_grams

_RIDGE = 1e-8
"""Added to C_j, which is zero for a component without rows; its splits then have size zero."""

_SMALLEST_REMAINDER = 1e-12
"""Lower bound of the probability of a row's other components: in the estimated cost of dropping a
component, a row loses at most 28 units of log-likelihood."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitStatistics:
    """Evidence that each component should be split, and the cost of dropping it."""

    # largest generalised eigenvalues of (M_j, C_j), largest first; (n_components, n_directions)
    eigenvalues: FloatArray
    noise_edges: FloatArray  # largest eigenvalue expected from noise alone; (n_components,)
    # eigenvectors v, the bias last, scaled to ``v' C_j v = sum R_j``;
    # (n_components, n_directions, P (n_features + 1))
    directions: FloatArray
    # log-likelihood lost by dropping a component without refitting; infinite for a single one;
    # (n_components,)
    drop_losses: FloatArray

    @property
    def ratios(self) -> FloatArray:
        """Largest eigenvalue of each component relative to its noise, shape (n_components,)."""
        return self.eigenvalues[:, 0] / self.noise_edges

    @property
    def misfit(self) -> float:
        """Largest ratio; about one or less if the model holds."""
        return float(self.ratios.max())


def split_statistics(
    family: AnyFamily,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    *,
    n_directions: int = 1,
) -> SplitStatistics:
    """Test whether each component stands for two, and find the directions of the split.

    This takes two passes over the rows. The noise is the edge of the spectrum of a random symmetric
    matrix: twice the square root of the largest row sum of its entries' variances.
    """
    excess, curvature, counts, drop_losses = _split_sums(family, rows, parameters)
    width = curvature.shape[1]
    curvature = curvature + _RIDGE * np.eye(width)
    factors = np.linalg.cholesky(curvature)
    whiteners = np.stack(
        [solve_triangular(factor, np.eye(width), lower=True) for factor in factors]
    )
    values, vectors = np.linalg.eigh(whiteners @ excess @ whiteners.transpose(0, 2, 1))
    top = slice(None, -n_directions - 1, -1)
    # whitened unit vectors have v' C v = 1
    directions = np.einsum("jab,jak->jkb", whiteners, vectors[:, :, top])
    directions *= np.sqrt(counts)[:, None, None]
    edges = _noise_edges(family, rows, parameters, whiteners)
    return SplitStatistics(values[:, top], edges, directions, drop_losses)


def misfit(family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters) -> float:
    """Largest split statistic of all components, relative to its noise."""
    return split_statistics(family, rows, parameters).misfit


def _split_sums(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """M_j and C_j (r, w, w) with w = P (p + 1), expected rows (r,), losses from dropping (r,)."""
    r = parameters.n_components

    def sum_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        _, first, second, _ = block.derivatives
        counts = block.row_responsibilities * block.weight
        pairs = predictor_pairs(len(first), len(second))
        # the probabilities of the others are rescaled to sum to one
        remainders = _log_remainder(block.prior) - _log_remainder(block.responsibilities)
        losses = np.dot(remainders, block.unit_weight) if r > 1 else np.full(1, np.inf)
        curved = {pair: -counts * second[k] for k, pair in enumerate(pairs)}
        information = _assembled(block, curved, len(first))
        if block.is_grouped:
            x, starts = block.x.T, block.starts
            squares = []
            for j, share in enumerate(block.responsibilities):
                slopes = first[:, j] * block.weight
                designs = [np.add.reduceat(x * slope[:, None], starts) for slope in slopes]
                scores = np.concatenate(designs, axis=1)
                squares.append(np.dot((scores * share[:, None]).T, scores))
            squared = np.stack(squares)
        else:
            all_pairs = predictor_pairs(len(first), 0)
            products = {(a, b): counts * first[a] * first[b] for a, b in all_pairs}
            squared = _assembled(block, products, len(first))
        return squared - information, information, counts.sum(axis=1), losses

    sums = sum_over_blocks(sum_block, rows.n_units, _doubles_per_unit(rows, parameters))
    return sums[0], sums[1], sums[2], sums[3]


def _assembled(
    block: BlockPosterior, weightings: dict[tuple[int, int], FloatArray], n_predictors: int
) -> FloatArray:
    """Weighted sums of x x' as blocks of one matrix for each component, (r, w, w)."""
    # weightings: pair of predictors -> (r, n)
    stacked = np.concatenate(list(weightings.values()))
    grams = weighted_grams(block.x, stacked)
    r, width = len(block.responsibilities), len(block.x)
    result = np.zeros((r, n_predictors, width, n_predictors, width))
    for (a, b), gram in zip(weightings, grams.reshape(-1, r, width, width), strict=True):
        result[:, a, :, b] = result[:, b, :, a] = gram
    return result.reshape(r, n_predictors * width, n_predictors * width)


def _noise_edges(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters, whiteners: FloatArray
) -> FloatArray:
    """Edge of the noise of the whitened M_j, shape (r,)."""

    def sum_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        variances = [_row_variances(block, j, w) for j, w in enumerate(whiteners)]
        return (np.stack(variances),)

    (row_sums,) = sum_over_blocks(sum_block, rows.n_units, _doubles_per_unit(rows, parameters))
    # a component without rows has neither signal nor noise
    return 2 * np.sqrt(np.maximum(row_sums.max(axis=1), np.finfo(np.float64).tiny))


def _row_variances(block: BlockPosterior, component: int, whitener: FloatArray) -> FloatArray:
    """Row sums of the variances of R (t t' - information) with whitened scores t, (w,)."""
    _, first, second, _ = block.derivatives
    n_predictors, width, x = len(first), len(block.x), block.x.T
    slopes, curvature = first[:, component], second[:, component]
    share = block.responsibilities[component]
    if n_predictors == 1 and not block.is_grouped:
        excess = share * (slopes[0] ** 2 + curvature[0])
        # Whitened rows are small where slopes are huge, so neither is squared alone.
        products = excess * (whitener @ block.x) ** 2
        return np.asarray(np.dot(products, block.weight * products.sum(axis=0)))
    # design of each predictor, whitened
    designs = [x @ whitener[:, a * width : (a + 1) * width].T for a in range(n_predictors)]
    weight = block.weight if block.is_grouped else np.ones_like(block.weight)

    def by_unit(values: FloatArray) -> FloatArray:
        return np.add.reduceat(values, block.starts) if block.is_grouped else values

    terms = zip(slopes * weight, designs, strict=True)
    scores = by_unit(np.sum([slope[:, None] * design for slope, design in terms], axis=0))
    factor = np.sqrt(block.unit_weight) * share
    result = np.empty(len(whitener))
    pairs = predictor_pairs(n_predictors, len(second))
    for row in range(len(whitener)):
        information = np.zeros_like(x, shape=(len(x), len(whitener)))
        for (a, b), curved in zip(pairs, curvature * weight, strict=True):
            information += (curved * designs[a][:, row])[:, None] * designs[b]
            if a != b:
                information += (curved * designs[b][:, row])[:, None] * designs[a]
        total = scores * scores[:, [row]] + by_unit(information)
        with np.errstate(over="ignore"):  # an infinite noise hides any signal, as it should
            # each unit by its factor before the square, which may overflow where the factor is zero
            result[row] = np.square(factor[:, None] * total).sum()
    return result


def _log_remainder(probabilities: FloatArray) -> FloatArray:
    """Logarithm of the probability of all other components, bounded from below."""
    return np.asarray(np.log(np.maximum(1 - probabilities, _SMALLEST_REMAINDER)))


def _doubles_per_unit(rows: LikelihoodRows, parameters: MixtureParameters) -> int:
    return doubles_per_unit(rows, parameters, 4 * (parameters.n_features + 1))


_RACE_EM_STEPS = 3
"""EM steps of each proposal in the first round of a race."""

_FINISH_EM_STEPS = 4
"""EM steps of a finishing run before it may be abandoned: the first gains say little."""

_CHILD_DEVIATION = 0.6
"""Share of the parent's deviation that each child starts with. The children's means explain the
rest: with as much variance between as within children, 0.7 is left. The value is a little smaller,
because a child that starts too wide takes its sibling's rows."""

_NO_DIFFERENCE = 1e-9
"""Ratios and losses are not ranked if the largest is smaller than this."""


Climb = Callable[..., MaximiseResult]
"""Maps a start and options of `maximise` to the end of the climb."""

Proposals = Callable[[MixtureParameters], list[MixtureParameters]]
"""Maps a mixture to mixtures of the same size to climb from."""


def split_component(
    family: AnyFamily, parameters: MixtureParameters, component: int, direction: FloatArray
) -> MixtureParameters:
    """Replace a component by two children at ``beta +- v``, each with half its weight."""
    # direction: (P (n_features + 1),)
    appended = np.append(np.arange(parameters.n_components), component)
    doubled = parameters.reorder(appended)
    return _plant_children(family, doubled, component, parameters.n_components, direction)


def drop_and_split(
    family: AnyFamily,
    parameters: MixtureParameters,
    drop: int,
    split: int,
    direction: FloatArray,
) -> MixtureParameters:
    """Drop one component and split another, so that their number stays the same."""
    # direction: (P (n_features + 1),)
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
    """Leave a maximum by proposed moves for as long as they raise the likelihood."""
    n_moves = 0
    while n_moves < max_rounds:
        raced = _raced(climb, propose(current.parameters), race_steps, 2 * n_finishers)
        target = current.log_posterior + min_gain
        for run in raced[:n_finishers]:
            end = climb(
                run.parameters,
                max_steps=finish_steps,
                em_steps=_FINISH_EM_STEPS,
                max_em_steps=finish_steps // 3,
                tolerance=tolerance,
                target=target,
            )
            if end.log_posterior >= target:
                break
        else:
            break
        current, n_moves = end, n_moves + 1
    return current, n_moves


def propose_drops_and_splits(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters, *, n_pairs: int = 6
) -> list[MixtureParameters]:
    """Propose mixtures with the least useful component dropped and the worst fitting one split."""
    statistics = split_statistics(family, rows, parameters)
    return [
        drop_and_split(family, parameters, drop, split, statistics.directions[split, 0])
        for drop, split in _best_pairs(statistics, n_pairs)
    ]


def _raced(
    climb: Climb, starts: list[MixtureParameters], n_steps: int, n_kept: int
) -> list[MaximiseResult]:
    """Short runs, best first: a few EM steps from every start, then more from the best ends."""
    short = _RACE_EM_STEPS
    heats = [climb(start, max_steps=short, em_steps=short) for start in starts]
    heats.sort(key=_by_log_posterior, reverse=True)
    # runs that lead back to a known maximum are dropped
    kept = [run for run in heats if run.recognised is None][:n_kept]
    more = n_steps - short
    runs = [climb(run.parameters, max_steps=more, max_em_steps=more) for run in kept]
    runs = [run for run in runs if run.recognised is None]
    return sorted(runs, key=_by_log_posterior, reverse=True)


def _by_log_posterior(result: MaximiseResult) -> float:
    return result.log_posterior


def _best_pairs(statistics: SplitStatistics, n_pairs: int) -> list[tuple[int, int]]:
    """Pairs (drop, split) with the largest relative gain of the split minus loss of the drop."""
    if len(statistics.ratios) == 1:
        return []
    gains = statistics.ratios / max(float(statistics.ratios.max()), _NO_DIFFERENCE)
    losses = statistics.drop_losses / max(float(statistics.drop_losses.max()), _NO_DIFFERENCE)
    components = range(len(gains))
    pairs = [(drop, split) for drop in components for split in components if drop != split]
    pairs.sort(key=lambda pair: gains[pair[1]] - losses[pair[0]], reverse=True)
    return pairs[:n_pairs]


def _plant_children(
    family: AnyFamily, doubled: MixtureParameters, first: int, second: int, direction: FloatArray
) -> MixtureParameters:
    """Move two copies of a parent apart, halve their weights and reduce their dispersion."""
    children = np.array([first, second])
    slopes, levels = doubled.slopes.copy(), doubled.levels.copy()
    vectors = direction.reshape(doubled.n_predictors, -1)
    for child, sign in zip(children, (1.0, -1.0), strict=True):
        slopes[:, :, child] += sign * vectors[:, :-1]
        levels[:, child] += sign * vectors[:, -1]
    weights, dispersion = doubled.weights.copy(), doubled.dispersion
    weights[children] /= 2
    if doubled.spreads is not None and dispersion is not None:
        spreads = doubled.spreads.copy()
        for a, member in enumerate(family.predictor_families):
            if member.deviation_power is not None:
                spreads[a, children] *= _CHILD_DEVIATION ** (1 / member.deviation_power)
        dispersion = spreads.reshape(dispersion.shape)
    return MixtureParameters(
        slopes.reshape(doubled.coefficients.shape),
        levels.reshape(doubled.biases.shape),
        weights / weights.sum(),
        dispersion,
        doubled.gate,
    )
