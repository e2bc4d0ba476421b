r"""Log-likelihood of a mixture, its score and its information, as sums over rows.

Louis' identity (1982) splits the observed information into two parts,

.. math:: I_{observed} = I_{complete} - I_{missing}.

The complete-data information is the conditional mean, given the data, of the information if the
components were known; the missing information is the conditional variance of the complete-data
score. The first alone gives EM steps, the difference Newton steps. A unit is a group, or a row if
there are no groups.

`pass_over_block` sums over one block of units. The missing information has two ways: without groups
and gate, weighted sums of x x' for all pairs of components; otherwise, and with many features, the
product of the matrix of all scores with itself.

With a log prior (`LogPrior`) the same climb ends at the maximum of the posterior. Coefficients and
biases are normal, dispersions log-normal, all independent given the predictor. Weights are
Dirichlet; with a gate its logits and slopes are normal with sum zero instead. The density is one of
coefficients, biases, log dispersions and weight logits, so that the maximum is that of the
posterior in the coordinates of the climb: the Dirichlet density of the logits is proportional to
:math:`\prod_j w_j^{\alpha_j}`. Priors are stated for columns that are centred and scaled one by
one. In the whitened coordinates of the climb, :math:`\tilde\beta = L'\beta` with :math:`LL'` the
covariance of the columns, their precision is a full matrix (`whitened_precision`).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
from moment_init.likelihood.parameters import (
    Layout,
    MixtureParameters,
    component_vectors,
    parameter_count,
)
from moment_init.likelihood.passes import covary_rows, score_units, weigh_rows
from moment_init.likelihood.posterior import (
    BlockPosterior,
    base_measure,
    doubles_per_unit,
    posterior_of_block,
    tables_of,
)
from moment_init.likelihood.rows import (
    LikelihoodRows,
    predictor_pairs,
    run_length,
    weighted_grams,
)
from moment_init.progress import show_pass

_LARGEST_PAIRS_WIDTH = 48
"""With more features, one product of the matrix of all scores is faster than sums for all pairs."""


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
    # log prior, whose derivatives are in the score and the complete-data information, and the count
    # that it adds to every component; None without a prior
    log_prior: float | None = None
    prior_count: float = 0.0

    @property
    def objective(self) -> float:
        """What a climb raises: the log-likelihood, plus the log prior if there is one."""
        return self.log_likelihood + (self.log_prior or 0.0)

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
    family: AnyFamily,
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
    missing = missing and curvature
    # runs of rows hold what the information needs, except for the matrix of all scores
    is_scored = missing and not _has_pairs(rows, parameters)
    extra = parameters.n_components * parameters.layout.size if is_scored else 0
    log_likelihood, score, gate_score, unit_counts, row_counts, *rest = rows.sum(
        pass_over_block,
        family,
        parameters,
        tables_of(family, rows, parameters),
        assigned,
        curvature,
        missing,
        doubles=doubles_per_unit(rows, parameters, extra),
        is_light=not curvature,
    )
    if constant is None:
        constant = parameter_free_log_likelihood(family, rows)
    show_pass(rows.n_units, float(log_likelihood) + constant)
    return LikelihoodSums(
        float(log_likelihood) + constant,
        np.concatenate([score.ravel(), gate_score.ravel()]),
        unit_counts,
        row_counts,
        rest[0] if curvature else None,
        rest[1] if curvature else None,
        rest[2] if missing else None,
        abs(float(log_likelihood)) + abs(constant),
    )


def pass_over_block(
    rows: LikelihoodRows,
    family: AnyFamily,
    parameters: MixtureParameters,
    tables: tuple[FloatArray | None, ...],
    assigned: FloatArray | None,
    curvature: bool,
    missing: bool,
    units: slice,
) -> tuple[FloatArray, ...]:
    """Sum log-likelihood, score, counts and, if asked for, information over a block of units."""
    layout = parameters.layout
    block = posterior_of_block(family, rows, parameters, units, assigned=assigned, tables=tables)
    # before the derivatives are multiplied by responsibilities in place
    absent: tuple[FloatArray, ...] = ()
    grams = None
    if missing and _has_pairs(rows, parameters):
        grams, information = _grams_and_missing(block, layout)
        absent = (information,)
    elif missing:
        absent = (_missing_by_scores(block, layout),)
    _, first, second, tau = block.derivatives
    shares, starts = block.responsibilities, block.starts
    counts = np.empty(first.shape[1:])
    weigh_rows(shares, block.weight, starts, first, second, tau, counts)
    tau_sums = np.vecdot(counts, tau[:, :2])  # (T, 2, n_components)
    row_counts = counts.sum(axis=1)
    unit_counts = row_counts
    if block.is_grouped:
        unit_counts = np.dot(shares, block.unit_weight)
    sums = (
        np.array(np.dot(block.unit_weight, block.log_density)),
        _component_scores(block, tau_sums, layout),
        _gate_score(block, unit_counts),
        unit_counts,
        row_counts,
    )
    if not curvature:
        return sums
    # a closed deviation needs its expected information only
    is_lean = [member.has_closed_deviation and not missing for member in family.predictor_families]
    if grams is None:
        grams = weighted_grams(block.x, second.reshape(-1, second.shape[2]))
    complete = _complete_blocks(block, grams, tau_sums, row_counts, layout, is_lean)
    return (*sums, complete, _gate_information(block), *absent)


def _has_pairs(rows: LikelihoodRows, parameters: MixtureParameters) -> bool:
    """Whether the missing information is summed by pairs of predictors."""
    is_plain = rows.group_starts is None and parameters.gate is None
    return is_plain and parameters.n_features < _LARGEST_PAIRS_WIDTH


def _component_scores(block: BlockPosterior, tau_sums: FloatArray, layout: Layout) -> FloatArray:
    """Scores of the components, (n_components, q), from weighted derivatives."""
    first = block.derivatives.first
    n_predictors, r, n = first.shape
    score = np.empty((r, layout.size))
    slopes = np.dot(first.reshape(-1, n), block.x.T).reshape(n_predictors, r, -1)
    for a, places in enumerate(layout.slopes):
        score[:, places[0] : places[-1] + 1] = slopes[a]
    if len(tau_sums):
        score[:, layout.dispersions] = tau_sums[:, 0].T
    return score


def _gate_score(block: BlockPosterior, unit_counts: FloatArray) -> FloatArray:
    """Score of the logits and the gate's slopes, (n_components - 1, 1 + n_gate)."""
    if block.gate is None:  # the prior is the same for all units
        return (unit_counts[:, None] - block.prior * block.unit_weight.sum())[:-1]
    excess = (block.responsibilities - block.prior) * block.unit_weight
    return np.asarray(np.dot(excess[:-1], block.gate))


