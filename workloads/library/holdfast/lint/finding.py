"""What a rule says about a place, and the fact it was judged by."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.lint.document import Mark, Path


class Severity(StrEnum):
    ERROR = "error"  # it will not run, loses work, or is unsafe
    WARNING = "warning"  # it runs, and will hurt
    INFO = "info"  # worth knowing; never fails a check


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule's check yields: a path inside the object, and words. Empty `fix` means the rule's
    own.

    `basis`: the fact that it rests on. `on_key`: the key at the path is what is wrong, not its
    value.
    """

    path: Path
    message: str
    basis: str = ""
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
    object_name: str = ""
    where: str = ""
    """Dotted path in the object."""
    basis: str = ""
    suppressed: str = ""
    """Reason of the ignore that silenced it; empty means that it counts."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.mark.line}:{self.mark.column}"
