"""The draws of a DataTree, read for evaluation.

`read_model` reads the parameters of all draws and what rows are checked against; `stored_rows` the
rows that the tree holds beside its draws. `log_likelihood_group` and `predictive_group` evaluate
rows that have been checked already.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, validate_run
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.formulas import FormulaDesign
from moment_init.em.prediction import RowLayout, in_users_order, unit_labels
from moment_init.families.registry import get_family, parse_family, response_families
from moment_init.families.several import CATEGORICAL, AnyFamily, Categorical, join_families
from moment_init.likelihood.draws import Draws, log_likelihoods, replicated_responses
from moment_init.likelihood.gate import GaussianGate
from moment_init.likelihood.rows import LikelihoodRows, by_group
from moment_init.results import label

if TYPE_CHECKING:
    import pandas
    import xarray


class TreeModel(NamedTuple):
    """The draws of a tree, and what is needed to evaluate rows under them."""

    draws: Draws
    layout: RowLayout
    sampling: dict[str, NDArray[Any]]  # labels of the chains and of the draws
    components: NDArray[Any]  # their labels

    def by_draw(self, values: NDArray[Any]) -> NDArray[Any]:
        """Split the axis of all draws into one of chains and one of draws."""
        return values.reshape(
            *(len(labels) for labels in self.sampling.values()), *values.shape[1:]
        )


def read_model(
    tree: "xarray.DataTree",
    *,
    draws: int | None = None,
    family: Any = None,
    link: str | None = None,
    is_gate_only: bool = False,
) -> TreeModel:
    """Read the draws of a tree, at most `draws` of each chain; or only those of the gate."""
    posterior = _posterior_of(tree, draws)
    resolved = None if is_gate_only else family_of(tree, family, link)
    classes = class_names(tree) if isinstance(resolved, Categorical) else None
    return _model_of(posterior, resolved, classes)


def data_model(posterior: "xarray.Dataset", data: RegressionData) -> TreeModel:
    """Read draws for rows that have been checked."""
    return _model_of(posterior, data.family, data.classes, may_be_infinite=True)


def evaluation_rows(data: RegressionData) -> tuple[LikelihoodRows, NDArray[np.intp] | None]:
    """Return rows that have been checked in the user's units, group by group, and their order."""
    inputs = np.asarray(data.X, dtype=np.float64)
    rows = LikelihoodRows(
        inputs, data.y, data.sample_weight, data.offset, data.n_trials, data.gating
    )
    return by_group(rows, data.groups)


def log_likelihood_group(posterior: "xarray.Dataset", data: RegressionData) -> "xarray.Dataset":
    """Compute the log-likelihoods of rows, or of groups of rows, as a group of a DataTree."""
    model = data_model(posterior, data)
    rows, order = evaluation_rows(data)
    draws, centred = model.draws.centred(rows)
    values = model.by_draw(log_likelihoods(data.family, centred, draws))
    unit, labels = unit_labels(rows, order, data.groups, data.index)
    return label("log_likelihood", {"y": values}, {**model.sampling, unit: labels}, unit=unit)


def predictive_group(
    posterior: "xarray.Dataset", data: RegressionData, rng: np.random.Generator
) -> "xarray.Dataset":
    """Draw replicated responses of rows as a group of a DataTree."""
    model = data_model(posterior, data)
    rows, order = evaluation_rows(data)
    draws, centred = model.draws.centred(rows)
    values = replicated_responses(data.family, centred, draws, rng)
    values = model.by_draw(in_users_order(values, order, axis=1))
    return label("posterior_predictive", {"y": values}, model.sampling | row_coords(data))


def labelled(
    model: TreeModel,
    values: NDArray[Any],
    name: str,
    dims: tuple[str, ...],
    labels: dict[str, Any],
) -> "xarray.DataArray":
    """Label values of all draws, or their means over the draws."""
    import xarray

    if values.ndim > len(dims):
        values, dims = model.by_draw(values), ("chain", "draw", *dims)
        labels = model.sampling | labels
    known = labels | {"component": model.components}
    coords = {dim: np.asarray(known[dim]) for dim in dims if dim in known}
    return xarray.DataArray(values, coords, dims, name=name)


def row_coords(data: RegressionData) -> dict[str, Any]:
    """Return the labels of rows and of responses."""
    labels: dict[str, Any] = {} if data.index is None else {"obs": data.index}
    return labels | ({"response": list(data.response_names)} if data.y.ndim == 2 else {})


