"""The tables of a page, few enough rows for a person. Pure.

Guarantee: the rows of a table, the row of the rest included, add up to all there is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.cost.churn.estimate import Exposure
from holdfast.cost.money import Money
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report.bounds import MOST_EVICTIONS, MOST_OPEN_ROWS, MOST_ROWS, cut
from holdfast.report.capacity import Capacities, Wait
from holdfast.report.objectives import Objective
from holdfast.report.text import percent, plural, seconds
from holdfast.report.theme import ORDER
from holdfast.report.totals import Totals, totals_of


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    """A column of numbers begins with #."""
    rows: list[tuple[str, ...]]
    """The first cell names the row."""
    title: str = ""
    note: str = ""
    """What was left out."""


def objectives(goals: Iterable[Objective]) -> list[tuple[str, str, str, str]]:
    return [(goal.goal, goal.measured, f"{goal.n:,}", goal.verdict.value) for goal in goals]


def money(found: Money) -> Table:
    """Of what each capacity costs."""
    low, high = found.interval
    calm = "the same work without the evictions"
    rows = [
        (
            "Spot",
            found.prices.spot,
            found.usd_per_useful_h,
            f"measured, {found.evictions} evictions; 90 %: {low:.3f} to {high:.3f}",
        ),
        ("flex-start", found.prices.flex_start, found.flex_usd_per_useful_h, calm),
        ("on-demand", found.prices.on_demand, found.on_demand_usd_per_useful_h, calm),
    ]
    shown = []
    for name, usd, useful, basis in rows:
        if usd and useful:
            shown.append((name, f"{usd:.3f}", f"{useful:.3f}", basis))
    return Table(("Capacity", "#$ an hour", "#$ per useful hour", "Basis"), list(shown), "Money")


def job_rows(ledgers: Sequence[JobLedger]) -> list[Totals]:
    """One for each job; of many jobs the worst, the others together, and all."""
    found = cut(ledgers, MOST_ROWS, lambda one: one.unused_us)
    rows = [totals_of(one.run, [one]) for one in found.rows]
    if found.rest:
        rows.append(totals_of(f"the other {plural(len(found.rest), 'job')}", found.rest))
        rows.append(totals_of(f"all {len(ledgers):,} jobs", ledgers))
    return rows


def jobs(ledgers: Sequence[JobLedger], title: str) -> Table:
    rows = []
    for row in job_rows(ledgers):
        rows.append(
            (
                row.name,
                seconds(row.wall_us),
                percent(row.goodput),
                *(seconds(row.states_us[state]) for state in ORDER),
                str(row.evictions),
                str(row.lost),
            )
        )
    states = (f"#{state.value}" for state in ORDER)
    head = ("Job", "#wall, s", "#useful %", *states, "#evictions", "#done again")
    return Table(head, rows, f"{title} in seconds")


def evictions(ledgers: Sequence[JobLedger]) -> Table:
    """Those that nothing came back from first; then by how long it took."""
    every = [(x, r) for x in ledgers for r in x.recoveries]
    found = cut(
        every, MOST_EVICTIONS, lambda pair: math.inf if pair[1].seconds is None else pair[1].seconds
    )
    rows = [
        (
            x.run,
            seconds(r.t_us - x.begin_us),
            r.signal,
            r.target,
            "not within the events" if r.seconds is None else f"{r.seconds:.1f}",
            str(r.lost_steps),
        )
        for x, r in found.rows
    ]
    if found.rest:
        never = sum(r.seconds is None for _, r in found.rest)
        longest_s = max((r.seconds for _, r in found.rest if r.seconds is not None), default=0.0)
        back = f"{never} not within the events" if never else f"at most {longest_s:.1f}"
        again = sum(r.lost_steps for _, r in found.rest)
        rows.append(
            (f"the other {plural(len(found.rest), 'eviction')}", "", "", "", back, str(again))
        )
    title = (
        found.sentence("evictions", "those after which work took longest to go on")
        or "every eviction"
    )
    return Table(
        ("Job", "#at, s", "signal", "target", "#back after, s", "#done again"), rows, title
    )


def churn(capacity: Capacities) -> Table:
    found = cut(capacity.churn, MOST_OPEN_ROWS, lambda pair: pair[1].events)
    groups = [
        (g.pool or "no pool", f"{g.machine_type} {g.zone}".strip(), exposure)
        for g, exposure in found.rows
    ]
    if found.rest:
        # Events and hours are added; a rate of the rest follows from the sums, never from the
        # rates.
        rest = sum((exposure for _, exposure in found.rest), Exposure())
        groups.append((f"the other {plural(len(found.rest), 'group')}", "together", rest))
    rows = []
    for name, where, e in groups:
        rows.append(
            (
                name,
                where,
                f"{e.events:.0f}",
                f"{e.hours:.1f}",
                "unknown" if e.per_hour is None else f"{e.per_hour:.3f}",
                "{:.3f} to {:.3f}".format(*e.interval()),
            )
        )
    head = ("Pool", "Machine, zone", "#preemptions", "#node-hours", "#an hour", "#90 %")
    return Table(head, rows, "Preemptions a node-hour")


def waits(found: Sequence[Wait], title: str) -> Table:
    kept = cut(found, MOST_OPEN_ROWS, lambda wait: wait.longest_s)
    rows = [
        (*w.kind.values(), str(w.n), f"{w.p50_s:,.0f}", f"{w.p95_s:,.0f}", f"{w.longest_s:,.0f}")
        for w in kept.rows
    ]
    kinds = [name.capitalize() for name in found[0].kind] if found else []
    note = kept.sentence("kinds", "those with the longest waits")
    return Table((*kinds, "#n", "#p50, s", "#p95, s", "#longest, s"), rows, title, note)
