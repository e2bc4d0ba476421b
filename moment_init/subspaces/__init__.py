"""Cheap ways to the span of the directions, from one or two moments each.

They need a Gaussian input (sliced inverse regression: an elliptical one) and give the span only,
not the directions in it: `moment_init.estimate` gives both. They are here to compare with, and to
reduce many columns to a few before something else is done with them.
"""

from moment_init.subspaces.hessian_directions import principal_hessian_directions
from moment_init.subspaces.inverse_regression import sliced_inverse_regression
from moment_init.subspaces.mirroring import spectral_mirroring
from moment_init.subspaces.result import SubspaceEstimate

__all__ = [
    "SubspaceEstimate",
    "principal_hessian_directions",
    "sliced_inverse_regression",
    "spectral_mirroring",
]
