"""Any log-density: a PyMC distribution, or a function in PyTensor, JAX or NumPy.

`DirectionalContraction` forms score tensors from derivatives of a log-density in given directions,
which PyTensor or JAX compute, with one evaluation per direction. `DifferenceContraction` needs only
values of the log-density. `LogDensity` is the input model.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, permutations
from math import factorial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from moment_init.checks import FloatArray
from moment_init.scores.base import Contraction, InputModel, score_powers, score_tensor
from moment_init.scores.gaussian import given_vector, split_covariance


@dataclass(frozen=True, slots=True, eq=False)
class DirectionalDerivatives:
    """Values of a log-density and its derivatives; vectors are the same for all rows."""

    value: Callable[[FloatArray], FloatArray]  # X, (n_obs, n_features) -> (n_obs,)
    # s(x), H(x) v and K(x)(v, w, .) of each row; (n_obs, n_features)
    gradient: Callable[[FloatArray], FloatArray]
    hessian: Callable[[FloatArray, FloatArray], FloatArray]
    third: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class DirectionalContraction(Contraction):
    """Score tensors from the derivatives of a log-density in given directions.

    A tensor takes one gradient, k Hessian products and, for the third order, k (k + 1)/2 third
    derivatives; a slice needs k of these, a fibre one. Memory holds a few copies of the rows.
    """

    basis: FloatArray  # (n_features, k)
    derivatives: DirectionalDerivatives

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""
        gradient = -self._first(X)
        if order == 1:
            return score_tensor(gradient)
        hessian = np.stack([self._hessian(X, b) for b in self.basis.T], axis=1)  # (n, k, k)
        if order == 2:
            return score_tensor(gradient, hessian)
        k = self.basis.shape[1]
        third = np.empty((*hessian.shape, k))
        for a, b in combinations_with_replacement(range(k), 2):
            third[:, a, b] = third[:, b, a] = self._third(X, self.basis[:, a], self.basis[:, b])
        return score_tensor(gradient, hessian, third)

    def sum_slices(self, X: FloatArray, weights: FloatArray, thetas: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B, B theta_l)."""
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

    def sum_fibres(self, X: FloatArray, weights: FloatArray, vectors: FloatArray) -> FloatArray:
        """Weighted sums of S_3(x)(B, B v_l, B v_l)."""
        z = self._first(X)
        fibres = np.empty(vectors.shape)
        for index, vector in enumerate(vectors.T):
            v, along = self.basis @ vector, z @ vector
            hessian = self._hessian(X, v)  # (n_obs, k)
            fibres[:, index] = (weights * (np.square(along) + hessian @ vector)) @ z
            fibres[:, index] += 2.0 * (weights * along) @ hessian
            fibres[:, index] -= weights @ self._third(X, v, v)
        return fibres

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""
        columns, derivatives = self.basis.T, self.derivatives
        lines = [-self._first(X)]
        if order > 1:
            lines.append(np.stack([derivatives.hessian(X, b) @ b for b in columns], axis=1))
        if order > 2:
            lines.append(np.stack([derivatives.third(X, b, b) @ b for b in columns], axis=1))
        return score_powers(*lines)

    def _first(self, X: FloatArray) -> FloatArray:
        """S_1(x) B of each row."""
        return np.asarray(-self.derivatives.gradient(X) @ self.basis)

    def _hessian(self, X: FloatArray, v: FloatArray) -> FloatArray:
        """H(x)(v, B) of each row."""
        return self.derivatives.hessian(X, v) @ self.basis

    def _third(self, X: FloatArray, v: FloatArray, w: FloatArray) -> FloatArray:
        """K(x)(v, w, B) of each row."""
        return self.derivatives.third(X, v, w) @ self.basis


# Central differences over 1 to 4 steps on either side: their weights in the first three
# derivatives. The first and third are sums of l(x + ju) - l(x - ju) over j, the second of
# l(x + ju) + l(x - ju) - 2 l(x). The errors are of order 8, 8 and 6 in the step.
DIFFERENCE_WEIGHTS = np.array(
    [
        [4 / 5, -1 / 5, 4 / 105, -1 / 280],
        [8 / 5, -1 / 5, 8 / 315, -1 / 560],
        [-61 / 30, 169 / 120, -3 / 10, 7 / 240],
    ]
)

# Finest detail of a density that the differences resolve, in standard deviations: clusters and the
# zones between them are as narrow as this.
DETAIL = 0.3

# The step in standard deviations, .005. Rounding contributes eps / h^3 to a third derivative, and
# the differences (h / detail)^6 / detail^3: at this step the two are equal.
STEP = float(np.finfo(np.float64).eps ** (1 / 9) * DETAIL)


