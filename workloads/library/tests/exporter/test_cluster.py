"""What the exporter says of a cluster, and that its memory follows what exists."""

from typing import Any

import pytest

from holdfast.contract.job_identity import JobIdentity
from holdfast.exporter.cluster import SETTLE_S, Cluster
from holdfast.ledger.events import parse
from holdfast.place.churn import estimate
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH

BORN = "2026-11-21T00:00:00Z"
NOW = 1_795_219_200.0 + 3600  # an hour later
SPOT = {"cloud.google.com/gke-spot": "true"}


def node(name: str, *, labels: dict[str, str] = SPOT, ready: str = "True", message: str = "", ends: str = "") -> Any:
    extra = {"cloud.google.com/gke-nodepool": "spot-l4", "topology.kubernetes.io/zone": "us-central1-a"}
    annotations = {"node.gke.io/machine-termination-datetime": ends} if ends else {}
    return {
        "metadata": {"name": name, "labels": labels | extra, "annotations": annotations, "creationTimestamp": BORN},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": ready, "message": message}]},
    }


def pod(
    uid: str, *, on: str = "", namespace: str = "training", phase: str = "Pending", owner: str = "Job", **more: Any
) -> Any:
    waiting = {"type": "PodScheduled", "status": "False", "lastTransitionTime": BORN}
    labels = {"jobset.sigs.k8s.io/jobset-name": "run-7"} if namespace == "training" else {}
    owned = {"kind": owner, "uid": more.get("owner_uid", "uid-run-7"), "controller": True}
    named = {"uid": uid, "name": f"pod-{uid}", "namespace": namespace}
    selector = more.get("selector", SPOT | {"cloud.google.com/gke-accelerator": "nvidia-l4"})
    return {
        "metadata": named | {"labels": labels, "ownerReferences": [owned]},
        "spec": {"nodeName": on, "nodeSelector": selector},
        "status": {"phase": phase, "conditions": more.get("conditions", [] if on else [waiting])}
        | ({"containerStatuses": WORKED} if more.get("worked", on) else {}),
    }


def values(cluster: Cluster, metric: str) -> dict[tuple[str, ...], float]:
    return {tuple(v for _, v in s.labels): s.value for s in cluster.samples(NOW) if s.metric == metric}


BOUND = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T00:30:00Z"}]
WORKED = [{"state": {"terminated": {"startedAt": BORN, "exitCode": 143}}}]
ENDED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]


SIGNS = {
    "pod": lambda c: c.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED)),
    "node": lambda c: c.node("MODIFIED", node("a", ready="False", message="node is shutting down")),
    "gone": lambda c: c.node("DELETED", node("a")),
}


@pytest.mark.parametrize(
    "shut",
    [
        {"ready": "False", "message": "container runtime is down"},
        {"ready": "True"},
        {"labels": {}, "ready": "False", "message": "node is shutting down"},
    ],
    ids=["sick", "scaled down", "on demand"],
)
def test_a_node_that_nobody_takes_is_no_preemption(shut: Any) -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a", **shut | {"ready": "True", "message": ""}))
    for change in ("MODIFIED", "DELETED"):
        cluster.node(change, node("a", **shut))
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): 0}


def test_the_longest_wait_is_shown_by_capacity_and_accelerator_and_falls_to_zero() -> None:
    cluster = Cluster()
    cluster.pod("ADDED", pod("p"))
    assert values(cluster, "pending_seconds") == {("nvidia-l4", "spot"): 3600}
    cluster.node("ADDED", node("a"))
    cluster.pod("MODIFIED", pod("p", on="a", phase="Running"))
    assert values(cluster, "pending_seconds") == {("nvidia-l4", "spot"): 0}


def test_system_pods_on_spot_are_counted_but_not_daemonsets() -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a"))
    cluster.node("ADDED", node("b", labels={}))
    cluster.pod("ADDED", pod("dns", on="a", namespace="kube-system", owner="ReplicaSet"))
    cluster.pod("ADDED", pod("proxy", on="a", namespace="kube-system", owner="DaemonSet"))
    cluster.pod("ADDED", pod("dns2", on="b", namespace="kube-system", owner="ReplicaSet"))
    assert values(cluster, "system_pods_on_interruptible")["kube-system",] == 1


def test_pods_of_jobs_on_a_silent_node_are_counted() -> None:
    cluster = Cluster()
    silent = node("a") | {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}
    cluster.node("ADDED", silent)
    cluster.node("ADDED", node("b"))
    for uid, on in (("p", "a"), ("q", "b")):
        cluster.pod("ADDED", pod(uid, on=on, phase="Running"))
    assert values(cluster, "silent_node_pods") == {("training",): 1, ("batch",): 0}
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed"))
    assert values(cluster, "silent_node_pods")["training",] == 0


