"""Tests what the exporter reports about a cluster, and that its memory follows what exists."""

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.controllers.cluster import SETTLE_S, Cluster
from holdfast.cost.churn import estimate
from holdfast.ledger.events import parse
from holdfast.vocabulary.job_identity import JobIdentity
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH

BORN = "2026-11-21T00:00:00Z"
NOW = 1_795_219_200.0 + 3600  # an hour later
SPOT = {"cloud.google.com/gke-spot": "true"}
SHUTS_DOWN = "node is shutting down"


def node(
    name: str,
    *,
    labels: dict[str, str] = SPOT,
    ready: str = "True",
    message: str = "",
    ends: str = "",
) -> Any:
    extra = {
        "cloud.google.com/gke-nodepool": "spot-l4",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    annotations = {"node.gke.io/machine-termination-datetime": ends} if ends else {}
    return {
        "metadata": {
            "name": name,
            "labels": labels | extra,
            "annotations": annotations,
            "creationTimestamp": BORN,
        },
        "spec": {},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": ready,
                    "message": message,
                }
            ]
        },
    }


def pod(
    uid: str,
    *,
    on: str = "",
    namespace: str = "training",
    phase: str = "Pending",
    owner: str = "Job",
    **options: Any,
) -> Any:
    waiting = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": BORN,
    }
    labels = {"jobset.sigs.k8s.io/jobset-name": "run-7"} if namespace == "training" else {}
    owned = {
        "kind": owner,
        "uid": options.get("owner_uid", "uid-run-7"),
        "controller": True,
    }
    named = {
        "uid": uid,
        "name": f"pod-{uid}",
        "namespace": namespace,
    }
    selector = options.get("selector", SPOT | {"cloud.google.com/gke-accelerator": "nvidia-l4"})
    return {
        "metadata": named
        | {
            "labels": labels,
            "ownerReferences": [owned],
        },
        "spec": {"nodeName": on, "nodeSelector": selector},
        "status": {
            "phase": phase,
            "conditions": options.get("conditions", [] if on else [waiting]),
        }
        | ({"containerStatuses": WORKED} if options.get("worked", on) else {}),
    }


def values(cluster: Cluster, metric: str) -> dict[tuple[str, ...], float]:
    values_by_labels: dict[tuple[str, ...], float] = {}
    for s in cluster.samples(NOW):
        if s.metric == metric:
            values_by_labels[tuple(v for _, v in s.labels)] = s.value
    return values_by_labels


def make_cluster(*nodes: Any, pods: Iterable[Any] = ()) -> Cluster:
    """Makes a cluster that has just seen these nodes and pods."""
    cluster = Cluster(clock=lambda: NOW)
    for body in nodes:
        cluster.node("ADDED", body)
    for body in pods:
        cluster.pod("ADDED", body)
    return cluster


BOUND = [
    {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-11-21T00:30:00Z",
    }
]
WORKED = [{"state": {"terminated": {"startedAt": BORN, "exitCode": 143}}}]
ENDED = [
    {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
    }
]


SIGNS = {
    "pod": lambda c: c.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED)),
    "node": lambda c: c.node("MODIFIED", node("a", ready="False", message=SHUTS_DOWN)),
    "gone": lambda c: c.node("DELETED", node("a")),
}


def test_longest_wait_is_reported_by_capacity_and_accelerator() -> None:
    cluster = make_cluster(node("a"), pods=[pod("p")])
    assert values(cluster, "pending_seconds") == {("nvidia-l4", "spot"): 3600}
    cluster.pod("MODIFIED", pod("p", on="a", phase="Running"))
    assert values(cluster, "pending_seconds") == {("nvidia-l4", "spot"): 0}


def test_system_pods_on_spot_are_counted_but_not_daemonsets() -> None:
    places = (("a", "ReplicaSet"), ("a", "DaemonSet"), ("b", "ReplicaSet"))
    pods = []
    for n, (on, owner) in enumerate(places):
        pods.append(pod(f"dns-{n}", on=on, namespace="kube-system", owner=owner))
    cluster = make_cluster(node("a"), node("b", labels={}), pods=pods)
    assert values(cluster, "system_pods_on_interruptible")["kube-system",] == 1


