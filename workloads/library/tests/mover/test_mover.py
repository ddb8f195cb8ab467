"""Tests the mover's requests, a mover that stops in the middle, and unreadable plans."""

import json
from dataclasses import replace

import pytest

from holdfast.controllers import event_lines
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import job_ledger
from holdfast.mover import patches
from holdfast.mover.movable_jobs import Object, list_movable_jobs
from holdfast.mover.mover import Mover
from holdfast.place import plan
from holdfast.place.plan import Plan
from holdfast.support.errors import InputError
from workloads.library.tests.mover.fake_cluster import (
    CLEAN,
    CREATED_S,
    MARKED,
    NAME,
    SELECTOR,
    FakeCluster,
)

PLAN = Plan(
    policy="patient",
    work_h=20.0,
    deadline_h=24.0,
    restart_h=0.2,
    interval_h=0.3,
    checkpoint_h=0.01,
    spot_usd=1.0,
    on_demand_usd=3.0,
)
PODS = "/spec/replicatedJobs/0/template/spec/template"
LATE_S = CREATED_S + 3.5 * 3_600  # nothing done, and half an hour of slack left


def test_a_job_that_waits_too_long_moves_to_on_demand_and_is_announced() -> None:
    assert plan.parse_plan(PLAN.text()) == PLAN
    cluster = FakeCluster(PLAN)
    mover = Mover(cluster)
    assert mover.step(cluster.observe(), CREATED_S + 60) == [], "there is time"
    assert not cluster.requests
    (move,) = mover.step(cluster.observe(), LATE_S)
    job = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets/{NAME}"
    workload = "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads/w"
    assert cluster.requests == [f"patch {job}", f"delete {workload}"]
    assert cluster.announced == [
        "PlacementMoved: waiting to on-demand: 0.45 h of slack are left, too few to go on waiting"
        " for Spot"
    ]
    assert move.slack_h == pytest.approx(0.45)
    text = json.dumps(
        event_lines.make_move_line(
            "training", NAME, move.at_s, move.source.value, move.to.value, move.reason
        )
    )
    cluster.work(1.0, LATE_S + 3_600)
    reading = parse([text.encode()], job=NAME)
    assert not reading.problems
    assert job_ledger([*reading.events, *cluster.events]).moves == 1, "the receipt counts them"
    assert mover.step(cluster.observe(), LATE_S + 60) == [], "it is where it should be"


def test_a_flex_start_job_moves_in_time_unless_it_has_its_machine() -> None:
    job_plan = replace(
        PLAN,
        policy="queue",
        interval_h=0.0,
        checkpoint_h=0.0,
        spot_queue="flex",
    )
    cluster = FakeCluster(
        job_plan,
        queue="flex",
        workload_queue="flex",
        placed=True,
    )
    mover = Mover(cluster)
    assert mover.step(cluster.observe(), LATE_S) == [], (
        "its machine stays, so a move would only cost a start"
    )
    cluster.placed = False
    assert mover.step(cluster.observe(), CREATED_S + 60) == [], "there is time"
    (move,) = mover.step(cluster.observe(), LATE_S + 600)
    assert move.to.value == "on-demand"
    assert cluster.workload_queue == "on-demand"
    assert move.reason == "0.28 h of slack are left, too few to go on waiting for flex-start"
    cluster.placed = True
    cluster.spot_there = True
    cluster.work(19.0, LATE_S + 900)
    assert mover.step(cluster.observe(), LATE_S + 900) == [], (
        "Spot of the same GPU is not what it left"
    )


def test_the_next_mover_completes_a_half_made_move() -> None:
    cluster = FakeCluster(
        PLAN,
        queue="on-demand",
        workload_queue="spot",
        placed=True,
    )
    mover = Mover(cluster)
    assert mover.step(cluster.observe(), CREATED_S + 60) == []
    assert cluster.workload_queue == "on-demand"
    assert len(cluster.requests) == 1
    assert mover.step(cluster.observe(), CREATED_S + 120) == []
    assert len(cluster.requests) == 1


