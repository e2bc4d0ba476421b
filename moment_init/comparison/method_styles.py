"""How methods look in every figure."""

from dataclasses import dataclass

from moment_init.comparison.result import (
    BEST_RANDOM_EM,
    DEFAULT_NUTS,
    RANDOM_EM,
    TENSOR_EM,
    TENSOR_NUTS,
)

__all__ = ["MethodStyle", "method_style"]


@dataclass(frozen=True, slots=True)
class MethodStyle:
    """Colour and marker of a method.

    Parameters
    ----------
    colour : str
        Hexadecimal colour.
    marker : str
        Matplotlib's marker, so that colour is never the only difference.
    """

    colour: str
    marker: str


_STYLES = {
    TENSOR_NUTS: MethodStyle("#0072B2", "o"),
    DEFAULT_NUTS: MethodStyle("#E69F00", "s"),
    TENSOR_EM: MethodStyle("#009E73", "D"),
    RANDOM_EM: MethodStyle("#D55E00", "^"),
    BEST_RANDOM_EM: MethodStyle("#CC79A7", "v"),
}
"""The palette of Okabe and Ito, which people with any form of colour blindness can tell apart."""

_OTHER_STYLES = (
    MethodStyle("#56B4E9", "P"),
    MethodStyle("#000000", "X"),
    MethodStyle("#7F7F7F", "*"),
)
"""For methods that are not known here: what is left of that palette, and a grey."""


def method_style(method: str) -> MethodStyle:
    """Look up how a method is drawn.

    Parameters
    ----------
    method : str
        Its name.

    Returns
    -------
    MethodStyle
        The same in every figure.
    """
    if method in _STYLES:
        return _STYLES[method]
    return _OTHER_STYLES[sum(method.encode()) % len(_OTHER_STYLES)]
