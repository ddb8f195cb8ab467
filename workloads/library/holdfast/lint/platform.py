"""What a platform offers to pods: pools, auto-provisioned nodes, windows, caps, and where each is
written.

Built from a platform document; rules ask it and quote it in their findings.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, cached_property
from math import inf

from holdfast.lint.objects import near
from holdfast.platform import document
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import FLEX_TAINT, GPU_TAINT, Pool, Role, Taint

# NAP makes Spot nodes for pods that tolerate and select this; unlike our pools it taints them by
# itself.
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
    """All that rules know. The cluster-wide names come from the files under examination, not from
    here.
    """

    def __init__(self, document: document.Platform) -> None:
        self.environment = document.name
        self.pools = document.pools
        self.zones = document.zones
        self.caps = dict(document.auto_provisioning)
        """Accelerator -> GPUs that auto-provisioning may buy."""

    @cached_property
    def offers(self) -> tuple[Pool, ...]:
        """The pools, and one example of each kind of node that auto-provisioning can create."""
        return (*self.pools, *self._auto_provisioned())

    def _auto_provisioned(self) -> Iterable[Pool]:
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
            most = max(
                (m.gpus for m in MACHINE_TYPES.values() if m.accelerator == accelerator), default=1
            )
            gpu = replace(
                base,
                accelerator=accelerator,
                gpus_per_node=most,
                taints=(GPU_TAINT,),
            )
            yield replace(gpu, name=f"auto-provisioned-{accelerator}")
            spot = (GPU_TAINT, NAP_SPOT_TAINT)
            yield replace(
                gpu,
                name=f"auto-provisioned-spot-{accelerator}",
                capacity=Capacity.SPOT,
                taints=spot,
            )
            yield replace(gpu, name=f"flex-start-{accelerator}", capacity=Capacity.FLEX_START)

    def labels(self, pool: Pool) -> dict[str, str]:
        """Labels of a node; auto-provisioned ones have none of the platform's."""
        labels = pool.node_labels()
        if pool not in self.pools:
            ours = (contract.LABEL_POOL_CLASS, contract.LABEL_ROLE, contract.LABEL_NODEPOOL)
            labels = {key: value for key, value in labels.items() if key not in ours}
        return labels

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """Every taint that a node of this platform may carry."""
        known = []
        for pool in self.pools:
            for taint in pool.taints:
                known.append(taint)
        return tuple(
            dict.fromkeys(
                [
                    *known,
                    GPU_TAINT,
                    FLEX_TAINT,
                    contract.QUEUED_TAINT,
                    NAP_SPOT_TAINT,
                ]
            )
        )

    @cached_property
    def label_values(self) -> dict[str, set[str]]:
        """Label key -> values that some pool has."""
        values: dict[str, set[str]] = {contract.LABEL_ZONE: set(self.zones)}
        for pool in self.offers:
            for key, value in self.labels(pool).items():
                values.setdefault(key, set()).add(value)
        return values

    # -- Where it is written --

    def basis(self, pool: Pool, fact: str) -> str:
        if pool in self.pools:
            return self._written(f"pools.{pool.name}", fact)
        if pool.accelerator:
            return self._written(f"auto_provisioning.{pool.accelerator}", fact)
        return fact

    def window_basis(self, pool: Pool) -> str:
        return self.basis(pool, f"pool {pool.name} gives a pod {pool.window.pod_s} s")

    def cap_basis(self, accelerator: str) -> str:
        fact = f"at most {self.caps.get(accelerator, 0)} x {accelerator} from auto-provisioning"
        return self._written(f"auto_provisioning.{accelerator}", fact)

    def _written(self, field: str, fact: str) -> str:
        return f"{fact} (platform document of {self.environment}: {field})"


def machine_size(pool: Pool) -> tuple[float, float]:
    """vCPUs and bytes of memory of one node; infinite where the machine is not known beforehand."""
    machine = MACHINE_TYPES.get(pool.machine_type)
    if machine:
        return (float(machine.vcpus), machine.memory_gib * 2.0**30)
    return (inf, inf)


@cache
def is_judged(key: str) -> bool:
    """Whether a selector on this label can be held against the pools; a near miss of such a label
    can.
    """
    if key in JUDGED_LABELS:
        return True
    return not key.startswith(UNJUDGED_LABELS) or bool(near(key, JUDGED_LABELS, cutoff=0.95))


def tolerates(toleration: dict[str, object], taint: Taint) -> bool:
    """Kubernetes' own test: an empty key with Exists tolerates all, an empty effect any effect."""
    key = toleration.get("key") or ""
    operator = toleration.get("operator") or "Equal"
    if toleration.get("effect") not in (None, "", taint.effect.value):
        return False
    if operator == "Exists":
        return key in ("", taint.key)
    return key == taint.key and (toleration.get("value") or "") == taint.value
