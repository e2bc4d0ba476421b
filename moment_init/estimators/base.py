"""The common base of the regressor and the classifier: parameters, fitting and projections."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from moment_init.checks import FloatArray, as_known_table, require_unmasked
from moment_init.data.checking import require_finite_predictors, require_one_response
from moment_init.em.result import EMFit
from moment_init.estimators.fitting import (
    EstimatorRows,
    FittedMixture,
    MixtureOptions,
    distinct_rows,
    fit_mixture,
    sample_mixture,
)
from moment_init.families.links import LINKS

Inference = Literal["em", "nuts", "laplace", "pathfinder", "advi"]

_FITTING = (
    "gate",
    "init",
    "n_starts",
    "max_seconds",
    "random_start",
    "shared",
    "fixed_weights",
    "fixed_directions",
    "min_dispersion_ratio",
    "max_iter",
    "tolerance",
    "n_jobs",
    "progressbar",
)
"""Parameters that are passed to `fit_em`."""

_SAMPLING = ("directions", "anchor_angle", "draws", "tune", "chains", "progressbar")
"""Parameters that are passed to `sample`."""


class MixtureGLMBase(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no types
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Base of the estimators: fits, projections and what scikit-learn asks for."""

    n_components: int
    inference: Inference
    priors: str | Mapping[str, Any] | None
    sampler_options: Mapping[str, Any] | None
    transform_link: str | None
    random_state: Any

    def _keep(self, parameters: Mapping[str, Any]) -> None:
        """Keep the parameters of the constructor as they are; `parameters` are its `locals()`."""
        for name, value in parameters.items():
            if name != "self":
                setattr(self, name, value)

    def transform(self, X: Any) -> FloatArray:
        r"""Project rows onto the directions of the components.

        Parameters
        ----------
        X : array-like or DataFrame, shape (n_obs, n_features)
            Inputs.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_directions)
            Projections :math:`\langle u_j, x\rangle`, :math:`g(\langle u_j, x\rangle)` if
            `transform_link` is a link or "family", or :math:`g(s_j \langle u_j, x\rangle + b_j)` if
            it is "components". There is one column per component; with several classes or
            responses, the columns of the first come first. If all classes share one mixture, the
            first class has probabilities but no projections.
        """
        features = np.asarray(self._validated(X), dtype=np.float64)
        link = self.transform_link
        if link not in (None, "family", "components", *LINKS):
            raise ValueError(
                "`transform_link` must be None, 'family', 'components' or one of "
                f"{', '.join(map(repr, LINKS))}; got {link!r}."
            )
        if link == "components":
            means = [mixture.mean(features, "components") for mixture in self._mixtures]
            by_outcome = np.concatenate([np.atleast_3d(mean) for mean in means], axis=2)
            return np.hstack([*np.moveaxis(by_outcome, 2, 0)])
        directions = self.directions_.reshape(-1, *self.directions_.shape[-2:])
        require_finite_predictors(features, np.moveaxis(directions, 1, 0), "X")
        projections = features @ directions  # (n_predictors, n_obs, n_components)
        if link == "family":
            projections = self._mixtures[0].fit.response_family.means(projections)
        elif link is not None:
            projections = LINKS[link].mean(projections)
        return np.hstack([*projections])

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, from which scikit-learn makes their names."""
        if self.transform_link in ("family", "components"):
            return sum(mixture.n_means for mixture in self._mixtures)
        return int(self.scales_.size)

    # --- for the subclasses ----------------------------------------------------------------------

    def _fit_mixtures(self, rows: EstimatorRows, codes: Sequence[float] | None = None) -> None:
        """Fit one mixture to the response, or one to the indicator of each class code."""
        options = self._options()
        if self.inference not in ("em", "nuts"):
            require_one_response(rows.data, f"inference={self.inference!r}")
        targets = _indicated(rows, codes)
        # Merged before indicators are made, so that all mixtures have the same rows.
        merged = distinct_rows(rows) if options.has_own_start and self.inference == "em" else rows
        seeds = _drawn_seeds(self.random_state, len(targets))
        fits = tuple(
            fit_mixture(target, used, options, seed, reduces=self.inference == "em")
            for target, used, seed in zip(
                targets, _indicated(merged, codes), seeds[:, 0].tolist(), strict=True
            )
        )
        trees = tuple(
            sample_mixture(target, options, fit, seed)
            for target, fit, seed in zip(targets, fits, seeds[:, 1].tolist(), strict=True)
            if self.inference != "em"
        )
        self._record(fits, trees)

    def _record(self, fits: tuple[EMFit, ...], trees: tuple[Any, ...]) -> None:
        """Set the fitted attributes."""
        mixtures = [FittedMixture(*pair) for pair in zip_longest(fits, trees)]  # EM has no trees
        self._mixtures = tuple(mixtures)
        for name in ("fit_", "fits_", "posterior_", "posteriors_"):
            if hasattr(self, name):
                delattr(self, name)  # left by an earlier fit
        is_single = len(fits) == 1
        for name, results in {"fit": fits, "posterior": trees}.items():
            if results:
                setattr(
                    self,
                    f"{name}_" if is_single else f"{name}s_",
                    results[0] if is_single else results,
                )
        points = [mixture.point for mixture in mixtures]
        for name in ("coefficients", "directions", "scales", "biases", "weights", "dispersion"):
            values = [getattr(point, name) for point in points]
            setattr(self, f"{name}_", values[0] if is_single else _stacked(values))
        self.n_components_ = points[0].n_components
        n_iter = np.array([fit.n_iter for fit in fits])
        self.n_iter_ = int(n_iter[0]) if is_single else n_iter

    def _options(self) -> MixtureOptions:
        """Collect the arguments of `fit_em` and `sample`."""
        self._validate_inference()
        sampling = {name: getattr(self, name) for name in _SAMPLING}
        fitting = {name: getattr(self, name) for name in _FITTING}
        # a mapping for `sample` holds distributions, which `fit_em` does not take
        is_given = self.inference == "em" or self.priors is None
        fitting["priors"] = self.priors if is_given else "default"
        sampling["priors"] = None if self.priors == "default" else self.priors
        return MixtureOptions(
            n_components=self.n_components,
            fitting=fitting,
            sampling={**sampling, "method": self.inference, **(self.sampler_options or {})},
        )

    def _validate_inference(self) -> None:
        names = get_args(Inference)
        if self.inference not in names:
            listed = ", ".join(map(repr, names))
            raise ValueError(f"`inference` must be one of {listed}; got {self.inference!r}.")
        if self.inference == "em":
            return
        refused: dict[str, Any] = {"shared": None, "fixed_weights": None, "gate": "softmax"}
        for name, default in refused.items():
            if not np.array_equal(getattr(self, name), default):  # may be an array
                raise ValueError(
                    f"`{name}` must be {default!r} with inference={self.inference!r}, whose model "
                    f"does not support it; got {getattr(self, name)!r}. Use inference='em'."
                )

    def _names(self) -> tuple[str, ...] | None:
        """Return the column names of the data of `fit`."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(map(str, names))

    def _validated(self, X: Any) -> NDArray[np.generic]:
        """Check new rows against the data of the fit."""
        check_is_fitted(self)
        require_unmasked(X, "X")
        return np.asarray(validated_data(self, X, reset=False))


