"""Write `reference.json`: the results of the calls in `tests/reference_cases.py`.

An entry changes only in a commit that says why. To write all of them again, or some by name:

    .venv/bin/python tests/data/make_reference.py
    .venv/bin/python tests/data/make_reference.py fit_poisson fit_gamma
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("reference.json")
sys.path.insert(0, str(PATH.parents[2]))  # so that the script finds `tests`

from tests.reference_cases import CASES, Record  # noqa: E402


def to_json(record: Record) -> dict[str, Any]:
    """Arrays as lists, the numbers of NumPy as those of Python."""
    return {name: np.asarray(value).tolist() for name, value in record.items()}


def format_references(references: dict[str, dict[str, Any]]) -> str:
    """JSON in alphabetical order with one line for each quantity, so that a change is one line."""
    blocks = []
    for name, record in sorted(references.items()):
        lines = [f"  {json.dumps(key)}: {json.dumps(record[key])}" for key in sorted(record)]
        blocks.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main(names: list[str]) -> None:
    """Run the named cases, or all of them, and write the file."""
    references = json.loads(PATH.read_text()) if names else {}
    for name in names or CASES:
        references[name] = to_json(CASES[name]())
    PATH.write_text(format_references(references))


if __name__ == "__main__":
    main(sys.argv[1:])
