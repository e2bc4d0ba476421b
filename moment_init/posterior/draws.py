"""Draws of a mixture's parameters, and their evaluation on rows.

`PosteriorDraws` holds the parameters of all draws. `draw_log_likelihoods` and `draw_responses`
compute log-likelihoods and replicated responses of rows. `read_draws` reads the draws of a DataTree
for rows that are given separately, and `stored_rows` the rows that the DataTree holds beside its
draws.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from moment_init.checks import FloatArray
from moment_init.data.blocks import sum_over_blocks
from moment_init.data.checking import RegressionData, group_codes, group_order, validate_data
from moment_init.families.base import LARGEST_DRAWN_MEAN, Family
from moment_init.families.registry import get_family, parse_family, response_families
from moment_init.families.several import CATEGORICAL, AnyFamily, Categorical, join_families
from moment_init.likelihood.gate import GaussianGate
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.likelihood.posterior import doubles_per_unit, unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows, column

if TYPE_CHECKING:
    import xarray

    from moment_init.em.result import EMFit

_BLOCK = 2_000_000
"""Predictors held in memory at once: 16 MB, a few of which fit into the last-level cache."""

_SMALLEST_WEIGHT = 1e-300
"""Lower limit of the weights of a gate, so that their logarithms exist."""


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorDraws:
    """Draws of the parameters in the user's units, with all chains on one axis.

    With several predictors P, an axis of that length follows the draws in coefficients, biases and
    dispersion, as in `MixtureParameters`.
    """

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
        missing = {"coefficient", "bias", "weight"} - set(posterior.data_vars)
        if missing:
            raise ValueError(
                "`tree` must have coefficient, bias and weight in its posterior; got "
                f"{sorted(map(str, posterior.data_vars))}."
            )
        has_gate = "gate" in posterior
        response = _response_dims(posterior)
        return cls(
            _values(posterior, "coefficient", *response, "feature"),
            _values(posterior, "bias", *response),
            _values(posterior, "weight"),
            _dispersions(posterior) if "dispersion" in posterior else None,
            _values(posterior, "gate", "gate_feature") if has_gate else None,
            _values(posterior, "gate_bias") if has_gate else None,
        )

    def at(self, draw: int, centre: FloatArray | None = None) -> MixtureParameters:
        """Parameters of one draw, for gating covariates from which a centre is subtracted."""
        # centre: (n_gate,)
        weights, gate = self.weights[draw], None
        if self.gate is not None and self.gate_biases is not None and centre is not None:
            gate = self.gate[draw]
            weights = np.maximum(softmax(self.gate_biases[draw] + centre @ gate), _SMALLEST_WEIGHT)
        dispersion = None if self.dispersion is None else self.dispersion[draw]
        return MixtureParameters(
            self.coefficients[draw], self.biases[draw], weights, dispersion, gate
        )

    def blocks(self, n_obs: int) -> Iterator[slice]:
        """Yield slices of draws whose predictors fit into memory."""
        step = max(1, _BLOCK // (n_obs * self.biases[0].size))
        for first in range(0, self.n_draws, step):
            yield slice(first, min(first + step, self.n_draws))

    def predictors(self, data: RegressionData, draws: slice) -> FloatArray:
        """Compute the linear predictors of rows."""
        # -> (n_draws, n_obs, n_components) or (n_draws, n_predictors, n_obs, n_components)
        inputs = np.asarray(data.X, dtype=np.float64)
        eta: FloatArray = np.matmul(inputs, self.coefficients[draws])
        eta += self.biases[draws, ..., None, :]
        return eta if data.offset is None else eta + data.offset.T[..., None]

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

    def sort(values: Any) -> Any:
        return values if values is None or order is None else values[order]

    inputs = np.asarray(data.X, dtype=np.float64)
    columns = (inputs, data.y, data.sample_weight, data.offset, data.n_trials, gating)
    Z, y, weight, offset, trials, gate = map(sort, columns)
    rows = LikelihoodRows(Z, y, weight, offset, trials, gate, starts)
    rows, centre = prepare_rows(rows, data.family)
    result = np.empty((draws.n_draws, rows.n_units))

    def evaluate(part: slice) -> tuple[FloatArray, ...]:
        with np.errstate(over="ignore", divide="ignore"):  # extreme draws, and weights of zero
            for draw in range(part.start, part.stop):
                result[draw] = unit_log_likelihood(data.family, rows, draws.at(draw, centre))
        return ()

    sum_over_blocks(evaluate, draws.n_draws, doubles_of_draw(rows, draws))
    return result


def doubles_of_draw(rows: LikelihoodRows, draws: PosteriorDraws) -> int:
    """Doubles that the evaluation of rows under one draw holds."""
    return rows.n_units * doubles_per_unit(rows, draws.at(0))


def prepare_rows(
    rows: LikelihoodRows, family: AnyFamily | None
) -> tuple[LikelihoodRows, FloatArray | None]:
    """Prepare rows for many draws; gating covariates are centred, the centre is returned.

    At their mean no weight of a gate vanishes or overflows.
    """
    # -> ..., (n_gate,)
    with np.errstate(over="ignore"):  # of products of columns, which are not used
        rows = rows if family is None else rows.prepared(family)
    if rows.gate is None:
        return rows, None
    centre = rows.gate.mean(axis=0)
    return replace(rows, gate=rows.gate - centre), centre


def draw_responses(
    draws: PosteriorDraws,
    data: RegressionData,
    rng: np.random.Generator,
    gating: FloatArray | None = None,
) -> NDArray[Any]:
    """Draw the responses of every row from every draw of the parameters."""
    # gating: (n_obs, n_gate) -> (n_draws, n_obs) or (n_draws, n_obs, n_responses)
    result: NDArray[Any] = np.empty((draws.n_draws, *data.y.shape), dtype=response_dtype(data))
    group = group_codes(data.groups)
    for block in draws.blocks(data.n_obs):
        eta = draws.predictors(data, block)
        shape = (len(eta), data.n_obs)
        chosen = _draw_components(draws.log_weights(gating, block), shape, group, rng)
        index = chosen.reshape(len(eta), *(1,) * (eta.ndim - 3), data.n_obs)
        eta = np.take_along_axis(eta, index[..., None], axis=-1)[..., 0]
        dispersion = None
        if draws.dispersion is not None:
            dispersion = np.take_along_axis(draws.dispersion[block], index, axis=-1)
        result[block] = _sample(data, eta, dispersion, rng)
    return result


def _sample(
    data: RegressionData, eta: FloatArray, dispersion: FloatArray | None, rng: np.random.Generator
) -> FloatArray:
    """Draw responses at linear predictors."""
    # eta, dispersion: (n_draws[, n_predictors], n_obs) -> (n_draws, n_obs[, n_responses])
    by_predictor = eta[None] if eta.ndim == 2 else np.moveaxis(eta, 1, 0)
    if isinstance(data.family, Categorical):
        return data.family.sample(data.family.means(by_predictor), rng=rng)
    drawn = []
    for index, (member, predictor) in enumerate(
        zip(data.family.members, by_predictor, strict=True)
    ):
        mean = member.link.mean(predictor)
        if member.has_unlimited_counts:
            mean = np.minimum(mean, LARGEST_DRAWN_MEAN)
        spread, trials = None, None
        if member.has_dispersion and dispersion is not None:
            spread = dispersion if dispersion.ndim == 2 else dispersion[:, index]
        if member.has_trials and data.n_trials is not None:
            trials = column(data.n_trials, index)
        drawn.append(member.sample(mean, dispersion=spread, n_trials=trials, rng=rng))
    return drawn[0] if data.y.ndim == 1 else np.stack(drawn, axis=-1)


def response_dtype(data: RegressionData) -> np.dtype[Any]:
    """Return the smallest dtype of the responses: there is one per draw and row."""
    return np.result_type(*map(_member_dtype, data.family.members))


def _member_dtype(family: Family) -> type:
    if family.has_binary_rows:
        return np.int8
    is_whole = family.has_unlimited_counts or family.has_trials or isinstance(family, Categorical)
    return np.int64 if is_whole else np.float64


def _draw_components(
    log_weights: FloatArray,
    shape: tuple[int, int],
    group: NDArray[np.intp] | None,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Draw a component for every draw and row, (n_draws, n_obs), the same within a group."""
    n_draws, n_obs = shape
    uniform = rng.random((n_draws, n_obs if group is None else int(group.max()) + 1))
    if group is not None:
        uniform = uniform[:, group]
    cumulative = np.cumsum(np.exp(log_weights), axis=-1)
    # The last sum is one up to rounding; leaving it out keeps the result in range.
    return np.asarray((uniform[:, :, None] > cumulative[..., :-1]).sum(axis=-1))


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """The attributes of a fit that `moment_init.em.prediction.rows_for` reads."""

    response_family: AnyFamily  # with links
    feature_names: tuple[str, ...]  # columns of the inputs
    gate_names: tuple[str, ...]  # columns of the gating covariates
    gate_centre: FloatArray | None  # subtracted from gating covariates; None without a gate
    gate_means: FloatArray | None  # None unless the gate is gaussian
    response_names: tuple[str, ...] = ()  # several responses, or all classes but the first
    classes: NDArray[Any] | None = None  # names of all classes

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


