"""Mixtures of Gaussians: for clusters and, with enough parts, for any smooth density.

`choose_mixture` fits mixtures by EM to a sample of rows and chooses the number of parts by BIC.
`GaussianMixture` is the input model; it takes the last EM steps on all rows.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from moment_init.checks import FloatArray, changed_filters
from moment_init.data.blocks import read_block, resample_rows, sum_over_blocks
from moment_init.data.standardising import CorrelationFit
from moment_init.scores.base import Contraction, InputModel
from moment_init.scores.gaussian import Gaussian

# Rows to find the number of parts and the start on: clusters that matter have hundreds of them.
START_ROWS = 5_000

# EM steps on these rows from k-means; well separated parts need ten.
START_STEPS = 50

# EM steps on all rows. Well separated clusters need one or two; where parts overlap, their joint
# density, which is all that is used, converges long before the parts do.
FULL_STEPS = 5

# A part with a variance below this share of the column's has collapsed onto a few equal rows.
SMALLEST_VARIANCE = 1e-4

# The search ends after this many larger mixtures without a better BIC.
PATIENCE = 2


def choose_mixture(
    features: NDArray[np.generic],
    weights: FloatArray,
    units: CorrelationFit,
    numbers: Sequence[int],
    rng: np.random.Generator,
) -> tuple[Any, tuple[float, ...]]:
    """Fit mixtures to some rows, in standardised columns; keep the one with the lowest BIC."""
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
    return best, tuple(criteria)


def _fit_sample(sample: FloatArray, number: int, rng: np.random.Generator) -> Any:
    """Fit a mixture with `number` parts by scikit-learn's EM."""
    from sklearn.mixture import GaussianMixture

    estimator = GaussianMixture(
        number,
        reg_covar=SMALLEST_VARIANCE,
        max_iter=START_STEPS,
        random_state=int(rng.integers(2**31)),
    )
    # The threads of k-means busy-wait for each other: ten times slower on a busy machine.
    with threadpool_limits(1, user_api="openmp"), changed_filters():
        # Without convergence the density is already close enough; steps on all rows follow.
        warnings.filterwarnings("ignore", message="Best performing initialization did not")
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        return estimator.fit(sample)


def moments_of_means(weights: FloatArray, means: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean of a mixture, and the covariance between its parts."""
    # weights: (n_parts,), means: (n_parts, n_features)
    mean = weights @ means
    centred = means - mean
    return mean, (centred.T * weights) @ centred


# Largest number of parts by default: visible clusters are few, and BIC stops earlier if it can.
LARGEST_DEFAULT = 8


@dataclass(frozen=True, slots=True, eq=False)
class MixtureContraction(Contraction):
    r"""Score tensors of a mixture, contracted with a basis.

    .. math:: S_m(x) = \sum_k \gamma_k(x) S_m^{(k)}(x)

    for every order m, with :math:`\gamma_k(x) = \pi_k p_k(x) / p(x)`, because the derivatives of p
    are sums of those of its parts. The cost is that of a Gaussian times the number of parts.
    """

    mixture: "GaussianMixture"  # gives the posterior probabilities of the parts
    parts: tuple[Any, ...]  # contracted scores of each part

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""
        shares = self.mixture.responsibilities(X)
        terms = (
            share.reshape(-1, *[1] * order) * part.score(X, order)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of S_m(x)(B, ..., B)."""
        return self._add("sum_score", X, weights, order)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B, B theta_l)."""
        return self._add("sum_slices", X, weights, thetas)

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B v_l, B v_l)."""
        return self._add("sum_fibres", X, weights, vectors)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""
        shares = self.mixture.responsibilities(X)
        terms = (
            share[:, None] * part.powers(X, order)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))

    def _add(self, method: str, X: FloatArray, weights: FloatArray, argument: Any) -> FloatArray:
        """Sum over the parts, with each row's weight divided among them by `responsibilities`."""
        shares = self.mixture.responsibilities(X) * weights[:, None]
        terms = (
            getattr(part, method)(X, np.ascontiguousarray(share), argument)
            for share, part in zip(shares.T, self.parts, strict=True)
        )
        return np.asarray(sum(terms))


