"""Runs of `sample` and diagnostics of their draws."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init import EMFit, MixtureData

if TYPE_CHECKING:
    import xarray

__all__ = ["diagnostics", "quiet_sampler", "sample_from"]

# Relative differences below this are rounding errors.
ROUNDING = 1e-12


@contextmanager
def quiet_sampler() -> Iterator[None]:
    """Silence PyMC's messages, which would interrupt the printed table."""
    import pymc  # noqa: F401  (its import sets the level)

    logger = logging.getLogger("pymc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def sample_from(fit: EMFit, data: MixtureData, **options: Any) -> "xarray.DataTree":
    """Sample from a fit of simulated data, without log-likelihood and posterior predictive."""
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
    """Largest R-hat (NaN if a parameter has none) and smallest bulk ESS, unrounded."""
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
