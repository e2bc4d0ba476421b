r"""A log prior of the parameters, for maximum a posteriori estimates by the same climb.

Coefficients and biases are normal, dispersions log-normal, weights Dirichlet, all independent given
the predictor. The density is one of coefficients, biases, log dispersions and weight logits, so
that the maximum is that of the posterior in the coordinates of the climb: the Dirichlet density of
the logits is proportional to :math:`\prod_j w_j^{\alpha_j}`.

Priors are stated for columns that are centred and scaled one by one. In the whitened coordinates of
the climb, :math:`\tilde\beta = L'\beta` with :math:`LL'` the covariance of the columns, their
precision is a full matrix (`whitened_precision`).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from moment_init.checks import FloatArray
from moment_init.likelihood.parameters import MixtureParameters, component_vectors
from moment_init.likelihood.sums import LikelihoodSums

_FLAT = 1e-12
"""Share of the largest precision below which a direction has none but for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class LogPrior:
    """Normal coefficients and biases, log-normal dispersions, Dirichlet weights.

    P is the number of linear predictors; entries for dispersions that a predictor does not have are
    not read.
    """

    precision: FloatArray  # of the coefficients; (P, n_features, n_features)
    bias_mean: FloatArray  # (P,)
    bias_deviation: FloatArray  # (P,)
    concentration: float  # Dirichlet parameter of every weight
    log_dispersion_mean: FloatArray | None = None  # (P,)
    log_dispersion_deviation: FloatArray | None = None  # (P,)

    def add_to(self, sums: LikelihoodSums, parameters: MixtureParameters) -> LikelihoodSums:
        """Add value, gradient and curvature of the log prior to those of the log-likelihood."""
        layout, r = parameters.layout, parameters.n_components
        centre, precision = self._normal(parameters)
        deviations = component_vectors(parameters) - centre  # (r, q)
        pulls = deviations @ precision
        score = sums.score.copy()
        score[: r * layout.size] -= pulls.ravel()
        value = -0.5 * float(np.sum(deviations * pulls)) + r * _log_constant(precision)
        weights, total = parameters.weights, r * self.concentration
        value += self.concentration * float(np.log(weights).sum())
        value += float(gammaln(total) - r * gammaln(self.concentration))
        width = 1 + parameters.n_gate
        score[r * layout.size :: width] += (self.concentration - total * weights)[:-1]
        components, gate = sums.component_information, sums.gate_information
        if components is not None and gate is not None:
            gate = gate.copy()
            curvature = total * (np.diag(weights) - np.outer(weights, weights))
            gate[::width, ::width] += curvature[:-1, :-1]
            components = components + precision
        return replace(
            sums,
            score=score,
            component_information=components,
            gate_information=gate,
            log_prior=value,
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


def whitened_precision(
    factor: FloatArray, scales: FloatArray, deviations: FloatArray
) -> FloatArray:
    r"""Precision of whitened coefficients, for independent ones of columns scaled one by one.

    The coefficients of scaled columns are :math:`D L'^{-1}\tilde\beta`, D the columns' scales.
    """
    # factor: (p, p) lower triangular, scales, deviations: (p,) -> (p, p)
    root = solve_triangular(factor, np.diag(scales / deviations), lower=True)
    return np.asarray(root @ root.T)


def _log_constant(precision: FloatArray) -> float:
    """Logarithm of the normalising constant of a normal; flat directions have none."""
    values = np.linalg.eigvalsh(precision)
    proper = values[values > _FLAT * values.max()]
    return 0.5 * float(np.log(proper / (2.0 * np.pi)).sum())
