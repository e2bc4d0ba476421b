r"""The Bayesian mixture of generalised linear models, and the mixture of experts.

.. math::

    y_i \sim \sum_j w_j\, p(\cdot \mid g(\langle \beta_j, x_i \rangle + b_j)), \qquad
    \beta_j = s_j u_j

The component is summed out. Free variables are standardised parameters; `coefficient`, `direction`,
`scale`, `bias`, `weight`, `dispersion`, `gate` and `gate_bias` are in the user's units.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pymc as pm
from numpy.typing import ArrayLike

from moment_init.arguments import RandomSeed
from moment_init.families import Family
from moment_init.formulas import takes_formula
from moment_init.models.model_building import build_model
from moment_init.models.specification import Directions, specify
from moment_init.responses.boundary import takes_responses

__all__ = ["mixture_glm", "mixture_of_experts"]


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
        Inputs; names of a DataFrame's columns become the `feature` coordinate. Or a formula, such
        as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,), or DataFrame
        Response; or the formula's data, whose columns `offset`, `groups`, ... may then name.
        Several responses that share their component, shape (n_obs, n_responses): variables then
        have the dim `response`.
    n_components : int
        Number of components.
    family : str or Family, default "bernoulli"
        Family of the response, or one for each; "categorical" for labels of classes. With a formula
        the default is the one that suits its values.
    link : str, optional
        Its link; the family's own by default.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Trials behind binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        How often each row counts.
    groups : array-like, shape (n_obs,), optional
        Labels of groups whose rows share their component.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the search for a start.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates on which the weights depend, by a multinomial logit.
    init : {"tensor", "random"}, MomentEstimate, EMFit or tuple of arrays, default "tensor"
        Where the model starts, and its anchors: a fit by `fit_em` from that start, an `EMFit` as it
        is, or (coefficients, biases, weights[, dispersion]) as they are.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Whether directions tilt about an anchor, are held, or are free.
    anchor_angle : float, default 45
        Root mean square of the prior's angle between a direction and its anchor, in degrees and in
        standardised coordinates.
    priors : mapping of str to prior, optional
        Priors of `scale`, `bias`, `weight`, `dispersion`, `tilt`, `coefficient` (free directions),
        `gate`, `gate_bias`, all standardised: an unregistered distribution such as
        ``pm.HalfNormal.dist(3)``, a callable of (name, dims), or an object with `create_variable`.
        The defaults are listed in `moment_init.models.priors`.

    Returns
    -------
    pymc.Model
        With data `X`, `y_data` and, where given, `offset`, `n_trials`, `sample_weight`, `group`,
        `gating`, which ``pm.set_data`` replaces, and the response `y`. Its initial values are the
        start.

    Raises
    ------
    TypeError
        For arguments of a wrong type.
    ValueError
        For wrong values: data as in `fit_em`, a start of other data, priors of parameters that the
        model does not have.

    Notes
    -----
    Anchors come from the data, so that the prior of anchored directions uses the data twice; at 45
    degrees that is little. Labels can still switch where two anchors are close; `align_components`
    undoes and reports it. An anchored direction stays within 90 degrees of its anchor, so that a
    component whose slopes are not clearly different from zero has a posterior that is cut off
    there: use free directions for it. With a single feature directions are always free. Held
    directions are taken for exact: intervals of the other parameters
    are then too short.

    ``pm.sample`` adds its own jitter to the start, which can undo it: use `moment_init.sample`, or
    ``pm.sample(compile_kwargs={"jitter_rvs": set()})``. Chains that all start near one mode cannot
    show another one. PyMC does not copy models with initial values, as ``pm.do``, ``pm.observe``,
    ``model.copy()``, ``pm.compute_log_likelihood`` and ``pm.compute_log_prior`` do: before these,
    ``for variable in model.free_RVs: model.set_initval(variable, None)``. The tree of
    `moment_init.sample` has log-likelihoods already.

    With `groups` the log-likelihood of a group stands in its first row and zero in the others:
    take log-likelihoods from `moment_init.sample`, which has one for each group, for ``az.loo``.

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
    r"""Build a mixture whose weights depend on covariates, by default on the inputs themselves.

    .. math:: P(h = j \mid x) = \frac{e^{c_j + \langle v_j, x \rangle}}
        {\sum_k e^{c_k + \langle v_k, x \rangle}}

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs of the experts; or a formula, see `mixture_glm`.
    y : array-like, shape (n_obs,), or DataFrame
        Response; or the formula's data.
    n_components : int
        Number of experts.
    family : str or Family, default "bernoulli"
        Family of the response; with a formula, by default the one that suits its values.
    link : str, optional
        Its link.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor.
    n_trials : int or array-like, shape (n_obs,), optional
        Trials behind binomial responses.
    sample_weight : array-like, shape (n_obs,), optional
        How often each row counts.
    groups : array-like, shape (n_obs,), optional
        Labels of groups whose rows share their expert; gating covariates must not vary in them.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        Seed of the search for a start.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Covariates of the gate; `X` by default.
    init : {"tensor", "random"}, MomentEstimate, EMFit or tuple of arrays, default "tensor"
        Where the model starts, see `mixture_glm`.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        What is done about the experts' directions.
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
        For wrong values, as `mixture_glm`.

    See Also
    --------
    mixture_glm : The model with the same weights for all rows.
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
