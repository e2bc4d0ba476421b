"""Loops over the rows of a mixture: value and derivatives in one pass, compiled by numba.

Every loop takes ``(y, eta, log_weight, dispersion, n_trials, sample_weight, group)``, with log
weights of shape (1, n_components) or (n_obs, n_components) and empty arrays for what the mixture
has no use for. It returns, row by row, the log density, its derivatives in log weight, eta and
dispersion, and the first row of each row's group.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from moment_init.models.kernels import JIT_OPTIONS, KERNELS, Kernel, jitable

__all__ = ["MixtureLayout", "compiled_loop", "mixture_loop"]

_SMALLEST_PROBABILITY = 1e-300
"""A response less likely than this has lost digits to underflow: its row is evaluated again, with
logarithms."""

type Loop = Callable[..., Any]


class MixtureLayout(NamedTuple):
    """Which inputs a mixture has besides the response and its linear predictors.

    Parameters
    ----------
    has_row_weights : bool
        Whether each row has log weights of its own, (n_obs, n_components).
    has_dispersion, has_trials, has_sample_weight, has_groups : bool
        Whether the optional inputs are there; this is also their order.
    """

    has_row_weights: bool
    has_dispersion: bool
    has_trials: bool
    has_sample_weight: bool
    has_groups: bool


def mixture_loop(family: str, link: str, layout: MixtureLayout) -> Loop:
    """Assemble the loop of one family, link and layout.

    Parameters
    ----------
    family, link : str
        Names that `KERNELS` has.
    layout : MixtureLayout
        Which inputs there are.

    Returns
    -------
    callable
        A Python function within numba's language, as the head of the module describes it.
    """
    kernel = KERNELS[family, link]
    if layout.has_groups:
        return _group_loop(kernel, layout)
    evaluate_row = _row_evaluation(kernel, layout)
    if kernel.mean_and_slope is None:
        return _row_loop(kernel, layout, evaluate_row)
    return _probability_loop(kernel, layout, evaluate_row)


def compiled_loop(family: str, link: str, layout: MixtureLayout) -> Any:
    """Wrap the loop so that it takes and returns only what the mixture has.

    Parameters
    ----------
    family, link : str
        Names that `KERNELS` has.
    layout : MixtureLayout
        Which inputs there are.

    Returns
    -------
    numba dispatcher
        From ``(y, eta, log_weight, *optional inputs)`` to a tuple of arrays; to be called from
        compiled code.
    """
    loop = jitable(mixture_loop(family, link, layout))
    gather = _gathering(layout)
    options = {**JIT_OPTIONS, "fastmath": set(JIT_OPTIONS["fastmath"])}
    has_dispersion, has_groups = layout.has_dispersion, layout.has_groups

    def mixture_log_density(*inputs):  # type: ignore[no-untyped-def]
        value, share, slope, dispersion_slope, first = loop(*gather(inputs))
        # Only one of these returns is left after numba has pruned the others.
        if has_dispersion and has_groups:
            return value, share, slope, dispersion_slope, first
        if has_dispersion:
            return value, share, slope, dispersion_slope
        if has_groups:
            return value, share, slope, first
        return value, share, slope

    return numba_njit(mixture_log_density, **options)


def _gathering(layout: MixtureLayout) -> Callable[..., Any]:
    """Put empty arrays where an input is missing, and log weights into two dimensions."""
    has_row_weights, has_dispersion, has_trials, has_sample_weight, has_groups = layout
    at_trials = 3 + has_dispersion
    at_sample_weight = at_trials + has_trials
    at_groups = at_sample_weight + has_sample_weight

    def gather(inputs):  # type: ignore[no-untyped-def]
        nothing = np.empty(0)
        weights = inputs[2] if has_row_weights else _as_row(inputs[2])
        dispersion = inputs[3] if has_dispersion else nothing
        n_trials = inputs[at_trials] if has_trials else nothing
        sample_weight = inputs[at_sample_weight] if has_sample_weight else nothing
        group = inputs[at_groups] if has_groups else np.empty(0, np.int64)
        return inputs[0], inputs[1], weights, dispersion, n_trials, sample_weight, group

    return jitable(gather)


@jitable
def _as_row(vector: Any) -> Any:
    """A copy of shape (1, n); numba reshapes contiguous arrays only."""
    row = np.empty((1, vector.shape[0]))
    for j in range(vector.shape[0]):
        row[0, j] = vector[j]
    return row


def _constants_of(kernel: Kernel) -> Callable[..., Any]:
    """Bind the kernel into what prepares the constants of every component."""
    prepare_component = kernel.prepare_component

    def prepare(dispersion, n_components):  # type: ignore[no-untyped-def]
        constants = np.zeros((n_components, 4))
        for j in range(dispersion.shape[0]):
            c0, c1, c2, c3 = prepare_component(dispersion[j])
            constants[j, 0] = c0
            constants[j, 1] = c1
            constants[j, 2] = c2
            constants[j, 3] = c3
        return constants

    return jitable(prepare)


def _row_evaluation(kernel: Kernel, layout: MixtureLayout) -> Callable[..., Any]:
    """Bind the kernel into the evaluation of one row in the log domain."""
    prepare_row, term = kernel.prepare_row, kernel.term
    has_row_weights, has_dispersion, has_trials, has_sample_weight, _ = layout

    def evaluate_row(  # type: ignore[no-untyped-def]
        i, y, eta, log_weight, constants, n_trials, sample_weight, share, slope, dispersion_slope
    ):
        n_components = eta.shape[1]
        at = i if has_row_weights else 0
        response = float(y[i])
        base, number = prepare_row(response, float(n_trials[i]) if has_trials else 1.0)
        largest = -np.inf
        for j in range(n_components):
            joint = log_weight[at, j]
            slope[i, j] = 0.0
            if has_dispersion:
                dispersion_slope[i, j] = 0.0
            if joint != -np.inf:
                value, eta1, dispersion1 = term(
                    response,
                    number,
                    eta[i, j],
                    constants[j, 0],
                    constants[j, 1],
                    constants[j, 2],
                    constants[j, 3],
                )
                joint += value
                slope[i, j] = eta1
                if has_dispersion:
                    dispersion_slope[i, j] = dispersion1
            share[i, j] = joint
            if not joint <= largest:  # a NaN is kept, and shows in the sum
                largest = joint
        factor = sample_weight[i] if has_sample_weight else 1.0
        total = _shares(share, i, largest, factor)
        for j in range(n_components):
            slope[i, j] *= share[i, j]
            if has_dispersion:
                dispersion_slope[i, j] *= share[i, j]
        return factor * (base + total)

    return jitable(evaluate_row)


@jitable
def _shares(joint: Any, i: int, largest: float, factor: float) -> float:
    """Turn a row of log joint densities into shares times a factor; return the log of their sum."""
    n_components = joint.shape[1]
    if largest == -np.inf:  # impossible under every component, and no direction is better
        for j in range(n_components):
            joint[i, j] = 0.0
        return largest
    total = 0.0
    for j in range(n_components):
        joint[i, j] = math.exp(joint[i, j] - largest)
        total += joint[i, j]
    scale = factor / total
    for j in range(n_components):
        joint[i, j] *= scale
    return largest + math.log(total)


def _row_loop(kernel: Kernel, layout: MixtureLayout, evaluate_row: Callable[..., Any]) -> Loop:
    """Rows on their own, in the log domain."""
    prepare = _constants_of(kernel)
    has_dispersion = layout.has_dispersion

    def loop(  # type: ignore[no-untyped-def]
        y, eta, log_weight, dispersion, n_trials, sample_weight, group
    ):
        n_obs, n_components = eta.shape
        value = np.empty(n_obs)
        share = np.empty((n_obs, n_components))
        slope = np.empty((n_obs, n_components))
        dispersion_slope = np.empty((n_obs if has_dispersion else 0, n_components))
        constants = prepare(dispersion, n_components)
        for i in range(n_obs):
            value[i] = evaluate_row(
                i,
                y,
                eta,
                log_weight,
                constants,
                n_trials,
                sample_weight,
                share,
                slope,
                dispersion_slope,
            )
        return value, share, slope, dispersion_slope, group

    return loop


def _probability_loop(
    kernel: Kernel, layout: MixtureLayout, evaluate_row: Callable[..., Any]
) -> Loop:
    """Rows on their own, ``P(y) = sum_j w_j g((2 y - 1) eta_j)`` with one logarithm a row."""
    mean_and_slope: Any = kernel.mean_and_slope
    has_row_weights, has_sample_weight = layout.has_row_weights, layout.has_sample_weight

    def loop(  # type: ignore[no-untyped-def]
        y, eta, log_weight, dispersion, n_trials, sample_weight, group
    ):
        n_obs, n_components = eta.shape
        value = np.empty(n_obs)
        share = np.empty((n_obs, n_components))
        slope = np.empty((n_obs, n_components))
        nothing = np.empty((0, n_components))
        constants = np.zeros((n_components, 4))
        weight = np.empty(n_components)
        if not has_row_weights:
            for j in range(n_components):
                weight[j] = math.exp(log_weight[0, j])
        for i in range(n_obs):
            sign = 2.0 * y[i] - 1.0
            total = 0.0
            for j in range(n_components):
                mean, mean1 = mean_and_slope(sign * eta[i, j])
                prior = math.exp(log_weight[i, j]) if has_row_weights else weight[j]
                share[i, j] = prior * mean
                slope[i, j] = prior * mean1
                total += share[i, j]
            if total < _SMALLEST_PROBABILITY:
                value[i] = evaluate_row(
                    i,
                    y,
                    eta,
                    log_weight,
                    constants,
                    n_trials,
                    sample_weight,
                    share,
                    slope,
                    nothing,
                )
                continue
            factor = sample_weight[i] if has_sample_weight else 1.0
            value[i] = factor * math.log(total)
            scale = factor / total
            for j in range(n_components):
                share[i, j] *= scale
                slope[i, j] *= scale * sign
        return value, share, slope, nothing, group

    return loop


def _group_loop(kernel: Kernel, layout: MixtureLayout) -> Loop:
    """Rows of a group share their component: its value stands on the group's first row."""
    prepare, add_row = _constants_of(kernel), _group_accumulation(kernel, layout)
    has_dispersion, has_row_weights = layout.has_dispersion, layout.has_row_weights

    def loop(  # type: ignore[no-untyped-def]
        y, eta, log_weight, dispersion, n_trials, sample_weight, group
    ):
        n_obs, n_components = eta.shape
        value = np.zeros(n_obs)
        share = np.zeros((n_obs, n_components))
        slope = np.zeros((n_obs, n_components))
        dispersion_slope = np.zeros((n_obs if has_dispersion else 0, n_components))
        first = _first_rows(group)
        constants = prepare(dispersion, n_components)
        for i in range(n_obs):
            head = first[i]
            if head == i:
                at = i if has_row_weights else 0
                for j in range(n_components):
                    share[i, j] = log_weight[at, j]
            value[head] += add_row(
                i, head, y, eta, constants, n_trials, sample_weight, share, slope, dispersion_slope
            )
        for i in range(n_obs):
            if first[i] == i:
                largest = -np.inf
                for j in range(n_components):
                    if not share[i, j] <= largest:
                        largest = share[i, j]
                value[i] += _shares(share, i, largest, 1.0)
            for j in range(n_components):
                slope[i, j] *= share[first[i], j]
                if has_dispersion:
                    dispersion_slope[i, j] *= share[first[i], j]
        return value, share, slope, dispersion_slope, first

    return loop


