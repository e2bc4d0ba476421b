"""The classifier: labels from mixtures of logistic (or probit) regressions."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from moment_init.data import validate_sample_weight
from moment_init.estimators.base import MixtureGLMBase
from moment_init.estimators.rows import validate_rows
from moment_init.families import Family, get_family
from moment_init.real_arrays import require_unmasked

__all__ = ["MixtureGLMClassifier"]

FloatArray = NDArray[np.float64]


class MixtureGLMClassifier(ClassifierMixin, MixtureGLMBase):  # type: ignore[misc]  # scikit-learn has no types
    r"""Mixture of logistic regressions as a scikit-learn classifier.

    .. math:: P(y = 1 \mid x) = \sum_j \pi_j\, g(s_j \langle u_j, x\rangle + b_j)

    Two classes have one mixture, for the second of them in sorted order. More have one each, for a
    class against all others, and the probabilities are divided by their sum.

    Parameters
    ----------
    n_components : int, default 2
        Number of components of each mixture.
    link : {"logit", "probit"}, optional
        Link of the probabilities; "logit" by default.
    inference : {"em", "nuts", "laplace", "pathfinder", "advi"}, default "em"
        "em" fits by maximum likelihood, see `moment_init.fit_em`. The others draw from the
        posterior or an approximation of it, starting at that fit, see `moment_init.sample`;
        predictions are then averages over the draws.
    gate : {"softmax", "gaussian"}, default "softmax"
        How weights depend on `gating` of `fit`.
    init : {"tensor", "random"}, MomentEstimate, EMFit, tuple or array, default "tensor"
        Where the search starts.
    n_starts : int, optional
        Number of random starts.
    random_start : {"assignment", "coefficients"}, default "assignment"
        Kind of random starts.
    shared : str, int or sequence, optional
        Columns or "intercept", common to all components.
    fixed_weights : array-like, shape (n_components,), optional
        Weights that are held.
    fixed_directions : array-like, shape (n_features, n_components), optional
        Directions that are held.
    min_dispersion_ratio : float, default 0.05
        Smallest ratio of two standard deviations of the covariates of a gaussian gate.
    max_iter : int, default 1000
        Most iterations of the run to the maximum.
    tolerance : float, default 1e-6
        Predicted gain of log-likelihood below which a run has converged.
    directions : {"anchored", "fixed", "free"}, default "anchored"
        Prior of the directions; not for inference="em".
    anchor_angle : float, default 45
        Prior angle between a direction and its anchor, in degrees; not for inference="em".
    priors : mapping of str to prior, optional
        Other priors, see `moment_init.models.mixture_glm`; not for inference="em".
    draws : int, default 1000
        Draws of each chain; not for inference="em".
    tune : int, optional
        Draws that tune the sampler; not for inference="em".
    chains : int, default 4
        Number of chains; not for inference="em".
    sampler_options : mapping of str to object, optional
        Further arguments of `moment_init.sample`, such as ``{"cores": 2}``.
    transform_link : str, optional
        `transform` gives projections <u_j, x> by default, g of them if this is "family" (the g of
        the model) or the name of a link ("logit", "probit", "log", "identity"), and the means of
        the components, g(s_j <u_j, x> + b_j), if it is "components".
    n_jobs : int, optional
        Random starts that run at once.
    progressbar : bool, default False
        Whether to show progress.
    random_state : int, numpy.random.RandomState, numpy.random.Generator or None
        Seed of search and draws: an int repeats a fit; None is new, not NumPy's global generator.

    Attributes
    ----------
    classes_ : numpy.ndarray, shape (n_classes,)
        Labels of the rows of positive weight, sorted.
    fit_ : EMFit
        The maximum-likelihood fit, for two classes.
    fits_ : tuple of EMFit
        Those of more classes, in their order.
    posterior_ : xarray.DataTree
        The draws, for two classes; not for inference="em".
    posteriors_ : tuple of xarray.DataTree
        Those of more classes, in their order; not for inference="em".
    coefficients_, directions_ : numpy.ndarray, shape (n_features, n_components)
        Coefficients, and unit vectors along them; with a first dimension of length n_classes for
        more than two classes, as all that follow.
    scales_, biases_, weights_ : numpy.ndarray, shape (n_components,)
        Lengths of the coefficients, intercepts, and probabilities of the components. From draws all
        of these are posterior means (of directions the unit vectors along them).
    n_components_ : int
        Number of components; smaller than `n_components` if there are too few rows.
    n_iter_ : int or numpy.ndarray of int, shape (n_classes,)
        Iterations of the winning run.
    n_features_in_ : int
        Number of columns seen during `fit`.
    feature_names_in_ : numpy.ndarray of str, shape (n_features,)
        Their names, where all are strings.

    Notes
    -----
    See `MixtureGLMRegressor` about repeated rows, constant or collinear columns, and few rows.

    Examples
    --------
    >>> from moment_init import MixtureGLMClassifier, simulate_mixture
    >>> data = simulate_mixture(5000, 3, 2, family="bernoulli", random_seed=1)
    >>> labels = ["yes" if response else "no" for response in data.y]
    >>> model = MixtureGLMClassifier(2, random_state=1).fit(data.X, labels)
    >>> model.classes_.tolist(), model.predict_proba(data.X[:3]).shape
    (['no', 'yes'], (3, 2))
    """

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
            A row of weight 2 counts as two rows.
        groups : array-like, shape (n_obs,), optional
            Rows with one value share their component.
        offset : array-like, shape (n_obs,), optional
            Known part of the linear predictor, for two classes.
        gating : array-like or DataFrame, shape (n_obs, n_gate), optional
            Covariates on which the weights depend.

        Returns
        -------
        MixtureGLMClassifier
            The estimator itself.

        Raises
        ------
        TypeError
            For data or parameters of a wrong type.
        ValueError
            For fewer than two classes; as `moment_init.fit_em`, but for constant or collinear
            columns and too few rows.

        Warns
        -----
        ConvergenceWarning
            If a search did not converge; of this library's and of scikit-learn's class.
        WeakSignalWarning
            If there are fewer rows than parameters.
        """
        require_unmasked(X, "X")
        require_unmasked(y, "y")
        features, labels = validate_data(self, X, y, ensure_min_samples=2, dtype="numeric")
        check_classification_targets(labels)
        weights = validate_sample_weight(sample_weight, len(labels))
        self.classes_ = _classes(labels, weights)
        _require_two_classes_for(offset, self.classes_)
        rows = validate_rows(
            features,
            np.zeros(len(labels)),
            self._family(),
            feature_names=self._names(),
            sample_weight=weights,
            groups=groups,
            offset=offset,
            gating=gating,
        )
        codes = range(1, 2) if len(self.classes_) == 2 else range(len(self.classes_))
        self._fit_mixtures(replace(rows, y=self._encoded(labels)), codes)
        return self

    def predict_proba(self, X: Any, *, offset: Any = None, gating: Any = None) -> FloatArray:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        offset, gating : array-like, optional
            As in the fit; an offset of zero by default.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_classes)
            Probabilities in the order of `classes_`; from draws the means over them.
        """
        features = self._validated(X)
        columns = [
            mixture.mean(features, "mean", offset=offset, gating=gating)
            for mixture in self._mixtures
        ]
        if len(columns) == 1:
            return np.column_stack([1.0 - columns[0], columns[0]])
        shares = np.column_stack(columns)
        total = shares.sum(axis=1, keepdims=True)
        # A row that every mixture rules out says nothing about its class.
        return np.where(total > 0.0, shares / np.where(total > 0.0, total, 1.0), 1 / len(columns))

    def predict(self, X: Any, *, offset: Any = None, gating: Any = None) -> NDArray[Any]:
        """Most probable class of rows.

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
        """Probability of every component for rows.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.
        y : array-like, shape (n_obs,), optional
            Labels. Without them the probabilities are those before they are seen: the weights, or
            what the gate says.
        sample_weight : array-like, shape (n_obs,), optional
            Weight of each row within its group; without groups it changes nothing.
        groups, offset, gating : array-like, optional
            As in the fit.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_components) or (n_obs, n_classes, n_components)
            Probabilities that sum to one over components; with the middle dimension for more than
            two classes, as each has a mixture of its own.
        """
        features = self._validated(X)
        data = {
            "offset": offset,
            "gating": gating,
            "groups": groups,
            "sample_weight": sample_weight,
        }
        found = [
            mixture.membership(features, response, **data)
            for mixture, response in zip(self._mixtures, self._responses(y), strict=True)
        ]
        return found[0] if len(found) == 1 else np.stack(found, axis=1)

    def log_density(self, X: Any, y: Any, *, offset: Any = None, gating: Any = None) -> FloatArray:
        """Log probability of every label.

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
        codes = self._known(y).astype(np.intp)
        check_consistent_length(shares, codes)
        with np.errstate(divide="ignore"):  # a probability may have underflowed to zero
            return np.asarray(np.log(shares[np.arange(len(shares)), codes]))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None, gating: Any = None
    ) -> float:
        """Share of the labels that `predict` finds.

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

    def _family(self) -> Family:
        return get_family("bernoulli", self.link)

    def _responses(self, y: Any) -> list[FloatArray | None]:
        """Response of each mixture; None if there is none."""
        if y is None:
            return [None] * len(self._mixtures)
        codes = self._known(y)
        if len(self._mixtures) == 1:
            return [codes]
        return [(codes == code).astype(np.float64) for code in range(len(self.classes_))]

    def _encoded(self, y: Any) -> FloatArray:
        """Numbers of the classes of rows; -1 for labels that no row of positive weight had."""
        labels = column_or_1d(y)
        codes = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        return np.where(self.classes_[codes] == labels, codes, -1).astype(np.float64)

    def _known(self, y: Any) -> FloatArray:
        """Numbers of the classes of new rows, all of which must be known."""
        codes = self._encoded(y)
        if codes.min() < 0.0:
            row = int(np.argmin(codes))
            known = ", ".join(map(repr, self.classes_.tolist()))
            raise ValueError(
                f"`y` must have the labels of the fit ({known}); got "
                f"{np.asarray(y).tolist()[row]!r} in row {row}. Leave such rows out."
            )
        return codes


def _classes(labels: NDArray[Any], weights: FloatArray) -> NDArray[Any]:
    """Labels of the rows that count, of which there must be two."""
    classes = np.unique(labels[weights > 0.0])
    if len(classes) < 2:
        raise ValueError(
            "`y` must have at least two classes in the rows of positive weight; got one class, "
            f"{classes.tolist()[0]!r}. Check the labels that were passed."
        )
    return classes


def _require_two_classes_for(offset: Any, classes: NDArray[Any]) -> None:
    if offset is not None and len(classes) > 2:
        raise ValueError(
            "`offset` must be None for more than two classes, each of which has a predictor of its "
            f"own; got one for {len(classes)} classes. Leave it out."
        )
