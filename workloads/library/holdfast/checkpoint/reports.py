"""Events for the ledger and log lines of a Checkpointer, among them the work that a preemption puts
at risk.
"""

import os
import time
from collections.abc import Callable

from holdfast.checkpoint.errors import NotDurable, Preempted, Superseded
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Cadence
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.runtime.gpu import name_gpu
from holdfast.runtime.traces import are_traces_on
from holdfast.vocabulary.environment import ENV_JOB
from holdfast.vocabulary.job_identity import read_attempt
from holdfast.vocabulary.lifecycle import WINDOW_MARGIN_S
from holdfast.vocabulary.telemetry import KIND_TRAINING

WINDOW_S = 10.0
"""Period of a `window` event, and so the most that is unknown if a machine is lost without notice.
"""


class Reports:
    """Writes events and log lines of a run.

    If the loop has no event log and runs as a job of the platform, its starts, steps and ends are
    written too. Elsewhere the lines serve traces only.
    """

    def __init__(self, events: EventLog | None, run: str) -> None:
        is_job = bool(os.environ.get(ENV_JOB))
        self._writes_steps = events is None and (is_job or are_traces_on())
        if self._writes_steps:
            path = None if is_job else os.devnull
            events = EventLog.open(path, job=run, kind=KIND_TRAINING)
        self._events = events
        self._first_step = 0
        self._last_step = 0
        self._window_start_s = 0.0
        self._announced = False
        self.coordinator = True
        """True on the only rank that writes: with a thousand ranks every line would come a thousand
        times.
        """
        self.failure = ""
        """Reason why the newest save failed, on every rank; empty once a later one is durable."""

    def begin(self, coordinator: bool, world_size: int) -> None:
        self.coordinator = coordinator
        if self._writes_steps:
            self.emit(
                "start",
                rank=0,
                world_size=world_size,
                attempt=read_attempt(),
                **name_gpu(),
            )

    def record_step(self, step: int) -> float:
        """Counts a step, and returns the time of the monotonic clock."""
        now_s = time.monotonic()
        if self._writes_steps:
            self._last_step = step
            if now_s - self._window_start_s >= WINDOW_S:
                self.flush()
        return now_s

    def flush(self) -> None:
        """Writes the steps since the last `window` event."""
        now_s = time.monotonic()
        if self._writes_steps and self._last_step >= self._first_step > 0:
            self.emit(
                "window",
                first_step=self._first_step,
                last_step=self._last_step,
                seconds=round(now_s - self._window_start_s, 6),
            )
        self._first_step = self._last_step + 1
        self._window_start_s = now_s

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

    def report_stop(self, step: int, reason: str) -> None:
        self._last_step = step
        self.flush()  # no work is done from here on
        self.emit("stop", step=step, reason=reason)
        self.log(logs.info, "stop", f"{reason}: stopping after step {step}")

    def report_restore(self, restored: Restored) -> None:
        self._last_step = restored.step
        self._first_step = restored.step + 1
        self._window_start_s = time.monotonic()
        self.emit(
            "restore",
            step=restored.step,
            seconds=round(restored.seconds, 3),
            skipped=restored.skipped,
            source="store" if restored.durable_step is None else "memory",
        )

    def report_save(self, report: Report) -> None:
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

    def report_loss(
        self,
        writer: CheckpointWriter,
        step: int,
        peer: str = "",
    ) -> None:
        """Logs the steps that leaving at `step` loses.

        `peer`: the reason why another rank was lost, which may have been the one that writes.
        """
        # Counted from the commit: a save that was staged or uploaded and has no commit is not
        # restored.
        steps = step - writer.durable_step
        if steps <= 0:
            return
        seconds = time.monotonic() - writer.durable_since
        line = (
            f"the newest checkpoint is of step {writer.durable_step}:"
            f" {steps} steps ({seconds:.0f} s) are lost"
        )
        if writer.busy:
            line += ", unless the save in flight still completes"
        copied = writer.copied_step
        if copied > writer.durable_step:
            line = (
                f"the memory of nodes holds step {copied}: {step - copied} steps are lost;"
                f" without it {line}"
            )
        line = f"leaving at step {step}, {line}"
        if peer:
            line += f"; {peer}"
        self.log(
            logs.warning,
            "stop",
            line,
            everywhere=bool(peer),
        )

    def report_window(
        self,
        writer: CheckpointWriter,
        window_s: float,
        every: Cadence,
    ) -> None:
        """Logs once, after the first save, whether a notice leaves time for another save."""
        # Logged early: at the notice it is too late to choose a longer window or a smaller state.
        save_s = writer.save_cost.persist_s
        if self._announced or not save_s:
            return
        self._announced = True
        if save_s < window_s - WINDOW_MARGIN_S:
            verdict = "a last save fits"
        else:
            verdict = "no save in the window"
        kind, value = every
        intervals = {
            "steps": value * writer.save_cost.step_s,
            "seconds": value,
            "auto": writer.save_cost.interval_s(),
        }
        most_lost_s = intervals[kind] + save_s
        rate = writer.save_cost.repeated_bytes / save_s
        line = (
            f"window {window_s:.0f} s, upload {rate / 1e6:.0f} MB/s, full save {save_s:.1f} s:"
            f" {verdict}, at most {most_lost_s / 60:.1f} min lost"
        )
        self.log(logs.info, "save", line)

    def report_end(self, error: BaseException | None, step: int, durable_step: int) -> None:
        """Reports the end of a run at `step`, whose newest checkpoint is of `durable_step`."""
        if self._events is not None and self.coordinator:
            self._events.traces.end()
        if self._writes_steps:
            code = error.code if isinstance(error, SystemExit) else int(error is not None)
            self.emit("exit", code=code if isinstance(code, int) else 1, step=self._last_step)
        # an exit with a number prints nothing by itself
        if isinstance(error, NotDurable | Superseded):
            self.log(logs.error, "save", f"leaving at step {error.step}: {error.reason}")
            return
        saved = "no checkpoint is committed"
        if durable_step > 0:
            saved = f"the checkpoint of step {durable_step} is committed"
        if error is None:
            self.log(logs.info, "end", f"done after step {step}; {saved}")
        elif isinstance(error, Preempted):
            line = f"stopped after step {step}, exit code {error.code}; {saved}"
            self.log(logs.info, "stop", f"{line}; start the same run again to go on")
