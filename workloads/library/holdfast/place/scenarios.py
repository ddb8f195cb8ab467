"""Scenarios of how long a job waits for Spot; two of the three come from the one public record.

The record (availability.json, with source and license) says how many of 16 H100 machines could be
started, in 13 zones, every ten minutes for 15 days. One week of it hardly predicts the next, so the
user judges. Why: infra/decisions/0055.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.place.simulation_arrays import Bools, Floats, Ints

RECORD = Path(__file__).with_name("availability.json")
RECORDED_GPU = "nvidia-h100-80gb"
LARGEST_GANG = 16
# A region or week in which the gang could start less often than this is left out: a job would not
# be sent there.
HOPELESS = 0.02
QUANTILES = np.linspace(0.0, 1.0, 401)
FLEX_WAIT_H = (1.5, 0.5)
"""Mean and median wait in the flex-start queue. An assumption: Google gives no estimate."""
AT_ONCE = "Spot comes back at once"
RECORDED = "as in the record"
WORST_WEEK = "as in the record's worst week"
STATED = "as stated"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Waits in hours as quantiles, a row for each region.

    A job starts in any zone of its region, and a run stays in one region.
    """

    first_h: Floats
    """Wait at any moment until the gang can start; 0 while it can."""
    later_h: Floats
    """Wait after a zone lost the gang until it can start again, there or in another zone."""

    def draw(self, rng: np.random.Generator, count: int, per_path: int) -> Floats:
        """Draw the waits before each of `per_path` starts, a row for each run."""
        region = rng.integers(len(self.first_h), size=(count, 1))
        first = _inverse(self.first_h, region, rng.random((count, 1)))
        later = _inverse(self.later_h, region, rng.random((count, per_path - 1)))
        return np.hstack([first, later])

    def mean_billed_h(self, keep_h: float) -> float:
        """Return the billed hours of a wait after an eviction, if survivors stay for `keep_h`."""
        return float(np.minimum(self.later_h, keep_h).mean())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    name: str
    basis: str
    """The evidence behind it, for a reader."""
    waits: Waits


@cache
def list_scenarios(
    accelerator: str,
    gang: int,
    spot_wait_h: float | None = None,
    zones: tuple[str, ...] = (),
) -> tuple[Scenario, ...]:
    """Return the scenarios from the best to the worst.

    spot_wait_h: a median that the user knows, in place of the record. zones: where the job may
    start, as zones or regions; empty: in any region of the record.
    """
    no_wait = np.zeros((1, len(QUANTILES)))
    at_once = Scenario(
        name=AT_ONCE,
        basis="no wait for Spot at any start",
        waits=Waits(first_h=no_wait, later_h=no_wait),
    )
    if spot_wait_h is not None:
        return at_once, _make_median_scenario(spot_wait_h)
    return at_once, *_make_record_scenarios(accelerator, gang, zones)


def _make_median_scenario(spot_wait_h: float) -> Scenario:
    # The tail is that of waits in queues.
    mean, median = FLEX_WAIT_H
    return Scenario(
        name=STATED,
        basis=f"median wait {spot_wait_h:g} h, mean three times that",
        waits=lognormal(spot_wait_h * mean / median, spot_wait_h),
    )


def _make_record_scenarios(
    accelerator: str, gang: int, zones: tuple[str, ...]
) -> tuple[Scenario, Scenario]:
    size = min(gang, LARGEST_GANG)
    all_regions = _list_regions(size)
    regions: list[_Region] = []
    if zones and accelerator == RECORDED_GPU:
        regions = _list_regions(size, zones)
    if not regions:
        regions = _select_better(all_regions, accelerator)
    # The worst week of all regions: the record is too short to look for it in one region.
    name, week = _find_worst_week(all_regions)
    available = np.mean([region.up.mean() for region in regions])
    assumption = "" if accelerator == RECORDED_GPU else "; assumed for this GPU"
    nodes = f"{gang} nodes" if gang > 1 else "one node"
    count = sum(len(region.zones) for region in regions)
    place = regions[0].name if len(regions) == 1 else f"{len(regions)} regions"
    recorded = Scenario(
        name=RECORDED,
        waits=_measure_waits(regions),
        basis=(
            f"{count} zones of H100 in {place}, {_load_record()['from'][:7]}: {nodes} could start"
            f" {available:.0%} of the time{assumption}"
        ),
    )
    worst = Scenario(
        name=WORST_WEEK,
        waits=_measure_waits([week]),
        basis=f"one week of {name}: {week.up.mean():.0%}{assumption}",
    )
    return recorded, worst


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """Zones of one region in the record: whether the gang could start, tick by tick."""

    name: str
    zones: tuple[Bools, ...]

    @property
    def up(self) -> Bools:
        """The ticks at which it could start in any zone: a pool takes machines in each of them."""
        return np.logical_or.reduce(self.zones)

    def half(self, number: int) -> "_Region":
        halves = [np.array_split(zone, 2)[number] for zone in self.zones]
        return _Region(self.name, tuple(halves))


