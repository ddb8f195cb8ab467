"""What the time of jobs went to, added up. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, State


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one job or of several."""

    name: str
    jobs: int
    wall_us: int
    states_us: dict[State, int]
    evictions: int
    lost: int
    """Steps or items done again: of one kind of job."""

    @property
    def goodput(self) -> float:
        # A job of one line has no length.
        return self.states_us[State.PRODUCTIVE] / self.wall_us if self.wall_us else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "wall_seconds": self.wall_us / 1e6,
            "states_seconds": {state.value: us / 1e6 for state, us in self.states_us.items()},
            "evictions": self.evictions,
            "lost": self.lost,
        }


def totals_of(name: str, ledgers: Iterable[JobLedger]) -> Totals:
    found = list(ledgers)
    states = Counter[State]()
    for one in found:
        states.update(one.totals_us)
    return Totals(
        name=name,
        jobs=len(found),
        wall_us=sum(one.wall_us for one in found),
        states_us={state: states[state] for state in STATES},
        evictions=sum(len(one.recoveries) for one in found),
        lost=sum(one.lost for one in found),
    )
