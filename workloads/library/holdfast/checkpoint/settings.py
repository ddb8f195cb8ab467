"""Settings of the checkpoint library, validated before anything starts."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from holdfast.checkpoint.storage import REQUEST_S
from holdfast.contract.errors import InputError

MIB = 1 << 20
MIN_SHARD_BYTES = 8 * MIB

Every = int | str
Cadence = tuple[Literal["steps", "seconds", "auto"], float]
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """What few users change."""

    shard_bytes: int = 64 * MIB
    """Most bytes of one object. Bounded, so that each is one request and many go in parallel."""
    parallel: int = 8
    """Objects in flight per rank, writing and reading."""
    saves_in_flight: int = 1
    """A save beyond it waits for an earlier one. Each takes staging memory of the state's size."""
    keep_every: int = 0
    """Beside the newest `keep`, keep every checkpoint whose step is a multiple; 0: none."""
    orphan_age_s: float = 86_400.0
    """Attempts without a commit go when they are older."""
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
    niceness: int = 5
    """Of the uploader process."""

    def shard_size(self, length: int) -> int:
        """A stream too short for `parallel` full shards is cut smaller, so that it too goes in parallel."""
        share = -(-length // self.parallel)
        return min(self.shard_bytes, max(MIN_SHARD_BYTES, -(-share // MIB) * MIB))

    def __post_init__(self) -> None:
        _between("shard_bytes", self.shard_bytes, 4096, 1024 * MIB)
        _between("parallel", self.parallel, 1, 64)
        _between("saves_in_flight", self.saves_in_flight, 1, 8)
        _between("keep_every", self.keep_every, 0, math.inf)
        _between("niceness", self.niceness, 0, 19)
        _between("min_interval_s", self.min_interval_s, 0, self.max_interval_s)
        for name in ("orphan_age_s", "commit_timeout_s", "agree_timeout_s", "retry_s"):
            _between(name, getattr(self, name), 0, math.inf)
        _between("request_s", self.request_s, 0.1, 3600)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(
            f"checkpoint setting {name} is out of range",
            got=value,
            allowed=f"{low} to {high}",
            fix=f"change {name}",
        )


def checked_keep(keep: int) -> int:
    _between("keep", keep, 1, math.inf)
    return keep


def parse_every(every: Every) -> Cadence:
    """`50` steps, `"30s"` / `"5m"` / `"1h"`, or `"auto"`."""
    if every == "auto":
        return "auto", 0.0
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return "steps", float(every)
    if isinstance(every, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", every)) and float(match[1]) > 0:
        return "seconds", float(match[1]) * _UNITS[match[2]]
    raise InputError(
        "checkpoint interval is not understood",
        got=repr(every),
        allowed='a positive number of steps, a duration such as "30s", "5m" or "1h", or "auto"',
        fix='set every="auto"',
    )
