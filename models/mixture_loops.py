"""Loops over the rows of a mixture: value and derivatives in one pass, compiled by numba.

Every loop takes the inputs that the mixture has, in the order ``(y, eta, log_weight, dispersion,
n_trials, sample_weight, group)``. It returns for each row the log density, its derivatives in log
weight, eta and (if the family has one) dispersion, and with groups the first row of the group.

Inputs that a layout does not have are None. Numba removes the branches that would read them before
it infers types, so they cost no time to compile.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from moment_init.models.kernels import KERNELS, Kernel, jit_options, jitable

_SMALLEST_PROBABILITY = 1e-300
"""Below this probability a row has lost digits to underflow and is evaluated again with
logarithms."""

type Loop = Callable[..., Any]


class MixtureLayout(NamedTuple):
    """Which inputs a mixture has besides the response and its linear predictors."""

    has_row_weights: bool  # whether the log weights differ by row, (n_obs, n_components)
    # The optional inputs, in their order.
    has_dispersion: bool
    has_trials: bool
    has_sample_weight: bool
    has_groups: bool

    @property
    def optional_positions(self) -> tuple[int, int, int, int]:
        """Positions of dispersion, trials, sample weight and groups among the optional inputs."""
        first, second, third = itertools.accumulate(map(int, self[1:-1]))
        return 0, first, second, third


def mixture_loop(family: str, link: str, layout: MixtureLayout) -> Loop:
    """Assemble the loop of one family, link and layout."""
    kernel = KERNELS[family, link]
    if layout.has_groups:
        return _group_loop(kernel, layout)
    evaluate_row = _row_evaluation(kernel, layout)
    if kernel.mean_and_slope is None:
        return _row_loop(kernel, layout, evaluate_row)
    return _probability_loop(kernel, layout, evaluate_row)


def compiled_loop(family: str, link: str, layout: MixtureLayout) -> Any:
    """Compile the loop of one family, link and layout with numba."""
    return numba_njit(mixture_loop(family, link, layout), **jit_options())


def _constants_of(kernel: Kernel) -> Callable[..., Any]:
    """Make the function that prepares the constants of all components."""
    prepare_component = kernel.prepare_component

    def prepare(dispersion, n_components):  # type: ignore[no-untyped-def]
        constants = np.empty((n_components, 4))
        for j in range(n_components):
            c0, c1, c2, c3 = prepare_component(dispersion[j])
            constants[j, 0] = c0
            constants[j, 1] = c1
            constants[j, 2] = c2
            constants[j, 3] = c3
        return constants

    return jitable(prepare)


def _row_evaluation(kernel: Kernel, layout: MixtureLayout) -> Callable[..., Any]:
    """Make the function that evaluates one row in the log domain."""
    prepare_row, term = kernel.prepare_row, kernel.term
    has_row_weights, has_dispersion, has_trials, has_sample_weight, _ = layout

    def evaluate_row(  # type: ignore[no-untyped-def]
        i, y, eta, log_weight, constants, n_trials, sample_weight, share, slope, dispersion_slope
    ):
        n_components = eta.shape[1]
        response = float(y[i])
        base, number = prepare_row(response, float(n_trials[i]) if has_trials else 1.0)
        largest = -np.inf
        for j in range(n_components):
            joint = log_weight[i, j] if has_row_weights else log_weight[j]
            slope[i, j] = 0.0
            if has_dispersion:
                dispersion_slope[i, j] = 0.0
            if joint != -np.inf:
                value, eta1, dispersion1 = term(
                    response,
                    number,
                    eta[i, j],
                    constants[j, 0] if has_dispersion else 0.0,
                    constants[j, 1] if has_dispersion else 0.0,
                    constants[j, 2] if has_dispersion else 0.0,
                    constants[j, 3] if has_dispersion else 0.0,
                )
                joint += value
                slope[i, j] = eta1
                if has_dispersion:
                    dispersion_slope[i, j] = dispersion1
            share[i, j] = joint
            if not joint <= largest:  # a NaN is kept and reaches the sum
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
    """Turn one row of log joint densities into responsibilities times a factor; return log-sum."""
    n_components = joint.shape[1]
    if largest == -np.inf:  # impossible under every component: no gradient
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
    """Make the loop over independent rows, in the log domain."""
    prepare = _constants_of(kernel)
    _, has_dispersion, has_trials, has_sample_weight, _ = layout
    at_dispersion, at_trials, at_sample_weight, _ = layout.optional_positions

    def loop(y, eta, log_weight, *optional):  # type: ignore[no-untyped-def]
        n_trials = optional[at_trials] if has_trials else None
        sample_weight: Any = optional[at_sample_weight] if has_sample_weight else None
        n_obs, n_components = eta.shape
        value = np.empty(n_obs)
        share = np.empty((n_obs, n_components))
        slope = np.empty((n_obs, n_components))
        dispersion_slope = np.empty((n_obs, n_components)) if has_dispersion else None
        constants = prepare(optional[at_dispersion], n_components) if has_dispersion else None
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
        if has_dispersion:
            return value, share, slope, dispersion_slope
        return value, share, slope

    return loop


def _probability_loop(
    kernel: Kernel, layout: MixtureLayout, evaluate_row: Callable[..., Any]
) -> Loop:
    """Make the loop over ``P(y) = sum_j w_j g((2 y - 1) eta_j)``, with one logarithm per row."""
    mean_and_slope: Any = kernel.mean_and_slope
    has_row_weights, has_sample_weight = layout.has_row_weights, layout.has_sample_weight
    at_sample_weight = layout.optional_positions[2]

    def loop(y, eta, log_weight, *optional):  # type: ignore[no-untyped-def]
        sample_weight: Any = optional[at_sample_weight] if has_sample_weight else None
        n_obs, n_components = eta.shape
        value = np.empty(n_obs)
        share = np.empty((n_obs, n_components))
        slope = np.empty((n_obs, n_components))
        weight = np.empty(n_components)
        if not has_row_weights:
            for j in range(n_components):
                weight[j] = math.exp(log_weight[j])
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
                    i, y, eta, log_weight, None, None, sample_weight, share, slope, None
                )
                continue
            factor = sample_weight[i] if has_sample_weight else 1.0
            value[i] = factor * math.log(total)
            scale = factor / total
            for j in range(n_components):
                share[i, j] *= scale
                slope[i, j] *= scale * sign
        return value, share, slope

    return loop


def _group_loop(kernel: Kernel, layout: MixtureLayout) -> Loop:
    """Make the loop over grouped rows; the first row of a group holds the group's value."""
    prepare, add_row = _constants_of(kernel), _group_accumulation(kernel, layout)
    has_row_weights, has_dispersion, has_trials, has_sample_weight, _ = layout
    at_dispersion, at_trials, at_sample_weight, at_groups = layout.optional_positions

    def loop(y, eta, log_weight, *optional):  # type: ignore[no-untyped-def]
        n_trials = optional[at_trials] if has_trials else None
        sample_weight: Any = optional[at_sample_weight] if has_sample_weight else None
        n_obs, n_components = eta.shape
        value = np.zeros(n_obs)
        share = np.zeros((n_obs, n_components))
        slope = np.zeros((n_obs, n_components))
        dispersion_slope: Any = np.zeros((n_obs, n_components)) if has_dispersion else None
        first = _first_rows(optional[at_groups])
        constants = prepare(optional[at_dispersion], n_components) if has_dispersion else None
        for i in range(n_obs):
            head = first[i]
            if head == i:
                for j in range(n_components):
                    share[i, j] = log_weight[i, j] if has_row_weights else log_weight[j]
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
        if has_dispersion:
            return value, share, slope, dispersion_slope, first
        return value, share, slope, first

    return loop


@jitable
def _first_rows(group: Any) -> Any:
    """Find the first row of each row's group."""
    n_obs = group.shape[0]
    n_groups = 0
    for i in range(n_obs):
        if group[i] < 0:
            raise ValueError("`group` must be >= 0; got a negative index. Number groups from 0.")
        n_groups = max(n_groups, group[i] + 1)
    head = np.full(n_groups, -1, np.int64)
    first = np.empty(n_obs, np.int64)
    for i in range(n_obs):
        if head[group[i]] < 0:
            head[group[i]] = i
        first[i] = head[group[i]]
    return first


def _group_accumulation(kernel: Kernel, layout: MixtureLayout) -> Callable[..., Any]:
    """Make the function that adds a row's log densities to those of its group."""
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
                    constants[j, 0] if has_dispersion else 0.0,
                    constants[j, 1] if has_dispersion else 0.0,
                    constants[j, 2] if has_dispersion else 0.0,
                    constants[j, 3] if has_dispersion else 0.0,
                )
                joint[head, j] += factor * value
                slope[i, j] = factor * eta1
                if has_dispersion:
                    dispersion_slope[i, j] = factor * dispersion1
        return factor * base

    return jitable(add_row)
