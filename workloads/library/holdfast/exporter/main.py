"""The exporter: gather, show, write. It changes nothing in the cluster but its own Lease."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.cloud.monitoring_v3 import MetricServiceClient

from holdfast.clients.api import connect
from holdfast.controllers import event_lines, loop
from holdfast.controllers.cluster import Cluster
from holdfast.controllers.lease import Lease
from holdfast.controllers.sample import Sample, sample
from holdfast.controllers.watch import KINDS, QUEUED, Watcher
from holdfast.exporter.backlog import Backlog
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.prometheus import Newest
from holdfast.exporter.ratings import Ratings, ask_as_account, read_platform
from holdfast.runtime import logs, shutdown
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.vocabulary.capacity import RATING_WINDOW_S
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.roles import NAMESPACE_MONITORING

# The previous exporter may not have published what happened this shortly before the start.
HANDOVER_S = 60.0


@dataclass(kw_only=True, slots=True)
class Exporter:
    """Reads everything and publishes it in one pass, so that metrics of one moment fit together."""

    cluster: Cluster
    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: Jobs | None = None
    backlog: Backlog | None = None
    lease: Lease | None = None
    writer: CloudWriter | None = None
    ratings: Ratings | None = None
    clock: Callable[[], float] = time.time
    newest: Newest = field(default_factory=Newest)

    def one_pass(self) -> None:
        samples = self.gather()
        lease = self.lease
        if lease is None or loop.leads(lease):
            self._publish(samples)
        elif lease.recently_held:
            self.newest.show(samples)
        else:
            # Two exporters that serve would count everything twice, so this one starts its
            # counters from what the other has published.
            self.newest.show(())
            if lease.heard:
                self._reset_counters()

    def gather(self) -> list[Sample]:
        now = self.clock()
        with self.lock:
            samples = list(self.cluster.samples(now))
            running = self.cluster.running_since()
        if self.jobs:
            self.jobs.read(now)
            samples += self.jobs.samples(now, running)
        if self.backlog:
            samples += self.backlog.samples(now)
        samples.append(sample("exporter_heartbeat_seconds", now))
        return samples

    def _publish(self, samples: list[Sample]) -> None:
        self.newest.show(samples)
        with self.lock:
            now = self.clock()
            lines = self.cluster.lines(now)
            pods = list(self.cluster.pods.values())
            nodes = dict(self.cluster.nodes)
        event_lines.write(lines)
        if self.ratings:
            event_lines.write(self.ratings.observe(pods, nodes, now))
        if self.writer:
            self.writer.write(samples)

    def _reset_counters(self) -> None:
        with self.lock:
            self.cluster.reset_counters()
        if self.jobs:
            self.jobs.reset_counters()
        if self.ratings:
            self.ratings.forget()
        if self.writer:
            self.writer.reset_counters()


def serve(
    project: str,
    location: str,
    cluster_name: str,
    port: int,
    every_s: float,
    kubeconfig: str,
    teams: Sequence[str] = (),
    ratings_every_s: float = 0.0,
) -> None:
    """Exports until a signal stops it. Raises InputError for bad options.

    Raises Unjudged if there is no cluster, no credentials, or no database client.
    """
    if project and not (location and cluster_name):
        raise InputError(
            "cloud metrics need project, location and cluster",
            got="--project alone",
            allowed="--project, --location, --cluster",
            fix="add both",
        )
    between("the port is out of range", port, 0, 65_535)
    between("the time between two passes is out of range", every_s, 0.1, 3_600.0)
    if ratings_every_s:
        between("--ratings-every-s", ratings_every_s, RATING_WINDOW_S, 86_400.0)
    logs.use_json()
    logs.info("start", "the exporter starts")
    stop = shutdown.of_process()
    api = connect(kubeconfig)
    database_uri = os.environ.get(ENV_DATABASE, "")
    backlog = Backlog(database_uri) if database_uri else None
    namespaces = loop.read_teams(teams)
    source = None
    jobs = None
    writer = None
    if project:
        source = loop.connect_cloud_logs(project, cluster_name, namespaces)
        jobs = Jobs(source, time.time() - HANDOVER_S)
        writer = CloudWriter(MetricServiceClient(), project, location, cluster_name)
    cluster = Cluster(namespaces=namespaces)
    lock = threading.Lock()
    kinds = (*KINDS, *QUEUED)
    watchers = [Watcher(kind, api.client, cluster, lock) for kind in kinds]
    ratings = None
    if ratings_every_s:
        ratings = Ratings(
            ask=ask_as_account,
            find_platform=lambda: read_platform(api),
            every_s=ratings_every_s,
        )
    # With a kubeconfig and without a project, a person only looks at a cluster: no lease.
    is_observer = bool(kubeconfig) and not project
    exporter = Exporter(
        cluster=cluster,
        lock=lock,
        jobs=jobs,
        backlog=backlog,
        lease=None if is_observer else Lease(api, NAMESPACE_MONITORING),
        writer=writer,
        ratings=ratings,
    )
    exporter.newest.serve(port, in_pod=not kubeconfig)
    with loop.running([*watchers, backlog, source]):
        loop.run(exporter.one_pass, watchers, exporter.lease, stop, every_s)
    if ratings:
        ratings.close()
