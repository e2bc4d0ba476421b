"""Compiled loops over the rows of a block, the same for all families.

Arrays have rows last, so that the rows of one component are contiguous. A unit is a row, or a group
of rows that share their component; without groups `starts` is empty.
"""

import math

import numpy as np

from moment_init.families.compiling import Compiled, loop
from moment_init.families.special import exponential, logarithm

_SHARED_ROWS = 512
"""Units whose responsibilities are computed together, in the first-level cache."""


def _share(joint, log_density):  # type: ignore[no-untyped-def]
    """Turn log densities of units under the components into responsibilities, in place."""
    # joint: (r, u), log_density: (u,)
    n_components, n_units = joint.shape
    total = np.empty(_SHARED_ROWS)
    for begin in range(0, n_units, _SHARED_ROWS):
        stop = min(begin + _SHARED_ROWS, n_units)
        largest = log_density[begin:stop]
        for i in range(stop - begin):
            total[i] = 0.0
            largest[i] = -np.inf
        for j in range(n_components):
            values = joint[j, begin:stop]
            for i in range(stop - begin):
                # a NaN among the values reaches the sum, whatever the largest is
                largest[i] = largest[i] if values[i] <= largest[i] else values[i]
        for j in range(n_components):
            values = joint[j, begin:stop]
            for i in range(stop - begin):
                values[i] = exponential(values[i] - largest[i])[0]
                total[i] += values[i]
        for i in range(stop - begin):
            largest[i] += logarithm(total[i])
            total[i] = 1.0 / total[i]
        for j in range(n_components):
            values = joint[j, begin:stop]
            for i in range(stop - begin):
                values[i] *= total[i]


def _group(value, weight, starts, joint):  # type: ignore[no-untyped-def]
    """Add the weighted log densities of rows to those of their groups."""
    # value: (r, n), weight: (n,), starts: (u,), joint: (r, u)
    n_components, n_obs = value.shape
    for g in range(len(starts)):
        stop = starts[g + 1] if g + 1 < len(starts) else n_obs
        for j in range(n_components):
            total = 0.0
            for i in range(starts[g], stop):
                total += weight[i] * value[j, i]
            joint[j, g] = total


def _weigh(shares, weight, starts, first, second, tau, counts):  # type: ignore[no-untyped-def]
    """Multiply derivatives by responsibilities and weights, in place, for an EM step.

    `first` becomes the terms of the score, `second` those of the complete-data information, and
    ``tau[:, 2]`` its mixed terms.
    """
    # shares: (r, u), weight: (n,), starts: (u,), first: (P, r, n), second: (K, r, n),
    # tau: (T, 3, r, n), counts: (r, n)
    n_components, n_obs = counts.shape
    n_groups = len(starts)
    for j in range(n_components):
        if n_groups == 0:
            for i in range(n_obs):
                counts[j, i] = shares[j, i] * weight[i]
        for g in range(n_groups):
            stop = starts[g + 1] if g + 1 < n_groups else n_obs
            for i in range(starts[g], stop):
                counts[j, i] = shares[j, g] * weight[i]
        for a in range(len(first)):
            for i in range(n_obs):
                first[a, j, i] *= counts[j, i]
        for k in range(len(second)):
            for i in range(n_obs):
                second[k, j, i] *= -counts[j, i]
        for t in range(len(tau)):
            for i in range(n_obs):
                tau[t, 2, j, i] *= -counts[j, i]


def _covary(shares, weight, first, marks, begin, slopes, mixed):  # type: ignore[no-untyped-def]
    """Write covariances of the complete-data scores of a run of rows, without groups and gate.

    Given its row, the indicator e_j of component j has mean R_j, so that scores e_j t_j and e_k t_k
    have the covariance (delta_jk R_j - R_j R_k) t_j t_k. A channel of a component is a predictor,
    with the input as design, or a level, a dispersion or the logit, with design one.
    """
    # shares: (r, n), weight: (n,), first: (P, r, n), marks: scores of the levels (r, L, n). With
    # channel indices j * P + a and j * L + t: slopes (pairs of predictor channels c <= d, m),
    # mixed (predictor channel, level channel, m)
    n_predictors, n_components, _ = first.shape
    n_levels, n_rows = marks.shape[1], slopes.shape[1]
    stop = begin + n_rows
    left, right, weights = np.empty(n_rows), np.empty(n_rows), weight[begin:stop]
    pair = 0
    for c in range(n_components * n_predictors):
        j, a = c // n_predictors, c % n_predictors
        own, score = shares[j, begin:stop], first[a, j, begin:stop]
        for i in range(n_rows):
            left[i] = weights[i] * own[i] * score[i]
        for k in range(n_components):
            share, is_own = shares[k, begin:stop], 1.0 if j == k else 0.0
            for i in range(n_rows):
                right[i] = left[i] * (is_own - share[i])
            for t in range(n_levels):
                mark, product = marks[k, t, begin:stop], mixed[c, k * n_levels + t]
                for i in range(n_rows):
                    product[i] = right[i] * mark[i]
            for b in range(n_predictors):
                if k * n_predictors + b >= c:
                    score, product = first[b, k, begin:stop], slopes[pair]
                    for i in range(n_rows):
                        product[i] = right[i] * score[i]
                    pair += 1


