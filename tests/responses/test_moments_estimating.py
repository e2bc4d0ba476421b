"""`estimate` with several responses that share component and direction."""

from typing import Any

import numpy as np
import pytest

from moment_init import IdentifiabilityError, angles_in_degrees, estimate, fit_em
from moment_init.responses.assembly import JointEstimate
from tests.joint_mixtures import JointData, matched, simulate_joint


def estimate_joint(data: JointData, family: Any, number: int, **more: Any) -> JointEstimate:
    """An estimate, for the type checker known to be one of several responses."""
    found: Any = estimate(data.X, data.y, number, family=family, random_seed=1, **more)
    assert isinstance(found, JointEstimate)
    return found


CASES = [
    ("gaussian", {"dispersion": 0.3}, 3_000, [0.5, 0.3, 0.2]),
    ("poisson", {}, 6_000, [0.5, 0.3, 0.2]),
    ("bernoulli", {"scale": 3.0}, 10_000, [0.6, 0.4]),
    ("categorical", {"scale": 3.0}, 10_000, [0.6, 0.4]),
]


@pytest.mark.parametrize(("family", "options", "n_obs", "weights"), CASES)
def test_recovery(
    family: str,
    options: dict[str, Any],
    n_obs: int,
    weights: list[float],
    rng: np.random.Generator,
) -> None:
    """Angles within four of their own root mean squares; scales with their signs."""
    data = simulate_joint(family, n_obs, 4, weights, 3, rng, is_tied=True, **options)
    found = estimate_joint(data, family, len(weights))
    order = matched(found, data.truth)
    directions = data.truth.coefficients[:, :, 0]
    angles = angles_in_degrees(found.directions, directions)
    assert np.all(angles < 4.0 * found.standard_errors[order])
    assert found.standard_errors.max() < 10.0
    lengths = np.linalg.norm(data.truth.coefficients, axis=0)
    assert np.abs(np.linalg.norm(found.coefficients[:, order], axis=0) / lengths - 1).max() < 0.3
    signs = np.einsum("djk,djk->jk", found.coefficients[:, order], data.truth.coefficients)
    assert signs.min() > 0.0
    assert np.abs(found.weights[order] - weights).max() < 0.06


def test_three_responses_are_better_than_one(rng: np.random.Generator) -> None:
    """Both see the same rows; over eight data sets the mean angle of three is far smaller."""
    angles: dict[int, list[float]] = {1: [], 3: []}
    for own in rng.spawn(8):
        data = simulate_joint(
            "gaussian", 1_500, 4, [0.6, 0.4], 3, own, dispersion=0.5, is_tied=True
        )
        for k, found in angles.items():
            few = data._replace(y=data.y[:, :k])
            directions = estimate_joint(few, "gaussian", 2).directions
            truth = data.truth.coefficients[:, :, 0]
            found.append(float(angles_in_degrees(directions, truth).max()))
    assert np.mean(angles[3]) < 0.8 * np.mean(angles[1])


def test_moments_alone_hold_their_directions(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 4_000, 4, [0.6, 0.4], 3, rng, dispersion=0.4, is_tied=True)
    bare = estimate_joint(data, "gaussian", 2, polish=False)
    polished = estimate_joint(data, "gaussian", 2)
    assert np.isnan(bare.standard_errors).all()
    assert polished.log_likelihood > bare.log_likelihood
    angles = angles_in_degrees(bare.directions, data.truth.coefficients[:, :, 0])
    assert angles.max() < 20.0
    lines = repr(polished).splitlines()
    assert lines[0].startswith("JointEstimate: 2 components, 4 features, 3 outcomes, gaussian")
    assert lines[-1] == f"{'weight':<16}" + "".join(f"{w:>13.3f}" for w in polished.weights)
    assert polished._repr_html_().count("<td") == 2 * (len(lines) - 2)
    same = estimate_joint(data, "gaussian", 2)
    np.testing.assert_array_equal(same.directions, polished.directions)


def test_estimate_is_a_start(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 2_000, 3, [0.6, 0.4], 2, rng, is_tied=True)
    found: Any = estimate_joint(data, "poisson", 2)
    fit: Any = fit_em(data.X, data.y, 2, family="poisson", init=found)
    # The tied mixture is one of the free ones.
    assert fit.log_likelihood >= found.log_likelihood - 1e-6
    n_ties = 2 * (3 - 1)
    assert fit.log_likelihood < found.log_likelihood + 10.0 * n_ties
    tree = found.to_datatree()
    assert tree["posterior"]["scale"].dims == ("chain", "draw", "component", "response")
    assert tree["posterior"]["direction"].dims == ("chain", "draw", "feature", "component")
    np.testing.assert_allclose(
        found.coefficients, found.directions[:, :, None] * found.scales[None]
    )


def test_refusals(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((200, 2)), rng.poisson(1.0, (200, 2))
    estimate_any: Any = estimate
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "power"}, "`method`"),
        ({"n_components": "auto"}, "`n_components`"),
        ({"phi": np.square}, "`phi`"),
        ({"known_scales": 1.0}, "`known_scales`"),
        ({"groups": np.arange(200)}, "`groups`"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            estimate_any(X, y, **({"n_components": 2, "family": "poisson"} | options))
    with pytest.raises(IdentifiabilityError, match="at most the number of features"):
        estimate(X, y, 3, family="poisson")
    discrete = np.column_stack([X[:, 0], rng.integers(2, size=200)])
    with pytest.raises(IdentifiabilityError, match="continuous columns"):
        estimate(discrete, y, 2, family="poisson")
