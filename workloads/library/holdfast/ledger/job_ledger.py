"""Where the time of a job went. Pure: events in, accounts out.

Guarantee: the states of a ledger add up to its wall time to the microsecond, whatever the events hold.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.contract.job_identity import run_name
from holdfast.contract.telemetry import KIND_BATCH, KIND_TRAINING
from holdfast.ledger import batch, training
from holdfast.ledger.account import Account, Recovery
from holdfast.ledger.events import Event, uncollected
from holdfast.ledger.timeline import Span, State

KINDS = (KIND_TRAINING, KIND_BATCH)
USEFUL = frozenset({State.PRODUCTIVE})
# A machine that does not exist yet costs nothing.
UNPAID = frozenset({State.WAITING, State.DEGRADED})


@dataclass(frozen=True, slots=True)
class JobLedger:
    """One run. Times in microseconds; `wall_us` counts every lane, so it is worker time for batch, node time for an elastic gang."""

    job: str
    index: int | None
    kind: str
    begin_us: int
    end_us: int
    account: Account

    @property
    def run(self) -> str:
        """The job's name, with the index where each index trains apart."""
        return run_name(self.job, self.index)

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

    def totals_us(self) -> Mapping[State, int]:
        return self.account.totals_us

    @property
    def goodput(self) -> float:
        """The share of wall time that moved the job forward and was kept; 0 for an empty ledger."""
        return self.useful_us / self.wall_us if self.wall_us else 0.0

    @property
    def useful_us(self) -> int:
        return sum(self.totals_us()[state] for state in USEFUL)

    @property
    def useful_paid(self) -> float:
        """The useful share of the time on machines: what a price is held against."""
        paid_us = self.wall_us - sum(self.totals_us()[state] for state in UNPAID)
        return self.useful_us / paid_us if paid_us else 0.0

    @property
    def unused_us(self) -> int:
        """The rest of the wall time: by this jobs are ranked."""
        return self.wall_us - self.useful_us


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
    first, begin_us, end_us = events[0], events[0].t_us, events[-1].t_us
    account = (batch if first.kind == KIND_BATCH else training).account(events, begin_us, end_us)
    return JobLedger(
        job=first.job, index=first.run_index, kind=first.kind, begin_us=begin_us, end_us=end_us, account=account
    )
