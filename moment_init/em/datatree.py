"""Convert an `EMFit` to a DataTree that ArviZ can read, with the groups of the schema.

The draws form one chain. They come from the normal approximation at the maximum, on the
unconstrained scale of `moment_init.likelihood.parameters.pack` (coefficients, biases, log
dispersion, logits) and `moment_init.likelihood.gate.pack_gate`. The logits of a gate sum to zero
over the components, whereas `EMFit` reports them relative to the last component: with a zero sum
none is constant, and relabelling only permutes them. With a Gaussian gate, log-likelihoods are
joint for gating covariates and response. `lp`, `log_likelihood`, `observed_data` and
`constant_data` are present only if data are passed. Sample weights enter `lp` and, within groups,
`log_likelihood`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from moment_init.checks import (
    FloatArray,
    RandomSeed,
    as_known_table,
    make_generator,
    validate_run,
)
from moment_init.data.checking import gating_table, index_of, match_columns
from moment_init.em.information import centring_matrix
from moment_init.em.prediction import (
    IndexArray,
    in_users_order,
    rows_for,
    unit_labels,
    with_gaussian_gate,
)
from moment_init.likelihood.draws import Draws, log_likelihoods
from moment_init.likelihood.gate import GaussianGate, pack_gate, unpack_gate
from moment_init.likelihood.parameters import MixtureParameters, pack, parameter_count, unpack
from moment_init.likelihood.rows import LikelihoodRows
from moment_init.results import (
    ATTRIBUTES,
    label,
    labels_of,
    model_attributes,
    parameters_of,
    versions,
)

if TYPE_CHECKING:
    import xarray

    from moment_init.em.result import EMFit

_LARGEST_LOG_DISPERSION = 300.0
"""Draws of a log dispersion are clipped here, so that neither it nor its square overflows."""

_COUNTS = ("n_parameters", "n_obs", "n_iter", "converged")
_CRITERIA = ("log_likelihood", "aic", "bic", "icl", "entropy", "n_units")
_START_RECORD = ("origin", "status", "n_iter", "log_likelihood")


def fit_to_datatree(
    fit: "EMFit", X: Any, y: Any, *, draws: int, random_seed: RandomSeed, data: dict[str, Any]
) -> "xarray.DataTree":
    """Convert a fit to a DataTree, with log-likelihoods if data are passed."""
    # X: (n_obs, n_features), y: (n_obs,)
    import xarray

    is_extra = any(value is not None for value in data.values())
    if (X is None) != (y is None) or (X is None and is_extra):
        raise ValueError(
            "`X` and `y` must be given together, and other data of the rows only with them; got "
            f"X {'missing' if X is None else 'given'}, y {'missing' if y is None else 'given'}. "
            "Pass both or neither."
        )
    validate_run(draws, None, 1)
    vectors, log_q = _draw_vectors(fit, int(draws), make_generator(random_seed))
    parameters, gates = _unpacked(fit, vectors), _unpacked_gates(fit, vectors)
    groups = {"posterior": _posterior(fit, parameters, gates)}
    stats = {"log_q": log_q[None]}
    if X is not None:
        rows, order = rows_for(fit, X, y, **data)
        drawn = parameters
        if gates:
            pairs = zip(parameters, gates, strict=True)
            drawn = [with_gaussian_gate(*pair, fit.gate_centre) for pair in pairs]
        family = fit.response_family
        values = log_likelihoods(family, rows, Draws.of(drawn), is_joint=bool(gates))
        if fit.log_posterior is None:
            stats["lp"] = (values @ rows.unit_weights)[None]
        obs = index_of(X, y)
        unit, labels = unit_labels(rows, order, data.get("groups"), obs)
        groups["log_likelihood"] = label(
            "log_likelihood", {"y": values[None]}, {unit: labels}, unit=unit
        )
        response = in_users_order(rows.y, order)
        response = response if fit.classes is None else response.astype(np.int64)
        own = {**labels_of(fit), **({} if obs is None else {"obs": obs})}
        groups["observed_data"] = label("observed_data", {"y": response}, own)
        constant = _constant_data(fit, rows, order, data)
        groups["constant_data"] = label("constant_data", constant, own)
    groups["sample_stats"] = label("sample_stats", stats)
    groups["moment_init"] = _own_group(fit)
    return xarray.DataTree.from_dict(groups)


def _constant_data(
    fit: "EMFit", rows: LikelihoodRows, order: IndexArray | None, data: dict[str, Any]
) -> dict[str, Any]:
    """Return the inputs and the other given data of the rows, in the user's order."""
    values = {
        "X": rows.Z,
        "offset": rows.offset,
        "n_trials": rows.n_trials,
        "sample_weight": rows.sample_weight,
    }
    found: dict[str, Any] = {
        name: in_users_order(np.asarray(value, dtype=np.float64), order)
        for name, value in values.items()
        if value is not None
    }
    if data["groups"] is not None:
        labels = np.asarray(as_known_table(data["groups"]))
        found["groups"] = labels if labels.dtype.kind in "iuf" else labels.astype(str)
    if data["gating"] is not None:
        gating = gating_table(as_known_table(data["gating"]))
        found["gating"] = match_columns(gating, fit.gate_names, "gating")
    return found