def family_of(tree: "xarray.DataTree", family: Any, link: str | None) -> AnyFamily:
    """Return the family of the responses, by default from the attributes of the tree."""
    attrs, number = _attributes(tree), tree["posterior"].sizes.get("response", 1)
    own = str(attrs.get("family", "")).split(", ")
    own = own * number if len(own) == 1 else own
    if family is None:
        if "family" not in attrs:
            raise ValueError(
                "`family` must be given if the tree's group 'moment_init' has no attribute of "
                "that name; got None. Pass the family of the response, or one for each."
            )
        family = own[0] if len(set(own)) == 1 else own
    if family == CATEGORICAL:
        return parse_family(CATEGORICAL, link, number + 1)
    names = list(family) if isinstance(family, list | tuple) else [family] * number
    if link is None and names == own:
        return parse_family(", ".join(own), attrs.get("link"), None, number)
    return join_families(response_families(family, link, number))


def class_names(tree: "xarray.DataTree") -> NDArray[Any]:
    """Return the names of the classes, the reference first."""
    attrs = _attributes(tree)
    if "classes" in attrs:
        return np.array(attrs["classes"].split("\n"))
    if "reference_class" not in attrs:
        raise ValueError(
            "`tree` must name the class without a predictor in the attribute 'reference_class' of "
            "its group 'moment_init'; got none. Set it, or pass what `sample` or "
            "`fit_em(...).to_datatree()` returned."
        )
    return np.array([attrs["reference_class"], *labels_of(tree["posterior"].dataset, "response")])


