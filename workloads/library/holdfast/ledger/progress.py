"""Estimates how far a job is, from the events that its processes wrote. Pure."""

import statistics
from collections.abc import Iterable

from holdfast.ledger.events import Event

# Types of event that show how far a job is, and what of it is saved.
SHOWING = frozenset({"window", "restore", "start", "commit"})


def done_h(events: Iterable[Event]) -> float:
    """Returns the hours of work that are kept, at the job's usual pace.

    That is its step times the median time of a step. The step of the newest restore or window
    counts, so work undone by an eviction does not. 0 before the first window: a job without events
    is moved as one that has not started, which is early and never late.
    """
    newest_us = -1
    step = 0.0
    paces_s: list[float] = []
    for event in events:
        fields = event.fields
        if event.type == "window":
            first_step = float(fields.get("first_step") or 0)
            last_step = float(fields.get("last_step") or 0)
            if last_step >= first_step:
                seconds = float(fields.get("seconds") or 0)
                paces_s.append(seconds / (last_step - first_step + 1))
        elif event.type == "restore":
            last_step = float(fields.get("step") or 0)
        else:
            continue
        # Lines arrive by several ways, so out of order.
        if event.t_us >= newest_us:
            newest_us = event.t_us
            step = last_step
    if not paces_s:
        return 0.0
    return step * statistics.median(paces_s) / 3_600
