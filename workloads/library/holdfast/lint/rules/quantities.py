"""HF440 to HF445: requests and limits that no pod can have, or that were not meant."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Object, Pod, as_int, as_list, as_map, as_text, dig
from holdfast.lint.platform import machine_size
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import suggest
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import GPU_RESOURCE, Pool

DOC_RESOURCES = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"
DOC_SIZES = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes"
MIB = 2.0**20
_NATIVE = ("cpu", "memory", "ephemeral-storage", "storage")
_EXTENDED = (GPU_RESOURCE, "google.com/tpu")
# Python with a framework needs more than this before its first line.
_PYTHON = re.compile(r"(^|/)(python[0-9.]*|torchrun|accelerate|vllm|deepspeed|ray)$")
_PLACEHOLDER = re.compile(r"[$<{]")
_SMALLEST_PROGRAM = 4 * MIB
_SMALLEST_PYTHON = 48 * MIB
_SMALLEST_WITH_GPU = 64 * MIB
_SMALLEST_CPU_WITH_GPU = 0.1
# GKE's reserve on a node: size of the next part in cores or GiB, and the share reserved of it.
_RESERVED_CPU = ((1, 0.06), (1, 0.01), (2, 0.005))
_RESERVED_CPU_ABOVE = 0.0025
_RESERVED_MEMORY = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06))
_RESERVED_MEMORY_ABOVE = 0.02
_EVICTION_RESERVE = 100 * MIB


def _resources(container: Container) -> Iterator[tuple[Path, str, Any]]:
    """Yields each request and limit of a container with its path."""
    for field in ("requests", "limits"):
        for name, amount in as_map(dig(container.body, "resources", field)).items():
            if amount is None:
                continue
            yield (*container.path, "resources", field, name), name, amount


@rule(
    "HF440",
    "quantity-malformed",
    Severity.ERROR,
    on=Object,
    what="An amount is no quantity of Kubernetes, or is so small that its unit is wrong.",
    why=(
        "The API server refuses 16GB. It takes 16 as 16 bytes, 512m as half a byte and 24Mi as what"
        " no interpreter starts in: the kernel kills the program at once."
    ),
    source=DOC_RESOURCES,
    fix="write cpu in cores or m, memory and disks in Mi, Gi or Ti",
    base="container",
    bad="""\
resources:
  limits:
    memory: 24Mi
""",
    good="""\
resources:
  limits:
    memory: 24Gi
""",
)
def quantity_malformed(obj: Object, context: Context) -> Iterator[Hit]:
    for pod in obj.pods:
        for container in pod.containers:
            for path, name, amount in _resources(container):
                yield from _check_amount(path, name, amount, container)
        for path, volume in pod.volumes:
            size = dig(volume, "emptyDir", "sizeLimit")
            if size is not None:
                yield from _check_size((*path, "emptyDir", "sizeLimit"), size)
                amount = _parse(size) or 0.0
                is_for_data = _DATA_VOLUME.search(as_text(volume.get("name")))
                if is_for_data and MIB <= amount < _SMALLEST_DATA:
                    place = (*path, "emptyDir", "sizeLimit")
                    yield Hit(place, f"{size} is little for {volume.get('name')}: Gi was meant?")
    for path, amount in _list_quotas(obj):
        yield from _check_size(path, amount)
    for path, spec in obj.claims:
        size = dig(spec, "resources", "requests", "storage")
        if size is not None:
            yield from _check_size((*path, "resources", "requests", "storage"), size)


_DATA_VOLUME = re.compile(r"model|weight|data|cache|scratch|shm|ckpt|checkpoint|hf")
_SMALLEST_DATA = 64 * MIB
# More than any machine of Google has.
_MOST_CORES = 1_920


def _list_quotas(obj: Object) -> Iterator[tuple[Path, Any]]:
    """Yields the amounts of memory that a ClusterQueue lends."""
    if obj.kind != "ClusterQueue":
        return
    for group, entry in enumerate(as_list(obj.spec.get("resourceGroups"))):
        for flavor, item in enumerate(as_list(dig(entry, "flavors"))):
            for index, resource in enumerate(as_list(dig(item, "resources"))):
                path = ("spec", "resourceGroups", group, "flavors", flavor, "resources", index)
                amount = dig(resource, "nominalQuota")
                if dig(resource, "name") == "memory" and amount not in (None, 0, "0"):
                    yield (*path, "nominalQuota"), amount


def _parse(amount: Any) -> float | None:
    """Returns a quantity; 0 for a placeholder, a reference, or an amount in nano or micro."""
    text = str(amount)
    is_tiny = text[-1:] in ("n", "u") and text[:-1].isdecimal()
    return 0.0 if is_tiny or _PLACEHOLDER.search(text[:200]) else quantity(amount)


def _check_amount(path: Path, name: str, amount: Any, container: Container) -> Iterator[Hit]:
    number = _parse(amount)
    if number is None:
        yield Hit(path, f"{amount} is no quantity")
    elif number < 0:
        yield Hit(path, f"{amount} is below zero: the API server refuses it")
    elif name == "memory" and 0 < number < _smallest_memory(container, path):
        yield Hit(path, f"{amount} of memory is {number / MIB:.3g} MiB")
    elif name == "cpu" and container.gpus and 0 < number < _SMALLEST_CPU_WITH_GPU:
        yield Hit(path, f"{amount} is {number:g} of a core, beside a GPU")
    elif name == "cpu" and number > _MOST_CORES:
        yield Hit(path, f"no machine has {number:g} cores; {amount}m are {number / 1_000:g}")
    elif name == "ephemeral-storage" and 0 < number < MIB:
        yield Hit(path, f"{amount} of disk is {number:g} bytes")


def _smallest_memory(container: Container, path: Path) -> float:
    """Returns the least memory that a container starts in; a request limits nothing by itself."""
    if container.gpus:
        return _SMALLEST_WITH_GPU
    if any(_PYTHON.search(word) for word in container.words[:3]):
        return _SMALLEST_PYTHON
    return _SMALLEST_PROGRAM if "limits" in path else 0.0


def _check_size(path: Path, size: Any) -> Iterator[Hit]:
    number = _parse(size)
    if number is None:
        yield Hit(path, f"{size} is no quantity")
    elif 0 < number < MIB:
        yield Hit(path, f"{size} is {number:g} bytes")


@rule(
    "HF441",
    "request-not-its-limit",
    Severity.ERROR,
    on=Pod,
    what=(
        "A request is above its limit, or GPUs are a fraction, have no limit, or another limit than"
        " request."
    ),
    why="The API server refuses the pod; the Job that owns it waits without one.",
    source=DOC_RESOURCES,
    fix="raise the limit; state whole GPUs in limits",
    base="container",
    bad="""\
