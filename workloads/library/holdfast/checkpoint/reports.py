"""What a Checkpointer makes known: events for the ledger, and lines for who reads the log."""

from collections.abc import Callable

from holdfast.checkpoint.errors import NotDurable, Superseded
from holdfast.checkpoint.uploader import Report
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog


class Reports:
    def __init__(self, events: EventLog | None, run: str) -> None:
        self._events, self._run = events, run
        self.coordinator = True
        """Only there is anything written: a gang of a thousand ranks would write every line a thousand times."""
        self.failure = ""
        """Why the newest save failed, on every rank; empty again once a later one is durable."""

    def emit(self, event: str, **fields: object) -> None:
        if self._events is not None and self.coordinator:
            self._events.emit(event, **fields)

    def log(self, write: Callable[[str, str], None], action: str, message: str) -> None:
        if self.coordinator:
            write(action, message)

    def of_save(self, report: Report, step: int, seconds: float) -> None:
        if report.done == "committed":
            self.failure = ""
            self.emit("commit", step=step, seconds=round(seconds, 3), bytes=report.bytes)
        elif report.done == "staged":
            self.emit("save", step=step, blocking_seconds=round(seconds, 6), bytes=report.bytes)
        elif report.done == "unprobed":
            self.log(logs.warning, "save", f"the store takes no object of {self._run} as yet: {report.reason}")
        elif report.done == "sound":
            self.failure = ""
        elif report.done in ("failed", "fenced"):
            self.failure = report.reason
            self.log(logs.warning, "save", f"checkpoint of step {step} failed: {report.reason}; training goes on")
            self.emit("save_failed", step=step, reason=report.reason)

    def of_end(self, error: BaseException | None) -> None:
        if isinstance(error, NotDurable | Superseded):  # an exit with a number prints nothing by itself
            self.log(logs.error, "save", f"leaving at step {error.step}: {error.reason}")
