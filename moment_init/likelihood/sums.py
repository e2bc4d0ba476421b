r"""The missing information: conditional variance of the complete-data score, as sums over units.

Log-likelihood of a mixture, its score and its information, as sums over rows.

With responsibilities R_ji and the score s_ji of component j's own log density in its own
parameters, Louis' identity (1982) splits the observed information into two parts,

.. math:: I_{observed} = I_{complete} - I_{missing},

the conditional mean of the information that would be had if the components were known, and the
conditional variance of the score that was then known. The first alone gives EM steps, the
difference Newton steps.
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
    """Scores of the units of a block, weighted with the roots of the units' weights.

    t_j is the score of component j's own density of a unit in its own parameters.
    """

    by_component: FloatArray  # scores t_j of groups, or R_j t_j of rows; (n_units, n_components, q)
    responsibilities: FloatArray  # responsibilities R_j; (n_units, n_components)
    gate: FloatArray  # A one and the gating covariates; (n_units, 1 + n_gate)
    is_grouped: bool  # whether units are groups
    # room for the means of the complete-data scores; of rows, `by_component` is part of it;
    # (n_units, n_parameters)
    means: FloatArray


class MissingSums(NamedTuple):
    """Sums over units from which the missing information is put together."""

    # sum of outer products of the mean complete-data scores; (n_parameters, n_parameters)
    products: FloatArray
    second_moment: FloatArray  # sum of R_j t_j t_j'; (n_components, q, q)
    gate_cross: FloatArray  # sum of R_j t_j g'; (n_components, q, 1 + n_gate)
    gate_square: FloatArray  # sum of R_j g g'; (n_components, 1 + n_gate, 1 + n_gate)


def missing_of_block(there: BlockPosterior, q: int) -> MissingSums:
    """Sum over the units of a block."""
    scores = block_scores(there, q)
    means = mean_scores(scores, scores.responsibilities)
    u, r = scores.responsibilities.shape
    own = means[:, : r * q].reshape(u, r, q)
    roots = np.sqrt(there.unit_weight)
    counts = there.unit_responsibilities * there.unit_weight
    if there.gate.shape[1] == 1:  # without a gate g = 1
        squares = counts.sum(axis=1)[:, None, None]
        cross = np.dot(roots, means[:, : r * q]).reshape(r, q, 1)
    else:
        gate = there.gate
        squares = np.stack([np.dot((gate * count[:, None]).T, gate) for count in counts])
        weighted = gate * roots[:, None]
        cross = np.stack([np.dot(own[:, j].T, weighted) for j in range(r)])
    seconds = _second_moments(there, scores, own, q)
    return MissingSums(np.dot(means.T, means), seconds, cross, squares)


def _second_moments(
    there: BlockPosterior, scores: BlockScores, own: FloatArray, q: int
) -> FloatArray:
    """Sum over units of R_j t_j t_j', (r, q, q)."""
    posterior = there.posterior
    if there.group_starts is not None:
        by_component = scores.by_component
        pairs = ((own[:, j].T, by_component[:, j]) for j in range(own.shape[1]))
        return np.stack([np.dot(*pair) for pair in pairs])
    counts = posterior.responsibilities * there.weight
    squared, mixed = None, None
    if posterior.tau1 is not None:
        squared, mixed = counts * posterior.tau1**2, counts * posterior.eta1 * posterior.tau1
    return weighted_blocks(there, counts * posterior.eta1**2, mixed, squared, q)


def block_scores(there: BlockPosterior, q: int) -> BlockScores:
    """Scores t_j of every unit; those of a group are sums over its rows."""
    posterior, z = there.posterior, there.z
    (n, p), r = z.shape, len(posterior.eta1)
    is_grouped = there.group_starts is not None
    n_parameters = r * q + (r - 1) * there.gate.shape[1]
    means = np.empty((len(there.gate), n_parameters))
    scores = np.empty((n, r, q)) if is_grouped else means[:, : r * q].reshape(n, r, q)
    # without groups only products with the responsibilities are ever needed
    factor = there.weight if is_grouped else posterior.responsibilities * np.sqrt(there.weight)
    slopes = (posterior.eta1 * factor).T
    np.multiply(slopes[:, :, None], z[:, None, :], out=scores[:, :, :p])
    scores[:, :, p] = slopes
    if posterior.tau1 is not None:
        scores[:, :, p + 1] = (posterior.tau1 * factor).T
    if there.group_starts is not None:
        scores = np.add.reduceat(scores, there.group_starts, axis=0)
    shares = there.unit_responsibilities.T * np.sqrt(there.unit_weight)[:, None]
    return BlockScores(scores, shares, there.gate, is_grouped, means)


