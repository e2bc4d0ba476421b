"""Runs that are given up because Aitken's prediction says that they end below a target."""

import numpy as np
import pytest

from moment_init.em.runs import FINISH
from moment_init.em.starts import random_assignment
from moment_init.likelihood.climbing import Ending
from moment_init.results import SAME_OPTIMUM
from tests.search_problems import draw_mixture

KINDS: list[tuple[str, int, dict[str, float]]] = [
    ("gaussian", 500, {"noise": 0.3}),
    ("poisson", 800, {"coefficient_sd": 0.5, "bias_sd": 0.7}),
]


@pytest.mark.parametrize(("family", "n_obs", "options"), KINDS)
def test_a_target_only_ever_ends_a_run_early(
    family: str, n_obs: int, options: dict[str, float]
) -> None:
    """Thirty random starts with and without the target that the best of them sets.

    A run that is given up is below its target and on the way of the run without one; all others
    are the same runs. A target that none can reach saves steps.
    """
    problem = draw_mixture([9, 1], n_obs, 4, (0.6, 0.25, 0.15), family=family, **options).problem
    starts = [random_assignment(problem, own) for own in np.random.default_rng(2).spawn(30)]
    free = [problem.climb(start, **FINISH) for start in starts]
    target = max(run.log_likelihood for run in free) - SAME_OPTIMUM
    held = [problem.climb(start, target=target, **FINISH) for start in starts]
    for alone, run in zip(free, held, strict=True):
        if run.ending is Ending.ABANDONED:
            assert run.log_likelihood < target
            assert run.history == alone.history[: len(run.history)]
        else:
            assert run.history == alone.history
    hopeless = [problem.climb(start, target=target + 1e4, **FINISH) for start in starts]
    assert sum(run.n_iter for run in hopeless) < sum(run.n_iter for run in free)


def test_no_target_no_abandoned_run(seed: int) -> None:
    problem = draw_mixture([seed, 5], 300, 3, (0.5, 0.3, 0.2)).problem
    for own in np.random.default_rng(seed).spawn(10):
        run = problem.climb(random_assignment(problem, own), **FINISH)
        assert run.ending is not Ending.ABANDONED


def test_target_below_the_start_is_never_missed(seed: int) -> None:
    problem = draw_mixture([seed, 5], 300, 3, (0.5, 0.3, 0.2)).problem
    start = random_assignment(problem, np.random.default_rng(seed))
    value = problem.climb(start, max_steps=0).log_likelihood
    free = problem.climb(start, **FINISH)
    assert problem.climb(start, target=value, **FINISH).history == free.history
