"""Tests the one summary of a job that all commands show."""

from pathlib import Path

import pytest

from holdfast.ledger.events import Reading, parse, read_folder
from holdfast.ledger.job_ledger import JobLedger, job_ledger
from holdfast.ledger.job_summary import JobSummary, job_summaries
from holdfast.ledger.timeline import State
from holdfast.support.errors import InputError
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line


def summarize(rows: list[Line]) -> dict[str, JobSummary]:
    ordered_rows = sorted(rows, key=lambda row: row["t"])
    return job_summaries(parse(sample.encoded(ordered_rows)).events)


def test_a_restored_job_shows_its_current_step() -> None:
    summary = summarize(sample.kill_and_restore("job"))["job"]
    assert f"{summary.useful_ratio:.1%}" == "27.6%"
    assert summary.step == 60
    assert summary.lost == 55
    assert [recovery.lost_steps for recovery in summary.recoveries] == [55]
    assert summary.recovery_times_s == pytest.approx((92.4,))
    assert summary.last_commit_s == EPOCH + 46
    assert summary.find_commit_age_s(EPOCH + 66) == 20


def test_orderly_exits_are_counted_for_training_and_for_batch() -> None:
    rows = [*sample.training("t", kills=sample.KILLS), *sample.batch("b", kills=4)]
    summaries = summarize(rows)
    assert summaries["t"].orderly_exits == 3
    assert summaries["b"].orderly_exits == 2
    assert summaries["t"].step == 300
    assert summaries["b"].step is None
    assert summaries["b"].last_commit_s is None


def test_unknown_figures_are_none() -> None:
    summary = summarize([sample.line(EPOCH, "start", rank=0)])["job"]
    assert (
        summary.useful_ratio,
        summary.step,
        summary.last_commit_s,
        summary.find_commit_age_s(EPOCH),
    ) == (
        None,
        None,
        None,
        None,
    )
    assert summary.lost == 0
    assert summary.recoveries == ()
    assert summary.orderly_exits == 0


# Lines that cannot be used are counted, never guessed at.


def test_a_line_with_two_values_is_refused() -> None:
    reading = parse([b'{"v": 1}, {"v": 1}', *sample.encoded([line(EPOCH, "start")])])
    assert len(reading.events) == sum(reading.problems.values()) == 1


def read(rows: list[Line]) -> tuple[Reading, JobLedger]:
    reading = parse(sample.encoded(rows))
    return reading, job_ledger(reading.events)


def shift(rows: list[Line], first: int, by_s: float) -> list[Line]:
    shifted: list[Line] = []
    for n, row in enumerate(rows):
        shifted.append(row | {"t": row["t"] + by_s * (n >= first)})
    return shifted


def test_a_clock_that_jumps_adds_no_work() -> None:
    rows = sample.training("job", total=40)
    _, straight = read(rows)
    first = len(rows) // 2 + 1
    reading, bent = read(shift(rows, first, -3600))
    assert reading.problems["lines whose clock ran backwards"] == len(rows) - first
    assert sum(bent.totals_us.values()) == bent.wall_us < straight.wall_us
    events = [row["event"] for row in rows]
    _, bent = read(shift(rows, events.index("window") + 1, 3600))
    assert bent.totals_us[State.PRODUCTIVE] == straight.totals_us[State.PRODUCTIVE]
    assert bent.totals_us[State.IDLE] - straight.totals_us[State.IDLE] == pytest.approx(
        3600e6, rel=0.01
    )


def test_a_folder_without_event_files_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no event files"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "missing")