def _score(x, weight, starts, slopes, dispersions, first, tau, j, factor, scores, begin):  # type: ignore[no-untyped-def]
    """Add the scores of units under component j, times a factor, to columns from `begin` on."""
    # x: (p + 1, n), weight: (n,), starts: (u,), slopes: (P, p + 1), dispersions: (T,),
    # first: (P, r, n), tau: (T, 3, r, n), factor: (u,), scores: (u, m)
    width, n_obs = x.shape
    is_grouped = len(starts) > 0
    unit = -1
    for i in range(n_obs):
        if not is_grouped or (unit + 1 < len(starts) and starts[unit + 1] == i):
            unit += 1
        share = factor[unit] * (weight[i] if is_grouped else 1.0)
        for a in range(len(first)):
            slope = share * first[a, j, i]
            place = begin + slopes[a, 0]  # those of one predictor are contiguous
            for b in range(width):
                scores[unit, place + b] += slope * x[b, i]
        for t in range(len(tau)):
            scores[unit, begin + dispersions[t]] += share * tau[t, 0, j, i]


def _multiply(x, begin, products):  # type: ignore[no-untyped-def]
    """Write the products of all pairs of features of a run of rows."""
    # x: (w, n), products: (w (w + 1) / 2, m)
    width, n_rows = len(x), products.shape[1]
    features = np.empty((width, n_rows))
    for a in range(width):
        values = x[a, begin : begin + n_rows]
        for i in range(n_rows):
            features[a, i] = values[i]
    place = 0
    for a in range(width):
        for b in range(a, width):
            for i in range(n_rows):
                products[place, i] = features[a, i] * features[b, i]
            place += 1


def _scale(x, weights, begin, start, weighted):  # type: ignore[no-untyped-def]
    """Write the features of a run of rows times each of several weights side by side."""
    # x: (w, n), weights: (k, m), weighted: (rows, k w)
    width = len(x)
    for i in range(len(weighted)):
        values = x[:, begin + start + i]
        for k in range(len(weights)):
            weight, scaled = weights[k, start + i], weighted[i, k * width : (k + 1) * width]
            for a in range(width):
                scaled[a] = weight * values[a]


multiply_features = Compiled(_multiply, "multiply")
scale_features = Compiled(_scale, "scale")
share_units = Compiled(_share, "share")
group_rows = Compiled(_group, "group")
weigh_rows = Compiled(_weigh, "weigh")
covary_rows = Compiled(_covary, "covary")
score_units = Compiled(_score, "score")


def _solve(information, score, places, ridge, smallest, step):  # type: ignore[no-untyped-def]
    """Solve for a step by Cholesky factorisation, scaled to unit diagonal; False if it fails."""
    # information: (q, q), score, step: (q,), places: (m,)
    m = len(places)
    factor, scale, solved = np.empty((m, m)), np.empty(m), np.empty(m)
    for a in range(m):
        diagonal = information[places[a], places[a]]
        scale[a] = math.sqrt(diagonal if diagonal > smallest else smallest)
    for a in range(m):
        for b in range(a + 1):
            total = information[places[a], places[b]] / (scale[a] * scale[b])
            if a == b:
                total += ridge
            for c in range(b):
                total -= factor[a, c] * factor[b, c]
            if a > b:
                factor[a, b] = total / factor[b, b]
            elif total > 0.0:
                factor[a, a] = math.sqrt(total)
            else:  # a NaN too
                return False
        rest = score[places[a]] / scale[a]
        for c in range(a):
            rest -= factor[a, c] * solved[c]
        solved[a] = rest / factor[a, a]
    for a in range(m - 1, -1, -1):
        for c in range(a + 1, m):
            solved[a] -= factor[c, a] * solved[c]
        solved[a] /= factor[a, a]
    for a in range(m):
        step[places[a]] = solved[a] / scale[a]
    return True


