"""Tests that lines of a tenant about another's job move nothing, and displace no line of it."""

from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.controllers.event_source import Lines
from holdfast.mover import progress as progress_module
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.mover.progress import Progress
from workloads.library.tests.controllers.test_cluster import pod
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.sample import EPOCH, encoded, line

JOBS, BATCH_JOBS, JOBSETS, _ = list_job_kinds()


class Pods(FakeSource):
    def prints(self, name: str, *events: dict[str, Any], namespace: str = "training") -> None:
        self.add(
            *events,
            job="victim",
            namespace=namespace,
            pod=f"pod-{name}",
        )


def make_job(name: str, *, owner_uid: str = "", namespace: str = "training") -> Object:
    owner = {"ownerReferences": [{"uid": owner_uid, "controller": True}]} if owner_uid else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
        }
        | owner
    }


def window(last: int) -> Object:
    return line(
        EPOCH + last,
        "window",
        "victim",
        first_step=1,
        last_step=last,
        seconds=last,
    )


@pytest.fixture
def view() -> View:
    """Has a JobSet `victim` with its Job, a Job of another tenant, and one in another namespace."""
    view = View()
    JOBSETS.apply(view)("ADDED", make_job("victim"))
    JOBS.apply(view)("ADDED", make_job("victim-workers-0", owner_uid="uid-victim"))
    JOBS.apply(view)("ADDED", make_job("forger"))
    BATCH_JOBS.apply(view)("ADDED", make_job("same", namespace="batch"))
    pods = (
        ("v", "victim-workers-0", "training"),
        ("f", "forger", "training"),
        ("s", "same", "batch"),
    )
    for name, owner, namespace in pods:
        body = pod(
            name,
            on="n",
            phase="Running",
            owner_uid=f"uid-{owner}",
            namespace=namespace,
        )
        body["metadata"]["labels"] = {"holdfast.dev/job": "victim"}
        view.pod("ADDED", body)
    return view


def test_a_line_and_a_pod_count_for_the_job_that_controls_them(view: View) -> None:
    source = Pods()
    progress = Progress(source, view.find_owner)
    source.prints("v", window(10))
    source.prints("f", line(EPOCH + 90, "restore", "victim", step=0, seconds=1))
    source.prints("s", line(EPOCH + 91, "restore", "victim", step=0, seconds=1), namespace="batch")
    progress.read(EPOCH + 100)
    types_by_job = {}
    for uid, events in progress.events_by_job.items():
        types_by_job[uid] = [event.type for event in events]
    assert types_by_job == {
        "uid-victim": ["window"],
        "uid-forger": ["restore"],
        "uid-same": ["restore"],
    }
    observation = view.observe(progress.events)
    assert observation.pods.keys() == progress.events_by_job.keys()
    for pods in observation.pods.values():
        assert pods.total == 1


def test_lines_from_unknown_pods_wait_and_are_dropped_in_the_end(view: View) -> None:
    source = Pods()
    progress = Progress(source, view.find_owner)
    source.prints("late", window(10))
    source.prints("never", window(10))
    progress.read(EPOCH + 100)
    assert progress.events_by_job == {}
    view.pod("ADDED", pod("late", on="n", owner_uid="uid-forger"))
    progress.read(EPOCH + 115)
    assert list(progress.events_by_job) == ["uid-forger"]
    progress.read(EPOCH + 100 + progress_module.PATIENCE_S)
    view.pod("ADDED", pod("never", on="n", owner_uid="uid-same"))
    progress.read(EPOCH + 101 + progress_module.PATIENCE_S)
    assert list(progress.events_by_job) == ["uid-forger"]


def test_events_are_bounded_for_each_job_and_dropped_with_it(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "KEPT_LINES", 3)
    source = Pods()
    progress = Progress(source, view.find_owner)
    source.prints("v", window(1))
    source.prints("f", *(window(n) | {"index": n} for n in range(1, 50)))
    progress.read(EPOCH + 100)
    assert progress.events_by_job.keys() == {"uid-victim", "uid-forger"}
    assert len(progress.events_by_job["uid-victim"]) == 1
    assert len(progress.events_by_job["uid-forger"]) == 3
    JOBS.apply(view)("DELETED", make_job("forger"))
    progress.forget_all_but(view.uids)
    assert list(progress.events_by_job) == ["uid-victim"]


def test_all_jobs_together_keep_a_bounded_number(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "MOST_EVENTS", 10)
    source = Pods()
    progress = Progress(source, view.find_owner)
    source.prints("v", *(window(n) for n in range(1, 4)))
    source.prints("f", *(window(n) for n in range(1, 50)))
    progress.read(EPOCH + 100)
    steps = {}
    for uid, events in progress.events_by_job.items():
        steps[uid] = [event.fields["last_step"] for event in events]
    assert steps == {"uid-victim": [1, 2, 3], "uid-forger": list(range(43, 50))}


def test_dropped_lines_wait_for_no_pod(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter counts them; here they would only take the place of others."""
    monkeypatch.setattr(progress_module, "MOST_WAITING", 1)
    progress = Progress(
        FakeSource(
            [Lines([], dropped=700), Lines(encoded([window(10)]), "", "training", "pod-late")]
        ),
        view.find_owner,
    )
    progress.read(EPOCH + 100)
    view.pod("ADDED", pod("late", on="n", owner_uid="uid-victim"))
    progress.read(EPOCH + 115)
    assert list(progress.events_by_job) == ["uid-victim"]


def test_a_pod_accuses_its_own_node_only(view: View) -> None:
    source = Pods()
    progress = Progress(source, view.find_owner)
    view.pod("ADDED", pod("g", on="other", owner_uid="uid-forger", namespace="training"))
    wrong = line(EPOCH + 90, "miscomputed", "victim", step=3, rank=0) | {"node": "n"}
    source.prints("g", wrong)
    progress.read(EPOCH + 100)
    view.pod("DELETED", pod("g", on="other", owner_uid="uid-forger", namespace="training"))
    assert view.find_nodes(progress.take_wrong_pods()) == {"other"}
    progress.read(EPOCH + 115)
    assert view.find_nodes(progress.take_wrong_pods()) == set()
