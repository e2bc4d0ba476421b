"""Score matching for a Gaussian-Bernoulli restricted Boltzmann machine."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

__all__ = ["RBMParameters", "fit_rbm", "score_matching_loss"]

FloatArray = NDArray[np.float64]

# Rows that the fit reads, and rows on which the number of hidden units is chosen.
FIT_ROWS = 20_000
CHOICE_ROWS = 6_000

# Every so manieth row judges what the others have fitted.
HELD_OUT = 5

# The loss has local minima: so many starts are taken a short way, the best goes on.
STARTS = 4
SHORT_STEPS = 40
LONG_STEPS = 400

# Precisions stay in this range on standardised columns: a conditional deviation between .1 and 3.
PRECISION_BOUNDS = (np.log(0.1), np.log(100.0))


@dataclass(frozen=True, slots=True, eq=False)
class RBMParameters:
    """Parameters of a machine.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n_features, n_hidden)
        Vectors of the hidden units.
    visible_bias : numpy.ndarray, shape (n_features,)
        Linear part of the log-density.
    hidden_bias : numpy.ndarray, shape (n_hidden,)
        Biases of the hidden units.
    precision : numpy.ndarray, shape (n_features,)
        Diagonal of the quadratic part.
    """

    weights: FloatArray
    visible_bias: FloatArray
    hidden_bias: FloatArray
    precision: FloatArray

    def rescale(self, mean: FloatArray, scales: FloatArray) -> "RBMParameters":
        """Parameters for rows x, from those for (x - mean) / scales.

        Parameters
        ----------
        mean : numpy.ndarray, shape (n_features,)
            What was subtracted.
        scales : numpy.ndarray, shape (n_features,)
            What was divided by.

        Returns
        -------
        RBMParameters
            The same density in the units of x.
        """
        weights = self.weights / scales[:, None]
        precision = self.precision / scales**2
        visible = self.visible_bias / scales + precision * mean
        return RBMParameters(weights, visible, self.hidden_bias - mean @ weights, precision)


def fit_rbm(
    z: FloatArray, weights: FloatArray, numbers: tuple[int, ...], rng: np.random.Generator
) -> tuple[RBMParameters, dict[int, float]]:
    """Fit machines with each number of hidden units, keep the one with the least held-out loss.

    Parameters
    ----------
    z : numpy.ndarray, shape (n_obs, n_features)
        Standardised rows.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    numbers : tuple of int
        Numbers of hidden units.
    rng : numpy.random.Generator
        Source of starts.

    Returns
    -------
    parameters : RBMParameters
        The machine, fitted to all rows of the sample.
    losses : dict of int to float
        Held-out loss of each number; empty if there was one only.
    """
    kept = rng.permutation(len(z))[:FIT_ROWS]
    rows, shares = z[kept], weights[kept] / weights[kept].mean()
    if len(numbers) == 1:
        return _fit(rows, shares, numbers[0], rng), {}
    few, few_shares = rows[:CHOICE_ROWS], shares[:CHOICE_ROWS]
    tested = np.arange(len(few)) % HELD_OUT == 0
    losses = {}
    for number in numbers:
        vector = _pack(_fit(few[~tested], few_shares[~tested], number, rng))
        losses[number] = score_matching_loss(vector, few[tested], few_shares[tested], number)[0]
    best = min(losses, key=lambda number: losses[number])
    return _fit(rows, shares, best, rng), losses


def score_matching_loss(
    vector: FloatArray, rows: FloatArray, weights: FloatArray, n_hidden: int
) -> tuple[float, FloatArray]:
    r"""Score-matching loss and its gradient.

    .. math:: J = E\left[\tfrac12 |b - \lambda x + W \sigma|^2
              + \sum_k \sigma'_k |w_k|^2\right] - \sum_j \lambda_j

    Parameters
    ----------
    vector : numpy.ndarray
        Weights by rows, visible biases, hidden biases and logarithms of the precisions.
    rows : numpy.ndarray, shape (n_obs, n_features)
        Standardised rows.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    n_hidden : int
        Number of hidden units.

    Returns
    -------
    loss : float
        The loss.
    gradient : numpy.ndarray
        Its gradient, in the order of `vector`.
    """
    p = _unpack(vector, rows.shape[1], n_hidden)
    shares = weights / weights.sum()
    sigma = expit(rows @ p.weights + p.hidden_bias)
    first = sigma * (1.0 - sigma)
    second = first * (1.0 - 2.0 * sigma)
    score = p.visible_bias - rows * p.precision + sigma @ p.weights.T
    squares = np.square(p.weights).sum(axis=0)
    loss = shares @ (0.5 * np.square(score).sum(axis=1) + first @ squares) - p.precision.sum()
    weighted = score * shares[:, None]
    # How the loss changes with w_k'x + c_k.
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
        found = minimize(
            score_matching_loss,
            start,
            args=(used, sizes, n_hidden),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps},
        )
        return float(found.fun), found.x

    few = slice(CHOICE_ROWS)
    starts = [_start(rows, n_hidden, rng) for _ in range(STARTS)]
    short = [run(start, SHORT_STEPS, rows[few], weights[few]) for start in starts]
    best = min(short, key=lambda result: result[0])
    return _unpack(run(best[1], LONG_STEPS, rows, weights)[1], n_features, n_hidden)


def _start(rows: FloatArray, n_hidden: int, rng: np.random.Generator) -> FloatArray:
    """Hidden units that divide the rows in random directions near random rows."""
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
