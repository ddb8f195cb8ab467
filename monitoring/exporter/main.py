"""The exporter's loop: gather, show, write, sleep. First signal ends it in order.

Called by `python -m monitoring export`.
"""

import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from infra.contract.errors import InputError, Unjudged
from infra.contract.names import NAMESPACE_MONITORING
from monitoring.exporter import lines
from monitoring.exporter.backlog import ENV_DATABASE, Backlog
from monitoring.exporter.cloud import CloudWriter
from monitoring.exporter.cluster import Cluster
from monitoring.exporter.jobs import Jobs
from monitoring.exporter.lease import Lease
from monitoring.exporter.prometheus import Newest
from monitoring.exporter.sample import Sample, sample
from monitoring.exporter.watch import KINDS, Watcher

LOG = logging.getLogger(__name__)


class Exporter:
    """One pass reads everything and publishes it at once, so that metrics of one moment fit together."""

    def __init__(
        self,
        cluster: Cluster,
        lock: threading.Lock,
        jobs: Jobs | None,
        clock: Callable[[], float],
        backlog: Backlog | None = None,
    ) -> None:
        self.cluster, self._lock, self._jobs, self._clock, self._backlog = cluster, lock, jobs, clock, backlog
        self.newest = Newest()

    def gather(self) -> list[Sample]:
        now = self._clock()
        with self._lock:
            found = list(self.cluster.samples(now))
        if self._jobs:
            self._jobs.read()
            found += self._jobs.samples(now)
        if self._backlog:
            found += self._backlog.samples(now)
        found.append(sample("exporter_heartbeat_seconds", now))
        self.newest.show(found)
        return found

    def lines(self) -> list[lines.Line]:
        """What the watches told since the last pass."""
        with self._lock:
            return self.cluster.lines(self._clock())


def serve(
    project: str,
    location: str,
    cluster_name: str,
    events: Path | None,
    told: Path | None,
    port: int,
    every_s: float,
    kubeconfig: str,
) -> None:
    if project and not (location and cluster_name):
        raise InputError("cloud metrics need a place", got="--project alone", allowed="--project, --location, --cluster", fix="add both")  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    api = connect(kubeconfig)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    cluster, lock = Cluster(), threading.Lock()
    watchers = [Watcher(kind, api, cluster, lock) for kind in KINDS]
    for watcher in watchers:
        watcher.start()
    backlog = Backlog(uri) if (uri := os.environ.get(ENV_DATABASE, "")) else None
    if backlog:
        backlog.start()
    exporter = Exporter(cluster, lock, Jobs(events) if events else None, time.time, backlog)
    exporter.newest.serve(port)
    lease = Lease(client.CoordinationV1Api(api), NAMESPACE_MONITORING) if project else None
    writer = cloud_writer(project, location, cluster_name) if project else None
    run(exporter, watchers, lease, writer, told, stop, every_s)
    if backlog:
        backlog.close()


def run(
    exporter: Exporter,
    watchers: Sequence[Watcher],
    lease: Lease | None,
    writer: CloudWriter | None,
    told: Path | None,
    stop: threading.Event,
    every_s: float,
) -> None:
    # A pass before the first lists would say that nothing is pending and no node exists.
    while not all(w.ready.is_set() for w in watchers) and not stop.wait(0.1):
        pass
    for _ in itertools.count():
        if stop.is_set():
            break
        samples, happened = exporter.gather(), exporter.lines()
        if lease is None or _mine(lease):
            lines.append(told, happened)
            if writer:
                writer.write(samples)
        stop.wait(every_s)
    for watcher in watchers:
        watcher.close()
    if lease and _mine(lease):
        lease.release()


def _mine(lease: Lease) -> bool:
    """Whoever cannot ask must not write: two writers would be refused each other's points."""
    try:
        return lease.held()
    except (ApiException, OSError) as error:
        LOG.warning("lease: %s", error)
        return False


def connect(kubeconfig: str) -> client.ApiClient:
    try:
        if kubeconfig:
            return config.new_client_from_config(kubeconfig)
        config.load_incluster_config()
        return client.ApiClient()
    except config.ConfigException as error:
        raise Unjudged(f"no cluster to watch: {error}; give --kubeconfig, or run in a pod") from error


def cloud_writer(project: str, location: str, cluster_name: str) -> CloudWriter:
    from google.cloud import monitoring_v3

    return CloudWriter(monitoring_v3.MetricServiceClient(), project, location, cluster_name)
