"""HF02x and HF03x: machines, zones and GPUs against what the pod asks for."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_map
from holdfast.lint.platform import machine_size
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.kubernetes import DRIVER_LATEST, LABEL_DRIVER
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_RESOURCE

DOC_GPU = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"
MACHINES = "workloads/library/holdfast/vocabulary/machines.py"
# Google's names for GPUs that no machine of the contract has; HF003 finds that no pool has them.
OTHER_ACCELERATORS = frozenset(
    {
        "nvidia-tesla-k80",
        "nvidia-tesla-p4",
        "nvidia-tesla-p100",
        "nvidia-tesla-t4",
        "nvidia-tesla-v100",
        "nvidia-h100-mega-80gb",
        "nvidia-h200-141gb",
        "nvidia-b200",
        "nvidia-gb200",
        "nvidia-rtx-pro-6000",
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
    main = [c for c in pod.containers if "containers" in c.path]
    for index, resource in enumerate(("cpu", "memory")):
        asked = sum(quantity(c.request(resource)) or 0 for c in main)
        most = max((machine_size(pool)[index] for pool in pools), default=0)
        if pools and asked > most:
            largest = max(pools, key=lambda pool: machine_size(pool)[index])
            size = f"{most:g} vCPU" if index == 0 else f"{most / 2**30:g} GiB"
            basis = context.platform.basis(
                largest, f"{largest.machine_type} of pool {largest.name} has {size}"
            )
            yield Hit(main[0].path, f"asks for more {resource} than any matching node has", basis)


@rule(
    "HF021",
    "zone-without-pool",
    Severity.ERROR,
    on=Pod,
    what="The pod selects a zone that has no pool.",
    why="It stays Pending: the autoscaler adds nodes in the pools' zones only.",
    source="infra/environments",
    fix="select one of the environment's zones, or none",
    base="job-pod",
    bad="nodeSelector: {topology.kubernetes.io/zone: europe-west4-a}",
    good="nodeSelector: {topology.kubernetes.io/zone: us-central1-a}",
)
def zone_without_pool(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).demanded(contract.LABEL_ZONE):
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
    source="workloads/library/holdfast/place: online -> hybrid",
    fix="keep a base on the serving pool, and let Spot take the overflow",
    base="serving-pod",
    bad=(
        "nodeSelector: {holdfast.dev/pool-class: spot-l4, cloud.google.com/gke-spot:"
        ' "true"}\ntolerations: [{key: provisioning-tier, operator: Equal, value: preemptible,'
        " effect: NoSchedule}]"
    ),
)
def service_on_spot_alone(obj: Object, context: Context) -> Iterator[Hit]:
    serving = obj.kind == "StatefulSet" or (obj.kind == "Deployment" and obj.namespace == "serving")
    overflow = "holdfast.dev/overflow-of" in as_map(obj.metadata.get("annotations"))
    for pod in obj.pods if serving and not overflow else []:
        if context.place(pod).ties_to_spot:
            yield Hit((*pod.at, "nodeSelector"), f"{obj.kind} {obj.name} runs on Spot alone")


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
    if not pod.gpus or any(context.place(pod).demanded(key) for key in NAMING):
        return
    kinds = sorted({pool.accelerator for pool in context.platform.pools if pool.accelerator})
    first = next(
        (pool for pool in context.platform.pools if pool.accelerator), context.platform.pools[0]
    )
    basis = context.platform.basis(first, f"kinds here: {', '.join(kinds)}")
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
    pools = [pool for pool in context.place(pod).pools if pool.accelerator]
    most = max((pool.gpus_per_node for pool in pools), default=0)
    if not pools or pod.gpus <= most:
        return
    pool = max(pools, key=lambda p: p.gpus_per_node)
    fits = []
    for m in MACHINE_TYPES.values():
        if m.accelerator == pool.accelerator and m.gpus == pod.gpus:
            fits.append(m.name)
    fix = f"ask for {most}, or make a pool of {' or '.join(fits)}" if fits else f"ask for {most}"
    basis = context.platform.basis(
        pool, f"{pool.machine_type or pool.name} has {most} x {pool.accelerator}"
    )
    yield Hit(_gpu_limit(pod), f"{pod.gpus} GPUs on nodes with {most}", basis, fix)


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
    place = context.place(pod)
    asks = pod.gpus or any(c.request(GPU_RESOURCE) for c in pod.containers)
    if asks or not place.demands or pod.owner.kind == "DaemonSet":
        return
    if place.pools and all(pool.accelerator for pool in place.pools):
        pool = place.pools[0]
        basis = context.platform.basis(
            pool, f"pool {pool.name} has {pool.gpus_per_node} x {pool.accelerator} a node"
        )
        yield Hit(place.demands[0].path, "runs on GPU nodes without asking for a GPU", basis)


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
    known = f"known: {', '.join(sorted(ACCELERATORS))}"
    for demand in context.place(pod).demanded(contract.LABEL_ACCELERATOR):
        for value in demand.values:
            if value not in ACCELERATORS and value not in OTHER_ACCELERATORS:
                yield Hit(demand.path, f"{value} is no known accelerator", known)


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
    place = context.place(pod)
    if not pod.gpus or not place.means_flex or place.demanded(contract.LABEL_COMPUTE_CLASS):
        return
    asked = []
    for demand in place.demanded(LABEL_DRIVER):
        for value in demand.values:
            asked.append(value)
    if asked != [DRIVER_LATEST]:
        yield Hit((*pod.at, "nodeSelector"), f"asks for driver {asked[0] if asked else 'default'}")
