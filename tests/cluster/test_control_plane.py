"""The harness itself: it leaves nothing behind, and touches no cluster but its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.sim.manager import HostManager
from tests.cluster.sim.processes import Processes, alive
from tests.cluster.sim.waiting import until

OWNER = """
import sys
from pathlib import Path
from tests.cluster.sim.processes import Processes
processes = Processes(Path(sys.argv[1]))
processes.start("sleeper", ["sleep", "600"])
print(processes.pids()["sleeper"], flush=True)
sys.stdin.read()
"""


def test_processes_die_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        OWNER,
        str(tmp_path),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert alive(child)
        owner.send_signal(signal.SIGKILL)
        until("the child is gone", lambda: not alive(child))


def test_one_process_ends_and_the_others_stay(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    try:
        first = processes.start("first", ["sleep", "600"])
        second = processes.start("second", ["sleep", "600"])
        processes.end("first")
        assert not alive(first)
        assert alive(second)
        assert processes.pids() == {"second": second}
    finally:
        processes.stop()


def test_private_keys_and_kubeconfigs_are_for_the_owner_only(cluster: HostManager) -> None:
    if not isinstance(cluster, HostManager):
        pytest.skip("another provider keeps its own keys")
    assert cluster.folder is not None
    secrets = [*cluster.folder.rglob("*.key"), *cluster.folder.rglob("*.kubeconfig")]
    assert len(secrets) > 5
    assert {oct(path.stat().st_mode & 0o077) for path in secrets} == {"0o0"}
