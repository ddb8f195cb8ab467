"""Servers behind a proxy as processes of this machine, evicted under load that is counted."""

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
        self._resources = ExitStack()
        self._fleet = Fleet(
            folder=self.scratch,
            owner=self.owner,
            command=holdfast_server("entropy"),
        )
        self._load = Load(HOST, 0, INFER_PATH, INFER_BODY)
        self._clients = ExitStack()
        self._victims: list[Replica] = []
        self._fault_t = 0.0
        self._recovery_t = 0.0

    def start(self) -> None:
        self._resources.enter_context(self._fleet.running(self.replicas))
        self._load.port = self._fleet.port
        self._clients.enter_context(self._load.asking(self.per_s))

    def candidates(self) -> list[str]:
        return [_name(replica) for replica in self._fleet.ready()]

    def inject(self, victims: Sequence[str]) -> str:
        ready = self._fleet.ready()
        self._victims = [replica for replica in ready if _name(replica) in victims]
        self._fault_t = time.monotonic()
        for replica in self._victims:
            self.record_eviction(replica.pod, self.signal)
            if self.fault is Fault.NOTICE:
                self._fleet.evict(replica)
            else:
                self._fleet.kill(replica)
        return f"{self.signal} to {', '.join(victims)}, under {self.per_s:g} requests a second"

    def has_recovered(self) -> bool:
        """Returns whether the replacements answer; stops the clients then, so that every metric is
        final.
        """
        if self._recovery_t:
            return True
        fleet = self._fleet
        if any(victim in fleet.replicas for victim in self._victims):
            return False
        if not len(fleet.ready()) == len(fleet.replicas) == self.replicas:
            return False
        self._recovery_t = time.monotonic()
        self._clients.close()
        return True

    def rollback(self) -> Iterable[Undo]:
        yield "end its clients", self._clients.close
        yield "end its servers and their proxy", self._resources.close
        yield from super().rollback()

    def play(self, rounds: int, base: int, log: Callable[[str], None]) -> dict[str, Any]:
        """Evicts all servers but `base` in each round; returns the counts."""
        self.start()
        with self._resources, self._clients:
            fleet = self._fleet
            base_servers = fleet.ready()[:base]
            fleet.until(lambda: self._load.codes["200"] > self.per_s, "a second of answers")
            for _ in range(rounds):
                self._evict_all_but(base_servers, log)
            self._clients.close()
            self.close()
            return self._summarize()

    def _evict_all_but(self, base_servers: Sequence[Replica], log: Callable[[str], None]) -> None:
        fleet = self._fleet
        self._victims = [replica for replica in fleet.ready() if replica not in base_servers]
        count = len(self._victims)
        exits = len(fleet.exits) + count
        log(f"notice to all {count} servers on Spot, under {self.per_s:g} requests a second")
        for victim in self._victims:
            fleet.evict(victim)
        fleet.until(lambda: len(fleet.exits) == exits, "the servers on Spot to leave")
        fleet.settle()

    def _summarize(self) -> dict[str, Any]:
        load = self._load
        latencies = sorted(load.seconds)
        p99_s = latencies[int(0.99 * len(latencies))]
        return {
            "servers": self.replicas,
            "evictions": len(self._fleet.exits),
            "requests": load.requests,
            "failed": load.failures - load.codes[_REFUSED],  # neither answered nor refused for load
            "shed": load.codes[_REFUSED],
            "retries": self._count_retries(),
            "counts_differ": self._compare_counts(),
            "p99_ms": ceil(1000 * p99_s),
        }

    # -- measurements --

    def metrics(self) -> Mapping[str, Measure]:
        metrics: dict[str, Measure] = {
            "answered": lambda: self._load.codes["200"],
            "requests_failed": lambda: self._load.failures,
            "exit_code": lambda: self._victims[0].pod.exit_code if self._victims else None,
            "crashes": self._count_crashes,
        }
        after_recovery: dict[str, Measure] = {
            "proxy_retries": self._count_retries,
            "counts_differ": self._compare_counts,
            RECOVERED: lambda: self._recovery_t - self._fault_t,
        }
        if not self._recovery_t:
            return metrics | dict.fromkeys(after_recovery, lambda: None)
        return metrics | after_recovery

    def _count_retries(self) -> int:
        """Counts requests that the proxy sent again, unnoticed by clients."""
        return self._fleet.stat("upstream_rq_retry")

    def _compare_counts(self) -> int:
        """Returns the largest difference between the counts of clients, proxy and servers."""
        counts = (
            self._load.codes["200"],
            self._fleet.stat("upstream_rq_2xx"),
            self._fleet.count_answers(),
        )
        return max(counts) - min(counts)

    def _count_crashes(self) -> float:
        expected = (None, EXIT_KILLED, EXIT_PREEMPTED)
        replicas = [*self._victims, *self._fleet.replicas]
        return sum(replica.pod.exit_code not in expected for replica in replicas)


def _name(replica: Replica) -> str:
    return f"pod-{replica.pod.pid}"
