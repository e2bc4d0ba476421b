"""Check by Stein's identities, on held-out rows, whether a density is that of the input.

`find_edges` finds columns whose density does not vanish fast enough at an end of the support:
scores of higher orders are not valid there. `stein_check` contracts the identities with columns and
random directions and compares the deviations with their standard errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.special import ndtr, ndtri

from moment_init.checks import FloatArray
from moment_init.data.blocks import read_block, sum_over_blocks
from moment_init.data.checking import validate_features
from moment_init.families.compiling import Compiled
from moment_init.scores.base import InputModel

# Number of rows at each end, as a multiple of the root of n: the error falls with n, and so does
# the share of rows, which decides how much of the density's bulk is mistaken for its edge.
ROWS_PER_ROOT = 6.0
LARGEST_SHARE = 0.05
FEWEST_ROWS = 1_000

# Chance of a false alarm, over all columns and both ends.
FALSE_ALARMS = 0.01


@dataclass(frozen=True, slots=True)
class Edge:
    """An end of a column at which the density stops too abruptly for a score of some order.

    Parameters
    ----------
    column : int
        Index of the column.
    side : str
        "lower" or "upper".
    power : float
        Estimate of a, if the density near the edge is proportional to the distance to the power
        a - 1.
    lowest_invalid_order : int
        Lowest order whose score is clearly not valid: order m needs a > m.
    """

    column: int
    side: str
    power: float
    lowest_invalid_order: int


def find_edges(X: FloatArray) -> tuple[Edge, ...]:
    """Find columns whose density does not vanish fast enough at an end of its support.

    The outermost rows follow a generalised Pareto distribution with index k = 1/a, estimated by
    the probability-weighted moments of [1]_ with their standard error. A score of order m is
    invalid if k > 1/m: the uniform has k = 1, Gamma(2) has k = 1/2 at zero, and a Gaussian sample
    has k of about .1. The cost is O(n d).

    References
    ----------
    .. [1] J. R. M. Hosking, J. R. Wallis, "Parameter and quantile estimation for the generalized
       Pareto distribution", Technometrics 29 (1987), doi:10.1080/00401706.1987.10488243.
    """
    # X: (n_obs, n_features)
    n_obs, n_features = X.shape
    n_tail = int(min(ROWS_PER_ROOT * np.sqrt(n_obs), LARGEST_SHARE * n_obs))
    if n_obs < FEWEST_ROWS:
        return ()
    n_errors = -float(ndtri(FALSE_ALARMS / (2 * n_features)))
    edges = []
    for column in range(n_features):
        for side, sign in (("lower", 1.0), ("upper", -1.0)):
            values = np.partition(sign * X[:, column], n_tail)[: n_tail + 1]
            edge = _judge_edge(values.max() - values, n_errors)
            if edge is not None:
                edges.append(Edge(column, side, *edge))
    return tuple(edges)


def _judge_edge(distances: FloatArray, n_errors: float) -> tuple[float, int] | None:
    """Estimate the power of the distance from the edge, and the lowest order it rules out."""
    y = np.sort(distances)[1:]  # without the threshold itself
    plotting = (np.arange(1, len(y) + 1) - 0.35) / len(y)
    mean, weighted = float(y.mean()), float(np.mean((1.0 - plotting) * y))
    if mean <= 2.0 * weighted:  # the tail is one value, or nearly so
        return None
    k = mean / (mean - 2.0 * weighted) - 2.0
    for order in (1, 2, 3):
        # The error is that at the limit. A valid density has k < 1 / order; k = 1 must fail too.
        limit = 1.0 / order - (0.2 if order == 1 else 0.0)
        if k > limit + n_errors * _standard_error(limit, len(y)):
            return 1.0 / k, order
    return None


def _standard_error(k: float, n_rows: int) -> float:
    """Standard error of the index by probability-weighted moments."""
    variance = (1.0 + k) * (2.0 + k) ** 2 * (1.0 + k + 2.0 * k**2)
    return float(np.sqrt(variance / ((1.0 + 2.0 * k) * (3.0 + 2.0 * k)) / n_rows))


# The seven identities, and what is wrong with the density if one fails. A Gaussian with the right
# mean and covariance passes the first three whatever the input is.
ASSUMPTIONS = (
    ("E[S_1] = 0", "location"),
    ("E[S_1 x'] = I", "scales or correlations"),
    ("E[S_2] = 0", "scales or correlations"),
    ("E[x S_2] = 0", "skewness"),
    ("E[S_3] = 0", "skewness"),
    ("E[x S_3] = 0", "kurtosis or clusters"),
    ("E[xx S_3] = 0", "asymmetric tails"),
)


# Each identity is contracted with functions of z: with none, or with those of `_directions`.
TERMS = (slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 6), slice(6, 7), slice(7, 9), slice(9, 12))
N_TERMS = 12
SCORES = [0, 3, 6]  # the terms that are the scores themselves


# Standard errors allow for this many missed rows as large as the largest one. With light tails this
# changes nothing. The scores of skewed columns have one heavy tail: under the true density of
# Gamma(8) or lognormal columns, deviations of eight plain standard errors occur, because the rows
# that balance the mean are not in the sample. The number was chosen on simulated columns of that
# kind. It costs power where a wrong density also has heavy-tailed scores, as a Gaussian on t rows.
MISSED_ROWS = 4.0


class SteinStatus(StrEnum):
    """Outcome of a Stein check."""

    PASSED = "passed"
    FAILED = "failed"
    BOUNDARY = "boundary"


@dataclass(frozen=True, slots=True)
class SteinIdentity:
    """One of Stein's identities, at its worst contraction.

    Parameters
    ----------
    name : str
        The identity.
    assumption : str
        What is wrong with the density if the identity fails.
    standard_errors : float
        Largest deviation over all contractions, in standard errors.
    n_contractions : int
        Number of contractions.
    p_value : float
        Bonferroni bound on the chance of a deviation this large among all contractions.
    size : float
        Largest deviation in standard deviations of its terms, which does not depend on n.
    passed : bool
        Whether the p-value is at least the level divided by the number of identities.
    """

    name: str
    assumption: str
    standard_errors: float
    n_contractions: int
    p_value: float
    size: float
    passed: bool


@dataclass(frozen=True, slots=True)
class SteinCheck:
    """Check of a density by Stein's identities.

    Parameters
    ----------
    status : SteinStatus
        "boundary" if scores of some order are not valid at an end of the support, else "failed" if
        an identity fails, else "passed".
    identities : tuple of SteinIdentity
        The seven identities.
    edges : tuple of Edge
        Ends of columns at which scores of some order are not valid.
    highest_order : int
        Highest order (at most 3) with a valid score, judged by the edges and the density itself.
    score_sizes : tuple of float
        Mean square of S_1, S_2, S_3 along the contractions, relative to the Gaussian's, which is
        m!. Moments are noisier with larger scores.
    n_obs : int
        Number of rows.
    message : str
        The result in words.
    """

    status: SteinStatus
    identities: tuple[SteinIdentity, ...]
    edges: tuple[Edge, ...]
    highest_order: int
    score_sizes: tuple[float, float, float]
    n_obs: int
    message: str

    @property
    def worst(self) -> SteinIdentity:
        """The identity with the smallest p-value; among equals, with the largest deviation."""
        return min(
            self.identities, key=lambda identity: (identity.p_value, -identity.standard_errors)
        )


def stein_check(
    model: InputModel,
    X: ArrayLike,
    *,
    n_random: int = 20,
    level: float = 0.01,
    names: Sequence[str] | None = None,
    random_seed: int | np.random.Generator | None = None,
) -> SteinCheck:
    r"""Check a density by Stein's identities on held-out rows.

    If p is the density of the input, Theorem 9 of [1]_ gives for polynomials f

    .. math:: E[S_1] = 0, \; E[S_1 x'] = I, \; E[S_2] = 0, \; E[x S_2] = 0, \;
              E[S_3] = 0, \; E[x S_3] = 0, \; E[x x' S_3] = 0.

    Each is contracted with the columns and with random directions in whitened coordinates.

    Parameters
    ----------
    model : InputModel
        A fitted density.
    X : array-like, shape (n_obs, n_features)
        Rows that the density was not fitted to.
    n_random : int, default 20
        Number of random directions in addition to the columns.
    level : float, default 0.01
        Chance that the true density fails, over all identities.
    names : sequence of str, optional
        Column names for the message; by default those of `X` if it is a DataFrame.
    random_seed : int, Generator or None
        Seed for the directions.

    Returns
    -------
    SteinCheck
        The identities in standard errors, and what fails.

    Raises
    ------
    ValueError
        If `X` and the density differ in the number of columns, or `level` is not in (0, 1).

    Notes
    -----
    The check takes one pass, O(n d k) for k = d + `n_random` directions. All modes of a score are
    contracted with one direction; x is taken along the same direction and along another one. The
    largest deviation is judged by Bonferroni's bound, which holds for dependent deviations too.
    Standard errors allow for the fit to `n_fitted_` rows, as that of a mean, and for missed rows as
    large as the largest one. The skewness of the terms is corrected for as in [2]_.

    References
    ----------
    .. [1] H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
       of generalized linear models", arXiv:1412.3046.
    .. [2] P. Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical
       Society B 54 (1992), doi:10.1111/j.2517-6161.1992.tb01876.x.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must be between 0 and 1; got {level!r}.")
    features, column_names = validate_features(X)
    n_features = _require_columns(model, features)
    rng = np.random.default_rng(random_seed)
    directions, functions, others = _directions(model, n_random, rng)
    contraction = model.contract(model.standardising_basis @ directions)
    expected = (np.sum(directions * functions, axis=0), np.sum(directions * others, axis=0))

    peaks: list[FloatArray] = []  # largest terms of each block, in any order

    def sums(rows: slice) -> tuple[FloatArray]:
        block = read_block(features, rows)
        z = model.whiten(block)
        scores = np.stack([contraction.powers(block, order) for order in (1, 2, 3)])
        totals, largest = _sum_terms(scores, z @ functions, z @ others, np.stack(expected))
        peaks.append(largest)
        return (totals,)

    doubles = 8 * directions.shape[1] + 3 * n_features
    (totals,) = sum_over_blocks(sums, len(features), doubles)
    largest = np.max(peaks, axis=0)
    errors = np.sqrt(1.0 + len(features) / model.n_fitted_)
    identities = tuple(
        _judge(
            named, totals[:, at].reshape(3, -1), largest[at].ravel(), len(features), errors, level
        )
        for named, at in zip(ASSUMPTIONS, TERMS, strict=True)
    )
    edges = find_edges(model.features(features))
    squares = totals[1, SCORES].mean(axis=1)
    sizes = squares / len(features) / np.array([1.0, 2.0, 6.0])
    named_edges = [(edge, _name_of(edge, names or column_names, n_features)) for edge in edges]
    return _assemble(model, identities, named_edges, sizes, len(features))


def _directions(
    model: InputModel, n_random: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw directions p in whitened coordinates, each with two functions q'z, its own first.

    For a column, p is one standard deviation along it, and q'z is its standardised value.
    """
    factor = model.standardising_basis
    scales = np.linalg.norm(factor, axis=1)
    along = solve_triangular(factor, np.diag(scales), lower=True)
    columns = (factor / scales[:, None]).T
    drawn = rng.standard_normal((len(scales), n_random))
    drawn /= np.linalg.norm(drawn, axis=0)
    functions = np.concatenate([columns, drawn], axis=1)
    others = functions[:, np.roll(rng.permutation(functions.shape[1]), 1)]
    return np.concatenate([along, drawn], axis=1), functions, others


def _sum_terms(
    scores: FloatArray, same: FloatArray, other: FloatArray, expected: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Sum the terms of all identities, their squares and cubes, and find the largest terms."""
    # scores: (3, n_obs, k), same, other: (n_obs, k), expected: (2, k) -> (3, 12, k), (12, k)
    sums, peaks = np.zeros((3, N_TERMS, same.shape[1])), np.zeros((N_TERMS, same.shape[1]))
    _COMPILED_TERMS(scores, same, other, expected, sums.reshape(3, -1), peaks.reshape(-1))
    return sums, peaks


def _add_terms(scores, same, other, expected, sums, peaks):  # type: ignore[no-untyped-def]
    """Add the terms of each row, whose means should be zero."""
    _, n_obs, size = scores.shape
    terms = np.empty(len(peaks))
    for i in range(n_obs):
        for k in range(size):
            first, second, third = scores[0, i, k], scores[1, i, k], scores[2, i, k]
            x, z = same[i, k], other[i, k]
            terms[k] = first
            terms[size + k] = first * x - expected[0, k]
            terms[2 * size + k] = first * z - expected[1, k]
            terms[3 * size + k] = second
            terms[4 * size + k] = second * x
            terms[5 * size + k] = second * z
            terms[6 * size + k] = third
            terms[7 * size + k] = third * x
            terms[8 * size + k] = third * z
            terms[9 * size + k] = third * x * x
            terms[10 * size + k] = third * x * z
            terms[11 * size + k] = third * z * z
        for k in range(len(terms)):
            term = terms[k]
            sums[0, k] += term
            sums[1, k] += term * term
            sums[2, k] += term * term * term
            peaks[k] = max(peaks[k], abs(term))


_COMPILED_TERMS = Compiled(_add_terms, "stein_terms")


def _judge(
    named: tuple[str, str],
    totals: FloatArray,
    peaks: FloatArray,
    n_obs: int,
    inflation: float,
    level: float,
) -> SteinIdentity:
    """Find the largest deviation in standard errors and its p-value over all contractions."""
    mean, square, cube = totals / n_obs
    deviation = np.sqrt(np.maximum(square - mean**2, 1e-300))
    skewness = (cube - 3.0 * mean * square + 2.0 * mean**3) / deviation**3
    ratio = np.sqrt(n_obs) * mean / deviation
    # A row as large as the largest might have been missed, in any of the contractions.
    share = float(np.max(np.square(peaks) / np.maximum(n_obs * square, 1e-300)))
    spread = inflation * np.sqrt(1.0 + MISSED_ROWS * share)
    corrected = _correct_skewness(ratio / spread, skewness / np.sqrt(n_obs))
    largest = float(np.max(np.abs(corrected)))
    p_value = min(1.0, 2.0 * len(mean) * float(ndtr(-largest)))
    size = float(np.max(np.abs(mean) / deviation))
    passed = p_value >= level / len(ASSUMPTIONS)
    return SteinIdentity(*named, largest, len(mean), p_value, size, passed)


def _correct_skewness(ratio: FloatArray, skewness: FloatArray) -> FloatArray:
    """Transform a mean in standard errors to a normal variable, after Hall.

    With a the skewness of a term divided by the root of n: ((1 + a t / 3)^3 - 1) / a + a / 6.
    """
    a = skewness
    return np.asarray(ratio + a * ratio**2 / 3.0 + a**2 * ratio**3 / 27.0 + a / 6.0)


def _require_columns(model: InputModel, features: NDArray[np.generic]) -> int:
    """Number of features of the density; raise if the rows have another number of columns."""
    expected = len(model.standardising_basis)  # raises if the density is not fitted
    if model.features(features[:1]).shape[1] != expected:
        raise ValueError(
            "`X` must have the columns of the density, which has "
            f"{expected} features; got shape {features.shape}."
        )
    return expected


def _name_of(edge: Edge, names: Sequence[str], n_features: int) -> str:
    """Name of the edge's column, or its number if the density is one of features phi(X)."""
    return names[edge.column] if len(names) == n_features else str(edge.column)


def _assemble(
    model: InputModel,
    identities: tuple[SteinIdentity, ...],
    named_edges: Sequence[tuple[Edge, str]],
    sizes: FloatArray,
    n_obs: int,
) -> SteinCheck:
    """Put the check together, with its status and its message."""
    edges = tuple(edge for edge, _ in named_edges)
    orders = [model.highest_order, *(edge.lowest_invalid_order - 1 for edge in edges)]
    highest, sentences = min(orders), []
    for edge, name in named_edges:
        sentences.append(
            f"The density of column {name} does not vanish fast enough at its {edge.side} "
            f"edge (power {edge.power - 1.0:.1f} of the distance): scores of order "
            f"{edge.lowest_invalid_order} and above are not valid."
        )
    if highest < 3 and not edges:
        sentences.append(f"The fitted density has valid scores up to order {highest} only.")
    failed = [identity for identity in identities if not identity.passed]
    for identity in failed:
        sentences.append(
            f"{identity.name} is off by {identity.standard_errors:.1f} standard errors: the input "
            f"and its density differ in {identity.assumption}."
        )
    status = SteinStatus.FAILED if failed else SteinStatus.PASSED
    if highest < 3:
        status = SteinStatus.BOUNDARY
    first, second, third = (float(size) for size in sizes)
    return SteinCheck(
        status,
        identities,
        edges,
        highest,
        (first, second, third),
        n_obs,
        " ".join(sentences) or "All of Stein's identities hold within their standard errors.",
    )
