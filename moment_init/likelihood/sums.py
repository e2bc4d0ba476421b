r"""Log-likelihood of a mixture, its score and its information, as sums over rows.

With responsibilities R_ji and the score s_ji of component j's own log density in its own
parameters, Louis' identity (1982) splits the observed information into two parts,

.. math:: I_{observed} = I_{complete} - I_{missing},

the conditional mean of the information that would be had if the components were known, and the
conditional variance of the score that was then known. The first alone gives EM steps, the
difference Newton steps.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.blocks import sum_over_blocks
from moment_init.families import Family
from moment_init.likelihood.missing import (
    MissingSums,
    assemble_missing,
    block_scores,
    mean_scores,
    missing_of_block,
    weighted_blocks,
)
from moment_init.likelihood.parameters import MixtureParameters, component_size, parameter_count
from moment_init.likelihood.posterior import (
    BlockPosterior,
    doubles_per_unit,
    posterior_of_block,
)
from moment_init.likelihood.products import weighted_grams
from moment_init.likelihood.rows import LikelihoodRows

__all__ = [
    "LikelihoodSums",
    "likelihood_sums",
    "outer_product_information",
    "parameter_free_log_likelihood",
]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LikelihoodSums:
    """A log-likelihood and its derivatives at one set of parameters.

    Parameters
    ----------
    log_likelihood : float
        Weighted sum over units of the log density, with all constants.
    score : numpy.ndarray, shape (n_parameters,)
        Its gradient, in the order of `moment_init.likelihood.parameters`.
    unit_counts : numpy.ndarray, shape (n_components,)
        Expected number of units of each component.
    row_counts : numpy.ndarray, shape (n_components,)
        Expected number of rows of each component; the same where there are no groups.
    component_information : numpy.ndarray, shape (n_components, q, q), or None
        Blocks of the complete-data information; None if no curvature was asked for.
    gate_information : numpy.ndarray, shape (n_gate_parameters, n_gate_parameters), or None
        Complete-data information of the logits and the gate's slopes.
    missing_information : numpy.ndarray, shape (n_parameters, n_parameters), or None
        Conditional variance of the complete-data score; None if it was not asked for.
    magnitude : float, default 0.0
        Size of the two sums whose difference the log-likelihood is: it is exact to their rounding,
        which for large counts is far coarser than its own.
    """

    log_likelihood: float
    score: FloatArray
    unit_counts: FloatArray
    row_counts: FloatArray
    component_information: FloatArray | None
    gate_information: FloatArray | None
    missing_information: FloatArray | None
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
        """Information between the observed one and the complete-data one.

        Parameters
        ----------
        damping : float, default 0.0
            0 for the observed information, 1 for the complete-data one.

        Returns
        -------
        numpy.ndarray, shape (n_parameters, n_parameters)
            ``complete - (1 - damping) * missing``.

        Raises
        ------
        ValueError
            If the sums were made without the curvature that is needed.
        """
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
    """Sum log-likelihood, score and information over all rows.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.
    parameters : MixtureParameters
        Where to evaluate.
    curvature : bool, default True
        Whether to sum information too; without it a pass costs O(n p r).
    missing : bool, default True
        Whether that includes the missing information, at O(n p^2 r^2); EM needs only the
        complete-data one, at O(n p^2 r), in which a standard deviation with a closed form then has
        its mean information.
    constant : float, optional
        `parameter_free_log_likelihood` of these rows, for callers that evaluate often.
    assigned : numpy.ndarray, shape (n_components, n_units), optional
        Responsibilities that are given, for an M-step that is not preceded by an E-step; the
        log-likelihood is then the expected complete-data one.

    Returns
    -------
    LikelihoodSums
        The sums.

    Raises
    ------
    ValueError
        If responsibilities are given for rows that are not in memory.
    """
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
    """Weighted sum of the terms of the log density that no parameter enters.

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows.

    Returns
    -------
    float
        The sum.
    """
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

    Parameters
    ----------
    family : Family
        The response family.
    rows : LikelihoodRows
        The rows; a row of weight v counts as v rows.
    parameters : MixtureParameters
        Where to evaluate.

    Returns
    -------
    numpy.ndarray, shape (n_parameters, n_parameters)
        Symmetric and positive semi-definite.
    """
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
