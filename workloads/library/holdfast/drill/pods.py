"""A pod on this machine: a command with all its descendants, ended as a kubelet ends a pod.

The kubelet sends SIGTERM to the container's first process only, waits for the window, then kills
the rest of the container's cgroup, including processes that moved to a session of their own.
Instead of a cgroup, an environment variable that every descendant inherits marks the members. No
pod outlives the process that started it, even if that one is killed: see guardian.py.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import psutil

from holdfast.drill.guardian import GUARDED, guard_pods
from holdfast.vocabulary.exit_codes import EXIT_KILLED

MARK = "HOLDFAST_POD"
OWNER = "HOLDFAST_POD_OWNER"
_TMP = "holdfast-pod-"
_POLL_S = 0.02
_EXEC_S = 1.0
"""A process between fork and exec does not show its own variables yet."""


class Pod:
    """Starts a command as a pod.

    `owner` groups the pods of one drill, so that a later run can end those of a killed run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        owner: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._mark = uuid.uuid4().hex
        log.parent.mkdir(parents=True, exist_ok=True)
        # As in a container, temporary files of a killed process are removed with the pod.
        tmp = tempfile.mkdtemp(prefix=_TMP)
        self._remove_tmp = weakref.finalize(self, shutil.rmtree, tmp, ignore_errors=True)
        variables = {**os.environ, **(env or {})}
        variables |= {
            "TMPDIR": tmp,
            MARK: self._mark,
            OWNER: owner,
            GUARDED: guard_pods(),
        }
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                list(command),
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=variables,
                start_new_session=True,  # Ctrl-C reaches only the drill, which then ends its pods
            )
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code as in Kubernetes, 128 + n after signal n; None while the pod runs."""
        code = self._process.poll()
        if code is None or code >= 0:
            return code
        return 128 - code

    def wait(self, timeout_s: float) -> int:
        """Returns the exit code. Raises subprocess.TimeoutExpired if the pod still runs."""
        self._process.wait(timeout_s)
        code = self.exit_code
        assert code is not None
        return code

    def preempt(self, window_s: float) -> int:
        """Sends SIGTERM, waits for the window, then kills the rest.

        Returns the exit code; 137 if the window ran out.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            code = self.wait(window_s)
        except subprocess.TimeoutExpired:
            code = EXIT_KILLED
        self.kill()
        return code

    def kill(self) -> int:
        """Simulates a power loss: SIGKILL to every member at once, without notice."""
        _kill_all(lambda env: env.get(MARK) == self._mark)
        self._process.wait()
        self._remove_tmp()
        return self.exit_code or 0

    def tail(self, lines: int = 12) -> str:
        text = self.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def clear(owner: str) -> int:
    """Kills the processes of an owner whose run was killed; returns their number."""
    return _kill_all(lambda env: env.get(OWNER) == owner)


def clear_orphans(name: str) -> None:
    """Kills the pods of a process that has ended, and then a child that was in exec before."""
    _kill_orphans(name)
    time.sleep(_EXEC_S)
    _kill_orphans(name)


def _kill_orphans(name: str) -> None:
    _kill_all(lambda env: env.get(GUARDED) == name)


@contextlib.contextmanager
def own_processes(owner: str) -> Generator[None]:
    """Clears the processes of `owner` before and after the block."""
    clear(owner)
    try:
        yield
    finally:
        clear(owner)


def _kill_all(belongs: Callable[[dict[str, str]], bool]) -> int:
    """Kills members until none remains, because one may fork while the list is read."""
    killed: set[psutil.Process] = set()
    while members := _find_members(belongs):
        folders = {_read_environment(process).get("TMPDIR", "") for process in members}
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                killed.add(process)
        time.sleep(_POLL_S)  # no waitpid here: it would take the exit code from Popen
        for folder in folders:
            if Path(folder).name.startswith(_TMP):
                shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def _find_members(belongs: Callable[[dict[str, str]], bool]) -> list[psutil.Process]:
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or not _is_alive(process):
            continue
        if belongs(_read_environment(process)):
            members.append(process)
    return members


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read_environment(process: psutil.Process) -> dict[str, str]:
    deadline = time.monotonic() + _EXEC_S
    try:
        # During exec a process shows neither its environment nor its command line for a moment.
        while True:
            env = process.environ()
            if env or not _is_in_exec(process) or time.monotonic() >= deadline:
                return env
            time.sleep(_POLL_S / 10)
    except (psutil.Error, OSError):
        return {}


def _is_in_exec(process: psutil.Process) -> bool:
    is_kernel_thread = process.ppid() in (0, 2)
    return not process.cmdline() and _is_alive(process) and not is_kernel_thread
