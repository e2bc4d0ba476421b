"""Base classes of the input models: a density and its contracted score tensors (Eq. 9).

`InputModel` is the base class of all densities. A density of one's own defines `fit_rows`,
`log_density` and `score`. `Contraction` holds what the estimators need: the score tensors of each
row, and weighted sums, slices and fibres that it derives from them. A density with a faster way
overrides `InputModel.contract` instead of `score`; `ClosedFormContraction` serves those whose
log-density is a function of a quadratic form, or a quadratic plus functions of single projections.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from moment_init.checks import FloatArray
from moment_init.data.blocks import row_blocks
from moment_init.data.checking import validate_features, validate_sample_weight
from moment_init.data.standardising import CorrelationFit, InputRows, fit_correlation


class Contraction(ABC):
    """Score tensors contracted with a basis B, (n_features, k), in every mode.

    Quantities that depend only on the basis are computed once; the methods then take blocks of
    rows. Only `score` has to be defined. The other methods are derived from it, with O(n k^3)
    operations for the third order; a density with faster sums overrides them.
    """

    @abstractmethod
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
        tensors = ((rows, self.score(X[rows], order)) for rows in _tensor_blocks(X, order))
        terms = [np.tensordot(weights[rows], each, axes=1) for rows, each in tensors]
        return np.asarray(np.sum(terms, axis=0))

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
        return self.sum_score(X, weights, 1), self.sum_score(X, weights, 2)

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
        return np.moveaxis(self.sum_score(X, weights, 3) @ thetas, 2, 0)

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
        total = self.sum_score(X, weights, 3)
        return np.asarray(np.einsum("abc,bl,cl->al", total, vectors, vectors))

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
        diagonal = "n" + order * "i" + "->ni"
        blocks = (self.score(X[rows], order) for rows in _tensor_blocks(X, order))
        return np.concatenate([np.einsum(diagonal, each) for each in blocks])


def _tensor_blocks(X: FloatArray, order: int) -> Iterator[slice]:
    """Cut rows into blocks whose tensors fit into the cache; no rows are one empty block."""
    return row_blocks(max(len(X), 1), X.shape[1] ** order)


def score_tensor(
    gradient: FloatArray, hessian: FloatArray | None = None, third: FloatArray | None = None
) -> FloatArray:
    r"""Score tensors of rows from the derivatives of their log-density.

    With the gradient s, the Hessian H and the third derivative K of log p, Eq. (9) of [1]_ is

    .. math:: S_1 = -s, \quad S_2 = s s' + H, \quad
              S_3 = -(s^{\otimes 3} + \mathrm{sym}_3(s \otimes H) + K).

    Parameters
    ----------
    gradient : numpy.ndarray, shape (n_obs, k)
        Gradient at each row, contracted with a basis of k directions, s'B.
    hessian : numpy.ndarray, shape (n_obs, k, k), optional
        Second derivatives H(B, B); for the second and third order.
    third : numpy.ndarray, shape (n_obs, k, k, k), optional
        Third derivatives K(B, B, B); for the third order.

    Returns
    -------
    numpy.ndarray, shape (n_obs, k, ..., k)
        Score tensors of the highest order for which the derivatives are given.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """
    z = -gradient
    if hessian is None:
        return z
    squares = z[:, :, None] * z[:, None, :]
    if third is None:
        return np.asarray(squares + hessian)
    return squares[..., None] * z[:, None, None, :] + symmetrise_rows(z, hessian) - third


def score_powers(
    first: FloatArray, second: FloatArray | None = None, third: FloatArray | None = None
) -> FloatArray:
    """Score tensors along single directions from the derivatives of log p along them."""
    # first, second, third: (n_obs, k) -> (n_obs, k)
    z = -first
    if second is None:
        return z
    if third is None:
        return np.asarray(np.square(z) + second)
    return np.asarray(z * (np.square(z) + 3.0 * second) - third)


def symmetrise_rows(z: FloatArray, matrices: FloatArray) -> FloatArray:
    """Tensors sym3(z_i x A_i) of all rows; one matrix may serve for all."""
    # z: (n_obs, k), matrices: (n_obs, k, k) or (1, k, k) -> (n_obs, k, k, k)
    product = z[:, :, None, None] * matrices[:, None]
    return np.asarray(product + product.transpose(0, 2, 1, 3) + product.transpose(0, 2, 3, 1))


def symmetrise_first(tensor: FloatArray) -> FloatArray:
    """Sum a tensor, symmetric in its last two modes, over the three positions of the first."""
    # tensor: (k, k, k) -> (k, k, k)
    return np.asarray(tensor + tensor.transpose(1, 0, 2) + tensor.transpose(1, 2, 0))


def sum_cubes(z: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum of weights_i z_i^3: all columns times the distinct pairs inside each half of them.

    Of any three columns, two lie in the same half. This takes half the arithmetic of all distinct
    pairs and a quarter of all pairs. Products of contiguous rows are cheap, so z is transposed.
    """
    # z: (n_obs, k), weights: (n_obs,) -> (k, k, k)
    columns, k = np.ascontiguousarray(z.T), z.shape[1]
    first, second = _pairs_in_halves(k)
    products = np.empty((len(first), len(z)))
    start, middle = 0, (k + 1) // 2
    for column in range(k):
        others = columns[column : middle if column < middle else k]
        np.multiply(columns[column], others, out=products[start : start + len(others)])
        start += len(others)
    sums = (columns * weights) @ products.T  # (k, n_pairs)
    tensor = np.empty((k, k, k))
    for a, b in ((first, second), (second, first)):
        tensor[:, a, b] = sums
        tensor[a, :, b] = sums.T
        tensor[a, b, :] = sums.T
    return tensor


