"""The estimators are imported when they are asked for, and scikit-learn with them."""

import subprocess
import sys

import pytest

import moment_init
from moment_init.estimators.classifier import MixtureGLMClassifier
from moment_init.estimators.regressor import MixtureGLMRegressor


def test_names_are_those_of_the_package() -> None:
    for estimator in (MixtureGLMClassifier, MixtureGLMRegressor):
        assert estimator.__name__ in dir(moment_init)
        assert getattr(moment_init, estimator.__name__) is estimator


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'moment_init' has no attribute 'nothing'"):
        _ = moment_init.nothing


def test_scikit_learn_is_imported_on_demand() -> None:
    code = (
        "import sys, moment_init; print('sklearn' in sys.modules); "
        "moment_init.MixtureGLMRegressor; print('sklearn' in sys.modules, 'pymc' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["False", "True", "False"], result.stderr
