"""Simulated mixtures of generalised linear models, with the true parameters beside the data.

`simulate_mixture` checks the parameters that are given and draws the others, draws features from a
Gaussian or from designs that depart from it as real data do, and then draws labels and responses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.checks import FloatArray, RandomSeed, as_float_array, make_generator
from moment_init.data.checking import validate_features
from moment_init.families.base import Family
from moment_init.families.registry import get_family

if TYPE_CHECKING:
    import pandas as pd

_WEIGHT_CONCENTRATION = 10.0
"""Weights ~ Dirichlet(10, ..., 10): unequal, and seldom below a third of an equal share."""

_SCALE_RANGE = (0.7, 1.3)  # times the family's typical scale
_BIAS_DEVIATION = 0.5

_UNIT_TOLERANCE = 1e-8
"""How far a sum of weights or a length may be from 1: more than rounding, less than a mistake."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedParameters:
    """Parameters of a mixture of generalised linear models."""

    directions: FloatArray  # unit vectors in columns; (n_features, n_components)
    scales: FloatArray  # lengths of the coefficient vectors; (n_components,)
    biases: FloatArray  # (n_components,)
    weights: FloatArray  # probabilities of the components; (n_components,)
    dispersion: FloatArray | None  # None if the family has none; (n_components,)


def complete_parameters(
    family: Family,
    shape: tuple[int, int],
    rng: np.random.Generator,
    *,
    directions: ArrayLike | None,
    scales: ArrayLike | None,
    biases: ArrayLike | None,
    weights: ArrayLike | None,
    dispersion: ArrayLike | None,
) -> SimulatedParameters:
    """Check the parameters that are given and draw the others.

    All parameters are drawn, needed or not, so that the draws do not depend on which were given.
    """
    n_components = shape[1]
    drawn_directions = rng.standard_normal(shape)
    drawn_directions /= np.linalg.norm(drawn_directions, axis=0)
    drawn_weights = rng.dirichlet(np.full(n_components, _WEIGHT_CONCENTRATION))
    drawn_weights /= drawn_weights.sum()  # one component: exactly 1
    drawn_scales = family.typical_scale * rng.uniform(*_SCALE_RANGE, n_components)
    drawn_biases = _BIAS_DEVIATION * rng.standard_normal(n_components)
    return SimulatedParameters(
        directions=_given_directions(directions, drawn_directions),
        scales=_given_vector("scales", scales, drawn_scales, is_positive=True),
        biases=_given_vector("biases", biases, drawn_biases),
        weights=_given_weights(weights, drawn_weights),
        dispersion=_given_dispersion(family, dispersion, n_components),
    )


def as_floats(name: str, values: ArrayLike) -> FloatArray:
    """Convert an argument to a new array of doubles."""
    return np.array(as_float_array(values, name))


def _given_vector(
    name: str, given: ArrayLike | None, drawn: FloatArray, *, is_positive: bool = False
) -> FloatArray:
    """Return one number per component: the given ones, a repeated scalar, or the drawn ones."""
    if given is None:
        return drawn
    values = as_floats(name, given)
    if values.shape not in ((), drawn.shape):
        raise ValueError(
            f"`{name}` must be one number or one for each component, shape {drawn.shape}; "
            f"got shape {values.shape}. Match it to `n_components`."
        )
    values = np.array(np.broadcast_to(values, drawn.shape))
    is_valid = np.isfinite(values) & ((values > 0) | (not is_positive))
    if not np.all(is_valid):
        rule = "finite and above 0" if is_positive else "finite"
        component = int(np.argmin(is_valid))
        raise ValueError(
            f"`{name}` must be {rule}; got {values[component]:g} for component {component}. "
            "Correct that entry."
        )
    return values


def _given_weights(given: ArrayLike | None, drawn: FloatArray) -> FloatArray:
    if given is None:
        return drawn
    values = as_floats("weights", given)
    if values.shape != drawn.shape:
        raise ValueError(
            f"`weights` must have one entry for each component, shape {drawn.shape}; "
            f"got shape {values.shape}. Match it to `n_components`."
        )
    values = _given_vector("weights", values, drawn, is_positive=True)
    total = float(values.sum())
    if not np.isclose(total, 1.0, rtol=0.0, atol=_UNIT_TOLERANCE):
        raise ValueError(f"`weights` must sum to 1; got a sum of {total:g}. Divide them by it.")
    return values / total  # NumPy's sampler allows less rounding


