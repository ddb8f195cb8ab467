"""Small engines behind a router as processes of this machine, with text streams through them."""

import http.client
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.drill.errors import DrillError
from holdfast.drill.plan import RECOVERED, Fault
from holdfast.drill.pods import Pod
from holdfast.drill.serving.fleet import HOST, free_port, get
from holdfast.drill.serving.text_streams import StreamLoad
from holdfast.drill.target import Undo
from holdfast.drill.targets.local import HOLDFAST, Local, Measure
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import READY_PATH, ROUTER_MOVED, sidecar_budget
from holdfast.vocabulary.telemetry import KIND_SERVING

_ENGINE = (sys.executable, "-m", "holdfast.inference.small_engine", "--host", HOST)
_ROUTER = (*HOLDFAST, "serve", "router", "--set", f"host={HOST}")
_TOKENS_PER_S = 25.0
_TOKENS = 300
"""Tokens of a stream. A stream takes four times as long as the router leaves it on a draining
server, so even among a few streams at least one has to move, however far each has come.
"""
_START_S = 120.0
_REPLY_S = 5.0
_POLL_S = 0.05


class LocalStreams(Local):
    def __init__(
        self,
        folder: Path,
        fault: Fault = Fault.NOTICE,
        *,
        engines: int,
        streams: int,
        owner: str = "",
    ) -> None:
        super().__init__(
            folder,
            KIND_SERVING,
            fault=fault,
            owner=owner,
        )
        self._ports = [free_port() for _ in range(engines)]
        self._engines: dict[int, Pod] = {}
        """The pod at each port."""
        self._router_port = free_port()
        self._load = StreamLoad(clients=streams, tokens=_TOKENS)
        self._clients = ExitStack()
        self._victims: list[Pod] = []
        self._pods: list[Pod] = []
        self._fault_t = 0.0
        self._recovery_t = 0.0

    def start(self) -> None:
        for port in self._ports:
            self._start_engine(port)
        servers = ",".join(f"{HOST}:{port}" for port in self._ports)
        command = [*_ROUTER, "--port", str(self._router_port), "--servers", servers]
        self._pods.append(self.launch(command, {}, "router"))
        deadline = time.monotonic() + _START_S
        while not self._are_all_ready():
            lost_pods = [pod for pod in self._pods if pod.exit_code is not None]
            if lost_pods:
                raise DrillError(f"a process ended by itself:\n{lost_pods[0].tail()}")
            if time.monotonic() > deadline:
                raise DrillError(f"no router with ready engines within {_START_S:.0f} s")
            time.sleep(_POLL_S)
        self._clients.enter_context(self._load.reading(self._router_port))

    def _start_engine(self, port: int) -> None:
        _, timeout_s = sidecar_budget(DEFAULT_WINDOW.pod_s)
        command = [*_ENGINE, "--port", str(port), "--shutdown-timeout", str(timeout_s)]
        command += ["--tokens-per-second", str(_TOKENS_PER_S)]
        pod = self.launch(command, {}, f"engine-{port}")
        self._engines[port] = pod
        self._pods.append(pod)

    def _are_all_ready(self) -> bool:
        try:
            status, text = get(self._router_port, READY_PATH, _REPLY_S)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200 and json.loads(text)["servers"] == len(self._ports)

    def candidates(self) -> list[str]:
        return [_name(pod) for pod in self._engines.values() if pod.exit_code is None]

    def inject(self, victims: Sequence[str]) -> str:
        reports: list[str] = []
        self._fault_t = time.monotonic()
        for port, pod in list(self._engines.items()):
            if _name(pod) not in victims:
                continue
            self._victims.append(pod)
            code = self.evict(pod, self.signal)
            self._start_engine(port)
            reports.append(f"{self.signal} to {_name(pod)}, exit {code}")
        return f"{'; '.join(reports)}, under {self._load.clients} streams"

    def has_recovered(self) -> bool:
        """Returns whether all engines are ready again; lets the streams end then, so that every
        metric is final.
        """
        if self._recovery_t:
            return True
        if not self._are_all_ready():
            return False
        self._recovery_t = time.monotonic()
        self._clients.close()
        return True

    def rollback(self) -> Iterable[Undo]:
        # A stream ends with its router, so no client waits for long.
        yield from super().rollback()
        yield "end its clients", self._clients.close

    # -- measurements --

    def metrics(self) -> Mapping[str, Measure]:
        metrics: dict[str, Measure] = {
            "streams_whole": lambda: self._count(is_whole=True),
            "streams_broken": lambda: self._count(is_whole=False),
            "exit_code": lambda: self._victims[0].exit_code if self._victims else None,
            "crashes": self._count_crashes,
        }
        after_recovery: dict[str, Measure] = {
            "streams_moved": self._count_moved,
            RECOVERED: lambda: self._recovery_t - self._fault_t,
        }
        if not self._recovery_t:
            return metrics | dict.fromkeys(after_recovery, lambda: None)
        return metrics | after_recovery

    def _count(self, *, is_whole: bool) -> int:
        return sum(result.is_whole is is_whole for result in list(self._load.results))

    def _count_moved(self) -> float:
        _, text = get(self._router_port, "/metrics", _REPLY_S)
        values = re.findall(rf"^{ROUTER_MOVED}{{.*}} (\S+)$", text, re.M)
        return sum(map(float, values))

    def _count_crashes(self) -> float:
        expected = (None, EXIT_KILLED, EXIT_PREEMPTED)
        return sum(pod.exit_code not in expected for pod in self._pods)


def _name(pod: Pod) -> str:
    return f"pod-{pod.pid}"
