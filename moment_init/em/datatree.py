r"""Convert an `EMFit` to a DataTree that ArviZ can read.

| group | variable | dims | meaning |
| --- | --- | --- | --- |
| posterior | coefficient, direction | chain, draw, feature, component | draws |
| | bias, scale, weight, dispersion | chain, draw, component | draws |
| | gate | chain, draw, component, gate_feature | slopes of the gate's logits; they sum to zero |
| | gate_bias | chain, draw, component | logits at gating covariates zero; they sum to zero |
| | gate_mean | chain, draw, component, gate_feature | means of a Gaussian gate |
| | gate_covariance | chain, draw, component, gate_feature, gate_feature_2 | its covariances |
| sample_stats | log_q | chain, draw | log density of the draw on the unconstrained scale |
| | lp | chain, draw | log-likelihood of the data (flat prior on that scale); not with priors |
| log_likelihood | y | chain, draw, obs or group | log density of each row or group |
| observed_data | y | obs | the response |
| moment_init | start_origin, start_status, start_n_iter, start_log_likelihood | start | starts |
| | history | iteration | log-likelihood, or log-posterior, along the best run |
| | log_posterior, start_log_posterior | | with priors only; attribute `priors` |
| | log_likelihood, aic, bic, icl, ... | | criteria and counts |
| | unseen_mass, unseen_mass_error, unseen_better | | what a further random start would find |
| | optimum_coefficient, ..., optimum_log_likelihood, ... | optimum, ... | the optima of the fit |

With several responses or classes, coefficient, direction, bias, scale and dispersion have the dim
`response` after (chain, draw), with the names of the responses, or of all classes but the first,
the reference, which is an attribute of the group moment_init. Observed responses then have the dims
(obs, response); classes are observed as codes, with the dim obs only.

The draws form one chain. They come from the normal approximation at the maximum, on the
unconstrained scale of `moment_init.likelihood.parameters.pack` (coefficients, biases, log
dispersion, logits) and `moment_init.likelihood.gate.pack_gate`. The logits of a gate sum to zero
over the components, whereas `EMFit` reports them relative to the last component: with a zero sum
none is constant, and relabelling only permutes them. With a Gaussian gate, log-likelihoods are
joint for gating covariates and response. `lp`, `log_likelihood` and `observed_data` are present
only if data are passed. Sample weights enter `lp` and, within groups, `log_likelihood`.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import FloatArray, RandomSeed, make_generator
from moment_init.em.information import centring_matrix
from moment_init.em.prediction import (
    in_users_order,
    rows_for,
    unit_gate_log_likelihood,
    with_gaussian_gate,
)
from moment_init.likelihood.gate import GaussianGate, pack_gate, unpack_gate
from moment_init.likelihood.parameters import MixtureParameters, pack, parameter_count, unpack
from moment_init.likelihood.posterior import unit_log_likelihood
from moment_init.likelihood.rows import LikelihoodRows

if TYPE_CHECKING:
    import xarray

    from moment_init.em.result import EMFit

Variable = tuple[tuple[str, ...], NDArray[Any]]

_LARGEST_LOG_DISPERSION = 300.0
"""Draws of a log dispersion are clipped here, so that neither it nor its square overflows."""


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
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise ValueError(f"`draws` must be a positive integer; got {draws!r}. Ask for 1 or more.")
    vectors, log_q = _draw_vectors(fit, int(draws), make_generator(random_seed))
    parameters, gates = _unpacked(fit, vectors), _unpacked_gates(fit, vectors)
    stats: dict[str, Variable] = {"log_q": (("chain", "draw"), log_q[None])}
    groups = {"posterior": _posterior(fit, parameters, gates)}
    if X is not None:
        rows, order = rows_for(fit, X, y, **data)
        values = _draw_log_likelihoods(fit, rows, parameters, gates)
        if fit.log_posterior is None:
            stats["lp"] = (("chain", "draw"), (values @ rows.unit_weights)[None])
        unit, labels = unit_coordinate(rows, order, data.get("groups"))
        groups["log_likelihood"] = xarray.Dataset(
            {"y": (("chain", "draw", unit), values[None])}, {**_sampling(draws), unit: labels}
        )
        groups["observed_data"] = _observed(fit, in_users_order(rows.y, order))
    groups["sample_stats"] = xarray.Dataset(stats, _sampling(draws))
    groups["moment_init"] = _own_group(fit)
    for dataset in groups.values():
        dataset.attrs = {**_library(), **dataset.attrs}
    return xarray.DataTree.from_dict(groups)


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
    import xarray

    def stacked(values: list[FloatArray], *dims: str) -> Variable:
        return ("chain", "draw", *dims), np.stack(values)[None]

    levels = ("component",) if fit.biases.ndim == 1 else ("response", "component")
    slopes = (*levels[:-1], "feature", "component")
    variables = {
        "coefficient": stacked([p.coefficients for p in parameters], *slopes),
        "direction": stacked([p.directions for p in parameters], *slopes),
        "scale": stacked([p.scales for p in parameters], *levels),
        "bias": stacked([p.biases for p in parameters], *levels),
        "weight": stacked([p.weights for p in parameters], "component"),
    }
    dispersions = [p.dispersion for p in parameters if p.dispersion is not None]
    if dispersions:
        variables["dispersion"] = stacked(dispersions, *levels)
    coords = {**_sampling(len(parameters)), "feature": list(fit.feature_names)}
    coords["component"] = np.arange(fit.n_components)
    if fit.biases.ndim == 2:
        coords["response"] = list(fit.response_names)
    gates = [p.gate for p in parameters if p.gate is not None]
    if gates and fit.gate_centre is not None:
        # Not (gate_feature, component): ArviZ labels the rows of its summary in the order in which
        # dims first appear in the variables: first in the coefficients, then in the gate.
        gate_slopes = [_of_sum_zero(gate).T for gate in gates]
        variables["gate"] = stacked(gate_slopes, "component", "gate_feature")
        logits = [
            _of_sum_zero(np.log(p.weights) - fit.gate_centre @ gate)
            for p, gate in zip(parameters, gates, strict=True)
        ]
        variables["gate_bias"] = stacked(logits, "component")
        coords["gate_feature"] = list(fit.gate_names)
    if gaussian:
        dims = ("component", "gate_feature")
        variables["gate_mean"] = stacked([gate.means.T for gate in gaussian], *dims)
        covariances = [gate.covariances for gate in gaussian]
        variables["gate_covariance"] = stacked(covariances, *dims, "gate_feature_2")
        coords |= {"gate_feature": list(fit.gate_names), "gate_feature_2": list(fit.gate_names)}
    return xarray.Dataset(variables, coords, attrs={"warning": _warning(fit)})


def _of_sum_zero(logits: FloatArray) -> FloatArray:
    """Centre logits over the components, which are on the last axis."""
    return np.asarray(logits - logits.mean(axis=-1, keepdims=True))


def _draw_log_likelihoods(
    fit: "EMFit",
    rows: LikelihoodRows,
    parameters: list[MixtureParameters],
    gates: list[GaussianGate],
) -> FloatArray:
    """Compute the log-likelihood of every unit under every draw, (draws, n_units)."""
    family = fit.response_family
    result = np.zeros((len(parameters), rows.n_units))
    with np.errstate(over="ignore"):  # an extreme draw has density zero
        for index, draw in enumerate(parameters):
            if gates:
                draw = with_gaussian_gate(draw, gates[index], fit.gate_centre)
                result[index] = unit_gate_log_likelihood(rows, draw)
            result[index] += unit_log_likelihood(family, rows, draw)
    return result


def _observed(fit: "EMFit", y: FloatArray) -> "xarray.Dataset":
    """Responses of the rows; classes as whole numbers."""
    import xarray

    # y: (n_obs,) or (n_obs, n_responses)
    coords: dict[str, Any] = {"obs": np.arange(len(y))}
    if y.ndim == 2:
        coords["response"] = list(fit.response_names)
    values = y if fit.classes is None else y.astype(np.int64)
    return xarray.Dataset({"y": (tuple(coords), values)}, coords)


def unit_coordinate(
    rows: LikelihoodRows, order: NDArray[np.intp] | None, groups: Any
) -> tuple[str, NDArray[Any]]:
    """Return the name and labels of the dimension of units: rows or groups."""
    # order: (n_obs,), groups: (n_obs,) -> ..., (n_units,)
    if rows.group_starts is None or order is None:
        return "obs", np.arange(rows.n_obs)
    labels = np.asarray(groups)[order[rows.group_starts]]
    return "group", labels if labels.dtype.kind in "iuf" else labels.astype(str)


def _own_group(fit: "EMFit") -> "xarray.Dataset":
    import xarray

    from moment_init.em.result import optima_dataset

    starts = fit.starts
    variables: dict[str, Any] = {
        "start_origin": ("start", np.array([start.origin for start in starts], dtype=str)),
        "start_status": ("start", np.array([str(start.status) for start in starts], dtype=str)),
        "start_n_iter": ("start", np.array([start.n_iter for start in starts], dtype=np.int64)),
        "start_log_likelihood": ("start", np.array([start.log_likelihood for start in starts])),
        "history": ("iteration", np.array(fit.history)),
    }
    for name in ("log_likelihood", "aic", "bic", "icl", "entropy", "n_units"):
        variables[name] = float(getattr(fit, name))
    for name in ("n_parameters", "n_obs", "n_iter", "converged"):
        variables[name] = int(getattr(fit, name))  # NetCDF has no booleans
    if fit.unseen_mass is not None:
        variables["unseen_mass"] = fit.unseen_mass.mass
        variables["unseen_mass_error"] = fit.unseen_mass.error
        variables["unseen_better"] = fit.unseen_mass.better
    if fit.log_posterior is not None:
        variables["log_posterior"] = fit.log_posterior
        heights = [start.objective for start in starts]
        variables["start_log_posterior"] = ("start", np.array(heights))
    coords = {"start": np.arange(len(starts)), "iteration": np.arange(len(fit.history))}
    attrs = {
        "status": str(fit.status),
        "origin": fit.origin,
        "warnings": "\n".join(fit.warnings),  # NetCDF 3 has no lists of strings
        "bounds": "\n".join(fit.bounds),
        "family": fit.family,
        "link": fit.link,
    }
    if fit.priors is not None:
        attrs["priors"] = fit.priors
    if fit.classes is not None:
        attrs["reference_class"] = fit.outcome_names[0]
        attrs["classes"] = "\n".join(fit.outcome_names)
    return xarray.Dataset(variables, coords, attrs=attrs).merge(optima_dataset(fit))


def _warning(fit: "EMFit") -> str:
    """Warn about parameters that are not determined; empty if all are."""
    n_flat = int(fit.laplace.undetermined.sum())
    if n_flat == 0:
        return ""
    return (
        f"The information is singular: {n_flat} parameters are not determined. The draws vary only "
        "in directions with positive information."
    )


def _sampling(draws: int) -> dict[str, Any]:
    return {"chain": np.arange(1), "draw": np.arange(draws)}


def _library() -> dict[str, str]:
    return {
        "inference_library": "moment_init",
        "inference_library_version": version("moment-init"),
        "numpy_version": version("numpy"),
        "scipy_version": version("scipy"),
    }
