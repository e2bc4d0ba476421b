"""Settings of Sphinx; `make docs` gathers the pages and builds the site."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

import moment_init.models  # noqa: F401 - or autodoc imports PyTensor twice, which warns

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))  # for `mathml`

project = "moment_init"
author = "The moment_init developers"
copyright = author
release = version = version_of("moment-init")

extensions = [
    "mathml",
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinxcontrib.bibtex",
]

# Pages -----------------------------------------------------------------------------------------
nb_execution_mode = "off"  # the site shows the outputs that `make notebooks` stored
nb_ipywidgets_js = {}  # the default loads a script from the network
myst_enable_extensions = ["colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 3
bibtex_bibfiles = [str(DOCS / "references.bib")]

# Reference -------------------------------------------------------------------------------------
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc shows types and shapes
numpydoc_show_class_members = False  # the template of a class lists them
default_role = "py:obj"  # `name` in a docstring links to the documented object of that name
templates_path = [str(DOCS / "templates")]

# Look ------------------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"moment_init {release}"
html_static_path = [str(DOCS / "static")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
