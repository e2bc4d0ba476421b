r"""The Bayesian mixture of generalised linear models, and the mixture of experts, in PyMC.

.. math::

    y_i \sim \sum_j w_j\, p(\cdot \mid g(\langle \beta_j, x_i \rangle + b_j)), \qquad
    \beta_j = s_j u_j

`build_model` turns a specification into a model: data, weights or gate, coefficients, biases,
dispersions and the response, in which the component is summed out. The free variables are
standardised parameters; `coefficient`, `direction`, `scale`, `bias`, `weight`, `dispersion`,
`gate` and `gate_bias` are in the user's units.

With several linear predictors (several responses that share their component, or classes) the
coefficients, biases and dispersions have the leading dim `response`. The columns of all predictors
then lie side by side in one matrix, so that what is compiled does not grow with their number.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike

from moment_init.checks import FloatArray, RandomSeed
from moment_init.data.checking import group_codes, validate_data
from moment_init.data.formulas import takes_formula
from moment_init.em.priors import coefficient_units
from moment_init.families.base import Family
from moment_init.models.density import mixture_response
from moment_init.models.ops import anchored_coefficient, linear_predictor
from moment_init.models.priors import ModelPriors
from moment_init.models.specification import Directions, Specification, specify


def build_model(
    specification: Specification,
    priors: Mapping[str, Any] | None = None,
    *,
    projects_once: bool = False,
) -> pm.Model:
    """Build the model of a specification."""
    model_priors = ModelPriors(priors, specification)
    is_fixed = specification.directions == "fixed"
    projects_once = projects_once and is_fixed and not specification.response_dims
    with pm.Model(coords=_coords(specification)) as model:
        # The inputs come first: they set the length of `obs`, and PyMC warns if other data are
        # resized before them.
        inputs = _inputs(specification, projects_once)
        log_weight = _mixing(specification, model_priors)
        scale = _scale(specification, model_priors)
        columns, at_mean = _columns(specification, model_priors, scale)
        coefficient = pm.Deterministic(
            "coefficient",
            _by_response(specification, columns),
            dims=(*specification.response_dims, "feature", "component"),
        )
        units = _response_units(specification)
        bias = _bias(specification, model_priors, at_mean, units)
        dispersion = _dispersion(specification, model_priors, units)
        length = pt.sqrt(pt.sqr(coefficient).sum(axis=-2))
        pm.Deterministic("scale", length, dims=(*specification.response_dims, "component"))
        direction = coefficient / length[..., None, :]
        pm.Deterministic("direction", direction, dims=model.named_vars_to_dims["coefficient"])
        if projects_once:
            eta = inputs * scale + bias
        else:
            columns = _as_columns(specification, coefficient)
            eta = _by_response(specification, linear_predictor(inputs, columns, bias.flatten()))
        _response(specification, eta, log_weight, dispersion)
    model_priors.require_all_used()
    start = specification.standardised_values(specification.start)
    for variable in model.free_RVs:
        if variable.name in start:
            model.set_initval(variable, start[variable.name])
    return model


def _coords(specification: Specification) -> dict[str, Any]:
    names = np.array(specification.data.response_names)
    coords: dict[str, Any] = {
        "feature": list(specification.data.feature_names),
        "component": np.arange(specification.n_components),
    }
    if specification.response_dims:
        coords["response"] = names.tolist()
    if 0 < len(specification.dispersed) < specification.n_predictors:
        coords["dispersed_response"] = names[specification.dispersed].tolist()
    if specification.has_tilt:
        coords["tangent"] = np.arange(specification.n_features - 1)
    if specification.gate_coordinates is not None:
        coords["gate_feature"] = list(specification.gate_coordinates.names)
    return coords


def _by_response(specification: Specification, columns: Any) -> Any:
    """Give each predictor its own matrix; the inverse of `_as_columns`."""
    # columns: (n_rows, n_predictors * n_components) -> (n_predictors, n_rows, n_components), or as
    # they are with a single predictor
    if not specification.response_dims:
        return columns
    shape = (columns.shape[0], specification.n_predictors, specification.n_components)
    return columns.reshape(shape).transpose(1, 0, 2)


def _as_columns(specification: Specification, values: Any) -> Any:
    """Put the matrices of all predictors side by side."""
    # values: (n_predictors, n_rows, n_components) -> (n_rows, n_predictors * n_components)
    if not specification.response_dims:
        return values
    n_columns = specification.n_predictors * specification.n_components
    return values.transpose(1, 0, 2).reshape((values.shape[1], n_columns))


def _inputs(specification: Specification, projects_once: bool) -> Any:
    """Register the inputs, or their projections on the anchors, as data."""
    inputs = np.asarray(specification.data.X, dtype=np.float64)
    if not projects_once:
        return pm.Data("X", inputs, dims=("obs", "feature"))
    unit = specification.to_user_columns(specification.anchors)
    return pm.Data("projection", inputs @ unit, dims=("obs", "component"))


def _mixing(specification: Specification, model_priors: ModelPriors) -> Any:
    """Return the log weights: (n_components,), or (n_obs, n_components) with a gate."""
    gate_coordinates = specification.gate_coordinates
    if gate_coordinates is None:
        return pt.log(model_priors.weight("weight", ("component",), specification.n_components))
    level = model_priors.gate("gate_bias", "standardised_gate_bias", ("component",))
    slopes = model_priors.gate("gate", "standardised_gate", ("gate_feature", "component"))
    # A user's prior need not sum to zero; the probabilities depend on differences only.
    level, slopes = level - level.mean(), slopes - slopes.mean(axis=1, keepdims=True)
    mean = _constant("gating_mean", gate_coordinates.mean)
    gate = slopes / _constant("gating_scale", gate_coordinates.scales)[:, None]
    gate_bias = level - (mean[:, None] * gate).sum(axis=0)
    pm.Deterministic("weight", pt.special.softmax(level), dims="component")
    gate = pm.Deterministic("gate", gate.T, dims=("component", "gate_feature")).T
    gate_bias = pm.Deterministic("gate_bias", gate_bias, dims="component")
    covariates = pm.Data("gating", specification.gating, dims=("obs", "gate_feature"))
    return pt.special.log_softmax(linear_predictor(covariates, gate, gate_bias), axis=-1)


def _constant(name: str, values: FloatArray) -> Any:
    """Make a constant that maps standardised parameters to the user's units.

    It is no data of the model, which PyMC would take to differ between two models: it then reads
    `coefficient`, `bias`, ... from draws, and never computes them anew from the standardised
    parameters and the anchors of another model. The name tells compilers to read it at run time.
    """
    return pt.constant(np.array(values, dtype=np.float64), name=name)


def _scale(specification: Specification, model_priors: ModelPriors) -> Any:
    """Create the standardised scales of all columns; None if the coefficients are free."""
    if specification.directions == "free":
        return None
    dims = (*specification.response_dims, "component")
    return model_priors.scale("standardised_scale", dims).flatten()


def _columns(
    specification: Specification, model_priors: ModelPriors, scale: Any
) -> tuple[Any, Any]:
    """Return the coefficients of the user's columns and the predictors at the mean input.

    The anchors and bases are mapped to the user's units once. The basis of an anchor is
    orthonormal, so the lengths of the standardised vectors are known without computing the vectors.
    """
    # -> (n_features, n_columns), (n_columns,)
    mean = _constant("input_mean", specification.coordinates[0].mean)
    if specification.directions == "free":
        value = _free_columns(specification, model_priors)
        return value, (mean[:, None] * value).sum(axis=0)
    n_features, n_columns = specification.anchor_columns.shape
    anchors = specification.to_user_columns(specification.anchor_columns)
    anchor = _constant("anchor", anchors)
    if not specification.has_tilt:
        value = anchor * scale
        # Not a matrix product, which takes long to compile: see `moment_init.models.ops`.
        return value, (mean[:, None] * value).sum(axis=0)
    bases = specification.bases.transpose(1, 0, 2)  # (n_features, n_columns, n_tangents)
    bases = specification.to_user_columns(bases.reshape(n_features, -1)).reshape(bases.shape)
    tilt = model_priors.tilt("tilt", (*specification.response_dims, "component", "tangent"))
    return anchored_coefficient(
        anchor,
        _constant("basis", specification.kappa * bases),
        mean,
        tilt.reshape((n_columns, n_features - 1)) if specification.response_dims else tilt,
        scale,
        kappa=specification.kappa,
    )


def _free_columns(specification: Specification, model_priors: ModelPriors) -> Any:
    """Create free coefficients, and return those of the user's columns."""
    dims = (*specification.response_dims, "feature", "component")
    free = model_priors.coefficient("standardised_coefficient", dims)
    units = coefficient_units(specification.coordinates)
    units = np.broadcast_to(units, specification.anchors.shape).copy()
    return _as_columns(specification, free * _constant("coefficient_units", units))


