"""The beliefs about capacity, and the options that an answer compares."""

import math
from dataclasses import dataclass, replace

import numpy as np

from holdfast.cost.prices import Quote, Table
from holdfast.place import policies, scenarios
from holdfast.place.job import Job
from holdfast.place.policies import Policy
from holdfast.place.preemption_rate import Churn
from holdfast.place.scenarios import Scenario
from holdfast.place.simulation_arrays import Floats
from holdfast.vocabulary.capacity import Capacity, Placement

SAME_USD = 0.01
# Means closer than this many standard errors may change places with another sample.
NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is believed about capacity, apart from the job."""

    prices: Table
    churn: Churn
    spot_wait_h: float | None = None
    """Median wait for Spot; None: as in the record."""
    zones: tuple[str, ...] = ()
    """The zones in which the job may start, or regions; empty: any region of the record."""

    def scenarios(self, job: Job, nodes: int = 0) -> tuple[Scenario, ...]:
        """Return the scenarios of the job's gang, or of `nodes` nodes, from best to worst."""
        # A queue goes on with the nodes that it has; a gang asks for all of them at once.
        gang = 1 if job.batch else nodes or job.nodes
        return scenarios.list_scenarios(job.accelerator, gang, self.spot_wait_h, self.zones)

    def quote(self, job: Job, region: str, capacity: Capacity) -> Quote | None:
        """Return the price of all machines of the job an hour.

        Returns None if there is no price, or no machine is sold on this capacity.
        """
        if job.offers:
            offered = job.offers.get(capacity)
            return offered.quote if offered else None
        machine = job.machine_for(capacity)
        if machine is None:
            return None
        price = self.prices.quote(machine, region, capacity)
        if price is None:
            return None
        return replace(price, usd=price.usd * job.gpus / machine.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The results of one option in one scenario, with one element for each run."""

    usd: Floats
    finish_h: Floats
    late: float
    """Share of runs that end after the deadline."""
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
    """One way to run the job, with its results in each scenario.

    Figures without the name of a scenario are those of the middle one, by which money is compared.
    """

    placement: Placement
    policy: str
    region: str
    usd_per_hour: float = math.nan
    """Price of the interruptible or only capacity, all nodes."""
    inferred: bool = False
    """The price is not from the catalog."""
    cases: tuple[Case, ...] = ()
    """One for each scenario; none if the option is refused."""
    refused: str = ""
    unavailable: str = ""
    """The reason for which the job cannot take it on its platform: it is for comparison."""

    @property
    def usual(self) -> Case:
        return self.cases[len(self.cases) // 2]

    @property
    def late(self) -> float:
        """The share of late runs in the worst scenario."""
        # A deadline is a promise, so the mean of the scenarios is no measure of it.
        return max(case.late for case in self.cases)

    @property
    def mean_usd(self) -> float:
        return self.usual.mean_usd

    def usd_with_time(self, hour_usd: float) -> float:
        """Return the mean cost, if each hour until the end costs `hour_usd` in addition."""
        return self.mean_usd + hour_usd * float(np.mean(self.usual.finish_h))

    def costs_as(self, cheapest: "Option", hour_usd: float = 0.0) -> bool:
        """Return whether the difference in price is noise, or too small to decide anything."""
        # Both means are of samples: the difference of two has the spread of both.
        noise = math.hypot(_standard_error(self, hour_usd), _standard_error(cheapest, hour_usd))
        least_usd = cheapest.usd_with_time(hour_usd)
        difference = abs(self.usd_with_time(hour_usd) - least_usd)
        return difference <= max(SAME_USD * least_usd, NOISE * noise)

    def finish_at(self, percent: float) -> float:
        return self.usual.finish_at(percent)


def _standard_error(option: Option, hour_usd: float) -> float:
    usd = option.usual.usd + hour_usd * option.usual.finish_h
    return float(np.std(usd)) / math.sqrt(len(usd))


def in_time(option: Option) -> Policy | None:
    """Return the policy of this option, if it is one that watches a deadline."""
    for policy in (policies.QUEUE, *policies.IN_TIME):
        if option.policy == policy.shown:
            return policy
    return None
