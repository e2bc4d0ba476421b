"""The package as declared against the package as it lies in the tree."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import moment_init.models

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!+]+)")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_folders(folder: Path, package: str) -> set[str]:
    """Dotted names of `folder` and of every package folder below it, symlinks left out."""
    names = {package}
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink() and any(child.glob("*.py")):
            names |= package_folders(child, f"{package}.{child.name}")
    return names


def normalised(name: str) -> str:
    """Distribution name in the one spelling that PyPI compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraint_lines() -> list[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_package_folder_is_declared() -> None:
    in_tree = package_folders(ROOT / "moment_init", "moment_init")
    in_tree |= package_folders(ROOT / "models", "moment_init.models")
    assert set(pyproject()["tool"]["setuptools"]["packages"]) == in_tree


def test_models_is_not_a_top_level_package() -> None:
    result = run_python("import models")
    assert result.returncode == 1
    assert "ImportError: the folder `models/` is the package `moment_init.models`" in result.stderr


def test_models_subpackage_is_the_code_of_the_models_folder() -> None:
    assert moment_init.models.__name__ == "moment_init.models"
    assert moment_init.models.__file__ is not None
    assert Path(moment_init.models.__file__).resolve() == ROOT / "models" / "__init__.py"
    likelihoods = importlib.util.find_spec("moment_init.models.likelihoods")
    assert likelihoods is not None
    assert likelihoods.origin is not None
    assert Path(likelihoods.origin).resolve() == ROOT / "models" / "likelihoods.py"


def test_models_symlink_is_relative() -> None:
    assert (ROOT / "moment_init" / "models").readlink() == Path("../models")


def test_constraints_are_exact_versions_without_addresses() -> None:
    lines = constraint_lines()
    assert [line for line in lines if PIN.fullmatch(line) is None] == []
    names = [normalised(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names))


def test_constraints_pin_every_declared_dependency() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {normalised(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in requirements}
    pinned = {normalised(line.partition("==")[0]) for line in constraint_lines()}
    assert declared - {project["name"]} - pinned == set()


def test_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    versions = re.findall(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    assert versions == [pyproject()["project"]["version"]]


def test_type_information_is_shipped() -> None:
    assert "py.typed" in pyproject()["tool"]["setuptools"]["package-data"]["moment_init"]
    assert (ROOT / "moment_init" / "py.typed").is_file()
