"""How far a job is, from the events that its processes wrote. Pure."""

import statistics
from collections.abc import Iterable

from holdfast.ledger.events import Event

# Types of event that show how far a job is, and what of it is saved.
SHOWING = frozenset({"window", "restore", "start", "commit"})


def done_h(events: Iterable[Event]) -> float:
    """Hours of work that are kept, at the job's own usual pace: its step times what a step takes in
    the middle of cases.

    The step of the newest restore or window counts, so an eviction undoes what it undid. 0 before
    the first window: a job that writes no events is moved as one that has not begun, which is early
    and never late.
    """
    newest_us = -1
    step = 0.0
    paces = list[float]()
    for event in events:
        fields = event.fields
        if event.type == "window":
            first = float(fields.get("first_step") or 0)
            last = float(fields.get("last_step") or 0)
            if last >= first:
                paces.append(float(fields.get("seconds") or 0) / (last - first + 1))
        elif event.type == "restore":
            last = float(fields.get("step") or 0)
        else:
            continue
        # Lines come by several ways, so not in the order of their time.
        if event.t_us >= newest_us:
            newest_us = event.t_us
            step = last
    return step * statistics.median(paces) / 3_600 if paces else 0.0
