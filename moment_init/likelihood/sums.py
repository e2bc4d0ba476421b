r"""Log-likelihood of a mixture, its score and its information, as sums over rows.

Louis' identity (1982) splits the observed information into two parts,

.. math:: I_{observed} = I_{complete} - I_{missing}.

The complete-data information is the conditional mean, given the data, of the information if the
components were known; the missing information is the conditional variance of the complete-data
score. The first alone gives EM steps, the difference Newton steps. A unit is a group, or a row if
there are no groups.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moment_init.checks import FloatArray
from moment_init.data.blocks import sum_over_blocks
from moment_init.families.base import Family
from moment_init.likelihood.parameters import MixtureParameters, component_size, parameter_count
from moment_init.likelihood.posterior import BlockPosterior, doubles_per_unit, posterior_of_block
from moment_init.likelihood.rows import LikelihoodRows, weighted_grams


class BlockScores(NamedTuple):
    """Scores of the units of a block, multiplied by the roots of the units' weights.

    t_j is the score of a unit's density under component j in the parameters of component j.
    """

    by_component: FloatArray  # scores t_j of groups, or R_j t_j of rows; (n_units, n_components, q)
    responsibilities: FloatArray  # R_j; (n_units, n_components)
    gate: FloatArray  # a one and the gating covariates; (n_units, 1 + n_gate)
    is_grouped: bool  # whether units are groups
    # buffer for the means of the complete-data scores; without groups `by_component` is a view;
    # (n_units, n_parameters)
    means: FloatArray


class MissingSums(NamedTuple):
    """Sums over units from which the missing information is assembled."""

    # sum of outer products of the mean complete-data scores; (n_parameters, n_parameters)
    products: FloatArray
    second_moment: FloatArray  # sum of R_j t_j t_j'; (n_components, q, q)
    gate_cross: FloatArray  # sum of R_j t_j g'; (n_components, q, 1 + n_gate)
    gate_square: FloatArray  # sum of R_j g g'; (n_components, 1 + n_gate, 1 + n_gate)


def missing_of_block(block: BlockPosterior, q: int) -> MissingSums:
    """Sum the terms of the missing information over the units of a block."""
    scores = block_scores(block, q)
    means = mean_scores(scores, scores.responsibilities)
    u, r = scores.responsibilities.shape
    component_means = means[:, : r * q].reshape(u, r, q)
    roots = np.sqrt(block.unit_weight)
    counts = block.unit_responsibilities * block.unit_weight
    if block.gate.shape[1] == 1:  # without a gate g = 1
        squares = counts.sum(axis=1)[:, None, None]
        cross = np.dot(roots, means[:, : r * q]).reshape(r, q, 1)
    else:
        gate = block.gate
        squares = np.stack([np.dot((gate * count[:, None]).T, gate) for count in counts])
        weighted = gate * roots[:, None]
        cross = np.stack([np.dot(component_means[:, j].T, weighted) for j in range(r)])
    seconds = _second_moments(block, scores, component_means, q)
    return MissingSums(np.dot(means.T, means), seconds, cross, squares)


def _second_moments(
    block: BlockPosterior, scores: BlockScores, component_means: FloatArray, q: int
) -> FloatArray:
    """Sum over units of R_j t_j t_j', (r, q, q)."""
    posterior = block.posterior
    if block.group_starts is not None:
        by_component = scores.by_component
        pairs = (
            (component_means[:, j].T, by_component[:, j]) for j in range(component_means.shape[1])
        )
        return np.stack([np.dot(*pair) for pair in pairs])
    counts = posterior.responsibilities * block.weight
    squared, mixed = None, None
    if posterior.tau1 is not None:
        squared, mixed = counts * posterior.tau1**2, counts * posterior.eta1 * posterior.tau1
    return weighted_blocks(block, counts * posterior.eta1**2, mixed, squared, q)


