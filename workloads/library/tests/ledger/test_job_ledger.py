"""Tests that the ledger adds up, whatever the events say."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cost.receipt import receipt
from holdfast.jobs.diagnose.explain import size_text
from holdfast.ledger import elastic_gang, training
from holdfast.ledger.account import sum_by_state
from holdfast.ledger.event_schema import FIELDS
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import JobLedger, job_ledger, job_ledgers
from holdfast.ledger.job_summary import job_summaries, job_summary
from holdfast.ledger.timeline import LaneTimeline, State
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line

MINUTE = 60


def read(*lines: Line) -> list[JobLedger]:
    return job_ledgers(parse(sample.encoded(lines)).events)


def minutes(ledger: JobLedger) -> dict[str, float]:
    minutes_by_state: dict[str, float] = {}
    for state, us in ledger.totals_us.items():
        if us:
            minutes_by_state[state.value] = us / 60e6
    return minutes_by_state


def test_published_200_minute_example_gives_50_percent() -> None:
    """The example: compute 100, load 10, save 10, lost 40, restart 15, slowdown 25 minutes."""
    minute: Callable[[float], float] = lambda m: EPOCH + m * MINUTE  # noqa: E731
    lines = [
        line(minute(0), "start", rank=0, attempt=0),
        line(minute(5), "restore", step=0, seconds=5 * MINUTE),
        line(
            minute(55),
            "window",
            first_step=1,
            last_step=50,
            seconds=50 * MINUTE,
        ),
        line(minute(60), "save", step=50, blocking_seconds=5 * MINUTE),
        line(minute(60), "commit", step=50, seconds=5 * MINUTE),
        line(
            minute(100),
            "window",
            first_step=51,
            last_step=90,
            seconds=40 * MINUTE,
        ),
        line(
            minute(100),
            "evict",
            process="driver",
            signal="SIGKILL",
            target="p0",
        ),
        line(minute(110), "start", process="p1", rank=0, attempt=1),
        line(
            minute(120),
            "restore",
            process="p1",
            step=50,
            seconds=5 * MINUTE,
        ),
        line(
            minute(145),
            "window",
            process="p1",
            first_step=51,
            last_step=75,
            seconds=25 * MINUTE,
        ),
        line(
            minute(150),
            "save",
            process="p1",
            step=75,
            blocking_seconds=5 * MINUTE,
        ),
        line(
            minute(200),
            "window",
            process="p1",
            first_step=76,
            last_step=100,
            seconds=50 * MINUTE,
        ),
    ]
    ledger = job_ledger(parse(sample.encoded(lines)).events)
    work = {
        "productive": 100,
        "straggling": 25,
        "checkpointing": 10,
        "restoring": 10,
    }
    assert minutes(ledger) == work | {"lost": 40, "restarting": 15}
    assert ledger.goodput == 0.5
    assert [(r.seconds, r.lost_steps) for r in ledger.recoveries] == [(20 * MINUTE, 40)]


def test_missing_nodes_in_an_elastic_gang_are_a_separate_state() -> None:
    """Two of eight places without a node for 30 minutes are one unpaid, missing node-hour."""
    events = parse(sample.encoded(sample.elastic("job"))).events
    ledger = job_ledger(events)
    assert minutes(ledger) == {"productive": 7 * 60, "degraded": 60}
    assert ledger.wall_us == 8 * 60 * MINUTE * 1_000_000 == sum(ledger.totals_us.values())
    assert ledger.goodput == 0.875
    assert ledger.useful_paid == 1.0
    summary = job_summary(events)
    assert summary.missing_node_s == 60 * MINUTE
    assert (
        size_text(summary, EPOCH + 65 * MINUTE) == "8/8 nodes for 15 min (1.0 node-hours missing)"
    )
    priced = size_text(summary, EPOCH + 65 * MINUTE, 0.34)
    assert priced == "8/8 nodes for 15 min (1.0 node-hours missing, $0.34 to make up)"
    bill = receipt([ledger], 0.34, 0.85)
    assert bill.paid_usd == pytest.approx(7 * 0.34)
    assert bill.missing_node_hours == 1.0
    assert bill.missing_usd == 0.34
    assert bill.line().endswith("; 1.0 node-hours missing, $0.34 to make up")


def test_a_thousand_place_gang_costs_as_much_as_one_with_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exporter computes this for every run, and a line may claim any number of places."""

    def count_sweeps(places: int) -> int:
        timelines: list[LaneTimeline] = []

        def make_timeline(*args: Any, **options: Any) -> LaneTimeline:
            timelines.append(LaneTimeline(*args, **options))
            return timelines[-1]

        for module in (training, elastic_gang):
            monkeypatch.setattr(module, "LaneTimeline", make_timeline)
        sizes = []
        for n in range(50):
            sizes.append(
                line(
                    EPOCH + n,
                    "resized",
                    step=0,
                    nodes=1 + n % places,
                    of=places,
                    seconds=0.0,
                )
            )
        rows = [line(EPOCH, "start", rank=0), *sizes]
        events = parse(sample.encoded(rows)).events
        ledger = job_ledger(events)
        assert ledger.lanes == places
        assert 0 < ledger.totals_us[State.DEGRADED] < ledger.wall_us
        return len(timelines)

    assert count_sweeps(1024) == count_sweeps(2) == 1