@cache
def _pairs_in_halves(k: int) -> NDArray[np.intp]:
    """Distinct pairs of columns that lie in the same half, (2, n_pairs)."""
    middle = (k + 1) // 2
    halves = (np.triu_indices(middle), np.add(np.triu_indices(k - middle), middle))
    return np.concatenate(halves, axis=1)


UNIT_FACTORS = (np.ones(1), np.ones(1), np.ones(1))


class RowTerms(NamedTuple):
    """What `ClosedFormContraction` needs of each row."""

    z: FloatArray  # (n_obs, k)
    # second and third derivatives of functions of projections; (n_obs, n_functions)
    second: FloatArray
    third: FloatArray
    # c_1, c_2, c_3 of each row, or of all of them; each (n_obs,) or (1,)
    factors: tuple[FloatArray, FloatArray, FloatArray] = UNIT_FACTORS


@dataclass(frozen=True, slots=True, eq=False)
class ClosedFormContraction(Contraction):
    r"""Score tensors with a quadratic form, factors of each row and functions of projections.

    .. math:: S_1 = c_1 z, \quad S_2 = c_2 z z' + c_1 A + H, \quad
              S_3 = c_3 z^{\otimes 3} + \mathrm{sym}_3(z \otimes (c_2 A + H)) - K

    with :math:`H = \sum_q h_q v_q v_q'` and :math:`K = \sum_q \kappa_q v_q^{\otimes 3}`. A density
    that depends only on :math:`(x - \mu)' \Sigma^{-1} (x - \mu)` has :math:`z = B' \Sigma^{-1}
    (x - \mu)` and :math:`A = -B' \Sigma^{-1} B`; the factors of a Gaussian are one. A log-density
    :math:`Q(x) + \sum_q f_q(w_q' x)`, Q quadratic, has z = -s'B, :math:`A = D^2 Q(B, B)`,
    :math:`v_q = B' w_q`, the derivatives h and :math:`\kappa` of its functions, and factors of one.

    Sums cost O(n k (k + n_functions)), and so does each slice and each fibre; they form no matrix
    per row.
    """

    rows: Callable[[FloatArray], RowTerms]
    inner: FloatArray  # the matrix A; (k, k)
    projections: FloatArray  # the vectors v_q; (n_functions, k)

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""
        z, second, third, factors = self.rows(X)
        scaled = z * factors[order - 1][:, None]
        if order == 1:
            return scaled
        v, lower = self.projections, np.multiply.outer(self.inner, factors[order - 2])
        if len(v):
            lower = lower + np.einsum("nq,qa,qb->abn", second, v, v, optimize=True)
        # Rows are the last axis of the arrays in memory: loops over them are long.
        columns, scaled = np.ascontiguousarray(z.T), np.ascontiguousarray(scaled.T)
        pairs = scaled[:, None] * columns
        if order == 2:
            pairs += lower
            return np.moveaxis(pairs, -1, 0)
        tensors = pairs[:, :, None] * columns
        for axes in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
            tensors += np.moveaxis(columns[:, None, None] * lower, (0, 1, 2), axes)
        if len(v):
            tensors -= np.einsum("nq,qa,qb,qc->abcn", third, v, v, v, optimize=True)
        return np.moveaxis(tensors, -1, 0)

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of S_m(x)(B, ..., B)."""
        return self._sum(self.rows(X), weights, order)

    def sum_low_orders(self, X: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weighted sums of the first two orders, from one evaluation of the rows."""
        terms = self.rows(X)
        return self._sum(terms, weights, 1), self._sum(terms, weights, 2)

    def _sum(self, terms: RowTerms, weights: FloatArray, order: int) -> FloatArray:
        z, second, third, factors = terms
        scaled = weights * factors[order - 1]
        if order == 1:
            return np.asarray(scaled @ z)
        lower = weights * factors[order - 2]
        if order == 2:
            total = (z * scaled[:, None]).T @ z + lower.sum() * self.inner
            return np.asarray(total + self._between(weights @ second))
        tensor = sum_cubes(z, scaled)
        mixed = np.multiply.outer(lower @ z, self.inner)
        if len(self.projections):
            v = self.projections
            pairs = v[:, :, None] * v[:, None, :]  # (q, k, k)
            mixed += np.tensordot((z * weights[:, None]).T @ second, pairs, axes=1)
            tensor -= np.tensordot((v * (weights @ third)[:, None]).T, pairs, axes=1)
        return np.asarray(tensor + symmetrise_first(mixed))

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B, B theta_l)."""
        z, second, third, factors = self.rows(X)
        v, inner = self.projections, self.inner
        lower = weights * factors[1]
        first, thirds = lower @ z, weights @ third
        cross = (z * weights[:, None]).T @ second if len(v) else np.empty((z.shape[1], 0))
        slices = np.empty((thetas.shape[1], *inner.shape))
        for index, (theta, along) in enumerate(zip(thetas.T, (z @ thetas).T, strict=True)):
            projected = v @ theta  # (q,)
            mixed = np.outer(first, inner @ theta) + (cross * projected) @ v
            slices[index] = (z * (weights * factors[2] * along)[:, None]).T @ z
            slices[index] += (lower @ along) * inner + mixed + mixed.T
            slices[index] += self._between((weights * along) @ second - thirds * projected)
        return slices

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B v_l, B v_l)."""
        z, second, third, factors = self.rows(X)
        along, projected = z @ vectors, self.projections @ vectors  # (n_obs, L), (q, L)
        inner, lower = self.inner @ vectors, weights * factors[1]
        fibres = z.T @ (np.square(along) * (weights * factors[2])[:, None])
        fibres += np.outer(lower @ z, np.sum(vectors * inner, axis=0))
        fibres += 2.0 * inner * (lower @ along)
        if len(projected):
            weighted = second.T @ (along * weights[:, None])  # (q, L)
            fibres += ((z * weights[:, None]).T @ second) @ np.square(projected)
            thirds = (weights @ third)[:, None] * np.square(projected)
            fibres += self.projections.T @ (2.0 * weighted * projected - thirds)
        return np.asarray(fibres)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""
        z, second, third, factors = self.rows(X)
        c = factors[order - 1][:, None]
        if order == 1:
            return z * c
        powers, lengths = np.square(z), factors[order - 2][:, None] * np.diag(self.inner)
        powers *= c
        if len(self.projections):
            lengths = lengths + second @ np.square(self.projections)
        powers += lengths if order == 2 else 3.0 * lengths
        if order == 3:
            powers *= z
            if len(self.projections):
                powers -= third @ self.projections**3
        return powers

    def _between(self, values: FloatArray) -> FloatArray:
        """Sum over q of values_q v_q v_q'."""
        return np.asarray((self.projections * values[:, None]).T @ self.projections)


