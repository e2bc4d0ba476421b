"""The paper's estimator of the components: directions, signs, and weights from known scales.

Lines 1 and 2 of Algorithm 1 give directions and their coefficients from one third-order moment (M_1
for a single component). Signs follow from the link, and weights from known scales and biases.
Everything is in standardised coordinates.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.checks import FloatArray, RandomSeed, make_generator
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates
from moment_init.families.base import Family
from moment_init.families.links import moment_coefficient
from moment_init.families.registry import get_family
from moment_init.moments.paper.cross_moments import (
    RowScores,
    cross_moment,
    moment_covariance,
    moment_fibres,
    moment_slices,
    subtract_quadratic,
)
from moment_init.moments.paper.decomposition import (
    Decomposition,
    DecompositionMethod,
    decompose_tensor,
)
from moment_init.moments.paper.power_iteration import symmetric_coefficients
from moment_init.moments.paper.whitening import leading_subspace
from moment_init.scores.base import InputModel
from moment_init.scores.choosing import EstimationProblem

# A symmetric Gaussian noise tensor with unit variance along every direction reaches about
# 1.66 sqrt(d) along its best one (the ground state of the spherical three-spin model).
NOISE_PEAK = 1.657

# Random slices per component that find the subspace if the tensor is too large to be formed. With
# exact moments one would be enough; the others average out noise.
SLICES_PER_COMPONENT = 3
MIN_SLICES = 10


@dataclass(frozen=True, slots=True, eq=False)
class ThirdMomentFit:
    """Components of M_3 in standardised coordinates.

    Parameters
    ----------
    decomposition : Decomposition
        Directions, coefficients and diagnostics.
    errors : numpy.ndarray, shape (n_components,)
        Standard errors of the coefficients.
    noise_variance : float
        Sampling variance of an entry of M_3 whose three indices differ (`noise_edge`).
    first_moment : numpy.ndarray, shape (n_features,)
        The moment M_1 of the same response.
    """

    decomposition: Decomposition
    errors: FloatArray
    noise_variance: float
    first_moment: FloatArray


def fit_third_moment(
    response: FloatArray,
    scores: RowScores,
    n_components: int,
    random_seed: RandomSeed = None,
    *,
    method: DecompositionMethod = "power",
) -> ThirdMomentFit:
    """Estimate directions from the third-order moment of one response.

    Implements lines 1 and 2 of Algorithm 1 of [1]_ for r >= 2. Departures: the quadratic part of
    the response is subtracted first (`subtract_quadratic`), and the span of the components comes
    from many slices, not from one.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response y; y^3 for the linear model (Lemma 6).
    scores : RowScores
        Score functions of the rows, in the standardising basis (the default of `row_scores`).
    n_components : int
        Number of components r, at most the number of features.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of slices and starts.
    method : {"power", "tensorly"}
        Method of `decompose_tensor`.

    Returns
    -------
    ThirdMomentFit
        Directions in the coordinates of the basis, coefficients and their standard errors.

    Notes
    -----
    The tensor is formed explicitly, O(n d^3 / 2), if that is cheaper than the slices that find its
    subspace, O(n d^2) each. Otherwise the subspace comes from slices and fibres of X and y, and
    only the tensor restricted to it is formed, (r, r, r).

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import fit_third_moment, row_scores
    >>> from moment_init.scores import Gaussian
    >>> X = np.random.default_rng(1).standard_normal((100_000, 3))
    >>> scores = row_scores(X, Gaussian(np.zeros(3), np.eye(3)))
    >>> fit = fit_third_moment(X[:, 0] ** 3 + 0.5 * X[:, 1] ** 3, scores, 2, random_seed=1)
    >>> np.abs(fit.decomposition.directions).round(1)
    array([[1., 0.],
           [0., 1.],
           [0., 0.]])
    """
    rng = make_generator(random_seed)
    residual, first_moment = subtract_quadratic(response, scores)
    n_features = scores.basis.shape[1]
    n_slices = max(MIN_SLICES, SLICES_PER_COMPONENT * n_components)
    if n_features <= 2 * n_slices:
        tensor = cross_moment(residual, scores)
        decomposition = decompose_tensor(tensor, n_components, rng, method=method)
    else:
        subspace = _sliced_subspace(residual, scores, n_components, n_slices, rng)
        core = cross_moment(residual, scores.restrict(subspace))
        inner = decompose_tensor(core, n_components, rng, method=method)
        decomposition = replace(inner, directions=subspace @ inner.directions)
    covariance = moment_covariance(residual, scores, decomposition.directions)
    return ThirdMomentFit(
        decomposition=decomposition,
        errors=coefficient_errors(decomposition.directions, covariance, 3),
        # The Hermite polynomial of order 3 has variance 6, the product of three different ones 1.
        noise_variance=float(np.diag(covariance).mean()) / 6.0,
        first_moment=first_moment,
    )


def _sliced_subspace(
    response: FloatArray,
    scores: RowScores,
    n_components: int,
    n_slices: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Find the span of the components from random slices, then from fibres inside that span.

    In two of the three modes the second step contains only the noise inside the subspace.
    """
    thetas = rng.standard_normal((scores.basis.shape[1], n_slices))
    rough, _ = leading_subspace(moment_slices(response, scores, thetas), n_components)
    first, second = np.triu_indices(n_components)
    fibres = moment_fibres(response, scores, (rough[:, first] + rough[:, second]) / 2.0)
    subspace, _ = leading_subspace(fibres[None], n_components)
    return subspace


