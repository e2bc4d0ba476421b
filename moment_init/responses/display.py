"""How a fit of several responses is printed: a table a response, a column a component."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from moment_init.responses.result import JointFit

__all__ = ["fit_to_text"]


def fit_to_text(fit: "JointFit") -> str:
    """Print a fit.

    Parameters
    ----------
    fit : JointFit
        The fit.

    Returns
    -------
    str
        A title, a table for each response, weights, criteria, starts and warnings.
    """
    errors = fit.standard_errors
    r = fit.n_components
    rows: list[tuple[str, list[str]]] = []
    for a, response in enumerate(fit.response_names):
        rows.append((f"{response}:", [""] * r))
        for index, name in enumerate(fit.feature_names):
            cells = zip(
                fit.coefficients[index, :, a], errors.coefficients[index, :, a], strict=True
            )
            rows.append((f"  {name}", [_cell(*each) for each in cells]))
        cells = zip(fit.biases[:, a], errors.biases[:, a], strict=True)
        rows.append(("  bias", [_cell(*each) for each in cells]))
        if (
            fit.dispersion is not None
            and fit.kind.has_dispersion[a]
            and errors.dispersion is not None
        ):
            cells = zip(fit.dispersion[:, a], errors.dispersion[:, a], strict=True)
            rows.append(("  dispersion", [_cell(*each) for each in cells]))
    cells = zip(fit.weights, errors.weights, strict=True)
    rows.append(("weight", [_cell(*each) for each in cells]))
    table = [("", [f"component {j}" for j in range(r)]), *rows]
    names = max(len(name) for name, _ in table)
    widths = [2 + max(len(each[j]) for _, each in table) for j in range(r)]
    lines = [
        (
            f"{name:<{names}}"
            + "".join(f"{cell:>{width}}" for cell, width in zip(each, widths, strict=True))
        ).rstrip()
        for name, each in table
    ]
    reached, converged = fit.reached_best
    notes = [f"! {warning}" for warning in fit.warnings]
    return "\n".join(
        [
            _title(fit),
            *lines,
            f"log-likelihood {fit.log_likelihood:.2f} ({fit.n_parameters} parameters), AIC "
            f"{fit.aic:.1f}, BIC {fit.bic:.1f}, ICL {fit.icl:.1f}",
            f"best log-likelihood reached by {reached} of {converged} converged starts, "
            f"{len(fit.starts)} starts in all",
            *notes,
        ]
    )


def _title(fit: "JointFit") -> str:
    is_classes = len(fit.outcome_names) != len(fit.response_names)
    what = f"{len(fit.outcome_names)} {'classes' if is_classes else 'responses'}"
    return (
        f"JointFit: {fit.n_components} components, {len(fit.feature_names)} features, {what}, "
        f"{fit.family} ({fit.link}), {fit.n_obs} rows, status {fit.status}"
    )


def _cell(value: float, error: float) -> str:
    return f"{value:.3f}" if np.isnan(error) else f"{value:.3f} ({error:.3f})"
