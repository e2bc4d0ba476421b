"""The entry point `estimate`: checks the data, then runs moments, decomposition and polish."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
from moment_init.data.blocks import N_PARTS, single_threaded_blas
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.formulas import takes_formula
from moment_init.data.standardising import ROUGH_ROWS
from moment_init.families.base import Family
from moment_init.families.several import AnyFamily
from moment_init.likelihood.many_rows import APPROACHES
from moment_init.moments.paper.third_moment import estimate_by_third_moment
from moment_init.moments.result import MomentEstimate
from moment_init.moments.several import estimate_several
from moment_init.moments.stacked import MOMENT_ROWS
from moment_init.moments.stacked_result import (
    apply_known_parameters,
    assemble_stacked,
    choose_n_components,
    solve_stacked,
    with_input_findings,
)
from moment_init.progress import progress
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import (
    EstimationProblem,
    InputModelName,
    apply_features,
    drawn_inputs,
    resolve_input,
)

Method = Literal["stacked", "power", "tensorly"]


@takes_formula
def estimate(
    X: Any,
    y: Any,
    n_components: int | Literal["auto"],
    *,
    family: str | AnyFamily | Sequence[str | Family] = "bernoulli",
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
    progressbar: bool = True,
) -> MomentEstimate:
    r"""Estimate a mixture of generalized linear models from moments.

    For any function T of the response, the cross-moments with the input's score functions have the
    directions u_j as components (Theorem 9 of [1]_),

    .. math:: E[T(y) S_m(x)] = \sum_j w_j s_j^m E[\tau_T^{(m)}(s_j z + b_j)]\, u_j^{\otimes m},
              \qquad \tau_T(\eta) = E[T(y) \mid \eta].

    ``method="stacked"`` uses many functions T and all orders up to three at once: the decomposition
    of one stacked tensor gives candidate directions, and the likelihood along them scales, biases,
    weights and dispersion. The polish climbs from there to the maximum of the likelihood. Without
    it, moments of the scores of the mixture, functions of the response that suit it best, refine
    the directions.
    ``method="power"`` is Algorithm 1 of [1]_, lines 1 and 2: it uses only the third moment of y
    (Lemmas 3 and 6; Lemma 2 for one component) and estimates only the directions.

    Parameters
    ----------
    X : array-like, DataFrame or Dask collection, shape (n_obs, n_features), or str
        Inputs; the column names of a DataFrame are kept. Or a formula, such as ``"y ~ a + b"``.
    y : array-like or Dask collection, shape (n_obs,), or DataFrame
        Response; or the data of the formula, and `offset`, `n_trials`, ... may be column names.
        Several responses, shape (n_obs, n_responses), share their components and directions; so do
        the linear predictors of class labels.
    n_components : int or "auto"
        Number of components r. More than n_features need ``method="stacked"`` and far more rows.
        "auto" chooses r by the spectrum of the moments and the BIC of polished fits, for one
        response.
    family : str, Family or sequence of them
        "bernoulli", "binomial", "poisson", "negative_binomial", "gaussian" or "gamma", or one for
        each response; "categorical" for class labels. With a formula, the default is the family
        that suits the response.
    link : str, optional
        The family's default link if None; "probit" is possible for bernoulli and binomial.
    offset : array-like, shape (n_obs,) or (n_obs, P), optional
        Known part of the linear predictors, the same for all P of them or one for each. The moments
        assume that it and `n_trials` are independent of X (except with the identity link); the
        polish does not.
    n_trials : array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Number of trials of each binomial response.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row, as a count: a row of weight 2 counts as two rows.
    groups : array-like, shape (n_obs,), optional
        Rows of a group share their component. Neither the moments nor the polish use the groups:
        the estimate is consistent, but its errors and likelihood are those of independent rows.
    input_model : {"auto", "gaussian"} or InputModel, default "auto"
        Density of the input. "auto" tests the Gaussian on held-out rows and tries others if it
        fails; `MomentEstimate.input_choice` reports the choice. The moments use the continuous
        columns only, conditional on the discrete ones. An object of `moment_init.scores` is used as
        it is if it is fitted; otherwise it is fitted to X.
    method : {"stacked", "power", "tensorly"}
        Stacked moments; the paper's robust power method on the third moment; or TensorLy's
        symmetric power method on the same whitened tensor.
    polish : bool
        Whether the stacked estimate is polished by maximum likelihood, with Newton steps from its
        best candidate. The other methods ignore it.
    X_unlabelled : array-like or DataFrame, shape (n_rows, n_features), optional
        Rows without a response: the density of the input is fitted to them as well.
    phi : callable, optional
        Known features: the linear predictors are linear in ``phi(X)``, an array or DataFrame with
        as many rows as X. `input_model` is then the density of these features.
    known_scales, known_biases : float or array-like, shape (n_components,), optional
        Scales s_j and biases b_j; give both or neither. The weights are then computed from them,
        and the components are returned in the order given. For one response.
    random_seed : int, sequence of int, numpy.random.Generator or None
        The same seed gives the same result, bit for bit.
    progressbar : bool, default True
        Whether to show the progress of an estimate that takes longer than two seconds.

    Returns
    -------
    MomentEstimate
        Directions, scales, biases, weights, dispersion, standard errors, status, diagnostics.

    Raises
    ------
    IdentifiabilityError
        If there are more components than the moments can identify.
    TypeError
        If an argument has the wrong type.
    ValueError
        If data are missing, infinite, constant, collinear, too few or outside the family's range.

    Warns
    -----
    WeakSignalWarning
        If a component does not stand out from noise, or the components cannot be told apart.

    Notes
    -----
    The stacked method makes seven passes over the rows, O(n d^2 m + n r^3 m) for m functions of the
    response, and some of the likelihood for the refinement. With polish, the moments use about
    60,000 rows, or more if the directions do not stand out, and a few passes of the likelihood over
    all rows follow. The power method costs O(n d^3 / 4) for few features and O(n d^2) per slice for
    many.

    A Dask collection is never read whole unless it is small; options that need all rows in memory
    raise. The same seed gives the same result as with arrays, up to the rounding of sums.

    Components with parallel coefficients share a direction: the spectrum of the moments then shows
    fewer directions than components, and the status says so.

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
    if data.family.n_predictors > 1:
        _require_several(
            n_components, method=method, known_scales=known_scales, known_biases=known_biases
        )
    number = _validate_number(n_components, data, method)
    if number == 0 and not polish:
        raise ValueError(
            "`polish` must be True for n_components='auto', which compares likelihoods; got False. "
            "Give a number, or leave `polish` out."
        )
    known = _known_parameters(known_scales, known_biases, number)
    data = _in_memory_if_needed(data, method, X_unlabelled, known, is_polished=polish)
    rng = make_generator(random_seed)
    with progress("estimate", is_shown=progressbar) as display, single_threaded_blas():
        display.update("moments")
        child = rng.spawn(1)[0]
        drawn = partial(drawn_inputs, rng=child) if isinstance(input_model, str) else None
        data.hold(_strides(data.n_obs, is_polished=polish), drawn)
        problem = resolve_input(
            data.map(RegressionData.single, 0),  # of two classes, the second against the first
            input_model,
            X_unlabelled,
            child,
            is_stacked=method == "stacked",
        )
        if data.family.n_predictors > 1:
            result = estimate_several(data, problem, number, rng, is_polished=polish)
        else:
            result = _estimate_one(problem, number, rng, method=method, polish=polish, known=known)
        result = with_input_findings(problem, result)
    if data.classes is not None:
        result = replace(
            result,
            family=data.family.name,
            link=data.family.link_name,
            response_names=data.response_names,
            classes=data.classes,
        )
    if result.warnings:
        notify(" ".join(result.warnings), WeakSignalWarning)
    return result


