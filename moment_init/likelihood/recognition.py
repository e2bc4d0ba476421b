"""Maxima that are known, and whether a climb leads to one of them.

Most climbs of a search end where an earlier one has ended. Near a maximum the log-likelihood is a
parabola whose curvature the earlier climb has left behind: a Newton step with it, from a point on
that parabola, ends at the maximum. Where it does, there is no need to follow the climb to its end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment

from moment_init.likelihood.parameters import MixtureParameters, component_size, pack
from moment_init.likelihood.sums import LikelihoodSums

__all__ = ["KnownMaximum"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

LARGEST_GAP = 20.0
"""Points that are further below a maximum are not on its parabola; it saves trying."""

SMALLEST_GAP = 0.01
"""Runs end within this of their maximum: points no further above it can be on their way to it."""

CONTRACTION = 0.3
"""Share of the distance to the maximum that a Newton step with the maximum's own curvature may
leave, in its metric. From another stationary point the step is zero, and leaves all of it; where it
leaves less than a third, so do the next, ever less, and no other maximum lies between."""

CLOSE = 1e-2
"""A step that ends so near, squared, ends within .005 of the maximum's log-likelihood."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownMaximum:
    """A maximum that a climb has reached.

    Parameters
    ----------
    parameters : MixtureParameters
        Where it is.
    log_likelihood : float
        Its height.
    factor : numpy.ndarray, shape (n_parameters, n_parameters)
        Lower Cholesky factor of the observed information there.
    """

    parameters: MixtureParameters
    log_likelihood: float
    factor: FloatArray

    @classmethod
    def of(cls, parameters: MixtureParameters, sums: LikelihoodSums) -> "KnownMaximum | None":
        """Keep where a climb ended, if it is a maximum inside all bounds.

        Parameters
        ----------
        parameters : MixtureParameters
            Where it ended.
        sums : LikelihoodSums
            Log-likelihood and derivatives there.

        Returns
        -------
        KnownMaximum or None
            None if the information is not known, or not positive definite.
        """
        if sums.missing_information is None:
            return None
        try:
            factor = np.linalg.cholesky(sums.information())
        except np.linalg.LinAlgError:
            return None
        return cls(parameters, sums.log_likelihood, factor)

    def lies_ahead(self, parameters: MixtureParameters, sums: LikelihoodSums) -> bool:
        """Whether a climb from some point leads here.

        Parameters
        ----------
        parameters : MixtureParameters
            The point; its components may come in another order.
        sums : LikelihoodSums
            Log-likelihood and score there.

        Returns
        -------
        bool
            Whether a Newton step with the curvature of this maximum leads close to it.
        """
        if len(sums.score) != len(self.factor):
            return False
        # A climb never falls: above the maximum it leads to another one.
        if not -SMALLEST_GAP < self.log_likelihood - sums.log_likelihood < LARGEST_GAP:
            return False
        order = _matching(self.parameters, parameters)
        distance = self.factor.T @ (pack(parameters.reorder(order)) - pack(self.parameters))
        score = _reordered_score(sums.score, parameters, order)
        left = distance + solve_triangular(self.factor, score, lower=True)
        return bool(left @ left <= max(CONTRACTION**2 * (distance @ distance), CLOSE))


def _matching(known: MixtureParameters, other: MixtureParameters) -> IndexArray:
    """Which component of another mixture stands for each of the known one."""
    gaps = _vectors(known)[:, :, None] - _vectors(other)[:, None, :]
    return np.asarray(linear_sum_assignment(np.einsum("ajk,ajk->jk", gaps, gaps))[1])


def _vectors(parameters: MixtureParameters) -> FloatArray:
    """Coefficients and bias of each component, (p + 1, r)."""
    return np.concatenate([parameters.coefficients, parameters.biases[None]])


def _reordered_score(
    score: FloatArray, parameters: MixtureParameters, order: IndexArray
) -> FloatArray:
    """The score in the coordinates of the reordered mixture; that of all logits sums to zero."""
    r, q = parameters.n_components, component_size(parameters)
    own = score[: r * q].reshape(r, q)[order]
    logits = score[r * q :].reshape(r - 1, 1 + parameters.n_gate)
    logits = np.concatenate([logits, -logits.sum(axis=0, keepdims=True)])[order][:-1]
    return np.concatenate([own.ravel(), logits.ravel()])
