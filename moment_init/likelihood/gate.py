r"""A gate made of Gaussian densities of the gating covariates, and its joint likelihood.

In the alternative mixture of experts of Xu, Jordan and Hinton (1995) each component has a density
of the gating covariates as well as of the response,

.. math:: \pi_j(g) = \frac{\alpha_j N(g; m_j, S_j)}{\sum_k \alpha_k N(g; m_k, S_k)}.

The log density is linear in the statistics T(g) = (1, g, products of g), so this gate is a
multinomial logit of T(g) whose slopes are those of the log densities. The joint likelihood of
gating covariates and response is

.. math:: \sum_i \log \sum_j \alpha_j N(g_i; m_j, S_j) f(y_i \mid x_i, j).

Responsibilities and the missing information come from the same sums over rows as for a logit; the
M-step of the gate has a closed form.

The vector of parameters is that of `moment_init.likelihood.parameters` without a gate, with the
logits of alpha, followed by that of the gate: for each component its means and then the lower
triangle of the root L_j of S_j = L_j L_j', row by row, with logarithms on the diagonal. Every real
vector is then a valid gate.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, cho_solve, solve_triangular
from scipy.special import logsumexp

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import free_step
from moment_init.likelihood.em_step import em_step
from moment_init.likelihood.parameters import (
    LARGEST_LOG_DISPERSION_STEP,
    ActiveBound,
    LinearConstraint,
    MixtureParameters,
    ParameterBounds,
    active_bounds,
    component_size,
    enforce,
    move,
    parameter_count,
)
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.likelihood.sums import (
    LikelihoodSums,
    LogPrior,
    likelihood_sums,
    parameter_free_log_likelihood,
)

_CLOSE = 1e-8
"""An eigenvalue counts as on its floor within this relative distance: `raise_to_floor` leaves a
relative rounding error of about 1e-16 over the floor."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianGate:
    """Gaussian densities of the gating covariates, one for each component.

    Parameters
    ----------
    means : numpy.ndarray, shape (n_gate, n_components)
        Means, one column per component.
    roots : numpy.ndarray, shape (n_components, n_gate, n_gate)
        Lower triangular roots of the covariances, with a positive diagonal.
    """

    means: FloatArray
    roots: FloatArray

    @property
    def n_gate(self) -> int:
        """Number of gating covariates."""
        return int(self.means.shape[0])

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.means.shape[1])

    @property
    def covariances(self) -> FloatArray:
        """Covariances of the densities, (n_components, n_gate, n_gate)."""
        return self.roots @ self.roots.transpose(0, 2, 1)

    @property
    def slopes(self) -> FloatArray:
        """Coefficients of the statistics in the log densities, (1 + n_statistics, n_components)."""
        below = np.tril_indices(self.n_gate)
        factor = np.where(below[0] == below[1], 0.5, 1.0)
        columns = []
        for mean, root in zip(self.means.T, self.roots, strict=True):
            precision = _precision(root)
            linear = precision @ mean
            log_volume = np.log(np.diag(root)).sum() + 0.5 * self.n_gate * np.log(2 * np.pi)
            constant = -0.5 * mean @ linear - log_volume
            columns.append(np.concatenate([[constant], linear, -factor * precision[below]]))
        return np.stack(columns, axis=1)

    @classmethod
    def of_slopes(cls, slopes: FloatArray, n_gate: int) -> "GaussianGate | None":
        """Recover the densities from `slopes`; None if they are not those of any."""
        below = np.tril_indices(n_gate)
        factor = np.where(below[0] == below[1], 0.5, 1.0)
        means, roots = [], []
        for column in slopes.T:
            precision = np.zeros((n_gate, n_gate))
            precision[below] = -column[1 + n_gate :] / factor
            precision = np.tril(precision) + np.tril(precision, -1).T
            try:
                root = np.linalg.cholesky(precision)
            except np.linalg.LinAlgError:
                return None
            means.append(cho_solve((root, True), column[1 : 1 + n_gate]))
            roots.append(np.linalg.cholesky(cho_solve((root, True), np.eye(n_gate))))
        return cls(np.stack(means, axis=1), np.stack(roots))

    def reorder(self, order: NDArray[np.intp]) -> "GaussianGate":
        """Reorder the components."""
        # order: (n_components,)
        return GaussianGate(self.means[:, order], self.roots[order])

    def rescale(self, shift: FloatArray, scales: FloatArray) -> "GaussianGate":
        """Densities of the covariates after scaling and then shifting them."""
        # shift, scales: (n_gate,)
        means = shift[:, None] + scales[:, None] * self.means
        return GaussianGate(means, scales[:, None] * self.roots)


