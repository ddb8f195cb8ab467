"""The tables of a page, with a limited number of rows.

The rows of a table, including the row of the rest, add up to the whole.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.cost.churn.estimate import Exposure
from holdfast.cost.money import Money
from holdfast.ledger.account import Recovery
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report.bounds import MOST_EVICTIONS, MOST_OPEN_ROWS, MOST_ROWS, cut
from holdfast.report.capacity import Capacities, Wait
from holdfast.report.charts import list_evictions
from holdfast.report.objectives import Objective
from holdfast.report.text import percent, plural, seconds
from holdfast.report.theme import ORDER
from holdfast.report.totals import Totals, add_up
from holdfast.vocabulary.capacity import RATING_WINDOW_S


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    """The column titles; that of a column of numbers begins with #."""
    rows: list[tuple[str, ...]]
    """The cells; the first one names the row."""
    title: str = ""
    note: str = ""
    """A sentence about rows that were left out."""


def objectives(goals: Iterable[Objective]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for goal in goals:
        rows.append((goal.goal, goal.measured, f"{goal.n:,}", goal.verdict.value))
    return rows


def money(costs: Money) -> Table:
    """Returns the cost of each capacity that has a price."""
    low, high = costs.interval
    measured = f"measured, {costs.evictions} evictions; 90 %: {low:.3f} to {high:.3f}"
    computed = "the same work without the evictions"
    prices = costs.prices
    capacities = (
        ("Spot", prices.spot, costs.usd_per_useful_h, measured),
        ("flex-start", prices.flex_start, costs.flex_usd_per_useful_h, computed),
        ("on-demand", prices.on_demand, costs.on_demand_usd_per_useful_h, computed),
    )
    rows: list[tuple[str, ...]] = []
    for name, usd, useful_usd, basis in capacities:
        if usd and useful_usd:
            rows.append((name, f"{usd:.3f}", f"{useful_usd:.3f}", basis))
    return Table(("Capacity", "#$ an hour", "#$ per useful hour", "Basis"), rows, "Money")


def job_rows(ledgers: Sequence[JobLedger]) -> list[Totals]:
    """Returns a row per job; if there are many, the worst jobs, the rest together, and all."""
    jobs = cut(ledgers, MOST_ROWS, lambda ledger: ledger.unused_us)
    rows = [add_up(ledger.run, [ledger]) for ledger in jobs.rows]
    if jobs.rest:
        number_of_jobs = plural(len(jobs.rest), "job")
        rows.append(add_up(f"the other {number_of_jobs}", jobs.rest))
        rows.append(add_up(f"all {len(ledgers):,} jobs", ledgers))
    return rows


def jobs(ledgers: Sequence[JobLedger], title: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for total in job_rows(ledgers):
        durations = [seconds(total.states_us[state]) for state in ORDER]
        row = (
            total.name,
            seconds(total.wall_us),
            percent(total.goodput),
            *durations,
            str(total.evictions),
            str(total.lost),
        )
        rows.append(row)
    states = [f"#{state.value}" for state in ORDER]
    head = ("Job", "#wall, s", "#useful %", *states, "#evictions", "#done again")
    return Table(head, rows, f"{title} in seconds")


def evictions(ledgers: Sequence[JobLedger]) -> Table:
    """Returns a row per eviction; if there are many, those with the longest recovery.

    An eviction without a recovery counts as the longest.
    """
    evictions = cut(list_evictions(ledgers), MOST_EVICTIONS, _recovery_time)
    rows: list[tuple[str, ...]] = []
    for ledger, recovery in evictions.rows:
        row = (
            ledger.run,
            seconds(recovery.t_us - ledger.begin_us),
            recovery.signal,
            recovery.target,
            "not within the events" if recovery.seconds is None else f"{recovery.seconds:.1f}",
            str(recovery.lost_steps),
        )
        rows.append(row)
    if evictions.rest:
        rows.append(_sum_evictions([recovery for _, recovery in evictions.rest]))
    title = evictions.sentence("evictions", "those after which work took longest to go on")
    head = ("Job", "#at, s", "signal", "target", "#back after, s", "#done again")
    return Table(head, rows, title or "every eviction")


def _recovery_time(eviction: tuple[JobLedger, Recovery]) -> float:
    _, recovery = eviction
    return math.inf if recovery.seconds is None else recovery.seconds


def _sum_evictions(recoveries: Sequence[Recovery]) -> tuple[str, ...]:
    """Returns one row for the evictions that the table leaves out."""
    unrecovered = 0
    longest_s = 0.0
    steps = 0
    for recovery in recoveries:
        steps += recovery.lost_steps
        if recovery.seconds is None:
            unrecovered += 1
        else:
            longest_s = max(longest_s, recovery.seconds)
    duration = f"at most {longest_s:.1f}"
    if unrecovered:
        duration = f"{unrecovered} not within the events"
    name = f"the other {plural(len(recoveries), 'eviction')}"
    return name, "", "", "", duration, str(steps)


def churn(capacity: Capacities) -> Table:
    groups = cut(capacity.churn, MOST_OPEN_ROWS, lambda pair: pair[1].events)
    rows: list[tuple[str, ...]] = []
    for group, exposure in groups.rows:
        machine = f"{group.machine_type} {group.zone}".strip()
        rows.append(_churn_row(group.pool or "no pool", machine, exposure))
    if groups.rest:
        # The rate of the rest follows from the sums of events and hours, never from rates.
        total = Exposure()
        for _, exposure in groups.rest:
            total += exposure
        name = f"the other {plural(len(groups.rest), 'group')}"
        rows.append(_churn_row(name, "together", total))
    head = ("Pool", "Machine, zone", "#preemptions", "#node-hours", "#an hour", "#90 %")
    return Table(head, rows, "Preemptions a node-hour")


def _churn_row(name: str, machine: str, exposure: Exposure) -> tuple[str, ...]:
    low, high = exposure.interval()
    return (
        name,
        machine,
        f"{exposure.events:.0f}",
        f"{exposure.hours:.1f}",
        "unknown" if exposure.per_hour is None else f"{exposure.per_hour:.3f}",
        f"{low:.3f} to {high:.3f}",
    )


def ratings(capacity: Capacities) -> Table:
    """Returns how often the machines came that Google rated, by capacity and band of ratings."""
    rows: list[tuple[str, ...]] = []
    largest = cut(capacity.ratings, MOST_OPEN_ROWS, lambda rating: rating.n)
    for rating in largest.rows:
        row = (
            rating.capacity,
            rating.band,
            str(rating.n),
            str(rating.came),
            percent(rating.came / rating.n),
        )
        rows.append(row)
    head = ("Capacity", "Google's rating", "#n", "#came", "#came %")
    minutes = f"{RATING_WINDOW_S / 60:.0f} minutes"
    return Table(head, rows, f"Machines that came within {minutes} of Google's rating")


def waits(kinds: Sequence[Wait], title: str) -> Table:
    """Returns a row per kind of wait; if there are many, those with the longest waits."""
    longest = cut(kinds, MOST_OPEN_ROWS, lambda wait: wait.longest_s)
    rows: list[tuple[str, ...]] = []
    for wait in longest.rows:
        row = (
            *wait.kind.values(),
            str(wait.n),
            f"{wait.p50_s:,.0f}",
            f"{wait.p95_s:,.0f}",
            f"{wait.longest_s:,.0f}",
        )
        rows.append(row)
    columns = [name.capitalize() for name in kinds[0].kind] if kinds else []
    note = longest.sentence("kinds", "those with the longest waits")
    return Table((*columns, "#n", "#p50, s", "#p95, s", "#longest, s"), rows, title, note)
