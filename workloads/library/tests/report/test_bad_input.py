"""Lines that are wrong are counted and said in the report; the numbers are those of the lines that are right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError, Unjudged
from holdfast.report.cli import read_report
from holdfast.report.model import Report
from holdfast.report.page import render
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, KILLS, Line, encoded, line

Spoil = Callable[[list[bytes]], list[bytes]]
GOOD: list[Line] = sample.training("job", kills=KILLS)


def with_line(*more: bytes) -> Spoil:
    return lambda lines: [*lines[:40], *more, *lines[40:]]


def changed(**fields: object) -> bytes:
    return json.dumps(line(EPOCH + 9, "commit", step=1, seconds=1, bytes=1) | fields).encode()


SPOILED: dict[str, tuple[Spoil, str]] = {
    "cut in half": (with_line(b'{"v": 1, "t": 17900', b'"step": 3}'), "2 lines cut short or not JSON"),
    "of another version": (with_line(changed(v=2)), "1 lines of a version other than 1"),
    "written twice": (lambda lines: [*lines, *lines[:7]], "7 duplicated lines"),
    "in milliseconds": (with_line(changed(t=EPOCH * 1000)), "1 lines whose time is no Unix time in seconds"),
    "since boot": (with_line(changed(t=1234.5)), "1 lines whose time is no Unix time in seconds"),
    "no number": (with_line(changed(seconds="soon"), changed(step=-1)), "2 lines with a field that is no amount"),
    "an unknown type": (with_line(changed(event="teleported")), "1 lines of an event type that this version does not know"),
    "no object": (with_line(b"[]", b"7"), "2 lines that are no object"),
    "of nobody": (with_line(b'{"v": 1, "t": 1790000009, "event": "commit"}'), "1 lines without event, job, kind or process"),
}  # fmt: skip


def report_of(folder: Path, lines: list[bytes]) -> Report:
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return read_report(folder, None, machine="g2-standard-8", region="us-central1")


def numbers(report: Report) -> object:
    data = report.as_json()
    return [data[key] for key in ("answer", "jobs", "goodput", "money", "capacity")]


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=list(SPOILED))
def test_lines_that_are_wrong_are_listed_and_change_no_number(tmp_path: Path, spoil: Spoil, reason: str) -> None:
    clean = report_of(tmp_path / "clean", encoded(GOOD))
    spoiled = report_of(tmp_path / "spoiled", spoil(encoded(GOOD)))
    assert [f"{count} {why}" for why, count in spoiled.problems.items()] == [reason]
    assert numbers(spoiled) == numbers(clean)
    assert "could not be used" in spoiled.next_steps[-1]


def test_every_reason_stands_on_the_page(tmp_path: Path) -> None:
    lines = encoded(GOOD)
    for spoil, _ in SPOILED.values():
        lines = spoil(lines)
    report = report_of(tmp_path / "all", lines)
    page = render(report)
    assert len(report.problems) == len({reason.partition(" ")[2] for _, reason in SPOILED.values()})
    assert all(f"{count} {reason}" in page for reason, count in report.problems.items())
    assert "Every event line could be read" not in page


def test_a_clock_that_jumps_back_counts_no_moment_twice(tmp_path: Path) -> None:
    back = [row | {"t": row["t"] - 8} if n >= 30 else row for n, row in enumerate(sample.training("job"))]
    report = report_of(tmp_path / "back", encoded(back))
    [found] = report.ledgers
    assert report.problems["lines whose clock ran backwards"] > 0
    assert sum(found.totals_us().values()) == found.wall_us
    assert 0 < found.goodput < 1


def test_a_clock_that_jumps_ahead_makes_idle_time_and_no_useful_one(tmp_path: Path) -> None:
    [calm] = report_of(tmp_path / "calm", encoded(sample.training("job"))).ledgers
    ahead = [row | {"t": row["t"] + 3600} if n >= 30 else row for n, row in enumerate(sample.training("job"))]
    [found] = report_of(tmp_path / "ahead", encoded(ahead)).ledgers
    useful = [x.totals_us()["productive"] for x in (calm, found)]  # type: ignore[index]
    assert found.wall_us - calm.wall_us == 3_600_000_000
    assert useful[1] <= useful[0] + 1


def test_a_window_without_a_usable_line_is_no_quiet_one(tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match="version other than 1"):
        report_of(tmp_path / "other", [changed(v=2)])
    with pytest.raises(Unjudged, match="the files are empty"):
        report_of(tmp_path / "empty", [])
    with pytest.raises(InputError, match="no event files"):
        read_report(tmp_path / "nothing", None)


def test_a_folder_that_may_not_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(InputError, match="event file"):
        read_report(tmp_path, None)
