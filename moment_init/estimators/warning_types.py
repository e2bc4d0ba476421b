"""Warnings of the estimators."""

from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

from moment_init.exceptions import ConvergenceWarning

__all__ = ["EstimatorConvergenceWarning"]


class EstimatorConvergenceWarning(ConvergenceWarning, SklearnConvergenceWarning):  # type: ignore[misc]  # scikit-learn has no types
    """A search ended before it converged; filters for either library's warning catch it."""