def _response_units(specification: Specification) -> Any:
    """Shift and scale of the predictors; None if their links have no units."""
    units = specification.units
    if np.all(units == [[0.0], [1.0]]):
        return None
    return _constant("response_units", units if specification.response_dims else units[:, 0])


def _bias(specification: Specification, model_priors: ModelPriors, at_mean: Any, units: Any) -> Any:
    dims = (*specification.response_dims, "component")
    level = model_priors.bias("standardised_bias", dims)
    if specification.response_dims:
        at_mean = at_mean.reshape((specification.n_predictors, specification.n_components))
        units = None if units is None else units[:, :, None]
    if units is not None:
        level = units[0] + units[1] * level
    return pm.Deterministic("bias", level - at_mean, dims=dims)


def _dispersion(specification: Specification, model_priors: ModelPriors, units: Any) -> Any:
    """Return the dispersions of those predictors that have one; None if none has."""
    # -> (n_components,) or (n_dispersed, n_components)
    dispersed, families = specification.dispersed, specification.data.family.predictor_families
    if not len(dispersed):
        return None
    is_deviation = np.array([[families[index].response_power] for index in dispersed])
    dims: tuple[str, ...] = (*specification.response_dims, "component")
    if len(dispersed) < len(families):
        dims = ("dispersed_response", "component")
    scale = None if units is None else units[1]
    if specification.response_dims:
        scale = None if scale is None else pt.switch(is_deviation, scale[dispersed][:, None], 1.0)
    else:
        is_deviation = is_deviation[0, 0]
        scale = scale if is_deviation else None
    value = model_priors.dispersion("standardised_dispersion", dims, is_deviation=is_deviation)
    # A shape or an alpha has no units; only deviations are scaled.
    return pm.Deterministic("dispersion", value if scale is None else value * scale, dims=dims)


