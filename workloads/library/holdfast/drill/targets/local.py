"""The base of drills on this machine: a folder, marked processes, an event file, and clean-up."""

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
    """One entry of a seeded schedule, which is the same for all compared runs."""

    progress: int
    """Steps or items after which it is due."""
    signal: str
    delay_s: float
    """Seconds between the report of the progress and the signal."""
    victim: int = 0


def make_schedule(
    *,
    seed: int,
    count: int,
    total: int,
    first: int,
    victims: int = 1,
) -> list[Eviction]:
    """Returns `count` evictions between progress `first` and 0.9 `total`, in order.

    Notices and power losses alternate.
    """
    rng = random.Random(seed)
    stride = (total * 0.9 - first) / count
    schedule: list[Eviction] = []
    for number in range(count):
        eviction = Eviction(
            progress=int(first + stride * number + rng.uniform(0, stride * 0.6)),
            signal=SIGKILL if number % 2 else SIGTERM,
            delay_s=rng.uniform(0, 0.25),
            victim=rng.randrange(victims),
        )
        schedule.append(eviction)
    return schedule


class Local(ABC):
    """Work on this machine: `folder` keeps events and logs; `scratch` is deleted with the drill."""

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
        # The same for all runs of a drill, so that the next run clears one that was killed.
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
        """Starts the work."""

    @abstractmethod
    def metrics(self) -> Mapping[str, Measure]:
        """Returns the measurement of each metric by name."""

    def measure(self, metric: str) -> float | None:
        self.events.read()
        return self.metrics()[metric]()

    @property
    def signal(self) -> str:
        return SIGTERM if self.fault is Fault.NOTICE else SIGKILL

    def evict(self, pod: Pod, signal: str) -> int:
        """Ends the pod and returns its exit code.

        The event is written first: readers must not see the effect before it.
        """
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

    def eviction_time(self) -> float | None:
        """Returns the Unix time of the first eviction; None before it."""
        evictions = self.events.of("evict")
        return evictions[0]["t"] if evictions else None

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


def measure_time(call: Callable[[], int]) -> tuple[int, float]:
    """Returns the result of the call and its duration in seconds."""
    start = time.monotonic()
    result = call()
    return result, time.monotonic() - start
