"""Implements `holdfast report` without events: the receipts of ended jobs, summed by team."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from holdfast.report import teams
from holdfast.report.teams import SUMMED, TeamCost
from holdfast.support.errors import InputError
from holdfast.support.tables import print_json, print_table


def print_bill(receipts: Path | None, *, as_json: bool) -> None:
    """Prints a row for each team and the total. Raises InputError without a receipt."""
    if receipts is None:
        raise InputError(
            "nothing to report on",
            got="neither --events nor --receipts",
            allowed="a folder with events, or receipts",
            fix="add --events FOLDER, or --receipts FOLDER for the bill of teams alone",
        )
    costs = teams.read(receipts)
    total = add_up(costs)
    if as_json:
        rows = [asdict(cost) for cost in costs]
        print_json("bill", teams=rows, total=asdict(total))
        return
    table = teams.table([*costs, total])
    columns = [title.removeprefix("#") for title in table.head]
    print_table(columns, table.rows)


def add_up(costs: Sequence[TeamCost]) -> TeamCost:
    sums: dict[str, float] = {}
    for key in SUMMED:
        sums[key] = sum(getattr(cost, key) for cost in costs)
    return TeamCost(team="total", jobs=sum(cost.jobs for cost in costs), **sums)
