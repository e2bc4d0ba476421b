"""The entry point `estimate`: wires input model, moments, decomposition and recovery together."""

import warnings as python_warnings
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.components import Components, find_components, weigh_components
from moment_init.coordinates import Coordinates
from moment_init.data import (
    RandomSeed,
    RegressionData,
    make_generator,
    validate_data,
    validate_n_components,
)
from moment_init.diagnostics import diagnose, judge
from moment_init.exceptions import IdentifiabilityError, WeakSignalWarning
from moment_init.families import Family
from moment_init.results import MomentEstimate
from moment_init.scores.base import InputModel
from moment_init.scores.gaussian import Gaussian

__all__ = ["estimate"]

FloatArray = NDArray[np.float64]
Method = Literal["power", "tensorly"]


def estimate(
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
    input_model: Literal["gaussian"] | InputModel = "gaussian",
    method: Method = "power",
    known_scales: ArrayLike | None = None,
    known_biases: ArrayLike | None = None,
    random_seed: RandomSeed = None,
) -> MomentEstimate:
    r"""Estimate the directions of a mixture of generalized linear models from moments.

    Implements Algorithm 1 of [1]_, lines 1 and 2: the cross-moment of the response and the input's
    third-order score,

    .. math:: M_3 = E[y\, S_3(x)] = \sum_j \lambda_j u_j^{\otimes 3}, \qquad
              \lambda_j = w_j s_j^3 E[g'''(s_j z + b_j)],

    is decomposed into its components u_j (Lemma 3, Theorem 5; Lemma 6 with :math:`y^3` for the
    identity link). A single component comes from M_1 alone (Lemma 2).

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs; a DataFrame's column names are kept.
    y : array-like, shape (n_obs,)
        Response.
    n_components : int
        Number of components r, at most n_features.
    family : str or Family
        "bernoulli", "binomial", "poisson", "negative_binomial", "gaussian" or "gamma".
    link : str, optional
        The family's own by default; "probit" for bernoulli and binomial.
    offset : array-like, shape (n_obs,), optional
        Known part of the linear predictor. Under logit and probit it must be independent of X.
    n_trials : array-like, shape (n_obs,), optional
        Trials behind each binomial response.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row.
    groups : array-like, shape (n_obs,), optional
        Rows of a group share their component. Moments need not know: the estimate is the same.
    input_model : "gaussian" or InputModel
        Density of the input, by name or as an object of `moment_init.scores`. A fitted object is
        used as it is, so that rows without a response can serve; else it is fitted to X.
    method : {"power", "tensorly"}
        The paper's robust power method, or TensorLy's symmetric one on the same whitened tensor.
    known_scales, known_biases : float or array-like, shape (n_components,), optional
        Scales s_j and biases b_j, both or neither. Weights are then computed, and components
        come in the order given.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Same seed, same bits.

    Returns
    -------
    MomentEstimate
        Directions, coefficients, status and diagnostics.

    Raises
    ------
    IdentifiabilityError
        If there are more components than features.
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
    Costs O(n d^3 / 2) for few features and O(n d^2) per random slice for many. Third moments need
    many rows: their standard error along a direction is sqrt(6 var(y) / n), and the best of d
    directions of pure noise reaches 1.66 sqrt(d) times that.

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
    >>> result.directions.shape
    (4, 2)
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
    )
    n_components = validate_n_components(n_components, data.n_obs)
    _require_identifiable(data, n_components)
    scales = _known_parameter(known_scales, "known_scales", n_components)
    biases = _known_parameter(known_biases, "known_biases", n_components)
    if (scales is None) != (biases is None):
        raise ValueError(
            "`known_scales` and `known_biases` must be given together; got only one of them. "
            "The weights depend on both."
        )
    if scales is not None and scales.min() <= 0.0:
        raise ValueError(f"`known_scales` must be positive; got {scales.min():g}.")
    if method not in get_args(Method):
        raise ValueError(f"`method` must be one of {get_args(Method)}; got {method!r}.")
    rng = make_generator(random_seed)
    fitted_input = _fit_input_model(input_model, data)
    response, coordinates = _standardise(data, fitted_input)
    components = find_components(data, fitted_input, response, n_components, rng, method)
    known = None if scales is None or biases is None else (scales, biases)
    return _assemble(data, fitted_input, response, coordinates, components, known, method)


def _require_identifiable(data: RegressionData, n_components: int) -> None:
    """More components than features, or fewer rows than unknowns, cannot work."""
    if n_components > data.n_features:
        raise IdentifiabilityError(
            f"`n_components` must be at most the number of features ({data.n_features}) for the "
            f"directions to be independent; got {n_components}. Reduce it or add features."
        )
    smallest = data.n_features * (n_components + 1)
    if data.n_obs <= smallest:
        raise ValueError(
            f"`X` must have more than n_features * (n_components + 1) = {smallest} rows: "
            f"fewer leave nothing to estimate; got {data.n_obs}. Add rows, drop columns or "
            "use fewer components."
        )


def _known_parameter(values: ArrayLike | None, name: str, n_components: int) -> FloatArray | None:
    """Check known scales or biases and give each component one."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in {(), (n_components,)} or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`{name}` must be a finite number or one per component, shape ({n_components},); "
            f"got {values!r}."
        )
    return np.broadcast_to(array, (n_components,)).copy()


