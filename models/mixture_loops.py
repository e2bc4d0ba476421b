"""Loops over the rows of a mixture: value and derivatives in one pass, compiled by numba.

Every loop takes the inputs that the mixture has, in the order ``(y, eta, log_weight, dispersion,
n_trials, sample_weight, group)``. It returns for each row the log density, its derivatives in log
weight, eta and (if the family has one) dispersion, and with groups the first row of the group.
The densities are the scalar functions of `moment_init.families`.

Rows are taken in blocks. Within a block, arrays have rows last, so that the compiler processes
several rows at once. P is the number of linear predictors, T the number of dispersions, r the
number of components and B the number of rows in a block; the arrays of a block are:

- `joint`, (r, B): log densities, which become responsibilities;
- `slopes`, (P, r, B), and `dispersion_slopes`, (T, r, B): the derivatives of the log densities;
- `scratch`, (8, B): values of the rows.

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
from moment_init.families.densities import Kernel
from moment_init.families.several import AnyFamily, Categorical
from moment_init.families.special import exponential, logarithm

_BLOCK = 128
"""Rows of a block. The arrays of a block with three components fit the fastest cache of a core."""

_BASE, _RESPONSE, _NUMBER, _PREDICTOR, _RATIO, _RATIO_SLOPE, _LARGEST, _TOTAL = range(8)
"""Rows of `scratch`: the part of the log density without parameters, the response, the number and
the ratio of `moment_init.families.densities`, and largest and total joint density."""

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

    @property
    def optional_positions(self) -> tuple[int, int, int, int]:
        """Positions of dispersion, trials, sample weight and groups among the optional inputs."""
        first, second, third = itertools.accumulate(map(int, self[1:-1]))
        return 0, first, second, third


def mixture_loop(family: AnyFamily, layout: MixtureLayout) -> Loop:
    """Assemble the loop of one family and layout."""
    prepare: Any = _preparation(family)
    add_responses = _addition(family)
    share_rows, add_to_groups = _row_sharing(layout), _group_addition(layout)
    has_dispersion, has_trials, has_sample_weight, has_groups = layout[1:]
    at_dispersion, at_trials, at_sample_weight, at_groups = layout.optional_positions
    n_predictors, is_single = family.n_predictors, family.n_predictors == 1
    n_dispersions = sum(member.has_dispersion for member in family.members)
    share_probabilities: Any = None
    if is_single and not has_groups:
        share_probabilities = _probability_sharing(family.members[0].kernel, layout)
    has_probabilities = share_probabilities is not None

    def evaluate(y, eta, log_weight, *optional):  # type: ignore[no-untyped-def]
        n_trials = optional[at_trials] if has_trials else None
        sample_weight = optional[at_sample_weight] if has_sample_weight else None
        first: Any = _first_rows(optional[at_groups]) if has_groups else None
        n_obs, n_components = eta.shape[-2], eta.shape[-1]
        constants = np.empty((n_predictors, n_components, 6))  # read only with a dispersion
        if has_dispersion:
            prepare(optional[at_dispersion], constants)
        value = np.empty(n_obs)
        share = np.empty((n_obs, n_components))
        slope = np.empty((n_predictors, n_obs, n_components))
        dispersion_slope = np.empty((n_dispersions, n_obs, n_components))
        joint = np.empty((n_components, _BLOCK))
        slopes = np.empty((n_predictors, n_components, _BLOCK))
        dispersion_slopes = np.empty((n_dispersions, n_components, _BLOCK))
        scratch = np.empty((8, _BLOCK))
        for start in range(0, n_obs, _BLOCK):
            n_rows = _BLOCK if start + _BLOCK <= n_obs else n_obs - start
            is_shared = False
            if has_probabilities:
                is_shared = share_probabilities(
                    start, n_rows, y, eta, log_weight, sample_weight, scratch, joint, slopes, value
                )
            if not is_shared:
                _clear(n_rows, scratch, joint)
                add_responses(
                    start,
                    n_rows,
                    y,
                    eta,
                    constants,
                    n_trials,
                    scratch,
                    joint,
                    slopes,
                    dispersion_slopes,
                )
                if has_groups:
                    add_to_groups(
                        start,
                        n_rows,
                        first,
                        log_weight,
                        sample_weight,
                        scratch,
                        joint,
                        slopes,
                        dispersion_slopes,
                        value,
                        share,
                    )
                else:
                    share_rows(
                        start,
                        n_rows,
                        log_weight,
                        sample_weight,
                        scratch,
                        joint,
                        slopes,
                        dispersion_slopes,
                        value,
                    )
            if not has_groups:
                _write(start, n_rows, joint, share)
            for a in range(n_predictors):
                _write(start, n_rows, slopes[a], slope[a])
            for a in range(n_dispersions):
                _write(start, n_rows, dispersion_slopes[a], dispersion_slope[a])
        if has_groups:
            _share_groups(first, value, share, slope, dispersion_slope)
        all_slopes = slope[0] if is_single else slope
        if has_dispersion:
            all_dispersion_slopes = dispersion_slope[0] if is_single else dispersion_slope
            if has_groups:
                return value, share, all_slopes, all_dispersion_slopes, first
            return value, share, all_slopes, all_dispersion_slopes
        if has_groups:
            return value, share, all_slopes, first
        return value, share, all_slopes

    return evaluate


@loop
def _clear(n_rows: int, scratch: Any, joint: Any) -> None:
    """Begin the sums of log densities."""
    for b in range(n_rows):
        scratch[_BASE, b] = 0.0
    for j in range(joint.shape[0]):
        for b in range(n_rows):
            joint[j, b] = 0.0


@loop
def _write(start: int, n_rows: int, block: Any, rows: Any) -> None:
    """Write a block to its rows."""
    # block: (r, B), rows: (n_obs, r)
    for j in range(block.shape[0]):
        for b in range(n_rows):
            rows[start + b, j] = block[j, b]


class _Members(NamedTuple):
    """The responses of one family."""

    family: Family
    positions: tuple[int, ...]  # among all responses
    places: tuple[int, ...]  # among the responses with a dispersion
    is_single: bool  # whether there is no other response, and arrays have no axis of responses


def _members(family: AnyFamily) -> list[_Members]:
    """Put the responses of each family together, so that each is compiled once."""
    dispersed = [a for a, member in enumerate(family.members) if member.has_dispersion]
    positions: dict[Family, list[int]] = {}
    for a, member in enumerate(family.members):
        positions.setdefault(member, []).append(a)
    return [
        _Members(
            member,
            tuple(places),
            tuple(dispersed.index(a) for a in places if member.has_dispersion),
            family.n_predictors == 1,
        )
        for member, places in positions.items()
    ]


def _both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function that calls two functions."""

    def call(*arguments):  # type: ignore[no-untyped-def]
        first(*arguments)
        second(*arguments)

    return loop(call)