solve_component = Compiled(loop(_solve), "solve")


def _em_step(  # type: ignore[no-untyped-def]
    information, scores, groups, slopes, dispersions, dispersed, is_closed, row_counts, limits, step
):
    """Solve for the steps of all components; False if an information is not positive definite."""
    # information: (r, q, q), scores, step: (r, q), groups: (n_groups, m) places solved together,
    # slopes: (P, w), dispersions, dispersed: (T,), is_closed: (P,), limits: ridge, smallest
    # diagonal, count and variance ratio, and the step where the curvature has the wrong sign
    width = slopes.shape[1]
    for j in range(len(scores)):
        for g in range(len(groups)):
            places = groups[g]
            if not _solve(  # type: ignore[no-untyped-call]
                information[j], scores[j], places, limits[0], limits[1], step[j]
            ):
                return False
        for t in range(len(dispersions)):
            place, predictor = dispersions[t], dispersed[t]
            score, curvature = scores[j, place], information[j, place, place]
            if is_closed[predictor]:
                # the residual sum of squares after the step is sigma^2 (score + count - gain),
                # where the gain is twice what the coefficients add to the expected log-likelihood
                gain = 0.0
                for k in range(width):
                    a = slopes[predictor, k]
                    gain += 2.0 * scores[j, a] * step[j, a]
                    for m in range(width):
                        b = slopes[predictor, m]
                        gain -= step[j, a] * information[j, a, b] * step[j, b]
                count = row_counts[j] if row_counts[j] > limits[2] else limits[2]
                ratio = 1.0 + (score - gain) / count
                step[j, place] = 0.5 * math.log(ratio if ratio > limits[3] else limits[3])
            elif curvature > 0.0:
                step[j, place] = score / curvature
            else:
                step[j, place] = limits[4] if score > 0.0 else -limits[4]
    return True


em_steps = Compiled(_em_step, "em_step")


def _move(  # type: ignore[no-untyped-def]
    slopes,
    levels,
    spreads,
    weights,
    step,
    places,
    dispersions,
    dispersed,
    largest,
    ranges,
    limits,
    new_slopes,
    new_levels,
    new_spreads,
    new_weights,
):
    """Take a step in the coordinates of `pack`; return whether it ends inside all bounds."""
    # slopes: (P, p, r), levels: (P, r), spreads: (P, r) or empty, places: (P, p + 1), dispersions,
    # dispersed: (T,), largest: (P,), ranges: (P, 3) smallest and largest dispersion and its power,
    # limits: largest change of a log dispersion, smallest ratio of deviations, smallest weight
    n_predictors, n_features, n_components = slopes.shape
    size = n_predictors * (n_features + 1) + len(dispersions)
    is_inside = True
    for j in range(n_components):
        for a in range(n_predictors):
            length = 0.0
            for k in range(n_features):
                new_slopes[a, k, j] = slopes[a, k, j] + step[j * size + places[a, k]]
                length += new_slopes[a, k, j] * new_slopes[a, k, j]
            new_levels[a, j] = levels[a, j] + step[j * size + places[a, n_features]]
            length = math.sqrt(length + new_levels[a, j] * new_levels[a, j])
            is_inside = is_inside and length <= largest[a]
    for t in range(len(dispersions)):
        a = dispersed[t]
        lowest, highest = math.inf, -math.inf
        for j in range(n_components):
            change = step[j * size + dispersions[t]]
            change = limits[0] if change > limits[0] else change
            change = -limits[0] if change < -limits[0] else change
            new_spreads[a, j] = spreads[a, j] * math.exp(change)
            is_inside = is_inside and ranges[a, 0] <= new_spreads[a, j] <= ranges[a, 1]
            deviation = new_spreads[a, j] ** ranges[a, 2]  # one if the likelihood is bounded
            lowest = deviation if deviation < lowest else lowest
            highest = deviation if deviation > highest else highest
        is_inside = is_inside and lowest >= limits[1] * highest
    largest_logit, total = -math.inf, 0.0
    for j in range(n_components):
        new_weights[j] = math.log(weights[j])
        if j < n_components - 1:
            new_weights[j] += step[n_components * size + j]
        largest_logit = new_weights[j] if new_weights[j] > largest_logit else largest_logit
    for j in range(n_components):
        new_weights[j] = math.exp(new_weights[j] - largest_logit)
        total += new_weights[j]
    for j in range(n_components):
        new_weights[j] /= total
        is_inside = is_inside and new_weights[j] >= limits[2]
    return is_inside


move_inside = Compiled(_move, "move")
