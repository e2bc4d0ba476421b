"""Gaussian times a smooth factor: an exponential family fitted by score matching."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, solve_triangular
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block
from moment_init.scores.base import ClosedFormContraction, InputModel, RowTerms

# Largest number of rows for the fit, whose cost is that of products of features over rows.
FIT_ROWS = 20_000

# Number of folds; each judges the fit to the others.
FOLDS = 5

# Frequencies along each column: the lowest bends the density over its whole width (a period of
# twelve deviations), the highest resolves half a deviation, as clusters need.
COLUMN_FREQUENCIES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)

# The loss depends on gradients, but moments use third derivatives. That of cos(w'z) has size |w|^3,
# so a penalty on coefficients times |w|^3 penalises the roughness that matters.
PENALISED_DERIVATIVE = 3

# Penalties to try, relative to the largest eigenvalue of the scaled Gram matrix.
PENALTIES = np.logspace(-8.0, 2.0, 21)

# Points for the normalising constant: the integrand is bounded, so the error is below 1 per cent.
N_POINTS = 2**12


class ScoreMatching(InputModel):
    r"""Gaussian times a smooth factor, :math:`\log p(x) = \log N(x) + \theta' f(x) - \log Z`.

    In whitened coordinates z the features are waves :math:`f_q = \cos(\omega_q' z + \tau_q)`: along
    each column at fixed frequencies, and along random directions. They are bounded, so the density
    has Gaussian tails whatever theta is.

    Parameters
    ----------
    n_random : int, default 100
        Number of features in random directions.
    penalty : float, optional
        Relative ridge penalty; by default the one with the lowest held-out loss.
    random_seed : int, Generator or None
        Seed for directions and phases.

    Attributes
    ----------
    coefficients_ : numpy.ndarray, shape (n_functions,)
        Coefficients theta after `fit`.
    penalty_ : float
        The penalty that was used; infinite if no factor was better than the Gaussian alone.
    losses_ : numpy.ndarray
        Held-out loss of each penalty that was tried, minus the Gaussian's.

    Notes
    -----
    The loss of [1]_, :math:`E[|s|^2 / 2 + \mathrm{tr} H]`, is quadratic in theta: the fit is one
    linear solve, O(n q^2 + q^3) for q features on at most 20,000 rows. The penalty weights each
    coefficient by the cube of its frequency and is chosen by five-fold cross-validation.

    References
    ----------
    .. [1] A. Hyvarinen, "Some extensions of score matching", Computational Statistics & Data
       Analysis 51 (2007), doi:10.1016/j.csda.2006.09.003.
    """

    coefficients_: FloatArray
    penalty_: float
    losses_: FloatArray
    _frequencies: FloatArray  # (d, q)
    _phases: FloatArray
    _log_normaliser: float

    def __init__(
        self,
        n_random: int = 100,
        *,
        penalty: float | None = None,
        random_seed: int | np.random.Generator | None = None,
    ) -> None:
        self.n_random = n_random
        self.penalty = penalty
        self.random_seed = random_seed

    def __repr__(self) -> str:
        """Show the number of features."""
        if self.is_fitted:
            return f"ScoreMatching(n_functions={len(self.coefficients_)})"
        return "ScoreMatching()"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit mean, covariance and the coefficients of the features.

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
        ScoreMatching
            This object, fitted.
        """
        if self.n_random < 0 or (self.penalty is not None and self.penalty < 0.0):
            raise ValueError(
                "`n_random` and `penalty` must not be negative; got "
                f"{self.n_random!r} and {self.penalty!r}."
            )
        rng = np.random.default_rng(self.random_seed)
        self._fit_moments(features, weights, names)
        self._draw_features(rng)
        kept = rng.permutation(len(weights))[:FIT_ROWS]
        z, sizes = self.whiten(read_block(features, kept)), weights[kept]
        folds = [self._sums(z[fold::FOLDS], sizes[fold::FOLDS]) for fold in range(FOLDS)]
        self._solve(folds)
        points = ndtri(qmc.Sobol(len(self.mean_), seed=rng).random(N_POINTS).clip(1e-12, 1 - 1e-12))
        exponents = self._waves(points) @ self.coefficients_
        self._log_normaliser = float(logsumexp(exponents) - np.log(N_POINTS))
        return self

    def _draw_features(self, rng: np.random.Generator) -> None:
        """Draw frequencies and phases: cosine and sine along columns, and random waves."""
        n_features = len(self.mean_)
        # A column in whitened coordinates is a row of L, scaled to unit length.
        columns = (self._factor / np.linalg.norm(self._factor, axis=1, keepdims=True)).T
        along = [frequency * columns for frequency in COLUMN_FREQUENCIES]
        # Random directions, with lengths similar to the frequencies along columns.
        directions = rng.standard_normal((n_features, self.n_random))
        directions *= rng.uniform(0.5, 2.5, self.n_random) / np.linalg.norm(directions, axis=0)
        self._frequencies = np.concatenate([*along, *along, directions], axis=1)
        n_along = n_features * len(COLUMN_FREQUENCIES)
        phases = rng.uniform(0.0, 2.0 * np.pi, self.n_random)
        self._phases = np.concatenate([np.zeros(n_along), np.full(n_along, -np.pi / 2.0), phases])

    def _sums(self, z: FloatArray, weights: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Sum the weight, the Gram matrix and the linear part of the loss over rows.

        The score is -z + D theta with D_q = -sin(.) w_q; the Laplacian of a feature is
        -|w_q|^2 cos(.).
        """
        sines, cosines = self._sines_and_cosines(z)
        slopes = -sines
        gram = (slopes * weights[:, None]).T @ slopes
        gram *= self._frequencies.T @ self._frequencies
        along = weights @ (slopes * (z @ self._frequencies))
        laplacian = weights @ cosines * np.square(self._frequencies).sum(axis=0)
        return float(weights.sum()), gram, np.asarray(-along - laplacian)

    def _solve(self, folds: list[tuple[float, FloatArray, FloatArray]]) -> None:
        """Choose the penalty on the folds and solve with it on all rows."""
        total, gram, linear = (sum(parts) for parts in zip(*folds, strict=True))
        tried = PENALTIES if self.penalty is None else np.array([self.penalty])
        losses = np.zeros(len(tried))
        for weight, fold_gram, fold_linear in folds:
            if self.penalty is not None:
                break
            paths = self._path(
                (gram - fold_gram) / (total - weight),
                (linear - fold_linear) / (total - weight),
                tried,
            )
            quadratic = 0.5 * np.einsum("pa,ab,pb->p", paths, fold_gram, paths, optimize=True)
            losses += (quadratic + paths @ fold_linear) / total
        self.losses_ = losses
        best = int(np.argmin(losses))
        self.penalty_ = float(tried[best])
        self.coefficients_ = self._path(gram / total, linear / total, tried[[best]])[0]
        if losses[best] > 0.0:  # every factor is worse than none on held-out rows
            self.penalty_, self.coefficients_ = np.inf, np.zeros(len(linear))

    def _path(self, gram: FloatArray, linear: FloatArray, penalties: FloatArray) -> FloatArray:
        """Coefficients for each penalty, (n_penalties, n_functions)."""
        sizes = np.linalg.norm(self._frequencies, axis=0) ** PENALISED_DERIVATIVE
        values, vectors = eigh(gram / np.outer(sizes, sizes))
        inside = vectors.T @ (linear / sizes)
        # The floor keeps rounding from separating features that are copies of each other.
        shrunk = np.maximum(values, 0.0) + penalties[:, None] * values[-1] + 1e-12 * values[-1]
        return np.asarray(-(inside / shrunk) @ vectors.T / sizes)

    def _sines_and_cosines(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sine and cosine of the argument of each feature, (n_obs, n_functions).

        Features along columns come in pairs, cosine and sine of the same angle, so each sine and
        cosine is computed once and used for both.
        """
        n_along = z.shape[1] * len(COLUMN_FREQUENCIES)
        along = z @ self._frequencies[:, :n_along]
        random = z @ self._frequencies[:, 2 * n_along :] + self._phases[2 * n_along :]
        sine, cosine = np.sin(along), np.cos(along)
        return (
            np.concatenate([sine, -cosine, np.sin(random)], axis=1),
            np.concatenate([cosine, sine, np.cos(random)], axis=1),
        )

    def _waves(self, z: FloatArray) -> FloatArray:
        return self._sines_and_cosines(z)[1]

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row, with the constant from quasi-Monte Carlo.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """
        z = self.whiten(X)
        constant = np.log(np.diag(self._factor)).sum() + self._log_normaliser
        constant += 0.5 * z.shape[1] * np.log(2.0 * np.pi)
        factor = self._waves(z) @ self.coefficients_
        return np.asarray(factor - 0.5 * np.square(z).sum(axis=1) - constant)

    def contract(self, basis: FloatArray) -> ClosedFormContraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        ClosedFormContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()
        half = np.asarray(solve_triangular(self._factor, basis, lower=True))

        def rows(X: FloatArray) -> RowTerms:
            z = self.whiten(X)
            sines, cosines = self._sines_and_cosines(z)
            sines *= self.coefficients_
            cosines *= -self.coefficients_
            return RowTerms((z + sines @ self._frequencies.T) @ half, cosines, sines)

        return ClosedFormContraction(rows, -half.T @ half, self._frequencies.T @ half)