def _given_directions(given: ArrayLike | None, drawn: FloatArray) -> FloatArray:
    if given is None:
        return drawn
    values = as_floats("directions", given)
    if values.shape != drawn.shape:
        raise ValueError(
            f"`directions` must have the shape (n_features, n_components) = {drawn.shape}; "
            f"got {values.shape}. Components are columns."
        )
    lengths = np.linalg.norm(values, axis=0)
    is_unit = np.isclose(lengths, 1.0, rtol=0.0, atol=_UNIT_TOLERANCE)
    if not np.all(is_unit):
        component = int(np.argmin(is_unit))
        raise ValueError(
            f"`directions` must have columns of length 1; got length {lengths[component]:g} for "
            f"component {component}. Divide by the lengths and give these as `scales`."
        )
    return values / lengths


def _given_dispersion(
    family: Family, given: ArrayLike | None, n_components: int
) -> FloatArray | None:
    if not family.has_dispersion:
        if given is not None:
            raise ValueError(
                f"`dispersion` has no meaning for family {family.name!r}; got a value. "
                "Leave it out."
            )
        return None
    typical = np.full(n_components, family.typical_dispersion, dtype=np.float64)
    return _given_vector("dispersion", given, typical, is_positive=True)


type InputSampler = Callable[[np.random.Generator, int, int], FloatArray]

_STUDENT_DEGREES = 5
"""Heavy tails, but the fourth moment still exists."""

_GAMMA_SHAPE = 8.0
"""Skewed, and smooth enough at zero for a third-order score, which needs a shape above 3."""

_LOG_DEVIATION = 0.5
"""Standard deviation of the logarithm: it gives a skewness of 1.75, as sizes and incomes have."""

_CLUSTER_WEIGHTS = np.array([0.5, 0.3, 0.2])
_CLUSTER_RADIUS = 3.0
"""Distance of the cluster centres from their centre, in standard deviations within a cluster. The
sides of the triangle are then 5.2: a histogram shows the clusters, yet they overlap."""

_TRIANGLE = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])


