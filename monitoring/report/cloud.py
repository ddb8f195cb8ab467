"""A report from Cloud Monitoring alone: what capacity did. Called by cli.py.

The exporter's series hold no event lines, so the parts that need them are named as missing, not drawn empty.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from monitoring import churn_days
from monitoring.churn import Exposure
from monitoring.churn_cloud import days, read_counters
from monitoring.cloud_read import CloudReader, Point
from monitoring.report.capacity import Capacities
from monitoring.report.model import Report
from monitoring.report.words import plural

MISSING = (
    "useful time of each job, recoveries and what evictions cost: they need the jobs' event lines (--events)",
    "waits of single pods by accelerator: they need the node watcher's lines (--events)",
    "dollars, break-even and what to change: they follow from the two above",
    "objectives: a demo or a drill measures them (--events with --summary)",
)


def cloud_report(reader: CloudReader, now_s: float, since_s: float) -> Report:
    seconds, losses, begin_s, end_s = read_counters(reader, now_s, since_s)
    told = days(seconds, losses, end_s)
    groups = churn_days.by_group(told, now_s)
    total = sum(groups.values(), Exposure())
    when = " to ".join(f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}" for t in (begin_s, end_s))
    return Report(
        answer=_answer(total),
        figures=(),
        objectives=(),
        ledgers=(),
        next_steps=(),
        capacity=Capacities(
            losses=tuple(by_hour(losses)), churn=tuple(groups.items()), ages=tuple(churn_days.by_age(told))
        ),
        span=f"{when} UTC, Cloud Monitoring of {reader.project}",
        missing=MISSING,
    )


def _answer(total: Exposure) -> str:
    low, high = total.interval()
    return (
        f"{plural(round(total.events), 'preemption')} in {total.hours:,.0f} Spot node-hours: "
        f"{total.events / total.hours if total.hours else 0:.4f} a node-hour (90 %: {low:.4f} to {high:.4f})."
    )


def by_hour(losses: Sequence[Point]) -> Iterable[tuple[str, str, int]]:
    """Whole preemptions, which add up to the total: over a silent hour the cloud tells fractions."""
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for point in losses:
        sums[point.labels.get("pool", "")][point.begin_s] += point.value
    rows: list[tuple[str, str, int]] = []
    for pool, hours in sums.items():
        told, total = 0, 0.0
        for begin_s, value in sorted(hours.items()):
            total += value
            if count := round(total) - told:
                rows.append((f"{datetime.fromtimestamp(begin_s, UTC):%Y-%m-%dT%H:00Z}", pool, count))
                told += count
    return sorted(rows)
