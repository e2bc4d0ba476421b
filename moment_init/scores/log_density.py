"""Any log-density that PyTensor can differentiate: an expression or a PyMC distribution.

`DirectionalContraction` forms score tensors from directional derivatives of a log-density, with one
evaluation per direction. `LogDensity` is the input model; it compiles these derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import FloatArray
from moment_init.scores.base import (
    Contraction,
    InputModel,
    packed_cubes,
    symmetrise_first,
    symmetrise_rows,
    unpack_cubes,
)


class DirectionalDerivatives(Protocol):
    """Derivatives of a log-density, contracted with vectors that are the same for all rows."""

    def gradient(self, X: FloatArray) -> FloatArray:
        """Gradient s(x) at each row."""
        # X: (n_obs, n_features) -> (n_obs, n_features)

    def hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        """Hessian at each row times a vector, H(x) v."""
        # X: (n_obs, n_features), v: (n_features,) -> (n_obs, n_features)

    def third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        """Third derivative at each row in two directions, K(x)(v, w, .)."""
        # X: (n_obs, n_features), v: (n_features,), w: (n_features,) -> (n_obs, n_features)


@dataclass(frozen=True, slots=True, eq=False)
class DirectionalContraction(Contraction):
    r"""Score tensors of any log-density, :math:`S_3 = z^3 + \mathrm{sym}_3(z \otimes H) - K`.

    It evaluates one gradient, k Hessian products and, for the third order, k (k + 1)/2 third
    derivatives; a slice needs k of these, a fibre one. Memory holds a few copies of the rows.
    """

    basis: FloatArray  # the basis B; z = -s'B; (n_features, k)
    derivatives: DirectionalDerivatives  # gradient, and higher derivatives contracted with vectors

    def _score(self, X: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return z
        hessians = np.stack([self._hessian(X, b) for b in self.basis.T], axis=1)  # (n, k, k)
        if order == 2:
            return np.asarray(z[:, :, None] * z[:, None, :] + hessians)
        cubes = z[:, :, None, None] * z[:, None, :, None] * z[:, None, None, :]
        cubes += symmetrise_rows(z, hessians)
        for a, b in zip(*np.triu_indices(z.shape[1]), strict=True):
            third = self._third(X, self.basis[:, a], self.basis[:, b])
            cubes[:, a, b] -= third
            if a != b:
                cubes[:, b, a] -= third
        return cubes

    def _sum(self, X: FloatArray, weights: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return np.asarray(weights @ z)
        weighted = z * weights[:, None]
        if order == 2:
            hessian = np.stack([weights @ self._hessian(X, b) for b in self.basis.T])
            return np.asarray(weighted.T @ z + hessian)
        mixed = np.stack([weighted.T @ self._hessian(X, b) for b in self.basis.T], axis=1)
        cubes = unpack_cubes(packed_cubes(np.ascontiguousarray(z.T), weights))
        cubes += symmetrise_first(mixed)
        for a, b in zip(*np.triu_indices(z.shape[1]), strict=True):
            third = weights @ self._third(X, self.basis[:, a], self.basis[:, b])
            cubes[a, b] -= third
            if a != b:
                cubes[b, a] -= third
        return np.asarray(cubes)

    def _slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        z = self._first(X)
        along = (z @ thetas) * weights[:, None]  # (n_obs, n_slices)
        slices = np.stack([(z * column[:, None]).T @ z for column in along.T])
        for place, b in enumerate(self.basis.T):
            slices[:, place] += along.T @ self._hessian(X, b)
        for index, v in enumerate((self.basis @ thetas).T):
            mixed = (z * weights[:, None]).T @ self._hessian(X, v)
            third = np.stack([weights @ self._third(X, v, b) for b in self.basis.T])
            slices[index] += mixed + mixed.T - third
        return slices

    def _fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        z = self._first(X)
        fibres = np.empty(vectors.shape)
        for index, vector in enumerate(vectors.T):
            v, along = self.basis @ vector, z @ vector
            hessian = self._hessian(X, v)  # (n_obs, k)
            fibres[:, index] = (weights * (np.square(along) + hessian @ vector)) @ z
            fibres[:, index] += 2.0 * (weights * along) @ hessian
            fibres[:, index] -= weights @ self._third(X, v, v)
        return fibres

    def _powers(self, X: FloatArray, order: int) -> FloatArray:
        z = self._first(X)
        if order == 1:
            return z
        columns = self.basis.T
        lengths = np.stack([self.derivatives.hessian(X, b) @ b for b in columns], axis=1)
        if order == 2:
            return np.asarray(np.square(z) + lengths)
        third = np.stack([self.derivatives.third(X, b, b) @ b for b in columns], axis=1)
        return np.asarray(z * (np.square(z) + 3.0 * lengths) - third)

    def _first(self, X: FloatArray) -> FloatArray:
        """S_1(x) B of each row."""
        return np.asarray(-self.derivatives.gradient(X) @ self.basis)

    def _hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        """H(x)(v, B) of each row."""
        return self.derivatives.hessian(X, v) @ self.basis

    def _third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        """K(x)(v, w, B) of each row."""
        return self.derivatives.third(X, v, w) @ self.basis


class LogDensity(InputModel):
    """Density given by its logarithm, which PyTensor differentiates.

    Parameters
    ----------
    log_density : callable or PyMC distribution
        A function, written with PyTensor, that maps a symbolic matrix of rows, (n_obs, n_features),
        to their log-densities, (n_obs,); or a PyMC distribution made by `.dist`, of vectors of
        length n_features or of scalars, then used for every column. The constant may be left out.
    mean : array-like, shape (n_features,), optional
        Known mean of the input; by default estimated by `fit`.
    covariance : array-like, shape (n_features, n_features), optional
        Known covariance of the input; by default estimated by `fit`.
    mode : optional
        PyTensor's compilation mode; PyTensor's own default if None.

    Notes
    -----
    The value of a row must not depend on other rows; the derivatives of the sum over rows are then
    those of each row. Each Hessian product and each third derivative in two directions is one
    evaluation. PyTensor compiles at the first use, which takes seconds.

    `fit` estimates only mean and covariance, for the standardised coordinates.
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
        """Name the log-density."""
        name = getattr(self.expression, "__name__", type(self.expression).__name__)
        return f"LogDensity({name})"

    def fit_rows(
        self, features: NDArray[np.generic], weights: FloatArray, names: tuple[str, ...]
    ) -> Self:
        """Estimate mean and covariance from rows; the density itself stays unchanged.

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
        LogDensity
            This object, fitted.
        """
        if self.mean is not None and self.covariance is not None:
            self._use_given()
            self.require_n_features(features.shape[1])
        else:
            self._fit_moments(features, weights, names)
            self.n_fitted_ = float("inf")  # the scores themselves are not estimated
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
        """Whether the normalising constant is known to be right, as for a PyMC distribution."""
        return not _is_function(self.expression)

    def log_density(self, X: ArrayLike) -> FloatArray:
        """Log-density of each row, with the constant of the given log-density.

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
            Basis that every mode is contracted with.

        Returns
        -------
        DirectionalContraction
            The contracted score tensors as functions of rows.
        """
        return DirectionalContraction(basis, self._compiled)

    def symbolic(self, X: Any) -> Any:
        """Log-density of each row as an expression in symbolic rows.

        Parameters
        ----------
        X : pytensor.tensor.TensorVariable
            A matrix of rows.

        Returns
        -------
        pytensor.tensor.TensorVariable
            A vector with one value per row.

        Raises
        ------
        ValueError
            If the log-density does not return a vector.
        """
        if _is_function(self.expression):
            value = self.expression(X)
        else:
            import pymc as pm

            value = pm.logp(self.expression, X)
            if value.ndim == 2:  # a scalar distribution, used for every column
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
    """Whether a log-density is a function of rows; PyTensor variables are not callable."""
    return callable(expression) and not hasattr(expression, "owner")


@dataclass(eq=False)
class _CompiledDensity:
    """A log-density and its derivatives, compiled by PyTensor at the first use."""

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
        """Compile value and derivatives; the gradient of a sum over rows holds that of each row."""
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
