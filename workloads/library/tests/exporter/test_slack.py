"""The slack that is shown is the one that the mover judges by, of the jobs that it may move and of no other."""

import threading
from typing import Any

import pytest

from holdfast.contract.capacity import ANNOTATION_PLAN, LABEL_MOVES
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from holdfast.exporter.sources import Folder
from holdfast.exporter.watch import PLANNED
from holdfast.mover.mover import Mover
from workloads.library.tests.mover.played import CREATED_S, NAME, Played
from workloads.library.tests.mover.test_mover import GIVEN, LATE_S

_, JOBSETS = PLANNED


def planned(**meta: Any) -> dict[str, Any]:
    """The job of the mover's tests, as the API server sends it."""
    ([found], _) = Played(GIVEN).read()
    return {**found, "metadata": found["metadata"] | {"labels": {LABEL_MOVES: "true"}} | meta}


def shown(cluster: Cluster, jobs: Jobs | None, now_s: float) -> list[float]:
    exporter = Exporter(cluster, threading.Lock(), jobs, lambda: now_s)
    found = [s for s in exporter.gather() if s.metric == "placement_slack_seconds"]
    assert all(s.labels == (("job", NAME), ("namespace", "training")) for s in found)
    return [s.value for s in found]


def test_slack_is_what_the_mover_judges_by(tmp_path: Any) -> None:
    cluster, played = Cluster(), Played(GIVEN)
    JOBSETS.apply(cluster)("ADDED", planned())
    (move,) = Mover(played).step(played.seen(), LATE_S)
    assert shown(cluster, Jobs(Folder(tmp_path)), LATE_S) == [pytest.approx(move.slack_h * 3_600)]
    assert shown(cluster, None, LATE_S) == [], "without event lines nobody knows how far it is"


@pytest.mark.parametrize(
    "found",
    [
        planned(labels={}),
        planned(annotations={ANNOTATION_PLAN: "{}"}),
        planned(deletionTimestamp="2026-09-21T15:00:00Z"),
        planned() | {"status": {"conditions": [{"type": "Completed", "status": "True", "lastTransitionTime": "2026-09-21T15:00:00Z"}]}},
    ],
    ids=["it stays", "no plan that can be read", "leaving", "over"],
)  # fmt: skip
def test_other_jobs_have_no_slack(found: dict[str, Any], tmp_path: Any) -> None:
    cluster = Cluster()
    JOBSETS.apply(cluster)("ADDED", planned())
    JOBSETS.apply(cluster)("MODIFIED", found)
    assert shown(cluster, Jobs(Folder(tmp_path)), CREATED_S) == []


def test_a_job_that_vanished_unseen_is_forgotten(tmp_path: Any) -> None:
    cluster = Cluster()
    JOBSETS.apply(cluster)("ADDED", planned())
    cluster.forget_all_but(JOBSETS.held, set())
    assert shown(cluster, Jobs(Folder(tmp_path)), CREATED_S) == []
