"""Priors of standardised parameters: default numbers, those that a user may pass, and the density.

The models in `moment_init.models` take their default numbers from here. `fit_em` states them for
columns that are centred and scaled one by one, and needs normal, log-normal and Dirichlet
distributions (`moment_init.likelihood.sums`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln

from moment_init.checks import FloatArray
from moment_init.data.checking import RegressionData
from moment_init.data.standardising import Coordinates
from moment_init.em.problem import EMProblem, Restrictions
from moment_init.families.several import AnyFamily, Categorical
from moment_init.likelihood.rows import column
from moment_init.likelihood.sums import LogPrior, whitened_precision

GATE_DEVIATION = 2.0
"""Standard deviation of a gate's logits: odds of one to seven per standard deviation of a covariate
are common, odds of one to fifty are rare."""

MEDIAN_DEVIATION = 0.5
"""Prior median of a standard deviation, relative to the response's: 0.07 to 3.5 holds 95 %."""

MEDIAN_SHAPE, SHAPE_DEVIATION = 3.0, 1.0
"""Prior median of alpha and shape, and standard deviation of their logarithms: 0.4 to 21 holds
95 %."""


@dataclass(frozen=True, slots=True)
class LinkPriors:
    """Standard deviations of the default priors for one link."""

    scale: float  # root mean square of a component's scale
    bias: float  # standard deviation of the biases


LINK_PRIORS: Mapping[str, LinkPriors] = MappingProxyType(
    {
        # Predictors of 10 occur: probabilities then run from 0 to 1 within the data. The scale of
        # the probit is that of the logit divided by 1.7.
        "logit": LinkPriors(5.0, 2.5),
        "softmax": LinkPriors(5.0, 2.5),
        "probit": LinkPriors(3.0, 1.5),
        # With a scale of 2 the mean already runs from e^-4 to e^4 times its median in the data.
        "log": LinkPriors(1.0, 1.5),
        # The response of all components together has standard deviation one. A component can
        # exceed it if its slopes are cancelled by those of others.
        "identity": LinkPriors(1.5, 1.5),
    }
)

LEVEL_ROWS = 1000
"""Rows among which the largest offset is looked for, against overflow of exponentials."""

PriorsArgument = Literal["default"] | Mapping[str, Any] | None

_FORMS = {
    "coefficient": "a standard deviation, or a dict of them by column,",
    "bias": "a standard deviation or a pair (mean, standard deviation)",
    "dispersion": "a pair (mean, standard deviation) of its logarithm",
    "weight": "the concentration of a Dirichlet distribution",
    "gate": "a standard deviation",
}
"""What `priors` may contain, and in which form."""


@dataclass(frozen=True, slots=True, eq=False)
class Priors:
    """Numbers of the priors; other arrays have one entry for each linear predictor, (P,)."""

    coefficient: FloatArray  # of every column, (P, n_features)
    bias: tuple[FloatArray, FloatArray]  # mean and standard deviation
    dispersion: tuple[FloatArray, FloatArray]  # of the logarithm
    weight: float = 1.0
    gate: float = GATE_DEVIATION

    def describe(self, family: AnyFamily, mixing: str | None) -> str:
        """Name the distributions; numbers that differ are separated by slashes."""
        parts = [
            f"coefficient Normal(0, {_numbers(self.coefficient.ravel())})",
            "bias Normal({}, {})".format(*map(_numbers, self.bias)),
        ]
        if family.has_dispersion:
            has = [member.has_dispersion for member in family.predictor_families]
            parts.append(
                "dispersion LogNormal({}, {})".format(*(_numbers(x[has]) for x in self.dispersion))
            )
        texts = {"gate": f"ZeroSumNormal({self.gate:.3g})", "weight": f"Dirichlet({self.weight:g})"}
        return ", ".join(parts if mixing is None else [*parts, f"{mixing} {texts[mixing]}"])


def _numbers(values: FloatArray) -> str:
    return "/".join(dict.fromkeys(f"{value:.3g}" for value in values))


def default_priors(family: AnyFamily, n_features: int) -> Priors:
    """Priors of a model with free directions, with E |beta|^2 = E s^2 of its scales."""
    members = family.predictor_families
    links = [LINK_PRIORS[member.link_name] for member in members]
    medians = [MEDIAN_DEVIATION if each.response_power else MEDIAN_SHAPE for each in members]
    zeros = np.zeros(len(members))
    return Priors(
        np.array([[link.scale] * n_features for link in links]) / np.sqrt(n_features),
        (zeros, np.array([link.bias for link in links])),
        (np.log(medians), zeros + SHAPE_DEVIATION),
    )


