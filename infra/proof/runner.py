"""Runs the steps one after the other; whatever ends them, the clean-up follows.

The first interrupt ends the step that runs and goes on with the clean-up. During that, a second one ends the clean-up,
which leaves things that bill: the janitor removes them.
"""

# Why it is so: infra/decisions/0019.

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from infra.proof.journal import Done, Journal, State
from infra.proof.steps import Step

# An apply that is interrupted finishes what it began and writes its state: killing it loses resources.
GRACE_S = 1_800.0
TIMED_OUT = -1000


class Runner:
    def __init__(
        self, folder: Path, journal: Journal, variables: Mapping[str, str], report: Callable[[str], object]
    ) -> None:
        """`variables`: of the steps, beside this process's own. `report` gets a line for each step."""
        self._folder, self._journal = folder, journal
        self._variables, self._report = variables, report
        self._interrupts = 0
        self._unheard: list[None] = []
        """One for each interrupt that no step was given."""
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, proof: Sequence[Step], clean_up: Sequence[Step], within_s: float) -> bool:
        """Whether every step held, and all is clean again. Steps before the first that makes something need no clean-up.

        `within_s` is what was paid for: the clean-up's share of it is kept back, and no step runs longer.
        """
        self._journal.write(self._folder)
        end = time.monotonic() + within_s - sum(step.limit_s for step in clean_up)
        with self._listening():
            begun = False
            for step in proof:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    self._note(step, TIMED_OUT, 0.0)
                    break
                begun = begun or step.name not in READS
                if not self._do(replace(step, limit_s=min(step.limit_s, left_s))) or self._interrupts:
                    break
            clean = self._clean(clean_up) if begun else True
        self._journal.state = State.CLEAN if clean else State.LEFT
        self._journal.write(self._folder)
        return clean and self._journal.held and not self._interrupts

    def clean(self, clean_up: Sequence[Step]) -> bool:
        """The clean-up alone, of a run that ended without."""
        with self._listening():
            clean = self._clean(clean_up)
        self._journal.state = State.CLEAN if clean else State.LEFT
        self._journal.write(self._folder)
        return clean

    def _clean(self, steps: Sequence[Step]) -> bool:
        before, held = self._interrupts, True
        self._unheard.clear()
        for step in steps:
            if self._interrupts > before:
                return False
            held = self._do(step) and held
        return held

    def _do(self, step: Step) -> bool:
        self._report(f"{step.name} ...")
        started = time.monotonic()
        with (self._folder / f"{len(self._journal.steps):02}-{step.name}.log").open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which decides what becomes of the step.
            self._child = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self._variables,
                start_new_session=True,
            )
            # An interrupt may come before the step has a name here; the step would never hear of it.
            self._pass_on()
            code = self._ended(self._child, step.limit_s)
        self._child = None
        seconds = round(time.monotonic() - started, 1)
        self._note(step, code, seconds)
        outcome = step.holds if code == 0 else f"did not hold (exit {code}): {self._last_line(log.name)}"
        self._report(f"{step.name}: {outcome}, {seconds:.0f} s")
        return code == 0

    def _note(self, step: Step, code: int, seconds: float) -> None:
        self._journal.steps.append(Done(step=step.name, holds=step.holds, code=code, seconds=seconds))
        self._journal.write(self._folder)

    def _ended(self, child: subprocess.Popen[bytes], limit_s: float) -> int:
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGINT)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGKILL)
            child.wait()
        return TIMED_OUT

    def _last_line(self, log: str) -> str:
        lines = Path(log).read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it printed nothing"

    @contextmanager
    def _listening(self) -> Generator[None]:
        before = {number: signal.signal(number, self._interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1
        self._unheard.append(None)
        self._pass_on()

    def _pass_on(self) -> None:
        # Each interrupt once: of a second one Terraform leaves without its state. The handler may run between any two lines.
        while self._child and self._unheard:
            with suppress(IndexError):
                self._unheard.pop()
                _signal(self._child, signal.SIGINT)


# Steps that make nothing in the project.
READS = ("doctor",)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # It may have ended by itself meanwhile.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
