"""What drills on this machine share: a folder, marked processes, an event file, and their end."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.drill.events import Follower
from holdfast.drill.pods import Pod, clear
from holdfast.drill.target import Loss
from holdfast.runtime.events import EventLog

POOL = "local"
JOB = "drill"
_REAP_S = 10


class Local(ABC):
    """`folder` keeps events and logs; what lies under `scratch` goes with the drill."""

    def __init__(self, folder: Path, kind: str, owner: str = "") -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.owner = owner or f"drill:{folder.parent}"  # a run of the same drill that was killed is cleared by the next
        path = folder / "events" / f"{JOB}.jsonl"
        self.events, self.path = Follower(path), path
        self._started: list[Pod] = []
        self._log = EventLog.open(path, job=JOB, kind=kind)

    def prepare(self) -> None:
        clear(self.owner)
        self.scratch.mkdir(parents=True)
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Begin the work."""

    def evict(self, pod: Pod, signal: str, end: Callable[[], int]) -> int:
        """Put on record, then done: the line must be there before its effect."""
        self.record_eviction(pod, signal)
        return end()

    def record_eviction(self, pod: Pod, signal: str) -> None:
        self._log.emit("evict", signal=signal, target=f"pod-{pod.pid}")

    def launch(self, command: Sequence[str], env: dict[str, str]) -> Pod:
        pod = Pod(command, log=self.folder / "logs" / f"{JOB}.log", owner=self.owner, env=env)
        self._started.append(pod)
        return pod

    def losses(self) -> list[Loss]:
        return [Loss(event["t"], POOL) for event in self.events.of("evict")]

    def evicted_at(self) -> float | None:
        return next((event["t"] for event in self.events.of("evict")), None)

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        yield "kill every process of the drill", self._end_all
        yield "remove its data", lambda: shutil.rmtree(self.scratch, ignore_errors=True)
        yield "close its event file", self._log.close

    def _end_all(self) -> None:
        clear(self.owner)
        for pod in self._started:
            pod.wait(_REAP_S)
