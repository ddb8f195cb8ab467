"""`explain` says when a running job will be done and for how much, and shows its limit."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.api import Api, Object
from holdfast.job_commands.control import stopping
from holdfast.jobs.diagnose.explain import Explanation, explain
from holdfast.jobs.diagnose.forecast import read_own_lines
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, find_limit
from holdfast.jobs.submit import existing_jobs, prepared_job
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.values import rfc3339
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from holdfast.vocabulary.pools import flex_selector
from tests import platforms
from tests.platforms import with_images
from workloads.library.tests.jobs.api_server import serving
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_one_answer import running_job, write_events
from workloads.library.tests.sample import Line, line

EXAMPLE = platforms.load("example")
POOL = EXAMPLE.pool("spot-l4-g2-standard-8")
STEP_S = 6.0
LOG_TIME = "2026-11-28T12:00:00.000000000Z"
MAX_USD = "holdfast.dev/max-usd"
SPENT = "holdfast.dev/spent"
STOPPED_FOR = "holdfast.dev/stopped-for"


def write_lines(total: int, **start: Any) -> list[Line]:
    """The lines of a job that has done 100 of `total` steps until now, in ten minutes."""
    now_s = time.time()
    begin_s = now_s - 660
    lines = [
        line(
            begin_s,
            "start",
            job="train",
            rank=0,
            world_size=1,
            attempt=0,
            **start,
        )
    ]
    if total:
        lines[0]["steps"] = total
    for step in range(10, 101, 10):
        t = begin_s + 60 + step * STEP_S
        fields = {
            "first_step": step - 9,
            "last_step": step,
            "seconds": 10 * STEP_S,
        }
        lines.append(line(t, "window", job="train", **fields))
        lines.append(
            line(
                t,
                "commit",
                job="train",
                step=step,
                seconds=1.0,
                bytes=1,
            )
        )
    return lines


def make_cluster(**annotations: str) -> dict[str, list[Any]]:
    lists = running_job("train")
    for pod in lists["/api/v1/pods"]:
        pod["spec"] |= {
            "nodeSelector": POOL.selector(),
            "tolerations": POOL.tolerations(),
        }
    [job] = lists["/apis/batch/v1/jobs"]
    job["metadata"]["annotations"] = annotations
    return lists


def ask(
    folder: Path,
    lines: list[Line],
    lists: dict[str, list[Any]],
    events: Path | None = None,
) -> Explanation:
    logs = {} if events else {"train-0": [(LOG_TIME, json.dumps(row)) for row in lines]}
    with serving(lists, folder, logs) as kubeconfig:
        return explain(
            Api(kubeconfig),
            "train",
            platform=EXAMPLE,
            events=events,
        )


def test_pod_logs_are_enough(tmp_path: Path) -> None:
    explanation = ask(tmp_path, write_lines(1_100), make_cluster())
    forecast = explanation.forecast
    assert forecast is not None
    hours = 1_000 * STEP_S / 3600
    done_s = stopping.moment(forecast.done_likely)
    assert done_s is not None
    assert done_s.timestamp() - time.time() == pytest.approx(hours * 3600, rel=0.1)
    assert forecast.done_from < forecast.done_likely < forecast.done_to
    assert forecast.usd_so_far is not None and forecast.usd_from is not None
    assert 0 < forecast.usd_so_far < forecast.usd_from < (forecast.usd_to or 0)
    assert 0.5 < forecast.undisturbed < 1.0
    text = dict(explanation.lines())["forecast"]
    assert text.startswith("done ") and " UTC, likely " in text and ", for $" in text


def write_batch_lines(**start: int) -> list[Line]:
    """The lines of a worker that has stored 600 items in ten minutes, until now."""
    begin_s = time.time() - 660

    def write_line(after_s: float, event: str, **fields: Any) -> Line:
        return line(
            begin_s + after_s,
            event,
            job="train",
            kind="batch",
            **fields,
        )

    lines = [
        write_line(0, "start", rank=0, world_size=1, attempt=0, **start),
    ]
    for number in range(30):
        after_s = 60 + 20 * number
        lines.append(write_line(after_s, "claimed", items=20))
        lines.append(write_line(after_s + 20, "stored", items=20, seconds=0.1))
    return lines


def test_explain_forecasts_a_batch_from_its_items(tmp_path: Path) -> None:
    lines = write_batch_lines(steps=4_200, items=4_200)
    explanation = ask(tmp_path, lines, make_cluster())
    forecast = explanation.forecast
    assert forecast is not None
    done = stopping.moment(forecast.done_likely)
    assert done is not None
    assert done.timestamp() - time.time() == pytest.approx(3_600, rel=0.1)
    assert forecast.done_from < forecast.done_likely < forecast.done_to
    assert ", for $" in forecast.text()
    resumed = write_batch_lines(steps=8_400, items=4_200)
    later = ask(tmp_path, resumed, make_cluster()).forecast
    assert later is not None
    assert later.usd_from is None  # what its earlier workers cost is not known
    assert ask(tmp_path, write_batch_lines(), make_cluster()).forecast is None


def test_planned_ends_delay_a_job(tmp_path: Path) -> None:
    """Its node ends in half an hour, and its work takes longer: it queues for another one."""
    lists = make_cluster()
    [pod] = lists["/api/v1/pods"]
    pod["spec"]["nodeSelector"] = flex_selector("nvidia-l4")
    end = rfc3339(time.time() + 1_800)
    node = {
        "metadata": {
            "name": pod["spec"]["nodeName"],
            "annotations": {ANNOTATION_TERMINATION: end},
        },
    }
    lists["/api/v1/nodes"] = [node]
    forecast = ask(tmp_path, write_lines(1_100), lists).forecast
    assert forecast is not None
    assert forecast.undisturbed == 0.0
    low = stopping.moment(forecast.done_from)
    assert low is not None
    assert low.timestamp() - time.time() > 1_000 * STEP_S
    del node["metadata"]["annotations"]
    undisturbed = ask(tmp_path, write_lines(1_100), lists).forecast
    assert undisturbed is not None and undisturbed.undisturbed == 1.0


def test_stated_hours_replace_unknown_steps(tmp_path: Path) -> None:
    assert ask(tmp_path, write_lines(0), make_cluster()).forecast is None
    cluster = make_cluster(**{"holdfast.dev/hours": "2"})
    forecast = ask(tmp_path, write_lines(0), cluster).forecast
    assert forecast is not None
    done = stopping.moment(forecast.done_likely)
    assert done is not None
    assert done.timestamp() - time.time() == pytest.approx(2 * 3600 - 600, rel=0.1)


def test_other_jobs_count_too(tmp_path: Path) -> None:
    """Another job on the same capacity was interrupted every quarter of an hour."""
    events = tmp_path / "events"
    events.mkdir()
    node = {
        "seconds": 5.0,
        "capacity": "spot",
        "accelerator": "nvidia-l4",
    }
    other_lines: list[Line] = []
    begin_s = time.time() - 100_000
    for attempt in range(80):
        t = begin_s + attempt * 1_200
        process = f"p{attempt}"
        other_lines.append(line(t, "scheduled", job="other", process="watcher", **node))
        other_lines.append(
            line(
                t + 10,
                "start",
                job="other",
                process=process,
                rank=0,
                world_size=1,
            )
        )
        for number in (1, 2):
            fields = {
                "first_step": 1,
                "last_step": 50 * number,
                "seconds": 400.0,
            }
            other_lines.append(
                line(
                    t + 410 * number,
                    "window",
                    job="other",
                    process=process,
                    **fields,
                )
            )
        other_lines.append(
            line(
                t + 900,
                "exit",
                job="other",
                process=process,
                code=143,
                step=100,
            )
        )
    own_lines = write_lines(1_100)
    own_lines.insert(
        0,
        line(
            own_lines[0]["t"],
            "scheduled",
            job="train",
            process="w",
            **node,
        ),
    )
    write_events(events / "train.jsonl", "train", own_lines)
    alone = ask(tmp_path, [], make_cluster(), events).forecast
    write_events(events / "other.jsonl", "other", other_lines)
    joined = ask(tmp_path, [], make_cluster(), events).forecast
    assert alone is not None and joined is not None
    assert joined.undisturbed < 0.1 < alone.undisturbed
    assert joined.done_to > alone.done_to


def test_a_lost_node_ends_reading_logs() -> None:
    """Its kubelet does not answer, and `explain` still tells the cause."""

    class Lost(Api):
        def __init__(self) -> None:
            self.asked = 0

        def text(self, path: str, **query: object) -> str:
            self.asked += 1
            raise Unjudged("the node does not answer")

    lists = make_cluster()
    [body] = lists["/apis/batch/v1/jobs"]
    job = JobSnapshot(body=body | {"kind": "Job"}, pods=2 * lists["/api/v1/pods"])
    api = Lost()
    assert read_own_lines(api, job, job.pods) == [] and api.asked == 1


def test_without_lines_nothing_is_forecast(tmp_path: Path) -> None:
    assert ask(tmp_path, [], make_cluster()).forecast is None


def test_explain_shows_what_a_limited_job_has_cost(tmp_path: Path) -> None:
    cluster = make_cluster(**{MAX_USD: "40", SPENT: "12.3400 1790000000"})
    assert "; $12.34 of its max_usd $40.00 spent" in ask(tmp_path, [], cluster).state


def test_a_job_that_reached_its_limit_says_how_to_go_on(tmp_path: Path) -> None:
    cluster = make_cluster(
        **{
            MAX_USD: "40",
            SPENT: "39.9 1",
            STOPPED_FOR: "max_usd",
        }
    )
    [job] = cluster["/apis/batch/v1/jobs"]
    job["spec"]["suspend"] = True
    cause = ask(tmp_path, [], cluster).cause
    assert cause.blocker == "it was stopped before its max_usd: it has cost $39.90 of $40.00"
    assert cause.action == "holdfast resume train --max-usd 80"


def test_resume_needs_a_higher_limit() -> None:
    annotations = {
        MAX_USD: "40",
        SPENT: "39.9 1",
        STOPPED_FOR: "max_usd",
    }
    meta = {
        "name": "train",
        "namespace": "training",
        "annotations": annotations,
    }
    body = {
        "kind": "Job",
        "metadata": meta,
        "spec": {"suspend": True},
    }
    job = JobSnapshot(body=body, pods=[])
    limit = find_limit(job)
    assert limit is not None and limit.stopped
    with pytest.raises(InputError, match="before its max_usd") as refusal:
        stopping.resume(Api.over(None), EXAMPLE, job)
    assert refusal.value.fix == "holdfast resume train --max-usd 80"
    for max_usd in (39.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="--max-usd"):
            stopping.resume(Api.over(None), EXAMPLE, job, max_usd)


def test_submit_says_what_a_limit_buys() -> None:
    job = own(gpus="1xl4", capacity="spot", max_usd=20.0)
    prepared = prepared_job.prepare(job, with_images("example"))
    assert any(note.startswith("max_usd: stopped with a last save") for note in prepared.notes)
    annotations = prepared.bodies[-1]["metadata"]["annotations"]
    assert annotations[MAX_USD] == "20"


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": 1},
        {"nodes": 2, "gpus": "1xa100"},
        {"nodes": "2..4"},
        {"sweep": {"SEED": [1, 2]}},
        {"gpus": "any of 1xl4, 1xa100"},
    ],
)
def test_all_jobs_carry_hours_and_limit(fields: dict[str, Any]) -> None:
    job = own(**{"gpus": "1xl4", "hours": 2.0, "max_usd": 500.0} | fields)
    prepared = prepared_job.prepare(job, with_images("example"))
    annotations: list[dict[str, str]] = []
    for body in prepared.bodies:
        if body["kind"] in ("Job", "JobSet"):
            annotations.append(body["metadata"]["annotations"])
    [of_job] = annotations
    assert (of_job["holdfast.dev/hours"], of_job[MAX_USD]) == ("2", "500")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"gpus": "1xl4", "max_usd": 0.01}, "max_usd: 0.5 h cost more"),
        (
            {"gpus": "1xl4", "hours": 100.0, "max_usd": 20.0},
            "max_usd: 100 h of undisturbed work",
        ),
        ({"gpus": "none", "max_usd": 20.0}, "have no price in the table"),
        ({"gpus": "1xl4", "max_usd": -1.0}, "max_usd"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        prepared_job.prepare(own(**fields), with_images("example"))


class LiveJobs(Api):
    """Holds running jobs by name, and records what is merged."""

    def __init__(self, *bodies: Object) -> None:
        self.bodies = {body["metadata"]["name"]: body for body in bodies}
        self.changes: dict[str, Any] = {}
        self.path_of = lambda document: document["metadata"]["name"]

    def find(self, path: str) -> Any:
        return self.bodies.get(path)

    def merge(self, path: str, change: Any) -> Any:
        self.changes[path] = change["metadata"]["annotations"]


def make_version(name: str, **annotations: str) -> Object:
    labels = {"app.kubernetes.io/name": "train"}
    meta = {
        "name": name,
        "labels": labels,
        "annotations": annotations,
    }
    return {"kind": "Job", "metadata": meta}


def test_a_replaced_job_hands_over_what_it_has_cost() -> None:
    api = LiveJobs(make_version("train-1", **{MAX_USD: "40", SPENT: "12 1790000000"}))
    limited = make_version("train-2", **{MAX_USD: "40"})
    free = make_version("train-3")
    existing_jobs.carry_spending(api, [limited, free], ["train-1", "gone"])
    assert limited["metadata"]["annotations"][SPENT] == "12 1790000000"
    assert SPENT not in free["metadata"]["annotations"]


def test_running_jobs_take_a_new_limit() -> None:
    api = LiveJobs(make_version("train-1", **{MAX_USD: "40"}))
    assert existing_jobs.update_limits(api, [make_version("train-1", **{MAX_USD: "40"})]) == []
    updated = existing_jobs.update_limits(api, [make_version("train-1", **{MAX_USD: "60"})])
    assert updated == ["train-1: $60.00"]
    assert api.changes == {"train-1": {MAX_USD: "60"}}


@pytest.mark.parametrize(("max_usd", "is_freed"), [("60", True), ("39", False)])
def test_a_higher_limit_lets_a_stopped_job_resume(max_usd: str, is_freed: bool) -> None:
    annotations = {
        MAX_USD: "40",
        SPENT: "38 1790000000",
        STOPPED_FOR: "max_usd",
    }
    api = LiveJobs(make_version("train-1", **annotations))
    [text] = existing_jobs.update_limits(api, [make_version("train-1", **{MAX_USD: max_usd})])
    assert ("holdfast resume train-1" in text) == is_freed
    live = api.bodies["train-1"]
    for name, value in api.changes["train-1"].items():
        if value is None:
            del live["metadata"]["annotations"][name]
        else:
            live["metadata"]["annotations"][name] = value
    limit = find_limit(JobSnapshot(body=live, pods=[]))
    assert limit is not None and limit.max_usd == float(max_usd)
    assert limit.stopped != is_freed
