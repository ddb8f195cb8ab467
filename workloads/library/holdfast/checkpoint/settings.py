"""Settings of the checkpoint library, validated before anything starts."""

import math
import os
from dataclasses import dataclass, fields
from typing import Literal

from holdfast.support.errors import InputError
from holdfast.support.values import between, duration_s

MIB = 1 << 20
MIN_SHARD_BYTES = 8 * MIB

# Longest silence of a request to a bucket.
REQUEST_S = 60.0

Every = int | str
Cadence = tuple[Literal["steps", "seconds", "auto"], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Settings that few users change.

    They are an argument of Checkpointer.

        Checkpointer("gs://bucket/runs", state, tuning=Tuning(keep_every=1000, parallel=16))
    """

    keep_every: int = 0
    """Keeps checkpoints whose step is a multiple of it, in addition to the newest; 0: none for that
    reason.
    """
    shard_bytes: int = 64 * MIB
    """Largest size of one object: each is one request, and many go in parallel."""
    parallel: int = 8
    """Number of objects in flight per rank, writing and reading."""
    wait_s: float = 30.0
    """Longest time that training waits, in all, for an upload that has not finished when the next
    save is due; then it continues without that save.
    """
    commit_timeout_s: float = 1800.0
    """Longest time that the coordinator waits for the other ranks' shards."""
    agree_timeout_s: float = 600.0
    """Longest time that a rank waits for the others at start, save and stop."""
    retry_s: float = 300.0
    """Longest time for which one object is retried on 429, 5xx and timeouts."""
    request_s: float = REQUEST_S
    """Longest silence of a request to a bucket before it counts as lost and is retried."""
    min_interval_s: float = 30.0
    max_interval_s: float = 1800.0
    """Floor and ceiling of every="auto"."""
    peer_steps: int = 0
    """Number of steps between copies in a neighbor's memory, under `holdfast train ranks
    --sharded`; 0: chosen so that copies hold training or use the node's cores for less than 2 % of
    the time.
    """

    def shard_size(self, length: int) -> int:
        """Returns the size of a shard. A stream that is too short for `parallel` full shards is
        split into smaller ones, so that it too goes in parallel.
        """
        # Rounded up, or the remainder would be another shard and one more request.
        share = -(-length // self.parallel)
        whole_mib = -(-share // MIB)
        return min(self.shard_bytes, max(MIN_SHARD_BYTES, whole_mib * MIB))

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
            smallest, largest = limits.get(field.name, (0, math.inf))
            value = getattr(self, field.name)
            title = f"checkpoint setting {field.name}"
            between(
                title,
                value,
                smallest,
                largest,
            )
            if field.type is int:
                check_whole(title, value)


def check_whole(title: str, number: float) -> None:
    """Raises InputError for a number that is no int: the uploader slices and counts by it."""
    if not isinstance(number, int):
        raise InputError(
            title,
            got=number,
            allowed="a whole number",
            fix="write a whole number",
        )


def check_url(url: object) -> str:
    """Returns the URL as text, which factory.py parses. Raises InputError unless it is a text or a
    path.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if isinstance(text, str) and text:
        return text
    raise InputError(
        "checkpoint URL is neither a string nor a path",
        got=f"{url!r:.80} (a {type(url).__name__})",
        allowed="file:///absolute/dir, a path, or a bucket's URL such as gs://bucket/prefix",
        fix="pass a str or a pathlib.Path",
    )


def parse_every(every: Every) -> Cadence:
    """Parses `50` steps, `"30s"` / `"5m"` / `"1h"`, or `"auto"`. Raises InputError."""
    if every == "auto":
        return "auto", 0.0
    # In Python True is the number 1, and would mean a save in every step.
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return "steps", float(every)
    if isinstance(every, str) and (seconds := duration_s(every)):
        return "seconds", seconds
    raise InputError(
        "checkpoint interval is not understood",
        got=repr(every),
        allowed='a positive number of steps, a duration such as "30s", "5m" or "1h", or "auto"',
        fix='set every="auto"',
    )
