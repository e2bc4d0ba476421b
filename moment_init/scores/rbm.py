"""Gaussian-Bernoulli restricted Boltzmann machines, fitted by score matching.

`fit_rbm` minimises the score-matching loss from several starts and chooses the number of hidden
units on held-out rows. `RBM` is the input model.
"""

from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block
from moment_init.scores.base import ClosedFormContraction, InputModel, RowTerms
from moment_init.scores.gaussian import given_vector
from moment_init.scores.gaussian_mixture import moments_of_means

# Largest number of rows for the fit, and for choosing the number of hidden units.
FIT_ROWS = 20_000
CHOICE_ROWS = 6_000

# Every `HELD_OUT`-th row judges the machine fitted to the other rows.
HELD_OUT = 5

# The loss has local minima: `STARTS` starts run for a few steps, and the best one runs on.
STARTS = 4
SHORT_STEPS = 40
LONG_STEPS = 400

# Bounds of log precisions on standardised columns: conditional deviations between .1 and 3.
PRECISION_BOUNDS = (np.log(0.1), np.log(100.0))


@dataclass(frozen=True, slots=True, eq=False)
class RBMParameters:
    """Parameters of a restricted Boltzmann machine."""

    weights: FloatArray  # vectors of the hidden units; (n_features, n_hidden)
    visible_bias: FloatArray  # linear part of the log-density; (n_features,)
    hidden_bias: FloatArray  # biases of the hidden units; (n_hidden,)
    precision: FloatArray  # diagonal of the quadratic part; (n_features,)

    def rescale(self, mean: FloatArray, scales: FloatArray) -> "RBMParameters":
        """Convert parameters for (x - mean) / scales to parameters for x."""
        # mean: (n_features,), scales: (n_features,)
        weights = self.weights / scales[:, None]
        precision = self.precision / scales**2
        visible = self.visible_bias / scales + precision * mean
        return RBMParameters(weights, visible, self.hidden_bias - mean @ weights, precision)


def fit_rbm(
    z: FloatArray, weights: FloatArray, numbers: tuple[int, ...], rng: np.random.Generator
) -> tuple[RBMParameters, dict[int, float]]:
    """Fit each number of hidden units and keep the machine with the lowest held-out loss."""
    # z: (n_obs, n_features), weights: (n_obs,)
    kept = rng.permutation(len(z))[:FIT_ROWS]
    rows, shares = z[kept], weights[kept] / weights[kept].mean()
    if len(numbers) == 1:
        return _fit(rows, shares, numbers[0], rng), {}
    sample, sample_shares = rows[:CHOICE_ROWS], shares[:CHOICE_ROWS]
    tested = np.arange(len(sample)) % HELD_OUT == 0
    losses = {}
    for number in numbers:
        vector = _pack(_fit(sample[~tested], sample_shares[~tested], number, rng))
        held_out = score_matching_loss(vector, sample[tested], sample_shares[tested], number)
        losses[number] = held_out[0]
    best = min(losses, key=lambda number: losses[number])
    return _fit(rows, shares, best, rng), losses


def score_matching_loss(
    vector: FloatArray, rows: FloatArray, weights: FloatArray, n_hidden: int
) -> tuple[float, FloatArray]:
    r"""Score-matching loss and its gradient.

    .. math:: J = E\left[\tfrac12 |b - \lambda x + W \sigma|^2
              + \sum_k \sigma'_k |w_k|^2\right] - \sum_j \lambda_j
    """
    # rows: (n_obs, n_features), weights: (n_obs,)
    p = _unpack(vector, rows.shape[1], n_hidden)
    shares = weights / weights.sum()
    sigma = expit(rows @ p.weights + p.hidden_bias)
    first = sigma * (1.0 - sigma)
    second = first * (1.0 - 2.0 * sigma)
    score = p.visible_bias - rows * p.precision + sigma @ p.weights.T
    squares = np.square(p.weights).sum(axis=0)
    loss = shares @ (0.5 * np.square(score).sum(axis=1) + first @ squares) - p.precision.sum()
    weighted = score * shares[:, None]
    # derivative of the loss in w_k'x + c_k
    inside = (weighted @ p.weights) * first + shares[:, None] * second * squares
    slopes = weighted.T @ sigma + rows.T @ inside + 2.0 * (shares @ first) * p.weights
    log_precision = p.precision * (-np.sum(weighted * rows, axis=0) - 1.0)
    parts = (slopes.ravel(), weighted.sum(axis=0), inside.sum(axis=0), log_precision)
    return float(loss), np.concatenate(parts)


