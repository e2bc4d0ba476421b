"""Warnings of the library: at the caller's line, kept back in one thread alone."""

import warnings
from threading import Thread

import numpy as np
import pytest

from moment_init import MixtureGLMRegressor, WeakSignalWarning, estimate
from moment_init.checks import changed_filters, notify, quiet_notices


def test_warnings_point_at_the_callers_line(rng: np.random.Generator) -> None:
    """Whatever lies between: functions of the library, decorators, scikit-learn's methods."""
    X, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    with pytest.warns(WeakSignalWarning) as direct:
        estimate(X, y, 2, family="gaussian", random_seed=1)
    with pytest.warns(WeakSignalWarning) as fitted:
        MixtureGLMRegressor(3, family="gaussian", random_state=1).fit(X[:8], y[:8])
    assert {each.filename for each in (*direct, *fitted)} == {__file__}


def test_notices_are_kept_back_in_this_thread_alone() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet_notices():
            notify("here", UserWarning)
            thread = Thread(target=notify, args=("there", UserWarning))
            thread.start()
            thread.join()
        notify("afterwards", UserWarning)
    assert [str(each.message) for each in caught] == ["there", "afterwards"]


def test_filters_are_put_back() -> None:
    before = list(warnings.filters)
    with changed_filters():
        warnings.simplefilter("ignore")
    assert list(warnings.filters) == before
