"""What all results share: records of the starts, printed tables, the status, and DataTrees.

A `StartRecord` says how one start of a fit ended. A `ComponentTable` shows a fitted mixture with
one column per component, as text and for a notebook. `SCHEMA` is the table of the variables that
the DataTrees of estimates, fits, posteriors and comparisons have in common, as the guide shows it;
`label` makes a group from arrays by this table, and `parameters_of` reads the parameters of any
result under its names.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas
    import xarray

DISTINCT_OPTIMA = 0.05
"""Optima whose log-likelihoods differ by more than this are distinct."""

SAME_OPTIMUM = 0.01
"""Log-likelihoods that differ by less than this belong to one optimum: converged runs stop within
0.001 of their maximum."""

BREAKDOWNS: tuple[type[Exception], ...] = (np.linalg.LinAlgError, ArithmeticError, ValueError)
"""Errors that end one start only: factorisations that fail, and SciPy's refusal of values that are
not finite. The start is recorded as failed, and the others continue."""


class StartKind(StrEnum):
    """Where a start comes from. The guide to `fit_em` explains each kind in a table."""

    SINGLE = "single"
    TENSOR = "tensor"
    GROWTH = "growth"
    BINS = "bins"
    CLUSTERS = "clusters"
    RANDOM = "random"
    MOVE = "move"
    PERTURBATION = "perturbation"
    SAMPLE = "sample"
    GIVEN = "given"
    ESTIMATE = "estimate"


class StartStatus(StrEnum):
    """How a start ended. The guide to `fit_em` explains each ending in a table."""

    CONVERGED = "converged"
    RECOGNISED = "recognised"
    OVERTAKEN = "overtaken"
    OUT_OF_STEPS = "out_of_steps"
    STALLED = "stalled"
    FAILED = "failed"


_AT_MAXIMA = (StartStatus.CONVERGED, StartStatus.RECOGNISED)


@dataclass(frozen=True, slots=True, eq=False)
class StartRecord:
    """The record of one start of a fit.

    Parameters
    ----------
    origin : str
        The kind of the start (`StartKind`) and its number, such as "tensor 1", "growth" or
        "random 3".
    log_likelihood : float
        Log-likelihood in the user's units at the end of the start, or at the known maximum that it
        was recognised to lead to; NaN if it failed.
    n_iter : int
        Number of iterations.
    status : StartStatus
        How it ended. "overtaken": others of its kind were higher after a few steps. "recognised":
        it was stopped because it led to a maximum that an earlier start had reached.
    bounds : tuple of str
        Bounds of the parameters that it ended on.
    message : str
        Why it failed, if it did.
    is_sampled : bool
        Whether it used a sample of the rows. Its log-likelihood is then that of the sample, and can
        be compared only with those of other starts.
    log_posterior : float or None
        Log-likelihood plus log prior, by which starts are ranked; None without priors.
    """

    origin: str
    log_likelihood: float
    n_iter: int
    status: StartStatus
    bounds: tuple[str, ...] = ()
    message: str = ""
    is_sampled: bool = False
    log_posterior: float | None = None

    def __post_init__(self) -> None:
        """Refuse an origin that the guide does not explain."""
        StartKind(self.origin.split()[0])

    @property
    def objective(self) -> float:
        """What the fit maximises: the log-posterior, or without priors the log-likelihood."""
        return self.log_likelihood if self.log_posterior is None else self.log_posterior


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun."""
    return f"{number:.0f} {noun if number == 1 else plural or noun + 's'}"


def count_best(starts: Sequence[StartRecord], objective: float) -> tuple[int, int]:
    """Count the converged starts that reached the best objective, and all converged starts."""
    if not all(start.is_sampled for start in starts):  # others began on a smaller sample
        starts = [start for start in starts if not start.is_sampled]
    ends = [start.objective for start in starts if start.status in _AT_MAXIMA]
    if any(start.is_sampled for start in starts):
        best = max(ends, default=objective)
    else:
        best = max([objective, *ends])
    return sum(value > best - SAME_OPTIMUM for value in ends), len(ends)


