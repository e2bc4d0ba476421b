"""Print how large the library is and how far a call travels through it, against its budgets.

Code lines are lines that are neither blank, nor comment, nor docstring. For small calls of
`fit_em`, `estimate` and `sample` a profiler records which functions of the package run. The table
informs: it never fails.
"""

import ast
import importlib
import pkgutil
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import moment_init
from scripts.layers import PACKAGE, imports_of, module_name, source_files

ROOT = Path(__file__).resolve().parents[1]

# The function that evaluates all components for one block of rows.
BLOCK_PASS = "posterior_of_block"

# What this script printed for version 0.1.0, and what it should print.
BUDGETS = {
    "entries of moment_init/": ("73", "16"),
    "files": ("297", "120"),
    "code lines": ("30,823", "20,000"),
    "docstring lines": ("22,666", "9,000"),
    "pairs of rooms that import each other": ("5 and the root", "0"),
    "lines of ARCHITECTURE.md": ("230", "80"),
    "modules touched by fit_em": ("52", "22"),
    "modules touched by estimate": ("71", "28"),
    "modules touched by sample": ("86", "35"),
    "functions touched by fit_em": ("284", ""),
    "functions touched by estimate": ("386", ""),
    "functions touched by sample": ("548", ""),
    "depth of fit_em": ("30", ""),
    "depth of estimate": ("25", ""),
    "depth of sample": ("35", ""),
    "calls from fit_em to a block of rows": ("21", "9"),
}


def count_lines(source: str) -> tuple[int, int]:
    """Number of code lines and of docstring lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    doc_lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            doc_lines |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), start=1)
    n_code = sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in doc_lines
        for number, line in lines
    )
    return n_code, len(doc_lines)


def mutual_imports() -> set[str]:
    """Pairs of rooms that import each other."""
    edges: set[tuple[str, str]] = set()
    for path in source_files():
        importer = module_name(path)
        for imported in imports_of(path):
            edge = (importer.split(".")[0], imported.split(".")[0])
            if edge[0] != edge[1]:
                edges.add(edge)
    return {f"{a} and {b}" for a, b in edges if a < b and (b, a) in edges and a}


class CallRecord:
    """What runs in the package while the record is open, in any thread."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.functions: Counter[tuple[str, str]] = Counter()
        self.depth = 0
        self.calls_to_block: Counter[int] = Counter()

    def __enter__(self) -> "CallRecord":
        """Start recording."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def modules(self) -> set[str]:
        """Modules with a function that ran."""
        return {module for module, _ in self.functions}

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        is_ours = isinstance(module, str) and module.startswith("moment_init")
        if event != "call" or not is_ours or code.co_name.startswith("<"):
            return
        self.functions[module, code.co_qualname] += 1
        stack = self._names_below(frame)
        self.depth = max(self.depth, len(stack))
        if code.co_name == BLOCK_PASS and self.entry in stack:
            self.calls_to_block[stack.index(self.entry) - 1] += 1

    @staticmethod
    def _names_below(frame: FrameType | None) -> list[str]:
        """Names of the package's functions on the stack, the last call first."""
        names = []
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if isinstance(module, str) and module.startswith("moment_init"):
                names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names


def record_calls() -> dict[str, CallRecord]:
    """Run a small call of each entry point under the profiler."""
    for module in pkgutil.walk_packages(moment_init.__path__, "moment_init."):
        importlib.import_module(module.name)  # so that no import runs while calls are recorded
    rng = np.random.default_rng(1)
    X = rng.standard_normal((400, 3))
    component = rng.integers(2, size=400)
    coefficients = np.array([[1.0, 0.5, 0.0], [-1.0, 0.0, 0.8]])
    y = rng.poisson(np.exp(0.3 + (X * coefficients[component]).sum(axis=1)))
    block: dict[str, Any] = {"family": "poisson", "random_seed": 1}
    run: dict[str, Any] = {"draws": 5, "tune": 20, "chains": 1, "progressbar": False}
    calls: dict[str, Callable[[], object]] = {
        "fit_em": lambda: moment_init.fit_em(X, y, 2, **block, progressbar=False),
        "estimate": lambda: moment_init.estimate(X, y, 2, **block),
        "sample": lambda: moment_init.sample(X, y, 2, **block, **run),
    }
    records = {}
    for name, call in calls.items():
        with warnings.catch_warnings(), CallRecord(name) as record:
            warnings.simplefilter("ignore")
            call()
        records[name] = record
    return records


def measure() -> dict[str, str]:
    """Every figure by name."""
    sizes = [count_lines(path.read_text(encoding="utf-8")) for path in source_files()]
    pairs = mutual_imports()
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    figures = {
        "entries of moment_init/": f"{len(entries)}",
        "files": f"{len(sizes):,}",
        "code lines": f"{sum(n_code for n_code, _ in sizes):,}",
        "docstring lines": f"{sum(n_doc for _, n_doc in sizes):,}",
        "pairs of rooms that import each other": f"{len(pairs)}",
        "lines of ARCHITECTURE.md": f"{len(architecture.splitlines())}",
    }
    for name, record in record_calls().items():
        figures[f"modules touched by {name}"] = f"{len(record.modules)}"
        figures[f"functions touched by {name}"] = f"{len(record.functions)}"
        figures[f"depth of {name}"] = f"{record.depth}"
        if name == "fit_em":
            usual = record.calls_to_block.most_common(1)
            figures["calls from fit_em to a block of rows"] = f"{usual[0][0]}" if usual else "none"
    return figures


def main() -> None:
    """Print the table, then the pairs of rooms that import each other."""
    print(f"{'the house':40}{'0.1.0':>16}{'now':>10}{'target':>10}")
    for name, value in measure().items():
        before, target = BUDGETS.get(name, ("", ""))
        print(f"{name:40}{before:>16}{value:>10}{target:>10}")
    pairs = mutual_imports()
    for pair in sorted(pairs):
        print(f"import each other: {pair}")


if __name__ == "__main__":
    main()
