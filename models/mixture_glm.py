r"""The Bayesian mixture of generalised linear models, and the mixture of experts, in PyMC.

.. math::

    y_i \sim \sum_j w_j\, p(\cdot \mid g(\langle \beta_j, x_i \rangle + b_j)), \qquad
    \beta_j = s_j u_j

`build_model` turns a specification into a model: data, weights or gate, coefficients, biases,
dispersions and the response, in which the component is summed out. The free variables are
standardised parameters; `coefficient`, `direction`, `scale`, `bias`, `weight`, `dispersion`,
`gate` and `gate_bias` are in the user's units.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike

from moment_init.checks import RandomSeed
from moment_init.data.checking import group_codes
from moment_init.data.formulas import takes_formula
from moment_init.families.base import Family
from moment_init.models.density import mixture_response
from moment_init.models.ops import anchored_coefficient, linear_predictor
from moment_init.models.priors import ModelPriors
from moment_init.models.specification import Directions, Specification, specify
from moment_init.responses.data import takes_responses


def build_model(
    specification: Specification,
    priors: Mapping[str, Any] | None = None,
    *,
    projects_once: bool = False,
) -> pm.Model:
    """Build the model of a specification."""
    model_priors = ModelPriors(
        priors,
        link=specification.data.family.link.name,
        n_features=specification.n_features,
    )
    projects_once = projects_once and specification.directions == "fixed"
    with pm.Model(coords=_coords(specification)) as model:
        # The inputs come first: they set the length of `obs`, and PyMC warns if other data are
        # resized before them.
        inputs = _inputs(specification, projects_once)
        log_weight = _mixing(specification, model_priors)
        scale = _scale(specification, model_priors)
        coefficient, at_mean = _coefficient(specification, model_priors, scale)
        units = _response_units(specification)
        bias = _bias(model_priors, at_mean, units)
        dispersion = _dispersion(specification, model_priors, units)
        length = pt.sqrt(pt.sqr(coefficient).sum(axis=0))
        pm.Deterministic("scale", length, dims="component")
        pm.Deterministic("direction", coefficient / length, dims=("feature", "component"))
        if projects_once:
            eta = inputs * scale + bias
        else:
            eta = linear_predictor(inputs, coefficient, bias)
        _response(specification, eta, log_weight, dispersion)
    model_priors.require_all_used()
    start = specification.standardised_values(specification.start)
    for variable in model.free_RVs:
        if variable.name in start:
            model.set_initval(variable, start[variable.name])
    return model


def _coords(specification: Specification) -> dict[str, Any]:
    coords: dict[str, Any] = {
        "feature": list(specification.data.feature_names),
        "component": np.arange(specification.n_components),
    }
    if specification.has_tilt:
        coords["tangent"] = np.arange(specification.n_features - 1)
    if specification.gate_coordinates is not None:
        coords["gate_feature"] = list(specification.gate_coordinates.names)
    return coords


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
    mean = pm.Data("gating_mean", gate_coordinates.mean, dims="gate_feature")
    gate = slopes / pm.Data("gating_scale", gate_coordinates.scales, dims="gate_feature")[:, None]
    gate_bias = level - (mean[:, None] * gate).sum(axis=0)
    pm.Deterministic("weight", pt.special.softmax(level), dims="component")
    pm.Deterministic("gate", gate.T, dims=("component", "gate_feature"))
    gate_bias = pm.Deterministic("gate_bias", gate_bias, dims="component")
    covariates = pm.Data("gating", specification.gating, dims=("obs", "gate_feature"))
    return pt.special.log_softmax(linear_predictor(covariates, gate, gate_bias), axis=-1)


def _scale(specification: Specification, model_priors: ModelPriors) -> Any:
    """Create the standardised scales; None if the coefficients are free."""
    if specification.directions == "free":
        return None
    return model_priors.scale("standardised_scale", ("component",))


def _coefficient(
    specification: Specification, model_priors: ModelPriors, scale: Any
) -> tuple[Any, Any]:
    """Return the coefficients of the user's columns and the predictors at the mean input.

    The anchors and bases are mapped to the user's units once. The basis of an anchor is
    orthonormal, so the lengths of the standardised vectors are known without computing the vectors.
    """
    # -> (n_features, n_components), (n_components,)
    dims = ("feature", "component")
    mean = pm.Data("input_mean", specification.coordinates.mean, dims="feature")
    if specification.has_tilt:
        return _anchored(specification, model_priors, scale, mean)
    if specification.directions == "free":
        free = model_priors.coefficient("standardised_coefficient", dims)
        back = specification.to_user_columns(np.eye(specification.n_features))
        level = np.zeros(specification.n_components)
        value = linear_predictor(pm.Data("unwhitening", back), free, level)
    else:
        anchors = specification.to_user_columns(specification.anchors)
        value = pm.Data("anchor", anchors, dims=dims) * scale
    coefficient = pm.Deterministic("coefficient", value, dims=dims)
    # Not a matrix product, which takes long to compile: see `moment_init.models.ops`.
    return coefficient, (mean[:, None] * coefficient).sum(axis=0)


def _anchored(
    specification: Specification, model_priors: ModelPriors, scale: Any, mean: Any
) -> tuple[Any, Any]:
    bases = np.stack([specification.to_user_columns(basis) for basis in specification.bases])
    coefficient, at_mean = anchored_coefficient(
        pm.Data(
            "anchor",
            specification.to_user_columns(specification.anchors),
            dims=("feature", "component"),
        ),
        pm.Data(
            "basis",
            specification.kappa * bases.transpose(1, 0, 2),
            dims=("feature", "component", "tangent"),
        ),
        mean,
        model_priors.tilt("tilt", ("component", "tangent")),
        scale,
        kappa=specification.kappa,
    )
    return pm.Deterministic("coefficient", coefficient, dims=("feature", "component")), at_mean


def _response_units(specification: Specification) -> Any:
    """Register the shift and scale of the linear predictor; None if its link has no units.

    They are data because constants would become part of the compiled code.
    """
    coordinates = specification.coordinates
    if (coordinates.response_shift, coordinates.response_scale) == (0.0, 1.0):
        return None
    return pm.Data(
        "response_units",
        np.array([coordinates.response_shift, coordinates.response_scale]),
        dims="response_unit",
        coords={"response_unit": ["shift", "scale"]},
    )


def _bias(model_priors: ModelPriors, at_mean: Any, units: Any) -> Any:
    level = model_priors.bias("standardised_bias", ("component",))
    if units is not None:
        level = units[0] + units[1] * level
    return pm.Deterministic("bias", level - at_mean, dims="component")


def _dispersion(specification: Specification, model_priors: ModelPriors, units: Any) -> Any:
    family = specification.data.family
    if not family.has_dispersion:
        return None
    value = model_priors.dispersion(
        "standardised_dispersion", ("component",), is_deviation=family.response_power
    )
    if family.response_power and units is not None:
        value = value * units[1]
    return pm.Deterministic("dispersion", value, dims="component")


def _response(specification: Specification, eta: Any, log_weight: Any, dispersion: Any) -> None:
    """Register the other data of the rows, and the response."""
    data = specification.data
    rows: dict[str, Any] = {}
    if data.offset is not None:
        eta = eta + pm.Data("offset", data.offset, dims="obs")[:, None]
    if data.n_trials is not None:
        rows["n_trials"] = pm.Data("n_trials", data.n_trials, dims="obs")
    if np.any(data.sample_weight != 1.0):
        rows["sample_weight"] = pm.Data("sample_weight", data.sample_weight, dims="obs")
    codes = group_codes(data.groups)
    if codes is not None:
        rows["group"] = pm.Data("group", codes, dims="obs")
    mixture_response(
        "y",
        eta,
        log_weight,
        family=data.family.name,
        link=data.family.link.name,
        dispersion=dispersion,
        observed=pm.Data("y_data", data.y, dims="obs"),
        dims="obs",
        **rows,
    )


def _load_joint() -> Callable[..., Any]:
    from moment_init.models.joint_building import joint_mixture_glm

    return joint_mixture_glm


@takes_formula
@takes_responses(_load_joint, ("gating",))
def mixture_glm(
    X: Any,
    y: Any,
    n_components: int,
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    init: Any = "tensor",
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
    family : str or Family, default "bernoulli"
        Family of the response, or one per response; "categorical" for class labels. With a formula
        the default is chosen from the values of the response.
    link : str, optional
        Link; the family's default link if left out.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Number of trials of binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row: how many times it counts.
    groups : array-like, shape (n_obs,), optional
        Group labels; the rows of a group share their component.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the search for starting values.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend, by a multinomial logit.
    init : {"tensor", "random"}, MomentEstimate, EMFit or tuple of arrays, default "tensor"
        Starting values of the model, which also set the anchors. "tensor", "random" and a
        `MomentEstimate` are first improved by `fit_em`; an `EMFit` and the arrays (coefficients,
        biases, weights[, dispersion]) are used as they are.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Whether the directions tilt about their anchors, are fixed, or are free.
    anchor_angle : float, default 45
        Prior angle (root mean square) between a direction and its anchor, in degrees and in
        standardised coordinates.
    priors : mapping of str to prior, optional
        Priors of `scale`, `bias`, `weight`, `dispersion`, `tilt`, `coefficient` (free directions),
        `gate` and `gate_bias`, all of the standardised parameters. Each is an unregistered
        distribution such as ``pm.HalfNormal.dist(3)``, a callable of (name, dims), or an object
        with `create_variable`. `moment_init.models.priors` lists the defaults.

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
    specification = specify(
        X,
        y,
        n_components,
        data_block={
            "family": family,
            "link": link,
            "offset": offset,
            "n_trials": n_trials,
            "sample_weight": sample_weight,
            "groups": groups,
        },
        gating=gating,
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
    family: str | Family = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    init: Any = "tensor",
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
    y : array-like, shape (n_obs,), or DataFrame
        Response. With a formula, its data.
    n_components : int
        Number of experts.
    family : str or Family, default "bernoulli"
        Family of the response. With a formula the default is chosen from the response's values.
    link : str, optional
        Link; the family's default link if left out.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Number of trials of binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row: how many times it counts.
    groups : array-like, shape (n_obs,), optional
        Group labels; the rows of a group share their expert and must have equal gating covariates.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the search for starting values.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates of the gate; `X` by default.
    init : {"tensor", "random"}, MomentEstimate, EMFit or tuple of arrays, default "tensor"
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
