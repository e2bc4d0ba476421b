"""What `estimate` returns for several responses, or for a response of several classes.

From the end of a climb to the result in the user's units: order, errors, status, warnings.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from moment_init.checks import FloatArray
from moment_init.data.formulas import FormulaDesign
from moment_init.responses.climbing import Climb, FreePoint, row_posterior, sum_rows
from moment_init.responses.data import ResponsesData
from moment_init.responses.kinds import Categorical, ResponseKind
from moment_init.responses.parameters import (
    JointParameters,
    JointProblem,
    JointRows,
    active_bounds,
    held_entries,
)
from moment_init.responses.result import JointFit, library
from moment_init.results import ComponentTable, StartRecord, StartStatus, Status

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JointEstimate:
    """Moment estimate of a mixture whose responses share component and direction.

    Given component j, predictor a of a row is s_ja <u_j, x> + b_ja: the direction is that of the
    component, scale (with its sign), bias and dispersion are each response's own.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions in the user's units; the largest scale of each component is positive.
    scales : numpy.ndarray, shape (n_components, n_predictors)
        Scales, of either sign.
    biases : numpy.ndarray, shape (n_components, n_predictors)
        Intercepts.
    weights : numpy.ndarray, shape (n_components,)
        Probabilities of the components, largest first.
    dispersion : numpy.ndarray, shape (n_components, n_predictors), or None
        Dispersion; NaN for responses of a family without one.
    standard_errors : numpy.ndarray, shape (n_components,)
        Root mean square angle between a direction and the truth, in degrees of the standardised
        coordinates, from the information; NaN where it is singular or directions are held.
    log_likelihood : float
        Log-likelihood of the tied mixture, in the user's units.
    spectrum : numpy.ndarray, shape (n_features,)
        Eigenvalues of the Gram matrix of all moments over the edge of their noise.
    residual : float
        What the decomposition leaves of the stacked tensor, relative to it.
    n_functions : int
        Number of functions of the responses whose moments are stacked.
    n_obs : int
        Number of rows.
    kind : ResponseKind
        Families and names of the responses.
    feature_names : tuple of str
        Names of the columns.
    status : Status
        How far the estimate can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    design : FormulaDesign or None
        What encodes new rows, for an estimate by formula.
    """

    directions: FloatArray
    scales: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None
    standard_errors: FloatArray
    log_likelihood: float
    spectrum: FloatArray
    residual: float
    n_functions: int
    n_obs: int
    kind: ResponseKind
    feature_names: tuple[str, ...]
    status: Status
    warnings: tuple[str, ...]
    design: FormulaDesign | None = None

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.weights.shape[0])

    @property
    def family(self) -> str:
        """Family of the responses; names joined by commas where they differ."""
        return self.kind.name

    @property
    def link(self) -> str:
        """Link of the responses; names joined by commas where they differ."""
        return self.kind.link_name

    @property
    def response_names(self) -> tuple[str, ...]:
        """Names of the predictors: the responses, or the classes other than the reference."""
        return self.kind.names

    @property
    def coefficients(self) -> FloatArray:
        """Coefficients s_ja u_j, shape (n_features, n_components, n_predictors)."""
        return np.asarray(self.directions[:, :, None] * self.scales[None])

    @property
    def parameters(self) -> JointParameters:
        """The same mixture by its coefficients, in the user's units."""
        return JointParameters(self.coefficients, self.biases, self.weights, self.dispersion)

    def to_datatree(self) -> "xarray.DataTree":
        """Convert to a DataTree: one draw, with the dim `response`.

        Returns
        -------
        xarray.DataTree
            Groups posterior (direction, scale, coefficient, bias, weight, dispersion) and
            moment_init (spectrum, standard errors, status).
        """
        import xarray

        by_response = ("chain", "draw", "component", "response")
        of_slopes = ("chain", "draw", "feature", "component", "response")
        variables = {
            "direction": (of_slopes[:4], self.directions[None, None]),
            "scale": (by_response, self.scales[None, None]),
            "coefficient": (of_slopes, self.coefficients[None, None]),
            "bias": (by_response, self.biases[None, None]),
            "weight": (by_response[:3], self.weights[None, None]),
        }
        if self.dispersion is not None:
            variables["dispersion"] = (by_response, self.dispersion[None, None])
        coords = {
            "chain": [0],
            "draw": [0],
            "feature": list(self.feature_names),
            "component": np.arange(self.n_components),
            "response": list(self.response_names),
        }
        classes = (
            {"reference_class": self.kind.outcome_names[0]}
            if isinstance(self.kind, Categorical)
            else {}
        )
        own = xarray.Dataset(
            {
                "spectrum": ("eigenvalue", self.spectrum),
                "standard_error": ("component", self.standard_errors),
                "log_likelihood": self.log_likelihood,
                "residual": self.residual,
                "n_functions": self.n_functions,
                "n_obs": self.n_obs,
            },
            attrs={
                "status": str(self.status),
                "warnings": "\n".join(self.warnings),
                "family": self.family,
                "link": self.link,
                **classes,
            },
        )
        groups = {"posterior": xarray.Dataset(variables, coords), "moment_init": own}
        for dataset in groups.values():
            dataset.attrs = {**library(), **dataset.attrs}
        return xarray.DataTree.from_dict(groups)

    def _table(self) -> ComponentTable:
        what = f"{len(self.kind.outcome_names)} outcomes, {self.family} ({self.link})"
        title = (
            f"JointEstimate: {self.n_components} components, {len(self.feature_names)} features, "
            f"{what}, {self.n_obs} rows, status {self.status}"
        )
        rows = [
            (f"direction: {name}", [f"{value:+.3f}" for value in values])
            for name, values in zip(self.feature_names, self.directions, strict=True)
        ]
        rows.append(("  within degrees", [f"{error:.1f}" for error in self.standard_errors]))
        rows += [
            (f"scale: {name}", [f"{value:+.3f}" for value in values])
            for name, values in zip(self.response_names, self.scales.T, strict=True)
        ]
        rows.append(("weight", [f"{weight:.3f}" for weight in self.weights]))
        return ComponentTable(title, rows, [], self.warnings)

    def __repr__(self) -> str:
        """Table of directions with their errors, scales of all responses, and weights."""
        return self._table().to_text()

    def _repr_html_(self) -> str:
        """Same table for a notebook."""
        return self._table().to_html()


