"""Known non-linear features t = phi(x): scores of t at rows x."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import FloatArray
from moment_init.data.checking import validate_features
from moment_init.scores.base import Contraction, InputModel
from moment_init.scores.gaussian import Gaussian
from moment_init.scores.log_density import LogDensity


class Transformed(InputModel):
    r"""Scores of t = phi(x), for :math:`E[y | x, h] = g(\langle U h, \phi(x) \rangle + b)`.

    Either a density is fitted to the values phi(x_i), or the density of x is known and that of t
    follows by the change of variables of Eq. (12) of [1]_,

    .. math:: \log p_t(t) = \log p_x(\phi^{-1}(t)) + \log |\det D \phi^{-1}(t)|.

    All methods take rows x; mean, covariance and scores are those of t.

    Parameters
    ----------
    phi : callable
        Maps rows, (n_obs, n_features), to features, (n_obs, n_transformed), with NumPy.
    model : InputModel, optional
        Density of t, fitted to phi(x_i) unless it is fitted already; a Gaussian by default. With
        `inverse`, the density of x, which must be a `LogDensity`.
    inverse : callable, optional
        Maps a symbolic matrix of features t to the rows x, with PyTensor; phi must then preserve
        the dimension.
    is_columnwise : bool
        Whether the inverse acts on each column separately; this avoids a determinant per row.

    Attributes
    ----------
    model_ : InputModel
        Density of t after `fit`.

    Notes
    -----
    Without an inverse, phi may return any number of features that have a joint density: no feature
    may be a function of the others.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    """

    model_: InputModel

    def __init__(
        self,
        phi: Callable[[FloatArray], FloatArray],
        model: InputModel | None = None,
        *,
        inverse: Callable[[Any], Any] | None = None,
        is_columnwise: bool = False,
    ) -> None:
        self.phi = phi
        self.model = model
        self.inverse = inverse
        self.is_columnwise = is_columnwise

    def __repr__(self) -> str:
        """Name the transformation and the density."""
        name = getattr(self.phi, "__name__", type(self.phi).__name__)
        return f"Transformed({name}, {self.model or Gaussian()!r})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Fit the density of t to phi(X); with `inverse`, only its mean and covariance.

        Parameters
        ----------
        features : numpy.ndarray, shape (n_obs, n_features)
            Validated inputs.
        weights : numpy.ndarray, shape (n_obs,)
            Weight of each row.
        names : tuple of str
            Column names for error messages.

        Returns
        -------
        Transformed
            This object, fitted.
        """
        t, _ = validate_features(self.features(features), name="phi(X)")
        if len(t) != len(features):
            raise ValueError(
                f"`phi` must give one row for each row of `X` ({len(features)}); got {len(t)}."
            )
        feature_names = (
            names if t.shape[1] == len(names) else tuple(f"phi{j}" for j in range(t.shape[1]))
        )
        model = self._density_of_features(t.shape[1])
        self.model_ = model if model.is_fitted else model.fit_rows(t, weights, feature_names)
        self.mean_, self._factor = self.model_.mean_, self.model_.standardising_basis
        self.shrinkage_, self.n_fitted_ = self.model_.shrinkage_, self.model_.n_fitted_
        return self

    def features(self, X: ArrayLike) -> FloatArray:
        """Transformed rows, t = phi(x).

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_transformed)
            The features.
        """
        return np.asarray(self.phi(np.asarray(X, dtype=np.float64)), dtype=np.float64)

    @property
    def highest_order(self) -> int:
        """Highest order with a valid score of t, according to its density."""
        self._require_fitted()
        return self.model_.highest_order

    @property
    def is_normalised(self) -> bool:
        """Whether the log-density of t includes its normalising constant."""
        self._require_fitted()
        return self.model_.is_normalised

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of t = phi(x) for each row x.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p_t(phi(x)).
        """
        self._require_fitted()
        return self.model_.log_density(self.features(X))

    def contract(self, basis: FloatArray) -> "TransformedContraction":
        """Prepare the contraction of the score tensors of t with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_transformed, k)
            Basis that every mode is contracted with.

        Returns
        -------
        TransformedContraction
            The contracted score tensors as functions of rows x.
        """
        self._require_fitted()
        return TransformedContraction(self, self.model_.contract(basis))

    def _density_of_features(self, n_features: int) -> InputModel:
        """Density of t: the given one if it is fitted, otherwise one that is still to be fitted."""
        if self.inverse is not None:
            return self._change_variables(n_features)
        if self.model is None:
            return Gaussian()
        return self.model if self.model.is_fitted else copy(self.model)

    def _change_variables(self, n_features: int) -> LogDensity:
        """Express the density of t by the change of variables."""
        inverse, density = self.inverse, self.model
        if inverse is None or not isinstance(density, LogDensity):
            raise TypeError(
                "`model` must be a LogDensity of x when `inverse` is given; got "
                f"{type(density).__name__}. Leave `inverse` out to fit a density to phi(x)."
            )

        def log_density(t: Any) -> Any:
            x = inverse(t)
            return density.symbolic(x) + self._log_determinant(x, t, n_features)

        return LogDensity(log_density, mode=density.mode)

    def _log_determinant(self, x: Any, t: Any, n_features: int) -> Any:
        """Logarithm of |det D phi^-1| of each row, as an expression."""
        import pytensor.tensor as pt
        from pytensor.gradient import grad

        if self.is_columnwise:
            return pt.log(pt.abs(grad(x.sum(), t))).sum(axis=1)
        # Rows are independent: the gradient of a column's sum holds the derivatives of each row.
        rows: list[Any] = [
            grad(x[:, j].sum(), t, disconnected_inputs="ignore") for j in range(n_features)
        ]
        return pt.linalg.slogdet(pt.stack(rows, axis=1))[1]


@dataclass(frozen=True, slots=True, eq=False)
class TransformedContraction(Contraction):
    """Contracted score tensors of t = phi(x) as functions of rows x."""

    transformed: Transformed  # computes the features of rows
    inner: Contraction  # contracted score tensors as functions of features

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(t)(B, ..., B) of each row."""
        return self.inner.score(self.transformed.features(X), order)

    def sum_score(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        """Weighted sum of S_m(t)(B, ..., B)."""
        return self.inner.sum_score(self.transformed.features(X), weights, order)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(t)(B, B, B theta_l)."""
        return self.inner.sum_slices(self.transformed.features(X), weights, thetas)

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(t)(B, B v_l, B v_l)."""
        return self.inner.sum_fibres(self.transformed.features(X), weights, vectors)

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(t)(b_l, ..., b_l) of each row."""
        return self.inner.powers(self.transformed.features(X), order)
