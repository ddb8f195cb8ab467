"""Derives the metrics of job runs from their event lines.

Pure, except that it reads its source. Guarantee: a run keeps its newest KEEP_EVENTS events only,
all runs together MOST_EVENTS, a run without lines for FORGET_S is dropped, and runs, reasons and
error classes are bounded in number, so memory and series stay flat whatever pods write. A line that
cannot be used is counted, and never ends a pass.
"""

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from holdfast.controllers.event_lines import FAULTY, MOVED, NAMESPACE_BY_KIND
from holdfast.controllers.event_source import EventSource, Lines
from holdfast.controllers.fair_share import find_share
from holdfast.controllers.sample import OTHER, Sample, bound_label, run_labels, sample
from holdfast.ledger.elastic_gang import below_size_since_us
from holdfast.ledger.events import KEPT_PROBLEMS, Event, parse
from holdfast.ledger.job_ledger import KINDS, job_ledger
from holdfast.ledger.processes import FOREIGN_TYPES, computing_us
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.roles import NAMESPACE_MONITORING
from holdfast.vocabulary.telemetry import KIND_TRAINING

KEEP_EVENTS = 20_000
# An event takes a kilobyte, and the exporter's pod has 512 MiB.
MOST_EVENTS = 150_000
KEEP_COMMITS = 20
FORGET_S = 7 * 86_400
# A silent run without running pods has ended or waits; it is not reported.
ALIVE_S = 3_600
MOST_RUNS = 2_000
MOST_ERROR_CLASSES = 20
MOST_REFUSALS = 1_000
FOREIGN_INDEX = "lines about an index other than that of the pod that wrote them"
TOO_MANY = "lines beyond the share of one pod or job, which were not read"
CAPACITIES = frozenset(Capacity)
FAULT_LABELS = ("pool", "fault", "answer")
# Exits that are no crash: completed, stopped with notice, killed without notice.
NO_CRASH = frozenset({EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_KILLED})


