"""Forks ranks from a process that has imported torch, so that each start of the gang saves the
imports.

The launcher forks that process, the fork server, before it has threads of its own. The fork server
starts ranks on request, reports their exit codes, and kills its ranks when the launcher exits. A
program that is not Python is executed.
"""

# Why it is so: infra/decisions/0031, infra/decisions/0181.

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
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import torch

from holdfast.checkpoint.ranks import is_lost_peer
from holdfast.runtime.phases import pause_gc
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError, print_lost_peer
from holdfast.training.deferred_compiler import defer_compiler
from holdfast.vocabulary.exit_codes import EXIT_RETRY

PRELOADED = (
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "holdfast.checkpoint.checkpointer",
)
COMPILER = "torch._dynamo.eval_frame"
"""Part of the compiler: the package itself is replaced by the deferred module."""

# The ranks leave a margin before the window ends.
KILL_MARGIN_S = 0.5


class ForkedRanks:
    """The launcher's side: requests to the fork server, and the ranks that are running."""

    def __init__(
        self,
        command: Sequence[str],
        inherited: Sequence[int] = (),
        *,
        client: str = "",
        preloads_compiler: bool = False,
    ) -> None:
        """`inherited` are descriptors that the ranks share. `client` is the package by which they
        reach their store. With `preloads_compiler` the compiler is imported before the first start,
        and not while a gang waits for a replacement. Raises InputError if the program does not
        exist.
        """
        if shutil.which(command[0]) is None:
            raise InputError(
                "the program cannot be started",
                got=command[0],
                allowed="a program of the image",
                fix="holdfast train ranks --processes 4 -- python train.py",
            )
        self._socket, server_socket = socket.socketpair()
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)  # for a program that is executed
        if not os.fork():
            self._socket.close()
            modules = [*PRELOADED, client] if client else PRELOADED
            _serve(server_socket, command, modules, preloads_compiler=preloads_compiler)
        server_socket.close()
        self._lines = self._socket.makefile("rb")
        self._changed = threading.Condition()
        self.running: set[int] = set()
        """Process ids of the ranks."""
        self._has_report = False
        """True once the fork server has reported since the last request."""
        self._is_ready = threading.Event()
        self._exit_codes: SimpleQueue[int | None] = SimpleQueue()
        threading.Thread(
            target=self._listen,
            name="forked-ranks",
            daemon=True,
        ).start()

    def start(
        self, environments: Sequence[Mapping[str, str]], exit_codes: SimpleQueue[int | None]
    ) -> None:
        """Starts a rank for each of `environments`, whose variables are added to its own.

        `exit_codes` receives their exit codes.
        """
        request = json.dumps([dict(variables) for variables in environments])
        with self._changed:
            self._exit_codes = exit_codes
            self._has_report = False
            self._socket.sendall(request.encode() + b"\n")
            self._changed.wait_for(lambda: self._has_report)

    def wait_until_ready(self) -> None:
        """Waits until the fork server has imported what the ranks need."""
        self._is_ready.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the ranks, and SIGKILL to their process groups."""
        send = os.killpg if number is signal.SIGKILL else os.kill
        with self._changed:
            for pid in self.running:
                with suppress(ProcessLookupError):
                    send(pid, number)

    def forward_notice(self, shutdown: Shutdown, window_s: float) -> None:
        """Waits for the notice, forwards it to the ranks, and kills the remaining ones when the
        window ends.
        """
        shutdown.wait()
        self.signal(signal.SIGTERM)
        remaining_s = shutdown.seconds_left(window_s, KILL_MARGIN_S)
        threading.Event().wait(max(0.0, remaining_s))
        self.signal(signal.SIGKILL)

    def end(self) -> None:
        """Kills the ranks and waits for their end."""
        self.signal(signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: not self.running)

    def _listen(self) -> None:
        with suppress(OSError):
            for line in self._lines:
                report: dict[str, list[int]] = json.loads(line)
                if not report:
                    self._is_ready.set()
                    continue
                self._update(running=set(report["running"]), codes=report["codes"])
        # The fork server was lost, and killed its ranks with it.
        self._is_ready.set()
        codes = [EXIT_RETRY] * max(1, len(self.running))
        self._update(running=set(), codes=codes)

    def _update(self, *, running: set[int], codes: list[int]) -> None:
        with self._changed:
            for code in codes:
                self._exit_codes.put(code)
            self.running = running
            self._has_report = True
            self._changed.notify_all()


def _serve(
    connection: socket.socket,
    command: Sequence[str],
    preloaded: Sequence[str],
    *,
    preloads_compiler: bool = False,
) -> NoReturn:
    """Runs the fork server, in the forked process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the launcher forwards them to the ranks
        signal.signal(number, signal.SIG_IGN)
    is_python = bool(python_arguments(command))
    if is_python:
        _preload(*preloaded)
        # All members wait for the first start of a replacement, which compiles nothing before its
        # first step.
        defer_compiler(settings=True)
    if is_python and preloads_compiler:
        _preload(COMPILER)
    with suppress(OSError):
        connection.sendall(b"{}\n")
    # The end of a rank wakes this process through a socket: macOS has no descriptor for a process.
    wakeup_reader, wakeup_writer = socket.socketpair()
    wakeup_reader.setblocking(False)
    wakeup_writer.setblocking(False)
    # Python writes to the wakeup descriptor only if the signal has a handler.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakeup_writer.fileno())
    running = set[int]()
    requests = connection.makefile("rb")
    while True:
        ready, _, _ = select.select([connection, wakeup_reader], [], [])
        if connection in ready:
            request = requests.readline()  # one at a time: the launcher waits for the report
            if not request:
                break
            for variables in json.loads(request):
                running.add(_fork(variables, connection, command))
            _report(connection, running, [])
        if wakeup_reader in ready:
            wakeup_reader.recv(1 << 16)
        codes = list(_reap(running))
        if not codes:
            continue
        _report(connection, running, codes)
        if is_python and not running and any(codes):
            _preload(COMPILER)  # while the gang waits for the replacement
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _reap(running: set[int]) -> Iterator[int]:
    """Yields the exit codes of ranks that have ended, and removes them from `running`."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.remove(pid)
        yield os.waitstatus_to_exitcode(status)


def _preload(*modules: str) -> None:
    with pause_gc():
        for module in modules:
            import_module(module)


def _report(
    connection: socket.socket,
    running: set[int],
    codes: list[int],
) -> None:
    report = {
        "running": list(running),
        "codes": codes,
    }
    line = json.dumps(report).encode() + b"\n"
    with suppress(OSError):  # the launcher was lost: the next select notices it
        connection.sendall(line)


def _fork(
    variables: Mapping[str, str],
    connection: socket.socket,
    command: Sequence[str],
) -> int:
    """Starts a rank and returns its process id."""
    pid = os.fork()
    # Each rank has its own process group: it would get a terminal's Ctrl-C twice, and a second one
    # ends it at once. Set on both sides, so that neither waits for the other.
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    if not pid:
        os.close(connection.detach())
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(variables)
        _run(command)
    return pid


def python_arguments(command: Sequence[str]) -> Sequence[str]:
    """Returns the arguments of a command that runs a module or a script by this interpreter.

    Returns an empty sequence for any other command.
    """
    interpreters = (
        "python",
        "python3",
        f"python3.{sys.version_info.minor}",
        sys.executable,
    )
    if Path(command[0]).name not in interpreters or len(command) < 2:
        return ()
    arguments = command[1:]
    is_script = not arguments[0].startswith("-")
    is_module = arguments[0] == "-m" and len(arguments) > 1
    if is_script or is_module:
        return arguments
    return ()


def _run(command: Sequence[str]) -> NoReturn:
    """Runs the command as the interpreter would, and exits with its code."""
    arguments = list(python_arguments(command))
    if not arguments:
        os.execvp(command[0], list(command))
    # Set now, while there is one thread: torch creates its pool again after a fork, and two threads
    # that both find the old one (backward starts its own) crash the process.
    torch.set_num_threads(torch.get_num_threads())
    _drop_inherited_finalizers()
    code = _run_python(arguments)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _drop_inherited_finalizers() -> None:
    """Keeps finalizers that were registered before the fork from running when this rank exits.

    They release what belongs to the process that registered them. Torch has one for each library of
    operators: together they take 0.1 s and more, for which a gang that changes its size waits.
    """
    for finalizer in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
        finalizer.atexit = False


def _run_python(arguments: list[str]) -> int:
    """Runs a module or a script and returns its exit code."""
    program = arguments[0]
    try:
        if program == "-m":
            module = arguments[1]
            sys.argv = arguments[1:]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # the rank's top level
        if is_lost_peer(error):
            print_lost_peer(error)
            # The launcher looks for another node that was lost, and does not blame its own.
            return EXIT_RETRY
        traceback.print_exc()
        return 1
    return 0