def _fit_input_model(input_model: str | InputModel, data: RegressionData) -> Gaussian:
    """Resolve the input model and fit it to the rows."""
    if isinstance(input_model, Gaussian):
        if input_model.is_fitted:
            input_model.require_n_features(data.n_features)
            return input_model
        model = Gaussian(mean=input_model.mean, covariance=input_model.covariance)
    elif input_model == "gaussian":
        model = Gaussian()
    else:
        raise ValueError(
            "`input_model` must be 'gaussian' or a moment_init.scores.Gaussian; "
            f"got {input_model!r}."
        )
    return model.fit_rows(data.X, data.sample_weight, data.feature_names)


def _standardise(data: RegressionData, input_model: Gaussian) -> tuple[FloatArray, Coordinates]:
    """Response without offset and trials, standardised for the identity link."""
    response = data.family.moment_response(
        data.y, order=1, offset=data.offset, n_trials=data.n_trials
    )
    shift, scale = 0.0, 1.0
    if data.family.response_power:
        weights = data.sample_weight / data.sample_weight.sum()
        shift = float(weights @ response)
        scale = float(np.sqrt(weights @ np.square(response - shift)))
        response = (response - shift) / scale
    factor = input_model.standardising_basis
    return response, Coordinates(input_model.mean_, factor, shift, scale)


def _assemble(
    data: RegressionData,
    input_model: Gaussian,
    response: FloatArray,
    coordinates: Coordinates,
    components: Components,
    known: tuple[FloatArray, FloatArray] | None,
    method: str,
) -> MomentEstimate:
    """Weights, the user's units, status and warnings."""
    weights, weight_sum = None, None
    scales, biases = (None, None) if known is None else known
    if known is not None:
        index, weights, weight_sum = weigh_components(
            data, input_model, response, coordinates, components, *known
        )
        components = components.reorder(index)
    elif components.decomposition is None:
        weights = np.ones(1)
    directions, lengths = coordinates.directions_to_user(components.directions)
    order = 1 if components.decomposition is None else 3
    coefficients = components.coefficients * lengths**order
    diagnostics = diagnose(data, components, input_model.shrinkage_, weight_sum)
    status, warnings = judge(data, input_model, components, diagnostics)
    for warning in warnings:
        python_warnings.warn(warning, WeakSignalWarning, stacklevel=3)
    return MomentEstimate(
        directions=directions,
        moment_coefficients=coefficients,
        scales=scales,
        biases=biases,
        weights=weights,
        feature_names=data.feature_names,
        family=data.family.name,
        link=data.family.link.name,
        method=method,
        status=status,
        warnings=warnings,
        diagnostics=diagnostics,
    )
