"""Rooms of the package are layers: each imports only the rooms before it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "moment_init"

# The order of the walk, which ARCHITECTURE.md shows.
ROOMS = (
    "families",
    "data",
    "scores",
    "likelihood",
    "moments",
    "em",
    "models",
    "posterior",
    "comparison",
    "estimators",
)

# Every room may import these two, and they import no room; `results` may import `checks`.
GROUND = ("checks", "results")

# The models need PyMC, which the other rooms must not import.
USERS_OF_MODELS = {"models", "posterior", "comparison"}

# A second implementation for several responses, and one for Dask. Imports from them and of them are
# not checked. This list only shrinks.
EXCEPTIONS = (
    "responses",
    "row_sources",
    "models.joint_building",
    "models.joint_sampling",
    "estimators.joint_mixtures",
)


def module_name(path: Path) -> str:
    """Dotted name below the package; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that code imports, anywhere but under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported_modules(ast.Module(node.orelse, type_ignores=[]))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module == "moment_init":
                # A name of the package itself, or one of its modules.
                yield from (alias.name for alias in node.names)
            elif module.startswith("moment_init."):
                # `from moment_init.models import kernels` imports a module as well.
                yield from (f"{module}.{alias.name}"[len("moment_init.") :] for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (
                name[len("moment_init.") :] for name in names if name.startswith("moment_init.")
            )
        else:
            yield from imported_modules(node)


def is_exception(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in EXCEPTIONS)


def is_allowed(importer: str, imported: str) -> bool:
    """Whether one module may import another, or a name of it."""
    if is_exception(importer) or is_exception(imported):
        return True
    room, other = importer.split(".")[0], imported.split(".")[0]
    if room == other or other == "checks":
        return True
    if other == "results":
        return room in ROOMS
    if room not in ROOMS or other not in ROOMS:
        return False
    if other == "models" and room not in USERS_OF_MODELS:
        return False
    return ROOMS.index(other) < ROOMS.index(room)


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
MODULES += sorted((PACKAGE / "models").glob("*.py"))  # rglob does not follow the symlink
MODULES = sorted(set(MODULES))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    importer = module_name(path)
    imported = set(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))
    assert [each for each in sorted(imported) if not is_allowed(importer, each)] == []


def test_every_folder_is_a_room_or_a_named_exception() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == {*ROOMS, *(each for each in EXCEPTIONS if "." not in each)}


def test_every_exception_still_exists() -> None:
    names = {module_name(path) for path in MODULES}
    assert [each for each in EXCEPTIONS if each not in names] == []


@pytest.mark.parametrize(
    ("importer", "imported", "is_right"),
    [
        ("em.search", "likelihood.climbing.maximise", True),
        ("likelihood.climbing", "em.search.search", False),
        ("em.search", "checks.FloatArray", True),
        ("checks", "families.base.Family", False),
        ("results", "checks.FloatArray", True),
        ("checks", "results.Status", False),
        ("em.fitting", "models.mixture_glm.build_model", False),
        ("posterior.running", "models.mixture_glm.build_model", True),
        ("estimators.fitting", "models.mixture_glm.build_model", False),
        ("em.fitting", "responses.fitting.fit_responses", True),
        ("em.fitting", "fit_em", False),
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
    assert set(imported_modules(ast.parse(code))) == {"data.blocks", "posterior.draws.read_draws"}
