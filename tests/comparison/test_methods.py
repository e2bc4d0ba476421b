"""Which methods run, and what is said of them."""

from typing import Any

import pytest

from moment_init import IdentifiabilityError, simulate_mixture
from moment_init.comparison.methods import MethodRuns, make_stages
from moment_init.comparison.runs import EMRun, run_search_nuts
from tests.comparison.laplace_sampler import compare_quickly


def test_default_nuts_is_a_method_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes second, and moments that identify nothing stop no comparison."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise IdentifiabilityError("too many components")

    monkeypatch.setattr("moment_init.comparison.methods.estimate", refuse)
    monkeypatch.setattr("moment_init.comparison.methods.run_default_nuts", run_search_nuts)
    data = simulate_mixture(100, 2, 2, family="poisson", scales=1.0, random_seed=4)
    found = compare_quickly(
        data.X,
        data.y,
        2,
        family="poisson",
        n_starts=2,
        include_default_nuts=True,
        priors={"scale": 1, "bias": 2},
    )
    assert list(found.trees) == ["search NUTS", "default NUTS", "search EM", "random EM"]
    assert list(found.table.index[:2]) == ["search NUTS", "default NUTS"]
    assert list(found.landscape["method"][:4]) == ["search NUTS"] * 2 + ["default NUTS"] * 2
    assert found.settings["moment_status"] == "not_identified"
    assert found.settings["priors"] == ("scale", "bias")
    assert any("does not use the priors of scale" in text for text in found.warnings)
    assert any("status not_identified" in text for text in found.verdict.reasons)


def test_methods_without_a_fit_are_refused() -> None:
    runs = MethodRuns(EMRun(0, None, 0.1, 0, "broke"), (), {}, "")
    with pytest.raises(ValueError, match="the search must lead to a fit; got: broke"):
        _ = runs.fit


# --- lines that say what runs ---------------------------------------------------------------------


def test_stages_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    announce = make_stages(2, is_shown=True)
    announce("first [b]")
    announce("second")
    assert capsys.readouterr().err == "compare 1/2: first [b]\ncompare 2/2: second\n"


def test_hidden_stages_write_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    make_stages(2, is_shown=False)("first")
    assert capsys.readouterr() == ("", "")


def test_terminal_that_fails_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError("no terminal")

    monkeypatch.setattr("rich.console.Console.print", fail)
    make_stages(1, is_shown=True)("first")
