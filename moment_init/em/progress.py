"""Progress of long runs."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["track"]


def track[Item](
    items: Iterable[Item], total: int, description: str, *, is_shown: bool
) -> Iterator[Item]:
    """Pass items on, and show how many came.

    Parameters
    ----------
    items : iterable
        The items.
    total : int
        How many there will be.
    description : str
        What they are.
    is_shown : bool
        Whether to show anything; a single item never is.

    Yields
    ------
    object
        The items, in order.

    Notes
    -----
    A display that cannot be shown, inside another one for instance, is left out: it never stops a
    run.
    """
    display = _started(description, total) if is_shown and total > 1 else None
    try:
        for item in items:
            if display is not None:
                _quietly(lambda: display.advance(display.task_ids[0]))
            yield item
    finally:
        if display is not None:
            _quietly(display.stop)


def _started(description: str, total: int) -> "Progress | None":
    """A display on the screen, or None where there cannot be one."""
    from rich.console import Console
    from rich.progress import Progress

    display = Progress(console=Console(stderr=True), transient=True)
    display.add_task(description, total=total)
    return display if _quietly(display.start) else None


def _quietly(act: Callable[[], object]) -> bool:
    """Do something to a display; whether it could be done."""
    try:
        act()
    except Exception:  # whatever a terminal does, the fit goes on
        return False
    return True
