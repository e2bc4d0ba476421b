"""The rows that are compared on: those that are fitted, and those that are held out."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.data import RegressionData, validate_data
from moment_init.em.posing import validate_gating
from moment_init.groups import group_codes

__all__ = ["ComparedRows", "check_rows", "split_rows"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

BY_ROW = ("offset", "n_trials", "sample_weight", "groups", "gating")
"""What the data block has for every row."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRows:
    """Rows in the form in which fits take them, and checked.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like, shape (n_obs,)
        Response.
    block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`, `gating`.
    checked : RegressionData
        The same rows, checked.
    gating : numpy.ndarray, shape (n_obs, n_gate), or None
        Gating covariates, checked.
    numbers : numpy.ndarray of int, shape (n_obs,)
        Where the rows stand in the user's data.
    """

    X: Any
    y: Any
    block: dict[str, Any]
    checked: RegressionData
    gating: FloatArray | None
    numbers: IndexArray

    @property
    def by_row(self) -> dict[str, Any]:
        """What there is of the data block for every row, as `EMFit.to_datatree` takes it."""
        return {name: self.block[name] for name in BY_ROW}

    @property
    def n_units(self) -> int:
        """Number of groups, or of rows if there are none."""
        codes = group_codes(self.checked.groups)
        return self.checked.n_obs if codes is None else int(codes.max()) + 1

    @property
    def unit_weights(self) -> FloatArray:
        """How often each unit counts: sample weights of rows; ones for groups, weighted inside."""
        codes = group_codes(self.checked.groups)
        if codes is None:
            return self.checked.sample_weight
        return (np.bincount(codes, self.checked.sample_weight) > 0.0).astype(np.float64)

    @property
    def has_unequal_weights(self) -> bool:
        """Whether some row counts more or less than once."""
        return bool(np.any(self.checked.sample_weight != 1.0))

    def take(self, index: IndexArray) -> "ComparedRows":
        """Select rows.

        Parameters
        ----------
        index : numpy.ndarray of int
            Places of the rows.

        Returns
        -------
        ComparedRows
            Those rows.
        """
        taken = {name: _take(self.block[name], index) for name in BY_ROW}
        return replace(
            self,
            X=_take(self.X, index),
            y=_take(self.y, index),
            block=self.block | taken,
            checked=self.checked.take(index),
            gating=None if self.gating is None else self.gating[index],
            numbers=self.numbers[index],
        )


def check_rows(X: Any, y: Any, block: dict[str, Any]) -> ComparedRows:
    """Check the data, and leave out the rows of weight zero.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like, shape (n_obs,)
        Response.
    block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`, `gating`.

    Returns
    -------
    ComparedRows
        The rows that count.

    Raises
    ------
    TypeError
        For data that are not real numbers.
    ValueError
        For wrong shapes, missing or infinite values, and responses outside the family's range.
    """
    rest = {name: value for name, value in block.items() if name != "gating"}
    checked = validate_data(X, y, **rest)
    covariates = validate_gating(block["gating"], checked.n_obs, checked.groups)
    gating = None if covariates is None else covariates[0]
    rows = ComparedRows(X, y, block, checked, gating, np.arange(checked.n_obs))
    counted = np.flatnonzero(checked.sample_weight)
    return rows if len(counted) == checked.n_obs else rows.take(counted)


def split_rows(
    rows: ComparedRows, held_out: float, rng: np.random.Generator
) -> tuple[ComparedRows, ComparedRows | None]:
    """Hold out a share of the rows at random; those of a group together.

    Parameters
    ----------
    rows : ComparedRows
        All rows.
    held_out : float
        Share of the groups, or rows, from zero to less than one.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    training : ComparedRows
        Rows to fit, in their order.
    held_out : ComparedRows or None
        The others; None if the share is zero.
    """
    if held_out == 0.0:
        return rows, None
    codes = group_codes(rows.checked.groups)
    unit = np.arange(rows.checked.n_obs) if codes is None else codes
    n_units = rows.n_units
    n_held_out = min(max(1, round(held_out * n_units)), n_units - 1)
    is_held_out = np.isin(unit, rng.permutation(n_units)[:n_held_out])
    return rows.take(np.flatnonzero(~is_held_out)), rows.take(np.flatnonzero(is_held_out))


def _take(values: Any, index: IndexArray) -> Any:
    """Some rows of what has rows; a single number of trials is kept."""
    if values is None or np.ndim(values) == 0:
        return values
    return values.iloc[index] if hasattr(values, "iloc") else np.asarray(values)[index]
