r"""The span of the components under any input density, and the moments inside it.

As for a Gaussian input, :math:`G = \sum M M'` over the moments of all orders has its range in the
span of the directions. The scores of other densities have other variances: every order is divided
by the standard error of its entries, as seen between parts of the rows, so that noise is of one
size in all of them and eigenvalues of G can be told from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from moment_init.stacked.score_sums import PartSums, ScoreRows, fit_control_variates

__all__ = ["PieceMoments", "ScoreMoments", "score_moments"]

FloatArray = NDArray[np.float64]

FEW_FEATURES = 8
"""Up to so many features the whole third-order tensor is formed: 512 entries, and a quadratic
regression on 45 terms. Beyond, its slices along the rough subspace are."""

SLICED_FUNCTIONS = 3
"""Of the functions of the response, how many give slices: they come with most signal first, and
each costs r Gram matrices of the rows for every part of a density."""

ORTHOGONAL_ITERATIONS = 5
"""Steps of higher-order orthogonal iteration; each shrinks what is left by the ratio of noise to
signal, which is below a half where the span can be found at all."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceMoments:
    """Moments of three orders under a piece of the density, as far as they were formed.

    Parameters
    ----------
    slope : numpy.ndarray, shape (d,)
        Order one of the rank of the response.
    first, second : PartSums
        Orders one, (n_functions, d), and two, (n_functions, d, d), in all dimensions.
    third : PartSums or None
        Slices of the third order, (n_slices, d, d).
    inner : PartSums or None
        The third order inside the subspace, (n_functions, k, k, k); None where `third` holds all
        of it, function by function.
    """

    slope: FloatArray
    first: PartSums
    second: PartSums
    third: PartSums | None = None
    inner: PartSums | None = None

    def with_unit_noise(self, left_out: int | None = None) -> list[FloatArray]:
        """Moments over their standard errors, as stacks of matrices.

        Parameters
        ----------
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        list of numpy.ndarray
            Shapes (n_functions, d, 1), then (n, d, d).
        """
        scaled = [
            each.mean(left_out=left_out) / np.sqrt(each.variance)
            for each in (self.first, self.second, self.third)
            if each is not None
        ]
        return [scaled[0][:, :, None], *scaled[1:]]

    def inside(self, basis: FloatArray, left_out: int | None = None) -> list[FloatArray]:
        """Second and third order inside a subspace, over their standard errors.

        Parameters
        ----------
        basis : numpy.ndarray, shape (d, k)
            Orthonormal basis of the subspace.
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        list of numpy.ndarray
            Slices, each of shape (k, k, n).
        """
        size = basis.shape[1]
        second = basis.T @ self.second.mean(left_out=left_out) @ basis
        slices = [np.moveaxis(second, 0, 2) / np.sqrt(self.second.variance)]
        if self.inner is not None:
            third = self.inner.mean(left_out=left_out)
            deviation = np.sqrt(self.inner.variance)
        elif self.third is not None:
            cubes = self.third.mean(left_out=left_out).reshape(-1, *([len(basis)] * 3))
            third = np.einsum("fabc,ai,bj,ck->fijk", cubes, basis, basis, basis, optimize=True)
            deviation = np.sqrt(self.third.variance)
        else:
            return slices
        return [*slices, np.moveaxis(third, 0, 3).reshape(size, size, -1) / deviation]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMoments:
    """Moments under all pieces of the density, in coordinates of their frame.

    Parameters
    ----------
    pieces : tuple of PieceMoments
        The moments.
    subspace : numpy.ndarray, shape (d, k)
        Orthonormal basis of the span.
    spectrum : numpy.ndarray, shape (d,)
        Eigenvalues of G over the edge of their noise, largest first.
    """

    pieces: tuple[PieceMoments, ...]
    subspace: FloatArray
    spectrum: FloatArray

    @property
    def slope(self) -> FloatArray:
        """Order one of the rank of the response, (d,): the response rises along it."""
        return np.asarray(sum(piece.slope for piece in self.pieces))

    def span(self, *, left_out: int | None = None) -> FloatArray:
        """Span of the components.

        Parameters
        ----------
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        numpy.ndarray, shape (d, k)
            Orthonormal basis.
        """
        return _leading_subspace(_gather(self.pieces, left_out), self.subspace.shape[1])

    def stack(self, *, left_out: int | None = None) -> FloatArray:
        """Second moments and slices of the third inside the subspace, with noise of one size.

        Parameters
        ----------
        left_out : int, optional
            A part of the rows to leave out.

        Returns
        -------
        numpy.ndarray, shape (k, k, n_slices)
            The stacked tensor.
        """
        slices = [each.inside(self.subspace, left_out) for each in self.pieces]
        return np.concatenate([each for piece in slices for each in piece], axis=2)


