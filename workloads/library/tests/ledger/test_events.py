"""Lines that cannot be used are counted, never guessed at."""

import json
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.ledger.events import parse, read_folder
from holdfast.ledger.job_ledger import job_ledgers
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, line


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b'{"v": 1, "t": 1790000000.0, "eve', "lines cut short or not JSON"),
        (b"[1, 2]", "lines that are no object"),
        (b'{"t": 1790000000.0}', "lines of a version other than 1"),
        (json.dumps(line(EPOCH, "start") | {"v": 2}).encode(), "lines of a version other than 1"),
        (json.dumps({"v": 1, "t": EPOCH, "event": "start"}).encode(), "lines without event, job, kind or process"),
        (json.dumps(line(EPOCH * 1000, "start")).encode(), "lines whose time is no Unix time in seconds"),
        (json.dumps(line(12.5, "start")).encode(), "lines whose time is no Unix time in seconds"),
        (json.dumps(line(EPOCH, "reboot")).encode(), "lines of an event type that this version does not know"),
        (json.dumps(line(EPOCH, "commit", step="nine")).encode(), "lines with a field that is no amount"),
        (json.dumps(line(EPOCH, "window", seconds=-4)).encode(), "lines with a field that is no amount"),
        (json.dumps(line(EPOCH, "window", seconds=float("inf"))).encode(), "lines with a field that is no amount"),
        (json.dumps(line(EPOCH, "start", rank=True)).encode(), "lines with a field that is no amount"),
    ],
)
def test_a_broken_line_is_counted_under_its_reason_and_the_others_are_kept(broken: bytes, reason: str) -> None:
    good = sample.encoded(sample.training("job", total=20))
    reading = parse([*good[:3], broken, *good[3:]])
    assert dict(reading.problems) == {reason: 1}
    assert len(reading.events) == len(good)


def test_a_line_that_closes_the_brackets_of_a_block_does_not_pass_as_two() -> None:
    reading = parse([b'{"v": 1}, {"v": 1}', *sample.encoded([line(EPOCH, "start")])])
    assert len(reading.events) == 1
    assert sum(reading.problems.values()) == 1


def test_a_clock_that_runs_backwards_adds_no_time() -> None:
    rows = sample.training("job", total=40)
    [straight] = job_ledgers(parse(sample.encoded(rows)).events)
    later = [row | {"t": row["t"] - 3600} if n > len(rows) // 2 else row for n, row in enumerate(rows)]
    reading = parse(sample.encoded(later))
    [bent] = job_ledgers(reading.events)
    assert reading.problems["lines whose clock ran backwards"] == len(rows) - len(rows) // 2 - 1
    assert bent.wall_us < straight.wall_us
    assert sum(bent.totals_us().values()) == bent.wall_us


def test_a_clock_that_jumps_ahead_leaves_idle_time_not_work() -> None:
    rows = sample.training("job", total=40)
    cut = next(n for n, row in enumerate(rows) if row["event"] == "window") + 1
    later = [row | {"t": row["t"] + 3600} if n >= cut else row for n, row in enumerate(rows)]
    [straight], [bent] = (
        job_ledgers(parse(sample.encoded(rows)).events),
        job_ledgers(parse(sample.encoded(later)).events),
    )
    assert bent.totals_us()["productive"] == straight.totals_us()["productive"]  # type: ignore[index]
    assert bent.totals_us()["idle"] - straight.totals_us()["idle"] == pytest.approx(3600e6, rel=0.01)  # type: ignore[index]


def test_a_folder_without_event_files_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no event files"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "missing")
