"""Mixtures of Gaussians by EM: the number of parts by BIC, the last steps on all rows.

Mixtures of Gaussians: clusters, and any smooth density if there are components enough.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from moment_init.checks import FloatArray, changed_filters
from moment_init.data.blocks import read_block, resample_rows, sum_over_blocks
from moment_init.data.standardising import CorrelationFit
from moment_init.scores.base import Contraction, InputModel
from moment_init.scores.gaussian import Gaussian

# Rows on which the number and the start are found: clusters that matter hold hundreds of them.
START_ROWS = 5_000

# EM steps on those rows from k-means; parts that are apart need ten.
START_STEPS = 50

# EM steps on all rows: clusters that are apart need one or two, and where parts overlap the density
# that they make, which is all that is used, is right long before the parts are.
FULL_STEPS = 5

# A variance below this share of the column's is a part that has run into few equal rows.
SMALLEST_VARIANCE = 1e-4

# After so many further parts without a better BIC the search ends.
PATIENCE = 2


@dataclass(frozen=True, slots=True, eq=False)
class GaussianMixtureParameters:
    """Parameters of a mixture of Gaussians."""

    weights: FloatArray  # probabilities of the parts; (n_parts,)
    means: FloatArray  # their means; (n_parts, n_features)
    covariances: FloatArray  # their covariances; (n_parts, n_features, n_features)


def choose_mixture(
    features: NDArray[np.generic],
    weights: FloatArray,
    units: CorrelationFit,
    numbers: Sequence[int],
    rng: np.random.Generator,
) -> tuple[GaussianMixtureParameters, tuple[float, ...]]:
    """Fit mixtures with each number of parts, keep the one with the least BIC."""
    # features: (n_obs, n_features), weights: (n_obs,)
    if features.shape[0] <= numbers[0]:
        raise ValueError(
            f"`X` must have more rows than the mixture has parts ({numbers[0]}); got "
            f"{features.shape[0]}. Ask for fewer parts."
        )
    index = resample_rows(weights, START_ROWS, rng)
    sample = (read_block(features, index) - units.mean) / units.scales
    best: Any = None
    criteria: list[float] = []
    for number in numbers:
        if number >= len(sample):
            break
        fitted = _fit_sample(sample, number, rng)
        criteria.append(float(fitted.bic(sample) / len(sample)))
        if criteria[-1] == min(criteria):
            best = fitted
        elif len(criteria) - 1 - int(np.argmin(criteria)) >= PATIENCE:
            break
    parameters = GaussianMixtureParameters(best.weights_, best.means_, best.covariances_)
    for _ in range(FULL_STEPS):
        parameters = _em_step(features, weights, units, parameters)
    return _in_input_units(parameters, units), tuple(criteria)


def _fit_sample(sample: FloatArray, number: int, rng: np.random.Generator) -> Any:
    """Fit one number of parts by scikit-learn's EM."""
    from sklearn.mixture import GaussianMixture

    estimator = GaussianMixture(
        number,
        reg_covar=SMALLEST_VARIANCE,
        max_iter=START_STEPS,
        random_state=int(rng.integers(2**31)),
    )
    # Threads of k-means wait actively for each other, which takes ten times as long on a busy
    # machine.
    with threadpool_limits(1, user_api="openmp"), changed_filters():
        # An EM that is still climbing has its density right already; steps on all rows follow.
        warnings.filterwarnings("ignore", message="Best performing initialization did not")
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        return estimator.fit(sample)