resources:
  requests:
    nvidia.com/gpu: '1'
  limits:
    nvidia.com/gpu: null
""",
    good="""\
resources:
  requests:
    nvidia.com/gpu: '1'
  limits:
    nvidia.com/gpu: '1'
""",
)
def request_not_its_limit(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        requests = as_map(dig(container.body, "resources", "requests"))
        path = (*container.path, "resources", "requests")
        for name, amount in requests.items():
            request = quantity(amount)
            limit = quantity(container.limit(name))
            if request is None:
                continue
            if limit is not None and request > limit:
                yield Hit((*path, name), f"requests {amount} of {name}, its limit is less")
            elif name in _EXTENDED and limit is None:
                yield Hit((*path, name), f"{name} is requested and has no limit")
            elif name in _EXTENDED and request != limit:
                yield Hit((*path, name), f"requests {amount} of {name}, its limit is another")
        for name in _EXTENDED:
            limit = quantity(container.limit(name))
            if limit is not None and limit != int(limit):
                limit_path = (*container.path, "resources", "limits", name)
                yield Hit(limit_path, f"{container.limit(name)} of {name} is no whole number")


@rule(
    "HF442",
    "resource-unknown",
    Severity.ERROR,
    on=Pod,
    what="A request or a limit is of a resource that no node of GKE has.",
    why="The API server refuses a name without a domain; any other waits for a node with it.",
    source=DOC_RESOURCES,
    fix=f"write cpu, memory, ephemeral-storage or {GPU_RESOURCE}",
    base="container",
    bad="""\
resources:
  limits:
    nvidia.com/gpus: 1
""",
    good="""\
resources:
  limits:
    nvidia.com/gpu: 1
""",
)
def resource_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    known_names = [*_NATIVE, *_EXTENDED]
    for container in pod.containers:
        for path, name, _ in _resources(container):
            if name in known_names or name.startswith("hugepages-"):
                continue
            hint = suggest(name, known_names, 0.93)
            is_nvidia = name.startswith(("nvidia.com/", "nvidia/"))
            if "/" not in name or (is_nvidia and hint):
                yield Hit(path, f"no resource {name}{hint}", on_key=True)
            elif name.startswith(("amd.com/", "gpu.intel.com/")):
                yield Hit(path, f"no node of GKE has {name}", on_key=True)


@rule(
    "HF443",
    "no-room-for-the-node-itself",
    Severity.ERROR,
    on=Pod,
    what="The pod asks for nearly all CPU or memory of the largest machine that it can use.",
    why="GKE keeps a part of each node for itself: the pod fits on no node, empty or not.",
    source=DOC_SIZES,
    fix="ask for less than what a node offers to pods",
    base="container",
    bad="""\
resources:
  limits:
    cpu: '16'
    memory: 30Gi
""",
    good="""\
resources:
  limits:
    cpu: '7'
    memory: 24Gi
