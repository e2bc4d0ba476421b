"""Sampling the posterior of several responses: `sample` for them."""

import warnings
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pymc as pm
import xarray
from numpy.typing import NDArray

from moment_init.alignment import align_components
from moment_init.arguments import RandomSeed, make_generator
from moment_init.blocks import single_threaded_blas
from moment_init.exceptions import WeakSignalWarning
from moment_init.models.joint_building import build_joint_model
from moment_init.models.joint_specification import JointSpecification, specify_joint
from moment_init.models.posterior_tree import NOTABLE_SHARE, ORDER, is_wanted
from moment_init.models.sampling import without_jitter
from moment_init.responses.datatree import draw_parameters, library, observed_variable
from moment_init.responses.kinds import Categorical
from moment_init.responses.parameters import JointParameters
from moment_init.responses.rows import JointRows
from moment_init.responses.sums import predictors, row_posterior

__all__ = ["sample_joint"]

FloatArray = NDArray[np.float64]

SPREAD = 0.3
"""Chains start apart by this share of the standard errors of the fit, each variable on its own: all
at once they would leave the mode where variables are correlated."""

SPREAD_DRAWS = 200
"""Draws of the normal approximation that give the standard errors of the free variables."""

_PACKAGES = ("pymc", "arviz", "nutpie", "pytensor")


