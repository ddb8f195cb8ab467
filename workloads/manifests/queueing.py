"""Kueue: how many GPUs of each capacity are lent at once, and the ComputeClasses that fall back."""

# Why it is so: infra/decisions/0063; why no job selects a ComputeClass: infra/decisions/0114.

from collections.abc import Iterator, Mapping

from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.capacity import QUEUES, Capacity
from holdfast.vocabulary.kubernetes import (
    CLASSES_RECYCLE,
    COMPUTE_CLASS_API,
    DRIVER_LATEST,
    KUEUE_API,
    LABEL_PART_OF,
    LABEL_PROVISIONING_REQUEST,
    LABEL_TEAM,
    PART_OF,
    PROVISIONING_CLASS,
    PROVISIONING_CONTROLLER,
    RESIZE_REQUEST_DETAIL,
    api_group,
)
from holdfast.vocabulary.pools import (
    GPU_RESOURCE,
    LABEL_ACCELERATOR,
    LABEL_POOL_CLASS,
    STAYING,
    Pool,
    flex_selector,
)
from holdfast.vocabulary.roles import JOB_NAMESPACES

# so long before a flex-start node ends, GKE looks for the next one and drains it
RECYCLE_LEAD_S = 3_600
# After the last one the job is deactivated for good. Kueue's own three are over in seven minutes,
# which is one capacity revoked and two bookings that expired; ten make three hours, and each of
# them may wait a week in Google's queue.
RETRIES = {
    "backoffLimitCount": 10,
    "backoffBaseSeconds": 60,
    "backoffMaxSeconds": 1_800,
}


def objects(context: RenderContext) -> Iterator[Body]:
    for flavors in _flavors(context).values():
        yield from (flavor for flavor, _ in flavors)
    yield from _provisioning()
    for queue, flavors in _flavors(context).items():
        for team, lent in _shares(context, flavors).items() if flavors else ():
            named = f"{team}-{queue}" if team else queue
            limits = context.platform.team(team).limits if team else {}
            yield _cluster_queue(
                named,
                lent,
                limits,
                queued=queue == "queued",
                team=team,
            )
            for namespace in JOB_NAMESPACES if not team else context.platform.team(team).namespaces:
                yield manifest(
                    KUEUE_API, "LocalQueue", meta(queue, namespace), spec={"clusterQueue": named}
                )
    yield from _compute_classes(context)


def _flavors(context: RenderContext) -> dict[str, list[tuple[Body, int]]]:
    """Queue -> flavors with the GPUs that each lends. The numbers come from the environment's
    quotas and caps.
    """
    found: dict[str, list[tuple[Body, int]]] = {queue: [] for queue in QUEUES.values()}
    for name, (group, *_) in context.platform.classes.items():
        queue = QUEUES[group.capacity]
        gpus = context.platform.quota(name)
        if gpus and group.capacity in (Capacity.SPOT, *STAYING):
            labels = {LABEL_POOL_CLASS: name}
            # The same keys in each: JobSet adds them to its Jobs, and takes none away when a job
            # changes its queue. Else Kueue lends it GPUs of another kind when those it asks for are
            # all lent.
            labels |= {LABEL_ACCELERATOR: group.accelerator} if group.accelerator else {}
            tolerations = group.tolerations()
            found[queue].append((_flavor(f"{queue}-{name}", labels, tolerations), gpus))
    for accelerator in context.platform.auto_provisioning:
        # With the driver: a job that may be moved selects none itself, since machines on demand
        # have theirs from their pool.
        labels = flex_selector(accelerator)
        shares = {
            "flex": context.flex_gpus(accelerator),
            "queued": context.queued_gpus(accelerator),
        }
        for queue, gpus in shares.items():
            if gpus:
                found[queue].append((_flavor(f"{queue}-{accelerator}", labels, []), gpus))
    return found


def _shares(
    context: RenderContext, flavors: list[tuple[Body, int]]
) -> dict[str, list[tuple[Body, int]]]:
    """Team, empty for the default one, -> what it is guaranteed of each flavor; beyond that the
    cohort lends.

    Where a flavor has less than its teams are guaranteed, they share it in proportion.
    """
    teams = context.platform.other_teams
    found: dict[str, list[tuple[Body, int]]] = {"": []} | {team.name: [] for team in teams}
    for flavor, gpus in flavors:
        kind = flavor["spec"]["nodeLabels"].get(LABEL_ACCELERATOR, "")
        wanted = sum(team.quotas.get(kind, 0) for team in teams)
        left = gpus
        for team in teams:
            share = team.quotas.get(kind, 0) * min(gpus, wanted) // max(1, wanted)
            found[team.name].append((flavor, share))
            left -= share
        found[""].append((flavor, left))
    return found


