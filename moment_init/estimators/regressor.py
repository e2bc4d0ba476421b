"""The regressor: mean responses of a mixture of generalised linear models, and their score.

The score is the share of the deviance of the responses that the predicted means explain.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.validation import column_or_1d

from moment_init.checks import FloatArray, notify, require_no_dates, require_unmasked
from moment_init.data.checking import (
    match_trials,
    validate_n_trials,
    validate_row_vector,
    validate_sample_weight,
)
from moment_init.data.formula_encoding import is_frame
from moment_init.estimators.base import Inference, MixtureGLMBase, validated_data
from moment_init.estimators.fitting import refuses_negative, validate_rows
from moment_init.families.base import Family
from moment_init.families.registry import FAMILIES, columns_of_fit, has_classes
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO
from moment_init.likelihood.rows import column


def deviance_explained(
    family: Family,
    y: Any,
    mean: FloatArray,
    *,
    sample_weight: Any = None,
    n_trials: Any = None,
) -> float:
    r"""Compute the share of the deviance that predicted means explain.

    .. math:: D^2 = 1 - \frac{\sum_i c_i\, d(y_i, \hat\mu_i)}{\sum_i c_i\, d(y_i, \bar y)},
        \qquad d(y, \mu) = 2 \log \frac{f(y \mid y)}{f(y \mid \mu)},

    with f the family's density at dispersion one and c the sample weights. For a gaussian family
    this is the coefficient of determination.

    The deviance of a negative binomial depends on the dispersion, and a mixture has several. With
    alpha = 1 none is needed, and the expected deviance is still smallest at the true mean.
    """
    # y, mean, sample_weight, n_trials: (n_obs,)
    response = validate_row_vector(column_or_1d(y), "y", len(mean))
    trials = validate_n_trials(n_trials, family, len(mean))
    family.validate_response(response, trials)
    weights = validate_sample_weight(sample_weight, len(mean))
    if len(mean) < 2:
        notify("D^2 score is not well-defined with less than two samples.", UndefinedMetricWarning)
        return float("nan")
    counts = np.ones(len(mean)) if trials is None else trials
    rates = response / counts
    weighted = rates[weights > 0.0]
    if np.all(weighted == weighted[0]):
        return 1.0 if np.array_equal(mean, response) else 0.0
    null = np.full(len(mean), (weights @ response) / (weights @ counts))
    # The unit of a real response cancels in D^2, but an extreme unit would lose digits here.
    unit = float(np.std(weighted)) if family.response_power else 1.0
    residual, total = (
        weights @ _unit_deviance(family, response / unit, share / unit, trials)
        for share in (mean / counts, null)
    )
    return float(1.0 - residual / total)


def _unit_deviance(
    family: Family, y: FloatArray, mean: FloatArray, n_trials: FloatArray | None
) -> FloatArray:
    dispersion = 1.0 if family.has_dispersion else None
    best, predicted = (
        family.log_density(y, value, dispersion=dispersion, n_trials=n_trials)
        for value in (y if n_trials is None else y / n_trials, mean)
    )
    return np.asarray(2.0 * (best - predicted))


class MixtureGLMRegressor(RegressorMixin, MixtureGLMBase):  # type: ignore[misc]  # scikit-learn has no types
    r"""Mixture of generalised linear models as a scikit-learn regressor.

    .. math:: E[y \mid x] = \sum_j \pi_j\, g(s_j \langle u_j, x\rangle + b_j)

    Several responses, y of shape (n_obs, n_responses), are fitted together: all responses of a row
    share its component, and each response has its own coefficients.

    Parameters
    ----------
    n_components : int, default 2
        Number of components.
    family : str, Family or sequence of them, default "gaussian"
        Family of the response, or one per response: "gaussian", "poisson", "negative_binomial",
        "gamma", "binomial" or "bernoulli".
    link : str, optional
        Link of the family; its default link if left out.
    inference : {"em", "nuts", "laplace", "pathfinder", "advi"}, default "em"
        "em" fits by EM, see `priors` and `moment_init.fit_em`. The others start at that fit and
        draw from the posterior or an approximation to it, see `moment_init.sample`; predictions
        are then averages over the draws.
    gate : {"softmax", "gaussian"}, default "softmax"
        How the weights depend on `gating`, an argument of `fit`.
    init : str, estimate, fit, tuple or array, default "search"
        Where the search starts, as for `moment_init.fit_em`.
    n_starts, max_seconds, random_start : int, float and str, optional
        Number and kind of random starts.
    shared : str, int or sequence, optional
        Coefficients of columns, "bias" or "dispersion" that all components share.
    fixed_weights, fixed_directions : array-like, optional
        Weights, and directions of shape (n_features, n_components), that are held fixed.
    min_dispersion_ratio : float, default 0.05
        Smallest ratio of two components' standard deviations.
    max_iter, tolerance : int and float, default 1000 and 1e-6
        Largest number of iterations of the final run, and the predicted gain in log-likelihood
        below which it has converged.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Prior of the directions; not for inference="em".
    anchor_angle : float, default 45
        Prior angle between a direction and its anchor, in degrees; not for inference="em".
    priors : "default", mapping or None, default "default"
        With inference="em", priors of a maximum a posteriori fit, as for `moment_init.fit_em`; None
        is maximum likelihood. For draws, distributions that replace the defaults, see
        `moment_init.models.mixture_glm`; None and "default" are the defaults, and with None the
        chains start at the maximum of the likelihood.
    draws, tune, chains : int
        Draws per chain, tuning draws per chain, and number of chains; not for inference="em".
    sampler_options : mapping of str to object, optional
        Further arguments of `moment_init.sample`, such as ``{"cores": 2}``.
    transform_link : str, optional
        By default, `transform` returns projections <u_j, x>. It returns g(<u_j, x>) if this is
        "family" (the g of the model) or the name of a link ("logit", "probit", "log", "identity"),
        and the means of the components, g(s_j <u_j, x> + b_j), if it is "components".
    n_jobs, progressbar : int and bool
        Number of random starts that run in parallel, and whether to show progress.
    random_state : int, numpy.random.RandomState, numpy.random.Generator or None
        Seed of the search and the draws. An int makes fits repeatable; None draws a fresh seed and
        does not use NumPy's global generator.

    Attributes
    ----------
    fit_ : EMFit
        The fit, with every start, standard errors, status and warnings.
    posterior_ : xarray.DataTree
        The draws; not for inference="em".
    coefficients_, directions_ : numpy.ndarray, shape (n_features, n_components)
        Coefficients, and unit vectors along them. With several responses these, `scales_`,
        `biases_` and `dispersion_` have a first dimension of length n_responses.
    scales_, biases_, weights_ : numpy.ndarray, shape (n_components,)
        Lengths of the coefficients, biases, and probabilities of the components. From draws, all
        parameters are posterior means (directions: the unit vectors along the means).
    dispersion_ : numpy.ndarray, shape (n_components,), or None
        Dispersions, for families that have one; NaN for responses without one.
    n_components_ : int
        Number of fitted components; smaller than `n_components` if there are too few rows.
    n_iter_ : int
        Number of iterations of the best run.
    n_features_in_ : int
        Number of columns seen during `fit`.
    feature_names_in_ : numpy.ndarray of str, shape (n_features,)
        Names of the columns, if all are strings.

    Notes
    -----
    A row with weight 2 gives the same fit as two equal rows, to the last bit, and the order of the
    rows does not matter.

    `fit_em` refuses constant and collinear columns, whose coefficients are not identified. Their
    predictions are, so the estimator accepts such columns and reports the shortest of all
    coefficients with the same predictions. With fewer rows than parameters it fits only the leading
    principal axes of the columns, if necessary fewer components, and warns. With draws,
    `shared`, `fixed_weights`, `fixed_directions`, a Gaussian gate or a given start, it keeps all
    columns and components and refuses constant and collinear columns, as `fit_em` does.

    Several responses support inference "em" or "nuts".

    Examples
    --------
    >>> from moment_init import MixtureGLMRegressor, simulate_mixture
    >>> data = simulate_mixture(2000, 3, 2, family="poisson", weights=[0.8, 0.2], random_seed=1)
    >>> model = MixtureGLMRegressor(2, family="poisson", random_state=1).fit(data.X, data.y)
    >>> model.predict(data.X[:3]).shape, model.transform(data.X[:3]).shape
    ((3,), (3, 2))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        family: str | Family | Sequence[str | Family] = "gaussian",
        link: str | None = None,
        inference: Inference = "em",
        gate: str = "softmax",
        init: Any = "search",
        n_starts: int | None = None,
        max_seconds: float | None = None,
        random_start: str = "both",
        shared: Any = None,
        fixed_weights: Any = None,
        fixed_directions: Any = None,
        min_dispersion_ratio: float = MIN_DISPERSION_RATIO,
        max_iter: int = 1000,
        tolerance: float = 1e-6,
        directions: str = "anchored",
        anchor_angle: float = 45.0,
        priors: str | Mapping[str, Any] | None = "default",
        draws: int = 1000,
        tune: int | None = None,
        chains: int = 4,
        sampler_options: Mapping[str, Any] | None = None,
        transform_link: str | None = None,
        n_jobs: int | None = None,
        progressbar: bool = False,
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
    ) -> Self:
        """Fit the mixture.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs, without a column of ones.
        y : array-like, shape (n_obs,) or (n_obs, n_responses)
            One response, or several with one column each; a DataFrame gives them names.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows; a row with weight 2 counts as two rows.
        groups : array-like, shape (n_obs,), optional
            Group labels; rows of a group share one component.
        offset : array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Known part of the linear predictor, such as the logarithm of an exposure.
        n_trials : int or array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Number of trials of each binomial response.
        gating : array-like or DataFrame, shape (n_obs, n_gate), optional
            Covariates of the weights, for a mixture of experts.

        Returns
        -------
        MixtureGLMRegressor
            The estimator itself.

        Raises
        ------
        TypeError
            If data or parameters have a wrong type.
        ValueError
            As in `moment_init.fit_em`, except for constant or collinear columns and too few rows.

        Warns
        -----
        ConvergenceWarning
            If the search did not converge; filters for scikit-learn's warning catch it as well.
        WeakSignalWarning
            If there are fewer distinct rows than parameters.
        """
        require_unmasked(X, "X")
        require_no_dates(y, "y")
        if has_classes(self.family):
            raise ValueError(
                f"`family` must be one of {', '.join(map(repr, FAMILIES))}; got 'categorical'. Use "
                "MixtureGLMClassifier(multi_class='categorical')."
            )
        shape = (y if hasattr(y, "shape") else np.asarray(y)).shape
        is_several = len(shape) > 1 and shape[1] != 1
        checks = {"y_numeric": True, "ensure_min_samples": 2, "dtype": "numeric"}
        features, response = validated_data(self, X, y, multi_output=is_several, **checks)
        rows = validate_rows(
            features,
            y if is_several and is_frame(y) else response,
            family=self.family,
            link=self.link,
            feature_names=self._names(),
            sample_weight=sample_weight,
            groups=groups,
            offset=offset,
            n_trials=n_trials,
            gating=gating,
        )
        self._fit_mixtures(rows)
        return self

    def predict(
        self, X: Any, *, offset: Any = None, n_trials: Any = None, gating: Any = None
    ) -> FloatArray:
        """Predict the mean response of rows.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        offset, n_trials, gating : array-like, optional
            As in the fit; an offset of zero and one trial by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs,) or (n_obs, n_responses)
            Means of the mixture, averaged over draws if there are any. For binomial counts, the
            probability times the number of trials.
        """
        features = self._validated(X)
        data = {"offset": offset, "n_trials": n_trials, "gating": gating}
        return self._mixtures[0].mean(features, "mean", **data)

    def predict_components(
        self, X: Any, *, offset: Any = None, n_trials: Any = None, gating: Any = None
    ) -> FloatArray:
        """Predict the mean response of rows in every component.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        offset, n_trials, gating : array-like, optional
            As in the fit; an offset of zero and one trial by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components) or (n_obs, n_components, n_responses)
            Means of the components.
        """
        features = self._validated(X)
        data = {"offset": offset, "n_trials": n_trials, "gating": gating}
        return self._mixtures[0].mean(features, "components", **data)

    def predict_membership(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
    ) -> FloatArray:
        """Predict the probabilities of the components for rows.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,) or (n_obs, n_responses), optional
            Response. Without it, the prior probabilities are returned: the weights, or those of the
            gate.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows within their groups; without groups they have no effect.
        groups, offset, n_trials, gating : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components)
            Probabilities; every row sums to one.
        """
        features = self._validated(X)
        data = {"offset": offset, "n_trials": n_trials, "gating": gating}
        units = {"groups": groups, "sample_weight": sample_weight}
        return self._mixtures[0].membership(features, y, **data, **units)

    def log_density(
        self, X: Any, y: Any, *, offset: Any = None, n_trials: Any = None, gating: Any = None
    ) -> FloatArray:
        """Compute the log density of each row's response, or of all its responses.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,) or (n_obs, n_responses)
            Response.
        offset, n_trials, gating : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log densities; from draws, the logarithms of the mean densities.
        """
        features = self._validated(X)
        data = {"offset": offset, "n_trials": n_trials, "gating": gating}
        return self._mixtures[0].log_density(features, y, **data)

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        n_trials: Any = None,
        gating: Any = None,
    ) -> float:
        """Return the share of the deviance that `predict` explains, D^2 (gaussian: R^2).

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,) or (n_obs, n_responses)
            Response.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows.
        offset, n_trials, gating : array-like, optional
            As in the fit.

        Returns
        -------
        float
            At most 1; 0 if the mean response is predicted. For several responses, the mean.

        Notes
        -----
        The score judges means only, as do those of scikit-learn's generalised linear models. The
        mean of a mixture of linear models is linear for any number of components: use `log_density`
        to choose that number.
        """
        mean = self.predict(X, offset=offset, n_trials=n_trials, gating=gating)
        family, names = self.fit_.response_family, self.fit_.response_names
        trials = match_trials(n_trials, family, len(mean))
        responses = columns_of_fit(y, names) if names else [y]
        shares = []
        for index, (member, response) in enumerate(zip(family.members, responses, strict=True)):
            counts = column(trials, index) if member.has_trials and trials is not None else None
            data = {"sample_weight": sample_weight, "n_trials": counts}
            shares.append(deviance_explained(member, response, column(mean, index), **data))
        return float(np.mean(shares))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, with what the family requires of the response."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = refuses_negative(self.family)
        tags.target_tags.multi_output = True
        return tags
