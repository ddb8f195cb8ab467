"""Computes where the time of a job went. Pure: events in, accounts out.

Guarantee: the states of a ledger add up to its wall time to the microsecond, whatever the events
hold.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.ledger import batch, training
from holdfast.ledger.account import JobLedger
from holdfast.ledger.events import Event, pause_gc
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

KINDS = (KIND_TRAINING, KIND_BATCH)
RunKey = tuple[str, int | None, str]
"""Job, index, kind."""


@pause_gc()
def job_ledgers(events: Iterable[Event]) -> list[JobLedger]:
    """Returns one ledger for each run, in the order of their first events."""
    return [job_ledger(run_events) for run_events in by_run(events).values()]


def by_run(events: Iterable[Event]) -> dict[RunKey, list[Event]]:
    """Groups events by run. Lines about nodes belong to no job, and are left out."""
    events_by_run: dict[RunKey, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in KINDS:
            events_by_run[event.job, event.run_index, event.kind].append(event)
    return events_by_run


def job_ledger(events: Sequence[Event]) -> JobLedger:
    """Computes the ledger of one run. `events` are in time order, at least one."""
    if events[0].kind == KIND_BATCH:
        return batch.make_ledger(events)
    return training.make_ledger(events)