def noise_edge(noise_variance: float, n_features: int, *, is_restricted: bool = False) -> float:
    r"""Compute the largest singular value that noise alone reaches in the spectrum of M_3.

    The rows of an unfolded noise tensor with entries of variance v have squared length
    :math:`(d + 1)(d + 2) v`; its largest singular value is near the edge of Marchenko and Pastur,
    :math:`\sqrt v\, (\sqrt{(d + 1)(d + 2)} + \sqrt d)`. A tensor that was formed in a subspace
    contains only the noise along its best directions, about :math:`1.66 \sqrt{6 d v}`.

    Parameters
    ----------
    noise_variance : float
        Sampling variance v of an entry of M_3 whose three indices differ.
    n_features : int
        Number of features d.
    is_restricted : bool, default False
        Whether the tensor was formed in a subspace that was chosen from the data.

    Returns
    -------
    float
        The edge; the largest singular value of noise varies around it by about a tenth.

    Examples
    --------
    >>> from moment_init.paper import noise_edge
    >>> round(noise_edge(0.01, 2), 3)
    0.488
    """
    edge = NOISE_PEAK * np.sqrt(6.0 * n_features)
    if not is_restricted:
        edge = np.sqrt((n_features + 1.0) * (n_features + 2.0)) + np.sqrt(n_features)
    return float(edge * np.sqrt(noise_variance))


def coefficient_errors(directions: FloatArray, covariance: FloatArray, order: int) -> FloatArray:
    """Compute standard errors of the least-squares coefficients of given directions.

    Parameters
    ----------
    directions : numpy.ndarray, shape (k, n_components)
        The directions u_j.
    covariance : numpy.ndarray, shape (n_components, n_components)
        Covariance of the moment along them (`moment_covariance`).
    order : {1, 2, 3}
        Order m of the moment.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The standard errors of `symmetric_coefficients`.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import coefficient_errors
    >>> coefficient_errors(np.eye(2), np.diag([4.0, 9.0]), 3)
    array([2., 3.])
    """
    inverse = np.linalg.pinv((directions.T @ directions) ** order, hermitian=True)
    return np.sqrt(np.maximum(np.diag(inverse @ covariance @ inverse), np.finfo(float).tiny))


def choose_signs(
    first_order: FloatArray, third_order: FloatArray, *, is_third_positive: bool
) -> FloatArray:
    r"""Choose signs so that the response increases along the directions.

    A cube does not determine the sign of its direction. Every link is increasing, so that the
    coefficient of u_j in M_1, :math:`w_j s_j E[g']`, is positive. If the third derivative of g is
    positive (log link), or the moment of y^3 is used (linear model), :math:`\lambda_j` is positive
    as well. It is the more direct evidence, since it belongs to one component, whereas M_1 is split
    among all.

    Parameters
    ----------
    first_order : numpy.ndarray, shape (n_components,)
        Coefficients of the directions in M_1 (`symmetric_coefficients`).
    third_order : numpy.ndarray, shape (n_components,)
        Coefficients in M_3.
    is_third_positive : bool
        Whether the coefficients in M_3 are known to be positive along u_j.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        Signs that multiply the directions and the coefficients of odd orders.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import choose_signs
    >>> choose_signs(np.array([1.0, -1.0]), np.array([-2.0, 1.0]), is_third_positive=False)
    array([ 1., -1.])
    """
    return np.where((third_order if is_third_positive else first_order) < 0.0, -1.0, 1.0)


