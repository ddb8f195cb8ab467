"""When a rank's shard is copied to a neighbour, and which of its own staging memories must stay for
that.

A version counts once every rank's copy is complete: all ranks learn it together, before the next
one is staged. Until then the version before is whole on every node and on every neighbour, so a
node may be lost at any moment.

Decision: infra/decisions/0115.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.peers.places import PeerPlaces, Version
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.settings import Tuning
from holdfast.runtime import logs

SHARE = 0.012
"""Of the time of the steps that the measured part of copies may take: by holding training, and by
keeping the node's processors busy. The rest, a rank's agreements and its launcher's store, is not
measured here: `make bench-peers` found up to 0.6 points more.
"""
NONE: Version = (-1, "")
MOST_BACKOFF = 256


@dataclass(kw_only=True, slots=True)
class _Newest:
    version: Version
    memory: int
    save: int
    state: str = "copying"


class Copies:
    def __init__(
        self,
        places: PeerPlaces,
        tuning: Tuning,
        restored: Restored,
        rank: int,
    ) -> None:
        self.places = places
        self._fixed = tuning.peer_steps
        self._due_at = restored.step + 1
        self.memories = places.memories
        self.kept = NONE
        self.kept_memory = -1
        if restored.durable_step is not None:
            self.kept = restored.step, restored.attempt
            self.kept_memory = places.memory_of(rank, self.kept)
        self._newest: _Newest | None = None
        self._backoff = 1
        self._blocking_s = self._processor_s = 0.0
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        self._cores = cores / places.ranks_per_node

    def due(self, step: int) -> bool:
        """The same on every rank."""
        return step >= self._due_at

    def agree(
        self,
        ranks: Ranks,
        step: int,
        step_s: float,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Whether every rank may stage a version to copy. A round through the store."""
        newest = self._newest
        failpoint("peer.agree")
        found = ranks.agree(
            newest.state if newest else "",
            lambda states: self._decide(states, step_s),
            timeout_s=timeout_s,
        )
        if found["whole"] and newest:
            self.kept = newest.version
            self.kept_memory = newest.memory
        self._due_at = step + found["every"]
        return bool(found["idle"])

    def _decide(self, states: list[str], step_s: float) -> dict[str, Any]:
        idle = "copying" not in states
        whole = all(state == "copied" for state in states)
        if idle:
            self._backoff = 1 if whole or not any(states) else min(2 * self._backoff, MOST_BACKOFF)
        cost_s = self._blocking_s + self._processor_s / self._cores
        every = self._fixed or (math.ceil(cost_s / (SHARE * step_s)) if step_s > 0 else 1)
        return {
            "idle": idle,
            "whole": whole,
            "every": max(1, every) * self._backoff,
        }

    def staged(
        self,
        version: Version,
        memory: int,
        save: int,
        blocking_s: float,
    ) -> None:
        if self._newest:  # the first waits for its memory, which later ones do not
            if self._blocking_s:
                self._blocking_s = 0.7 * self._blocking_s + 0.3 * blocking_s
            else:
                self._blocking_s = blocking_s
        self._newest = _Newest(version=version, memory=memory, save=save)

    def take(self, report: Report) -> None:
        if self._newest and report.save == self._newest.save:
            if report.done == "uncopied" and self._backoff == 1:
                step = self._newest.version[0]
                logs.warning(
                    "copy",
                    f"step {step} has no copy in a neighbour's memory: {report.reason}; training"
                    " goes on",
                )
            self._newest.state = report.done
            self._processor_s = report.processor_s or self._processor_s

    @property
    def copied_step(self) -> int:
        """Newest step of which this rank's shard is known to be in the memory of two nodes; -1: of
        none.
        """
        newest = self._newest
        if newest and newest.state == "copied":
            return newest.version[0]
        return self.kept[0]

    @property
    def newest_step(self) -> int:
        """Of the version that was staged last."""
        return self._newest.version[0] if self._newest else self.kept[0]
