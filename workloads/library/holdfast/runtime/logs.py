"""The log of a process in a pod: JSON lines, or plain text on a terminal.

A JSON line on standard output carries `severity` and `time` as Cloud Logging reads them, `message`,
`job`, `attempt` (0 is the first), `rank` if there is one, `action` (the current operation: save,
restore, rendezvous ...) and the caller's fields. On a terminal the same is text on standard error.
Event lines may share standard output: a log line has no `event`, and readers of events skip it.

Lines go through the standard logger `holdfast`. A program that gives that logger a handler before
the first line gets the records instead, with `action` and `fields` as attributes. Commands whose
standard output is data do not use this log, and the four lines of an InputError at a prompt do not
either: they go to standard error.
"""

import contextlib
import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from holdfast.support.values import finite
from holdfast.vocabulary.environment import ENV_JOB
from holdfast.vocabulary.job_identity import read_attempt

NAME = "holdfast"
_job = ""


def set_job(name: str) -> None:
    """Sets the name of the run, for processes whose environment does not have it."""
    global _job
    _job = name


def info(action: str, message: str, /, **fields: object) -> None:
    _write(logging.INFO, action, message, fields)


def warning(action: str, message: str, /, **fields: object) -> None:
    """Reports a loss, or something a person may have to do; the process continues."""
    _write(logging.WARNING, action, message, fields)


def error(
    action: str, message: str, /, *, cause: BaseException | None = None, **fields: object
) -> None:
    """Reports the failure of the process or of its task.

    The traceback of `cause` becomes part of the message, so that Cloud Logging does not take each
    of its lines for another error.
    """
    _write(logging.ERROR, action, message, fields, cause)


def _write(
    level: int,
    action: str,
    message: str,
    fields: dict[str, object],
    cause: BaseException | None = None,
) -> None:
    logger = logging.getLogger(NAME)
    if not logger.handlers:
        logger.addHandler(_PodHandler())
        logger.setLevel(logging.INFO)
        # A handler of the root logger would write each line again, on standard error.
        logger.propagate = False
    extra = {
        "action": action,
        "fields": fields,
    }
    logger.log(
        level,
        "%s",
        message,
        extra=extra,
        exc_info=cause,
    )


class _PodHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # The streams are looked up for each line: tests, notebooks and daemons replace them.
        if _is_terminal(sys.stdout):
            stream = sys.stderr
            line = format_text(record)
        else:
            stream = sys.stdout
            line = format_json(record)
        # A log that cannot be written (disk full, closed pipe, exit) must not stop the work.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # The ranks of a node share the pipe: a line is one write.
            stream.write(line + "\n")
            stream.flush()


def format_json(record: logging.LogRecord) -> str:
    """Formats a line; the caller's fields never replace those of the log."""
    time = datetime.fromtimestamp(record.created, UTC)
    entry: dict[str, Any] = {
        "severity": record.levelname,
        "time": time.isoformat(timespec="milliseconds"),
        "message": _format_message(record),
        "job": _job or os.environ.get(ENV_JOB, ""),
        "attempt": read_attempt(),
        "action": vars(record).get("action", ""),
    }
    rank = os.environ.get("RANK", "")
    if rank.isdecimal():
        entry["rank"] = int(rank)
    fields: dict[str, object] = vars(record).get("fields", {})
    return json.dumps(
        finite(fields) | entry,
        default=str,
    )


def format_text(record: logging.LogRecord) -> str:
    action = vars(record).get("action", NAME)
    line = f"{action}: {_format_message(record)}"
    if record.levelno <= logging.INFO:
        return line
    return f"{record.levelname.lower()}: {line}"


def _format_message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        return f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
    return text


def _is_terminal(stream: TextIO | None) -> bool:
    if stream is None:
        return False
    with contextlib.suppress(ValueError):  # closed
        return stream.isatty()
    return False
