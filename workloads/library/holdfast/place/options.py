"""What is believed about capacity, and what one option of the answer holds."""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.cost.prices import Table
from holdfast.place import policies, scenarios
from holdfast.place.job import Job
from holdfast.place.policies import Policy
from holdfast.place.preemption_rate import Churn
from holdfast.place.scenarios import Scenario
from holdfast.place.simulation_arrays import Floats
from holdfast.vocabulary.capacity import Placement

SAME_USD = 0.01
# Means closer than this many standard errors may change places with another sample.
NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is believed about capacity, apart from the job."""

    prices: Table
    churn: Churn
    spot_wait_h: float | None = None
    """Median; None: as in the record."""

    def scenarios(self, job: Job, nodes: int = 0) -> tuple[Scenario, ...]:
        """From the best to the worst; of the job's gang, or of this number of nodes."""
        # A queue goes on with the nodes that it has; a gang asks for all of them at once.
        return scenarios.of(
            job.accelerator, 1 if job.batch else nodes or job.nodes, self.spot_wait_h
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one scenario does to one option: one element a run."""

    usd: Floats
    finish_h: Floats
    late: float
    """Share of runs after the deadline."""
    evictions: float = 0.0

    @property
    def mean_usd(self) -> float:
        return float(np.mean(self.usd))

    def usd_at(self, percent: float) -> float:
        return float(np.percentile(self.usd, percent))

    def finish_at(self, percent: float) -> float:
        return float(np.percentile(self.finish_h, percent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Figures without the name of a scenario are those of the middle one, by which money is
    compared.
    """

    placement: Placement
    policy: str
    region: str
    usd_per_hour: float = math.nan
    """Of the interruptible or only capacity, all nodes."""
    inferred: bool = False
    """The price is not from the catalog."""
    cases: tuple[Case, ...] = ()
    """One a scenario; none where refused."""
    refused: str = ""

    @property
    def usual(self) -> Case:
        return self.cases[len(self.cases) // 2]

    @property
    def late(self) -> float:
        """In the worst scenario, by which a deadline is judged."""
        # A deadline is a promise, so the mean of the scenarios is no measure of it.
        return max(case.late for case in self.cases)

    @property
    def mean_usd(self) -> float:
        return self.usual.mean_usd

    def costs_as(self, least: "Option") -> bool:
        """Within what another sample would change, or so little that it decides nothing."""
        # Both means are of samples: the difference of two has the spread of both.
        noise = math.hypot(
            *(float(np.std(o.usual.usd)) / math.sqrt(len(o.usual.usd)) for o in (self, least))
        )
        return abs(self.mean_usd - least.mean_usd) <= max(SAME_USD * least.mean_usd, NOISE * noise)

    def finish_at(self, percent: float) -> float:
        return self.usual.finish_at(percent)


def in_time(option: Option) -> Policy | None:
    """The policy of this row, if it is one that watches a deadline."""
    return next(
        (each for each in (policies.QUEUE, *policies.IN_TIME) if option.policy == each.shown), None
    )
