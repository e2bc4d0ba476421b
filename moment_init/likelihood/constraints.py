"""Linear constraints on parameters: what components share, and what is held.

Shared coefficients, fixed weights and fixed directions are all of one kind: the vector of
parameters moves only in a subspace. Steps are solved for in an orthonormal basis of it, with the
score and the information projected.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.likelihood.parameters import MixtureParameters, pack, unpack

__all__ = ["LinearConstraint"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LinearConstraint:
    """Parameters that move in a subspace only.

    Parameters
    ----------
    basis : numpy.ndarray, shape (n_parameters, n_free)
        Orthonormal basis of the directions in which the vector of parameters may move.
    """

    basis: FloatArray

    @property
    def n_free(self) -> int:
        """Number of free parameters."""
        return int(self.basis.shape[1])

    def project(
        self, parameters: MixtureParameters, anchor: MixtureParameters
    ) -> MixtureParameters:
        """Nearest parameters that differ from an anchor by an allowed step.

        Parameters
        ----------
        parameters : MixtureParameters
            Any parameters.
        anchor : MixtureParameters
            Parameters that satisfy the constraint.

        Returns
        -------
        MixtureParameters
            Parameters that satisfy it.
        """
        at = pack(anchor)
        step = self.basis @ (self.basis.T @ (pack(parameters) - at))
        return unpack(at + step, parameters)

    @classmethod
    def spanned_by(cls, directions: FloatArray) -> "LinearConstraint":
        """Constraint from any set of allowed directions.

        Parameters
        ----------
        directions : numpy.ndarray, shape (n_parameters, n_free)
            Linearly independent columns.

        Returns
        -------
        LinearConstraint
            With their orthonormal basis.
        """
        return cls(np.linalg.qr(directions)[0])
