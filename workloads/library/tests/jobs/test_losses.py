"""How a job fares, as far as the cluster still knows: past losses, waits, missing nodes, and which
nodes fit it. Pure.
"""

from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.controllers.queues import parse_workload
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot, fit
from holdfast.jobs.diagnose.explain import describe_coming_end, in_place_text, progress_text
from holdfast.jobs.diagnose.failures import losses
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, find_hold_start_s, list_crashes, when
from holdfast.jobs.diagnose.queues import explain_kueue
from holdfast.ledger.events import parse
from holdfast.ledger.job_summary import job_summaries
from holdfast.vocabulary.capacity import (
    ANNOTATION_REQUEUES_FOR,
    LABEL_LEAST_NODES,
    LABEL_REQUEUES,
)
from holdfast.vocabulary.pools import GPU_TAINT, SPOT_TAINT, Taint, tolerates
from tests import platforms
from tests.cluster.sim.nodes import node
from workloads.library.tests import sample

START = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:05:00Z"
IGNORE = {
    "rules": [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget"}],
        }
    ]
}


def pod(
    phase: str,
    code: int = 0,
    disrupted: bool = False,
    created: str = START,
    **annotations: int,
) -> Object:
    if disrupted:
        conditions = [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByKubelet",
            }
        ]
    else:
        conditions = []
    containers = [
        {
            "name": "main",
            "state": {"terminated": {"exitCode": code}},
        }
    ]
    prefix = "batch.kubernetes.io/job-"
    counts = {}
    for key, value in annotations.items():
        counts[prefix + key.replace("_", "-")] = str(value)
    meta = {"creationTimestamp": created, "annotations": counts}
    return {
        "metadata": meta,
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": containers,
        },
    }


def plain_job(pods: list[Object], status: Object | None = None, **spec: object) -> JobSnapshot:
    meta = {
        "name": "j",
        "namespace": "n",
        "uid": "u",
    }
    body = {
        "kind": "Job",
        "metadata": meta,
        "spec": spec,
        "status": {"startTime": START} | (status or {}),
    }
    return JobSnapshot(body=body, pods=pods)


def make_creation(count: int) -> Object:
    """Makes the Job controller's event, which Kubernetes counts up."""
    return {
        "metadata": {"creationTimestamp": START},
        "involvedObject": {"uid": "u"},
        "reason": "SuccessfulCreate",
        "count": count,
    }


def count_losses(
    job: JobSnapshot, events: list[Object] | None = None, notices: int = 0
) -> tuple[str, str]:
    result = losses(job, events or [], notices)
    return str(result.evicted), str(result.crashed)


def test_an_eviction_is_no_crash_whatever_the_exit_code() -> None:
    pods = [
        pod("Failed", 143, True),
        pod("Failed", 1, True),
        pod("Failed", 70),
        pod("Succeeded"),
    ]
    job = plain_job(pods, backoffLimitPerIndex=0)
    assert count_losses(job) == ("2", "1")
    assert list_crashes(job) == pods[2:3]


INDEXED = {"backoffLimitPerIndex": 0}
CHARGED = {"index_ignored_failure_count": 3, "index_failure_count": 1}
TAKEN = [
    pod("Failed", 143, True, completion_index=0, index_ignored_failure_count=0),
    pod("Failed", 143, True, completion_index=0, index_ignored_failure_count=1),
]
RUNNING = [pod("Running"), pod("Running")]
LATE = [pod("Running", created=LATER), pod("Running", created=LATER)]
LEFT = [pod("Failed", 143, True), pod("Failed", 1), pod("Running")]
PLAIN = {"podFailurePolicy": IGNORE, "parallelism": 2}


@pytest.mark.parametrize(
    ("job", "events", "notices", "expected"),
    [
        (
            plain_job(
                [pod("Running", completion_index=0, **CHARGED), pod("Running", completion_index=1)],
                **INDEXED,
            ),
            [],
            0,
            ("3", "1"),
        ),
        (plain_job(TAKEN, **INDEXED), [], 0, ("2", "0")),
        (
            plain_job(
                [*TAKEN, pod("Running", completion_index=0, index_ignored_failure_count=2)],
                **INDEXED,
            ),
            [],
            0,
            ("2", "0"),
        ),
        (plain_job(RUNNING, **PLAIN), [make_creation(2)], 0, ("0", "0")),
        (plain_job(LATE, **PLAIN), [make_creation(9)], 0, ("7+", "0")),
        (plain_job(LATE, **PLAIN), [], 4, ("4+", "0")),
        (plain_job(LATE, **PLAIN), [], 0, ("0+", "0")),
        (
            plain_job(
                LATE[:1], {"failed": 3, "succeeded": 1}, podFailurePolicy=IGNORE, parallelism=1
            ),
            [make_creation(6)],
            0,
            ("1+", "3"),
        ),
        (plain_job(LEFT, {"failed": 2}, parallelism=1), [], 0, ("1", "1")),
        (plain_job(LEFT, {"failed": 5}, parallelism=1), [], 0, ("1+", "1+")),
        (
            JobSnapshot(
                body={
                    "kind": "JobSet",
                    "status": {"restarts": 5, "restartsCountTowardsMax": 2},
                },
                pods=[],
            ),
            [],
            0,
            ("3", "2"),
        ),
    ],
    ids=[
        "an index whose pods are gone with the nodes",
        "not yet replaced",
        "replaced, and nothing counted twice",
        "the first pods still run",
        "vanished, by events",
        "vanished, by its own lines",
        "vanished, by nothing",
        "charged failures are exact",
        "no policy, all pods are left",
        "no policy, some are gone",
        "a JobSet's restarts",
    ],
)
def test_counts_include_past_losses_and_mark_lower_bounds(
    job: JobSnapshot,
    events: list[Object],
    notices: int,
    expected: tuple[str, str],
) -> None:
    assert count_losses(job, events, notices) == expected