def _attributes(tree: "xarray.DataTree") -> dict[Any, Any]:
    node = tree.children.get("moment_init")
    return {} if node is None else node.attrs


def read_draws(
    posterior: "xarray.Dataset", family: AnyFamily | None, classes: NDArray[Any] | None = None
) -> tuple[PosteriorDraws, RowLayout]:
    """Read the parameters of all draws; without a family only those of the gate."""
    means, centre, gate = None, None, None
    if "gate_mean" in posterior:
        means = draw_values(posterior, "gate_mean", "gate_feature")
        centre = means.mean(axis=(0, 2))
        gate = _gaussian_slopes(posterior, means, centre)
    elif "gate" in posterior:
        gate = draw_values(posterior, "gate", "gate_feature")
        centre = np.zeros(gate.shape[1])
    is_softmax = gate is not None and means is None
    weights = draw_values(posterior, "gate_bias" if is_softmax else "weight")
    with np.errstate(divide="ignore"):  # a weight of zero is a probability of zero
        logits = weights if is_softmax else np.log(weights)
    response = _response_dims(posterior)
    coefficients, biases, dispersion = np.zeros((len(weights), 0, weights.shape[1])), weights, None
    if family is not None:
        coefficients = draw_values(posterior, "coefficient", *response, "feature")
        biases = draw_values(posterior, "bias", *response)
        dispersion = _checked_dispersion(posterior, family)
    layout = RowLayout(
        # The gaussian family accepts any response.
        get_family("gaussian") if family is None else family,
        labels_of(posterior, "feature"),
        () if centre is None else labels_of(posterior, "gate_feature"),
        centre,
        means,
        labels_of(posterior, "response", "y"),
        classes,
    )
    return PosteriorDraws(coefficients, biases, weights, dispersion, gate, logits), layout