def validate_priors(
    priors: Any, data: RegressionData, restrictions: Restrictions, *, has_logit_gate: bool
) -> Priors | None:
    """Check `priors`, and fill in the defaults for what is left out."""
    if priors is None:
        return None
    # with fixed directions the columns are their projections, one for each component
    n_features = data.n_features if restrictions.directions is None else 1
    result = default_priors(data.family, n_features)
    if isinstance(priors, str) and priors == "default":
        return result
    if not isinstance(priors, Mapping):
        raise TypeError(
            "`priors` must be None, 'default' or a dict of numbers; got "
            f"{priors if isinstance(priors, str) else type(priors).__name__!r}. Pass for instance "
            "{'coefficient': 2.5}."
        )
    absent = {"weight": "gating, whose prior is 'gate'"} if has_logit_gate else {"gate": "no gate"}
    if restrictions.weights is not None:
        absent["weight"] = "`fixed_weights`"
    if not data.family.has_dispersion:
        absent["dispersion"] = f"family {data.family.name!r}, which has no dispersion"
    zeros = np.zeros(data.family.n_predictors)
    changes: dict[str, Any] = {}
    for name, value in priors.items():
        if name not in _FORMS:
            raise ValueError(
                f"`priors` must have keys among {', '.join(map(repr, _FORMS))}; got {name!r}. "
                "Leave it out; distributions of PyMC are for `sample`."
            )
        if name in absent:
            raise ValueError(
                f"`priors` must not have {name!r} with {absent[name]}; got {value!r}. Leave it out."
            )
        if name == "coefficient":
            changes[name] = _coefficient_deviations(value, result.coefficient, data, restrictions)
            continue
        mean, deviation = _checked_numbers(name, value)
        is_pair = name in ("bias", "dispersion")
        changes[name] = (zeros + mean, zeros + deviation) if is_pair else deviation
    return replace(result, **changes)


def _coefficient_deviations(
    value: Any, default: FloatArray, data: RegressionData, restrictions: Restrictions
) -> FloatArray:
    """Read a standard deviation for all coefficients, or a dict of them by column."""
    # default: (P, n_features) -> (P, n_features)
    if isinstance(value, Mapping) and restrictions.directions is not None:
        raise ValueError(
            "`priors`: 'coefficient' must be one number with `fixed_directions`, where the columns "
            f"are projections; got {value!r}. Pass a standard deviation."
        )
    result = default.copy()
    if not isinstance(value, Mapping):
        result[:] = _checked_numbers("coefficient", value)[1]
        return result
    for place, number in by_column(value, data.feature_names, data.response_names).items():
        result[place] = _checked_numbers("coefficient", number)[1]
    return result


def by_column(
    value: Mapping[Any, Any], features: Sequence[str], responses: Sequence[str]
) -> dict[tuple[int, int], Any]:
    """Read what is given by name of the column, or of the response and then the column.

    The keys of the result are the numbers of the linear predictor and the column.
    """
    result: dict[tuple[int, int], Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping) and name in responses:
            inner = by_column(entry, features, ())
            row = list(responses).index(name)
            result |= {(row, column): each for (_, column), each in inner.items()}
        elif name in features:
            column = list(features).index(name)
            # what is given for one response is more specific than what is given for all
            result = {(row, column): entry for row in range(max(1, len(responses)))} | result
        else:
            listed = ", ".join(map(repr, features))
            nested = f", or responses ({', '.join(map(repr, responses))}) and then columns"
            raise ValueError(
                f"`priors`: 'coefficient' must have names of columns ({listed})"
                f"{nested if responses else ''} as keys; got {name!r}. Check the spelling."
            )
    return result


def coefficient_units(coordinates: Sequence[Coordinates]) -> FloatArray:
    """Coefficients in the user's units, for standardised ones of columns scaled one by one.

    They are relative to the standard deviation of the column and, for the identity link, to that of
    the response.
    """
    # -> (n_features, 1) or, with several predictors, (P, n_features, 1)
    units = [
        where.response_scale / np.linalg.norm(where.factor, axis=1)[:, None]
        for where in coordinates
    ]
    return units[0] if len(units) == 1 else np.stack(units)


def _checked_numbers(name: str, value: Any) -> tuple[float, float]:
    """Read a positive number, or a pair of a mean and a positive number."""
    is_pair = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    numbers = list(value) if is_pair else [value]
    lengths = {"bias": (1, 2), "dispersion": (2,)}.get(name, (1,))
    is_number = all(
        isinstance(each, int | float | np.integer | np.floating) and not isinstance(each, bool)
        for each in numbers
    )
    has_form = is_number and len(numbers) in lengths and is_pair == (len(numbers) > 1)
    if not has_form or not np.all(np.isfinite(numbers)) or not numbers[-1] > 0:
        raise ValueError(
            f"`priors`: {name!r} must be {_FORMS[name]}, finite, and positive except for a mean; "
            f"got {value!r}. Leave it out for the default."
        )
    return float(numbers[0]) if is_pair else 0.0, float(numbers[-1])