def _list_regions(size: int, places: tuple[str, ...] = ()) -> list[_Region]:
    """Return the regions of the record, with only the zones of `places` if it names any."""
    zones_by_region: dict[str, list[Bools]] = {}
    for zone, counts in record().items():
        region = zone.rpartition("-")[0]
        if not places or zone in places or region in places:
            zones_by_region.setdefault(region, []).append(counts >= size)
    regions: list[_Region] = []
    for name, zones in zones_by_region.items():
        region = _Region(name, tuple(zones))
        if region.up.mean() >= HOPELESS:
            regions.append(region)
    return regions


def _select_better(regions: list[_Region], accelerator: str) -> list[_Region]:
    """Return all regions; for other GPUs only the better half, since H100 is the scarcest."""
    if accelerator == RECORDED_GPU:
        return regions
    ranked = sorted(regions, key=lambda region: -float(region.up.mean()))
    return ranked[: math.ceil(len(ranked) / 2)]


def _find_worst_week(regions: list[_Region]) -> tuple[str, _Region]:
    """Return the region and the half of its record with the longest mean wait.

    The mean wait from any moment decides: many short outages are a smaller loss than one of days.
    """
    halves: list[_Region] = []
    for region in regions:
        for number in (0, 1):
            half = region.half(number)
            if half.up.mean() >= HOPELESS:
                halves.append(half)
    worst = max(halves, key=lambda half: _measure_first_h(half.up).mean())
    return worst.name, worst


@cache
def flex_waits() -> Waits:
    return lognormal(*FLEX_WAIT_H)


def lognormal(mean_h: float, median_h: float) -> Waits:
    """Return waits of one law for every start, with a tail: the mean is above the median."""
    skew = max(mean_h / median_h, 1.0 + 1e-9)
    sigma = math.sqrt(2.0 * math.log(skew))
    rng = np.random.default_rng(0)
    draws = rng.lognormal(math.log(median_h), sigma, 200 * len(QUANTILES))
    draws.sort()
    # Means of equal slices, not quantiles: the ends of the table would cut the tail off, and the
    # mean with it.
    slices = draws.reshape(len(QUANTILES), -1)
    table = slices.mean(axis=1)[None, :]
    table = table * (mean_h / table.mean())
    return Waits(first_h=table, later_h=table)


@cache
def record() -> dict[str, Ints]:
    """Return by zone how many of 16 machines could be started, every `gap_seconds`."""
    return {zone: _decode(text) for zone, text in _load_record()["zones"].items()}


def _measure_waits(regions: list[_Region]) -> Waits:
    first_rows: list[Floats] = []
    later_rows: list[Floats] = []
    for region in regions:
        waits_h = _measure_first_h(region.up)
        first_rows.append(_tabulate(waits_h))
        later_rows.append(_tabulate(_measure_later_h(region, waits_h)))
    return Waits(first_h=np.stack(first_rows), later_h=np.stack(later_rows))


def _measure_first_h(up: Bools) -> Floats:
    """Return the wait from each tick until the gang can start."""
    # Doubled: a wait at the end of the record goes on at its beginning instead of being cut short.
    up_ticks = np.flatnonzero(np.tile(up, 2))
    ticks = np.arange(len(up))
    next_up = up_ticks[np.searchsorted(up_ticks, ticks)]
    return (next_up - ticks).astype(np.float64) * _gap_h()


def _measure_later_h(region: _Region, waits_h: Floats) -> Floats:
    """Return the wait from each tick at which a zone lost the gang; 0 if another zone has it."""
    losses: list[Floats] = []
    for zone in region.zones:
        lost_ticks = np.flatnonzero(zone[:-1] & ~zone[1:]) + 1
        losses.append(waits_h[lost_ticks])
    later_h = np.concatenate(losses)
    if not len(later_h):
        # Never lost in the record: an outage is still shorter than one step of it.
        return np.array([_gap_h()])
    return later_h


def _gap_h() -> float:
    return _load_record()["gap_seconds"] / 3600.0


def _tabulate(hours: Floats) -> Floats:
    # As np.quantile, which searches for each of them.
    positions = QUANTILES * (len(hours) - 1)
    return np.interp(positions, np.arange(len(hours)), np.sort(hours))


def _inverse(table: Floats, zone: Ints, share: Floats) -> Floats:
    last = table.shape[1] - 1
    position = share * last
    low = np.minimum(position.astype(np.int64), last - 1)
    below = table[zone, low]
    above = table[zone, low + 1]
    return below + (above - below) * (position - low)


@cache
def _load_record() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def _decode(text: str) -> Ints:
    """Expand `16*3 4` to 16 16 16 4."""
    counts: list[int] = []
    repeats: list[int] = []
    for run in text.split():
        count, _, ticks = run.partition("*")
        counts.append(int(count))
        repeats.append(int(ticks or 1))
    return np.repeat(counts, repeats)
