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
        def changed(found: PlannedResource) -> PlannedResource:
            if found.address != address:
                return found
            values = deepcopy(dict(found.values))
            *parents, last = path.split(".")
            holder: Any = values
            for part in parents:
                holder = holder[int(part)] if part.isdigit() else holder.setdefault(part, {})
            holder[int(last) if last.isdigit() else last] = value
            return replace(found, values=values)

        edited = replace(facts, resources=tuple(changed(f) for f in facts.resources))
        assert edited != facts, f"{address} {path} does not change"
        return edited

    return edit


def add(address: str, **values: Any) -> Edit:
    kind = address.split(".")[0]
    return lambda facts: replace(
        facts,
        resources=(*facts.resources, PlannedResource(kind=kind, address=address, values=values)),
    )


def state(**fields: Any) -> Edit:
    """Another environment with the same resources."""
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
    """Only the taints with these keys."""

    def edit(facts: Facts) -> Facts:
        pool = next(f for f in facts.resources if f.address == address)
        kept = [t for t in pool.values["node_config"]["taint"] if t["key"] in keep]
        return put(address, "node_config.taint", kept)(facts)

    return edit


def member(
    kind: str, role: str, who: str = "serviceAccount:x@p.iam.gserviceaccount.com", **extra: Any
) -> Edit:
    return add(f"{kind}.extra", role=role, member=who, **extra)


def without(address: str) -> Edit:
    return lambda facts: replace(
        facts, resources=tuple(r for r in facts.resources if r.address != address)
    )


def group(name: str, **fields: Any) -> Edit:
    return lambda facts: state(
        groups=tuple(
            replace(g, **fields) if g.name == name else g for g in facts.environment.groups
        )
    )(facts)


def unread(facts: Facts) -> Facts:
    """No run lets servers load it."""
    kept = facts.environment.storage
    runs = tuple(
        replace(run, read_by=tuple(role for role in run.read_by if role != "server"))
        for run in kept.runs
    )
    return state(storage=replace(kept, runs=runs))(facts)
