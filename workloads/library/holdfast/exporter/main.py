"""The exporter's loop: gather, show, write, sleep. First signal ends it in order."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from holdfast.clients.kubernetes_api import connect
from holdfast.contract.environment import ENV_DATABASE
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.roles import NAMESPACE_MONITORING
from holdfast.contract.values import between
from holdfast.exporter import lines
from holdfast.exporter.backlog import Backlog
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.cluster import Cluster
from holdfast.exporter.ends import Ended
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.lease import Lease
from holdfast.exporter.lines import Line
from holdfast.exporter.log import logger
from holdfast.exporter.logs import CloudLogs
from holdfast.exporter.node_usage import NodeUsage
from holdfast.exporter.prometheus import Newest
from holdfast.exporter.receipts import Receipts, leaver
from holdfast.exporter.sample import Sample, sample
from holdfast.exporter.sources import Folder, Source
from holdfast.exporter.watch import ENDING, KINDS, QUEUED, Watcher
from holdfast.mover.cluster_api import KubernetesApi
from holdfast.mover.mover import Mover
from holdfast.mover.mover import samples as mover_samples
from holdfast.runtime import logs

LOG = logger("pass")
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
        mover: Mover | None = None,
    ) -> None:
        self.cluster, self._lock, self._jobs, self._clock, self._backlog = cluster, lock, jobs, clock, backlog
        self._mover = mover
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
        if self._mover:
            found += [sample(metric, value, **labels) for metric, value, labels in mover_samples(self._mover)]
        found.append(sample("exporter_heartbeat_seconds", now))
        return found

    def lines(self) -> list[lines.Line]:
        """What the watches saw since the last pass."""
        with self._lock:
            return self.cluster.lines(self._clock())

    def ended(self) -> list[tuple[Ended, NodeUsage | None]]:
        with self._lock:
            return self.cluster.ended(self._clock())

    def move(self) -> list[Line]:
        """What was moved now. An API server that does not answer moves nothing, and is no reason to publish nothing."""
        if not (self._mover and self._jobs):
            return []
        with self._lock:
            seen = self.cluster.seen(self._jobs.events)
        try:
            made = self._mover.step(seen, self._clock())
        except (ApiException, HTTPError, OSError) as error:
            LOG.warning("nothing is moved in this pass: %s", error)
            return []
        return [lines.moved(m.job.namespace, m.job.name, m.at_s, m.source.value, m.to.value, m.reason) for m in made]

    def begin_anew(self) -> None:
        with self._lock:
            self.cluster.begin_anew()
        if self._mover:
            self._mover.begin_anew()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where a pass goes. None: not there."""

    lease: Lease | None = None
    writer: CloudWriter | None = None
    lines: Path | None = None
    """File of the node watcher's lines; None: standard output."""
    receipts: Receipts | None = None


def stopped_by_signals() -> threading.Event:
    """Set by SIGTERM or Ctrl-C; to be called in the main thread.

    No handler sets it: one that runs while the main thread is inside `Event.wait` waits for the lock that this very
    thread holds, and the process never ends (seen twice in 800 stops of a busy process).
    """
    stop = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # required by set_wakeup_fd
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)  # without a handler nothing is written to the pipe

    def wait() -> None:
        os.read(reader, 1)
        stop.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return stop


def serve(
    project: str,
    location: str,
    cluster_name: str,
    events: Path | None,
    lines_file: Path | None,
    port: int,
    every_s: float,
    kubeconfig: str,
) -> None:
    if project and not (location and cluster_name):
        raise InputError("cloud metrics need a place", got="--project alone", allowed="--project, --location, --cluster", fix="add both")  # fmt: skip
    between("the port is out of range", port, 0, 65_535)
    between("the time between two passes is out of range", every_s, 0.1, 3_600.0)
    logs.info("start", "the exporter starts")
    stop = stopped_by_signals()
    api = connect(kubeconfig)
    backlog = Backlog(uri) if (uri := os.environ.get(ENV_DATABASE, "")) else None
    log_view = cloud_logs(project, cluster_name) if project and not events else None
    source: Source | None = Folder(events) if events else log_view
    receipts = Receipts(source, leaver(api)) if source else None
    cluster, lock = Cluster(), threading.Lock()
    watchers = [Watcher(kind, api, cluster, lock) for kind in (*KINDS, *QUEUED, *(ENDING if receipts else ()))]
    threads = [*watchers, *(t for t in (backlog, log_view, receipts) if t)]
    for thread in threads:
        thread.start()
    jobs = Jobs(source, time.time() - HANDOVER_S) if source else None
    # With a kubeconfig and no project it is somebody's own look at a cluster.
    own = bool(project) or not kubeconfig
    mover = Mover(KubernetesApi(api)) if jobs and own else None
    exporter = Exporter(cluster, lock, jobs, time.time, backlog, mover)
    exporter.newest.serve(port, in_pod=not kubeconfig)  # without one it is the pod's account that asks
    outputs = Outputs(
        lease=Lease(client.CoordinationV1Api(api), NAMESPACE_MONITORING) if own else None,
        writer=cloud_writer(project, location, cluster_name) if project else None,
        lines=lines_file,
        receipts=receipts,
    )
    run(exporter, watchers, outputs, stop, every_s)
    for thread in threads:
        thread.close()


def run(
    exporter: Exporter, watchers: Sequence[Watcher], outputs: Outputs, stop: threading.Event, every_s: float
) -> None:
    # A pass before the first lists would show that nothing is pending and no node exists.
    while not all(w.ready.is_set() for w in watchers) and not stop.wait(0.1):
        pass
    while not stop.is_set():
        guarded_pass(exporter, outputs)
        stop.wait(every_s)
    if outputs.lease and _is_leader(outputs.lease):
        outputs.lease.release()


def guarded_pass(exporter: Exporter, outputs: Outputs) -> None:
    """The loop's last resort: a fault of ours must not blind every alert until somebody deploys.

    The heartbeat stands still meanwhile, so HoldfastMonitoringSilent pages.
    """
    try:
        one_pass(exporter, outputs)
    except Exception:
        LOG.exception("a pass failed; the next one begins as usual")


def one_pass(exporter: Exporter, outputs: Outputs) -> None:
    samples, lease = exporter.gather(), outputs.lease
    if lease is None or _is_leader(lease):
        exporter.newest.show(samples)
        lines.append(outputs.lines, [*exporter.lines(), *exporter.move()])
        if outputs.writer:
            outputs.writer.write(samples)
        if outputs.receipts:
            for ended, node_usage in exporter.ended():
                outputs.receipts.order(ended, node_usage)
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


def _is_leader(lease: Lease) -> bool:
    """Whoever cannot ask must not write: two writers would be refused each other's points."""
    try:
        return lease.held()
    except (ApiException, OSError) as error:
        LOG.warning("lease: %s", error)
        return False


def cloud_writer(project: str, location: str, cluster_name: str) -> CloudWriter:
    from google.cloud import monitoring_v3

    return CloudWriter(monitoring_v3.MetricServiceClient(), project, location, cluster_name)


def cloud_logs(project: str, cluster_name: str) -> CloudLogs:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/logging.read"])
    except GoogleAuthError as error:
        raise Unjudged(f"no credentials for Cloud Logging: {error}") from error
    return CloudLogs(AuthorizedSession(credentials), project, cluster_name)
