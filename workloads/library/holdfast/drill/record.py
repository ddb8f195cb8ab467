"""What happened in one drill: filled while it runs, the source of every report."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.drill.plan import Drill
from holdfast.drill.verdict import Result, Verdict, drill_verdict

GATE, TARGETS, FAULT, RECOVERY, AFTER = "steady state", "targets", "fault", "recovery", "steady state after"


@dataclass(kw_only=True)
class Activity:
    """One thing done or looked at."""

    name: str
    start: float
    end: float = 0.0
    output: Any = None
    succeeded: bool = True
    tolerance_met: bool | None = None
    """Of a probe."""


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
        made = Activity(name=name, start=time.time(), succeeded=False)
        into.append(made)
        try:
            yield made
            made.succeeded = True
        finally:
            made.end = time.time()
