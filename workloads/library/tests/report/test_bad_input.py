"""Tests that the report counts and lists bad lines, and that its numbers follow from good ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.report.cli import read_report
from holdfast.report.model import Report
from holdfast.report.page import render
from holdfast.support.errors import InputError, Unjudged
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, KILLS, Line, encoded, line

Spoil = Callable[[list[bytes]], list[bytes]]
GOOD: list[Line] = sample.training("job", kills=KILLS)


def with_line(*bad_lines: bytes) -> Spoil:
    return lambda lines: [*lines[:40], *bad_lines, *lines[40:]]


def make_line(**fields: object) -> bytes:
    """Returns the line of a commit with some fields replaced."""
    commit = line(EPOCH + 9, "commit", step=1, seconds=1, bytes=1)
    return json.dumps(commit | fields).encode()


SPOILED: dict[str, tuple[Spoil, str]] = {
    "cut in half": (
        with_line(b'{"v": 1, "t": 17900', b'"step": 3}'),
        "2 lines cut short or not JSON",
    ),
    "of another version": (with_line(make_line(v=2)), "1 lines of a version other than 1"),
    "written twice": (lambda lines: [*lines, *lines[:7]], "7 duplicated lines"),
    "in milliseconds": (
        with_line(make_line(t=EPOCH * 1000)),
        "1 lines whose time is no Unix time in seconds",
    ),
    "since boot": (
        with_line(make_line(t=1234.5)),
        "1 lines whose time is no Unix time in seconds",
    ),
    "no number": (
        with_line(make_line(seconds="soon"), make_line(step=-1)),
        "2 lines with a field that is no amount",
    ),
    "an unknown type": (
        with_line(make_line(event="teleported")),
        "1 lines of an event type that this version does not know",
    ),
    "no object": (with_line(b"[]", b"7"), "2 lines that are no object"),
    "of nobody": (
        with_line(b'{"v": 1, "t": 1790000009, "event": "commit"}'),
        "1 lines without event, job, kind or process",
    ),
}


def make_report(folder: Path, lines: list[bytes]) -> Report:
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return read_report(
        folder,
        None,
        machine="g2-standard-8",
        region="us-central1",
    )


def numbers(report: Report) -> object:
    data = report.as_json()
    return [data[key] for key in ("answer", "jobs", "money", "capacity")]


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=list(SPOILED))
def test_bad_lines_are_listed_and_change_no_number(
    tmp_path: Path, spoil: Spoil, reason: str
) -> None:
    clean = make_report(tmp_path / "clean", encoded(GOOD))
    spoiled = make_report(tmp_path / "spoiled", spoil(encoded(GOOD)))
    ((problem, count),) = spoiled.problems.items()
    assert f"{count} {problem}" == reason
    assert numbers(spoiled) == numbers(clean)
    assert "had problems" in spoiled.next_steps[-1]


def test_every_reason_is_on_the_page_and_nothing_usable_is_no_quiet_window(tmp_path: Path) -> None:
    lines = encoded(GOOD)
    for spoil, _ in SPOILED.values():
        lines = spoil(lines)
    report = make_report(tmp_path / "all", lines)
    page = render(report)
    reasons = set()
    for _, reason in SPOILED.values():
        reasons.add(reason.partition(" ")[2])
    assert len(report.problems) == len(reasons)
    for reason, count in report.problems.items():
        assert f"{reason}: {count}" in page
    assert "Every event line could be read" not in page
    with pytest.raises(Unjudged, match="version other than 1"):
        make_report(tmp_path / "other", [make_line(v=2)])
    with pytest.raises(Unjudged, match="the files are empty"):
        make_report(tmp_path / "empty", [])
    with pytest.raises(InputError, match="no event files"):
        read_report(tmp_path / "nothing", None)


# The name of a job or a pool may be any text: the report shows it or refuses its line.

SHOWN = [
    r"a\1b",
    r"\g<9>",
    r"\u0041",
    "\\",
    "<script>alert(1)</script>",
    "\"'`",
    "{{ 7 * 7 }}",
    "été-任务-🚀",
    "x" * 252,
    " ",
]
REFUSED = ["a\0b", "\x1b[31mred", "line\nbreak", "\ud800", "x" * 254, "\u202egnp"]


def write_report(folder: Path, names: list[str]) -> tuple[str, dict[str, Any]]:
    """Writes a report on jobs and pools of these names; returns its page and its JSON."""
    rows = sample.training("other")
    for name in names:
        node = {
            "node": "n" + name,
            "pool": name,
            "zone": "z",
            "machine_type": "g2-standard-8",
            "capacity": "spot",
        }
        for row in sample.training(name, kills=KILLS):
            process = f"{row['process']}-{ascii(name)[:99]}"
            rows.append(row | {"process": process})
        rows += [
            line(EPOCH, "node_up", "", "node", "watcher", seconds=0, **node),
            line(
                EPOCH + 50,
                "scheduled",
                name,
                seconds=3,
                accelerator="nvidia-l4",
                **node,
            ),
            line(
                EPOCH + 90,
                "node_down",
                "",
                "node",
                "watcher",
                reason="preempted",
                seconds=90,
                **node,
            ),
        ]
    sample.write(folder / "a.jsonl", sorted(rows, key=lambda row: row["t"]))
    out = folder / "report.html"
    command = ["report", "--events", str(folder), "--out", str(out), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return out.read_text(), json.loads(result.stdout)


def list_jobs(data: dict[str, Any]) -> list[str]:
    return [row["job"] for row in data["jobs"]]


def test_odd_names_are_shown_as_they_are(tmp_path: Path) -> None:
    page, data = write_report(tmp_path, SHOWN)
    assert set(list_jobs(data)) == {"other", *SHOWN}
    assert "<script>alert" not in page


def test_names_that_no_page_can_hold_are_refused(tmp_path: Path) -> None:
    page, data = write_report(tmp_path, REFUSED)
    assert list_jobs(data) == ["other"]
    assert "had problems" in page
