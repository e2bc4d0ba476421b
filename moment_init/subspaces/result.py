"""What every method of this package returns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import WeakSignalWarning, notify
from moment_init.data.checking import validate_features
from moment_init.data.standardising import Coordinates

__all__ = ["STANDS_OUT", "SubspaceEstimate", "assemble_estimate"]

FloatArray = NDArray[np.float64]

# The edge of noise is a limit for many columns. In 200 data sets of pure noise, the largest
# value exceeded 1.2 edges in at most 4 % with 5 to 30 columns, and in at most 10 % with two.
STANDS_OUT = 1.2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SubspaceEstimate:
    """Span of the directions of a mixture.

    Parameters
    ----------
    basis : numpy.ndarray, shape (n_features, n_directions)
        Orthonormal basis of the span, for the user's columns. The first k columns span the k
        leading directions.
    spectrum : numpy.ndarray, shape (n_features,)
        Size of each direction's moment over what noise alone would reach, in the order of the
        basis: above one, a direction stands out.
    mean : numpy.ndarray, shape (n_features,)
        Mean of the input.
    feature_names : tuple of str
        Names of the columns.
    method : str
        Name of the function that found it.
    n_obs : int
        Number of rows with a weight above zero.
    warnings : tuple of str
        What is weak.
    """

    basis: FloatArray
    spectrum: FloatArray
    mean: FloatArray
    feature_names: tuple[str, ...]
    method: str
    n_obs: int
    warnings: tuple[str, ...] = ()

    @property
    def n_directions(self) -> int:
        """Dimension of the span."""
        return int(self.basis.shape[1])

    def transform(self, X: Any) -> FloatArray:
        r"""Project rows on the span: :math:`B'(x - \mu)`.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Rows; the columns of a DataFrame are matched by name.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_directions)
            Coordinates of the rows in the basis.

        Raises
        ------
        TypeError
            For rows that are not real numbers.
        ValueError
            For other columns than those of the estimate, missing or infinite values.
        """
        features, given = validate_features(X, min_obs=1)
        is_named = hasattr(X, "columns")
        self._require_columns(given, features.shape[1], is_named=is_named)
        if is_named:
            features = features[:, [given.index(name) for name in self.feature_names]]
        return np.asarray((features.astype(np.float64) - self.mean) @ self.basis)

    def _require_columns(self, given: tuple[str, ...], number: int, *, is_named: bool) -> None:
        names = self.feature_names
        if is_named and set(given) != set(names):
            missing = [name for name in names if name not in given]
            unknown = [name for name in given if name not in names]
            raise ValueError(
                f"`X` must have the columns of the estimate; missing are {missing}, unknown are "
                f"{unknown}. Select `X[{list(names)}]`, or pass an array to go by position."
            )
        if number != len(names):
            raise ValueError(
                f"`X` must have the {len(names)} columns of the estimate ({', '.join(names)}); "
                f"got {number}. Pass the same columns."
            )

    def __repr__(self) -> str:
        """Show the sizes and the spectrum, not the arrays."""
        values = ", ".join(f"{value:.2f}" for value in self.spectrum[: self.n_directions + 1])
        return (
            f"SubspaceEstimate(method={self.method!r}, n_directions={self.n_directions}, "
            f"n_features={len(self.feature_names)}, n_obs={self.n_obs}, spectrum=[{values}...])"
        )


def assemble_estimate(
    directions: FloatArray,
    spectrum: FloatArray,
    coordinates: Coordinates,
    *,
    feature_names: tuple[str, ...],
    method: str,
    n_obs: int,
) -> SubspaceEstimate:
    """Map directions to the user's units, and say which of them may be noise.

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_directions)
        Directions in standardised coordinates, leading ones first.
    spectrum : numpy.ndarray, shape (n_features,)
        Sizes over the edge of their noise.
    coordinates : Coordinates
        The way to the user's units.
    feature_names : tuple of str
        Names of the columns.
    method : str
        Name of the public function.
    n_obs : int
        Number of rows.

    Returns
    -------
    SubspaceEstimate
        The result.

    Warns
    -----
    WeakSignalWarning
        If a direction does not stand out from noise.
    """
    columns, _ = coordinates.directions_to_user(directions)
    basis, triangle = np.linalg.qr(columns)
    signs = np.where(np.diag(triangle) < 0.0, -1.0, 1.0)  # keeps the first direction's own sign
    messages = _weaknesses(spectrum, directions.shape[1], method)
    for message in messages:
        notify(message, WeakSignalWarning)
    return SubspaceEstimate(
        basis=basis * signs,
        spectrum=spectrum,
        mean=coordinates.mean,
        feature_names=feature_names,
        method=method,
        n_obs=n_obs,
        warnings=messages,
    )


def _weaknesses(spectrum: FloatArray, n_directions: int, method: str) -> tuple[str, ...]:
    n_visible = int(np.sum(spectrum[:n_directions] > STANDS_OUT))
    if n_visible == n_directions:
        return ()
    return (
        f"{method}: {n_visible} of {n_directions} directions stand out from noise; the others may "
        "be any. Ask for fewer, bring more rows, or use `moment_init.estimate`.",
    )
