"""What a Bayesian mixture of several responses is built from: rows, coordinates, a start."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from moment_init.arguments import RandomSeed, validate_n_components
from moment_init.em import fit_em
from moment_init.likelihood.bounds import MIN_DISPERSION_RATIO
from moment_init.models.frames import anchor_bases, tilt_per_unit, tilts_of
from moment_init.models.specification import Directions, require_angle
from moment_init.notices import quiet_notices
from moment_init.responses.data import ResponsesData, validate_responses
from moment_init.responses.parameters import JointParameters
from moment_init.responses.result import JointFit
from moment_init.responses.rows import JointProblem, pose_joint
from moment_init.responses.starts import mean_predictors

__all__ = ["JointSpecification", "specify_joint"]

FloatArray = NDArray[np.float64]

_SMALLEST_LENGTH = 1e-8
"""Length of a standardised coefficient below which a predictor has no direction."""


@dataclass(frozen=True, slots=True, eq=False)
class JointSpecification:
    """Everything that a model of several responses is built from.

    Parameters
    ----------
    data : ResponsesData
        Checked rows, in the user's units.
    problem : JointProblem
        Coordinates of all predictors.
    directions : {"anchored", "fixed", "free"}
        What is done about the directions.
    anchor_angle : float
        Prior angle between a direction and its anchor, in degrees.
    fit : JointFit
        Where to start.
    anchors : numpy.ndarray, shape (n_features, n_components, n_predictors)
        Unit anchors in standardised coordinates.
    """

    data: ResponsesData
    problem: JointProblem
    directions: Directions
    anchor_angle: float
    fit: JointFit
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
        """Map coefficients of standardised inputs to those of the user's columns.

        Parameters
        ----------
        columns : numpy.ndarray, shape (n_features, n_components n_predictors)
            Standardised coefficients, component by component.

        Returns
        -------
        numpy.ndarray, of the same shape
            Coefficients in the user's units.
        """
        units = [where.response_scale for where in self.problem.coordinates]
        mapped = np.linalg.solve(self.problem.coordinates[0].factor.T, columns)
        return np.asarray(mapped * np.tile(units, columns.shape[1] // len(units)))

    def standardised_values(self, parameters: JointParameters) -> dict[str, FloatArray]:
        """Values of the model's free variables at given parameters.

        Parameters
        ----------
        parameters : JointParameters
            Parameters in the user's units.

        Returns
        -------
        dict of str to numpy.ndarray
            A value for each free variable.
        """
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
    """Check the arguments and find the start.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features)
        Inputs.
    y : array-like or DataFrame, shape (n_obs, n_responses), or labels
        Responses.
    n_components : int
        Number of components.
    data_block : dict of str to object
        `family`, `link`, `offset`, `n_trials`, `sample_weight`, `groups`.
    init : object
        Where to start, as for `fit_em`; a JointFit is taken as it is.
    directions : {"anchored", "fixed", "free"}
        What is done about the directions.
    anchor_angle : float
        Prior angle in degrees.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of the search for a start.

    Returns
    -------
    JointSpecification
        What the model is built from.

    Raises
    ------
    ValueError
        For wrong values, and a start that does not fit the data.
    """
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
    problem = _centred(pose_joint(data.counted(), number, MIN_DISPERSION_RATIO))
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
