"""Posteriors by NUTS, from the tensor start and from PyMC's own, and the optima they lead to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.alignment import align_components
from moment_init.blocks import single_threaded_blas
from moment_init.comparison.em_runs import EMRun, timed_fit
from moment_init.comparison.rows import ComparedRows
from moment_init.em import EMFit
from moment_init.notices import quiet_notices
from moment_init.sampling import sample

if TYPE_CHECKING:
    import xarray

__all__ = ["NutsSettings", "climb_chains", "run_default_nuts", "run_tensor_nuts"]

FloatArray = NDArray[np.float64]

_SMALLEST_WEIGHT = 1e-12
"""Weights of a draw are held above this before it is climbed from: a start needs positive ones."""

_ANCHORED_PRIORS = ("scale", "tilt")
"""Priors that a model with free coefficients does not have."""

_START_ARGUMENTS = ("anchor_angle", "initvals")
"""Arguments that say where and about what `sample` starts."""


@dataclass(frozen=True, slots=True, eq=False)
class NutsSettings:
    """How to sample.

    Parameters
    ----------
    directions : {"anchored", "fixed", "free"}
        What is done about the directions, from the tensor start.
    priors : mapping of str to prior, or None
        The user's priors.
    draws : int
        Draws of each chain that are kept.
    tune : int or None
        Draws that tune the sampler; its default if None.
    chains : int
        Number of chains.
    pm_sample : mapping of str to object
        Further arguments of `pymc.sample`.
    """

    directions: Any
    priors: Mapping[str, Any] | None
    draws: int
    tune: int | None
    chains: int
    pm_sample: Mapping[str, Any]

    @property
    def free_priors(self) -> dict[str, Any] | None:
        """The priors that a model with free coefficients has, too."""
        if self.priors is None:
            return None
        return {name: own for name, own in self.priors.items() if name not in _ANCHORED_PRIORS}


def run_tensor_nuts(
    rows: ComparedRows, fit: EMFit, settings: NutsSettings, rng: np.random.Generator
) -> tuple["xarray.DataTree", float]:
    """Sample from the tensor start.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    fit : EMFit
        The fit from the tensor start.
    settings : NutsSettings
        How to sample.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    tree : xarray.DataTree
        What `moment_init.sample` returns, components in the order of the fit.
    seconds : float
        How long it took, the compilation of the model included.
    """
    begin = perf_counter()
    with quiet_notices():  # labels are matched, and counted
        tree = sample(
            rows.X,
            rows.y,
            fit.n_components,
            **rows.block,
            random_seed=rng,
            init=fit,
            directions=settings.directions,
            priors=settings.priors,
            draws=settings.draws,
            tune=settings.tune,
            chains=settings.chains,
            log_likelihood=True,
            posterior_predictive=False,
            **settings.pm_sample,
        )
    return align_components(tree, fit), perf_counter() - begin


def run_default_nuts(
    rows: ComparedRows, fit: EMFit, settings: NutsSettings, rng: np.random.Generator
) -> tuple["xarray.DataTree", float]:
    """Sample the mixture with free coefficients from PyMC's own start, with its jitter.

    Parameters
    ----------
    rows : ComparedRows
        Rows to fit.
    fit : EMFit
        The fit by which components are ordered afterwards; the sampler does not see it.
    settings : NutsSettings
        How to sample; priors of scales and tilts, which this model does not have, are left out.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    tree : xarray.DataTree
        The groups of `run_tensor_nuts`.
    seconds : float
        How long it took, the compilation of the model included.
    """
    import pymc as pm

    from moment_init.models.model_building import build_model
    from moment_init.models.posterior_tree import finish_tree, header_tree
    from moment_init.models.specification import specify

    begin = perf_counter()
    block = {name: value for name, value in rows.block.items() if name != "gating"}
    specification = specify(
        rows.X,
        rows.y,
        fit.n_components,
        data_block=block,
        gating=rows.block["gating"],
        init=fit,
        directions="free",
        anchor_angle=45.0,
        random_seed=rng,
    )
    model = build_model(specification, settings.free_priors)
    for variable in model.free_RVs:
        model.set_initval(variable, None)
    names = [variable.name for variable in [*model.free_RVs, *model.deterministics]]
    arguments = {k: v for k, v in settings.pm_sample.items() if k not in _START_ARGUMENTS}
    if settings.tune is not None:
        arguments["tune"] = settings.tune
    with single_threaded_blas():
        drawn = pm.sample(
            model=model,
            draws=settings.draws,
            chains=settings.chains,
            random_seed=int(rng.integers(2**31)),
            var_names=[name for name in names if name not in ("scale", "direction")],
            **arguments,
        )
    tree = finish_tree(
        drawn,
        specification,
        header_tree(specification),
        log_likelihood=True,
        posterior_predictive=False,
        seed=0,
        raw_names=[variable.name for variable in model.free_RVs],
    )
    return align_components(tree, fit), perf_counter() - begin


def climb_chains(tree: "xarray.DataTree", rows: ComparedRows, fit: EMFit) -> tuple[EMRun, ...]:
    """Climb from the best draw of every chain to the maximum that it leads to.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws with the log-likelihoods of the rows.
    rows : ComparedRows
        The rows.
    fit : EMFit
        A fit of the same model, whose parameters those of the draw replace.

    Returns
    -------
    tuple of EMRun
        A run a chain, with the chains' numbers.
    """
    values = tree["log_likelihood"]["y"].transpose("chain", "draw", ...)
    best = np.nan_to_num(values.values @ rows.unit_weights, nan=-np.inf).argmax(axis=1)
    posterior = tree["posterior"].to_dataset()
    return tuple(
        timed_fit(
            rows,
            fit.n_components,
            int(chain),
            0,
            init=_fit_of_draw(posterior.isel(chain=place, draw=draw), fit),
        )
        for place, (chain, draw) in enumerate(zip(posterior["chain"].values, best, strict=True))
    )


def _fit_of_draw(draw: "xarray.Dataset", fit: EMFit) -> EMFit:
    """The fit with the parameters of a draw."""

    def read(name: str, *dims: str) -> FloatArray:
        return np.asarray(draw[name].transpose(*dims, "component").values, dtype=np.float64)

    weights = np.maximum(read("weight"), _SMALLEST_WEIGHT)
    changed: dict[str, Any] = {
        "coefficients": read("coefficient", "feature"),
        "biases": read("bias"),
        "weights": weights / weights.sum(),
    }
    if fit.dispersion is not None:
        changed["dispersion"] = read("dispersion")
    if fit.gate is not None:  # logits of a fit are relative to the last component
        gate, level = read("gate", "gate_feature"), read("gate_bias")
        changed |= {"gate": gate - gate[:, -1:], "gate_biases": level - level[-1]}
    return replace(fit, **changed)
