"""Host processes that cannot outlive the test run, and free ports for them."""

import contextlib
import ctypes
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_FIRST_PORT = 10_000
_PORTS = 20_000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Returns ports of `address` that were free a moment ago, all different.

    They are below the kernel's range of ephemeral ports: from that range, a socket could get the
    port while the process that is to listen on it starts.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = _FIRST_PORT + secrets.randbelow(_PORTS)
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # it is in use: try another
                listener.bind((address, port))
                ports.append(port)
    return ports


def alive(pid: int) -> bool:
    """A zombie is dead: it only waits to be collected."""
    try:
        return _read_status(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def owner() -> str:
    """Returns a name for this test run: its process id and, since ids are reused, two digits of its
    start time.
    """
    return f"{os.getpid()}x{_start(os.getpid())}"


def is_orphan(name: str) -> bool:
    """Tells whether `name` begins with the owner() of a run that has died."""
    match = re.match(r"(\d+)x([0-9a-f]{2})(?![0-9a-f])", name)
    if match is None:
        return False
    pid = int(match[1])
    return not alive(pid) or _start(pid) != match[2]


def _read_status(pid: int) -> list[str]:
    """Reads the fields after the command, which may itself hold parentheses."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(")")[2].split()


def _start(pid: int) -> str:
    ticks = int(_read_status(pid)[19])
    return f"{ticks % 256:02x}"


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """Started in order, stopped in reverse. Each has its own process group and its log under
    `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: Sequence[str | Path], env: dict[str, str] | None = None
    ) -> int:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | (env or {}),
                preexec_fn=_die_with_parent,  # Ctrl-C or a kill -9 of pytest leaves nothing behind
                process_group=0,
            )
        self._running.append((name, process))
        return process.pid

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running}

    def wait_until(self, what: str, answers: Callable[[], bool], timeout_s: float = 240.0) -> None:
        """Polls until `answers` returns true. Raises an error with the end of a log if a process
        ends or the time runs out.
        """
        deadline = time.monotonic() + timeout_s
        while not answers():
            for name, process in self._running:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{name} ended with {process.returncode} before {what}:\n{self.tail(name)}"
                    )
            if time.monotonic() > deadline:
                name = self._running[-1][0]
                raise TimeoutError(
                    f"{what} not within {timeout_s:.0f} s; the log of {name}"
                    f" ends:\n{self.tail(name)}"
                )
            time.sleep(0.05)

    def tail(self, name: str, characters: int = 2000) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-characters:]

    def end(self, name: str) -> None:
        """Kills one process and its group, and leaves the others."""
        for entry in [entry for entry in self._running if entry[0] == name]:
            _, process = entry
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._running.remove(entry)

    def stop(self) -> None:
        """No orderly end: nothing of a throw-away cluster is worth waiting for."""
        for _, process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for _, process in self._running:
            process.wait()
        self._running.clear()
