"""Compares Google's ratings of how obtainable machines are with the machines that came.

Asks only for machines for which pods wait, and in a thread of its own. Guarantee: a question that
Google does not answer is one line of the log, and delays no pass.
"""

# Why it is so: infra/decisions/0178.

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.clients import capacity_advice
from holdfast.clients.api import Api
from holdfast.clients.capacity_advice import MAX_SIZE, MODELS, Advice, Ask, Request
from holdfast.controllers.cluster_objects import Node, Pod
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.event_lines import Line, make_rating_line
from holdfast.platform import Platform
from holdfast.platform.cluster import read_published
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import RATING_WINDOW_S, Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES

LOG = get_logger("rate-machines")
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RATED = {capacity.value: capacity for capacity in MODELS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of the platform, any of which holds a pod."""

    capacity: Capacity
    machine_types: tuple[str, ...]
    limit: int
    """The platform has at most this number of them."""

    def select(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        selected: dict[str, Node] = {}
        for name, node in nodes.items():
            if node.capacity == self.capacity.value and node.machine_type in self.machine_types:
                selected[name] = node
        return selected


class Trial:
    """A rating, and the machines that have come since."""

    def __init__(self, asked_s: float, size: int, answer: Future[Advice]) -> None:
        self.asked_s = asked_s
        self.size = size
        self.answer = answer
        self.born_s: dict[str, float] = {}
        """Name of a node -> time of its creation."""

    def note(self, nodes: Mapping[str, Node]) -> None:
        """Keeps the nodes that are new: one of them may be lost before the trial ends."""
        for name, node in nodes.items():
            if node.born_s >= self.asked_s:
                self.born_s[name] = node.born_s

    @property
    def came_s(self) -> float:
        """Seconds until all machines had come; infinite before."""
        if len(self.born_s) < self.size:
            return math.inf
        times_s = sorted(self.born_s.values())
        return times_s[self.size - 1] - self.asked_s


class Ratings:
    def __init__(
        self,
        ask: Ask,
        find_platform: Callable[[], Platform],
        every_s: float,
    ) -> None:
        """`find_platform` raises InputError or Unjudged if there is none."""
        self.ask = ask
        self.find_platform = find_platform
        self.every_s = every_s
        self.problem = ""
        """The newest reason for which there was no rating; it is logged once."""
        self.trials: dict[Machines, Trial] = {}
        self._asked_s: dict[Machines, float] = {}
        self._platform: Platform | None = None
        self._platform_read_s = -math.inf
        self._executor = ThreadPoolExecutor(1, "ratings")

    def observe(
        self, pods: Iterable[Pod], nodes: Mapping[str, Node], now_s: float
    ) -> Iterable[Line]:
        """Asks for the machines for which pods wait. Yields a line for each trial that ended."""
        waiting: list[Pod] = []
        for pod in pods:
            if pod.waits_since_s and pod.gpus and pod.capacity in RATED:
                waiting.append(pod)
        if waiting:
            self._read_platform(now_s)
        needs = self._count_needs(waiting)
        for machines in list(self.trials):
            yield from self._settle(machines, nodes, now_s, still_needed=machines in needs)
        for machines, size in needs.items():
            self._begin(machines, size, nodes, now_s)

    def forget(self) -> None:
        """Drops the trials: another exporter writes the lines."""
        self.trials.clear()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _read_platform(self, now_s: float) -> None:
        if now_s - self._platform_read_s < self.every_s:
            return
        self._platform_read_s = now_s
        try:
            self._platform = self.find_platform()
        except (InputError, Unjudged) as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        problem = str(error).partition("\n")[0]
        if problem != self.problem:
            LOG.warning("machines are not rated: %s", problem)
        self.problem = problem

    def _count_needs(self, waiting: Iterable[Pod]) -> dict[Machines, int]:
        if self._platform is None:
            return {}
        pods = Counter[tuple[Machines, int]]()
        for pod in waiting:
            machines = find_machines(pod, self._platform)
            if machines is not None:
                pods[machines, pod.gpus] += 1
        needs = Counter[Machines]()
        for (machines, gpus), count in pods.items():
            machine = MACHINE_TYPES[machines.machine_types[0]]
            needs[machines] += machine.count_for(count, gpus)
        return needs

    def _begin(
        self, machines: Machines, size: int, nodes: Mapping[str, Node], now_s: float
    ) -> None:
        asked_s = self._asked_s.get(machines, -math.inf)
        if self._platform is None or now_s - asked_s < self.every_s:
            return
        # Machines beyond the platform's own limit cannot come, whatever Google could provide.
        free = machines.limit - len(machines.select(nodes))
        size = min(size, free, MAX_SIZE)
        if size < 1:
            return
        request = Request(
            project=self._platform.project,
            region=self._platform.region,
            zones=self._platform.zones,
            machine_types=machines.machine_types,
            size=size,
            capacity=machines.capacity,
        )
        self._asked_s[machines] = now_s
        answer = self._executor.submit(self.ask, request)
        self.trials[machines] = Trial(now_s, size, answer)

    def _settle(
        self,
        machines: Machines,
        nodes: Mapping[str, Node],
        now_s: float,
        *,
        still_needed: bool,
    ) -> Iterable[Line]:
        trial = self.trials[machines]
        trial.note(machines.select(nodes))
        if not trial.answer.done():
            return
        # Also if an unknown error ends this pass.
        del self.trials[machines]
        try:
            advice = trial.answer.result()
        except Unjudged as error:
            self._report(error)
            return
        self.problem = ""
        seconds = min(trial.came_s, now_s - trial.asked_s)
        is_over = math.isfinite(trial.came_s) or seconds >= RATING_WINDOW_S
        if is_over:
            yield make_rating_line(
                machines.machine_types[0],
                machines.capacity.value,
                advice.obtainability,
                trial.asked_s,
                trial.size,
                len(trial.born_s),
                seconds,
            )
        elif still_needed:
            self.trials[machines] = trial


def find_machines(pod: Pod, platform: Platform) -> Machines | None:
    """Returns the machines that a pod on Spot or flex-start waits for; None if none are known.

    They are those of matching node pools; without such a pool, the smallest machine that
    auto-provisioning may create for the pod.
    """
    capacity = RATED[pod.capacity]
    machine_types: dict[str, int] = {}
    for pool in platform.pools:
        is_selected = pod.pool_class in ("", pool.pool_class or pool.name)
        has_gpus = pool.accelerator == pod.accelerator and pool.gpus_per_node >= pod.gpus
        if is_selected and has_gpus and pool.capacity is capacity:
            count = machine_types.get(pool.machine_type, 0)
            machine_types[pool.machine_type] = count + pool.max_nodes
    if not machine_types and capacity is Capacity.FLEX_START and not pod.pool_class:
        machine_types = _list_provisionable(pod, platform)
    if not machine_types:
        return None
    return Machines(
        capacity=capacity,
        machine_types=tuple(machine_types),
        limit=sum(machine_types.values()),
    )


def _list_provisionable(pod: Pod, platform: Platform) -> dict[str, int]:
    """Returns the smallest machine of the pod's GPU, and how many the platform may have."""
    most_gpus = platform.auto_provisioning.get(pod.accelerator, 0)
    fitting: list[tuple[int, str]] = []
    for machine in MACHINE_TYPES.values():
        if machine.accelerator != pod.accelerator:
            continue
        if pod.gpus <= machine.gpus <= most_gpus:
            fitting.append((machine.gpus, machine.name))
    if not fitting:
        return {}
    gpus, name = min(fitting)
    return {name: most_gpus // gpus}


def ask_as_account(request: Request) -> Advice:
    """Asks as the service account of the pod. Raises Unjudged without an answer."""
    return capacity_advice.ask(request, _find_token)


def _find_token() -> str:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request as TokenRequest

    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        credentials.refresh(TokenRequest())
    except GoogleAuthError as error:
        raise Unjudged(f"no credentials for Compute Engine: {error}") from error
    return str(credentials.token)


def read_platform(api: Api) -> Platform:
    """Reads the document in the cluster. Raises InputError or Unjudged if there is none."""
    platform = read_published(api)
    if platform is None:
        raise Unjudged(f"the cluster {api.cluster} has no platform document")
    return platform