def test_a_job_that_runs_shows_its_progress() -> None:
    assert progress_text(None, 0) == ""
    lines = sorted(sample.kill_and_restore("job"), key=lambda line: line["t"])
    summary = job_summaries(parse(sample.encoded(lines)).events)["job"]
    assert (
        progress_text(summary, sample.EPOCH + 86.4)
        == "useful 27.6 % of its time, step 60, saved 40 s ago"
    )
    assert progress_text(replace(summary, useful_ratio=None, last_commit_s=None), 0) == "step 60"


@pytest.mark.parametrize("condition", ["", "QuotaReserved False", "Evicted True", "Evicted False"])
def test_a_job_in_the_queue_waits_as_long_as_the_exporter_counts(condition: str) -> None:
    kind, _, status = condition.partition(" ")
    if kind:
        conditions = [
            {
                "type": kind,
                "status": status,
                "lastTransitionTime": LATER,
            }
        ]
    else:
        conditions = []
    meta = {
        "name": "w",
        "namespace": "n",
        "uid": "w",
        "creationTimestamp": START,
    }
    workload = {
        "metadata": meta,
        "spec": {"queueName": "team"},
        "status": {"conditions": conditions},
    }
    job = JobSnapshot(
        body={
            "kind": "Job",
            "metadata": meta,
            "spec": {},
        },
        pods=[],
        workload=workload,
    )
    assert find_hold_start_s(job) == parse_workload(workload).since_s
    taken_s = when("2026-01-01T02:00:00Z")
    queued = explain_kueue(job, ClusterSnapshot(taken_s=taken_s, workloads=[workload]))
    assert queued is not None
    assert (
        queued.position
        == f"1 of 1 waiting in queue team, for {taken_s - parse_workload(workload).since_s:.0f} s"
    )

    workload["status"] = {"conditions": [{"type": "Admitted", "status": "True"}]}
    assert find_hold_start_s(job) is None
    assert explain_kueue(job, ClusterSnapshot()) is None


