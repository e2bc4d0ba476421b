r"""Pose and climb a mixture of experts with a Gaussian gate.

The alternative model of Xu, Jordan and Hinton (1995; Appendix C of Sedghi, Janzamin and Anandkumar)
has the joint likelihood of gating covariates and response of `moment_init.likelihood.gate`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem, GateCoordinates
from moment_init.likelihood.climbing import Ending, MaximiseResult, climb
from moment_init.likelihood.gate import (
    SMALLEST_COUNT,
    GatedLikelihood,
    GatedMixture,
    gate_size,
    gate_statistics,
    unit_values,
)
from moment_init.likelihood.parameters import (
    LinearConstraint,
    MixtureParameters,
    bounds_of,
    enforce,
)
from moment_init.likelihood.posterior import responsibilities
from moment_init.likelihood.rows import LikelihoodRows


@dataclass(frozen=True, slots=True, eq=False)
class GatedRun:
    """The end of a climb of the joint likelihood."""

    at: GatedMixture  # the best parameters, with the gate
    # the same without the gate, and how the run went; its sums are for all parameters
    end: MaximiseResult


@dataclass(frozen=True, slots=True, eq=False)
class GatedProblem:
    """Rows to fit by a mixture of experts with a Gaussian gate."""

    base: EMProblem  # the problem without a gate
    logit: EMProblem  # the problem with a multinomial logit gate
    rows: LikelihoodRows  # the rows, with the statistics of the gating covariates
    # root of the covariance of the gating covariates over the units; (n_gate, n_gate)
    pooled_root: FloatArray
    coordinates: GateCoordinates  # location and scale of the gating covariates

    @classmethod
    def of(cls, logit: EMProblem) -> "GatedProblem":
        """Pose the problem from one with a logit gate."""
        if logit.rows.gate is None or logit.gate_coordinates is None:
            raise ValueError("`logit` must have gating covariates; got none. Pose it with a gate.")
        prepared = logit.prepared()
        base = replace(prepared, rows=replace(prepared.rows, gate=None), gate_coordinates=None)
        rows = replace(prepared.rows, gate=gate_statistics(logit.rows.gate))
        covariates, weight = unit_values(prepared.rows)
        pooled = np.cov(covariates, rowvar=False, aweights=weight, ddof=0)
        root = np.linalg.cholesky(np.atleast_2d(pooled))
        return cls(base, prepared, rows, root, logit.gate_coordinates)

    @property
    def log_jacobian(self) -> float:
        """Constant to subtract from a joint log-likelihood to get it in the user's units."""
        log_scales = float(np.log(self.coordinates.scales).sum())
        return self.base.log_jacobian + self.rows.total_units * log_scales

    def likelihood(self, mixture: MixtureParameters) -> GatedLikelihood:
        """Return the joint likelihood with its bounds and restrictions."""
        base, constraint = self.base, self.base.constraint(mixture)
        n_gate_parameters = mixture.n_components * gate_size(len(self.pooled_root))
        bounds = bounds_of(
            base.family,
            min_weight=base.min_weight,
            min_dispersion_ratio=base.min_dispersion_ratio,
        )
        joint = None
        if constraint is not None:
            joint = LinearConstraint(
                np.asarray(block_diag(constraint.basis, np.eye(n_gate_parameters)))
            )
        floor = base.min_dispersion_ratio**2
        return GatedLikelihood(
            base.family,
            self.rows,
            bounds,
            constraint,
            joint,
            base.constant,
            self.pooled_root,
            floor,
        )

    def start_from(self, parameters: MixtureParameters) -> GatedMixture:
        """Start from the responsibilities of a mixture with a logit gate or without a gate."""
        rows = self.logit.rows
        shares = responsibilities(self.base.family, rows, parameters)
        if rows.group_starts is not None:
            shares = shares[rows.group_starts]
        return self.with_shares(replace(parameters, gate=None), shares)

    def with_shares(self, mixture: MixtureParameters, shares: FloatArray) -> GatedMixture:
        """Add the gate and weights that fit given responsibilities."""
        # shares: (n_units, n_components)
        statistics, weight = unit_values(self.rows)
        weighted = shares * weight[:, None]
        counts = np.maximum(weighted.sum(axis=0), SMALLEST_COUNT)
        totals = weighted.T @ statistics[:, 1:]
        gate = self.likelihood(mixture).gate_of(counts, totals)
        return GatedMixture(replace(mixture, weights=counts / counts.sum()), gate)

    def climb(self, start: GatedMixture, **options: Any) -> GatedRun:
        """Climb from a start, under the restrictions."""
        likelihood = self.likelihood(start.mixture)
        inside = GatedMixture(
            enforce(self.base.admit(start.mixture), likelihood.bounds),
            likelihood.floored(start.gate.means, start.gate.covariances),
        )
        settings = {
            "max_steps": 30,
            "em_steps": 0,
            "max_em_steps": None,
            "tolerance": 1e-3,
            "damping": 1.0,
            "target": None,
        }
        search = climb(likelihood, inside, **(settings | options))
        labels = dict.fromkeys(bound.label for bound in likelihood.active(search.parameters))
        end = MaximiseResult(
            search.parameters.mixture,
            search.sums,
            search.n_iter,
            search.ending or Ending.OUT_OF_STEPS,
            tuple(search.history),
            tuple(labels),
        )
        return GatedRun(search.parameters, end)