def _flavor(name: str, labels: dict[str, str], tolerations: list[dict[str, str]]) -> Body:
    spec = {"nodeLabels": labels} | ({"tolerations": tolerations} if tolerations else {})
    return manifest(KUEUE_API, "ResourceFlavor", meta(name), spec=spec)


def _gpu_quota(flavor: Body, gpus: int, limits: Mapping[str, int]) -> Body:
    """What is guaranteed of a flavor, and where its accelerator has a limit, what may be borrowed
    beyond.
    """
    quota: Body = {
        "name": GPU_RESOURCE,
        "nominalQuota": str(gpus),
    }
    most = limits.get(flavor["spec"]["nodeLabels"].get(LABEL_ACCELERATOR, ""))
    if most is None:
        return quota
    return quota | {"borrowingLimit": str(max(0, most - gpus))}


def _cluster_queue(
    name: str,
    flavors: list[tuple[Body, int]],
    limits: Mapping[str, int],
    *,
    queued: bool,
    team: str,
) -> Body:
    resources = []
    for flavor, gpus in flavors:
        resources.append(
            {
                "name": flavor["metadata"]["name"],
                "resources": [
                    _gpu_quota(flavor, gpus, limits),
                    {
                        "name": "cpu",
                        "nominalQuota": str(gpus * 100),
                    },
                    {"name": "memory", "nominalQuota": f"{gpus * 400}Gi"},
                    {"name": "ephemeral-storage", "nominalQuota": f"{gpus * 400}Gi"},
                ],
            }
        )
    spec: Body = {
        "namespaceSelector": {
            "matchLabels": {LABEL_TEAM: team} if team else {LABEL_PART_OF: PART_OF}
        },
        "cohortName": "gpus",
        "queueingStrategy": "BestEffortFIFO",
        # Higher priority first within the queue; what was lent to a neighbour comes back when its
        # owner needs it.
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "resourceGroups": [
            {
                "coveredResources": [GPU_RESOURCE, "cpu", "memory", "ephemeral-storage"],
                "flavors": resources,
            }
        ],
    }
    if queued:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": "queued"}]}
    return manifest(KUEUE_API, "ClusterQueue", meta(name), spec=spec)


def _provisioning() -> Iterator[Body]:
    """A gang is admitted when Google has all its nodes, never before, and keeps to those nodes."""
    selected = {
        "key": LABEL_PROVISIONING_REQUEST,
        "valueFromProvisioningClassDetail": RESIZE_REQUEST_DETAIL,
    }
    spec = {
        "provisioningClassName": PROVISIONING_CLASS,
        "managedResources": [GPU_RESOURCE],
        "retryStrategy": RETRIES,
        "podSetUpdates": {"nodeSelector": [selected]},
    }
    yield manifest(KUEUE_API, "ProvisioningRequestConfig", meta("queued"), spec=spec)
    parameters = {
        "apiGroup": api_group(KUEUE_API),
        "kind": "ProvisioningRequestConfig",
        "name": "queued",
    }
    check = {"controllerName": PROVISIONING_CONTROLLER, "parameters": parameters}
    yield manifest(KUEUE_API, "AdmissionCheck", meta("queued"), spec=check)


def _compute_classes(context: RenderContext) -> Iterator[Body]:
    """One for each accelerator: every Spot machine type, then flex-start, then on-demand."""
    for accelerator in context.platform.auto_provisioning:
        pools = [p for p in context.platform.pools if p.accelerator == accelerator]
        spot = [p for p in pools if p.capacity is Capacity.SPOT]
        if spot:
            priorities = [_priority(pool, context) | {"spot": True} for pool in spot]
            priorities.append(
                _priority(spot[0], context)
                | {
                    "flexStart": _flex(context),
                    "capacityCheckWaitTimeSeconds": 900,
                }
            )
            priorities.append(_priority(spot[0], context))
            spec = {
                "nodePoolAutoCreation": {"enabled": True},
                "whenUnsatisfiable": "DoNotScaleUp",
                "priorities": priorities,
            }
            yield manifest(COMPUTE_CLASS_API, "ComputeClass", meta(accelerator), spec=spec)


def _flex(context: RenderContext) -> Body:
    """With recycling, where the version has it: else the next node is requested only after all pods
    ended with the old one.
    """
    recycles = context.platform.versions.gke_has(*CLASSES_RECYCLE)
    return {"enabled": True} | (
        {"nodeRecycling": {"leadTimeSeconds": RECYCLE_LEAD_S}} if recycles else {}
    )


def _priority(pool: Pool, context: RenderContext) -> Body:
    # On every rung, since it is inherited from nowhere.
    gpu = {
        "type": pool.accelerator,
        "count": pool.gpus_per_node,
        "driverVersion": DRIVER_LATEST,
    }
    body: Body = {"machineType": pool.machine_type, "gpu": gpu}
    return body | ({"location": {"zones": list(pool.zones)}} if pool.zones else {})
