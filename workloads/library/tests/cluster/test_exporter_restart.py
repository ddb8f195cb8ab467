"""The exporter as a process of its own beside an API server that is killed and comes back.

Each test has a control plane of its own: the shared one may not be killed under the others.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api
from holdfast.contract.pools import Pool
from tests.cluster.sim import control_plane, nodes, storm
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with control_plane.running() as made:
        yield made


@pytest.fixture
def exporter(plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Its port, and the file of its standard output."""
    [port], output = free_ports(1), tmp_path / "exporter.jsonl"
    command = [sys.executable, "-m", "holdfast", "export", "--kubeconfig", str(plane.kubeconfig("admin"))]
    command += ["--port", str(port), "--every-s", "0.2"]
    with output.open("wb") as lines, (tmp_path / "exporter.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=lines, stderr=log)
    yield port, output
    assert process.poll() is None, (tmp_path / "exporter.log").read_text()[-2000:]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, (tmp_path / "exporter.log").read_text()[-2000:]


def metrics(port: int) -> dict[str, float]:
    """Summed over their series; empty while nothing is served."""
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            rows = [row.rpartition(" ") for row in answer.read().decode().splitlines() if row.startswith("holdfast_")]
    except OSError:
        return {}
    found: dict[str, float] = {}
    for name, _, value in rows:
        metric = name.partition("{")[0].removeprefix("holdfast_")
        found[metric] = found.get(metric, 0.0) + float(value)
    return found


def counted(output: Path) -> list[tuple[str, str, str]]:
    """Of the lines about nodes."""
    rows = map(json.loads, output.read_text().splitlines())
    return [
        (row["event"], row["node"], row.get("reason", "")) for row in rows if row.get("event", "").startswith("node_")
    ]


def kill_apiserver(plane: ControlPlane) -> None:
    """A crash: nobody is warned, every watch breaks."""
    running = plane.processes._running
    [dead] = [entry for entry in running if entry[0] == "kube-apiserver"]
    running.remove(dead)  # it ends on purpose
    dead[1].kill()
    dead[1].wait()


def restart_apiserver(plane: ControlPlane) -> None:
    plane._start_apiserver()
    plane.processes.wait_until("the API server is ready again", lambda: plane.answers("/readyz"))


def test_preemptions_are_counted_after_the_api_server_was_killed_and_none_is_counted_twice(
    plane: ControlPlane, exporter: tuple[int, Path], spot: Pool
) -> None:
    (port, lines), api = exporter, Api(plane.kubeconfig("admin"))
    world = World(api, "restart")
    world.create()
    names = world.add_nodes(spot, 3)
    world.create_job("run", world.job_spec(spot, 3))
    world.wait_running(3)
    until("the exporter has seen the nodes", lambda: len(counted(lines)) == 3 or None, 120)
    storm.preempt(api, names[:1])
    until("the first preemption is counted", lambda: metrics(port).get("preemptions_total") == 1 or None, 60)

    kill_apiserver(plane)
    before = metrics(port)["exporter_heartbeat_seconds"]
    until("passes go on without the API server", lambda: metrics(port)["exporter_heartbeat_seconds"] > before or None)
    assert metrics(port)["preemptions_total"] == 1
    restart_apiserver(plane)

    fresh = Api(plane.kubeconfig("admin"))
    until("nodes are ready again", lambda: nodes.ready(fresh, names[1:]), 120)
    storm.preempt(fresh, names[1:2])
    until("the second preemption is counted", lambda: metrics(port).get("preemptions_total") == 2 or None, 120)
    fresh.delete(f"/api/v1/nodes/{names[2]}")
    until("every end is counted", lambda: len(counted(lines)) == 6 or None, 120)
    assert metrics(port)["preemptions_total"] == 2
    assert sorted(counted(lines)) == sorted(
        [("node_up", name, "") for name in names]
        + [
            ("node_down", names[0], "preempted"),
            ("node_down", names[1], "preempted"),
            ("node_down", names[2], "deleted"),
        ]
    )