def _gaussian(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent standard normal columns."""
    return rng.standard_normal((n_obs, n_features))


def _correlated(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a Gaussian with random mean, correlations, and variances in [1/4, 4]."""
    mean = rng.standard_normal(n_features)
    deviations = np.exp(rng.uniform(-np.log(2), np.log(2), n_features))
    # Two vectors per feature keep the correlations strong but the matrix well conditioned.
    factors = rng.standard_normal((n_features, 2 * n_features))
    factors /= np.linalg.norm(factors, axis=1, keepdims=True)
    noise = rng.standard_normal((n_obs, 2 * n_features))
    result: FloatArray = mean + (noise @ factors.T) * deviations
    return result


def _student_t(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a multivariate t with mean zero and identity covariance."""
    radii = np.sqrt((_STUDENT_DEGREES - 2) / rng.chisquare(_STUDENT_DEGREES, (n_obs, 1)))
    result: FloatArray = radii * rng.standard_normal((n_obs, n_features))
    return result


def _gamma(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent gamma columns, standardised."""
    draws = rng.standard_gamma(_GAMMA_SHAPE, (n_obs, n_features))
    result: FloatArray = (draws - _GAMMA_SHAPE) / np.sqrt(_GAMMA_SHAPE)
    return result


def _lognormal(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent log-normal columns, standardised."""
    draws = rng.lognormal(0.0, _LOG_DEVIATION, (n_obs, n_features))
    mean = np.exp(_LOG_DEVIATION**2 / 2)
    deviation = mean * np.sqrt(np.expm1(_LOG_DEVIATION**2))
    result: FloatArray = (draws - mean) / deviation
    return result


def _uniform(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw independent uniform columns with mean zero and variance one."""
    return rng.uniform(-np.sqrt(3), np.sqrt(3), (n_obs, n_features))


def _clusters(rng: np.random.Generator, n_obs: int, n_features: int) -> FloatArray:
    """Draw from a mixture of three Gaussians with mean zero and identity covariance overall.

    The centres form a triangle in a random plane; with one feature two of them coincide.
    """
    plane, _ = np.linalg.qr(rng.standard_normal((n_features, 2)))
    centres = _CLUSTER_RADIUS * _TRIANGLE[:, : plane.shape[1]] @ plane.T
    centres -= _CLUSTER_WEIGHTS @ centres
    covariance = np.eye(n_features) + (centres.T * _CLUSTER_WEIGHTS) @ centres
    labels = rng.choice(_CLUSTER_WEIGHTS.size, size=n_obs, p=_CLUSTER_WEIGHTS)
    raw = centres[labels] + rng.standard_normal((n_obs, n_features))
    result: FloatArray = np.linalg.solve(np.linalg.cholesky(covariance), raw.T).T
    return np.ascontiguousarray(result)


INPUT_DESIGNS: Mapping[str, InputSampler] = MappingProxyType(
    {
        "gaussian": _gaussian,
        "correlated": _correlated,
        "student_t": _student_t,
        "gamma": _gamma,
        "lognormal": _lognormal,
        "uniform": _uniform,
        "clusters": _clusters,
    }
)
"""Samplers of (rng, n_obs, n_features) by name. All but "correlated" have mean zero and identity
covariance, so that scales and biases mean the same in each."""


_DEFAULT_TRIALS = 10

_LARGEST_MEAN = 1e15
"""Counts above 2**53, about 9e15, are no longer exact in double precision."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MixtureData:
    """Data from a mixture of generalised linear models, and the true parameters.

    Parameters
    ----------
    X : ndarray of shape (n_obs, n_features)
        The features.
    y : ndarray of shape (n_obs,)
        The response.
    directions : ndarray of shape (n_features, n_components)
        Unit vectors u_j, one per column.
    scales : ndarray of shape (n_components,)
        Lengths s_j of the coefficient vectors.
    biases : ndarray of shape (n_components,)
        Biases b_j.
    weights : ndarray of shape (n_components,)
        Probabilities w_j of the components.
    labels : ndarray of int, shape (n_obs,)
        The component of each row.
    dispersion : ndarray of shape (n_components,) or None
        The dispersion of each component; None if the family has none.
    n_trials : ndarray of shape (n_obs,) or None
        The trials of each row; None if the family has none.
    family : str
        Name of the family.
    link : str
        Name of the link.
    """

    X: FloatArray
    y: FloatArray
    directions: FloatArray
    scales: FloatArray
    biases: FloatArray
    weights: FloatArray
    labels: NDArray[np.int64]
    dispersion: FloatArray | None
    n_trials: FloatArray | None
    family: str
    link: str

    @property
    def coefficients(self) -> FloatArray:
        """Coefficient vectors beta_j = s_j u_j in columns, (n_features, n_components)."""
        return self.directions * self.scales

    def to_frame(self) -> "pd.DataFrame":
        """Put features and response into a table.

        Returns
        -------
        pandas.DataFrame
            Columns x0, x1, ..., then y, and n_trials if the family has trials.
        """
        import pandas as pd  # only needed here

        frame = pd.DataFrame(self.X, columns=[f"x{index}" for index in range(self.X.shape[1])])
        frame["y"] = self.y
        if self.n_trials is not None:
            frame["n_trials"] = self.n_trials
        return frame

    def __repr__(self) -> str:
        """Show the sizes and the weights, not the arrays."""
        (n_obs, n_features), n_components = self.X.shape, self.weights.size
        weights = ", ".join(f"{weight:.2f}" for weight in self.weights)
        return (
            f"MixtureData(family={self.family!r}, link={self.link!r}, n_obs={n_obs}, "
            f"n_features={n_features}, n_components={n_components}, weights=[{weights}])"
        )


def simulate_mixture(
    n_obs: int,
    n_features: int,
    n_components: int,
    *,
    family: str | Family = "bernoulli",
    link: str | None = None,
    weights: ArrayLike | None = None,
    scales: ArrayLike | None = None,
    biases: ArrayLike | None = None,
    dispersion: ArrayLike | None = None,
    directions: ArrayLike | None = None,
    n_trials: ArrayLike | None = None,
    inputs: str | ArrayLike | InputSampler = "gaussian",
    random_seed: RandomSeed = None,
) -> MixtureData:
    r"""Simulate a mixture of generalised linear models.

    Each row has features :math:`x`, a component :math:`h` that is independent of them,
    :math:`P(h = j) = w_j`, and a response with mean :math:`g(s_j \langle u_j, x\rangle + b_j)`.

    Parameters
    ----------
    n_obs, n_features, n_components : int
        Sizes, each 1 or more.
    family : str or Family, default "bernoulli"
        The response family.
    link : str, optional
        A link that the family supports; the family's default if left out.
    weights : array_like of shape (n_components,), optional
        Probabilities of the components; drawn from Dirichlet(10) if left out.
    scales : float or array_like of shape (n_components,), optional
        Lengths of the coefficient vectors, positive; drawn around a value that suits the family if
        left out.
    biases : float or array_like of shape (n_components,), optional
        Biases of the components; drawn from N(0, 1/4) if left out.
    dispersion : float or array_like of shape (n_components,), optional
        Standard deviation (gaussian), alpha (negative binomial) or shape (gamma), positive; a value
        that suits the family if left out.
    directions : array_like of shape (n_features, n_components), optional
        Unit vectors in columns; drawn uniformly if left out.
    n_trials : int or array_like of shape (n_obs,), optional
        Number of trials of each row, for the binomial family only; 10 if left out.
    inputs : str, array_like or callable, default "gaussian"
        "gaussian", "student_t" (multivariate, 5 degrees of freedom), "gamma" (shape 8),
        "lognormal", "uniform" and "clusters" (three Gaussians) have mean zero and identity
        covariance; "correlated" is Gaussian with random mean and covariance. Or the features, of
        shape (n_obs, n_features), or a function of (rng, n_obs, n_features) that returns them.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        The seed. Passing one argument does not change the draws of the others.

    Returns
    -------
    MixtureData
        The data and the true parameters.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument has the wrong shape or a value outside its range.

    Examples
    --------
    >>> data = simulate_mixture(100, 4, 2, family="poisson", weights=[0.25, 0.75], random_seed=1)
    >>> data.X.shape, data.coefficients.shape
    ((100, 4), (4, 2))
    """
    sizes = {"n_obs": n_obs, "n_features": n_features, "n_components": n_components}
    for name, size in sizes.items():
        _require_positive_integer(name, size)
    resolved = get_family(family, link)
    rng_parameters, rng_inputs, rng_labels, rng_responses = make_generator(random_seed).spawn(4)
    truth = complete_parameters(
        resolved,
        (n_features, n_components),
        rng_parameters,
        directions=directions,
        scales=scales,
        biases=biases,
        weights=weights,
        dispersion=dispersion,
    )
    trials = _given_trials(resolved, n_trials, n_obs)
    X = _draw_inputs(inputs, n_obs, n_features, rng_inputs)
    labels = rng_labels.choice(n_components, size=n_obs, p=truth.weights)
    mean = resolved.link.mean(_linear_predictor(X, labels, truth))
    _require_moderate_mean(mean)
    noise = None if truth.dispersion is None else truth.dispersion[labels]
    y = resolved.sample(mean, dispersion=noise, n_trials=trials, rng=rng_responses)
    return MixtureData(
        X=X,
        y=y,
        directions=truth.directions,
        scales=truth.scales,
        biases=truth.biases,
        weights=truth.weights,
        labels=labels,
        dispersion=truth.dispersion,
        n_trials=trials,
        family=resolved.name,
        link=resolved.link.name,
    )


def _linear_predictor(
    X: FloatArray, labels: NDArray[np.int64], truth: SimulatedParameters
) -> FloatArray:
    products = X @ (truth.directions * truth.scales)
    eta: FloatArray = np.take_along_axis(products, labels[:, None], axis=1)[:, 0]
    return eta + truth.biases[labels]


def _draw_inputs(
    inputs: str | ArrayLike | InputSampler, n_obs: int, n_features: int, rng: np.random.Generator
) -> FloatArray:
    values: Any = inputs
    if isinstance(inputs, str):
        if inputs not in INPUT_DESIGNS:
            choices = ", ".join(repr(name) for name in INPUT_DESIGNS)
            raise ValueError(
                f"`inputs` must be one of {choices}, an array or a function; got {inputs!r}. "
                "Choose one of these."
            )
        values = INPUT_DESIGNS[inputs](rng, n_obs, n_features)
    elif callable(inputs):
        values = inputs(rng, n_obs, n_features)
    features, _ = validate_features(values, name="inputs", min_obs=1)
    if features.shape != (n_obs, n_features):
        raise ValueError(
            f"`inputs` must have the shape (n_obs, n_features) = {(n_obs, n_features)}; "
            f"got {features.shape}. Change the sizes or the array."
        )
    return features.astype(np.float64)


def _require_positive_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer; got {value!r}. Give a whole number.")
    if value < 1:
        raise ValueError(f"`{name}` must be 1 or more; got {value}. Increase it.")


def _given_trials(family: Family, given: ArrayLike | None, n_obs: int) -> FloatArray | None:
    if given is None and family.has_trials:
        given = _DEFAULT_TRIALS
    family.validate_response(np.ones(n_obs), given)  # a response of 1 is possible in every family
    return None if given is None else np.array(np.broadcast_to(as_floats("n_trials", given), n_obs))


def _require_moderate_mean(mean: FloatArray) -> None:
    largest = float(np.abs(mean).max())
    if not largest <= _LARGEST_MEAN:
        raise ValueError(
            f"`scales` and `biases` give a mean of {largest:g}, more than {_LARGEST_MEAN:g}, for "
            "these `inputs`. Make them smaller."
        )
