"""Runs of `sample` and what their draws are worth."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init import EMFit, MixtureData

if TYPE_CHECKING:
    import xarray

__all__ = ["diagnostics", "quiet_sampler", "sample_from"]

# Draws that differ by less than this share of their size differ by rounding.
ROUNDING = 1e-12


@contextmanager
def quiet_sampler() -> Iterator[None]:
    """Silence PyMC's remarks, which would stand between the rows of a table.

    Yields
    ------
    None
        While it is silent.
    """
    import pymc  # noqa: F401  (its import sets the level)

    logger = logging.getLogger("pymc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def sample_from(fit: EMFit, data: MixtureData, **options: Any) -> "xarray.DataTree":
    """Sample the posterior of simulated data from a fit of them, without groups of rows.

    Parameters
    ----------
    fit : EMFit
        The fit.
    data : MixtureData
        Simulated data.
    **options
        Further arguments of `moment_init.sample`.

    Returns
    -------
    xarray.DataTree
        What `sample` returns.
    """
    from moment_init.posterior.sampling import sample

    return sample(
        data.X,
        data.y,
        data.weights.size,
        family=data.family,
        init=fit,
        log_likelihood=False,
        posterior_predictive=False,
        progressbar=False,
        **options,
    )


def diagnostics(posterior: "xarray.Dataset") -> tuple[float, float]:
    """Largest R-hat and smallest bulk effective sample size, not rounded.

    Parameters
    ----------
    posterior : xarray.Dataset
        Draws. Variables that do not vary, as directions that are held, are left out.

    Returns
    -------
    worst : float
        Largest R-hat; not a number if a parameter has none.
    effective : float
        Smallest bulk effective sample size.
    """
    import arviz as az

    varying = posterior[[name for name, draws in posterior.items() if _varies(draws)]]
    rhat, effective = az.rhat(varying), az.ess(varying, method="bulk")
    return (
        float(np.max([float(each.max(skipna=False)) for each in rhat.data_vars.values()])),
        float(np.min([float(each.min(skipna=False)) for each in effective.data_vars.values()])),
    )


def _varies(draws: "xarray.DataArray") -> bool:
    spread = draws.std(("chain", "draw")).max()
    return bool(spread > ROUNDING * np.abs(draws).max())
