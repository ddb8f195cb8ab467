"""What `explain` says of pods that a real kubelet could not run: recorded by `python -m
workloads.library.tests.node.record`.
"""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.diagnosis import find_cause
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, get_run_s, when
from holdfast.jobs.diagnose.reasons import Cause, brief
from holdfast.support.values import rfc3339

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "recorded" / "kubelet.json").read_text()
)


def load_record(case: str) -> Object:
    """Returns a copy of the recorded job, pods and events, free to be changed."""
    return deepcopy(RECORDED[case])


def explain_history(history: Object) -> Cause:
    job = JobSnapshot(body=history["job"] | {"kind": "Job"}, pods=history["pods"])
    return find_cause(job, ClusterSnapshot(events=history["events"]))


@pytest.mark.parametrize(
    ("case", "reason", "blocker", "evidence"),
    [
        (
            "image",
            "image",
            (
                "1 of 1 pods: (ErrImagePull|ImagePullBackOff): 127.0.0.1:1/team/trainer:v7 on"
                " spot-a: .*"
            ),
            "kubectl describe pod -n train image-",
        ),
        (
            "configmap",
            "config",
            '1 of 1 pods: CreateContainerConfigError of main: configmap "settings" not found',
            "kubectl get configmap -n train settings",
        ),
        (
            "secret-volume",
            "config",
            '1 of 1 pods: MountVolume.* secret "token" not found',
            "kubectl get secret -n train token",
        ),
        (
            "driver",
            "volume",
            "1 of 1 pods: FailedMount: .*driver name gcsfuse.csi.storage.gke.io not found.*",
            "kubectl describe pod -n train driver-",
        ),
        (
            "init",
            "init",
            "init container fetch: exit code 3 in 1 pods: denied",
            "kubectl logs -n train init-0-.* -c fetch",
        ),
        (
            "init-loop",
            "init",
            "init container fetch: exit code 3 in 1 pods: denied",
            "kubectl logs -n train init-loop-0-.* -c fetch",
        ),
        (
            "crash",
            "crash",
            "exit code 70 in 1 pods: no data in /data",
            "kubectl logs -n train crash-0-.* -c main",
        ),
        (
            "crash-loop",
            "crash",
            "exit code 70 in 1 pods: no data in /data",
            "kubectl logs -n train crash-loop-0-",
        ),
        (
            "command",
            "crash",
            'exit code 128 in 1 pods: .*"/bin/pyhton": stat /bin/pyhton: no such file.*',
            "kubectl logs",
        ),
        (
            "memory",
            "memory",
            "main was killed at its memory limit of 32Mi in 1 pods",
            "kubectl describe pod -n train memory-",
        ),
        (
            "disk",
            "node",
            'Evicted in 1 pods: Usage of EmptyDir volume "data" exceeds the limit "1Mi"',
            "kubectl describe pod -n train disk-",
        ),
        (
            "device",
            "node",
            "OutOfcpu in 1 pods: .*Node didn't have enough resource: cpu.*",
            "kubectl describe pod -n train device-",
        ),
    ],
    ids=lambda value: value if value in RECORDED else "",
)
def test_what_a_kubelet_wrote_is_named_with_its_number(
    case: str, reason: str, blocker: str, evidence: str
) -> None:
    cause = explain_history(load_record(case))
    assert cause.reason == reason
    assert_matches(blocker, cause.blocker)
    assert_matches(f"{evidence}.*", cause.evidence)


def assert_matches(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text), text


DENIED = (
    'MountVolume.SetUp failed for volume "data" : rpc error: code = PermissionDenied desc ='
    " gcsfuse: storage.objects.list"
)
PULLED_BY = {"state": {"waiting": {"reason": "ContainerCreating"}}}
EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
}
CHANGED: dict[str, tuple[str, Callable[[Object, Object], object], str, str]] = {
    "a bucket that may not be read": (
        "driver",
        lambda history, _: history["events"][-1].update(reason="FailedMount", message=DENIED),
        "volume",
        ".*code = PermissionDenied.* service account's right to read it",
    ),
    "the sidecar of a bucket is no crash of the program": (
        "crash",
        lambda _, status: status.update(
            initContainerStatuses=[status["containerStatuses"][0] | {"name": "gke-gcsfuse-sidecar"}]
        ),
        "volume",
        "gke-gcsfuse-sidecar: .*",
    ),
    "a pod that still pulls its image is starting": (
        "image",
        lambda history, status: (
            status["containerStatuses"][0].update(PULLED_BY),
            history.update(
                events=[event for event in history["events"] if event["reason"] == "Pulling"]
            ),
        ),
        "starting",
        '.*Pulling: Pulling image "127.0.0.1:1/team/trainer:v7".*',
    ),
    "a mount that failed before is forgotten, and the advice can be typed": (
        "driver",
        lambda _, status: status.update(phase="Running"),
        "none",
        ".*`holdfast explain driver --follow .*`holdfast report --events FOLDER`",
    ),
    "a scheduler that does not exist": (
        "image",
        lambda history, status: (
            history["pods"][0].update(spec={"schedulerName": "volcano", "containers": []}),
            status.pop("containerStatuses"),
            history["events"].clear(),
        ),
        "starting",
        ".*volcano has not looked at them yet.*",
    ),
    "the most frequent end speaks for all pods": (
        "crash",
        lambda history, _: history.update(pods=history["pods"] * 3 + load_record("memory")["pods"]),
        "crash",
        "exit code 70 in 3 pods.*",
    ),
    "an eviction by the platform is no crash": (
        "crash",
        lambda _, status: status["conditions"].append(EVICTED),
        "back-off",
        ".*1 were evicted: Termination.*",
    ),
    "indexes that are done are not waited for": (
        "crash",
        lambda history, _: (
            history["job"]["spec"].update(parallelism=4, completions=4),
            history["job"].update(status={"succeeded": 4}),
            history["pods"].clear(),
        ),
        "none",
        ".*",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_kubelet_record_has_another_cause(name: str) -> None:
    case, change, reason, text = CHANGED[name]
    history = load_record(case)
    change(history, history["pods"][0]["status"])
    cause = explain_history(history)
    assert cause.reason == reason
    assert_matches(text, f"{cause.blocker} {cause.action}")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ("2 node(s) didn't match Pod's node affinity/selector", "selector"),
        (
            (
                "1 node(s) had untolerated taint {control-plane: }, 1 node(s) didn't match Pod's"
                " node affinity/selector"
            ),
            "selector",
        ),
        ("1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector", "capacity"),
        ("2 node(s) had untolerated taint {control-plane: }", "capacity"),
    ],
)
def test_labels_that_fit_no_node_are_named_among_tainted_nodes(verdict: str, reason: str) -> None:
    history = load_record("image")
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
    }
    scheduled["message"] = (
        f"0/2 nodes are available: {verdict}. preemption: 0/2 nodes are available."
    )
    history["pods"][0] |= {
        "spec": {"containers": []},
        "status": {
            "phase": "Pending",
            "conditions": [scheduled],
        },
    }
    job = JobSnapshot(body=history["job"] | {"kind": "Job"}, pods=history["pods"])
    node = {
        "metadata": {"name": "a"},
        "spec": {},
        "status": {"allocatable": {}},
    }
    assert find_cause(job, ClusterSnapshot(nodes=[node])).reason == reason


