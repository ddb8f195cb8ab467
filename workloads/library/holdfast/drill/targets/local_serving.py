"""Servers behind a proxy as processes of this machine: some lose their machine under load, and
every request is counted.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Any

from holdfast.drill.plan import RECOVERED, Fault
from holdfast.drill.serving.fleet import HOST, Fleet, Replica, holdfast_server
from holdfast.drill.serving.load import INFER_BODY, INFER_PATH, Load
from holdfast.drill.target import Undo
from holdfast.drill.targets.local import Local, Measure
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.telemetry import KIND_SERVING

_REFUSED = "429"


class LocalServing(Local):
    def __init__(
        self,
        folder: Path,
        fault: Fault = Fault.NOTICE,
        *,
        replicas: int,
        per_s: float,
        owner: str = "",
    ) -> None:
        super().__init__(
            folder,
            KIND_SERVING,
            fault=fault,
            owner=owner,
        )
        self.replicas = replicas
        self.per_s = per_s
        self._open = ExitStack()
        self._fleet = Fleet(
            folder=self.scratch,
            owner=self.owner,
            command=holdfast_server("entropy"),
        )
        self._load = Load(HOST, 0, INFER_PATH, INFER_BODY)
        self._clients = ExitStack()
        self._victims: list[Replica] = []
        self._hit_at = self._back_at = 0.0

    def start(self) -> None:
        self._open.enter_context(self._fleet.running(self.replicas))
        self._load.port = self._fleet.port
        self._clients.enter_context(self._load.asking(self.per_s))

    def candidates(self) -> list[str]:
        return [_name(replica) for replica in self._fleet.ready()]

    def inject(self, victims: Sequence[str]) -> str:
        self._victims = [replica for replica in self._fleet.ready() if _name(replica) in victims]
        self._hit_at = time.monotonic()
        end = self._fleet.evict if self.fault is Fault.NOTICE else self._fleet.kill
        for replica in self._victims:
            self.record_eviction(replica.pod, self.signal)
            end(replica)
        return f"{self.signal} to {', '.join(victims)}, under {self.per_s:g} requests a second"

    def recovered(self) -> bool:
        """The replacements answer. The clients then end, so that every number is final."""
        fleet = self._fleet
        replaced = not any(victim in fleet.replicas for victim in self._victims)
        if (
            not self._back_at
            and replaced
            and len(fleet.ready()) == len(fleet.replicas) == self.replicas
        ):
            self._back_at = time.monotonic()
            self._clients.close()
        return bool(self._back_at)

    def rollback(self) -> Iterable[Undo]:
        yield "end its clients", self._clients.close
        yield "end its servers and their proxy", self._open.close
        yield from super().rollback()

    def play(self, rounds: int, base: int, log: Callable[[str], None]) -> dict[str, Any]:
        """In each round all servers but `base` get their notice at once; what was counted."""
        self.start()
        with self._open, self._clients:
            fleet = self._fleet
            load = self._load
            stay = fleet.ready()[:base]
            fleet.until(lambda: load.codes["200"] > self.per_s, "a second of answers")
            for _ in range(rounds):
                self._victims = [replica for replica in fleet.ready() if replica not in stay]
                gone = len(fleet.exits) + len(self._victims)
                log(
                    f"notice to all {len(self._victims)} servers on Spot, under {self.per_s:g}"
                    " requests a second"
                )
                for victim in self._victims:
                    fleet.evict(victim)
                fleet.until(
                    lambda gone=gone: len(fleet.exits) == gone, "the servers on Spot to leave"
                )
                fleet.settle()
            self._clients.close()
            self.close()
            return self._counted()

    def _counted(self) -> dict[str, Any]:
        load = self._load
        return {
            "servers": self.replicas,
            "evictions": len(self._fleet.exits),
            "requests": load.asked,
            "failed": load.failed - load.codes[_REFUSED],  # neither answered nor refused for load
            "shed": load.codes[_REFUSED],
            "retries": self._fleet.stat("upstream_rq_retry"),  # what clients never saw
            "counts_differ": self._differing(),
            "p99_ms": ceil(1000 * sorted(load.seconds)[int(0.99 * len(load.seconds))]),
        }

    # -- what is measured --

    def metrics(self) -> Mapping[str, Measure]:
        back = bool(self._back_at)
        return {
            "answered": lambda: self._load.codes["200"],
            "requests_failed": lambda: self._load.failed,
            "proxy_retries": lambda: self._fleet.stat("upstream_rq_retry") if back else None,
            "counts_differ": lambda: self._differing() if back else None,
            "exit_code": lambda: self._victims[0].pod.exit_code if self._victims else None,
            "crashes": self._crashes,
            RECOVERED: lambda: self._back_at - self._hit_at if back else None,
        }

    def _differing(self) -> int:
        """Between what clients, proxy and servers count as answered."""
        counts = (
            self._load.codes["200"],
            self._fleet.stat("upstream_rq_2xx"),
            self._fleet.answered(),
        )
        return max(counts) - min(counts)

    def _crashes(self) -> float:
        usual = (None, EXIT_KILLED, EXIT_PREEMPTED)
        return sum(
            replica.pod.exit_code not in usual
            for replica in [*self._victims, *self._fleet.replicas]
        )


def _name(replica: Replica) -> str:
    return f"pod-{replica.pod.pid}"
