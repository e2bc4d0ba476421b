"""Validate the docstring of every public object of the package with numpydoc.

Public are the names in the `__all__` of each module, and the public methods and properties that
their classes define. The objects are imported rather than parsed, so that the fields of a
dataclass count as its parameters. Module docstrings are left to ruff. The checks are those of
`[tool.numpydoc_validation]` in pyproject.toml.
"""

import importlib
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from numpydoc.validate import validate

PACKAGE = "moment_init"
ROOT = Path(__file__).resolve().parents[1]


def module_names() -> Iterator[str]:
    """Yield the dotted name of every module of the package."""
    package = importlib.import_module(PACKAGE)
    yield PACKAGE
    for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
        yield module.name


def member_names(cls: type) -> Iterator[str]:
    """Yield the public methods and properties that the class itself defines.

    A descriptor of another kind is another library's, such as scikit-learn's `set_fit_request`.
    """
    for name, member in vars(cls).items():
        is_documented = inspect.isfunction(member) or isinstance(
            member, property | classmethod | staticmethod
        )
        if is_documented and not name.startswith("_"):
            yield name


def public_names(module_name: str) -> Iterator[str]:
    """Yield the dotted names of the public objects that the module defines."""
    module = importlib.import_module(module_name)
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if getattr(value, "__module__", None) != module_name:
            continue  # Data, or a name that another module defines and answers for.
        if inspect.isclass(value):
            yield from (f"{module_name}.{name}.{member}" for member in member_names(value))
        # The constructor of an enumeration is not for callers: it has no parameters to document.
        is_enumeration = inspect.isclass(value) and issubclass(value, Enum)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not is_enumeration:
            yield f"{module_name}.{name}"


def main() -> int:
    """Print every finding; return 1 if there is one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checks = set(settings["tool"]["numpydoc_validation"]["checks"])
    n_findings = 0
    for module_name in module_names():
        for name in public_names(module_name):
            for code, message in validate(name)["errors"]:
                if code in checks:
                    n_findings += 1
                    print(f"{name}: {code} {message}")
    return int(n_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