_SMALLEST_EIGENVALUE = 1e-8
"""Of the information scaled to a unit diagonal: below it, it is singular to rounding."""


def assemble_joint(
    problem: JointProblem,
    given: ResponsesData,
    end: Climb[FreePoint],
    starts: tuple[StartRecord, ...],
) -> JointFit:
    """Turn the end of the winning run into a result."""
    found = end.point.parameters
    parameters = found.take(np.argsort(-found.weights, kind="stable"))
    sums = sum_rows(problem, parameters)
    bounds = active_bounds(problem, parameters)
    held = held_entries(problem, parameters, sums.gradient)
    covariance = None
    if sums.information is not None:
        inner = inverse_information(sums.information, held)
        if inner is not None:
            jacobian = problem.user_jacobian()
            covariance = jacobian @ inner @ jacobian.T
    user = problem.to_user(parameters)
    rows = JointRows(given.X, given.y, given.sample_weight, given.offset, given.n_trials)
    _, shares, _ = row_posterior(given.kind, rows, user)
    is_positive = shares > 0.0
    logs = np.where(is_positive, np.log(np.where(is_positive, shares, 1.0)), 0.0)
    shift = problem.log_likelihood_shift
    status, warnings = _judge(end, bounds, covariance)
    return JointFit(
        coefficients=user.coefficients,
        biases=user.biases,
        weights=user.weights,
        dispersion=user.dispersion,
        log_likelihood=sums.log_likelihood + shift,
        history=tuple(value + shift for value in end.history),
        n_iter=end.n_iter,
        converged=end.status is StartStatus.CONVERGED,
        starts=starts,
        responsibilities=np.ascontiguousarray(shares.T),
        covariance=covariance,
        n_parameters=problem.layout.size,
        n_obs=given.n_obs,
        n_units=problem.rows.total_weight,
        entropy=float(-(shares * logs).sum(axis=0) @ given.sample_weight),
        kind=given.kind,
        feature_names=given.feature_names,
        status=status,
        warnings=warnings,
        bounds=bounds,
    )


def inverse_information(information: FloatArray, held: NDArray[np.bool_]) -> FloatArray | None:
    """Covariance from the observed information; zero for entries that are held."""
    # information: (N, N), held: (N,) -> (N, N)
    free = np.flatnonzero(~held)
    inner = information[np.ix_(free, free)]
    diagonal = np.diag(inner)
    if diagonal.min(initial=1.0) <= 0.0 or not np.isfinite(inner).all():
        return None
    roots = np.sqrt(diagonal)
    scaled = inner / np.outer(roots, roots)
    if np.linalg.eigvalsh(scaled)[0] < _SMALLEST_EIGENVALUE:
        return None
    inverse = cho_solve(cho_factor(scaled), np.eye(len(free))) / np.outer(roots, roots)
    result = np.zeros_like(information)
    result[np.ix_(free, free)] = inverse
    return result


def _judge(
    end: Climb[FreePoint], bounds: tuple[str, ...], covariance: FloatArray | None
) -> tuple[Status, tuple[str, ...]]:
    """How far a fit can be trusted; that a run did not converge is said first."""
    is_converged = end.status is StartStatus.CONVERGED
    warnings = []
    if not is_converged:
        warnings.append(
            f"The search did not converge ({end.status} after {end.n_iter} iterations): the "
            "log-likelihood may still rise. Allow more iterations (`max_iter`) or use fewer "
            "components."
        )
    if covariance is None:
        warnings.append(
            "The information is singular: the data do not determine all parameters, and there are "
            "no standard errors. Use fewer components."
        )
    if bounds:
        warnings.append(
            f"Parameters lie on a bound: {'; '.join(bounds)}. Their errors are zero, not small. "
            "Use fewer components, or more rows."
        )
    if not is_converged:
        return Status.NOT_CONVERGED, tuple(warnings)
    return Status.NOT_IDENTIFIED if warnings else Status.OK, tuple(warnings)
