"""What drills on this machine share: a folder, marked processes, an event file, and their end."""

import random
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.drill.events import Follower
from holdfast.drill.plan import Fault
from holdfast.drill.pods import Pod, clear
from holdfast.drill.target import Undo
from holdfast.runtime.events import EventLog
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

SIGTERM = "SIGTERM"  # notice, then the window
SIGKILL = "SIGKILL"  # power loss
HOLDFAST = (sys.executable, "-m", "holdfast")
_REAP_S = 10
Measure = Callable[[], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Eviction:
    """Of a schedule: data, seeded, the same for every run that is compared."""

    at: int
    """Progress (steps or items) at which it falls due."""
    signal: str
    delay_s: float
    """Moves the kill off the moment at which progress was reported."""
    victim: int = 0


def evictions(
    *,
    seed: int,
    count: int,
    total: int,
    first: int,
    victims: int = 1,
) -> list[Eviction]:
    """`count` evictions over progress first..0.9 total, sorted; notices and power losses alternate."""
    rng = random.Random(seed)
    stride = (total * 0.9 - first) / count
    return [
        Eviction(
            at=int(first + stride * n + rng.uniform(0, stride * 0.6)),
            signal=(SIGTERM, SIGKILL)[n % 2],
            delay_s=rng.uniform(0, 0.25),
            victim=rng.randrange(victims),
        )
        for n in range(count)
    ]


class Local(ABC):
    """`folder` keeps events and logs; `scratch` is deleted with the drill."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        *,
        fault: Fault = Fault.NOTICE,
        owner: str = "",
        job: str = "drill",
    ) -> None:
        self.folder = folder
        self.fault = fault
        self.job = job
        self.scratch = folder / "scratch"
        # a run of the same drill that was killed is cleared by the next
        self.owner = owner or f"drill:{folder.parent}"
        self.path = folder / "events" / f"{job}.jsonl"
        self.events = Follower(self.path)
        self._started: list[Pod] = []
        self._log = EventLog.open(self.path, job=job, kind=kind)

    def prepare(self) -> None:
        clear(self.owner)
        self.scratch.mkdir(parents=True)
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Begin the work."""

    @abstractmethod
    def metrics(self) -> Mapping[str, Measure]:
        """Name of each number that it measures."""

    def measure(self, metric: str) -> float | None:
        self.events.read()
        return self.metrics()[metric]()

    @property
    def signal(self) -> str:
        return SIGTERM if self.fault is Fault.NOTICE else SIGKILL

    def evict(self, pod: Pod, signal: str) -> int:
        """The exit code. Put on record, then done: the line must be there before its effect."""
        self.record_eviction(pod, signal)
        return pod.kill() if signal == SIGKILL else pod.preempt(DEFAULT_WINDOW.pod_s)

    def record_eviction(self, pod: Pod, signal: str) -> None:
        self._log.emit("evict", signal=signal, target=f"pod-{pod.pid}")

    def launch(self, command: Sequence[str], env: dict[str, str], log: str = "") -> Pod:
        pod = Pod(
            command,
            log=self.folder / "logs" / f"{log or self.job}.log",
            owner=self.owner,
            env=env,
        )
        self._started.append(pod)
        return pod

    def evicted_at(self) -> float | None:
        return next((event["t"] for event in self.events.of("evict")), None)

    def rollback(self) -> Iterable[Undo]:
        yield "kill every process of the drill", self._end_all
        yield "remove its data", lambda: shutil.rmtree(self.scratch, ignore_errors=True)
        yield "close its event file", self.close

    def close(self) -> None:
        self._log.close()

    def _end_all(self) -> None:
        clear(self.owner)
        for pod in self._started:
            pod.wait(_REAP_S)


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """What it returned, and how many seconds it took."""
    began = time.monotonic()
    return work(), time.monotonic() - began