def _in_memory_if_needed(
    data: RegressionData, method: Method, unlabelled: Any, known: Any, *, is_polished: bool
) -> RegressionData:
    """Return the rows in memory for what needs all of them at once."""
    if method != "stacked":
        return data.whole("`method` must be 'stacked'")
    if unlabelled is not None:
        return data.whole("`X_unlabelled` must be None")
    if known is not None:
        return data.whole("`known_scales` and `known_biases` must be None")
    if not is_polished and (data.offset is not None or data.n_trials is not None):
        return data.whole("`polish` must be True with `offset` or `n_trials`")
    return data


def _strides(n_obs: int, *, is_polished: bool) -> list[int]:
    """Every so many rows that the moments and the first steps of the climb use."""
    sizes = [ROUGH_ROWS, MOMENT_ROWS] + ([2 * MOMENT_ROWS] if is_polished else [])
    strides = {max(1, n_obs // size) for size in sizes}
    return [*strides, *(stride for stride, _ in APPROACHES if is_polished)]


def _estimate_one(
    problem: EstimationProblem,
    number: int,
    rng: np.random.Generator,
    *,
    method: Method,
    polish: bool,
    known: tuple[FloatArray, FloatArray] | None,
) -> MomentEstimate:
    """Estimate a mixture of one response; zero components are chosen."""
    if problem.block is not None and not polish:
        raise ValueError(
            "`polish` must be True where columns are discrete, as the likelihood gives their "
            "coefficients; got False. Leave it out, or drop the columns "
            f"{', '.join(problem.block.discrete_names(problem.data.feature_names))}."
        )
    if method != "stacked":
        return estimate_by_third_moment(problem, number, rng, method=method, known=known)
    if number == 0:
        solution, selection = choose_n_components(problem, rng)
        return replace(assemble_stacked(problem, solution, rng), selection=selection)
    solution = solve_stacked(problem, number, rng, is_polished=polish)
    result = assemble_stacked(problem, solution, rng)
    return result if known is None else apply_known_parameters(problem, result, *known)


def _require_several(n_components: Any, *, method: Method, **known: Any) -> None:
    """Raise for what the moments of several responses, or more than two classes, cannot do."""
    about = "with several responses or more than two classes"
    if method != "stacked":
        raise ValueError(f"`method` must be 'stacked' {about}; got {method!r}. Leave it out.")
    if isinstance(n_components, str):
        raise ValueError(
            f"`n_components` must be an integer {about}; got {n_components!r}. Compare numbers "
            "with `select_components`."
        )
    for name, values in known.items():
        if values is not None:
            raise ValueError(f"`{name}` must be None {about}; got a value. Leave it out.")


def _validate_number(n_components: Any, data: RegressionData, method: Method) -> int:
    """Check the number of components; return 0 for 'auto'."""
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
    """Require more rows than unknowns and, for the noise of the moments, a row in every part."""
    smallest = data.n_features * (n_components + 1)
    if data.n_obs <= smallest:
        raise ValueError(
            f"`X` must have more than n_features * (n_components + 1) = {smallest} rows: "
            f"otherwise there are too many unknowns; got {data.n_obs}. Add rows, drop columns or "
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
    """Check known scales and biases: both or neither, and not with n_components='auto'."""
    if known_scales is None and known_biases is None:
        return None
    if known_scales is None or known_biases is None:
        raise ValueError(
            "`known_scales` and `known_biases` must be given together; got only one of them. "
            "The weights depend on both."
        )
    if n_components == 0:
        raise ValueError(
            "`known_scales` and `known_biases` need an integer `n_components`; got 'auto'. "
            "Give the number of components that they belong to."
        )
    scales = _known_parameter(known_scales, "known_scales", n_components)
    biases = _known_parameter(known_biases, "known_biases", n_components)
    if scales.min() <= 0.0:
        raise ValueError(f"`known_scales` must be positive; got {scales.min():g}.")
    return scales, biases


def _known_parameter(values: ArrayLike, name: str, n_components: int) -> FloatArray:
    """Check known scales or biases and broadcast them to one per component."""
    array = as_float_array(values, name)
    if array.shape not in {(), (n_components,)} or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`{name}` must be a finite number or one per component, shape ({n_components},); "
            f"got {values!r}."
        )
    return np.broadcast_to(array, (n_components,)).copy()
