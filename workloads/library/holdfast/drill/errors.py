"""Errors of drills, in addition to InputError, Stopped and Unjudged of `support.errors`."""

from holdfast.support.errors import HoldfastError

MAX_LOG_CHARACTERS = 400  # in a line of output; the journal has the whole text


class DrillError(HoldfastError, RuntimeError):
    """The work under test did something that no eviction explains."""


def in_one_line(reason: str) -> str:
    """Joins an error and the log lines after it; a long log keeps only its end."""
    lines: list[str] = []
    for line in reason.splitlines():
        if line.strip():
            lines.append(line.strip())
    if not lines:
        return "no reason"
    log = " | ".join(lines[1:])
    return f"{lines[0]} {log[-MAX_LOG_CHARACTERS:]}".rstrip()
