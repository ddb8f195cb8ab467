"""What is believed about capacity, and what one option of the advice holds."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.contract.capacity import Placement
from holdfast.place import followed, hazard, intervals, outages, policies
from holdfast.place.hazard import Churn
from holdfast.place.intervals import Interval
from holdfast.place.job import Job
from holdfast.place.learned import Waits
from holdfast.place.outages import Outages
from holdfast.place.prices import Table
from holdfast.place.runs import Floats, Ints
from holdfast.place.traces import Recorded, Trace

SAME_USD = 0.01
# Means closer than this many standard errors may change places with another seed.
NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is believed about capacity, apart from the job."""

    prices: Table
    churn: Churn
    outages: Outages | None = None
    """None: as recorded for such a GPU and gang."""
    flex_waits: Outages = field(default_factory=lambda: outages.lognormal(*hazard.FLEX_WAIT_H))
    together: float = 1.0
    """Nodes that one reclaim takes from a gang, on average."""
    recorded: Recorded | None = None
    """Replaces the hazard: each run starts somewhere on one of these traces."""
    learned: Waits = field(default_factory=Waits)
    """Waits measured here; they add to the record, not to what the user stated."""
    any_zone: Recorded | None = None
    """The same traces as zones of one region, between which the job may move."""
    weeks: tuple[Trace, ...] = ()
    """Where the public record is followed: its single weeks in single zones."""
    on_demand_refused: float = 0.0
    """Probability that a job which asks for on-demand does not get it, then or later."""
    seed: int = 0

    def waits(self, job: Job, region: str) -> Outages:
        # A queue goes on with the nodes that it has; a gang asks for all of them at once.
        gang = 1 if job.batch else job.nodes
        return self.outages or self.learned.spot(outages.prior(job.accelerator, gang, region), gang, region)

    def at(self, job: Job, region: str) -> "World":
        """Where nothing was stated and nothing measured, the public record is followed if there is one."""
        stated = self.recorded is not None or self.outages is not None or self.together != 1.0 or job.batch
        if stated or self.learned.rows or self.churn != hazard.prior(job.accelerator):
            return self
        found = followed.record(job.accelerator, job.nodes, region)
        if found is None or job.hours > found.longest_h:
            return self
        # Its outages are those of the gang; a belief is about one node.
        churn = hazard.recorded(found.each.churn / job.nodes)
        return replace(self, recorded=found.each, any_zone=found.any_zone, churn=churn, weeks=found.weeks)

    def across_zones(self, job: Job, region: str) -> "World | None":
        """The same world for a job that starts anew in any zone of the region; None where nothing is known of it."""
        if self.recorded is not None:
            return replace(self, recorded=self.any_zone, any_zone=None) if self.any_zone else None
        # A wait that the user gave holds for every zone.
        free = None if self.outages or job.batch else outages.any_zone(job.accelerator, job.nodes, region)
        return replace(self, outages=free) if free else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    placement: Placement
    policy: str
    region: str
    carried_out_by: str = policies.ONE_CAPACITY
    usd_per_hour: float = math.nan
    """Of the interruptible or only capacity, all nodes."""
    usd: Floats = field(default_factory=lambda: np.array([math.nan]))
    finish_h: Floats = field(default_factory=lambda: np.array([math.nan]))
    lateness: Floats = field(default_factory=lambda: np.array([math.nan]))
    """Of each run, how probable it is that it ends after the deadline."""
    late_weeks: Floats | None = None
    """Of a row that only waits for Spot of the public record: the share late in each single week of a single zone."""
    usd_weeks: Floats | None = None
    """Of a row that watches the deadline on Spot of the public record: its mean cost in each of them."""
    refusal: float = 0.0
    """On-demand is refused with this probability; what is refused waits for the other capacity to its end."""
    recording: Ints | None = None
    """Of each run, the recorded trace that it was started on."""
    evictions: float = math.nan
    inferred: bool = False
    refused: str = ""

    @property
    def late(self) -> float:
        """Share of runs after the deadline."""
        return float(np.mean(self.lateness))

    @property
    def late_interval(self) -> Interval | None:
        """Of other starts in the same time; None where it is the next time that is in doubt."""
        return intervals.of_share(self.lateness, self.recording) if self.late_weeks is None else None

    @property
    def late_range(self) -> Interval | None:
        """Least and most of single weeks, and of all of them together; None where the share stands for itself."""
        return _around(self.late_weeks, self.late)

    @property
    def late_at_most(self) -> float:
        """By which a deadline is judged."""
        return self.late if self.late_range is None else self.late_range[1]

    @property
    def late_text(self) -> str:
        """`0.8%`, or `0-64%` of a range."""
        if self.late_range is None:
            return f"{self.late:.1%}"
        low, high = (f"{share * 100:.0f}" for share in self.late_range)
        return f"{low}-{high}%" if low != high else f"{high}%"

    @property
    def usd_interval(self) -> Interval:
        """Of the mean."""
        return intervals.of_mean(self.usd, self.recording)

    @property
    def usd_range(self) -> Interval | None:
        """Of the mean, as `late_range`."""
        return _around(self.usd_weeks, self.mean_usd)

    @property
    def mean_usd(self) -> float:
        return float(np.mean(self.usd))

    @property
    def noise_usd(self) -> float:
        """Standard error of the mean: what another seed would change."""
        return float(np.std(self.usd)) / math.sqrt(len(self.usd))

    def costs_as(self, least: "Option") -> bool:
        """Within what another seed would change, or so little that it decides nothing."""
        noise = math.hypot(self.noise_usd, least.noise_usd)
        return abs(self.mean_usd - least.mean_usd) <= max(SAME_USD * least.mean_usd, NOISE * noise)

    def usd_at(self, percent: float) -> float:
        return _percentile(self.usd, percent)

    def finish_at(self, percent: float) -> float:
        return _percentile(self.finish_h, percent)


def _around(weeks: Floats | None, whole: float) -> Interval | None:
    return None if weeks is None else (min(float(weeks.min()), whole), max(float(weeks.max()), whole))


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent))
