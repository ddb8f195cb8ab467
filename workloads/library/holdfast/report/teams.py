"""Receipts summed by team, from the lines that the mover prints."""

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
    """Of the jobs of a team that have a receipt."""

    team: str
    jobs: int
    machine_hours: float
    useful_hours: float
    paid_usd: float
    wasted_usd: float
    """Of it, by evictions."""
    on_demand_usd: float
    """The same work on demand."""


def read(path: Path) -> tuple[TeamCost, ...]:
    """By what was paid, the most first. Other lines are left out, and a receipt that comes twice
    counts once. Raises InputError for a file without a receipt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from error
    found = {
        line: receipt for line in lines if SCHEMA in line and (receipt := _receipt(path, line))
    }
    if not found:
        raise _refused(path, f"{len(lines)} lines, and none is a receipt")
    return summed(found.values())


def _receipt(path: Path, line: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    wrong = [key for key in SUMMED if not isinstance(found.get(key), int | float)]
    if wrong:
        raise _refused(path, f"{wrong[0]}: {found.get(wrong[0])!r:.80}")
    return found


def summed(receipts: Iterable[dict[str, Any]]) -> tuple[TeamCost, ...]:
    by_team: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for receipt in receipts:
        by_team[str(receipt.get("team", DEFAULT_TEAM))].append(receipt)
    made = (
        TeamCost(
            team=team, jobs=len(own), **{key: sum(each[key] for each in own) for key in SUMMED}
        )
        for team, own in by_team.items()
    )
    return tuple(sorted(made, key=lambda cost: (-cost.paid_usd, cost.team)))


def table(costs: Iterable[TeamCost]) -> Table:
    rows = []
    for each in costs:
        rows.append(
            (
                each.team,
                str(each.jobs),
                f"{each.machine_hours:.1f}",
                f"{each.paid_usd:.2f}",
                f"{each.wasted_usd:.2f}",
                f"{each.on_demand_usd:.2f}",
            )
        )
    head = (
        "Team",
        "#jobs",
        "#machine hours",
        "#paid, $",
        "#wasted by evictions, $",
        "#on demand, $",
    )
    return Table(head, rows, "receipts by team")


def _refused(path: Path, got: str) -> InputError:
    return InputError(
        "--receipts is not usable",
        got=f"{path}: {got}",
        allowed=f"JSON lines of {SCHEMA}, as the mover prints them",
        fix=(
            "kubectl logs -n monitoring deploy/mover -c main > FILE, or the same lines from Cloud"
            " Logging"
        ),
    )
