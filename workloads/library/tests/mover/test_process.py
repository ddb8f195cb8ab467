"""Tests the mover's process: it needs the lease to act, and no API server for receipts."""

import json
import threading
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.controllers.lease import MOVER, Lease
from holdfast.mover.cluster_view import EndedJob, View, list_job_kinds
from holdfast.mover.faulty_nodes import FaultyNodes
from holdfast.mover.gang_sizes import GangSizes
from holdfast.mover.idle_gangs import IdleGangs
from holdfast.mover.main import Process
from holdfast.mover.mover import Mover
from holdfast.mover.progress import Progress
from holdfast.mover.receipts import Receipts
from workloads.library.tests.controllers.test_cluster import node, pod
from workloads.library.tests.exporter.fake_source import FakeSource, read_jobs
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.exporter.test_standby import Leases
from workloads.library.tests.mover.fake_cluster import NAME, FakeCluster
from workloads.library.tests.mover.test_mover import LATE_S, PLAN
from workloads.library.tests.mover.test_receipts import MACHINE, job

JOB_KIND = list_job_kinds()[0]


class RecordedOrders(Receipts):
    """Records the orders instead of following them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def order(self, job: EndedJob) -> None:
        self.names.append(job.name)


def process(cluster: Any, leases: Leases, name: str = "a") -> Process:
    api: Any = leases
    clock = Clock(LATE_S)
    view = View(clock=clock)
    return Process(
        api=api,
        view=view,
        lock=threading.Lock(),
        progress=Progress(FakeSource(), view.find_owner),
        mover=Mover(cluster),
        receipts=RecordedOrders(),
        faulty=FaultyNodes(api, 0),
        gangs=IdleGangs(api),
        sizes=GangSizes(api),
        lease=Lease(api, "monitoring", MOVER, me=name, clock=clock),
        clock=clock,
    )


def list_orders(process: Process) -> list[str]:
    assert isinstance(process.receipts, RecordedOrders)
    return process.receipts.names


def test_only_the_lease_holder_moves_and_writes_receipts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leases = Leases()
    acting = FakeCluster(PLAN)
    waiting = FakeCluster(PLAN)
    first = process(acting, leases, "a")
    second = process(waiting, leases, "b")
    for replica in (first, second):
        JOB_KIND.apply(replica.view)("ADDED", job())
        replica.view.node("ADDED", node("n", labels=MACHINE))
        replica.view.pod("ADDED", pod("p", on="n", phase="Running"))
        replica.one_pass()
        replica.clock.now += 15  # type: ignore[attr-defined]
        replica.one_pass()
    assert acting.requests
    assert not waiting.requests
    assert list_orders(first) == ["run-7"]
    assert list_orders(second) == []
    assert second.view.node_usages.by_job["uid-run-7"].pod_s == 15, (
        "it counts what it may have to price later"
    )
    assert capsys.readouterr().out.count('"moved"') == 1


def test_a_move_is_a_line_that_the_exporter_counts(capsys: pytest.CaptureFixture[str]) -> None:
    process(FakeCluster(PLAN), Leases()).one_pass()
    exporter = read_jobs(*map(json.loads, capsys.readouterr().out.splitlines()))
    assert not exporter.refused
    moves = []
    for s in exporter.samples(LATE_S, {}):
        if s.metric == "placement_moves_total":
            moves.append(s)
    (move,) = moves
    assert move.value == 1
    assert dict(move.labels) == {
        "namespace": "training",
        "job": NAME,
        "capacity": "on-demand",
    }


def test_a_failing_api_server_stops_moves_but_no_receipt(caplog: pytest.LogCaptureFixture) -> None:
    class Away(FakeCluster):
        def read(self) -> Any:
            raise ApiError(503, "away")

    mover = process(Away(PLAN), Leases())
    JOB_KIND.apply(mover.view)("ADDED", job())
    mover.one_pass()
    assert "nothing is moved in this pass" in caplog.text
    assert list_orders(mover) == ["run-7"]


def test_a_job_missing_from_a_list_gets_no_receipt() -> None:
    view = View()
    batch = list_job_kinds()[1]
    view.forget_all_but(JOB_KIND.held, set())  # the first list of a cluster without jobs
    JOB_KIND.apply(view)("ADDED", job())
    batch.apply(view)("ADDED", job("run-8", namespace="batch"))
    view.forget_all_but(JOB_KIND.held, set())
    (due,) = view.take_due_jobs(LATE_S)
    assert due.name == "run-8"
