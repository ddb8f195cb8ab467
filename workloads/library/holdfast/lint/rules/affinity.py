"""HF48x: labels of nodes that exclude each other, and constraints that nothing can meet."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.object_index import match_labels, selects
from holdfast.lint.objects import Object, Pod, as_list, as_map, as_text, dig
from holdfast.lint.placement import Demand, Placement
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near, suggest
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import QUEUE_ANY, QUEUES, Capacity
from holdfast.vocabulary.kubernetes import (
    JOB_PRIORITIES,
    LABEL_JOB_PRIORITY,
    LABEL_QUEUE,
    name_job_priority,
)
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import Pool

DOC_MACHINES = "https://cloud.google.com/compute/docs/machine-resource"
DOC_AFFINITY = "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"
DOC_SPREAD = "https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/"
DOC_ARM = (
    "https://cloud.google.com/kubernetes-engine/docs/how-to/prepare-arm-workloads-for-deployment"
)
_CLASSES = ("Accelerator", "Balanced", "Performance", "Scale-Out", "autopilot", "autopilot-spot")
QUEUED_KINDS = (
    *("Job", "JobSet", "Pod", "Deployment", "StatefulSet", "LeaderWorkerSet"),
    *("PyTorchJob", "MPIJob", "TrainJob", "RayJob", "RayCluster"),
)
_FLEX_QUEUES = (QUEUES[Capacity.FLEX_START], QUEUES[Capacity.QUEUED])
LABEL_FAMILY = "cloud.google.com/machine-family"
LABEL_MACHINE = "node.kubernetes.io/instance-type"
LABEL_ARCH = "kubernetes.io/arch"
LABEL_COUNT = "cloud.google.com/gke-accelerator-count"
LABEL_OS = "kubernetes.io/os"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_HOST = "kubernetes.io/hostname"
_TOPOLOGY_KEYS = (
    LABEL_HOST,
    contract.LABEL_ZONE,
    LABEL_REGION,
    contract.LABEL_NODEPOOL,
    LABEL_MACHINE,
    "topology.gke.io/zone",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    "cloud.google.com/gke-placement-group",
    "cloud.google.com/gke-spot",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_KUBERNETES = re.compile(r"(.*\.)?(kubernetes\.io|k8s\.io)/.*")
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_GPU_FAMILIES = {"a2", "a3", "a4", "a4x", "g2", "g4"}
_STANDARD = re.compile(r"([a-z]\d[a-z]{0,2})-(?:standard|highmem|highcpu)-(\d{1,3})")
_ZONE = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z]")
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def _values(placement: Placement, key: str) -> tuple[list[Demand], set[str]]:
    demands = placement.find_demands(key)
    values: set[str] = set()
    for demand in demands:
        values |= set(demand.values)
    return demands, values


@rule(
    "HF480",
    "machine-labels-contradict",
    Severity.ERROR,
    on=Pod,
    what="Selected labels of machines exclude each other, or no machine of Google has them.",
    why="A node has all labels of its machine and no others: the pod stays Pending.",
    source=DOC_MACHINES,
    fix="select one of the labels, or those of one machine type",
    base="serving-pod",
    bad="""\
nodeSelector:
  cloud.google.com/machine-family: c4a
  kubernetes.io/arch: amd64
  holdfast.dev/pool-class: null
containers:
  - name: main
    image: server
""",
    good="""\
nodeSelector:
  cloud.google.com/machine-family: c4
  kubernetes.io/arch: amd64
  holdfast.dev/pool-class: null
containers:
  - name: main
    image: server
