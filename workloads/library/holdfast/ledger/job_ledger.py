"""Where the time of a job went. Pure: events in, accounts out.

Guarantee: the states of a ledger add up to its wall time to the microsecond, whatever the events
hold.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.ledger import batch, training
from holdfast.ledger.account import JobLedger
from holdfast.ledger.events import Event, uncollected
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

KINDS = (KIND_TRAINING, KIND_BATCH)


@uncollected()
def job_ledgers(events: Iterable[Event]) -> list[JobLedger]:
    """One ledger a run, in the order in which they began."""
    return [job_ledger(rows) for rows in by_run(events).values()]


def by_run(events: Iterable[Event]) -> dict[tuple[str, int | None, str], list[Event]]:
    """Events by (job, index, kind). Lines about nodes belong to no job."""
    found: dict[tuple[str, int | None, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in KINDS:
            found[event.job, event.run_index, event.kind].append(event)
    return found


def job_ledger(events: Sequence[Event]) -> JobLedger:
    """`events`: of one run, in time order, at least one."""
    return (batch if events[0].kind == KIND_BATCH else training).ledger(events)
