"""A writer that also hands what it stages to a neighbour, where a launcher keeps the memory of
nodes.
"""

import time
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.peers.places import PeerPlaces
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore.starting import Start
from holdfast.checkpoint.save.copies import Copies
from holdfast.checkpoint.save.decision import decided, manifest_of
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Tuning


class CopyingWriter(CheckpointWriter):
    def __init__(
        self, url: str, run: str, ranks: Ranks, *, tuning: Tuning, began: Start, **options: Any
    ) -> None:
        """`options`: of CheckpointWriter."""
        places = PeerPlaces.of_environment()
        if places and places.run == run:
            copies = Copies(places, tuning, began.restored, ranks.rank)
        else:
            copies = None
        super().__init__(
            url,
            run,
            ranks,
            tuning=tuning,
            began=began,
            copies=copies,
            **options,
        )

    @property
    def copying(self) -> bool:
        """Whether a copy is on its way to a neighbour."""
        return self._uploader.copying

    def between_saves(
        self, step: int, state: dict[str, Any], notes: Callable[[], dict[str, Any]]
    ) -> None:
        """In a step without a save: what is due of the memory for it, and of copies."""
        self.prepare(state)
        if self._copies and self._copies.due(step):
            self.copy(step, state, notes())

    def copy(
        self,
        step: int,
        state: dict[str, Any],
        notes: dict[str, Any],
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """To a neighbour's memory only. False: an earlier copy has not finished on some rank.
        Raises RankLost.
        """
        began = time.monotonic()
        if not self._copies or not self._copies.agree(
            self._ranks, step, self.save_cost.step_s, timeout_s=timeout_s
        ):
            return False
        memory = self._free_memory
        failure = self._failure
        mine, captured, pieces, length = self._stage(step, state, memory)
        attempt = decided(self._ranks, mine, captured).get("attempt", "")
        self._failure = failure  # the next save brings it
        if attempt:
            manifest = manifest_of(self._run, self._ranks, step, attempt, captured, pieces, notes)
            self._hand_over(
                manifest,
                memory,
                length,
                began,
                copy=True,
                upload=False,
            )
        return bool(attempt)

    def copy_last(
        self,
        step: int,
        state: dict[str, Any],
        notes: dict[str, Any],
        timeout_s: float,
    ) -> None:
        """Before a stop: the state of its step, complete in a neighbour's memory if `timeout_s`
        allows it. On every rank. Raises RankLost.
        """
        ends = time.monotonic() + timeout_s
        if self._copies and self._copies.newest_step < step:
            self._await_copy(ends)
            # A rank may have died since the stop was agreed.
            if self.copy(step, state, notes, timeout_s=max(0.1, ends - time.monotonic())):
                self._await_copy(ends)

    def _await_copy(self, ends: float) -> None:
        while self._uploader.copying and (left := ends - time.monotonic()) > 0:
            self._handle(self._uploader.poll(min(0.05, left)))
