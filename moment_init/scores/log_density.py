"""Any log-density that PyTensor can differentiate: a PyMC distribution or an expression."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.scores.base import InputModel
from moment_init.scores.directional import DirectionalContraction

__all__ = ["LogDensity"]

FloatArray = NDArray[np.float64]


class LogDensity(InputModel):
    """Any log-density; its derivatives by automatic differentiation, contracted with vectors.

    Parameters
    ----------
    log_density : callable or PyMC distribution
        A function that maps a symbolic matrix of rows, (n_obs, n_features), to their log-densities,
        (n_obs,), written with PyTensor; or a PyMC distribution made by `.dist`, of vectors of
        length n_features, or of scalars for every column alike. The constant may be missing.
    mean : array-like, shape (n_features,), optional
        Known mean of the input; else that of the rows at `fit`.
    covariance : array-like, shape (n_features, n_features), optional
        Known covariance, likewise.
    mode : optional
        PyTensor's compilation mode; its default by default.

    Notes
    -----
    Rows must not depend on each other: derivatives of the sum over rows are then those of each
    row. Each Hessian product and each third derivative in two directions is one evaluation; see
    `DirectionalContraction` for their number. PyTensor compiles at the first use: seconds.

    `fit` estimates mean and covariance only, for the standardised coordinates.
    """

    def __init__(
        self,
        log_density: Any,
        *,
        mean: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        mode: Any = None,
    ) -> None:
        self.expression = log_density
        self.mean = mean
        self.covariance = covariance
        self.mode = mode

    def __repr__(self) -> str:
        """Name what was given."""
        name = getattr(self.expression, "__name__", type(self.expression).__name__)
        return f"LogDensity({name})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Take mean and covariance from rows; the density stays as it was given.

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
        LogDensity
            This object, fitted.
        """
        if self.mean is not None and self.covariance is not None:
            self._use_given()
            self.require_n_features(features.shape[1])
        else:
            self._fit_moments(features, weights, names)
            self.n_fitted_ = float("inf")  # the scores themselves have not been fitted
        return self

    def _use_given(self) -> None:
        if self.mean is None or self.covariance is None:
            super()._use_given()
        mean = np.asarray(self.mean, dtype=np.float64)
        covariance = np.asarray(self.covariance, dtype=np.float64)
        if mean.ndim != 1 or covariance.shape != (mean.size, mean.size):
            raise ValueError(
                "`mean` must be a vector and `covariance` a matrix of its size; got shapes "
                f"{mean.shape} and {covariance.shape}."
            )
        self._set_covariance(mean, covariance)

    @property
    def is_normalised(self) -> bool:
        """Whether the constant is known to be right: that of a PyMC distribution is."""
        return not _is_function(self.expression)

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row, with the constant that was given.

        Parameters
        ----------
        X : array-like, shape (n_obs, n_features)
            The inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            The values log p(x).
        """
        return self._compiled.value(np.asarray(X, dtype=np.float64))

    def contract(self, basis: FloatArray) -> DirectionalContraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Contracted with every mode.

        Returns
        -------
        DirectionalContraction
            The contracted score tensors as functions of rows.
        """
        return DirectionalContraction(basis, self._compiled)

    def symbolic(self, X: Any) -> Any:
        """Log-density of each row as an expression of symbolic rows.

        Parameters
        ----------
        X : pytensor.tensor.TensorVariable
            A matrix of rows.

        Returns
        -------
        pytensor.tensor.TensorVariable
            A vector with a value for each row.

        Raises
        ------
        ValueError
            If what was given does not give a vector.
        """
        if _is_function(self.expression):
            value = self.expression(X)
        else:
            import pymc as pm

            value = pm.logp(self.expression, X)
            if value.ndim == 2:  # a distribution of scalars, for every column alike
                value = value.sum(axis=1)
        if getattr(value, "ndim", None) != 1:
            raise ValueError(
                "`log_density` must give one value for each row, a vector; got "
                f"{getattr(value, 'ndim', 'no')} dimensions. Sum over features, not over rows."
            )
        return value

    @cached_property
    def _compiled(self) -> "_CompiledDensity":
        return _CompiledDensity(self.symbolic, self.mode)


def _is_function(expression: Any) -> bool:
    """Whether it is a function of rows; PyTensor variables are not callable."""
    return callable(expression) and not hasattr(expression, "owner")


@dataclass(eq=False)
class _CompiledDensity:
    """Functions that PyTensor has compiled, each at its first use."""

    symbolic: Callable[[Any], Any]
    mode: Any

    def value(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._functions[0](X))

    def gradient(self, X: FloatArray) -> FloatArray:
        return np.asarray(self._functions[1](X))

    def hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        return np.asarray(self._functions[2](X, v))

    def third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        return np.asarray(self._functions[3](X, v, w))

    @cached_property
    def _functions(self) -> tuple[Callable[..., Any], ...]:
        """Value and derivatives; the gradient of a sum over rows has one row for each."""
        import pytensor.tensor as pt
        from pytensor.compile.maker import function
        from pytensor.gradient import grad

        X, v, w = pt.dmatrix("X"), pt.dvector("v"), pt.dvector("w")
        value = self.symbolic(X)

        def differentiate(total: Any) -> Any:
            return grad(total, X, disconnected_inputs="ignore")

        gradient = differentiate(value.sum())
        hessian = differentiate((gradient @ v).sum())
        third = differentiate((hessian @ w).sum())
        graphs = (([X], value), ([X], gradient), ([X, v], hessian), ([X, v, w], third))
        return tuple(
            function(inputs, graph, mode=self.mode, on_unused_input="ignore")
            for inputs, graph in graphs
        )
