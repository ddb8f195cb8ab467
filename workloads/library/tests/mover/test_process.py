"""The mover's process: it acts while it holds the lease, and an API server that is away stops no
receipt.
"""

import json
import threading
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.controllers.lease import MOVER, Lease
from holdfast.mover.cluster_view import EndedJob, View, ending
from holdfast.mover.faulty_nodes import FaultyNodes
from holdfast.mover.main import Process
from holdfast.mover.mover import Mover
from holdfast.mover.progress import Progress
from holdfast.mover.receipts import Receipts
from workloads.library.tests.controllers.test_cluster import node, pod
from workloads.library.tests.exporter.fake_source import Written, jobs_of
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.exporter.test_standby import Leases
from workloads.library.tests.mover.fake_cluster import NAME, Played
from workloads.library.tests.mover.test_mover import GIVEN, LATE_S
from workloads.library.tests.mover.test_receipts import MACHINE, job

JOB_KIND = ending()[0]


class Ordered(Receipts):
    """Remembers the orders in place of following them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def order(self, ended: EndedJob) -> None:
        self.names.append(ended.name)


def process(cluster: Any, leases: Leases, name: str = "a") -> Process:
    api: Any = leases
    clock = Clock(LATE_S)
    view = View(clock=clock)
    return Process(
        api=api,
        view=view,
        lock=threading.Lock(),
        progress=Progress(Written(), view.owner_of),
        mover=Mover(cluster),
        receipts=Ordered(),
        faulty=FaultyNodes(api, 0),
        lease=Lease(api, "monitoring", MOVER, me=name, clock=clock),
        clock=clock,
    )


def ordered(made: Process) -> list[str]:
    assert isinstance(made.receipts, Ordered)
    return made.receipts.names


def test_only_the_holder_of_the_lease_moves_and_writes_receipts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leases = Leases()
    clusters = [Played(GIVEN), Played(GIVEN)]
    first, second = (process(c, leases, n) for c, n in zip(clusters, "ab", strict=True))
    for each in (first, second):
        JOB_KIND.apply(each.view)("ADDED", job())
        each.view.node("ADDED", node("n", labels=MACHINE))
        each.view.pod("ADDED", pod("p", on="n", phase="Running"))
        each.one_pass()
        each.clock.now += 15  # type: ignore[attr-defined]
        each.one_pass()
    assert [bool(cluster.asked) for cluster in clusters] == [True, False]
    assert (ordered(first), ordered(second)) == (["run-7"], [])
    assert second.view.node_usages.by_job["uid-run-7"].pod_s == 15, (
        "it has seen what it may have to price"
    )
    assert capsys.readouterr().out.count('"moved"') == 1


def test_a_move_is_a_line_that_the_exporter_counts(capsys: pytest.CaptureFixture[str]) -> None:
    process(Played(GIVEN), Leases()).one_pass()
    exporter = jobs_of(*map(json.loads, capsys.readouterr().out.splitlines()))
    assert not exporter.refused
    moves = [s for s in exporter.samples(LATE_S, {}) if s.metric == "placement_moves_total"]
    assert [(s.value, dict(s.labels)) for s in moves] == [
        (
            1,
            {
                "namespace": "training",
                "job": NAME,
                "capacity": "on-demand",
            },
        )
    ]


def test_an_api_server_that_is_away_moves_nothing_and_stops_no_receipt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(Played):
        def read(self) -> Any:
            raise ApiError(503, "away")

    made = process(Away(GIVEN), Leases())
    JOB_KIND.apply(made.view)("ADDED", job())
    made.one_pass()
    assert "nothing is moved in this pass" in caplog.text
    assert ordered(made) == ["run-7"]


def test_a_job_that_vanished_unseen_gets_no_receipt_and_one_of_another_namespace_stays() -> None:
    view = View()
    batch = ending()[1]
    view.forget_all_but(JOB_KIND.held, set())  # the first list of a cluster without jobs
    JOB_KIND.apply(view)("ADDED", job())
    batch.apply(view)("ADDED", job("run-8", namespace="batch"))
    view.forget_all_but(JOB_KIND.held, set())
    assert [one.name for one in view.ended(LATE_S)] == ["run-8"]
