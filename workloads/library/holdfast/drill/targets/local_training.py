"""The trainer as a process of this machine: evicted on purpose, started again as a Job controller would."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.contract.environment import ENV_ATTEMPT
from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.telemetry import KIND_TRAINING
from holdfast.drill.plan import Fault, Work
from holdfast.drill.pods import Pod
from holdfast.drill.schedule import SIGKILL, SIGTERM
from holdfast.drill.targets.local import JOB, Local

UPLOADER = "holdfast.checkpoint.save.uploader_process"
_ENDLESS = 1_000_000  # steps: the drill ends first
_MODULES = {Work.NAIVE: ("holdfast.training.naive",)}
_OUR_TRAINER = ("holdfast", "train", "run")
# The first process of the pod is a shell that keeps SIGTERM to itself, as a shell entrypoint without exec does.
_DEAF = ("/bin/sh", "-c", 'trap "" TERM; "$@"; exit $?', "sh")


class LocalTraining(Local):
    def __init__(self, folder: Path, work: Work, fault: Fault, *, save_every: int, owner: str = "") -> None:
        super().__init__(folder, KIND_TRAINING, owner)
        self.work, self.fault, self.save_every = work, fault, save_every
        self._attempt = -1
        self._pod: Pod | None = None
        self._seen_before = 0
        self._fault_t: float | None = None
        self._exit_code: int | None = None
        self._left_s: float | None = None

    @property
    def pod(self) -> Pod:
        assert self._pod is not None
        return self._pod

    def start(self) -> None:
        """The next attempt."""
        self._attempt += 1
        self._seen_before = len(self.events.seen)
        flags = {
            "--checkpoints": self.scratch / "checkpoints", "--run": JOB, "--ranks": 1, "--steps": _ENDLESS,
            "--every": self.save_every, "--window": DEFAULT_WINDOW.pod_s, "--report-every": 1, "--device": "cpu",
            "--events": self.path,
        }  # fmt: skip
        arguments = [str(argument) for flag in flags.items() for argument in flag]
        command = [sys.executable, "-m", *_MODULES.get(self.work, _OUR_TRAINER), *arguments]
        self._pod = self.launch(
            [*_DEAF, *command] if self.work is Work.DEAF else command, {ENV_ATTEMPT: str(self._attempt)}
        )

    def candidates(self) -> list[str]:
        if self.fault is Fault.UPLOADER_KILL:
            return [f"uploader-{process.pid}" for process in self.pod.processes(UPLOADER)]
        return [f"pod-{self.pod.pid}"]

    def inject(self, victims: Sequence[str]) -> str:
        self._fault_t = time.time()
        if self.fault is Fault.UPLOADER_KILL:
            for process in self.pod.processes(UPLOADER):
                process.kill()
            return f"SIGKILL to {victims[0]}, the trainer goes on"
        notice = self.fault is Fault.NOTICE
        end = (lambda: self.pod.preempt(DEFAULT_WINDOW.pod_s)) if notice else self.pod.kill
        sent = SIGTERM if notice else SIGKILL
        self._exit_code = self.evict(self.pod, sent, end)
        self._left_s = time.time() - self._fault_t
        self.events.read()
        if self._exit_code != EXIT_COMPLETE:  # a Job would call the work done and start nothing
            self.start()
        return f"{sent} to {victims[0]}: exit {self._exit_code} after {self._left_s:.1f} s"

    def recovered(self) -> bool:
        return self.measure("recovered_s") is not None

    def measure(self, metric: str) -> float | None:
        self.events.read()
        return METRICS[metric](self)

    # -- what is measured --

    def commits(self) -> float:
        """Of the attempt that runs."""
        return sum(event["event"] == "commit" for event in self.events.seen[self._seen_before :])

    def gave_up(self) -> float:
        """1 once nothing more will come: it was taken for finished, or ended by its own fault."""
        return float(self.pod.exit_code is not None)

    def crashes(self) -> float:
        return float(self.pod.exit_code not in (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED))

    def recovered_s(self) -> float | None:
        if self._fault_t is None:
            return None
        if self.fault is not Fault.UPLOADER_KILL:
            return next(iter(self._recovered_after_s()), None)
        begun = [e["step"] for e in self.events.of("save") if e["t"] > self._fault_t]
        ends = [e["t"] for e in self.events.of("commit") if begun and e["step"] >= begun[0]]
        return ends[0] - self._fault_t if ends else None

    def _recovered_after_s(self) -> tuple[float, ...]:
        found = self.events.summary()
        return found.recovered_after_s if found else ()

    def lost_steps(self) -> float | None:
        """None before a trainer that was evicted works again: until then nobody knows."""
        found = self.events.summary()
        known = found is not None and (self.fault is Fault.UPLOADER_KILL or bool(found.recovered_after_s))
        return float(found.lost) if found and known else None

    def redone(self) -> float | None:
        """Steps between the newest commit and where it resumed."""
        places = [n for n, e in enumerate(self.events.seen) if e["event"] == "restore" and e.get("rank", 0) == 0]
        if len(places) < 2:
            return None
        before = self.events.seen[: places[1]]
        newest = max((e["step"] for e in before if e["event"] == "commit"), default=0)
        return float(max(0, newest - self.events.seen[places[1]]["step"]))

    def skipped(self) -> float | None:
        restores = self.events.of("restore")
        return float(sum(len(e.get("skipped") or ()) for e in restores)) if restores else None

    def false_completions(self) -> float:
        return float(EXIT_COMPLETE in (self._exit_code, self.pod.exit_code))

    def exit_code(self) -> float | None:
        return self._exit_code

    def left_s(self) -> float | None:
        return self._left_s


METRICS = {
    "commits": LocalTraining.commits,
    "gave_up": LocalTraining.gave_up,
    "crashes": LocalTraining.crashes,
    "recovered_s": LocalTraining.recovered_s,
    "lost_steps": LocalTraining.lost_steps,
    "committed_steps_redone": LocalTraining.redone,
    "checkpoints_skipped": LocalTraining.skipped,
    "false_completions": LocalTraining.false_completions,
    "exit_code": LocalTraining.exit_code,
    "left_s": LocalTraining.left_s,
}