@jitable
def _first_rows(group: Any) -> Any:
    """For each row the first row of its group."""
    n_obs = group.shape[0]
    n_groups = 0
    for i in range(n_obs):
        if group[i] < 0:
            raise ValueError("`group` must hold 0 or more; got a negative index. Number groups.")
        n_groups = max(n_groups, group[i] + 1)
    head = np.full(n_groups, -1, np.int64)
    first = np.empty(n_obs, np.int64)
    for i in range(n_obs):
        if head[group[i]] < 0:
            head[group[i]] = i
        first[i] = head[group[i]]
    return first


def _group_accumulation(kernel: Kernel, layout: MixtureLayout) -> Callable[..., Any]:
    """Bind the kernel into what adds a row's log densities to those of its group."""
    prepare_row, term = kernel.prepare_row, kernel.term
    _, has_dispersion, has_trials, has_sample_weight, _ = layout

    def add_row(  # type: ignore[no-untyped-def]
        i, head, y, eta, constants, n_trials, sample_weight, joint, slope, dispersion_slope
    ):
        response = float(y[i])
        base, number = prepare_row(response, float(n_trials[i]) if has_trials else 1.0)
        factor = sample_weight[i] if has_sample_weight else 1.0
        for j in range(eta.shape[1]):
            if joint[head, j] != -np.inf:
                value, eta1, dispersion1 = term(
                    response,
                    number,
                    eta[i, j],
                    constants[j, 0],
                    constants[j, 1],
                    constants[j, 2],
                    constants[j, 3],
                )
                joint[head, j] += factor * value
                slope[i, j] = factor * eta1
                if has_dispersion:
                    dispersion_slope[i, j] = factor * dispersion1
        return factor * base

    return jitable(add_row)
