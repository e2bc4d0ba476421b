"""Draws of a mixture's parameters, and their evaluation on rows.

`PosteriorDraws` computes log-likelihoods and replicated responses of rows. `read_draws` reads the
draws of a DataTree for the membership of rows, gates included. `stored_rows` reads the rows that a
DataTree holds beside its draws.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData, group_codes, group_order, validate_data
from moment_init.families.base import LARGEST_DRAWN_MEAN, Family
from moment_init.families.registry import get_family
from moment_init.likelihood.gate import GaussianGate

if TYPE_CHECKING:
    import xarray

    from moment_init.em.result import EMFit

_BLOCK = 2_000_000
"""Predictors held in memory at once: 16 MB, a few of which fit into the last-level cache."""


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorDraws:
    """Draws of the parameters in the user's units, with all chains on one axis."""

    coefficients: FloatArray  # (n_draws, n_features, n_components)
    biases: FloatArray  # (n_draws, n_components)
    weights: FloatArray  # (n_draws, n_components)
    dispersion: FloatArray | None = None  # (n_draws, n_components)
    gate: FloatArray | None = None  # slopes of the gate's logits; (n_draws, n_gate, n_components)
    gate_biases: FloatArray | None = None  # (n_draws, n_components)

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return int(self.biases.shape[0])

    @classmethod
    def of(cls, posterior: "xarray.Dataset") -> "PosteriorDraws":
        """Read the draws of a posterior."""

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
        """Yield slices of draws whose predictors fit into memory."""
        step = max(1, _BLOCK // (n_obs * self.biases.shape[1]))
        for first in range(0, self.n_draws, step):
            yield slice(first, min(first + step, self.n_draws))

    def predictors(self, data: RegressionData, draws: slice) -> FloatArray:
        """Compute the linear predictors of rows."""
        # -> (n_draws, n_obs, n_components)
        inputs = np.asarray(data.X, dtype=np.float64)
        eta: FloatArray = np.matmul(inputs, self.coefficients[draws]) + self.biases[draws, None, :]
        return eta if data.offset is None else eta + data.offset[None, :, None]

    def log_weights(self, gating: FloatArray | None, draws: slice) -> FloatArray:
        """Compute the log probabilities of the components before the response is observed."""
        # gating: (n_obs, n_gate) -> (n_draws, 1 or n_obs, n_components)
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

    with c the sample weights. Without groups it is the log density of each row and ignores the
    weights, as in `EMFit.to_datatree`.
    """
    # gating: (n_obs, n_gate) -> (n_draws, n_obs) or (n_draws, n_groups)
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
    """Compute the log densities of rows in each component, (n_draws, n_obs, n_components)."""
    with np.errstate(over="ignore"):  # an extreme draw has a density of zero
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
    """Draw one response per row from every draw of the parameters."""
    # gating: (n_obs, n_gate) -> (n_draws, n_obs)
    result: NDArray[Any] = np.empty((draws.n_draws, data.n_obs), dtype=response_dtype(data))
    group = group_codes(data.groups)
    for block in draws.blocks(data.n_obs):
        eta = draws.predictors(data, block)
        chosen = _draw_components(draws.log_weights(gating, block), eta.shape, group, rng)
        predictor = np.take_along_axis(eta, chosen[:, :, None], axis=2)[:, :, 0]
        dispersion = None
        if draws.dispersion is not None:
            dispersion = np.take_along_axis(draws.dispersion[block], chosen, axis=1)
        mean = data.family.link.mean(predictor)
        if data.family.has_unlimited_counts:
            mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
        result[block] = data.family.sample(
            mean, dispersion=dispersion, n_trials=data.n_trials, rng=rng
        )
    return result


def response_dtype(data: RegressionData) -> type:
    """Return the smallest dtype of the responses: there is one per draw and row."""
    if data.family.has_binary_rows:
        return np.int8
    return np.int64 if data.family.has_unlimited_counts or data.family.has_trials else np.float64


def _draw_components(
    log_weights: FloatArray,
    shape: tuple[int, ...],
    group: NDArray[np.intp] | None,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Draw a component for every draw and row, (n_draws, n_obs), the same within a group."""
    n_draws, n_obs, _ = shape
    uniform = rng.random((n_draws, n_obs if group is None else int(group.max()) + 1))
    if group is not None:
        uniform = uniform[:, group]
    cumulative = np.cumsum(np.exp(log_weights), axis=-1)
    # The last sum is one up to rounding; leaving it out keeps the result in range.
    return np.asarray((uniform[:, :, None] > cumulative[..., :-1]).sum(axis=-1))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertDraws:
    """Draws of the parameters of the response, with all chains on one axis."""

    family: Family  # family of the response, with its link
    coefficients: FloatArray  # (n_components, n_draws, n_features)
    biases: FloatArray  # (n_components, n_draws)
    dispersion: FloatArray | None  # (n_components, n_draws)


@dataclass(frozen=True, slots=True, eq=False)
class MixtureDraws:
    """Draws of a mixture's parameters, with all chains on one axis."""

    logits: FloatArray  # log weights, or the biases of a gate; (n_components, n_draws)
    # slopes of a gate's logits in the covariates or, for a gaussian gate, in their statistics;
    # (n_components, n_draws, n_gate)
    slopes: FloatArray | None
    experts: ExpertDraws | None  # parameters of the response; None if there is no response


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """The attributes of a fit that `moment_init.em.prediction.rows_for` reads."""

    family: Family  # family of the response, with its link
    feature_names: tuple[str, ...]  # columns of the inputs
    gate_names: tuple[str, ...]  # columns of the gating covariates
    gate_centre: FloatArray | None  # subtracted from gating covariates; None without a gate
    gate_means: FloatArray | None  # None unless the gate is gaussian
    link: None = None  # the family holds the link

    def as_fit(self) -> "EMFit":
        """Return the layout with the type of a fit, for `rows_for`."""
        return cast("EMFit", self)


def posterior_of(tree: Any, draws: Any) -> "xarray.Dataset":
    """Return the posterior of a tree, with at most `draws` draws per chain."""
    import xarray

    if not isinstance(tree, xarray.DataTree):
        raise TypeError(
            f"`tree` must be an xarray.DataTree; got an object of type {type(tree).__name__}. Pass "
            "the result of `sample` or `EMFit.to_datatree`."
        )
    group = tree.children.get("posterior")
    if group is None or not {"chain", "draw", "component"} <= set(group.sizes):
        raise ValueError(
            "`tree` must have a group 'posterior' with the dims chain, draw and component; got "
            f"{'the dims ' + str(tuple(group.sizes)) if group is not None else tuple(tree)}. Pass "
            "the tree of a mixture's draws."
        )
    return _thinned(group.to_dataset(), draws)


def _thinned(posterior: "xarray.Dataset", draws: Any) -> "xarray.Dataset":
    """Keep at most `draws` evenly spaced draws of every chain."""
    if draws is None:
        return posterior
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"`draws` must be a positive integer; got {draws!r}. Ask for 1 or more.")
    size = posterior.sizes["draw"]
    kept = min(int(draws), size)
    return posterior.isel(draw=np.arange(kept) * size // max(kept, 1))


def family_of(tree: "xarray.DataTree", family: str | Family | None, link: str | None) -> Family:
    """Return the family of the response, by default from the attributes of the tree."""
    node = tree.children.get("moment_init")
    attrs = {} if node is None else node.attrs
    if family is None:
        if "family" not in attrs:
            raise ValueError(
                "`family` must be given if the tree's group 'moment_init' has no attribute of "
                "that name; got None. Pass the family of the response."
            )
        family = attrs["family"]
    if link is None and family == attrs.get("family"):
        link = attrs.get("link")
    return get_family(family, link)


def read_draws(
    posterior: "xarray.Dataset", family: Family | None
) -> tuple[MixtureDraws, RowLayout]:
    """Read the parameters of all draws."""
    slopes, centre, means = None, None, None
    if "gate_mean" in posterior:
        means = draw_values(posterior, "gate_mean", "gate_feature")
        centre = means.mean(axis=(0, 1))
        slopes = _gaussian_slopes(posterior, means, centre)
    elif "gate" in posterior:
        slopes = draw_values(posterior, "gate", "gate_feature")
        centre = np.zeros(slopes.shape[-1])
    is_softmax = slopes is not None and means is None
    logits = draw_values(posterior, "gate_bias") if is_softmax else _log_weights(posterior)
    experts = None if family is None else _read_experts(posterior, family)
    # The gaussian family accepts any response.
    response = get_family("gaussian") if family is None else family
    gate_names = () if centre is None else labels_of(posterior, "gate_feature")
    layout = RowLayout(response, labels_of(posterior, "feature"), gate_names, centre, means)
    return MixtureDraws(logits, slopes, experts), layout


def _read_experts(posterior: "xarray.Dataset", family: Family) -> ExpertDraws:
    return ExpertDraws(
        family,
        draw_values(posterior, "coefficient", "feature"),
        draw_values(posterior, "bias"),
        draw_values(posterior, "dispersion") if family.has_dispersion else None,
    )


def draw_values(posterior: "xarray.Dataset", name: str, *dims: str) -> FloatArray:
    """Read the draws of a variable, with all chains on one axis."""
    # -> (n_components, n_draws, ...)
    wanted = ("component", "chain", "draw", *dims)
    if name not in posterior or set(posterior[name].dims) != set(wanted):
        got = posterior[name].dims if name in posterior else "no such variable"
        raise ValueError(
            f"`tree` must have {name!r} with the dims {', '.join(wanted)} in its posterior; got "
            f"{got}, and the posterior has {', '.join(map(repr, posterior.data_vars))}. Rename "
            "the variable, or pass the draws of another model."
        )
    array = posterior[name].transpose(*wanted)
    shape = (array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
    result = np.asarray(array.values, dtype=np.float64).reshape(shape)
    finite = np.isfinite(result).all(axis=(0, *range(2, result.ndim)))
    if not finite.size or not finite.all():
        raise ValueError(
            f"`tree` must have finite draws; got {int((~finite).sum())} of {finite.size} with NaN "
            f"or infinite values of {name!r}. Drop these draws, or sample first."
        )
    return result


def _log_weights(posterior: "xarray.Dataset") -> FloatArray:
    with np.errstate(divide="ignore"):  # a weight of zero is a probability of zero
        return np.asarray(np.log(draw_values(posterior, "weight")))


def _gaussian_slopes(
    posterior: "xarray.Dataset", means: FloatArray, centre: FloatArray
) -> FloatArray:
    """Compute a gaussian gate's slopes in the statistics of the centred covariates."""
    covariances = draw_values(posterior, "gate_covariance", "gate_feature", "gate_feature_2")
    roots = np.linalg.cholesky(covariances).swapaxes(0, 1)
    centred = (means - centre).transpose(1, 2, 0)
    slopes = [GaussianGate(*gate).slopes for gate in zip(centred, roots, strict=True)]
    return np.stack(slopes).transpose(2, 0, 1)


def labels_of(posterior: "xarray.Dataset", dim: str, letter: str = "x") -> tuple[str, ...]:
    """Return the labels of columns; x0, x1, ... if there are none."""
    if dim in posterior.coords:
        return tuple(map(str, posterior.coords[dim].values.tolist()))
    return tuple(f"{letter}{index}" for index in range(posterior.sizes.get(dim, 0)))


_NAMES = ("offset", "n_trials", "gating", "groups", "sample_weight")
"""Data of the rows besides inputs and response."""


def stored_rows(
    tree: "xarray.DataTree",
) -> tuple[Any, Any, dict[str, Any], NDArray[Any] | None]:
    """Read the inputs, the response, other data and labels of a tree's rows."""
    nodes = [tree.children.get(name) for name in ("constant_data", "observed_data")]
    constant, observed = ({} if node is None else node.to_dataset() for node in nodes)
    if "X" not in constant or "y" not in observed:
        raise ValueError(
            "`X` and `y` must be given if the tree has no 'X' in constant_data or no 'y' in "
            f"observed_data; got neither, and a tree with the groups {', '.join(tree.children)}. "
            "Pass `X` and `y`."
        )
    data = {name: _plain(constant[name]) if name in constant else None for name in _NAMES}
    response = observed["y"]
    rows = response.dims[:1]  # a second dim is that of the responses
    labels = [response.coords[name].values for name in rows if name in response.coords]
    return _plain(constant["X"]), response.values, data, (*labels, None)[0]


def stored_log_likelihood(tree: "xarray.DataTree") -> "xarray.Dataset":
    """Compute the log-likelihoods of a tree's rows under its draws."""
    X, y, data, _ = stored_rows(tree)
    gating = data.pop("gating")
    rows = validate_data(X, y, family=family_of(tree, None, None), **data)
    covariates = None if gating is None else np.asarray(gating, dtype=np.float64)
    return log_likelihood_group(tree["posterior"].to_dataset(), rows, covariates)


def log_likelihood_group(
    posterior: "xarray.Dataset", data: RegressionData, gating: FloatArray | None
) -> "xarray.Dataset":
    """Compute the log-likelihoods of rows, or of groups of rows, as a group of a DataTree."""
    # gating: (n_obs, n_gate)
    import xarray

    values = draw_log_likelihoods(PosteriorDraws.of(posterior), data, gating)
    unit, labels = _unit(data)
    shape = (posterior.sizes["chain"], posterior.sizes["draw"], -1)
    coords = {name: posterior.coords[name] for name in ("chain", "draw")}
    attrs = {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }
    return xarray.Dataset(
        {"y": (("chain", "draw", unit), values.reshape(shape))}, {**coords, unit: labels}, attrs
    )


def _unit(data: RegressionData) -> tuple[str, NDArray[Any]]:
    """Return the dim and labels of the log-likelihood: rows, or groups by their first row."""
    if data.groups is None:
        return "obs", np.arange(data.n_obs)
    labels = np.asarray(data.groups)
    _, first = np.unique(labels, return_index=True)
    labels = labels[np.sort(first)]
    return "group", labels if labels.dtype.kind in "iuf" else labels.astype(str)


def _plain(array: "xarray.DataArray") -> Any:
    """Return the values of a stored variable, as a DataFrame if its columns have names."""
    dims = [name for name in ("feature", "gate_feature") if name in array.dims]
    if array.ndim != 2 or not dims:
        return array.values
    array = array.transpose(..., dims[0])
    return array.to_pandas() if dims[0] in array.coords else array.values
