"""Validate the docstrings of the public names with numpydoc.

Public are the names in the `__all__` of the packages below, and the methods and properties of their
classes that the package defines, inherited ones included. The objects are imported rather than
parsed, so that the fields of a dataclass count as its parameters. The checks are those of
`[tool.numpydoc_validation]` in pyproject.toml.
"""

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from numpydoc.validate import validate

PUBLIC = ("moment_init", "moment_init.models", "moment_init.paper", "moment_init.scores")
ROOT = Path(__file__).resolve().parents[1]


def member_names(cls: type) -> Iterator[str]:
    """Yield the dotted names of the public methods and properties that the package defines.

    A descriptor of another kind is another library's, such as scikit-learn's `set_fit_request`.
    """
    for base in cls.__mro__:
        if not base.__module__.startswith("moment_init"):
            continue
        for name, member in vars(base).items():
            is_documented = inspect.isfunction(member) or isinstance(
                member, property | classmethod | staticmethod
            )
            if is_documented and not name.startswith("_"):
                yield f"{base.__module__}.{base.__qualname__}.{name}"


def public_names(module_name: str) -> Iterator[str]:
    """Yield the dotted names of the public objects where they are defined."""
    module = importlib.import_module(module_name)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from member_names(value)
        # The constructor of an enumeration is not for callers: it has no parameters to document.
        is_enumeration = inspect.isclass(value) and issubclass(value, Enum)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not is_enumeration:
            yield f"{value.__module__}.{value.__qualname__}"


def main() -> int:
    """Print every finding; return 1 if there is one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checks = set(settings["tool"]["numpydoc_validation"]["checks"])
    n_findings = 0
    # A method of a base class is validated once.
    for name in sorted({name for module in PUBLIC for name in public_names(module)}):
        for code, message in validate(name)["errors"]:
            if code in checks:
                n_findings += 1
                print(f"{name}: {code} {message}")
    return int(n_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
