"""Finds the extra of the distribution that brings a package which a command lacks.

The extras are in the library's pyproject.toml.
"""

import re
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from holdfast.support.distribution import DISTRIBUTION, install_command
from holdfast.support.errors import InputError

_TABLES = tomllib.loads(Path(__file__).with_name("extras.toml").read_text())
OF_COMMAND: dict[str, str] = _TABLES["command"]
OF_PACKAGE: dict[str, str] = _TABLES["package"]
# If several distributions share the folder of a package, Python raises no ModuleNotFoundError.
_FROM_SHARED = re.compile(r"cannot import name '(\w+)' from '(google(?:\.cloud)?)'")


def explain_missing_package(error: ImportError, words: Sequence[str]) -> InputError | None:
    """Returns the report if a command lacks a package of an extra; None for any other error.

    `words` are those with which the command was called.
    """
    name = _find_missing_package(error)
    default_extra = _find_extra(name)
    if default_extra is None:
        return None
    extra = OF_COMMAND.get(" ".join(words[:1]), default_extra)
    extra = OF_COMMAND.get(" ".join(words[:2]), extra)
    return _make_error(name, extra)


def require_extra(extra: str, *packages: str) -> None:
    """Raises InputError if one of the packages that the extra brings is not installed."""
    for name in packages:
        if find_spec(name) is None:
            raise _make_error(name, extra)


def _make_error(package: str, extra: str) -> InputError:
    return InputError(
        "a package of this command is not installed",
        got=f"holdfast without {package}",
        allowed=f"{DISTRIBUTION}[{extra}]",
        fix=install_command(extra),
    )


def _find_missing_package(error: ImportError) -> str:
    shared = _FROM_SHARED.match(str(error))
    if shared:
        return f"{shared[2]}.{shared[1]}"
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    return ""


def _find_extra(package: str) -> str | None:
    """Returns the extra of the package, or of the nearest package that contains it."""
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in OF_PACKAGE:
            return OF_PACKAGE[prefix]
    return None
