"""Pods on this machine die as the kubelet lets them die: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.drill.pods import Pod, clear
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process

OBEDIENT = (
    "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('up',"
    " flush=True); time.sleep(60)"
)
DEAF = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
    " time.sleep(60)"
)
# The child leaves the session and the process group, as an uploader does, and is orphaned by exec
# order.
ESCAPING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    print('child', os.getpid(), flush=True)
    time.sleep(60)
print('up', flush=True)
time.sleep(60)
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
    left = [{}, {}]
    # The kernel shows it so between exec and the new program's stack, in one of twenty looks right
    # after a start.
    monkeypatch.setattr(
        psutil.Process, "environ", lambda p: left.pop() if p.pid == pod.pid and left else environ(p)
    )
    monkeypatch.setattr(psutil.Process, "cmdline", lambda p: [] if p.pid == pod.pid else cmdline(p))
    clear(owner)
    assert pod.wait(10) == 137


@pytest.mark.parametrize(
    ("code", "window_s", "left"), [(OBEDIENT, 30, 143), (DEAF, 0.5, 137)], ids=["obedient", "deaf"]
)
def test_a_pod_ends_with_its_code_or_is_killed(
    tmp_path: Path,
    owner: str,
    code: str,
    window_s: float,
    left: int,
) -> None:
    pod = start(code, tmp_path, owner)
    began = time.monotonic()
    assert pod.preempt(window_s) == left
    assert (time.monotonic() - began >= window_s) is (left == 137)
    assert not psutil.pid_exists(pod.pid)


def test_power_loss_takes_processes_that_left_the_session_too(tmp_path: Path, owner: str) -> None:
    pod = start(ESCAPING, tmp_path, owner, ready="child")
    child = int(pod.tail().split("child ")[1].split()[0])
    assert pod.kill() == 137
    until(
        lambda: (
            not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        )
    )


def test_only_what_a_killed_run_of_this_owner_left_is_cleared(tmp_path: Path, owner: str) -> None:
    other = start(OBEDIENT, tmp_path, owner + "x")
    code = (
        "from holdfast.drill.pods import Pod; from pathlib import Path; import os,"
        f" sys\nPod([sys.executable, '-c', {DEAF!r}], log=Path({str(tmp_path / 'left.log')!r}),"
        f" owner={owner!r}); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    until(lambda: "up" in (tmp_path / "left.log").read_text())
    assert [clear(owner), clear(owner)] == [1, 0]
    assert other.exit_code is None
    os.kill(other.pid, signal.SIGTERM)
    assert other.wait(30) == 143


def test_a_process_that_dies_slowly_counts_once(
    tmp_path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = start(DEAF, tmp_path, owner)
    send = psutil.Process.send_signal
    missed = [signal.SIGKILL, signal.SIGKILL]
    # As on a busy machine, where it is still there when it is looked for again.
    monkeypatch.setattr(
        psutil.Process, "send_signal", lambda p, number: missed.pop() if missed else send(p, number)
    )
    assert clear(owner) == 1
    assert not missed and pod.wait(10) == 137


def test_what_a_pod_leaves_in_its_temporary_folder_goes_with_it(tmp_path: Path, owner: str) -> None:
    code = (
        "import tempfile, time; print('in', tempfile.mkdtemp(prefix='left-'), flush=True);"
        f" {DEAF.split('; ', 1)[0]}; print('up', flush=True); time.sleep(60)"
    )
    pod = start(code, tmp_path, owner)
    left = Path(pod.tail().split("in ")[1].split()[0])
    assert left.is_dir()
    pod.kill()
    assert not left.parent.exists()
