"""Independent columns, each with a density of its own."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.blocks import read_block
from moment_init.scores.base import InputModel
from moment_init.scores.column_families import ColumnDensity
from moment_init.scores.column_fit import COLUMN_CHOICES, fit_column
from moment_init.scores.column_mixture import ColumnMixture
from moment_init.scores.ridge import RidgeContraction

__all__ = ["Independent"]

FloatArray = NDArray[np.float64]


class Independent(InputModel):
    r"""Independent columns: :math:`\log p(x) = \sum_j l_j(x_j)`.

    All derivatives of the log-density are diagonal.

    Parameters
    ----------
    columns : sequence of ColumnDensity or ColumnMixture, optional
        Known densities, one for each column; fitted by default.
    families : sequence of str, optional
        What may be chosen for a column: "normal", "logistic", "student_t", "skew_normal", "gamma",
        "lognormal", "mixture" (of normals); all by default.

    Attributes
    ----------
    columns_ : tuple of ColumnDensity or ColumnMixture
        Densities of the columns after `fit`.
    held_out_ : tuple of dict
        For each column the log-likelihood per held-out row of each choice, less the normal's.

    Notes
    -----
    Each column is fitted by every family to four fifths of the rows and judged on the others; a
    family has to be clearly better than a simpler one. Columns are reduced to 600 points first:
    O(n log n) for a column, and a few milliseconds for each family. Correlated columns are not
    independent: `stein_check` shows that in E[S_1 x'] = I.
    """

    columns_: tuple[ColumnDensity | ColumnMixture, ...]
    held_out_: tuple[dict[str, float], ...] = ()

    def __init__(
        self,
        columns: Sequence[ColumnDensity | ColumnMixture] | None = None,
        *,
        families: Sequence[str] = COLUMN_CHOICES,
    ) -> None:
        self.columns = columns
        self.families = families

    def __repr__(self) -> str:
        """Name the densities of the columns."""
        if self.is_fitted:
            return f"Independent({', '.join(column.family for column in self.columns_)})"
        return "Independent()"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit a density to each column, unless they were given.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Checked inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Names of the columns, for the messages.

        Returns
        -------
        Independent
            This object, fitted.
        """
        choices = _checked_families(self.families)
        if self.columns is not None:
            self._use_given()
            self.require_n_features(features.shape[1])
            return self
        self._fit_moments(features, weights, names)  # those of the rows, with their correlations
        fitted = [
            fit_column(read_block(features, slice(None))[:, index], weights, choices)
            for index in range(features.shape[1])
        ]
        self.columns_ = tuple(column.density for column in fitted)
        self.held_out_ = tuple(column.held_out for column in fitted)
        return self

    @property
    def highest_order(self) -> int:
        """Highest order whose score is valid in every column."""
        self._require_fitted()
        return min(column.highest_order for column in self.columns_)

    def _use_given(self) -> None:
        if self.columns is None:
            super()._use_given()
        self.columns_ = tuple(self.columns or ())
        mean = np.array([column.mean for column in self.columns_])
        self._set_covariance(mean, np.diag([column.variance for column in self.columns_]))

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x); minus infinity outside the support.
        """
        self._require_fitted()
        rows = np.asarray(X, dtype=np.float64)
        terms = [
            column.log_density(values) for column, values in zip(self.columns_, rows.T, strict=True)
        ]
        return np.asarray(np.sum(terms, axis=0))

    def contract(self, basis: FloatArray) -> RidgeContraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Contracted with every mode.

        Returns
        -------
        RidgeContraction
            The contracted score tensors as functions of rows.
        """
        self._require_fitted()
        inner = np.zeros((basis.shape[1], basis.shape[1]))
        return RidgeContraction(basis, inner, basis, self._derivatives)

    def _derivatives(self, X: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """First three derivatives of each column's log-density."""
        parts = [
            column.derivatives(values) for column, values in zip(self.columns_, X.T, strict=True)
        ]
        first, second, third = (np.stack(terms, axis=1) for terms in zip(*parts, strict=True))
        return first, second, third


def _checked_families(families: Sequence[str]) -> tuple[str, ...]:
    """Check the names of what may be chosen."""
    names = (families,) if isinstance(families, str) else tuple(families)
    unknown = [name for name in names if name not in COLUMN_CHOICES]
    if unknown or not names:
        raise ValueError(
            f"`families` must be among {', '.join(COLUMN_CHOICES)}; got {unknown or 'none'}."
        )
    return names
