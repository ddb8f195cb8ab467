"""Rows of the tables behind the plots, few enough for a page. Pure.

Guarantee: the rows of a table, the row of the rest included, add up to all there is.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.ledger.account import Recovery
from holdfast.ledger.job_ledger import JobLedger
from holdfast.place.churn.estimate import Exposure
from holdfast.report.bounds import MOST_EVICTIONS, MOST_OPEN_ROWS, MOST_ROWS, Cut, cut, delay
from holdfast.report.capacity import Capacities, QueueWait, Saves, Share, Wait
from holdfast.report.sentences import plural
from holdfast.report.totals import Totals, totals_of

Loss = tuple[str, str, int]
MOST_STRETCHES, MOST_LOSSES, MOST_POOLS = 240, 800, 8
# The last one is ten years, so that one always fits.
STRETCHES_H = (1, 3, 6, 12, 24, 72, 168, 672, 2688, 8736, 87_360)


def job_rows(ledgers: Sequence[JobLedger]) -> list[Totals]:
    """One for each job; of many jobs the worst, the others together, and all."""
    found = cut(ledgers, MOST_ROWS, lambda one: one.unused_us)
    rows = [totals_of(one.run, [one]) for one in found.rows]
    if found.rest:
        rows.append(totals_of(f"the other {plural(len(found.rest), 'job')}", found.rest))
        rows.append(totals_of(f"all {len(ledgers):,} jobs", ledgers))
    return rows


@dataclass(frozen=True, slots=True)
class Evictions:
    found: Cut[tuple[JobLedger, Recovery]]

    @property
    def title(self) -> str:
        return self.found.sentence("evictions", "those after which work took longest to go on") or "every eviction"

    @property
    def rest(self) -> tuple[str, int, int]:
        """How many others there are, how many of them nothing came back from, and what they did again."""
        never = sum(r.seconds is None for _, r in self.found.rest)
        again = sum(r.lost_steps for _, r in self.found.rest)
        return f"the other {plural(len(self.found.rest), 'eviction')}", never, again

    @property
    def longest_s(self) -> float:
        return max((r.seconds for _, r in self.found.rest if r.seconds is not None), default=0.0)


def evictions(ledgers: Sequence[JobLedger]) -> Evictions:
    return Evictions(cut([(x, r) for x in ledgers for r in x.recoveries], MOST_EVICTIONS, lambda pair: delay(pair[1])))


def served_rows(serving: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a drill or the demo counted of online requests; empty where nothing was asked."""
    if not serving.get("requests"):
        return []
    known = (
        ("servers", "servers, on demand and Spot"),
        ("evictions", "evictions"),
        ("requests", "requests"),
        ("failed", "failed"),
        ("shed", "shed: refused for load, with 429"),
        ("retries", "tried again by the proxy"),
        ("p99_ms", "99 of 100 answered within, ms"),
    )
    # "?" and not 0: what was not counted is not known to be none.
    return [(label, f"{serving[key]:,}" if key in serving else "?") for key, label in known]


def churn_rows(capacity: Capacities) -> list[tuple[str, str, Exposure]]:
    """By pool first, then by the age of the node."""
    found = cut(capacity.churn, MOST_OPEN_ROWS, lambda pair: pair[1].events)
    groups = [(g.pool or "no pool", f"{g.machine_type} {g.zone}".strip(), exposure) for g, exposure in found.rows]
    if found.rest:
        # Events and hours are added; a rate of the rest follows from the sums, never from the rates.
        rest = sum((exposure for _, exposure in found.rest), Exposure())
        groups.append((f"the other {plural(len(found.rest), 'group')}", "together", rest))
    bands = [
        ("all", f"{low:g} to {high:g} h old" if math.isfinite(high) else f"over {low:g} h old", exposure)
        for low, high, exposure in capacity.ages
        # A band that no node reached has no rate.
        if exposure.hours
    ]
    return groups + bands


def waits(capacity: Capacities) -> Cut[Wait]:
    return cut(capacity.waits, MOST_OPEN_ROWS, lambda wait: wait.n)


def queue_waits(capacity: Capacities) -> Cut[QueueWait]:
    return cut(capacity.queue_waits, MOST_OPEN_ROWS, lambda wait: wait.longest_s or 0.0)


def shares(capacity: Capacities) -> Cut[Share]:
    return cut(capacity.shares, MOST_OPEN_ROWS, lambda share: -share.newest)


def saves(found: Sequence[Saves]) -> list[Saves]:
    """Of many jobs those that saves held up longest, and the others together; their median is not known."""
    kept = cut(found, MOST_OPEN_ROWS, lambda one: one.blocked_s)
    if not kept.rest:
        return kept.rows
    rest = Saves(
        job=f"the other {plural(len(kept.rest), 'job')}",
        commits=sum(one.commits for one in kept.rest),
        failed=sum(one.failed for one in kept.rest),
        blocked_s=sum(one.blocked_s for one in kept.rest),
        # Medians of jobs do not add up to a median of all.
        age_p50_s=None,
        age_max_s=max((one.age_max_s for one in kept.rest if one.age_max_s is not None), default=None),
    )
    return [*kept.rows, rest]


def losses(found: Sequence[Loss]) -> tuple[int, list[Loss]]:
    """Preemptions by stretch and pool, and the hours of a stretch: the shortest that makes the rows few enough."""
    named = few_pools(found, MOST_POOLS)
    tried = ((hours, _by_stretch(named, hours)) for hours in STRETCHES_H)
    return next((hours, rows) for hours, rows in tried if _few(rows, hours))


def _few(rows: Sequence[Loss], hours: int) -> bool:
    stretches = [_hour(begin) // hours for begin, _, _ in rows]
    return len(rows) <= MOST_LOSSES and max(stretches) - min(stretches) < MOST_STRETCHES


def few_pools(found: Sequence[Loss], most: int) -> list[Loss]:
    """The pools beyond so many, those that lost least, are one."""
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


def _by_stretch(found: Sequence[Loss], hours: int) -> list[Loss]:
    sums = Counter[tuple[int, str]]()
    for begin, pool, count in found:
        # Stretches are counted from the epoch, so two reports share their edges.
        sums[_hour(begin) // hours * hours, pool] += count
    return [
        (f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H:00Z}", pool, count)
        for (hour, pool), count in sorted(sums.items())
    ]


def _hour(begin: str) -> int:
    return round(datetime.fromisoformat(begin).timestamp()) // 3600
