"""How a fit of several responses is printed: a table a response, a column a component."""

from typing import TYPE_CHECKING

from moment_init.component_tables import ComponentTable, estimate_cells

if TYPE_CHECKING:
    from moment_init.responses.result import JointFit

__all__ = ["fit_table"]


def fit_table(fit: "JointFit") -> ComponentTable:
    """Arrange what is printed of a fit.

    Parameters
    ----------
    fit : JointFit
        The fit.

    Returns
    -------
    ComponentTable
        A title, the parameters of each response, weights, criteria, starts and warnings.
    """
    errors = fit.standard_errors
    rows: list[tuple[str, list[str]]] = []
    for a, response in enumerate(fit.response_names):
        rows.append((f"{response}:", [""] * fit.n_components))
        rows += [
            (f"  {name}", estimate_cells(fit.coefficients[k, :, a], errors.coefficients[k, :, a]))
            for k, name in enumerate(fit.feature_names)
        ]
        rows.append(("  bias", estimate_cells(fit.biases[:, a], errors.biases[:, a])))
        has_dispersion = fit.kind.has_dispersion[a]
        if has_dispersion and fit.dispersion is not None and errors.dispersion is not None:
            cells = estimate_cells(fit.dispersion[:, a], errors.dispersion[:, a])
            rows.append(("  dispersion", cells))
    rows.append(("weight", estimate_cells(fit.weights, errors.weights)))
    reached, converged = fit.reached_best
    notes = [
        f"log-likelihood {fit.log_likelihood:.2f} ({fit.n_parameters} parameters), AIC "
        f"{fit.aic:.1f}, BIC {fit.bic:.1f}, ICL {fit.icl:.1f}",
        f"best log-likelihood reached by {reached} of {converged} converged starts, "
        f"{len(fit.starts)} starts in all",
    ]
    return ComponentTable(_title(fit), rows, notes, fit.warnings)


def _title(fit: "JointFit") -> str:
    is_classes = len(fit.outcome_names) != len(fit.response_names)
    what = f"{len(fit.outcome_names)} {'classes' if is_classes else 'responses'}"
    return (
        f"JointFit: {fit.n_components} components, {len(fit.feature_names)} features, {what}, "
        f"{fit.family} ({fit.link}), {fit.n_obs} rows, status {fit.status}"
    )
