"""One save after another: stage, agree, hand to the uploader, receive its reports.

One save is in flight: the next that is due waits until it is uploaded, instead of taking more
memory. Two would share the bandwidth, and the older, which alone protects in the meantime, would
become durable last. A killed uploader loses the save in flight, which is reported, and the next
save starts another uploader.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from holdfast.checkpoint.cadence import Hazard, SaveCostModel
from holdfast.checkpoint.errors import NotDurable, Superseded
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.ranks import Ranks, failure_of
from holdfast.checkpoint.restore.starting import Start
from holdfast.checkpoint.save.copies import NONE, Copies
from holdfast.checkpoint.save.decision import (
    NOTHING,
    decided,
    layout_digest,
    manifest_of,
    step_not_grown,
    worst_ending,
)
from holdfast.checkpoint.save.staging import Staging, steady_keys
from holdfast.checkpoint.save.uploader import Job, Report, Uploader, UploadOrders
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import Captured, capture
from holdfast.checkpoint.state.tensors import Piece, pieces_of
from holdfast.runtime import logs
from holdfast.support.errors import InputError

# Sooner, every store that is a little slow would be logged; later, a person looks at a job that
# does not move.
ANNOUNCE_WAIT_AFTER_S = 5.0


class CheckpointWriter:
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
        self._stagings = [
            Staging(descriptor) for descriptor in (copies.memories if copies else [-1])
        ]
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
        memories = [staging.descriptor for staging in self._stagings]
        self._uploader = Uploader(orders, memories, coordinator=ranks.coordinator)
        self._prepared = 0
        self._save = 0
        self._failure = ""
        self._stop_asked = stop_asked
        self.overlaps = False
        """Whether the caller holds Checkpointer.lock() around its optimizer step, so that copying
        may go on meanwhile.
        """
        self.last_step = -1
        """Step of the newest save that was handed over."""
        self.durable_step = restored.committed_step
        """Newest step that is committed: on the coordinator as of now, elsewhere as of the last
        save.
        """
        self.durable_since = time.monotonic()
        """When its state was staged, or restored."""
        self._newest_failed = False
        """Of the saves, as all ranks know since the last one."""
        self.fenced = ""
        """Which other trainer has taken the right to commit."""
        self._waited_s = 0.0
        self._announced = False
        """How long training has waited for room since the last save was handed over, and whether
        that was logged.
        """
        self.save_cost = SaveCostModel(
            hazard, floor_s=tuning.min_interval_s, ceiling_s=tuning.max_interval_s
        )

    @property
    def state_bytes(self) -> int:
        """This rank's part, once its staging memory is there."""
        return self._stagings[0].bytes

    @property
    def copied_step(self) -> int:
        """Newest step that the memory of nodes is known to hold; -1: none."""
        return self._copies.copied_step if self._copies else -1

    @property
    def busy(self) -> bool:
        return bool(self._uploader.in_flight)

    def last_save_fits(self, left_s: float) -> bool:
        """Whether every rank may try one more save in what is left of the grace period."""
        # 0 before the first upload has ended: to try costs nothing, and not to try loses the steps
        # for certain.
        mine = not self.busy and self.save_cost.persist_s < left_s
        return bool(self._ranks.agree(mine, all, timeout_s=max(0.1, left_s)))

    def prepare(self, state: dict[str, Any]) -> None:
        """Touch the staging memory before the first save needs it: at the start, and again when the
        first step has given the optimizer its tensors. Never waits for the first to be through.
        """
        if self._prepared < 2 and not any(staging.touching for staging in self._stagings):
            self._prepared += 1
            with suppress(InputError):  # the next save raises it on every rank
                pieces = pieces_of(capture(state), self._ranks.rank, self._ranks.world_size)
                for staging in self._stagings:
                    staging.prepare(pieces)

    def save(
        self,
        step: int,
        state: dict[str, Any],
        notes: dict[str, Any] | None = None,
        *,
        in_any_case: bool = False,
    ) -> bool:
        """False: not done, because the upload before has not finished and the ranks stop, or have
        waited long enough.
        """
        self._wait_for_room(in_any_case)
        began = time.monotonic()
        # A state that was copied already is not copied again, on any rank.
        copies = self._copies if self._copies and self._copies.newest_step < step else None
        copy = copies is not None and copies.agree(self._ranks, step, self.save_cost.step_s)
        # Before the agreement: a rank without room must say so in it, or the others stage a save
        # that cannot commit.
        memory = self._free_memory
        mine, captured, pieces, length = self._stage(step, state, memory)
        # Staging comes before: an exchange first would add the slowest rank's copy to everybody's
        # wait.
        attempt = self._agree(step, mine, captured)
        if not attempt:
            return False
        self._waited_s = 0.0
        self._announced = False
        self.last_step = step
        manifest = manifest_of(self._run, self._ranks, step, attempt, captured, pieces, notes)
        blocking_s = self._hand_over(manifest, memory, length, began, copy=copy)
        self.save_cost.blocking_s = blocking_s
        self._on_report(
            Report(
                save=self._save,
                done="staged",
                step=step,
                seconds=blocking_s,
                bytes=length,
            )
        )
        return True

    @property
    def _free_memory(self) -> int:
        return self._uploader.free_memory(self._copies.kept_memory if self._copies else -1)

    def _hand_over(
        self,
        manifest: Manifest,
        memory: int,
        length: int,
        began: float,
        *,
        copy: bool,
        upload: bool = True,
    ) -> float:
        """How long training was held."""
        staging = self._stagings[memory]
        # The next optimizer step would write to tensors that the GPU is still copying from.
        if not self.overlaps:
            staging.wait()
        # The same number on every rank, since each takes part in every save: the store's keys are
        # named by it.
        self._save += 1
        blocking_s = time.monotonic() - began
        job = Job(
            save=self._save,
            memory=memory,
            length=length,
            shard_bytes=self.tuning.shard_size(length),
            manifest=manifest,
            upload=upload,
            copy=copy,
            keep=self._copies.kept if self._copies else NONE,
        )
        if copy and self._copies:
            self._copies.staged((manifest.step, manifest.attempt), memory, self._save, blocking_s)
        self._uploader.submit(job, began, after=staging.wait if staging.copying else None)
        return blocking_s

    def _wait_for_room(self, in_any_case: bool) -> None:
        """Back-pressure instead of more memory. Bounded over all saves that wait for the same
        upload: a store that hangs must not hold the training.
        """
        patience_s = self.tuning.commit_timeout_s + self.tuning.retry_s
        bound_s = patience_s if in_any_case else max(0.0, self.tuning.wait_s - self._waited_s)
        began = time.monotonic()
        give_up = partial(self._stop_waiting, began + ANNOUNCE_WAIT_AFTER_S, bound_s, in_any_case)
        self._handle(self._uploader.finish(bound_s, give_up=give_up))
        self._waited_s += time.monotonic() - began
        if self.busy and (
            in_any_case or (self._uploader.oldest_s > patience_s and not self._stop_asked())
        ):
            # Stuck beyond its own time-outs: killed, so that its memory is free and the next save
            # starts another.
            self._uploader.replace()
            self._handle(self._uploader.finish(1.0))

    def _stop_waiting(self, announce_at: float, bound_s: float, in_any_case: bool) -> bool:
        if time.monotonic() > announce_at and not self._announced:
            self._announced = True
            logs.warning(
                "save",
                f"training waits for room: {self._uploader.why_full()}; at most {bound_s:.0f} s",
            )
        return self._drop_what_cannot_complete() or (not in_any_case and self._stop_asked())

    def _check_grown(self, step: int) -> None:
        # A step is an object's name: the second save under it would be dropped, and its work
        # counted as safe.
        again = step == self.last_step and not self._failure and not self._newest_failed
        if step < self.last_step or again or step <= self.durable_step:
            raise step_not_grown(step, max(self.last_step, self.durable_step))

    def _stage(
        self, step: int, state: dict[str, Any], memory: int
    ) -> tuple[dict[str, Any], Captured, list[Piece], int]:
        """This rank's outcome for the others, and what was staged. A bad value is an outcome, so
        that every rank raises it.
        """
        if self.fenced:
            return {"fenced": self.fenced}, NOTHING, [], 0
        if memory < 0:
            skip = "" if self._stop_asked() else self._uploader.why_full()
            return {"skip": skip}, NOTHING, [], 0
        try:
            self._check_grown(step)
            captured = capture(state)
            pieces = pieces_of(captured, self._ranks.rank, self._ranks.world_size)
            steady = steady_keys(state, captured) if self.overlaps else ()
            length = self._stagings[memory].stage(pieces, steady=steady)
        except InputError as error:
            return failure_of(error), NOTHING, [], 0
        mine = {
            "layout": layout_digest(captured),
            "failed": self._failure,
            "durable": self.durable_step,
        }
        self._failure = ""
        return mine, captured, pieces, length

    def _agree(self, step: int, mine: dict[str, Any], captured: Captured) -> str:
        decision = decided(self._ranks, mine, captured)
        if "fenced" in decision:
            raise Superseded(self.last_step, decision["fenced"])
        if "skip" in decision:
            if decision["skip"]:
                self._on_report(
                    Report(
                        save=self._save,
                        done="failed",
                        step=step,
                        reason=decision["skip"],
                    )
                )
            return ""
        # The coordinator's, since other ranks see their own uploads and no commit.
        self.durable_step = decision["durable"]
        self._newest_failed = bool(decision["failed"])
        if not decision["failed"] and decision["durable"] >= 0:
            self._on_report(Report(save=self._save, done="sound", step=self.last_step))
        if decision["failed"] and self._ranks.rank not in decision["reported_by"]:
            self._on_report(
                Report(
                    save=self._save,
                    done="failed",
                    step=self.last_step,
                    reason=decision["failed"],
                )
            )
        return decision["attempt"]

    def wait(self, timeout_s: float) -> bool:
        self._handle(self._uploader.finish(timeout_s, give_up=self._drop_what_cannot_complete))
        return not self.busy and not self._failure

    def poll(self) -> None:
        """Raises Superseded where this rank alone trains and has learnt of a newer trainer."""
        if self.busy or self._uploader.copying:
            self._handle(self._uploader.poll())
        # Several ranks learn it together, in the next save: one that left alone would leave the
        # others waiting.
        if self.fenced and self._ranks.world_size == 1:
            raise Superseded(self.last_step, self.fenced)

    def check_durable(self, step: int, *, timeout_s: float | None = None) -> None:
        """Raises on every rank Superseded, or NotDurable unless `step` is committed by now."""
        missing = self._ranks.coordinator and self.durable_step < step
        reason = self._failure or ("its save has not finished" if missing or self.busy else "")
        mine = {"fenced": self.fenced, "failed": reason}
        ending = self._ranks.agree(mine, worst_ending, timeout_s=timeout_s)
        if ending["fenced"]:
            raise Superseded(step, ending["fenced"])
        if ending["failed"]:
            raise NotDurable(step, f"the last state is not stored: {ending['failed']}")

    def staged(self) -> None:
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
                    self._copies.take(report)
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
                    self._ranks.store.set(f"failed/{report.save}", report.reason)
            else:
                self.save_cost.persist_s = report.seconds
            self._on_report(report)

    def _drop_what_cannot_complete(self) -> bool:
        """The coordinator's uploader waits for shards that will not come if another rank's upload
        failed.
        """
        if self._ranks.coordinator and self._ranks.world_size > 1:
            for save in self._uploader.in_flight:
                if self._ranks.store.check([f"failed/{save}"]):
                    self._uploader.abandon(save)
        return False
