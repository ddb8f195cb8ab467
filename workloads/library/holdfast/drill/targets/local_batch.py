"""Batch workers and their database as processes of this machine: one vanishes, another takes its place."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.telemetry import KIND_BATCH
from holdfast.drill.batch import database, export
from holdfast.drill.plan import Fault
from holdfast.drill.pods import Pod
from holdfast.drill.schedule import SIGKILL, SIGTERM
from holdfast.drill.targets.local import JOB, Local
from holdfast.drill.training import completed

_LEASE_S = 3.0
_BODY = "an item that a worker scores while another one vanishes. " * 120
_BATCH = (sys.executable, "-m", "holdfast", "batch")


class LocalBatch(Local):
    def __init__(self, folder: Path, fault: Fault, *, workers: int, items: int, owner: str = "") -> None:
        super().__init__(folder, KIND_BATCH, owner)
        self.fault, self.workers, self.items = fault, workers, items
        self._open = ExitStack()
        self._uri = ""
        self._pods: list[Pod] = []
        self._replacements: list[Pod] = []
        self._rows: list[Any] | None = None

    def start(self) -> None:
        source = self.scratch / "items.jsonl"
        lines = (json.dumps({"id": f"item-{n:05d}", "body": f"{n} {_BODY}"}) for n in range(self.items))
        source.write_text("\n".join(lines) + "\n")
        self._uri = self._open.enter_context(database(self.scratch, self.owner))
        columns = ("--id-column", "id", "--body-column", "body")
        completed([*_BATCH, "enqueue", JOB, "--database", self._uri, "--source", str(source), *columns])
        self._pods = [self._worker() for _ in range(self.workers)]

    def candidates(self) -> list[str]:
        return [f"pod-{pod.pid}" for pod in self._pods if pod.exit_code is None]

    def inject(self, victims: Sequence[str]) -> str:
        effects: list[str] = []
        for pod in [pod for pod in self._pods if f"pod-{pod.pid}" in victims]:
            notice = self.fault is Fault.NOTICE
            end = (lambda p=pod: p.preempt(DEFAULT_WINDOW.pod_s)) if notice else pod.kill
            signal = SIGTERM if notice else SIGKILL
            effects.append(f"{signal} to pod-{pod.pid}: exit {self.evict(pod, signal, end)}")
            self._replacements.append(self._worker())
            self._pods[self._pods.index(pod)] = self._replacements[-1]
        return "; ".join(effects)

    def recovered(self) -> bool:
        """Drained, so that every number is final."""
        self.events.read()
        return all(pod.exit_code == EXIT_COMPLETE for pod in self._pods)

    def measure(self, metric: str) -> float | None:
        self.events.read()
        return METRICS[metric](self)

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        yield "stop its database", self._open.close
        yield from super().rollback()

    def _worker(self) -> Pod:
        arguments = ("run", JOB, "--predictor", "entropy", "--micro-batch", "4", "--lease", str(_LEASE_S))
        command = [*_BATCH, *arguments, "--window", str(DEFAULT_WINDOW.pod_s), "--events", str(self.path)]
        return self.launch(command, {"HOLDFAST_DATABASE_URL": self._uri})

    # -- what is measured --

    def stored(self) -> float:
        return sum(event["items"] for event in self.events.of("stored"))

    def crashes(self) -> float:
        usual = (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED)
        return sum(pod.exit_code not in usual for pod in self._pods)

    def recovered_s(self) -> float | None:
        """Until a replacement has stored something."""
        evicted = self.evicted_at()
        pids = {str(pod.pid) for pod in self._replacements}
        # A process is called <host>-<process id>-<random>.
        new = [e["t"] for e in self.events.of("stored") if e["process"].split("-")[-2] in pids]
        return None if evicted is None or not new else max(0.0, min(new) - evicted)

    def lost(self) -> float | None:
        rows = self._stored_rows()
        return None if rows is None else self.items - len({row["item"] for row in rows})

    def duplicated(self) -> float | None:
        rows = self._stored_rows()
        return None if rows is None else len(rows) - len({row["item"] for row in rows})

    def dead_letters(self) -> float:
        return len(self.events.of("dead_lettered"))

    def _stored_rows(self) -> list[Any] | None:
        """As the database has them, once the workers are done."""
        if self._rows is None and self.recovered():
            self._rows = export(JOB, self._uri, self.folder / "rows.jsonl")
        return self._rows


METRICS = {
    "stored_items": LocalBatch.stored,
    "crashes": LocalBatch.crashes,
    "recovered_s": LocalBatch.recovered_s,
    "items_lost": LocalBatch.lost,
    "items_duplicated": LocalBatch.duplicated,
    "dead_letters": LocalBatch.dead_letters,
}