def test_the_planned_end_of_a_job_is_that_of_its_first_node() -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a", ends="2026-11-21T03:00:00Z"))
    cluster.node("ADDED", node("b", ends="2026-11-21T05:00:00Z"))
    for uid, on in (("p", "a"), ("q", "b")):
        cluster.pod("ADDED", pod(uid, on=on, phase="Running"))
    assert values(cluster, "node_end_seconds") == {("run-7", "training"): 2 * 3600}


def test_pods_that_the_platform_ends_are_written_down_once_each() -> None:
    cluster = Cluster()
    cluster.node("ADDED", node("a"))
    cluster.pod("ADDED", pod("p", on="a", phase="Running"))
    for _ in range(2):
        cluster.pod("MODIFIED", pod("p", on="a", phase="Running", conditions=ENDED))
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))
    for phase, ended in (("Pending", []), ("Failed", ENDED)):
        cluster.pod("MODIFIED", pod("that never began", on="a", phase=phase, conditions=ended, worked=False))
    cluster.pod("ADDED", pod("before us", on="a", phase="Failed", conditions=ENDED))
    cluster.pod("ADDED", pod("of nobody", on="a", phase="Running", namespace="serving"))
    cluster.pod("MODIFIED", pod("of nobody", on="a", phase="Failed", namespace="serving", conditions=ENDED))
    (evict,) = parse(sample.encoded(line for line in cluster.lines(NOW) if line["event"] == "evict")).events
    assert (evict.job, evict.kind, evict.fields["reason"]) == ("run-7", "training", "TerminationByKubelet")


def test_a_budget_of_a_job_is_left_out() -> None:
    """Without a node, or done, none of its pods is healthy."""
    cluster = Cluster()
    meta = {"namespace": "training", "name": "train-gang"}
    cluster.budget("ADDED", {"metadata": meta, "status": {"desiredHealthy": 1, "currentHealthy": 0}})
    assert values(cluster, "disruption_budget_shortfall") == {}


def test_a_broken_budget_shows_how_many_are_missing() -> None:
    cluster = Cluster()
    budget = {
        "metadata": {"namespace": "serving", "name": "server"},
        "status": {"desiredHealthy": 3, "currentHealthy": 1},
    }
    cluster.budget("ADDED", budget)
    assert values(cluster, "disruption_budget_shortfall") == {("server", "serving"): 2}
    cluster.budget("DELETED", budget)
    assert values(cluster, "disruption_budget_shortfall") == {}


def test_what_vanished_while_nobody_watched_is_forgotten() -> None:
    cluster = Cluster()
    for uid in ("p", "q"):
        cluster.pod("ADDED", pod(uid))
    cluster.forget_all_but("pods", {"q"})
    assert set(cluster.pods) == {"q"}


def written(cluster: Cluster, now_s: float = NOW + SETTLE_S) -> list[tuple[str, str, float]]:
    return [(line["event"], line.get("reason", ""), line["seconds"]) for line in cluster.lines(now_s)]


@pytest.mark.parametrize(
    "order",
    [("node", "gone", "pod"), ("gone", "pod"), ("node", "pod", "gone"), ("pod", "node", "gone"), ("gone",)],
    ids="-".join,
)
def test_a_node_that_went_counts_once_and_its_line_gives_the_reason_whatever_showed_it_first(
    order: tuple[str, ...],
) -> None:
    cluster = Cluster(clock=lambda: NOW)
    cluster.node("ADDED", node("a"))
    assert written(cluster) == [("node_up", "", 3600.0)]
    for sign in order:
        SIGNS[sign](cluster)
    assert written(cluster, NOW + SETTLE_S - 1) == []  # a pod may still tell
    taken = order != ("gone",)
    assert written(cluster) == [("node_down", "preempted" if taken else "deleted", 3600.0)]
    assert written(cluster) == []
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): taken}


def test_a_node_that_went_at_its_planned_end_is_no_preemption() -> None:
    cluster = Cluster(clock=lambda: NOW)
    for change in ("ADDED", "MODIFIED", "DELETED"):
        state = {"ready": "True"} if change == "ADDED" else {"ready": "False", "message": "node is shutting down"}
        cluster.node(change, node("a", labels={}, ends="2026-11-21T01:05:00Z", **state))
    assert written(cluster) == [("node_up", "", 3600.0), ("node_down", "expired", 3600.0)]