def _complete_blocks(
    block: BlockPosterior,
    grams: FloatArray,
    tau_sums: FloatArray,
    row_counts: FloatArray,
    layout: Layout,
    is_lean: list[bool],
) -> FloatArray:
    """Complete-data information of each component, (n_components, q, q), from weighted derivatives.

    `grams` are the sums of x x' weighted by second derivatives. A lean standard deviation gets its
    expected information, twice the number of rows, and none in common with the coefficients.
    """
    _, first, second, tau = block.derivatives
    (n_predictors, r, _), width = first.shape, len(block.x)
    grams = grams.reshape(len(second), r, width, width)
    if layout.size == width:
        return np.asarray(grams[0])
    result = np.zeros((r, layout.size, layout.size))
    spans = [slice(places[0], places[-1] + 1) for places in layout.slopes]
    for gram, (a, b) in zip(grams, predictor_pairs(n_predictors, len(second)), strict=True):
        result[:, spans[a], spans[b]] = gram
        if a != b:
            result[:, spans[b], spans[a]] = gram
    for t, (a, place) in enumerate(zip(layout.dispersed, layout.dispersions, strict=True)):
        result[:, place, place] = 2.0 * row_counts if is_lean[a] else -tau_sums[t, 1]
        if not is_lean[a]:
            mixed = np.dot(tau[t, 2], block.x.T)
            result[:, spans[a], place] = result[:, place, spans[a]] = mixed
    return result


