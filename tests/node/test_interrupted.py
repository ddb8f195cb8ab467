"""Ctrl-C in the middle, and a kill: nothing of a run of this tier stays on the host."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.sim.processes import alive
from tests.cluster.sim.waiting import until
from tests.node.lab.lab import CGROUPS, Lab, own_cgroups, remove_orphans
from tests.node.lab.machine import SYSCTLS
from tests.node.test_preemption import descendants

ROOT = Path(__file__).parents[2]
VICTIM = "tests/node/test_preemption.py::test_the_extended_window_lets_a_long_save_finish"

pytestmark = pytest.mark.timeout(300)


def groups(pid: int) -> list[Path]:
    name = f"{own_cgroups(pid)}*"
    return [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]


def settings() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in SYSCTLS}


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_an_interrupted_run_leaves_no_process_mount_or_cgroup(blow: signal.Signals, lab: Lab, tmp_path: Path) -> None:
    """`lab` is another run that lives meanwhile, and stays whole."""
    mounts, before = Path("/proc/mounts").read_text(), settings()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--basetemp={tmp_path / 'inner'}", VICTIM]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}) as run:
        kubelet = lambda: [pid for pid in descendants(run.pid) if b"kubelet" in command_of(pid)]  # noqa: E731
        until("a kubelet runs on its machine", kubelet)
        inside = [pid for pid in descendants(run.pid) if pid != run.pid]
        assert groups(run.pid)
        run.send_signal(blow)
        until("every process is gone", lambda: not any(alive(pid) for pid in [*inside, run.pid]))
    assert (Path("/proc/mounts").read_text(), settings()) == (mounts, before)
    if blow is signal.SIGKILL:  # it could not tidy up: the next run does
        remove_orphans()
    else:
        assert not list(tmp_path.glob("hfn-*"))
    assert not groups(run.pid)
    assert lab.plane.answers("/readyz")


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return b""
