"""Rooms of the package are layers: each imports only the rooms before it."""

import ast
from pathlib import Path

import pytest

from scripts.layers import (
    PACKAGE,
    ROOMS,
    imported_names,
    imports_of,
    is_allowed,
    module_name,
    source_files,
)

MODULES = [path for path in source_files() if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    importer = module_name(path)
    assert [name for name in sorted(imports_of(path)) if not is_allowed(importer, name)] == []


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == {*ROOMS}


def test_one_module_imports_dask() -> None:
    users = [
        module_name(path)
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(name.split(".")[0] in ("dask", "distributed") for name in _modules(node))
    ]
    assert {*users} == {"data.dask_rows"}


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.parametrize(
    ("importer", "imported", "is_right"),
    [
        ("em.search", "likelihood.climbing.maximise", True),
        ("likelihood.climbing", "em.search.search", False),
        ("em.search", "checks.FloatArray", True),
        ("checks", "families.base.Family", False),
        ("results", "checks.FloatArray", True),
        ("em.search", "progress.Display", True),
        ("progress", "em.search.search", False),
        ("checks", "results.Status", False),
        ("em.fitting", "models.mixture_glm.build_model", False),
        ("posterior.running", "models.mixture_glm.build_model", True),
        ("estimators.fitting", "models.mixture_glm.build_model", False),
        ("em.fitting", "fit_em", False),
        ("paper", "moments.paper.whitening.whiten", True),
        ("paper", "em.search.search", False),
        ("moments.estimation", "paper.whiten", False),
    ],
)
def test_rule_by_example(importer: str, imported: str, *, is_right: bool) -> None:
    assert is_allowed(importer, imported) is is_right


def test_imports_inside_functions_count_and_type_checking_does_not() -> None:
    code = (
        "if TYPE_CHECKING:\n    from moment_init.em import result\n"
        "else:\n    import moment_init.data.blocks\n"
        "def f():\n    from moment_init.posterior.draws import read_draws\n"
    )
    assert set(imported_names(ast.parse(code))) == {"data.blocks", "posterior.draws.read_draws"}


@pytest.mark.parametrize(
    "code",
    [
        "import moment_init",
        "import moment_init as package",
        "from moment_init import fit_em",
        "from . import search",
        "from ..em import search",
        "import_module('moment_init.em.search')",
        "def f():\n    return importlib.import_module('moment_init.em')",
    ],
)
def test_an_import_that_hides_its_room_is_not_allowed(code: str) -> None:
    (name,) = imported_names(ast.parse(code))
    assert not is_allowed("estimators.base", name)
