r"""Log densities of the families: scalar functions, compiled into loops over rows.

A `Kernel` is one family and link as plain scalar functions:

- ``row(y, n_trials)`` returns the part of the log density that depends on no parameter, and one
  number for `term`;
- ``component(dispersion)`` returns five numbers c for `term`;
- ``ratio(y, c)`` and ``ratio_curvature(y, c)`` return the part t that depends on response and
  dispersion alone, with its first two derivatives in the dispersion. Counts repeat, so that it is
  evaluated once for each distinct count;
- ``term(y, number, eta, c, t)`` returns the rest, and its derivatives in the linear predictor eta
  and in tau = log(dispersion). It has neither calls nor branches wherever possible, so that the
  compiler processes several rows at once;
- ``is_far`` and ``beyond`` take (y, number, eta, c): where an exponential or a square is
  cut so that it does not overflow, ``beyond`` is added to the value of `term`, which then keeps
  falling. Derivatives stay those of the function that is cut.

The loops of EM, the operations of PyMC models and the functions of arrays below inline the same
functions.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from moment_init.checks import FloatArray
from moment_init.families.compiling import Compiled, scalar

N_CONSTANTS = 5
"""Numbers that ``Kernel.component`` returns."""

type Constants = tuple[float, float, float, float, float]
type Ratios = tuple[float, float, float]
type Term = tuple[float, float, float, float, float, float]


class Kernel(NamedTuple):
    """One family and link; see the module docstring."""

    row: Callable[[float, float], tuple[float, float]]
    # value and derivatives in eta (first, second), tau (first, second), and both
    term: Callable[[float, float, float, Constants, Ratios], Term]
    # None without a dispersion
    component: Callable[[float], Constants] | None = None
    # value and first derivative, then the second; None if there is no such part
    ratio: Callable[[float, Constants], tuple[float, float]] | None = None
    ratio_curvature: Callable[[float, Constants], float] | None = None
    is_far: Callable[[float, float, float, Constants], bool] | None = None
    beyond: Callable[[float, float, float, Constants], float] | None = None
    # z -> g(z), g'(z) for a density g((2 y - 1) eta) with a bounded g: a mixture is then a sum of
    # probabilities and needs one logarithm per row
    mean_and_slope: Callable[[float], tuple[float, float]] | None = None


class LogDensityDerivatives(NamedTuple):
    """Log density and its derivatives in eta and tau = log(dispersion), all of one shape.

    The derivatives in tau are None for families without a dispersion.
    """

    value: FloatArray  # the log density
    eta1: FloatArray  # first derivative in eta
    eta2: FloatArray  # second derivative in eta
    tau1: FloatArray | None = None  # first derivative in tau
    tau2: FloatArray | None = None  # second derivative in tau
    eta_tau: FloatArray | None = None  # mixed derivative


@scalar
def _no_component(dispersion: float) -> Constants:
    return 0.0, 0.0, 0.0, 0.0, 0.0


@scalar
def _no_ratio(y: float, c: Constants) -> tuple[float, float]:
    return 0.0, 0.0


@scalar
def _no_curvature(y: float, c: Constants) -> float:
    return 0.0


@scalar
def _never_far(y: float, number: float, eta: float, c: Constants) -> bool:
    return False


@scalar
def _nothing_beyond(y: float, number: float, eta: float, c: Constants) -> float:
    return 0.0


@cache
def rows_loop(kernel: Kernel, name: str) -> Compiled:
    """Loop that adds the log density of a block of rows, and writes its derivatives."""
    term, is_far, beyond = (
        kernel.term,
        kernel.is_far or _never_far,
        kernel.beyond or _nothing_beyond,
    )
    component = kernel.component or _no_component
    has_dispersion, has_ratio = kernel.component is not None, kernel.ratio is not None

    def rows(y, number, eta, dispersion, table, value, first, second, tau):  # type: ignore[no-untyped-def]
        # y, number: (n,), eta, value, first, second: (r, n), dispersion: (r,),
        # table: (3, r, n_counts), tau: (3, r, n) or empty
        n_components, n_obs = eta.shape
        t = np.zeros((3, n_obs if has_ratio else 0))
        for j in range(n_components):
            c = component(dispersion[j])
            if has_ratio:
                for k in range(3):
                    for i in range(n_obs):
                        t[k, i] = table[k, j, int(number[i])]
            far = False
            for i in range(n_obs):
                t0 = t[0, i] if has_ratio else 0.0
                t1 = t[1, i] if has_ratio else 0.0
                t2 = t[2, i] if has_ratio else 0.0
                far |= is_far(y[i], number[i], eta[j, i], c)
                value1, eta1, eta2, tau1, tau2, eta_tau = term(
                    y[i], number[i], eta[j, i], c, (t0, t1, t2)
                )
                value[j, i] += value1
                first[j, i] = eta1
                second[j, i] = eta2
                if has_dispersion:
                    tau[0, j, i] = tau1
                    tau[1, j, i] = tau2
                    tau[2, j, i] = eta_tau
            if far:
                for i in range(n_obs):
                    if is_far(y[i], number[i], eta[j, i], c):
                        value[j, i] += beyond(y[i], number[i], eta[j, i], c)

    return Compiled(rows, f"rows_{name}")


@cache
def table_loop(kernel: Kernel, name: str) -> Compiled:
    """Loop that evaluates the ratio of every distinct count under every component."""
    component = kernel.component or _no_component
    ratio, ratio_curvature = kernel.ratio or _no_ratio, kernel.ratio_curvature or _no_curvature

    def loop(counts, dispersion, table):  # type: ignore[no-untyped-def]
        for j in range(len(dispersion)):
            c = component(dispersion[j])
            for k in range(len(counts)):
                t0, t1 = ratio(counts[k], c)
                table[0, j, k] = t0
                table[1, j, k] = t1
                table[2, j, k] = ratio_curvature(counts[k], c)

    return Compiled(loop, f"table_{name}")


@cache
def elements_loop(kernel: Kernel, name: str) -> Compiled:
    """Loop over elements, each with a dispersion of its own, as functions of arrays need it."""
    row, term = kernel.row, kernel.term
    component = kernel.component or _no_component
    ratio, ratio_curvature = kernel.ratio or _no_ratio, kernel.ratio_curvature or _no_curvature
    is_far, beyond = kernel.is_far or _never_far, kernel.beyond or _nothing_beyond
    has_ratio = kernel.ratio is not None

    def loop(y, n_trials, eta, dispersion, base, parts):  # type: ignore[no-untyped-def]
        # all (n,), parts: (6, n)
        last = np.nan
        c = 0.0, 0.0, 0.0, 0.0, 0.0
        t0, t1, t2 = 0.0, 0.0, 0.0
        for i in range(len(y)):
            if dispersion[i] != last:
                last = dispersion[i]
                c = component(last)
            base[i], number = row(y[i], n_trials[i])
            if has_ratio:
                t0, t1 = ratio(y[i], c)
                t2 = ratio_curvature(y[i], c)
            value, eta1, eta2, tau1, tau2, eta_tau = term(y[i], number, eta[i], c, (t0, t1, t2))
            if is_far(y[i], number, eta[i], c):
                value += beyond(y[i], number, eta[i], c)
            parts[0, i] = value
            parts[1, i] = eta1
            parts[2, i] = eta2
            parts[3, i] = tau1
            parts[4, i] = tau2
            parts[5, i] = eta_tau

    return Compiled(loop, f"elements_{name}")


@cache
def numbers_loop(kernel: Kernel, name: str) -> Compiled:
    """Loop over rows that evaluates what depends on no parameter."""
    row = kernel.row

    def loop(y, n_trials, base, number):  # type: ignore[no-untyped-def]
        for i in range(len(y)):
            base[i], number[i] = row(y[i], n_trials[i])

    return Compiled(loop, f"numbers_{name}")


def evaluate_elements(
    kernel: Kernel, name: str, y: Any, eta: Any, dispersion: Any, n_trials: Any
) -> tuple[FloatArray, FloatArray]:
    """Parameter-free terms, and log density with derivatives, of arrays that broadcast."""
    # -> shape, (6, *shape)
    arrays = [np.asarray(a, np.float64) for a in (y, n_trials, eta, dispersion)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    # copies, because loops would be compiled again for arrays that cannot be written
    flat = [np.array(np.broadcast_to(array, shape), order="C").ravel() for array in arrays]
    base, parts = np.empty(flat[0].shape), np.empty((6, *flat[0].shape))
    elements_loop(kernel, name)(*flat, base, parts)
    return base.reshape(shape), parts.reshape(6, *shape)
