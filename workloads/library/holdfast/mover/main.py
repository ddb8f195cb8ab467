"""Runs the mover: moves, requeues, silent and faulty nodes, preemption priorities, receipts.

It publishes nothing: the exporter reads its lines, as it reads those of jobs.
"""

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from holdfast.clients.api import Api, ApiError, connect
from holdfast.controllers import event_lines, loop
from holdfast.controllers.cluster_objects import SPOT
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.event_lines import Line
from holdfast.controllers.lease import MOVER, Lease
from holdfast.controllers.watch import KINDS, Watcher
from holdfast.cost.receipt import leave
from holdfast.ledger.events import Event
from holdfast.mover import preemption_priority
from holdfast.mover.cluster_api import ClusterApi
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.mover.faulty_nodes import FaultyNodes
from holdfast.mover.gang_sizes import GangSizes
from holdfast.mover.idle_gangs import IdleGangs
from holdfast.mover.mover import Move, Mover, Observation
from holdfast.mover.progress import Progress
from holdfast.mover.receipts import Receipts
from holdfast.mover.requeue import requeue
from holdfast.mover.silent_nodes import end_pods
from holdfast.runtime import logs, shutdown
from holdfast.support.errors import Unjudged
from holdfast.support.values import between
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, NAMESPACE_SERVING

LOG = get_logger("move")
WEIGH_EVERY_S = 30.0
# The exporter watches disruption budgets.
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
    gangs: IdleGangs
    sizes: GangSizes
    lease: Lease | None
    namespaces: Collection[str] = JOB_NAMESPACES
    clock: Callable[[], float] = time.time
    weighed_s: float = 0.0

    def one_pass(self) -> None:
        now = self.clock()
        self.progress.read(now)
        with self.lock:
            self.progress.forget_all_but(self.view.uids)
            self.view.count_time(now)
            observation = self.view.observe(self.progress.events)
            nodes = dict(self.view.nodes)
            # Done without the lease too, because these lines are read only once.
            self.faulty.suspect(self.view.find_nodes(self.progress.take_wrong_pods()))
            waits = self.view.without_node()
        if self.lease and not loop.leads(self.lease):
            return
        with attempt("nothing is moved"):
            self._move(observation, now)
        with attempt("no pod of a silent node is ended"):
            silent = [name for name, node in nodes.items() if node.silent]
            end_pods(self.api, silent, now, self.namespaces)
        with attempt("no node is replaced"):
            spot = {name: node for name, node in nodes.items() if node.capacity == SPOT}
            event_lines.write(self.faulty.step(spot, now))
        with attempt("no job is queued again"):
            requeue(self.api, waits, now, self.namespaces)
        with attempt("no nodes are given back"):
            self.gangs.step(now, self.namespaces)
        with attempt("no job is stopped for its max_usd"):
            self.view.spending.act(self.api, now)
        with attempt("no gang gets another size"):
            self.sizes.step(now, self.namespaces)
        with attempt("no priority is boosted"):
            self._boost_priorities(now)
        with self.lock:
            ended_jobs = self.view.take_due_jobs(now)
        for job in ended_jobs:
            self.receipts.order(job)

    def _move(self, observation: Observation, now_s: float) -> None:
        moves = self.mover.step(observation, now_s)
        event_lines.write([_make_line(move) for move in moves])

    def _boost_priorities(self, now_s: float) -> None:
        """Writes boosts in some passes: work at stake grows slowly, and the list may be long."""
        if now_s - self.weighed_s < WEIGH_EVERY_S:
            return
        self.weighed_s = now_s
        preemption_priority.write_boosts(
            self.api,
            self._find_events,
            now_s,
            self.namespaces,
            self.sizes.shielded,
        )

    def _find_events(self, uid: str) -> Iterable[Event]:
        return self.progress.events_by_job.get(uid, ())


@contextmanager
def attempt(consequence: str) -> Generator[None]:
    """Logs a failing API call, which must not block the other actions or receipts."""
    try:
        yield
    except (ApiError, Unjudged) as error:
        LOG.warning("%s in this pass: %s", consequence, error)


def _make_line(move: Move) -> Line:
    return event_lines.make_move_line(
        move.job.namespace,
        move.job.name,
        move.at_s,
        source=move.source.value,
        capacity=move.to.value,
        reason=move.reason,
    )


def serve(
    project: str,
    cluster_name: str,
    every_s: float,
    faulty_nodes_per_hour: int,
    kubeconfig: str,
    teams: Sequence[str] = (),
) -> None:
    """Runs until a signal. Raises InputError for bad options.

    Raises Unjudged if there is no cluster, or no credentials to read the event lines.
    """
    between("the time between two passes is out of range", every_s, 0.1, 3_600.0)
    between(
        "the number of nodes to replace in an hour is out of range", faulty_nodes_per_hour, 0, 60
    )
    logs.use_json()
    logs.info("start", "the mover starts")
    stop = shutdown.of_process()
    api = connect(kubeconfig)
    namespaces = loop.read_teams(teams)
    source = loop.connect_cloud_logs(project, cluster_name, namespaces)
    view = View()
    lock = threading.Lock()

    def find_owner(namespace: str, pod: str) -> str:
        with lock:
            return view.find_owner(namespace, pod)

    node_and_pod_kinds = [kind for kind in KINDS if kind.held in WATCHED]
    kinds = [*node_and_pod_kinds, *list_job_kinds(namespaces)]
    watchers = [Watcher(kind, api.client, view, lock) for kind in kinds]
    receipts = Receipts(source.of_job, partial(leave, api=api), namespaces)
    lease = Lease(api, NAMESPACE_MONITORING, MOVER)
    process = Process(
        api=api,
        view=view,
        lock=lock,
        progress=Progress(source, find_owner),
        mover=Mover(ClusterApi(api, namespaces)),
        receipts=receipts,
        faulty=FaultyNodes(
            api,
            faulty_nodes_per_hour,
            namespaces=(*namespaces, NAMESPACE_SERVING),
        ),
        gangs=IdleGangs(api),
        sizes=GangSizes(api),
        lease=lease,
        namespaces=namespaces,
    )
    with loop.running([*watchers, receipts, source]):
        loop.run(process.one_pass, watchers, lease, stop, every_s)
