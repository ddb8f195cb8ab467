"""Recorded availability of interruptible machines: read, checked, turned into paths; and made up, with a seed.

Format: {"metadata": {"gap_seconds": N}, "data": [...]},
one number a tick: how many machines could be had. Public recordings are not part of this repository.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contract.errors import InputError
from holdfast.place.runs import Bools, Floats, Ints, Paths

AVAILABLE, PREEMPTED = "available", "preempted"
TILES = 4
"""A run that outlasts the recording goes on at its beginning; a job this many recordings long never ends."""
MAX_CHURN = 60.0  # a machine a minute; capacity that was never there has no other churn
# Written by a converter of multi-region traces that turns machines into 1 = preempted.
_INVERSE_MARKS = ("source_file", "source_dir")
_COMPLEMENT = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    gap_h: float
    up: Bools
    moved: Bools | None = None
    """Ticks at which machines are lost although others are there: of several zones seen as one."""
    counts: Ints | None = None
    """How many machines could be had; None where the recording counts something else."""

    @property
    def hours(self) -> float:
        return len(self.up) * self.gap_h

    @property
    def up_share(self) -> float:
        return float(self.up.mean())

    def spells(self, *, up: bool) -> Floats:
        """Hours of each unbroken stretch, the cut ones at both ends left out."""
        edges = np.flatnonzero(self.up[1:] != self.up[:-1]) + 1
        return np.diff(edges)[self.up[edges[:-1]] == up] * self.gap_h

    def half(self, number: int) -> "Trace":
        """The first (0) or the second (1) half; of the public record about a week."""
        middle = len(self.up) // 2
        part = slice(middle, None) if number else slice(None, middle)
        moved, counts = (None if each is None else each[part] for each in (self.moved, self.counts))
        return replace(self, up=self.up[part], moved=moved, counts=counts)

    def paths(self, tiles: int = TILES) -> Paths:
        # Wrapping keeps the daily rhythm; extrapolating would invent one.
        up = np.tile(self.up, tiles)
        edges = np.flatnonzero(up[1:] != up[:-1]) + 1
        if self.moved is not None:
            # A move is an end and a beginning at the same moment.
            moves = np.flatnonzero(np.tile(self.moved, tiles))
            edges = np.sort(np.concatenate([edges, np.repeat(moves[moves > 0], 2)]))
        return Paths(edges_h=np.append(edges * self.gap_h, np.inf)[None, :], starts_up=up[:1])


def load(path: Path, *, machines: int = 1, encoding: str = "") -> Trace:
    """One recording; "up" is when at least `machines` could be had. `encoding` overrides what the file says."""
    body = _json(path)
    data, metadata = body.get("data"), body.get("metadata") or {}
    # No default: recordings differ by a factor of twenty in their step.
    gap_s = metadata.get("gap_seconds")
    if not isinstance(gap_s, int | float) or gap_s <= 0:
        raise _bad(path, "metadata.gap_seconds", gap_s, "a number above 0", "write the seconds between two ticks")
    if not isinstance(data, list) or len(data) < 2:
        raise _bad(path, "data", type(data).__name__, "a list of at least 2 counts", "check that this is a trace")
    _check_holes(path, data)
    # Both meanings of 1 are in circulation, and a wrong guess turns 90 % available into 10 %.
    encoding = encoding or metadata.get("encoding", "")
    if not encoding and any(mark in metadata for mark in _INVERSE_MARKS):
        raise _bad(
            path,
            "inverse encoding",
            f"metadata.{next(m for m in _INVERSE_MARKS if m in metadata)}, written by a converter to 1 = preempted",
            "1 = available",
            f"pass --encoding {PREEMPTED}, or --encoding {AVAILABLE} if you know better",
        )
    counts = np.asarray(data, dtype=float)
    gone = encoding == PREEMPTED
    up = counts < machines if gone else counts >= machines
    return Trace(name=path.stem, gap_h=gap_s / 3600.0, up=up, counts=None if gone else counts.astype(np.int64))


def load_folder(folder: Path, *, machines: int = 1, encoding: str = "") -> list[Trace]:
    """Every *.json below the folder; two recordings of which one is the other's inverse are refused by name."""
    files = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    if not files:
        raise InputError(
            "no traces", got=folder, allowed="a folder with *.json recordings", fix="give the folder of the recordings"
        )
    traces = [load(file, machines=machines, encoding=encoding) for file in files]
    # An inverse copy beside the original would average to 50 % for any capacity.
    for one, other in _complements(traces):
        raise InputError(
            "inverse encoding among the traces",
            got=f"{one} and {other} are each other's inverse",
            allowed="1 = available everywhere",
            fix=f"remove the inverse one, or read it apart with --encoding {PREEMPTED}",
        )
    return traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Several recordings side by side, for runs that each take one of them."""

    paths: Paths
    hours: Floats
    churn: float
    """Outages an available hour, over all; bounds from above what a running machine suffers."""
    traces: tuple[Trace, ...] = ()

    @classmethod
    def of(cls, traces: list[Trace], tiles: int = TILES) -> "Recorded":
        each = [trace.paths(tiles) for trace in traces]
        # Beyond its last edge a path never changes again.
        edges = np.full((len(each), max(p.edges_h.shape[1] for p in each)), np.inf)
        for row, path in enumerate(each):
            edges[row, : path.edges_h.shape[1]] = path.edges_h[0]
        ups = np.concatenate([path.starts_up for path in each])
        up_h = sum(trace.up_share * trace.hours for trace in traces)
        outages = sum(np.count_nonzero(trace.up[:-1] & ~trace.up[1:]) for trace in traces)
        return cls(
            paths=Paths(edges_h=edges, starts_up=ups),
            hours=np.array([trace.hours for trace in traces]),
            churn=min(max(float(outages), 1.0) / max(up_h, 1e-9), MAX_CHURN),
            traces=tuple(traces),
        )


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


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _bad(path, "file", error, "a JSON object", "check the path and the download") from error
    if not isinstance(body, dict):
        raise _bad(path, "file", type(body).__name__, "a JSON object", "check that this is a trace")
    return body


def _check_holes(path: Path, data: list[Any]) -> None:
    for tick, value in enumerate(data):
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise _bad(
                path,
                f"hole at tick {tick} of {len(data)}",
                value,
                "a count of 0 or more in every tick",
                "cut the trace there, or record the tick again; a hole is neither up nor down",
            )


def _complements(traces: list[Trace]) -> list[tuple[str, str]]:
    return [
        (one.name, other.name)
        for i, one in enumerate(traces)
        for other in traces[i + 1 :]
        # All up beside all down is no inverse copy: both are recordings that exist.
        if len(one.up) == len(other.up) and 0.0 < one.up_share < 1.0 and np.mean(one.up != other.up) > _COMPLEMENT
    ]


def _bad(path: Path, what: str, got: object, allowed: str, fix: str) -> InputError:
    return InputError(f"trace {path.name}: {what}", got=got, allowed=allowed, fix=fix)
