"""Base classes of the input models: a density and its contracted score tensors (Eq. 9).

`Contraction` declares what the estimators need: the score tensors of each row, their weighted sums,
and slices and fibres of the third order. The functions after it pack, unpack and symmetrise tensors
of third order. `RidgeContraction` implements a contraction for log-densities that are a quadratic
plus functions of single projections of the row. `InputModel` is the base class of all densities.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.checking import validate_features, validate_sample_weight
from moment_init.data.standardising import CorrelationFit, fit_correlation


class Contraction(ABC):
    """Score tensors contracted with a basis B, (n_features, k), in every mode.

    Quantities that depend only on the basis are computed once; the methods then take blocks of
    rows. The sums never form an array of shape (n_obs, k, k). A density implements its formulas in
    the private methods of similar names.
    """

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """Contracted score tensor of each row, S_m(x)(B, ..., B).

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors, with m modes of size k.
        """
        return self._score(X, order)

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        r"""Weighted sum of score tensors, :math:`\sum_i a_i S_m(x_i)(B, ..., B)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (k, ..., k)
            The sum, with m modes of size k.
        """
        return self._sum(X, weights, order)

    def sum_low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first and second order over a block of rows.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.

        Returns
        -------
        first : numpy.ndarray, shape (k,)
            Sum of the first order.
        second : numpy.ndarray, shape (k, k)
            Sum of the second order.
        """
        return self._low_orders(X, weights)

    def sum_third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        """Sums over a block of rows from which the third order is assembled.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.

        Returns
        -------
        tuple of numpy.ndarray
            Sums to be added up over blocks; by default the tensor itself.
        """
        return self._third_order(X, weights)

    def assemble_third_order(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        """Assemble the sum of the third order.

        Parameters
        ----------
        sums : tuple of numpy.ndarray
            Sums over all rows of what `sum_third_order` returns.

        Returns
        -------
        numpy.ndarray, shape (k, k, k)
            The weighted sum of S_3(x)(B, B, B).
        """
        return self._assemble(sums)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        r"""Weighted sums of slices, :math:`\sum_i a_i S_3(x_i)(B, B, B \theta_l)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        thetas : numpy.ndarray, shape (k, n_slices)
            Vectors that the third mode is contracted with, one column per slice.

        Returns
        -------
        numpy.ndarray, shape (n_slices, k, k)
            The slices.
        """
        return self._slices(X, weights, thetas)

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        r"""Weighted sums of fibres, :math:`\sum_i a_i S_3(x_i)(B, B v_l, B v_l)`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        weights : numpy.ndarray, shape (n_obs,)
            The :math:`a_i`.
        vectors : numpy.ndarray, shape (k, n_vectors)
            Vectors that the second and third mode are contracted with, one column per fibre.

        Returns
        -------
        numpy.ndarray, shape (k, n_vectors)
            The fibres.
        """
        return self._fibres(X, weights, vectors)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """Score tensors along each column of the basis, S_m(x)(b_l, ..., b_l).

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            A block of inputs.
        order : {1, 2, 3}
            Order m of the score.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k)
            The diagonals of the contracted tensors.
        """
        return self._powers(X, order)

    @abstractmethod
    def _score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""

    @abstractmethod
    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of S_m(x)(B, ..., B)."""

    @abstractmethod
    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B, B theta_l)."""

    @abstractmethod
    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B v_l, B v_l)."""

    @abstractmethod
    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""

    def _low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first two orders; override it where one evaluation serves both."""
        return self._sum(X, weights, 1), self._sum(X, weights, 2)

    def _third_order(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
        """Sums from which `_assemble` computes the third order; by default the tensor itself."""
        return (self._sum(X, weights, 3),)

    def _assemble(self, sums: tuple[FloatArray, ...]) -> FloatArray:
        """Weighted sum of S_3(x)(B, B, B) from the sums of `_third_order`."""
        return sums[0]


def _halves(k: int) -> tuple[slice, slice]:
    """Split the columns into two halves: of any three indices, two lie in the same half."""
    middle = (k + 1) // 2
    return slice(0, middle), slice(middle, k)


def packed_cubes(columns: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum of weights_i z_i^3, packed: all columns times the distinct pairs inside each half.

    This takes half the arithmetic of all distinct pairs and a quarter of all pairs. The columns are
    passed as the rows of an array, (k, n_obs), because products of contiguous rows are cheap.
    """
    # columns: (k, n_obs), weights: (n_obs,) -> (k, n_pairs)
    k, n_obs = columns.shape
    pairs = np.empty((sum(_n_pairs(half.stop - half.start) for half in _halves(k)), n_obs))
    start = 0
    for half in _halves(k):
        inside = columns[half]
        for index in range(len(inside)):
            stop = start + len(inside) - index
            np.multiply(inside[index], inside[index:], out=pairs[start:stop])
            start = stop
    return np.asarray((columns * weights) @ pairs.T)


