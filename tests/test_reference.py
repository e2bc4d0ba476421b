"""Results of public calls stay what they were; `tests/data/make_reference.py` wrote them down."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference_cases import CASES, TOLERANCES

REFERENCES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "reference.json").read_text()
)

RELATIVE_TOLERANCE = 1e-6
"""Other processors and numbers of threads add in another order.

Relative errors of 1e-15 in the inputs move results by up to 2e-7, since the likelihood is flat at
its maximum: an error of 1e-16 in it allows one of 1e-8 standard errors in the parameters.
"""


def test_every_case_has_a_reference() -> None:
    assert sorted(REFERENCES) == sorted(CASES)


@pytest.mark.filterwarnings("ignore:Component|Only one start|.* random starts:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_result_is_that_of_the_reference(name: str) -> None:
    record, reference = CASES[name](), REFERENCES[name]
    assert sorted(record) == sorted(reference)
    tolerance = TOLERANCES.get(name, RELATIVE_TOLERANCE)
    for key, expected in reference.items():
        assert_same(np.asarray(record[key]), np.asarray(expected), tolerance, key)


def assert_same(actual: Any, expected: Any, tolerance: float, key: str) -> None:
    """Compare shapes, words and counts exactly, and numbers up to rounding."""
    assert actual.shape == expected.shape, key  # assert_allclose would broadcast
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=key)
        return
    # An entry near zero is as uncertain as the largest of its array; an array of zeros, which may
    # be differences of numbers around one, is as uncertain as these.
    scale = np.max(np.abs(expected), where=np.isfinite(expected), initial=1e-6)
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * scale, err_msg=key
    )
