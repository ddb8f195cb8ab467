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
    values = {}
    refused = 0.0
    for s in samples:
        job = dict(s.labels).get("job")
        values[s.metric, job] = s.value
        if s.metric == "event_lines_refused_total":
            refused += s.value
    assert values["goodput_ratio", "good"] > 0.5
    jobs_seen = {job for _, job in values}
    assert "x" not in jobs_seen
    assert refused == 1


def test_lines_from_the_future_are_refused() -> None:
    latest_s = NOW + AHEAD_S
    before = line(latest_s - 1, "commit", step=1)
    after = line(latest_s + 1, "commit", step=2)
    lines = sample.encoded([before, after])
    reading = parse(lines, now_s=NOW)
    (event,) = reading.events
    assert event.fields["step"] == 1
    assert dict(reading.problems) == {"lines from the future": 1}


def test_runs_error_classes_and_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_RUNS", 3)
    rows = []
    for n in range(9):
        row = line(EPOCH, "item_failed", f"j{n}", "batch", f"p{n}", error_class="e")
        rows.append(row)
    for n in range(99):
        t = EPOCH + n / 100
        row = line(t, "item_failed", "j0", "batch", "p0", error_class=f"e{n}")
        rows.append(row)
    samples = run_pass(sample.encoded(rows))
    jobs_seen = set()
    failures_of_first = []
    refused = 0.0
    for s in samples:
        labels = dict(s.labels)
        if s.metric == "goodput_ratio":
            jobs_seen.add(labels["job"])
        elif s.metric == "batch_failures_total" and labels["job"] == "j0":
            failures_of_first.append(s.value)
        elif s.metric == "event_lines_refused_total":
            refused += s.value
    assert len(jobs_seen) == 3
    assert len(failures_of_first) == jobs_module.MOST_ERROR_CLASSES + 1
    assert sum(failures_of_first) == 100
    assert refused == 6
    monkeypatch.setattr(jobs_module, "MOST_REFUSALS", 3)
    jobs = Jobs(FakeSource([Lines([b"{"], f"j{n}") for n in range(9)]))
    jobs.read(EPOCH)
    assert len(jobs.refused) == 4 and sum(jobs.refused.values()) == 9


def test_one_namespace_does_not_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods choose their job's label, so one team can write about any number of jobs."""
    monkeypatch.setattr(jobs_module, "MOST_RUNS", 4)
    batches = []
    for n in range(9):
        commit = line(EPOCH + n, "commit", f"flood{n}", step=1)
        batches.append(Lines(sample.encoded([commit]), f"flood{n}", "team-a"))
    for name in ("b1", "b2", "b3"):
        commit = line(EPOCH + 50, "commit", name, step=1)
        batches.append(Lines(sample.encoded([commit]), name, "team-b"))
    jobs = Jobs(FakeSource(batches))
    jobs.read(NOW)
    jobs_seen = sorted(run.job for run in jobs.runs)
    # Each team has half of the places: newcomers replace the runs that are silent longest.
    assert jobs_seen == ["b1", "b2", "flood2", "flood3"]
    by_namespace = {namespace: count for (namespace, _, _), count in jobs.refused.items()}
    assert by_namespace == {"team-a": 5, "team-b": 1}


def test_all_runs_together_keep_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_EVENTS", 100)
    rows = []
    for name, count in (("long", 90), ("longer", 200), ("short", 20)):
        for n in range(count):
            rows.append(
                line(
                    EPOCH + n,
                    "commit",
                    name,
                    process=name,
                    step=n,
                )
            )
    jobs = Jobs(FakeSource([Lines(sample.encoded(rows))]))
    jobs.read(EPOCH + 200)
    steps = {}
    for run, record in jobs.runs.items():
        steps[run.job] = [event.fields["step"] for event in record.events]
    assert steps == {
        "long": list(range(50, 90)),
        "longer": list(range(160, 200)),
        "short": list(range(20)),
    }
    assert len(list(jobs.samples(EPOCH + 200, {}))) > 0


def test_null_and_the_longest_cloud_line_are_read() -> None:
    items = []
    for n in range(9_000):
        items.append(f"doc-{n:020d}")
    longest = line(EPOCH, "claimed", **BATCH, items=items)
    empty = line(EPOCH, "claimed", **BATCH, items=None)
    lines = sample.encoded([longest, empty])
    assert len(lines[0]) < MAX_LINE_BYTES
    reading = parse(lines)
    assert len(reading.events) == 2


def test_move_capacities_are_known_or_other() -> None:
    """A pod may write that its own job moves to a capacity of any name."""
    rows = []
    for n in range(50):
        row = line(EPOCH + n, "moved", "j", source="spot", capacity=f"c{n}", reason="r")
        rows.append(row)
    known = line(EPOCH, "moved", "j", source="spot", capacity="on-demand", reason="r")
    rows.append(known)
    samples = run_pass(sample.encoded(rows))
    counts = {}
    for s in samples:
        if s.metric == "placement_moves_total":
            labels = dict(s.labels)
            counts[labels["capacity"]] = s.value
    assert counts == {"other": 50, "on-demand": 1}


def test_lines_that_were_not_read_are_counted_for_their_writer() -> None:
    jobs = Jobs(FakeSource([Lines([], "j", "training", "j-0", dropped=700)]))
    jobs.read(EPOCH)
    counts = {}
    for s in jobs.samples(EPOCH, {}):
        labels = dict(s.labels)
        counts[labels["namespace"], labels["job"], labels["reason"]] = s.value
    assert counts == {("training", "j", jobs_module.TOO_MANY): 700}


def test_a_pod_cannot_write_about_another_index() -> None:
    """Such lines would fill the places of all jobs, and each run is a dozen series."""
    rows = []
    for index in range(50):
        rows.append(line(EPOCH, "start", "j", index=index))
    lines = sample.encoded(rows)
    indexed = Lines(lines, "j", "training", "j-7-abcde", index=7)
    jobs = Jobs(FakeSource([indexed]))
    jobs.read(NOW)
    (run,) = jobs.runs
    assert run.index == 7
    assert jobs.refused["training", "j", jobs_module.FOREIGN_INDEX] == 49
    without_index = Lines(lines, "j", "training", "j-abcde")
    jobs = Jobs(FakeSource([without_index]))
    jobs.read(NOW)
    assert not jobs.runs
    by_the_mover = Lines(lines, "j", "monitoring", "mover-abcde")
    jobs = Jobs(FakeSource([by_the_mover]))
    jobs.read(NOW)
    assert len(jobs.runs) == 50
