"""A writer that also copies staged bytes to a neighbor if a launcher keeps the memory of nodes."""

import time
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.ranks import Ranks, on_every_rank
from holdfast.checkpoint.restore.run_start import Start
from holdfast.checkpoint.save.agreement import Notes, State, agree_on_save, make_manifest
from holdfast.checkpoint.save.copies import Copies
from holdfast.checkpoint.save.resizing import check_memory
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Tuning


class CopyingWriter(CheckpointWriter):
    def __init__(
        self, url: str, run: str, ranks: Ranks, *, tuning: Tuning, began: Start, **options: Any
    ) -> None:
        """Passes `options`, the other arguments of CheckpointWriter, to it unchanged."""
        places = PeerPlaces.of_environment()
        copies = None
        if places and places.run == run:
            copies = Copies(
                places,
                tuning,
                began.restored,
                ranks.rank,
            )
        self._is_size_checked = False
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
        """True while a copy is on its way to a neighbor."""
        return self._uploader.copying

    def between_saves(
        self,
        step: int,
        state: State,
        notes: Callable[[], Notes],
    ) -> None:
        """Prepares staging memory, and copies to a neighbor if due, on a step without a save."""
        self.prepare(state)
        if self._copies and self._copies.due(step):
            self.copy(step, state, notes())

    def copy(
        self,
        step: int,
        state: State,
        notes: Notes,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Stages the state and copies it to a neighbor's memory, without an upload.

        Returns False if an earlier copy has not finished on some rank. Raises RankLost.
        """
        started_at = time.monotonic()
        if self._copies is None:
            return False
        step_s = self.save_cost.step_s
        if not self._copies.agree(
            self._ranks,
            step,
            step_s,
            timeout_s=timeout_s,
        ):
            return False
        memory = self._free_memory
        failure = self._failure
        outcome, staged = self._stage(step, state, memory)
        decision = agree_on_save(self._ranks, outcome, staged.captured)
        attempt = decision.get("attempt", "")
        self._failure = failure  # the next save reports it
        if not attempt:
            return False
        self._check_size(decision["bytes"])
        manifest = make_manifest(
            self._run,
            self._ranks,
            step,
            attempt,
            staged.captured,
            staged.pieces,
            notes,
        )
        self._hand_over(
            manifest,
            memory,
            staged,
            started_at,
            copy=True,
            upload=False,
        )
        return True

    def _check_size(self, total_bytes: int) -> None:
        """Raises InputError on every rank if some node cannot hold its share of the state.

        In the first copy of a start: an optimizer creates its tensors in the first step.
        """
        if self._is_size_checked or self._copies is None:
            return
        self._is_size_checked = True
        places = self._copies.places
        on_every_rank(self._ranks, lambda: check_memory(total_bytes, places))

    def copy_last(
        self,
        step: int,
        state: State,
        notes: Notes,
        timeout_s: float,
    ) -> None:
        """Copies the state of the last step before a stop, and waits for the copy if `timeout_s`
        allows it. Called on every rank. Raises RankLost.
        """
        deadline = time.monotonic() + timeout_s
        copies = self._copies
        if copies is None or copies.newest_step >= step:
            return
        self._wait_for_copy(deadline)
        # A rank may have died since the stop was agreed.
        remaining_s = max(0.1, deadline - time.monotonic())
        if self.copy(
            step,
            state,
            notes,
            timeout_s=remaining_s,
        ):
            self._wait_for_copy(deadline)

    def _wait_for_copy(self, deadline: float) -> None:
        while self._uploader.copying:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return
            reports = self._uploader.poll(min(0.05, remaining_s))
            self._handle(reports)
