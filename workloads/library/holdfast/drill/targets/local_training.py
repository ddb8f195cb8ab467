"""The trainer as a process of this machine, evicted on purpose and restarted as by a Job."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.drill.errors import DrillError
from holdfast.drill.events import Event, until
from holdfast.drill.plan import DrillWork, Fault
from holdfast.drill.pods import Pod
from holdfast.drill.targets.local import HOLDFAST, Eviction, Local, Measure, measure_time
from holdfast.ledger.job_summary import JobSummary
from holdfast.vocabulary.environment import ENV_ATTEMPT
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.telemetry import KIND_TRAINING

_ENDLESS = 1_000_000  # steps: the drill ends first


class LocalTraining(Local):
    def __init__(
        self,
        folder: Path,
        work: DrillWork,
        fault: Fault = Fault.NOTICE,
        *,
        save_every: int,
        owner: str = "",
        job: str = "drill",
        steps: int = _ENDLESS,
        seed: int = 0,
        extra_flags: Mapping[str, object] | None = None,
    ) -> None:
        """`extra_flags` are flags of the trainer that replace or extend those of a drill."""
        super().__init__(
            folder,
            KIND_TRAINING,
            fault=fault,
            owner=owner,
            job=job,
        )
        self.work = work
        self._seed = seed
        self._steps = steps
        self._flags = {
            "--checkpoints": self.scratch / "checkpoints",
            "--run": job,
            "--ranks": 1,
            "--steps": steps,
            "--every": save_every,
            "--window": DEFAULT_WINDOW.pod_s,
            "--device": "cpu",
            "--events-file": self.path,
            **(extra_flags or {}),
        }
        self._attempt = -1
        self._pod: Pod | None = None
        self._earlier_events = 0
        """Number of events before the newest attempt."""
        self._exit_code: int | None = None
        self._exit_s: float | None = None
        self.false_ends: list[int] = []
        """Steps before the last one at which it exited with 0, which a Job takes as complete."""

    @property
    def pod(self) -> Pod:
        assert self._pod is not None
        return self._pod

    def start(self) -> None:
        """Starts the next attempt."""
        self._attempt += 1
        self._earlier_events = len(self.events.history)
        command = [*HOLDFAST, "train", "run"]
        if self.work is DrillWork.NAIVE:
            command = [sys.executable, "-m", "holdfast.drill.naive"]
        for flag, value in self._flags.items():
            command += [flag, str(value)]
        command += ["--set", "report_every=1", "--set", f"seed={self._seed}"]
        self._pod = self.launch(command, {ENV_ATTEMPT: str(self._attempt)})

    @property
    def _new_events(self) -> list[Event]:
        """The events of the newest attempt."""
        return self.events.history[self._earlier_events :]

    # -- one fault --

    def candidates(self) -> list[str]:
        return [f"pod-{self.pod.pid}"]

    def inject(self, victims: Sequence[str]) -> str:
        code, took_s = measure_time(lambda: self.evict(self.pod, self.signal))
        self._exit_code = code
        self._exit_s = took_s
        self.events.read()
        if code != EXIT_COMPLETE:  # a Job takes 0 as complete and starts nothing
            self.start()
        return f"{self.signal} to {victims[0]}: exit {code} after {took_s:.1f} s"

    def has_recovered(self) -> bool:
        return self.measure("recovered_s") is not None

    # -- a schedule of evictions, to the end of the work --

    def play(self, schedule: Sequence[Eviction], log: Callable[[str], None]) -> None:
        """Runs a schedule of evictions to the last step.

        Raises DrillError if an exit has another cause than an eviction.
        """
        self.start()
        for eviction in schedule:
            # `window` rather than `restore`: the attempt must have worked.
            self._wait(
                lambda step=eviction.progress: self._last_step("window") >= step,
                f"before step {eviction.progress}",
            )
            time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
            log(f"{self.job}: {self._evict_attempt(eviction.signal)}")
            self.start()
        self._wait(lambda: self.pod.exit_code is not None)
        self.events.read()
        if self.pod.exit_code != EXIT_COMPLETE:
            raise DrillError(
                f"{self.job}: exit {self.pod.exit_code} without an eviction:\n{self.pod.tail()}"
            )
        self.close()

    def _evict_attempt(self, signal: str) -> str:
        """Evicts the running attempt; returns a description."""
        code, took_s = measure_time(lambda: self.evict(self.pod, signal))
        self.events.read()
        step = self._last_step("restore", "stop", "window")
        if code == EXIT_COMPLETE:
            # On a fast device it may have done its last step before the signal.
            if step < self._steps:
                self.false_ends.append(step)
        elif code not in (EXIT_PREEMPTED, EXIT_KILLED):
            raise DrillError(f"{self.job}: exit {code} on {signal}:\n{self.pod.tail()}")
        return f"{signal} at step {step}, exit {code} after {took_s:.1f} s"

    def _wait(self, done: Callable[[], bool], moment: str = "") -> None:
        """Waits for a condition; with `moment`, an earlier exit raises DrillError."""

        def watch() -> None:
            if moment and self.pod.exit_code is not None:
                raise DrillError(
                    f"{self.job} ended with {self.pod.exit_code} {moment}:\n{self.pod.tail()}"
                )

        until(
            done,
            events=self.events,
            watch=watch,
            tail=self.pod.tail,
        )

    def _last_step(self, *event_types: str) -> int:
        """Returns the last step of the newest attempt, by its events of these types."""
        last_step = 0
        for event in self._new_events:
            if event["event"] in event_types:
                step = event.get("last_step", event.get("step", 0))
                last_step = max(last_step, step)
        return last_step

    @property
    def digest(self) -> str | None:
        """The digest of the final parameters and optimizer state, which rank 0 writes."""
        return self.events.last("exit", "digest")

    @property
    def summary(self) -> JobSummary:
        summary = self.events.summary()
        if summary is None:
            raise DrillError(f"{self.job} wrote no event line")
        return summary

    # -- measurements --

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "commits": self._count_commits,
            # No attempt follows: a Job took it as complete, or it crashed.
            "gave_up": lambda: float(self.pod.exit_code is not None),
            "crashes": self._count_crashes,
            "recovered_s": self._measure_recovery,
            "lost_steps": self._count_lost_steps,
            "committed_steps_redone": self._count_redone_steps,
            "checkpoints_skipped": self._count_skipped_checkpoints,
            "false_completions": self._count_false_completions,
            "exit_code": lambda: self._exit_code,
            "left_s": lambda: self._exit_s,
        }

    def _count_commits(self) -> float:
        return sum(event["event"] == "commit" for event in self._new_events)

    def _count_crashes(self) -> float:
        expected = (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED)
        return float(self.pod.exit_code not in expected)

    def _count_false_completions(self) -> float:
        return float(EXIT_COMPLETE in (self._exit_code, self.pod.exit_code))

    def _measure_recovery(self) -> float | None:
        summary = self.events.summary()
        if summary is None or not summary.recovery_times_s:
            return None
        return summary.recovery_times_s[0]

    def _count_lost_steps(self) -> float | None:
        """Returns None until an evicted trainer works again: before that the loss is unknown."""
        summary = self.events.summary()
        if summary is None or not summary.recovery_times_s:
            return None
        return float(summary.lost)

    def _count_redone_steps(self) -> float | None:
        """Returns the steps between the last commit of the first attempt and the second start."""
        last_commit = 0
        starts = 0
        for event in self.events.history:
            if event["event"] == "commit":
                last_commit = max(last_commit, event["step"])
            if event["event"] == "restore" and event.get("rank", 0) == 0:
                starts += 1
                if starts == 2:
                    return float(max(0, last_commit - event["step"]))
        return None

    def _count_skipped_checkpoints(self) -> float | None:
        restores = self.events.of("restore")
        if not restores:
            return None
        count = 0
        for event in restores:
            count += len(event.get("skipped") or ())
        return float(count)
