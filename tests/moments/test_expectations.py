"""Representative offsets and trials, and expectations under them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init.data.checking import validate_data
from moment_init.families.registry import get_family
from moment_init.moments.expectations import (
    Condition,
    expected_functions,
    representative_conditions,
    thinned_counts,
)
from moment_init.moments.sums import fit_stacked_rows
from tests.moments.problems import prepare
from tests.population import FloatArray


def test_rows_without_offset_and_trials_are_one_condition(rng: np.random.Generator) -> None:
    data = validate_data(rng.standard_normal((30, 1)), rng.poisson(1.0, 30), family="poisson")
    assert representative_conditions(data) == (Condition(1.0),)


def test_few_trials_by_hand() -> None:
    """Trials 2, 2, 5, 5 with weights 1, 1, 1, 3 are two conditions with shares 1/3 and 2/3."""
    data = validate_data(
        np.arange(4.0)[:, None],
        [0, 1, 4, 2],
        family="binomial",
        n_trials=[2, 2, 5, 5],
        sample_weight=[1.0, 1.0, 1.0, 3.0],
    )
    shares = {each.n_trials: each.share for each in representative_conditions(data)}
    assert shares.keys() == {2, 5}
    assert_allclose([shares[2], shares[5]], [1 / 3, 2 / 3])


def test_offset_of_the_identity_link_needs_no_condition(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((30, 1)), rng.standard_normal(30)
    data = validate_data(X, y, family="gaussian", offset=rng.standard_normal(30))
    assert representative_conditions(data) == (Condition(1.0),)


def test_both_offset_and_trials_share_few_cells(rng: np.random.Generator) -> None:
    trials = rng.integers(1, 50, 2000)
    offset = rng.standard_normal(2000)
    data = validate_data(
        rng.standard_normal((2000, 1)),
        rng.binomial(trials, 0.5),
        family="binomial",
        n_trials=trials,
        offset=offset,
    )
    conditions = representative_conditions(data)
    assert len(conditions) == 16
    shares = np.array([each.share for each in conditions])
    assert_allclose(shares.sum(), 1.0)
    # Midpoints of four cells carry the mean to a few per cent of the deviation.
    mean_offset = shares @ [each.offset for each in conditions]
    assert abs(mean_offset - offset.mean()) < 0.1
    mean_trials = shares @ [float(each.n_trials or 0) for each in conditions]
    assert abs(mean_trials - trials.mean()) < 0.1 * trials.std()


def test_expected_functions_average_over_the_offset(rng: np.random.Generator) -> None:
    """Against 200,000 simulated rows at one linear predictor, in standard errors.

    The twelve midpoints add an error of their own; it is allowed .02 deviations of each function.
    """
    n_obs = 200_000
    offset = rng.normal(0.0, 0.7, n_obs)
    y = rng.poisson(np.exp(0.4 + offset)).astype(float)
    data = validate_data(rng.standard_normal((n_obs, 1)), y, family="poisson", offset=offset)
    model, response, _ = prepare(data)
    rows, *_ = fit_stacked_rows(data, model, response)
    expected = expected_functions(data, rows).given_predictor(np.array([[0.4]]), None)[0, 0]
    # The functions are whitened over these rows, which all have that predictor: the mean is zero.
    values: FloatArray = rows.functions(response)
    deviations = values.std(axis=0)
    raw = np.linalg.lstsq(rows.function_map.T, expected, rcond=None)[0]
    assert np.all(np.abs(raw / deviations) < 0.02 + 4 / np.sqrt(n_obs))


def test_few_counts_are_all_nodes() -> None:
    counts, steps = thinned_counts(37)
    assert_array_equal(counts, np.arange(38))
    assert_array_equal(steps, np.ones(38))


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
@pytest.mark.parametrize("mean", [3.0, 150.0, 200.0, 260.0, 900.0, 40_000.0])
def test_thinned_counts_sum_to_the_mean_of_the_logarithm(name: str, mean: float) -> None:
    """E[log1p(y)] and the total probability, against the sum over every count, to 1e-6.

    Means on both sides of the joint at 200 and on it; a negative binomial reaches across it.
    """
    family = get_family(name)
    largest = int(20 * mean) + 400
    counts, steps = thinned_counts(largest)
    assert len(counts) < 300 + 10 * np.sqrt(largest)
    totals = []
    for nodes, widths in ((counts, steps), (np.arange(largest + 1.0), np.ones(largest + 1))):
        log_density = family.log_density_eta(nodes, np.full(1, np.log(mean)), dispersion=4.0)
        probability = np.exp(log_density) * widths
        totals.append((probability.sum(), probability @ np.log1p(nodes)))
    assert_allclose(totals[0], totals[1], atol=1e-6)