def block_scores(block: BlockPosterior, q: int) -> BlockScores:
    """Compute the scores t_j of every unit; those of a group are sums over its rows."""
    posterior, z = block.posterior, block.z
    (n, p), r = z.shape, len(posterior.eta1)
    is_grouped = block.group_starts is not None
    n_parameters = r * q + (r - 1) * block.gate.shape[1]
    means = np.empty((len(block.gate), n_parameters))
    scores = np.empty((n, r, q)) if is_grouped else means[:, : r * q].reshape(n, r, q)
    # without groups only products with the responsibilities are needed
    factor = block.weight if is_grouped else posterior.responsibilities * np.sqrt(block.weight)
    slopes = (posterior.eta1 * factor).T
    np.multiply(slopes[:, :, None], z[:, None, :], out=scores[:, :, :p])
    scores[:, :, p] = slopes
    if posterior.tau1 is not None:
        scores[:, :, p + 1] = (posterior.tau1 * factor).T
    if block.group_starts is not None:
        scores = np.add.reduceat(scores, block.group_starts, axis=0)
    shares = block.unit_responsibilities.T * np.sqrt(block.unit_weight)[:, None]
    return BlockScores(scores, shares, block.gate, is_grouped, means)


def mean_scores(scores: BlockScores, shares: FloatArray) -> FloatArray:
    """Conditional means of the complete-data scores of each unit."""
    # shares: (n_units, n_components) -> (n_units, n_parameters)
    u, r, q = scores.by_component.shape
    width = scores.gate.shape[1]
    result = scores.means
    if scores.is_grouped:
        weighted = scores.by_component * scores.responsibilities[:, :, None]
        result[:, : r * q] = weighted.reshape(u, r * q)
    logits = shares[:, : r - 1, None] * scores.gate[:, None, :]
    result[:, r * q :] = logits.reshape(u, (r - 1) * width)
    return result


def weighted_blocks(
    block: BlockPosterior,
    eta: FloatArray,
    mixed: FloatArray | None,
    tau: FloatArray | None,
    q: int,
) -> FloatArray:
    """Sum over rows of [[eta x x', mixed x], [mixed x', tau]] with x = (z, 1)."""
    # eta, mixed, tau: (n_components, n_block) -> (n_components, q, q)
    result = np.empty((len(eta), q, q))
    p = block.z.shape[1]
    result[:, : p + 1, : p + 1] = weighted_grams(block.z, eta, block.products)
    if tau is not None and mixed is not None:
        result[:, :p, -1] = np.dot(mixed, block.z)
        result[:, p, -1] = mixed.sum(axis=1)
        result[:, -1, :-1] = result[:, :-1, -1]
        result[:, -1, -1] = tau.sum(axis=1)
    return result


