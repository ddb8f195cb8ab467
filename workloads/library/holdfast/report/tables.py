"""The tables of a page, few enough rows for a person. Pure.

Guarantee: the rows of a table, the row of the rest included, add up to all there is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.money import Money
from holdfast.place.churn.estimate import Exposure
from holdfast.report.bounds import MOST_EVICTIONS, MOST_OPEN_ROWS, MOST_ROWS, cut
from holdfast.report.capacity import Capacities, Loss, Saves, Wait
from holdfast.report.goodput import HOUR_S, Bucket, Totals, length_s, totals_of
from holdfast.report.objectives import Objective
from holdfast.report.text import moment, percent, plural, seconds
from holdfast.report.theme import ORDER

MOST_STRETCHES, MOST_POOLS = 100, 8


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    """A column of numbers begins with #."""
    rows: list[tuple[str, ...]]
    """The first cell names the row."""
    title: str = ""
    note: str = ""
    """What was left out."""


STATE_COLUMNS = ("#wall, s", "#useful %", *(f"#{state.value}" for state in ORDER))


def objectives(goals: Iterable[Objective]) -> list[tuple[str, str, str, str]]:
    return [(goal.goal, goal.measured, f"{goal.n:,}", goal.verdict.value) for goal in goals]


def money(found: Money) -> Table:
    """Of what each capacity costs."""
    low, high = found.interval
    calm = "the same work without the evictions"
    rows = [
        ("Spot", found.prices.spot, found.usd_per_useful_h,
         f"measured, {found.evictions} evictions; 90 %: {low:.3f} to {high:.3f}"),
        ("flex-start", found.prices.flex_start, found.flex_usd_per_useful_h, calm),
        ("on-demand", found.prices.on_demand, found.on_demand_usd_per_useful_h, calm),
    ]  # fmt: skip
    shown = [(name, f"{usd:.3f}", f"{useful:.3f}", basis) for name, usd, useful, basis in rows if usd and useful]
    return Table(("Capacity", "#$ an hour", "#$ per useful hour", "Basis"), list(shown), "Money")


def goodput(found: Iterable[Bucket]) -> Table:
    return Table(("From, UTC", *STATE_COLUMNS), [(b.begin, *_states(b)) for b in found], "goodput over time in seconds")


def _states(found: Totals | Bucket) -> tuple[str, ...]:
    return (
        seconds(found.wall_us),
        percent(found.goodput),
        *(seconds(found.states_us.get(state, 0)) for state in ORDER),
    )


def job_rows(ledgers: Sequence[JobLedger]) -> list[Totals]:
    """One for each job; of many jobs the worst, the others together, and all."""
    found = cut(ledgers, MOST_ROWS, lambda one: one.unused_us)
    rows = [totals_of(one.run, [one]) for one in found.rows]
    if found.rest:
        rows.append(totals_of(f"the other {plural(len(found.rest), 'job')}", found.rest))
        rows.append(totals_of(f"all {len(ledgers):,} jobs", ledgers))
    return rows


def jobs(ledgers: Sequence[JobLedger], title: str) -> Table:
    rows = [(row.name, *_states(row), str(row.evictions), str(row.lost)) for row in job_rows(ledgers)]
    return Table(("Job", *STATE_COLUMNS, "#evictions", "#done again"), rows, f"{title} in seconds")


def evictions(ledgers: Sequence[JobLedger]) -> Table:
    """Those that nothing came back from first; then by how long it took."""
    every = [(x, r) for x in ledgers for r in x.recoveries]
    found = cut(every, MOST_EVICTIONS, lambda pair: math.inf if pair[1].seconds is None else pair[1].seconds)
    rows = [
        (x.run, seconds(r.t_us - x.begin_us), r.signal, r.target,
         "not within the events" if r.seconds is None else f"{r.seconds:.1f}", str(r.lost_steps))
        for x, r in found.rows
    ]  # fmt: skip
    if found.rest:
        never = sum(r.seconds is None for _, r in found.rest)
        longest_s = max((r.seconds for _, r in found.rest if r.seconds is not None), default=0.0)
        back = f"{never} not within the events" if never else f"at most {longest_s:.1f}"
        again = sum(r.lost_steps for _, r in found.rest)
        rows.append((f"the other {plural(len(found.rest), 'eviction')}", "", "", "", back, str(again)))
    title = found.sentence("evictions", "those after which work took longest to go on") or "every eviction"
    return Table(("Job", "#at, s", "signal", "target", "#back after, s", "#done again"), rows, title)


def served(serving: Mapping[str, Any]) -> Table | None:
    """What a drill or the demo counted of online requests; None where nothing was asked."""
    if not serving.get("requests"):
        return None
    known = {
        "servers": "servers, on demand and Spot",
        "evictions": "evictions",
        "requests": "requests",
        "failed": "failed",
        "shed": "shed: refused for load, with 429",
        "retries": "tried again by the proxy",
        "p99_ms": "99 of 100 answered within, ms",
    }
    # "?" and not 0: what was not counted is not known to be none.
    rows = [(label, f"{serving[key]:,}" if key in serving else "?") for key, label in known.items()]
    return Table(("Counted", "#n"), rows, "Online serving")


