"""How well chains agree and mix: R-hat, effective sample size, divergences."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moment_init.notices import changed_filters

if TYPE_CHECKING:
    import xarray

__all__ = ["LARGEST_RHAT", "Convergence", "assess_convergence", "find_rhat", "largest_rhat"]

FloatArray = NDArray[np.float64]

LARGEST_RHAT = 1.01
"""R-hat above which chains have not met, after Vehtari and others (2021), Bayesian Analysis 16."""

_PARAMETERS = ("coefficient", "bias", "weight", "dispersion", "gate", "gate_bias")
"""Variables that are looked at: scales and directions follow from coefficients."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """How well chains agree and mix.

    Parameters
    ----------
    rhat_max : float
        Largest R-hat of a parameter.
    ess_bulk_min : float
        Smallest effective sample size of a parameter.
    divergences : float
        Number of divergent transitions; NaN if the sampler does not say.
    """

    rhat_max: float = np.nan
    ess_bulk_min: float = np.nan
    divergences: float = np.nan


def assess_convergence(tree: "xarray.DataTree") -> Convergence:
    """Look at the chains of a sampler.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, labels matched.

    Returns
    -------
    Convergence
        The figures.
    """
    import arviz as az

    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else {}
    divergences = float(stats["diverging"].sum()) if "diverging" in stats else np.nan
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # parameters that do not vary
        sizes = _varying(az.ess(_parameters(tree), method="bulk"), tree)
    smallest = float(sizes.min()) if sizes.size else np.nan
    return Convergence(largest_rhat(tree), smallest, divergences)


def largest_rhat(tree: "xarray.DataTree") -> float:
    """Largest rank-normalised R-hat of a parameter.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, labels matched.

    Returns
    -------
    float
        The figure; NaN with a single chain and if no parameter varies, infinite up to rounding if
        a parameter varies between chains but not within them.
    """
    values = find_rhat(tree)
    return float(values.max()) if values.size else np.nan


def find_rhat(tree: "xarray.DataTree") -> FloatArray:
    """Rank-normalised R-hat of every parameter that varies.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws, labels matched.

    Returns
    -------
    numpy.ndarray, shape (n_parameters,)
        The figures; none with a single chain.
    """
    import arviz as az

    if tree["posterior"].sizes["chain"] < 2:
        return np.empty(0)
    with changed_filters(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # parameters that do not vary
        found = az.rhat(_parameters(tree))
    values = np.hstack([np.ravel(found[name].values) for name in found.data_vars])
    return np.asarray(values[~np.isnan(values)])


def _parameters(tree: "xarray.DataTree") -> "xarray.Dataset":
    posterior = tree["posterior"].to_dataset()
    return posterior[[name for name in _PARAMETERS if name in posterior]]


def _varying(values: "xarray.Dataset", tree: "xarray.DataTree") -> FloatArray:
    """Figures of the parameters that vary: ArviZ gives the number of draws for the others."""
    posterior = _parameters(tree)
    kept = []
    for name in values.data_vars:
        spread = posterior[name].max(("chain", "draw")) > posterior[name].min(("chain", "draw"))
        own = values[name].transpose(*spread.dims).values
        kept.append(own[spread.values & np.isfinite(own)])
    return np.hstack(kept)