def test_job_pods_on_silent_nodes_count_until_they_end() -> None:
    silent = node("a") | {
        "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}
    }
    pods = []
    for uid, on in (("p", "a"), ("q", "a"), ("r", "b")):
        pods.append(pod(uid, on=on, phase="Running"))
    cluster = make_cluster(silent, node("b"), pods=pods)
    assert values(cluster, "silent_node_pods") == {("training",): 2, ("batch",): 0}
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed"))
    assert values(cluster, "silent_node_pods")["training",] == 1
    cluster.forget_all_but("pods", {"r"})
    assert set(cluster.pods) == {"r"}


def test_a_job_ends_with_its_first_node() -> None:
    ends = {"a": "2026-11-21T03:00:00Z", "b": "2026-11-21T05:00:00Z"}
    nodes = []
    pods = []
    for name, end in ends.items():
        nodes.append(node(name, ends=end))
        pods.append(pod(name, on=name, phase="Running"))
    assert values(make_cluster(*nodes, pods=pods), "node_end_seconds") == {
        ("run-7", "training"): 2 * 3600
    }


def test_each_eviction_is_written_once() -> None:
    cluster = make_cluster(node("a"), pods=[pod("p", on="a", phase="Running")])
    for _ in range(2):
        cluster.pod("MODIFIED", pod("p", on="a", phase="Running", conditions=ENDED))
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))
    for phase, conditions in (("Pending", []), ("Failed", ENDED)):
        cluster.pod(
            "MODIFIED",
            pod(
                "that never began",
                on="a",
                phase=phase,
                conditions=conditions,
                worked=False,
            ),
        )
    cluster.pod("ADDED", pod("before us", on="a", phase="Failed", conditions=ENDED))
    cluster.pod(
        "ADDED",
        pod(
            "of nobody",
            on="a",
            phase="Running",
            namespace="serving",
        ),
    )
    cluster.pod(
        "MODIFIED",
        pod(
            "of nobody",
            on="a",
            phase="Failed",
            namespace="serving",
            conditions=ENDED,
        ),
    )
    evict_lines = [line for line in cluster.lines(NOW) if line["event"] == "evict"]
    (evict,) = parse(sample.encoded(evict_lines)).events
    assert evict.job == "run-7"
    assert evict.kind == "training"
    assert evict.fields["reason"] == "TerminationByKubelet"


def test_budget_shortfall_leaves_out_jobs() -> None:
    """A job without a node, or one that is done, has no healthy pod."""
    for namespace, shown in (("serving", {("b", "serving"): 2}), ("training", {})):
        meta = {"namespace": namespace, "name": "b"}
        budget = {
            "metadata": meta,
            "status": {"desiredHealthy": 3, "currentHealthy": 1},
        }
        cluster = Cluster()
        cluster.budget("ADDED", budget)
        assert values(cluster, "disruption_budget_shortfall") == shown
        cluster.budget("DELETED", budget)
        assert values(cluster, "disruption_budget_shortfall") == {}


def write_lines(cluster: Cluster, now_s: float = NOW + SETTLE_S) -> list[tuple[str, str, float]]:
    events: list[tuple[str, str, float]] = []
    for line in cluster.lines(now_s):
        events.append((line["event"], line.get("reason", ""), line["seconds"]))
    return events


