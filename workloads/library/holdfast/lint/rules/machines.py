"""HF02x and HF03x: machines, zones and GPUs against what the pod asks for."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_map
from holdfast.lint.platform import find_machines, machine_size
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.kubernetes import DRIVER_LATEST, LABEL_DRIVER
from holdfast.vocabulary.machines import ACCELERATORS, REFUSED_MACHINES
from holdfast.vocabulary.pools import GPU_RESOURCE
from holdfast.vocabulary.serving import LABEL_SERVICE

DOC_GPU = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"
MACHINES = "holdfast/vocabulary/machines.py"
# Google's names for GPUs that no machine of the contract has; HF003 finds that no pool has them.
OTHER_ACCELERATORS = frozenset(
    {
        "nvidia-tesla-k80",
        "nvidia-tesla-p4",
        "nvidia-tesla-p100",
        "nvidia-tesla-v100",
        *(machine.accelerator for machine in REFUSED_MACHINES.values()),
    }
)
NAMING = (
    contract.LABEL_ACCELERATOR,
    contract.LABEL_POOL_CLASS,
    contract.LABEL_NODEPOOL,
    contract.LABEL_COMPUTE_CLASS,
)


@rule(
    "HF020",
    "pod-larger-than-node",
    Severity.ERROR,
    on=Pod,
    what="The pod asks for more CPU or memory than any matching machine has.",
    why="It fits on no node, whatever the autoscaler adds.",
    source=MACHINES,
    fix="ask for less, or select a larger machine",
    base="container",
    bad='resources: {limits: {cpu: "32", memory: 400Gi}}',
    good='resources: {limits: {cpu: "4", memory: 16Gi}}',
)
def pod_larger_than_node(pod: Pod, context: Context) -> Iterator[Hit]:
    pools = context.place(pod).pools
    if not pools:
        return
    for index, resource in enumerate(("cpu", "memory")):
        request = pod.request(resource)
        largest_pool = pools[0]
        for pool in pools:
            if machine_size(pool)[index] > machine_size(largest_pool)[index]:
                largest_pool = pool
        capacity = machine_size(largest_pool)[index]
        if request <= capacity:
            continue
        size = f"{capacity:g} vCPU" if index == 0 else f"{capacity / 2**30:g} GiB"
        fact = f"{largest_pool.machine_type} of pool {largest_pool.name} has {size}"
        basis = context.platform.basis(largest_pool, fact)
        message = f"asks for more {resource} than any matching node has"
        yield Hit(pod.main_containers[0].path, message, basis)


@rule(
    "HF021",
    "zone-without-pool",
    Severity.ERROR,
    on=Pod,
    what="The pod selects a zone that has no pool.",
    why="It stays Pending: the autoscaler adds nodes in the pools' zones only.",
    source="the platform document",
    fix="select one of the environment's zones, or none",
    base="job-pod",
    bad="nodeSelector: {topology.kubernetes.io/zone: europe-west4-a}",
    good="nodeSelector: {topology.kubernetes.io/zone: us-central1-a}",
)
def zone_without_pool(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).find_demands(contract.LABEL_ZONE):
        if not set(demand.values) & set(context.platform.zones):
            fact = f"zones here: {', '.join(context.platform.zones)}"
            basis = context.platform.basis(context.platform.pools[0], fact)
            yield Hit(demand.path, f"there is no pool in {', '.join(demand.values)}", basis)


@rule(
    "HF023",
    "pool-of-limited-life-with-service",
    Severity.WARNING,
    on=Object,
    what="A Deployment or StatefulSet runs on Spot alone, without an on-demand base.",
    why="When Spot is sold out, or all of it is preempted at once, nothing answers.",
    source="holdfast place: online -> hybrid",
    fix="keep a base on the serving pool, and let Spot take the overflow",
    base="serving-pod",
    bad=(
        "nodeSelector: {holdfast.dev/pool-class: spot-l4, cloud.google.com/gke-spot:"
        ' "true"}\ntolerations: [{key: provisioning-tier, operator: Equal, value: preemptible,'
        " effect: NoSchedule}]"
    ),
)
def service_on_spot_alone(obj: Object, context: Context) -> Iterator[Hit]:
    serves = obj.namespace == "serving" or LABEL_SERVICE in obj.labels
    is_server = obj.kind == "Deployment" and serves
    if obj.kind != "StatefulSet" and not is_server:
        return
    if "holdfast.dev/overflow-of" in obj.annotations:
        return
    for pod in obj.pods:
        if context.place(pod).ties_to_spot:
            message = f"{obj.kind} {obj.name} runs on Spot alone"
            yield Hit((*pod.spec_path, "nodeSelector"), message)


@rule(
    "HF030",
    "gpu-without-accelerator",
    Severity.ERROR,
    on=Pod,
    what="The pod asks for GPUs and does not say which kind.",
    why="Auto-provisioning makes no node for it, and it may run on a pool with any kind of GPU.",
    source=DOC_GPU,
    fix="select cloud.google.com/gke-accelerator, or a pool class with GPUs",
    base="job-pod",
    bad='nodeSelector: {holdfast.dev/pool-class: null, cloud.google.com/gke-spot: "true"}',
    good=(
        "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4, holdfast.dev/pool-class:"
        " spot-l4}"
    ),
)
def gpu_without_accelerator(pod: Pod, context: Context) -> Iterator[Hit]:
    if not pod.gpus or context.place(pod).find_demands(*NAMING):
        return
    # Kueue gives the pods the labels of their flavor.
    queue = pod.owner.queue
    flavors = context.index.list_flavors(pod.owner, queue) if queue else None
    labels = [as_map(flavor.spec.get("nodeLabels")) for flavor in flavors or ()]
    if labels and all(contract.LABEL_ACCELERATOR in flavor_labels for flavor_labels in labels):
        return
    platform = context.platform
    gpu_pools = [pool for pool in platform.pools if pool.accelerator]
    kinds = sorted({pool.accelerator for pool in gpu_pools})
    first_pool = (gpu_pools or platform.pools)[0]
    basis = platform.basis(first_pool, f"kinds here: {', '.join(kinds)}")
    yield Hit(_gpu_limit(pod), f"{pod.gpus} GPU, and its kind is not named", basis)


def _gpu_limit(pod: Pod) -> tuple[str | int, ...]:
    container = next(c for c in pod.containers if c.gpus)
    return (*container.path, "resources", "limits", GPU_RESOURCE)


@rule(
    "HF031",
    "gpu-count-over-node",
    Severity.ERROR,
    on=Pod,
    what="The pod asks for more GPUs than a matching node has.",
    why="A machine type fixes its GPU count: g2-standard-8 has one L4. The pod fits on no node.",
    source=MACHINES,
    fix="ask for fewer, or select a machine that has them",
    base="container",
    bad='resources: {limits: {nvidia.com/gpu: "2"}}',
)
def gpu_count_over_node(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = max(context.place(pod).gpu_pools, key=lambda pool: pool.gpus_per_node, default=None)
    if pool is None or pod.gpus <= pool.gpus_per_node:
        return
    gpus = pool.gpus_per_node
    fix = f"ask for {gpus}"
    fitting_machines = find_machines(pool.accelerator, pod.gpus)
    if fitting_machines:
        fix += f", or make a pool of {' or '.join(fitting_machines)}"
    fact = f"{pool.machine_type or pool.name} has {gpus} x {pool.accelerator}"
    basis = context.platform.basis(pool, fact)
    yield Hit(_gpu_limit(pod), f"{pod.gpus} GPUs on nodes with {gpus}", basis, fix)


@rule(
    "HF033",
    "gpu-node-without-gpu",
    Severity.WARNING,
    on=Pod,
    what="The pod selects a GPU pool and asks for no GPU.",
    why="It pays for a machine with a GPU and sees no device.",
    source=DOC_GPU,
    fix="ask for nvidia.com/gpu, or select a pool without GPUs",
    base="container",
    bad="resources: {limits: {nvidia.com/gpu: null}}",
)
def gpu_node_without_gpu(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    requests_gpu = pod.gpus or any(item.request(GPU_RESOURCE) for item in pod.containers)
    if requests_gpu or not placement.demands or pod.owner.kind == "DaemonSet":
        return
    if placement.pools and len(placement.gpu_pools) == len(placement.pools):
        pool = placement.pools[0]
        fact = f"pool {pool.name} has {pool.gpus_per_node} x {pool.accelerator} a node"
        basis = context.platform.basis(pool, fact)
        yield Hit(placement.demands[0].path, "runs on GPU nodes without asking for a GPU", basis)


@rule(
    "HF035",
    "accelerator-unknown",
    Severity.ERROR,
    on=Pod,
    what="The selected accelerator is none of Google's GPU types.",
    why="The label has Google's names as its values. nvidia-a100 and nvidia-t4 are not among them.",
    source=DOC_GPU,
    fix="use Google's name",
    base="job-pod",
    bad="nodeSelector: {cloud.google.com/gke-accelerator: nvidia-a100}",
    good="nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}",
)
def accelerator_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    basis = f"known: {', '.join(sorted(ACCELERATORS))}"
    for demand in context.place(pod).find_demands(contract.LABEL_ACCELERATOR):
        for value in demand.values:
            if value not in ACCELERATORS and value not in OTHER_ACCELERATORS:
                yield Hit(demand.path, f"{value} is no known accelerator", basis)


@rule(
    "HF036",
    "driver-left-to-chance",
    Severity.WARNING,
    on=Pod,
    what="The pod gets a new GPU node and does not ask for the newest driver.",
    why=(
        "Google's default branch ends at CUDA 12: a program built for CUDA 13 sees no GPU on it and"
        " pays for one. Pools state the driver themselves; a node made on demand takes it from the"
        " pod."
    ),
    source=DOC_GPU,
    fix=f"select {LABEL_DRIVER}: {DRIVER_LATEST}",
    base="flex-pod",
    bad=f"nodeSelector: {{{LABEL_DRIVER}: null}}",
)
def driver_left_to_chance(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    if (
        not pod.gpus
        or not placement.means_flex
        or placement.find_demands(contract.LABEL_COMPUTE_CLASS)
    ):
        return
    drivers: list[str] = []
    for demand in placement.find_demands(LABEL_DRIVER):
        drivers += demand.values
    if drivers != [DRIVER_LATEST]:
        driver = drivers[0] if drivers else "default"
        yield Hit((*pod.spec_path, "nodeSelector"), f"asks for driver {driver}")