class GaussianMixture(InputModel):
    r"""Mixture of Gaussians, with known or fitted parameters.

    The score of every order is the average of the parts' scores by posterior probability.

    Parameters
    ----------
    n_parts : int, optional
        Number of Gaussians; by default chosen by BIC.
    weights : array-like, shape (n_parts,), optional
        Known probabilities of the parts. Give weights, means and covariances together.
    means : array-like, shape (n_parts, n_features), optional
        Known means of the parts.
    covariances : array-like, shape (n_parts, n_features, n_features), optional
        Known covariances of the parts.
    max_parts : int, default 8
        Largest number of parts that BIC may choose.
    random_seed : int, Generator or None
        Seed for the starts of EM.

    Attributes
    ----------
    weights_ : numpy.ndarray, shape (n_parts,)
        Probabilities of the parts after `fit`.
    means_ : numpy.ndarray, shape (n_parts, n_features)
        Means of the parts.
    covariances_ : numpy.ndarray, shape (n_parts, n_features, n_features)
        Covariances of the parts.
    bic_ : tuple of float
        BIC per row for each number of parts that was tried; empty for known parameters.

    Notes
    -----
    Needs scikit-learn, whose EM finds the number of parts and the start on at most 5,000 rows. A
    few EM steps on all rows follow.
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
        """Show the number of parts."""
        if self.is_fitted:
            return f"GaussianMixture(n_parts={len(self.weights_)})"
        return "GaussianMixture()" if self.n_parts is None else f"GaussianMixture({self.n_parts})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit the mixture by EM to validated rows, unless its parameters were given.

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
        GaussianMixture
            This object, fitted.
        """
        if self.means is not None:
            return self._keep_given(features.shape[1])
        for name, value in (("n_parts", self.n_parts), ("max_parts", self.max_parts)):
            if value is not None and (int(value) != value or value < 1):
                raise ValueError(f"`{name}` must be a whole number from 1 upwards; got {value!r}.")
        units = self._fit_moments(features, weights, names)
        numbers = range(1, self.max_parts + 1) if self.n_parts is None else (int(self.n_parts),)
        rng = np.random.default_rng(self.random_seed)
        start, self.bic_ = choose_mixture(features, weights, units, numbers, rng)
        self._set_standardised(start.weights_, start.means_, start.covariances_, units)
        for _ in range(FULL_STEPS):
            self._em_step(features, weights, units)
        return self

    def _em_step(
        self, features: NDArray[np.generic], weights: FloatArray, units: CorrelationFit
    ) -> None:
        """Take one EM step on all rows, with sums in standardised columns."""

        def sums(rows: slice) -> tuple[FloatArray, ...]:
            block = read_block(features, rows)
            shares = self.responsibilities(block) * weights[rows, None]
            z = (block - units.mean) / units.scales
            grams = np.stack([np.dot((z * share[:, None]).T, z) for share in shares.T])
            return shares.sum(axis=0), np.dot(shares.T, z), grams

        n_parts, n_features = self.means_.shape
        doubles = 4 * n_features + 2 * n_parts
        totals, firsts, seconds = sum_over_blocks(sums, features.shape[0], doubles)
        means = firsts / totals[:, None]
        covariances = seconds / totals[:, None, None] - means[:, :, None] * means[:, None, :]
        covariances += SMALLEST_VARIANCE * np.eye(n_features)
        self._set_standardised(totals / totals.sum(), means, covariances, units)

    def _set_standardised(
        self,
        weights: FloatArray,
        means: FloatArray,
        covariances: FloatArray,
        units: CorrelationFit,
    ) -> None:
        """Set the parts, given in standardised columns."""
        scales = np.outer(units.scales, units.scales)
        self._set_parts(weights, units.mean + units.scales * means, covariances * scales)

    def _set_parts(self, weights: FloatArray, means: FloatArray, covariances: FloatArray) -> None:
        self.weights_, self.means_, self.covariances_ = weights, means, covariances
        self._parts = tuple(
            Gaussian(mean, covariance)
            for mean, covariance in zip(self.means_, self.covariances_, strict=True)
        )
        for part in self._parts:
            _ = part.standardising_basis  # validates the parameters
        mean, between = moments_of_means(self.weights_, self.means_)
        self.set_moments(mean, np.tensordot(self.weights_, self.covariances_, 1) + between)

    def _use_given(self) -> None:
        if self.weights is None or self.means is None or self.covariances is None:
            raise self._not_given()
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
        self._set_parts(weights, means, covariances)

    @property
    def pieces(self) -> tuple[InputModel, ...]:
        """The Gaussian parts of the mixture."""
        self._require_fitted()
        return self._parts

    def piece_shares(self, X: FloatArray) -> FloatArray:
        """Posterior probability of each of the `pieces` at each row; same as `responsibilities`.

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
            Basis that every mode is contracted with.

        Returns
        -------
        MixtureContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()
        return MixtureContraction(self, tuple(part.contract(basis) for part in self._parts))

    def _joint(self, X: ArrayLike) -> FloatArray:
        """Log of each part's probability times its density."""
        self._require_fitted()
        with np.errstate(divide="ignore"):  # a part may have probability zero
            log_weights = np.log(self.weights_)
        columns = [part.log_density(X) for part in self._parts]
        return np.asarray(np.stack(columns, axis=1) + log_weights)
