"""Loops over rows: compiled and as plain Python, in one thread and in two."""

import os
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.blocks import SERIAL_DOUBLES
from moment_init.likelihood.climbing import maximise
from moment_init.likelihood.parameters import pack
from moment_init.likelihood.posterior import (
    doubles_per_unit,
    posterior_of_block,
    responsibilities,
    unit_log_likelihood,
)
from moment_init.likelihood.sums import (
    LikelihoodSums,
    _grams_and_missing,
    _missing_by_scores,
    likelihood_sums,
    outer_product_information,
)
from tests.likelihood_problems import (
    ALL_LINKS,
    VARIANTS,
    FloatArray,
    make_problem,
    nearby,
    plain_python,
)

each_kind = pytest.mark.parametrize(("name", "link"), ALL_LINKS)


def arrays_of(sums: LikelihoodSums) -> list[FloatArray]:
    """Everything that is summed."""
    parts = (
        np.array(sums.log_likelihood),
        sums.score,
        sums.unit_counts,
        sums.row_counts,
        sums.component_information,
        sums.gate_information,
        sums.missing_information,
    )
    return [part for part in parts if part is not None]


@each_kind
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("is_prepared", [False, True])
def test_loops_are_plain_python(
    name: str, link: str, variant: str, is_prepared: bool, rng: np.random.Generator
) -> None:
    """All passes, and a climb by EM and by Newton steps, of few rows."""
    problem = make_problem(name, link, rng, n_obs=24, variant=VARIANTS[variant])
    family, at = problem.family, nearby(problem, rng, 0.05)

    def evaluate() -> list[FloatArray]:
        rows = problem.rows.prepared(family) if is_prepared else problem.rows
        climb = maximise(family, rows, at, max_steps=2, em_steps=1)
        return [
            *arrays_of(likelihood_sums(family, rows, at)),
            *arrays_of(likelihood_sums(family, rows, at, missing=False)),
            *arrays_of(likelihood_sums(family, rows, at, curvature=False)),
            outer_product_information(family, rows, at),
            unit_log_likelihood(family, rows, at),
            responsibilities(family, rows, at),
            pack(climb.parameters),
        ]

    compiled = evaluate()
    with plain_python():
        plain = evaluate()
    for one, other in zip(compiled, plain, strict=True):
        assert_allclose(one, other, rtol=1e-7, atol=1e-9 * (1 + np.abs(other).max()))


@each_kind
def test_both_ways_of_the_missing_information_agree(
    name: str, link: str, rng: np.random.Generator
) -> None:
    problem = make_problem(name, link, rng, n_obs=150)
    rows, at = problem.rows.prepared(problem.family), nearby(problem, rng)
    block = posterior_of_block(problem.family, rows, at, slice(0, 150))
    assert rows.x is not None
    _, pairs = _grams_and_missing(block, at.layout)
    scores = _missing_by_scores(block, at.layout)
    assert_allclose(pairs, scores, atol=1e-10 * np.abs(scores).max())
    missing = likelihood_sums(problem.family, rows, at).missing_information
    assert missing is not None
    assert_allclose(missing, pairs, atol=1e-12 * np.abs(scores).max())


@each_kind
@pytest.mark.parametrize("with_extras", [False, True])
def test_prepared_rows_give_the_sums_of_an_em_step(
    name: str, link: str, with_extras: bool, rng: np.random.Generator
) -> None:
    """One response has a compiled pass of its own, which holds some rows at a time."""
    problem = make_problem(name, link, rng, n_obs=2500, with_extras=with_extras)
    at = nearby(problem, rng)
    one, other = (
        arrays_of(likelihood_sums(problem.family, rows, at, missing=False))
        for rows in (problem.rows, problem.rows.prepared(problem.family))
    )
    for expected, found in zip(one, other, strict=True):
        assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())


@each_kind
@pytest.mark.parametrize("missing", [False, True])
def test_parameters_that_are_not_finite_are_seen(
    name: str, link: str, missing: bool, rng: np.random.Generator
) -> None:
    """A search then knows that it cannot go there."""
    problem = make_problem(name, link, rng, n_obs=30)
    rows, biases = problem.rows.prepared(problem.family), problem.truth.biases.copy()
    biases[..., 1] = np.nan
    broken = replace(problem.truth, biases=biases)
    assert np.isnan(likelihood_sums(problem.family, rows, broken, missing=missing).log_likelihood)


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("bernoulli", "logit"),
        ("negative_binomial", "log"),
        ("poisson+gaussian+bernoulli", "log+identity+logit"),
        ("categorical", "softmax"),
    ],
)
@pytest.mark.parametrize("variant", ["plain", "both"])
@pytest.mark.parametrize("missing", [False, True])
def test_number_of_threads_changes_no_bit(
    name: str,
    link: str,
    variant: str,
    missing: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many copies of a few rows, as only their number matters."""
    problem = make_problem(name, link, rng, n_obs=1500, variant=VARIANTS[variant])
    units = np.tile(np.arange(problem.rows.n_units), 75)
    rows = problem.rows.take(units).prepared(problem.family)
    rows = replace(rows, sample_weight=rng.uniform(0.5, 1.5, rows.n_obs))
    assert rows.n_units * doubles_per_unit(rows, problem.truth) >= SERIAL_DOUBLES
    results = []
    for n_threads in (1, 2):
        monkeypatch.setattr(os, "cpu_count", lambda count=n_threads: count)
        results.append(likelihood_sums(problem.family, rows, problem.truth, missing=missing))
    for one, two in zip(*map(arrays_of, results), strict=True):
        assert_array_equal(one, two)
