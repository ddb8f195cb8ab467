"""Edits of a set of facts, from which `broken` puts together how to break each rule."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from infra.rules.model import Facts, PlannedResource

Edit = Callable[[Facts], Facts]


def put(address: str, path: str, value: Any) -> Edit:
    """Set one argument. A number in the path is an index."""

    def edit(facts: Facts) -> Facts:
        def change(resource: PlannedResource) -> PlannedResource:
            if resource.address != address:
                return resource
            values = deepcopy(dict(resource.values))
            *parents, last = path.split(".")
            holder: Any = values
            for part in parents:
                holder = holder[int(part)] if part.isdigit() else holder.setdefault(part, {})
            holder[int(last) if last.isdigit() else last] = value
            return replace(resource, values=values)

        edited = replace(facts, resources=tuple(change(f) for f in facts.resources))
        assert edited != facts, f"{address} {path} does not change"
        return edited

    return edit


def add(address: str, **values: Any) -> Edit:
    kind = address.split(".")[0]
    return lambda facts: replace(
        facts,
        resources=(*facts.resources, PlannedResource(kind=kind, address=address, values=values)),
    )


def ignore(address: str, *paths: str) -> Edit:
    """Ignore changes of these arguments only."""

    def edit(facts: Facts) -> Facts:
        resources = []
        for resource in facts.resources:
            ignored = paths if resource.address == address else resource.ignore_changes
            resources.append(replace(resource, ignore_changes=ignored))
        return replace(facts, resources=tuple(resources))

    return edit


def state(**fields: Any) -> Edit:
    """Change fields of the environment, and leave the resources as they are."""
    return lambda facts: replace(facts, environment=replace(facts.environment, **fields))


def _section(name: str) -> Callable[..., Edit]:
    """Edits of the fields of one section of the environment."""

    def edit(**fields: Any) -> Edit:
        return lambda facts: state(**{name: replace(getattr(facts.environment, name), **fields)})(
            facts
        )

    return edit


alerts, caps, cluster = (_section(name) for name in ("alerts", "auto_provisioning", "cluster"))
database, network = (_section(name) for name in ("database", "network"))
security, serving, storage = (_section(name) for name in ("security", "serving", "storage"))


def both(first: Edit, second: Edit) -> Edit:
    return lambda facts: second(first(facts))


def taints(address: str, *keep: str) -> Edit:
    """Keep only the taints with these keys."""

    def edit(facts: Facts) -> Facts:
        pool = next(f for f in facts.resources if f.address == address)
        blocks = []
        for t in pool.values["node_config"]["taint"]:
            if t["key"] in keep:
                blocks.append(t)
        return put(address, "node_config.taint", blocks)(facts)

    return edit


def member(
    kind: str,
    role: str,
    principal: str = "serviceAccount:x@p.iam.gserviceaccount.com",
    **extra: Any,
) -> Edit:
    return add(f"{kind}.extra", role=role, member=principal, **extra)


def without(address: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        remaining = [r for r in facts.resources if r.address != address]
        return replace(facts, resources=tuple(remaining))

    return edit


def group(name: str, **fields: Any) -> Edit:
    def edit(facts: Facts) -> Facts:
        groups = []
        for g in facts.environment.groups:
            groups.append(replace(g, **fields) if g.name == name else g)
        return state(groups=tuple(groups))(facts)

    return edit


def unread(facts: Facts) -> Facts:
    """Let servers load no run."""
    settings = facts.environment.storage
    runs = []
    for run in settings.runs:
        readers = tuple(role for role in run.read_by if role != "server")
        runs.append(replace(run, read_by=readers))
    return state(storage=replace(settings, runs=tuple(runs)))(facts)


def soften_taints(address: str) -> Edit:
    """Give all taints an effect that keeps no pod away."""

    def edit(facts: Facts) -> Facts:
        (pool,) = [resource for resource in facts.resources if resource.address == address]
        soft = []
        for taint in pool.values["node_config"]["taint"]:
            soft.append(taint | {"effect": "PREFER_NO_SCHEDULE"})
        return put(address, "node_config.taint", soft)(facts)

    return edit


def spot(address: str) -> Edit:
    """Make the pool a Spot pool, with its taints."""
    pairs = (("provisioning-tier", "preemptible"), ("nvidia.com/gpu", "present"))
    taint = []
    for key, value in pairs:
        taint.append(
            {
                "key": key,
                "value": value,
                "effect": "NO_SCHEDULE",
            }
        )
    return both(put(address, "node_config.spot", True), put(address, "node_config.taint", taint))
