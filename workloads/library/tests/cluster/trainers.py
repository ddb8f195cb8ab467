"""Writes what trainers in simulated pods would write: event lines through the library's own log,
with the identity that the pod really has, and log entries with the labels that the log agent copies
from the pod.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.clients.api import Api, Object
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.job_identity import read_attempt
from holdfast.vocabulary.telemetry import KIND_TRAINING
from tests.cluster.sim.pods import environment, expand_variables
from tests.cluster.sim.story import StoryClock
from workloads.library.tests.controllers.log_server import LogServer

STEP_S = 6.0
COMMIT_EVERY_MIN = 10
STEPS_A_MINUTE = round(60 / STEP_S)


def agent_labels(pod: Object) -> dict[str, str]:
    """Returns the labels of a pod as the log agent copies them."""
    labels: dict[str, str] = {}
    for name, value in pod["metadata"]["labels"].items():
        labels[f"k8s-pod/{name.replace('.', '_')}"] = value
    return labels


@dataclass(slots=True)
class Trainer:
    """One process of a trainer. The pod of rank 0 writes for all ranks, but each pod writes its own
    exit.
    """

    pod: Object
    clock: StoryClock
    path: Path
    step: int = 0
    minutes: int = 0

    @property
    def words(self) -> list[str]:
        return self.pod["spec"]["containers"][0]["command"]

    @property
    def run(self) -> str:
        return expand_variables(self.words[self.words.index("--run") + 1], environment(self.pod))

    @property
    def leads(self) -> bool:
        return "--nodes" not in self.words or environment(self.pod)["JOB_COMPLETION_INDEX"] == "0"

    def emit(self, event: str, /, agent: bool = False, **fields: Any) -> None:
        host = self.pod["spec"].get("hostname") or self.pod["metadata"]["name"]
        uid = self.pod["metadata"]["uid"][:6]
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        with mock.patch.dict(os.environ, environment(self.pod)):
            process = f"{host}-{1 if agent else 7}-{uid}"
            with EventLog(
                descriptor,
                job=self.run,
                kind=KIND_TRAINING,
                process=process,
                clock=self.clock,
            ) as log:
                log.emit(event, **fields)

    def start(self, step: int) -> None:
        self.step = step
        rank = 0 if self.leads else int(environment(self.pod)["JOB_COMPLETION_INDEX"])
        self.emit(
            "start",
            rank=rank,
            world_size=1,
            attempt=read_attempt(environment(self.pod)),
        )
        if self.leads:
            self.emit("restore", step=step, seconds=0.5, skipped=[])

    def minute(self, *, saves: bool) -> int | None:
        """Trains for a minute. Returns the step that became durable in it, or None."""
        self.minutes += 1
        if not self.leads:
            return None
        self.emit(
            "window",
            first_step=self.step + 1,
            last_step=self.step + STEPS_A_MINUTE,
            seconds=60.0,
            loss=1.0,
        )
        self.step += STEPS_A_MINUTE
        return self.save() if saves and self.minutes % COMMIT_EVERY_MIN == 0 else None

    def save(self) -> int:
        self.emit(
            "save",
            step=self.step,
            blocking_seconds=0.1,
            bytes=1_000,
        )
        self.emit(
            "commit",
            step=self.step,
            seconds=1.0,
            bytes=1_000,
        )
        return self.step

    def leave(self, code: int) -> int | None:
        """Exits: in order after a notice, with a last save, or with any other exit code."""
        saved = None
        if code == EXIT_PREEMPTED and self.leads:
            self.emit("stop", step=self.step, reason="SIGTERM")
            saved = self.save()
        self.emit("exit", agent=True, code=code, step=self.step)
        return saved


@dataclass(slots=True)
class Trainers:
    """The trainers of all running pods, and what each run has made durable."""

    api: Api
    clock: StoryClock
    folder: Path
    logs: LogServer
    alive: dict[str, Trainer] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    """Runs that no longer save."""
    _sent: dict[Path, int] = field(default_factory=dict)
    _labels: dict[Path, dict[str, str]] = field(default_factory=dict)

    def sync(self) -> None:
        """Starts a process in each new running pod, and forgets those of pods that are gone."""
        pods = {}
        for pod in self.api.items("/api/v1/namespaces/training/pods"):
            pods[pod["metadata"]["uid"]] = pod
        running = {}
        for uid, pod in pods.items():
            if (
                pod["status"]["phase"] == "Running"
                and "--run" in pod["spec"]["containers"][0]["command"]
            ):
                running[uid] = pod
        for uid in self.alive.keys() - running.keys():
            del self.alive[uid]
        for uid in running.keys() - self.alive.keys():
            path = self.folder / f"{running[uid]['metadata']['name']}.jsonl"
            trainer = self.alive[uid] = Trainer(running[uid], self.clock, path)
            self._labels[path] = agent_labels(running[uid])
            trainer.start(self.saved.get(trainer.run, 0))

    def minute(self) -> None:
        for trainer in self.alive.values():
            self._keep(trainer, trainer.minute(saves=trainer.run not in self.hung))
        self._send()

    def leave(self, job: str, code: int) -> None:
        """Ends every process of a job."""
        for uid, trainer in list(self.alive.items()):
            if environment(trainer.pod)["HOLDFAST_JOB"] == job:
                self._keep(trainer, trainer.leave(code))
                del self.alive[uid]
        self._send()

    def _keep(self, trainer: Trainer, saved: int | None) -> None:
        if saved is not None:
            self.saved[trainer.run] = saved

    def _send(self) -> None:
        """Sends each new line once, as the log agent does."""
        for path, labels in self._labels.items():
            text = path.read_bytes()
            fresh = text[self._sent.get(path, 0) :]
            self._sent[path] = len(text)
            self.logs.add_lines(fresh.splitlines(), labels, "training", pod=path.stem)
