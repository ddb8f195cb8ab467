"""The log of the library: records of the standard logger `holdfast`, which propagate.

A program that has configured `logging` gets the records in its own handlers, with its own format,
and with `action` (the current operation: save, restore, stop ...) and `fields` as attributes. They
begin at INFO, unless the root logger has another level than WARNING, its default, or the logger
`holdfast` has one: `logging.getLogger("holdfast").setLevel(logging.CRITICAL)` silences it.

Without such a configuration they are written as text on standard error. In a
pod, and in processes that the library starts there, they are JSON lines on standard output, unless
that is a terminal: `severity` and `time` as Cloud Logging reads them, `message`, `job`, `attempt`
(0 is the first), `rank` if there is one, `action` and the caller's fields. Event lines may share
standard output: a log line has no `event`, and readers of events skip it. Commands whose standard
output is data do not use this log, and the four lines of an InputError at a prompt do not either.
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
_IN_EVERY_POD = "KUBERNETES_SERVICE_HOST"
_job = ""
_is_own_process = False


def set_job(name: str) -> None:
    """Sets the name of the run, for processes whose environment does not have it."""
    global _job
    _job = name
    use_json()


def use_json() -> None:
    """Writes JSON also outside of a pod: for trainers, workers and servers of the library, whose
    standard output is a log and not data.
    """
    global _is_own_process
    _is_own_process = True


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
    _attach_handler(logger)
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


def _attach_handler(logger: logging.Logger) -> None:
    """Writes the records if nothing else does. A program may configure logging at any time."""
    root = logging.getLogger()
    if root.handlers:
        logger.removeHandler(_HANDLER)
    elif not logger.handlers:
        logger.addHandler(_HANDLER)
    # WARNING is the level that the root has by default.
    is_level_chosen = root.level != logging.WARNING
    if logger.level == logging.NOTSET and not is_level_chosen:
        logger.setLevel(logging.INFO)
        _HANDLER.chose_level = True
    elif is_level_chosen and _HANDLER.chose_level:
        logger.setLevel(logging.NOTSET)
        _HANDLER.chose_level = False


class _Handler(logging.Handler):
    """Writes text on standard error, or in a pod JSON on standard output."""

    chose_level = False
    """The logger has INFO as its level because the program chose none."""

    def emit(self, record: logging.LogRecord) -> None:
        # The streams are looked up for each line: tests, notebooks and daemons replace them.
        if _writes_json():
            stream = sys.stdout
            line = format_json(record)
        else:
            stream = sys.stderr
            line = format_text(record)
        # A log that cannot be written (disk full, closed pipe, exit) must not stop the work.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # The ranks of a node share the pipe: a line is one write.
            stream.write(line + "\n")
            stream.flush()


_HANDLER = _Handler()


def _writes_json() -> bool:
    """Returns whether Cloud Logging may read the lines: text on standard error would be errors."""
    is_in_pod = bool(os.environ.get(ENV_JOB) or os.environ.get(_IN_EVERY_POD))
    is_for_cloud = _is_own_process or is_in_pod
    return is_for_cloud and not _is_terminal(sys.stdout)


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
