"""Sampling the posterior of several responses: `sample` for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray

from moment_init.arguments import RandomSeed, make_generator, validate_run
from moment_init.blocks import single_threaded_blas
from moment_init.model_variables import StartCheck, free_variables, pick_at_random
from moment_init.models.joint_building import build_joint_model
from moment_init.models.joint_specification import JointSpecification, specify_joint
from moment_init.models.joint_tree import finish_joint_tree
from moment_init.models.sampling import (
    SamplingOptions,
    compiling_of,
    require_known_arguments,
    sampler_arguments,
)
from moment_init.responses.datatree import draw_parameters

__all__ = ["sample_joint"]

_POOL = 400
"""Draws of the normal approximation among which each chain picks its start."""


def sample_joint(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    random_seed: RandomSeed,
    init: Any,
    directions: Any,
    anchor_angle: Any,
    priors: Mapping[str, Any] | None,
    draws: int,
    tune: int | None,
    chains: int,
    method: Any,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    pm_sample_kwargs: Mapping[str, Any] | None = None,
) -> xarray.DataTree:
    """Sample the posterior of a mixture with several responses.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels
        Responses.
    n_components : int
        Number of components.
    data_block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the start, the sampler and the replicated responses.
    init, directions, anchor_angle, priors : object
        As for `mixture_glm`.
    draws : int
        Draws of each chain that are kept.
    tune : int or None
        Draws that tune the sampler; its default if None.
    chains : int
        Number of chains.
    method : {"nuts"}
        The only method for several responses.
    log_likelihood, posterior_predictive : bool or None
        Whether to add these groups; None for if they are not too large.
    pm_sample_kwargs : mapping of str to object, optional
        Further arguments of `pymc.sample`.

    Returns
    -------
    xarray.DataTree
        As `moment_init.sample` describes, with the dim `response`.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values, as `fit_em` and `mixture_glm`.
    """
    if method != "nuts":
        raise ValueError(
            f"`method` must be 'nuts' with several responses or family='categorical'; got "
            f"{method!r}. `fit_em(...).to_datatree()` has draws of the normal approximation."
        )
    validate_run(draws, tune, chains)
    require_known_arguments(pm_sample_kwargs or {}, "nuts")
    rng = make_generator(random_seed)
    specification = specify_joint(
        X,
        y,
        n_components,
        data_block=data_block,
        init=init,
        directions=directions,
        anchor_angle=anchor_angle,
        random_seed=rng.spawn(1)[0],
    )
    seeds = rng.integers(2**31, size=3)
    options = SamplingOptions(
        draws=int(draws),
        tune=tune,
        chains=int(chains),
        store=None,
        log_likelihood=log_likelihood,
        posterior_predictive=posterior_predictive,
        seeds=(int(seeds[0]), int(seeds[1]), int(seeds[2])),
        pm_sample=pm_sample_kwargs or {},
    )
    return _sample_specification(specification, priors, options, init)


def _sample_specification(
    specification: JointSpecification,
    priors: Mapping[str, Any] | None,
    options: SamplingOptions,
    init: Any,
) -> xarray.DataTree:
    model = build_joint_model(specification, priors)
    # Arrays are taken as they are: they are no maximum, which has standard errors.
    is_array = isinstance(init, tuple | list)
    arguments = sampler_arguments(
        model,
        options,
        lambda: _start_of(specification, model, options.seeds[0], is_spread=not is_array),
    )
    with single_threaded_blas(), compiling_of(model, arguments):
        tree = pm.sample(model=model, **arguments)
    return finish_joint_tree(
        tree,
        specification,
        log_likelihood=options.log_likelihood,
        posterior_predictive=options.posterior_predictive,
        seed=options.seeds[2],
        raw_names=[variable.name for variable in model.free_RVs],
        origin="arrays" if is_array else _origin(init),
    )


def _origin(init: Any) -> str:
    """What the start came from: an object that was given, or the fit."""
    return "JointFit" if isinstance(init, str) else type(init).__name__


def _start_of(
    specification: JointSpecification, model: pm.Model, seed: int, *, is_spread: bool
) -> dict[str, Any]:
    """Where the chains start: at draws about the fit, all variables of a draw jointly."""
    fit = specification.fit
    centre = specification.standardised_values(fit.parameters)
    used = {name: each for name, each in free_variables(model).items() if name in centre}
    check = StartCheck(model, used)
    complaint = check.complaint(centre)
    if complaint is not None:
        raise ValueError(f"`init`: {complaint}. Change the prior, or start elsewhere.")
    inside = []
    if is_spread and fit.covariance is not None:
        with np.errstate(all="ignore"):  # wild draws are left out
            drawn = draw_parameters(fit, _POOL, np.random.default_rng(seed))
            values = [specification.standardised_values(each) for each in drawn]
            inside = [each for each in values if check.complaint(each) is None]
    return pick_at_random(inside, used) if inside else {name: centre[name] for name in used}