def tabulate_starts(starts: Sequence[StartRecord]) -> "pandas.DataFrame":
    """Make a table with one row per start."""
    import pandas

    names = [field.name for field in fields(StartRecord)]
    if all(start.log_posterior is None for start in starts):
        names.remove("log_posterior")
    records = [[getattr(start, name) for name in names] for start in starts]
    table = pandas.DataFrame(records, columns=names)
    table["status"] = [str(start.status) for start in starts]
    table["bounds"] = [", ".join(start.bounds) for start in starts]
    return table


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """The table that is printed for a fitted mixture."""

    title: str  # what was fitted, in one line
    rows: Sequence[tuple[str, list[str]]]  # a name, then one cell per component
    notes: Sequence[str]  # lines below the table
    warnings: Sequence[str]  # warnings of the fit

    def to_text(self) -> str:
        """Format as text with aligned columns."""
        heads = [f"component {j}" for j in range(len(self.rows[0][1]))]
        table = [("", heads), *self.rows]
        names = max(len(name) for name, _ in table)
        widths = [2 + max(len(cells[j]) for _, cells in table) for j in range(len(heads))]
        lines = [
            (
                f"{name:<{names}}"
                + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            ).rstrip()
            for name, cells in table
        ]
        warnings = [f"! {warning}" for warning in self.warnings]
        return "\n".join([self.title, *lines, *self.notes, *warnings])

    def to_html(self) -> str:
        """Format as HTML for a notebook."""
        head = "".join(f"<th>component {j}</th>" for j in range(len(self.rows[0][1])))
        cell = '<td style="text-align: right; font-variant-numeric: tabular-nums">'
        body = "".join(
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            + "".join(f"{cell}{escape(value)}</td>" for value in cells)
            + "</tr>"
            for name, cells in self.rows
        )
        notes = "<br>".join(map(escape, self.notes))
        warnings = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<p>{escape(self.title)}</p><table><tr><th></th>{head}</tr>{body}</table>"
            + (f"<p>{notes}</p>" if notes else "")
            + (f"<ul>{warnings}</ul>" if warnings else "")
        )


def estimate_cells(values: Iterable[float], errors: Iterable[float]) -> list[str]:
    """Format estimates with their standard errors in brackets."""
    return [_cell(value, error) for value, error in zip(values, errors, strict=True)]


def _cell(value: float, error: float) -> str:
    """Format an estimate and its error to two digits of the error; "fixed" if it is 0."""
    if np.isnan(error):
        return f"{value:.4g} (nan)"
    if error == 0.0:
        return "0" if value == 0.0 else f"{value:.4g} (fixed)"
    decimals = int(np.clip(1 - np.floor(np.log10(error)), 0, 12))  # two digits of the error
    return f"{value:.{decimals}f} ({error:.{decimals}f})"


class Status(StrEnum):
    """How far an estimate can be trusted."""

    OK = "ok"
    WEAK_SIGNAL = "weak_signal"
    NOT_IDENTIFIED = "not_identified"
    MISFIT = "misfit"
    NOT_CONVERGED = "not_converged"
    NOT_EXPLORED = "not_explored"
    INPUT_ASSUMPTION = "input_assumption"


