"""What a process in a pod reports of itself, one line a message: JSON off a terminal, plain text on
one.

A line of JSON on standard output carries `severity` and `time` as Cloud Logging reads them,
`message`, `job`, `attempt` (0 is the first), `rank` where there is one, `action` (what was being
done: save, restore, rendezvous ...) and the caller's fields. On a terminal the same is text on
standard error. Event lines may share standard output: a log line has no `event`, and readers of
events pass it over.

Lines go through the standard logger `holdfast`: a program that gives that logger a handler before
the first line gets the records instead, with `action` and `fields` as attributes. Commands whose
standard output is data, and the four lines of an InputError at a prompt, are no log: they stay on
standard error.
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
from holdfast.vocabulary.job_identity import attempt_of

NAME = "holdfast"
_job = ""


def set_job(name: str) -> None:
    """The run's name where the environment does not give it."""
    global _job
    _job = name


def info(action: str, message: str, /, **fields: object) -> None:
    _write(logging.INFO, action, message, fields)


def warning(action: str, message: str, /, **fields: object) -> None:
    """A person may have to act, or something was lost; the process goes on."""
    _write(logging.WARNING, action, message, fields)


def error(
    action: str, message: str, /, *, cause: BaseException | None = None, **fields: object
) -> None:
    """The process, or what it was to do, has failed. The traceback of `cause` becomes part of the
    message: one entry in a log that takes each line of its own for another error.
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
        # a handler on the root would write each line again, on standard error
        logger.propagate = False
    logger.log(
        level,
        "%s",
        message,
        extra={"action": action, "fields": fields},
        exc_info=cause,
    )


class _PodHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # The streams are looked up for each line: tests, notebooks and daemons replace them.
        piped = not _is_terminal(sys.stdout)
        stream, line = (sys.stdout, as_json(record)) if piped else (sys.stderr, as_text(record))
        # A log that cannot be written (disk full, reader gone, stream closed at exit) must not stop
        # the work.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.write(line + "\n")  # in one piece: the ranks of a node share the pipe
            stream.flush()


def as_json(record: logging.LogRecord) -> str:
    own: dict[str, Any] = {
        "severity": record.levelname,
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "message": _message(record),
        "job": _job or os.environ.get(ENV_JOB, ""),
        "attempt": attempt_of(),
        "action": vars(record).get("action", ""),
    }
    if (rank := os.environ.get("RANK", "")).isdecimal():
        own["rank"] = int(rank)
    fields: dict[str, object] = vars(record).get("fields", {})
    return json.dumps(finite(fields) | own, default=str)


def as_text(record: logging.LogRecord) -> str:
    level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
    return f"{level}{vars(record).get('action', NAME)}: {_message(record)}"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        return f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
    return text


def _is_terminal(stream: TextIO | None) -> bool:
    with contextlib.suppress(ValueError):  # closed
        return stream is not None and stream.isatty()
    return False
