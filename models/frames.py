r"""Anchored directions: an orthonormal frame about each estimate.

.. math:: u_j = \frac{a_j + \kappa Q_j \zeta_j}{\sqrt{1 + \kappa^2 |\zeta_j|^2}},
    \qquad \kappa = \frac{\tan(\text{angle})}{\sqrt{d - 1}}, \qquad \zeta_j \sim N(0, I)

with a_j the anchor, a unit vector, and Q_j an orthonormal basis of its complement. The tangent of
the angle between u_j and its anchor is :math:`\kappa |\zeta_j|`, which has root mean square
tan(angle): half the prior lies within about that angle, whatever the number of features is. No
direction beyond 90 degrees can be reached, so a component cannot turn into its mirror image.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["anchor_bases", "tilt_per_unit", "tilts_of"]

FloatArray = NDArray[np.float64]

_SMALLEST_COSINE = 0.05
"""Directions further than 87 degrees from their anchor are given the tilt of one that is not: the
tilt would run away at 90 degrees."""


def tilt_per_unit(anchor_angle: float, n_features: int) -> float:
    """Return kappa, the tangent of the angle that one unit of tilt in each direction makes.

    Parameters
    ----------
    anchor_angle : float
        Angle in degrees.
    n_features : int
        Number of features.

    Returns
    -------
    float
        Kappa; zero for a single feature, where there is nowhere to tilt to.
    """
    if n_features == 1:
        return 0.0
    return float(np.tan(np.radians(anchor_angle)) / np.sqrt(n_features - 1))


def anchor_bases(anchors: FloatArray) -> FloatArray:
    """Orthonormal bases of the complements of unit vectors.

    Parameters
    ----------
    anchors : numpy.ndarray, shape (n_features, n_components)
        Unit columns.

    Returns
    -------
    numpy.ndarray, shape (n_components, n_features, n_features - 1)
        A basis for each, by Householder reflection: smooth in the anchor but for a sign.
    """
    n_features = anchors.shape[0]
    bases = []
    for anchor in anchors.T:
        # The reflection that takes the first axis to -sign(a_1) a takes the other axes to a basis.
        normal = anchor.copy()
        normal[0] += np.copysign(1.0, anchor[0])
        reflection = np.eye(n_features) - 2.0 * np.outer(normal, normal) / (normal @ normal)
        bases.append(reflection[:, 1:])
    return np.stack(bases)


def tilts_of(
    directions: FloatArray, anchors: FloatArray, bases: FloatArray, kappa: float
) -> FloatArray:
    r"""Return the tilts that make given directions, the inverse of the module's equation.

    .. math:: \zeta_j = Q_j' u_j / (\kappa \langle u_j, a_j \rangle)

    Parameters
    ----------
    directions : numpy.ndarray, shape (n_features, n_components)
        Unit columns.
    anchors : numpy.ndarray, shape (n_features, n_components)
        Anchors, unit columns.
    bases : numpy.ndarray, shape (n_components, n_features, n_features - 1)
        Bases of their complements.
    kappa : float
        Tangent per unit of tilt.

    Returns
    -------
    numpy.ndarray, shape (n_components, n_features - 1)
        The tilts.
    """
    if kappa == 0.0:
        return np.zeros(bases.shape[::2])
    cosines = np.maximum(np.sum(directions * anchors, axis=0), _SMALLEST_COSINE)
    across = np.einsum("jdt,dj->jt", bases, directions)
    return np.asarray(across / (kappa * cosines[:, None]))