def log_prior_of(problem: EMProblem, data: RegressionData, priors: Priors) -> LogPrior:
    """Pose priors in the coordinates of a problem.

    The prior of a parameter that all components share counts once: each component has its share.
    """
    r, held = problem.n_components, problem.restrictions
    has_logit_gate = problem.gate_coordinates is not None
    n_columns = problem.rows.n_features if held.directions is None else 1
    copies = np.ones(problem.rows.n_features)  # over how many components a prior is divided
    copies[list(held.shared_features)] = r
    precision, centres = [], []
    for index, where in enumerate(problem.coordinates):
        deviations = priors.coefficient[index] * np.sqrt(copies)
        precision.append(whitened_precision(where.factor, deviations))
        level = typical_level(where, data, index) - where.response_shift
        centres.append(level / where.response_scale)
    bias_copies = r if held.has_shared_bias else 1
    dispersion_copies = r if held.has_shared_dispersion else 1
    has = [member.has_dispersion for member in data.family.predictor_families]
    counts = r / copies[:n_columns]  # of independent coefficients of each column
    normalisers = [_log_normaliser(column) for column in priors.coefficient.T]
    constant = float(np.dot(normalisers, counts))
    constant += _log_normaliser(priors.bias[1]) * r / bias_copies
    constant += _log_normaliser(priors.dispersion[1][has]) * r / dispersion_copies
    concentration, mixing = priors.weight, None
    if has_logit_gate:
        mixing = "gate"
        gates = np.full(r - 1, priors.gate)
        constant += (1 + problem.rows.n_gate) * (_log_normaliser(gates) - 0.5 * np.log(r))
    elif held.weights is None:
        mixing = "weight"
        constant += float(gammaln(r * concentration) - r * gammaln(concentration))
    else:
        concentration = 0.0  # fixed weights have no prior
    return LogPrior(
        np.stack(precision),
        np.array(centres) + priors.bias[0],
        priors.bias[1] * np.sqrt(bias_copies),
        concentration,
        priors.dispersion[0],
        priors.dispersion[1] * np.sqrt(dispersion_copies),
        priors.gate,
        constant,
        priors.describe(data.family, mixing),
    )


def _log_normaliser(deviations: FloatArray) -> float:
    """Logarithm of the normalising constants of independent normals."""
    return -0.5 * float(np.log(2.0 * np.pi * np.square(deviations)).sum())


def typical_level(where: Coordinates, data: RegressionData, index: int) -> float:
    """Return the predictor to which biases are relative: that of the mean response.

    For the log link this is the log mean response per unit of exposure. For other links than the
    identity it only matters if an offset moves the predictors; otherwise the shift stays zero.
    """
    family = data.family.predictor_families[index]
    has_offset, largest = data.offset is not None, 0.0
    if family.link_name == "log":
        if has_offset:  # the exponential of an offset may overflow, but not relative to others
            some = data.thin(data.n_obs // LEVEL_ROWS)
            largest = float(column(np.asarray(some.offset), index).max())
        total, exposure, _ = data.sum(_level_sums, index, largest, doubles=4)
        # Responses that do not vary were refused earlier, so the sum is positive.
        return float(np.log(total / exposure)) - largest
    if not has_offset or family.response_power:
        return where.response_shift
    total, exposure, offsets = data.sum(_level_sums, index, largest, doubles=4)
    level = total / exposure
    logit = np.log(level) if isinstance(family, Categorical) else family.link.link(level)
    return float(logit) - float(offsets / data.total_weight)


def _level_sums(
    data: RegressionData, index: int, largest: float, block: slice
) -> tuple[FloatArray, ...]:
    """Sum responses, what their sum is relative to, and offsets."""
    weight, family = data.sample_weight[block], data.family.predictor_families[index]
    offset = None if data.offset is None else column(data.offset, index)[block]
    offsets = np.zeros(()) if offset is None else np.asarray((weight * offset).sum())
    if isinstance(family, Categorical):
        counts = [(weight * (data.y[block] == code)).sum() for code in (index + 1, 0)]
        return np.asarray(counts[0]), np.asarray(counts[1]), offsets
    exposure = weight
    if family.link_name == "log":
        exposure = weight if offset is None else weight * np.exp(offset - largest)
    elif data.n_trials is not None:
        exposure = weight * column(data.n_trials, index)[block]
    total = (weight * column(data.y, index)[block]).sum()
    return np.asarray(total), np.asarray(exposure.sum()), offsets
