"""Tests that each job that ends gets its receipt: once, whole, and never a guessed one."""

import json
import logging
import threading
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.clients.api import ApiError, Object
from holdfast.controllers.cluster_objects import parse_node, parse_pod
from holdfast.cost.money import find_prices
from holdfast.cost.receipt import ANNOTATION, leave
from holdfast.ledger.events import Event, parse
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.mover.cluster_view import SETTLE_END_S, EndedJob, View, list_job_kinds
from holdfast.mover.faulty_nodes import FaultyNodes
from holdfast.mover.gang_sizes import GangSizes
from holdfast.mover.idle_gangs import IdleGangs
from holdfast.mover.main import Process
from holdfast.mover.mover import Mover
from holdfast.mover.node_usage import LONGEST_GAP_S, NodeUsage, NodeUsages
from holdfast.mover.progress import Progress
from holdfast.mover.receipts import Receipts, lane_prices
from holdfast.support.values import unix_s
from holdfast.vocabulary.pools import LABEL_OWN_PRICE, LABEL_ZONE
from workloads.library.tests import sample
from workloads.library.tests.controllers.test_cluster import node, pod
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.sample import EPOCH

L4 = ("g2-standard-8", "us-central1", "spot")
BEGAN = "2026-09-21T14:13:20Z"  # EPOCH
KINDS = list_job_kinds(["training"])  # Jobs, JobSets
MACHINE = {"node.kubernetes.io/instance-type": "g2-standard-8", "cloud.google.com/gke-spot": "true"}


@dataclass
class Kubernetes:
    """Fakes an API server that takes annotations after its faults; it has no JobSets or lists."""

    faults: list[int] = field(default_factory=list)
    receipts: Object = field(default_factory=dict)

    def items(self, path: str, **query: str) -> list[Any]:
        raise ApiError(501, "no lists")

    def merge(self, path: str, change: Any) -> None:
        status = 404 if "jobsets" in path else 0
        if self.faults:
            status = self.faults.pop(0)
        if status:
            raise ApiError(status, "no")
        self.receipts[path] = json.loads(change["metadata"]["annotations"][ANNOTATION])


def job(name: str = "run-7", *, end: str = "Complete", status: str = "True", **meta: Any) -> Object:
    conditions = [
        {
            "type": end,
            "status": status,
            "lastTransitionTime": "2026-09-21T15:00:00Z",
        }
    ]
    named = {
        "name": name,
        "namespace": "training",
        "uid": f"uid-{name}",
        "creationTimestamp": BEGAN,
    }
    return {
        "metadata": named | meta,
        "status": {"conditions": conditions},
    }


def take(
    view: View,
    change: str,
    body: Object,
    kind: int = 0,
) -> None:
    KINDS[kind].apply(view)(change, body)


ANNOTATED = {"annotations": {ANNOTATION: "{}"}}


ENDS = [
    (0, job(end="Complete")),
    (0, job(end="Failed")),
    (1, job(end="Completed")),
    (1, job(end="Failed")),
]


@pytest.mark.parametrize(
    ("kind", "changes", "due"),
    [
        *((kind, [("ADDED", body)], True) for kind, body in ENDS),
        (0, [("ADDED", job(status="False"))], False),
        (0, [("ADDED", job(end="Suspended"))], False),
        (0, [("ADDED", job(ownerReferences=[{"kind": "JobSet"}]))], False),
        (0, [("ADDED", job(**ANNOTATED))], False),
        (0, [("ADDED", job()), ("MODIFIED", job(**ANNOTATED))], False),
        (0, [("ADDED", job()), ("DELETED", job())], False),
    ],
    ids=[
        "complete",
        "failed",
        "a JobSet",
        "a JobSet that failed",
        "running",
        "suspended",
        "of a JobSet",
        "has one",
        "another mover was faster",
        "deleted",
    ],
)
def test_a_job_that_ended_is_due_once(
    kind: int, changes: list[tuple[str, Object]], due: bool
) -> None:
    view = View()
    over_s = unix_s("2026-09-21T15:00:00Z")
    for change, body in changes:
        take(view, change, body, kind)
    shown = []
    for late_s in (-1, 0, 1):
        shown.append([job.name for job in view.take_due_jobs(over_s + SETTLE_END_S + late_s)])
    assert shown == [[], ["run-7"] * due, []]