def _preparation(family: AnyFamily) -> Callable[..., Any] | None:
    """Make the function that computes the constants of all components."""
    parts = [_member_preparation(each) for each in _members(family) if each.places]
    return functools.reduce(_both, parts) if parts else None


def _member_preparation(members: _Members) -> Callable[..., Any]:
    """Make the function that computes the constants of the responses of one family."""
    component: Any = members.family.kernel.component
    _, positions, places, is_single = members

    def prepare(dispersion, constants):  # type: ignore[no-untyped-def]
        # constants: (P, r, 6); the last one turns a derivative in log(dispersion) into one in the
        # dispersion
        for k in range(len(positions)):
            a = positions[k]
            spread = dispersion if is_single else dispersion[places[k]]
            for j in range(constants.shape[1]):
                own = constants[a, j]
                own[0], own[1], own[2], own[3], own[4] = component(spread[j])
                own[5] = 1.0 / spread[j]

    return loop(prepare)


def _addition(family: AnyFamily) -> Callable[..., Any]:
    """Make the function that adds the log densities of all responses of a block."""
    if isinstance(family, Categorical):
        return _add_classes
    return functools.reduce(_both, map(_member_addition, _members(family)))


def _member_addition(members: _Members) -> Callable[..., Any]:
    """Make the function that adds the responses of one family."""
    family, positions, places, is_single = members
    row, term = family.kernel.row, family.kernel.term
    ratio: Any = family.kernel.ratio
    is_far: Any = family.kernel.is_far
    beyond: Any = family.kernel.beyond
    has_trials, has_dispersion = family.has_trials, family.has_dispersion
    has_ratio, has_bound = ratio is not None, is_far is not None

    def add_responses(  # type: ignore[no-untyped-def]
        start, n_rows, y, eta, constants, n_trials, scratch, joint, slopes, dispersion_slopes
    ):
        base, response, number = scratch[_BASE], scratch[_RESPONSE], scratch[_NUMBER]
        predictor, ratios = scratch[_PREDICTOR], scratch[_RATIO]
        ratio_slopes = scratch[_RATIO_SLOPE]
        for k in range(len(positions)):
            a = positions[k]
            all_y = y if is_single else y[:, a]
            all_eta = eta if is_single else eta[a]
            trials: Any = None
            if has_trials:
                trials = n_trials if is_single else n_trials[:, a]
            for b in range(n_rows):
                response[b] = all_y[start + b]
                level, number[b] = row(response[b], float(trials[start + b]) if has_trials else 1.0)
                base[b] += level
            for j in range(joint.shape[0]):
                own = constants[a, j]
                c = own[0], own[1], own[2], own[3], own[4]
                for b in range(n_rows):
                    predictor[b] = all_eta[start + b, j]
                    if has_ratio:
                        ratios[b], ratio_slopes[b] = ratio(response[b], c)
                any_far = False
                for b in range(n_rows):
                    t = (ratios[b], ratio_slopes[b], 0.0) if has_ratio else (0.0, 0.0, 0.0)
                    value, eta1, _, tau1, _, _ = term(response[b], number[b], predictor[b], c, t)
                    joint[j, b] += value
                    slopes[a, j, b] = eta1
                    if has_dispersion:
                        dispersion_slopes[places[k], j, b] = tau1 * own[5]
                    if has_bound:
                        any_far |= is_far(response[b], number[b], predictor[b], c)
                if has_bound and any_far:
                    for b in range(n_rows):
                        if is_far(response[b], number[b], predictor[b], c):
                            joint[j, b] += beyond(response[b], number[b], predictor[b], c)

    return loop(add_responses)