def test_a_refusal_before_the_newest_pod_is_history() -> None:
    history = load_record("crash")
    job = history["job"]["metadata"]
    refusal = {
        "metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"},
        "involvedObject": {
            "kind": "Job",
            "name": job["name"],
            "uid": job["uid"],
        },
        "reason": "FailedCreate",
        "message": 'Error creating: admission webhook "w.example.com" denied the request: no',
    }
    history["events"].append(refusal)
    assert explain_history(history).reason == "crash"
    refusal["lastTimestamp"] = "2099-01-01T00:00:00Z"
    cause = explain_history(history)
    assert cause.reason == "refused"
    assert cause.blocker == "1 of 1 pods are refused: webhook w.example.com: no"


def test_a_jobset_without_pods_still_shows_its_own_failures() -> None:
    group = {
        "name": "w",
        "replicas": 1,
        "template": {"spec": {"template": {"spec": {"containers": []}}}},
    }
    body = {
        "kind": "JobSet",
        "metadata": {
            "name": "gang",
            "namespace": "train",
            "uid": "u",
        },
        "spec": {
            "replicatedJobs": [group],
            "failurePolicy": {"maxRestarts": 3},
        },
        "status": {"restarts": 5, "restartsCountTowardsMax": 2},
    }
    cause = find_cause(JobSnapshot(body=body, pods=[]), ClusterSnapshot())
    assert cause.reason == "crash"
    assert cause.blocker.split(" by ")[0] == "2 of 3 granted restarts are used up"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Job", "DeadlineExceeded"),
        ("JobSet", "FailJobSetFailurePolicyAction"),
    ],
)
def test_job_that_ran_for_max_hours_says_so(kind: str, reason: str) -> None:
    spec: Object = {"activeDeadlineSeconds": 40 * 3600}
    if kind == "JobSet":
        overdue = {
            "action": "FailJobSet",
            "onJobFailureReasons": ["DeadlineExceeded"],
        }
        spec = {
            "replicatedJobs": [{"template": {"spec": spec}}],
            "failurePolicy": {"rules": [overdue]},
        }
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": reason,
    }
    body = {
        "kind": kind,
        "metadata": {
            "name": "late",
            "namespace": "training",
        },
        "spec": spec,
        "status": {"conditions": [failed]},
    }
    cause = find_cause(JobSnapshot(body=body, pods=[]), ClusterSnapshot())
    assert cause.reason == "failed"
    assert cause.blocker == "it ran for its max_hours, 40 h since its last start"
    assert "raise max_hours" in cause.action


def test_a_pod_that_its_node_rejected_has_not_run() -> None:
    pod = load_record("device")["pods"][0]
    rejected_s = when(pod["status"]["startTime"])
    assert pod["status"]["phase"] == "Failed"
    assert get_run_s(pod, rejected_s + 86_400) == 0.0


def test_a_lost_nodes_pod_ran_until_it_was_failed() -> None:
    """No kubelet has written that its containers ended."""
    pod = load_record("crash")["pods"][0]
    start_s = when(pod["status"]["startTime"])
    pod["status"]["containerStatuses"][0]["state"] = {"running": {}}
    pod["status"]["phase"] = "Running"
    assert get_run_s(pod, start_s + 86_400) == 86_400
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByPodGC",
        "lastTransitionTime": rfc3339(start_s + 60),
    }
    pod["status"] |= {"phase": "Failed", "conditions": [condition]}
    assert get_run_s(pod, start_s + 86_400) == 60


def test_a_long_message_becomes_one_line_without_asides() -> None:
    assert brief("0/2 nodes:\n 2 busy. preemption: 0/2 nodes are") == "0/2 nodes: 2 busy"
    assert len(brief("x" * 900)) == 240