def _fit(
    rows: FloatArray, weights: FloatArray, n_hidden: int, rng: np.random.Generator
) -> RBMParameters:
    """Minimise the loss from several starts."""
    n_features = rows.shape[1]
    n_free = n_features * n_hidden + n_features + n_hidden
    bounds = [(None, None)] * n_free + [PRECISION_BOUNDS] * n_features

    def run(
        start: FloatArray, steps: int, used: FloatArray, sizes: FloatArray
    ) -> tuple[float, FloatArray]:
        optimum = minimize(
            score_matching_loss,
            start,
            args=(used, sizes, n_hidden),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps},
        )
        return float(optimum.fun), optimum.x

    sample = slice(CHOICE_ROWS)
    starts = [_start(rows, n_hidden, rng) for _ in range(STARTS)]
    short = [run(start, SHORT_STEPS, rows[sample], weights[sample]) for start in starts]
    best = min(short, key=lambda result: result[0])
    return _unpack(run(best[1], LONG_STEPS, rows, weights)[1], n_features, n_hidden)


def _start(rows: FloatArray, n_hidden: int, rng: np.random.Generator) -> FloatArray:
    """Draw hidden units that divide the rows in random directions near random rows."""
    n_features = rows.shape[1]
    directions = rng.standard_normal((n_features, n_hidden))
    directions *= 2.0 / np.linalg.norm(directions, axis=0)
    centres = rows[rng.integers(len(rows), size=n_hidden)]
    hidden = -np.sum(centres.T * directions, axis=0)
    visible = -directions.sum(axis=1) / 2.0
    return np.concatenate([directions.ravel(), visible, hidden, np.full(n_features, np.log(1.5))])


def _pack(p: RBMParameters) -> FloatArray:
    parts = (p.weights.ravel(), p.visible_bias, p.hidden_bias, np.log(p.precision))
    return np.concatenate(parts)


def _unpack(vector: FloatArray, n_features: int, n_hidden: int) -> RBMParameters:
    size = n_features * n_hidden
    weights, visible, hidden, precision = np.split(
        vector, [size, size + n_features, size + n_features + n_hidden]
    )
    return RBMParameters(weights.reshape(n_features, n_hidden), visible, hidden, np.exp(precision))


# Up to this number the sum over all states of the hidden units is computed: 65,536 terms.
ENUMERATED_UNITS = 16

# Numbers of hidden units to try by default.
TRIED_UNITS = (1, 2, 4, 8)