def _gate_information(block: BlockPosterior) -> FloatArray:
    """Information of a multinomial logit, ((r - 1)(1 + g), (r - 1)(1 + g))."""
    prior, gate, weight = block.prior, block.gate, block.unit_weight
    if gate is None:
        shares = prior[:-1, 0]
        return weight.sum() * (np.diag(shares) - shares[:, None] * shares)
    r, width = len(prior), gate.shape[1]
    result = np.empty((r - 1, width, r - 1, width))
    for j in range(r - 1):
        for k in range(j, r - 1):
            variance = weight * prior[j] * ((j == k) - prior[k])
            result[j, :, k] = result[k, :, j] = np.dot((gate * variance[:, None]).T, gate)
    return result.reshape((r - 1) * width, (r - 1) * width)


def _grams_and_missing(block: BlockPosterior, layout: Layout) -> tuple[FloatArray, FloatArray]:
    """Sums of x x' weighted by second derivatives, and the conditional variance of the scores.

    The variance has a weighting of x x' for each pair of predictors: all are summed together.
    """
    # -> (n_second, width, width), (n_parameters, n_parameters)
    _, first, second, tau = block.derivatives
    (n_predictors, r, n), width, n_levels = first.shape, len(block.x), len(tau) + 1
    shares, weight = block.responsibilities, block.weight
    marks = np.ones((r, n_levels, n))  # scores of log dispersions and logits
    marks[:, :-1] = tau[:, 0].transpose(1, 0, 2)
    means = marks * shares[:, None]
    weighted = means * weight
    levels = -np.dot(weighted.reshape(-1, n), means.reshape(-1, n).T)
    for j, own in enumerate(np.matmul(weighted, marks.transpose(0, 2, 1))):
        levels[j * n_levels : (j + 1) * n_levels, j * n_levels : (j + 1) * n_levels] += own
    curved = (-second * (shares * weight)).reshape(-1, n)
    channels = n_predictors * r
    n_pairs, n_mixed = channels * (channels + 1) // 2, channels * n_levels * r
    n_grams = n_pairs + len(curved)
    grams, vectors = np.zeros((n_grams, width, width)), np.zeros((n_mixed, width))
    length = run_length(n_grams + n_mixed, n_mixed * width)
    for begin in range(0, n, length):
        n_rows = min(length, n - begin)
        slopes = np.empty((n_grams, n_rows))
        slopes[n_pairs:] = curved[:, begin : begin + n_rows]
        mixed = np.empty((channels, n_levels * r, n_rows))
        covary_rows(shares, weight, first, marks, begin, slopes[:n_pairs], mixed)
        grams += weighted_grams(block.x, slopes, begin)
        vectors += np.dot(mixed.reshape(n_mixed, -1), block.x[:, begin : begin + n_rows].T)
    vectors = vectors.reshape(channels, -1, width)
    size = r * layout.size + r  # with the logit of the last component, which is dropped
    result = np.empty((size, size))
    at_slopes = [j * layout.size + layout.slopes[a] for j in range(r) for a in range(n_predictors)]
    at_levels = np.concatenate(
        [np.append(j * layout.size + layout.dispersions, r * layout.size + j) for j in range(r)]
    )
    result[np.ix_(at_levels, at_levels)] = levels
    pair = 0
    for c, entries in enumerate(at_slopes):
        for others in at_slopes[c:]:
            result[entries[:, None], others] = grams[pair]
            result[others[:, None], entries] = grams[pair]
            pair += 1
        result[entries[:, None], at_levels] = vectors[c].T
        result[at_levels[:, None], entries] = vectors[c]
    return grams[n_pairs:], result[:-1, :-1]


