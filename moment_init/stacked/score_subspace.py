r"""The span of the components under any input density, and the moments inside it.

As for a Gaussian input, :math:`G = \sum M M'` over the moments of all orders has its range in the
span of the directions. The scores of other densities have other variances: every order is divided
by the standard error of its entries, as seen between parts of the rows, so that noise is of one
size in all of them and eigenvalues of G can be told from it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.stacked.score_sums import PartSums, ScoreRows, fit_control_variates

__all__ = ["ScoreMoments", "score_moments"]

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
class ScoreMoments:
    """Moments of three orders, in all dimensions or as far as they were formed.

    Parameters
    ----------
    first, second : PartSums
        Orders one, (n_functions, d), and two, (n_functions, d, d), in all dimensions.
    third : PartSums
        Slices of the third order, (n_slices, d, d).
    inner : PartSums or None
        The third order inside the subspace, (n_functions, k, k, k); None where `third` holds all
        of it, function by function.
    subspace : numpy.ndarray, shape (d, k)
        Orthonormal basis of the span.
    spectrum : numpy.ndarray, shape (d,)
        Eigenvalues of G over the edge of their noise, largest first.
    """

    first: PartSums
    second: PartSums
    third: PartSums
    inner: PartSums | None
    subspace: FloatArray
    spectrum: FloatArray

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
        columns = _unit_noise(self.first, self.second, self.third, left_out)
        return _leading_subspace(columns, self.subspace.shape[1])

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
        basis = self.subspace
        size = basis.shape[1]
        second = basis.T @ self.second.mean(left_out=left_out) @ basis
        if self.inner is None:
            cubes = self.third.mean(left_out=left_out).reshape(-1, *([len(basis)] * 3))
            third = np.einsum("fabc,ai,bj,ck->fijk", cubes, basis, basis, basis, optimize=True)
            deviation = np.sqrt(self.third.variance)
        else:
            third = self.inner.mean(left_out=left_out)
            deviation = np.sqrt(self.inner.variance)
        slices = [
            np.moveaxis(second, 0, 2) / np.sqrt(self.second.variance),
            np.moveaxis(third, 0, 3).reshape(size, size, -1) / deviation,
        ]
        return np.concatenate(slices, axis=2)


def score_moments(score_rows: ScoreRows, n_components: int) -> ScoreMoments:
    """Form the moments and find the span of the components; four or five passes.

    Parameters
    ----------
    score_rows : ScoreRows
        Rows with the density of their input.
    n_components : int
        Number of components r.

    Returns
    -------
    ScoreMoments
        The moments.
    """
    rows = score_rows.rows
    n_features = rows.n_features
    everything, nothing = np.eye(n_features), np.zeros((n_features, 0))
    size = min(n_components, n_features)
    first = score_rows.first_order()
    linear = fit_control_variates(rows, nothing)
    second = score_rows.moments(everything, 2, linear.residuals)
    if n_features <= FEW_FEATURES:
        quadratic = fit_control_variates(rows, everything)
        cubes = score_rows.moments(everything, 3, quadratic.residuals)
        third = PartSums(
            cubes.sums.reshape(len(cubes.sums), -1, n_features, n_features), cubes.part_weights
        )
        span, inner = _leading_subspace(_unit_noise(first, second, third, None), size), None
    else:
        rough = _leading_subspace(_unit_noise(first, second, None, None), size)
        quadratic = fit_control_variates(rows, rough)
        n_sliced = min(SLICED_FUNCTIONS, rows.n_functions)
        third = score_rows.slices(rough, lambda block: quadratic.residuals(block)[:, :n_sliced])
        span = _leading_subspace(_unit_noise(first, second, third, None), size)
        quadratic = fit_control_variates(rows, span)
        inner = score_rows.moments(span, 3, quadratic.residuals)
    if size == n_features:
        span = everything
    spectrum = _spectrum(_unit_noise(first, second, third, None))
    return ScoreMoments(first, second, third, inner, span, spectrum)


def _unit_noise(
    first: PartSums, second: PartSums, third: PartSums | None, left_out: int | None
) -> list[FloatArray]:
    """Moments over their standard errors: (d, f), then stacks of matrices (n, d, d)."""
    used = [first, second] if third is None else [first, second, third]
    scaled = [each.mean(left_out=left_out) / np.sqrt(each.variance) for each in used]
    return [scaled[0].T, *scaled[1:]]


def _leading_subspace(columns: list[FloatArray], size: int) -> FloatArray:
    """Leading eigenvectors of G, then steps of higher-order orthogonal iteration.

    A step keeps of every matrix only what lies in the subspace on one side, and so only the noise
    that falls on it.
    """
    basis = np.linalg.eigh(_gram(columns))[1][:, ::-1][:, :size]
    for _ in range(ORTHOGONAL_ITERATIONS):
        inside = [columns[0], *(matrices @ basis for matrices in columns[1:])]
        basis = np.linalg.eigh(_gram(inside))[1][:, ::-1][:, :size]
    return np.asarray(basis)


def _gram(columns: list[FloatArray]) -> FloatArray:
    """Sum of A A' over a matrix (d, f) and stacks of matrices (n, d, k)."""
    unfolded = [columns[0]]
    for matrices in columns[1:]:
        unfolded.append(np.moveaxis(matrices, 1, 0).reshape(matrices.shape[1], -1))
    return np.asarray(sum(each @ each.T for each in unfolded))


def _spectrum(columns: list[FloatArray]) -> FloatArray:
    r"""Eigenvalues of G over the edge of noise, :math:`(\sqrt N + \sqrt d)^2` for N columns."""
    n_features = len(columns[0])
    n_columns = columns[0].shape[1]
    # A symmetric matrix of d columns holds (d + 1)/2 columns of independent entries.
    n_columns += sum(len(matrices) for matrices in columns[1:]) * (n_features + 1) / 2.0
    edge = (np.sqrt(n_columns) + np.sqrt(n_features)) ** 2
    return np.asarray(np.linalg.eigvalsh(_gram(columns))[::-1] / edge)