def _checked_dispersion(posterior: "xarray.Dataset", family: AnyFamily) -> FloatArray | None:
    """Read the dispersions, which must be finite for all responses that have one."""
    if not family.has_dispersion:
        return None
    dims, checked = _response_dims(posterior), posterior
    if "dispersed_response" in posterior.sizes:
        dims = ("dispersed_response",)
    elif dims:  # a fit has NaN for responses without a dispersion
        has_one = [member.has_dispersion for member in family.members]
        checked = posterior.isel(response=np.flatnonzero(has_one))
    draw_values(checked, "dispersion", *dims)
    return _dispersions(posterior)


def _dispersions(posterior: "xarray.Dataset") -> FloatArray:
    """Read the dispersions; NaN for responses without one."""
    # -> (n_draws, n_components) or (n_draws, n_predictors, n_components)
    if "dispersed_response" not in posterior.sizes:
        return _values(posterior, "dispersion", *_response_dims(posterior))
    values = _values(posterior, "dispersion", "dispersed_response")
    names = labels_of(posterior, "response", "y")
    places = [names.index(name) for name in labels_of(posterior, "dispersed_response", "y")]
    result = np.full((len(values), len(names), values.shape[-1]), np.nan)
    result[:, places] = values
    return result


def _response_dims(posterior: "xarray.Dataset") -> tuple[str, ...]:
    """Return the dims of several predictors."""
    return ("response",) if "response" in posterior.sizes else ()


def draw_values(posterior: "xarray.Dataset", name: str, *dims: str) -> FloatArray:
    """Read the draws of a variable, with all chains on one axis and the components last."""
    # -> (n_draws, ..., n_components)
    wanted = ("chain", "draw", *dims, "component")
    if name not in posterior or set(posterior[name].dims) != set(wanted):
        got = posterior[name].dims if name in posterior else "no such variable"
        raise ValueError(
            f"`tree` must have {name!r} with the dims {', '.join(wanted)} in its posterior; got "
            f"{got}, and the posterior has {', '.join(map(repr, posterior.data_vars))}. Rename "
            "the variable, or pass the draws of another model."
        )
    result = _values(posterior, name, *dims)
    finite = np.isfinite(result).all(axis=tuple(range(1, result.ndim)))
    if not finite.size or not finite.all():
        raise ValueError(
            f"`tree` must have finite draws; got {int((~finite).sum())} of {finite.size} with NaN "
            f"or infinite values of {name!r}. Drop these draws, or sample first."
        )
    return result


def _values(posterior: "xarray.Dataset", name: str, *dims: str) -> FloatArray:
    values = posterior[name].transpose("chain", "draw", *dims, "component").to_numpy()
    return np.ascontiguousarray(values.reshape(-1, *values.shape[2:]), dtype=np.float64)


def _gaussian_slopes(
    posterior: "xarray.Dataset", means: FloatArray, centre: FloatArray
) -> FloatArray:
    """Compute a gaussian gate's slopes in the statistics of the centred covariates."""
    # means: (n_draws, n_gate, n_components), centre: (n_gate,)
    covariances = draw_values(posterior, "gate_covariance", "gate_feature", "gate_feature_2")
    roots = np.linalg.cholesky(np.moveaxis(covariances, -1, 1))
    pairs = zip(means - centre[:, None], roots, strict=True)
    return np.stack([GaussianGate(*pair).slopes for pair in pairs])


def labels_of(posterior: "xarray.Dataset", dim: str, letter: str = "x") -> tuple[str, ...]:
    """Return the labels of a dim; x0, x1, ... if there are none, nothing without the dim."""
    if dim in posterior.sizes and dim in posterior.coords:
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
    variable = (("chain", "draw", unit), values.reshape(shape))
    return xarray.Dataset({"y": variable}, {**coords, unit: labels}, library())


def library() -> dict[str, str]:
    """Return the attributes of every group that this package makes."""
    return {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }


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