def _n_pairs(size: int) -> int:
    """Number of distinct pairs, including each index with itself."""
    return size * (size + 1) // 2


def unpack_cubes(packed: FloatArray) -> FloatArray:
    """Unpack the sums of `packed_cubes` into a symmetric tensor."""
    # packed: (k, n_pairs) -> (k, k, k)
    k = len(packed)
    tensor = np.empty((k, k, k))
    start = 0
    for half in _halves(k):
        first, second = np.triu_indices(half.stop - half.start)
        values = packed[:, start : start + len(first)]
        start += len(first)
        first, second = first + half.start, second + half.start
        for a, b in ((first, second), (second, first)):
            tensor[:, a, b] = values
            tensor[a, :, b] = values.T
            tensor[a, b, :] = values.T
    return tensor


def symmetrise(vector: FloatArray, matrix: FloatArray) -> FloatArray:
    """Tensor sym3(v x A): the sum of v x A over the three positions of v."""
    # vector: (k,), matrix: (k, k) -> (k, k, k)
    product = np.multiply.outer(vector, matrix)
    return np.asarray(product + product.transpose(1, 0, 2) + product.transpose(1, 2, 0))


def symmetrise_rows(z: FloatArray, matrix: FloatArray) -> FloatArray:
    """Tensors sym3(z_i x A) of all rows, with one matrix for all rows or one per row."""
    # z: (n_obs, k), matrix: (k, k) or (n_obs, k, k) -> (n_obs, k, k, k)
    matrices = matrix if matrix.ndim == 2 else matrix[:, None]
    product = z[:, :, None, None] * matrices
    return np.asarray(product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1))


def symmetrise_first(tensor: FloatArray) -> FloatArray:
    """Sum a tensor, symmetric in its last two modes, over the three positions of the first."""
    # tensor: (k, k, k) -> (k, k, k)
    return np.asarray(tensor + tensor.transpose(1, 0, 2) + tensor.transpose(1, 2, 0))


