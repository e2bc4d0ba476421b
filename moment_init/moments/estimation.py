"""The entry point `estimate`: wires input model, moments, decomposition and recovery together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from moment_init.checks import (
    FloatArray,
    IdentifiabilityError,
    RandomSeed,
    WeakSignalWarning,
    as_float_array,
    make_generator,
    notify,
    validate_n_components,
)
from moment_init.data.blocks import N_PARTS, source_of
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.formulas import takes_formula
from moment_init.families.base import Family
from moment_init.moments.judgement import with_input_findings
from moment_init.moments.paper.third_moment import estimate_by_third_moment
from moment_init.moments.result import MomentEstimate
from moment_init.moments.stacked_result import (
    apply_known_parameters,
    assemble_stacked,
    choose_n_components,
    solve_stacked,
)
from moment_init.responses.data import takes_responses
from moment_init.row_sources.posing import (
    require_features_in_memory,
    require_supported,
    resolve_dask_input,
)
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import InputModelName, apply_features, resolve_input

Method = Literal["stacked", "power", "tensorly"]


def _load_joint() -> Callable[..., Any]:
    from moment_init.responses.moments import estimate_responses

    return estimate_responses


@takes_formula
@takes_responses(_load_joint, ("phi", "known_scales", "known_biases"))
def estimate(
    X: Any,
    y: Any,
    n_components: int | Literal["auto"],
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
    offset: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    input_model: InputModelName | InputModel = "auto",
    method: Method = "stacked",
    polish: bool = True,
    X_unlabelled: Any = None,
    phi: Callable[[Any], Any] | None = None,
    known_scales: ArrayLike | None = None,
    known_biases: ArrayLike | None = None,
    random_seed: RandomSeed = None,
) -> MomentEstimate:
    r"""Estimate a mixture of generalized linear models from moments.

    For any function T of the response, the cross-moments with the input's score functions have the
    directions u_j as components (Theorem 9 of [1]_),

    .. math:: E[T(y) S_m(x)] = \sum_j w_j s_j^m E[\tau_T^{(m)}(s_j z + b_j)]\, u_j^{\otimes m},
              \qquad \tau_T(\eta) = E[T(y) \mid \eta].

    ``method="stacked"`` uses many functions T and all orders up to three at once: one stacked
    tensor gives candidates for the directions, and scales, biases, weights and dispersion are those
    that explain all moments best. The polish then climbs to the maximum of the likelihood.
    ``method="power"`` is Algorithm 1 of [1]_, lines 1 and 2: the third moment of y alone (Lemmas 3
    and 6; Lemma 2 for one component), and directions only.

    Parameters
    ----------
    X : array-like, DataFrame or Dask collection, shape (n_obs, n_features), or str
        Inputs; a DataFrame's column names are kept. Or a formula, such as ``"y ~ a + b"``.
    y : array-like or Dask collection, shape (n_obs,), or DataFrame
        Response; or the formula's data, whose columns `offset`, `n_trials`, ... may then name.
        Several responses, shape (n_obs, n_responses), share component and direction.
    n_components : int or "auto"
        Number of components r. More than n_features only with ``method="stacked"``, where they take
        far more rows. "auto" chooses it by the spectrum of the moments and BIC, polish included.
    family : str or Family
        "bernoulli", "binomial", "poisson", "negative_binomial", "gaussian" or "gamma", or one for
        each response; "categorical" for labels of classes. With a formula the default is the one
        that suits the response.
    link : str, optional
        The family's own by default; "probit" for bernoulli and binomial.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor. Moments take it, and `n_trials`, as independent of X
        (but for the identity link); the polish does not.
    n_trials : array-like, shape (n_obs,), optional
        Trials behind each binomial response.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row, as a count: a row of weight 2 counts as two rows.
    groups : array-like, shape (n_obs,), optional
        Rows of a group share their component. Neither the moments nor the polish use it: the
        estimate stays consistent, standard errors and log-likelihood are those of independent rows.
    input_model : {"auto", "gaussian"} or InputModel, default "auto"
        Density of the input. "auto" tries the Gaussian on rows held out, and others where it fails;
        `MomentEstimate.input_choice` says what was found. Discrete columns are set apart: moments
        are those of the continuous ones given them. An object of `moment_init.scores` is used as it
        is if it is fitted, else it is fitted to X.
    method : {"stacked", "power", "tensorly"}
        Stacked moments; the paper's robust power method on the third moment; or TensorLy's
        symmetric power method on the same whitened tensor.
    polish : bool
        Whether the stacked estimate is polished by the likelihood: EM in the projected rows, then
        Newton steps. Not used by the other methods.
    X_unlabelled : array-like or DataFrame, shape (n_rows, n_features), optional
        Rows without a response: the density of the input is fitted to them too.
    phi : callable, optional
        Known features: the linear predictors are those of ``phi(X)``, an array or DataFrame with
        as many rows. `input_model` is then the density of these features.
    known_scales, known_biases : float or array-like, shape (n_components,), optional
        Scales s_j and biases b_j, both or neither. Weights are then computed, and components
        come in the order given.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Same seed, same bits.

    Returns
    -------
    MomentEstimate
        Directions, scales, biases, weights, dispersion, standard errors, status, diagnostics; a
        JointEstimate for several responses or classes.

    Raises
    ------
    IdentifiabilityError
        If there are more components than the moments can identify.
    TypeError
        For arguments of a wrong type.
    ValueError
        For data that are missing, infinite, constant, collinear, too few, or outside the family's
        range.

    Warns
    -----
    WeakSignalWarning
        If a component does not stand out from noise, or the components cannot be told apart.

    Notes
    -----
    Stacked: four or five passes over the rows, O(n d^2 m + n r^3 m) for m functions of the
    response; with polish on some 60,000 rows, twice as many until the directions show, followed
    by a few passes of the likelihood over all rows. Power: O(n d^3 / 4) for few features,
    O(n d^2) per slice for many.

    Rows of a Dask collection are never read whole, unless they are few; what would need them in
    memory raises. The same seed gives the same result, up to rounding of sums, as from arrays.

    Components whose coefficients are parallel share a direction: the spectrum of the moments then
    shows fewer directions than components, and the status says so.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> from moment_init import estimate, simulate_mixture
    >>> data = simulate_mixture(200_000, 4, 2, family="bernoulli", scales=3.0, random_seed=1)
    >>> result = estimate(data.X, data.y, 2, family="bernoulli", random_seed=1)
    >>> result.status
    <Status.OK: 'ok'>
    >>> result.directions.shape, result.scales.shape, result.weights.shape
    ((4, 2), (2,), (2,))
    """
    if phi is not None:
        require_features_in_memory(X, X_unlabelled)
        X = apply_features(phi, X, "X")
        X_unlabelled = (
            None if X_unlabelled is None else apply_features(phi, X_unlabelled, "X_unlabelled")
        )
    data = validate_data(
        X,
        y,
        family=family,
        link=link,
        offset=offset,
        n_trials=n_trials,
        sample_weight=sample_weight,
        groups=groups,
    ).drop_zero_weights()
    if method not in get_args(Method):
        raise ValueError(f"`method` must be one of {get_args(Method)}; got {method!r}.")
    number = _validate_number(n_components, data, method)
    if number == 0 and not polish:
        raise ValueError(
            "`polish` must be True for n_components='auto', which compares likelihoods; got False. "
            "Give a number, or leave `polish` out."
        )
    known = _known_parameters(known_scales, known_biases, number)
    rng = make_generator(random_seed)
    if source_of(data.X) is None:
        problem = resolve_input(
            data, input_model, X_unlabelled, rng.spawn(1)[0], is_stacked=method == "stacked"
        )
    else:
        require_supported(data, method=method, polish=polish, unlabelled=X_unlabelled, known=known)
        problem = resolve_dask_input(data, input_model, rng.spawn(1)[0], polish=polish)
    if problem.block is not None and not polish:
        raise ValueError(
            "`polish` must be True where columns are discrete, as the likelihood gives their "
            "coefficients; got False. Leave it out, or drop the columns "
            f"{', '.join(problem.block.discrete_names(data.feature_names))}."
        )
    if method != "stacked":
        result = estimate_by_third_moment(problem, number, rng, method=method, known=known)
    elif number == 0:
        solution, selection = choose_n_components(problem, rng)
        result = replace(assemble_stacked(problem, solution), selection=selection)
    else:
        solution = solve_stacked(problem, number, rng, is_polished=polish)
        result = assemble_stacked(problem, solution)
        if known is not None:
            result = apply_known_parameters(problem, result, *known)
    result = with_input_findings(problem, result)
    for warning in result.warnings:
        notify(warning, WeakSignalWarning)
    return result


def _validate_number(n_components: Any, data: RegressionData, method: Method) -> int:
    """Check the number of components; 0 stands for a number that is to be chosen."""
    if isinstance(n_components, str):
        if n_components != "auto" or method != "stacked":
            raise ValueError(
                "`n_components` must be an integer or, with method='stacked', 'auto'; "
                f"got {n_components!r} with method={method!r}."
            )
        _require_rows(data, 1, method)
        return 0
    number = validate_n_components(n_components, data.n_obs)
    if method != "stacked" and number > data.n_features:
        raise IdentifiabilityError(
            f"`n_components` must be at most the number of features ({data.n_features}) for the "
            f"directions to be independent; got {number}. Reduce it, add features or use "
            "method='stacked'."
        )
    _require_rows(data, number, method)
    return number


def _require_rows(data: RegressionData, n_components: int, method: Method) -> None:
    """Fewer rows than unknowns cannot work, nor fewer than parts of a jackknife."""
    smallest = data.n_features * (n_components + 1)
    if data.n_obs <= smallest:
        raise ValueError(
            f"`X` must have more than n_features * (n_components + 1) = {smallest} rows: "
            f"fewer leave nothing to estimate; got {data.n_obs}. Add rows, drop columns or "
            "use fewer components."
        )
    if method == "stacked" and data.n_obs < N_PARTS:
        raise ValueError(
            f"`X` must have at least {N_PARTS} rows for the stacked estimate; got {data.n_obs}. "
            "Add rows."
        )


def _known_parameters(
    known_scales: ArrayLike | None, known_biases: ArrayLike | None, n_components: int
) -> tuple[FloatArray, FloatArray] | None:
    """Check known scales and biases: both or neither, and for a given number of components."""
    if known_scales is None and known_biases is None:
        return None
    if known_scales is None or known_biases is None:
        raise ValueError(
            "`known_scales` and `known_biases` must be given together; got only one of them. "
            "The weights depend on both."
        )
    if n_components == 0:
        raise ValueError(
            "`known_scales` and `known_biases` need a given `n_components`; got 'auto'. "
            "Give the number of components that they belong to."
        )
    scales = _known_parameter(known_scales, "known_scales", n_components)
    biases = _known_parameter(known_biases, "known_biases", n_components)
    if scales.min() <= 0.0:
        raise ValueError(f"`known_scales` must be positive; got {scales.min():g}.")
    return scales, biases


def _known_parameter(values: ArrayLike, name: str, n_components: int) -> FloatArray:
    """Check known scales or biases and give each component one."""
    array = as_float_array(values, name)
    if array.shape not in {(), (n_components,)} or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`{name}` must be a finite number or one per component, shape ({n_components},); "
            f"got {values!r}."
        )
    return np.broadcast_to(array, (n_components,)).copy()
