"""Builds Kueue's queues with the GPUs that each lends, and ComputeClasses with fallbacks."""

# Why it is so: infra/decisions/0063; which jobs select a ComputeClass: infra/decisions/0114.

from collections.abc import Iterator, Mapping

from holdfast.manifests.gpu_choices import list_gpu_choices
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.capacity import QUEUE_ANY, QUEUES, Capacity
from holdfast.vocabulary.kubernetes import (
    CLASSES_RECYCLE,
    COMPUTE_CLASS_API,
    DRIVER_LATEST,
    JOB_PRIORITIES,
    KUEUE_API,
    LABEL_PART_OF,
    LABEL_PROVISIONING_REQUEST,
    LABEL_TEAM,
    PART_OF,
    PROVISIONING_CLASS,
    PROVISIONING_CONTROLLER,
    RESIZE_REQUEST_DETAIL,
    api_group,
    name_job_priority,
)
from holdfast.vocabulary.machines import MACHINE_TYPES, is_sold
from holdfast.vocabulary.pools import (
    GPU_RESOURCE,
    JOB_ROLES,
    LABEL_ACCELERATOR,
    LABEL_COMPUTE_CLASS,
    LABEL_POOL_CLASS,
    STAYING,
    Pool,
    flex_selector,
)
from holdfast.vocabulary.roles import JOB_NAMESPACES

LentFlavor = tuple[Body, int]
"""A flavor, and the GPUs that a queue lends of it."""

# Time before the end of a flex-start node at which GKE looks for the next one and drains it.
RECYCLE_LEAD_S = 3_600
# After the last retry the job is deactivated for good. Kueue's default of three takes seven
# minutes: one capacity revoked and two bookings that expired. Ten take three hours, and each of
# them may wait a week in Google's queue.
RETRIES = {
    "backoffLimitCount": 10,
    "backoffBaseSeconds": 60,
    "backoffMaxSeconds": 1_800,
}


def objects(context: RenderContext) -> Iterator[Body]:
    flavors_by_queue = _flavors(context)
    for flavors in flavors_by_queue.values():
        for flavor, _ in flavors:
            yield flavor
    yield from _provisioning()
    yield from _job_priorities()
    for queue, flavors in flavors_by_queue.items():
        if flavors:
            yield from _queues(context, queue, flavors)
    yield from _compute_classes(context)


def _queues(context: RenderContext, queue: str, flavors: list[LentFlavor]) -> Iterator[Body]:
    """Builds a ClusterQueue for each team, and a LocalQueue in each of the team's namespaces."""
    for team, shares in _share(context, flavors).items():
        name = f"{team}-{queue}" if team else queue
        namespaces = context.platform.team(team).namespaces if team else JOB_NAMESPACES
        limits = _list_limits(context, team) if team else {}
        yield _cluster_queue(
            name,
            shares,
            limits,
            queued=queue == "queued",
            team=team,
        )
        for namespace in namespaces:
            spec = {"clusterQueue": name}
            yield manifest(KUEUE_API, "LocalQueue", meta(queue, namespace), spec=spec)


def _list_limits(context: RenderContext, team: str) -> dict[str, int]:
    """Returns the most GPUs that a team uses in each queue, by accelerator or class of several."""
    limits = dict(context.platform.team(team).limits)
    for gpu_choice in list_gpu_choices(context.platform):
        bounds = [limits[kind] for kind in gpu_choice.accelerators if kind in limits]
        if bounds:
            limits[gpu_choice.name] = min(bounds)
    return limits


