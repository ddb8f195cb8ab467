"""Moves the jobs whose policy asks for it, and announces each move.

A step of the mover that holds the lease. Guarantee: a job is touched only when its policy moves it,
and each request leaves it able to go on; without a mover it stays where it is.
"""

# Why it is so: infra/decisions/0058, infra/decisions/0059; why Kueue does not do it:
# infra/decisions/0113.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.clients.api import ApiError
from holdfast.controllers.controller_log import get_logger
from holdfast.ledger.events import Event
from holdfast.ledger.progress import done_h
from holdfast.mover import patches
from holdfast.mover.cluster_api import MAX_MESSAGE, ClusterApi
from holdfast.mover.movable_jobs import Movable, list_movable_jobs
from holdfast.place.plan import REACTION_S, Standing
from holdfast.vocabulary.machines import MACHINE_TYPES

LOG = get_logger("move")
# A plan that cannot be read is announced once for each version of the object, for this many at
# most.
REMEMBERED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of one job: how many exist, how many have a node, what GPU they ask for."""

    total: int = 0
    placed: int = 0
    accelerator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of the cluster at this moment, as the watches know it."""

    pods: Mapping[str, Pods]
    """Uid of a Job or JobSet -> the pods that it controls."""
    spot_machines: Iterable[str]
    """Machine types of the running Spot nodes, one for each node."""
    waiting_for_spot: Iterable[str]
    """GPUs of the pods that wait for a Spot node."""
    events: Callable[[Movable], Iterable[Event]]
    """Returns the newest events of a job."""


@dataclass(slots=True)
class SpotAvailability:
    """Tracks for each GPU whether the cluster could get Spot, and since when.

    A cluster only sees the demand of its jobs. Spot counts as available while a Spot node of that
    GPU runs and no pod waits for one. Without demand it counts as unavailable, and a job stays on
    on-demand rather than pay for a guess.
    """

    since_s: dict[str, float] = field(default_factory=dict)
    """GPU -> time since when it counts as available."""

    def look(self, machine_types: Iterable[str], waiting_for: Iterable[str], now_s: float) -> None:
        """Updates the availability.

        `machine_types` are those of the running Spot nodes, `waiting_for` the GPUs of the pods that
        wait for a Spot node.
        """
        available: set[str] = set()
        for name in machine_types:
            if name in MACHINE_TYPES:
                available.add(MACHINE_TYPES[name].accelerator)
        available -= set(waiting_for)
        for accelerator in self.since_s.keys() - available:
            del self.since_s[accelerator]
        for accelerator in available:
            self.since_s.setdefault(accelerator, now_s)

    def up_for_h(self, accelerator: str, now_s: float) -> float | None:
        """Returns the hours since when it is available; None if it is not."""
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
    spot: SpotAvailability = field(default_factory=SpotAvailability)
    _complaints: set[tuple[str, str]] = field(default_factory=set)
    """Uid and version of the objects that were complained about."""

    def step(self, observation: Observation, now_s: float) -> list[Move]:
        """Moves jobs. Returns the moves; a refused request is tried again in the next step."""
        self.spot.look(observation.spot_machines, observation.waiting_for_spot, now_s)
        jobs, unreadable = list_movable_jobs(*self.api.read())
        for meta, reason in unreadable:
            message = f"{meta['name']} is not moved: {reason}"
            self._complain(meta["uid"], meta["resourceVersion"], message)
        moves: list[Move] = []
        for job in jobs:
            move = self._move(job, observation, now_s)
            if move:
                moves.append(move)
        return moves

    def _move(self, job: Movable, observation: Observation, now_s: float) -> Move | None:
        move = self.judge(job, observation, now_s)
        if job.is_stranded:
            self._repair(job)
            return None
        if self._is_unfinished(job):
            self._release(job)
            return None
        if move is None:
            return None
        patch = patches.to_queue(job, _find_queue(job, move.to))
        if not self._patch(job, patch, "moved"):
            return None
        self._release(job)
        message = f"{move.source.value} to {move.to.value}: {move.reason}"
        self.api.announce(job, "PlacementMoved", message, now_s)
        return move

    def judge(self, job: Movable, observation: Observation, now_s: float) -> Move | None:
        """Returns the move that the policy asks for now; None to stay."""
        pods = observation.pods.get(job.uid, Pods())
        source = find_standing(job, pods)
        # The decision is for the moment at which it will have taken effect.
        now_h = (now_s - job.created_s + REACTION_S) / 3_600
        progress_h = done_h(observation.events(job))
        up_for_h = None
        # Nothing shows whether flex-start is available: a job that left it does not come back.
        if job.plan.cheaper is Standing.SPOT:
            up_for_h = self.spot.up_for_h(pods.accelerator, now_s)
        is_cheaper_up = source is job.plan.cheaper or up_for_h is not None
        target = job.plan.move(
            source,
            now_h=now_h,
            done_h=progress_h,
            up=is_cheaper_up,
            up_for_h=up_for_h or 0.0,
        )
        if target is None:
            return None
        # Waiting in its queue is how the cheaper capacity is requested.
        if target is job.plan.cheaper and source is Standing.WAITING:
            return None
        return Move(
            job=job,
            at_s=now_s,
            source=source,
            to=target,
            slack_h=job.plan.slack_h(now_h, progress_h),
        )

    def _repair(self, job: Movable) -> None:
        """Restores the templates of a stranded job, and makes Kueue create its Workload again.

        Kueue does not notice a changed selector by itself.
        """
        if self._patch(job, patches.restore_original(job), "repaired"):
            self._delete_workload(job)

    def _patch(self, job: Movable, ops: patches.Patch, action: str) -> bool:
        """Returns whether the API server took the patch; a refusal is logged."""
        try:
            self.api.patch(job.path, ops)
        except ApiError as error:
            # A refusal means that the job has changed meanwhile, or may not be changed so.
            if not 400 <= error.status < 500:
                raise
            message = f"{job.name} was not {action}: {str(error)[:MAX_MESSAGE]}"
            self._complain(job.uid, job.version, message)
            return False
        return True

    def _is_unfinished(self, job: Movable) -> bool:
        """Returns whether a mover died after its patch.

        The job was started again where it had been, with the other queue's name.
        """
        workload = job.workload
        return bool(workload and workload.admitted and workload.queue != job.queue)

    def _release(self, job: Movable) -> None:
        """Deletes an admitted Workload, which holds the job where it was.

        One that waits follows the job's label by itself.
        """
        if job.workload and job.workload.admitted:
            self._delete_workload(job)

    def _delete_workload(self, job: Movable) -> None:
        if job.workload and not job.workload.leaving:
            self.api.delete(job.workload.path)

    def _complain(self, uid: str, version: str, message: str) -> None:
        key = (uid, version)
        if key not in self._complaints and len(self._complaints) < REMEMBERED:
            self._complaints.add(key)
            LOG.warning("%s", message)


def find_standing(job: Movable, pods: Pods) -> Standing:
    if job.current_queue == job.plan.on_demand_queue:
        return Standing.ON_DEMAND
    # A gang has no capacity until all its pods have a node.
    if pods.total and pods.placed == pods.total:
        return job.plan.cheaper
    return Standing.WAITING


def _find_queue(job: Movable, target: Standing) -> str:
    if target is Standing.ON_DEMAND:
        return job.plan.on_demand_queue
    return job.plan.spot_queue
