"""The printed tables of the study of patents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from case_studies.patents.run import (
    CLASSES,
    DATA,
    DEFAULT_GATE,
    INTERVAL,
    ROOT,
    Study,
    gate_draws,
    patent_draws,
    prior_deviations,
    summarise,
)

if TYPE_CHECKING:
    import xarray

__all__ = ["describe", "describe_fit", "describe_posterior"]

FloatArray = NDArray[np.float64]

EXAMPLES = (1.0, 20.0, 100.0)
"""Research budgets, in millions of dollars, at which classes are compared: the quartiles are near
1 and 20, the largest firm spends 136."""
SHARES = (0.01, 0.04, 0.1)
"""Shares of sales spent on research at which the gate is shown: low, median, high."""


def describe_fit(study: Study) -> str:
    """Format the choice of the number of classes, and our fit next to flexmix's."""
    fit, reference, order = study.fit, study.reference, study.order
    reached, converged = fit.reached_best
    hits, runs = study.random.reached_best
    lines = [
        repr(study.choice),
        f"without a gate: log-likelihood {study.ungated.log_likelihood:.3f}, "
        f"BIC {study.ungated.bic:.1f}",
        "",
        f"{'three classes':<26}{'fit_em':>12}{f'flexmix {reference.version}':>16}",
        f"{'log-likelihood':<26}{fit.log_likelihood:>12.3f}{reference.log_likelihood:>16.3f}",
    ]
    for k, (name, component) in enumerate(zip(CLASSES, order, strict=True)):
        for label, ours, theirs in (
            ("elasticity", fit.coefficients[0, component], reference.elasticities[k]),
            ("bias", fit.biases[component], reference.biases[k]),
        ):
            lines.append(f"{f'{name}, {label}':<26}{ours:>12.4f}{theirs:>16.4f}")
    return "\n".join(
        [
            *lines,
            f"best log-likelihood reached by {reached} of {converged} converged starts; by {hits} "
            f"of {runs} random starts alone",
        ]
    )


def describe_posterior(study: Study) -> str:
    """Format medians and 94 % intervals of classes and gate, one column per class."""
    kind = "NUTS" if study.is_sampled else "normal approximation of the fit"
    elasticities = _elasticities(study.tree, study.order)
    rows = {"elasticity": (summarise(elasticities), 2)}
    if study.is_sampled:
        rows["  by standard errors"] = (_by_standard_errors(study), 2)
    patents = summarise(patent_draws(study, np.array(EXAMPLES)))
    rows |= {f"patents at {budget:.0f} m$": (patents[:, k], 1) for k, budget in enumerate(EXAMPLES)}
    gates = summarise(gate_draws(study, np.array(SHARES)))
    rows |= {f"P(class) at R&D {share:.0%}": (gates[:, k], 2) for k, share in enumerate(SHARES)}
    lines = [f"posterior ({kind}), 94 % intervals", f"{'':<22}" + _cells(CLASSES)]
    for name, (values, digits) in rows.items():
        cells = [f"{m:.{digits}f} [{a:.{digits}f}, {b:.{digits}f}]" for m, a, b in values.T]
        lines.append(f"{name:<22}" + _cells(cells))
    counts = np.bincount(study.membership.argmax(axis=1), minlength=len(CLASSES))
    lines += [
        f"{'firms, most probably':<22}" + _cells([str(count) for count in counts]),
        f"P(elasticity of {CLASSES[0]} < 1) = {np.mean(elasticities[:, 0] < 1):.3f}, of "
        f"{CLASSES[1]} < 1: {np.mean(elasticities[:, 1] < 1):.3f}, of {CLASSES[2]} > 1: "
        f"{np.mean(elasticities[:, 2] > 1):.3f}",
        f"{int((study.membership.max(axis=1) > 0.9).sum())} of {len(study.firms)} firms belong to "
        "one class with probability above 0.9",
    ]
    return "\n".join([*lines, *_convergence(study.tree), *_under_defaults(study)])


def _by_standard_errors(study: Study) -> FloatArray:
    """Elasticities of the fit with the intervals of its normal approximation."""
    centre = study.fit.coefficients[0, study.order]
    errors = study.fit.standard_errors.coefficients[0, study.order]
    return np.stack([centre, *(centre + norm.ppf(level) * errors for level in INTERVAL)])


def _cells(values: Sequence[str]) -> str:
    return "".join(f"{value:<22}" for value in values).rstrip()


def _elasticities(tree: "xarray.DataTree", order: list[int]) -> FloatArray:
    """Elasticities of every draw, one column per class."""
    draws = tree["posterior"]["coefficient"].stack(sample=("chain", "draw"))
    ordered = draws.isel(feature=0, component=order).transpose("sample", "component")
    return np.asarray(ordered.to_numpy())


def _convergence(tree: "xarray.DataTree") -> list[str]:
    """Mean log-likelihood and, if chains were run, R-hat and effective draws."""
    fitted = float(tree["log_likelihood"]["y"].sum("obs").mean())
    lines = [f"mean log-likelihood of the draws {fitted:.1f}"]
    if "diverging" in tree["sample_stats"]:
        import arviz as az

        names = ["coefficient", "bias", "gate", "gate_bias"]
        summary = az.summary(tree, var_names=names, round_to="none")
        divergent = int(tree["sample_stats"]["diverging"].sum())
        lines.append(
            f"max R-hat {summary['r_hat'].max():.3f}, min bulk ESS "
            f"{summary['ess_bulk'].min():.0f}, {divergent} divergences"
        )
    return lines


def _under_defaults(study: Study) -> list[str]:
    """Elasticities under the package's default priors."""
    tree = study.default_tree
    if tree is None:
        return []
    values = summarise(_elasticities(tree, study.order))
    cells = [f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in values.T]
    head = ["", "under the package's default priors", f"{'elasticity':<22}" + _cells(cells)]
    return [*head, *_convergence(tree)]


def describe(study: Study) -> str:
    """Format all results: data, fit, priors, posterior."""
    shares = study.firms["RDS"].to_numpy()
    head = (
        f"Patents: {len(study.firms)} firms, patents ~ log R&D, gate ~ R&D over sales\n"
        f"data: {DATA.relative_to(ROOT).as_posix()}, sha256 {study.checksum}"
    )
    deviations = prior_deviations(study.firms)
    priors = ", ".join(f"{name} {value:.1f}" for name, value in deviations.items())
    budgets = np.exp(study.firms["lgRD"].to_numpy())
    prior = (
        f"R&D: largest over smallest {budgets.max() / budgets.min():,.0f}\n"
        f"R&D over sales: median {np.median(shares):.3f}, largest {shares.max():.3f}, standard "
        f"deviation {deviations['gate'] / DEFAULT_GATE:.0f} times that of ordinary firms\n"
        f"standard deviations of priors, in standardised units: {priors}"
    )
    return "\n\n".join((head, describe_fit(study), f"{prior}\n{describe_posterior(study)}"))