""",
)
def machine_labels_contradict(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    family_demands, families = _values(placement, LABEL_FAMILY)
    machine_demands, machines = _values(placement, LABEL_MACHINE)
    _, arches = _values(placement, LABEL_ARCH)
    yield from _check_names(placement)
    yield from _check_labels(placement, context)
    yield from _check_sizes(pod, placement)
    named = families | {machine.partition("-")[0] for machine in machines}
    demands = family_demands + machine_demands
    if named and demands:
        yield from _check_families(placement, demands[0], named, arches, pod)
    for demand in machine_demands:
        for name in demand.values:
            if families and name.partition("-")[0] not in families:
                yield Hit(demand.path, f"{name} is no machine of {', '.join(sorted(families))}")
    yield from _check_places(placement)
    yield from _check_gpus(placement, arches, pod)


def _check_gpus(placement: Placement, arches: set[str], pod: Pod) -> Iterator[Hit]:
    """Yields GPUs that no machine of the architecture has, or not as many of them."""
    table = load_table("machines")
    for demand in placement.find_demands(contract.LABEL_ACCELERATOR):
        homes: set[str] = set()
        for accelerator in demand.values:
            homes.update(table["accelerators"].get(accelerator, ()))
        if arches == {"arm64"} and homes and homes.isdisjoint(table["arm_families"]):
            machines = ", ".join(sorted(homes))
            message = f"{demand.values[0]} is in {machines}, which is x86: not {LABEL_ARCH}=arm64"
            yield Hit(demand.path, message)
    # Pools are compared where the accelerator says nothing.
    pools = () if placement.find_demands(contract.LABEL_ACCELERATOR) else placement.platform_pools
    families = {pool.machine_type.partition("-")[0] for pool in pools}
    if arches == {"arm64"} and families and families.isdisjoint(table["arm_families"]):
        demand = placement.find_demands(LABEL_ARCH)[0]
        machines = ", ".join(sorted(families))
        yield Hit(demand.path, f"its pools are of {machines}, which are x86")
    for demand in placement.find_demands(LABEL_COUNT):
        counts = [int(value[:9]) for value in demand.values if value.isdecimal()]
        if counts and max(counts) < pod.gpus:
            message = f"nodes with {max(counts)} GPUs, and the pod asks for {pod.gpus}"
            yield Hit(demand.path, message)


def _check_names(placement: Placement) -> Iterator[Hit]:
    """Yields names of families, machines, architectures and systems that do not exist."""
    tables = {
        LABEL_FAMILY: load_table("machines")["families"],
        LABEL_ARCH: ("amd64", "arm64"),
        LABEL_OS: ("linux", "windows"),
    }
    for key, names in tables.items():
        for demand in placement.find_demands(key):
            for value in demand.values:
                if value not in names:
                    listed = f"; there are {', '.join(names)}"
                    hint = suggest(value, names, 0.5, otherwise=listed)
                    yield Hit(demand.path, f"no node has {key}={value}{hint}")
    for demand in placement.find_demands(LABEL_MACHINE):
        for value in demand.values:
            family = value.partition("-")[0]
            if value.count("-") < 1 or family not in load_table("machines")["families"]:
                hint = suggest(value, MACHINE_TYPES)
                yield Hit(demand.path, f"Google has no machine {value}{hint}")


def _check_sizes(pod: Pod, placement: Placement) -> Iterator[Hit]:
    """Yields machines that Google does not sell, or that have fewer cores than the pod asks."""
    request = pod.request("cpu")
    for demand in placement.find_demands(LABEL_MACHINE):
        for machine in demand.values:
            match = _STANDARD.fullmatch(machine)
            vcpus = load_table("machines")["vcpus"].get(match[1]) if match else None
            if match is None or vcpus is None:
                continue
            cores = int(match[2])
            if cores not in vcpus:
                listed = ", ".join(map(str, vcpus))
                yield Hit(demand.path, f"no machine {machine}: {match[1]} has {listed} vCPUs")
            elif request > cores and len(demand.values) == 1:
                yield Hit(demand.path, f"{machine} has {cores} vCPUs, and the pod asks {request:g}")


def _check_labels(placement: Placement, context: Context) -> Iterator[Hit]:
    """Yields labels, and values of them, that no node has."""
    for demand in placement.demands:
        domain, _, label = demand.key.partition("/")
        known_labels = load_table("node_domains").get(domain, [label])
        if label not in known_labels:
            hint = suggest(label, known_labels, 0.3)
            yield Hit(demand.path, f"no node has a label {demand.key}{hint}")
        known_values = load_table("node_labels").get(demand.key, demand.values)
        for value in demand.values:
            if value not in known_values:
                yield Hit(demand.path, f"no node has {demand.key}={value}; write true in quotes")
    for demand in placement.find_demands(contract.LABEL_COMPUTE_CLASS):
        known_classes = (*_CLASSES, *context.index.list_names("ComputeClass"))
        for value in demand.values:
            near_class = find_near(value, known_classes, 0.75)
            if value not in known_classes and near_class:
                yield Hit(demand.path, f"no ComputeClass {value}; did you mean {near_class}?")


def _check_families(
    placement: Placement, demand: Demand, families: set[str], arches: set[str], pod: Pod
) -> Iterator[Hit]:
    table = load_table("machines")
    are_arm = families.issubset(table["arm_families"])
    are_x86 = families.isdisjoint(table["arm_families"])
    listed = ", ".join(sorted(families))
    if are_arm and "amd64" in arches:
        yield Hit(demand.path, f"{listed} is ARM, and the pod selects {LABEL_ARCH}=amd64")
    elif are_x86 and arches == {"arm64"}:
        yield Hit(demand.path, f"{listed} is x86, and the pod selects {LABEL_ARCH}=arm64")
    elif are_arm and not arches and LABEL_ARCH not in placement.toleration_keys:
        yield Hit(demand.path, f"GKE taints ARM machines: select {LABEL_ARCH}=arm64 too")
    _, accelerators = _values(placement, contract.LABEL_ACCELERATOR)
    for accelerator in accelerators:
        homes = table["accelerators"].get(accelerator, ())
        if homes and families.isdisjoint(homes):
            yield Hit(demand.path, f"{accelerator} is in {', '.join(homes)}, not in {listed}")
    has_gpus = (
        any(families & set(homes) for homes in table["accelerators"].values()) or "n1" in families
    )
    if pod.gpus and not has_gpus:
        yield Hit(demand.path, f"machines of {listed} have no GPUs")
    if not pod.gpus and families <= _GPU_FAMILIES and pod.owner.kind != "DaemonSet":
        yield Hit(demand.path, f"machines of {listed} have GPUs, and the pod asks for none")
    for name in placement.find_demands(LABEL_MACHINE):
        machines = [MACHINE_TYPES[value] for value in name.values if value in MACHINE_TYPES]
        if machines and pod.gpus > max(machine.gpus for machine in machines):
            sizes = ", ".join(f"{machine.name} has {machine.gpus}" for machine in machines)
            yield Hit(name.path, f"the pod asks for {pod.gpus} GPUs, and {sizes}")


def _check_places(placement: Placement) -> Iterator[Hit]:
    """Yields a zone that is not in the selected region."""
    _, regions = _values(placement, LABEL_REGION)
    for demand in placement.find_demands(contract.LABEL_ZONE):
        for zone in demand.values:
            match = _ZONE.fullmatch(zone)
            if match and regions and match[1] not in regions:
                yield Hit(demand.path, f"{zone} is not in {', '.join(sorted(regions))}")


_ANTI = """\
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - {{labelSelector: {{matchLabels: {{app: server}}}}, topologyKey: {}}}
"""


@rule(
    "HF481",
    "topology-key-unknown",
    Severity.ERROR,
    on=Pod,
    what="A topologyKey is a label that no node has.",
    why="A required rule over it can never be met; a preferred one has no effect.",
    source=DOC_AFFINITY,
    fix=f"write {LABEL_HOST} or {contract.LABEL_ZONE}",
    base="serving-pod",
    bad=_ANTI.format("kubernetes.io/host"),
    good=_ANTI.format("kubernetes.io/hostname"),
)
def topology_key_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    label_keys = context.platform.label_values.keys()
    for path, term in (*_list_terms(pod), *_list_spreads(pod)):
        key = as_text(term.get("topologyKey"))
        if not key:
            yield Hit(path, "has no topologyKey")
        elif key not in _TOPOLOGY_KEYS and key not in label_keys:
            hint = suggest(key, _TOPOLOGY_KEYS[:4])
            is_old = key.startswith("failure-domain")
            if _KUBERNETES.fullmatch(key[:200]) or "/" not in key or hint or is_old:
                yield Hit((*path, "topologyKey"), f"no node has a label {key}{hint}")
    for path, key in _list_annotations(pod):
        if key not in _TOPOLOGY_KEYS and key not in label_keys:
            yield Hit(path, f"no node has a label {key}")


def _list_annotations(pod: Pod) -> Iterator[tuple[Path, str]]:
    """Yields the labels by which JobSet keeps Jobs apart."""
    bodies: list[tuple[Path, dict[str, Any]]] = [
        (("metadata", "annotations"), pod.owner.annotations)
    ]
    bodies.append(((*pod.path, "metadata", "annotations"), pod.annotations))
    for path, annotations in bodies:
        key = as_text(annotations.get(_EXCLUSIVE))
        if key:
            yield (*path, _EXCLUSIVE), key


def _list_terms(pod: Pod) -> list[tuple[Path, dict[str, Any]]]:
    """Lists the terms of affinity to pods and against them, each with its path."""
    terms: list[tuple[Path, dict[str, Any]]] = []
    for kind in ("podAffinity", "podAntiAffinity"):
        place = ("affinity", kind, _TERMS)
        for index, term in enumerate(as_list(dig(pod.spec, *place))):
            terms.append(((*pod.spec_path, *place, index), as_map(term)))
        place = ("affinity", kind, "preferredDuringSchedulingIgnoredDuringExecution")
        for index, term in enumerate(as_list(dig(pod.spec, *place))):
            path = (*pod.spec_path, *place, index, "podAffinityTerm")
            terms.append((path, as_map(dig(term, "podAffinityTerm"))))
    return terms


def _list_spreads(pod: Pod) -> list[tuple[Path, dict[str, Any]]]:
    spreads: list[tuple[Path, dict[str, Any]]] = []
    for index, spread in enumerate(as_list(pod.spec.get("topologySpreadConstraints"))):
        spreads.append(((*pod.spec_path, "topologySpreadConstraints", index), as_map(spread)))
    return spreads


@rule(
    "HF482",
    "constraint-over-no-pod",
    Severity.ERROR,
    on=Pod,
    what="Pod affinity or spreading is over labels that no pod of the file has, or cannot be met.",
    why="Required affinity to no pod keeps the pod Pending; spreading over none spreads nothing.",
    source=DOC_SPREAD,
    fix="select the labels of the pod template",
    base="serving-pod",
    bad="""\
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: DoNotSchedule
    labelSelector:
      matchLabels:
        app: servers