def _em_step(
    features: NDArray[np.generic],
    weights: FloatArray,
    units: CorrelationFit,
    parameters: GaussianMixtureParameters,
) -> GaussianMixtureParameters:
    """One EM step on all rows, in standardised columns."""
    factors = [cholesky(covariance, lower=True) for covariance in parameters.covariances]
    n_parts, n_features = parameters.means.shape

    def sums(rows: slice) -> tuple[FloatArray, ...]:
        z = (read_block(features, rows) - units.mean) / units.scales
        joint = np.empty((len(z), n_parts))
        for part, factor in enumerate(factors):
            whitened = solve_triangular(factor, (z - parameters.means[part]).T, lower=True)
            joint[:, part] = -0.5 * np.square(whitened).sum(axis=0)
            joint[:, part] -= np.log(np.diag(factor)).sum()
        joint += np.log(parameters.weights)
        shares = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) * weights[rows, None]
        grams = np.stack([np.dot((z * share[:, None]).T, z) for share in shares.T])
        return shares.sum(axis=0), np.dot(shares.T, z), grams

    doubles = 4 * n_features + 2 * n_parts
    totals, firsts, seconds = sum_over_blocks(sums, features.shape[0], doubles)
    means = firsts / totals[:, None]
    covariances = seconds / totals[:, None, None] - means[:, :, None] * means[:, None, :]
    covariances += SMALLEST_VARIANCE * np.eye(n_features)
    return GaussianMixtureParameters(totals / totals.sum(), means, covariances)


def _in_input_units(
    parameters: GaussianMixtureParameters, units: CorrelationFit
) -> GaussianMixtureParameters:
    """Undo the standardisation of the columns."""
    return GaussianMixtureParameters(
        parameters.weights,
        units.mean + units.scales * parameters.means,
        parameters.covariances * np.outer(units.scales, units.scales),
    )


# Clusters that a histogram shows are few; BIC stops earlier where fewer do.
LARGEST_DEFAULT = 8


@dataclass(frozen=True, slots=True, eq=False)
class MixtureContraction(Contraction):
    r"""Score tensors of a mixture, contracted with a basis.

    .. math:: S_m(x) = \sum_k \gamma_k(x) S_m^{(k)}(x)

    for every order m: derivatives of p are sums of those of its parts, and
    :math:`\gamma_k(x) = \pi_k p_k(x) / p(x)`.

    Costs as many times the Gaussian's as there are parts.
    """

    mixture: "GaussianMixture"  # gives the posterior probabilities of the parts
    parts: tuple[Any, ...]  # contracted scores of each part

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        shares = self.mixture.responsibilities(X)
        terms = (
            share.reshape(-1, *[1] * order) * part.score(X, order)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        return self._add("sum_score", X, weights, order)

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        return self._add("sum_slices", X, weights, thetas)

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        return self._add("sum_fibres", X, weights, vectors)

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        shares = self.mixture.responsibilities(X)
        terms = (
            share[:, None] * part.powers(X, order)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))

    def _add(self, method: str, X: FloatArray, weights: FloatArray, argument: Any) -> FloatArray:
        """Sums over rows are sums over parts with the rows' weights divided among them."""
        shares = self.mixture.responsibilities(X) * weights[:, None]
        terms = (
            getattr(part, method)(X, np.ascontiguousarray(share), argument)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))