def test_a_job_that_is_listed_again_is_not_due_again() -> None:
    view = View()
    due_s = unix_s("2026-09-21T15:00:00Z") + SETTLE_END_S
    names = []
    for _ in range(3):  # each watch ends after minutes, and another list follows
        take(view, "ADDED", job())
        view.forget_all_but(KINDS[0].held, {"uid-run-7"})
        names.append([job.name for job in view.take_due_jobs(due_s)])
    assert names == [["run-7"], [], []]


def test_taken_jobs_are_forgotten_with_their_objects() -> None:
    view = View()
    due_s = unix_s("2026-09-21T15:00:00Z") + SETTLE_END_S
    for name in ("deleted", "unlisted"):
        take(view, "ADDED", job(name))
    assert len(view.take_due_jobs(due_s)) == 2
    take(view, "DELETED", job("deleted"))
    view.forget_all_but(KINDS[0].held, set())
    assert not any(view.taken.values())


def run_passes(*pods: tuple[str, str], passes: int = 4, gap_s: float = 15.0) -> NodeUsage:
    """Runs pods (uid, node) of run-7 for some passes, and returns their usage."""
    view = View()
    now = EPOCH
    nodes = dict(pods).values()
    for name in set(nodes):
        view.node("ADDED", node(name, labels=MACHINE))
    take(view, "ADDED", job(status="False"))
    for uid, on in pods:
        view.pod("ADDED", pod(uid, on=on, phase="Running"))
    for _ in range(passes + 1):
        view.count_time(now)
        now += gap_s
    return view.node_usages.by_job["uid-run-7"]


def test_a_gang_uses_all_its_nodes_and_unwatched_time_is_not_estimated() -> None:
    node_usage = run_passes(("p", "a"), ("q", "b"), ("r", "b"))
    assert (dict(node_usage.node_s), node_usage.pod_s, node_usage.on_s) == (
        {L4: 120.0},
        180.0,
        60.0,
    )
    assert run_passes(("p", "a"), gap_s=LONGEST_GAP_S + 1).node_s == {}


def test_a_node_that_two_jobs_share_counts_half_for_each() -> None:
    view = View()
    view.node("ADDED", node("a", labels=MACHINE))
    for name in ("run-7", "run-8"):
        take(view, "ADDED", job(name, status="False"))
    other = pod("q", on="a", phase="Running", owner_uid="uid-run-8")
    for body in (pod("p", on="a", phase="Running"), other):
        view.pod("ADDED", body)
    for n in range(3):
        view.count_time(EPOCH + 10 * n)
    first, second = view.node_usages.by_job.values()
    assert dict(first.node_s) == dict(second.node_s) == {L4: 10.0}


def test_a_lane_costs_what_its_machines_cost_on_their_capacity() -> None:
    prices = find_prices("g2-standard-8", "us-central1")
    gang = job_ledgers(make_events("training"))
    queue = job_ledgers(make_events("batch"))
    mixed = NodeUsage(
        node_s={L4: 300.0, (*L4[:2], "on-demand"): 100.0},
        pod_s=200.0,
        on_s=100.0,
    )
    paid = (300 * prices.spot + 100 * prices.on_demand) / 100
    assert lane_prices(gang, mixed) == pytest.approx((paid, 4 * prices.on_demand, 100 / 3600))
    assert lane_prices(queue, mixed) == pytest.approx((paid / 2, 2 * prices.on_demand, 200 / 3600))


