"""Scikit-learn estimators over `fit_em` and `sample`."""

from moment_init.estimators.classifier import MixtureGLMClassifier
from moment_init.estimators.regressor import MixtureGLMRegressor

__all__ = ["MixtureGLMClassifier", "MixtureGLMRegressor"]
