"""The types of rules, of the resources that they read and of their findings.

A rule does not know where a resource comes from: the specs of an environment before Terraform
starts, or the planned values of the real provider. Both use the same names of arguments; a plan
only wraps every block in a list.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra.environments.schema import Environment
from infra.specs import resources

POOL = "google_container_node_pool"
CLUSTER = "google_container_cluster"
BUCKET = "google_storage_bucket"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A value that breaks a rule. Checks leave `rule` empty; `judge` fills it in."""

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
    ignore_changes: tuple[str, ...] = ()
    """Arguments that Terraform leaves as they are in the cloud. A plan does not show them."""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at `path`, or `default` if any part of it is missing or null."""
        value: Any = self.values
        for part in path.split("."):
            if not isinstance(value, Mapping) or value.get(part) is None:
                return default
            value = _unwrap_single_block(value[part])
        return value

    def blocks(self, path: str) -> list["PlannedResource"]:
        """Return a repeatable block as a list, also if it occurs once or never."""
        value = self.get(path)
        items = value if isinstance(value, Sequence) else [value]
        blocks = []
        for item in items:
            if isinstance(item, Mapping):
                blocks.append(PlannedResource(address=self.address, values=item))
        return blocks

    def finding(
        self,
        path: str,
        allowed: str,
        fix: str,
        got: Any = None,
    ) -> Finding:
        """Make a finding about the value at `path`; `got` replaces that value in the message."""
        value = self.get(path) if got is None else got
        return Finding(
            where=f"{self.address}: {path}",
            got=str(value),
            allowed=allowed,
            fix=fix,
        )


def environment_finding(
    environment: Environment,
    field: str,
    got: object,
    allowed: str,
    fix: str,
) -> Finding:
    """Make a finding about a field of the environment, which no resource shows."""
    return Finding(
        where=f"environment {environment.name}: {field}",
        got=str(got),
        allowed=allowed,
        fix=fix,
    )


def _unwrap_single_block(value: Any) -> Any:
    """Return the block itself where a plan shows a block that occurs once as a list of one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        return value[0]
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    environment: Environment
    resources: tuple[PlannedResource, ...]

    def of(self, *kinds: str) -> list[PlannedResource]:
        return [resource for resource in self.resources if resource.kind in kinds]

    def cluster(self) -> list[PlannedResource]:
        """Return one cluster, or none if only another stack was planned."""
        return self.of(CLUSTER)

    def pools(self, capacity: str = "") -> list[PlannedResource]:
        """Return node pools. `capacity`: spot, flex (flex-start or queued), gpu; empty for all."""
        return [pool for pool in self.of(POOL) if SELECTORS[capacity](pool)]


def _is_any(_: PlannedResource) -> bool:
    return True


def _is_spot(pool: PlannedResource) -> bool:
    return pool.get("node_config.spot") is True


def _is_flex(pool: PlannedResource) -> bool:
    return bool(pool.get("node_config.flex_start") or pool.get("queued_provisioning.enabled"))


def _has_gpus(pool: PlannedResource) -> bool:
    return bool(pool.blocks("node_config.guest_accelerator"))


SELECTORS = {"": _is_any, "spot": _is_spot, "flex": _is_flex, "gpu": _has_gpus}


def read_specs(environment: Environment) -> Facts:
    """Return the resources of an environment as its specs make them, without monitoring's."""
    planned = []
    for resource in resources(environment):
        planned.append(
            PlannedResource(
                kind=resource.kind,
                address=resource.address,
                values=resource.arguments,
                ignore_changes=resource.ignore_changes,
            )
        )
    return Facts(environment=environment, resources=tuple(planned))


def read_plans(environment: Environment, plans: Iterable[Mapping[str, Any]]) -> Facts:
    """Return the resources of all plans, each as `terraform show -json` prints it."""
    ignored = {resource.address: resource.ignore_changes for resource in resources(environment)}
    planned = []
    for plan in plans:
        for resource in _iter_resources(plan):
            ignore_changes = ignored.get(resource.address, ())
            planned.append(replace(resource, ignore_changes=ignore_changes))
    return Facts(environment=environment, resources=tuple(planned))


def _iter_resources(plan: Mapping[str, Any]) -> Iterator[PlannedResource]:
    modules = [plan["planned_values"]["root_module"]]
    for module in modules:
        # The list grows while it is read, so that no child hides a resource from the rules.
        modules.extend(module.get("child_modules", []))
        for resource in module.get("resources", []):
            yield PlannedResource(
                kind=resource["type"],
                address=resource["address"],
                values=resource["values"],
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


def check_value(
    planned: Iterable[PlannedResource],
    path: str,
    expected: object,
    fix: str,
) -> Iterator[Finding]:
    """Find resources whose value at `path` is not `expected`, nor one of a tuple of values."""
    allowed = expected if isinstance(expected, tuple) else (expected,)
    for resource in planned:
        if resource.get(path) not in allowed:
            yield resource.finding(path, ", ".join(map(str, allowed)), fix)
