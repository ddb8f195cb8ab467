"""Sums of the time, evictions and lost work of jobs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, State


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over one job or several."""

    name: str
    jobs: int
    wall_us: int
    states_us: dict[State, int]
    evictions: int
    lost: int
    """Steps, or items of a batch, that were done again."""

    @property
    def goodput(self) -> float:
        if not self.wall_us:  # a job of one event line
            return 0.0
        return self.states_us[State.PRODUCTIVE] / self.wall_us

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "wall_seconds": self.wall_us / 1e6,
            "states_seconds": {state.value: us / 1e6 for state, us in self.states_us.items()},
            "evictions": self.evictions,
            "lost": self.lost,
        }


def list_recovery_times(ledgers: Iterable[JobLedger]) -> list[float]:
    """Returns the seconds of every recovery that ended within the events."""
    durations: list[float] = []
    for ledger in ledgers:
        for recovery in ledger.recoveries:
            if recovery.seconds is not None:
                durations.append(recovery.seconds)
    return durations


def add_up(name: str, ledgers: Iterable[JobLedger]) -> Totals:
    """Adds up the ledgers under one name."""
    jobs = 0
    wall_us = 0
    evictions = 0
    lost_work = 0
    states_us = Counter[State]()
    for ledger in ledgers:
        jobs += 1
        wall_us += ledger.wall_us
        evictions += len(ledger.recoveries)
        lost_work += ledger.lost
        states_us.update(ledger.totals_us)
    return Totals(
        name=name,
        jobs=jobs,
        wall_us=wall_us,
        states_us={state: states_us[state] for state in STATES},
        evictions=evictions,
        lost=lost_work,
    )
