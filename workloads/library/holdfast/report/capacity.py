"""Waits for capacity and churn of nodes, from the event lines of the node watcher."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from holdfast.cost.churn import estimate
from holdfast.cost.churn.estimate import Exposure, Group
from holdfast.ledger.events import Event
from holdfast.vocabulary.capacity import GOOD_RATING, POOR_RATING, RATING_WINDOW_S

RATING_BANDS = (0.9, GOOD_RATING, POOR_RATING, 0.0)
"""The lowest rating of each band."""
# The fields that separate kinds of waits, of pods for a node and of jobs in Kueue's queues, with
# the value for a line without the field.
POD_KIND = {"accelerator": "none", "capacity": ""}
QUEUE_KIND = {
    "queue": "none",
    "flavor": "none",
    "accelerator": "none",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Durations of the waits of one kind."""

    kind: Mapping[str, str]
    n: int
    """Number of waits that ended."""
    p50_s: float
    p95_s: float
    longest_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            **self.kind,
            "p50_seconds": self.p50_s,
            "p95_seconds": self.p95_s,
            "longest_seconds": self.longest_s,
            "n": self.n,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """Google's ratings of machines in one band, and how often the machines came."""

    capacity: str
    band: str
    """Its lowest and its highest rating, as `0.7 to 0.9`."""
    n: int
    came: int
    """Number of ratings after which all machines came within RATING_WINDOW_S."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"window_seconds": RATING_WINDOW_S}


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacities:
    waits: tuple[Wait, ...] = ()
    queue_waits: tuple[Wait, ...] = ()
    churn: tuple[tuple[Group, Exposure], ...] = ()
    ratings: tuple[Rating, ...] = ()
    # A price needs one machine type, and a cluster may run several.
    spot: tuple[str, str] = ("", "")
    """The most frequent machine type and zone of Spot nodes; empty if no line names one."""

    def as_json(self) -> dict[str, Any]:
        return {
            "waits": [wait.as_json() for wait in self.waits],
            "queue_waits": [wait.as_json() for wait in self.queue_waits],
            "churn": [_churn_row(group, exposure) for group, exposure in self.churn],
            "ratings": [rating.as_json() for rating in self.ratings],
        }


def _churn_row(group: Group, exposure: Exposure) -> dict[str, Any]:
    low, high = exposure.interval()
    return {
        "pool": group.pool,
        "machine_type": group.machine_type,
        "zone": group.zone,
        "events": exposure.events,
        "node_hours": exposure.hours,
        "per_hour": exposure.per_hour,
        "low": low,
        "high": high if math.isfinite(high) else None,
    }


def capacities(events: Sequence[Event]) -> Capacities:
    nodes = [event for event in events if event.type in ("node_up", "node_down")]
    # Event files may be weeks old: a node that is up is at risk until the newest event, not now.
    lifetimes = estimate.lifetimes(nodes, events[-1].t_us if events else 0)
    return Capacities(
        waits=tuple(_summarize_waits(events, "scheduled", POD_KIND)),
        queue_waits=tuple(_summarize_waits(events, "admitted", QUEUE_KIND)),
        churn=tuple(estimate.by_group(lifetimes).items()) if lifetimes else (),
        ratings=tuple(_judge_ratings(events)),
        spot=_find_spot_machine(nodes),
    )


def _judge_ratings(events: Iterable[Event]) -> Iterable[Rating]:
    """Yields each capacity and band with a rating, the best band first."""
    outcomes: dict[tuple[str, float], list[bool]] = defaultdict(list)
    for event in events:
        fields = event.fields
        if event.type != "rated" or not fields.get("of"):
            continue
        rating = fields.get("obtainability") or 0.0
        band = max(bound for bound in RATING_BANDS if bound <= rating)
        is_whole = (fields.get("nodes") or 0) >= fields["of"]
        is_in_time = (fields.get("seconds") or 0) <= RATING_WINDOW_S
        capacity = str(fields.get("capacity", ""))
        outcomes[capacity, -band].append(is_whole and is_in_time)
    upper_bounds = dict(pairwise(reversed((1.0, *RATING_BANDS))))
    for (capacity, lower), came in sorted(outcomes.items()):
        yield Rating(
            capacity=capacity,
            band=f"{-lower:g} to {upper_bounds[-lower]:g}",
            n=len(came),
            came=sum(came),
        )


def _find_spot_machine(nodes: Iterable[Event]) -> tuple[str, str]:
    machines = Counter[tuple[str, str]]()
    for event in nodes:
        fields = event.fields
        if fields.get("capacity") == "spot":
            machine = (str(fields.get("machine_type", "")), str(fields.get("zone", "")))
            machines[machine] += 1
    if not machines:
        return "", ""
    [(machine, _)] = machines.most_common(1)
    return machine


def _summarize_waits(
    events: Iterable[Event], event_type: str, defaults: Mapping[str, str]
) -> Iterable[Wait]:
    """Yields the durations of each kind; a wait that has not ended has no event."""
    durations_by_kind: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for event in events:
        if event.type != event_type:
            continue
        fields = {**defaults, **event.fields}
        kind = tuple(str(fields[name]) for name in defaults)
        durations_by_kind[kind].append(float(fields.get("seconds") or 0))
    for kind, durations in sorted(durations_by_kind.items()):
        durations.sort()
        yield Wait(
            kind=dict(zip(defaults, kind, strict=True)),
            n=len(durations),
            p50_s=percentile(durations, 50),
            p95_s=percentile(durations, 95),
            longest_s=durations[-1],
        )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Returns a percentile by nearest rank, so always one of the values."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(0, rank - 1)]
