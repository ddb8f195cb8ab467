"""What a Checkpointer makes known: events for the ledger, and log lines, among them the work that a
preemption puts at risk.
"""

import os
import time
from collections.abc import Callable

from holdfast.checkpoint.errors import NotDurable, Superseded
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Cadence
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.environment import ENV_JOB
from holdfast.vocabulary.job_identity import attempt_of
from holdfast.vocabulary.lifecycle import WINDOW_MARGIN_S
from holdfast.vocabulary.telemetry import KIND_TRAINING

WINDOW_S = 10.0
"""Of steps, as one line: what a machine that goes without notice takes with it is known to so much.
"""


class Reports:
    """Of a loop that brings no log of its own and runs as a job of the platform, the starts, steps
    and ends, too.
    """

    def __init__(self, events: EventLog | None, run: str) -> None:
        self._whole = events is None and bool(os.environ.get(ENV_JOB))
        self._events = EventLog.open(None, job=run, kind=KIND_TRAINING) if self._whole else events
        self._first = self._last = 0
        """Steps of the window that is open."""
        self._since_s = 0.0
        self._announced = False
        self.coordinator = True
        """Only there is anything written: a gang of a thousand ranks would write every line a
        thousand times.
        """
        self.failure = ""
        """Why the newest save failed, on every rank; empty again once a later one is durable."""

    def begin(self, coordinator: bool, world_size: int) -> None:
        self.coordinator = coordinator
        if self._whole:
            self.emit(
                "start",
                rank=0,
                world_size=world_size,
                attempt=attempt_of(),
            )

    def stepped(self, step: int) -> float:
        """The monotonic clock now."""
        now_s = time.monotonic()
        if self._whole:
            self._last = step
            if now_s - self._since_s >= WINDOW_S:
                self.flush()
        return now_s

    def flush(self) -> None:
        """The steps since the last such line."""
        now_s = time.monotonic()
        if self._whole and self._last >= self._first > 0:
            seconds = round(now_s - self._since_s, 6)
            self.emit(
                "window",
                first_step=self._first,
                last_step=self._last,
                seconds=seconds,
            )
        self._first = self._last + 1
        self._since_s = now_s

    def emit(self, event: str, **fields: object) -> None:
        if self._events is not None and self.coordinator:
            self._events.emit(event, **fields)

    def log(
        self,
        write: Callable[[str, str], None],
        action: str,
        message: str,
        *,
        everywhere: bool = False,
    ) -> None:
        if self.coordinator or everywhere:
            write(action, message)

    def of_stop(self, step: int, reason: str) -> None:
        self._last = step
        self.flush()  # what comes now is no work
        self.emit("stop", step=step, reason=reason)

    def of_restore(self, found: Restored) -> None:
        self._last = found.step
        self._first = found.step + 1
        self._since_s = time.monotonic()
        seconds = round(found.seconds, 3)
        source = "store" if found.durable_step is None else "memory"
        self.emit(
            "restore",
            step=found.step,
            seconds=seconds,
            skipped=found.skipped,
            source=source,
        )

    def of_save(self, report: Report) -> None:
        if report.done in ("committed", "sound"):
            self.failure = ""
        elif report.done in ("failed", "fenced"):
            self.failure = report.reason
            self.log(
                logs.warning,
                "save",
                f"checkpoint of step {report.step} failed: {report.reason}; training goes on",
            )
        event = report.event()
        if event:
            self.emit(event[0], **event[1])

    def of_loss(self, writer: CheckpointWriter, step: int, peer: str = "") -> None:
        """What leaving at `step` loses. `peer`: why another rank is gone, which may have been the
        one that writes.
        """
        # Counted from the commit: a save that was staged or uploaded and has no commit is not
        # restored.
        lost = step - writer.durable_step
        seconds = time.monotonic() - writer.durable_since
        if lost <= 0:
            return
        kept = ", unless the save in flight still completes" if writer.busy else ""
        line = (
            f"the newest checkpoint is of step {writer.durable_step}: {lost} steps ({seconds:.0f}"
            f" s) are lost{kept}"
        )
        copied = writer.copied_step
        if copied > writer.durable_step:
            line = (
                f"the memory of nodes holds step {copied}: {step - copied} steps are lost; without"
                f" it {line}"
            )
        self.log(
            logs.warning,
            "stop",
            f"leaving at step {step}, {line}{peer and f'; {peer}'}",
            everywhere=bool(peer),
        )

    def of_window(self, writer: CheckpointWriter, window_s: float, every: Cadence) -> None:
        """Once, after the first save: what a notice will leave time for."""
        # Logged early: at the notice it is too late to choose a longer window or a smaller state.
        save_s = writer.save_cost.persist_s
        if self._announced or not save_s:
            return
        self._announced = True
        if save_s < window_s - WINDOW_MARGIN_S:
            verdict = "a last save fits"
        else:
            verdict = "no save in the window"
        (kind, value), cost = every, writer.save_cost
        interval_s = {
            "steps": value * cost.step_s,
            "seconds": value,
            "auto": cost.interval_s(),
        }[kind]
        line = (
            f"window {window_s:.0f} s, upload {writer.state_bytes / save_s / 1e6:.0f} MB/s, full"
            f" save {save_s:.1f} s: {verdict}, at most {(interval_s + save_s) / 60:.1f} min lost"
        )
        self.log(logs.info, "save", line)

    def of_end(self, error: BaseException | None) -> None:
        if self._whole:
            code = error.code if isinstance(error, SystemExit) else int(error is not None)
            self.emit("exit", code=code if isinstance(code, int) else 1, step=self._last)
        # an exit with a number prints nothing by itself
        if isinstance(error, NotDurable | Superseded):
            self.log(logs.error, "save", f"leaving at step {error.step}: {error.reason}")
