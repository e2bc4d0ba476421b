"""How far a stacked estimate can be trusted: what its status means and what to do."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from moment_init.diagnostics import dependence_warning
from moment_init.likelihood.parameters import MixtureParameters, component_size
from moment_init.polish import LARGEST_MISFIT, PolishedFit
from moment_init.problem import EstimationProblem
from moment_init.results import Status
from moment_init.stacked.estimator import StackedFit
from moment_init.stacked.subspace import COUNTED_EIGENVALUE

__all__ = ["StackedSolution", "judge_stacked"]

FloatArray = NDArray[np.float64]

# A direction that is known to within this many degrees only is a guess.
LARGEST_ERROR = 20.0

# Two components are one cut in two if their difference is what noise makes in all but one of a
# hundred cases.
SAME_COMPONENT = 0.99

# What a bound means for the user, by the first word of its name.
REMEDIES = {
    "weight": "a component is empty: use fewer components",
    "dispersion": "a response without noise, or counts without overdispersion: use another family",
    "length": "the classes are separated: use more rows, or a prior that bounds the coefficients",
}


@dataclass(frozen=True, slots=True, eq=False)
class StackedSolution:
    """Moments and polish of one problem, in standardised coordinates.

    Parameters
    ----------
    fit : StackedFit
        The estimate from moments alone.
    polished : PolishedFit or None
        The polished fit, where it was asked for.
    """

    fit: StackedFit
    polished: PolishedFit | None

    @property
    def parameters(self) -> MixtureParameters:
        """The final parameters."""
        return self.fit.candidates[0] if self.polished is None else self.polished.parameters


def judge_stacked(
    problem: EstimationProblem, solution: StackedSolution, errors: FloatArray
) -> tuple[Status, tuple[str, ...]]:
    """Say how far the estimate can be trusted.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    solution : StackedSolution
        The estimate.
    errors : numpy.ndarray, shape (n_components,)
        Standard errors of the directions in degrees.

    Returns
    -------
    status : Status
        The verdict; the first of the findings decides.
    warnings : tuple of str
        All findings, each with what to do.
    """
    findings = [*_signal_findings(solution.fit, errors)]
    if solution.polished is None:
        dependence = dependence_warning(problem.data, problem.input_model)
        findings += [(Status.WEAK_SIGNAL, message) for message in dependence]
    else:
        findings += _likelihood_findings(solution.polished)
    status = findings[0][0] if findings else Status.OK
    messages = [message for _, message in findings]
    if solution.polished is not None and problem.data.groups is not None:
        messages.append(
            "`groups` is not used by the polish: the estimate is consistent, but its standard "
            "errors and its log-likelihood are those of independent rows."
        )
    return status, tuple(messages)


def _signal_findings(fit: StackedFit, errors: FloatArray) -> list[tuple[Status, str]]:
    """Whether the directions stand out from noise and are known well enough."""
    findings = []
    n_components = fit.candidates[0].n_components
    n_visible = int(np.sum(fit.spectrum > COUNTED_EIGENVALUE))
    if n_visible < min(n_components, len(fit.spectrum)):
        message = (
            f"Only {n_visible} of {n_components} directions stand out from noise in the spectrum "
            "of the moments: components may be parallel, too small or too many. Use more rows or "
            "fewer components, and compare starts."
        )
        findings.append((Status.WEAK_SIGNAL, message))
    if not errors.max() <= LARGEST_ERROR:  # also where an error is not a number
        message = (
            f"A direction has a standard error of {errors.max():.0f} degrees: treat it as a guess. "
            "Use more rows or fewer components."
        )
        findings.append((Status.WEAK_SIGNAL, message))
    return findings


def _likelihood_findings(polished: PolishedFit) -> list[tuple[Status, str]]:
    """Whether the polished fit is an interior maximum of distinct components that fits."""
    findings = []
    n_components = polished.parameters.n_components
    pair = _same_components(polished)
    if pair is not None:
        message = (
            f"Components {pair[0]} and {pair[1]} (by falling weight) are the same to within their "
            "standard errors: one may be cut in two. Use fewer components."
        )
        findings.append((Status.NOT_IDENTIFIED, message))
    if polished.misfit > LARGEST_MISFIT:
        message = (
            f"The information-matrix test finds more than {n_components} components, another "
            f"family or a wrong optimum (statistic {polished.misfit:.1f}, right fits stay below "
            f"{LARGEST_MISFIT}). Try more components or another family."
        )
        findings.append((Status.MISFIT, message))
    for bound in polished.bounds:
        message = (
            f"The likelihood rises towards the edge of the parameters ({bound}); "
            f"{REMEDIES[bound.split()[0]]}."
        )
        findings.append((Status.WEAK_SIGNAL, message))
    if not polished.has_converged:
        message = "The polish stopped before it converged. Use the estimate as a start only."
        findings.append((Status.NOT_CONVERGED, message))
    return findings


def _same_components(polished: PolishedFit) -> tuple[int, int] | None:
    """Two components whose parameters differ by no more than noise, numbered by falling weight."""
    parameters = polished.parameters
    covariance = np.linalg.pinv(polished.information, hermitian=True)
    size, p = component_size(parameters), parameters.n_features
    columns = np.vstack([parameters.coefficients, parameters.biases])
    order = np.argsort(-parameters.weights, kind="stable")
    limit = float(chi2.ppf(SAME_COMPONENT, p + 1))
    for first, second in combinations(range(len(order)), 2):
        a, b = int(order[first]), int(order[second])
        rows_a, rows_b = (np.arange(k * size, k * size + p + 1) for k in (a, b))
        spread = covariance[np.ix_(rows_a, rows_a)] + covariance[np.ix_(rows_b, rows_b)]
        cross = covariance[np.ix_(rows_a, rows_b)]
        difference = columns[:, a] - columns[:, b]
        inverse = np.linalg.pinv(spread - cross - cross.T, hermitian=True)
        if difference @ inverse @ difference < limit:
            return first, second
    return None
