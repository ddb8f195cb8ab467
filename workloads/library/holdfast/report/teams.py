"""Receipts summed by team, from the lines that the mover prints or Cloud Logging stored."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.cost.receipt import SCHEMA
from holdfast.report.tables import Table
from holdfast.support.errors import InputError
from holdfast.vocabulary.roles import DEFAULT_TEAM

SUMMED = ("machine_hours", "useful_hours", "paid_usd", "wasted_usd", "on_demand_usd")


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamCost:
    """Sums over the jobs of a team that have a receipt."""

    team: str
    jobs: int
    machine_hours: float
    useful_hours: float
    paid_usd: float
    wasted_usd: float
    """The part of the paid amount that evictions wasted."""
    on_demand_usd: float
    """The price of the same work on demand."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """The costs of teams, and the time of the receipts behind them."""

    costs: tuple[TeamCost, ...]
    """The highest first."""
    months: frozenset[str]
    """Months in which the jobs ended, as 2026-11; empty text for a receipt without a time."""


def read(path: Path) -> Bill:
    """Returns the bill of a file with receipts, or of all files of a folder.

    Other lines are skipped, and a repeated receipt counts once. Raises InputError if there is no
    receipt.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    lines: list[str] = []
    try:
        for file in files:
            lines += file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _make_error(path, str(error)) from error
    receipts: dict[str, dict[str, Any]] = {}
    months: set[str] = set()
    for line in lines:
        entry = _parse_entry(line)
        receipt = _find_receipt(path, entry)
        if receipt:
            # Cloud Logging may store an entry twice, with other times around it.
            receipts[json.dumps(receipt, sort_keys=True)] = receipt
            months.add(_find_month(entry))
    if not receipts:
        raise _make_error(path, f"{len(lines)} lines, and none is a receipt")
    return Bill(costs=add_up_by_team(receipts.values()), months=frozenset(months))


def _parse_entry(line: str) -> dict[str, Any]:
    """Parses an entry of Cloud Logging or a receipt of the mover. Other lines are empty."""
    if SCHEMA not in line:
        return {}
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _find_month(entry: dict[str, Any]) -> str:
    """Returns the month of an entry of Cloud Logging, as 2026-11."""
    time = str(entry.get("timestamp", ""))
    return time[: len("2026-11")]


def _find_receipt(path: Path, entry: dict[str, Any]) -> dict[str, Any] | None:
    receipt = entry.get("jsonPayload", entry)
    if not isinstance(receipt, dict) or receipt.get("schema") != SCHEMA:
        return None
    for key in SUMMED:
        value = receipt.get(key)
        if not isinstance(value, int | float):
            raise _make_error(path, f"{key}: {value!r:.80}")
    return receipt


def add_up_by_team(receipts: Iterable[dict[str, Any]]) -> tuple[TeamCost, ...]:
    receipts_by_team: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for receipt in receipts:
        team = str(receipt.get("team", DEFAULT_TEAM))
        receipts_by_team[team].append(receipt)
    costs: list[TeamCost] = []
    for team, team_receipts in receipts_by_team.items():
        sums: dict[str, Any] = {}
        for key in SUMMED:
            sums[key] = sum(receipt[key] for receipt in team_receipts)
        cost = TeamCost(team=team, jobs=len(team_receipts), **sums)
        costs.append(cost)
    costs.sort(key=lambda cost: (-cost.paid_usd, cost.team))
    return tuple(costs)


def table(costs: Iterable[TeamCost]) -> Table:
    rows: list[tuple[str, ...]] = []
    for cost in costs:
        row = (
            cost.team,
            str(cost.jobs),
            f"{cost.machine_hours:.1f}",
            f"{cost.paid_usd:.2f}",
            f"{cost.wasted_usd:.2f}",
            f"{cost.on_demand_usd:.2f}",
        )
        rows.append(row)
    head = (
        "Team",
        "#jobs",
        "#machine hours",
        "#paid, $",
        "#wasted by evictions, $",
        "#on demand, $",
    )
    return Table(head, rows, "receipts by team")


def _make_error(path: Path, got: str) -> InputError:
    return InputError(
        "receipts are not usable",
        got=f"{path}: {got}",
        allowed=f"a file or folder with JSON lines of {SCHEMA}",
        fix=(
            "copy them from the platform's bucket of receipts, or kubectl logs -n monitoring"
            " deploy/mover -c main > FILE"
        ),
    )