def _response(specification: Specification, eta: Any, log_weight: Any, dispersion: Any) -> None:
    """Register the other data of the rows, and the response."""
    data = specification.data
    rows: dict[str, Any] = {}
    if data.offset is not None:
        offset = pm.Data("offset", data.offset, dims=("obs", *specification.response_dims))
        eta = eta + offset.T[..., None]
    dims = ("obs",) if data.y.ndim == 1 else ("obs", "response")
    if data.n_trials is not None:
        rows["n_trials"] = pm.Data("n_trials", data.n_trials, dims=dims)
    if np.any(data.sample_weight != 1.0):
        rows["sample_weight"] = pm.Data("sample_weight", data.sample_weight, dims="obs")
    codes = group_codes(data.groups)
    if codes is not None:
        rows["group"] = pm.Data("group", codes, dims="obs")
    mixture_response(
        "y",
        eta,
        log_weight,
        family=data.family,
        dispersion=dispersion,
        observed=pm.Data("y_data", data.y, dims=dims),
        dims=dims,
        **rows,
    )


@takes_formula
def mixture_glm(
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
    directions: Directions = "anchored",
    anchor_angle: float = 45.0,
    priors: Mapping[str, Any] | None = None,
) -> pm.Model:
    r"""Build the PyMC model of a mixture of generalised linear models.

    .. math:: u_j = \frac{a_j + \kappa Q_j \zeta_j}{\sqrt{1 + \kappa^2 |\zeta_j|^2}}, \qquad
        \kappa = \tan(\text{anchor\_angle}) / \sqrt{d - 1}, \qquad \zeta_j \sim N(0, I)

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
        Seed of the search for starting values.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend, by a multinomial logit.
    init : str, MomentEstimate, EMFit or tuple of arrays, default "search"
        Starting values of the model, which also set the anchors. "search", "tensor", "random" and a
        `MomentEstimate` are first improved by `fit_em` with its default priors; an `EMFit` and the
        arrays (coefficients, biases, weights[, dispersion]) are used as they are.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Whether the directions tilt about their anchors, are fixed, or are free.
    anchor_angle : float, default 45
        Prior angle (root mean square) between a direction and its anchor, in degrees and in
        standardised coordinates.
    priors : mapping of str to prior, optional
        Priors of `scale`, `bias`, `weight`, `dispersion`, `tilt`, `coefficient` (free directions),
        `gate` and `gate_bias`, all of the standardised parameters. Each is an unregistered
        distribution such as ``pm.HalfNormal.dist(3)``, a callable of (name, dims), or an object
        with `create_variable`. Those of `coefficient` may be a dict by column, or by response and
        then column; a coefficient is that of a centred and scaled column. `user_units` states a
        prior in the units of the data. `moment_init.models.priors` lists the defaults.

    Returns
    -------
    pymc.Model
        The model, with the response `y` and the data `X`, `y_data` and, where given, `offset`,
        `n_trials`, `sample_weight`, `group` and `gating`, which ``pm.set_data`` can replace. Its
        initial values are the starting values.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values: data as in `fit_em`, starting values that do not fit the data, priors of
        parameters that the model does not have.

    Notes
    -----
    The anchors come from the data, so the prior of anchored directions uses the data twice; at 45
    degrees the effect is small. Label switching is still possible if two anchors are close;
    `align_components` undoes and reports it. An anchored direction stays within 90 degrees of its
    anchor. This cuts off the posterior of a component whose slopes are not clearly different from
    zero: use free directions for it. With a single feature the directions are always free. Fixed
    directions are treated as exact, so the intervals of the other parameters are too short.

    ``pm.sample`` adds jitter to the starting values, which can undo them: use `moment_init.sample`,
    or ``pm.sample(compile_kwargs={"jitter_rvs": set()})``. Chains that all start near one mode
    cannot reveal another. ``pm.do``, ``pm.observe``, ``model.copy()``,
    ``pm.compute_log_likelihood`` and ``pm.compute_log_prior`` copy the model, which PyMC cannot do
    if it has initial values. Remove them before these calls:
    ``for variable in model.free_RVs: model.set_initval(variable, None)``. The tree of
    `moment_init.sample` already has log-likelihoods.

    With several responses, or classes, `coefficient` and `direction` have the dims (response,
    feature, component), `bias`, `scale` and `dispersion` (response, component), and so have the
    arrays of `init`. The dim holds the responses, or all classes but the first in sorted order; if
    only some responses have a dispersion, its first dim is `dispersed_response`. Every response has
    its own directions.

    With `groups`, the first row of a group holds the log-likelihood of the group and the other rows
    hold zero. For ``az.loo``, use the tree of `moment_init.sample`, which has one value per group.

    References
    ----------
    .. [1] Sedghi, Janzamin and Anandkumar (2016), Provable tensor methods for learning mixtures of
       generalized linear models, AISTATS, arXiv:1412.3046.

    Examples
    --------
    >>> from moment_init import simulate_mixture
    >>> from moment_init.models import mixture_glm
    >>> data = simulate_mixture(2000, 3, 2, family="poisson", random_seed=1)
    >>> model = mixture_glm(data.X, data.y, 2, family="poisson", random_seed=1)
    >>> [variable.name for variable in model.free_RVs]
    ['weight', 'standardised_scale', 'tilt', 'standardised_bias']
    >>> model.named_vars_to_dims["coefficient"]
    ('feature', 'component')
    """
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
    ).whole("`X` and `y` must be in memory")
    specification = specify(
        data,
        n_components,
        init=init,
        directions=directions,
        anchor_angle=anchor_angle,
        random_seed=random_seed,
    )
    return build_model(specification, priors)


