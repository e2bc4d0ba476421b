"""What `estimate` returns."""

from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray

__all__ = ["MomentDiagnostics", "MomentEstimate", "Status"]

FloatArray = NDArray[np.float64]


class Status(StrEnum):
    """How far an estimate can be trusted."""

    OK = "ok"
    WEAK_SIGNAL = "weak_signal"
    NOT_IDENTIFIED = "not_identified"


@dataclass(frozen=True, slots=True, eq=False)
class MomentDiagnostics:
    """How an estimate was found, for a diagnosis only.

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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MomentEstimate:
    """Moment estimate of a mixture of generalized linear models, in the user's units.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit directions u_j, turned towards growing responses; the largest moment coefficient first,
        or in the order of the known parameters.
    moment_coefficients : numpy.ndarray, shape (n_components,)
        Coefficients with sign: lambda_j of M_3 = sum_j lambda_j u_j^3, or for a single component
        that of M_1.
    scales, biases : numpy.ndarray, shape (n_components,), or None
        Scales s_j and biases b_j where they were given.
    weights : numpy.ndarray, shape (n_components,), or None
        Mixture weights where scales and biases were given; one for a single component.
    feature_names : tuple of str
        Names of the columns.
    family : str
        Family of the response.
    link : str
        Its link.
    method : str
        How the moments were decomposed.
    status : Status
        How far the estimate can be trusted.
    warnings : tuple of str
        What the status means and what to do.
    diagnostics : MomentDiagnostics
        How the estimate was found.
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
    diagnostics: MomentDiagnostics

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
            ``coefficient``; group ``moment_init`` holds diagnostics, status and warnings.
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
        details = self.diagnostics
        diagnostics = xarray.Dataset(
            {
                "signal_to_noise": ("component", details.signal_to_noise),
                "singular_value": ("order", details.singular_values),
                "noise_floor": details.noise_floor,
                "residual": details.residual,
                "whitening_condition": details.whitening_condition,
                "shrinkage": details.shrinkage,
            },
            coords={"component": coords["component"]},
            attrs={
                **self._attributes(),
                "status": str(self.status),
                "warnings": list(self.warnings),
                "method": self.method,
                "family": self.family,
                "link": self.link,
                "n_obs": details.n_obs,
                "is_definite": int(details.is_definite),
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
            "coefficient": (by_feature, self.coefficients),
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
            "moment coefficient": self.moment_coefficients,
            "signal to noise": self.diagnostics.signal_to_noise,
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
        return "\n".join([self._title(), header, *lines, *notes])

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
