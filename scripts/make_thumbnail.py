"""Make a case study's thumbnail from one of its figures."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

__all__ = ["main", "make_thumbnail"]

WIDTH = 480
"""In pixels: twice the width at which the list of studies shows it."""

LARGEST = 40_000
"""In bytes: the list of studies loads one thumbnail per study."""

COLOURS = (256, 128, 64, 32, 16)
"""Palette sizes, tried in turn until the file is small enough."""


def make_thumbnail(figure: Path, thumbnail: Path) -> int:
    """Shrink a PNG figure to a small PNG file and return its size in bytes."""
    with Image.open(figure) as opened:
        image = opened.convert("RGB")
    height = round(image.height * WIDTH / image.width)
    small = image.resize((WIDTH, height), Image.Resampling.LANCZOS)
    for colours in COLOURS:
        buffer = io.BytesIO()
        small.quantize(colours).save(buffer, format="png", optimize=True)
        if buffer.tell() <= LARGEST:
            thumbnail.write_bytes(buffer.getvalue())
            return buffer.tell()
    raise ValueError(
        f"`figure` must fit into {LARGEST} bytes at a width of {WIDTH} pixels; {figure} does not. "
        "Choose a simpler figure."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the thumbnail of a study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", type=Path, help="figure of the study, in its output folder")
    parser.add_argument("study", type=Path, help="folder of the study")
    parsed = parser.parse_args(arguments)
    size = make_thumbnail(parsed.figure, parsed.study / "thumbnail.png")
    print(f"{parsed.study / 'thumbnail.png'}: {size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
