"""Settings of the checkpoint library, validated before anything starts."""

import math
import os
from dataclasses import dataclass, fields
from typing import Literal

from holdfast.support.errors import InputError
from holdfast.support.values import between, duration_s

MIB = 1 << 20
MIN_SHARD_BYTES = 8 * MIB

# How long a request to a bucket may stay silent.
REQUEST_S = 60.0

Every = int | str
Cadence = tuple[Literal["steps", "seconds", "auto"], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """What few users change."""

    keep_every: int = 0
    """Every checkpoint whose step is a multiple stays, in addition to the newest; 0: none for that
    reason.
    """
    shard_bytes: int = 64 * MIB
    """Most bytes of one object. Bounded, so that each is one request and many go in parallel."""
    parallel: int = 8
    """Objects in flight per rank, writing and reading."""
    wait_s: float = 30.0
    """How long training waits, in all, for an upload that has not finished when the next save is
    due; then it goes on without that save.
    """
    commit_timeout_s: float = 1800.0
    """How long the coordinator waits for the other ranks' shards."""
    agree_timeout_s: float = 600.0
    """How long a rank waits for the others at start, save and stop."""
    retry_s: float = 300.0
    """How long one object is tried again on 429, 5xx and timeouts."""
    request_s: float = REQUEST_S
    """How long a request to a bucket may stay silent before it counts as lost and is made again."""
    min_interval_s: float = 30.0
    max_interval_s: float = 1800.0
    """Floor and ceiling of every="auto"."""
    peer_steps: int = 0
    """Under `holdfast train ranks --sharded`: steps from one copy in a neighbour's memory to the
    next; 0: chosen so that copies hold training or keep the node's processors busy for less than 2
    % of the time.
    """

    def shard_size(self, length: int) -> int:
        """A stream too short for `parallel` full shards is cut smaller, so that it too goes in
        parallel.
        """
        # Rounded up, or the remainder would be a shard of its own and one more request.
        share = -(-length // self.parallel)
        return min(self.shard_bytes, max(MIN_SHARD_BYTES, -(-share // MIB) * MIB))

    def __post_init__(self) -> None:
        # request_s: below a tenth of a second every request would count as lost, and the store as
        # down.
        limits: dict[str, tuple[float, float]] = {
            "shard_bytes": (4096, 1024 * MIB),
            "parallel": (1, 64),
            "min_interval_s": (0, self.max_interval_s),
            "request_s": (0.1, 3600),
        }
        for field in fields(self):
            most = limits.get(field.name, (0, math.inf))
            between(f"checkpoint setting {field.name}", getattr(self, field.name), *most)


def checked_url(url: object) -> str:
    """A path object means its folder; what the text means, opening.py knows. Raises InputError for
    anything else.
    """
    found = os.fspath(url) if isinstance(url, os.PathLike) else url
    if isinstance(found, str) and found:
        return found
    raise InputError(
        "checkpoint URL is neither a string nor a path",
        got=f"{url!r:.80} (a {type(url).__name__})",
        allowed="file:///absolute/dir, a path, or a bucket's URL such as gs://bucket/prefix",
        fix="pass a str or a pathlib.Path",
    )


def parse_every(every: Every) -> Cadence:
    """`50` steps, `"30s"` / `"5m"` / `"1h"`, or `"auto"`. Raises InputError."""
    if every == "auto":
        return "auto", 0.0
    # For Python True is the number 1, and would mean a save in every step.
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return "steps", float(every)
    if isinstance(every, str) and (seconds := duration_s(every, "smh")):
        return "seconds", seconds
    raise InputError(
        "checkpoint interval is not understood",
        got=repr(every),
        allowed='a positive number of steps, a duration such as "30s", "5m" or "1h", or "auto"',
        fix='set every="auto"',
    )
