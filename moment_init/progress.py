"""Progress of runs that take longer than two seconds: one line on the terminal per nested run.

`progress` makes a `Display`, to which a run tells what it does. Nothing is shown, and rich is not
imported, before two seconds have passed. All lines disappear at the end. A run inside another one,
such as a search inside a comparison of several fits, adds a line to the display of the outer run.
The innermost line shows the number and the log-likelihood of each pass between `passes_over`.
Notebooks get a line of text that is written over, which needs no widgets.

An error of the display never reaches the run, and a display inside one of the user's is left out.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DELAY = 2.0
"""Seconds before anything is shown: shorter runs need no display."""

LINE_INTERVAL = 0.2
"""Least time in seconds between two lines of text in a notebook."""


@dataclass(slots=True)
class Display:
    """What one run does, for its line on the screen."""

    title: str = ""
    screen: "_Screen | None" = None  # None if nothing is ever shown
    began: float = field(default_factory=time.perf_counter)
    doing: str = ""
    share: float | None = None  # of its time that is used up

    def update(self, doing: str, share: float | None = None) -> None:
        """Say what the run does now, and the share of its time that is used up."""
        if self.screen is not None:
            self.doing, self.share = doing, share
            _quietly(self.screen.refresh)

    @property
    def line(self) -> str:
        """The line of this run."""
        passed = f"{time.perf_counter() - self.began:.0f} s"
        if self.share is not None:
            passed += f", {min(self.share, 1.0):.0%} of its time"
        return f"{self.title} ({passed}): {self.doing}"


class _Writer(Protocol):
    """What writes lines over those before."""

    def refresh(self) -> None:
        """Write the lines of now."""

    def clear(self) -> None:
        """Remove them, and end."""


@dataclass(slots=True)
class _Screen:
    """The lines of an outermost run and of the runs inside it, innermost last."""

    displays: list[Display] = field(default_factory=list)
    writer: _Writer | None = None
    timer: Timer | None = None
    is_over: bool = False
    lock: Lock = field(default_factory=Lock)

    def start_timer(self) -> None:
        self.timer = Timer(DELAY, _quietly, [self.open])
        self.timer.daemon = True
        self.timer.start()

    def open(self) -> None:
        with self.lock:
            if not self.is_over and _ONLY_ONE.acquire(blocking=False):
                self.writer = _make_writer(self.lines)
                if self.writer is None:
                    _ONLY_ONE.release()
        self.refresh()

    def lines(self) -> list[str]:
        return [display.line for display in list(self.displays)]

    def refresh(self) -> None:
        with self.lock:
            if self.writer is not None:
                self.writer.refresh()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        with self.lock:
            self.is_over = True
            writer, self.writer = self.writer, None
            if writer is not None:
                _ONLY_ONE.release()
                writer.clear()


_ONLY_ONE = Lock()
"""Held by the screen that is shown: of runs in several threads only one is shown."""

_DISPLAY: ContextVar[Display | None] = ContextVar("display", default=None)
"""What the innermost run is shown on."""


@contextmanager
def progress(title: str, *, is_shown: bool) -> Iterator[Display]:
    """Show the progress of a run while it lasts, after two seconds."""
    outer = _DISPLAY.get()
    above = None if outer is None else outer.screen
    screen = above or _Screen()
    display = Display(title, screen if is_shown else None)
    if is_shown:
        screen.displays.append(display)
        if above is None:
            _quietly(screen.start_timer)
    _DISPLAY.set(display)
    try:
        yield display
    finally:
        _DISPLAY.set(outer)
        if is_shown:
            screen.displays.remove(display)
            if above is None:
                _quietly(screen.close)


@dataclass(slots=True)
class _Passes:
    """Passes of a climb so far."""

    display: Display
    n_units: int  # passes over fewer units are those of a sample, and not counted
    log_jacobian: float  # to subtract from a log-likelihood to get it in the user's units
    number: int = 0


_PASSES: ContextVar[_Passes | None] = ContextVar("passes", default=None)


@contextmanager
def passes_over(n_units: int, log_jacobian: float) -> Iterator[None]:
    """Show the passes of a climb over so many units on the line of the innermost run."""
    outer, display = _PASSES.get(), _DISPLAY.get()
    _PASSES.set(None if display is None else _Passes(display, n_units, log_jacobian))
    try:
        yield
    finally:
        _PASSES.set(outer)


def show_pass(n_units: int, log_likelihood: float) -> None:
    """Tell of a pass over units, which is shown if it is one over all."""
    passes = _PASSES.get()
    if passes is not None and passes.n_units == n_units:
        passes.number += 1
        height = log_likelihood - passes.log_jacobian
        passes.display.update(f"pass {passes.number} over all rows, log-likelihood {height:.2f}")


def track[Item](items: Iterable[Item], total: int, title: str, *, is_shown: bool) -> Iterator[Item]:
    """Yield items and show how many there have been."""
    with progress(title, is_shown=is_shown) as display:
        display.update(f"0 of {total}")
        for number, item in enumerate(items, start=1):
            display.update(f"{number} of {total}")
            yield item


class _Terminal:
    """Lines on a terminal, by rich."""

    def __init__(self, console: "Console", lines: Callable[[], list[str]]) -> None:
        from rich.live import Live

        self.lines = lines
        self.live = Live(
            get_renderable=self.render, console=console, transient=True, refresh_per_second=4
        )
        self.live.start()

    def render(self) -> "Text":
        """Text without markup, cut at the width of the terminal."""
        from rich.text import Text

        return Text("\n".join(self.lines()), overflow="ellipsis", no_wrap=True)

    def refresh(self) -> None:
        """Do nothing: rich asks for the lines several times per second."""

    def clear(self) -> None:
        self.live.stop()


@dataclass(slots=True)
class _Notebook:
    """One line of text that is written over again and again."""

    lines: Callable[[], list[str]]
    width: int = 0  # of the line so far
    written: float = 0.0  # when it was written

    def refresh(self) -> None:
        now = time.perf_counter()
        if now - self.written > LINE_INTERVAL:
            self.written = now
            self._write(" | ".join(self.lines()))

    def clear(self) -> None:
        self._write("")
        sys.stderr.write("\r")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line:<{self.width}}")
        sys.stderr.flush()
        self.width = len(line)


def _make_writer(lines: Callable[[], list[str]]) -> _Writer | None:
    """Return what writes lines; None where they cannot be, or another display is active."""
    from rich import get_console
    from rich.console import Console

    users, console = get_console(), Console(stderr=True)
    # the second name is that of older versions of rich
    if getattr(users, "_live_stack", None) or getattr(users, "_live", None):
        return None
    if users.is_jupyter:
        return _Notebook(lines)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    return _Terminal(console, lines)


def _quietly(act: Callable[[], object]) -> None:
    """Call a method of a display; an error, such as that of a closed terminal, is left out."""
    try:
        act()
    except Exception:  # a broken terminal must not stop the run
        return