def make_sharded(*phases: str) -> JobSnapshot:
    """Makes a gang with eight GPUs a node; an empty phase means that the place has no pod."""
    launcher = {
        "command": ["train", "ranks", "--sharded"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    spec = {
        "parallelism": len(phases),
        "template": {"spec": {"containers": [launcher]}},
    }
    meta = {
        "name": "w",
        "namespace": "n",
        "uid": "w",
        "creationTimestamp": START,
    }
    pods = []
    for place, phase in enumerate(phases):
        if phase:
            pods.append(pod(phase, completion_index=place))
    return JobSnapshot(
        body={
            "kind": "Job",
            "metadata": meta,
            "spec": spec,
        },
        pods=pods,
    )


def test_sharded_gang_names_the_missing_node_the_time_and_the_cost() -> None:
    job = make_sharded("Running", "Running", "Running", "Pending")
    now = when("2026-01-01T12:30:00Z")
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastTransitionTime": "2026-01-01T12:04:09Z",
    }
    lost_pod = job.pods[3] | {
        "status": {
            "phase": "Failed",
            "conditions": [condition],
        }
    }
    job.pods[3]["metadata"] = job.pods[3]["metadata"] | {
        "creationTimestamp": "2026-01-01T12:04:19Z"
    }
    job.pods.append(lost_pod)
    waits = "3 nodes wait in place for node 3 since 12:04 UTC, which costs 24 GPU-hours an hour"
    assert in_place_text(job, now) == waits
    assert in_place_text(job, now, 3.0) == f"{waits} ($9.00, $0.15 a minute)"
    assert "since 2026-01-01 12:04 UTC" in in_place_text(job, now + 86_400)


@pytest.mark.parametrize(
    ("phases", "command", "text"),
    [
        (("Running", "Running"), "--sharded", ""),
        (("Pending", "Pending"), "--sharded", ""),
        (("Running", "Succeeded"), "--sharded", ""),
        (("Running", "Pending"), "train.py", ""),
        (
            ("Running", ""),
            "--sharded",
            "1 node waits in place for node 1, which costs 8 GPU-hours an hour",
        ),
    ],
)
def test_only_a_sharded_gang_that_lacks_a_node_waits_in_place(
    phases: tuple[str, ...], command: str, text: str
) -> None:
    job = make_sharded(*phases)
    job.pod_spec["containers"][0]["command"] = [command]
    assert in_place_text(job, 0) == text


def test_gang_with_a_range_waits_only_below_its_minimum() -> None:
    job = make_sharded("Running", "Running", "Pending", "Pending")
    job.pod_spec["containers"][0]["command"] += ["--min-nodes", "2", "--", "python", "train.py"]
    assert in_place_text(job, 0) == ""
    job.pods[1]["status"]["phase"] = "Pending"
    assert in_place_text(job, 0).startswith("1 node waits in place for nodes 1, 2, 3")


def test_replicated_gang_waits_in_place_below_its_minimum() -> None:
    job = make_sharded("Running", "", "Pending")
    job.pod_spec["containers"][0]["command"] = ["train.py"]
    assert in_place_text(job, 0) == ""
    job.body["metadata"]["labels"] = {LABEL_LEAST_NODES: "2"}
    assert in_place_text(job, 0).startswith("1 node waits in place for nodes 1, 2")


def test_gang_that_yielded_a_node_does_not_wait_for_it() -> None:
    job = make_sharded("Running", "", "Running")
    job.body["metadata"]["labels"] = {LABEL_LEAST_NODES: "2"}
    job.body["spec"] |= {"parallelism": 2, "completions": 3}
    assert in_place_text(job, 0) == ""


def test_a_toleration_is_judged_as_the_scheduler_judges_it() -> None:
    exists = {"operator": "Exists"}
    named = {"key": "a", "value": "b"}
    right = (
        named | {"operator": "Equal", "effect": "NoSchedule"},
        named,
        exists,
        {"key": "a"} | exists,
    )
    wrong = (
        {"key": "a", "value": "c"},
        {"key": "a", "effect": "NoExecute"} | exists,
        {"key": "important"} | exists,
    )
    taint = Taint(key="a", value="b")
    for toleration in right:
        assert tolerates(toleration, taint)
    for toleration in wrong:
        assert not tolerates(toleration, taint)


def test_only_a_pool_taint_on_every_node_is_blamed() -> None:
    pool = next(p for p in platforms.load("example").pools if p.taints[:1] == (SPOT_TAINT,))
    tainted = node(pool, "n")
    bare = node(pool, "bare")
    bare["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    for position, taint in enumerate((SPOT_TAINT, GPU_TAINT)):
        tolerations = [*pool.tolerations()]
        del tolerations[position]
        pod_spec = {
            "nodeSelector": pool.selector(),
            "tolerations": tolerations,
            "containers": [],
        }
        assert fit(pod_spec, [tainted], []).blocking_taint == (str(taint), 1)
        nodes_fit = fit(pod_spec, [tainted, bare], [])
        assert nodes_fit.blocking_taint is None
        assert nodes_fit.selected == 2
        assert nodes_fit.total == 1


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_explain_warns_a_day_before_a_job_is_stopped(kind: str) -> None:
    """A job that Kubernetes stops after 400 h says so in its last day, and not before."""
    spec: Object = {"activeDeadlineSeconds": 400 * 3600}
    status: Object = {}
    pods: list[Object] = []
    if kind == "Job":
        status = {"startTime": START}
    else:
        spec = {"replicatedJobs": [{"template": {"spec": spec}}]}
        pods = [
            {
                "metadata": {"name": "p"},
                "status": {"startTime": START, "phase": "Running"},
            }
        ]
    body = {
        "kind": kind,
        "metadata": {"name": "j"},
        "spec": spec,
        "status": status,
    }
    job = JobSnapshot(body=body, pods=pods)
    start_s = when(START)
    assert describe_coming_end(job, start_s + 375 * 3600) == ""
    assert "stopped in 5.0 h by its max_hours, 400 h after" in describe_coming_end(
        job, start_s + 395 * 3600
    )
    suspended = replace(job, body=body | {"spec": spec | {"suspend": True}})
    assert describe_coming_end(suspended, start_s + 395 * 3600) == ""


@pytest.mark.parametrize(
    ("requeues", "within_h", "text"),
    [
        ("2", 1000, "its nodes end in 8.0 h, 168 h after its start: it saves, queues again"),
        ("2", 167, "stopped in 8.0 h as its nodes end"),
        ("0", 1000, "stopped in 8.0 h as its nodes end"),
    ],
)
def test_queued_gang_says_whether_it_queues_again(requeues: str, within_h: int, text: str) -> None:
    """The Job of such a gang ends with its nodes, and the mover makes the next one."""
    child = {"spec": {"activeDeadlineSeconds": 168 * 3600}}
    body = {
        "kind": "JobSet",
        "metadata": {
            "name": "j",
            "creationTimestamp": START,
            "labels": {LABEL_REQUEUES: requeues},
            "annotations": {ANNOTATION_REQUEUES_FOR: str(within_h * 3600)},
        },
        "spec": {"replicatedJobs": [{"template": child}]},
    }
    pod = {
        "metadata": {"name": "p"},
        "status": {
            "startTime": START,
            "phase": "Running",
        },
    }
    job = JobSnapshot(body=body, pods=[pod])
    assert text in describe_coming_end(job, when(START) + 160 * 3600)