""",
)
def no_room_for_the_node(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    pools = [pool for pool in placement.pools if pool.machine_type in MACHINE_TYPES]
    if not placement.demands or not pools or len(pools) < len(placement.pools):
        return
    rooms: list[tuple[tuple[float, float], Pool]] = []
    for pool in pools:
        rooms.append((_room(pool), pool))
    for index, resource in enumerate(("cpu", "memory")):
        request = pod.request(resource)
        room, pool = max(rooms, key=lambda pair: pair[0][index])
        capacity = max(machine_size(candidate)[index] for candidate in pools)
        # More than the machine has is a finding of HF020.
        if room[index] < request <= capacity:
            unit = 1.0 if resource == "cpu" else GIB
            fact = f"{pool.machine_type} offers about {room[index] / unit:.4g} to pods"
            basis = context.platform.basis(pool, fact)
            message = f"asks for {request / unit:g} of {resource}, of {capacity / unit:g} on a node"
            yield Hit((*pod.main_containers[0].path, "resources"), message, basis)


def _room(pool: Pool) -> tuple[float, float]:
    """Returns the CPU and memory that a node offers to pods."""
    cpus, memory = machine_size(pool)
    reserved_cpu = _sum_reserve(cpus, _RESERVED_CPU, _RESERVED_CPU_ABOVE)
    reserved_gib = _sum_reserve(memory / GIB, _RESERVED_MEMORY, _RESERVED_MEMORY_ABOVE)
    return cpus - reserved_cpu, memory - reserved_gib * GIB - _EVICTION_RESERVE


def _sum_reserve(amount: float, steps: tuple[tuple[int, float], ...], share_above: float) -> float:
    reserve = 0.0
    for size, share in steps:
        part = min(amount, size)
        reserve += part * share
        amount -= part
    return reserve + amount * share_above


@rule(
    "HF444",
    "disk-larger-than-node",
    Severity.ERROR,
    on=Pod,
    what="The pod asks for more disk, or has larger scratch folders, than its nodes have.",
    why="It fits on no node, or is evicted when the disk of the node is full.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/local-ssd",
    fix="ask for less, use a volume, or a pool with a larger disk",
    base="job-pod",
    bad="""\
containers:
  - name: main
    image: train
    resources:
      limits:
        nvidia.com/gpu: 1
        ephemeral-storage: 900Gi
""",
)
def disk_larger_than_node(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    platform_pools = placement.platform_pools
    if not placement.demands or not platform_pools or len(platform_pools) < len(placement.pools):
        return
    pool = max(platform_pools, key=lambda pool: pool.free_disk_gib)
    fact = f"pool {pool.name} has {pool.free_disk_gib} GiB for pods"
    basis = context.platform.basis(pool, fact)
    request = pod.request("ephemeral-storage") / GIB
    if request > pool.free_disk_gib:
        path = (*pod.main_containers[0].path, "resources")
        yield Hit(path, f"asks for {request:g} GiB of disk", basis)
    for path, volume in pod.volumes:
        folder = as_map(dig(volume, "emptyDir"))
        size = (quantity(folder.get("sizeLimit")) or 0.0) / GIB
        if not as_text(folder.get("medium")) and size > pool.free_disk_gib:
            size_path = (*path, "emptyDir", "sizeLimit")
            yield Hit(size_path, f"may hold {size:g} GiB", basis)


@rule(
    "HF445",
    "more-gpus-than-the-pools-have",
    Severity.ERROR,
    on=Pod,
    what="Pods that run at once ask for more GPUs than all matching pools have at their largest.",
    why="A gang that needs all of its pods never starts; of a server some pods stay Pending.",
    source="the platform document",
    fix="ask for fewer, or raise the nodes of the pool",
    base="job",
    bad="""\
spec:
  completions: 400
  parallelism: 400
""",
    good="""\
spec:
  completions: 4
  parallelism: 4
""",
)
def more_gpus_than_the_pools_have(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    platform = context.platform
    platform_pools = placement.platform_pools
    if not pod.gpus or not placement.demands or not platform_pools:
        return
    capacity = sum(pool.max_nodes * pool.gpus_per_node for pool in platform_pools)
    # Auto-provisioning adds nodes up to a cap, in which the pools are included.
    accelerators: set[str] = set()
    for pool in placement.pools:
        if pool not in platform.pools:
            accelerators.add(pool.accelerator)
    if "" in accelerators:
        return
    capacity = max(capacity, sum(platform.caps.get(name, 0) for name in accelerators))
    replicas, path = _find_most(pod, context)
    request = pod.gpus * replicas
    if request > capacity:
        names = ", ".join(pool.name for pool in platform_pools[:3])
        basis = platform.basis(platform_pools[0], f"{names} have {capacity} GPUs at most")
        yield Hit(path, f"{request} GPUs at once, and the pools have {capacity}", basis)


def _find_most(pod: Pod, context: Context) -> tuple[int, Path]:
    """Returns the most pods that run at once, and the path that says so."""
    if pod.job:
        return pod.replicas, (*pod.job.path, "parallelism")
    max_pods = pod.replicas
    for scaler in context.index.find_scalers(pod.owner):
        max_pods = max(max_pods, as_int(scaler.spec.get("maxReplicas")) or 0)
    for scaler in context.index.list_namespace("ScaledObject", pod.owner.namespace):
        target = as_map(scaler.spec.get("scaleTargetRef"))
        kind = as_text(target.get("kind")) or "Deployment"
        if (kind, target.get("name")) == (pod.owner.kind, pod.owner.name):
            max_pods = max(max_pods, as_int(scaler.spec.get("maxReplicaCount")) or 0)
    return max_pods, ("spec", "replicas")