def sample_joint(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    random_seed: RandomSeed = None,
    init: Any = "tensor",
    directions: Any = "anchored",
    anchor_angle: Any = 45.0,
    priors: Mapping[str, Any] | None = None,
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    method: Any = "nuts",
    log_likelihood: bool | None = None,
    posterior_predictive: bool | None = None,
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
        Seed.
    init, directions, anchor_angle, priors : object
        As for `mixture_glm`.
    draws, tune, chains : int
        As for `pymc.sample`.
    method : {"nuts"}
        The only method for several responses.
    log_likelihood, posterior_predictive : bool, optional
        Whether to add these groups.
    pm_sample_kwargs : mapping of str to object, optional
        Further arguments of `pymc.sample`.

    Returns
    -------
    xarray.DataTree
        As `moment_init.sample` describes, with the dim `response`.

    Raises
    ------
    ValueError
        For wrong values, as `fit_em`.
    """
    if method != "nuts":
        raise ValueError(
            f"`method` must be 'nuts' with several responses; got {method!r}. The draws of "
            "`fit_em(...).to_datatree()` are those of the normal approximation."
        )
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
    model = build_joint_model(specification, priors)
    seeds = rng.integers(2**31, size=3)
    start = _start(specification, model, np.random.default_rng(int(seeds[0])))
    arguments: dict[str, Any] = {
        "draws": int(draws),
        "chains": int(chains),
        "random_seed": int(seeds[1]),
        "var_names": _sampled_names(model),
        "initvals": start,
        **({} if tune is None else {"tune": tune}),
        **(pm_sample_kwargs or {}),
    }
    arguments = without_jitter(arguments, model, start)
    with single_threaded_blas():
        tree = pm.sample(model=model, **arguments)
    return _finished(tree, specification, log_likelihood, posterior_predictive, seed=int(seeds[2]))


def _start(
    specification: JointSpecification, model: pm.Model, rng: np.random.Generator
) -> dict[str, Any]:
    """Initial values, apart between chains where the fit has standard errors."""
    values = specification.standardised_values(specification.fit.parameters)
    free = {variable.name for variable in model.free_RVs}
    values = {name: value for name, value in values.items() if name in free}
    if specification.fit.covariance is None:
        return dict(values)
    drawn = [
        specification.standardised_values(each)
        for each in draw_parameters(specification.fit, SPREAD_DRAWS, rng)
    ]
    result: dict[str, Any] = {"weight": values["weight"]}
    for name in set(values) - {"weight"}:
        stacked = np.stack([each[name] for each in drawn])
        if name in ("standardised_scale", "standardised_dispersion"):
            error = SPREAD * np.maximum(np.log(np.maximum(stacked, 1e-12)).std(axis=0), 1e-6)
            result[name] = pm.LogNormal.dist(np.log(values[name]), np.minimum(error, 0.5))
        else:
            error = SPREAD * np.maximum(stacked.std(axis=0), 1e-6)
            result[name] = pm.Normal.dist(values[name], np.minimum(error, 1.0))
    return result


def _sampled_names(model: pm.Model) -> list[str]:
    """Variables that are stored; scales and directions follow from coefficients."""
    names = [variable.name for variable in [*model.free_RVs, *model.deterministics]]
    return [name for name in names if name not in ("scale", "direction")]


def _finished(
    tree: xarray.DataTree,
    specification: JointSpecification,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    *,
    seed: int,
) -> xarray.DataTree:
    """Complete what the sampler returned."""
    groups = {
        name: node.to_dataset()
        for name, node in tree.children.items()
        if name not in ("constant_data", "observed_data")
    }
    posterior = groups["posterior"]
    coefficient = posterior["coefficient"]
    scale = (coefficient**2).sum("feature") ** 0.5
    posterior = posterior.assign(scale=scale, direction=coefficient / scale)
    shown = [name for name in ORDER if name in posterior]
    others = [str(name) for name in posterior.data_vars if name not in shown]
    groups["posterior"] = posterior[[*shown, *others]]
    data = specification.data
    rows = JointRows(data.X, data.y, data.sample_weight, data.offset, data.n_trials)
    groups["observed_data"] = observed_variable(specification.fit, rows)
    groups["constant_data"] = _constant_data(specification)
    own = specification.fit.to_datatree(draws=1, random_seed=0)["moment_init"].to_dataset()
    groups["moment_init"] = _with_start(own, specification)
    groups |= _row_groups(
        groups["posterior"], specification, rows, log_likelihood, posterior_predictive, seed
    )
    for dataset in groups.values():
        dataset.attrs = {**dataset.attrs, **library()}
    return _labelled(groups, specification)


def _with_start(own: xarray.Dataset, specification: JointSpecification) -> xarray.Dataset:
    """The start, under names that begin with `initial_`, and what the model is."""
    fit = specification.fit
    own = own.assign(
        initial_coefficient=(("feature", "component", "response"), fit.coefficients),
        initial_bias=(("component", "response"), fit.biases),
        initial_weight=(("component",), fit.weights),
    ).assign_coords(
        feature=list(fit.feature_names),
        component=np.arange(fit.n_components),
        response=list(fit.response_names),
    )
    if fit.dispersion is not None and np.isfinite(fit.dispersion).all():
        own = own.assign(initial_dispersion=(("component", "response"), fit.dispersion))
    own.attrs |= {
        "directions": specification.directions,
        "anchor_angle": specification.anchor_angle,
        **{f"{name}_version": version(name) for name in _PACKAGES if find_spec(name)},
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


def _row_groups(
    posterior: xarray.Dataset,
    specification: JointSpecification,
    rows: JointRows,
    log_likelihood: bool | None,
    posterior_predictive: bool | None,
    seed: int,
) -> dict[str, xarray.Dataset]:
    """Log-likelihoods of rows and replicated responses, where wanted."""
    kind = specification.data.kind
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    n_draws = shape[0] * shape[1]
    coords: dict[str, Any] = {name: posterior.coords[name] for name in ("chain", "draw")}
    coords["obs"] = np.arange(rows.n_obs)
    draws = _draws_of(posterior, specification)
    result: dict[str, xarray.Dataset] = {}
    if is_wanted(log_likelihood, n_draws * rows.n_obs, "log_likelihood"):
        base = kind.log_base_measure(rows.y, rows.n_trials)
        values = np.stack([row_posterior(kind, rows, each)[0] for each in draws]) + base
        result["log_likelihood"] = xarray.Dataset(
            {"y": (("chain", "draw", "obs"), values.reshape(*shape, -1))}, coords
        )
    if is_wanted(posterior_predictive, n_draws * rows.y.size, "posterior_predictive"):
        rng = np.random.default_rng(seed)
        replicated = np.stack([_replicate(specification, rows, each, rng) for each in draws])
        if isinstance(kind, Categorical):
            variable = (("chain", "draw", "obs"), replicated[:, 0].astype(np.int64))
        else:
            variable = (("chain", "draw", "obs", "response"), replicated.transpose(0, 2, 1))
            coords["response"] = list(kind.names)
        dims, array = variable
        result["posterior_predictive"] = xarray.Dataset(
            {"y": (dims, array.reshape(*shape, *array.shape[1:]))}, coords
        )
    return result


def _draws_of(
    posterior: xarray.Dataset, specification: JointSpecification
) -> list[JointParameters]:
    """Draws of the parameters, chain by chain."""

    def flat(name: str, *dims: str) -> FloatArray:
        array = posterior[name].transpose("chain", "draw", *dims).to_numpy()
        return np.asarray(array.reshape(-1, *array.shape[2:]))

    coefficients = flat("coefficient", "feature", "component", "response")
    biases, weights = flat("bias", "component", "response"), flat("weight", "component")
    dispersion = None
    if "dispersion" in posterior:
        dims = [str(dim) for dim in posterior["dispersion"].dims[2:]]
        has_one = np.array(specification.data.kind.has_dispersion)
        dispersion = np.full(biases.shape, np.nan)
        dispersion[:, :, has_one] = flat("dispersion", *dims)
    return [
        JointParameters(
            coefficients[index],
            biases[index],
            weights[index],
            None if dispersion is None else dispersion[index],
        )
        for index in range(len(weights))
    ]


def _replicate(
    specification: JointSpecification,
    rows: JointRows,
    parameters: JointParameters,
    rng: np.random.Generator,
) -> FloatArray:
    """Responses drawn at given parameters, (n_responses, n_obs)."""
    label = rng.choice(len(parameters.weights), size=rows.n_obs, p=_normalised(parameters.weights))
    every = np.arange(rows.n_obs)
    eta = predictors(rows, parameters)[:, label, every]
    dispersion = None if parameters.dispersion is None else parameters.dispersion[label].T
    return specification.data.kind.draw(eta, dispersion, rows.n_trials, rng)


def _normalised(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / weights.sum())


def _labelled(
    groups: dict[str, xarray.Dataset], specification: JointSpecification
) -> xarray.DataTree:
    """Match the labels of free components to the start's; say where those of others switch."""
    finished = xarray.DataTree.from_dict(groups)
    if specification.directions == "fixed":
        return finished
    own = groups["moment_init"]
    names = {f"initial_{name}": name for name in ORDER if f"initial_{name}" in own}
    reference = own[list(names)].rename(names)
    if specification.directions == "free":
        return align_components(finished, reference)
    seen = {name: groups[name] for name in ("posterior", "moment_init")}
    record = align_components(xarray.DataTree.from_dict(seen), reference)["moment_init"]
    shares = {name: record[name] for name in ("switched_share", "moved_share")}
    finished["moment_init"] = finished["moment_init"].to_dataset().assign(shares)
    switched = float(shares["switched_share"].max())
    if switched > NOTABLE_SHARE:
        warnings.warn(
            f"Labels of components switch in {switched:.0%} of a chain's draws: anchors are close. "
            "`align_components(tree, ...)` matches them; a smaller `anchor_angle` holds them "
            "apart.",
            WeakSignalWarning,
            stacklevel=5,
        )
    return finished
