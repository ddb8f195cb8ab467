"""Tests when the nodes of a gang are given back, and when the gang is queued again."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.mover.idle_gangs import (
    MOST_PAUSE_S,
    PAUSE_S,
    RECOVERED_S,
    START_S,
    STORE_S,
    IdleGangs,
)
from holdfast.mover.spending import Spending, parse_limited_job
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import (
    ANNOTATION_GIVEN_BACK,
    ANNOTATION_MAX_USD,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_SPENT_USD,
    ANNOTATION_WAIT,
    LABEL_LEAST_NODES,
)
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.kubernetes import LABEL_QUEUE

JOBS = "/apis/batch/v1/namespaces/training/jobs"
NOW = 1_790_000_000.0
WAIT_S = 300.0


@dataclass
class Gang:
    """Fakes the API server with one gang of 2 to 3 nodes."""

    pods: list[Any] = field(default_factory=list)
    ready: int = 0
    active: bool = True
    admitted_s: float = NOW - 60
    annotations: dict[str, str | None] = field(default_factory=dict)
    suspended: bool = False
    refuses: bool = False
    wait: str = f"{WAIT_S:.0f}"
    events: list[str] = field(default_factory=list)

    def items(self, path: str, **query: str) -> list[Any]:
        if path.endswith("/jobs"):
            meta = {
                "name": "gang",
                "namespace": "training",
                "uid": "u",
                "labels": {LABEL_LEAST_NODES: "2"},
                "annotations": {ANNOTATION_WAIT: self.wait},
            }
            return [
                {
                    "metadata": meta,
                    "spec": {"suspend": self.suspended},
                    "status": {"ready": self.ready},
                }
            ]
        if path.endswith("/pods"):
            return self.pods
        return [self.workload]

    @property
    def workload(self) -> Any:
        admitted = {
            "type": "Admitted",
            "status": "False" if self.suspended else "True",
            "lastTransitionTime": rfc3339(self.admitted_s),
        }
        return {
            "metadata": {
                "name": "w",
                "namespace": "training",
                "creationTimestamp": rfc3339(NOW - 90_000),
                "annotations": self.annotations,
                "ownerReferences": [{"uid": "u", "controller": True}],
            },
            "spec": {"active": self.active},
            "status": {"conditions": [admitted]},
        }

    def merge(self, path: str, change: Any) -> None:
        if self.refuses:
            raise ApiError(409, "changed")
        if path.endswith("/workloads/w"):
            self.annotations.update(change["metadata"]["annotations"])
            self.active = change["spec"]["active"]

    def create(self, path: str, body: Any) -> None:
        self.events.append(body["reason"])

    def run(self, count: int) -> None:
        """Runs this many pods of the gang."""
        self.ready = count
        self.pods = [pod(f"n{index}") for index in range(count)]


def pod(node: str = "n", *, phase: str = "Running", code: int = 0, ended_s: float = 0.0) -> Any:
    statuses: list[Any] = []
    if ended_s:
        terminated = {
            "exitCode": code,
            "finishedAt": rfc3339(ended_s),
        }
        statuses = [{"state": {"terminated": terminated}}]
    return {
        "metadata": {"name": node},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def mover(gang: Gang) -> IdleGangs:
    api: Any = gang
    return IdleGangs(api)


def step(gangs: IdleGangs, now_s: float) -> int:
    return gangs.step(now_s, ("training",))


def idle(gang: Gang) -> IdleGangs:
    """Returns a mover that has seen the gang fall below its least at NOW."""
    gangs = mover(gang)
    gang.run(2)
    assert step(gangs, NOW - 10) == 0
    gang.run(1)
    assert step(gangs, NOW) == 0
    return gangs


def test_gang_below_its_least_is_stopped_when_it_has_given_up() -> None:
    gang = Gang()
    gangs = idle(gang)
    assert step(gangs, NOW + WAIT_S) == 0, "it may be writing what it holds to the bucket"
    failed_pod = pod(phase="Failed", code=EXIT_RETRY, ended_s=NOW + WAIT_S + 2)
    gang.pods = [failed_pod, pod()]
    assert step(gangs, NOW + WAIT_S + 10) == 1
    assert not gang.active
    assert gang.annotations == {
        ANNOTATION_GIVEN_BACK: "1",
        ANNOTATION_QUEUED_AGAIN: rfc3339(NOW + WAIT_S + 10 + PAUSE_S),
    }
    assert gang.events == ["NodesGivenBack"]


def test_gang_that_does_not_end_is_stopped_too() -> None:
    gang = Gang()
    gangs = idle(gang)
    assert step(gangs, NOW + WAIT_S + STORE_S - 1) == 0
    assert step(gangs, NOW + WAIT_S + STORE_S) == 1


@pytest.mark.parametrize(
    "pods",
    [
        [pod(phase="Failed", code=EXIT_PREEMPTED, ended_s=NOW + WAIT_S)],
        [pod("", phase="Pending"), pod("", phase="Pending")],
    ],
    ids=["evicted", "without-a-node"],
)
def test_pods_without_a_node_wait_for_ever(pods: list[Any]) -> None:
    """They cost nothing, and they are the request for nodes."""
    gang = Gang()
    gangs = idle(gang)
    gang.ready = 0
    gang.pods = pods
    for pass_s in range(0, 7_200, 600):
        assert step(gangs, NOW + WAIT_S + pass_s) == 0


def test_gang_waits_on_after_an_early_exit() -> None:
    gang = Gang()
    gangs = idle(gang)
    gang.pods.append(pod(phase="Failed", code=EXIT_RETRY, ended_s=NOW + 5))
    assert step(gangs, NOW + 60) == 0
    gang.run(2)
    assert step(gangs, NOW + WAIT_S + STORE_S) == 0, "its replacement has come"
    gang.run(1)
    assert step(gangs, NOW + WAIT_S + STORE_S + 10) == 0, "the next wait begins"


def test_start_has_time_until_all_nodes_come() -> None:
    gang = Gang()
    gangs = mover(gang)
    gang.run(1)
    assert step(gangs, NOW) == 0
    gang.pods.append(pod(phase="Failed", code=EXIT_RETRY, ended_s=NOW + WAIT_S))
    assert step(gangs, NOW + START_S - 1) == 0
    assert step(gangs, NOW + START_S) == 1


def test_node_that_starts_its_pod_counts() -> None:
    gang = Gang()
    gangs = idle(gang)
    gang.pods.append(pod("n1", phase="Pending"))
    assert step(gangs, NOW + WAIT_S + STORE_S) == 0


def test_gang_queues_again_after_its_pause_and_the_pause_doubles() -> None:
    gang = Gang()
    pauses_s: list[float] = []
    now_s = NOW
    for _ in range(4):
        gangs = mover(gang)
        gang.run(2)
        step(gangs, now_s)
        gang.run(1)
        step(gangs, now_s)
        now_s += WAIT_S + STORE_S
        assert step(gangs, now_s) == 1
        assert step(gangs, now_s + 10) == 0, "Kueue has not stopped it yet"
        gang.run(0)
        gang.suspended = True
        pause_s = 0.0
        while not gang.active:
            pause_s += 60
            step(gangs, now_s + pause_s)
        pauses_s.append(pause_s)
        now_s += pause_s
        gang.suspended = False
        gang.admitted_s = now_s
    assert pauses_s == [PAUSE_S, 2 * PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S]
    assert not gang.annotations.get(ANNOTATION_QUEUED_AGAIN)


def test_pause_is_bounded_after_a_thousand_returns() -> None:
    gang = Gang(annotations={ANNOTATION_GIVEN_BACK: "2000"})
    gangs = idle(gang)
    now_s = NOW + WAIT_S + STORE_S
    assert step(gangs, now_s) == 1
    assert gang.annotations == {
        ANNOTATION_GIVEN_BACK: "2001",
        ANNOTATION_QUEUED_AGAIN: rfc3339(now_s + MOST_PAUSE_S),
    }


@pytest.mark.parametrize("digits", [400, 5_000])
def test_a_very_long_wait_spoils_no_pass(digits: int) -> None:
    gang = Gang(wait="9" * digits)
    gangs = idle(gang)
    assert step(gangs, NOW + STORE_S) == 1


def test_pause_is_short_again_after_hours() -> None:
    gang = Gang(annotations={ANNOTATION_GIVEN_BACK: "3"}, admitted_s=NOW - RECOVERED_S)
    gangs = idle(gang)
    assert step(gangs, NOW + WAIT_S + STORE_S) == 1
    assert gang.annotations[ANNOTATION_GIVEN_BACK] == "1"


def test_gang_that_a_person_stopped_stays_stopped() -> None:
    gang = Gang(active=False, suspended=True)
    assert step(mover(gang), NOW) == 0
    assert not gang.active


def test_gang_that_max_usd_stopped_in_its_pause_stays_stopped() -> None:
    gang = Gang()
    gangs = idle(gang)
    now_s = NOW + WAIT_S + STORE_S
    assert step(gangs, now_s) == 1
    (job,) = gang.items(JOBS)
    job["metadata"]["labels"][LABEL_QUEUE] = "spot"
    job["metadata"]["annotations"] |= {ANNOTATION_MAX_USD: "1", ANNOTATION_SPENT_USD: f"2 {now_s}"}
    limited = parse_limited_job(JOBS, job)
    assert limited
    spending = Spending()
    spending.count({"u": limited}, [], {}, now_s)
    api: Any = gang
    assert spending.act(api, now_s) == 1
    gang.suspended = True
    assert step(gangs, now_s + MOST_PAUSE_S) == 0
    assert not gang.active


def test_refused_change_is_tried_again() -> None:
    gang = Gang(refuses=True)
    gangs = idle(gang)
    assert step(gangs, NOW + WAIT_S + STORE_S) == 0
    gang.refuses = False
    assert step(gangs, NOW + WAIT_S + STORE_S + 10) == 1


def test_gang_that_is_gone_is_forgotten() -> None:
    gang = Gang()
    gangs = idle(gang)
    gang.items = lambda path, **query: []  # type: ignore[method-assign]
    step(gangs, NOW + 10)
    assert not gangs.below_since_s