def mean_scores(scores: BlockScores, shares: FloatArray) -> FloatArray:
    """Means of the complete-data scores given the unit."""
    # shares: (n_units, n_components) -> (n_units, n_parameters)
    u, r, q = scores.by_component.shape
    width = scores.gate.shape[1]
    result = scores.means
    if scores.is_grouped:
        own = scores.by_component * scores.responsibilities[:, :, None]
        result[:, : r * q] = own.reshape(u, r * q)
    logits = shares[:, : r - 1, None] * scores.gate[:, None, :]
    result[:, r * q :] = logits.reshape(u, (r - 1) * width)
    return result


def weighted_blocks(
    there: BlockPosterior,
    eta: FloatArray,
    mixed: FloatArray | None,
    tau: FloatArray | None,
    q: int,
) -> FloatArray:
    """Sum over rows of [[eta x x', mixed x], [mixed x', tau]] with x = (z, 1)."""
    # eta, mixed, tau: (n_components, n_block) -> (n_components, q, q)
    result = np.empty((len(eta), q, q))
    p = there.z.shape[1]
    result[:, : p + 1, : p + 1] = weighted_grams(there.z, eta, there.products)
    if tau is not None and mixed is not None:
        result[:, :p, -1] = np.dot(mixed, there.z)
        result[:, p, -1] = mixed.sum(axis=1)
        result[:, -1, :-1] = result[:, :-1, -1]
        result[:, -1, -1] = tau.sum(axis=1)
    return result


def assemble_missing(sums: MissingSums) -> FloatArray:
    """Conditional variance of the complete-data score, e_j (t_j, g) with e_j the indicator of j.

    e_j has mean R_j given the unit: Cov(e_j t_j, e_k t_k) = delta_jk R_j t_j t_j' - R_j t_j R_k
    t_k', and likewise for the gate's part.
    """
    # -> (n_parameters, n_parameters)
    r, q, width = sums.gate_cross.shape
    missing = -sums.products
    for j in range(r):
        own = slice(j * q, (j + 1) * q)
        missing[own, own] += sums.second_moment[j]
        if j < r - 1:
            logits = slice(r * q + j * width, r * q + (j + 1) * width)
            missing[own, logits] += sums.gate_cross[j]
            missing[logits, own] += sums.gate_cross[j].T
            missing[logits, logits] += sums.gate_square[j]
    return missing


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodSums:
    """A log-likelihood and its derivatives at one set of parameters."""

    log_likelihood: float  # weighted sum over units of the log density, with all constants
    # its gradient, in the order of `moment_init.likelihood.parameters`; (n_parameters,)
    score: FloatArray
    unit_counts: FloatArray  # expected number of units of each component; (n_components,)
    # expected number of rows of each component; the same where there are no groups;
    # (n_components,)
    row_counts: FloatArray
    # blocks of the complete-data information; None if no curvature was asked for; (n_components,
    # q, q)
    component_information: FloatArray | None
    # complete-data information of the logits and the gate's slopes; (n_gate_parameters,
    # n_gate_parameters)
    gate_information: FloatArray | None
    # conditional variance of the complete-data score; None if it was not asked for; (n_parameters,
    # n_parameters)
    missing_information: FloatArray | None
    # size of the two sums whose difference the log-likelihood is: it is exact to their rounding,
    # which for large counts is far coarser than its own
    magnitude: float = 0.0

    @property
    def complete_information(self) -> FloatArray:
        """Conditional mean of the complete-data information, (n_parameters, n_parameters)."""
        if self.component_information is None or self.gate_information is None:
            raise ValueError("`curvature` must be True in `likelihood_sums` for an information.")
        r, q, _ = self.component_information.shape
        result = np.zeros((len(self.score), len(self.score)))
        for component, own in enumerate(self.component_information):
            at = slice(component * q, (component + 1) * q)
            result[at, at] = own
        result[r * q :, r * q :] = self.gate_information
        return result

    def information(self, damping: float = 0.0) -> FloatArray:
        """Information between the observed one and the complete-data one."""
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

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        there = posterior_of_block(family, rows, parameters, block, assigned)
        counts = there.posterior.responsibilities * there.weight
        sums = _first_order(there, counts, q)
        if not curvature:
            return sums
        is_lean = family.has_closed_deviation and not missing
        complete = _complete_blocks(there, counts, sums[-1], q, is_lean)
        sums = (*sums, complete, _gate_information(there))
        return (*sums, *missing_of_block(there, q)) if missing else sums

    # Blocks are cut as if rows were copied once: the weighted copies of all components are written
    # and read in long runs, for which smaller blocks would cost more calls than they save.
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
    """Weighted sum of the terms of the log density that no parameter enters."""
    y, weight, n_trials = rows.y, rows.sample_weight, rows.n_trials  # inputs are not read for it

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        trials = None if n_trials is None else n_trials[block]
        terms = family.log_base_measure(y[block], n_trials=trials)
        return (np.array(np.dot(weight[block], terms)),)

    return float(sum_over_blocks(sum_block, rows.n_obs, 4, source=rows.source)[0])


