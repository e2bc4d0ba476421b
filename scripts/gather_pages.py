"""Gather the pages of the site in one folder and rewrite the links between them.

The front page is `README.md`, and the page of a case study is its `README.md`. Their links are
relative to the repository and are rewritten for the site. A broken link raises an error.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from benchmarks.figures import draw_figures
from scripts.studies import ROOT, study_folders

__all__ = ["gather", "page_map", "turn_links"]

FIXED_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "measured.md",
    "docs/case_studies.md": "case_studies/index.md",
}
FENCE = re.compile(r"^(```.*?^```\s*?$)", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<before>\]\(|\b(?:src|href)=\")(?P<target>[^)\s\"#]+)(?P<after>#[^)\"]*)?")
LEADS_OUT = re.compile(r"[a-z][a-z0-9+.-]*:", flags=re.IGNORECASE)


def page_map(root: Path = ROOT) -> dict[str, str]:
    """Map files of the repository to pages of the site; both are relative paths."""
    pages = dict(FIXED_PAGES)
    docs = root / "docs"
    for path in sorted([*docs.glob("*.md"), *docs.glob("*.rst"), *docs.glob("guide/*.md")]):
        source = path.relative_to(root).as_posix()
        if source != "docs/index.md":  # appended to the front page
            pages.setdefault(source, path.relative_to(docs).as_posix())
    for folder in _studies(root):
        name = folder.relative_to(root).as_posix()
        pages[f"{name}/README.md"] = f"{name}/index.md"
        if (folder / "notebook.ipynb").exists():
            pages[f"{name}/notebook.ipynb"] = f"{name}/notebook.ipynb"
    return pages


def turn_links(
    text: str, source: str, pages: Mapping[str, str], root: Path = ROOT
) -> tuple[str, dict[str, str]]:
    """Rewrite the links of a Markdown page, except in fenced blocks.

    The second result maps linked or shown files that are not pages to their paths in the site.
    """
    here = PurePosixPath(pages[source]).parent
    files: dict[str, str] = {}

    def turned(match: re.Match[str]) -> str:
        target = match["target"]
        if LEADS_OUT.match(target):
            return match[0]
        path = _normal(PurePosixPath(source).parent / target)
        if not (root / path).exists():
            raise ValueError(f"{source} links to {target!r}, which does not exist. Fix the link.")
        page = pages.get(path) or pages.get(f"{path}/README.md")
        if page is None and (root / path).is_dir():
            return f"{match['before']}#"
        if page is None:
            page = files[path] = f"files/{path}"
        relative = PurePosixPath(os.path.relpath(page, here)).as_posix()
        return f"{match['before']}{relative}{match['after'] or ''}"

    parts = FENCE.split(text)
    parts[::2] = [_without_empty_links(LINK.sub(turned, part)) for part in parts[::2]]
    return "".join(parts), files


def _normal(path: PurePosixPath) -> str:
    """Path without `..`, `.` and a trailing slash."""
    return PurePosixPath(os.path.normpath(path)).as_posix()


def _without_empty_links(text: str) -> str:
    """Replace links to folders without a page by their text."""
    return re.sub(r"\[([^\[\]]*)\]\(#\)", r"\1", text)


def gather(folder: Path, root: Path = ROOT) -> None:
    """Write the sources of the site to a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = page_map(root)
    for source, page in pages.items():
        _write_page(folder, source, page, pages, root)
    _add_figures(folder, root)


def _write_page(folder: Path, source: str, page: str, pages: Mapping[str, str], root: Path) -> None:
    """Write one page and the files that it links to or shows."""
    to = folder / page
    to.parent.mkdir(parents=True, exist_ok=True)
    if not source.endswith(".md"):
        text = (root / source).read_text(encoding="utf-8")
        to.write_text(_title_first(text) if source.endswith(".ipynb") else text, encoding="utf-8")
        return
    text = (root / source).read_text(encoding="utf-8") + _tail(source, pages, root)
    text, files = turn_links(text, source, pages, root)
    to.write_text(text, encoding="utf-8")
    for file, place in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, folder / place)


def _add_figures(folder: Path, root: Path) -> None:
    """Append figures of the benchmark records to the page with their tables."""
    page = folder / FIXED_PAGES["benchmarks/README.md"]
    section = draw_figures(root / "benchmarks" / "results", page.parent / "figures", "figures")
    page.write_text(page.read_text(encoding="utf-8") + section, encoding="utf-8")


def _title_first(notebook: str) -> str:
    """Move the title of a notebook above its settings, as a page begins with its title."""
    content = json.loads(notebook)
    cells = content.get("cells", [])
    if len(cells) > 1 and "".join(cells[1]["source"]).startswith("# "):
        cells[0], cells[1] = cells[1], cells[0]
    return json.dumps(content)


def _tail(source: str, pages: Mapping[str, str], root: Path) -> str:
    """Text that a page has only on the site: links to further pages."""
    if source == "README.md":
        return "\n" + (root / "docs" / "index.md").read_text(encoding="utf-8")
    if source == "docs/case_studies.md":
        return _list_of_studies(root)
    notebook = source.replace("README.md", "notebook.ipynb")
    if source.startswith("case_studies/") and notebook in pages:
        return "\n" + _contents(["Notebook <notebook>"], hidden=False)
    return ""


def _list_of_studies(root: Path) -> str:
    """One card per study: thumbnail, title, question."""
    cards = []
    for folder in _studies(root):
        title, question = _title_and_question(folder / "README.md")
        link = f"../case_studies/{folder.name}"
        cards += ["", "::::{container} study"]
        if (folder / "thumbnail.png").exists():
            cards += [f"[![{title}]({link}/thumbnail.png)]({link})", ""]
        cards += [f"**[{title}]({link})**", "", question, "::::"]
    return "\n".join([*cards, "", _contents([f"{f.name}/index" for f in _studies(root)])])


def _studies(root: Path) -> list[Path]:
    """Studies with a README, which tests/test_case_studies.py requires of all."""
    return [folder for folder in study_folders(root) if (folder / "README.md").exists()]


def _title_and_question(readme: Path) -> tuple[str, str]:
    """First heading, and the first item or paragraph after it."""
    text = readme.read_text(encoding="utf-8")
    heading, _, rest = text.strip().partition("\n")
    first = re.split(r"\n\s*\n|\n- ", rest.strip())[0]
    words = re.sub(r"^- ", "", first).replace("\n", " ")
    question = re.sub(r"^\*\*Question\.?\*\*\s*", "", re.sub(r"\s+", " ", words))
    return heading.lstrip("# "), question


def _contents(names: list[str], *, hidden: bool = True) -> str:
    option = ":hidden:" if hidden else ":caption: With code and output"
    return "\n".join(["```{toctree}", option, "", *names, "```", ""])
