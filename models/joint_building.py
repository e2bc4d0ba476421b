r"""Several responses of a mixture as one PyMC distribution: a density for each row.

.. math:: \log p(y_i) = w_i \log \sum_j \pi_j \prod_a p_a(y_{ia} \mid \eta_{ija})

Written out in PyTensor's own operations: every backend knows them.

What a Bayesian mixture of several responses is built from: rows, coordinates, a start.

From a specification of several responses to a PyMC model.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.dist_math import binomln
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.special import log_softmax, logsumexp

from moment_init.checks import FloatArray, RandomSeed, quiet_notices, validate_n_components
from moment_init.em.fitting import fit_em
from moment_init.families.base import Family
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.models.likelihoods import component_distribution, log_normal_cdf
from moment_init.models.ops import anchored_coefficient, linear_predictor
from moment_init.models.priors import ModelPriors
from moment_init.models.specification import (
    Directions,
    anchor_bases,
    require_angle,
    tilt_per_unit,
    tilts_of,
)
from moment_init.responses.data import ResponsesData, validate_responses
from moment_init.responses.kinds import Categorical, ResponseKind, SeparateResponses
from moment_init.responses.parameters import JointParameters, JointProblem, pose_joint
from moment_init.responses.result import JointFit
from moment_init.responses.search import mean_predictors


def joint_response(
    name: str,
    kind: ResponseKind,
    eta: Any,
    log_weight: Any,
    *,
    dispersion: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    observed: Any = None,
    dims: str | Sequence[str] | None = None,
) -> Any:
    """Add several responses of a mixture to the PyMC model on the context stack."""
    # eta: (n_obs, n_components, n_predictors), log_weight: (n_components,), dispersion:
    # (n_components, n_predictors), n_trials: (n_obs, n_responses), sample_weight: (n_obs,),
    # observed: (n_obs, n_responses)
    optional = {"dispersion": dispersion, "n_trials": n_trials, "sample_weight": sample_weight}
    shapes = {"dispersion": "(r,p)", "n_trials": "(p)", "sample_weight": "()"}
    present = {field: value for field, value in optional.items() if value is not None}
    fields = tuple(present)
    is_classes = isinstance(kind, Categorical)
    inputs = ",".join(["(r,p)", "(r)", *(shapes[field] for field in fields)])
    response: Any = pm.CustomDist(
        name,
        eta,
        log_weight,
        *present.values(),
        logp=partial(_log_density, kind, fields),
        random=partial(_draw, kind, fields),
        support_point=_class_point if is_classes else _response_point,
        signature=f"{inputs}->()" if is_classes else f"{inputs}->(p)",
        dtype="int64" if is_classes else "float64",
        class_name="JointMixture",
        observed=observed,
        dims=dims,
    )
    # PyMC makes a class for each distribution. Known to numba, it is not warned about.
    numba_core_rv_funcify.register(
        type(response.owner.op), lambda op, node: _draw_from_numba(kind, fields)
    )
    return response


def _log_density(kind: ResponseKind, fields: tuple[str, ...], value: Any, *parameters: Any) -> Any:
    """Log density of each row."""
    eta, log_weight, *rest = parameters
    more = dict(zip(fields, rest, strict=True))
    if isinstance(kind, SeparateResponses):
        density = _separate_density(kind, value, eta, more)
    else:
        # Written with the predictors last, the reference's before them.
        zeros = pt.zeros_like(eta[..., :1])
        logs = log_softmax(pt.concatenate([zeros, eta], axis=-1), axis=-1)
        classes = pt.arange(kind.n_predictors + 1)
        chosen = pt.eq(value[..., None, None], classes)
        density = pt.where(chosen, logs, 0.0).sum(axis=-1)
    joint = density + log_weight
    result: Any = logsumexp(joint, axis=-1)
    weight = more.get("sample_weight")
    return result if weight is None else weight * result


def _separate_density(kind: SeparateResponses, value: Any, eta: Any, more: dict[str, Any]) -> Any:
    """Sum of the log densities of all responses, by row and component.

    Neighbours of one family are one array: what is compiled grows with the number of families.
    """
    density: Any = 0.0
    stop = 0
    for family, members in itertools.groupby(kind.members):
        start, stop = stop, stop + len(list(members))
        run = slice(start, stop)
        dispersion = more["dispersion"][..., run] if family.has_dispersion else None
        trials = more["n_trials"][..., None, run] if family.has_trials else None
        each = _family_density(family, value[..., None, run], eta[..., run], dispersion, trials)
        density = density + each.sum(axis=-1)
    return density


def _family_density(family: Family, value: Any, eta: Any, dispersion: Any, trials: Any) -> Any:
    """Log density of responses of one family.

    PyMC's distributions of binary responses and counts have means for parameters. Those round to 0
    and 1, or underflow, where components are apart, and gradients are then no numbers: from
    predictors they are finite.
    """
    if family.has_binary_rows or family.has_trials:
        is_logit = family.link.name == "logit"
        success = -pt.softplus(-eta) if is_logit else log_normal_cdf(eta)
        failure = -pt.softplus(eta) if is_logit else log_normal_cdf(-eta)
        if trials is None:
            return value * success + (1.0 - value) * failure
        return value * success + (trials - value) * failure + binomln(trials, value)
    if family.name == "poisson":
        return value * eta - pt.exp(eta) - pt.gammaln(value + 1.0)
    distribution = component_distribution(family, eta, dispersion=dispersion)
    return pm.logp(distribution, value.astype("int64") if family.has_unlimited_counts else value)


def _response_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
    """One, which every family supports, for each response."""
    return pt.ones((eta.shape[0], eta.shape[2]))


def _class_point(variable: Any, size: Any, eta: Any, *parameters: Any) -> Any:
    return pt.ones((eta.shape[0],), dtype="int64")


def _draw(
    kind: ResponseKind, fields: tuple[str, ...], *parameters: Any, rng: Any = None, size: Any = None
) -> NDArray[Any]:
    """Draw responses: (*size, n_responses), or (*size,) for classes; rows are the last of size."""
    eta, log_weight, *rest = (np.asarray(value) for value in parameters)
    more = dict(zip(fields, rest, strict=True))
    n_components = eta.shape[-2]
    shape = np.broadcast_shapes(eta.shape[:-2], log_weight.shape[:-1])
    shape = shape if size is None else tuple(int(each) for each in size)
    eta = np.broadcast_to(eta, (*shape, *eta.shape[-2:])).reshape(-1, *eta.shape[-2:])
    weight = np.exp(np.broadcast_to(log_weight, (*shape, n_components)).reshape(-1, n_components))
    reached = np.cumsum(weight, axis=1)
    uniform = rng.random(len(eta))
    component = np.sum(reached[:, :-1] < uniform[:, None] * reached[:, -1:], axis=1)
    row = np.arange(len(eta))
    dispersion = trials = None
    if "dispersion" in more:
        full = more["dispersion"]
        full = np.broadcast_to(full, (*shape, *full.shape[-2:])).reshape(-1, *full.shape[-2:])
        dispersion = full[row, component].T
    if "n_trials" in more:
        full = more["n_trials"]
        trials = np.broadcast_to(full, (*shape, full.shape[-1])).reshape(-1, full.shape[-1]).T
    drawn = kind.draw(np.ascontiguousarray(eta[row, component].T), dispersion, trials, rng)
    if isinstance(kind, Categorical):
        return drawn[0].reshape(shape).astype(np.int64)
    return drawn.T.reshape(*shape, -1)


def _draw_from_numba(kind: ResponseKind, fields: tuple[str, ...]) -> tuple[Any, None]:
    """Call Python for the draws from compiled code; None: such code cannot be cached."""
    is_classes = isinstance(kind, Categorical)
    returned = numba.int64 if is_classes else numba.types.Array(numba.float64, 1, "C")
    draw = partial(_draw_row, kind, fields)  # numba must be able to pickle it

    def draw_responses(rng, *parameters):  # type: ignore[no-untyped-def]
        with numba.objmode(draws=returned):
            draws = draw(rng, parameters)
        return draws

    return numba_njit(draw_responses), None


def _draw_row(
    kind: ResponseKind, fields: tuple[str, ...], rng: Any, parameters: Sequence[Any]
) -> Any:
    """Draw the responses of one row, as compiled code asks for them."""
    drawn = _draw(kind, fields, *parameters, rng=rng)
    return int(drawn) if isinstance(kind, Categorical) else np.ascontiguousarray(drawn)


_SMALLEST_LENGTH = 1e-8
"""Length of a standardised coefficient below which a predictor has no direction."""


@dataclass(frozen=True, slots=True, eq=False)
class JointSpecification:
    """Everything that a model of several responses is built from."""

    data: ResponsesData  # checked rows, in the user's units
    problem: JointProblem  # coordinates of all predictors
    directions: Directions  # what is done about the directions
    anchor_angle: float  # prior angle between a direction and its anchor, in degrees
    fit: JointFit  # where to start
    # unit anchors in standardised coordinates; (n_features, n_components, n_predictors)
    anchors: FloatArray

    @property
    def kappa(self) -> float:
        """Tangent of the angle per unit of tilt."""
        return tilt_per_unit(self.anchor_angle, self.anchors.shape[0])

    @property
    def flat_anchors(self) -> FloatArray:
        """Anchors as columns, component by component, (n_features, n_components n_predictors)."""
        return self.anchors.reshape(self.anchors.shape[0], -1)

    @property
    def links(self) -> list[str]:
        """Link of every predictor."""
        return ["logit" if each is None else each.link.name for each in self.data.kind.families]

    def to_user_columns(self, columns: FloatArray) -> FloatArray:
        """Map coefficients of standardised inputs to those of the user's columns."""
        # columns: (n_features, n_components n_predictors)
        units = [where.response_scale for where in self.problem.coordinates]
        mapped = np.linalg.solve(self.problem.coordinates[0].factor.T, columns)
        return np.asarray(mapped * np.tile(units, columns.shape[1] // len(units)))

    def standardised_values(self, parameters: JointParameters) -> dict[str, FloatArray]:
        """Values of the model's free variables at given parameters."""
        there = self.problem.to_standardised(parameters)
        slopes = there.coefficients
        lengths = np.maximum(np.linalg.norm(slopes, axis=0), _SMALLEST_LENGTH)
        values = {"weight": there.weights, "standardised_bias": there.biases}
        if self.directions == "free":
            values["standardised_coefficient"] = slopes
        elif self.directions == "fixed":
            along = (slopes * self.anchors).sum(axis=0)
            values["standardised_scale"] = np.maximum(along, _SMALLEST_LENGTH)
        else:
            values["standardised_scale"] = lengths
            flat = (slopes / lengths).reshape(slopes.shape[0], -1)
            tilts = tilts_of(flat, self.flat_anchors, anchor_bases(self.flat_anchors), self.kappa)
            values["tilt"] = tilts.reshape(*lengths.shape, -1)
        if there.dispersion is not None:
            has_one = np.array(self.data.kind.has_dispersion)
            values["standardised_dispersion"] = there.dispersion[:, has_one]
        return values


def specify_joint(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    init: Any,
    directions: Any,
    anchor_angle: Any,
    random_seed: RandomSeed,
) -> JointSpecification:
    """Check the arguments and find the start."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    if directions not in get_args(Directions):
        raise ValueError(
            f"`directions` must be one of {', '.join(map(repr, get_args(Directions)))}; got "
            f"{directions!r}."
        )
    require_angle(anchor_angle)
    data = validate_responses(X, y, **data_block, function="mixture_glm")
    number = validate_n_components(n_components, data.n_obs)
    if data.n_features == 1 and directions == "anchored":
        # With a single column an anchor is a sign: held, it would cut every slope off at zero.
        directions = "free"
    fit = _start(X, y, number, data, data_block, init, random_seed)
    problem = _centred(pose_joint(data.drop_zero_weights(), number, MIN_DISPERSION_RATIO))
    slopes = problem.to_standardised(fit.parameters).coefficients
    lengths = np.linalg.norm(slopes, axis=0)
    # A predictor without slopes has no direction: any anchor does.
    arbitrary = np.zeros_like(slopes)
    arbitrary[0] = 1.0
    slopes = np.where(lengths < _SMALLEST_LENGTH, arbitrary, slopes)
    anchors = slopes / np.linalg.norm(slopes, axis=0)
    return JointSpecification(data, problem, directions, float(anchor_angle), fit, anchors)


def _start(
    X: Any,
    y: Any,
    number: int,
    data: ResponsesData,
    data_block: dict[str, Any],
    init: Any,
    random_seed: RandomSeed,
) -> JointFit:
    if isinstance(init, JointFit):
        expected = (data.feature_names, data.kind.names, number)
        if (init.feature_names, init.response_names, init.n_components) != expected:
            raise ValueError(
                "`init` must be a fit of the same features, responses and number of components; "
                f"got {init.feature_names}, {init.response_names}, {init.n_components}."
            )
        return init
    max_iter: dict[str, Any] = {"max_iter": 0} if isinstance(init, tuple | list) else {}
    # Arrays are taken as they are, not as the end of a run.
    with quiet_notices() if max_iter else nullcontext():
        fit: Any = fit_em(
            X,
            y,
            number,
            init=init,
            random_seed=random_seed,
            progressbar=False,
            **data_block,
            **max_iter,
        )
    if not isinstance(fit, JointFit):
        raise TypeError(f"`init` must lead to a fit of several responses; got {type(fit)}.")
    return fit


def _centred(problem: JointProblem) -> JointProblem:
    """Biases relative to the predictor of the mean response, for the log link and with offsets."""
    levels = mean_predictors(problem)
    coordinates = []
    for where, family, level in zip(
        problem.coordinates, problem.kind.families, levels, strict=True
    ):
        is_log = family is not None and family.link.name == "log"
        has_offset = problem.rows.offset is not None and not (family and family.response_power)
        moves = is_log or has_offset
        coordinates.append(replace(where, response_shift=float(level)) if moves else where)
    return replace(problem, coordinates=tuple(coordinates))


OF_SLOPES = ("feature", "component", "response")
OF_LEVELS = ("component", "response")


def joint_mixture_glm(
    X: Any,
    y: Any,
    n_components: Any,
    *,
    data_block: dict[str, Any],
    priors: Mapping[str, Any] | None = None,
    **rest: Any,
) -> pm.Model:
    """Build the PyMC model of several responses; `mixture_glm` for them."""
    # X: (n_obs, n_features), y: (n_obs, n_responses)
    return build_joint_model(
        specify_joint(X, y, n_components, data_block=data_block, **rest), priors
    )


def build_joint_model(
    specification: JointSpecification, priors: Mapping[str, Any] | None = None
) -> pm.Model:
    """Build the model of a specification."""
    data, kind = specification.data, specification.data.kind
    r, n_predictors = specification.anchors.shape[1:]
    book = ModelPriors(priors, link=specification.links, n_features=data.n_features)
    with pm.Model(coords=_coords(specification)) as model:
        # First: the length of `obs` is theirs, and PyMC warns if other data are resized before.
        inputs = pm.Data("X", data.X, dims=("obs", "feature"))
        log_weight = pt.log(book.weight("weight", ("component",), r))
        flat, at_mean = _coefficient(specification, book)
        coefficient = pm.Deterministic(
            "coefficient", flat.reshape((data.n_features, r, n_predictors)), dims=OF_SLOPES
        )
        units = np.array(
            [
                [each.response_shift, each.response_scale]
                for each in specification.problem.coordinates
            ]
        ).T
        unit = pm.Data("response_units", units)
        level = unit[0] + unit[1] * book.bias("standardised_bias", OF_LEVELS)
        bias = pm.Deterministic("bias", level - at_mean.reshape((r, n_predictors)), dims=OF_LEVELS)
        dispersion = _dispersion(specification, book, unit)
        length = pt.sqrt(pt.sqr(coefficient).sum(axis=0))
        pm.Deterministic("scale", length, dims=OF_LEVELS)
        pm.Deterministic("direction", coefficient / length, dims=OF_SLOPES)
        # All predictors in one product: what is compiled does not grow with their number.
        eta = linear_predictor(inputs, flat, bias.reshape((r * n_predictors,)))
        eta = eta.reshape((inputs.shape[0], r, n_predictors))
        rows: dict[str, Any] = {}
        if data.offset is not None:
            eta = eta + pm.Data("offset", data.offset.T, dims=("obs", "response"))[:, None, :]
        if data.n_trials is not None:
            rows["n_trials"] = pm.Data("n_trials", data.n_trials.T, dims=("obs", "response"))
        if np.any(data.sample_weight != 1.0):
            rows["sample_weight"] = pm.Data("sample_weight", data.sample_weight, dims="obs")
        is_classes = isinstance(kind, Categorical)
        dims = ("obs",) if is_classes else ("obs", "response")
        observed = data.y[0].astype(np.int64) if is_classes else data.y.T
        joint_response(
            "y",
            kind,
            eta,
            log_weight,
            dispersion=dispersion,
            observed=pm.Data("y_data", observed, dims=dims),
            dims=dims,
            **rows,
        )
    book.require_all_used()
    start = specification.standardised_values(specification.fit.parameters)
    for variable in model.free_RVs:
        if variable.name in start:
            model.set_initval(variable, start[variable.name])
    return model


def _coords(specification: JointSpecification) -> dict[str, Any]:
    data = specification.data
    coords: dict[str, Any] = {
        "feature": list(data.feature_names),
        "component": np.arange(specification.anchors.shape[1]),
        "response": list(data.kind.names),
    }
    if specification.directions == "anchored":
        coords["tangent"] = np.arange(data.n_features - 1)
    has_one = data.kind.has_dispersion
    if any(has_one) and not all(has_one):
        names = zip(data.kind.names, has_one, strict=True)
        coords["dispersed_response"] = [name for name, is_one in names if is_one]
    return coords


def _coefficient(specification: JointSpecification, book: ModelPriors) -> tuple[Any, Any]:
    """Coefficients of the user's columns, component by component, and predictors at the mean."""
    p, r, n_predictors = specification.anchors.shape
    n_columns = r * n_predictors
    mean = pm.Data("input_mean", specification.problem.coordinates[0].mean, dims="feature")
    if specification.directions == "free":
        free = book.coefficient("standardised_coefficient", OF_SLOPES)
        factor = specification.problem.coordinates[0].factor
        back = np.linalg.solve(factor.T, np.eye(p))
        units = [where.response_scale for where in specification.problem.coordinates]
        flat = free.reshape((p, n_columns)) * pm.Data("column_units", np.tile(units, r))
        value = linear_predictor(pm.Data("unwhitening", back), flat, np.zeros(n_columns))
        return value, (mean[:, None] * value).sum(axis=0)
    scale = book.scale("standardised_scale", OF_LEVELS).reshape((n_columns,))
    anchors = pm.Data("anchor", specification.to_user_columns(specification.flat_anchors))
    if specification.directions == "fixed":
        value = anchors * scale
        return value, (mean[:, None] * value).sum(axis=0)
    bases = anchor_bases(specification.flat_anchors)  # (n_columns, p, p - 1)
    user = np.stack([specification.to_user_columns(bases[:, :, t].T) for t in range(p - 1)], axis=2)
    tilt = book.tilt("tilt", (*OF_LEVELS, "tangent")).reshape((n_columns, p - 1))
    basis = pm.Data("basis", specification.kappa * user)
    return anchored_coefficient(anchors, basis, mean, tilt, scale, kappa=specification.kappa)


def _dispersion(specification: JointSpecification, book: ModelPriors, unit: Any) -> Any:
    """Dispersions of all predictors, ones where there is none; None if no response has one."""
    kind = specification.data.kind
    has_one = np.array(kind.has_dispersion)
    if not has_one.any():
        return None
    dims = OF_LEVELS if has_one.all() else ("component", "dispersed_response")
    is_deviation = np.array(kind.has_units)[has_one]
    value = book.dispersion("standardised_dispersion", dims, is_deviation=is_deviation)
    # A shape or alpha has no units: only deviations are scaled.
    value = value * pt.switch(is_deviation, unit[1][np.flatnonzero(has_one)], 1.0)
    value = pm.Deterministic("dispersion", value, dims=dims)
    if has_one.all():
        return value
    full = pt.ones((specification.anchors.shape[1], len(has_one)))
    return pt.set_subtensor(full[:, np.flatnonzero(has_one)], value)