def test_a_reserved_machine_costs_what_its_label_says() -> None:
    labels = {LABEL_OWN_PRICE: "1.25", "node.kubernetes.io/instance-type": "g2-standard-8"}
    reserved = parse_node(
        {"metadata": {"name": "n", "labels": labels | {LABEL_ZONE: "us-central1-a"}}}
    )
    assert reserved.capacity == "on-demand", "nobody takes it away"
    usages = NodeUsages()
    on_it = parse_pod(pod("p", on="n"))
    for now_s in (1_000.0, 1_100.0):
        usages.count_time([("uid", on_it)], {"n": reserved}, now_s)
    paid, demand, hours = lane_prices(job_ledgers(make_events("training")), usages.by_job["uid"])
    assert (paid, hours) == pytest.approx((1.25, 100 / 3600)) and demand == find_prices(
        *L4[:2]
    ).on_demand


SOURCE = f"sha256:{'5e' * 32}"


def make_events(kind: str) -> list[Event]:
    rows = sample.training("run-7") if kind == "training" else sample.batch("run-7")
    return parse(sample.encoded(rows)).events


def test_a_job_that_ends_gets_line_json_and_annotation(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Kubernetes(faults=[503])
    api: Any = server
    clock = Clock(EPOCH)
    view = View(clock=clock)
    view.node("ADDED", node("a", labels=MACHINE))
    take(view, "ADDED", job(status="False"))
    view.pod("ADDED", pod("p", on="a", phase="Running"))
    reading = parse(sample.encoded(sample.training("run-7", kills=((13.0, "SIGKILL"),))))
    receipts = Receipts(lambda *query: reading, partial(leave, api=api), again_s=0.0)
    receipts.start()
    nothing: Any = SimpleNamespace(read=lambda: ([], []))
    process = Process(
        gangs=IdleGangs(api),
        sizes=GangSizes(api),
        api=api,
        view=view,
        lock=threading.Lock(),
        progress=Progress(FakeSource(), view.find_owner),
        mover=Mover(nothing),
        receipts=receipts,
        faulty=FaultyNodes(api, 0),
        lease=None,
        clock=clock,
    )
    for step in (0, 15, 15, 3600):
        clock.now += step
        if step == 3600:
            take(view, "MODIFIED", job(annotations={"holdfast.dev/source": SOURCE}))
        process.one_pass()
    receipts.finish()
    receipts.join(30)
    [(path, bill)] = server.receipts.items()
    assert path == "/apis/batch/v1/namespaces/training/jobs/run-7"
    assert (bill["schema"], bill["job"], bill["evictions"]) == ("holdfast.receipt/1", "run-7", 1)
    assert 0 < bill["paid_usd"] < bill["on_demand_usd"]
    # An earlier test may have set up the log of pods, which adds log lines.
    bills = []
    for text in capsys.readouterr().out.splitlines():
        line = json.loads(text)
        if "schema" in line:
            bills.append(line)
    assert bills == [bill]
    assert "no receipt of run-7 yet" in caplog.text
    assert "run-7: paid $" in caplog.text and f"source {SOURCE}" in caplog.text
    assert bill["source"] == SOURCE
    assert view.node_usages.by_job == {}


@pytest.mark.parametrize(
    ("node_usage", "expected"),
    [
        (None, "its machines were not observed"),
        (
            NodeUsage(node_s={("e2-standard-4", "us-central1", "spot"): 1.0}, pod_s=1.0, on_s=1.0),
            "no machine type with a price",
        ),
    ],
)
def test_a_job_without_a_price_gets_no_receipt_and_a_log_line(
    caplog: pytest.LogCaptureFixture, node_usage: NodeUsage | None, expected: str
) -> None:
    reading = parse(sample.encoded(sample.training("run-7")))
    receipts = Receipts(lambda *query: reading, lambda bill, _: pytest.fail(f"left {bill}"))
    receipts.order(EndedJob("training", "run-7", EPOCH, EPOCH + 100, node_usage))
    receipts.finish()
    receipts.run()
    assert f"no receipt of run-7: {expected}" in caplog.text