def outer_product_information(
    family: Family, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Sum over units of the unit's score times its transpose.

    Consistent for the information where the model holds, and never indefinite, which the observed
    information, a difference of two large matrices, may be on a sample of rows.
    """
    # -> (n_parameters, n_parameters)
    q = component_size(parameters)
    n_parameters = parameter_count(parameters)

    def sum_block(block: slice) -> tuple[FloatArray, ...]:
        there = posterior_of_block(family, rows, parameters, block)
        shares = (there.unit_responsibilities - there.prior).T * np.sqrt(there.unit_weight)[:, None]
        scores = mean_scores(block_scores(there, q), shares)
        return (np.dot(scores.T, scores),)

    doubles = doubles_per_unit(rows, parameters, 2 * n_parameters)
    return sum_over_blocks(sum_block, rows.n_units, doubles, source=rows.source)[0]


def _first_order(there: BlockPosterior, row_counts: FloatArray, q: int) -> tuple[FloatArray, ...]:
    """Log-likelihood, scores of components (r, q) and gate (r - 1, 1 + g), counts (r,) twice."""
    posterior, z = there.posterior, there.z
    p = z.shape[1]
    unit_counts = row_counts
    if there.group_starts is not None:
        unit_counts = there.unit_responsibilities * there.unit_weight
    slopes = row_counts * posterior.eta1
    score = np.empty((len(slopes), q))
    score[:, :p] = np.dot(slopes, z)
    score[:, p] = slopes.sum(axis=1)
    if posterior.tau1 is not None:
        score[:, p + 1] = np.einsum("ji,ji->j", row_counts, posterior.tau1)
    by_rows = row_counts.sum(axis=1)
    by_units = by_rows if there.group_starts is None else unit_counts.sum(axis=1)
    if there.gate.shape[1] == 1:  # without a gate the prior is the same for all units
        excess = by_units[:, None] - there.prior * there.unit_weight.sum()
        gate_score = excess[:-1]
    else:
        gate_score = np.dot((unit_counts - there.prior * there.unit_weight)[:-1], there.gate)
    log_likelihood = np.array(np.dot(there.unit_weight, posterior.log_density))
    return log_likelihood, score, gate_score, by_units, by_rows


def _complete_blocks(
    there: BlockPosterior, counts: FloatArray, row_counts: FloatArray, q: int, is_lean: bool
) -> FloatArray:
    """Expected information of each component's own density, (r, q, q).

    A standard deviation that has a closed form in an M-step is given its mean information, twice
    the number of rows, and none in common with the coefficients.
    """
    posterior = there.posterior
    if is_lean:
        result = np.zeros((len(counts), q, q))
        grams = weighted_grams(there.z, counts * -posterior.eta2, there.products)
        result[:, :-1, :-1] = grams
        result[:, -1, -1] = 2.0 * row_counts
        return result
    mixed, squared = posterior.eta_tau, posterior.tau2
    return weighted_blocks(
        there,
        -counts * posterior.eta2,
        None if mixed is None else -counts * mixed,
        None if squared is None else -counts * squared,
        q,
    )


def _gate_information(there: BlockPosterior) -> FloatArray:
    """Information of a multinomial logit, ((r - 1)(1 + g), (r - 1)(1 + g))."""
    prior, gate, weight = there.prior, there.gate, there.unit_weight
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