def score_moments(pieces: Sequence[ScoreRows], n_components: int) -> ScoreMoments:
    """Form the moments and find the span of the components; four or five passes a piece.

    Parameters
    ----------
    pieces : sequence of ScoreRows
        Rows with the pieces of the density of their input.
    n_components : int
        Number of components r.

    Returns
    -------
    ScoreMoments
        The moments.
    """
    n_features = pieces[0].rows.n_features
    size = min(n_components, n_features)
    low = [_low_orders(piece) for piece in pieces]
    if n_features <= FEW_FEATURES:
        found = [_whole_third_order(*each) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(found), size)
    else:
        rough = _leading_subspace(_gather(low), size)
        found = [_sliced_third_order(*each, rough) for each in zip(pieces, low, strict=True)]
        span = _leading_subspace(_gather(found), size)
        found = [_inner_third_order(*each, span) for each in zip(pieces, found, strict=True)]
    if size == n_features:
        span = np.eye(n_features)
    return ScoreMoments(tuple(found), span, _spectrum(_gather(found)))


def _low_orders(piece: ScoreRows) -> PieceMoments:
    """The first two orders; linear terms are taken out of the second."""
    rows = piece.rows
    everything = np.eye(rows.n_features)
    ranks = rankdata(rows.response) / rows.n_obs - 0.5

    def with_ranks(block: slice) -> FloatArray:
        return np.column_stack([rows.function_values(block), ranks[block]])

    first = piece.moments(everything, 1, with_ranks)
    linear = fit_control_variates(rows, everything[:, :0])
    return PieceMoments(
        first.mean()[-1],
        PartSums(first.sums[:, :-1], first.part_weights),
        piece.moments(everything, 2, linear.residuals),
    )


def _whole_third_order(piece: ScoreRows, low: PieceMoments) -> PieceMoments:
    """Add the third order in all dimensions."""
    n_features = piece.rows.n_features
    everything = np.eye(n_features)
    quadratic = fit_control_variates(piece.rows, everything)
    cubes = piece.moments(everything, 3, quadratic.residuals)
    slices = cubes.sums.reshape(len(cubes.sums), -1, n_features, n_features)
    return replace(low, third=PartSums(slices, cubes.part_weights))


def _sliced_third_order(piece: ScoreRows, low: PieceMoments, rough: FloatArray) -> PieceMoments:
    """Add slices of the third order along a rough subspace."""
    quadratic = fit_control_variates(piece.rows, piece.to_whitened(rough))
    n_sliced = min(SLICED_FUNCTIONS, piece.rows.n_functions)
    slices = piece.slices(rough, lambda block: quadratic.residuals(block)[:, :n_sliced])
    return replace(low, third=slices)


def _inner_third_order(piece: ScoreRows, found: PieceMoments, span: FloatArray) -> PieceMoments:
    """Add the third order inside the span."""
    quadratic = fit_control_variates(piece.rows, piece.to_whitened(span))
    return replace(found, inner=piece.moments(span, 3, quadratic.residuals))


def _gather(pieces: Sequence[PieceMoments], left_out: int | None = None) -> list[FloatArray]:
    """Moments of all pieces over their standard errors."""
    return [each for piece in pieces for each in piece.with_unit_noise(left_out)]


def _leading_subspace(matrices: list[FloatArray], size: int) -> FloatArray:
    """Leading eigenvectors of G, then steps of higher-order orthogonal iteration.

    A step keeps of every matrix only what lies in the subspace on one side, and so only the noise
    that falls on it.
    """
    basis = np.linalg.eigh(_gram(matrices))[1][:, ::-1][:, :size]
    for _ in range(ORTHOGONAL_ITERATIONS):
        inside = [each if _is_vectors(each) else each @ basis for each in matrices]
        basis = np.linalg.eigh(_gram(inside))[1][:, ::-1][:, :size]
    return np.asarray(basis)


def _is_vectors(matrices: FloatArray) -> bool:
    return bool(matrices.shape[2] == 1 < matrices.shape[1])


def _gram(matrices: list[FloatArray]) -> FloatArray:
    """Sum of A A' over stacks of matrices, (n, d, k)."""
    unfolded = [np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in matrices]
    return np.asarray(sum(each @ each.T for each in unfolded))


def _spectrum(matrices: list[FloatArray]) -> FloatArray:
    r"""Eigenvalues of G over the edge of noise, :math:`(\sqrt N + \sqrt d)^2` for N columns."""
    n_features = matrices[0].shape[1]
    # A symmetric matrix of d columns holds (d + 1)/2 columns of independent entries.
    columns = [1.0 if _is_vectors(each) else (n_features + 1) / 2.0 for each in matrices]
    n_columns = sum(len(each) * number for each, number in zip(matrices, columns, strict=True))
    edge = (np.sqrt(n_columns) + np.sqrt(n_features)) ** 2
    return np.asarray(np.linalg.eigvalsh(_gram(matrices))[::-1] / edge)
