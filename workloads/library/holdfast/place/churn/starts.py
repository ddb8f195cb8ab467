"""How long starts waited for machines, from the watcher's lines: by capacity, accelerator, gang and zone. Pure.

A gang has started when its last pod has a node. Waits that go on have written no line and are not here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.contract.capacity import QUEUES, Capacity
from holdfast.contract.telemetry import KIND_BATCH
from holdfast.ledger.events import Event

US_PER_HOUR = 3_600_000_000
# The pods of a gang are made within seconds; the next start of the job comes after a stop, and a new machine.
TOGETHER_US = 60_000_000
# A file for a person's disk, not an archive.
MOST_HOURS = 2_000


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Kind:
    capacity: str
    accelerator: str
    gang: int
    """Nodes that started together; 0: a wait in Kueue's queue, whose line does not name them."""
    zone: str
    """Empty where no line names it, or of several."""
    again: bool
    """After an earlier start of the same job: how long the capacity stayed away, where the first asks at any moment."""


def waits(events: Sequence[Event]) -> dict[Kind, list[float]]:
    """Hours of each start, oldest first."""
    zones = {str(e.fields.get("node", "")): str(e.fields.get("zone", "")) for e in events if e.type == "node_up"}
    found: dict[Kind, list[float]] = defaultdict(list)
    for again, pods in _starts(e for e in events if e.type == "scheduled"):
        there = {zones.get(str(pod.fields.get("node", "")), "") for pod in pods}
        last = max(pods, key=lambda pod: pod.t_us)
        kind = Kind(
            capacity=str(last.fields.get("capacity", "")), accelerator=str(last.fields.get("accelerator", "")),
            gang=len(pods), zone=there.pop() if len(there) == 1 else "", again=again,
        )  # fmt: skip
        found[kind].append((last.t_us - min(map(_begin_us, pods))) / US_PER_HOUR)
    for event in events:
        # In the other queues a job waits for the team's own quota; in this one Google holds it for its machines.
        if event.type == "admitted" and event.fields.get("queue") == QUEUES[Capacity.QUEUED]:
            accelerator = str(event.fields.get("accelerator", ""))
            kind = Kind(capacity=Capacity.FLEX_START.value, accelerator=accelerator, gang=0, zone="", again=False)
            found[kind].append(float(event.fields.get("seconds") or 0) / 3_600)
    return {kind: hours[-MOST_HOURS:] for kind, hours in sorted(found.items())}


def row(kind: Kind, hours: Sequence[float]) -> dict[str, Any]:
    return {
        "capacity": kind.capacity, "accelerator": kind.accelerator, "gang": kind.gang, "zone": kind.zone,
        "again": kind.again, "hours": [round(each, 5) for each in hours],
    }  # fmt: skip


def _starts(scheduled: Iterable[Event]) -> Iterable[tuple[bool, list[Event]]]:
    """(whether the job had started before, the pods that started together)."""
    by_job: dict[tuple[str, int | None, str], list[Event]] = defaultdict(list)
    for event in scheduled:
        # Workers of a queue start each for itself; so does each index of a run that trains apart.
        alone = event.process if event.kind == KIND_BATCH else ""
        by_job[event.job, event.run_index, alone].append(event)
    for pods in by_job.values():
        pods.sort(key=_begin_us)
        begun = [0, *(n for n in range(1, len(pods)) if _begin_us(pods[n]) - _begin_us(pods[n - 1]) > TOGETHER_US)]
        for first, end in zip(begun, [*begun[1:], len(pods)], strict=True):
            yield first > 0, pods[first:end]


def _begin_us(event: Event) -> int:
    return event.t_us - round(float(event.fields.get("seconds") or 0) * 1e6)
