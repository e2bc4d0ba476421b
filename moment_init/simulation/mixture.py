"""Simulated mixtures of generalised linear models, with the truth kept beside the data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moment_init.arguments import RandomSeed, make_generator
from moment_init.data import validate_features
from moment_init.families import Family, get_family
from moment_init.families.links import FloatArray
from moment_init.simulation.inputs import INPUT_DESIGNS, InputSampler
from moment_init.simulation.parameters import MixtureParameters, as_floats, complete_parameters

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MixtureData", "simulate_mixture"]

_DEFAULT_TRIALS = 10

_LARGEST_MEAN = 1e15
"""Counts above 2**53, about 9e15, are no longer exact in double precision."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MixtureData:
    """Data from a mixture of generalised linear models and the parameters behind them.

    Parameters
    ----------
    X : ndarray of shape (n_obs, n_features)
        The features.
    y : ndarray of shape (n_obs,)
        The response.
    directions : ndarray of shape (n_features, n_components)
        Unit vectors u_j, one in each column.
    scales : ndarray of shape (n_components,)
        Lengths s_j of the coefficient vectors.
    biases : ndarray of shape (n_components,)
        Intercepts b_j.
    weights : ndarray of shape (n_components,)
        Probabilities w_j of the components.
    labels : ndarray of int, shape (n_obs,)
        The component of each row.
    dispersion : ndarray of shape (n_components,) or None
        The dispersion of each component, where the family has one.
    n_trials : ndarray of shape (n_obs,) or None
        The trials of each row, where the family has them.
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
            Columns x0, x1, ..., then y, and n_trials where the family has trials.
        """
        import pandas as pd  # optional at import time

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

    Each row has features :math:`x`, a component :math:`h` with :math:`P(h = j) = w_j` independent
    of them, and a response with mean :math:`g(s_j \langle u_j, x\rangle + b_j)`.

    Parameters
    ----------
    n_obs, n_features, n_components : int
        Sizes, each 1 or more.
    family : str or Family, default "bernoulli"
        The response family.
    link : str, optional
        A link that the family supports; its default if left out.
    weights : array_like of shape (n_components,), optional
        Probabilities of the components; drawn from Dirichlet(10) if left out.
    scales : float or array_like of shape (n_components,), optional
        Lengths of the coefficient vectors, positive; drawn around a value that suits the family if
        left out.
    biases : float or array_like of shape (n_components,), optional
        Intercepts; drawn from N(0, 1/4) if left out.
    dispersion : float or array_like of shape (n_components,), optional
        Gaussian: standard deviation; negative binomial: alpha; gamma: shape. Positive. A value that
        suits the family if left out.
    directions : array_like of shape (n_features, n_components), optional
        Unit vectors in columns; drawn uniformly if left out.
    n_trials : int or array_like of shape (n_obs,), optional
        Trials of each row, binomial family only; 10 if left out.
    inputs : str, array_like or callable, default "gaussian"
        "gaussian", "student_t" (multivariate, 5 degrees of freedom), "gamma" (shape 8),
        "lognormal", "uniform" or "clusters" (three Gaussians): mean zero and identity covariance;
        "correlated": Gaussian with random mean and covariance. Or the features themselves, of shape
        (n_obs, n_features), or a function of (rng, n_obs, n_features) that returns them.
    random_seed : int, sequence of int, numpy.random.Generator, optional
        The seed. An argument that is given does not change the draws of the others.

    Returns
    -------
    MixtureData
        The data and the parameters behind them.

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
    X: FloatArray, labels: NDArray[np.int64], truth: MixtureParameters
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
