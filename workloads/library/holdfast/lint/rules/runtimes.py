"""HF484 to HF486: local disks, runtimes and schedulers that a cluster of GKE does not have."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Pod, as_text, dig
from holdfast.lint.placement import Placement
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.storage import LOCAL_SSD

DOC_SSD = "https://cloud.google.com/kubernetes-engine/docs/concepts/local-ssd"
DOC_RUNTIME = "https://kubernetes.io/docs/concepts/containers/runtime-class/"
_SSD_LABELS = (
    "cloud.google.com/gke-ephemeral-storage-local-ssd",
    "cloud.google.com/gke-local-nvme-ssd",
    "cloud.google.com/gke-local-ssd",
)
_BOOT_DISK = "cloud.google.com/gke-boot-disk"
# Machines that come with local SSDs.
_WITH_SSD = re.compile(r"a2-ultragpu|a3-|a4-|a4x-|z3-|-lssd")
_WITHOUT_SSD = ("e2-", "t2a-", "t2d-", "n4-", "c4a-standard-1", "m2-", "h3-")
_RUNTIMES = ("gvisor", "kata", "confidential")
_SCHEDULERS = ("default-scheduler", "gke.io/optimize-utilization-scheduler")
# Schedulers that people install; the linter does not know whether they did.
_OTHER_SCHEDULERS = ("volcano", "yunikorn", "kai-scheduler", "nvidia-run-ai", "binpack-scheduler")


@rule(
    "HF499",
    "tied-to-one-node",
    Severity.ERROR,
    on=Pod,
    what="A pod names the one node on which it runs.",
    why="GKE replaces nodes: with the node the pod ends for good, on Spot within the day.",
    source="https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename",
    fix="select labels of a pool",
    base="job-pod",
    bad="""\
nodeName: gke-train-spot-l4-1a2b
""",
    good="""\
restartPolicy: Never
""",
)
def check_node_names(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.spec.get("nodeName"):
        yield Hit((*pod.spec_path, "nodeName"), "the scheduler and the autoscaler are left out")
    for demand in context.place(pod).find_demands("kubernetes.io/hostname"):
        if len(demand.values) == 1:
            yield Hit(demand.path, f"only {demand.values[0]} may run it")


@rule(
    "HF484",
    "local-disk-missing",
    Severity.ERROR,
    on=Pod,
    what="The pod uses local SSDs, and the machines of its pools have none.",
    why="With the label it stays Pending; a hostPath is a folder of the boot disk in their place.",
    source=DOC_SSD,
    fix="use an emptyDir, or a pool of machines with local SSDs",
    base="job-pod",
    bad="""\
nodeSelector:
  cloud.google.com/gke-ephemeral-storage-local-ssd: 'true'
""",
    good="""\
nodeSelector:
  cloud.google.com/gke-accelerator: nvidia-l4
""",
)
def local_disk_missing(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    yield from _check_machines(placement)
    yield from _check_raw_disks(pod, placement)
    platform_pools = placement.platform_pools
    if not platform_pools or any(_WITH_SSD.search(pool.machine_type) for pool in platform_pools):
        return
    machines = ", ".join(sorted({pool.machine_type for pool in platform_pools}))
    basis = context.platform.basis(platform_pools[0], f"machines: {machines}")
    for demand in placement.find_demands(*_SSD_LABELS):
        yield Hit(demand.path, "its pools have no local SSDs", basis)
    disks = {pool.disk_type for pool in platform_pools}
    for demand in placement.find_demands(_BOOT_DISK):
        if not disks.intersection(demand.values):
            yield Hit(demand.path, f"its pools have boot disks of type {', '.join(sorted(disks))}")
    if pod.owner.kind == "DaemonSet":
        return
    for path, volume in pod.volumes:
        place = as_text(dig(volume, "hostPath", "path"))
        if LOCAL_SSD.search(place[:300]):
            message = f"{place} is on the boot disk: its pools have no local SSDs"
            yield Hit((*path, "hostPath", "path"), message, basis)


def _check_machines(placement: Placement) -> Iterator[Hit]:
    """Yields the machines of a pod that have no local SSDs, where it selects those."""
    for demand in placement.find_demands("node.kubernetes.io/instance-type"):
        for machine in demand.values:
            if placement.find_demands(*_SSD_LABELS) and machine.startswith(_WITHOUT_SSD):
                yield Hit(demand.path, f"{machine} takes no local SSDs")


def _check_raw_disks(pod: Pod, placement: Placement) -> Iterator[Hit]:
    """Yields a selector of raw disks where the pod has folders of the boot disk only."""
    sources = {source for _, volume in pod.volumes for source in volume}
    if sources & {"hostPath", "persistentVolumeClaim", "ephemeral"} or "emptyDir" not in sources:
        return
    for demand in placement.find_demands("cloud.google.com/gke-local-nvme-ssd"):
        fix = "select cloud.google.com/gke-ephemeral-storage-local-ssd"
        yield Hit(demand.path, "its emptyDirs are on the boot disk: these SSDs are raw", fix=fix)


@rule(
    "HF485",
    "runtime-unknown",
    Severity.ERROR,
    on=Pod,
    what="The pod names a RuntimeClass or a scheduler that GKE does not have.",
    why="The API server refuses it; an unknown scheduler places it nowhere, without an event.",
    source=DOC_RUNTIME,
    fix="leave runtimeClassName and schedulerName out: GKE gives GPUs to pods that ask for them",
    base="job-pod",
    bad="""\
runtimeClassName: nvidia
""",
)
def runtime_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    name = as_text(pod.spec.get("runtimeClassName"))
    if name and not name.startswith(_RUNTIMES) and not context.index.find("RuntimeClass", name):
        yield Hit((*pod.spec_path, "runtimeClassName"), f"no RuntimeClass {name}")
    scheduler = as_text(pod.spec.get("schedulerName"))
    is_known = scheduler in (*_SCHEDULERS, *_OTHER_SCHEDULERS)
    if scheduler and not is_known and not context.index.by_kind.get("KubeSchedulerConfiguration"):
        yield Hit((*pod.spec_path, "schedulerName"), f"no scheduler {scheduler}")


@rule(
    "HF486",
    "host-network-without-names",
    Severity.WARNING,
    on=Pod,
    what="A pod in the network of its node does not resolve names of the cluster.",
    why="dnsPolicy ClusterFirst then means the node's resolver, which knows no Service.",
    source="https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy",
    fix="dnsPolicy: ClusterFirstWithHostNet",
    base="job-pod",
    bad="""\
hostNetwork: true
""",
    good="""\
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
""",
)
def host_network_without_names(pod: Pod, context: Context) -> Iterator[Hit]:
    is_default = pod.spec.get("dnsPolicy") in (None, "ClusterFirst")
    if pod.spec.get("hostNetwork") is True and is_default and pod.gpus:
        yield Hit((*pod.spec_path, "hostNetwork"), "dnsPolicy is not ClusterFirstWithHostNet")
