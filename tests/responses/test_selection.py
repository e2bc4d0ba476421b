"""`select_components` with several responses, and with classes."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from moment_init import fit_em, select_components
from tests.joint_mixtures import JointData, simulate_joint

QUICK: dict[str, Any] = {"init": "random", "n_starts": 4, "random_seed": 1}

fit_any: Any = fit_em
select_any: Any = select_components


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
    found = select_any(data.X, data.y, candidates, family=family, **QUICK)
    assert found.chosen == 2
    assert found.table["n_components"].tolist() == candidates
    own = fit_any(data.X, data.y, 2, family=family, **QUICK)
    assert found.fit.log_likelihood == pytest.approx(own.log_likelihood, abs=1e-8)
    assert found.table["bic"][1] == pytest.approx(own.bic)


def test_held_out_rows_find_the_number() -> None:
    data = two_components("gaussian", 1)
    found = select_any(
        data.X, data.y, [1, 2], family="gaussian", criterion="cv", n_folds=3, **QUICK
    )
    one, two = found.table["cv_score"]
    assert found.chosen == 2
    assert two - one > 5.0 * found.table["cv_error"].max()


def test_the_score_is_that_of_held_out_rows() -> None:
    """Folds by hand: two fits, each scored on the rows of the other, with their weights."""
    data = two_components("gaussian", 1)
    weight = 1.0 + np.arange(300) % 2
    names = {"family": "gaussian", **QUICK}
    y = pd.DataFrame(data.y, columns=["spent", "saved"])
    found = select_any(
        data.X, y, [1], criterion="cv", n_folds=2, sample_weight=weight, **names
    ).table.loc[0]
    fold = np.random.default_rng(1).permutation(np.arange(300) % 2)
    total = 0.0
    for held in (0, 1):
        out = fold == held
        fit = fit_any(data.X[~out], y[~out], 1, sample_weight=weight[~out], **names)
        total += weight[out] @ fit.log_densities(data.X[out], y[out])
    assert_allclose(found["cv_score"], total / weight.sum(), rtol=1e-9)


def test_a_formula_keeps_its_design() -> None:
    data = two_components("gaussian", 1)
    frame = pd.DataFrame(np.hstack([data.X, data.y]), columns=["a", "b", "y", "z"])
    found = select_any("y + z ~ a + b", frame, [1, 2], **QUICK)
    assert found.chosen == 2
    assert found.fit.predict(frame).shape == (300, 2)


def test_what_is_refused() -> None:
    data = two_components("gaussian", 1)
    for name, value in (("groups", np.arange(300)), ("gating", data.X)):
        with pytest.raises(ValueError, match=f"`{name}` must be left out of `select_components`"):
            select_any(data.X, data.y, [1], family="gaussian", **{name: value})