@dataclass(frozen=True, slots=True, eq=False)
class GateDerivatives:
    """Derivatives of a gate with respect to its vector, component by component."""

    # expected statistics (g, products) of each component; (n_components, size)
    mean_statistics: FloatArray
    # derivatives of the natural parameters (rows) in the component's parameters (columns);
    # (n_components, size, size)
    of_slopes: FloatArray
    of_means: FloatArray  # derivatives of the expected statistics; (n_components, size, size)
    # derivatives of the covariances; (n_components, n_gate, n_gate, size)
    of_covariances: FloatArray

    @property
    def information(self) -> FloatArray:
        """Information of one draw from each component's density, (n_components, size, size)."""
        return self.of_slopes.transpose(0, 2, 1) @ self.of_means


def gate_size(n_gate: int) -> int:
    """Number of parameters of one Gaussian density."""
    return n_gate + n_gate * (n_gate + 1) // 2


def gate_statistics(covariates: FloatArray) -> FloatArray:
    """Sufficient statistics of Gaussian densities: a one, the covariates and their products."""
    # covariates: (n, n_gate) -> (n, 1 + n_statistics)
    first, second = np.tril_indices(covariates.shape[1])
    ones = np.ones((len(covariates), 1))
    return np.concatenate([ones, covariates, covariates[:, first] * covariates[:, second]], axis=1)


def log_gate_density(parameters: MixtureParameters, statistics: FloatArray) -> FloatArray:
    r"""Log density of the gating covariates, :math:`\log \sum_j \alpha_j N(g; m_j, S_j)`."""
    # statistics: (n, 1 + n_statistics) -> (n,)
    if parameters.gate is None:
        raise ValueError("`parameters` must have a gate; got None. Give it a gate's `slopes`.")
    return np.asarray(logsumexp(statistics @ parameters.gate + np.log(parameters.weights), axis=1))


def gate_derivatives(gate: GaussianGate) -> GateDerivatives:
    """Differentiate a gate with respect to its vector."""
    parts = [
        _differentiate(mean, root) for mean, root in zip(gate.means.T, gate.roots, strict=True)
    ]
    return GateDerivatives(*(np.stack(part) for part in zip(*parts, strict=True)))


def pack_gate(gate: GaussianGate) -> FloatArray:
    """Write a gate as an unconstrained vector."""
    # -> (n_components * size,)
    logged = gate.roots.copy()
    diagonal = np.arange(gate.n_gate)
    logged[:, diagonal, diagonal] = np.log(gate.roots[:, diagonal, diagonal])
    first, second = np.tril_indices(gate.n_gate)
    return np.concatenate([gate.means.T, logged[:, first, second]], axis=1).ravel()


def unpack_gate(vector: FloatArray, like: GaussianGate) -> GaussianGate:
    """Read a gate from a vector; the inverse of `pack_gate`."""
    # vector: (n_components * size,)
    blocks = vector.reshape(like.n_components, gate_size(like.n_gate))
    roots = np.zeros_like(like.roots)
    first, second = np.tril_indices(like.n_gate)
    roots[:, first, second] = blocks[:, like.n_gate :]
    diagonal = np.arange(like.n_gate)
    roots[:, diagonal, diagonal] = np.exp(roots[:, diagonal, diagonal])
    return GaussianGate(np.ascontiguousarray(blocks[:, : like.n_gate].T), roots)


def move_gate(gate: GaussianGate, step: FloatArray) -> GaussianGate:
    """Take a step in the coordinates of `pack_gate`."""
    # step: (n_components * size,)
    limited = step.reshape(gate.n_components, -1).copy()
    first, second = np.tril_indices(gate.n_gate)
    logs = gate.n_gate + np.flatnonzero(first == second)
    limit = LARGEST_LOG_DISPERSION_STEP
    limited[:, logs] = np.clip(limited[:, logs], -limit, limit)
    return unpack_gate(pack_gate(gate) + limited.ravel(), gate)


def raise_to_floor(covariance: FloatArray, pooled_root: FloatArray, floor: float) -> FloatArray:
    """Root of the nearest covariance that is at least `floor` times the pooled one everywhere.

    Among all covariances above the floor it has the highest Gaussian likelihood for rows with the
    given covariance, so EM still climbs.
    """
    # covariance: (n_gate, n_gate), pooled_root: (n_gate, n_gate) -> (n_gate, n_gate)
    values, vectors = np.linalg.eigh(_whitened(covariance, pooled_root))
    if values[0] >= floor:
        return np.linalg.cholesky(covariance)
    axes = pooled_root @ vectors
    return np.linalg.cholesky((axes * np.maximum(values, floor)) @ axes.T)


