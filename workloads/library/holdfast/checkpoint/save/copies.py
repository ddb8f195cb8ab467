"""The schedule of copies to a neighbor's memory, and the staging memory that must stay for them.

A version counts once every rank's copy is complete. All ranks learn that together, before the next
version is staged. Until then the version before is complete on every node and on every neighbor,
so a node may be lost at any moment.

Decision: infra/decisions/0115.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.peers.keeper_client import PeerPlaces, Version
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.settings import Tuning
from holdfast.runtime import logs

SHARE = 0.012
"""Share of the step time that the measured part of copies may take, by holding training and by
using the node's cores. The rest, a rank's agreements and its launcher's store, is not measured
here: `make bench-peers` found up to 0.6 percentage points more.
"""
NONE: Version = (-1, "")
MOST_BACKOFF = 256
_SMOOTHING = 0.3


@dataclass(kw_only=True, slots=True)
class _Newest:
    """The version that was staged last, and the state of its copy: copying, copied or uncopied."""

    version: Version
    memory: int
    save: int
    state: str = "copying"


class Copies:
    """One rank's view of the copies: when the next is due, and which version is complete."""

    def __init__(
        self,
        places: PeerPlaces,
        tuning: Tuning,
        restored: Restored,
        rank: int,
    ) -> None:
        self.places = places
        self._fixed_interval = tuning.peer_steps
        self._due_at = restored.step + 1
        self.memories = places.memories
        self.complete_version = NONE
        """Newest version that every node holds; its copies must not be overwritten."""
        self.complete_memory = -1
        """Number of this rank's staging memory that holds it; -1: none."""
        if restored.durable_step is not None:
            self.complete_version = (restored.step, restored.attempt)
            self.complete_memory = places.find_memory(rank, self.complete_version)
        self._newest: _Newest | None = None
        self._backoff = 1
        self._blocking_s = 0.0
        self._processor_s = 0.0
        self._cores_per_rank = _count_cores() / places.ranks_per_node

    def due(self, step: int) -> bool:
        """Tells whether a copy is due; the same on every rank."""
        return step >= self._due_at

    def agree(
        self,
        ranks: Ranks,
        step: int,
        step_s: float,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Tells whether every rank may stage a version to copy. A round through the store; raises
        RankLost.
        """
        newest = self._newest
        failpoint("peer.agree")
        decision = ranks.agree(
            newest.state if newest else "",
            lambda states: self._decide(states, step_s),
            timeout_s=timeout_s,
        )
        if decision["whole"] and newest:
            self.complete_version = newest.version
            # With a folder the shard is there, and the next one may be staged in its place.
            self.complete_memory = -1 if self.places.spools else newest.memory
        self._due_at = step + decision["every"]
        return bool(decision["idle"])

    def _decide(self, states: list[str], step_s: float) -> dict[str, Any]:
        is_idle = "copying" not in states
        is_whole = all(state == "copied" for state in states)
        if is_idle:
            has_failed = any(states) and not is_whole
            self._backoff = min(2 * self._backoff, MOST_BACKOFF) if has_failed else 1
        interval = self._fixed_interval or self._affordable_interval(step_s)
        return {
            "idle": is_idle,
            "whole": is_whole,
            "every": max(1, interval) * self._backoff,
        }

    def _affordable_interval(self, step_s: float) -> int:
        """Returns the fewest steps between copies at which they cost at most SHARE of the time."""
        if step_s <= 0:
            return 1
        processor_s = self._processor_s / self._cores_per_rank
        cost_s = self._blocking_s + processor_s
        return math.ceil(cost_s / (SHARE * step_s))

    def record_staging(
        self,
        version: Version,
        memory: int,
        save: int,
        blocking_s: float,
    ) -> None:
        # The first copy waits for its memory, which later ones do not.
        if self._newest:
            if self._blocking_s:
                self._blocking_s += _SMOOTHING * (blocking_s - self._blocking_s)
            else:
                self._blocking_s = blocking_s
        self._newest = _Newest(version=version, memory=memory, save=save)

    def record_outcome(self, report: Report) -> None:
        newest = self._newest
        if newest is None or report.save != newest.save:
            return
        if report.done == "uncopied" and self._backoff == 1:
            logs.warning(
                "copy",
                f"step {newest.version[0]} has no copy in a neighbor's memory: {report.reason};"
                " training goes on",
            )
        newest.state = report.done
        self._processor_s = report.processor_s or self._processor_s

    @property
    def copied_step(self) -> int:
        """Newest step whose shard of this rank is known to be in the memory of two nodes, or -1."""
        newest = self._newest
        if newest and newest.state == "copied":
            return newest.version[0]
        return self.complete_version[0]

    @property
    def newest_step(self) -> int:
        """Step of the version that was staged last."""
        return self._newest.version[0] if self._newest else self.complete_version[0]


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