def assemble_missing(sums: MissingSums) -> FloatArray:
    """Assemble the conditional variance of the complete-data score e_j (t_j, g), e_j indicating j.

    Given the unit, e_j has mean R_j, so Cov(e_j t_j, e_k t_k) =
    delta_jk R_j t_j t_j' - R_j t_j R_k t_k', and likewise for the gate.
    """
    # -> (n_parameters, n_parameters)
    r, q, width = sums.gate_cross.shape
    missing = -sums.products
    for j in range(r):
        entries = slice(j * q, (j + 1) * q)
        missing[entries, entries] += sums.second_moment[j]
        if j < r - 1:
            logits = slice(r * q + j * width, r * q + (j + 1) * width)
            missing[entries, logits] += sums.gate_cross[j]
            missing[logits, entries] += sums.gate_cross[j].T
            missing[logits, logits] += sums.gate_square[j]
    return missing


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodSums:
    """A log-likelihood and its derivatives at one set of parameters."""

    log_likelihood: float  # weighted sum over units of the log density, with all constants
    # its gradient, in the order of `moment_init.likelihood.parameters`; (n_parameters,)
    score: FloatArray
    unit_counts: FloatArray  # expected number of units of each component; (n_components,)
    # expected number of rows of each component, equal to `unit_counts` without groups;
    # (n_components,)
    row_counts: FloatArray
    # blocks of the complete-data information; None without curvature; (n_components, q, q)
    component_information: FloatArray | None
    # complete-data information of the logits and the gate's slopes; None without curvature;
    # (n_gate_parameters, n_gate_parameters)
    gate_information: FloatArray | None
    # conditional variance of the complete-data score; None if not requested;
    # (n_parameters, n_parameters)
    missing_information: FloatArray | None
    # size of the two sums that the log-likelihood is the difference of; their rounding limits its
    # accuracy, and for large counts it is far coarser than that of the difference
    magnitude: float = 0.0

    @property
    def complete_information(self) -> FloatArray:
        """Conditional mean of the complete-data information, (n_parameters, n_parameters)."""
        if self.component_information is None or self.gate_information is None:
            raise ValueError("`curvature` must be True in `likelihood_sums` for the information.")
        r, q, _ = self.component_information.shape
        result = np.zeros((len(self.score), len(self.score)))
        for component, information in enumerate(self.component_information):
            entries = slice(component * q, (component + 1) * q)
            result[entries, entries] = information
        result[r * q :, r * q :] = self.gate_information
        return result

    def information(self, damping: float = 0.0) -> FloatArray:
        """Complete information minus (1 - damping) times missing: the observed one at 0."""
        # -> (n_parameters, n_parameters)
        complete = self.complete_information
        if damping == 1.0:
            return complete
        if self.missing_information is None:
            raise ValueError(
                "`missing` must be True in `likelihood_sums` for a damping below one; "
                f"got {damping:g}."
            )
        return complete - (1 - damping) * self.missing_information


def likelihood_sums(
    family: Family,
    rows: LikelihoodRows,
    parameters: MixtureParameters,
    *,
    curvature: bool = True,
    missing: bool = True,
    constant: float | None = None,
    assigned: FloatArray | None = None,
) -> LikelihoodSums:
    """Sum log-likelihood, score and information over all rows."""
    # assigned: (n_components, n_units)
    if assigned is not None and rows.source is not None:
        raise ValueError("`assigned` must be None for rows that are not in memory.")
    r, q = parameters.n_components, component_size(parameters)

    def sum_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units, assigned)
        counts = block.posterior.responsibilities * block.weight
        sums = _first_order(block, counts, q)
        if not curvature:
            return sums
        is_lean = family.has_closed_deviation and not missing
        complete = _complete_blocks(block, counts, sums[-1], q, is_lean)
        sums = (*sums, complete, _gate_information(block))
        return (*sums, *missing_of_block(block, q)) if missing else sums

    # Block sizes count one copy of the rows only: the weighted copies of all components are written
    # and read sequentially, and smaller blocks would cost more in calls than they save.
    formed = parameters.n_features + 1 if rows.products is None else 0
    extra = (formed + (r * q if missing else 0)) if curvature else 0
    log_likelihood, scores, gate_score, unit_counts, row_counts, *rest = sum_over_blocks(
        sum_block,
        rows.n_units,
        doubles_per_unit(rows, parameters, extra),
        is_light=not curvature,
        source=rows.source,
    )
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    return LikelihoodSums(
        float(log_likelihood) + constant,
        np.concatenate([scores.ravel(), gate_score.ravel()]),
        unit_counts,
        row_counts,
        rest[0] if curvature else None,
        rest[1] if curvature else None,
        assemble_missing(MissingSums(*rest[2:])) if curvature and missing else None,
        abs(float(log_likelihood)) + abs(constant),
    )


def parameter_free_log_likelihood(family: Family, rows: LikelihoodRows) -> float:
    """Weighted sum of the terms of the log density that do not depend on parameters."""
    y, weight, n_trials = rows.y, rows.sample_weight, rows.n_trials  # inputs are not read

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        trials = None if n_trials is None else n_trials[block]
        terms = family.log_base_measure(y[block], n_trials=trials)
        return (np.array(np.dot(weight[block], terms)),)

    return float(sum_over_blocks(sum_block, rows.n_obs, 4, source=rows.source)[0])


