"""HF03x: GPUs asked for against GPUs that nodes have."""

from collections.abc import Iterator

from holdfast.contract import pools as contract
from holdfast.contract.kubernetes import DRIVER_LATEST, LABEL_DRIVER
from holdfast.contract.machines import ACCELERATORS, MACHINE_TYPES
from holdfast.contract.pools import GPU_RESOURCE, GPU_TAINT
from holdfast.lint.finding import Hit, Severity, constant
from holdfast.lint.objects import Pod, dig, quantity
from holdfast.lint.platform import tolerates
from holdfast.lint.registry import Context, rule

# Google's names for GPUs that no machine of the contract has; HF003 finds that no pool has them either.
OTHER_ACCELERATORS = frozenset({
    "nvidia-tesla-k80", "nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-tesla-t4", "nvidia-tesla-v100",
    "nvidia-h100-mega-80gb", "nvidia-h200-141gb", "nvidia-b200", "nvidia-gb200", "nvidia-rtx-pro-6000",
})  # fmt: skip
DOC_GPU = "https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"


@rule(
    "HF030", "gpu-without-accelerator", Severity.ERROR, on=Pod,
    what="The pod asks for GPUs without saying which kind.",
    why="Auto-provisioning makes no node for it, and a manual pool of any kind may take it.",
    source=DOC_GPU, fix="select cloud.google.com/gke-accelerator, or a pool class with GPUs", base="job-pod",
    bad='nodeSelector: {holdfast.dev/pool-class: null, cloud.google.com/gke-spot: "true"}',
    good="nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4, holdfast.dev/pool-class: spot-l4}",
)  # fmt: skip
def gpu_without_accelerator(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    naming = (
        contract.LABEL_ACCELERATOR,
        contract.LABEL_POOL_CLASS,
        contract.LABEL_NODEPOOL,
        contract.LABEL_COMPUTE_CLASS,
    )
    if not pod.gpus or any(place.demanded(key) for key in naming):
        return
    kinds = sorted({pool.accelerator for pool in context.platform.pools if pool.accelerator})
    first = next((pool for pool in context.platform.pools if pool.accelerator), context.platform.pools[0])
    container = next(c for c in pod.containers if c.gpus)
    at = (*container.path, "resources", "limits", GPU_RESOURCE)
    yield Hit(at, f"{pod.gpus} GPU, of no named kind", context.platform.basis(first, f"kinds here: {', '.join(kinds)}"))


@rule(
    "HF031", "gpu-count-over-node", Severity.ERROR, on=Pod,
    what="The pod asks for more GPUs than a matching node has.",
    why="A machine type fixes its GPU count: g2-standard-8 has one L4. The pod never fits.",
    source="workloads/library/holdfast/contract/machines.py", fix="ask for fewer, or select a machine that has them", base="container",
    bad='resources: {limits: {nvidia.com/gpu: "2"}}', good='resources: {limits: {nvidia.com/gpu: "1"}}',
)  # fmt: skip
def gpu_count_over_node(pod: Pod, context: Context) -> Iterator[Hit]:
    pools = [pool for pool in context.place(pod).pools if pool.accelerator]
    most = max((pool.gpus_per_node for pool in pools), default=0)
    if not pools or pod.gpus <= most:
        return
    pool = max(pools, key=lambda p: p.gpus_per_node)
    container = next(c for c in pod.containers if c.gpus)
    fits = [m.name for m in MACHINE_TYPES.values() if m.accelerator == pool.accelerator and m.gpus == pod.gpus]
    fix = f"ask for {most}, or make a pool of {' or '.join(fits)}" if fits else f"ask for {most}"
    basis = context.platform.basis(pool, f"{pool.machine_type or pool.name} has {most} x {pool.accelerator}")
    at = (*container.path, "resources", "limits", GPU_RESOURCE)
    yield Hit(at, f"{pod.gpus} GPUs on nodes with {most}", basis, fix)


@rule(
    "HF032", "gpu-taint-not-tolerated", Severity.ERROR, on=Pod,
    what="The pod asks for GPUs and does not tolerate the taint of GPU nodes.",
    why="Every GPU pool has it. An admission plugin may add the toleration; a cluster without it leaves the pod Pending.",
    source=DOC_GPU, fix=f"add the toleration {GPU_TAINT.toleration()}", base="job-pod",
    bad="tolerations: [{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}]",
    good="tolerations:\n- {key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}\n"
         "- {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}",
)  # fmt: skip
def gpu_taint_not_tolerated(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.gpus and not any(tolerates(t, GPU_TAINT) for _, t in pod.tolerations):
        fact = f"GPU nodes have the taint {GPU_TAINT}"
        yield Hit(
            (*pod.at, "tolerations"),
            f"does not tolerate {GPU_TAINT}",
            constant("holdfast.contract.pools", "GPU_TAINT", fact),
        )


@rule(
    "HF033", "gpu-node-without-gpu", Severity.WARNING, on=Pod,
    what="The pod selects a GPU pool and asks for no GPU.",
    why="It occupies a machine whose price is its GPU, and sees no device.",
    source=DOC_GPU, fix="ask for nvidia.com/gpu, or select a pool without GPUs", base="container",
    bad="resources: {limits: {nvidia.com/gpu: null}}", good='resources: {limits: {nvidia.com/gpu: "1"}}',
)  # fmt: skip
def gpu_node_without_gpu(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    if (
        pod.gpus
        or not place.demands
        or pod.owner.kind == "DaemonSet"
        or any(c.request(GPU_RESOURCE) for c in pod.containers)
    ):
        return
    if place.pools and all(pool.accelerator for pool in place.pools):
        pool = place.pools[0]
        basis = context.platform.basis(pool, f"pool {pool.name} has {pool.gpus_per_node} x {pool.accelerator} a node")
        yield Hit(place.demands[0].path, "runs on GPU nodes without asking for a GPU", basis)


@rule(
    "HF034", "gpu-without-limit", Severity.ERROR, on=Pod,
    what="A GPU request without an equal limit.",
    why="Extended resources cannot be overcommitted; the API server refuses the pod.",
    source=DOC_GPU, fix="state the GPUs under limits", base="container",
    bad='resources: {limits: {nvidia.com/gpu: null}, requests: {nvidia.com/gpu: "1"}}',
    good='resources: {limits: {nvidia.com/gpu: "1"}, requests: {nvidia.com/gpu: "1"}}',
)  # fmt: skip
def gpu_without_limit(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        asked = dig(container.body, "resources", "requests", GPU_RESOURCE)
        if asked is not None and quantity(asked) != quantity(container.limit(GPU_RESOURCE)):
            at = (*container.path, "resources", "requests", GPU_RESOURCE)
            yield Hit(at, f"requests {asked} GPU, limit {container.limit(GPU_RESOURCE)}")


@rule(
    "HF035", "accelerator-unknown", Severity.ERROR, on=Pod,
    what="The selected accelerator is none of Google's GPU types.",
    why="The label's values are Google's; nvidia-a100 and nvidia-t4 are none of them.",
    source=DOC_GPU, fix="use Google's name", base="job-pod",
    bad="nodeSelector: {cloud.google.com/gke-accelerator: nvidia-a100}",
    good="nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}",
)  # fmt: skip
def accelerator_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    known = ", ".join(sorted(ACCELERATORS))
    for demand in context.place(pod).demanded(contract.LABEL_ACCELERATOR):
        for value in demand.values:
            if value not in ACCELERATORS and value not in OTHER_ACCELERATORS:
                basis = constant("holdfast.contract.machines", "ACCELERATORS", f"known: {known}")
                yield Hit(demand.path, f"{value} is no known accelerator", basis)


@rule(
    "HF036", "driver-left-to-chance", Severity.WARNING, on=Pod,
    what="A GPU node is made for this pod, and the pod does not ask for the newest driver.",
    why="Google's default branch stops at CUDA 12: a program built for CUDA 13 sees no GPU on it, at the price of one."
        " Pools state the driver themselves; a node made on demand takes it from the pod.",
    source=DOC_GPU, fix=f"select {LABEL_DRIVER}: {DRIVER_LATEST}", base="flex-pod",
    bad=f"nodeSelector: {{{LABEL_DRIVER}: null}}", good=f"nodeSelector: {{{LABEL_DRIVER}: {DRIVER_LATEST}}}",
)  # fmt: skip
def driver_left_to_chance(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    if not pod.gpus or not place.means_flex or place.demanded(contract.LABEL_COMPUTE_CLASS):
        return
    asked = [value for demand in place.demanded(LABEL_DRIVER) for value in demand.values]
    if asked != [DRIVER_LATEST]:
        basis = constant("holdfast.contract.kubernetes", "LABEL_DRIVER", "without it the node gets the default branch")
        yield Hit((*pod.at, "nodeSelector"), f"asks for driver {asked[0] if asked else 'default'}", basis)