def expected_coefficients(
    scales: ArrayLike,
    biases: ArrayLike,
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
) -> FloatArray:
    r"""Compute the coefficients of components of weight one in M_1, M_2 and M_3.

    They are :math:`s_j^m \rho_j^{(m)}` with :math:`\rho_j^{(m)} = E[g^{(m)}(s_j z + b_j)]`, z
    standard Gaussian (the :math:`\rho_j` of Lemma 3 of [1]_). For the linear model, where the
    moments are those of y^m (Lemma 6), they are :math:`m!\, s_j^m`.

    Parameters
    ----------
    scales : array-like, shape (n_components,)
        The scales s_j.
    biases : array-like, shape (n_components,)
        The biases b_j.
    family : str or Family
        Family of the response.
    link : str, optional
        Its link; the default one of the family if None.

    Returns
    -------
    numpy.ndarray, shape (3, n_components)
        The coefficients by order.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> from moment_init.paper import expected_coefficients
    >>> expected_coefficients([1.0, 2.0], [0.0, 0.0], family="gaussian")
    array([[ 1.,  2.],
           [ 2.,  8.],
           [ 6., 48.]])
    """
    resolved = get_family(family, link)
    s = np.asarray(scales, dtype=np.float64)
    return np.stack(
        [s**order * moment_coefficient(resolved, order, s, biases) for order in (1, 2, 3)]
    )


def recover_weights(
    coefficients: FloatArray, expected: FloatArray, errors: FloatArray | None = None
) -> FloatArray:
    r"""Compute mixture weights from known scales and biases.

    Implements the remark after Theorem 5 of [1]_, :math:`w_j = \lambda_j / \rho_j`, with
    :math:`\lambda_j = w_j s_j^3 \rho_j^{(3)}`. The moments of orders 1 and 2 can be used as well,
    each weighted by its precision, since :math:`\rho_j^{(3)}` may be near zero.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_orders, n_components)
        Coefficients of the directions in the moments (`symmetric_coefficients`).
    expected : numpy.ndarray, shape (n_orders, n_components)
        The same for components of weight one (`expected_coefficients`).
    errors : numpy.ndarray, shape (n_orders, n_components), optional
        Standard errors of the coefficients; equal ones by default.

    Returns
    -------
    numpy.ndarray, shape (n_components,)
        The weights; they are not normalised.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import expected_coefficients, recover_weights
    >>> expected = expected_coefficients([1.0, 2.0], [0.0, 0.0], family="gaussian")
    >>> recover_weights(np.array([[1.5, 36.0]]), expected[2:])
    array([0.25, 0.75])
    """
    scale = np.ones_like(coefficients) if errors is None else errors
    observed, unit = coefficients / scale, expected / scale
    return np.asarray(np.sum(observed * unit, axis=0) / np.sum(unit**2, axis=0))


def match_known_parameters(
    coefficients: FloatArray, errors: FloatArray, expected: FloatArray
) -> NDArray[np.intp]:
    """Assign known pairs of scale and bias to estimated components.

    For the correct pair, one weight explains the coefficients in M_1, M_2 and M_3 alike; the cost
    of a pair is the chi-square of the residuals at its best weight.
    """
    # coefficients, errors: (3, n_components), expected: (3, n_components, n_pairs)
    # -> component of each pair; (n_pairs,)
    observed, unit = coefficients[:, :, None] / errors[:, :, None], expected / errors[:, :, None]
    projection = np.maximum(np.sum(observed * unit, axis=0), 0.0)
    cost = np.sum(observed**2, axis=0) - projection**2 / np.sum(unit**2, axis=0)
    _, components = linear_sum_assignment(cost.T)
    return np.asarray(components)


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Components in standardised coordinates, signs included."""

    directions: FloatArray  # unit directions; (n_features, n_components)
    coefficients: FloatArray  # coefficients in M_3; in M_1 for a single component; (n_components,)
    errors: FloatArray  # standard errors of the coefficients; (n_components,)
    # sampling variance of an entry of M_3 whose three indices differ; zero if M_3 was not used
    noise_variance: float
    # decomposition of M_3; None for a single component, which uses M_1, or given directions
    decomposition: Decomposition | None

    def reorder(self, order: NDArray[np.intp]) -> "Components":
        """Put the components in another order."""
        # order: (n_components,)
        return replace(
            self,
            directions=self.directions[:, order],
            coefficients=self.coefficients[order],
            errors=self.errors[order],
        )


def find_components(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    method: DecompositionMethod,
) -> Components:
    """Find the directions and their coefficients from the paper's moments."""
    # response: (n_obs,)
    if n_components == 1:  # Lemma 2
        values, scores = _scored(data, input_model, response, 1)
        first_moment = cross_moment(values, scores, 1)
        length = np.linalg.norm(first_moment, keepdims=True)
        directions = first_moment[:, None] / np.maximum(length, np.finfo(float).tiny)
        errors = coefficient_errors(directions, moment_covariance(values, scores, directions, 1), 1)
        return Components(directions, length, errors, 0.0, decomposition=None)
    values, scores = _scored(data, input_model, response, 3)
    fit = fit_third_moment(values, scores, n_components, rng, method=method)
    directions, third_order = fit.decomposition.directions, fit.decomposition.coefficients
    first_order, _ = symmetric_coefficients(fit.first_moment, directions)
    family = data.single_family
    is_third_positive = family.response_power or family.link.third_derivative_sign == 1
    signs = choose_signs(first_order, third_order, is_third_positive=is_third_positive)
    return Components(
        directions=directions * signs,
        coefficients=third_order * signs,
        errors=fit.errors,
        noise_variance=fit.noise_variance,
        decomposition=fit.decomposition,
    )


