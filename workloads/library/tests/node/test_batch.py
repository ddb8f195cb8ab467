"""Our batch worker, as rendered, on real kubelets: lost with its machine, then drained, every item stored once."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.contract.environment import ENV_DATABASE
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.pools import Pool
from tests.cluster.sim import runnable
from tests.cluster.sim.batch import batch, database, write_items
from tests.cluster.sim.event_lines import events
from tests.cluster.sim.runnable import Here
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World, disruption
from tests.tools.build import TOOLS
from workloads.library.tests.node.lab import google
from workloads.library.tests.node.lab.config import IMAGE
from workloads.library.tests.node.lab.lab import Lab, Machine
from workloads.library.tests.node.lab.seen import exit_code
from workloads.library.tests.node.test_preemption import ended

NAME, ITEMS, LIMIT_S = "batch-drain", 20_000, 240

pytestmark = pytest.mark.timeout(600)


@contextmanager
def preempted(lab: Lab, machine: Machine) -> Iterator[None]:
    assert lab.preempt(machine), "the kubelet gave its lock back within the window"
    yield


@contextmanager
def drained(lab: Lab, machine: Machine) -> Iterator[None]:
    """While `kubectl drain` runs: it ends when its pods are gone, and with them what they ended with."""
    kubectl = [TOOLS["kubectl"].binary, "--kubeconfig", lab.plane.kubeconfig("admin"), "drain", machine.name]
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={LIMIT_S}s"]
    with subprocess.Popen([*map(str, kubectl), *options]) as command:
        yield
        assert command.wait(LIMIT_S) == 0


def only_pod(world: World, old: set[str]) -> Object:
    def fresh() -> Object | None:
        return next((p for p in world.pods("Running") if p["metadata"]["uid"] not in old), None)

    found = until("a worker runs", fresh, LIMIT_S)
    old.add(found["metadata"]["uid"])
    return found


def test_every_item_is_stored_once_through_a_node_shutdown_and_a_drain(
    lab: Lab, world: World, spot: Pool, folder: Path
) -> None:
    log = folder / "events.jsonl"
    place = Here(IMAGE, "", folder, spot.selector(), predictor="entropy", set="micro_batch=8", events=log)
    place.spec = {"hostNetwork": True}
    machine = lab.boot("spot-a", spot)
    # Pods are another account than the server's, which lets nobody else in: they come as through Cloud SQL's proxy.
    with database(folder / "db") as uri, google.database(lab.bridge.address, uri) as url:
        place.environment[ENV_DATABASE] = url
        batch("enqueue", NAME, "--source", write_items(folder / "items.jsonl", ITEMS), "--database", uri)
        doc = runnable.job(runnable.rendered("Job", NAME), world.name, place, size=1)
        world.api.create(world.path("jobs", "/apis/batch/v1"), doc, fieldValidation="Strict")
        seen: set[str] = set()
        causes: list[str] = []
        for node, take in (("spot-b", preempted), ("spot-c", drained)):
            pod, before = only_pod(world, seen), stored(log)
            until("it stores items", lambda known=before: stored(log) > known, LIMIT_S)
            lab.boot(node, spot)
            with take(lab, machine):
                worker = ended(world, pod, LIMIT_S)
            causes.append(disruption(worker))
            assert exit_code(worker) == EXIT_PREEMPTED
            machine = lab.machines[node]
        assert causes == ["TerminationByKubelet", "EvictionByEvictionAPI"]
        assert stored(log) < ITEMS, "both took it away in the middle"
        assert world.wait_condition(doc["metadata"]["name"], LIMIT_S) == "Complete"
        status = batch("status", NAME, "--database", uri)
    assert (status["done"], status["failed"], status["waiting"]) == (ITEMS, 0, 0)
    assert stored(log) == ITEMS, "none was stored twice"
    assert not world.job(doc["metadata"]["name"])["status"].get("failedIndexes")


def stored(log: Path) -> int:
    return sum(line["items"] for line in events(log, "stored"))
