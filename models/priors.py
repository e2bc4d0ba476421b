r"""Priors of the Bayesian mixture: the defaults, those that the user states, and their density.

Priors are stated for standardised columns and responses, so that the same defaults suit all data,
in any units. The guide, `docs/guide/sample.md`, has a reason for each.

| parameter | logit, softmax | probit | log | identity |
| --- | --- | --- | --- | --- |
| scale ~ HalfNormal | 5 | 3 | 1 | 1.5 |
| coefficient ~ Normal(0, .), d columns | 5/sqrt(d) | 3/sqrt(d) | 1/sqrt(d) | 1.5/sqrt(d) |
| bias ~ Normal(0, .) | 2.5 | 1.5 | 1.5 | 1.5 |

A standard deviation has the prior LogNormal(log 0.5, 1), alpha and shape have LogNormal(log 3, 1).
Weights are uniform on the simplex. Logits of a gate and their slopes, per standard deviation of a
covariate, sum to zero over the components and have standard deviation 2 before this constraint.

A scale is the length of the slopes of whitened columns, that is, the standard deviation of the
linear predictor. A free coefficient belongs to a column that is only centred and scaled, so that it
can be named; its default prior is that of `fit_em(priors="default")`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.transforms import _default_transform
from pymc.logprob.basic import conditional_logp
from pymc.logprob.transforms import Transform
from pytensor.compile.maker import function
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

from moment_init.checks import FloatArray
from moment_init.em.priors import (
    GATE_DEVIATION,
    LINK_PRIORS,
    MEDIAN_DEVIATION,
    MEDIAN_SHAPE,
    SHAPE_DEVIATION,
    by_column,
    coefficient_units,
    default_priors,
)
from moment_init.models.ops import CompiledSimplex

if TYPE_CHECKING:
    from moment_init.models.specification import Specification

PRIOR_NAMES = (
    "scale",
    "bias",
    "weight",
    "dispersion",
    "tilt",
    "coefficient",
    "gate",
    "gate_bias",
)
"""Names that `priors` may contain."""

Prior = Any
"""An unregistered distribution, a callable of (name, dims), or an object with `create_variable`;
also `UserUnits` and, for coefficients, a mapping from columns to these."""


@dataclass(frozen=True, slots=True, eq=False)
class UserUnits:
    """A prior that is stated in the user's units, made by `user_units`."""

    prior: Any  # an unregistered distribution


def user_units(prior: Any) -> UserUnits:
    """Mark a prior as one in the units of your columns and responses.

    Parameters
    ----------
    prior : distribution of PyMC
        An unregistered distribution of single numbers, such as ``pm.Normal.dist(0, 0.02)``.

    Returns
    -------
    UserUnits
        A prior for `coefficient`, for one column of it, for `bias`, or for `dispersion`. A
        coefficient is then that of one unit of the column. A bias is the linear predictor of a row
        whose columns all have their means, without an offset, and not that of a row of zeros. A
        dispersion that is a standard deviation is in units of the response.

    Raises
    ------
    TypeError
        For anything else than an unregistered distribution of single numbers.

    Examples
    --------
    >>> import pymc as pm
    >>> from moment_init.models import user_units
    >>> priors = {"coefficient": {"age": user_units(pm.Normal.dist(0, 0.02))}}
    """
    return UserUnits(_require_distribution(prior, "user_units"))


def _require_distribution(prior: Any, where: str) -> Any:
    """Raise unless something is an unregistered distribution of single numbers."""
    op = getattr(getattr(prior, "owner", None), "op", None)
    if getattr(op, "ndim_supp", None) != 0:
        raise TypeError(
            f"`{where}` needs an unregistered distribution of single numbers, such as "
            f"pm.Normal.dist(0, 0.5); got {type(prior).__name__}. Use a function of (name, dims) "
            "for any other prior of a whole variable."
        )
    return prior


