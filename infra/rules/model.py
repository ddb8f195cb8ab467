"""What a rule is, and what it sees.

A rule reads resources, not where they come from: the specs of an environment before Terraform
starts, and the planned values of the real provider after it. Both use the same names of arguments;
a plan only wraps every block in a list.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.environments.schema import Environment
from infra.specs import resources

POOL = "google_container_node_pool"
CLUSTER = "google_container_cluster"
BUCKET = "google_storage_bucket"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check yields; `judge` adds the rule's id."""

    rule: str = ""
    where: str
    got: str
    allowed: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedResource:
    """One resource, or one block of it, as specified or as planned. Paths are dotted; a block that
    occurs once needs no index.
    """

    kind: str = ""
    address: str
    values: Mapping[str, Any]

    def get(self, path: str, default: Any = None) -> Any:
        value: Any = self.values
        for part in path.split("."):
            if not isinstance(value, Mapping) or value.get(part) is None:
                return default
            value = _unwrapped(value[part])
        return value

    def blocks(self, path: str) -> list["PlannedResource"]:
        """A repeatable block as a list, whatever its value."""
        value = self.get(path)
        items = value if isinstance(value, Sequence) else [value]
        return [
            PlannedResource(address=self.address, values=item)
            for item in items
            if isinstance(item, Mapping)
        ]

    def finding(self, path: str, allowed: str, fix: str, got: Any = None) -> Finding:
        """`got` is the value at `path` unless given."""
        shown = self.get(path) if got is None else got
        return Finding(
            where=f"{self.address}: {path}",
            got=str(shown),
            allowed=allowed,
            fix=fix,
        )


def of_environment(
    environment: Environment,
    field: str,
    got: object,
    allowed: str,
    fix: str,
) -> Finding:
    return Finding(
        where=f"environment {environment.name}: {field}",
        got=str(got),
        allowed=allowed,
        fix=fix,
    )


def _unwrapped(value: Any) -> Any:
    """A plan shows a block that occurs once as a list of one."""
    one_block = isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping)
    return value[0] if one_block else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    environment: Environment
    resources: tuple[PlannedResource, ...]

    def of(self, *kinds: str) -> list[PlannedResource]:
        return [f for f in self.resources if f.kind in kinds]

    def cluster(self) -> list[PlannedResource]:
        """One, or none where only another stack was planned."""
        return self.of(CLUSTER)

    def pools(self, capacity: str = "") -> list[PlannedResource]:
        """`capacity`: spot, flex (flex-start or queued), gpu; all when empty."""
        wanted: dict[str, Callable[[PlannedResource], bool]] = {
            "": lambda _: True,
            "spot": lambda p: p.get("node_config.spot") is True,
            "flex": lambda p: bool(
                p.get("node_config.flex_start") or p.get("queued_provisioning.enabled")
            ),
            "gpu": lambda p: bool(p.blocks("node_config.guest_accelerator")),
        }
        return [p for p in self.of(POOL) if wanted[capacity](p)]


def facts_of_specs(environment: Environment) -> Facts:
    found = (
        PlannedResource(
            kind=r.kind,
            address=r.address,
            values=r.arguments,
        )
        for r in resources(environment)
    )
    return Facts(environment=environment, resources=tuple(found))


def facts_of_plans(environment: Environment, plans: Iterable[Mapping[str, Any]]) -> Facts:
    """`plans`: as `terraform show -json` prints them."""
    found = tuple(resource for plan in plans for resource in _planned(plan))
    return Facts(environment=environment, resources=found)


def _planned(plan: Mapping[str, Any]) -> Iterator[PlannedResource]:
    modules = [plan["planned_values"]["root_module"]]
    for module in modules:
        # So that no child hides a resource from the rules.
        modules.extend(module.get("child_modules", []))
        for r in module.get("resources", []):
            yield PlannedResource(
                kind=r["type"],
                address=r["address"],
                values=r["values"],
            )


Check = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    id: str
    title: str
    reason: str
    source: str
    check: Check = field(repr=False)


RULES: dict[str, Rule] = {}


def rule(*, reason: str, source: str) -> Callable[[Check], Check]:
    """Register a check; its name is the rule's id, its docstring the title."""

    def register(check: Check) -> Check:
        id = check.__name__.replace("_", "-")
        assert id not in RULES and check.__doc__, id
        RULES[id] = Rule(
            id=id,
            title=check.__doc__.strip(),
            reason=reason,
            source=source,
            check=check,
        )
        return check

    return register


def each(
    found: Iterable[PlannedResource],
    path: str,
    wanted: object,
    fix: str,
) -> Iterator[Finding]:
    """Every resource has exactly this value there, or one of a tuple of values."""
    allowed = wanted if isinstance(wanted, tuple) else (wanted,)
    for one in found:
        if one.get(path) not in allowed:
            yield one.finding(path, ", ".join(map(str, allowed)), fix)
