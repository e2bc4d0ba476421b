"""The number of components: criteria, cross-validation, and folds that keep groups together."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import moment_init.em.selection as selection
from moment_init.em.assembly import assemble_fit
from moment_init.em.problem import pose_em, validate_restrictions
from moment_init.em.result import EMFit
from moment_init.em.runs import Runs
from moment_init.em.selection import ComponentChoice, select_components
from moment_init.em.starts import random_assignment
from moment_init.results import StartRecord, StartStatus

N_STARTS = 6
"""Random starts of a well separated mixture of two lines: one in two finds it."""


class Fits:
    """A small `fit_em` from random starts, which remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, X: Any, y: Any, n_components: int, **asked: Any) -> EMFit:
        self.calls.append({"X": X, "y": y, "n_components": n_components, **asked})
        rng = np.random.default_rng(asked.pop("random_seed"))
        shared = asked.pop("shared", None)
        data = X  # which are rows that have been checked
        assert y is None
        assert {*asked} <= {"progressbar"}
        problem = pose_em(
            data,
            n_components,
            restrictions=validate_restrictions(data, n_components, shared=shared),
        )
        ends = [
            problem.climb(random_assignment(problem, rng), max_steps=100, em_steps=20)
            for _ in range(N_STARTS)
        ]
        end = max(ends, key=lambda run: run.log_likelihood)
        record = StartRecord("random 0", end.log_likelihood, end.n_iter, StartStatus.CONVERGED)
        return assemble_fit(problem, data, end, Runs(problem, [record]))


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    stub = Fits()
    monkeypatch.setattr(selection, "fit_em", stub)
    return stub


