"""What `estimate` returns."""

from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import FloatArray
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import Status
from moment_init.scores.choosing import InputChoice

if TYPE_CHECKING:
    import xarray

    from moment_init.data.formulas import FormulaDesign


@dataclass(frozen=True, slots=True, eq=False)
class MomentDiagnostics:
    """How an estimate was found from a single moment, for a diagnosis only.

    Parameters
    ----------
    n_obs : int
        Number of rows.
    signal_to_noise : numpy.ndarray, shape (n_components,)
        Each component's coefficient in the moment over its standard error.
    noise_floor : float
        Signal-to-noise ratio that pure noise would reach.
    residual : float
        Share of the moment's norm that the components leave unexplained.
    singular_values : numpy.ndarray
        Singular values of the unfolded moment: how many directions stand out.
    whitening_condition : float
        Condition number of the slice that whitened the tensor.
    is_definite : bool
        Whether a positive definite slice was found.
    shrinkage : float
        Shrinkage of the input's correlation matrix.
    weight_sum : float or None
        Sum of the mixture weights before they were normalised, where they were estimated.
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
    """How an estimate was found from stacked moments, for a diagnosis only.

    Parameters
    ----------
    n_obs : int
        Number of rows.
    spectrum : numpy.ndarray, shape (n_features,)
        Eigenvalues of the moments' Gram matrix over the edge of their noise, largest first: those
        above one are directions that the moments show.
    gap : float
        Ratio of the last eigenvalue that is used to the first that is not; infinite if all are.
    residual : float
        Share of the stacked tensor that its decomposition leaves.
    moment_misfit : float
        Chi-square of the moments at the estimate over its degrees of freedom.
    candidate_spread : float
        Largest angle in degrees between a direction of the best candidate and that of the next.
    moment_errors : numpy.ndarray, shape (n_components,)
        Standard errors of the directions from moments alone, in degrees, by a jackknife.
    misfit : float or None
        Information-matrix statistic of the polished fit over the edge of its noise; a fit in which
        a component hides two exceeds it. None without polish.
    n_moves : int
        Moves out of a local optimum that the polish took.
    shrinkage : float
        Shrinkage of the input's correlation matrix.
    weight_sum : float or None
        Sum of the weights before they were normalised, where scales and biases were known.
    """

    n_obs: int
    spectrum: FloatArray
    gap: float
    residual: float
    moment_misfit: float
    candidate_spread: float
    moment_errors: FloatArray
    misfit: float | None
    n_moves: int
    shrinkage: float
    weight_sum: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ComponentSelection:
    """How the number of components was chosen.

    Parameters
    ----------
    n_components : tuple of int
        The numbers that were fitted.
    log_likelihood : tuple of float
        Log-likelihood of each polished fit.
    bic : tuple of float
        Bayesian information criterion of each; the smallest is chosen.
    n_visible : int
        Directions that stand out in the spectrum: a lower bound, as parallel components share one.
    """

    n_components: tuple[int, ...]
    log_likelihood: tuple[float, ...]
    bic: tuple[float, ...]
    n_visible: int

    def __str__(self) -> str:
        """A table, the chosen number marked."""
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

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions u_j, turned towards growing responses; the largest weight or moment
        coefficient first, or in the order of the known parameters.
    moment_coefficients : numpy.ndarray, shape (n_components,)
        Coefficients with sign: lambda_j of M_3 = sum_j lambda_j u_j^3, or for a single component
        that of M_1.
    scales, biases : numpy.ndarray, shape (n_components,), or None
        Scales s_j and biases b_j; None where a single third moment was used and they are not known.
    weights : numpy.ndarray, shape (n_components,), or None
        Mixture weights; None where a single third moment was used and scales are not known.
    feature_names : tuple of str
        Names of the columns.
    family : str
        Family of the response.
    link : str
        Its link.
    method : str
        How the moments were used.
    status : Status
        How far the estimate can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    diagnostics : MomentDiagnostics or StackedDiagnostics
        How the estimate was found.
    dispersion : numpy.ndarray, shape (n_components,), or None
        Dispersion of each component, for families that have one and methods that estimate it.
    standard_errors : numpy.ndarray, shape (n_components,), or None
        Standard errors of the directions in degrees: twice it covers the angle to the truth in 95 %
        of cases. None where a single third moment was used.
    log_likelihood : float or None
        Log-likelihood of the polished fit; beyond some 40,000 rows the gain of the last step is
        predicted, to a unit, mostly to a third of one.
    candidates : tuple of MixtureParameters
        Distinct solutions of the moments in the user's units, best first, the components of each by
        falling weight: starts for a likelihood.
    selection : ComponentSelection or None
        How the number of components was chosen, where it was.
    input_choice : InputChoice or None
        How the density of the input was chosen, where it was.
    design : FormulaDesign or None
        How the formula encoded its data, where one was given.
    """

    directions: FloatArray
    moment_coefficients: FloatArray
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

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.directions.shape[1])

    @property
    def coefficients(self) -> FloatArray | None:
        """Coefficients s_j u_j, (n_features, n_components), where the scales are known."""
        return None if self.scales is None else self.directions * self.scales

    def to_datatree(self) -> "xarray.DataTree":
        """Convert to a DataTree that ArviZ reads.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` holds the estimate as one draw of one chain, with the variables
            ``direction``, ``moment_coefficient`` and, where known, ``scale``, ``bias``, ``weight``,
            ``dispersion``, ``coefficient``, ``direction_error``; group ``moment_init`` holds the
            diagnostics, status and warnings.
        """
        import xarray

        coords = {"feature": list(self.feature_names), "component": np.arange(self.n_components)}
        posterior = xarray.Dataset(
            {
                name: (("chain", "draw", *dims), np.asarray(values)[None, None])
                for name, (dims, values) in self._variables().items()
                if values is not None
            },
            coords={"chain": [0], "draw": [0], **coords},
            attrs=self._attributes(),
        )
        diagnostics = xarray.Dataset(
            {
                field.name: _diagnostic_variable(field.name, getattr(self.diagnostics, field.name))
                for field in fields(self.diagnostics)
                if getattr(self.diagnostics, field.name) is not None
            },
            coords={"component": coords["component"]},
            attrs={
                **self._attributes(),
                "status": str(self.status),
                "warnings": "\n".join(self.warnings),  # NetCDF 3 has no lists of strings
                "method": self.method,
                "family": self.family,
                "link": self.link,
                **self._input_attributes(),
            },
        )
        return xarray.DataTree.from_dict({"posterior": posterior, "moment_init": diagnostics})

    def _variables(self) -> dict[str, tuple[tuple[str, ...], FloatArray | None]]:
        """Variables of the data model with their dims."""
        by_component = ("component",)
        by_feature = ("feature", "component")
        return {
            "direction": (by_feature, self.directions),
            "moment_coefficient": (by_component, self.moment_coefficients),
            "scale": (by_component, self.scales),
            "bias": (by_component, self.biases),
            "weight": (by_component, self.weights),
            "dispersion": (by_component, self.dispersion),
            "direction_error": (by_component, self.standard_errors),
            "coefficient": (by_feature, self.coefficients),
        }

    def _input_attributes(self) -> dict[str, str]:
        if self.input_choice is None:
            return {}
        return {
            "input_model": self.input_choice.chosen.name,
            "input_explanation": self.input_choice.explanation,
        }

    @staticmethod
    def _attributes() -> dict[str, str]:
        return {
            "inference_library": "moment_init",
            "inference_library_version": version("moment-init"),
        }

    def _rows(self) -> list[tuple[str, list[str]]]:
        """Rows of the printed table: a name, then a value a component."""
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
            if values is not None:
                rows.append((name, [f"{value: .3g}" for value in values]))
        return rows

    def _title(self) -> str:
        n_features, n_components = self.directions.shape
        return (
            f"MomentEstimate: {n_components} components, {n_features} features, {self.family} "
            f"({self.link}), {self.diagnostics.n_obs} rows, status {self.status}"
        )

    def __repr__(self) -> str:
        """Table of directions, a column a component."""
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
        """Same table for a notebook."""
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


# Arrays of the diagnostics that run over the dimensions of the moments and not over components.
_SPECTRA = frozenset({"singular_values", "spectrum"})


def _diagnostic_variable(name: str, value: Any) -> Any:
    """A diagnostic as a variable of a Dataset, with its dim."""
    if isinstance(value, np.ndarray):
        return ("order" if name in _SPECTRA else "component", value)
    return int(value) if isinstance(value, bool) else value  # NetCDF has no booleans
