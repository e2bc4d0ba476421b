r"""A gate made of Gaussian densities of the gating covariates.

In the alternative mixture of experts of Xu, Jordan and Hinton (1995) a component has a density of
the gating covariates beside that of the response,

.. math:: \pi_j(g) = \frac{\alpha_j N(g; m_j, S_j)}{\sum_k \alpha_k N(g; m_k, S_k)}.

The log density is linear in the statistics T(g) = (1, g, products of g), so that this gate is a
multinomial logit of T(g) whose slopes are those of the log densities.

Where a vector of a gate's parameters appears, a component has its means and then the lower triangle
of the root L_j of S_j = L_j L_j', row by row, with logarithms on the diagonal; any vector is a gate
then.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import logsumexp

from moment_init.likelihood.parameters import LARGEST_LOG_DISPERSION_STEP, MixtureParameters

__all__ = [
    "GateDerivatives",
    "GaussianGate",
    "gate_derivatives",
    "gate_size",
    "gate_statistics",
    "log_gate_density",
    "move_gate",
    "pack_gate",
    "raise_to_floor",
    "shrunken_directions",
    "unpack_gate",
]

FloatArray = NDArray[np.float64]

_CLOSE = 1e-8
"""An eigenvalue is on its floor when it is this close, relative: `raise_to_floor` leaves it within
a rounding error of about 1e-16 over the floor."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianGate:
    """Gaussian densities of the gating covariates, one for each component.

    Parameters
    ----------
    means : numpy.ndarray, shape (n_gate, n_components)
        Their means, one column for each component.
    roots : numpy.ndarray, shape (n_components, n_gate, n_gate)
        Lower triangular roots of their covariances, with a positive diagonal.
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

    def reorder(self, order: NDArray[np.intp]) -> "GaussianGate":
        """Take the components in another order.

        Parameters
        ----------
        order : numpy.ndarray of int, shape (n_components,)
            Which component comes first, second, and so on.

        Returns
        -------
        GaussianGate
            The densities in that order.
        """
        return GaussianGate(self.means[:, order], self.roots[order])

    def rescale(self, shift: FloatArray, scales: FloatArray) -> "GaussianGate":
        """Densities of covariates that are scaled and then shifted.

        Parameters
        ----------
        shift, scales : numpy.ndarray, shape (n_gate,)
            The covariates become ``shift + scales * g``.

        Returns
        -------
        GaussianGate
            Their densities.
        """
        means = shift[:, None] + scales[:, None] * self.means
        return GaussianGate(means, scales[:, None] * self.roots)


@dataclass(frozen=True, slots=True, eq=False)
class GateDerivatives:
    """Derivatives of a gate in its vector, component by component.

    Parameters
    ----------
    mean_statistics : numpy.ndarray, shape (n_components, size)
        Expected statistics (g, products) of each component.
    of_slopes : numpy.ndarray, shape (n_components, size, size)
        Derivatives of the natural parameters (rows) in the component's own parameters (columns).
    of_means : numpy.ndarray, shape (n_components, size, size)
        Derivatives of the expected statistics.
    of_covariances : numpy.ndarray, shape (n_components, n_gate, n_gate, size)
        Derivatives of the covariances.
    """

    mean_statistics: FloatArray
    of_slopes: FloatArray
    of_means: FloatArray
    of_covariances: FloatArray

    @property
    def information(self) -> FloatArray:
        """Information of one draw from each component's density, (n_components, size, size)."""
        return self.of_slopes.transpose(0, 2, 1) @ self.of_means


def gate_size(n_gate: int) -> int:
    """Number of parameters of one Gaussian density.

    Parameters
    ----------
    n_gate : int
        Number of gating covariates, g.

    Returns
    -------
    int
        g + g (g + 1) / 2.
    """
    return n_gate + n_gate * (n_gate + 1) // 2


def gate_statistics(covariates: FloatArray) -> FloatArray:
    """Sufficient statistics of Gaussian densities: a one, the covariates and their products.

    Parameters
    ----------
    covariates : numpy.ndarray, shape (n, n_gate)
        Gating covariates.

    Returns
    -------
    numpy.ndarray, shape (n, 1 + n_statistics)
        The statistics; products in the order of `numpy.tril_indices`.
    """
    first, second = np.tril_indices(covariates.shape[1])
    ones = np.ones((len(covariates), 1))
    return np.concatenate([ones, covariates, covariates[:, first] * covariates[:, second]], axis=1)


