"""The classifier: mixtures of logistic (or probit) regressions, and the codes of its labels.

Two classes have one mixture. More classes have one mixture each, one against the rest, or share the
components of one mixture of softmax regressions.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from moment_init.checks import FloatArray, require_unmasked
from moment_init.data.checking import validate_sample_weight
from moment_init.estimators.base import Inference, MixtureGLMBase, validated_data
from moment_init.estimators.fitting import validate_rows
from moment_init.families.several import CATEGORICAL, categorical
from moment_init.likelihood.parameters import MIN_DISPERSION_RATIO

MultiClass = Literal["one_vs_rest", "categorical"]


def classes_with_weight(labels: NDArray[Any], weights: FloatArray) -> NDArray[Any]:
    """Return the labels of the rows with positive weight."""
    # labels: (n_obs,), weights: (n_obs,) -> (n_classes,)
    classes = np.unique(labels[weights > 0.0])
    if len(classes) < 2:
        raise ValueError(
            "`y` must have at least two classes in the rows with positive weight; got one class, "
            f"{classes.tolist()[0]!r}. Check the labels that were passed."
        )
    return classes


def class_shares(columns: list[FloatArray]) -> FloatArray:
    """Combine the probabilities of single classes against the rest into class probabilities."""
    # columns: (n_obs,) -> (n_obs, n_classes)
    if len(columns) == 1:
        return np.column_stack([1.0 - columns[0], columns[0]])
    shares = np.column_stack(columns)
    total = shares.sum(axis=1, keepdims=True)
    # If every mixture rules a row out, all classes are equally probable.
    return np.where(total > 0.0, shares / np.where(total > 0.0, total, 1.0), 1 / len(columns))


def encode_labels(y: Any, classes: NDArray[Any]) -> FloatArray:
    """Encode labels as positions in `classes`, -1 for an unknown label."""
    # y: (n_obs,), classes: (n_classes,) -> (n_obs,)
    labels = column_or_1d(y)
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1).astype(np.float64)


def require_known(y: Any, classes: NDArray[Any]) -> FloatArray:
    """Encode the labels of new rows, and raise for unknown labels."""
    # y: (n_obs,), classes: (n_classes,) -> (n_obs,)
    codes = encode_labels(y, classes)
    if codes.min() < 0.0:
        row = int(np.argmin(codes))
        known = ", ".join(map(repr, classes.tolist()))
        raise ValueError(
            f"`y` must have the labels of the fit ({known}); got "
            f"{np.asarray(y).tolist()[row]!r} in row {row}. Leave such rows out."
        )
    return codes


def require_two_classes_for(offset: Any, classes: NDArray[Any]) -> None:
    """Raise for an offset with more than two classes, which have a mixture each."""
    # classes: (n_classes,)
    if offset is not None and len(classes) > 2:
        raise ValueError(
            "`offset` must be None for more than two classes with multi_class='one_vs_rest', "
            f"because each class has its own mixture; got one for {len(classes)} classes. Leave it "
            "out, or use multi_class='categorical'."
        )


def shares_components(multi_class: Any, classes: NDArray[Any]) -> bool:
    """Tell whether all classes share one mixture of softmax regressions."""
    # classes: (n_classes,)
    names = get_args(MultiClass)
    if multi_class not in names:
        listed = " or ".join(map(repr, names))
        raise ValueError(f"`multi_class` must be {listed}; got {multi_class!r}.")
    return multi_class == CATEGORICAL and len(classes) > 2


class MixtureGLMClassifier(ClassifierMixin, MixtureGLMBase):  # type: ignore[misc]  # scikit-learn has no types
    r"""Mixture of logistic regressions as a scikit-learn classifier.

    .. math:: P(y = 1 \mid x) = \sum_j \pi_j\, g(s_j \langle u_j, x\rangle + b_j)

    Two classes have one mixture, for the second class in sorted order. More than two classes have
    one mixture each, for the class against all others, and the probabilities are divided by their
    sum; or all classes share one mixture of softmax regressions: see `multi_class`.

    Parameters
    ----------
    n_components : int, default 2
        Number of components of each mixture.
    multi_class : {"one_vs_rest", "categorical"}, default "one_vs_rest"
        Model of more than two classes. "one_vs_rest" fits one mixture per class, with its own
        components; it supports all other arguments and costs one fit per class. "categorical" fits
        one mixture of softmax regressions, as ``fit_em(..., family="categorical")``: a row then has
        one component for all classes. It has no other link, and inference "em" or "nuts". For two
        classes the models are the same.
    link : {"logit", "probit"}, optional
        Link of the probabilities; "logit" by default.
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
        Coefficients of columns, or "bias", that all components share.
    fixed_weights, fixed_directions : array-like, optional
        Weights, and directions of shape (n_features, n_components), that are held fixed.
    min_dispersion_ratio : float, default 0.05
        Smallest ratio of two components' standard deviations in a gaussian gate.
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
    classes_ : numpy.ndarray, shape (n_classes,)
        Sorted labels of the rows with positive weight.
    fit_ : EMFit
        The fit, if there is one mixture.
    fits_ : tuple of EMFit
        The fits of the classes in sorted order, if each class has its own mixture.
    posterior_ : xarray.DataTree
        The draws, if there is one mixture; not for inference="em".
    posteriors_ : tuple of xarray.DataTree
        The draws of the classes, if each class has its own mixture; not for inference="em".
    coefficients_, directions_ : numpy.ndarray, shape (n_features, n_components)
        Coefficients, and unit vectors along them. If each class has its own mixture, these and the
        following arrays have a first dimension of length n_classes. If more than two classes share
        one mixture, all but the weights have a first dimension of length n_classes - 1, without the
        first class.
    scales_, biases_, weights_ : numpy.ndarray, shape (n_components,)
        Lengths of the coefficients, biases, and probabilities of the components. From draws, all
        parameters are posterior means (directions: the unit vectors along the means).
    n_components_ : int
        Number of fitted components; smaller than `n_components` if there are too few rows.
    n_iter_ : int or numpy.ndarray of int, shape (n_classes,)
        Number of iterations of the best run.
    n_features_in_ : int
        Number of columns seen during `fit`.
    feature_names_in_ : numpy.ndarray of str, shape (n_features,)
        Names of the columns, if all are strings.

    Notes
    -----
    See `MixtureGLMRegressor` for repeated rows, constant or collinear columns, and few rows.

    Examples
    --------
    >>> from moment_init import MixtureGLMClassifier, simulate_mixture
    >>> data = simulate_mixture(5000, 3, 2, family="bernoulli", random_seed=1)
    >>> labels = ["yes" if response else "no" for response in data.y]
    >>> model = MixtureGLMClassifier(2, random_state=1).fit(data.X, labels)
    >>> model.classes_.tolist(), model.predict_proba(data.X[:3]).shape
    (['no', 'yes'], (3, 2))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        multi_class: MultiClass = "one_vs_rest",
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
        gating: Any = None,
    ) -> Self:
        """Fit the mixtures.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs, without a column of ones.
        y : array-like, shape (n_obs,)
            Labels.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows; a row with weight 2 counts as two rows.
        groups : array-like, shape (n_obs,), optional
            Group labels; rows of a group share one component.
        offset : array-like, shape (n_obs,) or (n_obs, n_classes - 1), optional
            Known part of the linear predictor, for two classes or classes that share one mixture.
        gating : array-like or DataFrame, shape (n_obs, n_gate), optional
            Covariates of the weights, for a mixture of experts.

        Returns
        -------
        MixtureGLMClassifier
            The estimator itself.

        Raises
        ------
        TypeError
            If data or parameters have a wrong type.
        ValueError
            If there are fewer than two classes, or as in `moment_init.fit_em`, except for constant
            or collinear columns and too few rows.

        Warns
        -----
        ConvergenceWarning
            If a search did not converge; filters for scikit-learn's warning catch it as well.
        WeakSignalWarning
            If there are fewer distinct rows than parameters.
        """
        require_unmasked(X, "X")
        require_unmasked(y, "y")
        features, labels = validated_data(self, X, y, ensure_min_samples=2, dtype="numeric")
        check_classification_targets(labels)
        weights = validate_sample_weight(sample_weight, len(labels))
        self.classes_ = classes_with_weight(labels, weights)
        is_joint = shares_components(self.multi_class, self.classes_)
        n_classes, codes = len(self.classes_), encode_labels(labels, self.classes_)
        if not is_joint:
            require_two_classes_for(offset, self.classes_)
        rows = validate_rows(
            features,
            np.maximum(codes, 0.0) if is_joint else codes > 0.0,
            family=categorical(n_classes) if is_joint else "bernoulli",
            link=self.link,
            feature_names=self._names(),
            sample_weight=weights,
            groups=groups,
            offset=offset,
            gating=gating,
        )
        if is_joint:
            self._fit_mixtures(rows.with_response(codes, classes=self.classes_))
        else:
            first = 1 if n_classes == 2 else 0
            self._fit_mixtures(rows.with_response(codes), range(first, n_classes))
        return self

    def predict_proba(self, X: Any, *, offset: Any = None, gating: Any = None) -> FloatArray:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        offset, gating : array-like, optional
            As in the fit; an offset of zero by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_classes)
            Probabilities in the order of `classes_`; from draws, their means.
        """
        features = self._validated(X)
        columns = [
            mixture.mean(features, "mean", offset=offset, gating=gating)
            for mixture in self._mixtures
        ]
        return columns[0] if columns[0].ndim == 2 else class_shares(columns)

    def predict(self, X: Any, *, offset: Any = None, gating: Any = None) -> NDArray[Any]:
        """Predict the most probable class of rows.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        offset, gating : array-like, optional
            As in the fit; an offset of zero by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Labels.
        """
        shares = self.predict_proba(X, offset=offset, gating=gating)
        return np.asarray(self.classes_[shares.argmax(axis=1)])

    def predict_membership(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        offset: Any = None,
        gating: Any = None,
    ) -> FloatArray:
        """Predict the probabilities of the components for rows.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,), optional
            Labels. Without labels, the prior probabilities are returned: the weights, or those of
            the gate.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows within their groups; without groups they have no effect.
        groups, offset, gating : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components) or (n_obs, n_classes, n_components)
            Probabilities that sum to one over components. The middle dimension exists if each class
            has its own mixture.
        """
        features = self._validated(X)
        data = {
            "offset": offset,
            "gating": gating,
            "groups": groups,
            "sample_weight": sample_weight,
        }
        memberships = [
            mixture.membership(features, response, **data)
            for mixture, response in zip(self._mixtures, self._responses(y), strict=True)
        ]
        return memberships[0] if len(memberships) == 1 else np.stack(memberships, axis=1)

    def log_density(self, X: Any, y: Any, *, offset: Any = None, gating: Any = None) -> FloatArray:
        """Compute the log probability of every label.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,)
            Labels.
        offset, gating : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs,)
            Log probabilities.
        """
        shares = self.predict_proba(X, offset=offset, gating=gating)
        codes = require_known(y, self.classes_).astype(np.intp)
        check_consistent_length(shares, codes)
        with np.errstate(divide="ignore"):  # a probability may have underflowed to zero
            return np.asarray(np.log(shares[np.arange(len(shares)), codes]))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None, gating: Any = None
    ) -> float:
        """Return the share of labels that `predict` gets right.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,)
            Labels.
        sample_weight : array-like, shape (n_obs,), optional
            Weights of the rows.
        offset, gating : array-like, optional
            As in the fit.

        Returns
        -------
        float
            Accuracy, between 0 and 1.
        """
        predicted = self.predict(X, offset=offset, gating=gating)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _responses(self, y: Any) -> list[NDArray[Any] | None]:
        """Return the response of each mixture; None without labels."""
        if y is None:
            return [None] * len(self._mixtures)
        codes = require_known(y, self.classes_)
        if self._mixtures[0].fit.classes is not None:
            return [self.classes_[codes.astype(np.intp)]]
        if len(self._mixtures) == 1:
            return [codes]
        return [(codes == code).astype(np.float64) for code in range(len(self.classes_))]
