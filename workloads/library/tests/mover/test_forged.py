"""What a tenant writes about another's job, or in its name, moves nothing and keeps nothing of the
other out.
"""

from typing import Any

import pytest

from holdfast.mover import progress as followed
from holdfast.mover.cluster_view import View, ending
from holdfast.mover.progress import Progress
from workloads.library.tests.controllers.test_cluster import pod
from workloads.library.tests.exporter.fake_source import Written
from workloads.library.tests.sample import EPOCH, line

JOBS, BATCH_JOBS, JOBSETS, _ = ending()


class Pods(Written):
    def prints(self, name: str, *events: dict[str, Any], namespace: str = "training") -> None:
        self.add(
            *events,
            job="victim",
            namespace=namespace,
            pod=f"pod-{name}",
        )


def owned(name: str, *, by: str = "", namespace: str = "training") -> dict[str, Any]:
    owner = {"ownerReferences": [{"uid": by, "controller": True}]} if by else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
        }
        | owner
    }


def window(last: int) -> dict[str, Any]:
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
    """A JobSet `victim` with its Job, a Job of another tenant, and one in another namespace that
    has the same name.
    """
    found = View()
    JOBSETS.apply(found)("ADDED", owned("victim"))
    JOBS.apply(found)("ADDED", owned("victim-workers-0", by="uid-victim"))
    JOBS.apply(found)("ADDED", owned("forger"))
    BATCH_JOBS.apply(found)("ADDED", owned("same", namespace="batch"))
    pods = (
        ("v", "victim-workers-0", "training"),
        ("f", "forger", "training"),
        ("s", "same", "batch"),
    )
    for name, owner, namespace in pods:
        made = pod(
            name,
            on="n",
            phase="Running",
            owner_uid=f"uid-{owner}",
            namespace=namespace,
        )
        made["metadata"]["labels"] = {"holdfast.dev/job": "victim"}
        found.pod("ADDED", made)
    return found


def test_a_line_and_a_pod_count_for_the_job_that_controls_them(view: View) -> None:
    written = Pods()
    progress = Progress(written, view.owner_of)
    written.prints("v", window(10))
    written.prints("f", line(EPOCH + 90, "restore", "victim", step=0, seconds=1))
    written.prints("s", line(EPOCH + 91, "restore", "victim", step=0, seconds=1), namespace="batch")
    progress.read(EPOCH + 100)
    assert {uid: [e.type for e in held] for uid, held in progress.events_by_job.items()} == {
        "uid-victim": ["window"],
        "uid-forger": ["restore"],
        "uid-same": ["restore"],
    }
    seen = view.seen(progress.events)
    assert {uid: pods.total for uid, pods in seen.pods.items()} == dict.fromkeys(
        progress.events_by_job, 1
    )


def test_lines_of_a_pod_that_is_seen_later_wait_and_those_of_none_are_dropped(view: View) -> None:
    written = Pods()
    progress = Progress(written, view.owner_of)
    written.prints("late", window(10))
    written.prints("never", window(10))
    progress.read(EPOCH + 100)
    assert progress.events_by_job == {}
    view.pod("ADDED", pod("late", on="n", owner_uid="uid-forger"))
    progress.read(EPOCH + 115)
    assert list(progress.events_by_job) == ["uid-forger"]
    progress.read(EPOCH + 100 + followed.PATIENCE_S)
    view.pod("ADDED", pod("never", on="n", owner_uid="uid-same"))
    progress.read(EPOCH + 101 + followed.PATIENCE_S)
    assert list(progress.events_by_job) == ["uid-forger"]


def test_what_is_held_is_bounded_for_each_job_and_goes_with_it(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "KEPT_LINES", 3)
    written = Pods()
    progress = Progress(written, view.owner_of)
    written.prints("v", window(1))
    written.prints("f", *(window(n) | {"index": n} for n in range(1, 50)))
    progress.read(EPOCH + 100)
    assert {uid: len(held) for uid, held in progress.events_by_job.items()} == {
        "uid-victim": 1,
        "uid-forger": 3,
    }
    JOBS.apply(view)("DELETED", owned("forger"))
    progress.forget_all_but(view.uids)
    assert list(progress.events_by_job) == ["uid-victim"]
