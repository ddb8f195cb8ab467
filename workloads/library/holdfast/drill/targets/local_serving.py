"""Servers behind a proxy as processes of this machine: one is taken away under load, and every request is counted."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.contract.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.telemetry import KIND_SERVING
from holdfast.drill.plan import RECOVERED, Fault
from holdfast.drill.schedule import SIGKILL, SIGTERM
from holdfast.drill.serving.fleet import HOST, Fleet, Replica, holdfast_server
from holdfast.drill.serving.load import INFER_BODY, INFER_PATH, Load
from holdfast.drill.targets.local import Local


class LocalServing(Local):
    def __init__(self, folder: Path, fault: Fault, *, replicas: int, per_s: float, owner: str = "") -> None:
        super().__init__(folder, KIND_SERVING, owner)
        self.fault, self.replicas, self.per_s = fault, replicas, per_s
        self._open = ExitStack()
        self._fleet = Fleet(folder=self.scratch, owner=self.owner, command=holdfast_server("entropy"))
        self._load: Load | None = None
        self._clients = ExitStack()
        self._victims: list[Replica] = []
        self._hit_at = self._back_at = 0.0

    def start(self) -> None:
        self._open.enter_context(self._fleet.running(self.replicas))
        self._load = Load(HOST, self._fleet.port, INFER_PATH, INFER_BODY)
        self._clients.enter_context(self._load.asking(self.per_s))

    def candidates(self) -> list[str]:
        return [_name(replica) for replica in self._fleet.ready()]

    def inject(self, victims: Sequence[str]) -> str:
        self._victims = [replica for replica in self._fleet.ready() if _name(replica) in victims]
        self._hit_at = time.monotonic()
        signal, end = (SIGTERM, self._fleet.evict) if self.fault is Fault.NOTICE else (SIGKILL, self._fleet.kill)
        for replica in self._victims:
            self.record_eviction(replica.pod, signal)
            end(replica)
        return f"{signal} to {', '.join(victims)}, under {self.per_s:g} requests a second"

    def recovered(self) -> bool:
        """The replacements answer. The clients then end, so that every number is final."""
        fleet = self._fleet
        replaced = not any(victim in fleet.replicas for victim in self._victims)
        if not self._back_at and replaced and len(fleet.ready()) == len(fleet.replicas) == self.replicas:
            self._back_at = time.monotonic()
            self._clients.close()
        return bool(self._back_at)

    def measure(self, metric: str) -> float | None:
        return METRICS[metric](self)

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        yield "end its clients", self._clients.close
        yield "end its servers and their proxy", self._open.close
        yield from super().rollback()

    # -- what is measured --

    def answered(self) -> float:
        return self._load.codes["200"] if self._load else 0

    def failed(self) -> float | None:
        return self._load.failed if self._load else None

    def retries(self) -> float | None:
        return self._fleet.stat("upstream_rq_retry") if self._back_at else None

    def differing(self) -> float | None:
        """Between what clients, proxy and servers count as answered."""
        if not self._back_at:
            return None
        counts = (int(self.answered()), self._fleet.stat("upstream_rq_2xx"), self._fleet.answered())
        return max(counts) - min(counts)

    def exit_code(self) -> float | None:
        codes = [victim.pod.exit_code for victim in self._victims]
        return codes[0] if codes else None

    def crashes(self) -> float:
        usual = (None, EXIT_KILLED, EXIT_PREEMPTED)
        return sum(replica.pod.exit_code not in usual for replica in [*self._victims, *self._fleet.replicas])

    def recovered_s(self) -> float | None:
        return self._back_at - self._hit_at if self._back_at else None


def _name(replica: Replica) -> str:
    return f"pod-{replica.pod.pid}"


METRICS = {
    "answered": LocalServing.answered,
    "requests_failed": LocalServing.failed,
    "proxy_retries": LocalServing.retries,
    "counts_differ": LocalServing.differing,
    "exit_code": LocalServing.exit_code,
    "crashes": LocalServing.crashes,
    RECOVERED: LocalServing.recovered_s,
}
