"""Tests the sums of receipts by team: each receipt counts once, and other lines are skipped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.controllers import loop
from holdfast.platform.document import Team
from holdfast.report import teams
from holdfast.report.bill import print_bill
from holdfast.support.errors import InputError
from tests import platforms


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
    costs = teams.read(file).costs
    sums = {}
    for cost in costs:
        sums[cost.team] = (cost.jobs, cost.paid_usd, cost.wasted_usd)
    assert sums == {"vision": (2, 7.0, 2.0), "default": (1, 3.0, 1.0)}
    vision, default = teams.table(costs).rows
    assert vision[0] == "vision"
    assert default[0] == "default"


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "0 lines"), ("{}", "none is a receipt"), (receipt("a", paid_usd="3"), "paid_usd")],
)
def test_a_file_without_receipts_is_no_free_month(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "mover.log"
    file.write_text(text)
    with pytest.raises(InputError, match="receipts are not usable") as caught:
        teams.read(file)
    assert word in caught.value.lines()


def test_folder_with_log_entries_is_read(tmp_path: Path) -> None:
    """A sink writes a file an hour, and may deliver an entry twice."""
    first = json.loads(receipt("a", team="vision"))
    entries = [
        {
            "insertId": "1",
            "jsonPayload": first,
            "receiveTimestamp": "2026-11-02T10:00:01Z",
        },
        {
            "insertId": "1",
            "jsonPayload": first,
            "receiveTimestamp": "2026-11-02T10:00:09Z",
        },
        {"insertId": "2", "textPayload": "holdfast.receipt/1"},
    ]
    day = tmp_path / "2026" / "11" / "02"
    day.mkdir(parents=True)
    lines = map(json.dumps, entries)
    (day / "10:00:00_10:59:59_S0.json").write_text("\n".join(lines))
    (day / "11:00:00_11:59:59_S0.json").write_text(receipt("b", team="vision"))
    (cost,) = teams.read(tmp_path).costs
    assert cost.team == "vision"
    assert cost.jobs == 2
    assert cost.paid_usd == 6.0


def test_bill_adds_up_teams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        receipt("a", team="vision"),
        receipt("b", team="speech", paid_usd=4.5),
    ]
    (tmp_path / "mover.log").write_text("\n".join(lines))
    print_bill(tmp_path, as_json=True)
    bill = json.loads(capsys.readouterr().out)
    assert bill["schema"] == "holdfast.bill/1"
    speech, vision = bill["teams"]
    assert speech["team"] == "speech"
    assert vision["team"] == "vision"
    assert bill["total"]["jobs"] == 2
    assert bill["total"]["paid_usd"] == 7.5
    print_bill(tmp_path, as_json=False)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split() == ["total", "2", "4.0", "7.50", "2.00", "12.00"]


def entry(month: str, **fields: Any) -> str:
    """An entry of Cloud Logging."""
    payload = json.loads(receipt("a", **fields))
    return json.dumps({"timestamp": f"{month}-02T10:00:00Z", "jsonPayload": payload})


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """The document of a platform on which `vision` and `speech` have a budget of 10 dollars."""
    example = platforms.load("example")
    shared = [Team(name="vision", namespaces=("vision",), budget_usd=10)]
    shared.append(Team(name="speech", namespaces=("speech",), budget_usd=10))
    return platforms.write_document(replace(example, teams=(*example.teams, *shared)), tmp_path)


def test_bill_shows_budgets_and_exits_1_above_one(
    tmp_path: Path, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "receipts"
    lines = [
        entry("2026-11", team="vision", paid_usd=12.5),
        entry("2026-11", team="speech", paid_usd=7.5),
        entry("2026-11"),
    ]
    file.write_text("\n".join(lines))
    assert print_bill(file, document, as_json=False) == 1
    out, err = capsys.readouterr()
    rows = []
    for line in out.splitlines()[1:]:
        team, *_, budget, share = line.split()
        rows.append((team, budget, share))
    assert rows == [
        ("vision", "10", "125%"),
        ("speech", "10", "75%"),
        ("default", "-", "-"),
        ("total", "-", "-"),
    ]
    assert err == "vision is over its budget: $12.50 of $10\n"
    file.write_text("\n".join(lines[1:]))
    assert print_bill(file, document, as_json=True) == 0
    bill = json.loads(capsys.readouterr().out)
    first, second = bill["teams"]
    assert first["budget_usd"] == 10
    assert second["budget_usd"] is None


@pytest.mark.parametrize(
    ("lines", "months"),
    [
        ([entry("2026-10", team="vision"), entry("2026-11", team="speech")], "2026-10, 2026-11"),
        ([receipt("a", team="vision", paid_usd=99.0)], "no known month"),
        (
            [receipt("a", team="vision", paid_usd=99.0), entry("2026-11", team="vision")],
            "no known month, 2026-11",
        ),
    ],
)
def test_budget_is_only_compared_with_one_month(
    tmp_path: Path,
    document: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    months: str,
) -> None:
    file = tmp_path / "receipts"
    file.write_text("\n".join(lines))
    assert print_bill(file, document, as_json=False) == 0
    out, err = capsys.readouterr()
    assert f"the receipts are of {months}. Name" in err
    assert "budget" not in out


def test_namespaces_are_mapped_to_teams() -> None:
    assert loop.read_teams(()) == {"training": "default", "batch": "default"}
    assert loop.read_teams(["vision=a", "vision=b"]) == {"a": "vision", "b": "vision"}
    with pytest.raises(InputError, match="--team"):
        loop.read_teams(["vision"])
