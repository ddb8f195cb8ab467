"""Computes where a pod can land: its selectors and tolerations against the platform's offers.

This is the scheduler's own arithmetic on labels and taints, so that rules ask "which pools?" and
never parse selectors themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from holdfast.lint.document import Path
from holdfast.lint.object_index import holds
from holdfast.lint.objects import Pod, as_list, as_map, as_text, dig
from holdfast.lint.platform import NAP_SPOT_TAINT, Platform, is_judged
from holdfast.lint.spelling import misspells
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import SPOT_TAINT, Pool, tolerates

_SPOT_WORDS = ("spot", "preemptible")
SPOT_TAINT_KEYS = {SPOT_TAINT.key, NAP_SPOT_TAINT.key, "cloud.google.com/gke-preemptible"}
_AFFINITY_TERMS = (
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
)
FLEX = (Capacity.FLEX_START, Capacity.QUEUED)


@dataclass(frozen=True, slots=True)
class Demand:
    """One requirement on a node's labels."""

    path: Path
    key: str
    operator: str
    values: tuple[str, ...]

    @property
    def keeps_away(self) -> bool:
        """Returns whether it names nodes that the pod must not get."""
        return self.operator in ("DoesNotExist", "NotIn")

    def allows(self, labels: dict[str, str], zones: tuple[str, ...]) -> bool:
        if self.key == contract.LABEL_ZONE:
            return self.operator != "In" or not set(zones).isdisjoint(self.values)
        if not is_judged(self.key):
            return True
        return holds(self.operator, labels.get(self.key), self.values)


