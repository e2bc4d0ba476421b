"""What limits a comparison, from figures made by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from moment_init import simulate_mixture
from moment_init.comparison.runs import BY_ROW, ComparedRows, EMRun, check_rows
from moment_init.comparison.scoring import Convergence, LooScore, MethodFigures
from moment_init.comparison.verdict import collect_caveats
from tests.bayesian_models import fitted

SOUND = Convergence(1.005, 400.0, 0.0)


def runs_at(*values: float) -> list[EMRun]:
    own = fitted("poisson", "log", "plain").fit
    return [
        EMRun(k, None if np.isnan(x) else replace(own, log_likelihood=x), 0.1, k, "broke")
        for k, x in enumerate(values)
    ]


def make_rows(**given: Any) -> ComparedRows:
    data = simulate_mixture(30, 2, 2, family="poisson", random_seed=1)
    block = {"family": "poisson", "link": None, **dict.fromkeys(BY_ROW), **given}
    return check_rows(data.X, data.y, block)


def caveats_of(
    changed: dict[str, MethodFigures] | None = None,
    *,
    switched: float = 0.0,
    rows: ComparedRows | None = None,
    dropped: tuple[str, ...] = (),
) -> tuple[str, ...]:
    sound = {
        "search NUTS": MethodFigures(runs_at(-1.0, -1.0), 1.0, convergence=SOUND),
        "search EM": MethodFigures(runs_at(-1.0), 1.0),
        "random EM": MethodFigures(runs_at(*[-1.0] * 10), 1.0),
    }
    figures = sound | (changed or {})
    own = xr.Dataset({"switched_share": ("chain", [0.0, switched])})
    tree = xr.DataTree.from_dict({"moment_init": own})
    trees = {name: tree for name in figures if name.endswith("NUTS")}
    return collect_caveats(trees, figures, rows or make_rows(), dropped)


def test_sound_comparison_has_no_caveats() -> None:
    assert caveats_of() == ()
    assert caveats_of(switched=0.01) == ()


@pytest.mark.parametrize(
    ("convergence", "words"),
    [
        (Convergence(1.02, 400.0, 0.0), "the largest R-hat is 1.020, above 1.01"),
        (Convergence(1.0, 400.0, 2.0), "2 divergent transitions"),
    ],
)
def test_chains_that_have_not_met(convergence: Convergence, words: str) -> None:
    own = MethodFigures(runs_at(-1.0, -1.0), 1.0, convergence=convergence)
    (text,) = caveats_of({"default NUTS": own})
    assert text.startswith("default NUTS: ")
    assert words in text


def test_chains_in_different_modes() -> None:
    own = MethodFigures(runs_at(-1.0, -7.0, np.nan), 1.0, convergence=SOUND)
    (text,) = caveats_of({"search NUTS": own})
    assert "chains lead to different optima, with log-likelihoods from -7.00 to -1.00" in text


def test_traded_labels() -> None:
    (text,) = caveats_of(switched=0.3)
    assert "switched labels in 30% of a chain's draws" in text


def test_random_starts_that_are_few_or_fail() -> None:
    stopped = replace(fitted("poisson", "log", "plain").fit, converged=False)
    runs = [*runs_at(-1.0, np.nan), EMRun(2, stopped, 0.1, 0)]
    texts = caveats_of({"random EM": MethodFigures(runs, 1.0)})
    assert len(texts) == 3
    assert "3 starts say little" in texts[0]
    assert "1 of 3 starts broke down, the first with: broke" in texts[1]
    assert "1 of 3 starts did not converge" in texts[2]


def test_singular_information_is_said() -> None:
    fit = fitted("poisson", "log", "plain").fit
    flat = replace(fit.laplace, undetermined=np.ones_like(fit.laplace.undetermined))
    fit = replace(fit, laplace=flat, warnings=("The information is singular.",))
    runs = [EMRun(k, fit, 0.1, 0) for k in range(10)]
    texts = caveats_of(
        {"random EM": MethodFigures(runs, 1.0), "search EM": MethodFigures(runs[:1], 1.0)}
    )
    assert texts[0] == "search EM: The information is singular."
    assert "singular where 10 of 10 starts ended. Their draws use its positive part" in texts[1]


def test_leave_one_out_that_is_not_reliable() -> None:
    shapes = np.array([0.1, 0.9, 0.75])
    elpd = SimpleNamespace(elpd=-3.0, se=1.0, p=2.0, pareto_k=shapes, good_k=0.7, n_data_points=3)
    scored = MethodFigures(runs_at(-1.0), 1.0, LooScore(elpd, "", 4))
    texts = caveats_of({"search EM": scored})
    assert "4 Laplace draws were left out of leave-one-out" in texts[0]
    assert "Pareto k exceeds 0.70 for 2 of 3 rows (largest 0.90)" in texts[1]
    assert "Its LOO score is not reliable" in texts[1]
    elpd.pareto_k = np.r_[0.9, np.full(199, 0.1)]
    few = caveats_of({"search EM": MethodFigures(runs_at(-1.0), 1.0, LooScore(elpd))})
    assert "contributions of these rows are not reliable, but there are few of them" in few[0]
    missing = MethodFigures(runs_at(-1.0), 1.0, LooScore(None, "too few draws"))
    (text,) = caveats_of({"search EM": missing})
    assert "leave-one-out could not be computed: too few draws." in text


def test_weights_and_priors_are_said() -> None:
    weights = 1.0 + np.arange(30) % 2
    (text,) = caveats_of(rows=make_rows(sample_weight=weights))
    assert "leaves out one copy of a row" in text
    (text,) = caveats_of(rows=make_rows(sample_weight=weights, groups=np.arange(30) // 3))
    assert "leaves out a group with all its rows" in text
    (text,) = caveats_of(dropped=("scale", "tilt"))
    assert "does not use the priors of scale, tilt" in text
