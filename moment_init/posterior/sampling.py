"""Sampling the posterior of a mixture of generalised linear models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import RandomSeed, make_generator, notify, validate_run
from moment_init.data.checking import validate_data
from moment_init.data.formulas import takes_formula
from moment_init.em.start_values import weigh_modes
from moment_init.families.base import Family
from moment_init.posterior.store import require_new_folder

if TYPE_CHECKING:
    import xarray

    from moment_init.models.specification import Directions

Method = Literal["nuts", "laplace", "pathfinder", "advi"]

SUBSAMPLED_ROWS = 50_000
"""Rows of a Dask collection whose posterior is sampled: five hundred for each of a hundred
parameters, and not so many that the thousands of gradients of a run, whose time is in proportion,
take hours."""


@takes_formula
def sample(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family | Sequence[str | Family] = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    init: Any = "search",
    directions: "Directions" = "anchored",
    anchor_angle: float = 45.0,
    priors: Mapping[str, Any] | None = None,
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    store: str | PathLike[str] | None = None,
    method: Method = "nuts",
    log_likelihood: bool | None = None,
    posterior_predictive: bool | None = None,
    **pm_sample_kwargs: Any,
) -> "xarray.DataTree":
    r"""Sample the posterior of a mixture of generalised linear models, starting at its mode.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs. The column names of a DataFrame become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,), or DataFrame
        Response. With a formula, its data; `offset`, `groups`, ... may then name columns. Several
        responses that share their component have the shape (n_obs, n_responses); the variables
        then have the dim `response`.
    n_components : int
        Number of components.
    family : str or Family, or a sequence of them, default "bernoulli"
        Family of the response, or one per response; "categorical" for class labels. With a formula
        the default is chosen from the values of the response.
    link : str, optional
        Link; the family's default link if left out.
    offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Known part of the linear predictors. Classes have one for each class but the first.
    n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Number of trials of binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row: how many times it counts.
    groups : array-like, shape (n_obs,), optional
        Group labels; the rows of a group share their component.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the starting values, the sampler and the replicated responses.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend: a mixture of experts.
    init : str, MomentEstimate, EMFit or tuple of arrays, default "search"
        Starting values. "search", "tensor", "random" and a `MomentEstimate` are first improved by
        `fit_em` with its default priors, and so is one of `EMFit.optima`; an `EMFit` and the arrays
        (coefficients, biases, weights[, dispersion]) are used as they are.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Whether the directions tilt about those of the starting values, are fixed there, or are
        free. Draws of free directions are relabelled to match the starting values.
    anchor_angle : float, default 45
        Prior angle between a direction and its anchor, in degrees.
    priors : mapping of str to prior, optional
        Priors, see `moment_init.models.mixture_glm`.
    draws : int, default 1000
        Number of draws per chain, without the warm-up.
    tune : int, optional
        Number of warm-up draws per chain. By default 200 with nutpie, in coordinates that need
        little adaptation, and 500 if the posterior is skewed; otherwise, and where no normal
        density fits the posterior, the sampler's own default.
    chains : int, default 4
        Number of chains.
    store : str or path-like, optional
        New folder to which draws are written during sampling, for `open_store`. Needs nutpie.
    method : {"nuts", "laplace", "pathfinder", "advi"}, default "nuts"
        Sampling, or a faster approximation in the same form. "laplace" draws from the normal
        distribution with the mode and the curvature of the posterior, "advi" from the independent
        normal distributions that are closest to the posterior, both on the unconstrained scale;
        they compile nothing. "pathfinder" is that of pymc-extras.
    log_likelihood, posterior_predictive : bool, optional
        Whether to add these groups; by default if they hold at most 1e8 values.
    **pm_sample_kwargs
        Passed to ``pymc.sample``, or to Pathfinder: `target_accept`, `cores`, `nuts_sampler`,
        `progressbar`, ... All except PyMC's `init` (here it sets the starting values), `model`,
        `trace` and `return_inferencedata`.

    Returns
    -------
    xarray.DataTree
        With the groups

        - ``posterior``: `coefficient`, `direction` (feature, component), `scale`, `bias`, `weight`,
          `dispersion` (component), `gate` (component, gate_feature), `gate_bias` (component), in
          the user's units; after them the model's own free variables, `standardised_...` and
          `tilt`;
        - ``sample_stats``, ``log_likelihood`` (by row, or by group), ``log_prior`` (by free
          variable), ``posterior_predictive``, ``observed_data``, ``constant_data``;
        - ``moment_init``: the starting values (`initial_...`), the estimate from which they were
          fitted (`estimate_...`), the optima that were found (`optimum_...`), diagnostics, status
          and warnings, the share of draws with switched labels, versions.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values, as in `fit_em` and `moment_init.models.mixture_glm`.
    FileExistsError
        If `store` exists and is not an empty folder.
    ImportError
        If a required package is not installed.

    Notes
    -----
    Each chain starts at a draw from the normal approximation at the mode of the posterior, which
    is found from the starting values; a draw whose log posterior is too low moves towards the mode.
    PyMC's jitter, which can undo starting values, is off. nutpie samples in coordinates in which
    the approximation is a unit normal. All chains start near one mode, so R-hat cannot reveal
    another. If the search found other modes with more than 5 % of the posterior mass, by Laplace's
    approximation under the default priors of `fit_em` or those of the given fit, a warning says so.

    For Dask collections, at most 50,000 rows are drawn at random and used with their own weights,
    and a warning says so: the posterior is that of these rows. An `EMFit` of all rows then gives
    better starting values than a fit of the drawn rows.

    With several responses, or classes, `coefficient` and `direction` have the dims (response,
    feature, component), `bias`, `scale` and `dispersion` (response, component); if only some
    responses have a dispersion, its first dim is `dispersed_response`. The log-likelihood of a row
    is that of all its responses.

    Label switching is possible if anchors are close; a warning then says so, and `align_components`
    undoes it. nutpie is used if it is installed. Fixed directions are treated as exact, so the
    intervals are too short.

    Examples
    --------
    .. code-block:: python

        tree = sample(X, y, 3, random_seed=1)
        az.summary(tree, round_to="none")
    """
    from moment_init.models.specification import specify
    from moment_init.posterior.running import (
        SamplingOptions,
        approximate_specification,
        require_known_arguments,
        sample_specification,
    )

    if method not in get_args(Method):
        names = ", ".join(map(repr, get_args(Method)))
        raise ValueError(f"`method` must be one of {names}; got {method!r}.")
    validate_run(draws, tune, chains)
    require_known_arguments(pm_sample_kwargs, method)
    if store is not None and method != "nuts":
        raise ValueError(f"`store` must be None with method={method!r}. Use it with 'nuts' only.")
    if store is not None:
        require_new_folder(store)
    rng = make_generator(random_seed)
    data = validate_data(
        X,
        y,
        family=family,
        link=link,
        offset=offset,
        n_trials=n_trials,
        sample_weight=sample_weight,
        groups=groups,
        gating=gating,
    )
    sampled = data.sampled(SUBSAMPLED_ROWS, rng)
    if sampled.total_weight < data.total_weight:
        _warn_of_sample(sampled.n_obs, data.n_obs)
    specification = specify(
        sampled,
        n_components,
        init=init,
        directions=directions,
        anchor_angle=anchor_angle,
        random_seed=rng.spawn(1)[0],
        progressbar=bool(pm_sample_kwargs.get("progressbar", True)),
    )
    specification = replace(specification, origin=weigh_modes(sampled, specification.origin))
    seeds = rng.integers(2**31, size=3)
    options = SamplingOptions(
        draws=int(draws),
        tune=tune,
        chains=int(chains),
        store=store,
        log_likelihood=log_likelihood,
        posterior_predictive=posterior_predictive,
        seeds=(int(seeds[0]), int(seeds[1]), int(seeds[2])),
        pm_sample=pm_sample_kwargs,
    )
    if method == "nuts":
        return sample_specification(specification, priors, options)
    return approximate_specification(specification, priors, options, method)


def _warn_of_sample(n_rows: int, n_obs: int) -> None:
    """Warn that the posterior is that of a part of the rows.

    Weights are not scaled up to stand for the rows left out: the posterior would be as narrow as
    that of all rows, about a centre that is as far off as that of the sample.
    """
    notify(
        f"The posterior is that of {n_rows} rows drawn at random from {n_obs}: its standard "
        f"deviations are about {np.sqrt(n_obs / n_rows):.2g} times those given all rows. Pass "
        "arrays to choose the rows, or use `fit_em`, which uses all of them.",
        UserWarning,
    )
