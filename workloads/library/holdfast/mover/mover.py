"""One step: look at the jobs that may be moved, move those whose policy asks for it, announce each
move.

A step of the mover that holds the lease. Guarantee: a job is touched when its policy moves it and
at no other time, and each request leaves it able to go on; without a mover it stays where it is.
"""

# Why it is so: infra/decisions/0058, infra/decisions/0059; why Kueue does not do it:
# infra/decisions/0113.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.clients.api import ApiError
from holdfast.controllers.controller_log import logger
from holdfast.ledger.events import Event
from holdfast.ledger.progress import done_h
from holdfast.mover import patches
from holdfast.mover.cluster_api import MAX_MESSAGE, ClusterApi
from holdfast.mover.movable_jobs import Movable, movables
from holdfast.place.plan import REACTION_S, Standing
from holdfast.vocabulary.machines import MACHINE_TYPES

LOG = logger("move")
# A plan that cannot be read is announced once for each version of the object, and no more than this
# many are held.
REMEMBERED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Of one job: how many there are, how many have a node, what GPU they ask for."""

    known: int = 0
    placed: int = 0
    accelerator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the watches know at this moment."""

    pods: Mapping[str, Pods]
    """Uid of a Job or JobSet -> the pods that it controls."""
    spot_machines: Iterable[str]
    """Machine types of the Spot nodes that run, as often as there are such nodes."""
    waiting_for_spot: Iterable[str]
    """GPUs of the pods that wait for a Spot node."""
    events: Callable[[Movable], Iterable[Event]]
    """Of a job, the newest ones."""


@dataclass(slots=True)
class SpotSeen:
    """What the cluster itself shows of Spot: of each GPU, whether it could be had, and since when.

    A cluster only sees the demand of its jobs. Spot counts as there while a Spot node of that GPU
    runs and no pod waits for one; without such a question it counts as gone, and a job stays on
    on-demand rather than pay for a guess.
    """

    since_s: dict[str, float] = field(default_factory=dict[str, float])
    """GPU -> since when it counts as there."""

    def look(self, machine_types: Iterable[str], waiting_for: Iterable[str], now_s: float) -> None:
        """machine_types: of the Spot nodes that run; waiting_for: GPUs of the pods that wait for a
        Spot node.
        """
        there = {
            MACHINE_TYPES[name].accelerator for name in machine_types if name in MACHINE_TYPES
        } - set(waiting_for)
        for gone in self.since_s.keys() - there:
            del self.since_s[gone]
        for accelerator in there:
            self.since_s.setdefault(accelerator, now_s)

    def up_for_h(self, accelerator: str, now_s: float) -> float | None:
        """None: not there."""
        since_s = self.since_s.get(accelerator)
        return None if since_s is None else (now_s - since_s) / 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    job: Movable
    at_s: float
    source: Standing
    to: Standing
    slack_h: float

    @property
    def reason(self) -> str:
        if self.to is Standing.ON_DEMAND:
            return f"{self.slack_h:.2f} h of slack are left, too few to go on {self._where}"
        return (
            f"{self.slack_h:.2f} h of slack are left, and Spot has been there long enough to pay"
            " for the move"
        )

    @property
    def _where(self) -> str:
        if self.source is not Standing.WAITING:
            return f"on {self.source.value}"
        return f"waiting for {'Spot' if self.job.plan.cheaper is Standing.SPOT else 'flex-start'}"


@dataclass(slots=True)
class Mover:
    api: ClusterApi
    spot: SpotSeen = field(default_factory=SpotSeen)
    _refused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def step(self, seen: Seen, now_s: float) -> list[Move]:
        """The moves that were made. A refused request is tried again in the next step."""
        self.spot.look(seen.spot_machines, seen.waiting_for_spot, now_s)
        jobs, unread = movables(*self.api.read())
        for meta, why in unread:
            self._complain(
                meta["uid"], meta["resourceVersion"], f"{meta['name']} is not moved: {why}"
            )
        return [move for job in jobs if (move := self._moved(job, seen, now_s))]

    def _moved(self, job: Movable, seen: Seen, now_s: float) -> Move | None:
        move = self.judge(job, seen, now_s)
        if job.stranded:
            self._mended(job)
            return None
        if self._unfinished(job):
            self._released(job)
            return None
        if move is None or not self._patched(
            job, patches.to_queue(job, _queue(job, move.to)), "moved"
        ):
            return None
        self._released(job)
        self.api.announce(
            job, "PlacementMoved", f"{move.source.value} to {move.to.value}: {move.reason}", now_s
        )
        return move

    def judge(self, job: Movable, seen: Seen, now_s: float) -> Move | None:
        """What the policy asks for now; None: to stay."""
        pods = seen.pods.get(job.uid, Pods())
        at = standing(job, pods)
        # Decided as if it were later already: what is decided now takes that long to happen.
        now_h = (now_s - job.created_s + REACTION_S) / 3_600
        done = done_h(seen.events(job))
        # Nothing shows whether flex-start could be had: a job that gave it up does not come back.
        spot = job.plan.cheaper is Standing.SPOT
        up_for_h = self.spot.up_for_h(pods.accelerator, now_s) if spot else None
        slack_h = job.plan.slack_h(now_h, done)
        to = job.plan.move(
            at,
            now_h=now_h,
            done_h=done,
            up=at is job.plan.cheaper or up_for_h is not None,
            up_for_h=up_for_h or 0.0,
        )
        # Waiting in its queue is how the cheaper one is requested.
        if to is None or (to is job.plan.cheaper and at is Standing.WAITING):
            return None
        return Move(job=job, at_s=now_s, source=at, to=to, slack_h=slack_h)

    def _mended(self, job: Movable) -> None:
        """Kueue creates the Workload again from what the job has now; of a selector alone it takes
        no notice.
        """
        if (
            self._patched(job, patches.as_it_was(job), "mended")
            and job.workload
            and not job.workload.leaving
        ):
            self.api.delete(job.workload.path)

    def _patched(self, job: Movable, ops: patches.Patch, done: str) -> bool:
        try:
            self.api.patch(job.path, ops)
        except ApiError as error:
            # Refused: the job has changed meanwhile, or may not be changed so.
            if not 400 <= error.status < 500:
                raise
            self._complain(
                job.uid, job.version, f"{job.name} was not {done}: {str(error)[:MAX_MESSAGE]}"
            )
            return False
        return True

    def _unfinished(self, job: Movable) -> bool:
        """A mover died after its patch: the job was started again where it had been, with the other
        queue's name.
        """
        return bool(job.workload and job.workload.admitted and job.workload.queue != job.queue)

    def _released(self, job: Movable) -> None:
        """What is admitted holds the job where it was; what waits follows the job's label by
        itself.
        """
        if job.workload and job.workload.admitted and not job.workload.leaving:
            self.api.delete(job.workload.path)

    def _complain(self, uid: str, version: str, why: str) -> None:
        if (uid, version) not in self._refused and len(self._refused) < REMEMBERED:
            self._refused.add((uid, version))
            LOG.warning("%s", why)


def standing(job: Movable, pods: Pods) -> Standing:
    if job.queued_at == job.plan.on_demand_queue:
        return Standing.ON_DEMAND
    # A gang has no capacity until all its pods have a node.
    if pods.known and pods.placed == pods.known:
        return job.plan.cheaper
    return Standing.WAITING


def _queue(job: Movable, to: Standing) -> str:
    return job.plan.on_demand_queue if to is Standing.ON_DEMAND else job.plan.spot_queue
