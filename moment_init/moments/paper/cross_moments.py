"""Score functions of the input and their cross-moments with a response.

`score_function` evaluates S_m(x) (Eq. 9 and 10 of the paper) as arrays, one tensor per row.
`RowScores` stands for the same tensors without storing them. `cross_moment` and the functions after
it take either, and average them with a response (line 1 of Algorithm 1).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import FloatArray, as_float_array
from moment_init.data.blocks import BlockSums, read_block, sum_over_blocks
from moment_init.data.checking import validate_features, validate_sample_weight
from moment_init.scores.base import InputModel

# Central differences of second order, h^2 against eps / h^2: both are about 1e-8 at this step, in
# standard deviations of a column.
DIFFERENCE_STEP = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    r"""The score functions :math:`S_m(x_i)(B, \ldots, B)` of rows, without storing them.

    Moments of d features are computed from sums over blocks of rows, so that no array of shape
    (n_obs, d, d) is formed. `row_scores` makes this object.

    Parameters
    ----------
    X : numpy.ndarray, shape (n_obs, n_features)
        The rows.
    density : InputModel
        Fitted density of the input.
    weights : numpy.ndarray, shape (n_obs,)
        Weight of each row.
    basis : numpy.ndarray, shape (n_features, k)
        Basis B that every mode is contracted with.
    """

    X: NDArray[np.generic]
    density: InputModel
    weights: FloatArray
    basis: FloatArray

    def restrict(self, subspace: FloatArray) -> "RowScores":
        """Contract every mode with a matrix P: the scores S_m(B P, ..., B P).

        Parameters
        ----------
        subspace : numpy.ndarray, shape (k, m)
            The matrix P.

        Returns
        -------
        RowScores
            The scores of the same rows in m dimensions.
        """
        return replace(self, basis=self.basis @ subspace)


def row_scores(
    X: Any,
    density: InputModel,
    *,
    sample_weight: ArrayLike | None = None,
    basis: ArrayLike | None = None,
) -> RowScores:
    """Prepare the score functions of rows under a density, without storing them.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        The inputs.
    density : InputModel
        Density of the input, from `moment_init.scores` or of your own. A density that is not yet
        fitted is fitted to X.
    sample_weight : array-like, shape (n_obs,), optional
        Weight of each row.
    basis : array-like, shape (n_features, k), optional
        Basis B that every mode is contracted with. By default the standardising basis L, with L L'
        the covariance of the input: moments are then those of the standardised rows z = L^-1 (x -
        mean), and a direction u of z belongs to the direction L'^-1 u of x.

    Returns
    -------
    RowScores
        What `cross_moment`, `moment_slices`, `moment_fibres` and `fit_third_moment` take.

    Raises
    ------
    ValueError
        If the rows are missing or not finite, or do not have the features of the density.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import cross_moment, row_scores
    >>> from moment_init.scores import Gaussian
    >>> scores = row_scores(np.array([[1.0], [2.0]]), Gaussian([0.0], [[1.0]]))
    >>> cross_moment(np.array([3.0, 1.0]), scores, 1)
    array([2.5])
    """
    features, names = validate_features(X)
    weights = validate_sample_weight(sample_weight, len(features))
    if not density.is_fitted:
        density = copy(density).fit_rows(features, weights, names)
    density.require_n_features(features.shape[1])
    factor = density.standardising_basis if basis is None else as_float_array(basis, "basis")
    return RowScores(features, density, weights, factor)


def score_function(
    X: ArrayLike, order: int, density: InputModel | Callable[[FloatArray], FloatArray]
) -> FloatArray:
    r"""Evaluate the score function of order m at each row.

    Implements Eq. (9) of [1]_,

    .. math:: S_m(x) = (-1)^m \frac{\nabla^{(m)} p(x)}{p(x)},

    by the recursion of Eq. (10),
    :math:`S_m = -S_{m-1} \otimes \nabla \log p - \nabla S_{m-1}`. The text of [1]_ also calls
    :math:`\nabla \log p` the score; here the sign is that of Eq. (9),
    :math:`S_1 = -\nabla \log p`.

    Parameters
    ----------
    X : array-like, shape (n_obs, n_features)
        The inputs.
    order : {1, 2, 3}
        The order m.
    density : InputModel or callable
        A fitted density of `moment_init.scores`; or your own score function, which maps rows,
        (n_obs, n_features), to the gradients :math:`\nabla \log p(x)` of the same shape. The
        recursion then takes central differences.

    Returns
    -------
    numpy.ndarray, shape (n_obs, n_features, ..., n_features)
        The tensors S_m(x_i), with m modes for each row.

    Raises
    ------
    ValueError
        For an order other than 1, 2, 3, and for gradients that have another shape than X.

    Notes
    -----
    The array has n_obs d^m entries. `row_scores` stands for the same tensors without storing them.
    With one's own gradients, order m takes about (2 d + 2)^(m - 1) evaluations, and the errors of
    the differences are about 1e-7.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import score_function
    >>> from moment_init.scores import Gaussian
    >>> density = Gaussian(np.zeros(2), np.eye(2))
    >>> score_function([[1.0, 2.0]], 2, density)
    array([[[0., 2.],
            [2., 3.]]])
    >>> score_function([[1.0, 2.0]], 2, lambda x: -x).round(6)
    array([[[0., 2.],
            [2., 3.]]])
    """
    rows = as_float_array(X, "X")
    if isinstance(density, InputModel):
        return density.score(rows, order)
    if order not in (1, 2, 3):
        raise ValueError(f"`order` must be 1, 2 or 3; got {order!r}.")
    gradient = np.asarray(density(rows), dtype=np.float64)
    if gradient.shape != rows.shape:
        raise ValueError(
            f"`density` must return gradients of the shape of `X`, {rows.shape}; got "
            f"{gradient.shape}. Return one gradient of the log-density for each row."
        )
    deviations = rows.std(axis=0)
    steps = DIFFERENCE_STEP * np.where(deviations > 0.0, deviations, 1.0)
    return _recursion(rows, order, density, steps)


def _recursion(
    rows: FloatArray,
    order: int,
    gradient: Callable[[FloatArray], FloatArray],
    steps: FloatArray,
) -> FloatArray:
    """Evaluate Eq. (10), with central differences for the gradient of S_{m-1}."""
    slopes = gradient(rows)
    if order == 1:
        return -slopes
    lower = _recursion(rows, order - 1, gradient, steps)
    product = lower[..., None] * slopes.reshape(len(rows), *[1] * (order - 1), -1)
    for index, step in enumerate(np.diag(steps)):
        ahead, behind = (_recursion(rows + h, order - 1, gradient, steps) for h in (step, -step))
        product[..., index] += (ahead - behind) / (2.0 * steps[index])
    return -product


def cross_moment(
    response: FloatArray, scores: FloatArray | RowScores, order: int = 3
) -> FloatArray:
    r"""Compute the cross-moment M_m = E[y S_m(x)]: line 1 of Algorithm 1.

    .. math:: \hat M_m = \frac1n \sum_i y_i S_m(x_i).

    For a mixture of generalized linear models with scales s_j it is
    :math:`M_m = \sum_j w_j s_j^m E[g^{(m)}(s_j z + b_j)]\, u_j^{\otimes m}` (Theorem 9 of [1]_):

    - order 1 with one component gives its direction (Lemma 2);
    - order 2 gives the span of the directions (section 3.2 of [1]_);
    - order 3 gives the directions (Lemma 3). For Gaussian inputs it is Eq. (5);
    - for the linear model, where :math:`g''' = 0`, the response :math:`y^3` gives
      :math:`M_3 = \sum_j 6 w_j s_j^3 u_j^{\otimes 3}` (Lemma 6), and :math:`y^2` gives
      :math:`M_2 = \sum_j 2 w_j s_j^2 u_j u_j'`.

    Errata of [1]_: the proof of Lemma 3 (Appendix A) has an extra term
    :math:`2 x_i e_i^{\otimes 3}`. Theorem 11 leaves out the factor 6, and writes
    :math:`w_j \langle u_j, x \rangle` although w_j is a probability and no slope. Where M_2 is said
    to vanish for a symmetric :math:`E[y | x]`, an odd one is meant; an even one makes M_1 and M_3
    vanish.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response y, or a function of it. Subtracting its mean does not change the expectation
        and removes noise; so does `subtract_quadratic`.
    scores : RowScores or numpy.ndarray, shape (n_obs, k, ..., k)
        Score functions of the rows; or the tensors S_m(x_i) themselves (`score_function`).
    order : {1, 2, 3}
        The order m for `RowScores`. Arrays have an order of their own.

    Returns
    -------
    numpy.ndarray, shape (k, ..., k)
        The moment, with m modes.

    Raises
    ------
    ValueError
        If the response does not have one value for each row.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.

    Examples
    --------
    Two rows, x = 1 and x = 2, with S_3 = x^3 - 3 x: M_3 = (3 (-2) + 1 (2)) / 2.

    >>> import numpy as np
    >>> from moment_init.paper import cross_moment, score_function
    >>> from moment_init.scores import Gaussian
    >>> S_3 = score_function([[1.0], [2.0]], 3, Gaussian([0.0], [[1.0]]))
    >>> cross_moment(np.array([3.0, 1.0]), S_3)
    array([[[-2.]]])
    """
    if not isinstance(scores, RowScores):
        _require_response(response, len(scores))
        return np.asarray(np.tensordot(response / len(scores), scores, axes=1))
    k = scores.basis.shape[1]
    contraction = scores.density.contract(scores.basis)
    # of the third order: rows, weighted rows and pairs within halves
    doubles = k * (k + 14) // 4 if order == 3 else 3 * k
    (moment,) = _sum_rows(
        response, scores, lambda X, a: (contraction.sum_score(X, a, order),), doubles
    )
    return moment


def moment_slices(response: FloatArray, scores: RowScores, thetas: FloatArray) -> FloatArray:
    """Compute slices M_3(I, I, theta_l) without the tensor: line 2 of Procedure 2.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response.
    scores : RowScores
        Score functions of the rows.
    thetas : numpy.ndarray, shape (k, n_slices)
        The vectors theta_l, one per column.

    Returns
    -------
    numpy.ndarray, shape (n_slices, k, k)
        The slices; each costs O(n k^2).

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import moment_slices, row_scores
    >>> from moment_init.scores import Gaussian
    >>> scores = row_scores(np.array([[1.0], [2.0]]), Gaussian([0.0], [[1.0]]))
    >>> moment_slices(np.array([3.0, 1.0]), scores, np.array([[10.0]]))
    array([[[-20.]]])
    """
    contraction, k = scores.density.contract(scores.basis), scores.basis.shape[1]
    return _sum_rows(response, scores, lambda X, a: (contraction.sum_slices(X, a, thetas),), 3 * k)[
        0
    ]


def moment_fibres(response: FloatArray, scores: RowScores, vectors: FloatArray) -> FloatArray:
    """Compute fibres M_3(I, v_l, v_l) without the tensor: the factor form of the power update.

    It needs only X and y. With it `power_rounds` costs O(n d) for each vector and round, the
    O(n r d L) of the remark after Theorem 4 of the paper.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response.
    scores : RowScores
        Score functions of the rows.
    vectors : numpy.ndarray, shape (k, n_vectors)
        The vectors v_l, one per column.

    Returns
    -------
    numpy.ndarray, shape (k, n_vectors)
        The fibres.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import moment_fibres, row_scores
    >>> from moment_init.scores import Gaussian
    >>> scores = row_scores(np.array([[1.0], [2.0]]), Gaussian([0.0], [[1.0]]))
    >>> moment_fibres(np.array([3.0, 1.0]), scores, np.array([[2.0]]))
    array([[-8.]])
    """
    contraction, k = scores.density.contract(scores.basis), scores.basis.shape[1]
    width = k + 2 * vectors.shape[1]
    return _sum_rows(
        response, scores, lambda X, a: (contraction.sum_fibres(X, a, vectors),), width
    )[0]


def moment_covariance(
    response: FloatArray, scores: RowScores, directions: FloatArray, order: int = 3
) -> FloatArray:
    """Compute the sampling covariance of M_m(v_l, ..., v_l) along several directions.

    The terms of the sum over rows are independent, so that their squares estimate it for any
    distribution of the response (a sandwich estimate without a noise model).

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response.
    scores : RowScores
        Score functions of the rows.
    directions : numpy.ndarray, shape (k, n_directions)
        The vectors v_l, one per column.
    order : {1, 2, 3}
        The order m.

    Returns
    -------
    numpy.ndarray, shape (n_directions, n_directions)
        The covariance.

    Examples
    --------
    The two terms y S_1 are 3 and 2; their variance is 1/4, and that of their mean 1/8.

    >>> import numpy as np
    >>> from moment_init.paper import moment_covariance, row_scores
    >>> from moment_init.scores import Gaussian
    >>> scores = row_scores(np.array([[1.0], [2.0]]), Gaussian([0.0], [[1.0]]))
    >>> moment_covariance(np.array([3.0, 1.0]), scores, np.eye(1), 1)
    array([[0.125]])
    """
    contraction = scores.density.contract(scores.basis @ directions)

    def block_sums(X: FloatArray, products: FloatArray) -> BlockSums:
        terms = contraction.powers(X, order) * products[:, None]
        return np.dot(terms.T, terms), terms.sum(axis=0)

    width = scores.basis.shape[0] + 3 * directions.shape[1]
    squares, total = _sum_rows(response, scores, block_sums, width)
    return squares - np.outer(total, total) / len(response)


def subtract_quadratic(response: FloatArray, scores: RowScores) -> tuple[FloatArray, FloatArray]:
    r"""Subtract the quadratic part of the response, which M_3 does not see.

    Since :math:`E[q(x) S_3(x)] = E[\nabla^3 q] = 0` for every quadratic q, the response may be
    replaced by

    .. math:: y - E[y] - \langle M_1, z \rangle - \tfrac12 \langle M_2, z z' - I \rangle

    without changing M_3, and with far less noise. Here z are the standardised rows; for Gaussian
    inputs :math:`z = S_1` and :math:`z z' - I = S_2`, so that this is the projection on the first
    three Hermite polynomials. For other densities the scores themselves must not be subtracted:
    :math:`E[S_1 S_3]` is then not zero. These control variates are no part of the paper.

    Parameters
    ----------
    response : numpy.ndarray, shape (n_obs,)
        The response.
    scores : RowScores
        Score functions of the rows, in the standardising basis (the default of `row_scores`).

    Returns
    -------
    residual : numpy.ndarray, shape (n_obs,)
        The response to form M_3 with.
    first_moment : numpy.ndarray, shape (k,)
        The moment M_1.

    Examples
    --------
    >>> import numpy as np
    >>> from moment_init.paper import row_scores, subtract_quadratic
    >>> from moment_init.scores import Gaussian
    >>> X = np.random.default_rng(1).standard_normal((100_000, 2))
    >>> scores = row_scores(X, Gaussian(np.zeros(2), np.eye(2)))
    >>> residual, first_moment = subtract_quadratic(X[:, 0] + X[:, 1] ** 2, scores)
    >>> bool(residual.std() < 0.05), np.abs(first_moment).round(1)
    (True, array([1., 0.]))
    """
    centred = response - scores.weights @ response / scores.weights.sum()
    k = scores.basis.shape[1]
    contraction = scores.density.contract(scores.basis)
    first, second = _sum_rows(centred, scores, contraction.sum_low_orders, 3 * k)
    residual = np.empty_like(centred)

    def block_residual(rows: slice) -> BlockSums:
        z = scores.density.whiten(read_block(scores.X, rows))
        quadratic = np.einsum("ij,ij->i", z @ second, z) - np.trace(second)
        residual[rows] = centred[rows] - z @ first - 0.5 * quadratic
        return ()

    sum_over_blocks(block_residual, len(centred), 3 * k)
    return residual, first


def _sum_rows(
    response: FloatArray,
    scores: RowScores,
    term: Callable[[FloatArray, FloatArray], BlockSums],
    width: int,
) -> BlockSums:
    """Sum a function of rows and their responses, weighted by shares of the total weight."""
    _require_response(response, len(scores.weights))
    products = scores.weights * response / scores.weights.sum()
    return sum_over_blocks(
        lambda rows: term(read_block(scores.X, rows), products[rows]), len(products), width
    )


def _require_response(response: FloatArray, n_obs: int) -> None:
    """Raise unless there is one response per row: other shapes would broadcast."""
    if np.shape(response) != (n_obs,):
        raise ValueError(
            f"`response` must have shape ({n_obs},), one value for each row of the scores; got "
            f"{np.shape(response)}."
        )
