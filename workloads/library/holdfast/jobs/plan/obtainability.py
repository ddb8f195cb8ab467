"""Asks Google how obtainable the machines of a job are now, in one line for each capacity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clients.api import Object
from holdfast.clients.capacity_advice import MODELS, Advice, Ask, Request
from holdfast.jobs.plan import pricing
from holdfast.jobs.plan.pricing import PurchasePlan
from holdfast.platform import Platform
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import GOOD_RATING, POOR_RATING, Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType

JOB_KINDS = ("Job", "JobSet")
FEWEST_WARNED = 8
"""Nodes from which `submit` warns by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Obtainability:
    """The machines of a job on one capacity, and Google's answer."""

    job: str
    capacity: Capacity
    nodes: int
    machine_type: str
    advice: Advice | None
    problem: str = ""
    """The reason for which there is no answer."""

    def text(self) -> str:
        """Return `4 g2-standard-48 spot: 0.9, 1 h`, or why that is not known."""
        noun = f"{self.nodes} {self.machine_type} {self.capacity.value}"
        answer = self.advice.text() if self.advice else f"not known ({self.problem})"
        return f"{noun}: {answer}"

    def is_below(self, limit: float) -> bool:
        return self.advice is not None and self.advice.obtainability < limit


def make_request(
    pod_spec: Object,
    pods: int,
    platform: Platform,
    capacity: Capacity,
) -> Request | None:
    """Return the machines that the pods need; None if they have no GPUs, or none is obtained."""
    gpus = pricing.count_gpus(pod_spec)
    sold_as = capacity.product
    if not gpus or sold_as not in MODELS:
        return None
    machines: list[str] = []
    for pool in pricing.select_pools(pod_spec, platform, capacity):
        if pool.capacity is capacity and pool.machine_type not in machines:
            machines.append(pool.machine_type)
    if not machines:
        provisionable = pricing.list_provisionable(pod_spec, platform, capacity)
        machines = [machine.name for machine in provisionable[:1]]
    if not machines:
        return None
    return request_machines(platform, machines, sold_as, pods, gpus)


def request_machines(
    platform: Platform,
    machine_types: Sequence[str],
    capacity: Capacity,
    pods: int,
    gpus: int,
) -> Request:
    """Return the machines that `pods` pods of `gpus` GPUs need; a pod is on one machine."""
    return Request(
        project=platform.project,
        region=platform.region,
        zones=platform.zones,
        machine_types=machine_types,
        size=max(1, MACHINE_TYPES[machine_types[0]].count_for(pods, gpus)),
        capacity=capacity,
    )


def list_requests(plan: PurchasePlan, platform: Platform) -> list[tuple[str, Request]]:
    """Return the name of each job of a plan, with the machines that it needs."""
    requests: list[tuple[str, Request]] = []
    purchases = {purchase.job: purchase for purchase in plan.purchases}
    for document in plan.documents:
        purchase = purchases.get(document["metadata"]["name"])
        if purchase is None or document["kind"] not in JOB_KINDS:
            continue
        pod_spec = find_pod_spec(document)
        request = make_request(pod_spec, purchase.pods, platform, purchase.capacity)
        if request is not None:
            requests.append((purchase.job, request))
    return requests


def find_pod_spec(document: Object) -> Object:
    """Return the pod spec of a Job, or of the first group of a JobSet."""
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]


def select_large(requests: list[tuple[str, Request]]) -> list[tuple[str, Request]]:
    """Return the requests that have enough nodes to wait long."""
    return [(job, request) for job, request in requests if request.size >= FEWEST_WARNED]


def find_all(requests: Sequence[tuple[str, Request]], ask: Ask) -> list[Obtainability]:
    return [find(job, request, ask) for job, request in requests]


def find(job: str, request: Request, ask: Ask) -> Obtainability:
    """Ask, and keep what went wrong as a text."""
    answer = Obtainability(
        job=job,
        capacity=request.capacity,
        nodes=request.size,
        machine_type=request.machine_types[0],
        advice=None,
    )
    try:
        return replace(answer, advice=ask(request))
    except Unjudged as error:
        return replace(answer, problem=str(error).partition("\n")[0])


