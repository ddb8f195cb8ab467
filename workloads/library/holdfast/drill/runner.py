"""Runs one drill on one target: gate, targets, fault, recovery, measurement, rollback.

Guarantees: nothing is injected before the steady state was met and the targets were agreed to; the
rollback runs whatever happened, Ctrl-C and SIGTERM included, and a second signal does not cut it
short.
"""

import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from holdfast.clients.api import ApiError
from holdfast.drill.errors import DrillError, in_one_line
from holdfast.drill.plan import RECOVERED, Drill, number
from holdfast.drill.target import Target
from holdfast.drill.verdict import Result, Verdict, drill_verdict
from holdfast.support.errors import Stopped, Unjudged
from holdfast.support.values import rfc3339

SCHEMA = "holdfast.drill/5"
_POLL_S = 0.1
_NOTICES = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal asks the drill itself to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


@dataclass(kw_only=True)
class Record:
    """What happened in one drill: filled while it runs; as JSON the journal that a run leaves."""

    drill: Drill
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    timeline: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, step, what happened)"""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    injected: bool = False
    stopped: bool = False
    deviated: bool = False
    """Steady before, and not again afterwards."""
    signal: int = 0
    """That interrupted it; 0 for none."""
    fail_step: str = ""
    why: str = ""
    results: list[Result] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return drill_verdict(
            self.results,
            injected=self.injected,
            stopped=self.stopped,
            deviated=self.deviated,
        )

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)

    def fail(self, step: str, why: str) -> None:
        """The first failure is the one that counts; what follows from it is noise."""
        if not self.fail_step:
            self.fail_step = step
            self.why = why

    def journal(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "drill": asdict(self.drill),
            "start": rfc3339(self.started),
            "end": rfc3339(self.ended),
            "duration": round(self.seconds, 3),
            "verdict": self.verdict.value,
            "signal": self.signal,
            "deviated": self.deviated,
            "fail_step": self.fail_step,
            "why": self.why,
            "rollbacks": self.rollbacks,
            "objectives": [result.as_json() for result in self.results],
            "timeline": [
                {
                    "t": rfc3339(t),
                    "step": step,
                    "what": what,
                }
                for t, step, what in self.timeline
            ],
        }


def _consents(_drill: Drill, _victims: Sequence[str]) -> None:
    """Agrees to everything: the processes are the drill's own."""


@dataclass
class DrillRun:
    """One drill, from its first step to its last number."""

    drill: Drill
    target: Target
    log: Callable[[float, str, str], None]
    """(when, step, what happened), at once."""
    consent: Callable[[Drill, Sequence[str]], None] = _consents
    """Called with the names of the targets before the first fault; raises Stopped."""

    def run(self) -> Record:
        self.record = record = Record(drill=self.drill)
        with _handled(_interrupt):
            try:
                self._run_steps()
            except Interrupted as notice:
                record.stopped = True
                record.signal = notice.signum
                record.fail("interrupted", f"by {notice}")
            finally:
                with _handled(signal.SIG_IGN):
                    self._roll_back()
        record.ended = time.time()
        return record

    def _run_steps(self) -> None:
        step = "prepare"
        try:
            self.target.prepare()
            step = "steady state"
            self._gate()
            step = "targets"
            victims = self._victims()
            step = "fault"
            self.record.injected = True  # from here on something may have happened
            self._note(step, self.target.inject(victims))
            step = "recovery"
            waited_s = self._recover()
            self._steady_again()
            step = "measure"
            self._judge(waited_s)
        except Stopped as refusal:
            self.record.stopped = True
            self._failed(step, f"{refusal.what}: {refusal.got}")
        except (DrillError, Unjudged, ApiError) as error:
            self._failed(step, str(error))
            self._judge(None)

    def _gate(self) -> None:
        began = time.monotonic()
        steady = self.drill.steady
        met = self._steady()
        took_s = time.monotonic() - began
        if not met:
            seen = self.target.measure(steady.metric)
            raise DrillError(f"not steady: {steady} wanted, {number(seen)} after {took_s:.0f} s")
        self._note("steady state", f"{steady} after {took_s:.1f} s")

    def _victims(self) -> list[str]:
        found = self.target.candidates()
        victims = found[: self.drill.blast.size(len(found))]
        if not victims:
            raise DrillError(f"nothing to hit: no {self.drill.blast.of} there")
        self._note("targets", f"{', '.join(victims)} (of {len(found)})")
        self.consent(self.drill, victims)
        return victims

    def _recover(self) -> float:
        """How long was waited; the reason to wait no longer is on record."""
        began = time.monotonic()
        while not self.target.recovered():
            waited_s = time.monotonic() - began
            if self._must_stop():
                self.record.stopped = True
                self._failed("recovery", f"stopped: {self.drill.stop_when}")
                return waited_s
            if waited_s > self.drill.recovery_s:
                self._failed("recovery", f"not within {self.drill.recovery_s:g} s")
                return waited_s
            time.sleep(_POLL_S)
        self._note("recovery", f"back after {number(self.target.measure(RECOVERED))} s")
        return time.monotonic() - began

    def _must_stop(self) -> bool:
        return self.drill.stop_when.holds(self.target.measure(self.drill.stop_when.metric))

    def _steady_again(self) -> None:
        if not (self.record.stopped or self.record.fail_step) and not self._steady():
            self.record.deviated = True
            self._failed("steady state after", f"{self.drill.steady} not met again")

    def _steady(self) -> bool:
        """Whether the steady state is met within its time."""
        ends = time.monotonic() + self.drill.steady_s
        while not (met := self.drill.steady.holds(self.target.measure(self.drill.steady.metric))):
            if time.monotonic() > ends or self._must_stop():
                break
            time.sleep(_POLL_S)
        return met

    def _judge(self, waited_s: float | None) -> None:
        """A timeout counts as the time waited."""
        if not self.record.injected:
            return
        measured = {
            o.bound.metric: self.target.measure(o.bound.metric) for o in self.drill.objectives
        }
        if (
            measured.get(RECOVERED, 0) is None
            and waited_s is not None
            and waited_s >= self.drill.recovery_s
        ):
            measured[RECOVERED] = waited_s
        self.record.results = [
            Result(objective=o, measured=measured[o.bound.metric]) for o in self.drill.objectives
        ]

    def _failed(self, step: str, why: str) -> None:
        self.record.fail(step, why)
        self._note(step, in_one_line(why))

    def _note(self, step: str, text: str) -> None:
        now = time.time()
        self.record.timeline.append((now, step, text))
        self.log(now, step, text)

    def _roll_back(self) -> None:
        for name, undo in self.target.rollback():
            failed = ""
            try:
                undo()
            except Exception as error:  # noqa: BLE001  # the other steps must still run, and the journal has it
                failed = f"{type(error).__name__}: {error}"
                self.record.fail("rollback", f"{name}: {error}")
            self.record.rollbacks.append(
                {
                    "name": name,
                    "succeeded": not failed,
                    "output": failed,
                }
            )
        done = sum(step["succeeded"] for step in self.record.rollbacks)
        of = len(self.record.rollbacks)
        self._note("rollback", f"{done} of {of} steps done" if of else "nothing to put back")


@contextmanager
def _handled(
    handler: "Callable[[int, FrameType | None], None] | signal.Handlers",
) -> Generator[None]:
    """The notices go to `handler`. Python knows signals in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in _NOTICES}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    """Ctrl-C and SIGTERM become one exception, which passes every `except Exception`."""
    for each in _NOTICES:  # one is enough: a second must not cut the rollback short
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signum)
