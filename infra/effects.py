"""Says in words what a change of an environment takes away and what it gives: the difference of two
platform documents. The difference of cloud resources is that of `infra plan` and `infra diff`.
"""

# Decision: infra/decisions/0134.

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.platform import Platform, codec
from holdfast.platform.flavors import list_flavors
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Pool

RENDERED = Path(__file__).parents[1] / "workloads" / "rendered"
WAITING = "its running jobs are evicted, and those that wait there wait forever"


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    takes: bool
    """False: it gives."""
    text: str

    def __str__(self) -> str:
        return f"{'takes' if self.takes else 'gives'}: {self.text}"


def read_rendered(name: str, folder: Path | None = None) -> Platform | None:
    """Return the platform that was rendered last; None if there is none, or if a newer or older
    release wrote it.
    """
    path = (folder or RENDERED) / name / codec.FILE
    if not path.is_file():
        return None
    try:
        return codec.read(path)
    except InputError:
        return None


def compare(before: Platform | None, after: Platform) -> list[Effect]:
    """Return the effects, losses first. None before: everything is new, which needs no words."""
    if before is None:
        return []
    effects = [
        *_compare_cluster(before, after),
        *_compare_numbers(_count_gpus(before), _count_gpus(after), "GPUs"),
        *_compare_names(list_flavors(before), list_flavors(after), "quota", WAITING),
    ]
    comparisons = (
        _compare_pools,
        _compare_quotas,
        _compare_zones,
        _compare_window,
        _compare_runs,
        _compare_teams,
        _compare_egress,
        _compare_services,
        _compare_protections,
    )
    for comparison in comparisons:
        effects += comparison(before, after)
    unique = dict.fromkeys(effects)
    return sorted(unique, key=lambda effect: not effect.takes)


def _compare_cluster(before: Platform, after: Platform) -> Iterator[Effect]:
    if before.identity != after.identity:
        text = f"cluster {before.cluster} with all it has; {after.cluster} is another one"
        yield Effect(takes=True, text=text)
    for purpose, bucket in before.buckets.items():
        if after.buckets.get(purpose) != bucket:
            yield Effect(takes=True, text=f"bucket {bucket}: jobs no longer find what is in it")


def _compare_numbers(
    before: Mapping[str, float],
    after: Mapping[str, float],
    unit: str,
) -> Iterator[Effect]:
    for name in dict.fromkeys([*before, *after]):
        yield from _compare_number(name, before.get(name, 0), after.get(name, 0), unit)


def _compare_number(name: str, old: float, new: float, unit: str) -> Iterator[Effect]:
    if old != new:
        text = f"{name}: {old:g} to {new:g} {unit}"
        yield Effect(takes=new < old, text=text)


def _compare_names(
    before: Collection[str],
    after: Collection[str],
    kind: str,
    consequence: str = "",
) -> Iterator[Effect]:
    ending = f": {consequence}" if consequence else ""
    for name in before:
        if name not in after:
            yield Effect(takes=True, text=f"{kind} {name} goes{ending}")
    for name in after:
        if name not in before:
            yield Effect(takes=False, text=f"{kind} {name}")


def _count_gpus(platform: Platform) -> Counter[str]:
    """Return `capacity of accelerator` -> GPUs at most. Auto-provisioning has what the pools leave
    of its cap, and sells it as flex-start.
    """
    gpus: Counter[str] = Counter()
    in_pools: Counter[str] = Counter()
    for pool in platform.pools:
        count = pool.max_nodes * pool.gpus_per_node
        if count:
            offer = _name_offer(pool.capacity, pool.accelerator)
            gpus[offer] += count
            in_pools[pool.accelerator] += count
    for accelerator, cap in platform.auto_provisioning.items():
        offer = _name_offer(Capacity.FLEX_START, accelerator)
        gpus[offer] += max(0, cap - in_pools[accelerator])
    return gpus


def _name_offer(capacity: Capacity, accelerator: str) -> str:
    sold = Capacity.FLEX_START if capacity is Capacity.QUEUED else capacity
    return f"{sold.value} of {accelerator}"


def _prefix_keys(prefix: str, numbers: Mapping[str, int]) -> dict[str, int]:
    return {f"{prefix}{key}": number for key, number in numbers.items()}


def _compare_quotas(before: Platform, after: Platform) -> Iterator[Effect]:
    old = _prefix_keys("quota of ", before.quotas)
    new = _prefix_keys("quota of ", after.quotas)
    yield from _compare_numbers(old, new, "GPUs that jobs may use at the same time")


def _list_fixed_settings(pool: Pool) -> tuple[object, ...]:
    """Return the settings for which GKE replaces a pool, which ends the pods on its nodes."""
    disks = (pool.disk_type, pool.disk_gib, pool.local_ssds)
    return (pool.machine_type, pool.capacity, pool.accelerator, *disks)


def _compare_pools(before: Platform, after: Platform) -> Iterator[Effect]:
    old_pools = {pool.name: pool for pool in before.pools}
    new_pools = {pool.name: pool for pool in after.pools}
    consequence = "its nodes are drained and deleted"
    yield from _compare_names(old_pools, new_pools, "node pool", consequence)
    for name, old in old_pools.items():
        if name not in new_pools:
            continue
        new = new_pools[name]
        if _list_fixed_settings(old) != _list_fixed_settings(new):
            yield Effect(takes=True, text=f"node pool {name} is replaced: {consequence}")
        title = f"node pool {name}"
        yield from _compare_number(title, old.max_nodes, new.max_nodes, "nodes at most")
        yield from _compare_number(title, old.min_nodes, new.min_nodes, "nodes that always run")


