"""Random starts of both kinds, how they are run and counted."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from moment_init import EMFit, fit_em
from moment_init.data.checking import validate_data
from moment_init.em import fitting, runs
from moment_init.em.problem import EMProblem, pose_em, validate_restrictions
from moment_init.em.starts import (
    RandomStart,
    has_moments,
    random_assignment,
    random_parameters,
    tensor_starts,
)
from moment_init.likelihood.sums import likelihood_sums
from moment_init.results import StartStatus
from tests.likelihood_problems import FAMILY_LINKS, Problem, make_problem

KINDS: list[RandomStart] = ["assignment", "coefficients"]


def pose(problem: Problem, n_components: int = 2, **restrictions: Any) -> EMProblem:
    rows = problem.rows
    data = validate_data(
        rows.Z,
        rows.y,
        family=problem.family.name,
        link=problem.family.link.name,
        n_trials=rows.n_trials,
        gating=restrictions.pop("gating", None),
    )
    held = validate_restrictions(data, n_components, **restrictions)
    return pose_em(data, n_components, restrictions=held)


def fit_random(problem: Problem, **options: Any) -> EMFit:
    settings = {"init": "random", "random_seed": 3, "progressbar": False, **options}
    return fit_em(problem.rows.Z, problem.rows.y, 2, family=problem.family.name, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "link"), FAMILY_LINKS)
def test_random_starts_are_inside_and_finite(
    family: str, link: str, kind: RandomStart, rng: np.random.Generator
) -> None:
    problem = pose(make_problem(family, link, rng, n_obs=100, with_extras=False), 3)
    start = random_parameters(problem, kind, 1, rng)
    assert start.n_components == 3
    assert_allclose(start.weights.sum(), 1.0)
    assert start.weights.min() > 0.0
    assert np.isfinite(likelihood_sums(problem.family, problem.rows, start).log_likelihood)
    other = random_parameters(problem, kind, 1, rng)
    assert not np.allclose(start.coefficients, other.coefficients)


@pytest.mark.parametrize("kind", KINDS)
def test_random_starts_satisfy_restrictions(kind: RandomStart, rng: np.random.Generator) -> None:
    drawn = make_problem("gaussian", "identity", rng, n_obs=100, with_extras=False)
    held: dict[str, Any] = {"shared": [1, "dispersion"], "fixed_weights": [0.2, 0.8]}
    problem = pose(drawn, **held)
    start = random_parameters(problem, kind, 1, rng)
    user = problem.to_user(start)
    assert_allclose(user.coefficients[1, 0], user.coefficients[1, 1])
    assert start.dispersion is not None
    assert_allclose(start.dispersion[0], start.dispersion[1])
    assert_allclose(start.weights, [0.2, 0.8])


def test_assignment_by_hand(rng: np.random.Generator) -> None:
    """With shares .9 and .1 the components of least squares are weighted regressions."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=60, with_extras=False)
    problem = pose(drawn)
    start = random_assignment(problem, np.random.default_rng(7))
    chosen = np.random.default_rng(7).integers(2, size=60)
    design = np.column_stack([np.asarray(problem.rows.Z), np.ones(60)])
    for j in range(2):
        root = np.sqrt(np.where(chosen == j, 0.9, 0.1))
        expected = np.linalg.lstsq(design * root[:, None], problem.rows.y * root)[0]
        # twelve Newton steps in coefficients and deviation at once
        assert_allclose(np.append(start.coefficients[:, j], start.biases[j]), expected, atol=1e-6)
    assert_allclose(start.weights[0], np.mean(np.where(chosen == 0, 0.9, 0.1)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_start_is_on_record(kind: RandomStart, rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, with_extras=False)
    fit = fit_random(problem, n_starts=6, random_start=kind)
    assert [start.origin for start in fit.starts] == [f"random {rank}" for rank in range(1, 7)]
    ends = np.array([start.log_likelihood for start in fit.starts])
    assert fit.log_likelihood == ends.max()
    assert all(start.status is StartStatus.CONVERGED for start in fit.starts)
    assert fit.share_of_best == np.mean(ends > ends.max() - 0.1)
    assert list(fit.starts_table["origin"]) == [start.origin for start in fit.starts]


def test_ten_starts_by_default(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=100, with_extras=False)
    assert len(fit_random(problem).starts) == 10


def test_the_number_of_workers_changes_nothing(rng: np.random.Generator) -> None:
    """Rows are large enough for joblib to pass them on as files."""
    problem = make_problem("poisson", "log", rng, n_obs=50_000, with_extras=False)
    options: dict[str, Any] = {"n_starts": 3, "max_iter": 20, "tolerance": 1.0}
    alone, together = (fit_random(problem, n_jobs=n_jobs, **options) for n_jobs in (1, 2))
    assert alone.history == together.history
    assert_array_equal(alone.coefficients, together.coefficients)
    assert_array_equal(alone.responsibilities, together.responsibilities)
    for first, second in zip(alone.starts, together.starts, strict=True):
        assert first.log_likelihood == second.log_likelihood
        assert (first.origin, first.n_iter) == (second.origin, second.n_iter)


def test_further_starts_do_not_change_the_first(rng: np.random.Generator) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=100, with_extras=False)
    few, more = (fit_random(problem, n_starts=n_starts) for n_starts in (2, 4))
    assert few.starts[1].log_likelihood == more.starts[1].log_likelihood


def test_a_start_that_breaks_down_is_counted(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem("poisson", "log", rng, n_obs=100, with_extras=False)
    whole = fit_random(problem, n_starts=3)
    calls: list[int] = []

    def sometimes(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise np.linalg.LinAlgError("no factor")
        return random_parameters(*arguments)

    monkeypatch.setattr(runs, "random_parameters", sometimes)
    fit = fit_random(problem, n_starts=3)
    assert [str(start.status) for start in fit.starts] == ["converged", "failed", "converged"]
    assert fit.starts[1].message == "no factor"
    assert np.isnan(fit.starts[1].log_likelihood)
    assert fit.starts[2].log_likelihood == whole.starts[2].log_likelihood
    assert fit.reached_best[1] == 2


def test_only_all_starts_failing_raises(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise FloatingPointError("overflow")

    monkeypatch.setattr(runs, "random_parameters", never)
    problem = make_problem("poisson", "log", rng, n_obs=100, with_extras=False)
    with pytest.raises(ValueError, match=r"got 2 starts that all .*\(random 1\) is: overflow"):
        fit_random(problem, n_starts=2)


def test_moments_that_fail_leave_the_other_origins(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise np.linalg.LinAlgError("no moments")

    monkeypatch.setattr(fitting, "tensor_starts", failing)
    problem = make_problem("gaussian", "identity", rng, n_obs=400, with_extras=False)
    fit = fit_random(problem, init="search")
    failed = [start for start in fit.starts if start.status is StartStatus.FAILED]
    assert [(start.origin, start.message) for start in failed] == [("tensor", "no moments")]
    assert fit.converged


def test_moments_start_near_the_maximum(rng: np.random.Generator) -> None:
    """Their coordinates are those of the problem: the first candidate is close as it is."""
    drawn = make_problem("gaussian", "identity", rng, n_obs=4000, with_extras=False)
    X = np.asarray(drawn.rows.Z) * [3.0, 0.2, 1.0] + [10.0, -4.0, 0.0]
    data = validate_data(X, 5.0 * drawn.rows.y - 2.0, family="gaussian")
    problem = pose_em(data, 2)
    ((origin, first), *_), _ = tensor_starts(problem, data, rng)
    end = problem.climb(first, max_steps=100).parameters
    assert origin == "tensor 1"
    # errors of these moments are about .03 at 4,000 rows; in other units they would be far off
    assert_allclose(first.coefficients, end.coefficients, atol=0.1)
    assert_allclose(first.biases, end.biases, atol=0.1)


@pytest.mark.parametrize(
    ("X", "n_components", "expected"),
    [
        (np.random.default_rng(1).standard_normal((100, 3)), 3, True),
        (np.random.default_rng(1).standard_normal((100, 3)), 4, False),  # more than columns
        (np.random.default_rng(1).standard_normal((59, 3)), 2, False),  # 20 rows a column
        (np.random.default_rng(1).integers(0, 5, (100, 3)), 2, False),  # discrete
    ],
)
def test_where_moments_apply(X: Any, n_components: int, expected: bool) -> None:
    data = validate_data(X, np.arange(len(X)), family="poisson")
    assert has_moments(data, n_components) is expected
