"""What capacity did, from the node watcher's lines: waits and churn. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.cost.churn import estimate
from holdfast.cost.churn.estimate import Exposure, Group
from holdfast.ledger.events import Event

# What tells kinds of waits apart: of pods for a node, of jobs in Kueue's queues. Name -> its value
# where a line has none.
POD_KIND = {"accelerator": "none", "capacity": ""}
QUEUE_KIND = {
    "queue": "none",
    "flavor": "none",
    "accelerator": "none",
}


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
        seconds = {
            "p50_seconds": self.p50_s,
            "p95_seconds": self.p95_s,
            "longest_seconds": self.longest_s,
        }
        return dict(self.kind) | seconds | {"n": self.n}


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacities:
    waits: tuple[Wait, ...] = ()
    queue_waits: tuple[Wait, ...] = ()
    churn: tuple[tuple[Group, Exposure], ...] = ()
    # Of most, not of all: a price needs one machine type, and a cluster may run several.
    spot: tuple[str, str] = ("", "")
    """Machine type and zone of most Spot nodes; empty where no line names one."""

    def as_json(self) -> dict[str, Any]:
        return {
            "waits": [wait.as_json() for wait in self.waits],
            "queue_waits": [wait.as_json() for wait in self.queue_waits],
            "churn": [_churn_row(group, exposure) for group, exposure in self.churn],
        }


def _churn_row(group: Group, exposure: Exposure) -> dict[str, Any]:
    low, high = exposure.interval()
    rate = {
        "events": exposure.events,
        "node_hours": exposure.hours,
        "per_hour": exposure.per_hour,
    }
    named = {
        "pool": group.pool,
        "machine_type": group.machine_type,
        "zone": group.zone,
    }
    return (
        named
        | rate
        | {
            "low": low,
            "high": high if math.isfinite(high) else None,
        }
    )


def capacities(events: Sequence[Event]) -> Capacities:
    nodes = [e for e in events if e.type in ("node_up", "node_down")]
    # A node that is still up counts as at risk until the newest event, not until now: files may be
    # weeks old.
    lifetimes = estimate.lifetimes(nodes, events[-1].t_us if events else 0)
    spot = Counter(
        (str(e.fields.get("machine_type", "")), str(e.fields.get("zone", "")))
        for e in nodes
        if e.fields.get("capacity") == "spot"
    )
    return Capacities(
        waits=tuple(_waits(events, "scheduled", POD_KIND)),
        queue_waits=tuple(_waits(events, "admitted", QUEUE_KIND)),
        churn=tuple(estimate.by_group(lifetimes).items()) if lifetimes else (),
        spot=spot.most_common(1)[0][0] if spot else ("", ""),
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
        yield Wait(
            kind=named,
            n=len(waited),
            p50_s=at(waited, 50),
            p95_s=at(waited, 95),
            longest_s=waited[-1],
        )


def at(ordered: Sequence[float], percent: int) -> float:
    """Nearest rank: an observation that was really made."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
