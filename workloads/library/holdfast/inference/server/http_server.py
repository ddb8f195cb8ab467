"""The HTTP server of a process: uvicorn, without its signals and with this library's log."""

import contextlib
import logging
import resource
import socket
from collections.abc import Generator

import uvicorn

from holdfast.runtime import logs
from holdfast.support.errors import InputError

_BACKLOG = 2048
OTHER_FILES = 256
"""The files that a server may have open in addition to its connections."""


class HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Captures none: `Shutdown` has them, and uvicorn's would stop listening at once."""
        yield


def raise_file_limit(count: int) -> None:
    """Allows `count` open files if the system does: container runtimes begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class _ForwardingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error:
            logs.error("http", record.getMessage(), cause=error)
        else:
            logs.warning("http", record.getMessage())


def forward_warnings() -> None:
    """Sends uvicorn's warnings to our log, so that standard output has one format."""
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_ForwardingHandler(logging.WARNING)]
    logger.propagate = False


def listen(host: str, port: int) -> socket.socket:
    """Binds the port before the model loads, so that probes are answered from the start."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            "the address is not available",
            got=f"{host}:{port}: {error.strerror}",
            allowed="a free port of this machine",
            fix="use another --port, or stop the program that uses it",
        ) from None
