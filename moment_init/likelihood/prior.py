r"""A log prior of the parameters, for maximum a posteriori estimates by the same climb.

Coefficients and biases are normal, dispersions log-normal, all independent given the predictor.
Weights are Dirichlet; with a gate its logits and slopes are normal with sum zero instead. The
density is one of coefficients, biases, log dispersions and weight logits, so that the maximum is
that of the posterior in the coordinates of the climb: the Dirichlet density of the logits is
proportional to :math:`\prod_j w_j^{\alpha_j}`.

Priors are stated for columns that are centred and scaled one by one. In the whitened coordinates of
the climb, :math:`\tilde\beta = L'\beta` with :math:`LL'` the covariance of the columns, their
precision is a full matrix (`whitened_precision`).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.likelihood.parameters import MixtureParameters, component_vectors
from moment_init.likelihood.sums import LikelihoodSums


@dataclass(frozen=True, slots=True, eq=False)
class LogPrior:
    """Normal coefficients and biases, log-normal dispersions, Dirichlet weights or normal gates.

    P is the number of linear predictors; entries for dispersions that a predictor does not have are
    not read.
    """

    precision: FloatArray  # of the coefficients; (P, n_features, n_features)
    bias_mean: FloatArray  # (P,)
    bias_deviation: FloatArray  # (P,)
    concentration: float  # Dirichlet parameter of every weight, without a gate
    log_dispersion_mean: FloatArray | None = None  # (P,)
    log_dispersion_deviation: FloatArray | None = None  # (P,)
    gate_deviation: float = 1.0  # of the gate's logits and slopes, before their sum is zero
    log_constant: float = 0.0  # logarithm of the normalising constant
    description: str = ""  # the priors in words

    def add_to(self, sums: LikelihoodSums, parameters: MixtureParameters) -> LikelihoodSums:
        """Add value, gradient and curvature of the log prior to those of the log-likelihood."""
        centre, precision = self._normal(parameters)
        deviations = component_vectors(parameters) - centre  # (r, q)
        pulls = deviations @ precision
        mixing_value, mixing_score, curvature = self._mixing(parameters)
        first, size = pulls.size, len(mixing_score)
        score = sums.score.copy()
        score[:first] -= pulls.ravel()
        score[first : first + size] += mixing_score
        components, gate = sums.component_information, sums.gate_information
        if components is not None and gate is not None:
            gate = gate.copy()
            gate[:size, :size] += curvature
            components = components + precision
        return replace(
            sums,
            score=score,
            component_information=components,
            gate_information=gate,
            log_prior=self.log_constant + mixing_value - 0.5 * float(np.sum(deviations * pulls)),
            prior_count=self.concentration,
        )

    def _normal(self, parameters: MixtureParameters) -> tuple[FloatArray, FloatArray]:
        """Mean (q,) and precision (q, q) of one component's parameters."""
        layout = parameters.layout
        mean, precision = np.zeros(layout.size), np.zeros((layout.size, layout.size))
        for a, places in enumerate(layout.slopes):
            precision[np.ix_(places[:-1], places[:-1])] = self.precision[a]
            mean[places[-1]] = self.bias_mean[a]
            precision[places[-1], places[-1]] = self.bias_deviation[a] ** -2
        if self.log_dispersion_mean is not None and self.log_dispersion_deviation is not None:
            places, owners = layout.dispersions, layout.dispersed
            mean[places] = self.log_dispersion_mean[owners]
            precision[places, places] = self.log_dispersion_deviation[owners] ** -2
        return mean, precision

    def _mixing(self, parameters: MixtureParameters) -> tuple[float, FloatArray, FloatArray]:
        """Value, gradient and curvature for the weights, or for the logits and slopes of a gate."""
        weights, r = parameters.weights, parameters.n_components
        if parameters.gate is None:
            total = r * self.concentration
            return (
                self.concentration * float(np.log(weights).sum()),
                (self.concentration - total * weights)[:-1],
                np.asarray(total * (np.diag(weights) - np.outer(weights, weights))[:-1, :-1]),
            )
        logits = np.concatenate([np.log(weights)[None], parameters.gate])  # (1 + g, r)
        centred = logits - logits.mean(axis=1, keepdims=True)
        precision = self.gate_deviation**-2
        between = precision * (np.eye(r) - 1.0 / r)[:-1, :-1]
        return (
            -0.5 * precision * float(np.square(centred).sum()),
            -precision * centred[:, :-1].T.ravel(),
            np.asarray(np.kron(between, np.eye(len(logits)))),
        )


def whitened_precision(factor: FloatArray, deviations: FloatArray) -> FloatArray:
    r"""Precision of whitened coefficients, for independent ones of columns scaled one by one.

    The coefficients of scaled columns are :math:`D L'^{-1}\tilde\beta`, D the columns' scales.
    """
    # factor: (p, p) lower triangular, deviations: (p,) -> (p, p)
    scales = np.linalg.norm(factor, axis=1)
    root = solve_triangular(factor, np.diag(scales / deviations), lower=True)
    return np.asarray(root @ root.T)
