"""Runs one drill on one target: gate, targets, fault, recovery, measurement, rollback.

Guarantees: nothing is injected before the steady state was met and the targets were agreed to; the rollback
runs whatever happened, Ctrl-C and SIGTERM included, and a second signal does not cut it short.
"""

import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from holdfast.clients.api import ApiError
from holdfast.contract.errors import HoldfastError, Unjudged
from holdfast.drill.plan import RECOVERED, Bound, Drill
from holdfast.drill.record import AFTER, FAULT, GATE, RECOVERY, TARGETS, Activity, Record
from holdfast.drill.target import Loss, Target
from holdfast.drill.verdict import results
from holdfast.drill.waiting import DrillError

_POLL_S = 0.1
_NOTICES = (signal.SIGINT, signal.SIGTERM)
FIRES = "fires:"


class Refused(HoldfastError, RuntimeError):
    """A person, or a safety rule, refused the targets."""


class Interrupted(BaseException):
    """A signal asks the drill itself to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


def _consents(_drill: Drill, _victims: Sequence[str]) -> None:
    """Agrees to everything: the processes are the drill's own."""


def _not_known(_alert: str, _losses: Sequence[Loss]) -> float | None:
    return None


@dataclass(frozen=True, kw_only=True)
class DrillRunner:
    log: Callable[[float, str, str], None]
    """(when, step, what happened), at once."""
    consent: Callable[[Drill, Sequence[str]], None] = _consents
    """Raises Refused. Called with the names of the targets before the first fault."""
    alert: Callable[[str, Sequence[Loss]], float | None] = _not_known
    """1 if the alert fires on these losses, 0 if not, None if that is not known."""
    last: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """Promise -> the number of the run before."""

    def run(self, drill: Drill, target: Target) -> Record:
        record = Record(drill=drill)
        with _handled(_interrupt):
            try:
                _DrillRun(self, drill, target, record).run_steps()
            except Interrupted as notice:
                record.stopped, record.signal = True, notice.signum
                record.fail("interrupted", f"by {notice}")
            finally:
                with _handled(signal.SIG_IGN):
                    self._roll_back(target, record)
        record.ended = time.time()
        return record

    def note(self, record: Record, step: str, text: str) -> None:
        now = time.time()
        record.timeline.append((now, step, text))
        self.log(now, step, text)

    def _roll_back(self, target: Target, record: Record) -> None:
        for name, undo in target.rollback():
            try:
                with record.activity(record.rollbacks, name):
                    undo()
            except Exception as error:  # noqa: BLE001  # the other steps must still run, and the journal has it
                record.rollbacks[-1].output = f"{type(error).__name__}: {error}"
                record.fail("rollback", f"{name}: {error}")
        done = sum(step.succeeded for step in record.rollbacks)
        steps = f"{done} of {len(record.rollbacks)} steps done" if record.rollbacks else "nothing to put back"
        self.note(record, "rollback", steps)


