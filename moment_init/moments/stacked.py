"""The stacked estimate: from rows to complete mixtures whose directions a decomposition gave.

The steps are the same for every density of the input and every number of responses: moments of the
first two orders, the span and the third order inside it (`subspace`), candidates from the
decomposition of the stacked tensor (`tensor`), mixtures along them and, if no polish follows,
directions refined by moments of the scores of these mixtures (`along`). The likelihood assumes
nothing about the input: it decides between candidates, also between those of several densities.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moment_init.checks import FloatArray
from moment_init.data.blocks import N_PARTS, single_threaded_blas
from moment_init.likelihood.parameters import (
    MixtureParameters,
    angles_in_degrees,
    match_components,
)
from moment_init.likelihood.sums import LikelihoodSums, likelihood_sums
from moment_init.likelihood.tied import TiedParameters
from moment_init.moments.along import RANKING_STEPS, AlongFit, fit_along, rank_candidates, refine
from moment_init.moments.polish import all_rows
from moment_init.moments.subspace import (
    CLEAR_EIGENVALUE,
    LowOrders,
    Moments,
    complete_moments,
    form_low_orders,
)
from moment_init.moments.sums import fit_stacked_rows
from moment_init.moments.tensor import (
    KEPT_CANDIDATES,
    Candidate,
    cp_candidates,
    decompose_symmetric,
    required_order,
)
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem

# Moments use this number of rows, or up to twice as many, if a polish on all rows follows: they
# need only be close enough for Newton's method. If directions do not stand out clearly, twice or
# four times as many rows are used, whichever promises to be enough, and then all. A search for the
# number of components begins with the largest sample, since it counts directions that stand out.
MOMENT_ROWS = 60_000
SEARCH_ROWS = 4 * MOMENT_ROWS

# The same for a density other than the Gaussian, whose score functions cost many times as much. The
# estimate under the Gaussian is also available, and the likelihood decides.
SCORE_ROWS = 20_000

# Rows on which candidates are ranked and refined, and at least this many per parameter.
RANKING_ROWS = 2_000
RANKING_ROWS_PER_PARAMETER = 100

# Steps of the refinement on these rows, and then on all rows. One standard error of a parameter
# makes half a unit of log-likelihood.
FEW_REFINEMENTS, ROUGH_GAIN = 4, 1.0
MOST_REFINEMENTS, SMALLEST_GAIN = 30, 0.02

# Coefficients are the same if they differ by less than this share of their length, 14 degrees.
SAME_DISTANCE = 0.25

# Rows that are read for the refinement without a climb if they are not in memory. The scores are
# summed over all rows, so that only scales, biases and weights have the errors of this sample.
HELD_ROWS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class StackedFit:
    """The stacked estimate in standardised coordinates."""

    candidates: tuple[TiedParameters, ...]  # complete mixtures, best first
    moments: Moments  # under the preferred density
    residual: float  # norm of what the best decomposition leaves of the stacked tensor, relative
    misfit: float  # the square of that norm over its expectation if all of it is noise

    @property
    def spectrum(self) -> FloatArray:
        """Eigenvalues of all moments over the edge of their noise; (n_features,)."""
        return self.moments.spectrum

    @property
    def gap(self) -> float:
        """Ratio of the last eigenvalue that is used to the first that is not."""
        used = len(self.candidates[0].weights)
        return float(self.spectrum[used - 1] / self.spectrum[used]) if self.has_rest else np.inf

    @property
    def has_rest(self) -> bool:
        """Whether there are more features than components."""
        return len(self.candidates[0].weights) < len(self.spectrum)

    @property
    def spread(self) -> float:
        """Largest angle in degrees between directions of the best two candidates."""
        if len(self.candidates) == 1:
            return 0.0
        first, second = (each.directions for each in self.candidates[:2])
        return float(angles_in_degrees(second, first).max())


@single_threaded_blas()
def low_order_moments(
    problem: EstimationProblem, density: InputModel | None = None, n_rows: int | None = SEARCH_ROWS
) -> LowOrders:
    """Form the moments of the first two orders from about `n_rows` rows, or from all.

    BLAS is limited to one thread: large sums over rows have threads of their own, and the result
    does not depend on the machine.
    """
    used = problem.thin(_stride(problem, n_rows))
    return form_low_orders(fit_stacked_rows(used), density or problem.input_model)


def _stride(problem: EstimationProblem, n_rows: int | None) -> int:
    return 1 if n_rows is None else max(1, problem.data.n_obs // n_rows)


@single_threaded_blas()
def fit_stacked(
    problem: EstimationProblem,
    n_components: int,
    rng: np.random.Generator,
    *,
    is_polished: bool,
    low_orders: LowOrders | None = None,
) -> StackedFit:
    """Estimate a mixture; with `is_polished` only well enough for the climb that follows.

    `low_orders` are those under the input model, from `SEARCH_ROWS` rows.
    """
    if problem.data.n_obs < N_PARTS:
        raise ValueError(
            f"`X` must have at least {N_PARTS} rows for the stacked estimate; got "
            f"{problem.data.n_obs}. Add rows."
        )
    found = []
    for density in _usable_densities(problem, n_components):
        moments = _form_moments(problem, density, n_components, low_orders, is_polished=is_polished)
        found.append((moments, decompose(moments, n_components, rng)))
    candidates = [moments.lift(each.directions) for moments, parts in found for each in parts]
    fits = _fit_candidates(problem, candidates, rng, is_polished=is_polished)
    moments, (best, *_) = found[0]
    return StackedFit(
        candidates=tuple(fit.parameters for fit in fits),
        moments=moments,
        residual=best.residual,
        misfit=_misfit(moments.stack, best),
    )


def _usable_densities(problem: EstimationProblem, n_components: int) -> tuple[InputModel, ...]:
    """List the densities to try: only the Gaussian if there are more components than features."""
    n_features = problem.data.n_features
    if n_features == 1 or n_components > n_features:
        return (problem.input_model,)
    return problem.densities or (problem.input_model,)


def _form_moments(
    problem: EstimationProblem,
    density: InputModel,
    n_components: int,
    given: LowOrders | None,
    *,
    is_polished: bool,
) -> Moments:
    """Form the moments of as many rows as the directions need to stand out clearly."""
    data, last = problem.data, min(n_components, problem.data.n_features) - 1
    is_standard = density is problem.input_model
    n_rows: int | None = None
    if is_polished:
        n_rows = MOMENT_ROWS if is_standard else SCORE_ROWS
    if given is not None and is_polished and is_standard:
        low, n_rows = given, SEARCH_ROWS
    else:
        low = low_order_moments(problem, density, n_rows)
    while True:
        max_order = required_order(
            data.n_features,
            n_components,
            low.pieces[0].n_functions,
            has_dispersion=data.family.has_dispersion,
        )
        moments = complete_moments(low, n_components, max_order)
        # The excess over noise grows in proportion to the rows: a sample size that promises too
        # little is skipped.
        excess = moments.spectrum[last] - 1.0
        is_clear = excess >= CLEAR_EIGENVALUE - 1.0
        if is_clear or n_rows is None or not is_standard or _stride(problem, n_rows) == 1:
            return moments
        n_rows *= 2 if 2.0 * excess >= CLEAR_EIGENVALUE - 1.0 else 4
        n_rows = n_rows if n_rows <= SEARCH_ROWS else None
        low = low_order_moments(problem, density, n_rows)


def decompose(
    moments: Moments, n_components: int, rng: np.random.Generator
) -> tuple[Candidate, ...]:
    """Find candidate directions inside the subspace."""
    inner = moments.inner[0]
    if n_components > inner.basis.n_variables > 1:
        orders = tuple(range(2, inner.basis.max_order + 1))
        candidates = decompose_symmetric(inner.entries, inner.basis, orders, n_components, rng)
        if candidates:
            return candidates[:KEPT_CANDIDATES]
    return cp_candidates(moments.stack, n_components, rng)


def _misfit(stack: FloatArray, best: Candidate) -> float:
    """Squared residual over the number of entries that a decomposition leaves to noise."""
    size, _, n_slices = stack.shape
    n_components = best.directions.shape[1]
    # A symmetric slice holds every moment off its diagonal twice.
    share = (size + 1) / (2.0 * size)
    freedom = stack.size * share - n_components * (size - 1 + n_slices)
    return float(np.square(best.residual * np.linalg.norm(stack)) * share / max(1.0, freedom))


def _fit_candidates(
    problem: EstimationProblem,
    candidates: list[FloatArray],
    rng: np.random.Generator,
    *,
    is_polished: bool,
) -> list[AlongFit]:
    """Fit mixtures along the candidates, rank them and, without a polish, refine them."""
    family, likelihood = problem.data.family, all_rows(problem)
    n_parameters = (0 if is_polished else candidates[0].size) + 3 * candidates[0].shape[1]
    n_rows = max(RANKING_ROWS, RANKING_ROWS_PER_PARAMETER * n_parameters)
    rows = likelihood.sample(n_rows, rng).prepared(family)
    fits = rank_candidates(family, rows, candidates, rng)
    if is_polished:
        return _distinct(fits)
    evaluate: Callable[[MixtureParameters], LikelihoodSums]
    evaluate = partial(likelihood_sums, family, rows, curvature=False, constant=0.0)
    fits = [
        refine(family, rows, evaluate, fit, max_steps=FEW_REFINEMENTS, smallest_gain=ROUGH_GAIN)
        for fit in fits
    ]
    fits = _distinct(fits)
    best = fits[0]
    if rows.n_obs < problem.data.n_obs:
        n_rows = likelihood.rows.readable(HELD_ROWS)
        rows, evaluate = likelihood.sample(n_rows, rng).prepared(family), likelihood.evaluate
        best = fit_along(family, rows, best.parameters, newton_steps=RANKING_STEPS)
    fits[0] = refine(
        family, rows, evaluate, best, max_steps=MOST_REFINEMENTS, smallest_gain=SMALLEST_GAIN
    )
    return fits


def _distinct(fits: list[AlongFit]) -> list[AlongFit]:
    """Sort fits by likelihood and drop those with the coefficients of a better one."""
    kept: list[AlongFit] = []
    for fit in sorted(fits, key=lambda each: -each.log_likelihood):
        slopes = fit.parameters.free.slopes
        others = [other.parameters.free.slopes for other in kept]
        if not any(_is_same(slopes, other) for other in others):
            kept.append(fit)
    return kept


def _is_same(first: FloatArray, second: FloatArray) -> bool:
    """Check whether the coefficients of two mixtures are close, in some order of components."""
    # (P, n_features, n_components)
    stacked = first.reshape(-1, first.shape[2]), second.reshape(-1, first.shape[2])
    order = match_components(*stacked, signed=True)
    distance = np.linalg.norm(stacked[0][:, order] - stacked[1], axis=0)
    return bool(np.all(distance < SAME_DISTANCE * np.linalg.norm(stacked[1], axis=0)))


def single_mixture(parameters: TiedParameters) -> MixtureParameters:
    """Read the mixture of one response, whose coefficients have no axis of responses."""
    free = parameters.free
    dispersion = None if free.dispersion is None else free.dispersion[0]
    return replace(
        free, coefficients=free.coefficients[0], biases=free.biases[0], dispersion=dispersion
    )