class LedgerSummary(NamedTuple):
    """The figures of a run's ledger that become metrics."""

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
    failures: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    """Capacity -> times that the mover sent it there."""
    newest_s: float = 0.0
    """Time of the newest line that its own processes wrote."""
    heard_s: float = 0.0
    """Time of the newest line about it, from any writer."""
    restored_s: float = 0.0
    """Time at which its present attempt had restored the newest save."""
    complete: bool = False
    diverged: bool = False
    """Its newest loss was not finite, which a line writes as null."""
    slowest: float | None = None
    """Pace of the slowest rank of a gang, as a multiple of the pace of the rest."""
    crashed_hosts: set[str] = field(default_factory=set)
    """Hosts whose process crashed since the last start. The pods of a gang crash together, which
    counts once.
    """
    _summary: LedgerSummary | None = None
    """Cached until the next line."""
    _computed: tuple[tuple[float, float], float] | None = None
    """Two moments and the computing time between them; cached until the next line."""

    def take(self, event: Event, *, counts: bool) -> None:
        """Takes in a line. `counts`: no earlier exporter has published it."""
        t = event.t_us / 1e6
        fields = event.fields
        self.heard_s = max(self.heard_s, t)
        self.events.append(event)
        self._summary = None
        self._computed = None
        if event.type in FOREIGN_TYPES:
            if event.type == MOVED:
                capacity = bound_label(str(fields.get("capacity")), CAPACITIES)
                self.moves[capacity] += counts
            return
        self.newest_s = max(self.newest_s, t)
        match event.type:
            case "start":
                self.complete = False
                self.crashed_hosts.clear()
            case "window":
                self.diverged = "loss" in fields and fields["loss"] is None
                slowest = fields.get("slowest_by")
                self.slowest = float(slowest) if isinstance(slowest, (int, float)) else None
            case "commit":
                self.commits.append(t)
                self.crashes = 0
            case "stored":
                self.crashes = 0
            case "restore":
                self.restored_s = t
                if counts:
                    self.skipped += len(fields.get("skipped") or ())
            case "exit":
                self._take_exit(event.process, fields.get("code"))
            case "dead_lettered":
                self.dead += counts
            case "item_failed" | "retrying":
                self._take_failure(event, counts=counts)
            case _:
                pass

    def reset_counters(self) -> None:
        """Starts its counters again. Keys remain, as each class of errors has a series."""
        self.skipped = 0
        self.dead = 0
        self.failures = Counter(dict.fromkeys(self.failures, 0))
        self.moves = Counter(dict.fromkeys(self.moves, 0))

    def _take_failure(self, event: Event, *, counts: bool) -> None:
        name = event.fields.get("error_class") or event.fields.get("source") or "unknown"
        error_class = self._bound_error_class(str(name))
        self.failures[error_class] += counts

    def _take_exit(self, process: str, code: object) -> None:
        self.complete = code == EXIT_COMPLETE
        if code in NO_CRASH:
            return
        host = process.rsplit("-", 2)[0]
        # A host crashes again only in a new attempt, even if no process of it wrote a start.
        if not self.crashed_hosts or host in self.crashed_hosts:
            self.crashes += 1
            self.crashed_hosts.clear()
        self.crashed_hosts.add(host)

    def _bound_error_class(self, name: str) -> str:
        """Limits the number of classes, because each is a series that is kept for years."""
        if name in self.failures or len(self.failures) < MOST_ERROR_CLASSES:
            return name
        return OTHER

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
            yield from self._ledger_samples(labels, now_s, running_since_s)
        if self.kind != KIND_TRAINING:
            yield from self._batch_samples(labels)
        elif running_since_s is not None and not self.complete:
            yield from self._training_samples(labels, now_s, running_since_s)

    def _ledger_samples(
        self, labels: dict[str, str], now_s: float, running_since_s: float | None
    ) -> Iterable[Sample]:
        summary = self._summarize()
        yield sample("goodput_ratio", summary.goodput, **labels)
        yield sample("useful_paid_ratio", summary.useful_paid, **labels)
        if summary.elastic and running_since_s is not None and not self.complete:
            since_us = summary.below_size_since_us
            below_s = 0.0
            if since_us is not None:
                below_s = max(0.0, now_s - since_us / 1e6)
            yield sample("gang_below_size_seconds", below_s, **labels)

    def _batch_samples(self, labels: dict[str, str]) -> Iterable[Sample]:
        yield sample("dead_letters_total", self.dead, **labels)
        for error_class, count in self.failures.items():
            yield sample("batch_failures_total", count, **labels, error_class=error_class)

    def _training_samples(
        self, labels: dict[str, str], now_s: float, running_since_s: float
    ) -> Iterable[Sample]:
        yield sample("loss_not_finite", self.diverged, **labels)
        if self.slowest is not None:
            yield sample("slowest_rank_ratio", self.slowest, **labels)
        unsaved_s = self.find_commit_age_s(now_s, running_since_s)
        yield sample("last_commit_age_seconds", unsaved_s, **labels)
        intervals = [end - begin for begin, end in pairwise(self.commits)]
        if not intervals:
            return
        usual_s = statistics.median(intervals)
        if self._owes_a_commit(now_s, running_since_s, usual_s):
            yield sample("commit_interval_seconds", usual_s, **labels)

    def _summarize(self) -> LedgerSummary:
        """Returns the cached summary, or computes it from all events of the run.

        Passes are far more frequent than lines.
        """
        if self._summary is None:
            # Lines of pods and of the watcher arrive by different ways, so out of order.
            events = sorted(self.events, key=lambda event: event.t_us)
            ledger = job_ledger(events)
            self._summary = LedgerSummary(
                goodput=ledger.goodput,
                useful_paid=ledger.useful_paid,
                elastic=bool(ledger.sizes),
                below_size_since_us=below_size_since_us(ledger.sizes),
            )
        return self._summary

    def _owes_a_commit(self, now_s: float, running_since_s: float, usual_s: float) -> bool:
        """Returns whether commits can be expected of the present attempt by now.

        They can after its first commit, or once twice the usual interval has passed since its
        restore. Start-up time does not count, nor does work lost without notice.
        """
        if self.commits[-1] >= running_since_s:
            return True
        has_restored = self.restored_s >= running_since_s
        return has_restored and now_s - self.restored_s > 2 * usual_s

    def find_commit_age_s(self, now_s: float, running_since_s: float) -> float:
        """Returns the computing time since the newest commit.

        Hours without a node do not count; a hang counts in full.
        """
        committed_s = self.commits[-1] if self.commits else 0.0
        earlier_attempts_s = self._compute_s(committed_s, running_since_s)
        this_attempt_s = max(0.0, now_s - max(running_since_s, committed_s))
        return earlier_attempts_s + this_attempt_s

    def _compute_s(self, begin_s: float, end_s: float) -> float:
        """Returns the seconds in which the run computed between two moments."""
        period = (begin_s, end_s)
        if self._computed is None or self._computed[0] != period:
            begin_us = round(begin_s * 1e6)
            end_us = round(end_s * 1e6)
            us = computing_us(self.events, begin_us, end_us)
            self._computed = (period, us / 1e6)
        return self._computed[1]