def _flavors(context: RenderContext) -> dict[str, list[LentFlavor]]:
    """Returns the flavors of each queue and the GPUs that each lends, from quotas and caps."""
    flavors: dict[str, list[LentFlavor]] = {}
    for queue in (*QUEUES.values(), QUEUE_ANY):
        flavors[queue] = []
    for name, (group, *_) in context.platform.classes.items():
        queue = QUEUES[group.capacity]
        gpus = context.platform.quota(name)
        if group.role not in JOB_ROLES or group.capacity not in (Capacity.SPOT, *STAYING):
            continue
        if gpus:
            labels = {LABEL_POOL_CLASS: name}
            # All flavors have the same label keys: JobSet adds them to its Jobs, and removes none
            # when a job changes its queue. With fewer keys, Kueue would lend GPUs of another kind
            # once those that the job asks for are all lent.
            if group.accelerator:
                labels[LABEL_ACCELERATOR] = group.accelerator
            flavor = _flavor(f"{queue}-{name}", labels, group.tolerations())
            flavors[queue].append((flavor, gpus))
    for accelerator in context.platform.auto_provisioning:
        # With the driver: a job that may be moved selects none itself, since on-demand machines get
        # theirs from their pool.
        labels = flex_selector(accelerator)
        shares = {
            "flex": context.flex_gpus(accelerator),
            "queued": context.queued_gpus(accelerator),
        }
        for queue, gpus in shares.items():
            if gpus:
                flavor = _flavor(f"{queue}-{accelerator}", labels, [])
                flavors[queue].append((flavor, gpus))
    for gpu_choice in list_gpu_choices(context.platform):
        labels = {LABEL_COMPUTE_CLASS: gpu_choice.name}
        flavor = _flavor(gpu_choice.name, labels, [])
        flavors[QUEUE_ANY].append((flavor, gpu_choice.quota(context.platform)))
    return flavors


def _share(context: RenderContext, flavors: list[LentFlavor]) -> dict[str, list[LentFlavor]]:
    """Returns the flavors and GPUs of each team; the key of the default team is empty.

    Each team is guaranteed its GPUs; beyond that the cohort lends. Where a flavor has less than its
    teams are guaranteed, they share it in proportion.
    """
    teams = context.platform.other_teams
    shares: dict[str, list[LentFlavor]] = {"": []}
    for team in teams:
        shares[team.name] = []
    for flavor, gpus in flavors:
        kind = flavor["spec"]["nodeLabels"].get(LABEL_ACCELERATOR, "")
        guaranteed = sum(team.quotas.get(kind, 0) for team in teams)
        shared = min(gpus, guaranteed)
        remainder = gpus
        for team in teams:
            quota = team.quotas.get(kind, 0)
            share = quota * shared // max(1, guaranteed)
            shares[team.name].append((flavor, share))
            remainder -= share
        shares[""].append((flavor, remainder))
    return shares


def _flavor(name: str, labels: dict[str, str], tolerations: list[dict[str, str]]) -> Body:
    spec: Body = {"nodeLabels": labels}
    if tolerations:
        spec["tolerations"] = tolerations
    return manifest(KUEUE_API, "ResourceFlavor", meta(name), spec=spec)


def _gpu_quota(flavor: Body, gpus: int, limits: Mapping[str, int]) -> Body:
    """Returns the quota that is guaranteed of a flavor.

    If its accelerator has a limit, the rest up to the limit may be borrowed.
    """
    quota: Body = {
        "name": GPU_RESOURCE,
        "nominalQuota": str(gpus),
    }
    labels = flavor["spec"]["nodeLabels"]
    kind = labels.get(LABEL_ACCELERATOR) or labels.get(LABEL_COMPUTE_CLASS, "")
    limit = limits.get(kind)
    if limit is not None:
        quota["borrowingLimit"] = str(max(0, limit - gpus))
    return quota


def _cluster_queue(
    name: str,
    flavors: list[LentFlavor],
    limits: Mapping[str, int],
    *,
    queued: bool,
    team: str,
) -> Body:
    flavor_quotas: list[Body] = []
    for flavor, gpus in flavors:
        quotas = [
            _gpu_quota(flavor, gpus, limits),
            {
                "name": "cpu",
                "nominalQuota": str(gpus * 100),
            },
            {"name": "memory", "nominalQuota": f"{gpus * 400}Gi"},
            {"name": "ephemeral-storage", "nominalQuota": f"{gpus * 400}Gi"},
        ]
        flavor_quotas.append({"name": flavor["metadata"]["name"], "resources": quotas})
    namespace_labels = {LABEL_TEAM: team} if team else {LABEL_PART_OF: PART_OF}
    spec: Body = {
        "namespaceSelector": {"matchLabels": namespace_labels},
        "cohortName": "gpus",
        "queueingStrategy": "BestEffortFIFO",
        # Higher priority first within the queue; an owner gets back what it lent when it needs it.
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "resourceGroups": [
            {
                "coveredResources": [GPU_RESOURCE, "cpu", "memory", "ephemeral-storage"],
                "flavors": flavor_quotas,
            }
        ],
    }
    if queued:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": "queued"}]}
    return manifest(KUEUE_API, "ClusterQueue", meta(name), spec=spec)


