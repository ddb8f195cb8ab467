"""What happened in one drill: filled while it runs, and as JSON what a run leaves for reports and for the next run."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.contract.values import rfc3339
from holdfast.drill.plan import Drill
from holdfast.drill.verdict import Result, Verdict, drill_verdict

SCHEMA = "holdfast.drill/2"
GATE, TARGETS, FAULT, RECOVERY, AFTER = "steady state", "targets", "fault", "recovery", "steady state after"


@dataclass(kw_only=True)
class Activity:
    """One thing done or looked at."""

    name: str
    start: float
    end: float = 0.0
    output: Any = None
    succeeded: bool = False
    tolerance_met: bool | None = None
    """Of a probe."""

    def as_json(self) -> dict[str, Any]:
        took = {"start": rfc3339(self.start), "duration": round(max(0.0, self.end - self.start), 3)}
        return {"name": self.name, "succeeded": self.succeeded, "output": self.output} | took


@dataclass(kw_only=True)
class Record:
    drill: Drill
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    before: list[Activity] = field(default_factory=list)
    during: list[Activity] = field(default_factory=list)
    after: list[Activity] = field(default_factory=list)
    run: list[Activity] = field(default_factory=list)
    rollbacks: list[Activity] = field(default_factory=list)
    timeline: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, step, what happened)"""
    injected: bool = False
    stopped: bool = False
    signal: int = 0
    """That interrupted it; 0 for none."""
    fail_step: str = ""
    why: str = ""
    results: list[Result] = field(default_factory=list)

    @property
    def deviated(self) -> bool:
        """Steady before, and not again afterwards."""
        return self.injected and bool(self.after) and self.after[-1].tolerance_met is False

    @property
    def verdict(self) -> Verdict:
        return drill_verdict(self.results, injected=self.injected, stopped=self.stopped, deviated=self.deviated)

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)

    def fail(self, step: str, why: str) -> None:
        """The first failure is the one that counts; what follows from it is noise."""
        if not self.fail_step:
            self.fail_step, self.why = step, why

    @contextmanager
    def activity(self, into: list[Activity], name: str) -> Generator[Activity]:
        made = Activity(name=name, start=time.time())
        into.append(made)
        try:
            yield made
            made.succeeded = True
        finally:
            made.end = time.time()

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
            "steady_states": {when: _state(getattr(self, when)) for when in ("before", "during", "after")},
            "run": [each.as_json() for each in self.run],
            "rollbacks": [each.as_json() for each in self.rollbacks],
            "objectives": [result.as_json() for result in self.results],
            "timeline": [{"t": rfc3339(t), "step": step, "what": what} for t, step, what in self.timeline],
        }


def last_numbers(journal: dict[str, Any]) -> dict[str, float | None]:
    """Promise -> number, of an earlier journal."""
    return {each["promise"]: each["measured"] for each in journal.get("objectives", ())}


def _state(looks: list[Activity]) -> dict[str, Any] | None:
    """None: nobody looked."""
    if not looks:
        return None
    met = all(look.tolerance_met is not False for look in looks)
    return {"met": met, "probes": [look.as_json() for look in looks]}
