"""Where the time of a job went. Pure: events in, accounts out.

Guarantee: the states of a ledger add up to its wall time to the microsecond, whatever the events hold.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.contract.telemetry import KIND_BATCH, KIND_TRAINING
from monitoring.ledger import batch, training
from monitoring.ledger.account import Account, Recovery
from monitoring.ledger.events import Event, uncollected
from monitoring.ledger.timeline import Span, State

KINDS = (KIND_TRAINING, KIND_BATCH)
USEFUL = frozenset({State.PRODUCTIVE})


@dataclass(frozen=True, slots=True)
class JobLedger:
    """One job. Times in microseconds; `wall_us` counts every lane, so it is worker time for batch."""

    job: str
    kind: str
    begin_us: int
    end_us: int
    account: Account

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.account.spans

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        return self.account.recoveries

    @property
    def lanes(self) -> int:
        return self.account.lanes

    @property
    def wall_us(self) -> int:
        return (self.end_us - self.begin_us) * self.lanes

    @property
    def seconds(self) -> float:
        """From the first event to the last, as a clock on the wall shows it."""
        return (self.end_us - self.begin_us) / 1e6

    def totals_us(self) -> dict[State, int]:
        return self.account.totals_us

    @property
    def goodput(self) -> float:
        """The share of wall time that moved the job forward and was kept; 0 for an empty ledger."""
        return (self.wall_us - self.unused_us) / self.wall_us if self.wall_us else 0.0

    @property
    def unused_us(self) -> int:
        """The rest of it: by this jobs are ranked."""
        totals = self.totals_us()
        return self.wall_us - sum(totals[s] for s in USEFUL)


@uncollected()
def job_ledgers(events: Iterable[Event]) -> list[JobLedger]:
    """One ledger a job, in the order in which they began."""
    return [job_ledger(rows) for rows in by_job(events).values()]


def by_job(events: Iterable[Event]) -> dict[tuple[str, str], list[Event]]:
    """Events by (job, kind). Lines about nodes belong to no job."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in KINDS:
            found[event.job, event.kind].append(event)
    return found


def job_ledger(events: Sequence[Event], *, usual_step_s: float | None = None) -> JobLedger:
    """`events`: of one job, in time order, at least one. `usual_step_s`: the pace to judge straggling by."""
    begin_us, end_us = events[0].t_us, events[-1].t_us
    if events[0].kind == KIND_BATCH:
        account = batch.account(events, begin_us, end_us)
    else:
        account = training.account(events, begin_us, end_us, usual_step_s=usual_step_s)
    return JobLedger(job=events[0].job, kind=events[0].kind, begin_us=begin_us, end_us=end_us, account=account)