class GaussianMixture(InputModel):
    r"""Mixture of Gaussians, given or fitted.

    The score of every order is that of the parts, averaged with their posterior probabilities.

    Parameters
    ----------
    n_parts : int, optional
        Number of Gaussians; by default chosen by BIC.
    weights : array-like, shape (n_parts,), optional
        Known probabilities of the parts. Weights, means and covariances are given together.
    means : array-like, shape (n_parts, n_features), optional
        Known means.
    covariances : array-like, shape (n_parts, n_features, n_features), optional
        Known covariances.
    max_parts : int, default 8
        Largest number that BIC is asked about.
    random_seed : int, Generator or None
        Source of the starts of EM.

    Attributes
    ----------
    weights_ : numpy.ndarray, shape (n_parts,)
        Probabilities of the parts after `fit`.
    means_ : numpy.ndarray, shape (n_parts, n_features)
        Their means.
    covariances_ : numpy.ndarray, shape (n_parts, n_features, n_features)
        Their covariances.
    bic_ : tuple of float
        BIC for each number of parts that was tried, from one upwards; empty if it was given.

    Notes
    -----
    Needs scikit-learn, whose EM finds the number and the start on 5,000 rows at most; a few EM
    steps on all rows follow.
    """

    weights_: FloatArray
    means_: FloatArray
    covariances_: FloatArray
    bic_: tuple[float, ...] = ()
    _parts: tuple[Gaussian, ...]

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        weights: ArrayLike | None = None,
        means: ArrayLike | None = None,
        covariances: ArrayLike | None = None,
        max_parts: int = LARGEST_DEFAULT,
        random_seed: int | np.random.Generator | None = None,
    ) -> None:
        self.n_parts = n_parts
        self.weights = weights
        self.means = means
        self.covariances = covariances
        self.max_parts = max_parts
        self.random_seed = random_seed

    def __repr__(self) -> str:
        """Say how many parts there are."""
        if self.is_fitted:
            return f"GaussianMixture(n_parts={len(self.weights_)})"
        return "GaussianMixture()" if self.n_parts is None else f"GaussianMixture({self.n_parts})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit the mixture by EM, unless it was given, to rows that were checked already.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Checked inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Names of the columns, for the messages.

        Returns
        -------
        GaussianMixture
            This object, fitted.
        """
        if self.means is not None:
            self._use_given()
            return self
        for name, value in (("n_parts", self.n_parts), ("max_parts", self.max_parts)):
            if value is not None and (int(value) != value or value < 1):
                raise ValueError(f"`{name}` must be a whole number from 1 upwards; got {value!r}.")
        units = self._fit_moments(features, weights, names)
        numbers = range(1, self.max_parts + 1) if self.n_parts is None else (int(self.n_parts),)
        found, self.bic_ = choose_mixture(
            features, weights, units, numbers, np.random.default_rng(self.random_seed)
        )
        self._set_parts(found)
        return self

    def _set_parts(self, parameters: GaussianMixtureParameters) -> None:
        self.weights_, self.means_ = parameters.weights, parameters.means
        self.covariances_ = parameters.covariances
        self._parts = tuple(
            Gaussian(mean, covariance)
            for mean, covariance in zip(self.means_, self.covariances_, strict=True)
        )
        for part in self._parts:
            _ = part.standardising_basis  # the parameters are checked here
        mean = self.weights_ @ self.means_
        centred = self.means_ - mean
        between = (centred.T * self.weights_) @ centred
        self._set_covariance(mean, np.tensordot(self.weights_, self.covariances_, 1) + between)

    def _use_given(self) -> None:
        if self.weights is None or self.means is None or self.covariances is None:
            super()._use_given()
        weights = np.asarray(self.weights, dtype=np.float64)
        means = np.asarray(self.means, dtype=np.float64)
        covariances = np.asarray(self.covariances, dtype=np.float64)
        if weights.ndim != 1 or weights.min() < 0.0 or not np.isclose(weights.sum(), 1.0):
            raise ValueError(
                f"`weights` must be non-negative and sum to one; got {weights}. Divide by the sum."
            )
        if means.ndim != 2 or len(means) != len(weights):
            raise ValueError(
                f"`means` must have shape ({len(weights)}, n_features); got {means.shape}."
            )
        shape = (*means.shape, means.shape[1])
        if covariances.shape != shape:
            raise ValueError(f"`covariances` must have shape {shape}; got {covariances.shape}.")
        self._set_parts(GaussianMixtureParameters(weights, means, covariances))

    @property
    def pieces(self) -> tuple[InputModel, ...]:
        """The Gaussians."""
        self._require_fitted()
        return self._parts

    def piece_shares(self, X: FloatArray) -> FloatArray:
        """Posterior probability of each of the `pieces` at each row, as `responsibilities`.

        Parameters
        ----------
        X : numpy.ndarray, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_pieces)
            The probabilities.
        """
        return self.responsibilities(X)

    def responsibilities(self, X: ArrayLike) -> FloatArray:
        """Posterior probability of each part at each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_parts)
            The probabilities.
        """
        joint = self._joint(X)
        return np.asarray(np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))

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
        return np.asarray(logsumexp(self._joint(X), axis=1))

    def contract(self, basis: FloatArray) -> MixtureContraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Contracted with every mode.

        Returns
        -------
        MixtureContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()
        return MixtureContraction(self, tuple(part.contract(basis) for part in self._parts))

    def _joint(self, X: ArrayLike) -> FloatArray:
        """Log of the probability of each part times its density."""
        self._require_fitted()
        with np.errstate(divide="ignore"):  # a part of probability zero is allowed
            log_weights = np.log(self.weights_)
        columns = [part.log_density(X) for part in self._parts]
        return np.asarray(np.stack(columns, axis=1) + log_weights)