@loop
def _add_classes(  # type: ignore[no-untyped-def]
    start, n_rows, y, eta, constants, n_trials, scratch, joint, slopes, dispersion_slopes
):
    """Add the log probabilities of classes; class 0 is the reference."""
    largest, total = scratch[_LARGEST], scratch[_TOTAL]
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


def _row_sharing(layout: MixtureLayout) -> Callable[..., Any]:
    """Make the function that turns a block of joint log densities into responsibilities.

    The responsibilities are multiplied by the weights of the rows, and the derivatives by the
    responsibilities. A row that is impossible under every component has neither.
    """
    has_row_weights, has_sample_weight = layout.has_row_weights, layout.has_sample_weight

    def share_rows(  # type: ignore[no-untyped-def]
        start,
        n_rows,
        log_weight,
        sample_weight,
        scratch,
        joint,
        slopes,
        dispersion_slopes,
        value,
    ):
        n_components = joint.shape[0]
        largest, total = scratch[_LARGEST], scratch[_TOTAL]
        for b in range(n_rows):
            largest[b] = -np.inf
            total[b] = 0.0
        for j in range(n_components):
            for b in range(n_rows):
                joint[j, b] += log_weight[start + b, j] if has_row_weights else log_weight[j]
                # a NaN is kept and reaches the sum
                largest[b] = largest[b] if joint[j, b] <= largest[b] else joint[j, b]
        for j in range(n_components):
            for b in range(n_rows):
                exponent = joint[j, b] - (0.0 if largest[b] == -np.inf else largest[b])
                joint[j, b] = exponential(exponent)[0]
                total[b] += joint[j, b]
        for b in range(n_rows):
            factor = sample_weight[start + b] if has_sample_weight else 1.0
            level = scratch[_BASE, b] + largest[b]
            value[start + b] = factor * (level + logarithm(total[b]))
            total[b] = 0.0 if total[b] == 0.0 else factor / total[b]
        for j in range(n_components):
            for b in range(n_rows):
                joint[j, b] *= total[b]
            for a in range(slopes.shape[0]):
                for b in range(n_rows):
                    slopes[a, j, b] *= joint[j, b]
            for a in range(dispersion_slopes.shape[0]):
                for b in range(n_rows):
                    dispersion_slopes[a, j, b] *= joint[j, b]

    return loop(share_rows)