def _draw_vectors(
    fit: "EMFit", draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    r"""Draw parameter vectors (draws, n_parameters) and return the log density of each.

    The draws come from the normal approximation of the likelihood at its maximum,

    .. math:: \theta = \hat\theta + R z, \qquad \log q(\theta) = -\tfrac12 |z|^2
        - \tfrac{k}{2} \log 2\pi - \tfrac12 \log |R'R|

    with z standard normal in k dimensions and R the root of the covariance. The density is taken
    on the k-dimensional space in which the parameters are free and determined.
    """
    mode, root = fit.centred_parameters, fit.laplace.root
    rank = root.shape[1]
    noise = rng.standard_normal((draws, rank))
    triangle = np.linalg.qr(root, mode="r")
    log_volume = np.log(np.abs(np.diag(triangle))).sum()
    log_q = -0.5 * np.square(noise).sum(axis=1) - 0.5 * rank * np.log(2 * np.pi) - log_volume
    if fit.gaussian_gate is not None:
        return np.append(pack(mode), pack_gate(fit.gaussian_gate)) + noise @ root.T, log_q
    centred = centring_matrix(mode, fit.gate_centre) @ root
    return pack(mode) + noise @ centred.T, log_q


def _unpacked(fit: "EMFit", vectors: FloatArray) -> list[MixtureParameters]:
    """Unpack the experts and weights of every draw, with the slopes of a softmax gate."""
    mode = fit.centred_parameters
    vectors = vectors[:, : parameter_count(mode)].copy()
    layout, r, limit = mode.layout, mode.n_components, _LARGEST_LOG_DISPERSION
    places = (np.arange(r)[:, None] * layout.size + layout.dispersions).ravel()
    vectors[:, places] = np.clip(vectors[:, places], -limit, limit)
    return [unpack(vector, mode) for vector in vectors]


def _unpacked_gates(fit: "EMFit", vectors: FloatArray) -> list[GaussianGate]:
    """Unpack the Gaussian gate of every draw; empty for other gates."""
    mode, first = fit.gaussian_gate, parameter_count(fit.centred_parameters)
    return [] if mode is None else [unpack_gate(vector[first:], mode) for vector in vectors]


def _posterior(
    fit: "EMFit", parameters: list[MixtureParameters], gaussian: list[GaussianGate]
) -> "xarray.Dataset":
    """Label the parameters of all draws."""
    values: dict[str, list[FloatArray]] = {name: [] for name in ATTRIBUTES}
    for index, draw in enumerate(parameters):
        known = parameters_of(draw)
        if draw.gate is not None and fit.gate_centre is not None:
            # parameters have the weights at the centre of the gating covariates
            logits = np.log(draw.weights) - fit.gate_centre @ draw.gate
            known["gate_bias"] = logits - logits.mean()
        if gaussian:
            known["gate_mean"] = gaussian[index].means.T
            known["gate_covariance"] = gaussian[index].covariances
        for name, value in known.items():
            values[name].append(value)
    stacked = {name: np.stack(value)[None] for name, value in values.items() if value}
    return label("posterior", stacked, labels_of(fit), attrs={"warning": _warning(fit)})


def _own_group(fit: "EMFit") -> "xarray.Dataset":
    """Make the group of the criteria, the starts, the optima and the settings of a fit."""
    values: dict[str, Any] = {
        f"start_{name}": np.array([getattr(start, name) for start in fit.starts])
        for name in _START_RECORD
    }
    values["start_status"] = values["start_status"].astype(str)
    values["history"] = np.array(fit.history)
    values |= {name: float(getattr(fit, name)) for name in _CRITERIA}
    values |= {name: int(getattr(fit, name)) for name in _COUNTS}  # NetCDF has no booleans
    if fit.unseen_mass is not None:
        values["unseen_mass"] = fit.unseen_mass.mass
        values["unseen_mass_error"] = fit.unseen_mass.error
        values["unseen_better"] = fit.unseen_mass.better
    if fit.log_posterior is not None:
        values["log_posterior"] = fit.log_posterior
        values["start_log_posterior"] = np.array([start.objective for start in fit.starts])
    attrs = versions() | {
        "status": str(fit.status),
        "origin": fit.origin,
        "warnings": "\n".join(fit.warnings),  # NetCDF 3 has no lists of strings
        "bounds": "\n".join(fit.bounds),
        **model_attributes(fit.family, fit.link, fit.classes),
    }
    if fit.priors is not None:
        attrs["priors"] = fit.priors
    return label("moment_init", values, attrs=attrs).merge(_optima(fit))


def _optima(fit: "EMFit") -> "xarray.Dataset":
    """Parameters and heights of the optima, with the dim `optimum`, for a DataTree."""
    found = [parameters_of(each) for each in fit.optima]
    values: dict[str, Any] = {}
    if found:
        values = {f"optimum_{name}": np.stack([each[name] for each in found]) for name in found[0]}
    for column, cells in fit.optima_table.items():
        array = cells.to_numpy()
        values[f"optimum_{column}"] = array if array.dtype.kind in "if" else array.astype(str)
    return label("moment_init", values, labels_of(fit))


def _warning(fit: "EMFit") -> str:
    """Warn about parameters that are not determined; empty if all are."""
    n_flat = int(fit.laplace.undetermined.sum())
    if n_flat == 0:
        return ""
    return (
        f"The information is singular: {n_flat} parameters are not determined. The draws vary only "
        "in directions with positive information."
    )