class Placement:
    """Answers for one pod on one platform."""

    def __init__(self, pod: Pod, platform: Platform) -> None:
        self.pod = pod
        self.platform = platform

    @cached_property
    def selector(self) -> list[Demand]:
        path = (*self.pod.spec_path, "nodeSelector")
        demands: list[Demand] = []
        for key, value in as_map(self.pod.spec.get("nodeSelector")).items():
            values = (_label_text(value),)
            demands.append(Demand((*path, key), key, "In", values))
        return demands

    @cached_property
    def terms(self) -> list[list[Demand]]:
        """Alternatives of required node affinity; one empty alternative where there is none."""
        path = (*self.pod.spec_path, *_AFFINITY_TERMS)
        terms: list[list[Demand]] = []
        for index, term in enumerate(as_list(dig(self.pod.spec, *_AFFINITY_TERMS))):
            terms.append(_parse_expressions((*path, index, "matchExpressions"), term))
        return terms or [[]]

    @cached_property
    def demands(self) -> list[Demand]:
        demands = list(self.selector)
        for term in self.terms:
            demands += term
        return demands

    def find_demands(self, *keys: str) -> list[Demand]:
        """Returns the demands for certain values of these labels."""
        demands: list[Demand] = []
        for demand in self.demands:
            if demand.key in keys and demand.operator == "In":
                demands.append(demand)
        return demands

    @cached_property
    def matching(self) -> list[Pool]:
        """The pools that the labels allow, whatever their taints."""
        offers = self.platform.offers
        return [pool for pool in offers if self._is_offered(pool) and self._allows(pool)]

    def _is_offered(self, pool: Pool) -> bool:
        # Auto-provisioning makes flex-start nodes only for pods that ask for them by name.
        return pool in self.platform.pools or pool.capacity not in FLEX or self.means_flex

    def _allows(self, pool: Pool) -> bool:
        labels = self.platform.labels(pool)
        zones = pool.zones or self.platform.zones
        for term in self.terms:
            demands = [*self.selector, *term]
            if all(demand.allows(labels, zones) for demand in demands):
                return True
        return False

    def find_repelling_taints(self, pool: Pool) -> list[contract.Taint]:
        """Returns the taints of a pool that keep the pod away."""
        return [taint for taint in pool.taints if self._repels(taint)]

    def _repels(self, taint: contract.Taint) -> bool:
        if taint.effect is contract.Effect.PREFER_NO_SCHEDULE:
            return False
        # GKE adds the toleration of the GPU taint to a pod that asks for GPUs.
        if self.pod.gpus and taint == contract.GPU_TAINT:
            return False
        return not any(tolerates(toleration, taint) for _, toleration in self.pod.tolerations)

    @cached_property
    def pools(self) -> list[Pool]:
        """The pools where the pod can run; where there is none, those that its selectors mean."""
        pools = [pool for pool in self.matching if not self.find_repelling_taints(pool)]
        if pools or not self.demands:
            return pools
        return self.matching

    @cached_property
    def platform_pools(self) -> list[Pool]:
        """Those of the pools that the platform names; auto-provisioning makes the others."""
        return [pool for pool in self.pools if pool in self.platform.pools]

    @property
    def gpu_pools(self) -> list[Pool]:
        return [pool for pool in self.pools if pool.accelerator]

    @cached_property
    def on_spot(self) -> Pool | None:
        """The Spot pool with the shortest window on which this pod may run or means to run."""
        is_tied = bool(self.demands) and self.ties_to_spot
        if not (self.means_spot or self.nearly_means_spot or is_tied):
            return None  # a pod that never mentions Spot is not judged by its rules
        pools = _filter_spot(self.pools) or _filter_spot(self.platform.offers)
        return min(pools, key=lambda pool: pool.window.pod_s, default=None)

    @property
    def toleration_keys(self) -> list[str]:
        return [as_text(toleration.get("key")) for _, toleration in self.pod.tolerations]

    @property
    def means_spot(self) -> bool:
        """Returns whether the pod asks for Spot, whether or not any pool offers it."""
        if self.means_flex:
            return False
        for demand in self.find_demands(contract.LABEL_SPOT, contract.LABEL_PROVISIONING):
            if demand.values in (("true",), ("spot",)):
                return True
        return not SPOT_TAINT_KEYS.isdisjoint(self.toleration_keys)

    @property
    def nearly_means_spot(self) -> bool:
        """Returns whether the pod names a Spot pool, or has a typo in such a name or a Spot key.

        One error must not hide what is wrong on Spot.
        """
        if self.means_flex:
            return False
        pool_names: set[str] = set()
        for pool in _filter_spot(self.platform.pools):
            pool_names |= {pool.name, pool.pool_class}
        for demand in self.find_demands(contract.LABEL_POOL_CLASS, contract.LABEL_NODEPOOL):
            if any(_is_name_or_typo(value, pool_names) for value in demand.values):
                return True
        wanted_keys = [demand.key for demand in self.demands if not demand.keeps_away]
        return any(map(_is_nearly_spot_key, self.toleration_keys + wanted_keys))

    @property
    def means_flex(self) -> bool:
        for demand in self.find_demands(contract.LABEL_FLEX_START, contract.LABEL_PROVISIONING):
            if demand.values in (("true",), ("flex-start",)):
                return True
        return False

    @property
    def on_flex(self) -> bool:
        """Returns whether the pod asks for flex-start, or can run nowhere else."""
        if self.means_flex:
            return True
        return bool(self.pools) and all(pool.capacity in FLEX for pool in self.pools)

    @property
    def interruptible(self) -> bool:
        return self.on_spot is not None or self.on_flex

    @property
    def ties_to_spot(self) -> bool:
        """Returns whether every pool that the labels allow is Spot."""
        return bool(self.matching) and _filter_spot(self.matching) == self.matching


def _is_nearly_spot_key(key: str) -> bool:
    if key.rpartition("/")[2] in _SPOT_WORDS:
        return True
    return _is_name_or_typo(key, (SPOT_TAINT.key, contract.LABEL_SPOT))


def _is_name_or_typo(word: str, names: Iterable[str]) -> bool:
    return any(word == name or misspells(word, name) for name in names)


def _filter_spot(pools: list[Pool] | tuple[Pool, ...]) -> list[Pool]:
    return [pool for pool in pools if pool.capacity is Capacity.SPOT]


def _label_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_expressions(path: Path, term: object) -> list[Demand]:
    demands: list[Demand] = []
    for index, expression in enumerate(as_list(dig(term, "matchExpressions"))):
        if isinstance(expression, dict):
            key = as_text(expression.get("key"))
            operator = as_text(expression.get("operator"))
            values = tuple(map(_label_text, as_list(expression.get("values"))))
            demands.append(Demand((*path, index), key, operator, values))
    return demands
