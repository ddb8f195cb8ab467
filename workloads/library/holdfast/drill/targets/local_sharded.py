"""Nodes of a sharded gang as processes of this machine: one is lost and replaced, and all continue
from memory.
"""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from holdfast.drill.plan import RECOVERED, Fault
from holdfast.drill.pods import Pod
from holdfast.drill.serving.fleet import free_port
from holdfast.drill.targets.local import HOLDFAST, Local, Measure
from holdfast.vocabulary.environment import ENV_EVENTS, ENV_GANG_PORT, ENV_JOB, ENV_RUN
from holdfast.vocabulary.telemetry import KIND_TRAINING

_PROGRAM = (sys.executable, "-m", "holdfast.training.examples.sharded_fsdp2")
_ENDLESS = 1_000_000  # steps: the drill ends first
_STEP = re.compile(r"^step (\d+) ", re.MULTILINE)


class LocalSharded(Local):
    def __init__(
        self,
        folder: Path,
        fault: Fault,
        *,
        nodes: int,
        copy_every: int,
        commit_every: int,
    ) -> None:
        """`copy_every` and `commit_every` are numbers of steps."""
        super().__init__(folder, KIND_TRAINING, fault=fault)
        self.nodes = nodes
        self._intervals = (str(commit_every), str(copy_every))
        # Every node uses two consecutive ports.
        self._port = free_port(2 * nodes)
        self._pods: dict[str, Pod] = {}
        self._victims: set[str] = set()
        self._fault_t = 0.0
        self._recovery_t = 0.0
        self._earlier_restores = 0
        """Number of restores before the fault."""
        self._steps_at_restore = -1
        """Number of printed steps when the state was loaded again; -1 before."""

    def start(self) -> None:
        for place in range(self.nodes):
            self._pods[f"node-{place}"] = self._start_node(place)

    def _start_node(self, place: int) -> Pod:
        url = str(self.scratch / "checkpoints")
        flags = {
            "--processes": 1,
            "--nodes": self.nodes,
            "--place": place,
            "--checkpoints": url,
            "--run": self.job,
        }
        command = [*HOLDFAST, "train", "ranks", "--sharded"]
        for flag, value in flags.items():
            command += [flag, str(value)]
        command += ["--", *_PROGRAM, url, str(_ENDLESS), *self._intervals]
        env = {
            ENV_JOB: self.job,
            ENV_RUN: self.job,
            ENV_EVENTS: str(self.path),
            ENV_GANG_PORT: str(self._port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        return self.launch(command, env, f"node-{place}")

    def candidates(self) -> list[str]:
        return [*self._pods]

    def inject(self, victims: Sequence[str]) -> str:
        self._victims = {*victims}
        self._fault_t = time.monotonic()
        self.events.read()
        self._earlier_restores = len(self.events.of("restore"))
        for name in victims:
            self.evict(self._pods[name], self.signal)
            place = int(name.removeprefix("node-"))
            self._pods[name] = self._start_node(place)
        return f"{self.signal} to {', '.join(victims)} at step {self._last_step()}"

    def has_recovered(self) -> bool:
        self.events.read()
        if not self._recovery_t and self._restore_sources():
            count = len(self._read_steps())
            if self._steps_at_restore < 0:
                self._steps_at_restore = count
            elif count > self._steps_at_restore:
                self._recovery_t = time.monotonic()
        return bool(self._recovery_t)

    def _read_steps(self) -> list[int]:
        """Returns the steps that rank 0 printed, in order."""
        log = self.folder / "logs" / "node-0.log"
        if not log.exists():
            return []
        text = log.read_text(errors="replace")
        return [int(step) for step in _STEP.findall(text)]

    def _last_step(self) -> int:
        return max(self._read_steps(), default=0)

    def _restore_sources(self) -> list[str]:
        """Returns the source of each state that was loaded since the fault."""
        restores = self.events.of("restore")[self._earlier_restores :]
        return [str(event.get("source")) for event in restores]

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "uncommitted_steps": self._count_uncommitted_steps,
            RECOVERED: self._measure_recovery,
            "lost_steps": self._count_lost_steps,
            "bucket_restores": self._count_bucket_restores,
            "others_ended": self._count_other_exits,
        }

    def _measure_recovery(self) -> float | None:
        return self._recovery_t - self._fault_t if self._recovery_t else None

    def _count_bucket_restores(self) -> float | None:
        if not self._recovery_t:
            return None
        return sum(source != "memory" for source in self._restore_sources())

    def _count_other_exits(self) -> float:
        """Counts nodes that ended although the fault did not hit them."""
        count = 0
        for name, pod in self._pods.items():
            if name not in self._victims and pod.exit_code is not None:
                count += 1
        return count

    def _count_uncommitted_steps(self) -> float | None:
        commit = self.events.last("commit", "step")
        if commit is None:
            return None
        return float(self._last_step() - commit)

    def _count_lost_steps(self) -> float | None:
        """Counts the steps that rank 0 printed again after the recovery."""
        if not self._recovery_t:
            return None
        count = 0
        for step, following in pairwise(self._read_steps()):
            count += max(0, step - following + 1)
        return float(count)