def two_lines(rng: np.random.Generator, n_obs: int = 400) -> tuple[pd.DataFrame, Any, Any]:
    """Two crossing lines, deviation .2; five rows of a group share theirs."""
    groups = np.arange(n_obs) // 5
    labels = rng.integers(2, size=n_obs // 5)[groups]
    X = pd.DataFrame({"a": rng.standard_normal(n_obs), "b": rng.standard_normal(n_obs)})
    slopes = np.array([[2.0, -1.0], [0.5, 1.5]])
    y = np.sum(X.to_numpy() * slopes[labels], axis=1) + 0.2 * rng.standard_normal(n_obs)
    shuffle = rng.permutation(n_obs)
    return X.iloc[shuffle], y[shuffle], groups[shuffle]


@pytest.mark.parametrize("criterion", ["bic", "icl", "cv"])
def test_the_number_is_found(criterion: Any, fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng)
    choice = select_components(
        X, y, range(1, 4), family="gaussian", criterion=criterion, n_folds=3, random_seed=1
    )
    if criterion == "cv":  # held-out rows tell 1 from 2, and hardly 2 from 3
        table = choice.table.set_index("n_components")
        gain = table["cv_score"][2] - table["cv_score"][1]
        assert gain > 5 * table["cv_error"].max()
        assert choice.chosen == table["cv_score"].idxmax()
    else:
        assert choice.chosen == 2
    assert choice.fit.n_components == choice.chosen
    assert choice.criterion == criterion


def test_table_holds_the_criteria_of_every_fit(fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng)
    choice = select_components(X, y, [2, 1, 2], family="gaussian", criterion="aic", random_seed=1)
    columns = [
        "n_components",
        "log_likelihood",
        "n_parameters",
        "aic",
        "bic",
        "icl",
        "status",
        "bounds",
    ]
    assert list(choice.table.columns) == columns
    assert list(choice.table["n_components"]) == [1, 2]
    row = choice.table.iloc[1]
    for name in ("log_likelihood", "n_parameters", "aic", "bic", "icl"):
        assert row[name] == getattr(choice.fit, name)
    assert row["status"] == "ok"
    assert len(fits.calls) == 2


def test_folds_are_the_same_for_all_numbers_and_keep_groups(
    fits: Fits, rng: np.random.Generator
) -> None:
    X, y, groups = two_lines(rng)
    data = {"groups": groups, "sample_weight": rng.uniform(0.5, 2.0, len(y))}
    select_components(
        X, y, [1, 2], family="gaussian", criterion="cv", n_folds=4, random_seed=3, **data
    )
    assert len(fits.calls) == 2 * (1 + 4)
    for first, second in zip(fits.calls[1:5], fits.calls[6:], strict=True):
        assert_array_equal(first["X"].X, second["X"].X)
        kept = set(first["X"].groups)
        assert first["X"].n_obs == 5 * len(kept)
        assert len(kept) == 60
    held_out = [set(groups) - set(call["X"].groups) for call in fits.calls[1:5]]
    assert set.union(*held_out) == set(groups)
    assert sum(map(len, held_out)) == 80


def test_cross_validated_score_by_hand(fits: Fits, rng: np.random.Generator) -> None:
    """Mean over held-out rows of their log density under the fit to the others."""
    X, y, _ = two_lines(rng)
    weight = rng.uniform(0.5, 2.0, len(y))
    choice = select_components(
        X, y, [2], family="gaussian", criterion="cv", n_folds=2, random_seed=5, sample_weight=weight
    )
    calls = list(fits.calls)
    values = np.zeros(len(X))
    for call in calls[1:]:
        fit = fits(**call)
        for at in np.flatnonzero(~np.isin(y, call["X"].y)).tolist():
            values[at] = fit.score(X.iloc[[at]], y[[at]])
    mean = np.average(values, weights=weight)
    variance = np.average(np.square(values - mean), weights=weight)
    row = choice.table.iloc[0]
    assert_allclose(row["cv_score"], mean, rtol=1e-10)
    assert_allclose(row["cv_error"], np.sqrt(variance / weight.sum()), rtol=1e-10)


def test_everything_reaches_the_fit(fits: Fits, rng: np.random.Generator) -> None:
    """Names of columns survive the folds, which `shared` needs; a number of trials is kept."""
    X, _, _ = two_lines(rng)
    y = rng.binomial(4, 0.5, len(X))
    gating = pd.DataFrame({"z": rng.standard_normal(len(X))})
    choice = select_components(
        X, y, [1], family="binomial", link="probit", n_trials=4, offset=np.zeros(len(X)),
        gating=gating, shared="a", criterion="cv", n_folds=2, random_seed=7,
    )  # fmt: skip
    for call in fits.calls:
        data = call["X"]
        assert (data.family.name, data.family.link_name) == ("binomial", "probit")
        assert (call["shared"], call["random_seed"]) == ("a", 7)
        assert data.feature_names == ("a", "b")
        assert_array_equal(data.n_trials, np.full(data.n_obs, 4.0))
        assert len(data.gating) == len(data.offset) == data.n_obs
    assert isinstance(choice.fit, EMFit)
    assert choice.fit.gate_names == ("z",)


def test_same_seed_same_choice(fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng, n_obs=100)

    def table(seed: Any) -> pd.DataFrame:
        options: dict[str, Any] = {"family": "gaussian", "criterion": "cv", "n_folds": 2}
        return select_components(X, y, [2], random_seed=seed, **options).table

    pd.testing.assert_frame_equal(table(11), table(11))
    first, second = (table(np.random.default_rng(11)) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_printed_table(fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng)
    choice = select_components(
        X, y, [1, 2], family="gaussian", criterion="cv", n_folds=2, random_seed=1
    )
    lines = repr(choice).splitlines()
    assert lines[0] == "ComponentChoice: 2 components by cv"
    assert lines[1].split() == list(choice.table.columns)
    assert lines[3].split()[0] == "2"
    assert lines[3].endswith("chosen")
    assert not lines[2].endswith("chosen")
    assert f"{choice.fit.bic:.1f}" in lines[3]
    html = choice._repr_html_()
    assert html.count("<tr>") == 3
    assert html.count("chosen") == 1
    assert isinstance(choice, ComponentChoice)


def heaped_rows(rng: np.random.Generator) -> tuple[Any, Any]:
    """Two lines, and a heap of 20 rows whose response is exactly zero."""
    x, labels = rng.standard_normal(120), rng.integers(2, size=120)
    y = np.where(labels == 1, 1 + 2 * x, -1 - x) + 0.4 * rng.standard_normal(120)
    y[:20] = 0.0
    return x[:, None], y


def test_a_choice_by_a_collapsed_variance_is_doubted(rng: np.random.Generator) -> None:
    """BIC prefers more than the two lines, because a heap has no variance."""
    X, y = heaped_rows(rng)
    with pytest.warns(UserWarning, match="is not identified; among the others bic") as issued:
        choice = select_components(X, y, range(1, 5), family="gaussian", random_seed=1)
    assert len(issued) == 1
    table = choice.table.set_index("n_components")
    assert choice.chosen > 2
    assert "dispersion ratio of component" in table["bounds"][choice.chosen]
    assert table["status"][choice.chosen] in {"not_identified", "not_converged"}
    sound = table.index[table["bounds"] == ""]
    assert choice.sound is not None
    assert choice.sound == table["bic"][sound].idxmin()
    lines = repr(choice).splitlines()
    assert lines[1 + choice.chosen].endswith("chosen, not identified")
    assert lines[1 + choice.sound].endswith("chosen among the identified")
    assert f"! The chosen fit with {choice.chosen} components is not identified" in repr(choice)
    assert "<li>The chosen fit with" in choice._repr_html_()


def test_the_same_names_as_in_a_fit(rng: np.random.Generator) -> None:
    """With one common variance no component can collapse, and two lines are chosen."""
    X, y = heaped_rows(rng)
    options: dict[str, Any] = {"shared": "dispersion", "progressbar": False}
    choice = select_components(X, y, [1, 2], family="gaussian", random_seed=1, **options)
    assert choice.chosen == choice.sound == 2
    assert choice.warnings == ()
    assert choice.fit.dispersion is not None
    assert_allclose(*choice.fit.dispersion)
    options = {"priors": "default", "shared": "x0", "fixed_weights": [0.7, 0.3]}
    choice = select_components(X, y, [2], family="gaussian", random_seed=1, **options)
    assert choice.fit.priors is not None
    assert_allclose(*choice.fit.coefficients[0])
    assert_allclose(choice.fit.weights, [0.7, 0.3])


def test_no_fit_may_be_identified(fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng, n_obs=10)
    y = np.zeros(10) + X["a"].to_numpy()
    with pytest.warns(UserWarning, match="is not identified; none of the others is"):
        choice = select_components(X, y, [2], family="gaussian", random_seed=1)
    assert choice.sound is None


def test_a_fold_that_fails_is_named(fits: Fits, rng: np.random.Generator) -> None:
    X, y, _ = two_lines(rng)
    X = X.assign(rare=(np.arange(len(X)) == 0).astype(float))
    with pytest.raises(ValueError, match="rare") as caught:
        select_components(X, y, [1], family="gaussian", criterion="cv", random_seed=1)
    assert any("of 5 with 1 components" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"criterion": "dic"}, ValueError, "`criterion` must be one of 'bic', .*got 'dic'"),
        ({"candidates": []}, ValueError, "`candidates` must hold at least one"),
        ({"candidates": 3}, TypeError, "`candidates` must be a sequence.*got 3"),
        ({"candidates": [0]}, ValueError, "`n_components` must be between 1"),
        ({"candidates": [1.5]}, TypeError, "`n_components` must be an integer"),
        ({"criterion": "cv", "n_folds": 1}, ValueError, "`n_folds` must be a whole .*got 1"),
        ({"criterion": "cv", "n_folds": 401}, ValueError, r"number of units \(400\); got 401"),
        ({"criterion": "cv", "n_folds": 2.0}, ValueError, "`n_folds` must be a whole number"),
        ({"family": "poisson"}, ValueError, "`y` must hold"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
    fits: Fits,
    rng: np.random.Generator,
) -> None:
    X, y, _ = two_lines(rng)
    asked = {"candidates": [1], "family": "gaussian", **options}
    with pytest.raises(kind, match=message):
        select_components(X, y, **asked)
    assert fits.calls == []
