"""A pod on this machine: a command with all its descendants, evicted the way a node takes a pod
down.

The kubelet sends SIGTERM to the container's first process only, waits for the window, then kills
whatever is left in the container's cgroup, also processes that moved to a session of their own.
Without a cgroup, an environment variable that every descendant inherits marks the members.
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

from holdfast.vocabulary.exit_codes import EXIT_KILLED

MARK = "HOLDFAST_POD"
OWNER = "HOLDFAST_POD_OWNER"
_TMP = "holdfast-pod-"
_POLL_S = 0.02
_EXEC_S = 1.0


class Pod:
    """`owner` groups the pods of one drill, so that a later run can clear what a killed run left
    behind.
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
        # As in a container, what a killed process leaves under /tmp goes with the pod.
        tmp = tempfile.mkdtemp(prefix=_TMP)
        self._forget = weakref.finalize(self, shutil.rmtree, tmp, ignore_errors=True)
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                list(command),
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    **(env or {}),
                    "TMPDIR": tmp,
                    MARK: self._mark,
                    OWNER: owner,
                },
                start_new_session=True,  # Ctrl-C reaches the drill alone, which then ends its pods
            )
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As Kubernetes writes it: 128 + n for a death by signal n; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self, timeout_s: float) -> int:
        """The exit code; subprocess.TimeoutExpired when it still runs."""
        self._process.wait(timeout_s)
        code = self.exit_code
        assert code is not None
        return code

    def preempt(self, window_s: float) -> int:
        """SIGTERM, the window, then SIGKILL to all that is left. The exit code; 137 if the window
        ran out.
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
        """Power loss: SIGKILL to every member at once, without notice."""
        _kill_all(lambda env: env.get(MARK) == self._mark)
        self._process.wait()
        self._forget()
        return self.exit_code or 0

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def clear(owner: str) -> int:
    """Kill what a killed run of this owner left behind; how many processes that were."""
    return _kill_all(lambda env: env.get(OWNER) == owner)


@contextlib.contextmanager
def owned(owner: str) -> Generator[None]:
    """Nothing of `owner` runs before or after the block."""
    clear(owner)
    try:
        yield
    finally:
        clear(owner)


def _kill_all(belongs: Callable[[dict[str, str]], bool]) -> int:
    """Until none is left: a member may fork while the list is read."""
    killed: set[psutil.Process] = set()
    while members := _members(belongs):
        rooms = {_env(process).get("TMPDIR", "") for process in members}
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                killed.add(process)
        time.sleep(_POLL_S)  # no waitpid here: it would take the exit code from Popen
        for room in rooms:
            if Path(room).name.startswith(_TMP):
                shutil.rmtree(room, ignore_errors=True)
    return len(killed)


def _members(belongs: Callable[[dict[str, str]], bool]) -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter() if p.pid != os.getpid() and _alive(p) and belongs(_env(p))
    ]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _env(process: psutil.Process) -> dict[str, str]:
    ends = time.monotonic() + _EXEC_S
    try:
        # For a moment a process that becomes another program shows neither its environment nor its
        # command line.
        while (
            not (env := process.environ()) and _becomes_another(process) and time.monotonic() < ends
        ):
            time.sleep(_POLL_S / 10)
    except (psutil.Error, OSError):
        return {}
    return env


def _becomes_another(process: psutil.Process) -> bool:
    of_kernel = process.ppid() in (0, 2)
    return not process.cmdline() and _alive(process) and not of_kernel
