"""Flags of PyTensor are restored, whichever thread leaves last."""

import sys
import threading

import pymc as pm
import pytest
from pytensor.configdefaults import config

from moment_init.posterior.model_variables import changed_flags, free_variables


def test_flags_are_changed_and_restored() -> None:
    before = config.cxx, config.mode
    with changed_flags(cxx="", mode="FAST_COMPILE"):
        assert (config.cxx, config.mode) == ("", "FAST_COMPILE")
        with changed_flags(mode=before[1]):  # by the same thread
            assert (config.cxx, config.mode) == ("", before[1])
    assert (config.cxx, config.mode) == before
    with pytest.raises(KeyError), changed_flags(cxx=""):
        raise KeyError("within")
    assert config.cxx == before[0]


def test_a_second_thread_waits() -> None:
    """Else it would take the first one's flag for the one to restore."""
    before = config.cxx
    entered, may_leave, seen = threading.Event(), threading.Event(), []

    def first() -> None:
        with changed_flags(cxx=""):
            entered.set()
            may_leave.wait(10.0)

    def second() -> None:
        with changed_flags(cxx=""):
            seen.append(first_thread.is_alive())

    first_thread = threading.Thread(target=first)
    first_thread.start()
    assert entered.wait(10.0)
    second_thread = threading.Thread(target=second)
    second_thread.start()
    second_thread.join(0.2)
    assert second_thread.is_alive()
    may_leave.set()
    first_thread.join(10.0)
    second_thread.join(10.0)
    assert len(seen) == 1
    assert config.cxx == before


def test_variables_of_a_model_are_read_without_nutpie(monkeypatch: pytest.MonkeyPatch) -> None:
    """nutpie is an optional dependency: only sampling with it may import it."""
    with pm.Model() as model:
        pm.Normal("bias", shape=3)
    monkeypatch.delitem(sys.modules, "moment_init.posterior.nutpie_callbacks", raising=False)
    monkeypatch.setitem(sys.modules, "nutpie", None)  # importing it raises
    assert free_variables(model)["bias"].shape == (3,)