def _probability_sharing(kernel: Kernel, layout: MixtureLayout) -> Callable[..., Any] | None:
    """Make the function that evaluates ``P(y) = sum_j w_j g((2 y - 1) eta_j)`` for a block.

    It needs one logarithm per row. It returns False if the probability of a row underflows.
    """
    mean_and_slope = kernel.mean_and_slope
    has_row_weights, has_sample_weight = layout.has_row_weights, layout.has_sample_weight
    if mean_and_slope is None:
        return None

    def share_probabilities(  # type: ignore[no-untyped-def]
        start, n_rows, y, eta, log_weight, sample_weight, scratch, joint, slopes, value
    ):
        n_components = joint.shape[0]
        sign, argument, prior = scratch[_RESPONSE], scratch[_PREDICTOR], scratch[_NUMBER]
        total, slope = scratch[_TOTAL], slopes[0]
        for b in range(n_rows):
            sign[b] = 2.0 * y[start + b] - 1.0
            total[b] = 0.0
        for j in range(n_components):
            for b in range(n_rows):
                argument[b] = sign[b] * eta[start + b, j]
            shared_prior = 0.0 if has_row_weights else math.exp(log_weight[j])
            for b in range(n_rows):
                prior[b] = math.exp(log_weight[start + b, j]) if has_row_weights else shared_prior
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
            factor = sample_weight[start + b] if has_sample_weight else 1.0
            value[start + b] = factor * logarithm(total[b])
            total[b] = factor / total[b]
        for j in range(n_components):
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


def _group_addition(layout: MixtureLayout) -> Callable[..., Any]:
    """Make the function that adds a block of log densities to those of the rows' groups.

    The first row of a group holds the sums of the group, which begin with its log weights.
    """
    has_row_weights, has_sample_weight = layout.has_row_weights, layout.has_sample_weight

    def add_to_groups(  # type: ignore[no-untyped-def]
        start,
        n_rows,
        first,
        log_weight,
        sample_weight,
        scratch,
        joint,
        slopes,
        dispersion_slopes,
        value,
        share,
    ):
        for b in range(n_rows):
            head = first[start + b]
            factor = sample_weight[start + b] if has_sample_weight else 1.0
            value[start + b] = 0.0
            value[head] += factor * scratch[_BASE, b]
            for j in range(joint.shape[0]):
                share[start + b, j] = 0.0
                if head == start + b:
                    share[head, j] = log_weight[head, j] if has_row_weights else log_weight[j]
                share[head, j] += factor * joint[j, b]
                if has_sample_weight:
                    for a in range(slopes.shape[0]):
                        slopes[a, j, b] *= factor
                    for a in range(dispersion_slopes.shape[0]):
                        dispersion_slopes[a, j, b] *= factor

    return loop(add_to_groups)


@loop
def _share_groups(first: Any, value: Any, share: Any, slope: Any, dispersion_slope: Any) -> None:
    """Turn the joint log densities of groups into responsibilities, and weigh derivatives."""
    for i in range(len(first)):
        if first[i] == i:
            value[i] += _share_group(share[i])
    for a in range(slope.shape[0]):
        _weigh(first, share, slope[a])
    for a in range(dispersion_slope.shape[0]):
        _weigh(first, share, dispersion_slope[a])


@loop
def _weigh(first: Any, share: Any, slope: Any) -> None:
    """Multiply the derivatives of rows by the responsibilities of their groups."""
    for i in range(slope.shape[0]):
        head = first[i]
        for j in range(slope.shape[1]):
            slope[i, j] *= share[head, j]


@loop
def _share_group(joint: Any) -> float:
    """Turn the joint log densities of one group into responsibilities; return their log-sum."""
    largest = -np.inf
    for j in range(joint.shape[0]):
        if not joint[j] <= largest:  # a NaN is kept and reaches the sum
            largest = joint[j]
    if largest == -np.inf:  # impossible under every component: no gradient
        for j in range(joint.shape[0]):
            joint[j] = 0.0
        return largest
    total = 0.0
    for j in range(joint.shape[0]):
        joint[j] = math.exp(joint[j] - largest)
        total += joint[j]
    for j in range(joint.shape[0]):
        joint[j] /= total
    return largest + math.log(total)
