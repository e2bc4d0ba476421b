"""Fixtures of the test suite: the seed and the generator built from it.

The environment variable ``MOMENT_INIT_TEST_SEEDS`` chooses the seeds of every test that draws the
``seed`` fixture: ``3`` is one seed, ``0-99`` a range with both ends. Unset, it is one fixed seed.
"""

import os

import numpy as np
import pytest

SEEDS_VARIABLE = "MOMENT_INIT_TEST_SEEDS"
DEFAULT_SEED = 20240229


def parse_seeds(text: str) -> list[int]:
    """Turn ``"3"`` or ``"0-99"`` into a list of seeds."""
    first, dash, last = text.strip().partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise pytest.UsageError(
            f'{SEEDS_VARIABLE} must be a seed ("3") or a range ("0-99"); got {text!r}'
        )
    seeds = list(range(int(first), int(last if dash else first) + 1))
    if not seeds:
        raise pytest.UsageError(f"{SEEDS_VARIABLE} must be an ascending range; got {text!r}")
    return seeds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses ``seed`` once per requested seed."""
    if "seed" in metafunc.fixturenames:
        text = os.environ.get(SEEDS_VARIABLE, "").strip()
        metafunc.parametrize("seed", parse_seeds(text) if text else [DEFAULT_SEED], indirect=True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of the test's random numbers; see the module's docstring."""
    return int(request.param)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Fresh generator for one test."""
    return np.random.default_rng(seed)
