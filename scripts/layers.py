"""The rooms of the package, their order, and which module imports which."""

import ast
from collections.abc import Iterator
from pathlib import Path

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

# The models import PyMC, which `import moment_init` must not.
USERS_OF_MODELS = {"models", "posterior", "comparison"}

# A module at the root that shows the functions of a room to users counts as part of that room.
FACES = {"paper": "moments"}


def source_files() -> list[Path]:
    """Files of the package; those of models/ are reached through the symlink."""
    return sorted({*PACKAGE.rglob("*.py"), *(PACKAGE / "models").glob("*.py")})


def module_name(path: Path) -> str:
    """Dotted name below the package; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Names of the package that code imports, as "em.search.search".

    Imports inside functions are included, those under `if TYPE_CHECKING:` are not. What hides which
    room is imported (the package as a whole, a relative import, a name given to `import_module`)
    appears as itself, so that no rule allows it.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported_names(ast.Module(node.orelse, type_ignores=[]))
        elif isinstance(node, ast.ImportFrom):
            module = f"{'.' * node.level}{node.module or ''}"
            names = [f"{module}.{alias.name}" for alias in node.names]
            if node.level:
                yield from names
            elif module.split(".")[0] == "moment_init":
                yield from (name.removeprefix("moment_init.") for name in names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            ours = [name for name in names if name.split(".")[0] == "moment_init"]
            yield from (name.removeprefix("moment_init.") for name in ours)
        else:
            is_call = isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
            if is_call and "moment_init" in ast.unparse(node):
                yield ast.unparse(node)
            yield from imported_names(node)


def imports_of(path: Path) -> set[str]:
    """Names of the package that a file imports."""
    return set(imported_names(ast.parse(path.read_text(encoding="utf-8"))))


def is_allowed(importer: str, imported: str) -> bool:
    """Whether a module may import a name: only from rooms before its own.

    `checks`, `progress` and `results` may be imported by all rooms, and import none of them.
    """
    room, other = importer.split(".")[0], imported.split(".")[0]
    room = FACES.get(room, room)
    if room == other or other == "checks":
        return True
    if other in ("progress", "results"):
        return room in ROOMS
    if room not in ROOMS or other not in ROOMS:
        return False
    if other == "models" and room not in USERS_OF_MODELS:
        return False
    return ROOMS.index(other) < ROOMS.index(room)
