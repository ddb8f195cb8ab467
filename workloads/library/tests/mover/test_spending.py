"""`max_usd` of a job: counted over restarts of everything, and kept with the window to spare."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.cost.money import find_prices
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.mover.spending import MARGIN_S, Spent, read_limited_job, read_spent
from holdfast.support.values import rfc3339
from workloads.library.tests.controllers.test_cluster import node
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.sample import EPOCH

JOBS, JOBSETS = list_job_kinds(["training"])
MACHINE = {"node.kubernetes.io/instance-type": "g2-standard-8", "cloud.google.com/gke-spot": "true"}
USD = find_prices("g2-standard-8", "us-central1").spot
WINDOW_S = 15.0
PATH = "/apis/batch/v1/namespaces/training/jobs/run-7"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads"


def job(**annotations: str) -> dict[str, Any]:
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


def make_limited(max_usd: float, **annotations: str) -> dict[str, Any]:
    names = {name.replace("_", "-"): text for name, text in annotations.items()}
    texts = {"max-usd": f"{max_usd}"} | names
    return job(**{f"holdfast.dev/{name}": text for name, text in texts.items()})


def pod(name: str, on: str, began_s: float, owner: str = "uid-run-7") -> dict[str, Any]:
    controller = {"kind": "Job", "uid": owner, "controller": True}
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


@dataclass
class Cluster:
    """Fakes an API server with one Workload, and applies annotations to the job."""

    body: dict[str, Any]
    view: View
    changes: list[tuple[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def items(self, path: str, **query: str) -> list[Any]:
        assert path == WORKLOADS
        owner = {"uid": "uid-run-7", "controller": True}
        return [{"metadata": {"name": "w", "ownerReferences": [owner]}}]

    def merge(self, path: str, change: Any) -> None:
        self.changes.append((path, change))
        if path.startswith(PATH):
            annotations = self.body["metadata"]["annotations"]
            annotations |= change.get("metadata", {}).get("annotations", {})
            self.body["spec"] |= change.get("spec", {})
            JOBS.apply(self.view)("MODIFIED", self.body)

    def create(self, path: str, body: Any) -> None:
        self.events.append(f"{body['reason']}: {body['message']}")

    def spend(self, clock: Clock, until_s: float, every_s: float = 10.0) -> None:
        """Let the mover pass until a moment."""
        api: Any = self
        while clock.now < until_s and not self.is_stopped:
            clock.now += every_s
            self.view.passed(clock.now)
            self.view.spending.act(api, clock.now)

    @property
    def is_stopped(self) -> bool:
        return (f"{WORKLOADS}/w", {"spec": {"active": False}}) in self.changes

    @property
    def spent(self) -> Spent:
        return read_spent(self.body["metadata"]["annotations"].get("holdfast.dev/spent"))


def start(body: dict[str, Any], *pods: dict[str, Any], now_s: float) -> tuple[Cluster, Clock]:
    """A mover that begins to watch now."""
    clock = Clock(now_s)
    view = View(clock=clock)
    JOBS.apply(view)("ADDED", body)
    for body_of_pod in pods:
        view.node("ADDED", node(body_of_pod["spec"]["nodeName"], labels=MACHINE))
        view.pod("ADDED", body_of_pod)
    return Cluster(body, view), clock


def test_a_job_is_stopped_with_the_money_for_its_window_left() -> None:
    cluster, clock = start(make_limited(USD), pod("a", "n", EPOCH), now_s=EPOCH)
    cluster.spend(clock, EPOCH + 7_200)
    left_usd = USD - cluster.spent.usd
    assert cluster.is_stopped
    assert USD * WINDOW_S / 3600 < left_usd < USD * (WINDOW_S + MARGIN_S + 20) / 3600
    assert cluster.body["metadata"]["annotations"]["holdfast.dev/stopped-for"] == "max_usd"
    [event] = cluster.events
    assert event.startswith("MaxUsd: stopped with $")


def test_each_node_is_paid_for() -> None:
    pods = [pod(f"p{n}", f"n{n}", EPOCH) for n in range(4)]
    cluster, clock = start(make_limited(USD), *pods, now_s=EPOCH)
    cluster.spend(clock, EPOCH + 3_600)
    assert cluster.is_stopped and clock.now < EPOCH + 900


def test_jobs_that_share_a_node_pay_in_equal_parts() -> None:
    cluster, clock = start(make_limited(100.0), pod("a", "n", EPOCH), now_s=EPOCH)
    other = job() | {"metadata": job()["metadata"] | {"name": "other", "uid": "other"}}
    JOBS.apply(cluster.view)("ADDED", other)
    cluster.view.pod("ADDED", pod("b", "n", EPOCH, owner="other"))
    cluster.spend(clock, EPOCH + 3_600)
    assert cluster.view.spending.by_job["uid-run-7"].usd == pytest.approx(USD / 2)


def test_spending_outlives_pods_and_movers() -> None:
    """The second mover reads what the first wrote, and counts the pod that it did not watch."""
    first, clock = start(make_limited(2 * USD), pod("a", "n", EPOCH), now_s=EPOCH)
    first.spend(clock, EPOCH + 3_600)
    before_usd = first.spent.usd
    assert before_usd == pytest.approx(USD, rel=0.03) and not first.is_stopped
    # Down for half an hour, in which the job got another node.
    body = first.body
    second, clock = start(body, pod("b", "m", EPOCH + 3_900), now_s=EPOCH + 5_400)
    second.spend(clock, EPOCH + 5_400)
    second.spend(clock, EPOCH + 5_410)
    assert second.spent.usd == pytest.approx(before_usd + USD * 1_510 / 3_600, rel=0.001)
    second.spend(clock, EPOCH + 10_800)
    assert second.is_stopped


def test_another_replica_takes_over_what_the_leader_counted() -> None:
    body = make_limited(10.0, spent=f"4.0000 {EPOCH + 3_600:.0f}")
    cluster, clock = start(body, pod("a", "n", EPOCH), now_s=EPOCH + 3_600)
    cluster.spend(clock, EPOCH + 7_200)
    assert cluster.view.spending.by_job["uid-run-7"].usd == pytest.approx(4.0 + USD, rel=0.001)


def test_a_job_without_a_queue_is_suspended() -> None:
    body = make_limited(USD)
    del body["metadata"]["labels"]
    cluster, clock = start(body, pod("a", "n", EPOCH), now_s=EPOCH)
    cluster.spend(clock, EPOCH + 3_600)
    assert (PATH, {"spec": {"suspend": True}}) in cluster.changes


def test_a_stopped_job_is_left_alone_until_it_runs_again() -> None:
    body = make_limited(1.0, spent=f"0.9900 {EPOCH:.0f}", stopped_for="max_usd")
    body["spec"]["suspend"] = True
    cluster, clock = start(body, now_s=EPOCH)
    cluster.spend(clock, EPOCH + 60)
    assert not cluster.changes
    body["spec"]["suspend"] = False  # Kueue started it: somebody made its Workload active
    JOBS.apply(cluster.view)("MODIFIED", body)
    cluster.view.node("ADDED", node("n", labels=MACHINE))
    cluster.view.pod("ADDED", pod("a", "n", EPOCH + 60))
    cluster.spend(clock, EPOCH + 120)
    assert cluster.is_stopped


def test_a_machine_without_a_price_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = start(make_limited(1.0), pod("a", "n", EPOCH), now_s=EPOCH)
    labels = {"node.kubernetes.io/instance-type": "e2-standard-4"}
    cluster.view.node("MODIFIED", node("n", labels=labels))
    cluster.spend(clock, EPOCH + 60)
    assert caplog.text.count("max_usd of run-7 is not kept: no machine type with a price") == 1


def test_a_failing_request_is_tried_again() -> None:
    cluster, clock = start(make_limited(USD / 10), pod("a", "n", EPOCH), now_s=EPOCH)
    view = cluster.view

    class Refusing(Cluster):
        def merge(self, path: str, change: Any) -> None:
            raise ApiError(500, "no")

    Refusing(cluster.body, view).spend(clock, EPOCH + 300)
    cluster.spend(clock, EPOCH + 320)
    assert cluster.is_stopped


@pytest.mark.parametrize("text", ["", "1", "a b", "nan 1", "-1 5", "inf 1"])
def test_an_unreadable_annotation_counts_nothing(text: str) -> None:
    assert read_spent(text) == Spent()


@pytest.mark.parametrize("text", ["", "0", "-3", "nan", "inf", "ten"])
def test_a_limit_that_is_no_amount_is_none(text: str) -> None:
    body = job(**{"holdfast.dev/max-usd": text})
    assert read_limited_job("/apis/batch/v1/namespaces/training/jobs", body) is None


def test_a_gang_is_limited_by_its_jobset() -> None:
    body = make_limited(5.0)
    pods = {"template": {"spec": {"terminationGracePeriodSeconds": 300}}}
    body["spec"] = {"replicatedJobs": [{"template": {"spec": pods}}]}
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"
    limit = read_limited_job(path, body)
    assert limit is not None
    assert (limit.body["kind"], limit.window_s) == ("JobSet", 300)
    assert limit.body["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
