"""The answer in words, case by case, and the caveats."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from moment_init import EMFit, Status
from moment_init.comparison.runs import EMRun
from moment_init.comparison.scoring import Convergence, MethodFigures, ScoreDifference
from moment_init.comparison.verdict import (
    CERTAINTY,
    USUAL_STARTS,
    Verdict,
    collect_caveats,
    judge,
    share_interval,
    starts_needed,
)
from moment_init.results import StartRecord, StartStatus
from tests.bayesian_models import fitted

BEST = -100.0


def fit_at(log_likelihood: float, **changed: Any) -> EMFit:
    own = fitted("poisson", "log", "plain").fit
    starts = (StartRecord("tensor 1", log_likelihood, 3, StartStatus.CONVERGED),) * 3
    return replace(own, log_likelihood=log_likelihood, starts=starts, **changed)


def runs_at(*values: float) -> tuple[EMRun, ...]:
    return tuple(
        EMRun(k, None if np.isnan(value) else fit_at(value), 0.1, "broke. Do that.")
        for k, value in enumerate(values)
    )


def verdict_of(
    tensor: float = BEST,
    search: float = BEST,
    random: list[float] | None = None,
    nuts: tuple[float, ...] = (BEST,),
    prediction: ScoreDifference | None = None,
) -> Verdict:
    runs = {
        "tensor EM": runs_at(tensor),
        "search EM": runs_at(search),
        "random EM": runs_at(*(random or [BEST] * 20)),
        "tensor NUTS": runs_at(*nuts),
    }
    return judge(runs, prediction)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1), (0.9, 1), (0.7, 2), (0.1, 22)])
def test_number_of_starts_by_hand(share: float, expected: int) -> None:
    """With .7 each, two starts both miss in nine of a hundred cases."""
    assert starts_needed(share) == expected


@pytest.mark.parametrize("certainty", [CERTAINTY, 0.99])
def test_number_of_starts_is_the_smallest_that_is_sure(certainty: float) -> None:
    for share in np.linspace(0.02, 0.88, 44):
        number = int(starts_needed(float(share), certainty))
        assert binom.pmf(0, number, share) <= 1.0 - certainty + 1e-9
        assert binom.pmf(0, number - 1, share) > 1.0 - certainty
    assert starts_needed(0.0) == inf


def test_threshold_is_that_of_the_starts_that_people_run() -> None:
    least = 1.0 - (1.0 - CERTAINTY) ** (1.0 / USUAL_STARTS)
    assert starts_needed(least + 1e-6) == USUAL_STARTS
    assert starts_needed(least - 1e-6) == USUAL_STARTS + 1


def test_interval_is_that_of_jeffreys() -> None:
    expected = beta(7.5, 14.5).ppf([0.025, 0.975])
    assert share_interval(7, 21) == pytest.approx(tuple(expected))
    assert share_interval(0, 8)[0] == 0.0
    assert share_interval(8, 8)[1] == 1.0
    assert share_interval(8, 8)[0] == pytest.approx(1.0 - share_interval(0, 8)[1])


def test_random_starts_that_always_reach_it_are_enough() -> None:
    verdict = verdict_of()
    assert verdict.random_starts_suffice
    first, second = verdict.headline.split("\n")
    assert first == (
        "Random starts: enough. 20 of 20 at the best optimum found; about 1 needed for 90 % "
        "certainty."
    )
    assert second == "Tensor start alone: at the best optimum, in 0.1 s."
    assert "88% to 100%: for 90 % certainty, 1 to 2 would be needed" in verdict.reasons[0]
    assert not any("below" in reason for reason in verdict.reasons)


def test_random_starts_that_reach_it_rarely_are_not_enough() -> None:
    verdict = verdict_of(random=[BEST] * 2 + [BEST - 5.0] * 10 + [BEST - 9.0] * 8)
    assert not verdict.random_starts_suffice
    assert verdict.tensor_start_suffices
    assert verdict.headline.startswith(
        "Random starts: not enough. 2 of 20 at the best optimum found; about 22 needed for 90 % "
        "certainty."
    )
    assert "ended 5.00 below the best optimum, the worst 9.00 below" in verdict.reasons[1]
    assert "3 different optima" in verdict.reasons[1]


def test_random_starts_that_never_reach_it_need_more_than_a_bound() -> None:
    """The interval of 0 of 20 ends at .117, and 19 starts with that share would do."""
    verdict = verdict_of(random=[BEST - 5.0] * 20)
    fewest = starts_needed(share_interval(0, 20)[1])
    assert f"0 of 20 at the best optimum found; at least {fewest:.0f} needed" in verdict.headline


def test_failed_starts_count_as_having_missed_it() -> None:
    verdict = verdict_of(random=[BEST] * 2 + [np.nan] * 8)
    assert "2 of 10 at" in verdict.headline
    assert not verdict.random_starts_suffice
    assert "No random start converged." in verdict_of(random=[np.nan] * 5).reasons


def test_tensor_start_that_is_worse_is_said_with_what_found_it() -> None:
    verdict = verdict_of(tensor=BEST - 12.3)
    assert not verdict.tensor_start_suffices
    assert (
        "Tensor start alone: 12.30 below the best optimum. The search is at it" in verdict.headline
    )
    missed = verdict_of(tensor=BEST - 12.3, search=BEST - 3.0, nuts=(BEST - 3.0,))
    assert "The search MISSED it, too, by 3.00: only random EM found it" in missed.headline
    chain = verdict_of(nuts=(BEST, BEST + 1.0))
    assert "by 1.00: only tensor NUTS found it" in chain.headline
    assert "0 of 20 at" in chain.headline


def test_missing_tensor_start_is_said() -> None:
    verdict = verdict_of(tensor=np.nan)
    assert "Tensor start: there is none (broke). The search is at it, in 0.1 s." in verdict.headline
    assert not verdict.tensor_start_suffices


def test_difference_within_the_tolerance_is_the_same_optimum() -> None:
    assert verdict_of(tensor=BEST - 0.005).tensor_start_suffices
    assert not verdict_of(tensor=BEST - 0.02).tensor_start_suffices


def test_another_optimum_of_the_same_height_is_said() -> None:
    """Labels that trade places are the same optimum; rows that change component are not."""
    own = fit_at(BEST)
    shares = own.responsibilities
    other = np.where(np.arange(len(shares))[:, None] % 4 == 0, shares[:, ::-1], shares)
    first = (EMRun(0, own, 0.1),)
    traded = EMRun(0, replace(own, responsibilities=shares[:, ::-1]), 0.1)
    apart = EMRun(1, replace(own, responsibilities=other), 0.1)
    runs = {"tensor EM": first, "search EM": first, "random EM": (traded,) * 12}
    assert "another optimum" not in " ".join(judge(runs).reasons)
    mixed = judge({**runs, "random EM": (traded, *[apart] * 11)})
    assert any("11 of the 14 starts" in reason for reason in mixed.reasons)
    assert mixed.random_starts_suffice


def test_weak_status_is_said() -> None:
    weak = fit_at(BEST, status=Status.NOT_IDENTIFIED, warnings=("The information is singular.",))
    runs = {"tensor EM": runs_at(BEST), "random EM": runs_at(BEST)}
    text = " ".join(judge(runs | {"search EM": (EMRun(0, weak, 0.1),)}).reasons)
    assert "is not_identified. The information is singular." in text
    assert "status" not in " ".join(verdict_of().reasons)


def collapsed_at(value: float) -> EMRun:
    return EMRun(1, fit_at(value, bounds=("dispersion 1",)), 0.1)


def test_higher_ends_on_a_bound_are_not_the_best_optimum() -> None:
    """The search returns interior optima, so a longer one would not help."""
    ends = (*runs_at(BEST, BEST, BEST - 3.0), *[collapsed_at(BEST + 50.0)] * 7)
    runs = {"tensor EM": (collapsed_at(BEST + 5.0),), "search EM": runs_at(BEST), "random EM": ends}
    verdict = judge(runs)
    assert "2 of 10 at the best optimum found" in verdict.headline
    assert (
        "Tensor start alone: on a bound, 5.00 above the best optimum. The search is at it"
        in verdict.headline
    )
    assert "MISSED" not in verdict.headline
    text = " ".join(verdict.reasons)
    assert "ended on a bound, 50.00 above the best optimum, the worst 3.00 below" in text
    assert (
        "8 starts or chains ended above the best optimum, by up to 50.00, but on a bound "
        "(dispersion 1)" in text
    )
    runs["search EM"] = (collapsed_at(BEST + 1.0),)
    assert "MISSED it, too, ending on a bound: only random EM found it" in judge(runs).headline


def test_best_optimum_on_a_bound_is_said() -> None:
    ends = {name: (collapsed_at(BEST),) for name in ("tensor EM", "search EM", "random EM")}
    verdict = judge(ends)
    assert "1 of 1 at the best optimum found" in verdict.headline
    assert "lies on a bound (dispersion 1)" in " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ((-20.0, 4.0), "predicts worse, by 20.0 in log score (standard error 4.0)"),
        ((20.0, 4.0), "predicts better, by 20.0"),
        ((-5.0, 4.0), "predicts as well (difference -5.0, standard error 4.0)"),
        ((0.0, 0.0), "predicts as well"),
    ],
)
def test_difference_in_prediction(difference: tuple[float, float], words: str) -> None:
    line = verdict_of(prediction=ScoreDifference(*difference)).headline.split("\n")[2]
    assert line.startswith("Held-out rows: the typical random start ")
    assert words in line


def test_no_verdict_claims_the_global_optimum() -> None:
    for values in ([BEST] * 20, [BEST - 1.0] * 20, [BEST + 1.0] * 20):
        verdict = verdict_of(random=values)
        assert "global" not in " ".join((verdict.headline, *verdict.reasons))
        assert "best optimum found" in verdict.headline
        assert any("which runs 3 starts" in reason for reason in verdict.reasons)


def caveats_of(
    random: tuple[EMRun, ...], convergence: Convergence, nuts: tuple[float, ...] = (BEST,)
) -> tuple[str, ...]:
    figures = {
        "random EM": MethodFigures(random, 1.0),
        "tensor NUTS": MethodFigures(runs_at(*nuts), 1.0, convergence=convergence),
    }
    trees: Any = {"tensor NUTS": None}
    return collect_caveats(trees, figures, [])


def test_sound_comparison_has_no_warning() -> None:
    """R-hat is compared with two decimals, and modes within 1 in log-likelihood are one."""
    sound = Convergence(1.0149, 400.0, 0.0)
    assert caveats_of(runs_at(*[BEST] * 10), sound, nuts=(BEST, BEST - 0.9)) == ()


def test_warnings_name_what_to_do() -> None:
    unfinished = EMRun(3, fit_at(BEST, converged=False), 0.1)
    random = (*runs_at(BEST, np.nan, np.nan), unfinished)
    found = caveats_of(random, Convergence(1.05, 40.0, 3.0), nuts=(BEST, BEST - 5.0))
    beginnings = [
        "tensor NUTS: the largest R-hat is 1.05, above 1.01.",
        "tensor NUTS: 3 divergent transitions.",
        "tensor NUTS: chains lead to different optima, with log-likelihoods from -105.00 to",
        "random EM: 4 starts say little about the share",
        "random EM: 2 of 4 starts broke down, the first with: broke.",
        "random EM: 1 of 4 starts did not converge",
    ]
    assert len(found) == len(beginnings)
    for text, beginning in zip(found, beginnings, strict=True):
        assert text.startswith(beginning)