@dataclass(frozen=True, slots=True, eq=False)
class DifferenceContraction(Contraction):
    r"""Score tensors of a log-density l by finite differences along single directions.

    Mixed derivatives follow by polarisation: a symmetric form F of order m satisfies

    .. math:: F(u_1, ..., u_m) = \frac{1}{m!} \sum_{S \neq \emptyset} (-1)^{m - |S|}
              F\Bigl(\sum_{i \in S} u_i, ..., \sum_{i \in S} u_i\Bigr).

    The tensor of order m takes eight evaluations for each sum of up to m columns of the basis.
    """

    value: Callable[[FloatArray], FloatArray]  # X, (n_obs, n_features) -> (n_obs,)
    basis: FloatArray  # (n_features, k)
    whitened: FloatArray  # L^-1 B, whose columns are in standard deviations; (n_features, k)

    def score(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(B, ..., B) of each row."""
        centre, lines = self.value(X), dict[tuple[int, ...], FloatArray]()

        def tensor(m: int) -> FloatArray:
            width = self.basis.shape[1]
            entries = np.empty((*[width] * m, len(X)))
            for index in combinations_with_replacement(range(width), m):
                entry = np.zeros(len(X))
                for size in range(1, m + 1):
                    for subset in combinations(index, size):
                        if subset not in lines:
                            lines[subset] = self._along(X, centre, subset)
                        entry += (-1) ** (m - size) / factorial(m) * lines[subset][m - 1]
                for place in permutations(index):
                    entries[place] = entry
            return np.moveaxis(entries, -1, 0)

        return score_tensor(*map(tensor, range(1, order + 1)))

    def powers(self, X: FloatArray, order: int) -> FloatArray:
        """S_m(x)(b_l, ..., b_l) of each row."""
        centre = self.value(X)
        lines = [self._along(X, centre, (column,)) for column in range(self.basis.shape[1])]
        return score_powers(*np.stack(lines, axis=2)[:order])

    def _along(self, X: FloatArray, centre: FloatArray, columns: tuple[int, ...]) -> FloatArray:
        """First three derivatives along the sum of some columns of the basis, (3, n_obs)."""
        direction = self.basis[:, columns].sum(axis=1)
        length = float(np.linalg.norm(self.whitened[:, columns].sum(axis=1)))
        if length == 0.0:
            return np.zeros((3, len(X)))
        step = STEP / length
        steps = step * np.arange(1, DIFFERENCE_WEIGHTS.shape[1] + 1)
        ahead, behind = (
            np.stack([self.value(X + sign * h * direction) for h in steps]) for sign in (1, -1)
        )
        if not (np.isfinite(ahead).all() and np.isfinite(behind).all()):
            n_rows = int((~np.isfinite(ahead + behind)).any(axis=0).sum())
            raise ValueError(
                f"`log_density` must be finite within {len(steps) * STEP:.2f} standard deviations "
                f"of every row, for finite differences; it is not near {n_rows} of {len(X)} rows. "
                "Drop them, or write it with PyTensor or JAX, which need no neighbouring values."
            )
        first, second, third = DIFFERENCE_WEIGHTS
        return np.stack(
            [
                first @ (ahead - behind) / step,
                second @ (ahead + behind - 2.0 * centre) / step**2,
                third @ (ahead - behind) / step**3,
            ]
        )


class LogDensity(InputModel):
    """Density given by its logarithm, whose derivatives are computed automatically.

    Parameters
    ----------
    log_density : callable or PyMC distribution
        The log-density, with or without its constant, in one of these forms: a PyMC distribution
        made by `.dist`, of vectors of length n_features or of scalars, then used for every column;
        a function, written with PyTensor, that maps a symbolic matrix of rows, (n_obs, n_features),
        to their log-densities, (n_obs,); a function, written with JAX, that maps one row,
        (n_features,), to a scalar; or a function, written with NumPy or SciPy, that maps rows,
        (n_obs, n_features), to their log-densities, (n_obs,).
    mean : array-like, shape (n_features,), optional
        Known mean of the input; by default estimated by `fit`.
    covariance : array-like, shape (n_features, n_features), optional
        Known covariance of the input; by default estimated by `fit`.
    mode : optional
        PyTensor's compilation mode; PyTensor's own default if None.
    backend : {"auto", "pytensor", "jax", "numpy"}, default "auto"
        How the function is written. "auto" tries it at the first use: if it maps a symbolic matrix
        to a PyTensor expression, it is "pytensor"; otherwise, if it maps one row to a JAX array,
        "jax"; otherwise "numpy". A function of plain operators and methods, such as
        ``-(X**2).sum(axis=1)``, is therefore differentiated by PyTensor.

    Attributes
    ----------
    backend_ : str
        The backend that is used, after the first use.

    Notes
    -----
    The value of a row must not depend on other rows. PyTensor and JAX differentiate exactly: each
    Hessian product and each third derivative in two directions is one evaluation, in double
    precision. They compile at the first use, which takes seconds.

    A NumPy function is differentiated by central differences of eight evaluations per direction,
    up to .02 standard deviations away. Relative to the largest tensor of the order, the errors of
    S_1, S_2 and S_3 are about 1e-12, 1e-10 and 1e-8; between overlapping clusters S_3 is right to
    1e-7. S_3 in k directions takes about 1.3 (k + 2)^3 evaluations of every row: with ten
    directions or more, write the function with PyTensor or JAX. Differences need the standard
    deviations, so the density must be fitted, or its mean and covariance given.

    `fit` estimates only mean and covariance, for the standardised coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import stats
    >>> from moment_init.scores import LogDensity
    >>> X = np.random.default_rng(0).standard_t(10, size=(500, 2))
    >>> model = LogDensity(stats.multivariate_t(loc=[0.0, 0.0], df=10).logpdf).fit(X)
    >>> model.score(np.array([[1.0, 2.0]]), order=1).round(6)  # (10 + 2) x / (10 + x'x)
    array([[0.8, 1.6]])
    >>> model.backend_
    'numpy'
    """

    backend_: str
    _derivatives: DirectionalDerivatives
    _value: Callable[[FloatArray], FloatArray]

    def __init__(
        self,
        log_density: Any,
        *,
        mean: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        mode: Any = None,
        backend: Literal["auto", "pytensor", "jax", "numpy"] = "auto",
    ) -> None:
        self.expression = log_density
        self.mean = mean
        self.covariance = covariance
        self.mode = mode
        self.backend = backend

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
            return self._keep_given(features.shape[1])
        self._fit_moments(features, weights, names)
        self.n_fitted_ = float("inf")  # the scores themselves are not estimated
        return self

    def _use_given(self) -> None:
        if self.mean is None or self.covariance is None:
            raise self._not_given()
        mean = given_vector(self.mean, np.size(self.mean))
        self._set_factor(mean, *split_covariance(self.covariance, len(mean)))

    @property
    def is_normalised(self) -> bool:
        """Whether the normalising constant is known to be right, as for a PyMC distribution."""
        return not callable(self.expression)

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
        rows = np.asarray(X, dtype=np.float64)
        self._prepare(rows.shape[1])
        return self._value(rows)

    def contract(self, basis: FloatArray) -> Contraction:
        """Prepare the contraction of the score tensors with a basis.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, k)
            Basis that every mode is contracted with.

        Returns
        -------
        Contraction
            The contracted score tensors as functions of rows.
        """
        self._prepare(len(basis))
        if self.backend_ != "numpy":
            return DirectionalContraction(basis, self._derivatives)
        whitened = solve_triangular(self.standardising_basis, basis, lower=True)
        return DifferenceContraction(self._value, basis, whitened)

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
            If the log-density is not an expression, or not a vector.
        """
        if callable(self.expression):
            value = _call(self.expression, X, "a symbolic matrix, as it must for PyTensor")
        else:
            import pymc as pm

            value = pm.logp(self.expression, X)
            if value.ndim == 2:  # a scalar distribution, used for every column
                value = value.sum(axis=1)
        if getattr(value, "ndim", None) != 1:
            raise ValueError(
                "`log_density` must give one value for each row, a vector; got "
                f"{getattr(value, 'ndim', 'no')} dimensions. Sum over features, not over rows; a "
                "JAX function of one row needs backend='jax'."
            )
        return value

    def __getstate__(self) -> dict[str, Any]:
        """Leave out compiled functions, which are made again at the next use."""
        compiled = ("_value", "_derivatives")
        return {name: value for name, value in vars(self).items() if name not in compiled}

    def _prepare(self, n_features: int) -> None:
        """Choose the backend at the first use, and compile the log-density by it."""
        if hasattr(self, "_value"):
            return
        self.backend_ = _choose_backend(self.expression, self.backend, n_features)
        if self.backend_ == "numpy":
            self._value = _numpy_value(self.expression)
            return
        if self.backend_ == "jax":
            self._derivatives = _jax_derivatives(self.expression, n_features)
        else:
            self._derivatives = _pytensor_derivatives(self.symbolic, self.mode)
        self._value = self._derivatives.value


