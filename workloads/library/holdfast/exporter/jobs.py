"""What the runs of jobs are like, from their event lines.

Pure but for asking its source. Guarantee: a run keeps its newest events only (KEEP_EVENTS), a run
silent for FORGET_S is dropped, and runs, reasons and classes of error are bounded in number, so
memory and series stay flat whatever pods write. A line that cannot be used is counted, and never
ends a pass.
"""

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.controllers.event_lines import FAULTY, HOME_OF, MOVED
from holdfast.controllers.event_source import EventSource
from holdfast.controllers.sample import Sample, run_labels, sample
from holdfast.ledger.elastic_gang import below_size_since_us
from holdfast.ledger.events import KEPT_PROBLEMS, Event, parse
from holdfast.ledger.job_ledger import KINDS, job_ledger
from holdfast.ledger.processes import FOREIGN_TYPES, computing_us
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.roles import NAMESPACE_MONITORING
from holdfast.vocabulary.telemetry import KIND_TRAINING

KEEP_EVENTS = 20_000
KEEP_COMMITS = 20
FORGET_S = 7 * 86_400
# A run that writes nothing for so long, and has no pod that runs, has ended or waits: its state is
# no news.
ALIVE_S = 3_600
MOST_RUNS = 2_000
MOST_ERROR_CLASSES = 20
MOST_REFUSALS = 1_000
FAULT_LABELS = ("pool", "fault", "answer")
# Exits that are no crash: done, stopped with notice, taken without.
NO_CRASH = frozenset({EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_KILLED})


class LedgerSummary(NamedTuple):
    """What the ledger of a run shows of it."""

    goodput: float
    useful_paid: float
    elastic: bool
    below_size_since_us: int | None


@dataclass(slots=True)
class RunRecord:
    kind: str
    events: deque[Event] = field(default_factory=lambda: deque[Event](maxlen=KEEP_EVENTS))
    commits: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEEP_COMMITS))
    crashes: int = 0
    skipped: int = 0
    dead: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    moves: Counter[str] = field(default_factory=Counter[str])
    """Capacity -> times that the mover sent it there."""
    newest_s: float = 0.0
    """Of the lines that its own processes wrote."""
    heard_s: float = 0.0
    """Of all lines about it."""
    restored_s: float = 0.0
    """When its present attempt was where the newest save left it."""
    complete: bool = False
    diverged: bool = False
    """Its newest loss was no finite number, which a line writes as null."""
    slowest: float | None = None
    """Of the ranks of a gang, by the pace of the others."""
    fallen: set[str] = field(default_factory=set[str])
    """Hosts whose process crashed since anything last started: the pods of a gang fall together,
    and once.
    """
    _standing: LedgerSummary | None = None
    """Until another line comes."""
    _computed: tuple[tuple[float, float], float] | None = None
    """Two moments and how long it computed between them, as last counted; until another line comes.
    """

    def take(self, event: Event, *, counts: bool) -> None:
        """`counts`: it is new, and was not published by an exporter before this one."""
        t = event.t_us / 1e6
        fields = event.fields
        self.heard_s = max(self.heard_s, t)
        self.events.append(event)
        self._standing = self._computed = None
        if event.type in FOREIGN_TYPES:
            if event.type == MOVED:
                self.moves[str(fields.get("capacity"))] += counts
            return
        self.newest_s = max(self.newest_s, t)
        match event.type:
            case "start":
                self.complete = False
                self.fallen.clear()
            case "window":
                self.diverged = "loss" in fields and fields["loss"] is None
                by = fields.get("slowest_by")
                self.slowest = float(by) if isinstance(by, (int, float)) else None
            case "commit":
                self.commits.append(t)
                self.crashes = 0
            case "stored":
                self.crashes = 0
            case "restore":
                self.restored_s = t
                self.skipped += counts * len(fields.get("skipped") or ())
            case "exit":
                self._ended(event.process, fields.get("code"))
            case "dead_lettered" | "item_failed" | "retrying":
                self._failed(event, counts=counts)
            case _:
                pass

    def _failed(self, event: Event, *, counts: bool) -> None:
        if event.type == "dead_lettered":
            self.dead += counts
            return
        why = event.fields.get("error_class") or event.fields.get("source") or "unknown"
        self.failures[self._error_class(str(why))] += counts

    def _ended(self, process: str, code: object) -> None:
        self.complete = code == EXIT_COMPLETE
        if code in NO_CRASH:
            return
        # A host that falls again does so in another attempt, even if none got as far as to start.
        host = process.rsplit("-", 2)[0]
        if not self.fallen or host in self.fallen:
            self.crashes += 1
            self.fallen.clear()
        self.fallen.add(host)

    def _error_class(self, name: str) -> str:
        """Each is a series that is kept for years."""
        if name in self.failures or len(self.failures) < MOST_ERROR_CLASSES:
            return name
        return "other"

    def samples(
        self, run: JobIdentity, now_s: float, running_since_s: float | None
    ) -> Iterable[Sample]:
        labels = run_labels(run)
        for capacity, count in self.moves.items():
            yield sample("placement_moves_total", count, **labels, capacity=capacity)
        if not self.newest_s:
            return  # it waits for its first node
        yield sample("restores_skipped_total", self.skipped, **labels)
        if running_since_s is not None or now_s - self.newest_s <= ALIVE_S:
            yield sample("fruitless_restarts", self.crashes, **labels)
            standing = self._stands()
            yield sample("goodput_ratio", standing.goodput, **labels)
            yield sample("useful_paid_ratio", standing.useful_paid, **labels)
            if standing.elastic and running_since_s is not None and not self.complete:
                since_us = standing.below_size_since_us
                below_s = 0.0 if since_us is None else max(0.0, now_s - since_us / 1e6)
                yield sample("gang_below_size_seconds", below_s, **labels)
        if self.kind != KIND_TRAINING:
            yield sample("dead_letters_total", self.dead, **labels)
            for error_class, count in self.failures.items():
                yield sample("batch_failures_total", count, **labels, error_class=error_class)
        elif running_since_s is not None and not self.complete:
            yield sample("loss_not_finite", self.diverged, **labels)
            if self.slowest is not None:
                yield sample("slowest_rank_ratio", self.slowest, **labels)
            yield sample(
                "last_commit_age_seconds", self.unsaved_s(now_s, running_since_s), **labels
            )
            gaps = [b - a for a, b in zip(self.commits, list(self.commits)[1:], strict=False)]
            if gaps and self._owes_a_commit(
                now_s, running_since_s, usual_s := statistics.median(gaps)
            ):
                yield sample("commit_interval_seconds", usual_s, **labels)

    def _stands(self) -> LedgerSummary:
        """A pass comes far more often than a line, and each would go through all that the run ever
        wrote.
        """
        if self._standing is None:
            # Lines of a pod and of the watcher come by different ways, so not in the order of their
            # time.
            ledger = job_ledger(sorted(self.events, key=lambda event: event.t_us))
            sizes = ledger.sizes
            self._standing = LedgerSummary(
                ledger.goodput, ledger.useful_paid, bool(sizes), below_size_since_us(sizes)
            )
        return self._standing

    def _owes_a_commit(self, now_s: float, running_since_s: float, usual_s: float) -> bool:
        """A start takes as long as it takes, and what a loss without notice cost is gone: an
        attempt is held to the interval once it has saved, or had the time to save twice.
        """
        if self.commits[-1] >= running_since_s:
            return True
        return self.restored_s >= running_since_s and now_s - self.restored_s > 2 * usual_s

    def unsaved_s(self, now_s: float, running_since_s: float) -> float:
        """Time that it computed since its newest commit. Hours without a node count nothing; a hang
        counts in full.
        """
        committed_s = self.commits[-1] if self.commits else 0.0
        return self._computed_s(committed_s, running_since_s) + max(
            0.0, now_s - max(running_since_s, committed_s)
        )

    def _computed_s(self, begin_s: float, end_s: float) -> float:
        if self._computed is None or self._computed[0] != (begin_s, end_s):
            us = computing_us(self.events, round(begin_s * 1e6), round(end_s * 1e6))
            self._computed = (begin_s, end_s), us / 1e6
        return self._computed[1]


