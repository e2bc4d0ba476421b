"""Runs of hypothesis over the calls: for the tests a few, for the benchmark many."""

import warnings
from collections import Counter
from collections.abc import Mapping

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.hostile.calls import CALLS
from tests.hostile.contract import Call, check_call

__all__ = ["SHARES", "run_calls"]

SHARES: Mapping[str, int] = {
    "fit_em": 900,
    "estimate": 700,
    "EMFit": 500,
    "MixtureGLMRegressor": 500,
    "MixtureGLMClassifier": 400,
    "scores": 400,
    "select_components": 300,
    "predict_membership": 300,
    "predict": 150,
    "marginal_effects": 80,
    "simulate_mixture": 200,
    "mixture_glm": 150,
    "match_components": 120,
    "read_formula": 120,
    "mixture_of_experts": 80,
    "initial_values": 80,
    "align_components": 80,
    "sample": 60,
    "open_store": 30,
    "compare": 10,
}
"""Examples of each function out of 5,160: most where most can go wrong, few where each is slow."""


def run_calls(name: str, n_examples: int, random_seed: int | None = None) -> Counter[str]:
    """Try calls of one function; a failure is raised.

    Without a seed the examples are the same at every run. The count has the calls that were
    `answered` and those that were `refused`.
    """
    counts: Counter[str] = Counter()

    def check(call: Call) -> None:
        counts[check_call(call)] += 1

    limits = settings(
        max_examples=n_examples,
        derandomize=random_seed is None,
        database=None,
        deadline=None,  # calls that hang are stopped by `check_call`
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    test = given(CALLS[name])(check)
    if random_seed is not None:
        test = seed(random_seed)(test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what makes the calls; theirs are looked at one by one
        limits(test)()
    return counts