def components_along(problem: EstimationProblem, directions: FloatArray) -> Components:
    """Compute coefficients of given directions in M_3, or in M_1 for a single component."""
    # directions: (n_features, n_components)
    order = 1 if directions.shape[1] == 1 else 3
    coefficients, errors = _coefficients(
        problem.data, problem.input_model, problem.response, directions, order
    )
    return Components(directions, coefficients, errors, 0.0, decomposition=None)


def _scored(
    data: RegressionData, input_model: InputModel, response: FloatArray, order: int
) -> tuple[FloatArray, RowScores]:
    """Prepare the response of one order (Lemma 6: a power of y for the identity link)."""
    values = response**order if data.family.response_power else response
    weights = data.sample_weight
    # E[S_m] = 0: subtracting a constant from the response only removes noise.
    centred = values - weights @ values / weights.sum()
    return centred, RowScores(data.X, input_model, weights, input_model.standardising_basis)


def _coefficients(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    directions: FloatArray,
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Compute coefficients of powers of the directions in M_m, and their standard errors."""
    values, scores = _scored(data, input_model, response, order)
    covariance = moment_covariance(values, scores, directions, order)
    # The restriction comes first, so that no array of d^m entries is formed.
    restricted = cross_moment(values, scores.restrict(directions), order)
    along = np.einsum("j" * order + "->j", restricted)
    # <u_i^m, u_j^m> = <u_i, u_j>^m: the Gram matrix of the least-squares problem.
    inverse = np.linalg.pinv((directions.T @ directions) ** order, hermitian=True)
    return inverse @ along, coefficient_errors(directions, covariance, order)


def weigh_components(
    data: RegressionData,
    input_model: InputModel,
    response: FloatArray,
    coordinates: Coordinates,
    components: Components,
    scales: FloatArray,
    biases: FloatArray,
) -> tuple[NDArray[np.intp], FloatArray, float]:
    """Compute the weights of components whose scales and biases are known."""
    # response: (n_obs,), scales, biases: (n_components,)
    # -> order (n_components,), weights (n_components,), sum of the weights before normalisation
    if len(scales) == 1:
        return np.zeros(1, dtype=np.intp), np.ones(1), 1.0
    user_directions, _ = coordinates.directions_to_user(components.directions)
    n_components = len(scales)
    standard_scales = np.empty((n_components, n_components))
    standard_biases = np.empty((n_components, n_components))
    for pair in range(n_components):
        slopes, levels = coordinates.coefficients_to_standardised(
            user_directions * scales[pair], np.full(n_components, biases[pair])
        )
        standard_scales[:, pair] = np.linalg.norm(slopes, axis=0)
        standard_biases[:, pair] = levels
    low_orders = [
        _coefficients(data, input_model, response, components.directions, order) for order in (1, 2)
    ]
    coefficients = np.stack([*(values for values, _ in low_orders), components.coefficients])
    errors = np.stack([*(values for _, values in low_orders), components.errors])
    expected = expected_coefficients(standard_scales, standard_biases, family=data.single_family)
    order = match_known_parameters(coefficients, errors, expected)
    known = expected[:, order, np.arange(n_components)]
    raw = recover_weights(coefficients[:, order], known, errors[:, order])
    positive = np.maximum(raw, 0.0)
    total = positive.sum()
    if total <= 0.0:  # the known parameters contradict the data: equal weights
        return order, np.full(n_components, 1.0 / n_components), float(raw.sum())
    return order, positive / total, float(raw.sum())
