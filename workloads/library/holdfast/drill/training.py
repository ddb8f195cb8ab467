"""A training run under evictions, restarted as a Job controller restarts it, and what each eviction cost."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.telemetry import KIND_TRAINING
from holdfast.drill.events import Follower
from holdfast.drill.pods import Pod
from holdfast.drill.schedule import SIGKILL, Eviction
from holdfast.drill.waiting import DrillError, until
from holdfast.ledger.job_summary import JobSummary
from holdfast.runtime.events import EventLog


@dataclass(kw_only=True)
class Run:
    """One job over all its restarts."""

    job: str
    steps: int
    window_s: float
    folder: Path
    launch: Callable[[int, Path], Pod]
    """Attempt number and log file -> the running pod."""
    log: Callable[[str], None]
    progress: Callable[[int], None]
    false_completions: list[int] = field(default_factory=list)
    """Steps at which it left with 0 before the last one: a Job would have called the work done there."""

    def __post_init__(self) -> None:
        self.events = Follower(self.folder / "events" / f"{self.job}.jsonl")

    def run(self, schedule: Sequence[Eviction]) -> None:
        """Run to the end through every eviction of the schedule."""
        with EventLog.open(self.folder / "events" / f"{self.job}.jsonl", job=self.job, kind=KIND_TRAINING) as log:
            pod = self._start(0)
            for attempt, eviction in enumerate(schedule, start=1):
                self._until_step(pod, eviction.at)
                time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
                self._evict(pod, eviction, log)
                pod = self._start(attempt)
        self._finish(pod)

    @property
    def digest(self) -> str | None:
        """Of the final parameters and optimizer state, as rank 0 wrote it on completion."""
        return self.events.last("exit", "digest")

    @property
    def summary(self) -> JobSummary:
        found = self.events.summary()
        if found is None:
            raise DrillError(f"{self.job} wrote no event line")
        return found

    def _start(self, attempt: int) -> Pod:
        return self.launch(attempt, self.folder / "logs" / f"{self.job}.log")

    def _reached(self) -> int:
        return max((e["last_step"] for e in self.events.of("window")), default=0)

    def _until_step(self, pod: Pod, step: int) -> None:
        """Wait until the current attempt has passed `step`, wherever earlier attempts were."""
        begin = len(self.events.seen)

        def passed() -> bool:
            self.progress(self._reached())
            return any(e["event"] == "window" and e["last_step"] >= step for e in self.events.seen[begin:])

        def watch() -> None:
            if pod.exit_code is not None:
                raise DrillError(f"{self.job} ended with {pod.exit_code} before step {step}:\n{pod.tail()}")

        until(passed, events=self.events, watch=watch, tail=pod.tail)

    def _evict(self, pod: Pod, eviction: Eviction, log: EventLog) -> None:
        log.emit("evict", signal=eviction.signal, target=f"pod-{pod.pid}")
        began = time.monotonic()
        code = pod.kill() if eviction.signal == SIGKILL else pod.preempt(self.window_s)
        self.events.read()
        if code == EXIT_COMPLETE:
            self.false_completions.append(self._attempt_reached())
        elif code not in (EXIT_PREEMPTED, EXIT_KILLED):
            raise DrillError(f"{self.job}: exit {code} on {eviction.signal}:\n{pod.tail()}")
        took = time.monotonic() - began
        self.log(f"{self.job}: {eviction.signal} at step {self._attempt_reached()}, exit {code} after {took:.1f} s")

    def _attempt_reached(self) -> int:
        """The last step of the newest attempt: what an eviction can take away."""
        steps = [0]
        for event in reversed(self.events.seen):
            if event["event"] == "restore":
                return max(*steps, event["step"])
            if event["event"] in ("window", "stop"):
                steps.append(event.get("last_step", event.get("step", 0)))
        return max(steps)

    def _finish(self, pod: Pod) -> None:
        until(
            lambda: pod.exit_code is not None,
            events=self.events,
            watch=lambda: self.progress(self._reached()),
            tail=pod.tail,
        )
        self.events.read()
        self.progress(self._reached())
        if pod.exit_code != EXIT_COMPLETE:
            raise DrillError(f"{self.job}: exit {pod.exit_code} without an eviction:\n{pod.tail()}")


def completed(command: Sequence[str], *, done: Sequence[int] = (EXIT_COMPLETE,), timeout_s: float = 300) -> str:
    """Standard output of a short command; DrillError with its last lines unless its exit is one of `done`."""
    ended = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode not in done:
        raise DrillError(f"{' '.join(command[2:6])}: exit {ended.returncode}\n{ended.stderr.strip()[-2000:]}")
    return ended.stdout
