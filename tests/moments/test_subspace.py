"""The subspace: found where there is one, not found where there is none."""

import numpy as np
from numpy.testing import assert_array_equal

from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.simulation import simulate_mixture
from moment_init.moments.subspace import count_directions, find_subspace, noise_edge
from moment_init.moments.sums import LowOrders, sum_low_orders
from tests.moments.problems import prepare


def low_orders_of(data: RegressionData) -> LowOrders:
    model, response, _ = prepare(data)
    return sum_low_orders(data, model, response)


def test_noise_edge_by_hand() -> None:
    """One function in 3 dimensions: 1 + 2 columns, (sqrt 3 + sqrt 3)^2 = 12 over n."""
    assert np.isclose(noise_edge(1, 3, 100.0), 0.12)
    assert np.isclose(noise_edge(1, 3, 100.0, n_slices=2), (np.sqrt(7) + np.sqrt(3)) ** 2 / 100)


def test_pure_noise_stays_at_its_edge(rng: np.random.Generator) -> None:
    """Twelve other data sets of this size gave .66 to .87 of the edge for the largest value."""
    X = rng.standard_normal((10_000, 10))
    data = validate_data(X, rng.standard_normal(10_000), family="gaussian")
    count, spectrum = count_directions(low_orders_of(data))
    assert count == 0
    assert 0.5 < spectrum[0] < 1.2


def test_directions_lie_in_the_subspace(seed: int) -> None:
    """20,000 rows: each sine between direction and subspace is a few sqrt(d/n) = .02."""
    directions = np.linalg.qr(np.random.default_rng(7).standard_normal((8, 3)))[0]
    sample = simulate_mixture(
        20_000,
        8,
        3,
        family="gaussian",
        directions=directions,
        weights=[0.4, 0.35, 0.25],
        biases=[0.5, 0.0, -0.5],
        random_seed=seed,
    )
    low_orders = low_orders_of(validate_data(sample.X, sample.y, family="gaussian"))
    subspace = find_subspace(low_orders, 3)
    inside = np.linalg.norm(subspace.basis.T @ sample.directions, axis=0)
    assert inside.min() > np.cos(np.radians(15.0))
    assert count_directions(low_orders)[0] == 3


def test_third_order_where_the_second_vanishes(seed: int) -> None:
    """Bernoulli without biases has no second moment: two opposite slopes show in the third only."""
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 2)))[0]
    sample = simulate_mixture(
        200_000, 6, 2, scales=3.0, biases=0.0, directions=directions, random_seed=seed
    )
    low_orders = low_orders_of(validate_data(sample.X, sample.y, family="bernoulli"))
    subspace = find_subspace(low_orders, 2)
    assert subspace.uses_third_order
    inside = np.linalg.norm(subspace.basis.T @ sample.directions, axis=0)
    assert inside.min() > np.cos(np.radians(10.0))


def test_as_many_components_as_features_need_no_subspace(seed: int) -> None:
    sample = simulate_mixture(2000, 3, 3, family="poisson", random_seed=seed)
    low_orders = low_orders_of(validate_data(sample.X, sample.y, family="poisson"))
    for n_components in (3, 5):
        assert_array_equal(find_subspace(low_orders, n_components).basis, np.eye(3))