def _provisioning() -> Iterator[Body]:
    """Admits a gang only when Google has all its nodes, and keeps it on those nodes."""
    node_selector = {
        "key": LABEL_PROVISIONING_REQUEST,
        "valueFromProvisioningClassDetail": RESIZE_REQUEST_DETAIL,
    }
    spec = {
        "provisioningClassName": PROVISIONING_CLASS,
        "managedResources": [GPU_RESOURCE],
        "retryStrategy": RETRIES,
        "podSetUpdates": {"nodeSelector": [node_selector]},
    }
    yield manifest(KUEUE_API, "ProvisioningRequestConfig", meta("queued"), spec=spec)
    parameters = {
        "apiGroup": api_group(KUEUE_API),
        "kind": "ProvisioningRequestConfig",
        "name": "queued",
    }
    check = {"controllerName": PROVISIONING_CONTROLLER, "parameters": parameters}
    yield manifest(KUEUE_API, "AdmissionCheck", meta("queued"), spec=check)


def _job_priorities() -> Iterator[Body]:
    """Builds the classes that order the jobs of a team; no other team's jobs yield to them.

    A ClusterQueue preempts by priority only within itself, and the cohort takes jobs in the order
    of their submission (the gate PrioritySortingWithinCohort is closed).
    """
    for priority, settings in JOB_PRIORITIES.items():
        yield manifest(
            KUEUE_API,
            "WorkloadPriorityClass",
            meta(name_job_priority(priority)),
            value=settings.value,
            description=settings.what,
        )


def _compute_classes(context: RenderContext) -> Iterator[Body]:
    """Builds a class for each accelerator: all Spot machines, then flex-start, then on-demand."""
    for accelerator in context.platform.auto_provisioning:
        spot_pools: list[Pool] = []
        for pool in context.platform.pools:
            if pool.accelerator == accelerator and pool.capacity is Capacity.SPOT:
                spot_pools.append(pool)
        if not spot_pools:
            continue
        flex_start = {
            "flexStart": _flex(context),
            "capacityCheckWaitTimeSeconds": 900,
        }
        priorities = [_priority(pool) | {"spot": True} for pool in spot_pools]
        priorities.append(_priority(spot_pools[0]) | flex_start)
        # Google sells some machines on Spot and as flex-start only; GKE would try for ever.
        if is_sold(MACHINE_TYPES[spot_pools[0].machine_type], Capacity.ON_DEMAND):
            priorities.append(_priority(spot_pools[0]))
        spec = {
            "nodePoolAutoCreation": {"enabled": True},
            "whenUnsatisfiable": "DoNotScaleUp",
            "priorities": priorities,
        }
        yield manifest(COMPUTE_CLASS_API, "ComputeClass", meta(accelerator), spec=spec)
    for gpu_choice in list_gpu_choices(context.platform):
        pools = gpu_choice.select_pools(context.platform)
        spec = {
            "nodePoolAutoCreation": {"enabled": True},
            "whenUnsatisfiable": "DoNotScaleUp",
            "priorities": [_priority(pool) | {"spot": True} for pool in pools],
        }
        yield manifest(COMPUTE_CLASS_API, "ComputeClass", meta(gpu_choice.name), spec=spec)


def _flex(context: RenderContext) -> Body:
    """Enables flex-start, and the recycling of its nodes where the GKE version has it.

    Without recycling, the next node is requested only after the old one and its pods have ended.
    """
    settings: Body = {"enabled": True}
    if context.platform.versions.gke_has(*CLASSES_RECYCLE):
        settings["nodeRecycling"] = {"leadTimeSeconds": RECYCLE_LEAD_S}
    return settings


def _priority(pool: Pool) -> Body:
    gpu = {
        "type": pool.accelerator,
        "count": pool.gpus_per_node,
        # A priority inherits no driver.
        "driverVersion": DRIVER_LATEST,
    }
    body: Body = {"machineType": pool.machine_type, "gpu": gpu}
    if pool.zones:
        body["location"] = {"zones": list(pool.zones)}
    return body
