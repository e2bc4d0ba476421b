"""`estimate` with several responses, or classes, that share component and direction."""

from typing import Any

import numpy as np
import pandas
import pytest

from moment_init import IdentifiabilityError, MomentEstimate, angles_in_degrees, estimate, fit_em
from moment_init.data.checking import validate_data
from moment_init.em.problem import pose_em
from moment_init.em.starts import tensor_starts
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.moments.result import StackedDiagnostics
from tests.joint_mixtures import FloatArray, JointData, matched, simulate_joint


def estimate_joint(data: JointData, family: Any, number: int, **more: Any) -> MomentEstimate:
    return estimate(data.X, data.y, number, family=family, random_seed=1, **more)


def shared_directions(data: JointData) -> FloatArray:
    """Directions of the truth, (n_features, n_components)."""
    return np.asarray(data.truth.slopes[0])


# Moments of one response alone do not show all directions of these data.
few_rows = pytest.mark.filterwarnings("ignore::moment_init.WeakSignalWarning")

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
    """Angles within five standard errors; scales with their signs."""
    data = simulate_joint(family, n_obs, 4, weights, 3, rng, is_tied=True, **options)
    found = estimate_joint(data, family, len(weights))
    coefficients, errors = found.coefficients, found.standard_errors
    assert coefficients is not None
    assert errors is not None
    assert found.weights is not None
    order = matched(found, data.truth)
    angles = angles_in_degrees(found.directions, shared_directions(data))
    assert np.all(angles < 5.0 * errors[order])
    assert errors.max() < 10.0
    lengths = np.linalg.norm(data.truth.coefficients, axis=1)
    assert np.abs(np.linalg.norm(coefficients[..., order], axis=1) / lengths - 1).max() < 0.3
    signs = np.einsum("adj,adj->aj", coefficients[..., order], data.truth.coefficients)
    assert signs.min() > 0.0
    assert np.abs(found.weights[order] - weights).max() < 0.06


@few_rows
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
            found.append(float(angles_in_degrees(directions, shared_directions(data)).max()))
    assert np.mean(angles[3]) < 0.8 * np.mean(angles[1])


