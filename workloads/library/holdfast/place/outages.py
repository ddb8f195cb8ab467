"""How long Spot is waited for, at the first start and after an eviction: by gang size and zone, from a public record.

The record (availability.json, with source, licence and date) is of one GPU model, in 13 zones, over 15 days. It
holds whether a new request was launched, which is what a waiting job asks; larger gangs wait far longer.
"""

# Why it is so: infra/decisions/0055.
import datetime
import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.place.runs import Floats, Ints
from holdfast.place.zones import follow

RECORD = Path(__file__).with_name("availability.json")
QUANTILES = np.linspace(0.0, 1.0, 401)
RECORDED_GPU = "nvidia-h100-80gb"
# Requests in the record were for 16 machines at most: what a larger gang waits for is at least this.
LARGEST_GANG = 16
# No job is sent to a zone where the whole gang was to be had less often than this.
HOPELESS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outages:
    """Waits in hours as quantiles, a row for each zone; a run stays with one zone."""

    zones: tuple[str, ...]
    first_h: Floats
    """From any moment until the gang can start: 0 while it can be had."""
    later_h: Floats
    """How long it stays away once it is gone."""
    source: str
    one_zone: bool = True
    """A gang stays in its zone; single nodes come from any zone of their pool, so each of their waits is another's."""

    def mean_billed_h(self, keep_h: float) -> float:
        """Of the waits after an eviction, as long as survivors are kept."""
        return float(np.minimum(self.later_h, keep_h).mean())

    @property
    def median_first_h(self) -> float:
        return float(np.median(self.first_h))

    @property
    def mean_wait_h(self) -> float:
        """Of the first start, where it cannot begin at once."""
        waiting = self.first_h[self.first_h > 0.0]
        return float(waiting.mean()) if len(waiting) else 0.0

    @property
    def at_once(self) -> float:
        """Share of moments at which the first start need not wait."""
        return float(np.mean(self.first_h <= 0.0))

    def draw(self, rng: np.random.Generator, count: int, per_path: int) -> Floats:
        """Waits before each of `per_path` spells, a row for each run."""
        zone = rng.integers(len(self.zones), size=(count, 1 if self.one_zone else per_path))
        first = _inverse(self.first_h, zone[:, :1], rng.random((count, 1)))
        later = _inverse(self.later_h, zone if self.one_zone else zone[:, 1:], rng.random((count, per_path - 1)))
        return np.hstack([first, later])


def lognormal(mean_h: float, median_h: float, source: str = "as given") -> Outages:
    """The same wait at every start, with a tail: mean above median."""
    sigma = math.sqrt(2.0 * math.log(max(mean_h / median_h, 1.0 + 1e-9)))
    # Means of equal slices, not quantiles: the table's ends would cut the tail off, and the mean with it.
    draws = np.sort(np.random.default_rng(0).lognormal(math.log(median_h), sigma, 200 * len(QUANTILES)))
    table = draws.reshape(len(QUANTILES), -1).mean(axis=1)[None, :]
    table = table * (mean_h / table.mean())
    return Outages(zones=("any",), first_h=table, later_h=table, source=source)


@cache
def prior(accelerator: str, gang: int, region: str = "") -> Outages:
    """Of the region's recorded zones, or of all where none is: for other GPUs of their better half, by availability.

    An assumption for every GPU but the recorded one, and `source` says so.
    """
    size = min(gang, LARGEST_GANG)
    recorded = _record()
    here = {zone: up for zone, up in recorded.items() if zone.startswith(f"{region}-")} if region else {}
    chosen = here if here and accelerator == RECORDED_GPU else recorded
    shares = {zone: float(np.mean(counts >= size)) for zone, counts in chosen.items()}
    usable = sorted((z for z, share in shares.items() if share >= HOPELESS), key=lambda z: -shares[z])
    # Every zone is hopeless for so large a gang; the least hopeless one still gives a number.
    if not usable:
        best = max(recorded, key=lambda z: float(np.mean(recorded[z] >= size)))
        usable, shares = [best], {best: float(np.mean(recorded[best] >= size))}
    if accelerator != RECORDED_GPU:
        usable = usable[: math.ceil(len(usable) / 2)]
    never = [zone for zone, share in shares.items() if share < HOPELESS]
    return replace(_of_zones(tuple(usable), size), source=_source(accelerator, usable, never))