def outer_product_information(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Sum over units of the unit's score times its transpose.

    It is consistent for the information if the model holds and never indefinite; the observed
    information, a difference of two large matrices, may be indefinite on a sample of rows.
    """
    # -> (n_parameters, n_parameters)
    q = component_size(parameters)
    n_parameters = parameter_count(parameters)

    def sum_block(units: slice) -> tuple[FloatArray, ...]:
        block = posterior_of_block(family, rows, parameters, units)
        shares = (block.unit_responsibilities - block.prior).T * np.sqrt(block.unit_weight)[:, None]
        scores = mean_scores(block_scores(block, q), shares)
        return (np.dot(scores.T, scores),)

    doubles = doubles_per_unit(rows, parameters, 2 * n_parameters)
    return sum_over_blocks(sum_block, rows.n_units, doubles, source=rows.source)[0]


def _first_order(block: BlockPosterior, row_counts: FloatArray, q: int) -> tuple[FloatArray, ...]:
    """Log-likelihood, scores of components (r, q) and gate (r - 1, 1 + g), and counts (r,)."""
    posterior, z = block.posterior, block.z
    p = z.shape[1]
    unit_counts = row_counts
    if block.group_starts is not None:
        unit_counts = block.unit_responsibilities * block.unit_weight
    slopes = row_counts * posterior.eta1
    score = np.empty((len(slopes), q))
    score[:, :p] = np.dot(slopes, z)
    score[:, p] = slopes.sum(axis=1)
    if posterior.tau1 is not None:
        score[:, p + 1] = np.einsum("ji,ji->j", row_counts, posterior.tau1)
    by_rows = row_counts.sum(axis=1)
    by_units = by_rows if block.group_starts is None else unit_counts.sum(axis=1)
    if block.gate.shape[1] == 1:  # without a gate the prior is the same for all units
        excess = by_units[:, None] - block.prior * block.unit_weight.sum()
        gate_score = excess[:-1]
    else:
        gate_score = np.dot((unit_counts - block.prior * block.unit_weight)[:-1], block.gate)
    log_likelihood = np.array(np.dot(block.unit_weight, posterior.log_density))
    return log_likelihood, score, gate_score, by_units, by_rows


def _complete_blocks(
    block: BlockPosterior, counts: FloatArray, row_counts: FloatArray, q: int, is_lean: bool
) -> FloatArray:
    """Complete-data information of each component, (r, q, q).

    With `is_lean`, a standard deviation with a closed form in the M-step gets its expected
    information, twice the number of rows, and none in common with the coefficients.
    """
    posterior = block.posterior
    if is_lean:
        result = np.zeros((len(counts), q, q))
        grams = weighted_grams(block.z, counts * -posterior.eta2, block.products)
        result[:, :-1, :-1] = grams
        result[:, -1, -1] = 2.0 * row_counts
        return result
    mixed, squared = posterior.eta_tau, posterior.tau2
    return weighted_blocks(
        block,
        -counts * posterior.eta2,
        None if mixed is None else -counts * mixed,
        None if squared is None else -counts * squared,
        q,
    )


def _gate_information(block: BlockPosterior) -> FloatArray:
    """Information of a multinomial logit, ((r - 1)(1 + g), (r - 1)(1 + g))."""
    prior, gate, weight = block.prior, block.gate, block.unit_weight
    r, width = len(prior), gate.shape[1]
    if width == 1:
        counts = weight.sum() * prior[:-1, 0]
        return np.diag(counts) - np.outer(counts, prior[:-1, 0])
    result = np.empty((r - 1, width, r - 1, width))
    for j in range(r - 1):
        for k in range(j, r - 1):
            variance = weight * prior[j] * ((j == k) - prior[k])
            result[j, :, k] = result[k, :, j] = np.dot((gate * variance[:, None]).T, gate)
    return result.reshape((r - 1) * width, (r - 1) * width)
