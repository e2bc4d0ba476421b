"""How many components: the spectrum counts directions, BIC of polished fits decides."""

import numpy as np

from moment_init.exceptions import IdentifiabilityError
from moment_init.likelihood.parameters import parameter_count
from moment_init.problem import EstimationProblem
from moment_init.results import ComponentSelection
from moment_init.stacked.overcomplete import required_order
from moment_init.stacked.subspace import count_directions
from moment_init.stacked_result import (
    LowOrderMoments,
    StackedSolution,
    low_order_moments,
    solve_stacked,
)

__all__ = ["choose_n_components"]

# More components than this are not searched for: ask for them by number.
MOST_COMPONENTS = 10


def choose_n_components(
    problem: EstimationProblem, rng: np.random.Generator
) -> tuple[StackedSolution, ComponentSelection]:
    """Choose the number of components and give the fit that goes with it.

    The spectrum of the moments counts directions that stand out from noise. Parallel components
    share one, so that it is a lower bound in principle, and noise can add one in practice: the
    search starts there, walks up while BIC falls, and down if the first step up did not help.

    Parameters
    ----------
    problem : EstimationProblem
        Rows, input model and coordinates.
    rng : numpy.random.Generator
        Source of starts and samples of rows.

    Returns
    -------
    solution : StackedSolution
        The fit with the smallest BIC.
    selection : ComponentSelection
        What was compared.
    """
    moments = low_order_moments(problem.source)
    n_visible, _ = count_directions(moments.low_orders)
    solutions: dict[int, StackedSolution] = {}

    def bic(number: int) -> float:
        if number not in solutions:
            solutions[number] = solve_stacked(
                problem, number, rng, is_polished=True, moments=moments
            )
        return _bic(solutions[number], problem.data.sample_weight.sum())

    chosen = start = max(1, min(n_visible, MOST_COMPONENTS))
    while chosen < MOST_COMPONENTS and _is_identified(problem, moments, chosen + 1):
        if bic(chosen + 1) >= bic(chosen):
            break
        chosen += 1
    if chosen == start:
        while chosen > 1 and bic(chosen - 1) < bic(chosen):
            chosen -= 1
    bic(chosen)  # fitted even where nothing was compared
    numbers = tuple(sorted(solutions))
    selection = ComponentSelection(
        n_components=numbers,
        log_likelihood=tuple(_log_likelihood(solutions[number]) for number in numbers),
        bic=tuple(bic(number) for number in numbers),
        n_visible=n_visible,
    )
    return solutions[chosen], selection


def _log_likelihood(solution: StackedSolution) -> float:
    return np.nan if solution.polished is None else solution.polished.log_likelihood


def _is_identified(problem: EstimationProblem, moments: LowOrderMoments, n_components: int) -> bool:
    """Whether moments can identify so many components, and the rows exceed the unknowns."""
    data = problem.source.data
    try:
        required_order(
            data.n_features,
            n_components,
            moments.low_orders.rows.n_functions,
            has_dispersion=data.family.has_dispersion,
        )
    except IdentifiabilityError:
        return False
    return data.n_obs > data.n_features * (n_components + 1)


def _bic(solution: StackedSolution, n_obs: float) -> float:
    """Bayesian information criterion, -2 log L + k log n."""
    n_parameters = parameter_count(solution.parameters)
    return -2.0 * _log_likelihood(solution) + n_parameters * float(np.log(n_obs))
