"""Implements `holdfast report` without events: the receipts of ended jobs, summed by team."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.platform.cluster import find_nearest
from holdfast.report import teams
from holdfast.report.teams import SUMMED, Bill, TeamCost
from holdfast.support.errors import InputError
from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS


def print_bill(receipts: Path | None, platform: Path | None = None, *, as_json: bool) -> int:
    """Prints a row for each team, with its budget if the platform has one, and the total.

    Returns 1 if a team exceeded its budget, else 0. Raises InputError without a receipt.
    """
    if receipts is None:
        raise InputError(
            "nothing to report on",
            got="neither --events nor --receipts",
            allowed="a folder with events, or receipts",
            fix="add --events FOLDER, or --receipts FOLDER for the bill of teams alone",
        )
    bill = teams.read(receipts)
    budgets = find_budgets(platform, bill)
    total = add_up(bill.costs)
    if as_json:
        rows: list[dict[str, Any]] = []
        for cost in bill.costs:
            rows.append(asdict(cost) | {"budget_usd": budgets.get(cost.team)})
        print_json("bill", teams=rows, total=asdict(total))
    else:
        _print_rows([*bill.costs, total], budgets)
    code = EXIT_DONE
    for cost in bill.costs:
        budget_usd = budgets.get(cost.team)
        if budget_usd and cost.paid_usd > budget_usd:
            code = EXIT_FINDINGS
            text = f"{cost.team} is over its budget: ${cost.paid_usd:.2f} of ${budget_usd}"
            print(text, file=sys.stderr)
    return code


def find_budgets(platform: Path | None, bill: Bill) -> dict[str, int]:
    """Returns team -> dollars a month, of the teams that have a budget.

    It is empty without a platform document, and for receipts that are not all of one month.
    """
    document = find_nearest(platform)
    if document is None:
        return {}
    budgets = {team.name: team.budget_usd for team in document.teams if team.budget_usd}
    if budgets and (len(bill.months) > 1 or "" in bill.months):
        months = ", ".join(month or "no known month" for month in sorted(bill.months))
        print(
            f"budgets are of one month and were not compared: the receipts are of {months}."
            " Name the folder of one month in the copied bucket, as receipts/2026/11",
            file=sys.stderr,
        )
        return {}
    return budgets


def _print_rows(costs: Sequence[TeamCost], budgets: Mapping[str, int]) -> None:
    table = teams.table(costs)
    columns = [title.removeprefix("#") for title in table.head]
    rows = list(table.rows)
    if budgets:
        columns += ["budget, $", "of it"]
        rows = []
        for cost, row in zip(costs, table.rows, strict=True):
            budget_cells = _describe_budget(cost, budgets.get(cost.team))
            rows.append((*row, *budget_cells))
    print_table(columns, rows)


def _describe_budget(cost: TeamCost, budget_usd: int | None) -> tuple[str, str]:
    if not budget_usd:
        return "-", "-"
    return str(budget_usd), f"{cost.paid_usd / budget_usd:.0%}"


def add_up(costs: Sequence[TeamCost]) -> TeamCost:
    sums: dict[str, float] = {}
    for key in SUMMED:
        sums[key] = sum(getattr(cost, key) for cost in costs)
    return TeamCost(team="total", jobs=sum(cost.jobs for cost in costs), **sums)