SCHEMA = """
| posterior | coefficient | chain, draw, [response,] feature, component | float | slopes | efs |
| posterior | direction | chain, draw, [response,] feature, component | float | slopes divided by their length; those of an estimate have no response | efs |
| posterior | scale | chain, draw, [response,] component | float | length of the slopes | efs |
| posterior | bias | chain, draw, [response,] component | float | bias of the linear predictor | efs |
| posterior | weight | chain, draw, component | float | probability of the component; with a gate, at the mean of the gating covariates | efs |
| posterior | dispersion | chain, draw, [response,] component | float | standard deviation, shape or size, for families that have such a parameter | efs |
| posterior | gate | chain, draw, component, gate_feature | float | slopes of the gate's logits; they sum to zero over components | fs |
| posterior | gate_bias | chain, draw, component | float | logits where all gating covariates are zero; they sum to zero over components | fs |
| posterior | gate_mean | chain, draw, component, gate_feature | float | means of the gating covariates, for a Gaussian gate | (f) |
| posterior | gate_covariance | chain, draw, component, gate_feature, gate_feature_2 | float | their covariances, for a Gaussian gate | (f) |
| posterior | moment_coefficient | chain, draw, component | float | coefficient of the component in the third moment; of one response only | (e) |
| posterior | direction_error | chain, draw, component | float | standard error of the direction, in degrees | e |
| sample_stats | log_q | chain, draw | float | log density of the draw under the normal approximation | f |
| sample_stats | lp | chain, draw | float | log-likelihood, under a flat prior on the unconstrained scale; not for a fit with priors | f |
| log_likelihood | y | chain, draw, obs or group | float | log density of each row, or of each group | fs |
| log_prior | standardised_bias | chain, draw | float | log prior density; also of the model's other free variables | s |
| posterior_predictive | y | chain, draw, obs[, response] | float | replicated responses | s |
| observed_data | y | obs[, response] | float | the response | fs |
| constant_data | X | obs, feature | float | the inputs | fs |
| constant_data | offset | obs[, response] | float | as given | fs |
| constant_data | n_trials | obs[, response] | float | as given, for binomial responses | (fs) |
| constant_data | sample_weight | obs | float | as given | fs |
| constant_data | groups | obs | int or str | as given | fs |
| constant_data | gating | obs, gate_feature | float | as given | fs |
| moment_init | initial_coefficient | [response,] feature, component | float | the start; also `initial_bias`, ... | s |
| moment_init | anchor | [response,] feature, component | float | anchors, in standardised coordinates | s |
| moment_init | start_origin | start | str | which kind of start it was | fs |
| moment_init | start_status | start | str | how each start ended | fs |
| moment_init | start_n_iter | start | int | number of iterations of each start | fs |
| moment_init | start_log_likelihood | start | float | log-likelihood at which each start ended | fs |
| moment_init | start_log_posterior | start | float | log-posterior at which each start ended, for a fit with priors | (fs) |
| moment_init | optimum_coefficient | optimum, [response,] feature, component | float | the [optima](several_modes.md) that were found; also `optimum_bias`, ... | fs |
| moment_init | optimum_log_likelihood | optimum | float | their log-likelihoods; also `optimum_n_reached`, `optimum_bounds`, ... | fs |
| moment_init | history | iteration | float | log-likelihood at each iteration of the best run | fs |
| moment_init | spectrum | order | float | how far each direction stands out of the noise, largest first | e |
| moment_init | singular_values | order | float | singular values of the moment, for an estimate from a single one | (e) |
| moment_init | signal_to_noise | component | float | coefficient of the component in that moment over its standard error | (e) |
| moment_init | permutation | chain, draw, component | int | original place of each component | (s) |
| moment_init | switched_share | chain | float | share of draws whose labels differ from those of most draws | s |
"""  # noqa: E501
"""Group, variable, dims, dtype, meaning, and who has it: e for estimates, f for fits, s for
samples, in brackets if only some of them have it. The dim in square brackets is that of several
responses or classes."""


def _dims_by_variable() -> dict[tuple[str, str], tuple[str, ...]]:
    """Read the dims from the table."""
    lines = (line.strip("| ").split(" | ") for line in SCHEMA.strip().splitlines())
    return {
        (group, name): tuple(re.findall(r"\w+", dims.removesuffix(" or group")))
        for group, name, dims, *_ in lines
    }


_DIMS = _dims_by_variable()

KNOWN_DIMS = frozenset().union(
    *(dims for (group, _), dims in _DIMS.items() if group == "posterior")
)
"""Dims of the parameters, and of sampling."""

ATTRIBUTES = {
    "coefficient": "coefficients",
    "direction": "directions",
    "scale": "scales",
    "bias": "biases",
    "weight": "weights",
    "dispersion": "dispersion",
    "gate": "gate",
    "gate_bias": "gate_biases",
    "gate_mean": "gate_means",
    "gate_covariance": "gate_covariances",
}
"""The attribute of estimates, fits and simulated data that holds each parameter."""