def test_a_stopped_job_is_not_moved_before_it_is_resumed() -> None:
    cluster = FakeCluster(PLAN, active=False)
    mover = Mover(cluster)
    assert mover.step(cluster.observe(), LATE_S) == []
    assert not cluster.requests, "without its Workload Kueue would start it"
    cluster.active = True
    (move,) = mover.step(cluster.observe(), LATE_S)
    assert move.to.value == "on-demand"


def test_a_suspended_jobset_gets_its_original_template_back() -> None:
    (job,), _ = list_movable_jobs(*FakeCluster(PLAN).read())
    ops = {}
    for op in patches.to_queue(job, "on-demand"):
        ops[op["path"]] = op["value"]
    assert ops["/spec/suspend"] is True
    assert ops["/metadata/resourceVersion"] == "0", "a concurrent change is not overwritten"
    assert ops[f"{PODS}/spec/nodeSelector"] == SELECTOR


def save_templates() -> str:
    """Returns the annotation that a move leaves."""
    (job,), _ = list_movable_jobs(*FakeCluster(PLAN).read())
    for op in patches.to_queue(job, "on-demand"):
        if op["path"].endswith("pod-templates"):
            return op["value"]
    raise LookupError("a move leaves no annotation")


@pytest.mark.parametrize(("job", "workload"), [(MARKED, MARKED), (MARKED, CLEAN), (CLEAN, MARKED)])
def test_a_jobset_with_its_old_flavor_marks_is_repaired(job: Object, workload: Object) -> None:
    cluster = FakeCluster(
        PLAN,
        queue="on-demand",
        admitted=False,
        saved_templates=save_templates(),
    )
    cluster.job_template = job
    cluster.workload_template = workload
    assert Mover(cluster).step(cluster.observe(), LATE_S) == []
    patch, delete = cluster.requests
    assert patch.startswith("patch ")
    assert delete.startswith("delete "), "Kueue ignores a selector alone"
    ops = {}
    for op in cluster.patches[0]:
        ops[op["path"]] = op["value"]
    assert ops[f"{PODS}/spec/nodeSelector"] == SELECTOR
    assert ops[f"{PODS}/metadata/labels"] == {}
    assert ops["/metadata/resourceVersion"] == "0", "a concurrent change is not overwritten"
    for path in ops:
        assert not ("queue-name" in path or "suspend" in path)


@pytest.mark.parametrize(
    "saved", ["", "{", "[]", "[1]", "{}", "[" * 5_000, '[{"nodeSelector":{}}]']
)
def test_a_jobset_without_annotation_or_marks_is_left_alone(saved: str) -> None:
    cluster = FakeCluster(PLAN, queue="on-demand", admitted=False, saved_templates=saved)
    if not saved.startswith("[{"):
        cluster.job_template = cluster.workload_template = MARKED
    assert Mover(cluster).step(cluster.observe(), LATE_S) == []
    assert not cluster.requests
    cluster.admitted = True
    cluster.job_template = MARKED
    cluster.workload_queue = "on-demand"
    assert Mover(cluster).step(cluster.observe(), LATE_S) == []
    assert not cluster.requests, "while it runs they belong there"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '{"policy":"patient"}',
        PLAN.text().replace("20.0", "NaN"),
        PLAN.text().replace("20.0", "1e999"),
        PLAN.text().replace("20.0", '"20"'),
        PLAN.text().replace("patient", "wait"),
        PLAN.text().replace("24.0", "19.0"),
        PLAN.text()[:-1] + ',"more":1}',
        PLAN.text().replace('"spot"', "7"),
        "[" * 5_000,
        "9" * 1_900,
        " " * 3_000,
    ],
)
def test_an_invalid_plan_moves_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError):
        plan.parse_plan(text)
    cluster = FakeCluster(PLAN, annotation=text or " ")
    mover = Mover(cluster)
    with caplog.at_level("WARNING"):
        assert (
            mover.step(cluster.observe(), LATE_S) == mover.step(cluster.observe(), LATE_S + 9) == []
        )
    assert len(caplog.records) == 1
    assert cluster.requests == []