@pytest.mark.parametrize(
    "order",
    [
        ("node", "gone", "pod"),
        ("gone", "pod"),
        ("node", "pod", "gone"),
        ("pod", "node", "gone"),
        ("gone",),
    ],
    ids="-".join,
)
def test_a_lost_node_counts_once_whichever_sign_is_first(order: tuple[str, ...]) -> None:
    cluster = make_cluster(node("a"))
    assert write_lines(cluster) == [("node_up", "", 3600.0)]
    for sign in order:
        SIGNS[sign](cluster)
    assert write_lines(cluster, NOW + SETTLE_S - 1) == []  # a pod may still tell
    taken = order != ("gone",)
    assert write_lines(cluster) == [("node_down", "preempted" if taken else "deleted", 3600.0)]
    assert write_lines(cluster) == []
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): taken}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ready": "False", "message": "container runtime is down"}, "deleted"),
        ({}, "deleted"),
        (
            {
                "labels": {},
                "ready": "False",
                "message": SHUTS_DOWN,
            },
            "preempted",
        ),
        (
            {
                "labels": {},
                "ready": "False",
                "message": SHUTS_DOWN,
                "ends": "2026-11-21T01:05:00Z",
            },
            "expired",
        ),
    ],
    ids=["sick", "scaled down", "on demand", "at its planned end"],
)
def test_a_node_that_is_not_reclaimed_is_no_preemption(fields: Any, reason: str) -> None:
    cluster = make_cluster(node("a", **fields | {"ready": "True", "message": ""}))
    for change in ("MODIFIED", "DELETED"):
        cluster.node(change, node("a", **fields))
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): 0}
    assert write_lines(cluster) == [("node_up", "", 3600.0), ("node_down", reason, 3600.0)]


def test_a_node_that_returns_ends_before_it_starts_again() -> None:
    cluster = make_cluster(node("a"))
    for change in ("DELETED", "ADDED"):
        cluster.node(change, node("a"))
    words = [word for word, _, _ in write_lines(cluster)]
    assert words == ["node_up", "node_down", "node_up"]


def next_machine(**fields: Any) -> Any:
    """Returns the node of a machine that GKE made under the name of a lost one."""
    body = node("a", **fields)
    body["metadata"]["creationTimestamp"] = "2026-11-21T00:59:00Z"
    return body


def test_a_machine_replaced_while_nothing_watched_is_another() -> None:
    cluster = make_cluster(node("a"))
    cluster.node("MODIFIED", node("a", ready="False", message=SHUTS_DOWN))
    cluster.node("ADDED", next_machine())
    cluster.forget_all_but("nodes", {"a"})
    assert not cluster.nodes["a"].taken
    ends = [(event, reason) for event, reason, _ in write_lines(cluster)]
    assert ends == [("node_up", ""), ("node_down", "preempted"), ("node_up", "")]
    cluster.node("MODIFIED", next_machine(ready="False", message=SHUTS_DOWN))
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): 2}


def test_an_old_failed_pod_tells_nothing_about_the_next_machine() -> None:
    """Failed pods of a Job stay, and each list shows them again."""
    cluster = make_cluster(node("a"))
    failed_pod = pod("p", on="a", phase="Failed")
    failed_pod["status"]["conditions"].append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "lastTransitionTime": "2026-11-21T00:50:00Z",
        }
    )
    cluster.pod("MODIFIED", failed_pod)
    cluster.node("DELETED", node("a"))
    cluster.node("ADDED", next_machine())
    cluster.pod("ADDED", failed_pod)
    assert not cluster.nodes["a"].taken
    assert values(cluster, "preemptions_total") == {("spot-l4", "us-central1-a"): 1}


def test_a_pod_that_gets_its_node_is_written_once_with_its_wait() -> None:
    cluster = make_cluster(node("a"))
    waiting = pod("p")
    bound = pod("p", on="a", phase="Running", conditions=BOUND)
    for body in (waiting, bound):
        body["metadata"] |= {"name": "run-7-0", "creationTimestamp": BORN}
    for body in (waiting, waiting, bound, bound):
        cluster.pod("MODIFIED", body)
    [_, line] = cluster.lines(NOW)
    assert (line["event"], line["job"], line["kind"], line["seconds"]) == (
        "scheduled",
        "run-7",
        "training",
        1800.0,
    )
    assert line["pool"] == "spot-l4"
    assert line["capacity"] == "spot"
    assert line["accelerator"] == "nvidia-l4"
    assert cluster.lines(NOW) == []


