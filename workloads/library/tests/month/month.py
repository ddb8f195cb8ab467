"""A simulated month: ordinary jobs on Spot and flex-start, real trouble put in between, and what
the alerts made of it.

Through the exporter as it is, the names that Cloud Monitoring gives its metrics, and the deployed
rules in Prometheus' own engine. One pass a minute. `python -m workloads.library.tests.bench.month`
plays all of it, a test one day.
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
from workloads.library.tests.exporter.fake_source import Written
from workloads.library.tests.month.month_jobs import COMMIT_EVERY_MIN, Job, Kind, Platform
from workloads.library.tests.sample import EPOCH

DAY_MIN = 1_440
JOBS_A_DAY = 7
# As deployed: the threshold comes from prices. At a share of 0.8 each young job with one eviction
# gave a ticket.
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
# Of a minute on Spot: once in eight hours.
EVICTION = 1 / 480
WITHOUT_NOTICE = 0.1
CANCELLED = 0.1
DROUGHT = 0.05


@dataclass(frozen=True, slots=True)
class Incident:
    """Trouble that somebody put in, and the alert that is promised for it."""

    kind: str
    alert: str
    label: str
    """`key=value` of the notification; empty where the alert has none."""
    begins_min: int
    promise_min: int

    def about(self, firing: Firing) -> bool:
        """The thing that it is about, once it has begun."""
        key, _, value = self.label.partition("=")
        return firing.first_min >= self.begins_min - 1 and (not key or firing.label(key) == value)

    def found_by(self, firing: Firing) -> bool:
        in_time = firing.first_min <= self.begins_min + self.promise_min
        return firing.alert == self.alert and in_time and self.about(firing)

    def explains(self, firing: Firing) -> bool:
        return self.found_by(firing) or (self.label != "" and self.about(firing))


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
        self.written = Written()
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
        """`promise_min`: until the alert fires, with two minutes for a sample and a look of the
        rule.
        """
        self.incidents.append(Incident(kind, alert, label, begins_min, promise_min + 2))

    def script(self, begins_min: int, steps: Iterator[None]) -> None:
        """Runs up to its next `yield` in each minute from then on."""
        self.scripts.append((begins_min, steps))

    def gauge(self, metric: str, value: float, **labels: str) -> None:
        """A series of somebody else's, such as a GPU's."""
        self.recorder.add(
            metric,
            labels | {"cluster": EXAMPLE["cluster"], "cluster_name": EXAMPLE["cluster"]},
            value,
        )

    def interrupted(self, pool: str, count: float) -> None:
        """Nodes that GKE counts as taken."""
        labels = {
            "monitored_resource": "k8s_node_pool",
            "cluster_name": EXAMPLE["cluster"],
            "node_pool_name": pool,
        }
        labels |= {"interruption_type": PREEMPTION_TYPE, "interruption_reason": "Eviction"}
        self.recorder.add(INTERRUPTIONS_METRIC, labels, count)

    def play(self) -> list[Firing]:
        for minute in range(1, self.days * DAY_MIN):
            self.minute = self.platform.minute = self.recorder.minute = minute
            for job in self.jobs:
                self._live(job)
            self.jobs = [job for job in self.jobs if not job.gone]
            for begins_min, steps in self.scripts:
                if minute >= begins_min:
                    next(steps, None)
            self._publish()
        return firings(alerts(LIMITS), self.recorder)

    def _live(self, job: Job) -> None:
        age = self.minute - job.born_min
        if 0 < age < job.queued_min and job.kind in ORDINARY and not self._used(job.kind.queue):
            job.queued_min = age + 1  # nobody holds the quota that it waits for
        self.platform.step(job)
        if job.gone or job.placed_min < 0 or not job.name.startswith("job-"):
            return
        self._note_lost_saves(job)
        if not job.kind.flex and job.step > job.saved and job.rng.random() < EVICTION:
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
        """One save that fails is ordinary. After two in a row it has computed for over two
        intervals with nothing saved, which is what the alert promises to find; before a few commits
        nobody knows its interval.
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

    def _used(self, queue: str) -> bool:
        return any(
            job.kind.queue == queue and self.minute - job.born_min > job.queued_min
            for job in self.jobs
        )

    def _publish(self) -> None:
        for pool, count in self.platform.lost.items():
            self.interrupted(pool, count)
        self.platform.lost.clear()
        if self.minute not in self.blind:
            self.writer.write(self.exporter.gather())
            self.cluster.lines(self.now_s())


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    found: dict[str, tuple[int, int]]
    """Kind of incident -> minutes until its alert, and the promise."""
    missed: list[str]
    false_pages: list[Firing]
    other: list[Firing]
    """Tickets about ordinary trouble, such as a drought."""


def judge(incidents: list[Incident], fired: list[Firing]) -> Judged:
    """A page is false where no incident explains it. A hang has more than one sign: all that fires
    about the thing that an incident is about, once it has begun, is explained by it.
    """
    pages = {alert.name for alert in alerts(LIMITS) if alert.severity is Severity.PAGE}
    found: dict[str, tuple[int, int]] = {}
    for incident in incidents:
        hit = next((firing for firing in fired if incident.found_by(firing)), None)
        if hit:
            found[incident.kind] = max(0, hit.first_min - incident.begins_min), incident.promise_min
    left = [
        firing for firing in fired if not any(incident.explains(firing) for incident in incidents)
    ]
    return Judged(
        found=found,
        missed=[incident.kind for incident in incidents if incident.kind not in found],
        false_pages=[firing for firing in left if firing.alert in pages],
        other=[firing for firing in left if firing.alert not in pages],
    )
