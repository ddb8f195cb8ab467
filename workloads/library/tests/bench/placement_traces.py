"""Availability of Spot machines, for the benches: recordings of one zone, made up with a seed, as paths."""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.place.runs import Bools, Floats, Paths

TILES = 4
"""A run that outlasts the recording goes on at its beginning; a job this many recordings long never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    gap_h: float
    up: Bools

    @property
    def hours(self) -> float:
        return len(self.up) * self.gap_h

    def paths(self) -> Paths:
        # Wrapping keeps the daily rhythm; extrapolating would invent one.
        up = np.tile(self.up, TILES)
        edges = np.flatnonzero(up[1:] != up[:-1]) + 1
        return Paths(edges_h=np.append(edges * self.gap_h, np.inf)[None, :], starts_up=up[:1])


def paths_of(traces: list[Trace]) -> Paths:
    """Several recordings, for runs that each take one of them."""
    each = [trace.paths() for trace in traces]
    # Beyond its last edge a path never changes again.
    edges = np.full((len(each), max(p.edges_h.shape[1] for p in each)), np.inf)
    for row, path in enumerate(each):
        edges[row, : path.edges_h.shape[1]] = path.edges_h[0]
    return Paths(edges_h=edges, starts_up=np.concatenate([path.starts_up for path in each]))


def synthetic(
    name: str, *, up_h: tuple[float, float], down_h: tuple[float, float], hours: float, seed: int, gap_s: float = 195.0
) -> Trace:
    """A recording with spells of the given (mean, median), lognormal: means far above medians, as in real ones."""
    rng = np.random.default_rng(seed)
    # Three times what the means need: with tails like these the first draws may fall far short.
    count = int(hours / (up_h[0] + down_h[0]) * 3) + 50
    spells = np.stack([_lognormal(rng, *down_h, count), _lognormal(rng, *up_h, count)], axis=1).ravel()
    edges = np.cumsum(spells)
    ticks = np.arange(0.0, min(hours, float(edges[-1])), gap_s / 3600.0)
    return Trace(name=name, gap_h=gap_s / 3600.0, up=np.searchsorted(edges, ticks, side="right") % 2 == 1)


def _lognormal(rng: np.random.Generator, mean: float, median: float, count: int) -> Floats:
    # Of a lognormal, mean over median is exp(sigma^2 / 2).
    sigma = math.sqrt(2.0 * math.log(max(mean / median, 1.0 + 1e-9)))
    return rng.lognormal(math.log(median), sigma, count)
