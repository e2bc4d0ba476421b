"""The case studies as folders."""

from pathlib import Path

__all__ = ["ROOT", "study_folders"]

ROOT = Path(__file__).resolve().parents[1]


def study_folders(root: Path = ROOT) -> list[Path]:
    """Folders of `case_studies` that hold a study, by name, without hidden folders and caches."""
    folders = sorted(path for path in (root / "case_studies").iterdir() if path.is_dir())
    return [
        folder
        for folder in folders
        if not folder.name.startswith((".", "_")) and any(folder.glob("*.*"))
    ]
