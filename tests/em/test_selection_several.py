"""`select_components` with several responses, and with classes."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import fit_em, select_components
from tests.joint_mixtures import JointData, simulate_joint, simulate_labelled

QUICK: dict[str, Any] = {"init": "random", "n_starts": 4, "random_seed": 1}


def two_components(family: str, data_seed: int) -> JointData:
    """Rows of which the second component is worth more than its parameters cost."""
    rng = np.random.default_rng(data_seed)
    if family == "gaussian":
        return simulate_joint(family, 300, 2, [0.6, 0.4], 2, rng, dispersion=0.4)
    return simulate_joint(family, 3_000, 2, [0.6, 0.4], 2, rng, scale=5.0)


@pytest.mark.filterwarnings("ignore:The search did not converge")  # of one component too many
@pytest.mark.parametrize("data_seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("family", "candidates"), [("gaussian", [1, 2, 3]), ("categorical", [1, 2])]
)
def test_the_number_is_found(family: str, candidates: list[int], data_seed: int) -> None:
    data = two_components(family, data_seed)
    found = select_components(data.X, data.y, candidates, family=family, **QUICK)
    assert found.chosen == 2
    assert found.table["n_components"].tolist() == candidates
    own = fit_em(data.X, data.y, 2, family=family, **QUICK)
    assert found.fit.log_likelihood == pytest.approx(own.log_likelihood, abs=1e-8)
    assert found.table["bic"][1] == pytest.approx(own.bic)


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_held_out_rows_find_the_number(family: str) -> None:
    data = two_components(family, 1)
    options: dict[str, Any] = {"criterion": "cv", "n_folds": 3, **QUICK}
    found = select_components(data.X, data.y, [1, 2], family=family, **options)
    one, two = found.table["cv_score"]
    assert found.chosen == 2
    assert two - one > 5.0 * found.table["cv_error"].max()


def test_the_score_is_that_of_held_out_rows() -> None:
    """Folds by hand: two fits, each scored on the rows of the other, with their weights."""
    data = two_components("gaussian", 1)
    weight = 1.0 + np.arange(300) % 2
    names: dict[str, Any] = {"family": "gaussian", **QUICK}
    y = pd.DataFrame(data.y, columns=["spent", "saved"])
    found = select_components(
        data.X, y, [1], criterion="cv", n_folds=2, sample_weight=weight, **names
    ).table.loc[0]
    fold = np.random.default_rng(1).permutation(np.arange(300) % 2)
    total = 0.0
    for held in (0, 1):
        out = fold == held
        fit = fit_em(data.X[~out], y[~out], 1, sample_weight=weight[~out], **names)
        score = fit.score(data.X[out], y[out], sample_weight=weight[out])
        total += weight[out].sum() * score
    assert_allclose(found["cv_score"], total / weight.sum(), rtol=1e-9)


def test_groups_stay_together_and_a_gate_is_used(rng: np.random.Generator) -> None:
    n_groups, size = 60, 5
    g = rng.standard_normal(n_groups)
    of_group = (rng.random(n_groups) > 1 / (1 + np.exp(-2.0 * g))).astype(np.intp)
    groups, label = np.repeat(np.arange(n_groups), size), np.repeat(of_group, size)
    data = simulate_labelled("poisson", label, rng)
    options: dict[str, Any] = {"groups": groups, "gating": g[groups][:, None], **QUICK}
    for criterion in ("bic", "cv"):
        found = select_components(
            data.X, data.y, [1, 2], family="poisson", criterion=criterion, n_folds=3, **options
        )
        assert found.chosen == 2
        assert found.fit.gate is not None
        assert found.fit.n_units == n_groups


def test_a_formula_keeps_its_design() -> None:
    data = two_components("gaussian", 1)
    frame = pd.DataFrame(np.hstack([data.X, data.y]), columns=["a", "b", "y", "z"])
    found = select_components("y + z ~ a + b", frame, [1, 2], **QUICK)
    assert found.chosen == 2
    assert found.fit.predict(frame).shape == (300, 2)