def churn(capacity: Capacities) -> Table:
    """By pool first, then by the age of the node."""
    found = cut(capacity.churn, MOST_OPEN_ROWS, lambda pair: pair[1].events)
    groups = [(g.pool or "no pool", f"{g.machine_type} {g.zone}".strip(), exposure) for g, exposure in found.rows]
    if found.rest:
        # Events and hours are added; a rate of the rest follows from the sums, never from the rates.
        rest = sum((exposure for _, exposure in found.rest), Exposure())
        groups.append((f"the other {plural(len(found.rest), 'group')}", "together", rest))
    groups += [
        ("all", f"{low:g} to {high:g} h old" if math.isfinite(high) else f"over {low:g} h old", exposure)
        for low, high, exposure in capacity.ages
        # A band that no node reached has no rate.
        if exposure.hours
    ]
    rows = [
        (name, where, f"{e.events:.0f}", f"{e.hours:.1f}", "unknown" if e.per_hour is None else f"{e.per_hour:.3f}",
         "{:.3f} to {:.3f}".format(*e.interval()))
        for name, where, e in groups
    ]  # fmt: skip
    head = ("Pool", "Machine, zone, or age", "#preemptions", "#node-hours", "#an hour", "#90 %")
    return Table(head, rows, "Preemptions a node-hour")


def waits(found: Sequence[Wait], title: str) -> Table:
    kept = cut(found, MOST_OPEN_ROWS, lambda wait: wait.longest_s)
    rows = [
        (*w.kind.values(), str(w.n), f"{w.p50_s:,.0f}", f"{w.p95_s:,.0f}", f"{w.longest_s:,.0f}") for w in kept.rows
    ]
    kinds = [name.capitalize() for name in found[0].kind] if found else []
    note = kept.sentence("kinds", "those with the longest waits")
    return Table((*kinds, "#n", "#p50, s", "#p95, s", "#longest, s"), rows, title, note)


def saves(found: Sequence[Saves]) -> Table:
    """Of many jobs those that saves held up longest, and the others together; their median is not known."""
    kept = cut(found, MOST_OPEN_ROWS, lambda one: one.blocked_s)
    shown = kept.rows
    if kept.rest:
        rest = Saves(
            job=f"the other {plural(len(kept.rest), 'job')}",
            commits=sum(one.commits for one in kept.rest),
            failed=sum(one.failed for one in kept.rest),
            blocked_s=sum(one.blocked_s for one in kept.rest),
            # Medians of jobs do not add up to a median of all.
            age_p50_s=None,
            age_max_s=max((one.age_max_s for one in kept.rest if one.age_max_s is not None), default=None),
        )
        shown = [*shown, rest]
    ages = [["none" if age is None else f"{age:.1f}" for age in (s.age_p50_s, s.age_max_s)] for s in shown]
    rows = [
        (s.job, str(s.commits), str(s.failed), f"{s.blocked_s:.1f}", *age) for s, age in zip(shown, ages, strict=True)
    ]
    head = ("Job", "#committed", "#failed", "#blocked, s", "#age at eviction, median s", "#oldest, s")
    return Table(head, rows, "Saves")


def losses(found: Sequence[Loss]) -> tuple[int, list[Loss]]:
    """Preemptions by stretch and pool, and the seconds of a stretch: the shortest that makes the rows few enough."""
    named = few_pools(found, MOST_POOLS)
    moments = [_unix_s(begin) for begin, _, _ in named]
    stretch_s = max(HOUR_S, length_s(min(moments), max(moments) + 1, 1, MOST_STRETCHES))
    sums = Counter[tuple[int, str]]()
    for at, (_, pool, count) in zip(moments, named, strict=True):
        # Stretches are counted from the epoch, so two reports share their edges.
        sums[at // stretch_s * stretch_s, pool] += count
    return stretch_s, [(moment(at), pool, count) for (at, pool), count in sorted(sums.items())]


def few_pools(found: Sequence[Loss], most: int) -> list[Loss]:
    """The pools beyond this number, those that lost least, are one."""
    sums = Counter[str]()
    for _, pool, count in found:
        sums[pool] += count
    if len(sums) <= most:
        return list(found)
    kept = {pool for pool, _ in sums.most_common(most - 1)}
    # One pool takes the place of the rest, hence `most - 1`.
    rest = f"{len(sums) - len(kept)} other pools"
    added = Counter[tuple[str, str]]()
    for begin, pool, count in found:
        added[begin, pool if pool in kept else rest] += count
    return [(begin, pool, count) for (begin, pool), count in sorted(added.items())]


def _unix_s(begin: str) -> int:
    return round(datetime.fromisoformat(begin).timestamp())
