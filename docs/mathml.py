"""Formulas as MathML, which browsers show by themselves: no script, no network."""

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

__all__ = ["setup"]

_LOGGER = logging.getLogger(__name__)


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    """The formula of a node; its source, with a warning, where docutils cannot read it."""
    source = node.astext()
    # docutils shows the backslash of an escaped underscore within a text.
    text = re.sub(r"\\text\{[^}]*\}", lambda match: match[0].replace(r"\_", "_"), source)
    if as_block and r"\\" in text:
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"  # breaks lines in an environment only
    try:
        return str(tex2mathml(text, as_block=as_block))
    except (MathError, SyntaxError) as error:
        _LOGGER.warning("cannot show the formula %r: %s", source, error, location=node)
        return f"<code>{escape(source)}</code>"


def _visit_inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _visit_block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `mathml`.

    Parameters
    ----------
    app : sphinx.application.Sphinx
        The application.

    Returns
    -------
    dict of str to object
        What Sphinx asks of an extension.
    """
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_visit_inline, None), block_renderers=(_visit_block, None)
    )
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
