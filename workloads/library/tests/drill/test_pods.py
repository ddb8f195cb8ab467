"""Tests that local pods end as under a kubelet, with real processes and signals."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.drill.pods import Pod, clear
from workloads.library.tests.drill.test_local_drill import find_processes
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process

# Short sleeps: Python sees a signal that comes just before a system call only after that call.
OBEDIENT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print('up', flush=True)
while True:
    time.sleep(0.02)
"""
DEAF = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
    " time.sleep(60)"
)
# The child leaves the session and the process group, as an uploader does.
ESCAPING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    print('child', os.getpid(), flush=True)
    time.sleep(600)
print('up', flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner() -> Iterator[str]:
    name = f"test:{uuid.uuid4().hex}"
    yield name
    clear(name)


def start(code: str, tmp_path: Path, owner: str, ready: str = "up") -> Pod:
    pod = Pod([sys.executable, "-c", code], log=tmp_path / "pod.log", owner=owner)
    until(lambda: ready in pod.tail())
    return pod


def test_a_process_that_calls_exec_is_cleared(
    tmp_path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod(["sleep", "600"], log=tmp_path / "pod.log", owner=owner)
    environ = psutil.Process.environ
    cmdline = psutil.Process.cmdline
    empty_environments = [{}, {}]

    # The kernel shows this between exec and the stack of the new program.
    def read_environment(process: psutil.Process) -> dict[str, str]:
        if process.pid == pod.pid and empty_environments:
            return empty_environments.pop()
        return environ(process)

    monkeypatch.setattr(psutil.Process, "environ", read_environment)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda p: [] if p.pid == pod.pid else cmdline(p))
    clear(owner)
    assert pod.wait(10) == 137


@pytest.mark.parametrize(
    ("code", "window_s", "exit_code"),
    [(OBEDIENT, 30, 143), (DEAF, 0.5, 137)],
    ids=["obedient", "deaf"],
)
def test_a_pod_ends_with_its_code_or_is_killed(
    tmp_path: Path,
    owner: str,
    code: str,
    window_s: float,
    exit_code: int,
) -> None:
    pod = start(code, tmp_path, owner)
    start_t = time.monotonic()
    pod_code = pod.preempt(window_s)
    takes_s = time.monotonic() - start_t
    assert pod_code == exit_code, f"after {takes_s:.1f} s"
    assert (takes_s >= window_s) is (exit_code == 137)
    assert not psutil.pid_exists(pod.pid)


def test_power_loss_takes_processes_that_left_the_session_too(tmp_path: Path, owner: str) -> None:
    pod = start(ESCAPING, tmp_path, owner, ready="child")
    child = int(pod.tail().split("child ")[1].split()[0])
    assert pod.kill() == 137

    def is_dead() -> bool:
        if not psutil.pid_exists(child):
            return True
        return psutil.Process(child).status() == psutil.STATUS_ZOMBIE

    until(is_dead)


def test_only_processes_with_the_same_owner_are_cleared(tmp_path: Path, owner: str) -> None:
    other = start(OBEDIENT, tmp_path, owner + "x")
    pod = start(DEAF, tmp_path / "owner", owner)
    assert [clear(owner), clear(owner)] == [1, 0]
    assert pod.wait(30) == 137
    assert other.exit_code is None
    os.kill(other.pid, signal.SIGTERM)
    assert other.wait(30) == 143


STARTS_PODS = """
import os, sys, time
from pathlib import Path
from holdfast.drill.pods import Pod
code, folder, owner = sys.argv[1:]
for name in ("first", "second"):
    Pod([sys.executable, "-c", code], log=Path(folder) / f"{name}.log", owner=owner)
time.sleep(600)
"""


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_pods_end_with_the_process_that_started_them(
    tmp_path: Path, owner: str, send: Callable[[int, int], None]
) -> None:
    """It has no time to clean up, and their children are in other sessions."""
    arguments = [sys.executable, "-c", STARTS_PODS, ESCAPING, str(tmp_path), owner]
    drill = subprocess.Popen(arguments, start_new_session=True)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    until(lambda: all(log.exists() and "child" in log.read_text() for log in logs))
    assert len(find_processes(owner)) == 4
    send(drill.pid, signal.SIGKILL)
    drill.wait()
    until(lambda: not find_processes(owner))


def test_guarded_process_ends_without_warnings() -> None:
    code = "from holdfast.drill.guardian import guard_pods; guard_pods()"
    ending = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, check=True, timeout=60
    )
    assert ending.stderr == b""


def test_a_process_that_dies_slowly_counts_once(
    tmp_path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = start(DEAF, tmp_path, owner)
    send = psutil.Process.send_signal
    ignored_signals = [signal.SIGKILL, signal.SIGKILL]

    # On a busy machine the process still exists when it is looked for again.
    def send_late(process: psutil.Process, number: int) -> None:
        if ignored_signals:
            ignored_signals.pop()
        else:
            send(process, number)

    monkeypatch.setattr(psutil.Process, "send_signal", send_late)
    assert clear(owner) == 1
    assert not ignored_signals
    assert pod.wait(10) == 137


def test_temporary_files_are_removed_with_the_pod(tmp_path: Path, owner: str) -> None:
    code = (
        "import tempfile, time; print('in', tempfile.mkdtemp(prefix='left-'), flush=True);"
        f" {DEAF.split('; ', 1)[0]}; print('up', flush=True); time.sleep(60)"
    )
    pod = start(code, tmp_path, owner)
    folder = Path(pod.tail().split("in ")[1].split()[0])
    assert folder.is_dir()
    pod.kill()
    assert not folder.parent.exists()
