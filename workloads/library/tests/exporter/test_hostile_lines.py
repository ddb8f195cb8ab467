"""Tests that no line of a pod ends a pass or speaks for another job; refusals are counted."""

import json

import pytest

from holdfast.controllers.cluster import Cluster
from holdfast.controllers.event_source import Lines
from holdfast.controllers.sample import Sample
from holdfast.exporter import jobs as jobs_module
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from holdfast.ledger.event_schema import AHEAD_S, MAX_LINE_BYTES
from holdfast.ledger.events import parse
from workloads.library.tests import sample
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.sample import EPOCH, line

NOW = EPOCH + 100
BATCH = {"job": "x", "kind": "batch"}
HUGE = 10**400


def run_pass(lines: list[bytes]) -> list[Sample]:
    jobs = Jobs(FakeSource([Lines(lines)]))
    return Exporter(
        cluster=Cluster(),
        jobs=jobs,
        clock=lambda: NOW,
    ).gather()


HOSTILE: dict[str, bytes] = {
    "items is text": json.dumps(line(EPOCH, "claimed", **BATCH, items="x")).encode(),
    "items holds lists": json.dumps(line(EPOCH, "claimed", **BATCH, items=[[["x"]]])).encode(),
    "items is endless": json.dumps(line(EPOCH, "claimed", **BATCH, items=1e308)).encode(),
    "skipped is a number": json.dumps(line(EPOCH, "restore", step=1, skipped=5)).encode(),
    "seconds is endless": (
        json.dumps(
            line(
                EPOCH,
                "window",
                first_step=1,
                last_step=2,
                seconds=1e308,
            )
        ).encode()
    ),
    "seconds has 401 digits": (
        json.dumps(
            line(
                EPOCH,
                "window",
                first_step=1,
                last_step=2,
                seconds=HUGE,
            )
        ).encode()
    ),
    "seconds is infinite": json.dumps(line(EPOCH, "window", seconds=float("inf"))).encode(),
    "a rank is true": json.dumps(line(EPOCH, "start", rank=True)).encode(),
    "a step has 401 digits": json.dumps(line(EPOCH, "commit", step=HUGE)).encode(),
    "a step of 5,000 digits": (
        b'{"v":1,"t":1790000000,"event":"commit","job":"x","kind":"training","process":"p","step":'
        + b"9" * 5_000
        + b"}"
    ),
    "100,000 brackets": b"[" * 100_000,
    "nested objects": b'{"a":' * 20_000,
    "a line of a megabyte": json.dumps(line(EPOCH, "commit", note="x" * 1_000_000)).encode(),
    "a time of 401 digits": json.dumps(line(EPOCH, "start") | {"t": HUGE}).encode(),
    "a time in the year 2286": json.dumps(line(9.99e9, "commit", step=1)).encode(),
    "a time of tomorrow": json.dumps(line(EPOCH + 86_400, "commit", step=1)).encode(),
    "a job that is a list": json.dumps(line(EPOCH, "start") | {"job": ["x"]}).encode(),
    "a job of a megabyte": json.dumps(line(EPOCH, "start", job="x" * 200_000)).encode(),
    "a job with a zero byte": json.dumps(line(EPOCH, "start", job="a\0b")).encode(),
    "a job that is half a letter": json.dumps(line(EPOCH, "start", job="\ud800")).encode(),
    "an index that is text": json.dumps(line(EPOCH, "start", index="0")).encode(),
    "a kind that is an object": json.dumps(line(EPOCH, "start") | {"kind": {}}).encode(),
    "an error class that is a list": (
        json.dumps(line(EPOCH, "item_failed", **BATCH, error_class=[])).encode()
    ),
    "not UTF-8": (
        b'{"v":1,"t":1790000000,"event":"start","job":"\xff","kind":"training","process":"p"}'
    ),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_no_line_ends_a_pass_or_spoils_another(hostile: bytes) -> None:
    good = sample.encoded(sample.training("good", total=20))
    samples = run_pass([*good[:3], hostile, *good[3:]])
    named = {(s.metric, dict(s.labels).get("job")): s.value for s in samples}
    assert named["goodput_ratio", "good"] > 0.5
    assert "x" not in {job for _, job in named}
    assert sum(s.value for s in samples if s.metric == "event_lines_refused_total") == 1


def test_lines_from_the_future_are_refused() -> None:
    ahead = sample.encoded(
        [line(NOW + AHEAD_S - 1, "commit", step=1), line(NOW + AHEAD_S + 1, "commit", step=2)]
    )
    reading = parse(ahead, now_s=NOW)
    assert [event.fields["step"] for event in reading.events] == [1]
    assert dict(reading.problems) == {"lines from the future": 1}


def test_runs_error_classes_and_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_RUNS", 3)
    runs = [
        line(EPOCH, "item_failed", f"j{n}", "batch", f"p{n}", error_class="e") for n in range(9)
    ]
    classes = [
        line(EPOCH + n / 100, "item_failed", "j0", "batch", "p0", error_class=f"e{n}")
        for n in range(99)
    ]
    samples = run_pass(sample.encoded([*runs, *classes]))
    ratios = [series for series in samples if series.metric == "goodput_ratio"]
    assert len({dict(series.labels)["job"] for series in ratios}) == 3
    failures = [series for series in samples if series.metric == "batch_failures_total"]
    of_first = [series for series in failures if dict(series.labels)["job"] == "j0"]
    assert len(of_first) == jobs_module.MOST_ERROR_CLASSES + 1
    assert sum(s.value for s in of_first) == 100
    assert sum(s.value for s in samples if s.metric == "event_lines_refused_total") == 6
    monkeypatch.setattr(jobs_module, "MOST_REFUSALS", 3)
    jobs = Jobs(FakeSource([Lines([b"{"], f"j{n}") for n in range(9)]))
    jobs.read(EPOCH)
    assert len(jobs.refused) == 4 and sum(jobs.refused.values()) == 9


def test_null_and_the_longest_cloud_line_are_read() -> None:
    text = json.dumps(
        line(EPOCH, "claimed", **BATCH, items=[f"doc-{n:020d}" for n in range(9_000)])
    ).encode()
    assert len(text) < MAX_LINE_BYTES
    assert (
        len(parse([text, *sample.encoded([line(EPOCH, "claimed", **BATCH, items=None)])]).events)
        == 2
    )


def test_move_capacities_are_known_or_other() -> None:
    """A pod may write a move of its own job, to anything."""
    moves = [
        line(EPOCH + n, "moved", "j", source="spot", capacity=f"c{n}", reason="r")
        for n in range(50)
    ]
    known = line(EPOCH, "moved", "j", source="spot", capacity="on-demand", reason="r")
    samples = run_pass(sample.encoded([*moves, known]))
    counts: dict[str, float] = {}
    for series in samples:
        if series.metric == "placement_moves_total":
            counts[dict(series.labels)["capacity"]] = series.value
    assert counts == {"other": 50, "on-demand": 1}


def test_lines_that_were_not_read_are_counted_for_their_writer() -> None:
    jobs = Jobs(FakeSource([Lines([], "j", "training", "j-0", dropped=700)]))
    jobs.read(EPOCH)
    counts = {}
    for s in jobs.samples(EPOCH, {}):
        labels = dict(s.labels)
        counts[labels["namespace"], labels["job"], labels["reason"]] = s.value
    assert counts == {("training", "j", jobs_module.TOO_MANY): 700}
