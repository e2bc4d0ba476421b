"""Starts from moments: the candidates of the stacked estimator, where it applies."""

import numpy as np
from numpy.typing import NDArray

from moment_init.continuous_block import find_discrete_columns
from moment_init.data import RegressionData
from moment_init.em.problem import EMProblem
from moment_init.exceptions import IdentifiabilityError
from moment_init.likelihood.parameters import MixtureParameters
from moment_init.problem import pose_problem
from moment_init.scores.gaussian import Gaussian
from moment_init.stacked_result import low_order_moments

__all__ = ["has_moments", "tensor_starts"]

FloatArray = NDArray[np.float64]

MIN_ROWS_PER_FEATURE = 20
"""With fewer rows the second moments of the input alone take up what the data say."""


def has_moments(data: RegressionData, n_components: int) -> bool:
    """Whether moments can say something about these data.

    Parameters
    ----------
    data : RegressionData
        Checked rows.
    n_components : int
        Number of components.

    Returns
    -------
    bool
        False with fewer columns than components, few rows, or discrete columns.
    """
    n_obs, n_features = data.X.shape
    if n_components > n_features or n_obs < MIN_ROWS_PER_FEATURE * n_features:
        return False
    return not find_discrete_columns(data.X).any()


def tensor_starts(
    problem: EMProblem, data: RegressionData, rng: np.random.Generator
) -> list[tuple[str, MixtureParameters]]:
    """Candidates of the moments, best first.

    Parameters
    ----------
    problem : EMProblem
        The problem; its coordinates are those of the moments.
    data : RegressionData
        The rows that it was posed from.
    rng : numpy.random.Generator
        Source of the decomposition's starts.

    Returns
    -------
    list of tuple
        Origins and standardised parameters; empty where moments do not apply.
    """
    if problem.restrictions.directions is not None or not has_moments(data, problem.n_components):
        return []
    model = Gaussian().fit_rows(data.X, data.sample_weight, data.feature_names)
    try:
        fit = low_order_moments(pose_problem(data, model)).estimate(problem.n_components, rng)
    except IdentifiabilityError:
        return []
    return [(f"tensor {rank}", start) for rank, start in enumerate(fit.candidates, start=1)]