def make_body(answer: Obtainability) -> dict[str, Any]:
    """Return an answer as JSON; numbers are null if they are not known."""
    advice = answer.advice
    return {
        "capacity": answer.capacity.value,
        "machine_type": answer.machine_type,
        "nodes": answer.nodes,
        "obtainability": advice.obtainability if advice else None,
        "uptime_seconds": advice.uptime_s if advice else None,
        "zones": list(advice.zones) if advice else [],
        "problem": answer.problem or None,
    }


def list_alternatives(
    pod_spec: Object,
    pods: int,
    platform: Platform,
    current: Capacity,
) -> dict[Capacity, Request]:
    """Return the machines that a job waits for, and those of its GPU on the other capacity."""
    request_of_job = make_request(pod_spec, pods, platform, current)
    if request_of_job is None:
        return {}
    requests = {request_of_job.capacity: request_of_job}
    machine = MACHINE_TYPES[request_of_job.machine_types[0]]
    can_provision = bool(platform.auto_provisioning.get(machine.accelerator))
    for capacity in MODELS:
        if capacity in requests:
            continue
        machines = _list_alike(machine, platform, capacity)
        if capacity is Capacity.FLEX_START and can_provision and not machines:
            machines = list(request_of_job.machine_types)
        if machines:
            requests[capacity] = replace(
                request_of_job,
                machine_types=machines,
                capacity=capacity,
            )
    return requests


def _list_alike(machine: MachineType, platform: Platform, capacity: Capacity) -> list[str]:
    """Return the machine types of a capacity with the same number of the same GPUs."""
    machine_types: list[str] = []
    for pool in platform.pools:
        if pool.capacity is not capacity or pool.accelerator != machine.accelerator:
            continue
        if pool.gpus_per_node == machine.gpus and pool.machine_type not in machine_types:
            machine_types.append(pool.machine_type)
    return machine_types


def find_better(
    job: str,
    requests: Mapping[Capacity, Request],
    current: Capacity,
    ask: Ask,
) -> str:
    """Return a sentence on the capacity that a job waits for, and on a better one; or nothing.

    The sentence names the zones in which Google would place the machines.
    """
    sold_as = current.product
    if sold_as not in requests:
        return ""
    request_of_job = requests[sold_as]
    answer_of_job = find(job, request_of_job, ask)
    text = answer_of_job.text()
    advice = answer_of_job.advice
    if advice is None:
        return text
    zones = advice.zones
    if zones and len(zones) < len(request_of_job.zones):
        text += f", best in {', '.join(zones)}"
    if advice.obtainability >= GOOD_RATING:
        return text
    better: list[str] = []
    for capacity, request in requests.items():
        if capacity is sold_as:
            continue
        other = find(job, request, ask)
        if other.advice and other.advice.obtainability > advice.obtainability:
            better.append(other.text())
    if better:
        text += f"; better: {', '.join(better)}"
    return text


def list_refusals(answers: Sequence[Obtainability], limit: float) -> list[str]:
    """Return a line for each job below `limit`. An unknown obtainability refuses nothing."""
    refusals: list[str] = []
    for answer in answers:
        if answer.is_below(limit):
            bound = f"below --min-obtainability {limit:g}"
            refusals.append(f"{answer.job}: {answer.text()}, {bound}")
    return refusals


def list_warnings(answers: Sequence[Obtainability]) -> list[str]:
    """Return a line for each job whose nodes are hard to obtain, and for each unknown answer."""
    warnings: list[str] = []
    for answer in answers:
        if answer.advice is None:
            warnings.append(f"obtainability of {answer.job}: {answer.text()}")
        elif answer.nodes >= FEWEST_WARNED and answer.is_below(POOR_RATING):
            warnings.append(
                f"{answer.job} will probably wait: obtainability of {answer.text()};"
                " `holdfast place` compares"
            )
    return warnings
