"""Stands for `moment_init.sample`: chains of Laplace draws, which take no compiler."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from moment_init import EMFit, compare
from moment_init.data.checking import validate_data, validate_gating

ROWS = ("offset", "n_trials", "sample_weight", "groups", "gating")


class LaplaceSampler:
    """A sampler that draws from the normal approximation of the fit that it starts from.

    Parameters
    ----------
    switched : sequence of int
        Chains whose components trade places in every second draw.
    others : dict of int to EMFit
        Fits from which some chains are drawn instead.
    n_divergent : int
        Number of transitions to call divergent.
    """

    def __init__(
        self,
        switched: tuple[int, ...] = (),
        others: dict[int, EMFit] | None = None,
        n_divergent: int = 0,
    ) -> None:
        self.calls: list[dict[str, Any]] = []
        self._switched, self._others = switched, others or {}
        self._n_divergent = n_divergent

    def __call__(self, X: Any, y: Any, n_components: int, **arguments: Any) -> xr.DataTree:
        self.calls.append({"X": X, "y": y, "n_components": n_components, **arguments})
        fit: EMFit = arguments["init"]
        rows = {name: arguments[name] for name in ROWS}
        draws, chains = arguments["draws"], arguments["chains"]
        seeds = arguments["random_seed"].integers(2**31, size=chains).tolist()
        parts = [
            self._others.get(chain, fit).to_datatree(X, y, draws=draws, random_seed=seed, **rows)
            for chain, seed in enumerate(seeds)
        ]
        groups = {
            name: xr.concat([part[name].to_dataset() for part in parts], "chain").assign_coords(
                chain=np.arange(chains)
            )
            for name in ("posterior", "log_likelihood")
        }
        groups["posterior"] = self._with_switches(groups["posterior"])
        diverging = np.zeros((chains, draws), bool)
        diverging.flat[: self._n_divergent] = True
        sampling = {"chain": np.arange(chains), "draw": np.arange(draws)}
        groups["sample_stats"] = xr.Dataset({"diverging": (("chain", "draw"), diverging)}, sampling)
        groups["observed_data"] = parts[0]["observed_data"].to_dataset()
        groups["constant_data"] = _constant_data(X, y, arguments)
        groups["moment_init"] = parts[0]["moment_init"].to_dataset()
        return xr.DataTree.from_dict(groups)

    def _with_switches(self, posterior: xr.Dataset) -> xr.Dataset:
        """Components in reverse order in every second draw of some chains."""
        reversed_ = posterior.isel(component=slice(None, None, -1))
        reversed_ = reversed_.assign_coords(component=posterior["component"])
        is_switched = posterior["chain"].isin(self._switched) & (posterior["draw"] % 2 == 1)
        return reversed_.where(is_switched, posterior)


def _constant_data(X: Any, y: Any, arguments: dict[str, Any]) -> xr.Dataset:
    names = ("family", "link", "offset", "n_trials", "sample_weight", "groups")
    data = validate_data(X, y, **{name: arguments[name] for name in names})
    variables: dict[str, Any] = {"X": (("obs", "feature"), np.asarray(data.X))}
    for name in ("offset", "n_trials", "sample_weight", "groups"):
        if getattr(data, name) is not None:
            variables[name] = ("obs", getattr(data, name))
    coords: dict[str, Any] = {"obs": np.arange(data.n_obs), "feature": list(data.feature_names)}
    gating = validate_gating(arguments["gating"], data.n_obs, data.groups)
    if gating is not None:
        variables["gating"] = (("obs", "gate_feature"), gating[0])
        coords["gate_feature"] = list(gating[1])
    return xr.Dataset(variables, coords)


QUICK: dict[str, Any] = {
    "draws": 40,
    "chains": 2,
    "n_starts": 4,
    "random_seed": 1,
    "progressbar": False,
}
"""As few draws as leave-one-out takes: its tails have a fifth of them."""


def compare_quickly(
    X: Any, y: Any, n_components: int, *, sampler: LaplaceSampler | None = None, **arguments: Any
) -> Any:  # a Comparison; cells of its table have no type
    """Compare with a sampler that takes no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moment_init.comparison.runs.sample", sampler or LaplaceSampler())
        return compare(X, y, n_components, **(QUICK | arguments))