@dataclass(frozen=True)
class _DrillRun:
    """One drill, from its first step to its last number."""

    runner: DrillRunner
    drill: Drill
    target: Target
    record: Record

    def run_steps(self) -> None:
        step = "prepare"
        try:
            with self.record.activity(self.record.run, step):
                self.target.prepare()
            step = GATE
            self._gate()
            step = TARGETS
            victims = self._victims()
            step = FAULT
            self._inject(victims)
            step = RECOVERY
            waited_s = self._recover()
            step = AFTER
            self._steady_again()
            step = "measure"
            self._judge(waited_s)
        except Refused as refusal:
            self.record.stopped = True
            self._failed(step, str(refusal))
        except (DrillError, Unjudged, ApiError) as error:
            self._failed(step, str(error))
            self._judge(None)

    def _gate(self) -> None:
        began = time.monotonic()
        met = self._steady(self.record.before)
        took_s = time.monotonic() - began
        if not met:
            bound = self.drill.steady_state.bound
            raise DrillError(f"not steady: {bound} wanted, {number(self._measure(bound.metric))} after {took_s:.0f} s")
        self._note(GATE, f"{self.drill.steady_state.bound} after {took_s:.1f} s")

    def _victims(self) -> list[str]:
        found = self.target.candidates()
        victims = found[: self.drill.blast.size(len(found))]
        if not victims:
            raise DrillError(f"nothing to hit: no {self.drill.blast.of} there")
        self._note(TARGETS, f"{', '.join(victims)} (of {len(found)})")
        self.runner.consent(self.drill, victims)
        return victims

    def _inject(self, victims: Sequence[str]) -> None:
        self.record.injected = True  # from here on something may have happened
        with self.record.activity(self.record.run, self.drill.fault.value) as done:
            done.output = self.target.inject(victims)
        self._note(FAULT, str(done.output))

    def _recover(self) -> float:
        """How long was waited; the reason to wait no longer is on record."""
        began = time.monotonic()
        while not self.target.recovered():
            waited_s = time.monotonic() - began
            if why := self._in_vain(waited_s):
                self._failed(RECOVERY, why)
                return waited_s
            time.sleep(_POLL_S)
        self._note(RECOVERY, f"back after {number(self._measure(RECOVERED))} s")
        return time.monotonic() - began

    def _in_vain(self, waited_s: float) -> str:
        """Why nobody waits longer; empty while somebody does."""
        if self._stop():
            return f"stopped: {self.drill.stop_when}"
        if time.time() - self.record.started > self.drill.budget.minutes * 60:
            self.record.stopped = True
            return f"stopped: the budget of {self.drill.budget.minutes:g} minutes is spent"
        return f"not within {self.drill.recovery_s:g} s" if waited_s > self.drill.recovery_s else ""

    def _stop(self) -> bool:
        """Looks at the stop condition, and keeps the last look."""
        self.record.during.clear()
        measured = self._probe(self.record.during, self.drill.stop_when)
        stopped = measured is not None and self.drill.stop_when.holds(measured)
        self.record.stopped = self.record.stopped or stopped
        return stopped

    def _steady_again(self) -> None:
        if self.record.stopped or self.record.fail_step:
            return
        if not self._steady(self.record.after):
            self._failed(AFTER, f"{self.drill.steady_state.bound} not met again")

    def _steady(self, into: list[Activity]) -> bool:
        """Whether the steady state is met within its time. The last look is the one on record."""
        state = self.drill.steady_state
        ends = time.monotonic() + state.within_s
        while True:
            into.clear()
            measured = self._probe(into, state.bound)
            met = into[-1].tolerance_met = measured is not None and state.bound.holds(measured)
            if met or time.monotonic() > ends or self._hopeless():
                return met
            time.sleep(_POLL_S)

    def _hopeless(self) -> bool:
        measured = self._measure(self.drill.stop_when.metric)
        return measured is not None and self.drill.stop_when.holds(measured)

    def _judge(self, waited_s: float | None) -> None:
        """What was waited for in vain took at least as long as was waited."""
        if not self.record.injected:
            return
        measured = {o.bound.metric: self._measure(o.bound.metric) for o in self.drill.objectives}
        if measured.get(RECOVERED, 0) is None and waited_s is not None and waited_s >= self.drill.recovery_s:
            measured[RECOVERED] = waited_s
        self.record.results = results(self.drill.objectives, measured, self.runner.last)

    def _measure(self, metric: str) -> float | None:
        if metric.startswith(FIRES):
            return self.runner.alert(metric.removeprefix(FIRES), self.target.losses())
        return self.target.measure(metric)

    def _probe(self, into: list[Activity], bound: Bound) -> float | None:
        with self.record.activity(into, bound.metric) as look:
            look.output = self._measure(bound.metric)
        return look.output

    def _failed(self, step: str, why: str) -> None:
        self.record.fail(step, why)
        self._note(step, why.splitlines()[0])

    def _note(self, step: str, text: str) -> None:
        self.runner.note(self.record, step, text)


def number(measured: float | None) -> str:
    return "nothing" if measured is None else f"{measured:.4g}"


@contextmanager
def _handled(handler: "Callable[[int, FrameType | None], None] | signal.Handlers") -> Generator[None]:
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
    """Ctrl-C and SIGTERM reach the story as one exception, which passes every `except Exception`."""
    for each in _NOTICES:  # one is enough: a second must not cut the rollback short
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signum)