def _posterior_of(tree: Any, draws: Any) -> "xarray.Dataset":
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
    validate_run(draws, None, 1)
    size = posterior.sizes["draw"]
    kept = min(int(draws), size)
    return posterior.isel(draw=np.arange(kept) * size // max(kept, 1))


def family_of(tree: "xarray.DataTree", family: Any, link: str | None) -> AnyFamily:
    """Return the family of the responses, by default from the attributes of the tree."""
    attrs, number = attributes_of(tree), tree["posterior"].sizes.get("response", 1)
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
    attrs = attributes_of(tree)
    if "classes" in attrs:
        return np.array(attrs["classes"].split("\n"))
    if "reference_class" not in attrs:
        raise ValueError(
            "`tree` must name the class without a predictor in the attribute 'reference_class' of "
            "its group 'moment_init'; got none. Set it, or pass what `sample` or "
            "`fit_em(...).to_datatree()` returned."
        )
    return np.array([attrs["reference_class"], *names_of(tree["posterior"].dataset, "response")])


def attributes_of(tree: Any) -> dict[Any, Any]:
    """Return the attributes of the package's group."""
    node = getattr(tree, "children", {}).get("moment_init")
    return {} if node is None else node.attrs


def design_of(tree: Any, X: "pandas.DataFrame") -> FormulaDesign | None:
    """Return the formula of a tree if rows have its variables; None if they are encoded."""
    attrs = attributes_of(tree)
    if "formula_encoding" in attrs:
        design = FormulaDesign.of_encoding(attrs["formula_encoding"])
        return None if design.has_features_of(X) else design
    if "formula" in attrs:
        names = names_of(tree["posterior"].dataset, "feature")
        if not set(names) <= set(X.columns):
            raise ValueError(
                f"`X` must have the columns {', '.join(names)}: the formula {attrs['formula']!r} "
                "uses functions of yours, which are not stored in the tree. Encode the rows with "
                "`fit.design.rows(frame)`, and pass the result."
            )
    return None


def _model_of(
    posterior: "xarray.Dataset",
    family: AnyFamily | None,
    classes: NDArray[Any] | None,
    *,
    may_be_infinite: bool = False,
) -> TreeModel:
    """Read the parameters of all draws; without a family only those of the gate.

    Draws must be finite, except those of a sampler that are evaluated as they are.
    """
    read = partial(draw_values, posterior, may_be_infinite=may_be_infinite)
    means, centre, gate = None, None, None
    if "gate_mean" in posterior:
        means = read("gate_mean", "gate_feature")
        centre = means.mean(axis=(0, 2))
        gate = _gaussian_slopes(posterior, means, centre)
    elif "gate" in posterior:
        gate = read("gate", "gate_feature")
        centre = np.zeros(gate.shape[1])
    is_softmax = gate is not None and means is None
    weights = read("gate_bias" if is_softmax else "weight")
    with np.errstate(divide="ignore"):  # a weight of zero is a probability of zero
        logits = weights if is_softmax else np.log(weights)
    response = _response_dims(posterior)
    coefficients, biases, dispersion = np.zeros((len(weights), 0, weights.shape[1])), weights, None
    if family is not None:
        coefficients = read("coefficient", *response, "feature")
        biases = read("bias", *response)
        dispersion = _dispersions(posterior, family, may_be_infinite=may_be_infinite)
    layout = RowLayout(
        # The gaussian family accepts any response.
        get_family("gaussian") if family is None else family,
        names_of(posterior, "feature"),
        () if centre is None else names_of(posterior, "gate_feature"),
        centre,
        means,
        names_of(posterior, "response", "y"),
        classes,
    )
    labels = {
        name: posterior[name].to_numpy() if name in posterior.coords else np.arange(size)
        for name, size in posterior.sizes.items()
    }
    sampling = {name: labels[name] for name in ("chain", "draw")}
    draws = Draws(coefficients, biases, logits, dispersion, gate)
    return TreeModel(draws, layout, sampling, labels["component"])


def _dispersions(
    posterior: "xarray.Dataset", family: AnyFamily, *, may_be_infinite: bool
) -> FloatArray | None:
    """Read the dispersions; NaN for responses without one."""
    # -> (n_draws, n_components) or (n_draws, n_predictors, n_components)
    if not family.has_dispersion:
        return None
    dims, names = _response_dims(posterior), names_of(posterior, "response", "y")
    if not dims:
        return draw_values(posterior, "dispersion", may_be_infinite=may_be_infinite)
    places = [a for a, member in enumerate(family.members) if member.has_dispersion]
    if "dispersed_response" in posterior.sizes:
        dims = ("dispersed_response",)
        places = [names.index(name) for name in names_of(posterior, "dispersed_response", "y")]
    else:  # a fit has NaN for responses without a dispersion
        posterior = posterior.isel(response=places)
    values = draw_values(posterior, "dispersion", *dims, may_be_infinite=may_be_infinite)
    result = np.full((len(values), len(names), values.shape[-1]), np.nan)
    result[:, places] = values
    return result


def _response_dims(posterior: "xarray.Dataset") -> tuple[str, ...]:
    """Return the dims of several predictors."""
    return ("response",) if "response" in posterior.sizes else ()


def draw_values(
    posterior: "xarray.Dataset", name: str, *dims: str, may_be_infinite: bool = False
) -> FloatArray:
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
    values = posterior[name].transpose("chain", "draw", *dims, "component").to_numpy()
    result = np.ascontiguousarray(values.reshape(-1, *values.shape[2:]), dtype=np.float64)
    finite = np.isfinite(result).all(axis=tuple(range(1, result.ndim)))
    if not (finite.size and (may_be_infinite or finite.all())):
        raise ValueError(
            f"`tree` must have finite draws; got {int((~finite).sum())} of {finite.size} with NaN "
            f"or infinite values of {name!r}. Drop these draws, or sample first."
        )
    return result


def _gaussian_slopes(
    posterior: "xarray.Dataset", means: FloatArray, centre: FloatArray
) -> FloatArray:
    """Compute a gaussian gate's slopes in the statistics of the centred covariates."""
    # means: (n_draws, n_gate, n_components), centre: (n_gate,)
    covariances = draw_values(posterior, "gate_covariance", "gate_feature", "gate_feature_2")
    roots = np.linalg.cholesky(np.moveaxis(covariances, -1, 1))
    pairs = zip(means - centre[:, None], roots, strict=True)
    return np.stack([GaussianGate(*pair).slopes for pair in pairs])


def names_of(posterior: "xarray.Dataset", dim: str, letter: str = "x") -> tuple[str, ...]:
    """Return the labels of a dim; x0, x1, ... if there are none, nothing without the dim."""
    if dim in posterior.sizes and dim in posterior.coords:
        return tuple(map(str, posterior.coords[dim].values.tolist()))
    return tuple(f"{letter}{index}" for index in range(posterior.sizes.get(dim, 0)))


_NAMES = ("offset", "n_trials", "gating", "groups", "sample_weight")
"""Data of the rows besides inputs and response."""


def stored_rows(tree: "xarray.DataTree", *, has_response: bool = True) -> dict[str, Any]:
    """Read the rows of a tree as arguments by name, with `index`, the labels of the rows."""
    nodes = [tree.children.get(name) for name in ("constant_data", "observed_data")]
    constant, observed = ({} if node is None else node.to_dataset() for node in nodes)
    if "X" not in constant or (has_response and "y" not in observed):
        needed = ("`X` and `y`", "no 'X' in constant_data or no 'y' in observed_data")
        named, lacking = needed if has_response else ("`X`", "no 'X' in constant_data")
        raise ValueError(
            f"{named} must be given if the tree has {lacking}; got neither, and a tree with the "
            f"groups {', '.join(tree.children)}. Pass {named}."
        )
    found = {name: _plain(constant[name]) if name in constant else None for name in _NAMES}
    found |= {"X": _plain(constant["X"])}
    found |= {"y": observed["y"].values} if has_response else {}
    labelled_rows = [each for each in (constant, observed) if "obs" in getattr(each, "coords", {})]
    return found | {"index": labelled_rows[0]["obs"].values if labelled_rows else None}


def stored_log_likelihood(tree: "xarray.DataTree") -> "xarray.Dataset":
    """Compute the log-likelihoods of a tree's rows under its draws."""
    found = stored_rows(tree)
    labels = found.pop("index")
    data = validate_data(**found, family=family_of(tree, None, None))
    return log_likelihood_group(tree["posterior"].to_dataset(), replace(data, index=labels))


def _plain(array: "xarray.DataArray") -> Any:
    """Return the values of a stored variable, as a DataFrame if its columns have names."""
    dims = [name for name in ("feature", "gate_feature") if name in array.dims]
    if array.ndim != 2 or not dims:
        return array.values
    array = array.transpose(..., dims[0])
    return array.to_pandas() if dims[0] in array.coords else array.values
