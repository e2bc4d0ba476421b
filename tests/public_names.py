"""The listing of public names that `tests/data/public_names.txt` keeps."""

import enum
import importlib
import inspect
from typing import Any

MODULES = ("moment_init", "moment_init.models", "moment_init.paper", "moment_init.scores")


def list_public_names() -> str:
    """One line for each public name with its parameters, and for each member of a class."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            lines += describe(f"{module_name}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def describe(path: str, value: Any) -> list[str]:
    """Lines of a function or a class."""
    if not inspect.isclass(value):
        return [path + parameters(value)]
    if issubclass(value, enum.Enum):
        return [f"{path}: {value.__mro__[1].__name__}"] + [
            f"{path}.{member.name} = {member.value!r}" for member in value
        ]
    if issubclass(value, BaseException):
        return [f"{path}: {', '.join(base.__name__ for base in value.__bases__)}"]
    members = [name for name in dir(value) if not name.startswith("_") and is_own(value, name)]
    return [path + parameters(value)] + [describe_member(path, value, name) for name in members]


def is_own(owner: type, name: str) -> bool:
    """Whether this package defines a member, rather than scikit-learn."""
    defining = next(base for base in owner.__mro__ if name in vars(base))
    kind = type(vars(defining)[name])
    return defining.__module__.startswith("moment_init") and not kind.__module__.startswith(
        "sklearn"
    )


def describe_member(path: str, owner: type, name: str) -> str:
    """Line of a method with its parameters, or of a field or property with its name alone."""
    member = inspect.getattr_static(owner, name)
    is_method = inspect.isroutine(member) or isinstance(member, classmethod | staticmethod)
    return f"{path}.{name}" + (parameters(getattr(owner, name)) if is_method else "")


def parameters(function: Any) -> str:
    """Parameters with their defaults and without annotations."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(bare))
