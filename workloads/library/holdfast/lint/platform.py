"""Describes what a platform offers to pods: pools, auto-provisioned nodes, windows and caps.

It is built from a platform document; rules ask it and quote it in their findings.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, cached_property
from math import inf

from holdfast.lint.spelling import misspells
from holdfast.platform import document
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import FLEX_TAINT, GPU_TAINT, Pool, Role, Taint

# Node auto-provisioning makes Spot nodes for pods that tolerate and select this; unlike our pools
# it taints them by itself.
NAP_SPOT_TAINT = Taint(key=contract.LABEL_SPOT, value="true")
# Labels that Kubernetes and GKE set on every node, so that no list here can refute a selector on
# them.
UNJUDGED_LABELS = (
    "kubernetes.io/",
    "beta.kubernetes.io/",
    "node.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
    "node-role.kubernetes.io/",
    "topology.gke.io/",
    "topology.kubernetes.io/region",
    "cloud.google.com/",
    "iam.gke.io/",
    "node.gke.io/",
    "sandbox.gke.io/",
    "networking.gke.io/",
    "projectcalico.org/",
)
# GKE sets many labels under cloud.google.com/; these are the ones that a pool of the platform can
# refute.
JUDGED_LABELS = (
    contract.LABEL_SPOT,
    contract.LABEL_FLEX_START,
    contract.LABEL_PROVISIONING,
    contract.LABEL_ACCELERATOR,
    contract.LABEL_NODEPOOL,
)


class Platform:
    """The offer of a platform. Cluster-wide names come from the files under examination instead."""

    def __init__(self, document: document.Platform) -> None:
        self.environment = document.name
        self.pools = document.pools
        self.zones = document.zones
        self.caps = dict(document.auto_provisioning)
        """Accelerator -> GPUs that auto-provisioning may buy."""
        self.project = document.project
        self.registry = document.registry
        self.buckets = tuple(document.buckets.values())
        self.namespaces = tuple(document.namespaces.values())
        self.job_namespaces = tuple(document.job_namespaces)
        self.queues = tuple(document.queues.values())
        """LocalQueues of every namespace of jobs."""

    @cached_property
    def offers(self) -> tuple[Pool, ...]:
        """The pools, and one example of each kind of node that auto-provisioning can create."""
        return (*self.pools, *self._auto_provision())

    def _auto_provision(self) -> Iterable[Pool]:
        base = Pool(
            name="auto-provisioned",
            role=Role.BATCH,
            capacity=Capacity.ON_DEMAND,
            machine_type="",
            min_nodes=0,
            max_nodes=1,
            window=DEFAULT_WINDOW,
        )
        yield base
        yield replace(
            base,
            name="auto-provisioned-spot",
            capacity=Capacity.SPOT,
            taints=(NAP_SPOT_TAINT,),
        )
        for accelerator in self.caps:
            gpu_counts = find_gpu_counts(accelerator)
            gpu = replace(
                base,
                accelerator=accelerator,
                gpus_per_node=max(gpu_counts, default=1),
                taints=(GPU_TAINT,),
            )
            yield replace(gpu, name=f"auto-provisioned-{accelerator}")
            yield replace(
                gpu,
                name=f"auto-provisioned-spot-{accelerator}",
                capacity=Capacity.SPOT,
                taints=(GPU_TAINT, NAP_SPOT_TAINT),
            )
            yield replace(gpu, name=f"flex-start-{accelerator}", capacity=Capacity.FLEX_START)

    def labels(self, pool: Pool) -> dict[str, str]:
        """Returns the labels of a node; auto-provisioned ones have none of the platform's."""
        labels = dict(pool.node_labels())
        if pool not in self.pools:
            for key in (contract.LABEL_POOL_CLASS, contract.LABEL_ROLE, contract.LABEL_NODEPOOL):
                labels.pop(key, None)
        return labels

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """Every taint that a node of this platform may have."""
        taints: list[Taint] = []
        for pool in self.pools:
            taints += pool.taints
        taints += (GPU_TAINT, FLEX_TAINT, contract.QUEUED_TAINT, NAP_SPOT_TAINT)
        return tuple(dict.fromkeys(taints))

    @cached_property
    def label_values(self) -> dict[str, set[str]]:
        """Label key -> values that some pool has."""
        values: dict[str, set[str]] = {contract.LABEL_ZONE: set(self.zones)}
        for pool in self.offers:
            for key, value in self.labels(pool).items():
                values.setdefault(key, set()).add(value)
        return values

    # -- Facts, with the field of the document that has them --

    def basis(self, pool: Pool, fact: str) -> str:
        if pool in self.pools:
            return self._cite(f"pools.{pool.name}", fact)
        if pool.accelerator:
            return self._cite(f"auto_provisioning.{pool.accelerator}", fact)
        return fact

    def window_basis(self, pool: Pool) -> str:
        return self.basis(pool, f"pool {pool.name} gives a pod {pool.window.pod_s} s")

    def cap_basis(self, accelerator: str) -> str:
        fact = f"at most {self.caps.get(accelerator, 0)} x {accelerator} from auto-provisioning"
        return self._cite(f"auto_provisioning.{accelerator}", fact)

    def _cite(self, field: str, fact: str) -> str:
        return f"{fact} (platform document of {self.environment}: {field})"


def find_gpu_counts(accelerator: str) -> list[int]:
    """Returns the numbers of GPUs that machines with this accelerator have."""
    machines = MACHINE_TYPES.values()
    return [machine.gpus for machine in machines if machine.accelerator == accelerator]


def find_machines(accelerator: object, gpus: object) -> list[str]:
    """Returns the names of the machine types with this number of GPUs of this kind."""
    names: list[str] = []
    for machine in MACHINE_TYPES.values():
        if (machine.accelerator, machine.gpus) == (accelerator, gpus):
            names.append(machine.name)
    return names


def machine_size(pool: Pool) -> tuple[float, float]:
    """Returns vCPUs and bytes of memory of one node.

    Infinite where the machine is not known beforehand.
    """
    machine = MACHINE_TYPES.get(pool.machine_type)
    if machine:
        return (float(machine.vcpus), machine.memory_gib * 2.0**30)
    return (inf, inf)


@cache
def is_judged(key: str) -> bool:
    """Returns whether pools can refute a selector on this label, or on one that it nearly is."""
    if key in JUDGED_LABELS:
        return True
    if not key.startswith(UNJUDGED_LABELS):
        return True
    return any(misspells(key, label) for label in JUDGED_LABELS)