# Regions without a record of their own share one, and the quantiles take longer than all else of an estimate.
@cache
def _of_zones(zones: tuple[str, ...], gang: int) -> Outages:
    return from_counts({zone: _record()[zone] for zone in zones}, gang, _gap_h())


@cache
def any_zone(accelerator: str, gang: int, region: str) -> Outages | None:
    """Of a gang that starts anew in whichever zone of the region has it; None without a record of several."""
    size = min(gang, LARGEST_GANG)
    here = {zone: counts for zone, counts in _record().items() if zone.startswith(f"{region}-")}
    if accelerator != RECORDED_GPU or len(here) < 2:
        return None
    # As the job meets them: it stays in a zone to its end, then looks around.
    up = follow(np.stack([counts >= size for counts in here.values()]), _gap_h()).up
    source = f"recorded in {_body()['from'][:7]} in any of {len(here)} zones of {region}"
    return from_counts({region: up.astype(np.int64)}, 1, _gap_h(), source)


def from_counts(counts: dict[str, Ints], gang: int, gap_h: float, source: str = "") -> Outages:
    """Waits of a gang from recorded counts, one array a zone."""
    rows = [_waits(np.asarray(each) >= gang, gap_h) for each in counts.values()]
    return Outages(
        zones=tuple(counts),
        first_h=np.stack([first for first, _ in rows]),
        later_h=np.stack([later for _, later in rows]),
        source=source,
        one_zone=gang > 1,
    )


def record() -> dict[str, Ints]:
    """Launched of 16, by zone, every ten minutes."""
    return dict(_record())


def clock() -> tuple[datetime.datetime, float]:
    """When the record begins, and the hours between its rounds."""
    return datetime.datetime.fromisoformat(_body()["from"]), _gap_h()


def _waits(up: np.ndarray[Any, np.dtype[np.bool_]], gap_h: float) -> tuple[Floats, Floats]:
    # Twice over: a wait at the end of the record goes on at its beginning instead of being cut short.
    ticks = np.arange(2 * len(up))
    ups = np.flatnonzero(np.tile(up, 2))
    at = np.searchsorted(ups, ticks[: len(up)])
    first = (ups[np.minimum(at, len(ups) - 1)] - ticks[: len(up)]) * gap_h
    edges = np.flatnonzero(np.diff(np.tile(up, 2).astype(np.int8)))
    lengths = np.diff(edges)[~np.tile(up, 2)[edges[:-1] + 1]] * gap_h
    # Never down in the record: an outage is still shorter than the time that was watched.
    later = lengths if len(lengths) else np.array([gap_h])
    return _table(np.maximum(first, 0.0)), _table(later)


def _table(hours: Floats) -> Floats:
    # As np.quantile, which looks for each of them anew.
    return np.interp(QUANTILES * (len(hours) - 1), np.arange(len(hours)), np.sort(hours))


def _inverse(table: Floats, zone: Ints, share: Floats) -> Floats:
    at = share * (table.shape[1] - 1)
    low = np.minimum(at.astype(np.int64), table.shape[1] - 2)
    left, right = table[zone, low], table[zone, low + 1]
    return left + (right - left) * (at - low)


# 24 KB of JSON, read once; an answer asks for several gangs and regions.
@cache
def _body() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def _gap_h() -> float:
    return _body()["gap_seconds"] / 3600.0


@cache
def _record() -> dict[str, Ints]:
    return {zone: _decoded(text) for zone, text in _body()["zones"].items()}


def _decoded(text: str) -> Ints:
    pairs = [spell.partition("*")[::2] for spell in text.split()]
    counts = np.array([int(count) for count, _ in pairs])
    return np.repeat(counts, [int(ticks or 1) for _, ticks in pairs])


def _source(accelerator: str, usable: list[str], never: list[str]) -> str:
    when = _body()["from"][:7]
    if accelerator != RECORDED_GPU:
        return f"assumed as in the better half of the H100 zones recorded in {when}"
    where = ", ".join(sorted(usable)) if len(usable) <= 3 else f"{len(usable)} zones"
    return f"recorded in {when} in {where}" + (f"; next to never in {', '.join(sorted(never))}" if never else "")
