r"""Pose and climb a mixture of experts with a Gaussian gate.

The alternative model of Xu, Jordan and Hinton (1995; Appendix C of Sedghi, Janzamin and Anandkumar)
has the joint likelihood of gating covariates and response of `moment_init.likelihood.gate`. For
everything but the climb it is a mixture with a logit gate of the statistics of the covariates.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag, solve_triangular

from moment_init.checks import FloatArray
from moment_init.em.problem import EMProblem, GateCoordinates
from moment_init.em.starts import fit_responsibilities, softly_assigned
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import Ending, MaximiseResult, climb
from moment_init.likelihood.gate import (
    SMALLEST_COUNT,
    GatedLikelihood,
    GatedMixture,
    GaussianGate,
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
from moment_init.likelihood.posterior import doubles_per_unit, posterior_of_block
from moment_init.likelihood.rows import LikelihoodRows

N_CLUSTERINGS = 3
"""Number of starts from clusters of the gating covariates, each with new distant centres: there are
maxima whose components are such clusters, which starts from the responses do not find."""


@dataclass(frozen=True, slots=True, eq=False)
class GatedRun(MaximiseResult):
    """The end of a climb of the joint likelihood; `parameters` are those of the logit gate."""

    at: GatedMixture = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GatedProblem(EMProblem):
    """Rows to fit by a mixture of experts with a Gaussian gate; `rows.gate` has the statistics."""

    # root of the covariance of the gating covariates over the units; (n_gate, n_gate)
    pooled_root: FloatArray
    gating: GateCoordinates  # location and scale of the gating covariates

    @classmethod
    def of(cls, logit: EMProblem) -> "GatedProblem":
        """Pose the problem from one with a logit gate."""
        if logit.rows.gate is None or logit.gate_coordinates is None:
            raise ValueError("`logit` must have gating covariates; got none. Pose it with a gate.")
        prepared = logit.prepared()
        n_gate = prepared.rows.n_gate
        zeros, doubles = np.zeros(n_gate), 3 * n_gate
        total, first, _ = prepared.rows.sum(_covariate_sums, zeros, doubles=doubles)
        _, _, squares = prepared.rows.sum(_covariate_sums, first / total, doubles=doubles)
        return cls(
            prepared.family,
            prepared.n_components,
            prepared.rows.map(_with_statistics),
            prepared.coordinates,
            None,
            prepared.restrictions,
            prepared.min_dispersion_ratio,
            prepared.constant,
            prepared.prior,
            pooled_root=np.linalg.cholesky(squares / total),
            gating=logit.gate_coordinates,
        )

    @property
    def log_jacobian(self) -> float:
        """Constant to subtract from a joint log-likelihood to get it in the user's units."""
        log_scales = float(np.log(self.gating.scales).sum())
        return self.ungated().log_jacobian + self.rows.total_units * log_scales

    @property
    def n_gate(self) -> int:
        """Number of gating covariates."""
        return len(self.pooled_root)

    def ungated(self) -> EMProblem:
        """Return the problem without a gate."""
        return EMProblem(
            self.family,
            self.n_components,
            self.rows.map(replace, gate=None),
            self.coordinates,
            None,
            self.restrictions,
            self.min_dispersion_ratio,
            self.constant,
            self.prior,
        )

    def admit(self, parameters: MixtureParameters) -> MixtureParameters:
        """Apply the restrictions to the experts, and drop the gate."""
        return self.ungated().admit(replace(parameters, gate=None))

    def free_count(self, n_components: int) -> int:
        """Number of free parameters of a mixture with a number of components."""
        return self.ungated().free_count(n_components) + n_components * gate_size(self.n_gate)

    def own_starts(self, rng: np.random.Generator) -> list[tuple[str, MixtureParameters]]:
        """Return starts from clusters of the gating covariates."""
        starts = []
        for rank in range(1, N_CLUSTERINGS + 1):
            shares = self._cluster_shares(rng)
            start = self.with_shares(fit_responsibilities(self, shares), shares)
            starts.append((f"clusters {rank}", start.as_logit))
        return starts

    def likelihood(self, mixture: MixtureParameters) -> GatedLikelihood:
        """Return the joint likelihood with its bounds and restrictions."""
        base = self.ungated()
        constraint = base.constraint(mixture)
        bounds = bounds_of(
            self.family,
            min_weight=self.min_weight,
            min_dispersion_ratio=self.min_dispersion_ratio,
        )
        joint = None
        if constraint is not None:
            gate_entries = np.eye(mixture.n_components * gate_size(self.n_gate))
            joint = LinearConstraint(np.asarray(block_diag(constraint.basis, gate_entries)))
        return GatedLikelihood(
            self.family,
            self.rows,
            bounds,
            constraint,
            joint,
            self.constant,
            self.pooled_root,
            self.min_dispersion_ratio**2,
            self.prior,
        )

    def start_from(self, parameters: MixtureParameters) -> GatedMixture:
        """Return the same mixture if its gate is Gaussian, else start from its responsibilities."""
        if parameters.gate is not None:
            gate = GaussianGate.of_slopes(parameters.gate, self.n_gate)
            if gate is not None:
                return GatedMixture(replace(parameters, gate=None), gate)
        doubles = doubles_per_unit(self.rows, parameters)
        counts, totals = self.rows.sum(_share_sums, self.family, parameters, doubles=doubles)
        return self._with_totals(replace(parameters, gate=None), counts, totals)

    def with_shares(self, mixture: MixtureParameters, shares: FloatArray) -> GatedMixture:
        """Add the gate and weights that fit given responsibilities."""
        # shares: (n_units, n_components)
        statistics, weight = unit_values(self.rows)
        weighted = shares * weight[:, None]
        return self._with_totals(mixture, weighted.sum(axis=0), weighted.T @ statistics[:, 1:])

    def _with_totals(
        self, mixture: MixtureParameters, counts: FloatArray, totals: FloatArray
    ) -> GatedMixture:
        """Add the gate and weights that fit expected units and totals of their statistics."""
        counts = np.maximum(counts, SMALLEST_COUNT)
        gate = self.likelihood(mixture).gate_of(counts, totals)
        return GatedMixture(replace(mixture, weights=counts / counts.sum(), gate=None), gate)

    def climb(self, start: MixtureParameters, **options: Any) -> GatedRun:
        """Climb from a start, under the restrictions."""
        gated = self.start_from(start)
        likelihood = self.likelihood(gated.mixture)
        inside = GatedMixture(
            enforce(self.admit(gated.mixture), likelihood.bounds),
            likelihood.floored(gated.gate.means, gated.gate.covariances),
        )
        settings = {
            "max_steps": 30,
            "em_steps": 0,
            "max_em_steps": None,
            "tolerance": 1e-3,
            "damping": 1.0,
            "target": None,
        }
        given = {name: value for name, value in options.items() if name != "known"}
        search = climb(likelihood, inside, **(settings | given))
        labels = dict.fromkeys(bound.label for bound in likelihood.active(search.parameters))
        return GatedRun(
            search.parameters.as_logit,
            search.sums,
            search.n_iter,
            search.ending or Ending.OUT_OF_STEPS,
            tuple(search.history),
            tuple(labels),
            at=search.parameters,
        )

    def _cluster_shares(self, rng: np.random.Generator) -> FloatArray:
        """Assign units softly to the nearest of several distant centres, drawn as in k-means++."""
        statistics, weight = unit_values(self.rows)
        covariates = statistics[:, 1 : 1 + self.n_gate]
        white = solve_triangular(self.pooled_root, covariates.T, lower=True).T
        n_units, r = len(white), self.n_components
        distances = np.empty((n_units, r))
        chances = weight
        for component in range(r):
            centre = white[rng.choice(n_units, p=chances / chances.sum())]
            distances[:, component] = np.square(white - centre).sum(axis=1)
            nearest = distances[:, : component + 1].min(axis=1)
            # all distances are zero if there are fewer distinct values than components
            chances = weight * nearest if nearest.any() else weight
        return softly_assigned(distances.argmin(axis=1), r)


def _with_statistics(rows: LikelihoodRows) -> LikelihoodRows:
    """Replace the gating covariates by their statistics."""
    return replace(rows, gate=gate_statistics(np.asarray(rows.gate)))


def _covariate_sums(
    rows: LikelihoodRows, centre: FloatArray, units: slice
) -> tuple[FloatArray, ...]:
    """Sum weights, centred gating covariates and their products."""
    covariates, weight = unit_values(rows, units)
    centred = covariates - centre
    return np.array(weight.sum()), weight @ centred, (centred.T * weight) @ centred


def _share_sums(
    rows: LikelihoodRows, family: AnyFamily, parameters: MixtureParameters, units: slice
) -> tuple[FloatArray, ...]:
    """Sum responsibilities, and the statistics of gating covariates that they weight."""
    statistics, weight = unit_values(rows, units)
    block = posterior_of_block(family, rows, parameters, units)
    weighted = block.responsibilities * weight
    return weighted.sum(axis=1), weighted @ statistics[:, 1:]