def _choose_backend(expression: Any, backend: str, n_features: int) -> str:
    """Find out how a log-density is written, unless the caller says so."""
    if backend not in ("auto", "pytensor", "jax", "numpy"):
        raise ValueError(
            f"`backend` must be 'auto', 'pytensor', 'jax' or 'numpy'; got {backend!r}."
        )
    if not callable(expression):
        if backend in ("jax", "numpy") or not hasattr(expression, "owner"):
            raise TypeError(
                "`log_density` must be a function or, with PyTensor, a PyMC distribution made by "
                f"`.dist`; got {type(expression).__name__} and backend={backend!r}. For a SciPy "
                "distribution pass its method `logpdf`."
            )
        return "pytensor"
    if backend != "auto":
        return backend
    import pytensor.tensor as pt
    from pytensor.graph.basic import Variable

    with suppress(Exception):  # functions of other kinds fail in their own ways
        if isinstance(expression(pt.dmatrix("X")), Variable):
            return "pytensor"
    jax = sys.modules.get("jax")  # imported before, if the function is written with it
    with suppress(Exception):
        if jax is not None and isinstance(expression(np.zeros(n_features)), jax.Array):
            return "jax"
    return "numpy"


def _call(function: Callable[[Any], Any], argument: Any, words: str) -> Any:
    """Call a log-density; say what it was called with if it fails."""
    try:
        return function(argument)
    except Exception as error:
        raise ValueError(
            f"`log_density` must accept {words}; it raised {type(error).__name__}: {error} Pass "
            "backend='pytensor', 'jax' or 'numpy' if it is written for another of them."
        ) from error


