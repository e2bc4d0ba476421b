"""Initial values for a model that the user wrote in PyMC, NumPyro or Stan.

`initial_values` reads the free variables of the model, finds the parameter of the estimate that
each variable stands for, brings its axes and components into the model's order, and checks that
the values lie inside the support of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, overload

import numpy as np

from moment_init.checks import FloatArray, RandomSeed, as_float_array, make_generator
from moment_init.em.result import EMFit
from moment_init.em.start_values import StartValues, draw_start_values, start_values_of
from moment_init.moments.result import MomentEstimate
from moment_init.posterior.model_variables import (
    ModelVariable,
    ParameterCheck,
    SiteCheck,
    StartCheck,
    free_variables,
    pick_at_random,
    place_variable,
    read_parameters,
    read_sites,
)
from moment_init.results import labels_of

if TYPE_CHECKING:
    import pymc

Backend = Literal["pymc", "numpyro", "stan"]
Sources = Mapping[str, str | Callable[[Any], Any] | None]


class SupportCheck(Protocol):
    """Check of whether values lie inside the support of a model's variables."""

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Return what is wrong with the values, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class StartTarget:
    """The model that the values are for."""

    backend: Backend
    model: Any  # None if values are to be returned without a model

    def variables(self, start: StartValues, mapping: Sources) -> dict[str, ModelVariable]:
        """Read the free variables of the model."""
        if self.model is None:
            return {}
        if self.backend == "pymc":
            return free_variables(self.model)
        if self.backend == "numpyro":
            return read_sites(self.model)[0]
        return read_parameters(self.model, start, mapping)[0]

    def why_not_free(self, name: str) -> str:
        """Say why a name is not the name of a free variable."""
        if self.backend == "pymc":
            others = _other_variables(self.model)
        elif self.backend == "numpyro":
            others = read_sites(self.model)[1]
        else:
            others = read_parameters(self.model, None, {})[1]
        return others.get(name, "is not in the model")

    def check(self, used: Mapping[str, ModelVariable]) -> SupportCheck | None:
        """Make the support check of the values."""
        if self.model is None:
            return None
        if self.backend == "pymc":
            return StartCheck(self.model, used)
        if self.backend == "numpyro":
            return SiteCheck(self.model)
        return ParameterCheck(self.model)

    def deliver(self, values: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Convert values to the types that the backend expects."""
        if self.backend == "stan":
            return {name: np.asarray(value).tolist() for name, value in values.items()}
        return dict(values)


def validate_target(model: Any, backend: Any) -> StartTarget:
    """Check the model and its backend."""
    backends = get_args(Backend)
    if backend not in backends:
        raise ValueError(
            f"`backend` must be one of {', '.join(map(repr, backends))}; got {backend!r}."
        )
    if model is None:
        return StartTarget(backend, None)
    got = type(model).__name__
    if backend == "pymc" and not hasattr(model, "free_RVs"):
        raise TypeError(
            f"`model` must be a pymc.Model or None; got {got}. Pass backend='numpyro' or 'stan' "
            "for models of these."
        )
    if backend == "numpyro" and not callable(model):
        raise TypeError(
            f"`model` must be a NumPyro model as a function without arguments; got {got}. Bind the "
            "data: functools.partial(model, X, y)."
        )
    is_program = isinstance(model, str) or hasattr(model, "code") or hasattr(model, "read_text")
    if backend == "stan" and not is_program:
        raise TypeError(
            f"`model` must be a Stan program: its text, its path or a CmdStanModel; got {got}."
        )
    return StartTarget(backend, model)


def _other_variables(model: "pymc.Model") -> dict[str, str]:
    """Return the variables of a PyMC model that have no initial value, with the reason."""
    kinds = {
        "is data": model.data_vars,
        "is deterministic, computed from others": model.deterministics,
        "is observed": model.observed_RVs,
    }
    return {item.name: reason for reason, group in kinds.items() for item in group}


Reader = Callable[[StartValues], FloatArray]
Source = str | Callable[[Any], Any] | None

_POOL = 400
"""Number of draws among which each chain picks its initial values. Two of four chains pick the same
draw in one of 67 runs, and separate with their first momentum; checking a draw takes 1 ms."""

_TRIES = 10
"""At least one in ten draws must lie inside the model's support; if fewer do, the estimate
contradicts the model's bounds."""


@overload
def initial_values(
    estimate: MomentEstimate | EMFit,
    model: Any = None,
    *,
    mapping: Mapping[str, Source] | None = None,
    backend: Backend = "pymc",
    spread: float = 0.0,
    chains: None = None,
    random_seed: RandomSeed = None,
) -> dict[str, Any]: ...


@overload
def initial_values(
    estimate: MomentEstimate | EMFit,
    model: Any = None,
    *,
    mapping: Mapping[str, Source] | None = None,
    backend: Backend = "pymc",
    spread: float = 0.0,
    chains: int,
    random_seed: RandomSeed = None,
) -> list[dict[str, Any]]: ...


def initial_values(
    estimate: MomentEstimate | EMFit,
    model: Any = None,
    *,
    mapping: Mapping[str, Source] | None = None,
    backend: Backend = "pymc",
    spread: float = 0.0,
    chains: int | None = None,
    random_seed: RandomSeed = None,
) -> dict[str, Any] | list[dict[str, Any]]:
    r"""Return initial values for your own model from an estimate.

    Parameters
    ----------
    estimate : MomentEstimate or EMFit
        The result of `estimate` or `fit_em`.
    model : pymc.Model, callable, str, path or CmdStanModel, optional
        The model: a PyMC model; a NumPyro model as a function without arguments, such as
        ``functools.partial(model, X, y)``; or a Stan program as text, path or CmdStanModel.
        Without a model the values are returned unchanged, under the names of `mapping` or, by
        default, under the names of the parameters.
    mapping : mapping of str to str, callable or None, optional
        For each variable of the model, the parameter that it stands for: ``"coefficient"``,
        ``"direction"`` (feature, component), ``"scale"``, ``"bias"``, ``"weight"``,
        ``"dispersion"`` (component), ``"gate"`` (component, gate_feature), ``"gate_bias"``
        (component); or a callable that computes the value from an object with the attributes
        `coefficients`, `biases`, ... of an estimate; or None to leave the variable to the model.
        Variables that have the name of a parameter need no entry. With several responses or classes
        the first four and the dispersion have the dim ``response`` before the others.
    backend : {"pymc", "numpyro", "stan"}, default "pymc"
        Library of the model.
    spread : float, default 0.0
        Spread of the chains in standard errors of the estimate: with 0 all chains start at the
        estimate, with 1 at draws from its normal approximation.
    chains : int, optional
        Return a list with one dict per chain. Not for nutpie, which takes a single dict.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the draws.

    Returns
    -------
    dict of str to numpy.ndarray or TensorVariable, or list of dict of str to numpy.ndarray
        Values on the constrained scale, for those variables that have one. For
        ``pm.sample(initvals=...)``; with `spread` they are random variables, from which each chain
        draws its own initial values, jointly for all variables. For NumPyro's
        ``init_to_value(values=...)``: arrays. For cmdstanpy's ``inits=``: numbers and nested lists,
        which `json` can write.

    Raises
    ------
    TypeError
        If `estimate`, `model`, `mapping` or `chains` has the wrong type.
    ValueError
        If no variable of the model is mapped; for a variable that is unknown, observed,
        deterministic or discrete; if a parameter is not part of the estimate, does not fit into its
        variable or fits in several ways; if a value lies outside the support of its variable; if
        `spread` is negative, or the estimate has no standard errors; if the axes of a Stan program
        are ambiguous.

    Notes
    -----
    **Switch off the jitter.** By default ``pm.sample`` adds uniform noise between -1 and 1 to the
    initial values on the unconstrained scale, which can undo them. With nutpie, PyMC's default if
    installed, jitter only the variables without a value::

        rest = {variable for variable in model.free_RVs if variable.name not in start}
        pm.sample(initvals=start, compile_kwargs={"jitter_rvs": rest})

    PyMC's own sampler, which a list of dicts selects, does not have `jitter_rvs`::

        pm.sample(initvals=start, init="adapt_diag")

    nutpie rejects initial values at which an entry of the gradient is exactly zero ("All
    initialization points failed"). This does not happen at an estimate, but it can happen to a
    variable that starts at the mode of its prior and does not affect anything else.

    Values are in the user's units: a model of standardised columns needs an estimate from the same
    columns. Two-dimensional parameters are transposed if the dims of the variable, its labels
    (column names) or its shape require it. A variable with an ordered transform sets the order of
    the components, for all variables and in every draw. If two components are within a few standard
    errors of each other in that variable, it cannot tell them apart: chains then start in different
    orders, which R-hat will show. Order by another variable, or by none.

    The draws of an `EMFit` vary jointly. A `MomentEstimate` only knows the error of its directions
    in degrees, so `spread` rotates them, equally in all columns; this suits columns of similar
    spread with means near zero. For others use ``fit_em(..., init=estimate)``. Draws outside the
    model's support are left out.

    Transforms and priors are evaluated at the initial values, the likelihood is not. For a Stan
    program the declared constraints are checked if their bounds are numbers. A NumPyro model is run
    once; its plates name the axes.

    Examples
    --------
    A mixture of Poisson regressions, written by hand:

    >>> import pymc as pm
    >>> from moment_init import fit_em, simulate_mixture
    >>> from moment_init.models import component_distribution
    >>> data = simulate_mixture(2000, 2, 3, family="poisson", biases=[1.0, -1.0, 2.5],
    ...                         random_seed=1)
    >>> fit = fit_em(data.X, data.y, 3, family="poisson", random_seed=1)
    >>> with pm.Model() as model:
    ...     weight = pm.Dirichlet("weight", [1.0, 1.0, 1.0])
    ...     alpha = pm.Normal("alpha", 0, 2, shape=3, transform=pm.distributions.transforms.ordered,
    ...                       initval=[-1.0, 0.0, 1.0])
    ...     slopes = pm.Normal("slopes", 0, 2, shape=(3, 2))
    ...     eta = alpha + data.X @ slopes.T
    ...     components = [component_distribution("poisson", eta[:, j]) for j in range(3)]
    ...     y = pm.Mixture("y", w=weight, comp_dists=components, observed=data.y)
    >>> mapping = {"alpha": "bias", "slopes": "coefficient"}
    >>> start = initial_values(fit, model, mapping=mapping)
    >>> {name: value.shape for name, value in start.items()}
    {'weight': (3,), 'alpha': (3,), 'slopes': (3, 2)}
    >>> bool(start["alpha"][0] < start["alpha"][1] < start["alpha"][2])
    True

    To spread the chains by the standard errors, for
    ``pm.sample(initvals=spread, compile_kwargs={"jitter_rvs": set()})``:

    >>> spread = initial_values(fit, model, mapping=mapping, spread=1.0)
    """
    target = validate_target(model, backend)
    _check_arguments(estimate, target, mapping, spread, chains)
    start = start_values_of(estimate)
    _check_sources(start, mapping or {})
    variables = target.variables(start, mapping or {})
    sources = _sources(start, target, variables, mapping or {})
    readers = {
        name: _reader(name, source, start, variables.get(name), labels_of(estimate))
        for name, source in sources.items()
    }
    used = {name: variable for name, variable in variables.items() if name in readers}
    check = target.check(used)
    values = _read(start, readers, used)
    complaint = None if check is None else check.complaint(values)
    if complaint is not None:
        raise ValueError(
            f"`estimate`: {complaint}. Map it with a callable that moves it inside, change the "
            "prior, or map the variable to None to leave it to the model."
        )
    if spread == 0:
        same = [target.deliver(values) for _ in range(chains or 1)]
        return same[0] if chains is None else same
    draws = draw_start_values(
        estimate,
        _POOL if chains is None else _TRIES * chains,
        make_generator(random_seed),
        spread=float(spread),
    )
    inside = _inside([_read(draw, readers, used) for draw in draws], check, spread)
    if chains is None:
        return pick_at_random(inside, used)
    return [target.deliver(draw) for draw in inside[:chains]]


def _check_arguments(
    estimate: Any, target: StartTarget, mapping: Any, spread: Any, chains: Any
) -> None:
    if not isinstance(estimate, MomentEstimate | EMFit):
        raise TypeError(
            f"`estimate` must be a result of `estimate` or `fit_em`; got {type(estimate).__name__}."
        )
    if mapping is not None and not isinstance(mapping, Mapping):
        raise TypeError(
            "`mapping` must be a dict from the model's variables to parameters; got "
            f"{type(mapping).__name__}."
        )
    is_number = isinstance(spread, int | float | np.number) and not isinstance(spread, bool)
    if not is_number or not 0.0 <= float(spread) < np.inf:
        raise ValueError(f"`spread` must be a finite number >= 0; got {spread!r}.")
    if chains is not None and (
        isinstance(chains, bool) or not isinstance(chains, int | np.integer)
    ):
        raise TypeError(f"`chains` must be an integer or None; got {chains!r}.")
    if chains is not None and chains < 1:
        raise ValueError(f"`chains` must be at least 1; got {chains}.")
    if (target.model is None or target.backend != "pymc") and chains is None and spread > 0:
        raise ValueError(
            f"`chains` must be given with spread={spread} and no PyMC model: only a PyMC model can "
            "draw initial values for each chain. Pass e.g. chains=4 for a list of four dicts."
        )


def _check_sources(start: StartValues, mapping: Mapping[str, Source]) -> None:
    known = start.variables()
    for name, source in mapping.items():
        if source is not None and not callable(source) and source not in known:
            raise ValueError(
                f"`mapping`: {name!r} must be a parameter of the estimate, a callable or None; got "
                f"{source!r}. The estimate has {_listed(known)}."
            )


def _sources(
    start: StartValues,
    target: StartTarget,
    variables: Mapping[str, ModelVariable],
    mapping: Mapping[str, Source],
) -> dict[str, str | Callable[[Any], Any]]:
    """Return the source of each variable that is mapped or has a parameter's name."""
    known = start.variables()
    unknown = [name for name in mapping if target.model is not None and name not in variables]
    if unknown:
        raise ValueError(
            f"`mapping` must name free variables of the model; {unknown[0]!r} "
            f"{target.why_not_free(unknown[0])}. The free variables are {_listed(variables)}."
        )
    names = {name: name for name in (known if target.model is None and not mapping else variables)}
    merged: dict[str, Any] = {name: name for name in names if name in known} | dict(mapping)
    chosen = {name: merged[name] for name in (variables or merged) if merged.get(name) is not None}
    if not chosen:
        raise ValueError(
            "`mapping` must be given if no variable of the model has the name of a "
            f"parameter. The free variables are {_listed(variables)}; the estimate has "
            f"{_listed(known)}. Pass e.g. mapping={{{next(iter(variables), 'beta')!r}: 'bias'}}."
        )
    return chosen


def _reader(
    name: str,
    source: str | Callable[[Any], Any],
    start: StartValues,
    variable: ModelVariable | None,
    labels: Mapping[str, tuple[str, ...]],
) -> Reader:
    """Make the function that reads the value of a variable from the parameters."""
    if variable is not None and variable.dtype.kind != "f":
        raise ValueError(
            f"`mapping` must name continuous variables; {name!r} is of type {variable.dtype}. "
            "Leave it out, or map it to None."
        )
    if variable is not None and variable.is_labelled:
        raise ValueError(
            f"`model`: {name!r} comes from pymc.dims, and PyMC accepts no initial values for such "
            "variables. Use a distribution of pymc itself, or map the variable to None."
        )
    if callable(source):
        return lambda values: _call(name, source, values, variable)
    if variable is None:
        return lambda values: values.variables()[source]
    place = place_variable(source, start.variables()[source], variable, labels)
    return lambda values: place(values.variables()[source])


def _call(
    name: str,
    source: Callable[[Any], Any],
    values: StartValues,
    variable: ModelVariable | None,
) -> FloatArray:
    result = np.array(as_float_array(source(values), "mapping"))
    if variable is None and not np.all(np.isfinite(result)):  # with a model, its support decides
        raise ValueError(
            f"`mapping`: the callable of {name!r} must return finite numbers; got {result}."
        )
    if variable is not None and result.shape != variable.shape:
        raise ValueError(
            f"`mapping`: the callable of {name!r} must return an array of the variable's shape, "
            f"{variable.shape}; got {result.shape}."
        )
    return result


def _read(
    values: StartValues, readers: Mapping[str, Reader], variables: Mapping[str, ModelVariable]
) -> dict[str, FloatArray]:
    """Read all variables, with the components in the order that an ordered variable requires."""
    for name, variable in variables.items():
        if variable.order != 0 and variable.shape[-1] == values.n_components:
            first = readers[name](values).reshape(-1, values.n_components)[0]
            values = values.reorder(np.argsort(variable.order * first, kind="stable"))
            break
    return {name: reader(values) for name, reader in readers.items()}


def _inside(
    draws: list[dict[str, FloatArray]], check: SupportCheck | None, spread: float
) -> list[dict[str, FloatArray]]:
    """Select the draws inside the model's support."""
    inside = [draw for draw in draws if check is None or check.complaint(draw) is None]
    if len(inside) * _TRIES < len(draws):
        raise ValueError(
            f"`spread` must leave one in {_TRIES} draws inside the model's support; with "
            f"spread={spread}, {len(inside)} of {len(draws)} are inside. Use a smaller `spread` or "
            "wider priors."
        )
    return inside


def _listed(names: Any) -> str:
    return ", ".join(repr(str(name)) for name in names) or "none"