def test_a_machine_that_comes_back_under_its_name_ends_before_it_begins() -> None:
    cluster = Cluster(clock=lambda: NOW)
    for change in ("ADDED", "DELETED", "ADDED"):
        cluster.node(change, node("a"))
    assert [word for word, _, _ in written(cluster)] == ["node_up", "node_down", "node_up"]


def test_a_pod_that_gets_its_node_is_written_once_with_its_wait() -> None:
    cluster = Cluster(clock=lambda: NOW)
    cluster.node("ADDED", node("a"))
    waiting, bound = pod("p"), pod("p", on="a", phase="Running", conditions=BOUND)
    for found in (waiting, bound):
        found["metadata"] |= {"name": "run-7-0", "creationTimestamp": BORN}
    for found in (waiting, waiting, bound, bound):
        cluster.pod("MODIFIED", found)
    [_, line] = cluster.lines(NOW)
    assert (line["event"], line["job"], line["kind"], line["seconds"]) == ("scheduled", "run-7", "training", 1800.0)
    assert (line["pool"], line["capacity"], line["accelerator"]) == ("spot-l4", "spot", "nvidia-l4")
    assert cluster.lines(NOW) == []


def test_the_lines_are_what_the_churn_estimate_reads() -> None:
    cluster = Cluster(clock=lambda: NOW)
    cluster.node("ADDED", node("a"))
    cluster.node("ADDED", node("b"))
    SIGNS["node"](cluster)
    cluster.clock = lambda: NOW + 1800
    cluster.node("DELETED", node("a"))
    reading = parse(sample.encoded(cluster.lines(NOW + 3600)))
    assert not reading.problems
    lives = estimate.lifetimes(reading.events, round((NOW + 3600) * 1e6))
    hours = sorted((life.preempted, (life.end_us - life.begin_us) / 3.6e9) for life in lives)
    assert hours == [(False, 1.0), (True, 0.5)]
    [_, _, band, *_] = estimate.by_age(lives)
    assert (band[2].events, band[2].hours) == (1, 1.5)  # both were an hour old when the watch began


def test_pods_of_two_namespaces_belong_to_two_jobs_of_one_name() -> None:
    cluster = Cluster()
    for number, namespace in enumerate(("training", "team-a")):
        cluster.node("ADDED", node(f"n{number}", ends=f"2026-09-21T15:0{number}:00Z"))
        found = pod(f"p{number}", on=f"n{number}", namespace=namespace)
        found["metadata"]["labels"] = {"holdfast.dev/job": "run-7"}
        found["status"]["containerStatuses"] = [{"state": {"running": {"startedAt": BORN}}}]
        cluster.pod("ADDED", found)
    assert len(cluster.running_since()) == 2
    assert {key[1] for key in values(cluster, "node_end_seconds")} == {"training", "team-a"}


def test_a_pod_belongs_to_the_job_of_its_label_and_its_run_may_be_one_index() -> None:
    labels = {
        "holdfast.dev/job": "train-flex-l4",
        "holdfast.dev/run-per-index": "true",
        "batch.kubernetes.io/job-name": "train-flex-l4",
        "batch.kubernetes.io/job-completion-index": "3",
    }
    found = pod("p", on="a")
    found["metadata"]["labels"] = labels
    found["status"]["containerStatuses"] = [{"state": {"running": {"startedAt": "2026-09-21T14:13:20Z"}}}]
    cluster = Cluster()
    cluster.pod("ADDED", found)
    assert cluster.running_since() == {JobIdentity(namespace="training", job="train-flex-l4", index=3): EPOCH}
    del labels["holdfast.dev/run-per-index"]  # a gang: its pods share one run
    cluster.pod("MODIFIED", found)
    assert cluster.running_since() == {JobIdentity(namespace="training", job="train-flex-l4"): EPOCH}
    found["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 143}}}]
    cluster.pod("MODIFIED", found)
    assert cluster.running_since() == {}


def test_a_job_in_a_teams_namespace_is_counted_by_its_account() -> None:
    cluster = Cluster(clock=lambda: NOW, namespaces=("vision",))
    cluster.node("ADDED", node("spot-a"))
    waits = pod("p", namespace="vision")
    waits["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "run-7"}
    for account, kind in (("run-detector", "training"), ("batch", "batch")):
        waits["metadata"]["uid"], waits["spec"] = account, {"serviceAccountName": account}
        cluster.pod("ADDED", waits)
        cluster.pod("MODIFIED", waits | {"spec": waits["spec"] | {"nodeName": "spot-a"}})
        assert [line["kind"] for line in cluster.lines(NOW) if line["event"] == "scheduled"] == [kind]
    assert values(cluster, "silent_node_pods") == {("vision",): 0.0}
