"""Write `public_names.txt`: what users can import and call.

A line changes only in a commit that says why, and CHANGELOG.md says what users do about it.

    .venv/bin/python tests/data/make_public_names.py
"""

import sys
from pathlib import Path

PATH = Path(__file__).with_name("public_names.txt")
sys.path.insert(0, str(PATH.parents[2]))  # so that the script finds `tests`

from tests.public_names import list_public_names  # noqa: E402

if __name__ == "__main__":
    PATH.write_text(list_public_names())