def validated_data(estimator: BaseEstimator, *data: Any, **checks: Any) -> Any:
    """Check arrays by scikit-learn's rules."""
    # Scikit-learn sums to find infinities: if both signs occur, the sum is NaN and NumPy warns.
    with np.errstate(invalid="ignore"):
        return validate_data(estimator, *map(as_known_table, data), **checks)


def _drawn_seeds(random_state: Any, number: int) -> NDArray[np.integer[Any]]:
    """Draw two seeds for each mixture, (number, 2): for its search and for its draws.

    Without a state the seeds are fresh: scikit-learn would draw them from NumPy's global generator
    and change its state.
    """
    bound, size = np.iinfo(np.int32).max, (number, 2)
    if random_state is None or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state).integers(bound, size=size)
    return np.asarray(check_random_state(random_state).randint(bound, size=size))


def _indicated(rows: EstimatorRows, codes: Sequence[float] | None) -> list[EstimatorRows]:
    """Return the rows, or for each code the rows with the indicator of that code as response."""
    if codes is None:
        return [rows]
    y = rows.data.y
    return [rows.with_response((y == code).astype(np.float64)) for code in codes]


def _stacked(values: list[FloatArray | None]) -> FloatArray | None:
    return None if values[0] is None else np.stack([np.asarray(value) for value in values])
