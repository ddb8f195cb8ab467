"""Ranks that are forked from a process which has imported torch, so that a start of the gang spares
the imports.

That process is forked from the launcher before it has threads of its own. It starts a rank for each
order, reports how each has ended, and ends its ranks when the launcher is gone. A program that is
not Python is executed.
"""

# Why it is so: infra/decisions/0031.

import atexit
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import torch

from holdfast.runtime.phases import uncollected
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.training.deferred_compiler import defer_compiler
from holdfast.vocabulary.exit_codes import EXIT_RETRY

PRELOADED = (
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "holdfast.checkpoint.checkpointer",
)
COMPILER = "torch._dynamo.eval_frame"
"""A part of it: the whole is deferred under its name."""

# The ranks leave a margin before the window ends.
KILL_MARGIN_S = 0.5


class ForkedRanks:
    def __init__(
        self, command: Sequence[str], inherited: Sequence[int] = (), *, client: str = ""
    ) -> None:
        """`inherited`: descriptors that the ranks share. `client`: a package that they ask their
        store through. Raises InputError for a program that is not there.
        """
        if shutil.which(command[0]) is None:
            raise InputError(
                "the program cannot be started",
                got=command[0],
                allowed="a program of the image",
                fix="python -m holdfast train ranks --processes 4 -- python train.py",
            )
        self._socket, theirs = socket.socketpair()
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)  # for a program that is executed
        if not os.fork():
            self._socket.close()
            _serve(theirs, command, [*PRELOADED, client] if client else PRELOADED)
        theirs.close()
        self._lines = self._socket.makefile("rb")
        self._changed = threading.Condition()
        self.running: set[int] = set()
        self._reported = False
        self._ended: SimpleQueue[int | None] = SimpleQueue()
        threading.Thread(
            target=self._listen,
            name="forked-ranks",
            daemon=True,
        ).start()

    def start(self, variables: Sequence[Mapping[str, str]], ended: SimpleQueue[int | None]) -> None:
        """A rank for each of `variables`, which are added to its environment; `ended` gets their
        exit codes.
        """
        with self._changed:
            self._ended = ended
            self._reported = False
            self._socket.sendall(json.dumps([dict(own) for own in variables]).encode() + b"\n")
            self._changed.wait_for(lambda: self._reported)

    def signal(self, number: signal.Signals) -> None:
        with self._changed:
            for pid in self.running:
                with suppress(ProcessLookupError):
                    os.killpg(pid, number) if number is signal.SIGKILL else os.kill(pid, number)

    def forward_notice(self, shutdown: Shutdown, window_s: float) -> None:
        """Once the notice has come: it goes to the ranks, and at the window's end none may be left."""
        shutdown.wait()
        self.signal(signal.SIGTERM)
        threading.Event().wait(max(0.0, shutdown.seconds_left(window_s, KILL_MARGIN_S)))
        self.signal(signal.SIGKILL)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: not self.running)

    def _listen(self) -> None:
        with suppress(OSError):
            for line in self._lines:
                report: dict[str, list[int]] = json.loads(line)
                with self._changed:
                    for code in report.get("codes", ()):
                        self._ended.put(code)
                    self.running = {*report["running"]}
                    self._reported = True
                    self._changed.notify_all()
        with self._changed:  # what forks is gone, and has taken its ranks along
            for _ in self.running or {0}:
                self._ended.put(EXIT_RETRY)
            self.running = set()
            self._reported = True
            self._changed.notify_all()


def _serve(connection: socket.socket, command: Sequence[str], preloaded: Sequence[str]) -> NoReturn:
    """In the forked process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the launcher passes on what is for the ranks
        signal.signal(number, signal.SIG_IGN)
    python = bool(python_arguments(command))
    if python:
        _preload(*preloaded)
        # A first start, of a replacement for which all others wait, compiles nothing before its
        # first step.
        defer_compiler(settings=True)
    # The end of a rank wakes this process: macOS has no descriptor for a process.
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    # without a handler nothing is written to the waker
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(waker.fileno())
    running = set[int]()
    orders = connection.makefile("rb")
    while True:
        ready = select.select([connection, woken], [], [])[0]
        if connection in ready:
            line = orders.readline()  # one at a time: the launcher waits for the report
            if not line:
                break
            running |= {_forked(own, connection, command) for own in json.loads(line)}
            _report(connection, running, [])
        if woken in ready:
            woken.recv(1 << 16)
        codes = [*_codes(running)]
        if codes:
            _report(connection, running, codes)
            if python and not running and any(codes):
                _preload(COMPILER)  # until the replacement is there
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _codes(running: set[int]) -> Iterator[int]:
    """Of those that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.remove(pid)
        yield os.waitstatus_to_exitcode(status)


def _preload(*modules: str) -> None:
    with uncollected():
        for module in modules:
            import_module(module)


def _report(connection: socket.socket, running: set[int], codes: list[int]) -> None:
    with suppress(OSError):  # the launcher is gone: the next look finds it
        connection.sendall(
            json.dumps(
                {
                    "running": [*running],
                    "codes": codes,
                }
            ).encode()
            + b"\n"
        )


def _forked(own: Mapping[str, str], connection: socket.socket, command: Sequence[str]) -> int:
    pid = os.fork()
    # A group of its own: a terminal's Ctrl-C would come to it twice, and twice means at once. Set
    # on both sides, so that neither waits for the other.
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    if not pid:
        os.close(connection.detach())
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(own)
        _run(command)
    return pid


def python_arguments(command: Sequence[str]) -> Sequence[str]:
    """What follows the interpreter in a command that runs a module or a script by this one; else
    empty.
    """
    ours = Path(command[0]).name in (
        "python",
        "python3",
        f"python3.{sys.version_info.minor}",
        sys.executable,
    )
    runs = len(command) > 1 and (
        not command[1].startswith("-") or (command[1] == "-m" and len(command) > 2)
    )
    return command[1:] if ours and runs else ()


def _run(command: Sequence[str]) -> NoReturn:
    """As the interpreter does with its command line."""
    arguments = [*python_arguments(command)]
    if not arguments:
        os.execvp(command[0], [*command])
    # In this thread, which is alone: torch makes its pool again after a fork, and two threads that
    # both find the old one (backward starts its own) end the process.
    torch.set_num_threads(torch.get_num_threads())
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # the rank's top level
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)
