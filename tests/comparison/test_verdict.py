"""The answer in words, case by case."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from moment_init import EMFit, Status
from moment_init.comparison.runs import EMRun
from moment_init.comparison.scoring import ScoreDifference, membership_distance
from moment_init.comparison.verdict import (
    USUAL_STARTS,
    StartEvidence,
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
        EMRun(k, None if np.isnan(value) else fit_at(value), 0.1, 0, "broke")
        for k, value in enumerate(values)
    )


def evidence_of(
    search: float, random: list[float], nuts: tuple[float, ...] = (BEST,), **changed: Any
) -> StartEvidence:
    runs = {
        "search NUTS": runs_at(*nuts),
        "search EM": runs_at(search),
        "random EM": runs_at(*random),
    }
    return StartEvidence(runs, **changed)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1), (0.99, 1), (0.9, 2), (0.25, 17)])
def test_number_of_starts_by_hand(share: float, expected: int) -> None:
    """With .9 each, two starts both miss in one of a hundred cases."""
    assert starts_needed(share) == expected


def test_number_of_starts_is_the_smallest_that_is_sure() -> None:
    for share in np.linspace(0.02, 0.98, 49):
        number = int(starts_needed(float(share)))
        assert binom.pmf(0, number, share) <= 0.01 + 1e-9
        assert binom.pmf(0, number - 1, share) > 0.01
    assert starts_needed(0.0) == inf


def test_threshold_is_that_of_the_starts_that_people_run() -> None:
    least = 1.0 - 0.01 ** (1.0 / USUAL_STARTS)
    assert starts_needed(least + 1e-6) == USUAL_STARTS
    assert starts_needed(least - 1e-6) == USUAL_STARTS + 1


def test_interval_is_that_of_jeffreys() -> None:
    expected = beta(7.5, 14.5).ppf([0.025, 0.975])
    assert share_interval(7, 21) == pytest.approx(tuple(expected))
    assert share_interval(0, 8)[0] == 0.0
    assert share_interval(8, 8)[1] == 1.0
    assert share_interval(8, 8)[0] == pytest.approx(1.0 - share_interval(0, 8)[1])


def test_random_starts_that_always_reach_it_are_enough() -> None:
    verdict = judge(evidence_of(BEST, [BEST] * 20))
    assert verdict.random_starts_suffice
    assert verdict.headline.startswith("Random starts are enough")
    assert "1 random start reaches it" in verdict.headline
    assert "88% to 100%" in verdict.reasons[0]
    assert "1 to 3 random starts" in verdict.reasons[0]
    assert not any("below" in reason for reason in verdict.reasons)


def test_a_single_start_that_is_needed_is_singular() -> None:
    """If 250 of 250 starts reach the optimum, the interval of their share begins at .99."""
    (reason, *_) = judge(evidence_of(BEST, [BEST] * 250)).reasons
    assert "so 1 random start is needed to reach that optimum" in reason


def test_share_that_is_not_sure_is_called_probable() -> None:
    """Of 20 starts 14: four would do, but the share may be a half, and then seven."""
    verdict = judge(evidence_of(BEST, [BEST] * 14 + [BEST - 5.0] * 6))
    assert verdict.random_starts_suffice
    assert "probably enough" in verdict.headline
    assert "4 random starts reach it" in verdict.headline


def test_random_starts_that_reach_it_rarely_are_not_enough() -> None:
    verdict = judge(evidence_of(BEST, [BEST] * 3 + [BEST - 5.0] * 10 + [BEST - 9.0] * 7))
    assert not verdict.random_starts_suffice
    assert "not enough" in verdict.headline
    assert "3 of 20 random starts" in verdict.headline
    assert f"{starts_needed(0.15):.0f} would be needed" in verdict.headline
    assert (
        "ended 5.00 below the best log-likelihood found, the worst 9.00 below" in verdict.reasons[1]
    )
    assert "3 different optima" in verdict.reasons[1]


def test_random_starts_that_never_reach_it_are_not_enough() -> None:
    verdict = judge(evidence_of(BEST, [BEST - 5.0] * 20))
    assert "none of 20" in verdict.headline
    assert "at least 38 random starts" in verdict.reasons[0]


def test_failed_starts_count_as_having_missed_it() -> None:
    verdict = judge(evidence_of(BEST, [BEST] * 5 + [np.nan] * 5))
    assert "5 of 10 random starts (50%)" in verdict.reasons[0]
    assert not verdict.random_starts_suffice
    none = judge(evidence_of(BEST, [np.nan] * 5))
    assert "No random start converged." in none.reasons


@pytest.mark.parametrize(("n_better", "suffices"), [(2, False), (19, True)])
def test_better_random_start_is_said_first(n_better: int, suffices: bool) -> None:
    values = [BEST + 3.0] * n_better + [BEST] * (20 - n_better)
    verdict = judge(evidence_of(BEST, values))
    assert verdict.headline.startswith("Random starts found a BETTER optimum than the search")
    assert "by 3.00 in log-likelihood (-97.00 against -100.00)" in verdict.headline
    assert ("few enough" in verdict.headline) == suffices
    assert verdict.random_starts_suffice == suffices


def test_better_chain_is_said_first() -> None:
    verdict = judge(evidence_of(BEST, [BEST] * 10, nuts=(BEST, BEST + 1.0)))
    assert "The search MISSED the best optimum found: chains of search NUTS" in (verdict.headline)
    assert not verdict.random_starts_suffice


def test_difference_within_the_tolerance_is_the_same_optimum() -> None:
    assert judge(evidence_of(BEST - 0.005, [BEST] * 10)).headline.startswith("Random starts are en")


def test_another_optimum_of_the_same_height_is_said() -> None:
    """Labels that trade places are the same optimum; rows that change component are not."""
    own = fit_at(BEST)
    shares = own.responsibilities
    other = np.where(np.arange(len(shares))[:, None] % 4 == 0, shares[:, ::-1], shares)
    traded = EMRun(0, replace(own, responsibilities=shares[:, ::-1]), 0.1, 0)
    apart = EMRun(1, replace(own, responsibilities=other), 0.1, 0)
    search = (EMRun(0, own, 0.1, 0),)
    same = judge(StartEvidence({"search EM": search, "random EM": (traded,) * 12}))
    assert "different optimum" not in same.headline
    mixed = judge(StartEvidence({"search EM": search, "random EM": (traded, *[apart] * 11)}))
    assert "But 11 of these ended at a different optimum than the search" in mixed.headline
    assert mixed.random_starts_suffice


def test_membership_distance_by_hand() -> None:
    """Half of the rows change component altogether."""
    own = fit_at(BEST)
    first = replace(
        own, responsibilities=np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    )
    second = replace(
        own, responsibilities=np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    )
    assert membership_distance(first, second) == 0.5
    assert (
        membership_distance(first, replace(own, responsibilities=1 - first.responsibilities)) == 0
    )


def test_weak_status_is_said() -> None:
    weak = fit_at(BEST, status=Status.NOT_IDENTIFIED, warnings=("The information is singular.",))
    runs = {"search EM": (EMRun(0, weak, 0.1, 0),), "random EM": runs_at(BEST)}
    text = " ".join(judge(StartEvidence(runs, "weak_signal")).reasons)
    assert "is not_identified. The information is singular." in text
    assert "The estimate from moments alone has status weak_signal" in text
    assert "status" not in " ".join(judge(evidence_of(BEST, [BEST], moment_status="ok")).reasons)


def test_best_optimum_on_a_bound_is_said() -> None:
    runs = {"search EM": runs_at(BEST), "random EM": runs_at(BEST)}
    collapsed = EMRun(1, fit_at(BEST + 50.0, bounds=("dispersion 1",)), 0.1, 0)
    verdict = judge(StartEvidence({**runs, "random EM": (*runs["random EM"], collapsed)}))
    assert "BETTER" in verdict.headline
    assert any("lies on a bound (dispersion 1)" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ((-20.0, 4.0), "is worse than the search by 20.0"),
        ((20.0, 4.0), "is better than the search by 20.0"),
        ((-5.0, 4.0), "cannot be told apart"),
        ((0.0, 0.0), "cannot be told apart"),
    ],
)
def test_difference_in_prediction(difference: tuple[float, float], words: str) -> None:
    found = ScoreDifference(*difference)
    verdict = judge(evidence_of(BEST, [BEST], loo_difference=found))
    (reason,) = (reason for reason in verdict.reasons if words in reason)
    assert reason.startswith("In leave-one-out prediction")
    other = ScoreDifference(99.0, 1.0)
    both = judge(evidence_of(BEST, [BEST], loo_difference=found, held_out_difference=other))
    assert both.reasons == verdict.reasons


def test_unreliable_leave_one_out_is_never_cited() -> None:
    """Rows held out stand in for it; without these nothing is said but that."""
    doubt = "Leave-one-out is not reliable here"
    alone = judge(evidence_of(BEST, [BEST], has_unreliable_loo=True))
    assert any(reason.startswith(doubt) for reason in alone.reasons)
    assert "elpd" not in " ".join(alone.reasons)
    found = ScoreDifference(-20.0, 4.0)
    held = judge(evidence_of(BEST, [BEST], has_unreliable_loo=True, held_out_difference=found))
    (reason,) = (reason for reason in held.reasons if doubt in reason)
    assert reason.startswith(
        "In the prediction of held-out rows, the typical random start is worse"
    )
    without = judge(evidence_of(BEST, [BEST], held_out_difference=found))
    assert doubt not in " ".join(without.reasons)


def test_no_verdict_claims_the_global_optimum() -> None:
    cases = [[BEST] * 20, [BEST - 1.0] * 20, [BEST + 1.0] * 20]
    for values in cases:
        verdict = judge(evidence_of(BEST, values))
        text = " ".join((verdict.headline, *verdict.reasons))
        assert "global" not in text
        assert "best" in text.lower() or "BETTER" in text
    assert any("runs 3 starts" in reason for reason in verdict.reasons)
