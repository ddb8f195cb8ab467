"""A hit is what a rule says about a place in an object; a finding is a hit in a file."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.lint.document import Mark, Path


class Severity(StrEnum):
    ERROR = "error"  # it will not run, loses work, or is unsafe
    WARNING = "warning"  # it runs, and will hurt
    INFO = "info"  # worth knowing; never fails a check


@dataclass(frozen=True, slots=True)
class Hit:
    """Result of a rule's check: a path inside the object, and a message.

    `basis` is the fact that it rests on. An empty `fix` means the rule's own. With `on_key` the key
    at the path is wrong, not its value.
    """

    path: Path
    message: str
    basis: str = ""
    fix: str = ""
    on_key: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit with its rule, file and mark. `object_name` is `Kind/namespace/name`."""

    rule: str
    severity: Severity
    message: str
    fix: str
    file: str
    mark: Mark
    object_name: str = ""
    where: str = ""
    """Dotted path in the object."""
    basis: str = ""
    suppressed: str = ""
    """Reason of the ignore that silenced it; empty means that the finding counts."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.mark.line}:{self.mark.column}"
