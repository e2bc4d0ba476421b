"""Fits of small mixtures in the user's units, for the tests of what `fit_em` returns."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moment_init.data.checking import RegressionData, validate_data
from moment_init.em.assembly import assemble_fit
from moment_init.em.problem import EMProblem, pose_em, validate_restrictions
from moment_init.em.result import EMFit
from moment_init.em.runs import Runs
from moment_init.likelihood.climbing import MaximiseResult
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.results import StartRecord, StartStatus
from tests.likelihood_problems import PLAIN, Variant, make_problem

FloatArray = NDArray[np.float64]

NAMES = ["age", "income", "<b>"]
GATE_NAMES = ["year", "size"]
LOCATION = np.array([20.0, -0.3, 2.0])
SPREAD = np.array([12.0, 0.2, 3.0])
GATE_LOCATION = np.array([12.0, -0.8])
GATE_SPREAD = np.array([8.0, 0.5])
"""The user's units. Locations are within two spreads of zero, so that the vector of parameters is
conditioned well enough for numerical derivatives."""


@dataclass(frozen=True)
class Fitted:
    """A fit with the data block it was made from."""

    fit: EMFit
    problem: EMProblem
    end: MaximiseResult
    data: RegressionData
    X: pd.DataFrame
    y: FloatArray
    block: dict[str, Any] = field(default_factory=dict)


def make_fit(
    family: str,
    link: str,
    rng: np.random.Generator,
    *,
    variant: Variant = PLAIN,
    n_obs: int = 600,
    with_extras: bool = True,
    start: MixtureParameters | None = None,
    max_steps: int = 200,
    **restrictions: Any,
) -> Fitted:
    """Draw rows, shuffle groups among each other, climb from the truth and assemble the fit.

    Three features with strange locations and spreads; `restrictions` go to `validate_restrictions`.
    """
    drawn = make_problem(family, link, rng, n_obs=n_obs, with_extras=with_extras, variant=variant)
    rows, truth = drawn.rows, drawn.truth
    shuffle = rng.permutation(n_obs)
    X = pd.DataFrame((LOCATION + SPREAD * np.asarray(rows.Z))[shuffle], columns=NAMES)
    y = rows.y[shuffle]
    block: dict[str, Any] = {}
    if with_extras:
        block |= {"sample_weight": rows.sample_weight, "offset": rows.offset}
    if rows.n_trials is not None:
        block["n_trials"] = rows.n_trials
    if rows.gate is not None:
        block["gating"] = GATE_LOCATION + GATE_SPREAD * rows.gate
    if rows.group_starts is not None:
        sizes = np.diff(np.append(rows.group_starts, n_obs))
        block["groups"] = np.repeat([f"g{unit}" for unit in range(len(sizes))], sizes)
    block = {name: values[shuffle] for name, values in block.items()}
    if "gating" in block:
        block["gating"] = pd.DataFrame(block["gating"], columns=GATE_NAMES)
    return refit(family, link, X, y, block, start or user_truth(truth), max_steps, restrictions)


def refit(
    family: str,
    link: str,
    X: pd.DataFrame,
    y: FloatArray,
    block: dict[str, Any],
    start: MixtureParameters,
    max_steps: int = 200,
    restrictions: dict[str, Any] | None = None,
    starts: tuple[StartRecord, ...] | None = None,
) -> Fitted:
    """Fit rows from a start in the user's units (standardised where directions are held)."""
    data = validate_data(X, y, family=family, link=link, **block)
    held = validate_restrictions(
        data, start.n_components, has_gate=data.gating is not None, **(restrictions or {})
    )
    problem = pose_em(data, start.n_components, restrictions=held)
    inner = start if held.directions is not None else problem.to_standardised(start)
    end = problem.climb(inner, max_steps=max_steps, tolerance=1e-16)  # to rounding
    value = end.log_likelihood - problem.log_jacobian
    if starts is None:
        starts = (StartRecord("given", value, end.n_iter, StartStatus(str(end.ending))),)
    return Fitted(
        assemble_fit(problem, data, end, Runs(problem, list(starts))),
        problem,
        end,
        data,
        X,
        y,
        block,
    )


def user_truth(truth: MixtureParameters) -> MixtureParameters:
    """Parameters of standard normal columns as parameters of the user's columns."""
    slopes = truth.coefficients / SPREAD[:, None]
    gate, weights = truth.gate, truth.weights
    if gate is not None:
        gate = gate / GATE_SPREAD[:, None]
        logits = np.log(weights) - GATE_LOCATION @ gate
        odds = np.exp(logits - logits.max())
        weights = odds / odds.sum()
    return MixtureParameters(
        slopes, truth.biases - LOCATION @ slopes, weights, truth.dispersion, gate
    )
