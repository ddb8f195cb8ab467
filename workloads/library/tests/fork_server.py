"""Forks processes from one that has imported their modules: each starts in milliseconds, for tests
that need many.

Each is a real process with a session, arguments, environment, streams, signals and an end of its
own, like that of `python SCRIPT ...` or `python -m MODULE ...`. It skips the interpreter's start,
the imports, and what they read of the environment; the hash seed is that of the server. At its end
it does not tear down modules, which takes a second for those of a framework. A test of a start or
an end itself, or a comparison with one, needs a new interpreter instead.
"""

import atexit
import ctypes
import faulthandler
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from holdfast.runtime.phases import pause_gc

ROOT = Path(__file__).parents[3]
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ends this child with its parent, as when a test or a benchmark is killed. Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


class Forked:
    """A process with the part of the interface of subprocess.Popen that tests use."""

    pid: int
    returncode: int | None = None

    def code(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        raise NotImplementedError

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.code()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.await_end()
        return code

    def await_end(self) -> None:
        """Waits for a moment, or until the process ends."""
        time.sleep(0.005)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:  # until it is reaped, no other process gets its number
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Started(Forked):
    """A process that a ForkServer started."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self._end: int | None = None
        """Descriptor that is readable once the process has ended; None if it cannot be had."""
        if sys.platform == "linux":
            with suppress(OSError):  # an old kernel, or a container that forbids it
                self._end = os.pidfd_open(pid)

    def code(self) -> int | None:
        # Asking wakes the server, which takes processor time from what the test waits for.
        if self._end is not None:
            if not self._has_ended(0.0):
                return None
            self._close()
        return self._server.ask({"pid": self.pid})["code"]

    def await_end(self) -> None:
        if self._end is None:
            super().await_end()
        else:
            self._has_ended(0.2)

    def _has_ended(self, within_s: float) -> bool:
        assert self._end is not None
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(1000 * within_s))

    def _close(self) -> None:
        if self._end is not None:
            os.close(self._end)
            self._end = None

    def __del__(self) -> None:
        self._close()


class ForkServer:
    """Ends with the process that made it, as do all its children. For use by one thread."""

    def __init__(self, modules: Iterable[str], *, path: Iterable[Path] = ()) -> None:
        self._socket, server_socket = socket.socketpair()
        folders = [str(folder) for folder in path]
        # Set by a tier that tries other packages: a new interpreter would have them too.
        if inherited := os.environ.get("PYTHONPATH"):
            folders.append(inherited)
        with server_socket:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(server_socket.fileno()),
                    *modules,
                ],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
                stdin=subprocess.DEVNULL,
                pass_fds=[server_socket.fileno()],
                start_new_session=True,  # Ctrl-C is the tests' to handle
            )

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        out: IO[Any],
        err: IO[Any],
        session: bool,
        cwd: str | None = None,
    ) -> Started:
        """Starts a command, which begins with the interpreter; in a new session if `session`.

        `cwd` is its working directory, by default that of this process.
        """
        order = {
            "argv": [*command[1:]],
            "env": dict(env),
            "cwd": cwd or str(Path.cwd()),
            "session": session,
        }
        return Started(self, self.ask(order, out.fileno(), err.fileno())["pid"])

    def ask(self, order: dict[str, Any], *files: int) -> dict[str, Any]:
        body = json.dumps(order).encode()
        socket.send_fds(self._socket, [len(body).to_bytes(4)], files)
        self._socket.sendall(body)
        return json.loads(_read(self._socket, int.from_bytes(_read(self._socket, 4))))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def serve_modules(modules: Iterable[str], server: ForkServer | None) -> Iterator[ForkServer]:
    """Yields `server`, or a new one with these modules, which ends with the block."""
    if server:
        yield server
        return
    with closing(ForkServer(modules)) as own_server:
        yield own_server


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            raise EOFError("the other side of the fork server is gone")
        content += piece
    return content


def serve(connection: socket.socket) -> list[str]:
    """Returns the arguments, in each child; the server itself leaves by SystemExit."""
    while True:
        head, files, *_ = socket.recv_fds(connection, 4, 2)
        if not head:
            sys.exit(0)
        order = json.loads(
            _read(connection, int.from_bytes(head + _read(connection, 4 - len(head))))
        )
        if "pid" in order:
            answer = {"code": _code(order["pid"])}
        else:
            server = os.getpid()
            (begun, begin) = os.pipe()
            pid = os.fork()
            if not pid:
                for descriptor in (connection.detach(), begun):
                    os.close(descriptor)
                die_with(server)
                _become(order, files)
                os.close(begin)
                return order["argv"]
            for theirs in (*files, begin):
                os.close(theirs)
            # ends once the child has its session: before, a signal to its group would be lost
            os.read(begun, 1)
            os.close(begun)
            answer = {"pid": pid}
        body = json.dumps(answer).encode()
        connection.sendall(len(body).to_bytes(4) + body)


def _code(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _become(order: dict[str, Any], files: Sequence[int]) -> None:
    if order["session"]:
        os.setsid()
    for stream, file in enumerate(files, start=1):
        os.dup2(file, stream)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if "PYTHONUNBUFFERED" in os.environ:
        for text in (sys.stdout, sys.stderr):
            text.reconfigure(write_through=True)  # type: ignore[union-attr]
    # torch read this variable at its import
    if "torch" in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):
        import_module("torch").set_num_threads(int(threads))
    if "numpy" in sys.modules:  # as `random` does by itself: else all would draw the same
        import_module("numpy").random.seed(random.getrandbits(32))


def run(arguments: list[str]) -> None:
    """Runs a script or a module, as the interpreter does with its command line."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def leave(code: object) -> None:
    """Ends this process as the interpreter does after a SystemExit with this code."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    for text in (sys.stdout, sys.stderr):
        text.flush()
    os._exit((code or 0) & 0xFF)


def main(descriptor: str, *modules: str) -> None:
    faulthandler.enable()  # a child that is aborted writes what each of its threads does
    with pause_gc():
        for module in modules:
            import_module(module)
        if "typer" in sys.modules:
            # Imports pydantic, as the first command line of a process does: 0.3 s for each child.
            with suppress(ModuleNotFoundError):
                import_module("typer._adapters")
    try:
        run(serve(socket.socket(fileno=int(descriptor))))
    except SystemExit as end:
        leave(end.code)
    leave(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
