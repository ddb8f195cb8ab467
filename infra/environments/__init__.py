"""One module per environment, each with one literal `ENVIRONMENT`. A fork edits or adds a module
here, nothing else.
"""

import traceback
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from holdfast.support.errors import InputError
from infra.environments.schema import Environment, placeholders

__all__ = ["Environment", "imports_of", "load", "names", "placeholders", "source_of"]

_FOLDER = Path(__file__).parent
_SCHEMA = {
    "__init__",
    "schema",
    "capacity",
    "cluster",
    "services",
    "serving",
    "checks",
    "runs",
    "teams",
}


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _SCHEMA)


def source_of(name: str) -> str:
    """The file to edit, as messages print it."""
    return f"infra/environments/{name}.py"


def imports_of(name: str) -> Path:
    """Terraform's import blocks of what an environment adopted, as `infra plan --adopt` writes
    them.
    """
    return _FOLDER / f"{name}.imports.json"


def load(name: str) -> Environment:
    """The environment `name`, or an InputError that names file, line and field."""
    if not name:  # there is no default: what follows may reach a cloud
        raise InputError(
            "no environment",
            got="none named",
            allowed=", ".join(names()),
            fix="--env NAME",
        )
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        fix = f"did you mean {near[0]}?" if near else f"`python -m infra new {name}` makes one"
        raise InputError(
            "unknown environment",
            got=name,
            allowed=", ".join(names()),
            fix=fix,
        )
    environment = built(name, lambda: import_module(f"{__name__}.{name}").ENVIRONMENT)
    if environment.name != name:
        what = f"{source_of(name)}: name"
        raise InputError(
            what,
            got=environment.name,
            allowed=name,
            fix="set name to the module's name",
        )
    return environment


def built(name: str, make: Callable[[], Environment]) -> Environment:
    """What `make` gives, or an InputError that names the file of the environment."""
    try:
        return make()
    except InputError as error:
        raise _placed(error, name) from error
    except SyntaxError as error:
        what = f"{source_of(name)}:{error.lineno}: not Python"
        fix = "correct this line, or the one above"
        raise InputError(
            what,
            got=error.msg,
            allowed="a Python module",
            fix=fix,
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
        raise _placed(unknown.with_traceback(error.__traceback__), name) from error
    # A name or a field that the schema lost or gained, or a value of a type that no check of a
    # field expects.
    except (ArithmeticError, AttributeError, ImportError, TypeError, ValueError) as error:
        fields = "the fields of infra/environments/schema.py, with values of their types"
        fix = "add missing fields, remove unknown fields, correct wrong types"
        unfit = InputError("fields", got=error, allowed=fields, fix=fix)
        raise _placed(unfit.with_traceback(error.__traceback__), name) from error


def _placed(error: InputError, name: str) -> InputError:
    """The same error with the line of the environment's file before the field."""
    path = str(_FOLDER / f"{name}.py")
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f"{source_of(name)}:{lines[-1]}" if lines else source_of(name)
    return InputError(
        f"{where}: {error.what}",
        got=error.got,
        allowed=error.allowed,
        fix=error.fix,
    )
