"""Every public function against hostile input: a right answer or a clear error.

`benchmarks/hostile_input.py` tries 5,000 of the same calls.
"""

import pytest

import moment_init
from tests.hostile.calls import CALLS
from tests.hostile.running import SHARES, run_calls

SMALL_SHARE = 25
"""The tests try one example of so many; a few at least."""

# `compare` makes the trees of every method, for seconds.
FEWEST = {"compare": 2}


@pytest.mark.parametrize("name", SHARES)
def test_answer_or_clear_error(name: str) -> None:
    counts = run_calls(name, max(SHARES[name] // SMALL_SHARE, FEWEST.get(name, 8)))
    assert counts.total() > 0


def test_every_public_function_is_tried() -> None:
    results = {"Comparison", "MixtureData", "MomentEstimate", "Status"}
    raised = {name for name in moment_init.__all__ if name.endswith(("Warning", "Error"))}
    tried = set(CALLS) | {"angles_in_degrees"}  # with match_components
    assert set(SHARES) == set(CALLS)
    assert set(moment_init.__all__) <= results | raised | tried
