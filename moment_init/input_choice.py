r"""Which density of the input to use: the Gaussian, or where it fails a mixture of Gaussians.

Stein's identities on rows that were not fitted tell whether the input can be Gaussian. If not,
moments are formed under a mixture of Gaussians, piece by piece: :math:`E[\gamma_k T S_m^{(k)}]`,
with control variates of each piece. Polynomials are all that a slightly wrong density adds to such
moments, and control variates take these out; and no score has heavy tails. So these moments come
nearer to the directions than moments under the true density do where that is skewed, has heavy
tails or ends abruptly (`benchmarks/input_models`). Other densities can be given.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.row_samples import resample_rows
from moment_init.scores import (
    Gaussian,
    GaussianMixture,
    InputModel,
)
from moment_init.scores.stein import SteinCheck, SteinStatus, stein_check

__all__ = ["InputChoice", "InputJudgement", "choose_input_model", "keep_gaussian"]

FloatArray = NDArray[np.float64]

SAMPLED_ROWS = 5_000
"""Rows to which candidates are fitted, and as many on which they are judged: a deviation that does
not show in so many, four standard errors, biases a moment by less than a twentieth of its terms."""

FEWEST_ROWS_PER_FEATURE = 50
"""With fewer rows third moments are noise under any density, and the Gaussian has least of it."""

LARGEST_GAUSSIAN_SCORE = 1.5
"""Mean square of S_3 over its expectation, 3!, up to which rows can be Gaussian: a sixth power of
normal variables has a relative deviation of ten, a seventh over five thousand rows."""


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
    """

    name: str
    model: InputModel
    check: SteinCheck


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
    if n_obs < FEWEST_ROWS_PER_FEATURE * n_features:
        reason = f"{n_obs} rows of {n_features} features are too few to tell densities apart."
        return keep_gaussian(features, weights, names, frame, rng, reason=reason)
    drawn = resample_rows(weights, 2 * SAMPLED_ROWS, rng)
    rows, own = np.asarray(features[drawn], dtype=np.float64), np.ones(len(drawn))
    order = rng.permutation(len(drawn))
    fitted, held_out = order[: len(order) // 2], rows[order[len(order) // 2 :]]
    sampled = Gaussian().fit_rows(rows[fitted], own[fitted], names)
    gaussian = _judge("gaussian", sampled, held_out, names, rng)
    # Heavy tails make deviations uncertain, so that identities pass; they show in the score.
    is_light = gaussian.check.score_sizes[2] < LARGEST_GAUSSIAN_SCORE
    if gaussian.check.status is SteinStatus.PASSED and is_light:
        explanation = "gaussian: all of Stein's identities hold on rows held out."
        return InputChoice(frame, (gaussian,), explanation)
    try:
        model = GaussianMixture(random_seed=rng).fit_rows(rows[fitted], own[fitted], names)
    except (ValueError, np.linalg.LinAlgError):  # parts that run into few equal rows
        return InputChoice(frame, (gaussian,), _explain(gaussian, None))
    if len(model.pieces) == 1:
        return InputChoice(frame, (gaussian,), _explain(gaussian, None))
    mixture = _judge("gaussian_mixture", model, held_out, names, rng)
    return InputChoice(model, (mixture, gaussian), _explain(gaussian, mixture))


def keep_gaussian(
    features: NDArray[np.generic],
    weights: FloatArray,
    names: tuple[str, ...],
    frame: Gaussian,
    rng: np.random.Generator,
    *,
    reason: str,
) -> InputChoice:
    """Take the Gaussian, whatever Stein's identities say; they are reported.

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
        Source of samples of rows.
    reason : str
        Why nothing else is tried.

    Returns
    -------
    InputChoice
        The choice.
    """
    drawn = resample_rows(weights, 2 * SAMPLED_ROWS, rng)
    rows = np.asarray(features[drawn], dtype=np.float64)
    return InputChoice(frame, (_judge("gaussian", frame, rows, names, rng),), f"gaussian: {reason}")


def _judge(
    name: str,
    model: InputModel,
    held_out: FloatArray,
    names: tuple[str, ...],
    rng: np.random.Generator,
) -> InputJudgement:
    return InputJudgement(name, model, stein_check(model, held_out, names=names, random_seed=rng))


def _explain(gaussian: InputJudgement, mixture: InputJudgement | None) -> str:
    """The choice in a sentence or two."""
    if gaussian.check.status is SteinStatus.PASSED:
        size = gaussian.check.score_sizes[2]
        reason = f"tails are heavy (the mean square of S_3 is {size:.1f} times a Gaussian's)"
    else:
        reason = gaussian.check.message.rstrip(".")
    if mixture is None:
        return f"gaussian: no mixture of Gaussians fits better, though {reason}."
    n_pieces = len(mixture.model.pieces)
    return (
        f"gaussian_mixture: moments within {n_pieces} Gaussians, since under one {reason}. "
        f"Under the mixture: {mixture.check.message}"
    )