class RBM(InputModel):
    r"""Gaussian-Bernoulli restricted Boltzmann machine, with known or fitted parameters.

    With the hidden units summed out its log-density is

    .. math:: l(x) = -\tfrac12 x' \Lambda x + b' x + \sum_k \log(1 + e^{w_k' x + c_k}) - \log Z,

    :math:`\Lambda` diagonal, so that the third derivative is
    :math:`K = \sum_k \sigma''(w_k' x + c_k) w_k^{\otimes 3}`.

    Parameters
    ----------
    n_hidden : int, optional
        Number of hidden units; by default the one of 1, 2, 4 and 8 with the lowest held-out
        score-matching loss.
    weights : array-like, shape (n_features, n_hidden), optional
        Known vectors w_k. Give them together with both biases.
    visible_bias : array-like, shape (n_features,), optional
        Known vector b.
    hidden_bias : array-like, shape (n_hidden,), optional
        Known vector c.
    precision : array-like, shape (n_features,), optional
        Known diagonal of Lambda; ones by default if the other parameters are given.
    random_seed : int, Generator or None
        Seed for the starts.

    Attributes
    ----------
    weights_, visible_bias_, hidden_bias_, precision_ : numpy.ndarray
        The parameters after `fit`, in the units of the inputs.
    losses_ : dict of int to float
        Held-out loss for each number of hidden units that was tried.

    Notes
    -----
    The score-matching loss of [1]_, :math:`E[|s|^2 / 2 + \mathrm{tr} H]`, needs no normalising
    constant; [2]_ gives it for this density. It is minimised by L-BFGS on at most 20,000 rows; a
    gradient costs O(n d n_hidden). With more than 16 hidden units log Z is left out.

    References
    ----------
    .. [1] A. Hyvarinen, "Estimation of non-normalized statistical models by score matching",
       Journal of Machine Learning Research 6 (2005).
    .. [2] K. Swersky, M. Ranzato, D. Buchman, B. Marlin, N. de Freitas, "On autoencoders and score
       matching for energy based models", ICML 2011.
    """

    weights_: FloatArray
    visible_bias_: FloatArray
    hidden_bias_: FloatArray
    precision_: FloatArray
    losses_: dict[int, float]
    _log_normaliser: float

    def __init__(
        self,
        n_hidden: int | None = None,
        *,
        weights: ArrayLike | None = None,
        visible_bias: ArrayLike | None = None,
        hidden_bias: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        random_seed: int | np.random.Generator | None = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.weights = weights
        self.visible_bias = visible_bias
        self.hidden_bias = hidden_bias
        self.precision = precision
        self.random_seed = random_seed

    def __repr__(self) -> str:
        """Show the number of hidden units."""
        number = len(self.hidden_bias_) if self.is_fitted else self.n_hidden
        return "RBM()" if number is None else f"RBM(n_hidden={number})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit by score matching, unless the parameters were given.

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
        RBM
            This object, fitted.
        """
        if self.weights is not None:
            return self._keep_given(features.shape[1])
        if self.n_hidden is not None and (self.n_hidden != int(self.n_hidden) or self.n_hidden < 1):
            raise ValueError(
                f"`n_hidden` must be a whole number from 1 upwards; got {self.n_hidden!r}."
            )
        numbers = TRIED_UNITS if self.n_hidden is None else (int(self.n_hidden),)
        units = self._fit_moments(features, weights, names)
        z = (read_block(features, slice(None)) - units.mean) / units.scales
        rng = np.random.default_rng(self.random_seed)
        parameters, self.losses_ = fit_rbm(z, weights, numbers, rng)
        self._set_parameters(parameters.rescale(units.mean, units.scales))
        return self

    def _set_parameters(self, parameters: RBMParameters) -> None:
        self.weights_, self.visible_bias_ = parameters.weights, parameters.visible_bias
        self.hidden_bias_, self.precision_ = parameters.hidden_bias, parameters.precision
        self._log_normaliser = float(logsumexp(self._states()[0])) if self.is_normalised else 0.0

    def _use_given(self) -> None:
        if self.weights is None or self.visible_bias is None or self.hidden_bias is None:
            raise self._not_given()
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 2:
            raise ValueError(
                f"`weights` must have shape (n_features, n_hidden); got {weights.shape}."
            )
        n_features, n_hidden = weights.shape
        visible = given_vector(self.visible_bias, n_features, "visible_bias")
        hidden = given_vector(self.hidden_bias, n_hidden, "hidden_bias")
        precision = np.ones(n_features)
        if self.precision is not None:
            precision = given_vector(self.precision, n_features, "precision")
        if precision.min() <= 0.0:
            raise ValueError(f"`precision` must be positive; got {precision.min():g}.")
        if n_hidden > ENUMERATED_UNITS:
            raise ValueError(
                f"`weights` must have at most {ENUMERATED_UNITS} columns for the moments to be "
                f"computed; got {n_hidden}. Fit the machine to rows instead."
            )
        self._set_parameters(RBMParameters(weights, visible, hidden, precision))
        log_weights, means = self._states()
        mean, between = moments_of_means(np.exp(log_weights - self._log_normaliser), means)
        self.set_moments(mean, np.diag(1.0 / precision) + between)

    @property
    def is_normalised(self) -> bool:
        """Whether the normalising constant, a sum over hidden states, is computed."""
        return len(self.hidden_bias_) <= ENUMERATED_UNITS

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row, up to a constant with more than 16 hidden units.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """
        self._require_fitted()
        rows = np.asarray(X, dtype=np.float64)
        quadratic = -0.5 * np.square(rows) @ self.precision_ + rows @ self.visible_bias_
        hidden = np.logaddexp(0.0, rows @ self.weights_ + self.hidden_bias_).sum(axis=1)
        return np.asarray(quadratic + hidden - self._log_normaliser)

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
        inner = -(basis * self.precision_[:, None]).T @ basis

        def rows(X: FloatArray) -> RowTerms:
            share = expit(X @ self.weights_ + self.hidden_bias_)
            gradient = self.visible_bias_ - X * self.precision_ + share @ self.weights_.T
            second = share * (1.0 - share)
            return RowTerms(-gradient @ basis, second, second * (1.0 - 2.0 * share))

        return ClosedFormContraction(rows, inner, self.weights_.T @ basis)

    def _states(self) -> tuple[FloatArray, FloatArray]:
        """Log-weight of each state of the hidden units, and mean of the inputs given it."""
        states = np.array(list(product((0.0, 1.0), repeat=len(self.hidden_bias_))))
        fields = self.visible_bias_ + states @ self.weights_.T  # (n_states, d)
        log_weights = states @ self.hidden_bias_
        log_weights += 0.5 * np.square(fields) @ (1.0 / self.precision_)
        log_weights += 0.5 * np.sum(np.log(2.0 * np.pi / self.precision_))
        return log_weights, fields / self.precision_
