"""Functions T_k of the response, each of which gives a moment with the same directions.

For every function T with enough moments, ``E[T(y) S_m(x)]`` is a sum of ``u_j`` to the m-th outer
power (Theorem 9 of the paper applied to ``E[T(y) | x]``). Several functions at once separate
components that a single one confounds, and bounded ones limit the heavy tails of the log link.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moment_init.checks import FloatArray

_SMALLEST_INDEPENDENT_SHARE = 1e-2
"""A function is regressed on the constant and the functions before it, and left out if the standard
deviation of the residual is below this share of its own (R^2 above 0.9999). Such a residual comes
from a few rare rows, and whitening would enlarge it to the size of the other functions."""

ROWS_FOR_CHOICE = 20_000
"""Functions are chosen on about this many evenly spaced rows. They determine a share of 0.01 with
a relative error of a few per cent."""

_ROUNDING_SHARE = 1e-12
"""A standard deviation below this share of the largest value is the rounding of a constant."""


@dataclass(frozen=True, slots=True)
class ResponseBasis:
    """Candidate functions for one kind of response."""

    transform: Callable[[FloatArray], FloatArray]  # ``y -> z`` before standardisation, elementwise
    # the functions of the standardised ``z``, elementwise, in order of preference
    functions: Callable[[FloatArray], list[FloatArray]]
    # whether ``1{y = 0}`` is a candidate too, after the first of `functions`
    has_zero_indicator: bool = False


@dataclass(frozen=True, slots=True)
class ResponseFunctions:
    """The chosen functions T_k with their location and scale, to be called on rows."""

    basis: ResponseBasis
    location: float  # mean of the transformed response
    scale: float  # standard deviation of the transformed response
    columns: tuple[int, ...]  # indices of the candidates that are kept

    def __call__(self, y: FloatArray) -> FloatArray:
        """Evaluate the functions."""
        # y: (n_obs,) -> (n_obs, n_functions)
        z = (self.basis.transform(y) - self.location) / self.scale
        return _candidates(self.basis, y, z, self.columns)


@dataclass(frozen=True, slots=True)
class SeveralFunctions:
    """Functions of single responses, and products of the first functions of two."""

    parts: "tuple[AnyFunctions, ...]"  # functions of each response
    pairs: tuple[tuple[int, int], ...]  # responses whose first functions are multiplied

    @property
    def columns(self) -> tuple[int, ...]:
        """One entry for each function."""
        return tuple(range(sum(len(part.columns) for part in self.parts) + len(self.pairs)))

    def __call__(self, y: FloatArray) -> FloatArray:
        """Evaluate the functions."""
        # y: (n_obs, n_responses) -> (n_obs, n_functions)
        values = [part(y[:, index]).T for index, part in enumerate(self.parts)]
        products = [values[a][0] * values[b][0] for a, b in self.pairs]
        return np.concatenate([*values, np.array(products).reshape(-1, len(y))]).T


@dataclass(frozen=True, slots=True)
class ClassIndicators:
    """Indicators of all classes but the first."""

    n_classes: int

    @property
    def columns(self) -> tuple[int, ...]:
        """The classes."""
        return tuple(range(1, self.n_classes))

    def __call__(self, y: FloatArray) -> FloatArray:
        """Evaluate the indicators."""
        # y: (n_obs,) -> (n_obs, n_classes - 1)
        return np.array([y == index for index in self.columns], dtype=np.float64).T


type AnyFunctions = ResponseFunctions | SeveralFunctions | ClassIndicators
"""Functions of the response, or of all responses, of a row."""


def fit_response_functions(
    basis: ResponseBasis, y: FloatArray, unit: tuple[float, float] | None = None
) -> ResponseFunctions:
    """Standardise the transformed response and keep the linearly independent functions.

    `unit` is its mean and standard deviation, if `y` is only a sample.
    """
    # y: (n_obs,)
    transformed = basis.transform(y)
    location, spread = unit or (float(transformed.mean()), float(transformed.std()))
    scale = spread if spread > 0 else 1.0  # a constant response keeps no function
    rows = slice(None, None, max(1, len(y) // ROWS_FOR_CHOICE))
    candidates = _candidates(basis, y[rows], (transformed[rows] - location) / scale)
    return ResponseFunctions(basis, location, scale, _independent_columns(candidates))


def _candidates(
    basis: ResponseBasis, y: FloatArray, z: FloatArray, kept: tuple[int, ...] | None = None
) -> FloatArray:
    columns = basis.functions(z)
    if basis.has_zero_indicator:
        columns.insert(1, (y == 0).astype(np.float64))
    if kept is not None:
        columns = [columns[index] for index in kept]
    # The values of each function are contiguous, which makes writing them fast.
    return np.array(columns).reshape(len(columns), len(y)).T


def _independent_columns(candidates: FloatArray) -> tuple[int, ...]:
    """Keep the columns, in the given order, with a large enough residual on those before them."""
    centred = candidates - candidates.mean(axis=0)
    covariance = centred.T @ centred / len(centred)
    largest = np.abs(candidates).max(axis=0)
    kept: list[int] = []
    for column, variance in enumerate(np.diag(covariance)):
        if np.sqrt(variance) <= _ROUNDING_SHARE * (1 + largest[column]):
            continue
        shared = covariance[kept, column]
        explained = shared @ np.linalg.solve(covariance[np.ix_(kept, kept)], shared)
        if variance - explained > _SMALLEST_INDEPENDENT_SHARE**2 * variance:
            kept.append(column)
    return tuple(kept)


def _identity(z: FloatArray) -> FloatArray:
    return z


def _log1p(y: FloatArray) -> FloatArray:
    return np.log1p(y)


def _log(y: FloatArray) -> FloatArray:
    return np.log(y)


def _waves(z: FloatArray, n_frequencies: int) -> list[FloatArray]:
    """Compute cosine and sine of z, 2z, 4z, ... by doubling the angle."""
    cosine, sine = np.cos(z), np.sin(z)
    columns = [cosine, sine]
    for _ in range(n_frequencies - 1):
        cosine, sine = 2 * cosine**2 - 1, 2 * sine * cosine
        columns += [cosine, sine]
    return columns


def _real_functions(z: FloatArray) -> list[FloatArray]:
    return [z, z**2, *_waves(z, 3)]


def _positive_functions(z: FloatArray) -> list[FloatArray]:
    return [z, z**2, np.tanh(z), *_waves(z, 2)]


def _proportion_functions(z: FloatArray) -> list[FloatArray]:
    square = z * z
    return [z, square, square * z, *_waves(2 * z, 1)]


REAL_BASIS = ResponseBasis(transform=_identity, functions=_real_functions)
"""For a response on the whole real line."""

COUNT_BASIS = ResponseBasis(
    transform=_log1p, functions=_positive_functions, has_zero_indicator=True
)
"""For a count."""

POSITIVE_BASIS = ResponseBasis(transform=_log, functions=_positive_functions)
"""For a positive response."""

PROPORTION_BASIS = ResponseBasis(transform=_identity, functions=_proportion_functions)
"""For a proportion of trials; with one trial per row only the first function is independent."""
