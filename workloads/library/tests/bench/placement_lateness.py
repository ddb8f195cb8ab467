"""What `place` tells of lateness, held against time that it has not seen: told from the first half of each recording,
replayed on the second under the same policy, by family of recordings.

Apart from each other: rows that only wait for Spot, rows that watch the deadline, and the row that is chosen. Rows that
only wait tell a range over weeks too; that is judged both ways, told from either week and replayed on the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from holdfast.contract.capacity import Placement
from holdfast.place import (
    advice,
    choose,
    followed,
    gangs,
    hazard,
    option_names,
    outages,
    policies,
    prices,
    weeks,
    zones,
)
from holdfast.place.belief import Option, World
from holdfast.place.job import Job
from holdfast.place.runs import Floats
from holdfast.place.traces import Recorded, Trace

PRICED, GPU = "us-central1", outages.RECORDED_GPU
# Hours of work and until the deadline, from next to no slack to much.
JOBS_H = ((6.0, 8.0), (6.0, 18.0), (12.0, 15.0), (12.0, 48.0), (24.0, 28.0), (24.0, 60.0))
ON_SPOT = {option_names.on_spot(p): p for p in (policies.WAIT, policies.HYBRID, *policies.IN_TIME)}
ALLOWED_POINTS = 2.0
CHOSEN, WAITS, WATCHES = "chosen", "waits for Spot", "watches the deadline"
Late = dict[str, tuple[float, float]]
"""Kind of row -> told and replayed, per cent, means over the jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    nodes: int
    region: str
    """Between whose zones the job may move; empty where it may not."""
    traces: list[Trace]

    def worlds(self) -> tuple[World, World] | None:
        """What could be told after the first half, and what came. None where no zone had the gang now and then in both."""
        halves = [(trace.half(0), trace.half(1)) for trace in self.traces]
        both = [pair for pair in halves if min(half.up_share for half in pair) >= outages.HOPELESS]
        if not both:
            return None
        stated, came = (self._world(list(each)) for each in zip(*both, strict=True))
        return stated, came

    def _world(self, traces: list[Trace]) -> World:
        found = followed.of(traces, self.region)
        assert found is not None
        churn = hazard.recorded(found.each.churn / self.nodes)
        return World(prices=prices.load(), churn=churn, recorded=found.each, any_zone=found.any_zone)


def families(given: list[Trace]) -> list[Family]:
    """H100 gangs by region, and recordings of one's own, of which each zone stands for itself."""
    counts, gap_h = outages.record(), outages.clock()[1]
    regions = sorted({zone.rpartition("-")[0] for zone in counts})
    found = [
        Family(
            name=f"{nodes} x H100, {region}", nodes=nodes, region=region,
            traces=[
                Trace(name=zone, gap_h=gap_h, up=each >= nodes, counts=each)
                for zone, each in counts.items() if zone.startswith(f"{region}-")
            ],
        )
        for nodes in (1, 4, 8, 16) for region in regions
    ]  # fmt: skip
    for region in sorted({_region(trace) for trace in given}):
        found.append(Family(name=region, nodes=1, region="", traces=[t for t in given if _region(t) == region]))
    return found


def _region(trace: Trace) -> str:
    """`us-east-1` of `us-east-1a_v100_1`."""
    return trace.name.partition("_")[0].rstrip("abcdef")


def stated_and_replayed(family: Family) -> Late:
    worlds = family.worlds()
    late: dict[str, list[tuple[float, float]]] = {}
    for hours, deadline in JOBS_H if worlds else ():
        assert worlds
        job = Job(accelerator=GPU, gpus=8 * family.nodes, hours=hours, deadline_h=deadline)
        rows = gangs.options(job, worlds[0], PRICED)
        chosen = choose.choose(job, rows)
        for row in rows:
            came = None if row.refused else _replayed(job, worlds[1], row)
            if came is not None:
                kind = WAITS if row.placement is Placement.SPOT else WATCHES
                for name in (kind, CHOSEN) if row is chosen else (kind,):
                    late.setdefault(name, []).append((row.late * 100, came * 100))
    return {
        name: (float(stated), float(came)) for name, each in late.items() for stated, came in [np.mean(each, axis=0)]
    }


