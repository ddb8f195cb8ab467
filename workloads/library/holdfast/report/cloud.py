"""A report from Cloud Monitoring alone: what capacity did, each cluster apart.

The exporter's series hold no event lines, so the parts that need them are named as missing, not drawn empty.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.contract.errors import Unjudged
from holdfast.contract.telemetry import WAIT_BANDS_S
from holdfast.place.churn import days
from holdfast.place.churn.cloud_series import CloudReader, NoSeries, Point
from holdfast.place.churn.days import daily, in_words, window
from holdfast.place.churn.estimate import Exposure
from holdfast.report.capacity import POD_KIND, QUEUE_KIND, Capacities, Loss, Share, Wait
from holdfast.report.model import Report
from holdfast.report.text import moment, plural

MISSING = (
    "the goodput stack, recoveries and what evictions cost: they need the jobs' event lines (--events)",
    "dollars, break-even and what to change: they follow from those",
    "objectives: a demo or a drill measures them (--events with --summary)",
)
# Names of the contract; a change there without one here shows as "never written".
SPOT_S, LOSSES, WAITS, PENDING, QUEUE_WAITS, QUEUED, GOODPUT = (
    "spot_node_seconds_total",
    "spot_node_losses_total",
    "pod_waits_total",
    "pending_seconds",
    "queue_waits_total",
    "queue_wait_seconds",
    "goodput_ratio",
)
WITHOUT = {
    SPOT_S: "churn",
    LOSSES: "preemptions by hour",
    WAITS: "how long pods waited (p50, p95)",
    PENDING: "the longest wait",
    QUEUE_WAITS: "how long jobs waited in queues (p50, p95)",
    QUEUED: "the longest wait in a queue",
    GOODPUT: "useful time of jobs",
}
# Upper end of each band of waits.
BAND_END_S = dict(pairwise((*WAIT_BANDS_S, math.inf)))


@dataclass
class Series:
    """Points of every metric, by cluster; `missing` names those that were never written."""

    points: dict[str, dict[str, list[Point]]] = field(default_factory=dict[str, dict[str, list[Point]]])
    missing: list[str] = field(default_factory=list[str])

    def add(self, metric: str, found: Iterable[Point]) -> None:
        for point in found:
            self.points.setdefault(point.cluster, defaultdict(list))[metric].append(point)


def cloud_report(reader: CloudReader, now_s: float, since_s: float) -> Report:
    begin_s, end_s = window(now_s, since_s)
    found = read(reader, begin_s, end_s)
    # A project without an exporter must not look like one without preemptions.
    if not found.points:
        where = f"cluster {reader.cluster} of project" if reader.cluster else "project"
        series = f"; {'; '.join(found.missing)}" if found.missing else ""
        raise Unjudged(
            f"the exporter wrote nothing of {where} {reader.project} from {in_words(begin_s, end_s)}{series}"
        )
    # Apart: two clusters may have pools of one name, whose losses are not of one cause.
    clusters = tuple(_of_cluster(name, series, end_s) for name, series in sorted(found.points.items()))
    return Report(
        answer=_answer(clusters),
        figures=(),
        objectives=(),
        ledgers=(),
        next_steps=(),
        capacities=clusters,
        span=f"{in_words(begin_s, end_s)}, Cloud Monitoring of {reader.project}",
        missing=(*MISSING, *found.missing),
    )


def read(reader: CloudReader, begin_s: int, end_s: int) -> Series:
    found = Series()
    # Counters as increases, which survive a restart of the exporter; gauges as what they were.
    asked = dict.fromkeys((SPOT_S, LOSSES, WAITS, QUEUE_WAITS), reader.increases)
    asked |= {PENDING: reader.highest, QUEUED: reader.highest, GOODPUT: reader.means}
    for metric, ask in asked.items():
        try:
            found.add(metric, ask(metric, begin_s, end_s))
        # One metric may be missing because the exporter is older than it; the others are still worth a page.
        except NoSeries:
            found.missing.append(f"{WITHOUT[metric]}: the exporter has never written {metric} in this project")
    return found


def _of_cluster(name: str, series: dict[str, list[Point]], end_s: int) -> Capacities:
    by_day = daily(series[SPOT_S], series[LOSSES], end_s)
    return Capacities(
        cluster=name,
        losses=tuple(by_hour(series[LOSSES])),
        churn=tuple(days.by_group(by_day).items()),
        ages=tuple(days.by_age(by_day)),
        waits=tuple(waits(series[WAITS], series[PENDING], POD_KIND)),
        queue_waits=tuple(waits(series[QUEUE_WAITS], series[QUEUED], QUEUE_KIND)),
        shares=tuple(shares(series[GOODPUT])),
    )


def _answer(clusters: Sequence[Capacities]) -> str:
    if len(clusters) == 1:
        return f"{_sentence(clusters[0])}."
    return f"{len(clusters)} clusters: {'; '.join(f'{c.cluster}: {_sentence(c)}' for c in clusters)}."


def _sentence(series: Capacities) -> str:
    # Exposures add up, rates do not: the mean of two rates would weigh an idle pool like a busy one.
    total = sum((exposure for _, exposure in series.churn), Exposure())
    parts = ["no Spot node was watched, so no churn is known"]
    if total.per_hour is not None:
        low, high = total.interval()
        lost = plural(round(total.events), "preemption")
        rate = f"{total.per_hour:.4f} a node-hour (90 %: {low:.4f} to {high:.4f})"
        parts = [f"{lost} in {total.hours:,.0f} Spot node-hours, {rate}"]
    if series.shares:
        least, most = (f(share.newest for share in series.shares) for f in (min, max))
        spread = f"{least:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
        parts.append(f"useful time of {plural(len(series.shares), 'job')} {spread}")
    return "; ".join(parts)


def by_hour(losses: Sequence[Point]) -> Iterable[Loss]:
    """Whole preemptions, which add up to the total: over a silent hour the cloud interpolates, in fractions."""
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for point in losses:
        sums[point.labels.get("pool", "")][point.begin_s] += point.value
    rows: list[Loss] = []
    for pool, hours in sums.items():
        series, total = 0, 0.0
        for begin_s, value in sorted(hours.items()):
            total += value
            # Rounding each hour by itself could lose every preemption of a week of fractions.
            if count := round(total) - series:
                rows.append((moment(begin_s // 3600 * 3600), pool, count))
                series += count
    return sorted(rows)


def waits(ended: Sequence[Point], waiting: Sequence[Point], absent: Mapping[str, str]) -> Iterable[Wait]:
    """Percentiles of the waits that ended; the longest one may still go on. `absent`: label -> its value where none is."""
    bands: dict[tuple[str, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    longest: dict[tuple[str, ...], float] = defaultdict(float)
    for point in ended:
        bands[_kind(point, absent)][_band(point)] += point.value
    for point in waiting:
        kind = _kind(point, absent)
        longest[kind] = max(longest[kind], point.value)
    # Both sources: what waits still has ended no wait, and is the one that matters most.
    for kind in sorted(bands.keys() | {kind for kind, seconds in longest.items() if seconds > 0}):
        counts = bands.get(kind, {})
        yield Wait(
            kind=dict(zip(absent, kind, strict=True)),
            n=round(sum(counts.values())),
            p50_s=_percentile(counts, 50),
            p95_s=_percentile(counts, 95),
            longest_s=longest.get(kind),
            rounded_up=True,
        )


def _kind(point: Point, absent: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(point.labels.get(name, default) for name, default in absent.items())


def _band(point: Point) -> int:
    band = point.labels.get("wait_s", "")
    # An exporter of another version may have other bands; a sum over both would be wrong without a sign of it.
    if not band.isdecimal() or int(band) not in BAND_END_S:
        raise Unjudged(f"a series of waits has a band of another version: {point.labels}")
    return int(band)


def _percentile(counts: dict[int, float], percent: int) -> float | None:
    """The upper end of its band: never less than what was waited."""
    total, below = sum(counts.values()), 0.0
    # Aligned increases leave fractions behind where nothing happened.
    if round(total) == 0:
        return None
    for band, count in sorted(counts.items()):
        below += count
        # Sums of fractions miss the exact share by an ulp, and the percentile would jump a band.
        if below * 100 >= total * percent * (1 - 1e-9):
            return BAND_END_S[band]
    return math.inf


def shares(series: Sequence[Point]) -> Iterable[Share]:
    by_job: dict[str, list[Point]] = defaultdict(list)
    for point in series:
        names = (point.labels.get(name, "") for name in ("namespace", "job"))
        by_job["/".join(filter(None, names))].append(point)
    for job, points in sorted(by_job.items()):
        newest = max(points, key=lambda point: point.begin_s)
        yield Share(job=job, hours=len(points), newest=newest.value, lowest=min(point.value for point in points))
