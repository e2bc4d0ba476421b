"""The display of runs that take long: when it shows what, and that it never stops a run."""

import io
import pickle
import re
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import rich
from rich.console import Console
from rich.progress import Progress

import moment_init.progress as module
from moment_init import WeakSignalWarning, estimate, fit_em, select_components, simulate_mixture
from moment_init.progress import progress, track

LARGE = simulate_mixture(60_000, 2, 2, family="poisson", scales=0.5, random_seed=3)
"""More rows than a search, or the polish of moments, climbs as a whole."""


class Recorder:
    """A writer that keeps what it would show."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.n_clear = 0

    def start(self, lines: Any) -> "Recorder":
        self.lines = lines
        return self

    def refresh(self) -> None:
        self.shown.append(self.lines())

    def clear(self) -> None:
        self.n_clear += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Show at once, to a recorder."""
    result = Recorder()
    monkeypatch.setattr(module, "DELAY", 0.0)
    monkeypatch.setattr(module, "_make_writer", result.start)
    return result


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search few rows, and then climb all."""
    monkeypatch.setattr("moment_init.em.search.SEARCH_UNITS", 3_000)


def wait_for(condition: Any) -> None:
    """Let the timer's thread run."""
    end = time.perf_counter() + 10.0
    while not condition() and time.perf_counter() < end:
        time.sleep(0.005)


def test_nothing_is_shown_before_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(module, "_make_writer", made.append)
    assert module.DELAY == 2.0
    with progress("search", is_shown=True) as display:
        display.update("growth")
    assert made == []


def test_a_run_inside_another_one_adds_a_line(recorder: Recorder) -> None:
    with progress("outer", is_shown=True) as outer:
        outer.update("2 components")
        wait_for(lambda: recorder.shown)
        with progress("search", is_shown=True) as inner:
            inner.update("random 3", 0.25)
        with progress("hidden", is_shown=False) as hidden:
            hidden.update("nothing")
        outer.update("3 components")
    assert ["outer (0 s): 2 components", "search (0 s, 25% of its time): random 3"] in (
        recorder.shown
    )
    assert recorder.shown[-1] == ["outer (0 s): 3 components"]
    assert recorder.n_clear == 1
    with progress("next", is_shown=True):  # the screen is free again
        wait_for(lambda: recorder.shown[-1][0].startswith("next"))
    assert recorder.n_clear == 2


def test_items_pass_through(recorder: Recorder) -> None:
    assert list(track(iter(range(5)), 5, "starts", is_shown=True)) == list(range(5))
    assert list(track(iter(range(5)), 5, "starts", is_shown=False)) == list(range(5))

    def slow() -> Any:
        wait_for(lambda: recorder.shown)
        yield 1

    assert list(track(slow(), 1, "starts", is_shown=True)) == [1]
    assert recorder.shown[-1] == ["starts (0 s): 1 of 1"]


def test_a_display_that_fails_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, no terminal, and a terminal that breaks down half way."""
    monkeypatch.setattr(module, "DELAY", 0.0)
    calls: list[str] = []

    class Broken(Recorder):
        def refresh(self) -> None:
            calls.append("refresh")
            raise OSError("closed")

        def clear(self) -> None:
            calls.append("clear")
            raise OSError("closed")

    broken = Broken()
    monkeypatch.setattr(module, "_make_writer", broken.start)
    with progress("search", is_shown=True) as display:
        wait_for(lambda: calls)
        display.update("growth")
    assert calls[-1] == "clear"

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(track(range(3), 3, "starts", is_shown=True)) == [0, 1, 2]
    monkeypatch.undo()
    assert not module._ONLY_ONE.locked()


def test_of_two_threads_one_is_shown(recorder: Recorder) -> None:
    with progress("first", is_shown=True):
        wait_for(lambda: recorder.shown)

        def other() -> None:
            with progress("second", is_shown=True) as display:
                time.sleep(0.1)
                display.update("anything")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert all(lines[0].startswith("first") for lines in recorder.shown)


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are cut at the width, not read as markup, and erased at the end."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=20, legacy_windows=False)
    writer = module._Terminal(console, lambda: ["[b]search: " + "x" * 40, "line"])
    writer.refresh()
    writer.clear()
    text = file.getvalue()
    assert "[b]search: xxxxxxxx…" in text
    assert "line" in text
    assert text.endswith("\x1b[2K")  # the last line is erased


def test_where_lines_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> list[str]:
        return ["search"]

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    writer = module._make_writer(lines)
    assert isinstance(writer, module._Terminal)
    writer.clear()
    with Progress():  # of the user, who must keep the terminal
        assert module._make_writer(lines) is None
    monkeypatch.setenv("TERM", "dumb")
    assert module._make_writer(lines) is None
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    assert module._make_writer(lines) is None


def test_a_notebook_gets_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without widgets: the line is written over, and blank at the end."""
    monkeypatch.setattr(rich.get_console(), "is_jupyter", True)
    text = ["search: growth, 2 s"]
    writer = module._make_writer(lambda: text)
    assert isinstance(writer, module._Notebook)
    writer.refresh()
    text[:] = ["search: bins, 3 s", "inside"]
    writer.refresh()  # too soon
    writer.written = 0.0
    text[:] = ["short"]
    writer.refresh()
    writer.clear()
    out, err = capsys.readouterr()
    assert out == ""
    blank = " " * 5
    assert err == f"\rsearch: growth, 2 s\r{'short':<19}\r{blank}\r"


