"""`max_usd` of a job: counted over restarts of everything, and kept with the window to spare."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.clients.api import ApiError, Object
from holdfast.cost.money import find_prices
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.mover.requeue import requeue
from holdfast.mover.spending import MARGIN_S, Spent, parse_limited_job, parse_spent
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import LABEL_REQUEUES
from holdfast.vocabulary.kubernetes import KUEUE_REVOKED
from workloads.library.tests.controllers.test_cluster import node
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.sample import EPOCH

JOBS, JOBSETS = list_job_kinds(["training"])
MACHINE = {"node.kubernetes.io/instance-type": "g2-standard-8", "cloud.google.com/gke-spot": "true"}
USD = find_prices("g2-standard-8", "us-central1").spot
WINDOW_S = 15.0
MAX_USD = "holdfast.dev/max-usd"
PATH = "/apis/batch/v1/namespaces/training/jobs/run-7"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads"


def job(**annotations: str) -> Object:
    pod_spec = {
        "terminationGracePeriodSeconds": WINDOW_S,
        "containers": [],
    }
    return {
        "metadata": {
            "name": "run-7",
            "namespace": "training",
            "uid": "uid-run-7",
            "creationTimestamp": rfc3339(EPOCH),
            "labels": {"kueue.x-k8s.io/queue-name": "spot"},
            "annotations": annotations,
        },
        "spec": {
            "suspend": False,
            "template": {"spec": pod_spec},
        },
    }


def make_limited(max_usd: float, **annotations: str) -> Object:
    texts = {MAX_USD: f"{max_usd}"}
    for field_name, text in annotations.items():
        name = field_name.replace("_", "-")
        texts[f"holdfast.dev/{name}"] = text
    return job(**texts)


def pod(
    name: str = "a",
    on: str = "n",
    began_s: float = EPOCH,
    owner: str = "uid-run-7",
) -> Object:
    controller = {
        "kind": "Job",
        "uid": owner,
        "controller": True,
    }
    running = {"state": {"running": {"startedAt": rfc3339(began_s)}}}
    return {
        "metadata": {
            "uid": name,
            "name": name,
            "namespace": "training",
            "labels": {},
            "ownerReferences": [controller],
        },
        "spec": {"nodeName": on},
        "status": {
            "phase": "Running",
            "conditions": [],
            "containerStatuses": [running],
        },
    }


def make_workload(name: str, *conditions: str) -> Object:
    owner = {"uid": "uid-run-7", "controller": True}
    rows: list[Object] = []
    for kind in conditions:
        rows.append({"type": kind, "status": "True"})
    return {
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"active": True},
        "status": {"conditions": rows},
    }


@dataclass
class Cluster:
    """Fakes an API server with one Workload, and applies annotations to the job."""

    body: Object
    view: View
    workloads: list[Object] = field(default_factory=lambda: [make_workload("w")])
    changes: list[tuple[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def items(self, path: str, **query: str) -> list[Any]:
        assert path == WORKLOADS
        return self.workloads

    def merge(self, path: str, change: Any) -> None:
        self.changes.append((path, change))
        for workload in self.workloads:
            if path == f"{WORKLOADS}/{workload['metadata']['name']}":
                workload["spec"] |= change["spec"]
        if not path.startswith(PATH):
            return
        meta = change.get("metadata", {})
        annotations = self.body["metadata"]["annotations"]
        annotations |= meta.get("annotations", {})
        self.body["spec"] |= change.get("spec", {})
        self.change_job("MODIFIED", self.body)

    def create(self, path: str, body: Any) -> None:
        reason = body["reason"]
        message = body["message"]
        self.events.append(f"{reason}: {message}")

    def change_job(self, change: str, body: Object) -> None:
        handle = JOBS.apply(self.view)
        handle(change, body)

    def add_pod(self, body: Object) -> None:
        """Adds a pod and its node, which has a price."""
        name = body["spec"]["nodeName"]
        self.view.node("ADDED", node(name, labels=MACHINE))
        self.view.pod("ADDED", body)

    def spend(self, clock: Clock, until_s: float, every_s: float = 10.0) -> None:
        """Runs passes of the mover until a moment."""
        api: Any = self
        while clock.now < until_s and not self.is_stopped:
            clock.now += every_s
            self.view.count_time(clock.now)
            self.view.spending.act(api, clock.now)

    @property
    def is_stopped(self) -> bool:
        for path, change in self.changes:
            if path == f"{WORKLOADS}/w" and change["spec"] == {"active": False}:
                return True
        return False

    @property
    def annotations(self) -> dict[str, str]:
        return self.body["metadata"]["annotations"]

    @property
    def spent(self) -> Spent:
        return parse_spent(self.annotations.get("holdfast.dev/spent"))

    @property
    def spent_usd_in_memory(self) -> float:
        """Money that the mover has counted and may not have written yet."""
        spent = self.view.spending.by_job["uid-run-7"]
        return spent.usd


def start(
    body: Object,
    *pods: Object,
    now_s: float = EPOCH,
) -> tuple[Cluster, Clock]:
    """Starts a mover that begins to watch now."""
    clock = Clock(now_s)
    cluster = Cluster(body, View(clock=clock))
    cluster.change_job("ADDED", body)
    for body_of_pod in pods:
        cluster.add_pod(body_of_pod)
    return cluster, clock


def test_a_job_is_stopped_with_the_money_for_its_window_left() -> None:
    cluster, clock = start(make_limited(USD), pod())
    cluster.spend(clock, EPOCH + 7_200)
    left_usd = USD - cluster.spent.usd
    left_s = left_usd / USD * 3600
    assert cluster.is_stopped
    assert WINDOW_S < left_s < WINDOW_S + MARGIN_S + 20
    assert cluster.annotations["holdfast.dev/stopped-for"] == "max_usd"
    [event] = cluster.events
    assert event.startswith("MaxUsd: stopped with $")


def test_a_gang_that_grows_ends_its_second_workload_after_the_first() -> None:
    """Kueue finishes both if both end at once, and leaves the pods."""
    spent = f"2.0000 {EPOCH:.0f}"
    cluster, clock = start(make_limited(1.0, spent=spent), pod())
    first = make_workload("first", "QuotaReserved")
    second = make_workload("second")
    cluster.workloads = [second, first]
    cluster.spend(clock, EPOCH + 30)
    assert not first["spec"]["active"]
    assert second["spec"]["active"]
    assert len(cluster.events) == 1

    finished = make_workload("first", "QuotaReserved", "Finished")
    cluster.workloads = [finished, second]
    cluster.spend(clock, EPOCH + 60)
    assert not second["spec"]["active"]


def test_each_node_is_paid_for() -> None:
    pods = [pod(f"p{n}", f"n{n}") for n in range(4)]
    cluster, clock = start(make_limited(USD), *pods)
    cluster.spend(clock, EPOCH + 3_600)
    assert cluster.is_stopped
    assert clock.now < EPOCH + 900


def test_jobs_that_share_a_node_pay_in_equal_parts() -> None:
    cluster, clock = start(make_limited(100.0), pod())
    other = job()
    other["metadata"] |= {"name": "other", "uid": "other"}
    cluster.change_job("ADDED", other)
    cluster.view.pod("ADDED", pod("b", owner="other"))
    cluster.spend(clock, EPOCH + 3_600)
    assert cluster.spent_usd_in_memory == pytest.approx(USD / 2)


def test_spending_outlives_pods_and_movers() -> None:
    """The second mover reads what the first wrote, and counts the pod that it did not watch."""
    first, clock = start(make_limited(2 * USD), pod())
    first.spend(clock, EPOCH + 3_600)
    before_usd = first.spent.usd
    assert before_usd == pytest.approx(USD, rel=0.03)
    assert not first.is_stopped
    # The mover was down for half an hour, in which the job got another node.
    next_pod = pod("b", "m", EPOCH + 3_900)
    second, clock = start(first.body, next_pod, now_s=EPOCH + 5_400)
    second.spend(clock, EPOCH + 5_400)
    second.spend(clock, EPOCH + 5_410)
    added_usd = USD * 1_510 / 3_600
    expected_usd = before_usd + added_usd
    assert second.spent.usd == pytest.approx(expected_usd, rel=0.001)
    second.spend(clock, EPOCH + 10_800)
    assert second.is_stopped


def test_another_replica_takes_over_what_the_leader_counted() -> None:
    begin_s = EPOCH + 3_600
    body = make_limited(10.0, spent=f"4.0000 {begin_s:.0f}")
    cluster, clock = start(body, pod(), now_s=begin_s)
    cluster.spend(clock, EPOCH + 7_200)
    assert cluster.spent_usd_in_memory == pytest.approx(4.0 + USD, rel=0.001)


@pytest.mark.parametrize("stopped_for", ["", "max_usd"])
def test_a_gang_without_its_nodes_queues_again_unless_max_usd_stopped_it(stopped_for: str) -> None:
    requests: list[str] = []
    meta = {
        "name": "gang",
        "namespace": "training",
        "uid": "u",
        "resourceVersion": "1",
        "labels": {LABEL_REQUEUES: "2"},
        "annotations": {"holdfast.dev/stopped-for": stopped_for},
    }
    revoked = [
        {"type": "Evicted", "status": "True", "reason": KUEUE_REVOKED},
        {"type": "Admitted", "status": "False"},
    ]
    owner = {"uid": "u", "controller": True}
    workload = {
        "metadata": {"name": "w", "namespace": "training", "ownerReferences": [owner]},
        "spec": {"active": False},
        "status": {"conditions": revoked},
    }

    class Revoked(Cluster):
        def items(self, path: str, **query: str) -> list[Any]:
            return [workload] if path == WORKLOADS else [{"metadata": meta, "spec": {"suspend": 1}}]

        def patch(self, path: str, ops: Any) -> None:
            requests.append(path)

        def delete(self, path: str) -> None:
            requests.append(path)

    api: Any = Revoked({}, View())
    assert requeue(api, {}, EPOCH, ["training"]) == (not stopped_for)
    assert bool(requests) == (not stopped_for)


def test_a_job_without_a_queue_is_suspended() -> None:
    body = make_limited(USD)
    del body["metadata"]["labels"]
    cluster, clock = start(body, pod())
    cluster.spend(clock, EPOCH + 3_600)
    change = {"spec": {"suspend": True}}
    assert (PATH, change) in cluster.changes


def test_a_stopped_job_is_left_alone_until_it_runs_again() -> None:
    body = make_limited(1.0, spent=f"0.9900 {EPOCH:.0f}", stopped_for="max_usd")
    body["spec"]["suspend"] = True
    cluster, clock = start(body)
    cluster.spend(clock, EPOCH + 60)
    assert not cluster.changes
    body["spec"]["suspend"] = False  # Kueue started it: somebody made its Workload active
    cluster.change_job("MODIFIED", body)
    cluster.add_pod(pod(began_s=EPOCH + 60))
    cluster.spend(clock, EPOCH + 120)
    assert cluster.is_stopped


def test_a_machine_without_a_price_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = start(make_limited(1.0), pod())
    labels = {"node.kubernetes.io/instance-type": "e2-standard-4"}
    cluster.view.node("MODIFIED", node("n", labels=labels))
    cluster.spend(clock, EPOCH + 60)
    message = "max_usd of run-7 is not kept: no machine type with a price"
    assert caplog.text.count(message) == 1


def test_a_failing_request_is_tried_again() -> None:
    cluster, clock = start(make_limited(USD / 10), pod())

    class Refusing(Cluster):
        def merge(self, path: str, change: Any) -> None:
            raise ApiError(500, "no")

    refusing = Refusing(cluster.body, cluster.view)
    refusing.spend(clock, EPOCH + 300)
    cluster.spend(clock, EPOCH + 320)
    assert cluster.is_stopped


@pytest.mark.parametrize("text", ["", "1", "a b", "nan 1", "-1 5", "inf 1"])
def test_an_unreadable_annotation_counts_nothing(text: str) -> None:
    assert parse_spent(text) == Spent()


@pytest.mark.parametrize("text", ["", "0", "-3", "nan", "inf", "ten"])
def test_a_limit_that_is_no_amount_is_none(text: str) -> None:
    body = job(**{MAX_USD: text})
    assert parse_limited_job("/apis/batch/v1/namespaces/training/jobs", body) is None


def test_a_gang_is_limited_by_its_jobset() -> None:
    body = make_limited(5.0)
    pod_spec = {"terminationGracePeriodSeconds": 300}
    job_spec = {"template": {"spec": pod_spec}}
    group = {"template": {"spec": job_spec}}
    body["spec"] = {"replicatedJobs": [group]}
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"
    limit = parse_limited_job(path, body)
    assert limit is not None
    assert limit.window_s == 300
    assert limit.body["kind"] == "JobSet"
    assert limit.body["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