@takes_formula
def mixture_of_experts(
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
    directions: Directions = "anchored",
    anchor_angle: float = 45.0,
    priors: Mapping[str, Any] | None = None,
) -> pm.Model:
    r"""Build a mixture whose weights depend on covariates, by default on the inputs.

    .. math:: P(h = j \mid x) = \frac{e^{c_j + \langle v_j, x \rangle}}
        {\sum_k e^{c_k + \langle v_k, x \rangle}}

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs of the experts, or a formula, see `mixture_glm`.
    y : array-like, shape (n_obs,) or (n_obs, n_responses), or DataFrame
        Response, or several responses. With a formula, its data.
    n_components : int
        Number of experts.
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
        Group labels; the rows of a group share their expert and must have equal gating covariates.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the search for starting values.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates of the gate; `X` by default.
    init : str, MomentEstimate, EMFit or tuple of arrays, default "search"
        Starting values, see `mixture_glm`.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Whether the experts' directions tilt about their anchors, are fixed, or are free.
    anchor_angle : float, default 45
        Prior angle of anchored directions, in degrees.
    priors : mapping of str to prior, optional
        Priors, see `mixture_glm`.

    Returns
    -------
    pymc.Model
        The model; `gate` and `gate_bias` sum to zero over the experts.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values, as in `mixture_glm`.

    See Also
    --------
    mixture_glm : A mixture with the same weights for all rows.
    """
    return mixture_glm(
        X,
        y,
        n_components,
        family=family,
        link=link,
        offset=offset,
        n_trials=n_trials,
        sample_weight=sample_weight,
        groups=groups,
        random_seed=random_seed,
        gating=X if gating is None else gating,
        init=init,
        directions=directions,
        anchor_angle=anchor_angle,
        priors=priors,
    )