def log_gate_density(parameters: MixtureParameters, statistics: FloatArray) -> FloatArray:
    r"""Log density of the gating covariates, :math:`\log \sum_j \alpha_j N(g; m_j, S_j)`.

    Parameters
    ----------
    parameters : MixtureParameters
        A mixture whose gate holds the slopes of a `GaussianGate`.
    statistics : numpy.ndarray, shape (n, 1 + n_statistics)
        Statistics of the covariates.

    Returns
    -------
    numpy.ndarray, shape (n,)
        The log densities.

    Raises
    ------
    ValueError
        If the mixture has no gate.
    """
    if parameters.gate is None:
        raise ValueError("`parameters` must have a gate; got None. Give it a gate's `slopes`.")
    return np.asarray(logsumexp(statistics @ parameters.gate + np.log(parameters.weights), axis=1))


def gate_derivatives(gate: GaussianGate) -> GateDerivatives:
    """Differentiate a gate in its vector.

    Parameters
    ----------
    gate : GaussianGate
        The gate.

    Returns
    -------
    GateDerivatives
        The derivatives.
    """
    parts = [
        _differentiate(mean, root) for mean, root in zip(gate.means.T, gate.roots, strict=True)
    ]
    return GateDerivatives(*(np.stack(part) for part in zip(*parts, strict=True)))


def pack_gate(gate: GaussianGate) -> FloatArray:
    """Write a gate as a vector without constraints.

    Parameters
    ----------
    gate : GaussianGate
        The gate.

    Returns
    -------
    numpy.ndarray, shape (n_components * size,)
        The vector, in the order given at the head of the module.
    """
    logged = gate.roots.copy()
    own = np.arange(gate.n_gate)
    logged[:, own, own] = np.log(gate.roots[:, own, own])
    first, second = np.tril_indices(gate.n_gate)
    return np.concatenate([gate.means.T, logged[:, first, second]], axis=1).ravel()


def unpack_gate(vector: FloatArray, like: GaussianGate) -> GaussianGate:
    """Read a gate from a vector; the inverse of `pack_gate`.

    Parameters
    ----------
    vector : numpy.ndarray, shape (n_components * size,)
        The vector.
    like : GaussianGate
        A gate of the same sizes.

    Returns
    -------
    GaussianGate
        The gate.
    """
    blocks = vector.reshape(like.n_components, gate_size(like.n_gate))
    roots = np.zeros_like(like.roots)
    first, second = np.tril_indices(like.n_gate)
    roots[:, first, second] = blocks[:, like.n_gate :]
    own = np.arange(like.n_gate)
    roots[:, own, own] = np.exp(roots[:, own, own])
    return GaussianGate(np.ascontiguousarray(blocks[:, : like.n_gate].T), roots)


def move_gate(gate: GaussianGate, step: FloatArray) -> GaussianGate:
    """Take a step in the coordinates of `pack_gate`.

    Parameters
    ----------
    gate : GaussianGate
        Where the step starts.
    step : numpy.ndarray, shape (n_components * size,)
        The step; changes of the logarithms are cut as those of a log dispersion are.

    Returns
    -------
    GaussianGate
        Where it ends.
    """
    limited = step.reshape(gate.n_components, -1).copy()
    first, second = np.tril_indices(gate.n_gate)
    logs = gate.n_gate + np.flatnonzero(first == second)
    limit = LARGEST_LOG_DISPERSION_STEP
    limited[:, logs] = np.clip(limited[:, logs], -limit, limit)
    return unpack_gate(pack_gate(gate) + limited.ravel(), gate)


def raise_to_floor(covariance: FloatArray, pooled_root: FloatArray, floor: float) -> FloatArray:
    """Root of the nearest covariance that is nowhere smaller than a share of the pooled one.

    Among all that satisfy the floor it is the one of the highest Gaussian likelihood for rows with
    the given covariance, so that EM still climbs.

    Parameters
    ----------
    covariance : numpy.ndarray, shape (n_gate, n_gate)
        Symmetric, possibly singular.
    pooled_root : numpy.ndarray, shape (n_gate, n_gate)
        Lower triangular root of the pooled covariance.
    floor : float
        Smallest ratio of a component's variance to the pooled one, in any direction.

    Returns
    -------
    numpy.ndarray, shape (n_gate, n_gate)
        Lower triangular root, with a positive diagonal.
    """
    values, vectors = np.linalg.eigh(_whitened(covariance, pooled_root))
    if values[0] >= floor:
        return np.linalg.cholesky(covariance)
    axes = pooled_root @ vectors
    return np.linalg.cholesky((axes * np.maximum(values, floor)) @ axes.T)


def shrunken_directions(root: FloatArray, pooled_root: FloatArray, floor: float) -> FloatArray:
    """Directions in which a covariance lies on its floor.

    Parameters
    ----------
    root, pooled_root : numpy.ndarray, shape (n_gate, n_gate)
        Roots of a component's covariance and of the pooled one.
    floor : float
        Smallest ratio of variances.

    Returns
    -------
    numpy.ndarray, shape (n_gate, n_directions)
        Columns v with v'Sv the floor itself, where v'(pooled)v is one.
    """
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
    """Of one density: mean statistics, and what `GateDerivatives` has of each parameter."""
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
