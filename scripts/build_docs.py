"""Build the site: gather its pages and run Sphinx on them; a warning is an error."""

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from scripts.gather_pages import gather
from scripts.studies import ROOT

__all__ = ["main"]

BUILD = ROOT / "docs" / "build"


def main(build: Path = BUILD) -> int:
    """Build the site from scratch."""
    source, site = build / "source", build / "html"
    gather(source)
    options = ["-b", "html", "-c", str(ROOT / "docs"), "-W", "--keep-going", "-q", "-E"]
    status = int(sphinx_build([*options, str(source), str(site)]))
    if status == 0:
        print(f"docs: {site / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
