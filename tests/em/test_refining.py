"""From the maximum of a sample towards that of all units."""

import numpy as np

from moment_init import simulate_mixture
from moment_init.data import validate_data
from moment_init.em.posing import pose_em
from moment_init.em.refining import refine
from moment_init.likelihood.parameters import MixtureParameters


def test_more_units_bring_a_sample_nearer_to_all(seed: int) -> None:
    """A sample of 400 of 20,000 counts; where it is half of the units, nothing is done."""
    data = simulate_mixture(20_000, 3, 2, family="poisson", weights=[0.7, 0.3], random_seed=seed)
    problem = pose_em(validate_data(data.X, data.y, family="poisson"), 2).prepared()
    truth = problem.to_standardised(MixtureParameters(data.coefficients, data.biases, data.weights))
    sample = problem.with_rows(problem.rows.take(np.arange(400)))
    found = sample.climb(truth, max_steps=60).parameters
    assert refine(problem, found, 10_000) is found
    before, after, best = (
        problem.climb(start, max_steps=n_steps).log_likelihood
        for start, n_steps in ((found, 0), (refine(problem, found, 400), 0), (truth, 60))
    )
    # every fourth unit leaves about 3/2 for each of the 9 parameters; a sample of 400 about 200
    assert best - after < 50.0
    assert after > before
