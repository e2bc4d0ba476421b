"""How far the responses are from what each method predicts of them.

Which deviations are taken depends on the family; see
`moment_init.comparison.predictive_deviations`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.comparison.predictive_deviations import (
    PIT_GRID,
    calibration_deviations,
    count_bins,
    equal_bins,
    pit_deviations,
    rootogram_deviations,
    simultaneous_band,
)
from moment_init.comparison.representatives import reference_method, representative
from moment_init.data import validate_data
from moment_init.membership_draws import family_of
from moment_init.predictive import PosteriorDraws

if TYPE_CHECKING:
    from moment_init.comparison.result import Comparison

__all__ = ["CheckCurve", "PredictiveCheck", "check_kind", "check_predictions"]

FloatArray = NDArray[np.float64]

_LEAST_REPLICATES, _MOST_REPLICATES, _MOST_VALUES = 100, 400, 20_000_000
"""Replicated data sets that are read. The 0.94 quantile of 400 is known to 0.012 in probability;
fewer are read where rows times replicates would fill more than 160 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckCurve:
    """Deviations of the data from one method's predictions.

    Parameters
    ----------
    positions : numpy.ndarray, shape (n_points,)
        Where they are drawn.
    deviations : numpy.ndarray, shape (n_points,)
        Observed less predicted.
    """

    positions: FloatArray
    deviations: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PredictiveCheck:
    """Deviations of the data from the predictions of every method.

    Parameters
    ----------
    kind : {"rootogram", "calibration", "pit"}
        What is compared.
    curves : dict of str to CheckCurve
        Deviations by method; without the methods that have no replicated responses.
    band : numpy.ndarray, shape (n_points,)
        Half the width of the band about zero, from the first of the methods.
    labels : tuple of str
        Names of the bins of a rootogram.
    """

    kind: str
    curves: dict[str, CheckCurve]
    band: FloatArray
    labels: tuple[str, ...] = ()


def check_kind(comparison: "Comparison") -> str:
    """Name the check that suits the family.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    {"rootogram", "calibration", "pit"}
        For counts, for binary responses and trials, and for all others.
    """
    family = family_of(comparison.trees[reference_method(comparison)], None, None)
    if family.has_unlimited_counts:
        return "rootogram"
    return "calibration" if family.has_trials or family.has_binary_rows else "pit"


def check_predictions(comparison: "Comparison") -> PredictiveCheck | None:
    """Compare the responses with what each method predicts.

    Parameters
    ----------
    comparison : Comparison
        The comparison.

    Returns
    -------
    PredictiveCheck or None
        The check that suits the family; None if no tree has replicated responses.
    """
    replicated = {
        method: _replicated(comparison, method)
        for method, tree in comparison.trees.items()
        if "posterior_predictive" in tree.children
    }
    if not replicated:
        return None
    tree = comparison.trees[reference_method(comparison)]
    observed = np.asarray(tree["observed_data"]["y"], dtype=np.float64)
    kind = check_kind(comparison)
    if kind == "rootogram":
        return _check_counts(observed, replicated)
    if kind == "calibration":
        return _check_shares(comparison, observed, replicated)
    deviate = {method: partial(pit_deviations, replicated=y) for method, y in replicated.items()}
    return _checked(kind, observed, replicated, deviate, dict.fromkeys(replicated, PIT_GRID))


def _replicated(comparison: "Comparison", method: str) -> FloatArray:
    """Replicated responses, (n_replicates, n_obs), evenly spaced over chains and draws."""
    draws = representative(comparison, method, "posterior_predictive")["y"]
    values = draws.transpose("chain", "draw", "obs").to_numpy()
    values = values.reshape(-1, values.shape[-1])
    wanted = max(_LEAST_REPLICATES, min(_MOST_REPLICATES, _MOST_VALUES // values.shape[1]))
    kept = min(wanted, len(values))
    return np.asarray(values[np.arange(kept) * len(values) // kept], dtype=np.float64)


type _Deviate = Callable[[FloatArray], FloatArray]


def _check_counts(observed: FloatArray, replicated: dict[str, FloatArray]) -> PredictiveCheck:
    edges, labels = count_bins(observed)
    deviate = {
        method: partial(rootogram_deviations, replicated=y, edges=edges)
        for method, y in replicated.items()
    }
    positions = dict.fromkeys(replicated, np.arange(float(len(edges))))
    return _checked("rootogram", observed, replicated, deviate, positions, labels)


def _check_shares(
    comparison: "Comparison", observed: FloatArray, replicated: dict[str, FloatArray]
) -> PredictiveCheck:
    constant = comparison.trees[reference_method(comparison)]["constant_data"].to_dataset()
    trials = np.asarray(constant.get("n_trials", np.ones(len(observed))), dtype=np.float64)
    deviate: dict[str, _Deviate] = {}
    positions: dict[str, FloatArray] = {}
    for method in replicated:
        predicted = _predicted_shares(comparison, method, trials)
        bins = equal_bins(predicted)
        expected = np.bincount(bins, weights=trials * predicted)
        positions[method] = expected / np.bincount(bins, weights=trials)
        deviate[method] = partial(
            calibration_deviations, predicted=predicted, trials=trials, bins=bins
        )
    return _checked("calibration", observed, replicated, deviate, positions)


def _predicted_shares(comparison: "Comparison", method: str, trials: FloatArray) -> FloatArray:
    """Probabilities of a success, by the parameters where they suffice.

    The mean of replicated responses has noise, by which rows are sorted into the wrong bins: with
    a hundred draws a method would look too sure that is not.
    """
    posterior = representative(comparison, method, "posterior")
    if "gate_mean" in posterior:  # the weights of rows then take the density of a gate
        replicated = representative(comparison, method, "posterior_predictive")["y"]
        return np.asarray(replicated.mean(("chain", "draw")), dtype=np.float64) / trials
    tree = comparison.trees[reference_method(comparison)]
    constant = tree["constant_data"].to_dataset()
    given: dict[str, Any] = {
        name: constant[name].to_numpy() for name in ("offset", "n_trials") if name in constant
    }
    data = validate_data(
        constant["X"].to_numpy(),
        tree["observed_data"]["y"].to_numpy(),
        family=family_of(tree, None, None),
        **given,
    )
    gating = constant["gating"].to_numpy() if "gating" in constant else None
    step = -(-posterior.sizes["chain"] * posterior.sizes["draw"] // _MOST_REPLICATES)
    draws = PosteriorDraws.of(posterior.isel(draw=slice(None, None, step)))
    total = np.zeros(data.n_obs)
    for block in draws.blocks(data.n_obs):
        weights = np.exp(draws.log_weights(gating, block))
        means = data.family.link.mean(draws.predictors(data, block))
        total += (weights * means).sum(axis=(0, 2))
    return total / draws.n_draws


def _checked(
    kind: str,
    observed: FloatArray,
    replicated: dict[str, FloatArray],
    deviate: Mapping[str, _Deviate],
    positions: dict[str, FloatArray],
    labels: tuple[str, ...] = (),
) -> PredictiveCheck:
    curves = {
        method: CheckCurve(positions[method], deviate[method](observed[None])[0])
        for method in replicated
    }
    first = next(iter(replicated))
    return PredictiveCheck(
        kind, curves, simultaneous_band(deviate[first](replicated[first])), labels
    )
