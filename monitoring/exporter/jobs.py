"""What the jobs are like, from their event lines.

Called by main.py. Pure but for asking its source. Guarantee: a job keeps its newest events only (KEEP_EVENTS), and a
job silent for FORGET_S is dropped, so memory stays flat.
"""

import statistics
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.telemetry import KIND_TRAINING
from monitoring.exporter.sample import Sample, sample
from monitoring.exporter.sources import Source
from monitoring.ledger.events import Event, parse
from monitoring.ledger.job_ledger import KINDS, job_ledger

KEEP_EVENTS = 20_000
KEEP_COMMITS = 20
FORGET_S = 7 * 86_400
# Exits that are no crash: done, stopped with notice, taken without.
NO_CRASH = frozenset({EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_KILLED})


@dataclass(slots=True)
class Job:
    kind: str
    events: deque[Event] = field(default_factory=lambda: deque[Event](maxlen=KEEP_EVENTS))
    commits: deque[float] = field(default_factory=lambda: deque[float](maxlen=KEEP_COMMITS))
    crashes: int = 0
    skipped: int = 0
    dead: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    began_s: float = 0.0
    newest_s: float = 0.0
    complete: bool = False

    def take(self, event: Event, *, counts: bool) -> None:
        """`counts`: it is new, and not told by an exporter before this one."""
        t = event.t_us / 1e6
        self.began_s, self.newest_s = self.began_s or t, max(self.newest_s, t)
        self.events.append(event)
        fields = event.fields
        match event.type:
            case "start":
                self.complete = False
            case "commit":
                self.commits.append(t)
                self.crashes = 0
            case "restore":
                self.skipped += counts * len(fields.get("skipped") or ())
            case "exit":
                self.complete = fields.get("code") == EXIT_COMPLETE
                self.crashes += fields.get("code") not in NO_CRASH
            case "dead_lettered":
                self.dead += counts
            case "item_failed":
                self.failures[str(fields.get("error_class", "unknown"))] += counts
            case _:
                pass

    def samples(self, name: str, now_s: float) -> Iterable[Sample]:
        yield sample("fruitless_restarts", self.crashes, job=name)
        yield sample("restores_skipped_total", self.skipped, job=name)
        yield sample("goodput_ratio", job_ledger(list(self.events)).goodput, job=name)
        if self.kind != KIND_TRAINING:
            yield sample("dead_letters_total", self.dead, job=name)
            for error_class, count in self.failures.items():
                yield sample("batch_failures_total", count, job=name, error_class=error_class)
        elif not self.complete:
            yield sample(
                "last_commit_age_seconds",
                max(0.0, now_s - (self.commits[-1] if self.commits else self.began_s)),
                job=name,
            )
            gaps = [b - a for a, b in zip(self.commits, list(self.commits)[1:], strict=False)]
            if gaps:
                yield sample("commit_interval_seconds", statistics.median(gaps), job=name)


@dataclass(slots=True)
class Jobs:
    source: Source
    since_s: float = 0.0
    """Counters count from here on, or each restart would tell again what is long told."""
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    problems: Counter[str] = field(default_factory=Counter[str])

    def read(self) -> None:
        for lines in self.source.news():
            reading = parse(lines)
            self.problems += reading.problems
            for event in reading.events:
                if event.kind in KINDS:
                    counts = event.t_us >= self.since_s * 1e6
                    self.jobs.setdefault(event.job, Job(event.kind)).take(event, counts=counts)

    def samples(self, now_s: float) -> Iterable[Sample]:
        for name in [name for name, job in self.jobs.items() if now_s - job.newest_s > FORGET_S]:
            del self.jobs[name]
        for name, job in self.jobs.items():
            yield from job.samples(name, now_s)
