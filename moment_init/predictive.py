"""What the draws of a posterior say of each row: log-likelihoods and replicated responses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from moment_init.data import RegressionData
from moment_init.groups import group_codes, group_order

if TYPE_CHECKING:
    import xarray

__all__ = [
    "LARGEST_DRAWN_MEAN",
    "PosteriorDraws",
    "draw_log_likelihoods",
    "draw_responses",
    "response_dtype",
]

FloatArray = NDArray[np.float64]

_BLOCK = 2_000_000
"""Predictors that are held at once: 16 MB, a few of which fit into a cache of the last level."""

LARGEST_DRAWN_MEAN = 1e12
"""Counts are drawn with means up to it. NumPy refuses Poisson rates above 9.2e18, and a negative
binomial's rate exceeds its mean by a factor of up to about 40 / alpha, 4e5 at alpha = 1e-4."""


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorDraws:
    """Draws of the parameters, in the user's units, chains one after another.

    Parameters
    ----------
    coefficients : numpy.ndarray, shape (n_draws, n_features, n_components)
        Coefficients.
    biases, weights : numpy.ndarray, shape (n_draws, n_components)
        Intercepts and probabilities of the components.
    dispersion : numpy.ndarray, shape (n_draws, n_components), or None
        Dispersion.
    gate : numpy.ndarray, shape (n_draws, n_gate, n_components), or None
        Slopes of the gate's logits.
    gate_biases : numpy.ndarray, shape (n_draws, n_components), or None
        Its logits at covariates zero.
    """

    coefficients: FloatArray
    biases: FloatArray
    weights: FloatArray
    dispersion: FloatArray | None = None
    gate: FloatArray | None = None
    gate_biases: FloatArray | None = None

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return int(self.biases.shape[0])

    @classmethod
    def of(cls, posterior: "xarray.Dataset") -> "PosteriorDraws":
        """Read them from a posterior.

        Parameters
        ----------
        posterior : xarray.Dataset
            Group `posterior` of a DataTree.

        Returns
        -------
        PosteriorDraws
            The draws.
        """

        def read(name: str, *dims: str) -> FloatArray | None:
            if name not in posterior:
                return None
            values = posterior[name].transpose("chain", "draw", *dims).to_numpy()
            return np.asarray(values.reshape(-1, *values.shape[2:]), dtype=np.float64)

        coefficients = read("coefficient", "feature", "component")
        biases, weights = read("bias", "component"), read("weight", "component")
        if coefficients is None or biases is None or weights is None:
            raise ValueError(
                "`tree` must have coefficient, bias and weight in its posterior; got "
                f"{sorted(map(str, posterior.data_vars))}."
            )
        return cls(
            coefficients,
            biases,
            weights,
            read("dispersion", "component"),
            read("gate", "gate_feature", "component"),
            read("gate_bias", "component"),
        )

    def blocks(self, n_obs: int) -> Iterator[slice]:
        """Slices of draws whose predictors fit into memory.

        Parameters
        ----------
        n_obs : int
            Number of rows.

        Yields
        ------
        slice
            Draws to treat at once.
        """
        step = max(1, _BLOCK // (n_obs * self.biases.shape[1]))
        for first in range(0, self.n_draws, step):
            yield slice(first, min(first + step, self.n_draws))

    def predictors(self, data: RegressionData, draws: slice) -> FloatArray:
        """Linear predictors of rows.

        Parameters
        ----------
        data : RegressionData
            The rows.
        draws : slice
            Which draws.

        Returns
        -------
        numpy.ndarray, shape (n_draws, n_obs, n_components)
            The predictors, offset included.
        """
        inputs = np.asarray(data.X, dtype=np.float64)
        eta: FloatArray = np.matmul(inputs, self.coefficients[draws]) + self.biases[draws, None, :]
        return eta if data.offset is None else eta + data.offset[None, :, None]

    def log_weights(self, gating: FloatArray | None, draws: slice) -> FloatArray:
        """Log probabilities of the components before the response is seen.

        Parameters
        ----------
        gating : numpy.ndarray, shape (n_obs, n_gate), or None
            Gating covariates.
        draws : slice
            Which draws.

        Returns
        -------
        numpy.ndarray, shape (n_draws, 1 or n_obs, n_components)
            The logarithms.
        """
        if self.gate is None or self.gate_biases is None or gating is None:
            with np.errstate(divide="ignore"):  # a weight may have underflowed to zero
                return np.log(self.weights[draws, None, :])
        logits = np.matmul(gating, self.gate[draws]) + self.gate_biases[draws, None, :]
        return np.asarray(log_softmax(logits, axis=-1))


def draw_log_likelihoods(
    draws: PosteriorDraws, data: RegressionData, gating: FloatArray | None = None
) -> FloatArray:
    r"""Return the log-likelihood of every row, or group, under every draw.

    .. math:: \log \sum_j w_j \prod_{i \in g} p(y_i \mid \eta_{ij})^{c_i}

    with c the sample weights. Without groups that is the log density of each row, whatever its
    weight: the same as in `EMFit.to_datatree`.

    Parameters
    ----------
    draws : PosteriorDraws
        The draws.
    data : RegressionData
        The rows.
    gating : numpy.ndarray, shape (n_obs, n_gate), optional
        Gating covariates.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_obs) or (n_draws, n_groups)
        The logarithms; groups in the order of their first rows.
    """
    order, starts = group_order(data.groups)
    n_units = data.n_obs if starts is None else len(starts)
    result = np.empty((draws.n_draws, n_units))
    for block in draws.blocks(data.n_obs):
        result[block] = _unit_log_likelihood(draws, data, gating, block, order, starts)
    return result


def _unit_log_likelihood(
    draws: PosteriorDraws,
    data: RegressionData,
    gating: FloatArray | None,
    block: slice,
    order: NDArray[np.intp] | None,
    starts: NDArray[np.intp] | None,
) -> FloatArray:
    joint = _row_log_densities(draws, data, block)
    log_weights = draws.log_weights(gating, block)
    if order is None or starts is None:
        return np.asarray(logsumexp(joint + log_weights, axis=-1))
    joint *= data.sample_weight[:, None]
    sums = np.add.reduceat(joint[:, order], starts, axis=1)
    if log_weights.shape[1] > 1:
        log_weights = log_weights[:, order[starts]]
    return np.asarray(logsumexp(sums + log_weights, axis=-1))


def _row_log_densities(draws: PosteriorDraws, data: RegressionData, block: slice) -> FloatArray:
    """Log densities of the rows in each component, (n_draws, n_obs, n_components)."""
    with np.errstate(over="ignore"):  # a wild draw has a density of zero
        return np.array(
            data.family.log_density_eta(
                data.y[:, None], draws.predictors(data, block), **_parameters(draws, data, block)
            )
        )


def _parameters(draws: PosteriorDraws, data: RegressionData, block: slice) -> dict[str, Any]:
    return {
        "dispersion": None if draws.dispersion is None else draws.dispersion[block, None, :],
        "n_trials": None if data.n_trials is None else data.n_trials[:, None],
    }


def draw_responses(
    draws: PosteriorDraws,
    data: RegressionData,
    rng: np.random.Generator,
    gating: FloatArray | None = None,
) -> NDArray[Any]:
    """Draw a response for every row from every draw of the parameters.

    Parameters
    ----------
    draws : PosteriorDraws
        The draws.
    data : RegressionData
        The rows; their responses are not read.
    rng : numpy.random.Generator
        Source of randomness.
    gating : numpy.ndarray, shape (n_obs, n_gate), optional
        Gating covariates.

    Returns
    -------
    numpy.ndarray, shape (n_draws, n_obs)
        Responses; rows of a group come from one component.
    """
    result: NDArray[Any] = np.empty((draws.n_draws, data.n_obs), dtype=response_dtype(data))
    group = group_codes(data.groups)
    for block in draws.blocks(data.n_obs):
        eta = draws.predictors(data, block)
        chosen = _draw_components(draws.log_weights(gating, block), eta.shape, group, rng)
        own = np.take_along_axis(eta, chosen[:, :, None], axis=2)[:, :, 0]
        dispersion = None
        if draws.dispersion is not None:
            dispersion = np.take_along_axis(draws.dispersion[block], chosen, axis=1)
        mean = data.family.link.mean(own)
        if data.family.has_unlimited_counts:
            mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
        result[block] = data.family.sample(
            mean, dispersion=dispersion, n_trials=data.n_trials, rng=rng
        )
    return result


def response_dtype(data: RegressionData) -> type:
    """The smallest type that holds responses, of which there may be draws times rows.

    Parameters
    ----------
    data : RegressionData
        Of a family.

    Returns
    -------
    type
        An integer type for whole numbers.
    """
    if data.family.has_binary_rows:
        return np.int8
    return np.int64 if data.family.has_unlimited_counts or data.family.has_trials else np.float64


def _draw_components(
    log_weights: FloatArray,
    shape: tuple[int, ...],
    group: NDArray[np.intp] | None,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """A component for every draw and row, (n_draws, n_obs), the same within a group."""
    n_draws, n_obs, _ = shape
    uniform = rng.random((n_draws, n_obs if group is None else int(group.max()) + 1))
    if group is not None:
        uniform = uniform[:, group]
    cumulative = np.cumsum(np.exp(log_weights), axis=-1)
    # The last sum is one up to rounding: a uniform above it must not fall outside.
    return np.asarray((uniform[:, :, None] > cumulative[..., :-1]).sum(axis=-1))
