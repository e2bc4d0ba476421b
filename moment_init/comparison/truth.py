"""The parameters behind simulated data, and how far draws are from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from moment_init.comparison.rows import ComparedRows
from moment_init.matching import angles_in_degrees
from moment_init.real_arrays import as_float_array
from moment_init.simulation import MixtureData

if TYPE_CHECKING:
    import xarray

__all__ = ["Truth", "errors_of", "match_to_truth", "read_truth"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

_REQUIRED = ("coefficients", "biases", "weights")
_OPTIONAL = ("dispersion",)

_WEIGHT_TOLERANCE = 1e-6
"""How far the sum of true weights may be from one: weights that were rounded to six places."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """True parameters.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        Coefficients of the user's columns.
    biases, weights : numpy.ndarray, shape (n_components,)
        Intercepts and probabilities of the components.
    dispersion : numpy.ndarray, shape (n_components,), or None
        Dispersion.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None

    def to_dataset(self, order: IndexArray, feature_names: tuple[str, ...]) -> "xarray.Dataset":
        """Put the parameters under the names of the posterior.

        Parameters
        ----------
        order : numpy.ndarray of int, shape (n_components,)
            Which component comes first, second, and so on.
        feature_names : tuple of str
            Names of the columns.

        Returns
        -------
        xarray.Dataset
            Variables coefficient, direction, scale, bias, weight and, if known, dispersion.
        """
        import xarray

        coefficient = self.coefficients[:, order]
        scale = np.linalg.norm(coefficient, axis=0)
        direction = np.divide(coefficient, scale, out=np.zeros_like(coefficient), where=scale > 0)
        variables: dict[str, Any] = {
            "coefficient": (("feature", "component"), coefficient),
            "direction": (("feature", "component"), direction),
            "scale": ("component", scale),
            "bias": ("component", self.biases[order]),
            "weight": ("component", self.weights[order]),
        }
        if self.dispersion is not None:
            variables["dispersion"] = ("component", self.dispersion[order])
        coords = {"feature": list(feature_names), "component": np.arange(len(order))}
        return xarray.Dataset(variables, coords)


def read_truth(truth: Any, n_features: int, n_components: int) -> Truth | None:
    """Check the truth that was given.

    Parameters
    ----------
    truth : MixtureData, mapping of str to array-like, or None
        What `simulate_mixture` returned, or `coefficients`, `biases`, `weights` and perhaps
        `dispersion`.
    n_features, n_components : int
        Sizes that it must have.

    Returns
    -------
    Truth or None
        The parameters; None if none were given.

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        For missing or unknown names, wrong shapes, and values that are not finite or impossible.
    """
    if truth is None:
        return None
    values = _named_values(truth)
    shapes: dict[str, tuple[int, ...]] = {
        "coefficients": (n_features, n_components),
        **dict.fromkeys(("biases", "weights", "dispersion"), (n_components,)),
    }
    found = {
        name: _checked(name, values[name], shapes[name])
        for name in shapes
        if values.get(name) is not None
    }
    weights = found["weights"]
    if weights.min() < 0.0 or abs(float(weights.sum()) - 1.0) > _WEIGHT_TOLERANCE:
        raise ValueError(
            "`truth` must have weights of zero or more that sum to one; got "
            f"{weights.tolist()}. Divide them by their sum."
        )
    return Truth(found["coefficients"], found["biases"], weights, found.get("dispersion"))


def _named_values(truth: Any) -> dict[str, Any]:
    if isinstance(truth, MixtureData):
        return {name: getattr(truth, name) for name in (*_REQUIRED, *_OPTIONAL)}
    expected = "a MixtureData or a mapping with coefficients, biases, weights (and dispersion)"
    if not isinstance(truth, Mapping):
        raise TypeError(
            f"`truth` must be {expected}; got {type(truth).__name__}. Pass one of these, or None."
        )
    missing = [name for name in _REQUIRED if truth.get(name) is None]
    unknown = [str(name) for name in truth if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"`truth` must be {expected}; missing are {missing}, unknown are {unknown}. Name the "
            "arrays so."
        )
    return dict(truth)


def _checked(name: str, values: Any, shape: tuple[int, ...]) -> FloatArray:
    try:
        array = np.array(as_float_array(values, "truth"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"`truth` must have {name} of real numbers; got {values!r}.") from error
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise ValueError(
            f"`truth` must have finite {name} of shape {shape}; got shape {array.shape}. "
            "Components are on the last axis, features in the order of the columns of `X`."
        )
    return array


def match_to_truth(
    coefficients: FloatArray, biases: FloatArray, truth: Truth, rows: ComparedRows
) -> IndexArray:
    """Match true components to estimated ones.

    The distance of two components is the mean squared difference of their linear predictors over
    the rows: units play no part, and components that differ by their intercept alone are told
    apart.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_features, n_components)
        Estimated coefficients.
    biases : numpy.ndarray, shape (n_components,)
        Estimated intercepts.
    truth : Truth
        The truth.
    rows : ComparedRows
        The rows.

    Returns
    -------
    numpy.ndarray of int, shape (n_components,)
        Index such that ``truth.coefficients[:, index]`` is in the order of the estimate.
    """
    inputs = np.asarray(rows.checked.X, dtype=np.float64)
    estimated = inputs @ coefficients + biases
    true = inputs @ truth.coefficients + truth.biases
    distances = [np.square(true - own[:, None]).mean(axis=0) for own in estimated.T]
    _, order = linear_sum_assignment(np.array(distances))
    return np.asarray(order, dtype=np.intp)


def errors_of(
    tree: "xarray.DataTree", truth: Truth | None, rows: ComparedRows
) -> tuple[float, float]:
    """How far the means of draws are from the truth, components matched.

    Parameters
    ----------
    tree : xarray.DataTree
        Draws of one method and one optimum.
    truth : Truth or None
        The truth.
    rows : ComparedRows
        The rows that were fitted.

    Returns
    -------
    error : float
        Root mean square error of the coefficients; NaN without a truth.
    angle : float
        Largest angle between a component's coefficients and the true ones, in degrees.
    """
    if truth is None:
        return np.nan, np.nan
    means = tree["posterior"].to_dataset()[["coefficient", "bias"]].mean(("chain", "draw"))
    coefficients = means["coefficient"].transpose("feature", "component").values
    order = match_to_truth(coefficients, means["bias"].values, truth, rows)
    true = truth.coefficients[:, order]
    error = float(np.sqrt(np.square(coefficients - true).mean()))
    angles = [
        float(angles_in_degrees(own[:, None], other[:, None], signed=True)[0])
        for own, other in zip(coefficients.T, true.T, strict=True)
        if np.any(own) and np.any(other)  # no slopes, no direction
    ]
    return error, max(angles, default=np.nan)
