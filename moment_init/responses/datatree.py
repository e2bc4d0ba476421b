r"""A fit of several responses as a DataTree that ArviZ reads.

| group | variable | dims | meaning |
| --- | --- | --- | --- |
| posterior | coefficient, direction | chain, draw, feature, component, response | draws |
| | bias, scale, dispersion | chain, draw, component, response | draws |
| | weight | chain, draw, component | draws |
| sample_stats | lp | chain, draw | log-likelihood of the data |
| log_likelihood | y | chain, draw, obs | log density of all responses of a row |
| observed_data | y | obs, response; obs for classes | the responses; codes of classes |
| moment_init | start_..., history, log_likelihood, aic, bic, icl, ... | | the starts, criteria |

Draws are those of the normal approximation about the maximum on the scale of
`moment_init.responses.parameters`, one chain. For classes the dim `response` holds those other than
the reference, which is an attribute of the group moment_init.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.arguments import RandomSeed, make_generator
from moment_init.responses.kinds import Categorical
from moment_init.responses.parameters import JointParameters
from moment_init.responses.prediction import rows_of
from moment_init.responses.rows import JointRows
from moment_init.responses.sums import row_posterior

if TYPE_CHECKING:
    import xarray

    from moment_init.responses.result import JointFit

__all__ = ["draw_parameters", "fit_to_datatree", "library", "observed_variable", "posterior_of"]

FloatArray = NDArray[np.float64]

_LARGEST_LOG_DISPERSION = 300.0
"""Draws of a log dispersion are cut here, so that neither it nor its square overflows."""


def fit_to_datatree(
    fit: "JointFit",
    X: Any,
    y: Any,
    *,
    draws: int,
    random_seed: RandomSeed,
    offset: Any,
    n_trials: Any,
) -> "xarray.DataTree":
    """Convert a fit to a DataTree.

    Parameters
    ----------
    fit : JointFit
        The fit.
    X, y : array-like or DataFrame, or None
        Rows, for their log-likelihood.
    draws : int
        Number of draws.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the draws.
    offset, n_trials : array-like or None
        As in the fit.

    Returns
    -------
    xarray.DataTree
        The groups listed at the head of the module.

    Raises
    ------
    ValueError
        If only one of `X` and `y` is given, or `draws` is not a positive whole number.
    """
    import xarray

    if (X is None) != (y is None):
        raise ValueError("`X` and `y` must be given together; got one of them. Pass both.")
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"`draws` must be a positive integer; got {draws!r}. Ask for 1 or more.")
    parameters = draw_parameters(fit, int(draws), make_generator(random_seed))
    sampling = {"chain": np.arange(1), "draw": np.arange(int(draws))}
    groups = {"posterior": posterior_of(fit, parameters, sampling, (1, int(draws)))}
    if X is not None:
        rows = rows_of(fit, X, y, offset=offset, n_trials=n_trials)
        base = fit.kind.log_base_measure(rows.y, rows.n_trials)
        with np.errstate(over="ignore"):  # a wild draw has a density of zero
            values = np.stack([row_posterior(fit.kind, rows, each)[0] for each in parameters])
        values = (values + base)[None]
        obs = {"obs": np.arange(rows.n_obs)}
        groups["log_likelihood"] = xarray.Dataset(
            {"y": (("chain", "draw", "obs"), values)}, {**sampling, **obs}
        )
        groups["sample_stats"] = xarray.Dataset(
            {"lp": (("chain", "draw"), values.sum(axis=2))}, sampling
        )
        groups["observed_data"] = observed_variable(fit, rows)
    groups["moment_init"] = _own_group(fit)
    for dataset in groups.values():
        dataset.attrs = {**library(), **dataset.attrs}
    return xarray.DataTree.from_dict(groups)


def draw_parameters(fit: "JointFit", draws: int, rng: np.random.Generator) -> list[JointParameters]:
    """Draw from the normal approximation about the maximum.

    Parameters
    ----------
    fit : JointFit
        The fit.
    draws : int
        Number of draws.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    list of JointParameters
        The draws, in the user's units; the maximum itself where there is no covariance.
    """
    layout = fit.layout
    centre = layout.pack(fit.parameters)
    if fit.covariance is None:
        return [fit.parameters] * draws
    scale = np.sqrt(np.diag(fit.covariance))
    free = scale > 0.0
    correlation = fit.covariance[np.ix_(free, free)] / np.outer(scale[free], scale[free])
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    vectors_drawn = np.tile(centre, (draws, 1))
    noise = rng.standard_normal((draws, int(free.sum()))) @ root.T
    vectors_drawn[:, free] += noise * scale[free]
    for a, has_dispersion in enumerate(layout.has_dispersion):
        if has_dispersion:
            for j in range(layout.n_components):
                place = layout.component(j).start + layout.predictor(a).stop
                limit = _LARGEST_LOG_DISPERSION
                vectors_drawn[:, place] = np.clip(vectors_drawn[:, place], -limit, limit)
    return [layout.unpack(vector) for vector in vectors_drawn]


def posterior_of(
    fit: "JointFit",
    parameters: list[JointParameters],
    sampling: dict[str, Any],
    shape: tuple[int, int],
) -> "xarray.Dataset":
    """Put draws into a dataset.

    Parameters
    ----------
    fit : JointFit
        The fit, for names.
    parameters : list of JointParameters
        The draws.
    sampling : dict of str to array
        Coordinates of chain and draw.
    shape : tuple of int
        Numbers of chains and draws.

    Returns
    -------
    xarray.Dataset
        The variables that the head of the module lists.
    """
    import xarray

    def stacked(values: list[FloatArray]) -> FloatArray:
        array = np.stack(values)
        return array.reshape(*shape, *array.shape[1:])

    coefficient = stacked([each.coefficients for each in parameters])
    scale = np.sqrt(np.square(coefficient).sum(axis=2))
    of_slopes = ("chain", "draw", "feature", "component", "response")
    of_levels = ("chain", "draw", "component", "response")
    direction = coefficient / np.where(scale > 0.0, scale, 1.0)[:, :, None]
    variables: dict[str, Any] = {
        "coefficient": (of_slopes, coefficient),
        "direction": (of_slopes, direction),
        "scale": (of_levels, scale),
        "bias": (of_levels, stacked([each.biases for each in parameters])),
        "weight": (of_levels[:3], stacked([each.weights for each in parameters])),
    }
    dispersions = [each.dispersion for each in parameters if each.dispersion is not None]
    if dispersions:
        variables["dispersion"] = (of_levels, stacked(dispersions))
    coords = {
        **sampling,
        "feature": list(fit.feature_names),
        "component": np.arange(fit.n_components),
        "response": list(fit.response_names),
    }
    return xarray.Dataset(variables, coords)


def observed_variable(fit: "JointFit", rows: JointRows) -> "xarray.Dataset":
    """Responses of rows as a dataset.

    Parameters
    ----------
    fit : JointFit
        The fit, for names.
    rows : JointRows
        The rows.

    Returns
    -------
    xarray.Dataset
        `y`, by row and response; the codes of classes by row.
    """
    import xarray

    obs = {"obs": np.arange(rows.n_obs)}
    if isinstance(fit.kind, Categorical):
        return xarray.Dataset({"y": (("obs",), rows.y[0].astype(np.int64))}, obs)
    names = {**obs, "response": list(fit.response_names)}
    return xarray.Dataset({"y": (("obs", "response"), rows.y.T)}, names)


def _own_group(fit: "JointFit") -> "xarray.Dataset":
    import xarray

    starts = fit.starts
    variables: dict[str, Any] = {
        "start_origin": ("start", np.array([start.origin for start in starts], dtype=str)),
        "start_status": ("start", np.array([str(start.status) for start in starts], dtype=str)),
        "start_n_iter": ("start", np.array([start.n_iter for start in starts], dtype=np.int64)),
        "start_log_likelihood": ("start", np.array([start.log_likelihood for start in starts])),
        "history": ("iteration", np.array(fit.history)),
    }
    for name in ("log_likelihood", "aic", "bic", "icl", "entropy", "n_units"):
        variables[name] = float(getattr(fit, name))
    for name in ("n_parameters", "n_obs", "n_iter", "converged"):
        variables[name] = int(getattr(fit, name))
    coords = {"start": np.arange(len(starts)), "iteration": np.arange(len(fit.history))}
    attrs = {
        "status": str(fit.status),
        "warnings": "\n".join(fit.warnings),
        "bounds": "\n".join(fit.bounds),
        "family": fit.family,
        "link": fit.link,
    }
    if isinstance(fit.kind, Categorical):
        attrs["reference_class"] = fit.outcome_names[0]
    return xarray.Dataset(variables, coords, attrs=attrs)


def library() -> dict[str, str]:
    """Name and version of what made a group.

    Returns
    -------
    dict of str to str
        Attributes.
    """
    return {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }
