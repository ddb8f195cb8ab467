"""The harness itself: it leaves nothing behind, and touches no cluster but its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.manager import HostManager, OwnManager
from tests.cluster.sim.processes import Processes, alive, free_ports
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import SERVER_VERSION

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
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert alive(child)
        owner.send_signal(signal.SIGKILL)
        until("the child is gone", lambda: not alive(child))


def test_a_component_that_cannot_start_is_named_with_its_last_lines(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("picky", ["sh", "-c", "echo no such flag; exit 3"])
    with pytest.raises(RuntimeError, match=r"picky ended with 3 before it serves:\nno such flag"):
        processes.wait_until("it serves", lambda: False)
    processes.stop()


def test_a_taken_port_fails_at_the_start_and_leaves_no_process(tmp_path: Path, cluster: HostManager) -> None:
    if not isinstance(cluster, HostManager):
        pytest.skip("another provider chooses its own ports")
    assert cluster.control_plane is not None
    plane = ControlPlane(tmp_path)
    plane.port = cluster.control_plane.port
    try:
        with pytest.raises((RuntimeError, TimeoutError), match="kube-apiserver"):
            plane.start()
        pids = plane.processes.pids().values()
    finally:
        plane.stop()
    assert pids
    assert not any(alive(pid) for pid in pids)


def test_deleting_before_creating_touches_no_kubeconfig_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "config"
    foreign.write_text("somebody else's")
    monkeypatch.setenv("KUBECONFIG", str(foreign))
    HostManager("other").delete()
    assert foreign.read_text() == "somebody else's"


def test_private_keys_and_kubeconfigs_are_for_the_owner_only(cluster: HostManager) -> None:
    if not isinstance(cluster, HostManager):
        pytest.skip("another provider keeps its own keys")
    assert cluster.control_plane is not None
    folder = cluster.control_plane.folder
    secrets = [*folder.rglob("*.key"), *folder.rglob("*.kubeconfig")]
    assert len(secrets) > 5
    assert {oct(path.stat().st_mode & 0o077) for path in secrets} == {"0o0"}


def test_values_reach_the_cluster_as_they_are(world: World, cluster: AClusterManager) -> None:
    """The stock `apply` passes a dictionary through a shell, which eats quotes."""
    if not isinstance(cluster, OwnManager):
        pytest.skip("the stock provider's own bug")
    data = {"quoted": "it's $(true)", "number": "1", "switch": "true", "empty": ""}
    meta = {"name": "text", "namespace": world.name}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    found = cluster.kubectl(["get", "configmap", "text", "-n", world.name])
    assert found["data"] == data
    assert cluster.version() >= tuple(map(int, SERVER_VERSION.split(".")[:2]))


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
