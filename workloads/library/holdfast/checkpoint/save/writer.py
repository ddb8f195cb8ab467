"""The trainer's side of a save: stages, agrees with the other ranks, hands over to the uploader and
handles its reports.

Only one save is in flight; the next that is due waits until it is uploaded, instead of taking more
memory. Two would share the bandwidth, and the older one, which protects the run in the meantime,
would become durable later. A killed uploader loses the save in flight. That is reported, and the
next save starts another uploader.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from holdfast.checkpoint.cadence import Hazard, SaveCostModel
from holdfast.checkpoint.errors import NotDurable, Superseded
from holdfast.checkpoint.format import Manifest, Shard
from holdfast.checkpoint.ranks import Outcome, Ranks, encode_failure
from holdfast.checkpoint.restore.run_start import Start
from holdfast.checkpoint.save.agreement import (
    NOTHING,
    Notes,
    State,
    agree_on_save,
    digest_layout,
    make_manifest,
    pick_worst_ending,
    step_error,
)
from holdfast.checkpoint.save.copies import NONE, Copies
from holdfast.checkpoint.save.frozen import FrozenParameters
from holdfast.checkpoint.save.resizing import check_entries
from holdfast.checkpoint.save.staging import StagedState, Staging, steady_keys
from holdfast.checkpoint.save.uploader import Job, Report, Uploader, UploadOrders
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, capture
from holdfast.checkpoint.state.tensors import (
    Piece,
    count_frozen_bytes,
    make_pieces,
    stream_bytes,
)
from holdfast.runtime import logs
from holdfast.support.errors import InputError

ANNOUNCE_WAIT_AFTER_S = 5.0
"""Long enough to ignore a slow store, short enough to explain a stalled job."""


class CheckpointWriter:
    """Saves a state step by step. Every rank calls its methods equally often and in one order."""

    def __init__(
        self,
        url: str,
        run: str,
        ranks: Ranks,
        *,
        keep: int,
        tuning: Tuning,
        began: Start,
        on_report: Callable[[Report], None],
        stop_asked: Callable[[], bool],
        hazard: Hazard,
        copies: Copies | None = None,
    ) -> None:
        self._run = run
        self._ranks = ranks
        self.tuning = tuning
        self._on_report = on_report
        restored = began.restored
        self._copies = copies
        memories = copies.memories if copies else [-1]
        self._stagings = [Staging(descriptor) for descriptor in memories]
        self._frozen = FrozenParameters(restored.shards_in_store)
        self._leaves_out = False
        """True if the newest save may have left frozen parameters out, on any rank."""
        self._digest_s = 0.0
        """Time of the newest save in which it digested frozen parameters."""
        orders = UploadOrders(
            url=url,
            run=run,
            tuning=tuning,
            keep=keep,
            commit_count=restored.commit_count,
            epoch=began.epoch,
            stale=began.stale,
            damaged=tuple(filter(None, restored.damaged.values())),
            training_threads=ranks.on_this_machine * torch.get_num_threads(),
        )
        descriptors = [staging.descriptor for staging in self._stagings]
        self._uploader = Uploader(orders, descriptors, coordinator=ranks.coordinator)
        self._preparations = 0
        self._save = 0
        self._failure = ""
        """Reason why a save of this rank failed that the other ranks have not heard yet."""
        self._stop_asked = stop_asked
        self.overlaps = False
        """True if the caller holds Checkpointer.lock() around its optimizer step, so that copying
        may continue meanwhile.
        """
        self.last_step = -1
        """Step of the newest save that was handed over."""
        self.durable_step = restored.committed_step
        """Newest committed step: on the coordinator as of now, elsewhere as of the last save."""
        self.durable_since = time.monotonic()
        """Time at which its state was staged, or restored."""
        self._newest_failed = False
        """True if the newest save failed on any rank, as all learned in the last agreement."""
        self.fenced = ""
        """Description of another trainer that has taken the right to commit."""
        self._waited_s = 0.0
        """Time that training has waited for room since the last save was handed over."""
        self._announced = False
        """True once that wait was logged."""
        self.save_cost = SaveCostModel(
            hazard, floor_s=tuning.min_interval_s, ceiling_s=tuning.max_interval_s
        )

    @property
    def copied_step(self) -> int:
        """Newest step that the memory of nodes is known to hold; -1: none."""
        return self._copies.copied_step if self._copies else -1

    @property
    def busy(self) -> bool:
        return bool(self._uploader.in_flight)

    def last_save_fits(self, remaining_s: float) -> bool:
        """Tells whether every rank may try one more save in the rest of the grace period."""
        # 0 before the first upload has ended: to try costs nothing, and not to try loses the steps
        # for certain.
        needed_s = self.save_cost.persist_s
        if self._frozen.is_digested:
            needed_s -= self._digest_s
        fits_here = not self.busy and needed_s < remaining_s
        timeout_s = max(0.1, remaining_s)
        return bool(self._ranks.agree(fits_here, all, timeout_s=timeout_s))

    def prepare(self, state: State) -> None:
        """Touches the staging memory before the first save needs it: at the start, and again when
        the first step has created the optimizer's tensors. Does nothing while a touch is running.
        """
        is_touching = any(staging.touching for staging in self._stagings)
        if self._preparations == 2 or is_touching:
            return
        self._preparations += 1
        with suppress(InputError):  # the next save raises it on every rank
            captured = capture(state)
            pieces = self._own_pieces(captured)
            frozen_bytes = count_frozen_bytes(captured, pieces)
            shard_bytes = self.tuning.shard_size(stream_bytes(pieces))
            is_stored = self._may_leave_out and self._frozen.may_skip(
                pieces, frozen_bytes, shard_bytes
            )
            for staging in self._stagings:
                staging.prepare(pieces, frozen_bytes if is_stored else 0)

    def save(
        self,
        step: int,
        state: State,
        notes: Notes | None = None,
        *,
        in_any_case: bool = False,
    ) -> bool:
        """Stages the state and hands it to the uploader.

        Returns False if the save was skipped: the upload before it has not finished, and the ranks
        stop or have waited long enough.
        """
        self._wait_for_room(in_any_case)
        started_at = time.monotonic()
        copy = False
        # A state that was copied already is not copied again, on any rank.
        if self._copies and self._copies.newest_step < step:
            step_s = self.save_cost.step_s
            copy = self._copies.agree(self._ranks, step, step_s)
        # A rank without a free memory says so in the agreement: the save of the others would not
        # commit.
        memory = self._free_memory
        outcome, staged = self._stage(step, state, memory)
        # The ranks agree after staging: else each would wait for the slowest one, and then stage.
        attempt = self._agree(step, outcome, staged.captured)
        if not attempt:
            return False
        self._waited_s = 0.0
        self._announced = False
        self.last_step = step
        self._leaves_out = self._may_leave_out and bool(staged.captured.frozen)
        manifest = make_manifest(
            self._run,
            self._ranks,
            step,
            attempt,
            staged.captured,
            staged.pieces,
            notes,
        )
        blocking_s = self._hand_over(
            manifest,
            memory,
            staged,
            started_at,
            copy=copy,
        )
        self.save_cost.blocking_s = blocking_s
        self._on_report(
            Report(
                save=self._save,
                done="staged",
                step=step,
                seconds=blocking_s,
                bytes=staged.bytes,
            )
        )
        return True

    @property
    def _free_memory(self) -> int:
        reserved = self._copies.complete_memory if self._copies else -1
        return self._uploader.free_memory(reserved)

    def _hand_over(
        self,
        manifest: Manifest,
        memory: int,
        staged: StagedState,
        started_at: float,
        *,
        copy: bool,
        upload: bool = True,
    ) -> float:
        """Hands staged bytes to the uploader, and returns how long training was held."""
        staging = self._stagings[memory]
        # The next optimizer step would write to tensors that the GPU is still copying from.
        if not self.overlaps:
            staging.wait()
        # The same number on every rank, since each takes part in every save: the store's keys are
        # named by it.
        self._save += 1
        blocking_s = time.monotonic() - started_at
        job = Job(
            save=self._save,
            memory=memory,
            length=staged.bytes - staged.start,
            shard_bytes=self.tuning.shard_size(staged.bytes),
            manifest=manifest,
            frozen_bytes=staged.frozen_bytes,
            shared=staged.shared,
            upload=upload,
            copy=copy,
            keep=self._copies.complete_version if self._copies else NONE,
        )
        if copy and self._copies:
            version = (manifest.step, manifest.attempt)
            self._copies.record_staging(
                version,
                memory,
                self._save,
                blocking_s,
            )
        after = staging.wait if staging.copying else None
        self._uploader.submit(job, started_at, after=after)
        return blocking_s

    def _wait_for_room(self, in_any_case: bool) -> None:
        """Waits for the save in flight instead of taking more memory.

        The wait is bounded over all saves that wait for the same upload: a store that hangs must
        not block training.
        """
        patience_s = self.tuning.commit_timeout_s + self.tuning.retry_s
        bound_s = patience_s
        if not in_any_case:
            bound_s = max(0.0, self.tuning.wait_s - self._waited_s)
        started_at = time.monotonic()
        announce_at = started_at + ANNOUNCE_WAIT_AFTER_S
        give_up = partial(
            self._should_stop_waiting,
            announce_at,
            bound_s,
            in_any_case,
        )
        reports = self._uploader.finish(bound_s, give_up=give_up)
        self._handle(reports)
        self._waited_s += time.monotonic() - started_at
        if not self.busy:
            return
        is_stuck = self._uploader.oldest_s > patience_s and not self._stop_asked()
        if in_any_case or is_stuck:
            # Stuck beyond its own time-outs: killed, so that its memory is free and the next save
            # starts another.
            self._uploader.replace()
            self._handle(self._uploader.finish(1.0))

    def _should_stop_waiting(
        self,
        announce_at: float,
        bound_s: float,
        in_any_case: bool,
    ) -> bool:
        if time.monotonic() > announce_at and not self._announced:
            self._announced = True
            backlog = self._uploader.describe_backlog()
            logs.warning("save", f"training waits for room: {backlog}; at most {bound_s:.0f} s")
        self._abandon_incomplete()
        return not in_any_case and self._stop_asked()

    def _check_step(self, step: int) -> None:
        # A step is an object's name: the second save under it would be dropped, and its work
        # counted as safe.
        is_retry = bool(self._failure) or self._newest_failed
        is_repeated = step == self.last_step and not is_retry
        if step < self.last_step or is_repeated or step <= self.durable_step:
            raise step_error(step, max(self.last_step, self.durable_step))

    def _stage(
        self,
        step: int,
        state: State,
        memory: int,
    ) -> tuple[Outcome, StagedState]:
        """Stages this rank's part into `memory`, without frozen parameters that the store has.

        Returns the outcome for the other ranks, and what is staged. A bad value is an outcome, so
        that every rank raises it.
        """
        nothing = StagedState(captured=NOTHING, pieces=[])
        if self.fenced:
            return {"fenced": self.fenced}, nothing
        if memory < 0:
            skip = "" if self._stop_asked() else self._uploader.describe_backlog()
            return {"skip": skip}, nothing
        try:
            self._check_step(step)
            if self._copies and self._copies.places.resizes:
                check_entries(state)  # the first step may have added values of the optimizer
            captured = capture(state)
            pieces = self._own_pieces(captured)
            steady = steady_keys(state, captured) if self.overlaps else ()
            started_at = time.monotonic()
            shared = self._find_stored(captured, pieces)
            self._digest_s = time.monotonic() - started_at
            staged = StagedState(captured=captured, pieces=pieces, shared=shared)
            self._stagings[memory].stage(pieces, steady=steady, start=staged.start)
        except InputError as error:
            return encode_failure(error), nothing
        outcome = {
            "layout": digest_layout(captured),
            "failed": self._failure,
            "durable": self.durable_step,
            "bytes": staged.bytes,
        }
        self._failure = ""
        return outcome, staged

    @property
    def _may_leave_out(self) -> bool:
        """Tells whether frozen parameters may be left out of the staging memory."""
        return self._copies is None  # a neighbor's copy has the whole stream

    def _find_stored(self, captured: Captured, pieces: list[Piece]) -> tuple[Shard, ...]:
        """Returns the shards of frozen parameters that the store has, and that need no staging."""
        if not self._may_leave_out:
            return ()
        shard_bytes = self.tuning.shard_size(stream_bytes(pieces))
        return self._frozen.find_stored(pieces, count_frozen_bytes(captured, pieces), shard_bytes)

    def digest_frozen(self, state: State) -> None:
        """Digests frozen parameters for the last save, while the one before is uploaded.

        Called at a stop, on every rank: nothing may change between it and the save.
        """
        if not self._leaves_out:  # the same on every rank, since a capture may be a collective
            return
        with suppress(InputError):  # the save raises it on every rank
            captured = capture(state)
            self._frozen.keep(self._find_stored(captured, self._own_pieces(captured)))

    def _agree(
        self,
        step: int,
        outcome: Outcome,
        captured: Captured,
    ) -> str:
        """Returns the attempt that all ranks write below; empty: the save is skipped.

        Raises Superseded, InputError.
        """
        decision = agree_on_save(self._ranks, outcome, captured)
        if "fenced" in decision:
            raise Superseded(self.last_step, decision["fenced"])
        if "skip" in decision:
            if decision["skip"]:
                self._report_failure(step, decision["skip"])
            return ""
        # The coordinator's, since other ranks see their own uploads and no commit.
        self.durable_step = decision["durable"]
        self._newest_failed = bool(decision["failed"])
        failure = decision["failed"]
        if not failure and self.durable_step >= 0:
            report = Report(save=self._save, done="sound", step=self.last_step)
            self._on_report(report)
        is_reported = self._ranks.rank in decision["reported_by"]
        if failure and not is_reported:
            self._report_failure(self.last_step, failure)
        return decision["attempt"]

    def _report_failure(self, step: int, reason: str) -> None:
        self._on_report(
            Report(
                save=self._save,
                done="failed",
                step=step,
                reason=reason,
            )
        )

    def _own_pieces(self, captured: Captured) -> list[Piece]:
        """Returns the pieces of the state that this rank writes."""
        return make_pieces(captured, self._ranks.rank, self._ranks.world_size)

    def wait(self, timeout_s: float) -> bool:
        """Waits for the save in flight. False: the time ran out, or it failed."""
        reports = self._uploader.finish(timeout_s, give_up=self._abandon_incomplete)
        self._handle(reports)
        return not self.busy and not self._failure

    def poll(self) -> None:
        """Handles reports. Raises Superseded if this is the only rank and it has learned of a newer
        trainer.
        """
        if self.busy or self._uploader.copying:
            self._handle(self._uploader.poll())
        # Several ranks learn it together, in the next save: one that left alone would leave the
        # others waiting.
        if self.fenced and self._ranks.world_size == 1:
            raise Superseded(self.last_step, self.fenced)

    def check_durable(self, step: int, *, timeout_s: float | None = None) -> None:
        """Raises Superseded or NotDurable on every rank unless `step` is committed by now."""
        reason = self._failure
        is_missing = self._ranks.coordinator and self.durable_step < step
        if not reason and (is_missing or self.busy):
            reason = "its save has not finished"
        outcome = {"fenced": self.fenced, "failed": reason}
        ending = self._ranks.agree(outcome, pick_worst_ending, timeout_s=timeout_s)
        if ending["fenced"]:
            raise Superseded(step, ending["fenced"])
        if ending["failed"]:
            raise NotDurable(step, f"the last state is not stored: {ending['failed']}")

    def abandon_upload(self) -> None:
        """Kills the uploader, since the ranks that start next write the memory that it reads. Their
        launcher waits for its end.
        """
        self._uploader.kill()

    def wait_until_staged(self) -> None:
        for staging in self._stagings:
            staging.wait()

    def close(self) -> None:
        self._uploader.close()
        for staging in self._stagings:
            staging.close()

    def _handle(self, reports: list[Report]) -> None:
        for report in reports:
            if report.done in ("copied", "uncopied"):
                if self._copies:
                    self._copies.record_outcome(report)
                continue
            if report.done == "committed" and report.step > self.durable_step:
                self.durable_step = report.step
                self.durable_since = time.monotonic() - report.seconds
            if report.done == "fenced":
                self.fenced = report.reason
            if report.done in ("failed", "fenced"):
                self._failure = report.reason or "failed"
                # The coordinator's uploader would wait for this rank's manifest until its time-out.
                if not self._ranks.coordinator:
                    key = f"failed/{report.save}"
                    self._ranks.store.set(key, report.reason)
            elif report.done in ("uploaded", "committed"):
                if report.done == "uploaded":
                    self._frozen.record(Shard(**shard) for shard in report.shared)
                self.save_cost.observe_save(report.seconds, report.written_bytes, report.once_bytes)
            self._on_report(report)

    def _abandon_incomplete(self) -> bool:
        """Abandons saves of which another rank's upload failed: the coordinator's uploader would
        wait for its shards. Returns False, so that it can serve as `give_up`.
        """
        if self._ranks.coordinator and self._ranks.world_size > 1:
            for save in self._uploader.in_flight:
                if self._ranks.store.check([f"failed/{save}"]):
                    self._uploader.abandon(save)
        return False