def test_a_search_says_what_it_does(recorder: Recorder) -> None:
    data = simulate_mixture(300, 3, 2, family="poisson", random_seed=2)
    arguments: dict[str, Any] = {"family": "poisson", "random_seed": 1}
    with progress("outside", is_shown=True):
        wait_for(lambda: recorder.shown)
        fit = fit_em(data.X, data.y, 2, **arguments)
        select_components(data.X, data.y, [1, 2], criterion="cv", n_folds=2, **arguments)
        n_shown = len(recorder.shown)
        fit_em(data.X, data.y, 2, progressbar=False, **arguments)
        select_components(data.X, data.y, [1, 2], progressbar=False, **arguments)
        assert len(recorder.shown) == n_shown
    text = "\n".join("\n".join(lines) for lines in recorder.shown)
    for word in ("growth", "bins", "random 1", "of its time"):
        assert word in text
    assert f"best log-likelihood {fit.log_likelihood:.2f}" in text
    assert "s): 1 component, all rows" in text
    assert "s): 2 components, fold 1 of 2" in text


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("options", [{}, {"gate": "gaussian"}, {"init": "tensor"}])
def test_a_large_fit_shows_its_passes(recorder: Recorder, options: dict[str, Any]) -> None:
    """Passes are numbered, and the last one is as high as the fit."""
    gating = None
    if "gate" in options:
        gating = LARGE.labels + np.random.default_rng(1).normal(size=len(LARGE.y))
        options["init"] = (LARGE.coefficients, LARGE.biases, LARGE.weights)
    with progress("outside", is_shown=True):
        wait_for(lambda: recorder.shown)
        fit = fit_em(LARGE.X, LARGE.y, 2, family="poisson", gating=gating, random_seed=1, **options)
    _require_passes(recorder, "fit", fit.log_likelihood)


@pytest.mark.parametrize("n_responses", [1, 2])
def test_an_estimate_shows_its_passes(recorder: Recorder, n_responses: int) -> None:
    y = LARGE.y if n_responses == 1 else np.column_stack([LARGE.y, LARGE.y[::-1]])
    with progress("outside", is_shown=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakSignalWarning)
        wait_for(lambda: recorder.shown)
        result = estimate(LARGE.X, y, 2, family="poisson", random_seed=1)
        n_shown = len(recorder.shown)
        estimate(LARGE.X, y, 2, family="poisson", random_seed=1, progressbar=False)
        assert len(recorder.shown) == n_shown
    assert "estimate (0 s): moments" in {lines[-1] for lines in recorder.shown}
    assert result.log_likelihood is not None
    # of one response, the last step is taken without a pass
    _require_passes(recorder, "estimate", result.log_likelihood, within=1.0)


def _require_passes(recorder: Recorder, run: str, last: float, within: float = 0.01) -> None:
    pattern = re.compile(rf"{run} \(\d+ s\): pass (\d+) over all rows, log-likelihood (\S+)")
    found = [pattern.match(lines[-1]) for lines in recorder.shown]
    passes = [match.groups() for match in found if match]
    assert [int(number) for number, _ in passes] == list(range(1, len(passes) + 1))
    assert len(passes) >= 2
    heights = [float(height) for _, height in passes]
    assert max(heights) == pytest.approx(last, abs=within)


@pytest.mark.usefixtures("small_samples")
def test_a_display_that_fails_changes_no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit() -> Any:
        return fit_em(LARGE.X, LARGE.y, 2, family="poisson", random_seed=1)

    expected = fit()
    calls: list[int] = []

    class Broken(Recorder):
        def refresh(self) -> None:
            calls.append(1)
            raise OSError("closed")

    monkeypatch.setattr(module, "DELAY", 0.0)
    monkeypatch.setattr(module, "_make_writer", Broken().start)
    with progress("outside", is_shown=True):
        wait_for(lambda: calls)
        found = fit()
    assert len(calls) > 2
    assert np.array_equal(found.coefficients, expected.coefficients)
    assert pickle.loads(pickle.dumps(found)).log_likelihood == expected.log_likelihood
