r"""Which density of the input to use: candidates, judged on rows that they were not fitted to.

A third moment :math:`E[T S_3]` errs by what a wrong score adds to its expectation and by the noise
of the score. Stein's identities show the first, the mean square of the score the second:

.. math:: \text{error}^2 = E[S_3^2] \left(\delta^2 + \frac1n\right)

with :math:`\delta` the largest deviation of an identity over the standard deviation of its terms,
zero where it is within noise. The density with the smallest error is chosen. The right density need
not be: that of lognormal columns has scores with so heavy tails that a smoother one serves better.
Densities that are fitted in no time come first, and others only if none of these will do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moment_init.row_samples import resample_rows
from moment_init.scores import (
    Gaussian,
    GaussianMixture,
    Independent,
    InputModel,
    ScoreMatching,
    StudentT,
)
from moment_init.scores.stein import SteinCheck, SteinStatus, stein_check

__all__ = ["InputChoice", "InputJudgement", "choose_input_model"]

FloatArray = NDArray[np.float64]

SAMPLED_ROWS = 5_000
"""Rows to which candidates are fitted, and as many on which they are judged: a deviation that does
not show in so many, four standard errors, biases a moment by less than a twentieth of its terms."""

FEWEST_ROWS_PER_FEATURE = 50
"""With fewer rows third moments are noise under any density, and the Gaussian has least of it."""

LARGEST_GAUSSIAN_SCORE = 1.5
"""Mean square of S_3 over its expectation, 3!, up to which rows can be Gaussian: a sixth power of
normal variables has a relative deviation of ten, a seventh over five thousand rows."""

COSTLIEST = "independent"
"""Six families and mixtures are fitted to each column: tried where no other density passes."""

SMALL_SCORE = 10.0
"""Mean square of S_3 up to which a density that passes is taken without a look at costlier ones:
they could lower the noise of third moments by a factor of three at most."""


@dataclass(frozen=True, slots=True, eq=False)
class InputJudgement:
    """A candidate for the density of the input, and what speaks for it.

    Parameters
    ----------
    name : str
        What it is called.
    model : InputModel
        The density, fitted.
    check : SteinCheck
        Stein's identities on rows that were held out.
    error : float
        Expected error of a third moment, in units of a Gaussian's with that of one row.
    """

    name: str
    model: InputModel
    check: SteinCheck
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class InputChoice:
    """The density of the input that was chosen, and why.

    Parameters
    ----------
    model : InputModel
        The density.
    judgements : tuple of InputJudgement
        All candidates, best first.
    explanation : str
        The reason in words.
    """

    model: InputModel
    judgements: tuple[InputJudgement, ...]
    explanation: str

    @property
    def chosen(self) -> InputJudgement:
        """The candidate that was chosen."""
        return self.judgements[0]


def choose_input_model(
    features: NDArray[np.generic],
    weights: FloatArray,
    names: tuple[str, ...],
    frame: Gaussian,
    rng: np.random.Generator,
) -> InputChoice:
    """Choose a density for the input.

    Parameters
    ----------
    features : numpy.ndarray, shape (n_obs, n_features)
        Checked inputs.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    names : tuple of str
        Names of the columns.
    frame : Gaussian
        The Gaussian fitted to all rows.
    rng : numpy.random.Generator
        Source of samples of rows and of starts.

    Returns
    -------
    InputChoice
        The choice. Where the Gaussian passes all of Stein's identities nothing else is tried.
    """
    n_obs, n_features = features.shape
    drawn = resample_rows(weights, 2 * SAMPLED_ROWS, rng)
    rows, own = np.asarray(features[drawn], dtype=np.float64), np.ones(len(drawn))
    if n_obs < FEWEST_ROWS_PER_FEATURE * n_features:
        judgement = _judge("gaussian", frame, rows, n_obs, rng)
        return InputChoice(
            frame,
            (judgement,),
            f"gaussian: {n_obs} rows of {n_features} features are too few to tell densities apart.",
        )
    order = rng.permutation(len(drawn))
    fitted, held_out = order[: len(order) // 2], rows[order[len(order) // 2 :]]
    gaussian = Gaussian().fit_rows(rows[fitted], own[fitted], names)
    judgement = _judge("gaussian", gaussian, held_out, n_obs, rng)
    # Heavy tails make deviations uncertain, so that identities pass; they show in the score.
    is_gaussian = judgement.check.score_sizes[2] < LARGEST_GAUSSIAN_SCORE
    if judgement.check.status is SteinStatus.PASSED and is_gaussian:
        return InputChoice(
            frame, (judgement,), "gaussian: all of Stein's identities hold on rows held out."
        )
    judgements = [judgement]
    for name, build in _candidates(rng).items():
        if name == COSTLIEST and _has_passed(judgements):
            break
        try:
            model = build().fit_rows(rows[fitted], own[fitted], names)
            judgements.append(_judge(name, model, held_out, n_obs, rng))
        except (ValueError, np.linalg.LinAlgError):  # one that cannot be fitted is no candidate
            continue
        if _has_passed(judgements[-1:]) and judgements[-1].check.score_sizes[2] <= SMALL_SCORE:
            break
    judgements.sort(key=lambda each: each.error)
    chosen = judgements[0].model if judgements[0].name != "gaussian" else frame
    return InputChoice(chosen, tuple(judgements), _explain(judgements))


def _candidates(rng: np.random.Generator) -> dict[str, Callable[[], InputModel]]:
    """Densities that are tried where the Gaussian fails, those that are fitted fastest first."""
    return {
        "student_t": StudentT,
        "gaussian_mixture": partial(GaussianMixture, random_seed=rng),
        "score_matching": partial(ScoreMatching, random_seed=rng),
        "independent": Independent,
    }


def _has_passed(judgements: list[InputJudgement]) -> bool:
    """Whether a density other than the Gaussian is right as far as rows tell."""
    others = (each for each in judgements if each.name != "gaussian")
    return any(each.check.status is SteinStatus.PASSED for each in others)


def _judge(
    name: str, model: InputModel, held_out: FloatArray, n_obs: int, rng: np.random.Generator
) -> InputJudgement:
    """Check a density and say how far off its third moments would be."""
    check = stein_check(model, held_out, random_seed=rng)
    deviations = [each.size for each in check.identities if not each.passed]
    bias = max(deviations, default=0.0)
    error = float(np.sqrt(check.score_sizes[2] * (bias**2 + 1.0 / n_obs)))
    return InputJudgement(name, model, check, error)


def _explain(judgements: list[InputJudgement]) -> str:
    """The choice in a sentence or two."""
    best = judgements[0]
    others = ", ".join(f"{each.name} {each.error:.2g}" for each in judgements[1:])
    return (
        f"{best.name}: smallest expected error of third moments, {best.error:.2g} (others: "
        f"{others}). {best.check.message}"
    )