""",
    good="""\
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: DoNotSchedule
    labelSelector:
      matchLabels:
        app: server
""",
)
def constraint_over_no_pod(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, spread in _list_spreads(pod):
        selector = spread.get("labelSelector")
        if not selector and not spread.get("matchLabelKeys"):
            yield Hit(path, "has no labelSelector: it counts no pods, and spreads none")
        if match_labels(selector) and not selects(selector, pod):
            yield Hit((*path, "labelSelector"), "does not match the labels of its own pods")
    for path, term in _list_terms(pod):
        selector = term.get("labelSelector")
        is_here = not term.get("namespaces") and not term.get("namespaceSelector")
        if match_labels(selector) and is_here:
            yield from _check_term(path, term, pod, context)


def _check_term(path: Path, term: dict[str, Any], pod: Pod, context: Context) -> Iterator[Hit]:
    selector = term.get("labelSelector")
    neighbors = context.index.list_pods_near(pod.owner)
    is_needed = "podAffinity" in path and _TERMS in path
    if not any(selects(selector, neighbor) for neighbor in neighbors):
        labels = match_labels(selector)
        values = {str(neighbor.labels.get(key)) for key in labels for neighbor in neighbors}
        is_typo = any(find_near(value, values, 0.7) for value in labels.values())
        if is_typo and (is_needed or "podAntiAffinity" in path):
            yield Hit((*path, "labelSelector"), "matches none of the pods in its file")
    if "podAntiAffinity" not in path or _TERMS not in path or not selects(selector, pod):
        return
    zones = context.platform.zones
    key = term.get("topologyKey")
    limits = {contract.LABEL_ZONE: len(zones), LABEL_REGION: 1}
    limit = limits.get(as_text(key))
    if limit is not None and pod.replicas > limit:
        yield Hit((*path, "topologyKey"), f"{pod.replicas} pods, apart from each other in {limit}")


@rule(
    "HF483",
    "queue-against-selector",
    Severity.ERROR,
    on=Object,
    kinds=QUEUED_KINDS,
    what="The queue of a job lends other capacity than its pods select.",
    why="Kueue finds no flavor for it and never admits it; it stays suspended.",
    source="https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/",
    fix="name the queue of the capacity that the pods select",
    base="job",
    bad=f"metadata: {{labels: {{{LABEL_QUEUE}: on-demand}}}}",
    good=f"metadata: {{labels: {{{LABEL_QUEUE}: spot}}}}",
)
def queue_against_selector(obj: Object, context: Context) -> Iterator[Hit]:
    queue = obj.queue
    platform = context.platform
    if not queue or obj.namespace not in platform.job_namespaces:
        return
    queues = platform.queues
    is_known = queue in (*queues, QUEUE_ANY)
    if not is_known and not context.index.find("LocalQueue", queue, obj.namespace):
        listed = ", ".join(queues)
        hint = suggest(queue, queues, 0.5, otherwise=f"; it has {listed}")
        basis = f"queues of {platform.environment}: {listed}"
        path = ("metadata", "labels", LABEL_QUEUE)
        yield Hit(path, f"{obj.namespace} has no LocalQueue {queue}{hint}", basis)
    yield from _check_priority(obj, context)
    if queue not in QUEUES.values():
        return
    for pod in obj.pods:
        placement = context.place(pod)
        if placement.on_flex and queue not in _FLEX_QUEUES:
            message = f"queue {queue} lends no flex-start nodes; {' and '.join(_FLEX_QUEUES)} do"
            yield Hit(("metadata", "labels", LABEL_QUEUE), message)
            return
        demands = placement.find_demands(
            contract.LABEL_POOL_CLASS, contract.LABEL_NODEPOOL, contract.LABEL_SPOT
        )
        pools = [pool for pool in placement.matching if pool in platform.pools]
        if not demands or not pools:
            continue
        names = set(map(_find_queue, pools))
        if queue not in names:
            listed = ", ".join(sorted(names))
            basis = platform.basis(pools[0], f"jobs on {pools[0].name} are in queue {listed}")
            message = f"queue {queue} lends none of the nodes that the pods select"
            yield Hit(("metadata", "labels", LABEL_QUEUE), message, basis)


def _check_priority(obj: Object, context: Context) -> Iterator[Hit]:
    name = as_text(obj.labels.get(LABEL_JOB_PRIORITY))
    known_names = list(map(name_job_priority, JOB_PRIORITIES))
    known_names += context.index.list_names("WorkloadPriorityClass")
    if name and name not in known_names:
        message = f"no WorkloadPriorityClass {name}; there are {', '.join(known_names)}"
        yield Hit(("metadata", "labels", LABEL_JOB_PRIORITY), message)


def _find_queue(pool: Pool) -> str:
    return QUEUES[pool.capacity]