def _replayed(job: Job, held_out: World, row: Option) -> float | None:
    """The share late of the same policy; None of a row without Spot."""
    policy = ON_SPOT.get(row.policy.removesuffix(option_names.ANY_ZONE))
    world = held_out.across_zones(job, PRICED) if option_names.any_zone(row) else held_out
    if policy is None or world is None:
        return None
    found = advice.under(advice.Scene.of(job, world, PRICED), policy)
    return None if found.refused else found.late


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A range of one row, and what came; shares."""

    low: float
    high: float
    came: float

    @property
    def held(self) -> bool:
        return self.low - ALLOWED_POINTS / 100 <= self.came <= self.high + ALLOWED_POINTS / 100


Class = Callable[[Family, int], tuple[Trace, ...]]


def every_zone(family: Family, known: int) -> tuple[Trace, ...]:
    """What `place` knows after one week: of every zone that had the gang in it."""
    return followed.halves(followed.recordings(family.nodes), known)


def own_zones(family: Family, known: int) -> tuple[Trace, ...]:
    return followed.halves(family.traces, known)


def ranges(family: Family, known: int, of: Class = every_zone) -> list[Stated]:
    """Of every job that waits, in one zone or any. Zones that had the gang in the known week, whatever came there."""
    own, coming = own_zones(family, known), tuple(t.half(1 - known) for t in family.traces)
    came = [t for t in coming if any(t.name == each.name for each in own)]
    if not own:
        return []
    recorded = Recorded.of(list(own))
    world = World(
        prices=prices.load(), churn=hazard.recorded(recorded.churn / family.nodes), recorded=recorded,
        weeks=of(family, known),
    )  # fmt: skip
    moving = [[zones.together(came)]] if len(came) > 1 else []
    return [
        _stated(Job(accelerator=GPU, gpus=8 * family.nodes, hours=hours, deadline_h=deadline), world, tuple(each))
        for hours, deadline in JOBS_H for each in (came, *moving)
    ]  # fmt: skip


def _stated(job: Job, world: World, came: tuple[Trace, ...]) -> Stated:
    before, then = (_late(job, replace(world, weeks=each)) for each in (world.weeks, came))
    row = Option(placement=Placement.SPOT, policy="wait for Spot", region=PRICED, lateness=before, late_weeks=before)
    assert row.late_range is not None
    return Stated(low=row.late_range[0], high=row.late_range[1], came=float(then.mean()))


def _late(job: Job, world: World) -> Floats:
    return weeks.late(job, *weeks.outcomes(job, world, PRICED, (policies.WAIT,)))


def mean_of(rows: list[Stated]) -> Stated:
    """Of a family, over its rows."""
    low, high, came = np.mean([(row.low, row.high, row.came) for row in rows], axis=0)
    return Stated(low=float(low), high=float(high), came=float(came))


def all_but_the_judged(family: Family, known: int) -> tuple[Trace, ...]:
    """As many weeks as `place` has today: also the other regions' weeks of the time that is judged."""
    others = [t for t in followed.recordings(family.nodes) if not t.name.startswith(f"{family.region}-")]
    return every_zone(family, known) + followed.halves(others, 1 - known)


ONE_WEEK, ALL_BUT_ONE = "every zone", "every zone and the others' other week"
CLASSES: dict[str, Class] = {
    "the region's own zones": own_zones, ONE_WEEK: every_zone, ALL_BUT_ONE: all_but_the_judged,
}  # fmt: skip


def range_goals(found: list[Family]) -> tuple[dict[str, bool], dict[str, float]]:
    """Whether the ranges hold in both directions, and how wide they are, by class of weeks."""
    held, figures = dict.fromkeys(CLASSES, True), dict[str, float]()
    print("  ranges of rows that wait, of weeks of")
    for name, of in CLASSES.items():
        for known, week in ((0, "first week"), (1, "second week")):
            rows = {family.name: each for family in found if (each := ranges(family, known, of))}
            share, width = _printed(f"{name}, told from the {week}", rows)
            held[name] = held[name] and share == 1.0
            figures |= {f"range held, {name}, {week}": share, f"range points wide, {name}, {week}": width}
    return held, figures


def _printed(name: str, rows: dict[str, list[Stated]]) -> tuple[float, float]:
    """The share of families that hold and the points between the ends, of the mean row."""
    means = {family: mean_of(each) for family, each in rows.items()}
    every = [row for each in rows.values() for row in each]
    share = float(np.mean([mean.held for mean in means.values()]))
    width = 100 * float(np.mean([row.high - row.low for row in every]))
    print(
        f"    {name}: {share * len(means):.0f} of {len(means)} families and {np.mean([r.held for r in every]):.0%}"
        f" of {len(every)} rows hold, {width:.0f} points wide"
    )
    for family, mean in means.items():
        if not mean.held:
            print(f"      {family} told {mean.low:.0%} to {mean.high:.0%}, came {mean.came:.0%}")
    return share, width


def goals(given: list[Trace]) -> tuple[dict[str, bool], dict[str, float]]:
    """Judged, and the figures behind."""
    print("\nlate, per cent: told from the first half of each recording, came in the second")
    apart: dict[str, list[float]] = {}
    for family in families(given):
        late = stated_and_replayed(family)
        for kind, (stated, came) in late.items():
            apart.setdefault(kind, []).append(abs(stated - came))
        cells = ", ".join(f"{kind} {stated:.1f} and {came:.1f}" for kind, (stated, came) in late.items())
        print(f"  {family.name:26} {cells or 'no zone that had such a gang in both'}")
    for kind, each in apart.items():
        near = sum(points <= ALLOWED_POINTS for points in each)
        print(f"  {kind}: {near} of {len(each)} families within 2 points, {np.mean(each):.1f} on average")
    held, widths = range_goals(families([]))
    within = {kind: bool(max(each) <= ALLOWED_POINTS) for kind, each in apart.items()}
    return (
        {
            "told_lateness_within_2_points_on_every_held_out_family": all(within.values()),
            "told_range_holds_the_replayed_lateness_on_every_held_out_family": held[ONE_WEEK],
            "told_range_of_all_weeks_but_the_judged_holds_on_every_held_out_family": held[ALL_BUT_ONE],
            "told_lateness_of_the_choice_within_2_points_on_every_held_out_family": within[CHOSEN],
        },
        {f"points apart, {kind}": float(np.mean(each)) for kind, each in apart.items()} | widths,
    )
