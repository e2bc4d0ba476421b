"""The parameters of a mixture of generalised linear models, and their one order as a vector.

Everywhere a vector or matrix over parameters appears (scores, information, steps) the order is

    component by component (beta_j, b_j[, log dispersion_j]), then for each component but the last
    the logit log(w_j / w_r) and, with a gate, its slopes

so that component j owns a slice of length q = p + 1 (+ 1 with a dispersion) and the vector has
r q + (r - 1)(1 + g) entries, g the number of gating covariates. `pack`, `unpack` and `move` are the
only functions that know it by heart.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["MixtureParameters", "component_size", "move", "pack", "parameter_count", "unpack"]

FloatArray = NDArray[np.float64]

LARGEST_LOG_DISPERSION_STEP = 1.5
"""A step may change a dispersion by a factor of at most exp(1.5), about 4.5: the log-likelihood is
far from quadratic in the logarithm of a dispersion, and a longer step leaves the basin."""


@dataclass(frozen=True, slots=True, eq=False)
class MixtureParameters:
    """Parameters of a mixture of generalised linear models, in standardised coordinates.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        The coefficients beta_j, one column for each component.
    biases : numpy.ndarray, shape (n_components,)
        The intercepts b_j.
    weights : numpy.ndarray, shape (n_components,)
        The probabilities w_j of the components; positive, their sum is one.
    dispersion : numpy.ndarray, shape (n_components,), or None
        Dispersion on its natural scale (standard deviation, alpha or shape); None for families
        without one.
    gate : numpy.ndarray, shape (n_gate, n_components), or None
        Slopes of the gate's logits, zero for the last component: the probability of component j at
        gating covariates g is proportional to ``w_j exp(<gate_j, g>)``. None without a gate.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None
    gate: FloatArray | None = None

    @property
    def n_features(self) -> int:
        """Number of features, p."""
        return int(self.coefficients.shape[0])

    @property
    def n_components(self) -> int:
        """Number of components, r."""
        return int(self.coefficients.shape[1])

    @property
    def n_gate(self) -> int:
        """Number of gating covariates, g; zero without a gate."""
        return 0 if self.gate is None else int(self.gate.shape[0])

    @property
    def scales(self) -> FloatArray:
        """Lengths s_j of the coefficients, shape (n_components,)."""
        return np.asarray(np.linalg.norm(self.coefficients, axis=0))

    @property
    def directions(self) -> FloatArray:
        """Unit directions u_j, shape (n_features, n_components); zero where the scale is zero."""
        scales = self.scales
        return self.coefficients / np.where(scales > 0, scales, 1.0)

    def reorder(self, order: NDArray[np.intp]) -> "MixtureParameters":
        """Take the components in another order.

        Parameters
        ----------
        order : numpy.ndarray of int, shape (n_components,)
            Which component comes first, second, and so on.

        Returns
        -------
        MixtureParameters
            The same mixture with its components in that order.
        """
        gate = None if self.gate is None else self.gate[:, order]
        return MixtureParameters(
            self.coefficients[:, order],
            self.biases[order],
            self.weights[order],
            None if self.dispersion is None else self.dispersion[order],
            None if gate is None else gate - gate[:, -1:],
        )

    def lift(self, basis: FloatArray) -> "MixtureParameters":
        """Map coefficients of projected rows ``Z @ basis`` to coefficients of the rows Z.

        Parameters
        ----------
        basis : numpy.ndarray, shape (n_features, n_subspace)
            Basis of the subspace in which these coefficients are coordinates.

        Returns
        -------
        MixtureParameters
            The same mixture with coefficients ``basis @ coefficients``.
        """
        return replace(self, coefficients=basis @ self.coefficients)


def component_size(parameters: MixtureParameters) -> int:
    """Number of entries q that one component owns in a parameter vector.

    Parameters
    ----------
    parameters : MixtureParameters
        Any parameters of the model.

    Returns
    -------
    int
        p + 1, and one more with a dispersion.
    """
    return parameters.n_features + 1 + (parameters.dispersion is not None)


def parameter_count(parameters: MixtureParameters) -> int:
    """Number of free parameters.

    Parameters
    ----------
    parameters : MixtureParameters
        Any parameters of the model.

    Returns
    -------
    int
        r q + (r - 1)(1 + g).
    """
    r = parameters.n_components
    return r * component_size(parameters) + (r - 1) * (1 + parameters.n_gate)


def pack(parameters: MixtureParameters) -> FloatArray:
    """Write parameters as a vector without constraints.

    Parameters
    ----------
    parameters : MixtureParameters
        The parameters.

    Returns
    -------
    numpy.ndarray, shape (n_parameters,)
        The vector, in the order given at the head of the module.
    """
    blocks = [parameters.coefficients, parameters.biases[None]]
    if parameters.dispersion is not None:
        blocks.append(np.log(parameters.dispersion)[None])
    logits = np.log(parameters.weights)[None]
    if parameters.gate is not None:
        logits = np.concatenate([logits, parameters.gate])
    about_last = logits[:, :-1] - logits[:, -1:]
    return np.concatenate([np.concatenate(blocks).T.ravel(), about_last.T.ravel()])


def unpack(vector: FloatArray, like: MixtureParameters) -> MixtureParameters:
    """Read parameters from a vector; the inverse of `pack`.

    Parameters
    ----------
    vector : numpy.ndarray, shape (n_parameters,)
        The vector.
    like : MixtureParameters
        Parameters of the same sizes, with or without a dispersion.

    Returns
    -------
    MixtureParameters
        The parameters.
    """
    p, r, q = like.n_features, like.n_components, component_size(like)
    blocks = vector[: r * q].reshape(r, q)
    logits = np.zeros((1 + like.n_gate, r))
    logits[:, :-1] = vector[r * q :].reshape(r - 1, 1 + like.n_gate).T
    odds = np.exp(logits[0] - logits[0].max())
    return MixtureParameters(
        np.ascontiguousarray(blocks[:, :p].T),
        blocks[:, p].copy(),
        odds / odds.sum(),
        None if like.dispersion is None else np.exp(blocks[:, p + 1]),
        None if like.gate is None else logits[1:],
    )


def move(parameters: MixtureParameters, step: FloatArray) -> MixtureParameters:
    """Take a step in the coordinates of `pack`.

    Parameters
    ----------
    parameters : MixtureParameters
        Where the step starts.
    step : numpy.ndarray, shape (n_parameters,)
        The step; changes of a log dispersion beyond 1.5 are cut to 1.5.

    Returns
    -------
    MixtureParameters
        Where it ends; bounds are the business of `moment_init.likelihood.bounds`.
    """
    p, r, q = parameters.n_features, parameters.n_components, component_size(parameters)
    limited = np.array(step, dtype=np.float64)
    if parameters.dispersion is not None:
        limit = LARGEST_LOG_DISPERSION_STEP
        by_component = limited[: r * q].reshape(r, q)
        by_component[:, p + 1] = np.clip(by_component[:, p + 1], -limit, limit)
    return unpack(pack(parameters) + limited, parameters)
