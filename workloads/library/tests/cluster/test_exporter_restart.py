"""The exporter as a process of its own: its API server is killed and comes back, and only one of
two exporters may write.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api
from holdfast.controllers.lease import Lease
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import control_plane, nodes, storm
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.bench.monitoring import exporter, metrics


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """Starts a control plane for this test alone: other tests need the shared one alive."""
    with control_plane.running() as control:
        yield control


def read_node_events(lines: Path) -> list[tuple[str, str, str]]:
    """Returns event, node and reason of the lines about nodes."""
    rows = []
    for row in map(json.loads, lines.read_text().splitlines()):
        if "event" in row:
            rows.append(row)
    events: list[tuple[str, str, str]] = []
    for row in rows:
        if row["event"].startswith("node_"):
            events.append((row["event"], row["node"], row.get("reason", "")))
    return events


def kill_apiserver(plane: ControlPlane) -> None:
    """Kills the API server without a warning, so that every watch breaks."""
    running = plane.processes._running
    [dead] = [entry for entry in running if entry[0] == "kube-apiserver"]
    running.remove(dead)  # it ends on purpose
    dead[1].kill()
    dead[1].wait()


@pytest.fixture
def exporter_output(plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Yields the port of a running exporter, and the file of its lines."""
    lines = tmp_path / "watcher.jsonl"
    with exporter(plane.kubeconfig("admin"), every_s=0.2, lines=lines) as port:
        yield port, lines


def test_preemptions_count_once_after_the_api_server_was_killed(
    plane: ControlPlane, exporter_output: tuple[int, Path], spot: Pool
) -> None:
    (port, lines), api = exporter_output, Api(plane.kubeconfig("admin"))
    world = World(api, "restart")
    world.create()
    names = world.add_nodes(spot, 3)
    world.create_job("run", world.job_spec(spot, 3))
    world.wait_running(3)
    until("the exporter has seen the nodes", lambda: len(read_node_events(lines)) == 3 or None, 120)
    storm.preempt(api, names[:1])
    until(
        "the first preemption is counted",
        lambda: metrics(port).get("preemptions_total") == 1 or None,
    )

    kill_apiserver(plane)
    before = metrics(port)["exporter_heartbeat_seconds"]
    until(
        "passes go on without the API server",
        lambda: metrics(port)["exporter_heartbeat_seconds"] > before or None,
    )
    assert metrics(port)["preemptions_total"] == 1
    plane._start_apiserver()
    plane.processes.wait_until("the API server is ready again", lambda: plane.answers("/readyz"))

    fresh = Api(plane.kubeconfig("admin"))
    until("nodes are ready again", lambda: nodes.ready(fresh, names[1:]), 120)
    storm.preempt(fresh, names[1:2])
    until(
        "the second preemption is counted",
        lambda: metrics(port).get("preemptions_total") == 2 or None,
        120,
    )
    fresh.delete(f"/api/v1/nodes/{names[2]}")
    until("every end is counted", lambda: len(read_node_events(lines)) == 6 or None, 120)
    assert metrics(port)["preemptions_total"] == 2
    expected = []
    for name, reason in zip(names, ("preempted", "preempted", "deleted"), strict=True):
        expected += [("node_up", name, ""), ("node_down", name, reason)]
    assert sorted(read_node_events(lines)) == sorted(expected)


def test_only_one_exporter_writes_until_its_lease_ends(world: World, api: Api) -> None:
    now = time.time()
    first = Lease(api, world.name, me="a", clock=lambda: now)
    second = Lease(api, world.name, me="b", clock=lambda: now)
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    for after_s, is_held in ((29, False), (31, True)):
        assert (
            Lease(
                api,
                world.name,
                me="next",
                clock=lambda late_s=after_s: now + late_s,
            ).acquire()
            is is_held
        )
