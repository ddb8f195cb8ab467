"""What a rule says about a place, and the constant it was judged by."""

import ast
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path as FilePath

from holdfast.contract.printable import MOST_CHARACTERS, printable
from holdfast.lint.document import Mark, Path


class Severity(StrEnum):
    ERROR = "error"  # it will not run, loses work, or is unsafe
    WARNING = "warning"  # it runs, and will hurt
    INFO = "info"  # worth knowing; never fails a check


@dataclass(frozen=True, slots=True)
class Basis:
    """The fact that a finding rests on, and where it is written: a file of the library, or with line 0 a document."""

    fact: str
    file: str
    line: int

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{printable(self.fact)} ({where})"


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule's check yields: a path inside the object, and words. Empty `fix` means the rule's own.

    `on_key`: the key at the path is what is wrong, not its value.
    """

    path: Path
    message: str
    basis: Basis | None = None
    fix: str = ""
    on_key: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit in its place. `object_name` is `Kind/namespace/name`."""

    rule: str
    severity: Severity
    message: str
    fix: str
    file: str
    mark: Mark
    object_name: str
    where: str = ""
    """Dotted path in the object."""
    basis: Basis | None = None
    suppressed: str = field(default="")
    """Reason of the ignore that silenced it; empty means that it counts."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.mark.line}:{self.mark.column}"


def shortened(text: str) -> str:
    """A name out of a file may be as long as the file."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "..."


LIBRARY = "workloads/library/"


@cache
def _source(module: str) -> tuple[str, ast.Module]:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, module
    file = FilePath(spec.origin)
    parts = module.split(".")
    root = file.parents[len(parts) - 1 + (file.name == "__init__.py")]
    folder = LIBRARY if parts[0] == "holdfast" else ""
    return folder + file.relative_to(root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


@cache
def _line(module: str, name: str) -> int:
    for node in ast.walk(_source(module)[1]):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [t.id for t in targets if isinstance(t, ast.Name)] + [getattr(node, "name", "")]
        if name in names and isinstance(node, ast.stmt):
            return node.lineno
    raise LookupError(f"{module} has no {name}")


def constant(module: str, name: str, fact: str) -> Basis:
    """Basis for a name that a module assigns or defines."""
    return Basis(fact, _source(module)[0], _line(module, name))
