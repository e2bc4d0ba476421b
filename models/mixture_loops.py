"""Loops over the rows of a mixture: value and derivatives in one pass, compiled by numba.

Every loop takes the inputs that the mixture has, in the order ``(y, eta, log_weight, dispersion,
n_trials, sample_weight, group)``. It returns for each row the log density, its derivatives in log
weight, eta and (if the family has one) dispersion, and with groups the first row of the group.
The densities are the scalar functions of `moment_init.families`.

Rows are taken in blocks. Within a block, arrays have rows last, so that the compiler processes
several rows at once. P is the number of linear predictors, T the number of dispersions, r the
number of components and B the number of rows in a block. `block`, (1 + P + T, r, B), begins with
the log densities, which become responsibilities; their derivatives in the predictors and in the
dispersions follow. `scratch`, (5, B), holds values of the rows.

Inputs that a layout does not have are None. Numba removes the branches that would read them before
it infers types, so they cost no time to compile.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from moment_init.families.base import Family
from moment_init.families.compiling import loop
from moment_init.families.several import AnyFamily, Categorical
from moment_init.families.special import exponential, logarithm

_BLOCK = 128
"""Rows of a block. The arrays of a block with three components fit the fastest cache of a core."""

_SMALLEST_PROBABILITY = 1e-300
"""If a row has a lower probability, digits are lost to underflow, and the block of the row is
evaluated with logarithms."""

type Loop = Callable[..., Any]


class MixtureLayout(NamedTuple):
    """Which inputs a mixture has besides the response and its linear predictors."""

    has_row_weights: bool  # whether the log weights differ by row, (n_obs, n_components)
    # The optional inputs, in their order.
    has_dispersion: bool
    has_trials: bool
    has_sample_weight: bool
    has_groups: bool


def mixture_loop(family: AnyFamily, layout: MixtureLayout) -> Loop:
    """Assemble the loop of one family and layout."""
    add_responses = _addition(family)
    share_probabilities: Any = None
    if family.n_predictors == 1 and not layout.has_groups:
        share_probabilities = _probability_sharing(family.members[0])
    has_probabilities = share_probabilities is not None
    _, has_dispersion, has_trials, has_sample_weight, has_groups = layout
    # positions of the optional inputs
    at_trials, at_sample_weight, at_groups = itertools.accumulate(map(int, layout[1:-1]))
    n_predictors, is_single = family.n_predictors, family.n_predictors == 1
    n_parts = 1 + n_predictors + sum(member.has_dispersion for member in family.members)

    def evaluate(y, eta, log_weight, *optional):  # type: ignore[no-untyped-def]
        dispersion = optional[0] if has_dispersion else None
        n_trials = optional[at_trials] if has_trials else None
        sample_weight = optional[at_sample_weight] if has_sample_weight else None
        n_obs, n_components = eta.shape[-2], eta.shape[-1]
        value = np.zeros(n_obs)
        rows = np.empty((n_parts, n_obs, n_components))
        block, scratch = np.empty((n_parts, n_components, _BLOCK)), np.empty((5, _BLOCK))
        for start in range(0, n_obs, _BLOCK):
            n_rows = _BLOCK if start + _BLOCK <= n_obs else n_obs - start
            is_shared = False
            if has_probabilities:
                is_shared = share_probabilities(
                    start, n_rows, y, eta, log_weight, sample_weight, scratch, value, block
                )
            if not is_shared:
                for j in range(n_components):
                    for b in range(n_rows):
                        block[0, j, b] = 0.0
                add_responses(start, n_rows, y, eta, dispersion, n_trials, scratch, value, block)
                if not has_groups:
                    _share_rows(start, n_rows, log_weight, sample_weight, scratch, value, block)
            _write(start, n_rows, block, rows)
        slopes = rows[1] if is_single else rows[1 : 1 + n_predictors]
        spread_slopes = rows[-1] if is_single else rows[1 + n_predictors :]
        if has_groups:
            first = _first_rows(optional[at_groups])
            _share_groups(first, log_weight, sample_weight, scratch, value, rows)
            if has_dispersion:
                return value, rows[0], slopes, spread_slopes, first
            return value, rows[0], slopes, first
        if has_dispersion:
            return value, rows[0], slopes, spread_slopes
        return value, rows[0], slopes

    return evaluate


@loop
def _write(start: int, n_rows: int, block: Any, rows: Any) -> None:
    """Write a block to its rows."""
    # rows: (1 + P + T, n_obs, r)
    for a in range(block.shape[0]):
        for j in range(block.shape[1]):
            for b in range(n_rows):
                rows[a, start + b, j] = block[a, j, b]


def _addition(family: AnyFamily) -> Loop:
    """Make the function that adds the log densities of all responses of a block.

    Responses of the same family are added by the same function, so that it is compiled once.
    """
    if isinstance(family, Categorical):
        return _add_classes
    distinct = dict.fromkeys(family.members)
    return functools.reduce(_both, [_member_addition(member, family) for member in distinct])


def _both(first: Loop, second: Loop) -> Loop:
    """Make the function that calls two functions."""

    def call(*arguments):  # type: ignore[no-untyped-def]
        first(*arguments)
        second(*arguments)

    return loop(call)


def _member_addition(member: Family, family: AnyFamily) -> Loop:
    """Make the function that adds the responses of one family."""
    positions = tuple(a for a, other in enumerate(family.members) if other == member)
    # where a response is among those with a dispersion
    places = tuple(sum(other.has_dispersion for other in family.members[:a]) for a in positions)
    is_single, n_predictors = family.n_predictors == 1, family.n_predictors
    row, term = member.kernel.row, member.kernel.term
    component: Any = member.kernel.component
    ratio: Any = member.kernel.ratio
    is_far: Any = member.kernel.is_far
    beyond: Any = member.kernel.beyond
    has_trials, has_dispersion = member.has_trials, member.has_dispersion
    has_ratio, has_bound = ratio is not None, is_far is not None

    def add_responses(  # type: ignore[no-untyped-def]
        start, n_rows, y, eta, dispersion, n_trials, scratch, value, block
    ):
        response, number, predictor = scratch[0], scratch[1], scratch[2]
        ratios, ratio_slopes = scratch[3], scratch[4]
        for k in range(len(positions)):
            a, t = positions[k], places[k]
            all_y = y if is_single else y[:, a]
            all_eta = eta if is_single else eta[a]
            spreads: Any = (dispersion if is_single else dispersion[t]) if has_dispersion else None
            trials: Any = (n_trials if is_single else n_trials[:, a]) if has_trials else None
            joint, slopes, spread_slopes = block[0], block[1 + a], block[-1]
            if has_dispersion:
                spread_slopes = block[1 + n_predictors + t]
            for b in range(n_rows):
                response[b] = all_y[start + b]
                level, number[b] = row(response[b], float(trials[start + b]) if has_trials else 1.0)
                value[start + b] += level
            for j in range(joint.shape[0]):
                c = component(spreads[j]) if has_dispersion else (0.0, 0.0, 0.0, 0.0, 0.0)
                for b in range(n_rows):
                    predictor[b] = all_eta[start + b, j]
                    if has_ratio:
                        ratios[b], ratio_slopes[b] = ratio(response[b], c)
                any_far = False
                for b in range(n_rows):
                    part = (ratios[b], ratio_slopes[b], 0.0) if has_ratio else (0.0, 0.0, 0.0)
                    density, eta1, _, tau1, _, _ = term(
                        response[b], number[b], predictor[b], c, part
                    )
                    joint[j, b] += density
                    slopes[j, b] = eta1
                    if has_dispersion:  # tau is the logarithm of the dispersion
                        spread_slopes[j, b] = tau1 / spreads[j]
                    if has_bound:
                        any_far |= is_far(response[b], number[b], predictor[b], c)
                if has_bound and any_far:
                    for b in range(n_rows):
                        if is_far(response[b], number[b], predictor[b], c):
                            joint[j, b] += beyond(response[b], number[b], predictor[b], c)

    return loop(add_responses)


@loop
def _add_classes(  # type: ignore[no-untyped-def]
    start, n_rows, y, eta, dispersion, n_trials, scratch, value, block
):
    """Add the log probabilities of classes; class 0 is the reference."""
    largest, total, joint, slopes = scratch[0], scratch[1], block[0], block[1:]
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            largest[b] = 0.0
        for a in range(eta.shape[0]):
            for b in range(n_rows):
                predictor = eta[a, start + b, j]
                slopes[a, j, b] = predictor
                largest[b] = largest[b] if predictor <= largest[b] else predictor
        for b in range(n_rows):
            total[b] = exponential(-largest[b])[0]
        for a in range(eta.shape[0]):
            for b in range(n_rows):
                slopes[a, j, b] = exponential(slopes[a, j, b] - largest[b])[0]
                total[b] += slopes[a, j, b]
        for b in range(n_rows):
            joint[j, b] -= largest[b] + logarithm(total[b])
            total[b] = 1.0 / total[b]
        for a in range(eta.shape[0]):
            for b in range(n_rows):
                slopes[a, j, b] *= -total[b]
        for b in range(n_rows):
            code = int(y[start + b])
            if code > 0:
                joint[j, b] += eta[code - 1, start + b, j]
                slopes[code - 1, j, b] += 1.0


@loop
def _share_rows(  # type: ignore[no-untyped-def]
    start, n_rows, log_weight, sample_weight, scratch, value, block
):
    """Turn a block of log densities into responsibilities.

    The responsibilities are multiplied by the weights of the rows, and the derivatives by the
    responsibilities. A row that is impossible under every component has neither.
    """
    largest, total, joint = scratch[0], scratch[1], block[0]
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            joint[j, b] += log_weight[start + b, j] if log_weight.ndim == 2 else log_weight[j]
    _exponentiate(n_rows, joint, largest, total)
    for b in range(n_rows):
        factor = 1.0 if sample_weight is None else sample_weight[start + b]
        level = value[start + b] + largest[b]
        value[start + b] = factor * (level + logarithm(total[b]))
        total[b] = 0.0 if total[b] == 0.0 else factor / total[b]
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            joint[j, b] *= total[b]
        for a in range(1, block.shape[0]):
            for b in range(n_rows):
                block[a, j, b] *= joint[j, b]


@loop
def _exponentiate(n_rows: int, joint: Any, largest: Any, total: Any) -> None:
    """Turn log densities into densities relative to the largest; write it, and their sum."""
    # joint: (r, B), largest, total: (B,)
    for b in range(n_rows):
        largest[b] = -np.inf
        total[b] = 0.0
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            # a NaN is kept and reaches the sum
            largest[b] = largest[b] if joint[j, b] <= largest[b] else joint[j, b]
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            exponent = joint[j, b] - (0.0 if largest[b] == -np.inf else largest[b])
            joint[j, b] = exponential(exponent)[0]
            total[b] += joint[j, b]


def _probability_sharing(family: Family) -> Loop | None:
    """Make the function that evaluates ``P(y) = sum_j w_j g((2 y - 1) eta_j)`` for a block.

    It needs one logarithm per row. It returns False if the probability of a row underflows.
    """
    mean_and_slope = family.kernel.mean_and_slope
    if mean_and_slope is None:
        return None

    def share_probabilities(  # type: ignore[no-untyped-def]
        start, n_rows, y, eta, log_weight, sample_weight, scratch, value, block
    ):
        sign, argument, prior, total = scratch[0], scratch[1], scratch[2], scratch[3]
        joint, slope = block[0], block[1]
        for b in range(n_rows):
            sign[b] = 2.0 * y[start + b] - 1.0
            total[b] = 0.0
        for j in range(joint.shape[0]):
            for b in range(n_rows):
                argument[b] = sign[b] * eta[start + b, j]
            shared_prior = 0.0 if log_weight.ndim == 2 else math.exp(log_weight[j])
            for b in range(n_rows):
                has_gate = log_weight.ndim == 2
                prior[b] = math.exp(log_weight[start + b, j]) if has_gate else shared_prior
            for b in range(n_rows):
                mean, mean1 = mean_and_slope(argument[b])
                joint[j, b] = prior[b] * mean
                slope[j, b] = prior[b] * mean1 * sign[b]
                total[b] += joint[j, b]
        is_small = False
        for b in range(n_rows):
            is_small |= total[b] < _SMALLEST_PROBABILITY
        if is_small:
            return False
        for b in range(n_rows):
            factor = 1.0 if sample_weight is None else sample_weight[start + b]
            value[start + b] = factor * logarithm(total[b])
            total[b] = factor / total[b]
        for j in range(joint.shape[0]):
            for b in range(n_rows):
                joint[j, b] *= total[b]
                slope[j, b] *= total[b]
        return True

    return loop(share_probabilities)


@loop
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


@loop
def _share_groups(  # type: ignore[no-untyped-def]
    first, log_weight, sample_weight, scratch, value, rows
):
    """Turn the log densities of rows into responsibilities of groups, and weigh the derivatives.

    The first row of a group gets the sums of the group, and the other rows zero.
    """
    # first, value: (n_obs,), rows: (1 + P + T, n_obs, r)
    share, largest, total = rows[0], scratch[0], scratch[1]
    n_obs, n_components = share.shape
    for i in range(n_obs):
        head = first[i]
        factor = 1.0 if sample_weight is None else sample_weight[i]
        level, value[i] = factor * value[i], 0.0
        value[head] += level
        for j in range(n_components):
            density, share[i, j] = factor * share[i, j], 0.0
            if head == i:
                share[i, j] = log_weight[i, j] if log_weight.ndim == 2 else log_weight[j]
            share[head, j] += density
    for i in range(n_obs):
        if first[i] == i:
            _exponentiate(1, share[i].reshape((n_components, 1)), largest, total)
            value[i] += largest[0] + logarithm(total[0])
            for j in range(n_components):
                share[i, j] *= 0.0 if total[0] == 0.0 else 1.0 / total[0]
    for a in range(1, rows.shape[0]):
        for i in range(n_obs):
            factor = 1.0 if sample_weight is None else sample_weight[i]
            for j in range(n_components):
                rows[a, i, j] *= factor * share[first[i], j]