def _compare_zones(before: Platform, after: Platform) -> Iterator[Effect]:
    consequence = "its nodes end, and there is one place less to find Spot machines"
    yield from _compare_names(before.zones, after.zones, "zone", consequence)


def _compare_window(before: Platform, after: Platform) -> Iterator[Effect]:
    old_windows = {pool.name: pool.window.pod_s for pool in before.pools}
    new_windows = {pool.name: pool.window.pod_s for pool in after.pools}
    for name in sorted(old_windows.keys() & new_windows.keys()):
        title = f"notice on Spot pool {name}"
        yield from _compare_number(title, old_windows[name], new_windows[name], "s for a pod")


def _compare_runs(before: Platform, after: Platform) -> Iterator[Effect]:
    consequence = "it can no longer write its checkpoints, which stay in the bucket"
    if not after.runs and before.runs:
        yield Effect(takes=True, text="runs are no longer kept apart: all training shares a folder")
        return
    old_names = [run.name for run in before.runs]
    new_names = [run.name for run in after.runs]
    yield from _compare_names(old_names, new_names, "run", consequence)


def _compare_teams(before: Platform, after: Platform) -> Iterator[Effect]:
    old_teams = {team.name: team for team in before.other_teams}
    new_teams = {team.name: team for team in after.other_teams}
    consequence = "members lose their rights, and its jobs their queues and their account"
    yield from _compare_names(old_teams, new_teams, "team", consequence)
    for name, old in old_teams.items():
        if name not in new_teams:
            continue
        new = new_teams[name]
        kind = f"namespace of team {name}:"
        yield from _compare_names(old.namespaces, new.namespaces, kind)
        if old.members != new.members:
            if old.members:
                yield Effect(takes=True, text=f"team {name}: {old.members} may not submit")
            if new.members:
                yield Effect(takes=False, text=f"team {name}: {new.members} may submit")
        title = f"team {name}"
        old_quotas = _prefix_keys(f"{title}, ", old.quotas)
        new_quotas = _prefix_keys(f"{title}, ", new.quotas)
        yield from _compare_numbers(old_quotas, new_quotas, "GPUs guaranteed")
        yield from _compare_number(title, old.service_gpus, new.service_gpus, "GPUs of services")


def _compare_egress(before: Platform, after: Platform) -> Iterator[Effect]:
    namespaces = dict.fromkeys([*before.job_namespaces, *after.job_namespaces])
    for namespace in namespaces:
        old_hosts = before.list_egress(namespace)
        new_hosts = after.list_egress(namespace)
        kind = f"way out of {namespace}:"
        yield from _compare_names(old_hosts, new_hosts, kind, "its pods wait for it in vain")


def _compare_services(before: Platform, after: Platform) -> Iterator[Effect]:
    old_database = [before.database.connection] if before.database else []
    new_database = [after.database.connection] if after.database else []
    consequence = "results that are in it, and the queue of batches"
    yield from _compare_names(old_database, new_database, "database", consequence)
    old_topics = before.topics.values()
    new_topics = after.topics.values()
    yield from _compare_names(old_topics, new_topics, "topic", "with its backlog")
    old = before.serving
    new = after.serving
    if new and not old:
        yield Effect(takes=False, text="online inference")
    if old and not new:
        yield Effect(takes=True, text="online inference goes: servers and proxies are deleted")
    if old and new:
        minimum = "servers on demand, at least"
        yield from _compare_number(minimum, old.base_replicas, new.base_replicas, "replicas")
        limit = "servers on demand, at most"
        yield from _compare_number(limit, old.base_most, new.base_most, "replicas")
        limit = "servers on Spot, at most"
        yield from _compare_number(limit, old.overflow_most, new.overflow_most, "replicas")


def _is_narrower(patterns: Collection[str] | None, old_patterns: Collection[str] | None) -> bool:
    """Tell whether fewer images may run. Without patterns, no policy refuses an image."""
    if old_patterns is None:
        return True
    if not patterns:
        return False
    return not set(old_patterns) <= set(patterns)


def _compare_protections(before: Platform, after: Platform) -> Iterator[Effect]:
    settings = {
        "secret_manager": "jobs can mount secrets",
        "signed_checkpoints": "checkpoints are signed",
        "gpu_exporter": "faults of GPUs are seen, and their alerts",
    }
    for name, meaning in settings.items():
        old = getattr(before.security, name)
        new = getattr(after.security, name)
        if old != new:
            yield Effect(takes=old, text=f"{meaning} (security.{name})")
    old_patterns = before.security.image_patterns
    new_patterns = after.security.image_patterns
    if old_patterns != new_patterns:
        allowed = "all" if new_patterns is None else ", ".join(new_patterns)
        yield Effect(
            takes=_is_narrower(new_patterns, old_patterns),
            text=f"images that may run: {allowed}",
        )
    if before.drills != after.drills:
        yield Effect(takes=before.drills, text="drills may evict pods here (allow_drills)")
