"""One module per environment, each with one literal `ENVIRONMENT`. A fork edits or adds a module
here, nothing else.
"""

import traceback
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from holdfast.support.errors import InputError
from infra.environments.schema import Environment, placeholders

__all__ = ["Environment", "imports_path", "load", "names", "placeholders", "source_path"]

_FOLDER = Path(__file__).parent
_SCHEMA = {
    "__init__",
    "schema",
    "capacity",
    "cluster",
    "network",
    "services",
    "checks",
    "runs",
    "teams",
}


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _SCHEMA)


def source_path(name: str) -> str:
    """Return the path of the file to edit, as messages print it."""
    return f"infra/environments/{name}.py"


def imports_path(name: str) -> Path:
    """Return the file of Terraform's import blocks, which `infra plan --adopt` writes."""
    return _FOLDER / f"{name}.imports.json"


def load(name: str) -> Environment:
    """Load the environment `name`. Raises InputError with file, line and field."""
    if not name:  # there is no default: the command may reach a cloud
        raise InputError(
            "no environment",
            got="none named",
            allowed=", ".join(names()),
            fix="--env NAME",
        )
    if name not in names():
        matches = get_close_matches(name, names(), n=1)
        fix = f"`python -m infra new {name}` makes one"
        if matches:
            fix = f"did you mean {matches[0]}?"
        raise InputError(
            "unknown environment",
            got=name,
            allowed=", ".join(names()),
            fix=fix,
        )
    environment = build(name, lambda: import_module(f"{__name__}.{name}").ENVIRONMENT)
    _refuse_stray_fields(name, environment)
    if environment.name != name:
        raise InputError(
            f"{source_path(name)}: name",
            got=environment.name,
            allowed=name,
            fix="set name to the module's name",
        )
    return environment


def build(name: str, make: Callable[[], Environment]) -> Environment:
    """Return the result of `make`. Raises InputError with the file and the line of the environment
    instead of whatever its literal raises.
    """
    try:
        return make()
    except InputError as error:
        raise _add_line(error, name) from error
    except SyntaxError as error:
        raise InputError(
            f"{source_path(name)}:{error.lineno}: not Python",
            got=error.msg,
            allowed="a Python module",
            fix="correct this line, or the one above",
        ) from error
    except NameError as error:
        allowed = "names of infra.environments.schema, imported at the top of the file"
        fix = f"import {error.name} there, or correct its spelling"
        unknown = InputError(
            "a name is not imported",
            got=error.name,
            allowed=allowed,
            fix=fix,
        )
        raise _add_line(unknown.with_traceback(error.__traceback__), name) from error
    # The schema has no such name or field, or no check of a field expects a value of this type.
    except (ArithmeticError, AttributeError, ImportError, TypeError, ValueError) as error:
        allowed = "the fields of infra/environments/schema.py, with values of their types"
        fix = "add missing fields, remove unknown fields, correct wrong types"
        unfit = InputError("fields", got=error, allowed=allowed, fix=fix)
        raise _add_line(unfit.with_traceback(error.__traceback__), name) from error


def _refuse_stray_fields(name: str, environment: Environment) -> None:
    """Raise InputError for a field that the module assigns and the environment does not have: its
    author believes that it holds.
    """
    module = vars(import_module(f"{__name__}.{name}"))
    for field in fields(Environment):
        value = getattr(environment, field.name)
        if module.get(field.name, value) != value:
            raise InputError(
                f"{source_path(name)}: {field.name} is assigned outside of Environment(...)",
                got=f"{field.name} = ...",
                allowed="arguments of Environment",
                fix=f"move it to the argument {field.name}=..., with a comma after it",
            )


def _add_line(error: InputError, name: str) -> InputError:
    """Return the same error with the line of the environment's file before the field."""
    path = str(_FOLDER / f"{name}.py")
    location = source_path(name)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            location = f"{source_path(name)}:{frame.lineno}"
    return InputError(
        f"{location}: {error.what}",
        got=error.got,
        allowed=error.allowed,
        fix=error.fix,
    )