def _missing_by_scores(block: BlockPosterior, layout: Layout) -> FloatArray:
    """Missing information from the scores of all units under all components.

    Given its unit, the indicator e_j has mean R_j, so that Cov(e_j t_j, e_k t_k) =
    delta_jk R_j t_j t_j' - R_j t_j R_k t_k', and likewise for the gate.
    """
    gate, q = block.gate_design, layout.size
    (n_units, width), r = gate.shape, len(block.responsibilities)
    shares = block.responsibilities * np.sqrt(block.unit_weight)
    means = mean_scores(block, layout, shares, shares)
    missing = -np.dot(means.T, means)
    roots = np.sqrt(block.responsibilities * block.unit_weight)
    for j, root in enumerate(roots):
        design = np.zeros((n_units, q + width))
        _add_scores(block, layout, j, root, design, 0)
        design[:, q:] = gate * root[:, None]
        product = np.dot(design.T, design)
        own, logits = slice(j * q, (j + 1) * q), slice(r * q + j * width, r * q + (j + 1) * width)
        missing[own, own] += product[:q, :q]
        if j < r - 1:
            missing[own, logits] += product[:q, q:]
            missing[logits, own] += product[q:, :q]
            missing[logits, logits] += product[q:, q:]
    return np.asarray(missing)


def mean_scores(
    block: BlockPosterior, layout: Layout, shares: FloatArray, excess: FloatArray
) -> FloatArray:
    """Scores of units under all components times shares, and the gate's covariates times excess."""
    # shares, excess: (r, n_units) -> (n_units, n_parameters)
    gate, q = block.gate_design, layout.size
    (n_units, width), r = gate.shape, len(shares)
    result = np.zeros((n_units, r * q + (r - 1) * width))
    for j, share in enumerate(shares):
        _add_scores(block, layout, j, share, result, j * q)
    logits = excess[: r - 1, :, None] * gate
    result[:, r * q :] = logits.transpose(1, 0, 2).reshape(n_units, -1)
    return result


def _add_scores(
    block: BlockPosterior,
    layout: Layout,
    component: int,
    factor: FloatArray,
    scores: FloatArray,
    begin: int,
) -> None:
    """Add the scores of units under a component, times a factor, to a matrix of scores."""
    _, first, _, tau = block.derivatives
    places = layout.slopes, layout.dispersions
    x, weight, starts = block.x, block.weight, block.starts
    score_units(x, weight, starts, *places, first, tau, component, factor, scores, begin)


