"""The computations of the study: number of classes, fits, draws, predictions."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from case_studies.binary_choice.choices import (
    Choices,
    HeldOut,
    held_out_rows,
    predict_held_out,
    read_choices,
)
from moment_init import (
    EMFit,
    IdentifiabilityError,
    MomentEstimate,
    WeakSignalWarning,
    estimate,
    fit_em,
    match_components,
    predict_membership,
    sample,
    select_components,
)

if TYPE_CHECKING:
    import xarray

    from moment_init.em.selection import ComponentChoice

__all__ = [
    "CLASSES",
    "INTERVAL",
    "N_CLASSES",
    "STEPS",
    "Study",
    "effect_draws",
    "run_study",
    "worth_draws",
]

FloatArray = NDArray[np.float64]

SEED = 1
N_CLASSES = 6
"""BIC, ICL and held-out persons gain almost nothing from a seventh class: it would be a few persons
whose choices are nearly separated by a single rule."""

CANDIDATES, QUICK_CANDIDATES = tuple(range(1, 8)), (1, 3, 6)
DRAWS, CHAINS = 1000, 4
LAPLACE_DRAWS = 2000
N_RANDOM_STARTS = 20
INTERVAL = (0.03, 0.97)
"""Quantiles of the 94 % intervals, ArviZ's long-time default."""

MOMENTS: dict[str, tuple[int, dict[str, Any]]] = {
    "2 classes, all columns as Gaussian": (2, {"input_model": "gaussian"}),
    "2 classes": (2, {}),
    f"{N_CLASSES} classes": (N_CLASSES, {}),
}
"""Calls of `estimate`: number of classes and options. The first treats the discrete columns as
Gaussian, which they are not; by default they are excluded."""

STEPS = {
    "price": (5.0, "5 guilders dearer"),
    "time": (1.0 / 3.0, "20 minutes longer"),
    "changes": (1.0, "one change more"),
    "discomfort": (1.0, "one comfort level less"),
}
"""Steps for reporting effects: differences between tickets that are common in the data."""

CLASSES = {
    "bargain": (-4.5, -1.2, -0.7, -1.4),
    "seat": (-1.7, -1.1, -0.7, -4.4),
    "clock and purse": (-2.6, -2.9, -0.8, -1.3),
    "through train": (-0.9, -0.6, -3.1, -1.6),
    "first class": (-0.7, -3.1, -2.1, -7.4),
    "hurry": (-0.3, -4.8, 0.2, -1.2),
}
"""Typical effects of each class; a fitted class gets the name of the nearest profile."""


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Results of the study."""

    choices: Choices
    number: "ComponentChoice"  # fits with several numbers of classes
    # estimates by moments for the cases of `MOMENTS`, or the reason for a refusal
    moments: dict[str, MomentEstimate | str]
    fit: EMFit  # `N_CLASSES` classes by the default call
    random: EMFit  # the same from random starts alone
    tree: "xarray.DataTree"  # draws of the classes, in the order of `CLASSES`
    membership: FloatArray  # posterior probabilities of the classes; (n_persons, n_classes)
    # predictions of three random choices of every person, and of the last three
    held_out: dict[str, HeldOut]
    is_sampled: bool  # whether the draws are from NUTS, not from the fit's normal approximation


def run_study(*, quick: bool = False, seed: int = SEED, progressbar: bool = False) -> Study:
    """Choose the number of classes, fit them, draw from their posterior, and predict."""
    choices = read_choices()
    rows: dict[str, Any] = {"groups": choices.persons, "random_seed": seed, "progressbar": False}
    number = select_components(
        choices.X,
        choices.y,
        QUICK_CANDIDATES if quick else CANDIDATES,
        criterion="icl" if quick else "cv",
        **rows,
    )
    fit = fit_em(choices.X, choices.y, N_CLASSES, **rows)
    tree = _draw_classes(choices, fit, quick=quick, seed=seed, progressbar=progressbar)
    shares = predict_membership(
        tree, choices.X, choices.y, groups=choices.persons, family="bernoulli", average=True
    )
    rng = np.random.default_rng(seed)
    kinds = {"random": held_out_rows(choices, "random", rng)}
    if not quick:
        kinds["last"] = held_out_rows(choices, "last", rng)
    return Study(
        choices=choices,
        number=number,
        moments={
            name: _see_moments(choices, classes, {**options, "random_seed": seed})
            for name, (classes, options) in MOMENTS.items()
        },
        fit=fit,
        random=fit_em(
            choices.X, choices.y, N_CLASSES, init="random", n_starts=N_RANDOM_STARTS, **rows
        ),
        tree=tree,
        membership=shares.transpose("group", "component").to_numpy(),
        held_out={
            name: predict_held_out(choices, marked, N_CLASSES, seed=seed)
            for name, marked in kinds.items()
        },
        is_sampled=not quick,
    )


def _see_moments(choices: Choices, n_classes: int, options: dict[str, Any]) -> MomentEstimate | str:
    """Estimates by moments from single choices, ignoring persons, or the reason for a refusal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)  # `describe_starts` prints the status
        try:
            return estimate(choices.X, choices.y, n_classes, family="bernoulli", **options)
        except IdentifiabilityError as error:
            return str(error)


def _draw_classes(
    choices: Choices, fit: EMFit, *, quick: bool, seed: int, progressbar: bool
) -> "xarray.DataTree":
    """Draws of the posterior or of its normal approximation, classes in the order of `CLASSES`."""
    X, y, persons = choices.X, choices.y, choices.persons
    if quick:
        tree = fit.to_datatree(X, y, draws=LAPLACE_DRAWS, random_seed=seed, groups=persons)
    else:
        tree = sample(
            X,
            y,
            N_CLASSES,
            family="bernoulli",
            groups=persons,
            init=fit,
            draws=DRAWS,
            chains=CHAINS,
            random_seed=seed,
            progressbar=progressbar,
            posterior_predictive=False,
        )
    steps = np.array([step for step, _ in STEPS.values()])
    index = match_components(
        fit.coefficients * steps[:, None], np.array(list(CLASSES.values())).T, signed=True
    )
    ordered: xarray.DataTree = tree.map_over_datasets(
        lambda data: data.isel(component=index) if "component" in data.dims else data
    )
    return ordered


def effect_draws(study: Study) -> FloatArray:
    """Effects of one step of each attribute on the log odds of a ticket, for every draw."""
    # -> (n_draws, n_features, n_classes)
    posterior = study.tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    draws = posterior["coefficient"].sel(feature=list(STEPS))
    steps = np.array([step for step, _ in STEPS.values()])
    values = draws.transpose("sample", "feature", "component").to_numpy()
    return np.asarray(values * steps[:, None])


def worth_draws(study: Study) -> FloatArray:
    """Worth of an hour, a change and a comfort level in guilders, for every draw.

    These are ratios of coefficients; they are infinite if a higher price does not deter.
    """
    # -> (n_draws, 3, n_classes)
    steps = np.array([step for step, _ in STEPS.values()])
    coefficients = effect_draws(study) / steps[:, None]
    price, others = coefficients[:, :1], coefficients[:, 1:]
    unlimited = np.where(others < 0.0, np.inf, -np.inf)
    finite = others / np.where(price < 0.0, price, -1.0)
    return np.asarray(np.where(price < 0.0, finite, unlimited))
