"""Execute the notebooks of the case studies at full size and store their outputs.

`notebook.py` is the source; `notebook.ipynb`, written here, has the outputs. Execution times,
identifiers, paths and progress bars are removed, as they differ between machines.
"""

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from scripts.studies import ROOT, study_folders

__all__ = ["clean", "execute", "main", "read_notebook"]

LARGEST = 1_000_000
"""Bytes per notebook: it opens on slow connections, and the repository stays small."""

KEPT_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_notebook(source: Path) -> NotebookNode:
    """Read a notebook's source, without the tool comments before its first cell."""
    notebook: NotebookNode = jupytext.read(source)
    if all(line.startswith("#") for line in notebook.cells[0].source.splitlines()):
        del notebook.cells[0]
    return notebook


def execute(source: Path) -> NotebookNode:
    """Run a notebook from top to bottom in its own folder."""
    notebook = read_notebook(source)
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": source.parent}})
    result: NotebookNode = client.execute()
    return result


def clean(notebook: NotebookNode, root: Path = ROOT) -> NotebookNode:
    """Remove machine names, paths and times from an executed notebook, in place."""
    notebook.metadata = nbformat.from_dict(KEPT_METADATA)
    for index, cell in enumerate(notebook.cells):
        cell.metadata, cell["id"] = NotebookNode(), f"cell-{index}"
        if cell.cell_type == "code":
            cell.outputs = [_neutral(output, root) for output in cell.outputs if _is_kept(output)]
    return notebook


def _is_kept(output: NotebookNode) -> bool:
    """Whether an output is a result, not a progress bar or a widget."""
    is_widget = any(kind.startswith("application/vnd.jupyter.widget") for kind in _kinds(output))
    return output.get("name") != "stderr" and not is_widget


def _kinds(output: NotebookNode) -> list[str]:
    return list(output.get("data", {}))


def _neutral(output: NotebookNode, root: Path) -> NotebookNode:
    """Remove this machine's folder and system from the texts of an output."""
    if "text" in output:
        output.text = _without_machine(output.text, root)
    for kind in _kinds(output):
        if kind.startswith("text/"):
            output.data[kind] = _without_machine(output.data[kind], root)
    return output


def _without_machine(text: str, root: Path) -> str:
    system = f"{platform.system()} {platform.machine()}"
    return text.replace(f"{root}/", "").replace(platform.platform(), system)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the named notebooks, or all, and write them next to their sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    folders = {folder.name: folder for folder in study_folders()}
    parser.add_argument("names", nargs="*", help=f"all by default; {', '.join(folders)}")
    names = parser.parse_args(arguments).names
    unknown = sorted(set(names) - set(folders))
    if unknown:
        parser.error(f"no such study: {', '.join(unknown)}; there are {', '.join(folders)}")
    status = 0
    for folder in (folders[name] for name in names or folders):
        text = nbformat.writes(clean(execute(folder / "notebook.py"))) + "\n"
        (folder / "notebook.ipynb").write_text(text, encoding="utf-8")
        size = len(text.encode())
        print(f"notebooks: {folder.name}: {size / 1000:.0f} kB", flush=True)
        if size > LARGEST:
            print(f"notebooks: at most {LARGEST / 1000:.0f} kB; draw fewer or smaller figures")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
