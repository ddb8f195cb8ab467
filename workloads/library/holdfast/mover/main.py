"""The mover: moves and queues jobs again, ends pods on silent nodes, replaces broken ones, weighs
preemptions, writes receipts.

It publishes nothing: the exporter reads its lines, as it reads those of jobs.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.clients.api import Api, ApiError, connect
from holdfast.controllers import event_lines, loop
from holdfast.controllers.cluster_objects import SPOT
from holdfast.controllers.controller_log import logger
from holdfast.controllers.event_lines import Line
from holdfast.controllers.lease import MOVER, Lease
from holdfast.controllers.watch import KINDS, Watcher
from holdfast.cost.receipt import leave
from holdfast.mover import preemption_priority
from holdfast.mover.cluster_api import ClusterApi
from holdfast.mover.cluster_view import View, ending
from holdfast.mover.faulty_nodes import FaultyNodes
from holdfast.mover.mover import Move, Mover
from holdfast.mover.progress import Progress
from holdfast.mover.receipts import Receipts
from holdfast.mover.requeue import requeue
from holdfast.mover.silent_nodes import end_pods
from holdfast.runtime import logs, shutdown
from holdfast.support.errors import Unjudged
from holdfast.support.values import between
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, NAMESPACE_SERVING

LOG = logger("move")
WEIGH_EVERY_S = 30.0
# Disruption budgets are the exporter's.
WATCHED = ("nodes", "pods")


@dataclass(kw_only=True, slots=True)
class Process:
    api: Api
    view: View
    lock: threading.Lock
    progress: Progress
    mover: Mover
    receipts: Receipts
    faulty: FaultyNodes
    lease: Lease | None
    namespaces: Collection[str] = JOB_NAMESPACES
    clock: Callable[[], float] = time.time
    weighed_s: float = 0.0

    def one_pass(self) -> None:
        now = self.clock()
        self.progress.read(now)
        with self.lock:
            self.progress.forget_all_but(self.view.uids)
            self.view.passed(now)
            seen = self.view.seen(self.progress.events)
            nodes = dict(self.view.nodes)
            waits = self.view.without_node()
        if self.lease and not loop.leads(self.lease):
            return
        silent = [name for name, node in nodes.items() if node.silent]
        spot = {name: node for name, node in nodes.items() if node.capacity == SPOT}
        # An API server that does not answer stops no other act, and no receipt.
        acts: dict[str, Callable[[], object]] = {
            "nothing is moved": lambda: event_lines.write(map(_line, self.mover.step(seen, now))),
            "no pod of a silent node is ended": lambda: end_pods(
                self.api, silent, now, self.namespaces
            ),
            "no node is replaced": lambda: event_lines.write(self.faulty.step(spot, now)),
            "no job is queued again": lambda: requeue(self.api, waits, now, self.namespaces),
            "no priority is boosted": lambda: self._weigh(now),
        }
        for undone, act in acts.items():
            try:
                act()
            except (ApiError, Unjudged) as error:
                LOG.warning("%s in this pass: %s", undone, error)
        with self.lock:
            due = self.view.ended(now)
        for ended in due:
            self.receipts.order(ended)

    def _weigh(self, now_s: float) -> None:
        """What is at stake changes slowly, and the list of Workloads may be long."""
        if now_s - self.weighed_s < WEIGH_EVERY_S:
            return
        self.weighed_s = now_s
        preemption_priority.write(
            self.api, lambda uid: self.progress.held.get(uid, ()), now_s, self.namespaces
        )


def _line(move: Move) -> Line:
    return event_lines.moved(
        move.job.namespace, move.job.name, move.at_s, move.source.value, move.to.value, move.reason
    )


def serve(
    project: str,
    cluster_name: str,
    every_s: float,
    faulty_nodes_per_hour: int,
    kubeconfig: str,
    teams: Sequence[str] = (),
) -> None:
    """Until a signal. Raises Unjudged where no credentials let it read the event lines."""
    between("the time between two passes is out of range", every_s, 0.1, 3_600.0)
    between(
        "the number of nodes to replace in an hour is out of range", faulty_nodes_per_hour, 0, 60
    )
    logs.info("start", "the mover starts")
    stop = shutdown.of_process()
    api = connect(kubeconfig)
    namespaces = loop.team_of(teams)
    source = loop.cloud_logs(project, cluster_name, namespaces)
    view = View()
    lock = threading.Lock()

    def owner_of(namespace: str, pod: str) -> str:
        with lock:
            return view.owner_of(namespace, pod)

    kinds = [kind for kind in KINDS if kind.held in WATCHED]
    watchers = [Watcher(kind, api.client, view, lock) for kind in (*kinds, *ending(namespaces))]
    receipts = Receipts(source.of_job, partial(leave, api=api), namespaces)
    lease = Lease(api, NAMESPACE_MONITORING, MOVER)
    faulty = FaultyNodes(api, faulty_nodes_per_hour, namespaces=(*namespaces, NAMESPACE_SERVING))
    process = Process(
        api=api,
        view=view,
        lock=lock,
        progress=Progress(source, owner_of),
        mover=Mover(ClusterApi(api, namespaces)),
        receipts=receipts,
        faulty=faulty,
        lease=lease,
        namespaces=namespaces,
    )
    with loop.running([*watchers, receipts, source]):
        loop.run(process.one_pass, watchers, lease, stop, every_s)
