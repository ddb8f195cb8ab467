"""What event lines add to a list of jobs."""

import json
from pathlib import Path

import pytest

from workloads.jobs.listing import read_progress
from workloads.jobs.view import View, crashed, crashes, evicted, exit_code, when


def write(path: Path, *events: dict[str, object]) -> None:
    path.write_text("".join(json.dumps({"v": 1, "job": "j", "kind": "training"} | e) + "\n" for e in events))


def test_steps_done_twice_count_once_as_useful(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        {"t": 100.0, "event": "start", "rank": 0},
        {"t": 110.0, "event": "window", "first_step": 1, "last_step": 10, "seconds": 10.0},
        {"t": 112.0, "event": "commit", "step": 10},
        {"t": 122.0, "event": "window", "first_step": 11, "last_step": 20, "seconds": 10.0},
    )
    write(
        tmp_path / "b.jsonl",
        {"t": 130.0, "event": "restore", "step": 10},
        {"t": 140.0, "event": "window", "first_step": 11, "last_step": 20, "seconds": 10.0},
    )
    found = read_progress(tmp_path, now=150.0)["j"]
    assert found.step == 20
    assert found.saved_age_s == pytest.approx(38.0)
    assert found.useful_ratio == pytest.approx(20 / 40)


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl").write_text('not json\n[1]\n{"t": 1.0}\n{"t": 1.0, "event": "start", "job": "j"')
    assert read_progress(tmp_path, now=2.0) == {}


def pod(phase: str, code: int = 0, disrupted: bool = False) -> dict[str, object]:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}] if disrupted else []
    containers = [{"state": {"terminated": {"exitCode": code}}}]
    return {"status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}}


def test_an_eviction_is_no_crash_whatever_the_exit_code() -> None:
    pods = [pod("Failed", 143, True), pod("Failed", 1, True), pod("Failed", 70), pod("Succeeded")]
    view = View(body={"kind": "Job", "metadata": {"name": "j"}}, pods=pods)
    assert evicted(view) == 2
    assert [exit_code(p) for p in crashed(view)] == [70]


def indexed(found: dict[str, object], index: int, ignored: int = 0, charged: int = 0) -> dict[str, object]:
    annotations = {
        "batch.kubernetes.io/job-completion-index": str(index),
        "batch.kubernetes.io/job-index-ignored-failure-count": str(ignored),
        "batch.kubernetes.io/job-index-failure-count": str(charged),
    }
    return found | {"metadata": {"annotations": annotations}}


def test_losses_stay_counted_when_their_pods_are_gone_with_the_nodes() -> None:
    gone = [indexed(pod("Running"), 0, ignored=3, charged=1), indexed(pod("Running"), 1)]
    view = View(body={"kind": "Job", "metadata": {"name": "j"}}, pods=gone)
    assert (evicted(view), crashes(view)) == (3, 1)
    there = [indexed(pod("Failed", 143, True), 0), indexed(pod("Failed", 143, True), 0, ignored=1)]
    assert evicted(View(body=view.body, pods=there)) == 2, "not yet replaced, and nothing counted twice"
    assert evicted(View(body=view.body, pods=[*there, indexed(pod("Running"), 0, ignored=2)])) == 2


def test_a_jobset_counts_only_restarts_that_the_platform_caused() -> None:
    status = {"restarts": 5, "restartsCountTowardsMax": 2}
    assert evicted(View(body={"kind": "JobSet", "status": status}, pods=[])) == 3


def test_kubernetes_time_is_read_as_utc() -> None:
    assert when("1970-01-01T00:01:00Z") == 60.0
