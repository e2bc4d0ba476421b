"""Gather the pages of the site in one folder, their links turned to one another.

The front page is `README.md`, a case study's page its own `README.md`: they are written for readers
of the repository, so a link that is right there is made right here. One that leads nowhere raises.
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
    """Which page each file of the repository becomes.

    Parameters
    ----------
    root : pathlib.Path
        Root of the repository.

    Returns
    -------
    dict of str to str
        Path from the root -> path in the site's folder.
    """
    pages = dict(FIXED_PAGES)
    docs = root / "docs"
    for path in sorted([*docs.glob("*.md"), *docs.glob("*.rst"), *docs.glob("guide/*.md")]):
        source = path.relative_to(root).as_posix()
        if source != "docs/index.md":  # the tail of the front page
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
    """Make the links of a page those of the site.

    Parameters
    ----------
    text : str
        The page, in Markdown; fenced blocks are left as they are.
    source : str
        Where it lies, from the root of the repository.
    pages : mapping of str to str
        What `page_map` returned.
    root : pathlib.Path
        Root of the repository.

    Returns
    -------
    text : str
        The page with its links turned.
    files : dict of str to str
        Files that are no pages but are linked or shown: path from the root -> path in the site.

    Raises
    ------
    ValueError
        If a link leads to nothing.
    """
    here = PurePosixPath(pages[source]).parent
    files: dict[str, str] = {}

    def turned(match: re.Match[str]) -> str:
        target = match["target"]
        if LEADS_OUT.match(target):
            return match[0]
        found = _normal(PurePosixPath(source).parent / target)
        if not (root / found).exists():
            raise ValueError(f"{source} must link to what exists; got {target!r}. Mend the link.")
        page = pages.get(found) or pages.get(f"{found}/README.md")
        if page is None and (root / found).is_dir():
            return f"{match['before']}#"
        if page is None:
            page = files[found] = f"files/{found}"
        relative = PurePosixPath(os.path.relpath(page, here)).as_posix()
        return f"{match['before']}{relative}{match['after'] or ''}"

    parts = FENCE.split(text)
    parts[::2] = [_without_empty_links(LINK.sub(turned, part)) for part in parts[::2]]
    return "".join(parts), files


def _normal(path: PurePosixPath) -> str:
    """Path without `..`, `.` and a closing slash."""
    return PurePosixPath(os.path.normpath(path)).as_posix()


def _without_empty_links(text: str) -> str:
    """Leave of a link to a folder without a page its words."""
    return re.sub(r"\[([^\[\]]*)\]\(#\)", r"\1", text)


def gather(folder: Path, root: Path = ROOT) -> None:
    """Write the sources of the site.

    Parameters
    ----------
    folder : pathlib.Path
        Where to; emptied before.
    root : pathlib.Path
        Root of the repository.

    Raises
    ------
    ValueError
        If a link leads to nothing.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = page_map(root)
    for source, page in pages.items():
        _write_page(folder, source, page, pages, root)
    _add_figures(folder, root)


def _write_page(folder: Path, source: str, page: str, pages: Mapping[str, str], root: Path) -> None:
    """Write one page, and the files that it links or shows."""
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
    """Draw the records of the benchmarks below their tables."""
    page = folder / FIXED_PAGES["benchmarks/README.md"]
    section = draw_figures(root / "benchmarks" / "results", page.parent / "figures", "figures")
    page.write_text(page.read_text(encoding="utf-8") + section, encoding="utf-8")


def _title_first(notebook: str) -> str:
    """A notebook whose settings stand below its title, which a page begins with."""
    content = json.loads(notebook)
    cells = content.get("cells", [])
    if len(cells) > 1 and "".join(cells[1]["source"]).startswith("# "):
        cells[0], cells[1] = cells[1], cells[0]
    return json.dumps(content)


def _tail(source: str, pages: Mapping[str, str], root: Path) -> str:
    """What a page has on the site and not in the repository: ways on."""
    if source == "README.md":
        return "\n" + (root / "docs" / "index.md").read_text(encoding="utf-8")
    if source == "docs/case_studies.md":
        return _list_of_studies(root)
    notebook = source.replace("README.md", "notebook.ipynb")
    if source.startswith("case_studies/") and notebook in pages:
        return "\n" + _contents(["Notebook <notebook>"], hidden=False)
    return ""


def _list_of_studies(root: Path) -> str:
    """A card a study: thumbnail, title, question."""
    cards = []
    for folder in _studies(root):
        title, question = _title_and_question(folder / "README.md")
        there = f"../case_studies/{folder.name}"
        cards += ["", "::::{container} study"]
        if (folder / "thumbnail.png").exists():
            cards += [f"[![{title}]({there}/thumbnail.png)]({there})", ""]
        cards += [f"**[{title}]({there})**", "", question, "::::"]
    return "\n".join([*cards, "", _contents([f"{f.name}/index" for f in _studies(root)])])


def _studies(root: Path) -> list[Path]:
    """Studies with a page; tests/test_case_studies.py asks it of all."""
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
