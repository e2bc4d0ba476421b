"""The DataTree that `sample` returns for several responses.

Sampling the posterior of several responses: `sample` for them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray
from numpy.typing import NDArray

from moment_init.checks import RandomSeed, make_generator, validate_run
from moment_init.data.blocks import single_threaded_blas
from moment_init.models.joint_building import JointSpecification, build_joint_model, specify_joint
from moment_init.posterior.model_variables import StartCheck, free_variables, pick_at_random
from moment_init.posterior.running import (
    SamplingOptions,
    compiling_of,
    require_known_arguments,
    sampler_arguments,
)
from moment_init.posterior.tree import (
    is_wanted,
    match_labels,
    ordered_posterior,
    require_no_rows,
    versions,
)
from moment_init.responses.climbing import predictors
from moment_init.responses.draws import parameters_of, row_log_densities
from moment_init.responses.kinds import Categorical
from moment_init.responses.parameters import JointParameters, JointRows
from moment_init.responses.result import draw_parameters, library, observed_variable


def finish_joint_tree(
    tree: xarray.DataTree,
    specification: JointSpecification,
    *,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    seed: int,
    raw_names: list[str],
    origin: str,
) -> xarray.DataTree:
    """Complete what a sampler returned."""
    groups = {
        name: node.to_dataset()
        for name, node in tree.children.items()
        if name not in ("constant_data", "observed_data")
    }
    for name in ("posterior", "warmup_posterior"):
        if name in groups:
            groups[name] = ordered_posterior(groups[name], raw_names)
    data = specification.data
    rows = JointRows(data.X, data.y, data.sample_weight, data.offset, data.n_trials)
    added = {
        "observed_data": observed_variable(specification.fit, rows),
        "constant_data": _constant_data(specification),
        "moment_init": _own_group(specification, origin),
    }
    posterior = groups["posterior"]
    if _needed(specification) <= set(posterior.data_vars):
        draws = parameters_of(posterior, data.kind)
        n_values = len(draws) * rows.n_obs
        if is_wanted(log_likelihood, n_values, "log_likelihood"):
            values = row_log_densities(data.kind, rows, draws)
            added["log_likelihood"] = _by_draw(values, posterior, added["observed_data"], ("obs",))
        if is_wanted(posterior_predictive, n_values * len(rows.y), "posterior_predictive"):
            drawn = _replicated(specification, rows, draws, np.random.default_rng(seed))
            dims = added["observed_data"]["y"].dims
            added["posterior_predictive"] = _by_draw(drawn, posterior, added["observed_data"], dims)
    else:
        require_no_rows(posterior, log_likelihood, posterior_predictive)
    for dataset in added.values():
        dataset.attrs = library() | dataset.attrs
    return match_labels(groups | added, specification.directions)


def _by_draw(
    values: NDArray[Any],
    posterior: xarray.Dataset,
    observed: xarray.Dataset,
    dims: tuple[Any, ...],
) -> xarray.Dataset:
    """Values of the rows under each draw, with the coordinates of both."""
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    coords = {name: posterior.coords[name].to_numpy() for name in ("chain", "draw")}
    coords |= {name: observed.coords[name].to_numpy() for name in dims}
    array = values.reshape(*shape, *values.shape[1:])
    return xarray.Dataset({"y": (("chain", "draw", *dims), array)}, coords)


def _own_group(specification: JointSpecification, origin: str) -> xarray.Dataset:
    """The start with its diagnostics, and what the model is."""
    fit, has_one = specification.fit, np.array(specification.data.kind.has_dispersion)
    slopes, levels = ("feature", "component", "response"), ("component", "response")
    own = fit.to_datatree(draws=1, random_seed=0)["moment_init"].to_dataset()
    own = own.assign(
        initial_coefficient=(slopes, fit.coefficients),
        initial_bias=(levels, fit.biases),
        initial_weight=("component", fit.weights),
        anchor=(slopes, specification.anchors),
    ).assign_coords(
        feature=list(fit.feature_names),
        component=np.arange(fit.n_components),
        response=list(fit.response_names),
    )
    if fit.dispersion is not None:
        # As in the model: the dim holds the responses that have one.
        last = "response" if has_one.all() else "dispersed_response"
        names = np.array(fit.response_names)[has_one]
        own = own.assign(initial_dispersion=(("component", last), fit.dispersion[:, has_one]))
        own = own.assign_coords({last: list(map(str, names))})
    own.attrs |= {
        "directions": specification.directions,
        "anchor_angle": specification.anchor_angle,
        "init": origin,
        **versions(),
    }
    return own


def _constant_data(specification: JointSpecification) -> xarray.Dataset:
    data = specification.data
    variables: dict[str, Any] = {
        "X": (("obs", "feature"), data.X),
        "sample_weight": ("obs", data.sample_weight),
    }
    coords: dict[str, Any] = {"obs": np.arange(data.n_obs), "feature": list(data.feature_names)}
    for name in ("offset", "n_trials"):
        value = getattr(data, name)
        if value is not None:
            variables[name] = (("obs", "response"), value.T)
            coords["response"] = list(data.kind.names)
    return xarray.Dataset(variables, coords)


def _needed(specification: JointSpecification) -> set[str]:
    """What log-likelihoods need: `var_names` may leave it out."""
    has_dispersion = any(specification.data.kind.has_dispersion)
    return {"coefficient", "bias", "weight"} | ({"dispersion"} if has_dispersion else set())


def _replicated(
    specification: JointSpecification,
    rows: JointRows,
    draws: list[JointParameters],
    rng: np.random.Generator,
) -> NDArray[Any]:
    """Responses from each draw, (n_draws, n_obs, n_responses), or (n_draws, n_obs) for classes."""
    kind = specification.data.kind
    is_classes = isinstance(kind, Categorical)
    shape = (len(draws), rows.n_obs) if is_classes else (len(draws), rows.n_obs, len(rows.y))
    result: NDArray[Any] = np.empty(shape, dtype=np.int64 if is_classes else np.float64)
    every = np.arange(rows.n_obs)
    for index, draw in enumerate(draws):
        # The last sum is one up to rounding: a uniform above it must not fall outside.
        reached = np.cumsum(draw.weights)[:-1]
        label = np.searchsorted(reached, rng.random(rows.n_obs), side="right")
        eta = predictors(rows, draw)[:, label, every]
        dispersion = None if draw.dispersion is None else draw.dispersion[label].T
        drawn = kind.draw(eta, dispersion, rows.n_trials, rng)
        result[index] = drawn[0] if is_classes else drawn.T
    return result


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
    """Sample the posterior of a mixture with several responses."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
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
