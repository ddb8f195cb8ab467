"""The exporter: gather, show, write. It changes nothing in the cluster but its own Lease."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.clients.api import connect
from holdfast.contract.environment import ENV_DATABASE
from holdfast.contract.errors import InputError
from holdfast.contract.roles import NAMESPACE_MONITORING
from holdfast.contract.values import between
from holdfast.exporter import lines, loop
from holdfast.exporter.backlog import Backlog
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.lease import Lease
from holdfast.exporter.prometheus import Newest
from holdfast.exporter.sample import Sample, sample
from holdfast.exporter.sources import Folder
from holdfast.exporter.watch import KINDS, QUEUED, Watcher
from holdfast.runtime import logs, shutdown

# What happened so long before the start may not have been published by the exporter before.
HANDOVER_S = 60.0


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
            found, running = list(self.cluster.samples(now)), self.cluster.running_since()
        if self._jobs:
            self._jobs.read(now)
            found += self._jobs.samples(now, running)
        if self._backlog:
            found += self._backlog.samples(now)
        found.append(sample("exporter_heartbeat_seconds", now))
        return found

    def lines(self) -> list[lines.Line]:
        """What the watches saw since the last pass."""
        with self._lock:
            return self.cluster.lines(self._clock())

    def begin_anew(self) -> None:
        with self._lock:
            self.cluster.begin_anew()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where a pass goes. None: not there."""

    lease: Lease | None = None
    writer: CloudWriter | None = None
    lines: Path | None = None
    """File of the node watcher's lines; None: standard output."""


def serve(
    project: str,
    location: str,
    cluster_name: str,
    events: Path | None,
    lines_file: Path | None,
    port: int,
    every_s: float,
    kubeconfig: str,
    teams: Sequence[str] = (),
) -> None:
    if project and not (location and cluster_name):
        raise InputError("cloud metrics need project, location and cluster", got="--project alone", allowed="--project, --location, --cluster", fix="add both")  # fmt: skip
    between("the port is out of range", port, 0, 65_535)
    between("the time between two passes is out of range", every_s, 0.1, 3_600.0)
    logs.info("start", "the exporter starts")
    stop = shutdown.of_process()
    api = connect(kubeconfig)
    backlog = Backlog(uri) if (uri := os.environ.get(ENV_DATABASE, "")) else None
    namespaces = loop.team_of(teams)
    reader = loop.cloud_logs(project, cluster_name, namespaces) if project and not events else None
    source = Folder(events) if events else reader
    cluster, lock = Cluster(namespaces=namespaces), threading.Lock()
    watchers = [Watcher(kind, api.client, cluster, lock) for kind in (*KINDS, *QUEUED)]
    exporter = Exporter(cluster, lock, Jobs(source, time.time() - HANDOVER_S) if source else None, time.time, backlog)
    exporter.newest.serve(port, in_pod=not kubeconfig)  # without one it is the pod's account that asks
    # With a kubeconfig and no project a person looks at a cluster.
    own = bool(project) or not kubeconfig
    outputs = Outputs(
        lease=Lease(api, NAMESPACE_MONITORING) if own else None,
        writer=cloud_writer(project, location, cluster_name) if project else None,
        lines=lines_file,
    )
    with loop.running([*watchers, backlog, reader]):
        loop.run(lambda: one_pass(exporter, outputs), watchers, outputs.lease, stop, every_s)


def one_pass(exporter: Exporter, outputs: Outputs) -> None:
    samples, lease = exporter.gather(), outputs.lease
    if lease is None or loop.leads(lease):
        exporter.newest.show(samples)
        lines.append(outputs.lines, exporter.lines())
        if outputs.writer:
            outputs.writer.write(samples)
    elif lease.recently_held:
        exporter.newest.show(samples)
    else:
        stand_by(exporter, outputs, lease)


def stand_by(exporter: Exporter, outputs: Outputs, lease: Lease) -> None:
    """Two that serve would count everything twice: what the other published until now is left out here."""
    exporter.newest.show(())
    if lease.heard:
        exporter.begin_anew()
        if outputs.writer:
            outputs.writer.begin_anew()


def cloud_writer(project: str, location: str, cluster_name: str) -> CloudWriter:
    from google.cloud import monitoring_v3

    return CloudWriter(monitoring_v3.MetricServiceClient(), project, location, cluster_name)
