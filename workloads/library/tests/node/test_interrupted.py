"""Ctrl-C in the middle, and a kill: nothing of this tier stays on the host."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.sim.processes import alive
from tests.cluster.sim.waiting import until
from workloads.library.tests.node.lab.lab import CGROUP_PREFIX, CGROUPS, Lab, remove_orphans
from workloads.library.tests.node.lab.machine import PLACES, SYSCTLS
from workloads.library.tests.processes import family

ROOT = Path(__file__).parents[4]
VICTIM = (
    "workloads/library/tests/node/test_preemption.py"
    "::test_the_extended_window_lets_a_long_save_finish"
)

pytestmark = pytest.mark.timeout(300)


def groups(pid: int) -> list[Path]:
    name = f"{CGROUP_PREFIX}{pid}x*"
    return [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]


def host() -> tuple[list[str], list[str]]:
    """Returns the mounts and settings that a machine changes; other mounts are not ours."""
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    covered = []
    for _, point, *_ in lines:
        if point in PLACES or "hfn-" in point or point.startswith("/proc/sys/"):
            covered.append(point)
    return covered, [Path("/proc/sys", name).read_text() for name in SYSCTLS]


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_an_interrupted_run_leaves_no_process_mount_or_cgroup(
    blow: signal.Signals, lab: Lab, tmp_path: Path
) -> None:
    """Checks also that `lab`, another run at the same time, stays whole."""
    before = host()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        f"--basetemp={tmp_path / 'inner'}",
        VICTIM,
    ]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}) as run:
        until("a kubelet runs on its machine", lambda: runs_kubelet(run.pid))
        inside = []
        for process in family(run.pid)[1:]:
            inside.append(process.pid)
        assert groups(run.pid)
        run.send_signal(blow)
        until("every process is gone", lambda: not any(alive(pid) for pid in [*inside, run.pid]))
    assert host() == before
    if blow is signal.SIGKILL:  # it could not tidy up: the next run does
        remove_orphans()
    else:
        assert not list(tmp_path.glob("hfn-*"))
    assert not groups(run.pid)
    assert lab.plane.answers("/readyz")


def runs_kubelet(pid: int) -> bool:
    """Returns whether `pid` or a process below it is a kubelet."""
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            if any("kubelet" in word for word in process.cmdline()[:1]):
                return True
    return False