type RidgeDerivatives = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True, eq=False)
class RidgeContraction(Contraction):
    r"""Score tensors of a log-density :math:`l(x) = Q(x) + \sum_q f_q(w_q' x)`, Q quadratic.

    Its derivatives are :math:`H = H_0 + \sum_q h_q(x) w_q w_q'` and
    :math:`K = \sum_q \kappa_q(x) w_q^{\otimes 3}`, so that with z = -s'B and v_q = B'w_q

    .. math:: S_1 = z, \quad S_2 = z z' + H(B, B), \quad
              S_3 = z^{\otimes 3} + \mathrm{sym}_3(z \otimes H(B, B)) - K(B, B, B).

    Sums cost O(n k (k + n_functions)), and so does each slice and each fibre; they form no matrix
    per row.
    """

    basis: FloatArray  # the basis B; (n_features, k)
    inner: FloatArray  # the constant part of the Hessian, H_0(B, B); (k, k)
    projections: FloatArray  # the vectors v_q; (n_functions, k)
    # maps rows to the gradient, (n_obs, n_features), and to the second and third derivatives h and
    # kappa of the functions, each (n_obs, n_functions)
    derivatives: RidgeDerivatives

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return z
        v = self.projections
        hessians = self.inner + np.einsum("nq,qa,qb->nab", second, v, v, optimize=True)
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] + hessians)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        derivatives = np.einsum("nq,qa,qb,qc->nabc", third, v, v, v, optimize=True)
        return np.asarray(cubes + symmetrise_rows(z, hessians) - derivatives)

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return np.asarray(weights @ z)
        v, weighted = self.projections, z * weights[:, None]
        if order == 2:
            total = weights.sum() * self.inner + self._between(weights @ second)
            return np.asarray(weighted.T @ z + total)
        cubes = unpack_cubes(packed_cubes(np.ascontiguousarray(z.T), weights))
        cubes += symmetrise(weighted.sum(axis=0), self.inner)
        pairs = v[:, :, None] * v[:, None, :]  # (q, k, k)
        cubes += symmetrise_first(np.tensordot(weighted.T @ second, pairs, axes=1))
        return np.asarray(cubes - np.tensordot((v * (weights @ third)[:, None]).T, pairs, axes=1))

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z, second, third = self._rows(X)
        v, weighted = self.projections, z * weights[:, None]
        first, cross, thirds = weighted.sum(axis=0), weighted.T @ second, weights @ third
        slices = np.empty((thetas.shape[1], z.shape[1], z.shape[1]))
        for index, theta in enumerate(thetas.T):
            along, projected = weighted @ theta, v @ theta  # (n_obs,), (q,)
            mixed = np.outer(first, self.inner @ theta) + (cross * projected) @ v
            slices[index] = (z * along[:, None]).T @ z + along.sum() * self.inner
            slices[index] += self._between(along @ second - thirds * projected) + mixed + mixed.T
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z, second, third = self._rows(X)
        weighted = z * weights[:, None]
        along, projected = z @ vectors, self.projections @ vectors  # (n_obs, L), (q, L)
        inner = self.inner @ vectors
        fibres = weighted.T @ np.square(along)
        fibres += np.outer(weighted.sum(axis=0), np.sum(vectors * inner, axis=0))
        fibres += (weighted.T @ second) @ np.square(projected)
        fibres += 2.0 * inner * (weights @ along)
        weighted_second = second.T @ (along * weights[:, None])  # (q, L)
        third_terms = (weights @ third)[:, None] * np.square(projected)
        fibres += self.projections.T @ (2.0 * weighted_second * projected - third_terms)
        return np.asarray(fibres)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z, second, third = self._rows(X)
        if order == 1:
            return z
        lengths = np.diag(self.inner) + second @ np.square(self.projections)
        if order == 2:
            return np.asarray(np.square(z) + lengths)
        return np.asarray(z * (np.square(z) + 3.0 * lengths) - third @ self.projections**3)

    def _rows(self, X: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S_1(x) B of each row, and second and third derivatives of the functions."""
        gradient, second, third = self.derivatives(X)
        return np.asarray(-gradient @ self.basis), second, third

    def _between(self, values: FloatArray) -> FloatArray:
        """Sum over q of values_q v_q v_q'."""
        return np.asarray((self.projections * values[:, None]).T @ self.projections)


SMALLEST_PIECE = 0.01
"""Pieces of a density with a smaller share of the rows are left out: their moments cost as much as
the others' and would be noise."""


class InputModel(ABC):
    r"""A density of the input with its score functions.

    The score of order m is Eq. (9) of [1]_,

    .. math:: S_m(x) = (-1)^m \nabla^{(m)} p(x) / p(x),

    so that :math:`E[f(x) S_m(x)] = E[\nabla^{(m)} f(x)]` (Theorem 9). The text of [1]_ also calls
    :math:`\nabla \log p` the score; here the sign is that of Eq. (9), :math:`S_1 = -\nabla \log p`.

    Attributes
    ----------
    mean_ : numpy.ndarray, shape (n_features,)
        Mean of the input.
    shrinkage_ : float
        Share of the correlation matrix replaced by the identity; 0 unless there are few rows.
    n_fitted_ : float
        Effective number of rows that the density was fitted to; infinite for known parameters.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    mean_: FloatArray
    shrinkage_: float = 0.0
    n_fitted_: float = float("inf")  # known parameters have no estimation error
    _factor: FloatArray

    def fit(self, X: Any, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the density to rows; parameters given to the constructor are kept.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            The inputs.
        sample_weight : array-like, shape (n_obs,), optional
            Weight of each row.

        Returns
        -------
        Self
            This object, fitted.

        Raises
        ------
        ValueError
            For constant or collinear columns, which are named, and for parameters of wrong shape.
        """
        features, names = validate_features(X)
        weights = validate_sample_weight(sample_weight, features.shape[0])
        return self.fit_rows(features, weights, names)

    @abstractmethod
    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit to validated rows.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Validated inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Column names for error messages.

        Returns
        -------
        Self
            This object, fitted.
        """

    @property
    def is_fitted(self) -> bool:
        """Whether the density is set, by `fit` or from given parameters."""
        return hasattr(self, "_factor")

    @property
    def is_normalised(self) -> bool:
        """Whether `log_density` includes the normalising constant."""
        return True

    @property
    def highest_order(self) -> int:
        """Highest order (at most 3) with a valid score: p and lower derivatives vanish at edges."""
        return 3

    @property
    def pieces(self) -> tuple["InputModel", ...]:
        """Densities of which this one is a mixture; the density itself if it is not a mixture."""
        return (self,)

    def piece_shares(self, X: FloatArray) -> FloatArray:
        """Posterior probability of each of the `pieces` at each row.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_pieces)
            The probabilities.
        """
        return np.ones((len(X), 1))

    @property
    def standardising_basis(self) -> FloatArray:
        """Lower triangular L, (n_features, n_features), with L L' the covariance of the input."""
        self._require_fitted()
        return self._factor

    def require_n_features(self, n_features: int) -> None:
        """Raise if the density has another number of features.

        Parameters
        ----------
        n_features : int
            Number of columns of the rows.

        Raises
        ------
        ValueError
            If it differs from the number of features of the density.
        """
        self._require_fitted()
        if len(self.mean_) != n_features:
            raise ValueError(
                f"`input_model` must have as many features as `X` ({n_features}); got "
                f"{len(self.mean_)}. Fit it to rows with the same columns."
            )

    def gradient(self, X: ArrayLike) -> FloatArray:
        """Gradient of the log-density at each row, which is -S_1(x).

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            The gradients.
        """
        return np.asarray(-self.score(X, 1))

    def _require_fitted(self) -> None:
        """Set the density from given parameters if it is not set; raise if there are none."""
        if not self.is_fitted:
            self._use_given()

    def _use_given(self) -> None:
        """Set the density from parameters given to the constructor; by default there are none."""
        raise ValueError(
            f"{type(self).__name__}() must be fitted before its scores are used; got no "
            "parameters. Call `fit(X)` or give them all."
        )

    def _set_moments(self, mean: FloatArray, scales: FloatArray, correlation: FloatArray) -> None:
        """Store the mean and the Cholesky factor of the covariance, by that of the correlation."""
        self.mean_ = mean
        self._factor = scales[:, None] * cholesky(correlation, lower=True)

    def _set_covariance(self, mean: FloatArray, covariance: FloatArray) -> None:
        """Store the mean and the Cholesky factor of a covariance."""
        scales = np.sqrt(np.diag(covariance))
        self._set_moments(mean, scales, covariance / np.outer(scales, scales))

    def _fit_moments(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> CorrelationFit:
        """Store mean and covariance factor of the rows, and the effective number of rows."""
        fitted = fit_correlation(features, weights, names)
        self._set_moments(fitted.mean, fitted.scales, fitted.correlation)
        self.shrinkage_ = fitted.shrinkage
        self.n_fitted_ = float(weights.sum() ** 2 / np.square(weights).sum())
        return fitted

    def whiten(self, X: ArrayLike) -> FloatArray:
        """Whitened rows, z = L^-1 (x - mean).

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_features)
            Rows with mean zero and identity covariance under the density.
        """
        self._require_fitted()
        centred = np.asarray(X, dtype=np.float64) - self.mean_
        return np.asarray(solve_triangular(self._factor, centred.T, lower=True).T)

    @abstractmethod
    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """

    @abstractmethod
    def contract(self, basis: FloatArray) -> Contraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        Contraction
            The contracted score tensors as functions of rows.
        """

    def score(self, X: ArrayLike, order: int, basis: ArrayLike | None = None) -> FloatArray:
        """Contracted score tensor of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.
        order : {1, 2, 3}
            Order m of the score.
        basis : array-like, shape (n_features, k), optional
            Basis that every mode is contracted with; the identity by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, k, ..., k)
            The tensors S_m(x)(B, ..., B), with m modes of size k.

        Raises
        ------
        ValueError
            For an order other than 1, 2, 3.
        """
        if order not in (1, 2, 3):
            raise ValueError(f"`order` must be 1, 2 or 3; got {order!r}.")
        rows = np.asarray(X, dtype=np.float64)
        matrix = np.eye(rows.shape[1]) if basis is None else np.asarray(basis, dtype=np.float64)
        return self.contract(matrix).score(rows, order)
