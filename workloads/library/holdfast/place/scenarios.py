"""Scenarios of how long a job waits for Spot; two of the three come from the one public record.

The record (availability.json, with source and licence) says how many of 16 H100 machines could be
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
# A zone or week in which the gang could start less often than this is left out: a job would not be
# sent there.
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
    """Waits in hours as quantiles, a row for each zone."""

    first_h: Floats
    """Wait at any moment until the gang can start; 0 while it can."""
    later_h: Floats
    """Wait after an eviction until the gang can start again."""
    one_zone: bool = True
    """A gang stays in its zone; single nodes come from any zone of their pool."""

    def draw(self, rng: np.random.Generator, count: int, per_path: int) -> Floats:
        """Draw the waits before each of `per_path` starts, a row for each run."""
        zones_per_run = 1 if self.one_zone else per_path
        zone = rng.integers(len(self.first_h), size=(count, zones_per_run))
        first = _inverse(self.first_h, zone[:, :1], rng.random((count, 1)))
        later_zone = zone if self.one_zone else zone[:, 1:]
        later = _inverse(self.later_h, later_zone, rng.random((count, per_path - 1)))
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
    accelerator: str, gang: int, spot_wait_h: float | None = None
) -> tuple[Scenario, ...]:
    """Return the scenarios from the best to the worst.

    spot_wait_h: a median that the user knows, in place of the record.
    """
    no_wait = np.zeros((1, len(QUANTILES)))
    at_once = Scenario(
        name=AT_ONCE,
        basis="no wait for Spot at any start",
        waits=Waits(first_h=no_wait, later_h=no_wait),
    )
    if spot_wait_h is not None:
        return at_once, _make_median_scenario(spot_wait_h)
    return at_once, *_make_record_scenarios(accelerator, gang)


def _make_median_scenario(spot_wait_h: float) -> Scenario:
    # The tail is that of waits in queues.
    mean, median = FLEX_WAIT_H
    return Scenario(
        name=STATED,
        basis=f"median wait {spot_wait_h:g} h, mean three times that",
        waits=lognormal(spot_wait_h * mean / median, spot_wait_h),
    )


def _make_record_scenarios(accelerator: str, gang: int) -> tuple[Scenario, Scenario]:
    zones = _select_zones(accelerator, min(gang, LARGEST_GANG))
    name, week = _find_worst_week(zones)
    records = list(zones.values())
    available = np.concatenate(records).mean()
    assumption = "" if accelerator == RECORDED_GPU else "; assumed for this GPU"
    nodes = f"{gang} nodes" if gang > 1 else "one node"
    recorded = Scenario(
        name=RECORDED,
        waits=_measure_waits(records, one_zone=gang > 1),
        basis=(
            f"{len(zones)} zones of H100 in {_load_record()['from'][:7]}: {nodes} could start"
            f" {available:.0%} of the time{assumption}"
        ),
    )
    worst = Scenario(
        name=WORST_WEEK,
        waits=_measure_waits([week], one_zone=gang > 1),
        basis=f"one week of {name}: {week.mean():.0%}{assumption}",
    )
    return recorded, worst


def _find_worst_week(zones: dict[str, Bools]) -> tuple[str, Bools]:
    """Return the zone and the half of its record with the longest mean wait.

    The mean wait from any moment decides: many short outages are a smaller loss than one of days.
    """
    halves: list[tuple[str, Bools]] = []
    for zone, up in zones.items():
        for half in np.array_split(up, 2):
            if half.mean() >= HOPELESS:
                halves.append((zone, half))
    return max(halves, key=lambda half: _measure_zone(half[1])[0].mean())


@cache
def flex_waits() -> Waits:
    return lognormal(*FLEX_WAIT_H)


def lognormal(mean_h: float, median_h: float) -> Waits:
    """Return the same wait at every start, with a tail: the mean is above the median."""
    sigma = math.sqrt(2.0 * math.log(max(mean_h / median_h, 1.0 + 1e-9)))
    rng = np.random.default_rng(0)
    draws = np.sort(rng.lognormal(math.log(median_h), sigma, 200 * len(QUANTILES)))
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


def _select_zones(accelerator: str, size: int) -> dict[str, Bools]:
    """Return the zones that had the gang, best first.

    For other GPUs only the better half, since H100 is the scarcest.
    """
    up = {zone: counts >= size for zone, counts in record().items()}
    ranked = sorted(up, key=lambda zone: -float(up[zone].mean()))
    usable = [zone for zone in ranked if up[zone].mean() >= HOPELESS]
    if accelerator != RECORDED_GPU:
        usable = usable[: math.ceil(len(usable) / 2)]
    return {zone: up[zone] for zone in usable}


def _measure_waits(zones: list[Bools], *, one_zone: bool) -> Waits:
    first_rows: list[Floats] = []
    later_rows: list[Floats] = []
    for up in zones:
        first, later = _measure_zone(up)
        first_rows.append(first)
        later_rows.append(later)
    return Waits(first_h=np.stack(first_rows), later_h=np.stack(later_rows), one_zone=one_zone)


def _measure_zone(up: Bools) -> tuple[Floats, Floats]:
    """Return the quantiles of waits at any moment, and of whole outages."""
    # Doubled: a wait at the end of the record goes on at its beginning instead of being cut
    # short.
    doubled = np.tile(up, 2)
    ticks = np.arange(len(up))
    gap_h = _load_record()["gap_seconds"] / 3600.0
    up_ticks = np.flatnonzero(doubled)
    next_up = up_ticks[np.searchsorted(up_ticks, ticks)]
    first_h: Floats = (next_up - ticks).astype(np.float64) * gap_h
    edges = np.flatnonzero(np.diff(doubled.astype(np.int8)))
    begins_down = ~doubled[edges[:-1] + 1]
    outages_h = np.diff(edges)[begins_down] * gap_h
    if not len(outages_h):
        # Never down in the record: an outage is still shorter than one step of it.
        outages_h = np.array([gap_h])
    return _tabulate(first_h), _tabulate(outages_h)


def _tabulate(hours: Floats) -> Floats:
    # As np.quantile, which searches for each of them.
    positions = QUANTILES * (len(hours) - 1)
    return np.interp(positions, np.arange(len(hours)), np.sort(hours))


def _inverse(table: Floats, zone: Ints, share: Floats) -> Floats:
    position = share * (table.shape[1] - 1)
    low = np.minimum(position.astype(np.int64), table.shape[1] - 2)
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