@dataclass(slots=True)
class Jobs:
    source: EventSource
    since_s: float = 0.0
    """Earlier lines do not count: an exporter that restarts must not count them again."""
    runs: dict[JobIdentity, RunRecord] = field(default_factory=dict)
    faults: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """(pool, fault, answer) -> nodes with a broken GPU."""
    refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(namespace and job of the pod that wrote them, reason) -> lines that were not used."""

    def read(self, now_s: float | None = None) -> None:
        """Reads new lines. `now_s` is the reader's clock; lines from its future are refused."""
        for batch in self.source.news():
            if batch.dropped:
                self._refuse(batch.namespace, batch.job, TOO_MANY, batch.dropped)
            reading = parse(batch.lines, job=batch.job, now_s=now_s)
            for reason, count in reading.problems.items():
                if reason not in KEPT_PROBLEMS:
                    self._refuse(batch.namespace, batch.job, reason, count)
            for event in reading.events:
                if _is_foreign_index(batch, event):
                    self._refuse(batch.namespace, batch.job, FOREIGN_INDEX, 1)
                elif event.kind in KINDS:
                    self._take(event, batch.namespace)
                elif event.type == FAULTY and not batch.job and self._counts(event):
                    labels = tuple(str(event.fields.get(name)) for name in FAULT_LABELS)
                    self.faults[labels] += 1
        self._bound_events()

    def _bound_events(self) -> None:
        """Drops the oldest events of the runs that have more than their share."""
        counts = [len(record.events) for record in self.runs.values()]
        share = find_share(counts, MOST_EVENTS)
        for record in self.runs.values():
            while len(record.events) > share:
                record.events.popleft()

    def reset_counters(self) -> None:
        """Starts counting again, because another exporter has published all counts so far."""
        for record in self.runs.values():
            record.reset_counters()
        self.faults.clear()
        self.refused.clear()

    def _counts(self, event: Event) -> bool:
        return event.t_us >= self.since_s * 1e6

    def _take(self, event: Event, writer: str) -> None:
        """Adds a line to its run.

        `writer` is the namespace of the pod that wrote it; it is empty for a line from a file.
        Watchers write the namespace of the job into the line.
        """
        namespace = writer
        if writer in ("", NAMESPACE_MONITORING):
            namespace = str(event.fields.get("namespace") or "")
        run = JobIdentity(
            namespace=namespace or NAMESPACE_BY_KIND[event.kind],
            job=event.job,
            index=event.run_index,
        )
        is_full = run not in self.runs and len(self.runs) >= MOST_RUNS
        if is_full and not self._make_room(run.namespace):
            self._refuse(run.namespace, "", "lines of more runs than are followed", 1)
            return
        record = self.runs.setdefault(run, RunRecord(event.kind))
        record.take(event, counts=self._counts(event))

    def _make_room(self, namespace: str) -> bool:
        """Drops the run that is silent longest of the namespace with most runs.

        Returns False if `namespace` already has its share. Pods choose their job's label, so those
        of one namespace could fill all places.
        """
        counts = Counter(run.namespace for run in self.runs)
        fullest, run_count = counts.most_common(1)[0]
        if counts[namespace] + 1 >= run_count:
            return False
        candidates = [run for run in self.runs if run.namespace == fullest]
        del self.runs[min(candidates, key=lambda run: self.runs[run].heard_s)]
        return True

    def _refuse(self, namespace: str, job: str, reason: str, count: int) -> None:
        key = (namespace, job, reason)
        if key not in self.refused and len(self.refused) >= MOST_REFUSALS:
            key = ("", "", OTHER)
        self.refused[key] += count

    def samples(self, now_s: float, running: Mapping[JobIdentity, float]) -> Iterable[Sample]:
        """Yields the samples of all runs.

        `running` maps each run that has a pod with running containers to the time since when.
        """
        self._forget_silent_runs(now_s)
        for run, record in self.runs.items():
            yield from record.samples(run, now_s, running.get(run))
        for key, count in self.faults.items():
            labels = dict(zip(FAULT_LABELS, key, strict=True))
            yield sample("gpu_faults_total", count, **labels)
        for (namespace, job, reason), count in self.refused.items():
            yield sample(
                "event_lines_refused_total",
                count,
                namespace=namespace,
                job=job,
                reason=reason,
            )

    def _forget_silent_runs(self, now_s: float) -> None:
        for run, record in list(self.runs.items()):
            if now_s - record.heard_s > FORGET_S:
                del self.runs[run]


def _is_foreign_index(lines: Lines, event: Event) -> bool:
    """Returns whether a pod wrote about another run of its job.

    Each index is a run with series of its own: a pod that chose them could fill MOST_RUNS.
    """
    is_by_pod = lines.pod and lines.namespace != NAMESPACE_MONITORING
    return bool(is_by_pod) and event.run_index not in (None, lines.index)