@dataclass(slots=True)
class Jobs:
    source: EventSource
    since_s: float = 0.0
    """Counters count from here on, or each restart would count again what was published long ago.
    """
    runs: dict[JobIdentity, RunRecord] = field(default_factory=dict[JobIdentity, RunRecord])
    faults: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    """(pool, fault, answer) -> nodes with a broken GPU."""
    refused: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """(namespace and job of the pod that wrote them, reason) -> lines that were not used."""

    def read(self, now_s: float | None = None) -> None:
        """`now_s`: the reader's clock, against which lines from the future are refused."""
        for written in self.source.news():
            reading = parse(written.lines, job=written.job, now_s=now_s)
            for reason, count in reading.problems.items():
                if reason not in KEPT_PROBLEMS:
                    self._refuse(written.namespace, written.job, reason, count)
            for event in reading.events:
                if event.kind in KINDS:
                    self._take(event, written.namespace)
                elif event.type == FAULTY and not written.job and event.t_us >= self.since_s * 1e6:
                    self.faults[tuple(str(event.fields.get(name)) for name in FAULT_LABELS)] += 1

    def _take(self, event: Event, writer: str) -> None:
        """`writer`: namespace of the pod that wrote it. Watchers name that of the job; files know
        none.
        """
        if writer in ("", NAMESPACE_MONITORING):
            named = str(event.fields.get("namespace") or "")
        else:
            named = writer
        run = JobIdentity(
            namespace=named or HOME_OF[event.kind],
            job=event.job,
            index=event.run_index,
        )
        if run not in self.runs and len(self.runs) >= MOST_RUNS:
            self._refuse("", "", "lines of more runs than are followed", 1)
            return
        self.runs.setdefault(run, RunRecord(event.kind)).take(
            event, counts=event.t_us >= self.since_s * 1e6
        )

    def _refuse(self, namespace: str, job: str, reason: str, count: int) -> None:
        key = namespace, job, reason
        self.refused[
            key if key in self.refused or len(self.refused) < MOST_REFUSALS else ("", "", "other")
        ] += count

    def samples(self, now_s: float, running: Mapping[JobIdentity, float]) -> Iterable[Sample]:
        """`running`: runs that have a pod whose containers run, and since when."""
        for run in [run for run, held in self.runs.items() if now_s - held.heard_s > FORGET_S]:
            del self.runs[run]
        for run, held in self.runs.items():
            yield from held.samples(run, now_s, running.get(run))
        for key, count in self.faults.items():
            yield sample("gpu_faults_total", count, **dict(zip(FAULT_LABELS, key, strict=True)))
        for (namespace, job, reason), count in self.refused.items():
            yield sample(
                "event_lines_refused_total",
                count,
                namespace=namespace,
                job=job,
                reason=reason,
            )
