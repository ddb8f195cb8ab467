"""Nodes of a sharded gang as processes of this machine: one vanishes, is replaced, and all go on
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
        """`copy_every`, `commit_every`: steps."""
        super().__init__(folder, KIND_TRAINING, fault=fault)
        self.nodes = nodes
        self._every = (str(commit_every), str(copy_every))
        # Of each node its own and the one above.
        self._port = free_port(2 * nodes)
        self._pods: dict[str, Pod] = {}
        self._hit: set[str] = set()
        self._hit_s = self._back_s = 0.0
        self._restores_before = 0
        self._steps_before = -1
        """Lines of steps when the state was loaded again; -1: not yet."""

    def start(self) -> None:
        self._pods = {f"node-{place}": self._node(place) for place in range(self.nodes)}

    def _node(self, place: int) -> Pod:
        url = str(self.scratch / "checkpoints")
        flags = {
            "--processes": 1,
            "--nodes": self.nodes,
            "--place": place,
            "--checkpoints": url,
            "--run": self.job,
        }
        options = []
        for flag in flags.items():
            for word in flag:
                options.append(str(word))
        program = [
            *_PROGRAM,
            url,
            str(_ENDLESS),
            *self._every,
        ]
        env = {
            ENV_JOB: self.job,
            ENV_RUN: self.job,
            ENV_EVENTS: str(self.path),
            ENV_GANG_PORT: str(self._port),
        }
        env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return self.launch(
            [
                *HOLDFAST,
                "train",
                "ranks",
                "--sharded",
                *options,
                "--",
                *program,
            ],
            env,
            f"node-{place}",
        )

    def candidates(self) -> list[str]:
        return [*self._pods]

    def inject(self, victims: Sequence[str]) -> str:
        self._hit = {*victims}
        self._hit_s = time.monotonic()
        self.events.read()
        self._restores_before = len(self.events.of("restore"))
        for name in victims:
            self.evict(self._pods[name], self.signal)
            self._pods[name] = self._node(int(name.removeprefix("node-")))
        return f"{self.signal} to {', '.join(victims)} at step {max(self._steps(), default=0)}"

    def recovered(self) -> bool:
        self.events.read()
        if not self._back_s and self._restored():
            steps = len(self._steps())
            if self._steps_before < 0:
                self._steps_before = steps
            elif steps > self._steps_before:
                self._back_s = time.monotonic()
        return bool(self._back_s)

    def _steps(self) -> list[int]:
        """As rank 0 printed them."""
        log = self.folder / "logs" / "node-0.log"
        if log.exists():
            return [int(step) for step in _STEP.findall(log.read_text(errors="replace"))]
        return []

    def _restored(self) -> list[str]:
        """From where states were loaded since the fault."""
        return [
            str(event.get("source")) for event in self.events.of("restore")[self._restores_before :]
        ]

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "uncommitted_steps": self._uncommitted_steps,
            RECOVERED: lambda: self._back_s - self._hit_s if self._back_s else None,
            "lost_steps": self._lost_steps,
            "bucket_restores": lambda: (
                sum(source != "memory" for source in self._restored()) if self._back_s else None
            ),
            "others_ended": lambda: sum(
                pod.exit_code is not None
                for name, pod in self._pods.items()
                if name not in self._hit
            ),
        }

    def _uncommitted_steps(self) -> float | None:
        committed = self.events.last("commit", "step")
        if committed is None:
            return None
        return float(max(self._steps(), default=0) - committed)

    def _lost_steps(self) -> float | None:
        steps = self._steps()
        if self._back_s:
            return float(sum(max(0, one - after + 1) for one, after in pairwise(steps)))
        return None
