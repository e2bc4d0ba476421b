"""Public names and their parameters stay what they were."""

import difflib
from pathlib import Path

import pytest

from tests.public_names import list_public_names

LISTING = Path(__file__).parent / "data" / "public_names.txt"


def test_public_names_are_those_of_the_listing() -> None:
    expected, actual = LISTING.read_text(), list_public_names()
    if actual != expected:
        difference = "\n".join(
            difflib.unified_diff(
                expected.splitlines(), actual.splitlines(), "listing", "code", lineterm="", n=0
            )
        )
        pytest.fail(
            "Public names or their parameters differ from tests/data/public_names.txt. If that is "
            f"intended, run `python tests/data/make_public_names.py`.\n{difference}",
            pytrace=False,
        )
