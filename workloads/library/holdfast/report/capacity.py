"""What capacity did, from the node watcher's lines: losses by hour and pool, waits, churn. Pure."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.ledger.events import Event
from holdfast.ledger.job_ledger import JobLedger
from holdfast.place.churn import estimate
from holdfast.place.churn.estimate import Exposure, Group
from holdfast.report.text import moment

HOUR_US = 3_600_000_000
# What tells kinds of waits apart: of pods for a node, of jobs in Kueue's queues. Name -> its value where a line has none.
POD_KIND = {"accelerator": "none", "capacity": ""}
QUEUE_KIND = {"queue": "none", "flavor": "none", "accelerator": "none"}
Loss = tuple[str, str, int]
"""(hour, pool, preemptions)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """How long waits of one kind lasted."""

    kind: Mapping[str, str]
    n: int
    """Waits that ended."""
    p50_s: float
    p95_s: float
    longest_s: float

    def as_json(self) -> dict[str, Any]:
        seconds = {"p50_seconds": self.p50_s, "p95_seconds": self.p95_s, "longest_seconds": self.longest_s}
        return dict(self.kind) | seconds | {"n": self.n}


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """How one training job kept its work."""

    job: str
    commits: int
    failed: int
    blocked_s: float
    age_p50_s: float | None
    """Age of the newest commit when an eviction came."""
    age_max_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacities:
    waits: tuple[Wait, ...] = ()
    queue_waits: tuple[Wait, ...] = ()
    losses: tuple[Loss, ...] = ()
    churn: tuple[tuple[Group, Exposure], ...] = ()
    ages: tuple[tuple[float, float, Exposure], ...] = ()
    # Of most, not of all: a price needs one machine type, and a cluster may run several.
    spot: tuple[str, str] = ("", "")
    """Machine type and zone of most Spot nodes; empty where no line names one."""
    saves: tuple[Saves, ...] = ()

    @property
    def has_data(self) -> bool:
        return bool(self.churn or self.waits or self.queue_waits or self.losses)

    def as_json(self) -> dict[str, Any]:
        return {
            "waits": [wait.as_json() for wait in self.waits],
            "queue_waits": [wait.as_json() for wait in self.queue_waits],
            "preemptions": [{"hour": hour, "pool": pool, "count": count} for hour, pool, count in self.losses],
            "churn": [_churn_row(group, exposure) for group, exposure in self.churn],
            "saves": [asdict(saves) for saves in self.saves],
        }


def _churn_row(group: Group, exposure: Exposure) -> dict[str, Any]:
    low, high = exposure.interval()
    rate = {"events": exposure.events, "node_hours": exposure.hours, "per_hour": exposure.per_hour}
    named = {"pool": group.pool, "machine_type": group.machine_type, "zone": group.zone}
    return named | rate | {"low": low, "high": high if math.isfinite(high) else None}


def capacities(events: Sequence[Event], ledgers: Iterable[JobLedger]) -> Capacities:
    nodes = [e for e in events if e.type in ("node_up", "node_down")]
    # A node that is still up counts as at risk until the newest event, not until now: files may be weeks old.
    lifetimes = estimate.lifetimes(nodes, events[-1].t_us if events else 0)
    spot = Counter(
        (str(e.fields.get("machine_type", "")), str(e.fields.get("zone", "")))
        for e in nodes
        if e.fields.get("capacity") == "spot"
    )
    return Capacities(
        waits=tuple(_waits(events, "scheduled", POD_KIND)),
        queue_waits=tuple(_waits(events, "admitted", QUEUE_KIND)),
        losses=tuple((hour, pool, n) for (hour, pool), n in sorted(_losses(nodes).items())),
        churn=tuple(estimate.by_group(lifetimes).items()) if lifetimes else (),
        ages=tuple(estimate.by_age(lifetimes)) if lifetimes else (),
        spot=spot.most_common(1)[0][0] if spot else ("", ""),
        # Failed saves alone are reason enough: a job that never committed is the one to look at.
        saves=tuple(_saves(x) for x in ledgers if x.account.commits_us or x.account.failed_saves),
    )


def _waits(events: Iterable[Event], event_type: str, absent: Mapping[str, str]) -> Iterable[Wait]:
    by_kind: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for event in events:
        if event.type == event_type:
            kind = tuple(str(event.fields.get(name, default)) for name, default in absent.items())
            by_kind[kind].append(float(event.fields.get("seconds") or 0))
    for kind, waited in sorted(by_kind.items()):
        waited.sort()
        named = dict(zip(absent, kind, strict=True))
        # Only waits that ended: what waits still has written no line.
        yield Wait(kind=named, n=len(waited), p50_s=at(waited, 50), p95_s=at(waited, 95), longest_s=waited[-1])


def at(ordered: Sequence[float], percent: int) -> float:
    """Nearest rank: an observation that was really made."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _losses(nodes: Iterable[Event]) -> Counter[tuple[str, str]]:
    return Counter(
        # In UTC: in local time the hour of a clock change would hold two hours of losses.
        (moment(e.t_us // HOUR_US * 3600), str(e.fields.get("pool", "")))
        for e in nodes
        # Nodes also go when the autoscaler scales down; those are no losses.
        if e.type == "node_down" and str(e.fields.get("reason", "")) in estimate.PREEMPTED
    )


def _saves(found: JobLedger) -> Saves:
    commits = found.account.commits_us
    # The commit before each eviction, else the beginning of the job.
    before = (found.begin_us, *commits)
    # `before` is one longer than `commits`, so the index found is that of the newest commit before the eviction.
    ages = sorted((r.t_us - before[bisect_right(commits, r.t_us)]) / 1e6 for r in found.recoveries)
    return Saves(
        job=found.run,
        commits=len(commits),
        failed=found.account.failed_saves,
        blocked_s=sum(us for state, us in found.totals_us().items() if state == "checkpointing") / 1e6,
        age_p50_s=at(ages, 50) if ages else None,
        age_max_s=ages[-1] if ages else None,
    )