TRANSPOSED = frozenset({"gate", "gate_mean"})
"""Results hold these as (gate_feature, component)."""

_LOGITS = frozenset({"gate", "gate_bias"})
"""Relative to the last component in results, of sum zero in trees: none is then constant, and
relabelling only permutes them."""

_LABELS = {
    "feature": "feature_names",
    "response": "response_names",
    "gate_feature": "gate_names",
    "gate_feature_2": "gate_names",
}
"""The attribute of a result or of its data that holds the labels of a dim."""

_PACKAGES = ("numpy", "scipy", "pymc", "arviz", "nutpie", "pytensor")


def dims_of(name: str, n_dims: int, group: str = "posterior") -> tuple[str, ...]:
    """Return the dims of a variable; numbers that the schema does not list have none.

    Those of sampling are left out with the parameters of a single draw, and that of responses with
    a single response.
    """
    if group == "moment_init" and name.startswith("initial_"):
        group, name = "posterior", name.removeprefix("initial_")
    if group == "moment_init" and name.startswith("optimum_"):
        return ("optimum", *dims_of(name.removeprefix("optimum_"), n_dims - 1))
    dims = _DIMS.get((group, name), ())
    own = tuple(dim for dim in dims if dim not in ("chain", "draw"))
    single = tuple(dim for dim in own if dim != "response")
    return own if n_dims == len(own) else single


def parameters_of(result: Any) -> dict[str, NDArray[Any]]:
    """Read the known parameters of a result by name, with dims as `dims_of`."""
    found = {}
    for name, attribute in ATTRIBUTES.items():
        values = getattr(result, attribute, None)
        if isinstance(values, np.ndarray):
            values = values - values.mean(axis=-1, keepdims=True) if name in _LOGITS else values
            found[name] = np.array(values.T if name in TRANSPOSED else values)
    return found


def labels_of(result: Any) -> dict[str, tuple[str, ...]]:
    """Read the labels of the dims of a result or of its data."""
    known = {dim: getattr(result, attribute, None) for dim, attribute in _LABELS.items()}
    return {dim: tuple(names) for dim, names in known.items() if names}


def label(
    group: str,
    values: Mapping[str, Any],
    labels: Mapping[str, Any] | None = None,
    *,
    unit: str = "obs",
    attrs: Mapping[str, Any] | None = None,
) -> "xarray.Dataset":
    """Make a group from arrays, with the dims of the schema; those without labels are numbered.

    A value that the schema does not list is a number, or a pair of dims and array. `unit` is the
    dim of rows, or of groups of rows.
    """
    import xarray

    known, variables, coords = dict(labels or {}), {}, {}
    for name, value in values.items():
        if isinstance(value, tuple):
            dims, array = value[0], np.asarray(value[1])
        else:
            array = np.asarray(value)
            first = ("chain", "draw") if _DIMS.get((group, name), ())[:1] == ("chain",) else ()
            dims = (*first, *dims_of(name, array.ndim - len(first), group))
            dims = tuple(unit if dim == "obs" else dim for dim in dims)
        variables[name] = (dims, array)
        for dim, size in zip(dims, array.shape, strict=True):
            coords[dim] = np.asarray(known.get(dim, np.arange(size)))
    return xarray.Dataset(variables, coords, library() | dict(attrs or {}))


def model_attributes(family: str, link: str, classes: NDArray[Any] | None) -> dict[str, str]:
    """Return the attributes by which a tree names its family and classes."""
    attrs = {"family": family, "link": link}
    if classes is not None:
        attrs["reference_class"] = str(classes[0])
        attrs["classes"] = "\n".join(map(str, classes))
    return attrs


def library() -> dict[str, str]:
    """Return the attributes of every group that this package makes."""
    return {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages on which a result depends."""
    return {f"{name}_version": version(name) for name in _PACKAGES if find_spec(name)}