def _numpy_value(function: Callable[[FloatArray], Any]) -> Callable[[FloatArray], FloatArray]:
    """Check the values of a NumPy function; SciPy returns a scalar for a single row."""

    def value(X: FloatArray) -> FloatArray:
        values = np.asarray(_call(function, X, "rows as a NumPy array, (n_obs, n_features)"))
        if values.size != len(X):
            raise ValueError(
                "`log_density` must give one value for each row; got shape "
                f"{values.shape} for {len(X)} rows. Sum over features, not over rows; a JAX "
                "function of one row needs backend='jax'."
            )
        if values.dtype.kind not in "iuf" or values.dtype.itemsize < 8:
            raise ValueError(
                "`log_density` must compute in double precision, for finite differences; got "
                f"values of type {values.dtype}. With JAX, write it for one row and pass "
                "backend='jax'."
            )
        return values.reshape(len(X)).astype(np.float64, copy=False)

    return value


def _jax_derivatives(function: Callable[[Any], Any], n_features: int) -> DirectionalDerivatives:
    """Compile a function of one row and its derivatives by JAX, in double precision."""
    import jax

    def hessian(x: Any, v: Any) -> Any:
        return jax.jvp(jax.grad(function), (x,), (v,))[1]

    def third(x: Any, v: Any, w: Any) -> Any:
        return jax.jvp(lambda u: hessian(u, v), (x,), (w,))[1]

    def by_rows(derivative: Callable[..., Any], n_vectors: int) -> Callable[..., FloatArray]:
        compiled = jax.jit(jax.vmap(derivative, in_axes=(0, *[None] * n_vectors)))

        def evaluate(*arguments: FloatArray) -> FloatArray:
            with jax.enable_x64(True):
                return np.array(compiled(*arguments))

        return evaluate

    with jax.enable_x64(True):
        row = jax.ShapeDtypeStruct((n_features,), np.float64)
        value = _call(lambda x: jax.eval_shape(function, x), row, "one row as a JAX array")
    if getattr(value, "shape", None) != ():
        raise ValueError(
            "`log_density` must map one row, (n_features,), to a scalar for JAX; got shape "
            f"{getattr(value, 'shape', None)}. Leave rows out: JAX maps the function over them."
        )
    return DirectionalDerivatives(
        by_rows(function, 0), by_rows(jax.grad(function), 0), by_rows(hessian, 1), by_rows(third, 2)
    )


def _pytensor_derivatives(symbolic: Callable[[Any], Any], mode: Any) -> DirectionalDerivatives:
    """Compile a log-density and its derivatives by PyTensor.

    The gradient of a sum over rows holds that of each row.
    """
    import pytensor.tensor as pt
    from pytensor.compile.maker import function
    from pytensor.gradient import grad

    X, v, w = pt.dmatrix("X"), pt.dvector("v"), pt.dvector("w")
    value = symbolic(X)

    def differentiate(total: Any) -> Any:
        return grad(total, X, disconnected_inputs="ignore")

    gradient = differentiate(value.sum())
    hessian = differentiate((gradient @ v).sum())
    third = differentiate((hessian @ w).sum())
    graphs = (([X], value), ([X], gradient), ([X, v], hessian), ([X, v, w], third))
    return DirectionalDerivatives(
        *(function(inputs, graph, mode=mode, on_unused_input="ignore") for inputs, graph in graphs)
    )
