r"""Scales, biases, weights and dispersions along given directions, and directions refined by them.

Section 5 of the paper proposes EM for what moments leave open. Here it maximises the likelihood of
the rows projected on the directions, which are held, for any family and number of responses.

The fit then gives functions of the response that suit this mixture better than any fixed ones: with
responsibilities :math:`r_j`, predictors :math:`\eta_{ja} = s_{ja} \langle u_j, z \rangle + b_{ja}`
and :math:`\psi_{ja} = r_j\, \partial \log f / \partial \eta_{ja}`, the scores of the fit, all
functions of the input have zero moments with :math:`\psi_{ja}` at the true parameters. Near them

.. math:: E[\psi_{ja} z] + \sum_l u_l D_{l,ja} \approx \sum_l u^*_l D_{l,ja},
          \qquad D_{l,ja} = \sum_b s_{lb} E[\psi_{lb} \psi_{ja}],

with :math:`u_l` the directions of the fit and :math:`u^*_l` the true ones: a matrix whose first
factor is the directions. The other factor, D, is known from the fit and held in the decomposition;
the noise of the columns has covariance :math:`E[\psi \psi']`. Fit and decomposition alternate. The
fixed point needs no density of the input, and for one response it is the maximum of the likelihood.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moment_init.checks import FloatArray
from moment_init.families.several import AnyFamily
from moment_init.likelihood.climbing import climb, maximise
from moment_init.likelihood.em_step import flat_start
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.rows import LikelihoodRows, with_ones
from moment_init.likelihood.sums import LikelihoodSums, outer_product_information
from moment_init.likelihood.tied import TiedLikelihood, TiedParameters
from moment_init.moments.tensor import held_decomposition

# EM steps of a fit along candidates, by which they are ranked: the first decides between starts.
RANKING_STEPS = 5

# Newton steps along refined directions, where a fit begins near its end.
FOLLOWING_STEPS = 3
FOLLOWING_DAMPING = 0.1
TOLERANCE = 1e-3

# EM steps of a single model, which only gives signs and lengths to the starts.
SINGLE_STEPS = 3

# Random starts along directions that do not tell the components apart.
RANDOM_STARTS = 20

# A refinement ends when steps of this share still lower the log-likelihood.
SMALLEST_SHARE = 0.1

# Smallest eigenvalue of E[psi psi'] as a share of the largest: a component without rows has no
# scores.
SMALLEST_VARIANCE_SHARE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class AlongFit:
    """A mixture along given directions, fitted to some rows."""

    parameters: TiedParameters  # with unit directions in the coordinates of the rows
    log_likelihood: float  # of the rows, without terms that depend on no parameter


def fit_along(
    family: AnyFamily,
    rows: LikelihoodRows,
    start: TiedParameters,
    *,
    em_steps: int = 0,
    newton_steps: int = 0,
) -> AlongFit:
    """Fit everything but the directions, in the rows projected on them."""
    inner = replace(start, directions=np.eye(len(start.weights)))
    projected = _project(rows, start.directions)
    likelihood = TiedLikelihood.of(family, projected, inner, holds_directions=True, constant=0.0)
    end = climb(
        likelihood,
        likelihood.admit(inner),
        max_steps=em_steps + newton_steps,
        em_steps=em_steps,
        max_em_steps=None,
        tolerance=TOLERANCE,
        damping=FOLLOWING_DAMPING,
        target=None,
    )
    parameters = replace(end.parameters, directions=start.directions)
    return AlongFit(parameters, end.sums.log_likelihood)


def _project(rows: LikelihoodRows, directions: FloatArray) -> LikelihoodRows:
    """Replace the inputs by their projections on the directions."""
    projected = np.ascontiguousarray(np.asarray(rows.Z) @ directions)
    return replace(rows, Z=projected, x=None if rows.x is None else with_ones(projected))


def rank_candidates(
    family: AnyFamily,
    rows: LikelihoodRows,
    candidates: Sequence[FloatArray],
    rng: np.random.Generator,
) -> list[AlongFit]:
    """Fit mixtures along candidates for the directions, the largest likelihood first."""
    # candidates: (n_features, n_components)
    flat = flat_start(family, rows)
    single = maximise(family, rows, flat, max_steps=SINGLE_STEPS, em_steps=SINGLE_STEPS).parameters
    ends = []
    for directions in candidates:
        starts = _starts(family, directions, single)
        if directions.shape[1] > len(directions):
            starts += [_random_start(starts[0], rng) for _ in range(RANDOM_STARTS)]
        fits = [fit_along(family, rows, start, em_steps=1) for start in starts]
        best = max(fits, key=lambda fit: fit.log_likelihood).parameters
        ends.append(fit_along(family, rows, best, em_steps=RANKING_STEPS - 1))
    return sorted(ends, key=lambda fit: -fit.log_likelihood)


def _starts(
    family: AnyFamily, directions: FloatArray, single: MixtureParameters
) -> list[TiedParameters]:
    """Build starts along given directions: signs from the slopes of a single model, two lengths.

    The slopes of a single model are about the mean of those of the components: in
    sum_j w_j s_ja u_j the sign of s_ja is that of its coefficient.
    """
    # directions: (n_features, n_components)
    r, members = directions.shape[1], family.predictor_families
    slopes = single.slopes[:, :, 0].T
    loads = r * np.linalg.lstsq(directions, slopes, rcond=None)[0].T  # (P, r)
    has_units = np.array([member.response_power for member in members])
    dispersion = None
    if family.has_dispersion:
        values = np.where(has_units, 0.6, 2.0)
        values[[not member.has_dispersion for member in members]] = np.nan
        dispersion = np.repeat(values[:, None], r, axis=1)
    sizes = np.array([member.typical_scale for member in members])
    typical = np.where(has_units, 0.8, sizes)[:, None]
    signs = np.where(loads < 0.0, -1.0, 1.0)
    lengths = [
        np.clip(np.abs(loads), 0.1 * typical, typical),
        np.broadcast_to(typical, loads.shape),
    ]
    biases, weights = np.repeat(single.levels, r, axis=1), np.full(r, 1.0 / r)
    return [
        TiedParameters(directions, signs * length, biases, weights, dispersion)
        for length in lengths
    ]


def _random_start(like: TiedParameters, rng: np.random.Generator) -> TiedParameters:
    """Draw scales with their signs, and biases: where directions agree, starts must differ."""
    shape, typical = like.scales.shape, np.abs(like.scales).max(axis=1, keepdims=True)
    return replace(
        like,
        scales=typical * rng.uniform(0.2, 1.5, shape) * rng.choice([-1.0, 1.0], shape),
        biases=like.biases + typical * rng.standard_normal(shape),
    )


def refine(
    family: AnyFamily,
    rows: LikelihoodRows,
    evaluate: Callable[[MixtureParameters], LikelihoodSums],
    fit: AlongFit,
    *,
    max_steps: int,
    smallest_gain: float,
) -> AlongFit:
    """Alternate between moments of the scores of the fit, their decomposition, and fits along it.

    `evaluate` sums the scores, over rows that may be more than those that are fitted to. It ends
    when the log-likelihood gains less than `smallest_gain`.
    """
    share, target, held = 1.0, *_score_moments(family, rows, evaluate, fit.parameters)
    for _ in range(max_steps):
        base = fit.parameters.directions @ held
        directions = held_decomposition(base + share * target, held, fit.parameters.directions)
        if directions is None:
            break
        lengths = np.linalg.norm(directions, axis=0)
        start = replace(
            fit.parameters,
            directions=directions / lengths,
            scales=fit.parameters.scales * lengths,
        )
        following = fit_along(family, rows, start, newton_steps=FOLLOWING_STEPS)
        gain = following.log_likelihood - fit.log_likelihood
        if not gain >= 0.0:  # also if it is NaN
            share /= 2.0
            if share < SMALLEST_SHARE:
                break
            continue
        fit, share = following, min(1.0, 2.0 * share)
        if gain < smallest_gain:
            break
        target, held = _score_moments(family, rows, evaluate, fit.parameters)
    return fit


def _score_moments(
    family: AnyFamily,
    rows: LikelihoodRows,
    evaluate: Callable[[MixtureParameters], LikelihoodSums],
    parameters: TiedParameters,
) -> tuple[FloatArray, FloatArray]:
    r"""Compute :math:`E[\psi z]` and the factor D, columns divided by their joint noise."""
    # -> (n_features, r P), (r, r P)
    p, r = parameters.scales.shape
    mixture, inner = parameters.free, replace(parameters, directions=np.eye(r)).free
    outer = outer_product_information(family, _project(rows, parameters.directions), inner)
    size, biases = inner.layout.size, inner.layout.slopes[:, -1]
    at = (np.arange(r)[:, None] * size + biases).ravel()
    variance = outer[np.ix_(at, at)] / rows.total_weight
    sums, weight = _slope_scores(evaluate, mixture)
    values, vectors = np.linalg.eigh(variance)
    floor = max(SMALLEST_VARIANCE_SHARE * values[-1], np.finfo(float).tiny)
    root = vectors / np.sqrt(np.maximum(values, floor))
    held = np.einsum("bl,lbc->lc", parameters.scales, variance.reshape(r, p, r * p))
    return sums / weight @ root, held @ root


def _slope_scores(
    evaluate: Callable[[MixtureParameters], LikelihoodSums], mixture: MixtureParameters
) -> tuple[FloatArray, float]:
    """Sum the scores of all slopes, and the weights of the rows; (n_features, r P)."""
    sums, r = evaluate(mixture), mixture.n_components
    scores = sums.score[: r * mixture.layout.size].reshape(r, -1)
    by_predictor = scores[:, mixture.layout.slopes[:, :-1]]  # (r, P, n_features)
    return by_predictor.reshape(-1, by_predictor.shape[2]).T, float(sums.row_counts.sum())