@pytest.mark.filterwarnings("ignore:The moments show a direction")  # the counts have their own
def test_units_of_responses_and_inputs_do_not_matter(rng: np.random.Generator) -> None:
    """Responses in other units, inputs moved and scaled; one response is a count with an offset."""
    data = simulate_joint("gaussian", 3_000, 3, [0.6, 0.4], 2, rng, dispersion=0.4, is_tied=True)
    counts = rng.poisson(np.exp(0.3 * data.X[:, 0]))
    y = np.column_stack([data.y, counts])
    offset = np.column_stack([np.zeros((3_000, 2)), rng.standard_normal(3_000)])
    family = ["gaussian", "gaussian", "poisson"]
    plain, moved = (
        estimate(inputs, outputs, 2, family=family, offset=shift, random_seed=1)
        for inputs, outputs, shift in (
            (data.X, y, offset),
            (
                10.0 * data.X + 3.0,
                np.column_stack([100.0 * y[:, 0] + 7.0, y[:, 1] + 5.0, counts]),
                offset + np.array([0.0, 5.0, 0.0]),
            ),
        )
    )
    assert plain.scales is not None
    assert moved.scales is not None
    assert plain.dispersion is not None
    assert moved.dispersion is not None
    units = np.array([[100.0], [1.0], [1.0]])
    np.testing.assert_allclose(moved.directions, plain.directions, rtol=1e-6)
    np.testing.assert_allclose(moved.scales, units / 10.0 * plain.scales, rtol=1e-6)
    np.testing.assert_allclose(moved.dispersion, units * plain.dispersion, rtol=1e-6)
    assert np.isnan(plain.dispersion[2]).all()
    assert moved.log_likelihood is not None
    assert plain.log_likelihood is not None
    shift = 3_000 * np.log(100.0)
    np.testing.assert_allclose(moved.log_likelihood, plain.log_likelihood - shift, rtol=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_log_likelihood_is_that_of_the_parameters(family: str, rng: np.random.Generator) -> None:
    options: Any = {"dispersion": 0.4} if family == "gaussian" else {"scale": 3.0}
    data = simulate_joint(family, 2_000, 3, [0.6, 0.4], 2, rng, is_tied=True, **options)
    found = estimate_joint(data, family, 2)
    checked = validate_data(data.X, data.y, family=family)
    rows = LikelihoodRows(checked.X, checked.y, checked.sample_weight)
    if found.coefficients is None or found.biases is None or found.weights is None:
        pytest.fail("The estimate has no scales, biases or weights.")
    mixture = MixtureParameters(found.coefficients, found.biases, found.weights, found.dispersion)
    by_row = unit_log_likelihood(checked.family, rows, mixture)
    assert found.log_likelihood is not None
    np.testing.assert_allclose(found.log_likelihood, by_row.sum(), rtol=1e-10)
    assert found.response_family == checked.family


def test_moments_alone_hold_their_directions(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 4_000, 4, [0.6, 0.4], 3, rng, dispersion=0.4, is_tied=True)
    bare = estimate_joint(data, "gaussian", 2, polish=False)
    polished = estimate_joint(data, "gaussian", 2)
    assert polished.log_likelihood > bare.log_likelihood  # type: ignore[operator]
    assert angles_in_degrees(bare.directions, shared_directions(data)).max() < 20.0
    same = estimate_joint(data, "gaussian", 2)
    np.testing.assert_array_equal(same.directions, polished.directions)


def test_table(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 4_000, 3, [0.6, 0.4], 2, rng, dispersion=0.4, is_tied=True)
    named = data._replace(y=pandas.DataFrame(data.y, columns=["speed", "height"]))  # type: ignore[arg-type]
    found = estimate_joint(named, "gaussian", 2)
    lines = repr(found).splitlines()
    assert lines[0] == (
        "MomentEstimate: 2 components, 3 features, 2 responses, gaussian (identity), 4000 rows, "
        "status ok"
    )
    names = [line.split("  ")[0] for line in lines[2:]]
    assert names == [
        "x0",
        "x1",
        "x2",
        "scale of speed",
        "scale of height",
        "bias of speed",
        "bias of height",
        "weight",
        "dispersion of speed",
        "dispersion of height",
        "direction s.e. (degrees)",
    ]
    assert found._repr_html_().count("<td") == 2 * len(names)
    assert isinstance(found.diagnostics, StackedDiagnostics)
    assert found.diagnostics.spectrum.shape == (3,)


def test_datatree_has_a_dim_of_responses(rng: np.random.Generator) -> None:
    data = simulate_joint("categorical", 4_000, 3, [0.6, 0.4], 3, rng, scale=3.0, is_tied=True)
    found = estimate_joint(data, "categorical", 2)
    posterior = found.to_datatree()["posterior"]
    assert posterior["direction"].dims == ("chain", "draw", "feature", "component")
    assert posterior["scale"].dims == ("chain", "draw", "response", "component")
    assert posterior["bias"].dims == ("chain", "draw", "response", "component")
    assert posterior["coefficient"].dims == ("chain", "draw", "response", "feature", "component")
    assert posterior["weight"].dims == ("chain", "draw", "component")
    assert posterior["response"].to_numpy().tolist() == ["car", "train", "walk"]
    assert "moment_coefficient" not in posterior
    assert found.response_names == ("car", "train", "walk")
    assert found.outcome_names == ("bus", "car", "train", "walk")
    own = found.to_datatree()["moment_init"]
    assert own.attrs["reference_class"] == "bus"
    assert own["spectrum"].dims == ("order",)
    coefficients = found.scales[:, None] * found.directions  # type: ignore[index]
    np.testing.assert_array_equal(found.coefficients, coefficients)


@few_rows
def test_two_classes_are_a_binary_response(rng: np.random.Generator) -> None:
    """The second class in sorted order is one; everything but the names is the same."""
    data = simulate_joint("bernoulli", 5_000, 3, [0.6, 0.4], 1, rng, scale=3.0)
    numbers = data.y[:, 0]
    plain = estimate(data.X, numbers, 2, family="bernoulli", random_seed=1)
    labels = np.where(numbers > 0.0, "yes", "no")
    found = estimate(data.X, labels, 2, family="categorical", random_seed=1)
    np.testing.assert_array_equal(found.coefficients, plain.coefficients)
    assert found.log_likelihood == plain.log_likelihood
    assert (found.family, found.link) == ("categorical", "softmax")
    assert found.response_names == ("yes",)
    assert found.classes is not None
    assert found.classes.tolist() == ["no", "yes"]
    assert found.to_datatree()["posterior"]["bias"].dims == ("chain", "draw", "component")
    assert "2 classes, categorical (softmax)" in repr(found)


@few_rows
def test_one_column_is_one_response(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 2_000, 3, [0.6, 0.4], 1, rng)
    column, vector = (
        estimate(data.X, y, 2, family="poisson", random_seed=1) for y in (data.y, data.y[:, 0])
    )
    np.testing.assert_array_equal(column.coefficients, vector.coefficients)
    assert column.response_names == ()


def test_estimate_is_a_start(rng: np.random.Generator) -> None:
    data = simulate_joint("poisson", 2_000, 3, [0.6, 0.4], 2, rng, is_tied=True)
    found = estimate_joint(data, "poisson", 2)
    fit = fit_em(data.X, data.y, 2, family="poisson", init=found)
    assert found.log_likelihood is not None
    # The tied mixture is one of the free ones.
    assert fit.log_likelihood >= found.log_likelihood - 1e-6
    n_ties = 2 * (3 - 1)
    assert fit.log_likelihood < found.log_likelihood + 10.0 * n_ties


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_starts_of_a_fit_are_in_its_coordinates(family: str, rng: np.random.Generator) -> None:
    """In the user's units they are near the truth, whatever the coordinates of the problem."""
    options: Any = {"dispersion": 0.3} if family == "gaussian" else {"scale": 3.0}
    data = simulate_joint(family, 8_000, 3, [0.6, 0.4], 2, rng, is_tied=True, **options)
    mixing = np.array([[2.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.1]])
    checked = validate_data(data.X @ mixing + 5.0, data.y, family=family)
    problem = pose_em(checked, 2)
    starts, _ = tensor_starts(problem, checked, rng)
    assert starts[0][0] == "tensor 1"
    user = problem.to_user(starts[0][1])
    truth = np.linalg.solve(mixing, data.truth.coefficients)
    for a in range(2):
        angles = angles_in_degrees(mixing @ user.coefficients[a], mixing @ truth[a])
        assert angles.max() < 15.0
    discrete = np.column_stack([data.X[:, :2], rng.integers(2, size=8_000)])
    checked = validate_data(discrete, data.y, family=family)
    assert tensor_starts(pose_em(checked, 2), checked, rng) == ([], False)


def test_groups_are_not_used(rng: np.random.Generator) -> None:
    data = simulate_joint("gaussian", 2_000, 3, [0.6, 0.4], 2, rng, dispersion=0.4, is_tied=True)
    plain = estimate_joint(data, "gaussian", 2)
    with pytest.warns(UserWarning, match="`groups` is not used"):
        grouped = estimate_joint(data, "gaussian", 2, groups=np.arange(2_000) // 4)
    np.testing.assert_array_equal(grouped.directions, plain.directions)


def test_refusals(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((200, 2)), rng.poisson(1.0, (200, 2))
    estimate_any: Any = estimate
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "power"}, "`method` must be 'stacked'"),
        ({"n_components": "auto"}, "`n_components` must be an integer"),
        ({"known_scales": 1.0}, "`known_scales` must be None"),
        ({"known_biases": 1.0}, "`known_biases` must be None"),
        ({"n_components": 150}, "more than n_features"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            estimate_any(X, y, **({"n_components": 2, "family": "poisson"} | options))
    with pytest.raises(IdentifiabilityError, match="at most the number of features"):
        estimate(X, y, 3, family="poisson")
    discrete = np.column_stack([X[:, 0], rng.integers(2, size=200)])
    with pytest.raises(IdentifiabilityError, match="continuous columns"):
        estimate(discrete, y, 2, family="poisson")
