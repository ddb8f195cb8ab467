"""How long a job waits for Spot: three scenarios, of which two come from the one public record.

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
    """Hours as quantiles, a row for each zone."""

    first_h: Floats
    """From any moment until the gang can start: 0 while it can."""
    later_h: Floats
    """From an eviction until the gang can start again."""
    one_zone: bool = True
    """A gang stays in its zone. Single nodes come from any zone of their pool."""

    def draw(self, rng: np.random.Generator, count: int, per_path: int) -> Floats:
        """Waits before each of `per_path` starts, a row for each run."""
        zone = rng.integers(len(self.first_h), size=(count, 1 if self.one_zone else per_path))
        first = _inverse(self.first_h, zone[:, :1], rng.random((count, 1)))
        later = _inverse(
            self.later_h, zone if self.one_zone else zone[:, 1:], rng.random((count, per_path - 1))
        )
        return np.hstack([first, later])

    def mean_billed_h(self, keep_h: float) -> float:
        """Of a wait after an eviction, with survivors kept for `keep_h`."""
        return float(np.minimum(self.later_h, keep_h).mean())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    name: str
    basis: str
    """What it rests on, for a reader."""
    waits: Waits


@cache
def of(accelerator: str, gang: int, spot_wait_h: float | None = None) -> tuple[Scenario, ...]:
    """From the best to the worst. `spot_wait_h`: a median that the user knows, in place of the
    record.
    """
    none = np.zeros((1, len(QUANTILES)))
    at_once = Scenario(
        name=AT_ONCE,
        basis="no wait for Spot at any start",
        waits=Waits(first_h=none, later_h=none),
    )
    if spot_wait_h is not None:
        basis = f"median wait {spot_wait_h:g} h, mean three times that"
        mean, median = FLEX_WAIT_H  # with the tail that waits in queues have
        return at_once, Scenario(
            name=STATED,
            basis=basis,
            waits=lognormal(spot_wait_h * mean / median, spot_wait_h),
        )
    size = min(gang, LARGEST_GANG)
    zones = _usable(accelerator, size)
    halves = [(zone, half) for zone, up in zones.items() for half in np.array_split(up, 2)]
    # By the mean wait from any moment: many short outages are a smaller loss than one of days.
    zone, week = max(
        ((z, h) for z, h in halves if h.mean() >= HOPELESS),
        key=lambda each: _of_zone(each[1])[0].mean(),
    )
    whole = np.concatenate([*zones.values()])
    share = f"{week.mean():.0%}"
    assumed = "" if accelerator == RECORDED_GPU else "; assumed for this GPU"
    nodes = f"{gang} nodes" if gang > 1 else "one node"
    return (
        at_once,
        Scenario(
            name=RECORDED,
            waits=_waits([*zones.values()], one_zone=gang > 1),
            basis=(
                f"{len(zones)} zones of H100 in {_body()['from'][:7]}: {nodes} could start"
                f" {whole.mean():.0%} of the time{assumed}"
            ),
        ),
        Scenario(
            name=WORST_WEEK,
            waits=_waits([week], one_zone=gang > 1),
            basis=f"one week of {zone}: {share}{assumed}",
        ),
    )


@cache
def flex_waits() -> Waits:
    return lognormal(*FLEX_WAIT_H)


def lognormal(mean_h: float, median_h: float) -> Waits:
    """The same wait at every start, with a tail: mean above median."""
    sigma = math.sqrt(2.0 * math.log(max(mean_h / median_h, 1.0 + 1e-9)))
    # Means of equal slices, not quantiles: the ends of the table would cut the tail off, and the
    # mean with it.
    draws = np.sort(
        np.random.default_rng(0).lognormal(math.log(median_h), sigma, 200 * len(QUANTILES))
    )
    table = draws.reshape(len(QUANTILES), -1).mean(axis=1)[None, :]
    table = table * (mean_h / table.mean())
    return Waits(first_h=table, later_h=table)


@cache
def record() -> dict[str, Ints]:
    """Started of 16, by zone, every `gap_seconds`."""
    return {zone: _decoded(text) for zone, text in _body()["zones"].items()}


def _usable(accelerator: str, size: int) -> dict[str, Bools]:
    """Zones that had the gang, best first. For other GPUs the better half: H100 is the scarcest."""
    up = {zone: counts >= size for zone, counts in record().items()}
    ranked = sorted(up, key=lambda zone: -float(up[zone].mean()))
    found = [zone for zone in ranked if up[zone].mean() >= HOPELESS]
    if accelerator != RECORDED_GPU:
        found = found[: math.ceil(len(found) / 2)]
    return {zone: up[zone] for zone in found}


def _waits(zones: list[Bools], *, one_zone: bool) -> Waits:
    first, later = (np.stack(tables) for tables in zip(*map(_of_zone, zones), strict=True))
    return Waits(first_h=first, later_h=later, one_zone=one_zone)


def _of_zone(up: Bools) -> tuple[Floats, Floats]:
    # Twice over: a wait at the end of the record goes on at its beginning instead of being cut
    # short.
    twice = np.tile(up, 2)
    ticks = np.arange(len(up))
    gap_h = _body()["gap_seconds"] / 3600.0
    ups = np.flatnonzero(twice)
    first: Floats = (ups[np.searchsorted(ups, ticks)] - ticks).astype(np.float64) * gap_h
    edges = np.flatnonzero(np.diff(twice.astype(np.int8)))
    outages = np.diff(edges)[~twice[edges[:-1] + 1]] * gap_h
    # Never down in the record: an outage is still shorter than one step of it.
    return _table(first), _table(outages if len(outages) else np.array([gap_h]))


def _table(hours: Floats) -> Floats:
    # As np.quantile, which searches for each of them.
    return np.interp(QUANTILES * (len(hours) - 1), np.arange(len(hours)), np.sort(hours))


def _inverse(table: Floats, zone: Ints, share: Floats) -> Floats:
    at = share * (table.shape[1] - 1)
    low = np.minimum(at.astype(np.int64), table.shape[1] - 2)
    left = table[zone, low]
    right = table[zone, low + 1]
    return left + (right - left) * (at - low)


@cache
def _body() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def _decoded(text: str) -> Ints:
    pairs = [spell.partition("*")[::2] for spell in text.split()]
    return np.repeat([int(count) for count, _ in pairs], [int(ticks or 1) for _, ticks in pairs])
