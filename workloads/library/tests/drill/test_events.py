"""Tests the reading of event lines and the schedules of evictions."""

from pathlib import Path

import pytest

from holdfast.drill.events import Follower
from holdfast.drill.targets.local import make_schedule
from holdfast.ledger.job_summary import read_job_summaries
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, line


def test_whole_lines_are_read_and_a_line_cut_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    rows = [line(EPOCH, "start"), line(EPOCH + 1, "window", last_step=3)]
    start, window = sample.encoded(rows)
    path.write_bytes(b'{"event": "window", "last_st\n' + start + b"\n[1]\n" + window[:20])
    assert [e["event"] for e in follower.read()] == ["start"]
    with path.open("ab") as file:
        file.write(window[20:] + b"\n")
    assert [e["event"] for e in follower.read()] == ["window"]
    assert follower.last("window", "last_step") == 3


def test_losses_and_recoveries_match_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    follower = Follower(path)
    assert follower.summary() is None
    sample.write(path, sample.killed_and_restored("job"))
    follower.read()
    summary = follower.summary()
    assert summary is not None
    assert summary.lost == 55
    assert summary.recovered_after_s == pytest.approx((92.4,))
    assert summary == read_job_summaries(tmp_path)["job"]


def test_schedules_are_seeded_ordered_and_alternate() -> None:
    schedule = make_schedule(
        seed=3,
        count=6,
        total=240,
        first=20,
    )
    assert schedule == make_schedule(
        seed=3,
        count=6,
        total=240,
        first=20,
    )
    assert schedule != make_schedule(
        seed=4,
        count=6,
        total=240,
        first=20,
    )
    progress = [eviction.progress for eviction in schedule]
    assert progress == sorted(progress)
    assert min(progress) >= 20
    assert max(progress) <= 216
    assert {eviction.signal for eviction in schedule} == {"SIGTERM", "SIGKILL"}
