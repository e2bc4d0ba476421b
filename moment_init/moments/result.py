"""Results of `estimate`: the estimate, its diagnostics, and the choice of component number."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray
from moment_init.families.registry import parse_family
from moment_init.families.several import AnyFamily
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import Status, label, labels_of, model_attributes, parameters_of, versions
from moment_init.scores.choosing import InputChoice

if TYPE_CHECKING:
    import xarray

    from moment_init.data.formulas import FormulaDesign


@dataclass(frozen=True, slots=True, eq=False)
class MomentDiagnostics:
    """Diagnostics of an estimate from a single moment.

    Parameters
    ----------
    n_obs : int
        Number of rows.
    signal_to_noise : numpy.ndarray, shape (n_components,)
        Coefficient of each component in the moment, divided by its standard error.
    noise_floor : float
        Signal-to-noise ratio that pure noise would reach.
    residual : float
        Share of the norm of the moment that the components do not explain.
    singular_values : numpy.ndarray
        Singular values of the unfolded moment; large ones are directions that stand out.
    whitening_condition : float
        Condition number of the slice that whitened the tensor.
    is_definite : bool
        Whether a positive definite slice was found.
    shrinkage : float
        Shrinkage of the correlation matrix of the input.
    weight_sum : float or None
        Sum of the mixture weights before normalisation, if they were estimated.
    """

    n_obs: int
    signal_to_noise: FloatArray
    noise_floor: float
    residual: float
    singular_values: FloatArray
    whitening_condition: float
    is_definite: bool
    shrinkage: float
    weight_sum: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StackedDiagnostics:
    """Diagnostics of an estimate from stacked moments.

    Parameters
    ----------
    n_obs : int
        Number of rows.
    spectrum : numpy.ndarray, shape (n_features,)
        Eigenvalues of the Gram matrix of the moments, divided by the upper edge of their noise,
        largest first: those above one are directions that stand out.
    gap : float
        Ratio of the last eigenvalue that is used to the first that is not; infinite if all are
        used.
    residual : float
        Share of the norm of the stacked tensor that its decomposition does not explain.
    moment_misfit : float
        What the decomposition leaves of the stacked tensor, as a sum of squares over its
        expectation from noise.
    n_functions : int
        Number of functions of the response, or responses, whose moments are stacked.
    candidate_spread : float
        Largest angle in degrees between directions of the best and the second-best candidate.
    misfit : float or None
        Information-matrix statistic of the polished fit, divided by the upper edge of its noise;
        above one if, for example, a component is in truth two. None without polish, and for several
        responses.
    shrinkage : float
        Shrinkage of the correlation matrix of the input.
    weight_sum : float or None
        Sum of the weights before normalisation, if scales and biases were known.
    """

    n_obs: int
    spectrum: FloatArray
    gap: float
    residual: float
    moment_misfit: float
    n_functions: int
    candidate_spread: float
    misfit: float | None
    shrinkage: float
    weight_sum: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ComponentSelection:
    """How the number of components was chosen.

    Parameters
    ----------
    n_components : tuple of int
        Numbers of components that were fitted.
    log_likelihood : tuple of float
        Log-likelihood of each polished fit.
    bic : tuple of float
        Bayesian information criterion of each fit; the smallest is chosen.
    n_visible : int
        Number of directions that stand out in the spectrum: a lower bound, as parallel components
        share one.
    """

    n_components: tuple[int, ...]
    log_likelihood: tuple[float, ...]
    bic: tuple[float, ...]
    n_visible: int

    def __str__(self) -> str:
        """Format a table in which the chosen number is marked."""
        best = min(self.bic)
        lines = [f"{'components':>10}{'log-likelihood':>16}{'BIC':>14}"]
        for number, value, bic in zip(
            self.n_components, self.log_likelihood, self.bic, strict=True
        ):
            mark = "  chosen" if bic == best else ""
            lines.append(f"{number:>10}{value:>16.1f}{bic:>14.1f}{mark}")
        return "\n".join([*lines, f"directions that stand out in the spectrum: {self.n_visible}"])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MomentEstimate:
    """Moment estimate of a mixture of generalized linear models, in the user's units.

    With several responses, or classes, P linear predictors of a component share its direction:
    arrays with one value per predictor have a leading axis of that length.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions u_j along which the response increases (with several responses: the one with
        the largest scale in its own units); the largest weight or moment coefficient first, or in
        the order of the known parameters.
    moment_coefficients : numpy.ndarray, shape (n_components,), or None
        Signed coefficients: lambda_j of M_3 = sum_j lambda_j u_j^3, or that of M_1 for a single
        component. None with several responses.
    scales, biases : numpy.ndarray, shape (n_components,) or (P, n_components), or None
        Scales s_j, of either sign with several responses, and biases b_j; None if only the third
        moment was used and they are not known.
    weights : numpy.ndarray, shape (n_components,), or None
        Mixture weights; None if only the third moment was used and the scales are not known.
    feature_names : tuple of str
        Names of the columns.
    family : str
        Family of the response; names joined by commas if responses have different ones.
    link : str
        Link of the family; names joined by commas if responses have different ones.
    method : str
        Method that was used, as passed to `estimate`.
    status : Status
        How far the estimate can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    diagnostics : MomentDiagnostics or StackedDiagnostics
        Diagnostics of the method.
    dispersion : numpy.ndarray, shape (n_components,) or (P, n_components), or None
        Dispersion of each component, for families that have one and methods that estimate it; NaN
        for responses without one.
    standard_errors : numpy.ndarray, shape (n_components,), or None
        Standard errors of the directions in degrees: twice the error covers the angle to the truth
        in 95 % of cases. None if only the third moment was used; NaN with several responses if
        they were not polished.
    log_likelihood : float or None
        Log-likelihood of the polished fit. Above about 40,000 rows the gain of the last step is
        predicted, with an error of at most one and mostly below a third. With several responses,
        that of the mixture with shared directions.
    candidates : tuple of MixtureParameters
        Distinct solutions of the moments in the user's units, best first, each with components by
        decreasing weight: starting values for a likelihood fit.
    selection : ComponentSelection or None
        How the number of components was chosen; None if it was given.
    input_choice : InputChoice or None
        How the density of the input was chosen; None if it was given.
    design : FormulaDesign or None
        How the formula encoded its data; None without a formula.
    response_names : tuple of str
        Names of several responses, or of all classes but the first; empty for one response of
        numbers.
    classes : numpy.ndarray, shape (n_classes,), or None
        Labels of the classes, of which the first is the reference; None without classes.
    """

    directions: FloatArray
    moment_coefficients: FloatArray | None
    scales: FloatArray | None
    biases: FloatArray | None
    weights: FloatArray | None
    feature_names: tuple[str, ...]
    family: str
    link: str
    method: str
    status: Status
    warnings: tuple[str, ...]
    diagnostics: MomentDiagnostics | StackedDiagnostics
    dispersion: FloatArray | None = None
    standard_errors: FloatArray | None = None
    log_likelihood: float | None = None
    candidates: tuple[MixtureParameters, ...] = ()
    selection: ComponentSelection | None = None
    input_choice: InputChoice | None = None
    design: "FormulaDesign | None" = None
    response_names: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.directions.shape[1])

    @property
    def n_predictors(self) -> int:
        """Number of linear predictors of a component, P."""
        return max(1, len(self.response_names))

    @property
    def response_family(self) -> AnyFamily:
        """Family of all responses, with its links."""
        n_classes = None if self.classes is None else len(self.classes)
        return parse_family(
            self.family, self.link, n_classes=n_classes, n_responses=self.n_predictors
        )

    @property
    def outcome_names(self) -> tuple[str, ...]:
        """Names of what has a mean: the responses, or all classes."""
        if self.classes is None:
            return self.response_names
        return tuple(str(label) for label in self.classes)

    @property
    def coefficients(self) -> FloatArray | None:
        """Coefficients s_j u_j, (n_features, n_components) or (P, n_features, n_components).

        None if the scales are not known.
        """
        return None if self.scales is None else self.scales[..., None, :] * self.directions

    def to_datatree(self) -> "xarray.DataTree":
        """Convert to a DataTree that ArviZ reads.

        Returns
        -------
        xarray.DataTree
            The group ``posterior`` holds the estimate as one draw of one chain, with the variables
            ``direction``, ``moment_coefficient`` and, if known, ``scale``, ``bias``, ``weight``,
            ``dispersion``, ``coefficient`` and ``direction_error``. The group ``moment_init`` holds
            the diagnostics, status and warnings. With several responses, or more than two classes,
            variables with a value for each have the dim ``response``.
        """
        import xarray

        labels = labels_of(self)
        values: dict[str, FloatArray | None] = {**parameters_of(self)}
        values["moment_coefficient"] = self.moment_coefficients
        values["direction_error"] = self.standard_errors
        known = {name: each[None, None] for name, each in values.items() if each is not None}
        diagnosed = {
            each.name: getattr(self.diagnostics, each.name) for each in fields(self.diagnostics)
        }
        attrs = versions() | {
            "status": str(self.status),
            "warnings": "\n".join(self.warnings),  # NetCDF 3 has no lists of strings
            "method": self.method,
            **model_attributes(self.family, self.link, self.classes),
        }
        if self.input_choice is not None:
            attrs["input_model"] = self.input_choice.chosen.name
            attrs["input_explanation"] = self.input_choice.explanation
        # NetCDF has no booleans
        numbers = {
            name: int(value) if isinstance(value, bool) else value
            for name, value in diagnosed.items()
            if value is not None
        }
        groups = {
            "posterior": label("posterior", known, labels),
            "moment_init": label("moment_init", numbers, attrs=attrs),
        }
        return xarray.DataTree.from_dict(groups)

    def _rows(self) -> list[tuple[str, list[str]]]:
        """Return the rows of the printed table: a name and one value per component."""
        rows = [
            (name, [f"{value: .3f}" for value in direction])
            for name, direction in zip(self.feature_names, self.directions, strict=True)
        ]
        summaries = {
            "scale": self.scales,
            "bias": self.biases,
            "weight": self.weights,
            "dispersion": self.dispersion,
            "direction s.e. (degrees)": self.standard_errors,
            "moment coefficient": self.moment_coefficients,
            "signal to noise": getattr(self.diagnostics, "signal_to_noise", None),
        }
        for name, values in summaries.items():
            if values is None:
                continue
            labelled = [(name, values)]
            if np.ndim(values) == 2:
                pairs = zip(self.response_names, values, strict=True)
                labelled = [
                    (f"{name} of {response}", row)
                    for response, row in pairs
                    if not np.isnan(row).all()  # a response without dispersion
                ]
            rows += [(label, [f"{value: .3g}" for value in row]) for label, row in labelled]
        return rows

    def _title(self) -> str:
        n_features, n_components = self.directions.shape
        outcomes = ""
        if self.response_names:
            noun = "responses" if self.classes is None else "classes"
            outcomes = f"{len(self.outcome_names)} {noun}, "
        return (
            f"MomentEstimate: {n_components} components, {n_features} features, {outcomes}"
            f"{self.family} ({self.link}), {self.diagnostics.n_obs} rows, status {self.status}"
        )

    def __repr__(self) -> str:
        """Format a table of the directions with one column per component."""
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        header = " " * width + "".join(f"{f'u_{j}':>11}" for j in range(self.n_components))
        lines = [f"{name:<{width}}" + "".join(f"{v:>11}" for v in values) for name, values in rows]
        notes = [f"! {warning}" for warning in self.warnings]
        if self.input_choice is not None and self.input_choice.chosen.name != "gaussian":
            notes.insert(0, f"input: {self.input_choice.explanation}")
        selection = [] if self.selection is None else [str(self.selection)]
        return "\n".join([self._title(), header, *lines, *selection, *notes])

    def _repr_html_(self) -> str:
        """Format the same table for a notebook."""
        from html import escape

        head = "".join(f"<th>u<sub>{j}</sub></th>" for j in range(self.n_components))
        body = "".join(
            f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{v}</td>" for v in values) + "</tr>"
            for name, values in self._rows()
        )
        notes = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<p>{escape(self._title())}</p><table><tr><th></th>{head}</tr>{body}</table>"
            f"<ul>{notes}</ul>"
        )
