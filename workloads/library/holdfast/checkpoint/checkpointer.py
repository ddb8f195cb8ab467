"""Checkpointer, the API for a training loop: restores on entry, saves when due, exits cleanly when
preempted.

A tick between saves costs two comparisons and no communication. A save blocks for the copy into the
staging memory and one exchange through the store. Nothing that fails in the background stops the
training. `with` ends normally only when the last state is durable on the store, else by NotDurable
(exit code 75).
"""

import contextlib
import inspect
import math
import os
import time
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.cadence import Hazard, make_cadence
from holdfast.checkpoint.commit_listeners import CommitListeners
from holdfast.checkpoint.errors import CheckpointExit, Preempted, RankLost
from holdfast.checkpoint.format import signing_key
from holdfast.checkpoint.interchange.origin import begin_from, parse_origin
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.ranks import Ranks, is_lost_peer, on_every_rank
from holdfast.checkpoint.reports import Reports
from holdfast.checkpoint.restore import Restored, list_loaders
from holdfast.checkpoint.restore.run_start import Start, start
from holdfast.checkpoint.save.agreement import check_resizable, check_state, step_error
from holdfast.checkpoint.save.copying_writer import CopyingWriter
from holdfast.checkpoint.settings import Every, Tuning, check_url, check_whole, parse_every
from holdfast.checkpoint.state import checked_state
from holdfast.checkpoint.stores.factory import reliable_storage
from holdfast.checkpoint.survivor_commits import SurvivorCommits
from holdfast.checkpoint.verify_exact import Trial
from holdfast.runtime import logs
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.runtime.stop import StopAgreement, stop_agreement
from holdfast.support.errors import InputError
from holdfast.support.object_names import checked_run
from holdfast.support.values import between
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class Checkpointer:
    """Restores a state on entry of its `with` block, and saves it while a loop calls `tick`.

    Its loop begins at the step that was restored.

        state = {"model": model, "optimizer": optimizer}
        with Checkpointer("gs://bucket/runs", state, run="run-7", every="auto", keep=3) as ckpt:
            for step in range(ckpt.step, total_steps):
                train_step(step)
                ckpt.tick(step + 1)
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        state: dict[str, Any],
        *,
        run: str = "default",
        every: Every = "auto",
        keep: int = 3,
        start_from: str | os.PathLike[str] | None = None,
        events: EventLog | None = None,
        window_s: float = DEFAULT_WINDOW.pod_s,
        tuning: Tuning | None = None,
    ) -> None:
        """Validates the arguments. Raises InputError.

        `start_from`: where a run without a checkpoint begins: `URL/RUN[@STEP]`, or the path of
        a checkpoint of another format. `events`: None writes event lines in a job of the platform,
        and none elsewhere.
        """
        self._url = check_url(url)
        self._state = checked_state(state)
        self._run = checked_run(run)
        between(
            "checkpoint setting keep",
            keep,
            1,
            math.inf,
        )
        check_whole("checkpoint setting keep", keep)
        self._every = parse_every(every)
        self._keep = keep
        self._origin = parse_origin(None if start_from is None else os.fspath(start_from))
        self._window_s = window_s
        self._trial = Trial.from_environment()
        if self._trial:
            self._url = self._trial.orders.store
            self._every = parse_every(self._trial.orders.every)
        signing_key()  # an unusable key is an error before anything starts
        self._reports = Reports(events, self._run)
        self._tuning = tuning or Tuning()
        self._places: PeerPlaces | None = None
        """Memory of a gang that continues with fewer nodes; None: no such gang."""
        self._entered_by = 0
        """Id of the process that entered the `with` block; 0: none."""
        self._is_over = False
        """True once that process has left the block."""
        self.step = 0
        """Number of steps done, as of the last tick or restore."""
        self.restored: Restored | None = None

    def __enter__(self) -> Self:
        """Restores the newest checkpoint that verifies.

        Raises Preempted after a notice before the first step, InputError on every rank.
        """
        # Here and not in __init__: the process group must exist, and a failed start must leave no
        # process behind.
        self._ranks = Ranks.of_job(timeout_s=self._tuning.agree_timeout_s)
        self._reports.begin(self._ranks.coordinator, self._ranks.world_size)
        store = self._ranks.store if self._ranks.world_size > 1 else None
        self._took_signals = not notices.is_installed()
        self.stop: StopAgreement = stop_agreement(store, self._ranks.rank, self._ranks.world_size)
        run_start = self._start_or_clean_up()
        self.restored = run_start.restored
        self.step = run_start.restored.step
        self._hazard = Hazard.from_notes(self.restored.notes)
        self._writer = CopyingWriter(
            self._url,
            self._run,
            self._ranks,
            keep=self._keep,
            tuning=self._tuning,
            began=run_start,
            on_report=self._reports.report_save,
            stop_asked=lambda: self.stop.requested,
            hazard=self._hazard,
        )
        # Fresh memory is slower to touch than to fill, so it is touched before the first save has
        # to wait for it.
        self._writer.prepare(self._state)
        self._cadence = make_cadence(
            self._every,
            self._writer.save_cost.interval_s,
            self._ranks,
            self.step,
        )
        self._ticked_at = 0.0
        self._survivor_commits = SurvivorCommits(
            self._url,
            self._run,
            self._state,
            self._ranks,
            self._writer,
            run_start.epoch,
        )
        self.computing = self._survivor_commits.computing  # for the loop: `with ckpt.computing():`
        self._listeners = CommitListeners(
            self._state,
            self._run,
            self._ranks,
            self.restored,
            is_trial=self._trial is not None,
        )
        self._entered_by = os.getpid()
        self._is_over = False
        self.stop.shutdown.last_words = lambda: self._reports.report_loss(self._writer, self.step)
        return self

    def tick(self, step: int) -> None:
        """Records that `step` steps are done, over the whole run, and saves if due. Call it after
        each step.

        Raises Preempted at the agreed step, Superseded if another trainer has taken the run,
        InputError for a number that is not above the previous one.
        """
        self._check_use()
        if step <= self.step:
            raise step_error(step, self.step)
        self.step = step
        self._listeners.record_tick(step)
        self._survivor_commits.tick()
        if self._trial:
            self._trial.record_step(step, self._state, inspect.currentframe())
        self._measure()
        self._writer.poll()
        self._listeners.record_commit(self._writer.durable_step)
        # Before the cadence: on a notice the save in flight must end first, and a new one may not
        # fit the window.
        if self.stop.should_stop(step):
            self._leave()
        if self._cadence.due(step):
            self.save(step)
        else:
            self._writer.between_saves(step, self._state, self._hazard.notes)
        if self._trial:
            self._trial.end_if_due(step)
        self._ticked_at = self._reports.record_step(step)

    def poll(self) -> None:
        """Handles reports and notices. Call it in long phases without steps, equally often on every
        rank. Raises Preempted after a notice.
        """
        self._check_use()
        self._writer.poll()
        if self.stop.should_stop(self.step):
            self._leave()

    def save(self, step: int) -> None:
        """Stages now and uploads in the background.

        Waits for an earlier save that is still in flight, and skips this one if that takes longer
        than `Tuning.wait_s`. Raises Superseded and InputError as tick does.
        """
        self._check_use()
        self._writer.save(step, self._state, self._hazard.notes())
        # Even if it was skipped: the next is due an interval later, and not in the next step.
        self._cadence.record_save(step)

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Waits until the last save is durable. False: the time ran out or it failed."""
        self._check_use()
        return self._writer.wait(timeout_s)

    @property
    def durable_step(self) -> int:
        """Newest committed step: as of now on the coordinator, as of the last save elsewhere."""
        self._check_use(or_after=True)
        return self._writer.durable_step

    @property
    def failure(self) -> str:
        """The reason why the newest save failed, on every rank; empty again once a later one is
        durable. Training continues.
        """
        return self._reports.failure

    @property
    def busy(self) -> bool:
        """True while a save is in flight: until its commit on the coordinator, until its upload
        elsewhere.
        """
        self._check_use(or_after=True)
        return self._writer.busy

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Wraps the optimizer's step, the only code that changes trained parameters, so that a GPU
        may copy them meanwhile. Waits for the rest of that copy.
        """
        self._check_use()
        self._writer.overlaps = True
        self._writer.wait_until_staged()
        yield

    def close(self) -> None:
        """Lets the uploader finish by itself and releases everything else."""
        self._is_over = True
        self._writer.close()
        self._clean_up()

    @property
    def _in_use(self) -> bool:
        """True inside the block; false in a process that was forked there, which would take the
        uploader's answers from the trainer.
        """
        return self._entered_by == os.getpid() and not self._is_over

    def _check_use(self, *, or_after: bool = False) -> None:
        """Raises InputError outside the block. `or_after`: a call after the block is valid too."""
        if self._in_use or (or_after and self._entered_by == os.getpid()):
            return
        if not self._entered_by:
            situation = "before its `with` block"
        elif self._is_over:
            situation = "after its `with` block"
        else:
            situation = "in a process that was forked from the trainer"
        raise InputError(
            "Checkpointer is not in use",
            got=f"a call {situation}",
            allowed=(
                "calls inside `with Checkpointer(...) as ckpt:`, in the process that entered it"
            ),
            fix="move the call into the block; leave saving to the trainer's own process",
        )

    def _clean_up(self) -> None:
        self.stop.close()
        self.stop.shutdown.last_words = lambda: None
        if self._took_signals:  # otherwise a launcher needs them
            self.stop.shutdown.uninstall()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if not self._in_use:  # a forked process ends; the trainer's block goes on
            return
        self._reports.flush()
        try:
            if kind is None:
                self._finish()
            elif error and kind is not Preempted:
                self._save_after_error(error)
            self._reports.report_end(error, self.step, self._writer.durable_step)
            self._end_listeners(is_complete=kind is None)
        except CheckpointExit as end:
            self._reports.report_end(end, self.step, self._writer.durable_step)
            raise
        finally:
            self.close()

    def _end_listeners(self, *, is_complete: bool) -> None:
        self._listeners.record_commit(self._writer.durable_step)
        self._listeners.end(self._seconds_left(), is_complete=is_complete)

    def _save_after_error(self, error: BaseException) -> None:
        """Saves as much as possible after an exception of the loop.

        Raises Preempted if the error is a peer that was lost after a notice.
        """
        peer = str(error)[:160] if is_lost_peer(error) else ""
        if not peer:
            # A state that was staged before the error is sound and is worth the wait.
            self.wait(self._seconds_left())
            self._reports.report_loss(self._writer, self.step)
            return
        loss = peer
        if self._places:
            # The others have the memory of the lost node, and wait for this rank to exit.
            self._writer.abandon_upload()
        elif self._survivor_commits.at_last_step:
            loss = self._survivor_commits.commit(
                self.step,
                self._hazard.notes(),
                peer,
                self._seconds_left(),
            )
        if loss and not self._places:
            self.wait(self._seconds_left())
        self._reports.report_loss(self._writer, self.step, loss)
        # The peer stopped on the notice before this rank did.
        if self.stop.requested:
            raise Preempted(self.step) from error

    def _start_or_clean_up(self) -> Start:
        """Starts the run. A start that fails leaves the process as it was, with its signals and
        without a thread of this library.

        A notice before the first step ends the start: nothing is lost, so nothing is saved.
        """
        try:
            # Before anything is loaded: a state that cannot be saved is an error now and not at the
            # first save, hours later.
            loaders = list_loaders(self._state)
            check_state(self._state, self._ranks, leave_out=loaders)
            places = PeerPlaces.of_environment()
            if places and places.resizes and places.run == self._run:
                check_resizable(self._state, self._ranks, places)
                self._places = places
            self.stop.shutdown.takes_s = self._window_s
            storage = on_every_rank(
                self._ranks, lambda: reliable_storage(self._url, self._tuning, create=True)
            )
            run_start = start(
                storage,
                self._url,
                self._run,
                self._state,
                self._ranks,
                self._tuning,
                lambda: self.stop.requested,
                lambda: check_state(self._state, self._ranks),
                self._begin_from if self._origin else None,
            )
            self._reports.report_restore(run_start.restored)
            if self.stop.should_stop(run_start.restored.step):
                raise Preempted(run_start.restored.step)
        except BaseException as error:
            if isinstance(error, Preempted):
                self._reports.report_stop(error.step, self.stop.reason)
                self._reports.log(
                    logs.info, "stop", "notice before the first step: nothing to save"
                )
            self._clean_up()
            raise
        return run_start

    def _begin_from(self, restore_from: Callable[..., Restored]) -> Restored:
        assert self._origin
        # Opened on every rank: one that cannot read it must not leave the others waiting.
        place = on_every_rank(self._ranks, partial(self._origin.open, self._tuning))
        return begin_from(self._origin, place, restore_from)

    def _finish(self) -> None:
        """Stores the last state after the loop. Raises NotDurable if that fails, since the process
        must not count as complete.
        """
        if self._has_unsaved_steps:
            self._writer.save(
                self.step,
                self._state,
                self._hazard.notes(is_complete=True),
                in_any_case=True,
            )
        self.wait(self._tuning.commit_timeout_s)
        # A launcher ends the other ranks when one exits, and with them what they have not yet
        # handed over.
        self._writer.check_durable(self.step, timeout_s=self._tuning.commit_timeout_s)

    def _leave(self) -> None:
        """Saves what the grace period allows: a neighbor's copy, the save in flight, then one more
        if it fits on every rank. Raises Preempted.
        """
        self._reports.report_stop(self.step, self.stop.reason)
        loss = ""
        if not self.stop.agreed:
            loss = str(self.stop.lost or "another rank does not answer")
            loss = self._survivor_commits.commit(
                self.step,
                self._hazard.notes(),
                loss,
                self._seconds_left(),
            )
        try:
            if self.stop.agreed:
                self._writer.copy_last(
                    self.step,
                    self._state,
                    self._hazard.notes(),
                    self._seconds_left(),
                )
                goes_on_from_memory = self._places is not None and self._is_copied_everywhere()
                if not goes_on_from_memory:
                    self._wait_and_save_last()
                # A launcher ends the other ranks with the first that exits: none exits before the
                # commit.
                self._ranks.agree(None, lambda _: None, timeout_s=max(0.1, self._seconds_left()))
                if goes_on_from_memory:
                    self._writer.abandon_upload()
            elif loss:
                self._writer.wait(self._seconds_left())
        except (RankLost, InputError) as error:
            loss = f"no last checkpoint: {error}"
        self._reports.report_loss(self._writer, self.step, loss)
        raise Preempted(self.step)

    def _is_copied_everywhere(self) -> bool:
        """Tells whether the memory of nodes has the last step: the others continue from it at once,
        without waiting for the store.
        """
        is_copied = self._writer.copied_step >= self.step
        timeout_s = max(0.1, self._seconds_left())
        return bool(self._ranks.agree(is_copied, all, timeout_s=timeout_s))

    def _wait_and_save_last(self) -> None:
        if self._has_unsaved_steps:
            self._writer.digest_frozen(self._state)
        self._writer.wait(self._seconds_left())
        if self._has_unsaved_steps and self._writer.last_save_fits(self._seconds_left()):
            self.save(self.step)
            self._writer.wait(self._seconds_left())

    def _seconds_left(self) -> float:
        remaining_s = self.stop.shutdown.seconds_left(self._window_s)
        return self._window_s if math.isinf(remaining_s) else max(0.0, remaining_s)

    @property
    def _has_unsaved_steps(self) -> bool:
        restored_step = self.restored.committed_step if self.restored else 0
        return self.step > max(self._writer.last_step, restored_step)

    def _measure(self) -> None:
        # The time before the first tick is compilation, and would make every later step look fast.
        if not self._ticked_at:
            return
        step_s = time.monotonic() - self._ticked_at
        self._writer.save_cost.observe_step(step_s, uploading=self._writer.busy)
        self._reports.report_window(self._writer, self._window_s, self._every)
