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
from holdfast.drill.plan import RECOVERED, Bound, Drill, format_number
from holdfast.drill.target import Target
from holdfast.drill.verdict import Result, Verdict, judge_drill
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
    """Holds the events and results of one drill; `journal` returns them as JSON."""

    drill: Drill
    start_t: float = field(default_factory=time.time)
    end_t: float = 0.0
    timeline: list[tuple[float, str, str]] = field(default_factory=list)
    """(Unix time, step, text)"""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    injected: bool = False
    stopped: bool = False
    deviated: bool = False
    """True if the steady state was met before the fault and not met again after it."""
    signal: int = 0
    """Number of the signal that interrupted the drill; 0 for none."""
    fail_step: str = ""
    why: str = ""
    results: list[Result] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return judge_drill(
            self.results,
            injected=self.injected,
            stopped=self.stopped,
            deviated=self.deviated,
        )

    @property
    def seconds(self) -> float:
        return max(0.0, self.end_t - self.start_t)

    def fail(self, step: str, reason: str) -> None:
        """Records the first failure; later ones follow from it and are dropped."""
        if not self.fail_step:
            self.fail_step = step
            self.why = reason

    def journal(self) -> dict[str, Any]:
        timeline: list[dict[str, str]] = []
        for moment, step, text in self.timeline:
            timeline.append({"t": rfc3339(moment), "step": step, "what": text})
        return {
            "schema": SCHEMA,
            "drill": asdict(self.drill),
            "start": rfc3339(self.start_t),
            "end": rfc3339(self.end_t),
            "duration": round(self.seconds, 3),
            "verdict": self.verdict.value,
            "signal": self.signal,
            "deviated": self.deviated,
            "fail_step": self.fail_step,
            "why": self.why,
            "rollbacks": self.rollbacks,
            "objectives": [result.as_json() for result in self.results],
            "timeline": timeline,
        }


def _consent_to_all(_drill: Drill, _victims: Sequence[str]) -> None:
    """Agrees to every fault, because local processes belong to the drill."""


