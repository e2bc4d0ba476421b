"""How a fit is printed: a column a component, standard errors in brackets."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.component_tables import ComponentTable, estimate_cells
from moment_init.em.information import StandardErrors

if TYPE_CHECKING:
    from moment_init.em.result import EMFit

__all__ = ["fit_table"]

FloatArray = NDArray[np.float64]
Rows = list[tuple[str, list[str]]]


def fit_table(fit: "EMFit") -> ComponentTable:
    """Arrange what is printed of a fit.

    Parameters
    ----------
    fit : EMFit
        The fit.

    Returns
    -------
    ComponentTable
        A title, the parameters, criteria, how many starts agree, and warnings.
    """
    return ComponentTable(_title(fit), _rows(fit), [_criteria(fit), _agreement(fit)], fit.warnings)


def _title(fit: "EMFit") -> str:
    n_features, n_components = fit.coefficients.shape
    return (
        f"EMFit: {_counted(n_components, 'component')}, {_counted(n_features, 'feature')}, "
        f"{fit.family} ({fit.link}), {_counted(fit.n_obs, 'row')}, status {fit.status}"
    )


def _criteria(fit: "EMFit") -> str:
    kind = (
        "log-likelihood" if fit.gate_means is None else "joint log-likelihood of gate and response"
    )
    return (
        f"{kind} {fit.log_likelihood:.2f} ({_counted(fit.n_parameters, 'parameter')}), "
        f"AIC {fit.aic:.1f}, BIC {fit.bic:.1f}, ICL {fit.icl:.1f}"
    )


def _agreement(fit: "EMFit") -> str:
    """How many starts reached the best: how sure one may be that it is the global optimum."""
    reached, converged = fit.reached_best
    return (
        f"best log-likelihood reached by {reached} of {converged} converged starts "
        f"({len(fit.starts)} in all)"
    )


def _rows(fit: "EMFit") -> Rows:
    """Rows of the table: a name, then a cell a component."""
    errors = fit.standard_errors
    rows = _block(fit.feature_names, fit.coefficients, errors.coefficients)
    rows += _block(("bias",), fit.biases[None], errors.biases[None])
    if fit.dispersion is not None and errors.dispersion is not None:
        rows += _block(("dispersion",), fit.dispersion[None], errors.dispersion[None])
    rows += _block(("weight",), fit.weights[None], errors.weights[None])
    if fit.gate is not None and fit.gate_biases is not None:
        if errors.gate is not None and errors.gate_biases is not None:
            rows += _block(("gate: bias",), fit.gate_biases[None], errors.gate_biases[None])
            names = tuple(f"gate: {name}" for name in fit.gate_names)
            rows += _block(names, fit.gate, errors.gate)
    if fit.gate_means is not None and errors.gate_means is not None:
        names = tuple(f"gate: mean of {name}" for name in fit.gate_names)
        rows += _block(names, fit.gate_means, errors.gate_means)
    return rows + _spread_rows(fit, errors)


def _spread_rows(fit: "EMFit", errors: StandardErrors) -> Rows:
    """Variances of a Gaussian gate; its covariances are on the result."""
    if fit.gate_covariances is None or errors.gate_covariances is None:
        return []
    names = tuple(f"gate: variance of {name}" for name in fit.gate_names)
    variances = np.einsum("jaa->aj", fit.gate_covariances)
    return _block(names, variances, np.einsum("jaa->aj", errors.gate_covariances))


def _block(names: tuple[str, ...], values: FloatArray, errors: FloatArray) -> Rows:
    return [
        (name, estimate_cells(row, row_errors))
        for name, row, row_errors in zip(names, values, errors, strict=True)
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
