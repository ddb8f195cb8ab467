"""Which extra of the distribution brings a package that a command lacks. Extras: pyproject.toml of
the library.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from holdfast.support.distribution import DISTRIBUTION, install_command
from holdfast.support.errors import InputError

_TABLES = tomllib.loads(Path(__file__).with_name("extras.toml").read_text())
OF_COMMAND: dict[str, str] = _TABLES["command"]
OF_PACKAGE: dict[str, str] = _TABLES["package"]
# Of a package whose folder several distributions share, Python raises no ModuleNotFoundError.
_FROM_SHARED = re.compile(r"cannot import name '(\w+)' from '(google(?:\.cloud)?)'")


def lacking(error: ImportError, words: Sequence[str]) -> InputError | None:
    """What to answer where a command, called with these words, lacks a package of an extra; None
    for any other fault.
    """
    shared = _FROM_SHARED.match(str(error))
    if shared:
        name = f"{shared[2]}.{shared[1]}"
    else:
        name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    by_package = next((OF_PACKAGE[prefix] for prefix in prefixes if prefix in OF_PACKAGE), None)
    if by_package is None:
        return None
    extra = OF_COMMAND.get(next(iter(words), ""), by_package)
    return InputError(
        "a package of this command is not installed",
        got=f"holdfast without {name}",
        allowed=f"{DISTRIBUTION}[{extra}]",
        fix=install_command(extra),
    )
