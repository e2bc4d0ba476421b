"""Run the scripts of the case studies as a user would; fail if one of them fails."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.studies import ROOT, study_folders

__all__ = ["main", "run_study"]


def run_study(folder: Path, output: Path, *, quick: bool) -> float:
    """Run one study's `run.py`; its output goes to the terminal."""
    command = [sys.executable, str(folder / "run.py"), "--output", str(output)]
    began = time.perf_counter()
    subprocess.run([*command, *(["--quick"] if quick else [])], cwd=ROOT, check=True)
    return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named studies, or all; a failure does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    folders = {folder.name: folder for folder in study_folders()}
    parser.add_argument("names", nargs="*", help=f"all by default; {', '.join(folders)}")
    parser.add_argument("--quick", action="store_true", help="at their small sizes")
    parsed = parser.parse_args(arguments)
    unknown = sorted(set(parsed.names) - set(folders))
    if unknown:
        parser.error(f"no such study: {', '.join(unknown)}; there are {', '.join(folders)}")
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for folder in (folders[name] for name in parsed.names or folders):
            print(f"== {folder.name}", flush=True)
            try:
                seconds = run_study(folder, Path(scratch) / folder.name, quick=parsed.quick)
            except subprocess.CalledProcessError:
                failed.append(folder.name)
            else:
                print(f"== {folder.name}: {seconds:.0f} seconds", flush=True)
    print(f"studies: failed: {', '.join(failed)}" if failed else "studies: all ran")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
