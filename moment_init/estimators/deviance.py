"""How much of the deviance of responses a prediction of their means explains."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.validation import column_or_1d

from moment_init.data import validate_n_trials, validate_row_vector, validate_sample_weight
from moment_init.families import Family
from moment_init.notices import notify
from moment_init.responses.columns import columns_of_fit
from moment_init.responses.kinds import SeparateResponses
from moment_init.responses.row_values import validate_trials

__all__ = ["deviance_explained", "mean_deviance_explained"]

FloatArray = NDArray[np.float64]


def deviance_explained(
    family: Family,
    y: Any,
    mean: FloatArray,
    *,
    sample_weight: Any = None,
    n_trials: Any = None,
) -> float:
    r"""Return the share of the deviance that predicted means explain.

    .. math:: D^2 = 1 - \frac{\sum_i c_i\, d(y_i, \hat\mu_i)}{\sum_i c_i\, d(y_i, \bar y)},
        \qquad d(y, \mu) = 2 \log \frac{f(y \mid y)}{f(y \mid \mu)},

    with f the family's density at dispersion one and c the sample weights. For a gaussian family it
    is the coefficient of determination.

    Parameters
    ----------
    family : Family
        Family of the response.
    y : array-like, shape (n_obs,)
        Response.
    mean : numpy.ndarray, shape (n_obs,)
        Predicted means; of binomial counts, probability times trials.
    sample_weight : array-like, shape (n_obs,), optional
        Weights of the rows; ones by default.
    n_trials : int or array-like, shape (n_obs,), optional
        Binomial trials.

    Returns
    -------
    float
        At most 1, which is a perfect prediction; 0 is that of the mean response. NaN for a single
        row. If the response is constant, 1 for a perfect prediction and 0 otherwise.

    Raises
    ------
    ValueError
        For wrong shapes, missing or infinite values, and responses outside the family's range.

    Warns
    -----
    UndefinedMetricWarning
        For a single row, as scikit-learn's own scores.

    Notes
    -----
    The deviance of a negative binomial depends on its dispersion, of which a mixture has several:
    with alpha = 1 it needs none, and it is as all of them smallest at the true mean.
    """
    response = validate_row_vector(column_or_1d(y), "y", len(mean))
    trials = validate_n_trials(n_trials, family, len(mean))
    family.validate_response(response, trials)
    weights = validate_sample_weight(sample_weight, len(mean))
    if len(mean) < 2:
        notify("D^2 score is not well-defined with less than two samples.", UndefinedMetricWarning)
        return float("nan")
    counts = np.ones(len(mean)) if trials is None else trials
    rates = response / counts
    counted = rates[weights > 0.0]
    if np.all(counted == counted[0]):
        return 1.0 if np.array_equal(mean, response) else 0.0
    null = np.full(len(mean), (weights @ response) / (weights @ counts))
    # The unit of a real response cancels in D^2, but far from one it would cost digits here.
    unit = float(np.std(counted)) if family.response_power else 1.0
    own, total = (
        weights @ _unit_deviance(family, response / unit, share / unit, trials)
        for share in (mean / counts, null)
    )
    return float(1.0 - own / total)


def mean_deviance_explained(
    kind: SeparateResponses,
    y: Any,
    mean: FloatArray,
    *,
    sample_weight: Any = None,
    n_trials: Any = None,
) -> float:
    """Return the mean over responses of the share of the deviance that predicted means explain.

    Parameters
    ----------
    kind : SeparateResponses
        Names and families of the responses.
    y : array-like or DataFrame, shape (n_obs, n_responses)
        Responses; the columns of a DataFrame are matched by name.
    mean : numpy.ndarray, shape (n_obs, n_responses)
        Predicted means; of binomial counts, probability times trials.
    sample_weight : array-like, shape (n_obs,), optional
        Weights of the rows; ones by default.
    n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
        Binomial trials.

    Returns
    -------
    float
        At most 1.

    Raises
    ------
    ValueError
        As `deviance_explained`.
    """
    trials = validate_trials(n_trials, kind, len(mean))
    shares = []
    for index, (family, column) in enumerate(
        zip(kind.members, columns_of_fit(y, kind.names), strict=True)
    ):
        own = trials[index] if family.has_trials and trials is not None else None
        shares.append(
            deviance_explained(
                family, column, mean[:, index], sample_weight=sample_weight, n_trials=own
            )
        )
    return float(np.mean(shares))


def _unit_deviance(
    family: Family, y: FloatArray, mean: FloatArray, n_trials: FloatArray | None
) -> FloatArray:
    dispersion = 1.0 if family.has_dispersion else None
    saturated = y if n_trials is None else y / n_trials
    best, own = (
        family.log_density(y, value, dispersion=dispersion, n_trials=n_trials)
        for value in (saturated, mean)
    )
    return np.asarray(2.0 * (best - own))