def test_only_work_after_the_last_commit_is_lost() -> None:
    [ledger] = read(*sample.training("job", kills=((13.0, "SIGTERM"),)))
    assert ledger.lost == ledger.totals_us[State.LOST] == 0
    rows = sample.training("job", kills=((13.0, "SIGKILL"),), every=20)
    [ledger] = read(*rows)
    assert max(row["step"] for row in rows if row["event"] == "restore") == 40
    assert ledger.lost == 10  # a window has 5 steps, so step 50 is the last known
    assert ledger.totals_us[State.LOST] > 0


def test_going_back_behind_a_later_attempt_loses_the_earlier_ones_too() -> None:
    lines = [
        line(EPOCH, "start", rank=0),
        line(EPOCH + 1, "restore", step=0, seconds=0),
        line(
            EPOCH + 11,
            "window",
            first_step=1,
            last_step=10,
            seconds=10,
        ),
        line(EPOCH + 20, "start", process="p1", rank=0),
        line(
            EPOCH + 21,
            "restore",
            process="p1",
            step=10,
            seconds=0,
        ),
        line(
            EPOCH + 31,
            "window",
            process="p1",
            first_step=11,
            last_step=20,
            seconds=10,
        ),
        line(EPOCH + 40, "start", process="p2", rank=0),
        line(
            EPOCH + 41,
            "restore",
            process="p2",
            step=5,
            seconds=0,
            skipped=[[10, "digest"]],
        ),
        line(
            EPOCH + 51,
            "window",
            process="p2",
            first_step=6,
            last_step=15,
            seconds=10,
        ),
    ]
    [ledger] = read(*lines)
    assert ledger.totals_us[State.LOST] == 15_000_000
    assert ledger.lost == 15


def test_waiting_for_capacity_counts_between_attempts_only() -> None:
    lines = sample.training("job", kills=((13.0, "SIGKILL"),), restart_s=20)
    restart_s = [row["t"] for row in lines if row["event"] == "start"][1]
    node = line(
        restart_s - 1,
        "scheduled",
        "job",
        "training",
        "watcher",
        seconds=6,
        node="n",
        pool="l4-spot",
    )
    [ledger] = read(*lines, node)
    assert ledger.totals_us[State.WAITING] == 6_000_000


def test_a_batch_counts_every_lane_and_items_from_killed_workers() -> None:
    [ledger] = read(*sample.batch("job", items=240, kills=4))
    assert ledger.lanes == 4
    assert ledger.lost == 12  # two of the four had notice and gave their six back
    assert [r.lost_steps for r in ledger.recoveries] == [6, 0, 6, 0]
    for r in ledger.recoveries:
        assert r.seconds == 3.5
    assert ledger.wall_us == sum(ledger.totals_us.values())


def test_an_eviction_costs_the_items_in_the_named_workers_hands() -> None:
    rows = sample.batch("job", kills=1)
    [victim] = [row["target"].removeprefix("pod-") for row in rows if row["event"] == "evict"]
    for row in rows:
        row["process"] = row["process"].replace("host", f"job-{row['process'][5]}")
    for target, lost_items in ((f"job-{victim}-abcde", 6), (f"job-{victim}", 6), ("worker", 0)):
        for row in rows:
            if row["event"] == "evict":
                row["target"] = target
        [ledger] = read(*rows)
        assert [(r.target, r.lost_steps) for r in ledger.recoveries] == [(target, lost_items)]