def shrunken_directions(root: FloatArray, pooled_root: FloatArray, floor: float) -> FloatArray:
    """Directions in which a covariance lies on its floor."""
    # root, pooled_root: (n_gate, n_gate) -> (n_gate, n_directions)
    values, vectors = np.linalg.eigh(_whitened(root @ root.T, pooled_root))
    is_low = values <= floor * (1 + _CLOSE)
    return np.asarray(solve_triangular(pooled_root, vectors[:, is_low], lower=True, trans="T"))


def _whitened(covariance: FloatArray, pooled_root: FloatArray) -> FloatArray:
    half = solve_triangular(pooled_root, covariance, lower=True)
    return np.asarray(solve_triangular(pooled_root, half.T, lower=True))


def _precision(root: FloatArray) -> FloatArray:
    return np.asarray(cho_solve((root, True), np.eye(len(root))))


def _differentiate(
    mean: FloatArray, root: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Mean statistics of one density, and its derivatives as in `GateDerivatives`."""
    n_gate, precision = len(mean), _precision(root)
    below = np.tril_indices(n_gate)
    factor = np.where(below[0] == below[1], 0.5, 1.0)
    size = gate_size(n_gate)
    of_slopes, of_means = np.empty((size, size)), np.empty((size, size))
    of_covariance = np.zeros((n_gate, n_gate, size))
    for column in range(size):
        shift, turned = np.zeros(n_gate), np.zeros((n_gate, n_gate))
        if column < n_gate:
            shift[column] = 1.0
        else:
            row, other = (int(index[column - n_gate]) for index in below)
            turned[row, other] = root[row, row] if row == other else 1.0
        half = turned @ root.T
        changed = half + half.T
        tightened = precision @ changed @ precision
        of_slopes[:, column] = np.concatenate(
            [precision @ shift - tightened @ mean, factor * tightened[below]]
        )
        moved = np.outer(shift, mean)
        of_means[:, column] = np.concatenate([shift, (changed + moved + moved.T)[below]])
        of_covariance[:, :, column] = changed
    second = root @ root.T + np.outer(mean, mean)
    return np.concatenate([mean, second[below]]), of_slopes, of_means, of_covariance


SMALLEST_COUNT = 1e-6
"""A component with fewer expected units keeps its density of the gating covariates: its moments are
differences of sums over all units, and would be rounding errors."""


@dataclass(frozen=True, slots=True, eq=False)
class GatedMixture:
    """A mixture of experts with a Gaussian gate."""

    mixture: MixtureParameters  # the experts and the weights alpha, without a gate
    gate: GaussianGate  # densities of the gating covariates

    @property
    def as_logit(self) -> MixtureParameters:
        """The same mixture given the gating covariates: a multinomial logit of their statistics."""
        return replace(self.mixture, gate=self.gate.slopes)

    def reorder(self, order: NDArray[np.intp]) -> "GatedMixture":
        """Reorder the components."""
        # order: (n_components,)
        return GatedMixture(self.mixture.reorder(order), self.gate.reorder(order))


@dataclass(frozen=True, slots=True, eq=False)
class GatedLikelihood:
    """The joint likelihood of gating covariates and response, to be climbed."""

    family: AnyFamily
    rows: LikelihoodRows  # rows whose gate holds the statistics of the gating covariates
    bounds: ParameterBounds  # bounds of the experts and weights
    mixture_constraint: LinearConstraint | None  # on the vector of experts and weights
    constraint: LinearConstraint | None  # the same constraint on the whole vector of parameters
    constant: float | None  # part of the log-likelihood that does not depend on parameters
    pooled_root: FloatArray  # root of the covariance of the gating covariates; (n_gate, n_gate)
    # smallest ratio of a component's variance to the pooled variance, in any direction
    floor: float
    prior: LogPrior | None = None  # of experts and weights

    def sums(self, parameters: GatedMixture, *, missing: bool) -> LikelihoodSums:
        """Log-likelihood, score and information of all parameters."""
        logit, mixture = parameters.as_logit, parameters.mixture
        log_density, prior_totals = _gate_sums(self.rows, logit)
        constant = self.constant
        if constant is None:
            constant = parameter_free_log_likelihood(self.family, self.rows)
        sums = likelihood_sums(
            self.family, self.rows, logit, missing=missing, constant=constant + log_density
        )
        derivatives = gate_derivatives(parameters.gate)
        r, q = mixture.n_components, component_size(mixture)
        logit_scores = sums.score[r * q :].reshape(r - 1, 1 + logit.n_gate)
        totals = _posterior_totals(logit_scores, prior_totals)
        counts, weights = sums.unit_counts, mixture.weights
        excess = totals - counts[:, None] * derivatives.mean_statistics
        gate_score = np.einsum("jts,jt->js", derivatives.of_slopes, excess)
        logit_score = counts - counts.sum() * weights
        logit_information = counts.sum() * (np.diag(weights) - np.outer(weights, weights))
        gate_blocks = counts[:, None, None] * derivatives.information
        missing_information = sums.missing_information
        if missing_information is not None:
            lift = _missing_map(mixture, derivatives)
            missing_information = lift @ missing_information @ lift.T
        joint = replace(
            sums,
            score=np.concatenate([sums.score[: r * q], logit_score[:-1], gate_score.ravel()]),
            gate_information=np.asarray(block_diag(logit_information[:-1, :-1], *gate_blocks)),
            missing_information=missing_information,
        )
        return joint if self.prior is None else self.prior.add_to(joint, mixture)

    def moved(self, parameters: GatedMixture, step: FloatArray) -> GatedMixture:
        """Take a step that ends inside the bounds and on the constraint."""
        # step: (n_parameters,)
        size = parameter_count(parameters.mixture)
        gate = move_gate(parameters.gate, step[size:])
        return GatedMixture(
            self._moved_mixture(parameters.mixture, step[:size]),
            self.floored(gate.means, gate.covariances),
        )

    def em_moved(
        self, parameters: GatedMixture, sums: LikelihoodSums, share: float
    ) -> GatedMixture:
        """Take a share of an EM step of the mixture, and a whole M-step of the gate."""
        mixture, constraint = parameters.mixture, self.mixture_constraint
        mixture_sums = _mixture_sums(sums, mixture)
        step = em_step(self.family, mixture_sums, mixture) if constraint is None else None
        if step is None:
            basis = None if constraint is None else constraint.basis
            step = free_step(mixture_sums, basis, 1.0)[0]
        return GatedMixture(
            self._moved_mixture(mixture, share * step), self._fitted_gate(parameters, sums)
        )

    def active(self, parameters: GatedMixture) -> list[ActiveBound]:
        """Find the bounds on which the parameters lie."""
        size = gate_size(parameters.gate.n_gate) * parameters.gate.n_components
        bounds = [
            replace(bound, inward=np.append(bound.inward, np.zeros(size)))
            for bound in active_bounds(parameters.mixture, self.bounds)
        ]
        return bounds + self._active_covariances(parameters)

    def floored(self, means: FloatArray, covariances: FloatArray) -> GaussianGate:
        """Build densities with covariances raised to their floor."""
        # means: (n_gate, n_components), covariances: (n_components, n_gate, n_gate)
        roots = [
            raise_to_floor(covariance, self.pooled_root, self.floor) for covariance in covariances
        ]
        return GaussianGate(means, np.stack(roots))

    def gate_of(self, counts: FloatArray, totals: FloatArray) -> GaussianGate:
        """M-step of the gate: means and covariances of the units, from totals of the statistics."""
        # counts: (n_components,), totals: (n_components, n_statistics)
        n_gate = len(self.pooled_root)
        first, second = np.tril_indices(n_gate)
        averages = totals / counts[:, None]
        means = averages[:, :n_gate]
        squares = np.empty((len(counts), n_gate, n_gate))
        squares[:, first, second] = squares[:, second, first] = averages[:, n_gate:]
        covariances = squares - means[:, :, None] * means[:, None, :]
        return self.floored(np.ascontiguousarray(means.T), covariances)

    def _moved_mixture(self, mixture: MixtureParameters, step: FloatArray) -> MixtureParameters:
        inside = enforce(move(mixture, step), self.bounds)
        constraint = self.mixture_constraint
        return inside if constraint is None else constraint.project(inside, mixture)

    def _fitted_gate(self, parameters: GatedMixture, sums: LikelihoodSums) -> GaussianGate:
        """M-step of the gate from its score, J'(sum of R T - count * mean of T)."""
        gate, slopes = parameters.gate, gate_derivatives(parameters.gate)
        size = gate_size(gate.n_gate)
        score = sums.score[-size * gate.n_components :].reshape(-1, size, 1)
        excess = np.linalg.solve(slopes.of_slopes.transpose(0, 2, 1), score)[:, :, 0]
        counts = np.maximum(sums.unit_counts, SMALLEST_COUNT)
        has_units = (sums.unit_counts > SMALLEST_COUNT)[:, None]
        averages = slopes.mean_statistics + np.where(has_units, excess / counts[:, None], 0.0)
        return self.gate_of(np.ones(gate.n_components), averages)

    def _active_covariances(self, parameters: GatedMixture) -> list[ActiveBound]:
        """Bounds for directions v, w at the floor: v'Sv has a lower bound, and v'Sw is fixed."""
        gate, slopes = parameters.gate, gate_derivatives(parameters.gate)
        size, first = gate_size(gate.n_gate), parameter_count(parameters.mixture)
        bounds = []
        for j, root in enumerate(gate.roots):
            directions = shrunken_directions(root, self.pooled_root, self.floor)
            changes = np.einsum("av,bw,abs->vws", directions, directions, slopes.of_covariances[j])
            label = f"gate covariance of component {j}"
            for v, w in zip(*np.tril_indices(directions.shape[1]), strict=True):
                inward = np.zeros(first + size * gate.n_components)
                inward[first + j * size : first + (j + 1) * size] = changes[v, w]
                bounds.append(ActiveBound(label, inward))
                if v != w:  # fixed: two opposite bounds
                    bounds.append(ActiveBound(label, -inward))
        return bounds


def unit_values(rows: LikelihoodRows, units: slice = slice(None)) -> tuple[FloatArray, FloatArray]:
    """Gating covariates (or their statistics) and weights of units."""
    # -> (n_units, n_columns), (n_units,)
    covariates = np.empty((rows.n_obs, 0)) if rows.gate is None else rows.gate
    if rows.group_starts is None:
        return covariates[units], rows.sample_weight[units]
    starts = rows.group_starts[units]
    return covariates[starts], np.ones(len(starts))


def _gate_sums(rows: LikelihoodRows, logit: MixtureParameters) -> tuple[float, FloatArray]:
    """Log-likelihood of the gating covariates, and totals of T weighted by the gate, (r, t)."""
    doubles = 1 + rows.n_gate + 4 * logit.n_components
    log_likelihood, totals = rows.sum(_gate_block, logit, doubles=doubles)
    return float(log_likelihood), np.asarray(totals)


def _gate_block(
    rows: LikelihoodRows, logit: MixtureParameters, units: slice
) -> tuple[FloatArray, ...]:
    """Sum log densities and statistics of a block of units."""
    statistics, weight = unit_values(rows, units)
    log_density = log_gate_density(logit, statistics)
    joint = statistics @ np.asarray(logit.gate) + np.log(logit.weights)
    prior = np.exp(joint - log_density[:, None]) * weight[:, None]
    return np.array(weight @ log_density), prior.T @ statistics[:, 1:]


def _posterior_totals(logit_scores: FloatArray, prior_totals: FloatArray) -> FloatArray:
    """Totals of T weighted by the responsibilities, from the scores of a logit of (1, 1, T).

    A score is the total by responsibilities minus the total by the gate; summed over components,
    both are the total of T.
    """
    excess = logit_scores[:, 2:]
    return np.asarray(prior_totals + np.concatenate([excess, -excess.sum(axis=0)[None]]))


def _mixture_sums(sums: LikelihoodSums, mixture: MixtureParameters) -> LikelihoodSums:
    """Keep the part of the sums that belongs to experts and weights."""
    size, n_logits = parameter_count(mixture), mixture.n_components - 1
    information = sums.gate_information
    return replace(
        sums,
        score=sums.score[:size],
        gate_information=None if information is None else information[:n_logits, :n_logits],
        missing_information=None,
    )


def _missing_map(mixture: MixtureParameters, slopes: GateDerivatives) -> FloatArray:
    """Matrix that maps complete-data scores of a logit of (1, 1, T) to those of the densities.

    With e_j the indicator of component j, the logit's scores are e_j (1, 1, T) for all components
    but the last, and the densities' are J_j' (e_j T - e_j E_j T); the last indicator is one minus
    the others. Terms that are constant given the unit have no variance and are left out.
    """
    r, q = mixture.n_components, component_size(mixture)
    size = slopes.mean_statistics.shape[1]
    width, first = size + 2, r * q + r - 1
    result = np.zeros((first + r * size, r * q + (r - 1) * width))
    result[: r * q, : r * q] = np.eye(r * q)
    for k in range(r - 1):
        at = r * q + k * width
        result[r * q + k, at] = 1.0
        for j, sign in ((k, 1.0), (r - 1, -1.0)):
            entries = slice(first + j * size, first + (j + 1) * size)
            turned = sign * slopes.of_slopes[j].T
            result[entries, at] = -turned @ slopes.mean_statistics[j]
            result[entries, at + 2 : at + width] = turned
    return result
