"""Checkpointer: what a training loop holds. Restores on entry, saves when due, exits cleanly when
preempted.

Guarantees: a tick between saves costs two comparisons and no communication; a save blocks for the
copy into the staging memory and one exchange through the store; nothing that fails in the
background stops the training; `with` ends normally only when the last state is durable on the
store, else by NotDurable (exit code 75).
"""

import contextlib
import inspect
import math
import os
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.cadence import Hazard, cadence_of
from holdfast.checkpoint.errors import CheckpointExit, Preempted, RankLost
from holdfast.checkpoint.format import signing_key
from holdfast.checkpoint.ranks import Ranks, is_lost_peer, on_every_rank
from holdfast.checkpoint.reports import Reports
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.restore.starting import Start, start
from holdfast.checkpoint.save.copying_writer import CopyingWriter
from holdfast.checkpoint.save.decision import check_state, step_not_grown
from holdfast.checkpoint.settings import Every, Tuning, checked_url, parse_every
from holdfast.checkpoint.state import checked_state
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.survivors import Survivors
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
    def __init__(
        self,
        url: str | os.PathLike[str],
        state: dict[str, Any],
        *,
        run: str = "default",
        every: Every = "auto",
        keep: int = 3,
        events: EventLog | None = None,
        window_s: float = DEFAULT_WINDOW.pod_s,
        tuning: Tuning | None = None,
    ) -> None:
        """`events`: None writes lines where a job of the platform runs, and none elsewhere. Raises
        InputError for what does not fit.
        """
        self._url = checked_url(url)
        self._state = checked_state(state)
        self._run = checked_run(run)
        between("checkpoint setting keep", keep, 1, math.inf)
        self._every = parse_every(every)
        self._keep = keep
        self._window_s = window_s
        self._trial = Trial.of_environment()
        if self._trial:
            self._url = self._trial.orders.store
            self._every = parse_every(self._trial.orders.every)
        signing_key()  # one that cannot be used is an error before anything starts
        self._reports = Reports(events, self._run)
        self._tuning = tuning or Tuning()
        self._entered_by = 0
        self._over = False
        """Which process is in the `with` block, and whether it has left it."""
        self.step = 0
        """Steps done, as of the last tick or restore."""
        self.restored: Restored | None = None

    def __enter__(self) -> Self:
        """Restores. Raises Preempted after a notice before the first step, InputError on every
        rank.
        """
        # Here and not in __init__: the process group must exist, and a failed start must leave no
        # process behind.
        self._ranks = Ranks.of_job(timeout_s=self._tuning.agree_timeout_s)
        self._reports.begin(self._ranks.coordinator, self._ranks.world_size)
        store = self._ranks.store if self._ranks.world_size > 1 else None
        self._took_signals = not notices.installed()
        self.stop: StopAgreement = stop_agreement(store, self._ranks.rank, self._ranks.world_size)
        began = self._start_or_give_back()
        self.restored = began.restored
        self.step = began.restored.step
        self._hazard = Hazard.resumed(self.restored.notes)
        self._writer = CopyingWriter(
            self._url,
            self._run,
            self._ranks,
            keep=self._keep,
            tuning=self._tuning,
            began=began,
            on_report=self._reports.of_save,
            stop_asked=lambda: self.stop.requested,
            hazard=self._hazard,
        )
        # Fresh memory is slower to touch than to fill, so it is touched before the first save has
        # to wait for it.
        self._writer.prepare(self._state)
        self._cadence = cadence_of(
            self._every, self._writer.save_cost.interval_s, self._ranks, self.step
        )
        self._ticked_at = 0.0
        self._survivors = Survivors(
            self._url, self._run, self._state, self._ranks, self._writer, began.epoch
        )
        self.computing = self._survivors.computing  # for the loop: `with ckpt.computing():`
        self._entered_by = os.getpid()
        self._over = False
        self.stop.shutdown.last_words = lambda: self._reports.of_loss(self._writer, self.step)
        return self

    def tick(self, step: int) -> None:
        """After each step: `step` steps are done, over the whole run. Saves when due. Raises
        Preempted at the agreed step, Superseded when another trainer has taken the run, InputError
        for a number that is not above the one before.
        """
        self._check_use()
        if step <= self.step:
            raise step_not_grown(step, self.step)
        self.step = step
        self._survivors.ticked()
        if self._trial:
            self._trial.stepped(step, self._state, inspect.currentframe())
        self._measure()
        self._writer.poll()
        # Before the cadence: on a notice the save in flight must end first, and a new one may not
        # fit the window.
        if self.stop.should_stop(step):
            self._leave()
        if self._cadence.due(step):
            self.save(step)
        else:
            self._writer.between_saves(step, self._state, self._hazard.notes)
        if self._trial:
            self._trial.saved(step)
        self._ticked_at = self._reports.stepped(step)

    def poll(self) -> None:
        """Inside long phases without steps, equally often on every rank. Raises Preempted after a
        notice.
        """
        self._check_use()
        self._writer.poll()
        if self.stop.should_stop(self.step):
            self._leave()

    def save(self, step: int) -> None:
        """Stage now, upload in the background. Waits for an earlier save that is still in flight,
        and is left out when that takes longer than `Tuning.wait_s`. Raises Superseded, InputError
        as tick.
        """
        self._check_use()
        self._writer.save(step, self._state, self._hazard.notes())
        # Also when it was left out: the next is due an interval later, and not in the next step.
        self._cadence.saved(step)

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Until the last save is durable; false if the time ran out or it failed."""
        self._check_use()
        return self._writer.wait(timeout_s)

    @property
    def durable_step(self) -> int:
        """Newest step that survives the machine: on the coordinator as of now, on other ranks as of
        the last save.
        """
        self._check_use(or_after=True)
        return self._writer.durable_step

    @property
    def failure(self) -> str:
        """Why the newest save failed, on every rank; empty again once a later one is durable.
        Training goes on.
        """
        return self._reports.failure

    @property
    def busy(self) -> bool:
        """Whether a save is in flight: until its commit on the coordinator, until its upload
        elsewhere.
        """
        self._check_use(or_after=True)
        return self._writer.busy

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Around the optimizer's step, where alone trained parameters change: waits for what is
        left of a GPU's copy.
        """
        self._check_use()
        self._writer.overlaps = True
        self._writer.staged()
        yield

    def close(self) -> None:
        """Let the uploader finish by itself and give everything back."""
        self._over = True
        self._writer.close()
        self._give_back()

    @property
    def _in_use(self) -> bool:
        """False too in a process that was forked inside the block: an uploader would answer it, and
        not the trainer.
        """
        return self._entered_by == os.getpid() and not self._over

    def _check_use(self, *, or_after: bool = False) -> None:
        """Raises InputError. `or_after`: also valid after the block."""
        if self._in_use or (or_after and self._entered_by == os.getpid()):
            return
        outside = f"{'after' if self._entered_by else 'before'} its `with` block"
        forked = self._entered_by and not self._over
        raise InputError(
            "Checkpointer is not in use",
            got=f"a call {'in a process that was forked from the trainer' if forked else outside}",
            allowed=(
                "calls inside `with Checkpointer(...) as ckpt:`, in the process that entered it"
            ),
            fix="move the call into the block; leave saving to the trainer's own process",
        )

    def _give_back(self) -> None:
        self.stop.close()
        self.stop.shutdown.last_words = lambda: None
        if self._took_signals:  # else a launcher needs them
            self.stop.shutdown.uninstall()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self._in_use:  # the end of a fork: the trainer's block goes on
            return
        self._reports.flush()
        try:
            if kind is None:
                self._finish()
            # An exception of the loop: what was staged before it is sound and is worth the wait.
            elif error and kind is not Preempted:
                peer = lost = str(error)[:160] if is_lost_peer(error) else ""
                if peer and self._survivors.at_last_step:
                    lost = self._survivors.commit(
                        self.step, self._hazard.notes(), peer, self._seconds_left()
                    )
                if lost or not peer:
                    self.wait(self._seconds_left())
                self._reports.of_loss(self._writer, self.step, lost)
                if peer and self.stop.requested:  # one was faster
                    raise Preempted(self.step) from error
            self._reports.of_end(error)
        except CheckpointExit as end:
            self._reports.of_end(end)
            raise
        finally:
            self.close()

    def _start_or_give_back(self) -> Start:
        """A start that fails leaves the process as it was, with its signals and without a thread of
        this library. A notice that comes before the first step ends the start there: nothing is
        lost, so nothing is saved.
        """
        try:
            # Before anything is loaded: a state that cannot be saved is found now and not at the
            # first save, hours later.
            check_state(self._state, self._ranks)
            self.stop.shutdown.takes_s = self._window_s
            storage = on_every_rank(
                self._ranks, lambda: reliable_storage(self._url, self._tuning, create=True)
            )
            began = start(
                storage,
                self._url,
                self._run,
                self._state,
                self._ranks,
                self._tuning,
                lambda: self.stop.requested,
            )
            self._reports.of_restore(began.restored)
            if self.stop.should_stop(began.restored.step):
                raise Preempted(began.restored.step)
        except BaseException as error:
            if isinstance(error, Preempted):
                self._reports.of_stop(error.step, self.stop.reason)
                self._reports.log(
                    logs.info, "stop", "notice before the first step: nothing to save"
                )
            self._give_back()
            raise
        return began

    def _finish(self) -> None:
        """The loop is over: its last state is stored, or the process must not count as complete."""
        if self._unsaved:
            self._writer.save(
                self.step, self._state, self._hazard.notes(ended=True), in_any_case=True
            )
        self.wait(self._tuning.commit_timeout_s)
        # A launcher ends the other ranks when one is gone, and with them what they have not yet
        # handed over.
        self._writer.check_durable(self.step, timeout_s=self._tuning.commit_timeout_s)

    def _leave(self) -> None:
        """What the grace period allows: a neighbour's copy, the save in flight, then one more if it
        fits on every rank.
        """
        self._reports.of_stop(self.step, self.stop.reason)
        lost = "" if self.stop.agreed else str(self.stop.lost or "another rank does not answer")
        if lost:
            lost = self._survivors.commit(
                self.step, self._hazard.notes(), lost, self._seconds_left()
            )
        try:
            if self.stop.agreed:
                self._writer.copy_last(
                    self.step, self._state, self._hazard.notes(), self._seconds_left()
                )
                self._writer.wait(self._seconds_left())
                if self._unsaved and self._writer.last_save_fits(self._seconds_left()):
                    self.save(self.step)
                    self._writer.wait(self._seconds_left())
                # A launcher ends the other ranks with the first that goes: none goes before the
                # commit.
                self._ranks.agree(None, lambda _: None, timeout_s=max(0.1, self._seconds_left()))
            elif lost:
                self._writer.wait(self._seconds_left())
        except (RankLost, InputError) as error:
            lost = f"no last checkpoint: {error}"
        self._reports.of_loss(self._writer, self.step, lost)
        raise Preempted(self.step)

    def _seconds_left(self) -> float:
        left = self.stop.shutdown.seconds_left(self._window_s)
        return self._window_s if math.isinf(left) else max(0.0, left)

    @property
    def _unsaved(self) -> bool:
        return self.step > max(
            self._writer.last_step, self.restored.committed_step if self.restored else 0
        )

    def _measure(self) -> None:
        # The time before the first tick is compilation, and would make every later step look fast.
        if not self._ticked_at:
            return
        self._writer.save_cost.observe_step(
            time.monotonic() - self._ticked_at, uploading=self._writer.busy
        )
        self._reports.of_window(self._writer, self._window_s, self._every)
