r"""Coefficients of anchored directions as one operation with its gradient.

.. math:: \beta_j = \frac{s_j}{\ell_j} (a_j + K_j \zeta_j), \qquad
    \ell_j = \sqrt{1 + \kappa^2 |\zeta_j|^2}

with :math:`a_j` the anchor and :math:`K_j = \kappa Q_j` the basis of its complement, both mapped to
the user's units; and the predictor at the mean input, :math:`\langle \mu, \beta_j \rangle`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from moment_init.models.fused_operation import FusedOperation

__all__ = ["AnchoredCoefficient", "anchored_coefficient"]


def anchored_coefficient(
    anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any, *, kappa: float
) -> tuple[Any, Any]:
    """Coefficients from tilts and scales, and the predictors at the mean input.

    Parameters
    ----------
    anchor : tensor_like, shape (n_features, n_components)
        Anchors in the user's units; data.
    basis : tensor_like, shape (n_features, n_components, n_features - 1)
        Bases in the user's units, times kappa; data.
    mean : tensor_like, shape (n_features,)
        Mean of the input; data.
    tilt : tensor_like, shape (n_components, n_features - 1)
        Tilts.
    scale : tensor_like, shape (n_components,)
        Standardised scales.
    kappa : float
        Tangent of the angle per unit of tilt.

    Returns
    -------
    coefficient : TensorVariable, shape (n_features, n_components)
        Coefficients of the user's columns.
    at_mean : TensorVariable, shape (n_components,)
        Their products with the mean.
    """
    outputs: Any = AnchoredCoefficient(float(kappa))(anchor, basis, mean, tilt, scale)
    return outputs[0], outputs[1]


class AnchoredCoefficient(FusedOperation):
    """Coefficients of anchored directions, and predictors at the mean input.

    Parameters
    ----------
    kappa : float
        Tangent of the angle per unit of tilt.
    """

    __props__: ClassVar[tuple[str, ...]] = ("kappa",)
    n_data: ClassVar[int] = 3
    n_outputs: ClassVar[int] = 2

    def __init__(self, kappa: float) -> None:
        self.kappa = kappa

    def written_out(self, inputs: Sequence[Any]) -> list[Any]:
        """The equation at the head of the module.

        Parameters
        ----------
        inputs : sequence of TensorVariable
            As in `anchored_coefficient`.

        Returns
        -------
        list of TensorVariable
            Coefficients, and predictors at the mean.
        """
        anchor, basis, mean, tilt, scale = inputs

        def coefficient() -> Any:
            length = pt.sqrt(1.0 + self.kappa**2 * pt.sqr(tilt).sum(axis=-1))
            return (anchor + (basis * tilt).sum(axis=-1)) * (scale / length)

        return [coefficient(), (mean[:, None] * coefficient()).sum(axis=0)]

    def infer_shape(self, node: Apply[Any], shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Give the shapes of the outputs.

        Parameters
        ----------
        node : Apply
            The node.
        shapes : sequence
            Shapes of the inputs.

        Returns
        -------
        list of tuple
            Features by components, and components.
        """
        return [(shapes[0][0], shapes[4][0]), (shapes[4][0],)]

    def value_loop(self) -> Callable[..., Any]:
        """Component by component.

        Returns
        -------
        callable
            Of the inputs.
        """
        squared_kappa = float(self.kappa**2)

        def forward(anchor: Any, basis: Any, mean: Any, tilt: Any, scale: Any) -> Any:
            n_features, n_components, n_tilts = basis.shape
            coefficient = np.empty((n_features, n_components))
            at_mean = np.empty(n_components)
            for j in range(n_components):
                at_mean[j] = 0.0
                squared = 1.0
                for t in range(n_tilts):
                    squared += squared_kappa * tilt[j, t] * tilt[j, t]
                factor = scale[j] / math.sqrt(squared)
                for k in range(n_features):
                    total = anchor[k, j]
                    for t in range(n_tilts):
                        total += basis[k, j, t] * tilt[j, t]
                    coefficient[k, j] = total * factor
                    at_mean[j] += mean[k] * coefficient[k, j]
            return coefficient, at_mean

        return forward

    def gradient_loop(self) -> Callable[..., Any]:
        r"""Derivatives in tilts and scales.

        With c the cotangent of a coefficient, that of its product with the mean included, and v the
        vector before it is scaled: ds = <c, v> / l and dz = (s / l) (K'c - k^2 z <c, v> / l^2).

        Returns
        -------
        callable
            Of the inputs and the cotangents of coefficients and predictors at the mean.
        """
        squared_kappa = float(self.kappa**2)

        def backward(
            anchor: Any,
            basis: Any,
            mean: Any,
            tilt: Any,
            scale: Any,
            of_coefficient: Any,
            of_mean: Any,
        ) -> Any:
            n_features, n_components, n_tilts = basis.shape
            of_tilt = np.empty((n_components, n_tilts))
            of_scale = np.empty(n_components)
            for j in range(n_components):
                squared = 1.0
                for t in range(n_tilts):
                    squared += squared_kappa * tilt[j, t] * tilt[j, t]
                    of_tilt[j, t] = 0.0
                length = math.sqrt(squared)
                along = 0.0
                for k in range(n_features):
                    cotangent = of_coefficient[k, j] + mean[k] * of_mean[j]
                    vector = anchor[k, j]
                    for t in range(n_tilts):
                        vector += basis[k, j, t] * tilt[j, t]
                        of_tilt[j, t] += cotangent * basis[k, j, t]
                    along += cotangent * vector
                of_scale[j] = along / length
                for t in range(n_tilts):
                    pull = squared_kappa * along / squared * tilt[j, t]
                    of_tilt[j, t] = scale[j] / length * (of_tilt[j, t] - pull)
            return of_tilt, of_scale

        return backward
