"""`explain` prints the dollars of a running sweep."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.diagnose.sweep_price import (
    describe_sweep_price,
    is_sweep,
    parse_indexes,
)
from holdfast.jobs.submit import prepared_job
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX
from tests.platforms import with_images
from workloads.library.tests.jobs.test_forecast import MAX_USD, SPENT, ask, make_cluster
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import find_body

BEGIN = "2026-11-28T10:00:00Z"
END = "2026-11-28T12:00:00Z"


def make_pod(point: int, phase: str) -> Object:
    meta = {"name": f"p{point}", "annotations": {ANNOTATION_INDEX: str(point)}}
    return {"metadata": meta, "status": {"phase": phase}}


def make_sweep(*pods: Object, **fields: Any) -> JobSnapshot:
    """A sweep of six points, two at a time."""
    body = {
        "kind": "Job",
        "metadata": {"name": "search", "annotations": fields.pop("annotations", {})},
        "spec": {"completions": 6, "parallelism": 2},
        "status": fields,
    }
    return JobSnapshot(body=body, pods=list(pods))


def test_sweeps_are_told_from_other_jobs() -> None:
    for fields, expected in (({"sweep": {"SEED": [1, 2]}}, True), ({"nodes": 1}, False)):
        job = own(**{"gpus": "1xl4", "hours": 2.0} | fields)
        prepared = prepared_job.prepare(job, with_images("example"))
        body = find_body(prepared.bodies, "Job")
        assert is_sweep(JobSnapshot(body=body, pods=[])) is expected


def test_points_that_are_done_price_the_others() -> None:
    pods = [make_pod(0, "Failed"), make_pod(0, "Succeeded"), make_pod(1, "Running")]
    text = describe_sweep_price(make_sweep(*pods, succeeded=1), [1.0, 3.0, 1.0], 2.0)
    assert text.startswith("at least $5.00 so far, 1 of 6 points done; about $24.00 for all, ")
    assert "by the mean of 1 done; no 80 % interval, as " in text


def test_points_whose_pods_are_gone_count_at_the_mean() -> None:
    text = describe_sweep_price(make_sweep(make_pod(3, "Succeeded"), succeeded=3), [4.0], None)
    assert "at least $4.00 so far, 3 of 6 points done; about $24.00 for all" in text


def test_points_that_failed_cost_nothing_more() -> None:
    pods = [make_pod(0, "Succeeded"), make_pod(1, "Failed")]
    sweep = make_sweep(*pods, succeeded=1, failedIndexes="1")
    text = describe_sweep_price(sweep, [4.0, 2.0], None)
    assert "at least $6.00 so far, 1 of 6 points done, 1 failed; about $22.00 for all" in text


def test_first_points_are_priced_by_stated_hours() -> None:
    sweep = make_sweep(make_pod(0, "Running"), make_pod(1, "Running"))
    costs_usd = [1.0, 2.0]
    text = describe_sweep_price(sweep, costs_usd, 3.0)
    assert "about $18.00 for all, by the hours" in text
    text = describe_sweep_price(sweep, costs_usd, None)
    assert text == (
        "at least $3.00 so far, 0 of 6 points done; no price of all before a point is done, as its"
        " file states no hours"
    )


def test_what_the_mover_counted_is_spent() -> None:
    annotations = {MAX_USD: "40", SPENT: "12.5 1790000000"}
    sweep = make_sweep(make_pod(3, "Succeeded"), succeeded=3, annotations=annotations)
    text = describe_sweep_price(sweep, [4.0], None)
    assert "$12.50 so far, 3 of 6 points done; about $24.50" in text


@pytest.mark.parametrize(("text", "indexes"), [("", set()), ("1,3-5", {1, 3, 4, 5})])
def test_statuses_list_indexes_as_ranges(text: str, indexes: set[int]) -> None:
    assert parse_indexes(text) == indexes


def test_explain_prints_what_a_sweep_costs(tmp_path: Path) -> None:
    cluster = make_cluster()
    [job] = cluster["/apis/batch/v1/jobs"]
    job["spec"]["completions"] = 3
    job["status"]["succeeded"] = 1
    [pod] = cluster["/api/v1/pods"]
    pod["metadata"]["annotations"] = {ANNOTATION_INDEX: "0"}
    state = {"terminated": {"finishedAt": END, "exitCode": 0}}
    pod["status"] |= {
        "phase": "Succeeded",
        "startTime": BEGIN,
        "containerStatuses": [{"name": "main", "state": state}],
    }
    assert ask(tmp_path, [], cluster).price == ""
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "HOLDFAST_POINT"}]
    explanation = ask(tmp_path, [], cluster)
    assert explanation.price.startswith("at least $")
    assert "so far, 1 of 3 points done; about $" in dict(explanation.lines())["price"]