def test_an_eviction_before_the_first_line_is_in_a_lane_that_restarts() -> None:
    rows = []
    for row in sample.batch("job", items=240, kills=4):
        rows.append(row)
        if row["event"] == "evict":
            early_row = dict(row)
            early_row["t"] += 1.0
            early_row["target"] = "pod-starting"
            rows.append(early_row)
    rows.sort(key=itemgetter("t"))
    [ledger] = read(*rows)
    states: list[State] = []
    for recovery in ledger.recoveries:
        for span in ledger.spans:
            is_there = span.lane == recovery.lane and span.begin_us <= recovery.t_us < span.end_us
            if is_there and recovery.target == "pod-starting":
                states.append(span.state)
    assert states == [State.RESTARTING] * 4


def test_an_empty_history_has_no_goodput_and_no_error() -> None:
    assert job_ledgers([]) == []
    [ledger] = read(line(EPOCH, "start", rank=0))
    assert ledger.wall_us == 0
    assert ledger.goodput == 0.0
    assert ledger.spans == ()


@given(
    begin=st.integers(0, 10**15),
    length=st.integers(0, 10**9),
    pieces=st.lists(
        st.tuples(
            st.integers(-(10**8), 10**9), st.integers(-(10**8), 10**9), st.sampled_from(list(State))
        ),
        max_size=25,
    ),
)
def test_spans_touch_and_cover_their_lane(
    begin: int, length: int, pieces: list[tuple[int, int, State]]
) -> None:
    intervals = []
    for low, size, state in pieces:
        intervals.append((begin + low, begin + low + size, state))
    timeline = LaneTimeline(begin, begin + length, base=State.RESTARTING)
    for interval in intervals:
        timeline.add(*interval)
    spans = timeline.spans()
    edges = [begin, *(span.end_us for span in spans)]
    assert [span.begin_us for span in spans] == edges[:-1]
    assert edges[-1] == (begin + length if length else begin)
    for span in spans:
        middle = (span.begin_us + span.end_us) / 2
        over = []
        for low, high, state in intervals:
            if low <= middle < high:
                over.append(state)
        assert span.state is max([*over, State.RESTARTING], key=list(State).index)


TYPES = (
    "start restore window save commit evict stop exit claimed stored acked released item_failed"
    " scheduled resized node_up"
)
EVENTS = st.fixed_dictionaries(
    {
        "t": st.floats(EPOCH, EPOCH + 5000, allow_nan=False),
        "event": st.sampled_from(TYPES.split()),
        "process": st.sampled_from(["p0", "p1", "p2", "host-9-x"]),
        "kind": st.sampled_from(["training", "batch"]),
    },
    optional={
        "step": st.integers(0, 500),
        "first_step": st.integers(0, 500),
        "last_step": st.integers(0, 500),
        "seconds": st.floats(0, 10_000, allow_nan=False),
        "blocking_seconds": st.floats(0, 100, allow_nan=False),
        "code": st.sampled_from([0, 143, 137, None]),
        "rank": st.integers(0, 2),
        "items": st.integers(0, 50),
        "nodes": st.integers(0, 5),
        "of": st.integers(0, 4),
        "signal": st.sampled_from(["SIGTERM", "SIGKILL"]),
        "target": st.sampled_from(["p0", "worker-1", "9"]),
    },
)
# Any pod may print a line.
HOSTILE = st.recursive(
    st.sampled_from([None, True, 10**400, -1, "\ud800"]) | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
SPOILED = st.dictionaries(st.sampled_from(["event", "kind", *sorted(FIELDS)]), HOSTILE, max_size=2)


@settings(max_examples=150)
@given(st.lists(EVENTS, min_size=1, max_size=60), st.lists(SPOILED, max_size=8))
def test_states_sum_to_wall_time_for_any_history(rows: list[Line], damages: list[Line]) -> None:
    rows = list(rows)
    for index, (row, damage) in enumerate(zip(rows, damages, strict=False)):
        rows[index] = row | damage
    events = parse(
        sample.encoded({"v": 1, "job": "job"} | row for row in rows), now_s=EPOCH + 5000
    ).events
    for ledger in job_ledgers(events):
        assert sum(ledger.totals_us.values()) == ledger.wall_us
        assert ledger.totals_us == sum_by_state(ledger.spans)
        assert 0.0 <= ledger.goodput <= 1.0
        assert ledger.lost >= 0
        assert ledger.progress is not None
    job_summaries(events)