@dataclass
class DrillRun:
    """Runs one drill on a target, from the gate to the rollback."""

    drill: Drill
    target: Target
    log: Callable[[float, str, str], None]
    """Receives each entry of the timeline at once: Unix time, step, text."""
    consent: Callable[[Drill, Sequence[str]], None] = _consent_to_all
    """Receives the names of the targets before the fault; raises Stopped on a refusal."""

    def run(self) -> Record:
        self.record = record = Record(drill=self.drill)
        with _handle_notices(_interrupt):
            try:
                self._run_steps()
            except Interrupted as notice:
                record.stopped = True
                record.signal = notice.signum
                record.fail("interrupted", f"by {notice}")
            finally:
                with _handle_notices(signal.SIG_IGN):
                    self._roll_back()
        record.end_t = time.time()
        return record

    def _run_steps(self) -> None:
        step = "prepare"
        try:
            self.target.prepare()
            step = "steady state"
            self._gate()
            step = "targets"
            victims = self._choose_victims()
            step = "fault"
            self.record.injected = True  # from here on something may have happened
            self._note(step, self.target.inject(victims))
            step = "recovery"
            waited_s = self._wait_for_recovery()
            self._check_steady_again()
            step = "measure"
            self._judge(waited_s)
        except Stopped as refusal:
            self.record.stopped = True
            self._fail(step, f"{refusal.what}: {refusal.got}")
        except (DrillError, Unjudged, ApiError) as error:
            self._fail(step, str(error))
            self._judge(None)

    def _gate(self) -> None:
        start = time.monotonic()
        steady = self.drill.steady
        met = self._wait_until_steady()
        took_s = time.monotonic() - start
        if not met:
            value = format_number(self.target.measure(steady.metric))
            raise DrillError(f"not steady: expected {steady}, got {value} after {took_s:.0f} s")
        self._note("steady state", f"{steady} after {took_s:.1f} s")

    def _choose_victims(self) -> list[str]:
        candidates = self.target.candidates()
        count = self.drill.blast.limit(len(candidates))
        victims = candidates[:count]
        if not victims:
            raise DrillError(f"no targets found: no {self.drill.blast.of} is running")
        self._note("targets", f"{', '.join(victims)} (of {len(candidates)})")
        self.consent(self.drill, victims)
        return victims

    def _wait_for_recovery(self) -> float:
        """Waits until the target recovers, must stop or runs out of time, and records which.

        Returns the seconds waited.
        """
        start = time.monotonic()
        while not self.target.has_recovered():
            waited_s = time.monotonic() - start
            if self._must_stop():
                self.record.stopped = True
                self._fail("recovery", f"stopped: {self.drill.stop_when}")
                return waited_s
            if waited_s > self.drill.recovery_s:
                self._fail("recovery", f"not within {self.drill.recovery_s:g} s")
                return waited_s
            time.sleep(_POLL_S)
        recovery_s = format_number(self.target.measure(RECOVERED))
        self._note("recovery", f"back after {recovery_s} s")
        return time.monotonic() - start

    def _must_stop(self) -> bool:
        return self._is_met(self.drill.stop_when)

    def _is_met(self, bound: Bound) -> bool:
        return bound.holds(self.target.measure(bound.metric))

    def _check_steady_again(self) -> None:
        if self.record.stopped or self.record.fail_step:
            return
        if not self._wait_until_steady():
            self.record.deviated = True
            self._fail("steady state after", f"{self.drill.steady} not met again")

    def _wait_until_steady(self) -> bool:
        """Returns whether the steady state was met within its time, before the stop condition."""
        deadline = time.monotonic() + self.drill.steady_s
        while not self._is_met(self.drill.steady):
            if time.monotonic() > deadline or self._must_stop():
                return False
            time.sleep(_POLL_S)
        return True

    def _judge(self, waited_s: float | None) -> None:
        """Measures every objective; a recovery that timed out counts as the time waited."""
        if not self.record.injected:
            return
        timed_out = waited_s is not None and waited_s >= self.drill.recovery_s
        measurements: dict[str, float | None] = {}
        for objective in self.drill.objectives:
            metric = objective.bound.metric
            try:
                measurements[metric] = self.target.measure(metric)
            # The journal of a drill must not be lost with the cluster.
            except (DrillError, Unjudged) as error:
                measurements[metric] = None
                self._fail("measure", str(error))
        if timed_out and measurements.get(RECOVERED, 0) is None:
            measurements[RECOVERED] = waited_s
        self.record.results = []
        for objective in self.drill.objectives:
            measured = measurements[objective.bound.metric]
            self.record.results.append(Result(objective=objective, measured=measured))

    def _fail(self, step: str, reason: str) -> None:
        self.record.fail(step, reason)
        self._note(step, in_one_line(reason))

    def _note(self, step: str, text: str) -> None:
        now = time.time()
        self.record.timeline.append((now, step, text))
        self.log(now, step, text)

    def _roll_back(self) -> None:
        for name, undo in self.target.rollback():
            failure = ""
            try:
                undo()
            except Exception as error:  # noqa: BLE001  # the other steps must still run
                failure = f"{type(error).__name__}: {error}"
                self.record.fail("rollback", f"{name}: {error}")
            self.record.rollbacks.append(
                {
                    "name": name,
                    "succeeded": not failure,
                    "output": failure,
                }
            )
        total = len(self.record.rollbacks)
        if not total:
            self._note("rollback", "nothing to restore")
            return
        done = sum(step["succeeded"] for step in self.record.rollbacks)
        self._note("rollback", f"{done} of {total} steps done")


@contextmanager
def _handle_notices(
    handler: "Callable[[int, FrameType | None], None] | signal.Handlers",
) -> Generator[None]:
    """Sends SIGINT and SIGTERM to `handler`; outside the main thread, Python cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {signum: signal.signal(signum, handler) for signum in _NOTICES}
    try:
        yield
    finally:
        for signum, previous_handler in previous.items():
            signal.signal(signum, previous_handler)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    """Turns a notice into an exception that no `except Exception` catches."""
    for notice in _NOTICES:  # a second notice must not cut the rollback short
        signal.signal(notice, signal.SIG_IGN)
    raise Interrupted(signum)