def elliptical_contraction(
    mean: FloatArray,
    factor: FloatArray,
    basis: FloatArray,
    factors: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]] | None = None,
) -> ClosedFormContraction:
    """Contraction of a density of the quadratic form of L L'; without factors, of a Gaussian."""
    # mean: (n_features,), factor: L, (n_features, n_features), basis: (n_features, k)
    half = solve_triangular(factor, basis, lower=True)
    whitening = solve_triangular(factor, half, lower=True, trans="T")

    def rows(X: FloatArray) -> RowTerms:
        z, nothing = np.asarray((X - mean) @ whitening), np.empty((len(X), 0))
        return RowTerms(z, nothing, nothing, factors(X) if factors else UNIT_FACTORS)

    return ClosedFormContraction(rows, -half.T @ half, np.empty((0, basis.shape[1])))


SMALLEST_PIECE = 0.01
"""Pieces of a density with a smaller share of the rows are left out: their moments cost as much as
the others' and would be noise."""


class InputModel(ABC):
    r"""A density of the input with its score functions.

    The score of order m is Eq. (9) of [1]_,

    .. math:: S_m(x) = (-1)^m \nabla^{(m)} p(x) / p(x),

    so that :math:`E[f(x) S_m(x)] = E[\nabla^{(m)} f(x)]` (Theorem 9). The text of [1]_ also calls
    :math:`\nabla \log p` the score; here the sign is that of Eq. (9), :math:`S_1 = -\nabla \log p`.

    A density of one's own defines three methods: `fit_rows`, `log_density` and `score`. The sums
    over rows that the estimators need are derived from `score`.

    Attributes
    ----------
    mean_ : numpy.ndarray, shape (n_features,)
        Mean of the input.
    shrinkage_ : float
        Share of the correlation matrix replaced by the identity; 0 unless there are few rows.
    n_fitted_ : float
        Effective number of rows that the density was fitted to; infinite for known parameters.

    Notes
    -----
    `fit_rows` of this class estimates mean and covariance, which every density needs for the
    standardised coordinates; a density with parameters calls it and then estimates them. One with
    known parameters may call `set_moments` instead. Sums derived from `score` form tensors of
    blocks of rows, O(n k^3) for k directions. A density with a faster way overrides `contract`
    instead of `score`; one that is a mixture, `pieces` and `piece_shares`; one whose scores are
    not valid up to the third order, `highest_order`.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    Independent logistic columns, with the scales that their deviations imply:

    >>> import numpy as np
    >>> from moment_init.scores import InputModel, score_tensor, stein_check
    >>> class Logistic(InputModel):
    ...     def fit_rows(self, features, weights, names):
    ...         super().fit_rows(features, weights, names)  # mean and covariance
    ...         deviations = np.linalg.norm(self.standardising_basis, axis=1)
    ...         self.scales_ = deviations * np.sqrt(3) / np.pi
    ...         return self
    ...
    ...     def log_density(self, X):
    ...         u = (np.asarray(X) - self.mean_) / self.scales_
    ...         return -(np.log(4 * self.scales_) + 2 * np.log(np.cosh(u / 2))).sum(axis=1)
    ...
    ...     def score(self, X, order, basis=None):
    ...         B = np.eye(len(self.mean_)) if basis is None else basis
    ...         t = np.tanh((np.asarray(X) - self.mean_) / self.scales_ / 2)
    ...         slope = (1 - t**2) / 2
    ...         first, second, third = -t, -slope, slope * t
    ...         derivatives = [
    ...             first / self.scales_ @ B,
    ...             np.einsum("nj,ja,jb->nab", second / self.scales_**2, B, B),
    ...             np.einsum("nj,ja,jb,jc->nabc", third / self.scales_**3, B, B, B),
    ...         ]
    ...         return score_tensor(*derivatives[:order])
    >>> X = np.random.default_rng(0).logistic(size=(2_000, 3))
    >>> str(stein_check(Logistic().fit(X[:1_000]), X[1_000:], random_seed=0).status)
    'passed'
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

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit to validated rows; in this class, the mean and covariance.

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
        self._fit_moments(features, weights, names)
        return self

    def set_moments(self, mean: FloatArray, covariance: FloatArray) -> None:
        """Set the mean and covariance of the density, which then counts as fitted.

        Parameters
        ----------
        mean : numpy.ndarray, shape (n_features,)
            Mean of the input.
        covariance : numpy.ndarray, shape (n_features, n_features)
            Covariance of the input.
        """
        scales = np.sqrt(np.diag(covariance))
        self._set_factor(mean, scales, covariance / np.outer(scales, scales))

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

    def features(self, X: ArrayLike) -> FloatArray:
        """Variables that the density describes: the rows themselves, or known features of them.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray
            The variables, with one row for each row of `X`.
        """
        return np.asarray(X, dtype=np.float64)

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
        raise self._not_given()

    def _not_given(self) -> ValueError:
        """Error for parameters that were neither given nor fitted."""
        return ValueError(
            f"{type(self).__name__}() must be fitted before its scores are used; not all of its "
            "parameters were given. Call `fit(X)` or give them all."
        )

    def _keep_given(self, n_features: int) -> Self:
        """Fit a density whose parameters were given: only check its number of features."""
        self._use_given()
        self.require_n_features(n_features)
        return self

    def _set_factor(self, mean: FloatArray, scales: FloatArray, correlation: FloatArray) -> None:
        """Store the mean and the Cholesky factor of the covariance, by that of the correlation."""
        self.mean_ = mean
        self._factor = scales[:, None] * cholesky(correlation, lower=True)

    def _fit_moments(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> CorrelationFit:
        """Store mean and covariance factor of the rows, and the effective number of rows."""
        rows = InputRows(features, weights)
        fitted = fit_correlation(rows, names)
        self._set_factor(fitted.mean, fitted.scales, fitted.correlation)
        self.shrinkage_ = fitted.shrinkage
        self.n_fitted_ = rows.effective_n
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
        centred = self.features(X) - self.mean_
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

        Raises
        ------
        TypeError
            If the class defines neither `score` nor a contraction of its own.
        """
        if type(self).score is InputModel.score:
            raise TypeError(
                f"{type(self).__name__} must define `score`, or `contract` instead; got neither."
            )
        return _ScoreContraction(self, basis)

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
        matrix = np.eye(self.features(rows[:1]).shape[1]) if basis is None else np.asarray(basis)
        return self.contract(matrix).score(rows, order)


@dataclass(frozen=True, slots=True, eq=False)
class _ScoreContraction(Contraction):
    """Contraction of a density that defines only the score tensors of rows."""

    model: InputModel
    basis: FloatArray  # (n_features, k)

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""
        return self.model.score(X, order, self.basis)
