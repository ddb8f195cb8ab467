"""The trainer as a process of this machine: evicted on purpose, started again as a Job controller
would.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.drill.errors import DrillError
from holdfast.drill.events import until
from holdfast.drill.plan import DrillWork, Fault
from holdfast.drill.pods import Pod
from holdfast.drill.targets.local import HOLDFAST, Eviction, Local, Measure, timed
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
        more: Mapping[str, object] | None = None,
    ) -> None:
        """`more`: further flags of the trainer."""
        super().__init__(
            folder,
            KIND_TRAINING,
            fault=fault,
            owner=owner,
            job=job,
        )
        self.work = work
        self._seed = seed
        self._flags = {
            "--checkpoints": self.scratch / "checkpoints",
            "--run": job,
            "--ranks": 1,
            "--steps": steps,
            "--every": save_every,
            "--window": DEFAULT_WINDOW.pod_s,
            "--device": "cpu",
            "--events": self.path,
            **(more or {}),
        }
        self._attempt = -1
        self._pod: Pod | None = None
        self._seen_before = 0
        self._exit_code: int | None = None
        self._left_s: float | None = None
        self.false_ends: list[int] = []
        """Steps at which it left with 0 before the last one: a Job would have called the work done
        there.
        """

    @property
    def pod(self) -> Pod:
        assert self._pod is not None
        return self._pod

    def start(self) -> None:
        """The next attempt."""
        self._attempt += 1
        self._seen_before = len(self.events.seen)
        arguments = []
        for flag in self._flags.items():
            for argument in flag:
                arguments.append(str(argument))
        arguments += [
            "--set",
            "report_every=1",
            "--set",
            f"seed={self._seed}",
        ]
        naive = (sys.executable, "-m", "holdfast.drill.naive")
        command = [
            *(naive if self.work is DrillWork.NAIVE else (*HOLDFAST, "train", "run")),
            *arguments,
        ]
        self._pod = self.launch(command, {ENV_ATTEMPT: str(self._attempt)})

    # -- one fault --

    def candidates(self) -> list[str]:
        return [f"pod-{self.pod.pid}"]

    def inject(self, victims: Sequence[str]) -> str:
        self._exit_code, self._left_s = timed(lambda: self.evict(self.pod, self.signal))
        self.events.read()
        if self._exit_code != EXIT_COMPLETE:  # a Job would call the work done and start nothing
            self.start()
        return f"{self.signal} to {victims[0]}: exit {self._exit_code} after {self._left_s:.1f} s"

    def recovered(self) -> bool:
        return self.measure("recovered_s") is not None

    # -- a schedule of evictions, to the end of the work --

    def play(self, schedule: Sequence[Eviction], log: Callable[[str], None]) -> None:
        """DrillError where it ends otherwise than its evictions explain."""
        self.start()
        for eviction in schedule:
            # A window and not a restore: the attempt has worked.
            self._wait(
                lambda at=eviction.at: self._reached("window") >= at, f"before step {eviction.at}"
            )
            time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
            code, took_s = timed(lambda signal=eviction.signal: self.evict(self.pod, signal))
            self.events.read()
            reached = self._reached("restore", "stop", "window")
            if code == EXIT_COMPLETE:
                self.false_ends.append(reached)
            elif code not in (EXIT_PREEMPTED, EXIT_KILLED):
                raise DrillError(
                    f"{self.job}: exit {code} on {eviction.signal}:\n{self.pod.tail()}"
                )
            log(
                f"{self.job}: {eviction.signal} at step {reached}, exit {code} after {took_s:.1f} s"
            )
            self.start()
        self._wait(lambda: self.pod.exit_code is not None)
        self.events.read()
        if self.pod.exit_code != EXIT_COMPLETE:
            raise DrillError(
                f"{self.job}: exit {self.pod.exit_code} without an eviction:\n{self.pod.tail()}"
            )
        self.close()

    def _wait(self, done: Callable[[], bool], ended: str = "") -> None:
        def watch() -> None:
            if ended and self.pod.exit_code is not None:
                raise DrillError(
                    f"{self.job} ended with {self.pod.exit_code} {ended}:\n{self.pod.tail()}"
                )

        until(
            done,
            events=self.events,
            watch=watch,
            tail=self.pod.tail,
        )

    def _reached(self, *words: str) -> int:
        """The last step of the newest attempt, by its events of these words."""
        new = (event for event in self.events.seen[self._seen_before :] if event["event"] in words)
        return max((event.get("last_step", event.get("step", 0)) for event in new), default=0)

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

    # -- what is measured --

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "commits": lambda: sum(
                event["event"] == "commit" for event in self.events.seen[self._seen_before :]
            ),
            # Nothing more will come: it was considered finished, or ended by its own fault.
            "gave_up": lambda: float(self.pod.exit_code is not None),
            "crashes": lambda: float(
                self.pod.exit_code not in (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED)
            ),
            "recovered_s": self._recovered_s,
            "lost_steps": self._lost_steps,
            "committed_steps_redone": self._redone,
            "checkpoints_skipped": self._skipped,
            "false_completions": lambda: float(
                EXIT_COMPLETE in (self._exit_code, self.pod.exit_code)
            ),
            "exit_code": lambda: self._exit_code,
            "left_s": lambda: self._left_s,
        }

    def _recovered_s(self) -> float | None:
        found = self.events.summary()
        return next(iter(found.recovered_after_s), None) if found else None

    def _lost_steps(self) -> float | None:
        """None until an evicted trainer works again: before that the loss is unknown."""
        found = self.events.summary()
        return float(found.lost) if found and found.recovered_after_s else None

    def _redone(self) -> float | None:
        """Steps between the newest commit and where it resumed."""
        places = [
            n
            for n, e in enumerate(self.events.seen)
            if e["event"] == "restore" and e.get("rank", 0) == 0
        ]
        if len(places) < 2:
            return None
        before = self.events.seen[: places[1]]
        newest = max((e["step"] for e in before if e["event"] == "commit"), default=0)
        return float(max(0, newest - self.events.seen[places[1]]["step"]))

    def _skipped(self) -> float | None:
        restores = self.events.of("restore")
        if restores:
            return float(sum(len(e.get("skipped") or ()) for e in restores))
        return None
