"""A job or a pool may be called anything that a line can hold: the report is written, and shows or refuses it."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from holdfast.commands import app
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, KILLS, line

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


def written(folder: Path, names: list[str]) -> tuple[str, dict[str, Any]]:
    rows = sample.training("other")
    for name in names:
        node = {"node": "n" + name, "pool": name, "zone": "z", "machine_type": "g2-standard-8", "capacity": "spot"}
        job = [row | {"process": f"{row['process']}-{ascii(name)[:99]}"} for row in sample.training(name, kills=KILLS)]
        rows += [
            *job,
            line(EPOCH, "node_up", "", "node", "watcher", seconds=0, **node),
            line(EPOCH + 50, "scheduled", name, seconds=3, accelerator="nvidia-l4", **node),
            line(EPOCH + 90, "node_down", "", "node", "watcher", reason="preempted", seconds=90, **node),
        ]
    sample.write(folder / "a.jsonl", sorted(rows, key=lambda row: row["t"]))
    out = folder / "report.html"
    result = CliRunner().invoke(app, ["report", "--events", str(folder), "--out", str(out), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return out.read_text(), json.loads(result.stdout)


def test_odd_names_are_shown_as_they_are(tmp_path: Path) -> None:
    page, data = written(tmp_path, SHOWN)
    assert {row["job"] for row in data["jobs"]} == {"other", *SHOWN}
    assert "<script>alert" not in page


def test_names_that_no_page_can_hold_are_refused_and_counted(tmp_path: Path) -> None:
    page, data = written(tmp_path, REFUSED)
    assert [row["job"] for row in data["jobs"]] == ["other"]
    assert "had problems" in page