def test_the_lines_are_what_the_churn_estimate_reads() -> None:
    cluster = make_cluster(node("a"), node("b"))
    SIGNS["node"](cluster)
    cluster.clock = lambda: NOW + 1800
    cluster.node("DELETED", node("a"))
    reading = parse(sample.encoded(cluster.lines(NOW + 3600)))
    assert not reading.problems
    lives = estimate.lifetimes(reading.events, round((NOW + 3600) * 1e6))
    hours: list[tuple[bool, float]] = []
    for life in lives:
        hours.append((life.preempted, (life.end_us - life.begin_us) / 3.6e9))
    hours.sort()
    assert hours == [(False, 1.0), (True, 0.5)]
    _, _, band, *_ = estimate.by_age(lives)
    assert (band[2].events, band[2].hours) == (1, 1.5)  # both were an hour old when the watch began


def running(uid: str, labels: dict[str, str], namespace: str = "training") -> Any:
    """Makes a running pod on a node of its own name."""
    body = pod(uid, on=uid, namespace=namespace)
    body["metadata"]["labels"] = labels
    body["status"]["containerStatuses"] = [
        {"state": {"running": {"startedAt": "2026-09-21T14:13:20Z"}}}
    ]
    return body


def test_equal_job_names_in_two_namespaces_stay_apart() -> None:
    spaces = ("training", "team-a")
    nodes = []
    pods = []
    for space in spaces:
        nodes.append(node(space, ends="2026-09-21T15:00:00Z"))
        pods.append(running(space, {"holdfast.dev/job": "run-7"}, space))
    cluster = make_cluster(*nodes, pods=pods)
    assert len(cluster.running_since()) == 2
    node_ends = values(cluster, "node_end_seconds")
    assert node_ends.keys() == {("run-7", "training"), ("run-7", "team-a")}


def test_labels_give_a_pod_its_job_and_index() -> None:
    labels = {
        "holdfast.dev/job": "train-flex-l4",
        "holdfast.dev/run-per-index": "true",
        "batch.kubernetes.io/job-name": "train-flex-l4",
        "batch.kubernetes.io/job-completion-index": "3",
    }
    body = running("p", labels)
    cluster = make_cluster(pods=[body])
    assert cluster.running_since() == {
        JobIdentity(namespace="training", job="train-flex-l4", index=3): EPOCH
    }
    del labels["holdfast.dev/run-per-index"]  # a gang: its pods share one run
    cluster.pod("MODIFIED", body)
    assert cluster.running_since() == {
        JobIdentity(namespace="training", job="train-flex-l4"): EPOCH
    }
    body["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 143}}}]
    cluster.pod("MODIFIED", body)
    assert cluster.running_since() == {}


def test_the_account_gives_a_team_job_its_kind() -> None:
    cluster = Cluster(clock=lambda: NOW, namespaces=("vision",))
    cluster.node("ADDED", node("spot-a"))
    waits = pod("p", namespace="vision")
    waits["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "run-7"}
    for account, kind in (("run-detector", "training"), ("batch", "batch")):
        waits["metadata"]["uid"] = account
        waits["spec"] = {"serviceAccountName": account}
        cluster.pod("ADDED", waits)
        cluster.pod("MODIFIED", waits | {"spec": waits["spec"] | {"nodeName": "spot-a"}})
        kinds = []
        for line in cluster.lines(NOW):
            if line["event"] == "scheduled":
                kinds.append(line["kind"])
        assert kinds == [kind]
    assert values(cluster, "silent_node_pods") == {("vision",): 0.0}


def test_pending_pod_accelerators_are_known_or_other() -> None:
    """Anybody who may create a pod chooses its selector, and each value is a series."""
    pods = []
    for n in range(50):
        selector = SPOT | {"cloud.google.com/gke-accelerator": f"gpu-{n}"}
        pods.append(pod(f"p-{n}", selector=selector))
    cluster = make_cluster(pods=[*pods, pod("known"), pod("cpu", selector=SPOT)])
    assert values(cluster, "pending_seconds").keys() == {
        ("nvidia-l4", "spot"),
        ("none", "spot"),
        ("other", "spot"),
    }