def parameter_free_log_likelihood(family: AnyFamily, rows: LikelihoodRows) -> float:
    """Weighted sum of the terms of the log density that do not depend on parameters."""
    doubles = 4 * -(-rows.n_obs // max(1, rows.n_units))
    return float(rows.sum(_base_sum, family, doubles=doubles)[0])


def _base_sum(rows: LikelihoodRows, family: AnyFamily, units: slice) -> tuple[FloatArray, ...]:
    """Sum the terms of a block without parameters; its inputs are not read."""
    block = rows.rows_of(units)
    return (np.array(np.dot(rows.sample_weight[block], base_measure(family, rows, block))),)


def outer_product_information(
    family: AnyFamily, rows: LikelihoodRows, parameters: MixtureParameters
) -> FloatArray:
    """Sum over units of the unit's score times its transpose.

    It is consistent for the information if the model holds and never indefinite; the observed
    information, a difference of two large matrices, may be indefinite on a sample of rows.
    """
    # -> (n_parameters, n_parameters)
    doubles = doubles_per_unit(rows, parameters, 2 * parameter_count(parameters))
    return rows.sum(_outer_products, family, parameters, doubles=doubles)[0]


def _outer_products(
    rows: LikelihoodRows, family: AnyFamily, parameters: MixtureParameters, units: slice
) -> tuple[FloatArray, ...]:
    """Sum the outer products of the scores of a block."""
    block = posterior_of_block(family, rows, parameters, units)
    roots = np.sqrt(block.unit_weight)
    shares = block.responsibilities * roots
    means = mean_scores(block, parameters.layout, shares, shares - block.prior * roots)
    return (np.dot(means.T, means),)


@dataclass(frozen=True, slots=True, eq=False)
class LogPrior:
    """Normal coefficients and biases, log-normal dispersions, Dirichlet weights or normal gates.

    P is the number of linear predictors; entries for dispersions that a predictor does not have are
    not read.
    """

    precision: FloatArray  # of the coefficients; (P, n_features, n_features)
    bias_mean: FloatArray  # (P,)
    bias_deviation: FloatArray  # (P,)
    concentration: float  # Dirichlet parameter of every weight, without a gate
    log_dispersion_mean: FloatArray | None = None  # (P,)
    log_dispersion_deviation: FloatArray | None = None  # (P,)
    gate_deviation: float = 1.0  # of the gate's logits and slopes, before their sum is zero
    log_constant: float = 0.0  # logarithm of the normalising constant
    description: str = ""  # the priors in words

    def add_to(self, sums: LikelihoodSums, parameters: MixtureParameters) -> LikelihoodSums:
        """Add value, gradient and curvature of the log prior to those of the log-likelihood."""
        centre, precision = self._normal(parameters)
        deviations = component_vectors(parameters) - centre  # (r, q)
        pulls = deviations @ precision
        mixing_value, mixing_score, curvature = self._mixing(parameters)
        first, size = pulls.size, len(mixing_score)
        score = sums.score.copy()
        score[:first] -= pulls.ravel()
        score[first : first + size] += mixing_score
        components, gate = sums.component_information, sums.gate_information
        if components is not None and gate is not None:
            gate = gate.copy()
            gate[:size, :size] += curvature
            components = components + precision
        return replace(
            sums,
            score=score,
            component_information=components,
            gate_information=gate,
            log_prior=self.log_constant + mixing_value - 0.5 * float(np.sum(deviations * pulls)),
            prior_count=self.concentration,
        )

    def _normal(self, parameters: MixtureParameters) -> tuple[FloatArray, FloatArray]:
        """Mean (q,) and precision (q, q) of one component's parameters."""
        layout = parameters.layout
        mean, precision = np.zeros(layout.size), np.zeros((layout.size, layout.size))
        for a, places in enumerate(layout.slopes):
            precision[np.ix_(places[:-1], places[:-1])] = self.precision[a]
            mean[places[-1]] = self.bias_mean[a]
            precision[places[-1], places[-1]] = self.bias_deviation[a] ** -2
        if self.log_dispersion_mean is not None and self.log_dispersion_deviation is not None:
            places, owners = layout.dispersions, layout.dispersed
            mean[places] = self.log_dispersion_mean[owners]
            precision[places, places] = self.log_dispersion_deviation[owners] ** -2
        return mean, precision

    def _mixing(self, parameters: MixtureParameters) -> tuple[float, FloatArray, FloatArray]:
        """Value, gradient and curvature for the weights, or for the logits and slopes of a gate."""
        weights, r = parameters.weights, parameters.n_components
        if parameters.gate is None:
            total = r * self.concentration
            return (
                self.concentration * float(np.log(weights).sum()),
                (self.concentration - total * weights)[:-1],
                np.asarray(total * (np.diag(weights) - np.outer(weights, weights))[:-1, :-1]),
            )
        logits = np.concatenate([np.log(weights)[None], parameters.gate])  # (1 + g, r)
        centred = logits - logits.mean(axis=1, keepdims=True)
        precision = self.gate_deviation**-2
        between = precision * (np.eye(r) - 1.0 / r)[:-1, :-1]
        return (
            -0.5 * precision * float(np.square(centred).sum()),
            -precision * centred[:, :-1].T.ravel(),
            np.asarray(np.kron(between, np.eye(len(logits)))),
        )


def whitened_precision(factor: FloatArray, deviations: FloatArray) -> FloatArray:
    r"""Precision of whitened coefficients, for independent ones of columns scaled one by one.

    The coefficients of scaled columns are :math:`D L'^{-1}\tilde\beta`, D the columns' scales.
    """
    # factor: (p, p) lower triangular, deviations: (p,) -> (p, p)
    scales = np.linalg.norm(factor, axis=1)
    root = solve_triangular(factor, np.diag(scales / deviations), lower=True)
    return np.asarray(root @ root.T)