class ModelPriors:
    """The user's priors, and defaults for the rest."""

    def __init__(self, priors: Mapping[str, Prior] | None, specification: "Specification") -> None:
        self._given = _validated(priors)
        self._specification = specification
        if "coefficient" in self._given and specification.directions != "free":
            raise ValueError(
                "`priors` must not have 'coefficient' with directions="
                f"{specification.directions!r}, where the model has scales and directions instead. "
                "Pass directions='free', or a prior of 'scale'."
            )
        data = specification.data
        defaults = default_priors(data.family, specification.n_features)
        links = [LINK_PRIORS[family.link_name] for family in data.family.predictor_families]
        # scalars, or (n_predictors, 1): the dims are then (response, component)
        one_or_all = slice(None) if specification.response_dims else 0
        self._scale = np.array([[link.scale] for link in links])[one_or_all]
        self._bias = np.array([[link.bias] for link in links])[one_or_all]
        # (n_features, 1), or (n_predictors, n_features, 1)
        self._coefficient = defaults.coefficient[one_or_all][..., None]
        self._used: set[str] = set()

    def scale(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the scales."""
        return self._create(
            "scale", name, dims, lambda: pm.HalfNormal(name, self._scale, dims=dims)
        )

    def bias(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the biases."""
        units = self._specification.units  # (2, n_predictors)
        return self._create(
            "bias",
            name,
            dims,
            lambda: pm.Normal(name, 0.0, self._bias, dims=dims),
            units=(units[1], units[0]),
        )

    def weight(self, name: str, dims: tuple[str, ...], n_components: int) -> Any:
        """Create the weights."""
        ones = np.ones(n_components)
        return self._create(
            "weight",
            name,
            dims,
            lambda: pm.Dirichlet(name, ones, dims=dims, default_transform=CompiledSimplex()),
        )

    def dispersion(
        self, name: str, dims: tuple[str, ...], *, is_deviation: bool | NDArray[np.bool_]
    ) -> Any:
        """Create the dispersions."""
        # is_deviation: scalar or (n_dispersed, 1)

        def default() -> Any:
            median = np.where(is_deviation, MEDIAN_DEVIATION, MEDIAN_SHAPE)
            return pm.LogNormal(name, np.log(median), SHAPE_DEVIATION, dims=dims)

        scales = self._specification.units[1][self._specification.dispersed]
        scales = np.where(np.ravel(is_deviation), scales, 1.0)
        units = (scales, np.zeros_like(scales))
        return self._create("dispersion", name, dims, default, units=units)

    def tilt(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create the tilts of anchored directions."""
        return self._create("tilt", name, dims, lambda: pm.Normal(name, 0.0, 1.0, dims=dims))

    def coefficient(self, name: str, dims: tuple[str, ...]) -> Any:
        """Create free coefficients, with E |beta|^2 = E s^2 of the default scales."""
        scales = coefficient_units(self._specification.coordinates).ravel()
        return self._create(
            "coefficient",
            name,
            dims,
            lambda: pm.Normal(name, 0.0, self._coefficient, dims=dims),
            units=(scales, np.zeros_like(scales)),
        )

    def gate(self, prior: str, name: str, dims: tuple[str, ...]) -> Any:
        """Create the logits of a gate or their slopes; the last dim must be the component."""
        return self._create(
            prior, name, dims, lambda: pm.ZeroSumNormal(name, GATE_DEVIATION, dims=dims)
        )

    def require_all_used(self) -> None:
        """Raise if there are priors of parameters that the model does not have."""
        unused = sorted(set(self._given) - self._used)
        if unused:
            raise ValueError(
                f"`priors` must name parameters of the model; got {unused}, which it does not "
                f"have. Its parameters are {sorted(self._used)}. Leave the others out, or change "
                "`directions`, `family` or `gating`."
            )

    def _create(
        self,
        prior: str,
        name: str,
        dims: tuple[str, ...],
        default: Callable[[], Any],
        *,
        units: tuple[FloatArray, FloatArray] | None = None,
    ) -> Any:
        """Create a variable; `units` are the scale and shift of its rows in the user's units."""
        self._used.add(prior)
        user_prior = self._given.get(prior)
        if user_prior is None:
            return default()
        sizes = tuple(int(pm.modelcontext(None).dim_lengths[dim].eval()) for dim in dims)
        if isinstance(user_prior, Mapping | UserUnits):
            parts = self._parts(prior, user_prior, units)
            return _joined(parts, name, dims, sizes)
        variable = _register(user_prior, prior, name, dims)
        if not hasattr(variable, "type"):
            raise TypeError(
                f"`priors`: {prior!r} must return the variable that it creates; got "
                f"{type(variable).__name__}. Return the variable from the callable."
            )
        shape = variable.type.shape
        fits = len(shape) == len(sizes) and all(
            size in (None, wanted) for size, wanted in zip(shape, sizes, strict=True)
        )
        if not fits:
            raise ValueError(
                f"`priors`: {prior!r} must create a variable with the dims {dims}, of shape "
                f"{sizes}; got one of shape {shape}. Pass `dims` on to the distribution."
            )
        return variable

    def _parts(
        self, prior: str, given: Any, units: tuple[FloatArray, FloatArray] | None
    ) -> "list[_Part]":
        """Divide the rows of a variable among the distributions that are given for them."""
        if units is None or (isinstance(given, Mapping) and prior != "coefficient"):
            form = "in the user's units" if units is None else "a dict"
            raise ValueError(
                f"`priors`: {prior!r} must not be {form}: only 'coefficient' may be a dict, by "
                "column, and 'coefficient', 'bias' and 'dispersion' may be in the user's units. "
                "Pass a distribution."
            )
        scales, shifts = units
        rows = np.arange(len(scales))
        if isinstance(given, UserUnits):
            return [_Part(given.prior, rows, scales, shifts)]
        data, n_features = self._specification.data, self._specification.n_features
        groups: dict[int, tuple[Any, list[int]]] = {}  # rows by the prior that they share
        for place, entry in by_column(given, data.feature_names, data.response_names).items():
            row = int(np.dot(place, (n_features, 1)))
            groups.setdefault(id(entry), (entry, []))[1].append(row)
        parts = []
        for entry, chosen in groups.values():
            index = np.array(chosen)
            is_user = isinstance(entry, UserUnits)
            own = entry.prior if is_user else _require_distribution(entry, f"priors['{prior}']")
            scale = scales[index] if is_user else np.ones(len(index))
            parts.append(_Part(own, index, scale, np.zeros(len(index))))
        others = np.setdiff1d(rows, np.concatenate([part.rows for part in parts] or [rows[:0]]))
        if len(others):
            deviations = self._coefficient.reshape(-1, 1)[others]
            ones = np.ones(len(others))
            parts.append(_Part(pm.Normal.dist(0.0, deviations), others, ones, 0.0 * ones))
        return parts


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The distribution of some rows of a variable, whose last axis is the component."""

    prior: Any  # unregistered distribution of scale * variable + shift
    rows: NDArray[np.intp]
    scale: FloatArray  # (n_rows,)
    shift: FloatArray  # (n_rows,)

    def sized(self, n_components: int) -> Any:
        """The distribution of these rows and all components, independent of the others."""
        return change_dist_size(self.prior, (len(self.rows), n_components))

    def stated(self, values: Any) -> Any:
        """Map the rows of the variable to the numbers that the prior is about."""
        return self.scale[:, None] * values[self.rows] + self.shift[:, None]

    def standardised(self, stated: Any) -> Any:
        """Map these numbers to the rows of the variable; the inverse of `stated`."""
        return (stated - self.shift[:, None]) / self.scale[:, None]


class _PartsTransform(Transform):  # type: ignore[misc]
    """The default transforms of the distributions of several rows, row by row."""

    name = "by_row"

    def __init__(self, parts: list[_Part], join: Callable[..., Any], n_components: int) -> None:
        self._parts, self._join = parts, join
        self._sized = [part.sized(n_components) for part in parts]

    def _by_part(self, value: Any, kind: str) -> Any:
        pieces = []
        for part, sized in zip(self._parts, self._sized, strict=True):
            transform = _default_transform(sized.owner.op, sized)
            flat = value.reshape((-1, value.shape[-1]))
            piece = flat[part.rows]
            if transform is None:  # the coordinate is the standardised value itself
                pieces.append(pt.zeros_like(piece) if kind == "log_jac_det" else piece)
                continue
            inputs = sized.owner.inputs
            if kind == "forward":
                pieces.append(transform.forward(part.stated(flat), *inputs))
            elif kind == "backward":
                pieces.append(part.standardised(transform.backward(piece, *inputs)))
            else:
                log_scale = np.log(part.scale)[:, None]
                pieces.append(transform.log_jac_det(piece, *inputs) - log_scale)
        return self._join(pieces)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Map the variable to coordinates without bounds."""
        return self._by_part(value, "forward")

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Map coordinates without bounds to the variable."""
        return self._by_part(value, "backward")

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Logarithms of the derivatives of `backward`."""
        return self._by_part(value, "log_jac_det")


def _join_parts(pieces: list[Any], order: NDArray[np.intp], sizes: tuple[int, ...]) -> Any:
    """Put rows in order, in the shape of the variable."""
    return pt.concatenate(pieces)[order].reshape(sizes)


def _joined(parts: list[_Part], name: str, dims: tuple[str, ...], sizes: tuple[int, ...]) -> Any:
    """Create a variable whose rows have different distributions."""
    order = np.argsort(np.concatenate([part.rows for part in parts]))
    join = partial(_join_parts, order=order, sizes=sizes)
    variables = [part.sized(sizes[-1]) for part in parts]

    def dist(_: Any) -> Any:
        return join([part.standardised(part.sized(sizes[-1])) for part in parts])

    def logp(value: Any) -> Any:
        flat = value.reshape((-1, sizes[-1]))
        return join(
            [
                pm.logp(variable, part.stated(flat)) + np.log(part.scale)[:, None]
                for part, variable in zip(parts, variables, strict=True)
            ]
        )

    has_transform = any(_default_transform(each.owner.op, each) is not None for each in variables)
    transform = _PartsTransform(parts, join, sizes[-1]) if has_transform else None
    return pm.CustomDist(name, dist=dist, logp=logp, dims=dims, default_transform=transform)


def _validated(priors: Mapping[str, Prior] | None) -> dict[str, Prior]:
    if priors is None:
        return {}
    if not isinstance(priors, Mapping):
        raise TypeError(
            f"`priors` must be a mapping from names to priors; got {type(priors).__name__}. "
            "Pass e.g. {'scale': pm.HalfNormal.dist(3)}."
        )
    unknown = sorted(set(priors) - set(PRIOR_NAMES))
    if unknown:
        raise ValueError(
            f"`priors` must have names among {', '.join(PRIOR_NAMES)}; got {unknown}. Use these "
            "names; the priors are those of the standardised parameters."
        )
    return dict(priors)


def _register(user_prior: Prior, prior: str, name: str, dims: tuple[str, ...]) -> Any:
    """Create a variable of the model from the user's prior."""
    if hasattr(user_prior, "create_variable"):
        return user_prior.create_variable(name)
    if hasattr(user_prior, "owner"):
        model = pm.modelcontext(None)
        shape = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
        support = user_prior.owner.op.ndim_supp
        batch = shape[: len(shape) - support]
        return model.register_rv(change_dist_size(user_prior, batch), name=name, dims=dims)
    if callable(user_prior):
        return user_prior(name, dims)
    raise TypeError(
        f"`priors`: {prior!r} must be an unregistered distribution such as "
        f"pm.HalfNormal.dist(3), a callable of (name, dims) or an object with `create_variable`; "
        f"got {type(user_prior).__name__}."
    )


def log_prior_group(model: pm.Model, posterior: xarray.Dataset) -> dict[str, xarray.DataTree]:
    """Log prior densities of the draws, one number for each free variable; none if one is missing.

    The densities are those of the parameters as they are, without the Jacobians of the sampler's
    coordinates, as `pymc.compute_log_prior` has them. They are summed over the dims of a variable,
    so that relabelling does not change them.
    """
    free = model.free_RVs
    if not all(variable.name in posterior for variable in free):
        return {}
    points = {variable: variable.type(name=variable.name) for variable in free}
    densities = conditional_logp(dict(points))
    totals = [densities[point].sum() for point in points.values()]
    batched = {
        point: pt.tensor(f"{point.name}_draws", dtype=point.dtype, shape=(None, *point.type.shape))
        for point in points.values()
    }
    # The linker runs NumPy's loops over a few large arrays, and compiles nothing.
    outputs = vectorize_graph(totals, batched)
    evaluate = function(list(batched.values()), outputs, mode=Mode("py", "None"))
    stacked = posterior[[variable.name for variable in free]].stack(sample=("chain", "draw"))
    draws = [stacked[variable.name].transpose("sample", ...).to_numpy() for variable in free]
    values = zip(free, np.broadcast_arrays(*evaluate(*draws)), strict=True)
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    variables = {
        variable.name: (("chain", "draw"), np.reshape(value, shape)) for variable, value in values
    }
    coords = {name: posterior.coords[name] for name in ("chain", "draw")}
    return {"log_prior": xarray.DataTree(xarray.Dataset(variables, coords))}
