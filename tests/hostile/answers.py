"""What an answer must be, whatever the data: finite numbers that mean what they say."""

from typing import Any

import numpy as np

from moment_init import EMFit, MomentEstimate

__all__ = [
    "check_choice",
    "check_finite",
    "check_fit",
    "check_input_model",
    "check_moments",
    "check_probabilities",
    "check_tree",
]


def check_finite(name: str, values: Any) -> None:
    """All of these are numbers."""
    array = np.asarray(values, dtype=np.float64)
    assert np.isfinite(array).all(), f"{name} is not finite: {array}"


def check_probabilities(name: str, values: Any, axis: int = -1) -> None:
    """These are probabilities that sum to one."""
    array = np.asarray(values, dtype=np.float64)
    check_finite(name, array)
    assert array.min(initial=0.0) >= 0.0, f"{name} is negative: {array}"
    assert np.allclose(array.sum(axis=axis), 1.0, atol=1e-8), f"{name} does not sum to one: {array}"


def check_fit(fit: EMFit) -> None:
    """A fit has finite parameters and criteria, and predicts."""
    _check_shapes(fit)
    for name in ("coefficients", "biases", "log_likelihood", "aic", "bic", "icl", "history"):
        check_finite(name, getattr(fit, name))
    check_probabilities("weights", fit.weights)
    check_probabilities("responsibilities", fit.responsibilities)
    if fit.dispersion is not None:
        check_finite("dispersion", fit.dispersion)
        assert fit.dispersion.min() > 0.0
    errors = fit.standard_errors  # missing only where the fit says why
    if not np.isfinite(np.asarray(errors.coefficients)).all():
        assert fit.warnings, "missing standard errors without a word"
    assert errors.dispersion is None or not np.isinf(errors.dispersion).any()
    rounded = np.diff(fit.history)
    size = 1e-6 + 1e-8 * np.abs(np.asarray(fit.history)).max()
    assert rounded.min(initial=0.0) >= -size, f"the log-likelihood fell: {fit.history}"
    assert repr(fit)
    assert fit._repr_html_()
    check_tree(fit.to_datatree(draws=3, random_seed=1))


def _check_shapes(found: EMFit | MomentEstimate) -> None:
    """Parameters of each column and component; of several responses, of each of them."""
    shape: tuple[int, ...] = (found.n_components,)
    n_predictors = len(found.response_names)
    levels = shape if n_predictors < 2 else (n_predictors, *shape)
    slopes = (*levels[:-1], len(found.feature_names), *shape)
    assert found.coefficients is None or found.coefficients.shape == slopes
    assert found.biases is None or found.biases.shape == levels
    assert found.dispersion is None or found.dispersion.shape == levels


def check_moments(estimate: MomentEstimate) -> None:
    """An estimate has unit directions, and finite parameters where it has any."""
    _check_shapes(estimate)
    check_finite("directions", estimate.directions)
    assert np.allclose(np.linalg.norm(estimate.directions, axis=0), 1.0)
    for name in ("moment_coefficients", "scales", "biases", "dispersion", "coefficients"):
        if getattr(estimate, name) is not None:
            check_finite(name, getattr(estimate, name))
    if estimate.weights is not None:
        check_probabilities("weights", estimate.weights)
    assert repr(estimate)
    estimate.to_datatree()


def check_tree(tree: Any) -> None:
    """Draws are finite."""
    for name, variable in tree["posterior"].data_vars.items():
        check_finite(str(name), variable)
    check_probabilities("weight", tree["posterior"]["weight"])


def check_choice(choice: Any) -> None:
    """A choice is among its candidates, and its fit is one."""
    assert choice.chosen in set(choice.table["n_components"])
    check_finite("table", choice.table[["log_likelihood", "aic", "bic", "icl"]])
    check_fit(choice.fit)


def check_input_model(model: Any) -> None:
    """A density has a value at its mean."""
    check_finite("mean", model.mean_)
    check_finite("log density", model.log_density(model.mean_[None, :]))
    check_finite("score", model.score(model.mean_[None, :], 1))
