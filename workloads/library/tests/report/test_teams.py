"""Tests the sums of receipts by team: each receipt counts once, and other lines are skipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.controllers import loop
from holdfast.report import teams
from holdfast.support.errors import InputError


def receipt(job: str, **fields: Any) -> str:
    defaults = {
        "schema": "holdfast.receipt/1",
        "job": job,
        "machine_hours": 2.0,
        "useful_hours": 1.0,
        "paid_usd": 3.0,
        "wasted_usd": 1.0,
        "on_demand_usd": 6.0,
    }
    return json.dumps(defaults | fields)


def test_each_receipt_counts_once_for_its_team(tmp_path: Path) -> None:
    file = tmp_path / "mover.log"
    lines = [
        receipt("a", team="vision"),
        receipt("a", team="vision"),
        receipt("b", team="vision", paid_usd=4.0),
        receipt("old"),
        "INFO a: holdfast.receipt/1 was left",
        '{"event": "moved"}',
    ]
    file.write_text("\n".join(lines))
    costs = teams.read(file)
    sums = {cost.team: (cost.jobs, cost.paid_usd, cost.wasted_usd) for cost in costs}
    assert sums == {"vision": (2, 7.0, 2.0), "default": (1, 3.0, 1.0)}
    assert [row[0] for row in teams.table(costs).rows] == ["vision", "default"]


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "0 lines"), ("{}", "none is a receipt"), (receipt("a", paid_usd="3"), "paid_usd")],
)
def test_a_file_without_receipts_is_no_free_month(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "mover.log"
    file.write_text(text)
    with pytest.raises(InputError, match="--receipts") as caught:
        teams.read(file)
    assert word in caught.value.lines()


def test_namespaces_are_mapped_to_teams() -> None:
    assert loop.read_teams(()) == {"training": "default", "batch": "default"}
    assert loop.read_teams(["vision=a", "vision=b"]) == {"a": "vision", "b": "vision"}
    with pytest.raises(InputError, match="--team"):
        loop.read_teams(["vision"])
