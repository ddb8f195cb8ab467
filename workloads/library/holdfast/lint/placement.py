"""Where a pod can land: its selectors and tolerations against what the platform offers.

The scheduler's own arithmetic on labels and taints, so that rules ask "which pools?" and never
parse selectors themselves.
"""

from dataclasses import dataclass
from functools import cached_property

from holdfast.lint.document import Path
from holdfast.lint.objects import Pod, as_list, as_map, as_text, dig, near
from holdfast.lint.platform import NAP_SPOT_TAINT, Platform, is_judged, tolerates
from holdfast.lint.world import holds
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import SPOT_TAINT, Pool

_SPOT_WORDS = ("spot", "preemptible")
FLEX = (Capacity.FLEX_START, Capacity.QUEUED)


@dataclass(frozen=True, slots=True)
class Demand:
    """One requirement on a node's labels."""

    path: Path
    key: str
    operator: str
    values: tuple[str, ...]

    def allows(self, labels: dict[str, str], zones: tuple[str, ...]) -> bool:
        if self.key == contract.LABEL_ZONE:
            return self.operator != "In" or bool(set(self.values) & set(zones))
        return not is_judged(self.key) or holds(self.operator, labels.get(self.key), self.values)


class Placement:
    """Answers for one pod on one platform."""

    def __init__(self, pod: Pod, platform: Platform) -> None:
        self.pod = pod
        self.platform = platform

    @cached_property
    def selector(self) -> list[Demand]:
        chosen = as_map(self.pod.spec.get("nodeSelector"))
        at = (*self.pod.at, "nodeSelector")
        return [
            Demand((*at, key), key, "In", (_label_text(value),)) for key, value in chosen.items()
        ]

    @cached_property
    def terms(self) -> list[list[Demand]]:
        """Alternatives of required node affinity; one empty alternative where there is none."""
        where = (
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        )
        listed = as_list(dig(self.pod.spec, *where))
        at = (*self.pod.at, *where)
        return [
            _expressions((*at, i, "matchExpressions"), term) for i, term in enumerate(listed)
        ] or [[]]

    @cached_property
    def demands(self) -> list[Demand]:
        return [*self.selector, *(demand for term in self.terms for demand in term)]

    def demanded(self, key: str) -> list[Demand]:
        return [d for d in self.demands if d.key == key and d.operator == "In"]

    @cached_property
    def matching(self) -> list[Pool]:
        """What the labels allow, taints aside."""
        # Auto-provisioning makes flex-start nodes for those that ask by name only.
        ours = self.platform.pools
        flex = self.means_flex
        made = [p for p in self.platform.offers if flex or p in ours or p.capacity not in FLEX]
        return [pool for pool in made if self._allows(pool)]

    def _allows(self, pool: Pool) -> bool:
        labels = self.platform.labels(pool)
        zones = pool.zones or self.platform.zones
        return any(
            all(d.allows(labels, zones) for d in (*self.selector, *term)) for term in self.terms
        )

    def untolerated(self, pool: Pool) -> list[contract.Taint]:
        # GKE adds the toleration of the GPU taint to a pod that asks for GPUs.
        repels = [t for t in pool.taints if t.effect is not contract.Effect.PREFER_NO_SCHEDULE]
        taints = [t for t in repels if not (self.pod.gpus and t == contract.GPU_TAINT)]
        return [t for t in taints if not any(tolerates(x, t) for _, x in self.pod.tolerations)]

    @cached_property
    def pools(self) -> list[Pool]:
        """Where the pod can run. Without an answer: what its selectors were meant for."""
        tolerated = [pool for pool in self.matching if not self.untolerated(pool)]
        return tolerated or (self.matching if self.demands else [])

    @cached_property
    def on_spot(self) -> Pool | None:
        """The Spot pool with the shortest window on which this pod may run or means to run."""
        if not (self.means_spot or self.nearly_means_spot or (self.demands and self.ties_to_spot)):
            return None  # a pod that never mentions Spot is not judged by its rules
        spot = [pool for pool in self.pools if pool.capacity is Capacity.SPOT]
        if not spot:
            spot = [pool for pool in self.platform.offers if pool.capacity is Capacity.SPOT]
        return min(spot, key=lambda pool: pool.window.pod_s, default=None)

    @property
    def means_spot(self) -> bool:
        """It says Spot, whether or not a pool answers."""
        if self.means_flex:
            return False
        chosen = self.demanded(contract.LABEL_SPOT) + self.demanded(contract.LABEL_PROVISIONING)
        keys = {as_text(t.get("key")) for _, t in self.pod.tolerations}
        return any(d.values in (("true",), ("spot",)) for d in chosen) or bool(
            keys & {SPOT_TAINT.key, NAP_SPOT_TAINT.key, "cloud.google.com/gke-preemptible"}
        )

    @property
    def nearly_means_spot(self) -> bool:
        """It names a Spot pool, or has a typo in what would: one error must not hide what is wrong
        on Spot.
        """
        if self.means_flex:
            return False
        spot = [pool for pool in self.platform.pools if pool.capacity is Capacity.SPOT]
        classes = {pool.pool_class for pool in spot} | {pool.name for pool in spot}
        chosen = (
            *self.demanded(contract.LABEL_POOL_CLASS),
            *self.demanded(contract.LABEL_NODEPOOL),
        )
        named = any(
            near(value, classes, cutoff=0.85) for demand in chosen for value in demand.values
        )
        keys = [as_text(t.get("key")) for _, t in self.pod.tolerations] + [
            demand.key for demand in self.demands
        ]
        known = (SPOT_TAINT.key, contract.LABEL_SPOT)
        return named or any(
            key.rpartition("/")[2] in _SPOT_WORDS or near(key, known, cutoff=0.85) for key in keys
        )

    @property
    def means_flex(self) -> bool:
        labels = (contract.LABEL_FLEX_START, contract.LABEL_PROVISIONING)
        return any(
            d.values in (("true",), ("flex-start",)) for key in labels for d in self.demanded(key)
        )

    @property
    def on_flex(self) -> bool:
        """It asks for flex-start, or nothing else is left to it."""
        return self.means_flex or bool(
            self.pools and all(pool.capacity in FLEX for pool in self.pools)
        )

    @property
    def interruptible(self) -> bool:
        return self.on_spot is not None or self.on_flex

    @property
    def ties_to_spot(self) -> bool:
        """Every pool that its labels allow is Spot."""
        return bool(self.matching) and all(pool.capacity is Capacity.SPOT for pool in self.matching)


def _label_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expressions(at: Path, term: object) -> list[Demand]:
    found: list[Demand] = []
    for i, e in enumerate(as_list(dig(term, "matchExpressions"))):
        if isinstance(e, dict):
            values = tuple(_label_text(value) for value in as_list(e.get("values")))
            found.append(
                Demand((*at, i), as_text(e.get("key")), as_text(e.get("operator")), values)
            )
    return found
