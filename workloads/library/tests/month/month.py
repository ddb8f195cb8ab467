"""A simulated month: ordinary jobs on Spot and flex-start, real trouble, and the alerts.

Metrics go through the real exporter and get the names of Cloud Monitoring; the deployed rules run
in Prometheus' own engine. Time advances by a minute.
`python -m workloads.library.tests.bench.month` plays all of it, a test one day.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.controllers.cluster import Cluster
from holdfast.cost import money
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from holdfast.vocabulary.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alert import EXAMPLE, Severity
from monitoring.alerting.alerts import alerts
from tests.monitoring.alerting.firings import Firing, Recorder, firings
from tests.platforms import load
from workloads.library.tests.exporter.fake_source import FakeSource
from workloads.library.tests.month.month_jobs import COMMIT_EVERY_MIN, Job, Kind, Platform
from workloads.library.tests.sample import EPOCH

DAY_MIN = 1_440
JOBS_A_DAY = 7
# As deployed: the threshold comes from prices. At a share of 0.8 every young job with one eviction
# would open a ticket.
SHOWN = load("example")
LIMITS = {**EXAMPLE, "goodput_min": money.break_even_share(SHOWN.pools, SHOWN.region) or 0.0}
SPOT = Kind(queue="spot", accelerator="nvidia-l4", pods=2)
GANG = Kind(queue="spot", accelerator="nvidia-tesla-a100", pods=4)
SWEEP = Kind(
    queue="spot",
    accelerator="nvidia-l4",
    pods=2,
    by_index=True,
)
FLEX = Kind(
    queue="flex",
    accelerator="nvidia-tesla-a100",
    flex=True,
    by_index=True,
)
ORDINARY = (SPOT, GANG, SWEEP, FLEX)
# The probability in a minute on Spot: once in eight hours.
EVICTION = 1 / 480
WITHOUT_NOTICE = 0.1
CANCELLED = 0.1
DROUGHT = 0.05


@dataclass(frozen=True, slots=True)
class Incident:
    """Trouble that was added on purpose, and the alert that is promised for it."""

    kind: str
    alert: str
    label: str
    """The `key=value` of the notification; empty if the alert has none."""
    begins_min: int
    promise_min: int

    def has_same_subject(self, firing: Firing) -> bool:
        """Tells whether an alert names the subject of the incident, after its begin."""
        key, _, value = self.label.partition("=")
        if firing.first_min < self.begins_min - 1:
            return False
        return not key or firing.label(key) == value

    def is_reported_by(self, firing: Firing) -> bool:
        in_time = firing.first_min <= self.begins_min + self.promise_min
        return firing.alert == self.alert and in_time and self.has_same_subject(firing)

    def explains(self, firing: Firing) -> bool:
        has_named_subject = self.label != "" and self.has_same_subject(firing)
        return has_named_subject or self.is_reported_by(firing)


class Month:
    def __init__(self, *, seed: int, days: int) -> None:
        self.days = days
        self.minute = 0
        self.rng = random.Random(seed)
        self.jobs: list[Job] = []
        self.incidents: list[Incident] = []
        self.happened = Counter[str]()
        self.blind = range(0)
        """Minutes without an exporter."""
        self.scripts: list[tuple[int, Iterator[None]]] = []
        self.recorder: Any = Recorder(began_s=EPOCH)
        self.written = FakeSource()
        self.cluster = Cluster(clock=self.now_s)
        self.platform = Platform(self.cluster, self.written)
        self.exporter = Exporter(
            cluster=self.cluster,
            jobs=Jobs(self.written),
            clock=self.now_s,
        )
        self.writer = CloudWriter(
            self.recorder, "acme-ai", "us-central1", EXAMPLE["cluster"], clock=self.now_s
        )

    def now_s(self) -> float:
        return EPOCH + 60 * self.minute

    def add_ordinary_jobs(self) -> None:
        for number in range(self.days * JOBS_A_DAY):
            kind = self.rng.choice(ORDINARY)
            self.jobs.append(
                Job(
                    name=f"job-{number}",
                    kind=kind,
                    born_min=self.rng.randrange(10, self.days * DAY_MIN - 600),
                    queued_min=int(self.rng.triangular(0, 230, 5)),
                    work_min=int(self.rng.triangular(20, 900, 120)),
                    rng=random.Random(self.rng.random()),
                    unplaced_min=int(self.rng.triangular(0, 200, 10)) if kind.flex else 3,
                    startup_min=self.rng.randrange(2, 8),
                    ends_after_min=7 * DAY_MIN if kind.flex else 0,
                )
            )

    def incident(
        self,
        kind: str,
        alert: str,
        label: str,
        begins_min: int,
        promise_min: int,
    ) -> None:
        """Adds an incident whose alert must fire within `promise_min`.

        Two minutes are added for a sample and an evaluation of the rule.
        """
        self.incidents.append(Incident(kind, alert, label, begins_min, promise_min + 2))

    def script(self, begins_min: int, steps: Iterator[None]) -> None:
        """Runs `steps` to the next `yield` in each minute from `begins_min` on."""
        self.scripts.append((begins_min, steps))

    def gauge(self, metric: str, value: float, **labels: str) -> None:
        """Adds a sample that comes from another exporter, such as that of GPUs."""
        cluster = {"cluster": EXAMPLE["cluster"], "cluster_name": EXAMPLE["cluster"]}
        self.recorder.add(metric, labels | cluster, value)

    def count_interruptions(self, pool: str, count: float) -> None:
        """Adds nodes that GKE counts as interrupted."""
        labels = {
            "monitored_resource": "k8s_node_pool",
            "cluster_name": EXAMPLE["cluster"],
            "node_pool_name": pool,
        }
        labels |= {"interruption_type": PREEMPTION_TYPE, "interruption_reason": "Eviction"}
        self.recorder.add(INTERRUPTIONS_METRIC, labels, count)

    def play(self) -> list[Firing]:
        for minute in range(1, self.days * DAY_MIN):
            self.pass_minute(minute)
        return firings(alerts(LIMITS), self.recorder)

    def pass_minute(self, minute: int) -> None:
        self.minute = minute
        self.platform.minute = minute
        self.recorder.minute = minute
        for job in self.jobs:
            self._live(job)
        self.jobs = [job for job in self.jobs if not job.is_gone]
        for begins_min, steps in self.scripts:
            if minute >= begins_min:
                next(steps, None)
        self._publish()

    def _live(self, job: Job) -> None:
        age = self.minute - job.born_min
        is_waiting = 0 < age < job.queued_min
        if is_waiting and job.kind in ORDINARY and not self._is_in_use(job.kind.queue):
            job.queued_min = age + 1  # no other job holds the quota
        self.platform.step(job)
        if job.is_gone or job.placed_min < 0 or not job.name.startswith("job-"):
            return
        self._note_lost_saves(job)
        has_unsaved_steps = job.step > job.saved
        if not job.kind.flex and has_unsaved_steps and job.rng.random() < EVICTION:
            notice = job.rng.random() >= WITHOUT_NOTICE
            if job.rng.random() < DROUGHT:
                job.unplaced_min = job.rng.randrange(60, 600)
            else:
                job.unplaced_min = job.rng.randrange(1, 25)
            self.happened["evictions" if notice else "losses without notice"] += 1
            self.happened["droughts"] += job.unplaced_min >= 60
            self.platform.evict(job, notice=notice)
        elif job.rng.random() < CANCELLED / job.work_min:
            self.happened["cancellations"] += 1
            self.platform.end(job, 143)

    def _note_lost_saves(self, job: Job) -> None:
        """Adds an incident when two saves in a row have failed.

        One failed save is ordinary. After two a job has computed for over two intervals without a
        save, which the alert must report; before a few commits its interval is unknown.
        """
        unsaved_min = job.done_min - (job.save_at_min - 3 * COMMIT_EVERY_MIN)
        if job.failed_in_a_row == 2 and unsaved_min == 24 and job.commits >= 5:
            self.happened["two failed saves in a row"] += 1
            self.incident(
                f"two saves of {job.name} fail",
                "HoldfastNoRecentCommit",
                f"job={job.name}",
                self.minute - 4,
                3,
            )

    def _is_in_use(self, queue: str) -> bool:
        for job in self.jobs:
            if job.kind.queue == queue and self.minute - job.born_min > job.queued_min:
                return True
        return False

    def _publish(self) -> None:
        for pool, count in self.platform.interruptions.items():
            self.count_interruptions(pool, count)
        self.platform.interruptions.clear()
        if self.minute not in self.blind:
            self.writer.write(self.exporter.gather())
            self.cluster.lines(self.now_s())


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    alert_minutes: dict[str, tuple[int, int]]
    """Minutes until the alert, and the promise, by kind of incident."""
    missed: list[str]
    false_pages: list[Firing]
    other: list[Firing]
    """The tickets about ordinary trouble, such as a drought."""


def judge(incidents: list[Incident], fired: list[Firing]) -> Judged:
    """Judges all alerts; a page is false if no incident explains it.

    A hang has more than one sign: an incident explains all alerts about its subject after its
    begin.
    """
    pages = set()
    for alert in alerts(LIMITS):
        if alert.severity is Severity.PAGE:
            pages.add(alert.name)
    alert_minutes: dict[str, tuple[int, int]] = {}
    for incident in incidents:
        reports = [firing for firing in fired if incident.is_reported_by(firing)]
        if reports:
            minutes = max(0, reports[0].first_min - incident.begins_min)
            alert_minutes[incident.kind] = (minutes, incident.promise_min)
    false_pages: list[Firing] = []
    tickets: list[Firing] = []
    for firing in fired:
        if any(incident.explains(firing) for incident in incidents):
            continue
        if firing.alert in pages:
            false_pages.append(firing)
        else:
            tickets.append(firing)
    return Judged(
        alert_minutes=alert_minutes,
        missed=[incident.kind for incident in incidents if incident.kind not in alert_minutes],
        false_pages=false_pages,
        other=tickets,
    )
