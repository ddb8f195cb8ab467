"""One cloud resource as data."""

# Decision: infra/decisions/0010.

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """A resource with its arguments as the provider documents them; a block that may occur once is
    a dict, a repeatable one a list.

    Resources name each other by computed names, not by references: the plan then knows every value,
    so that rules and snapshots see them, and stacks need no shared state. `after` states the order.
    """

    kind: str
    """The provider's type, as google_compute_network."""
    id: str
    """Construct id and last part of the address. A contract: changing it moves state."""
    arguments: Mapping[str, object]
    after: tuple[str, ...] = ()
    """Addresses in the same stack that must exist before."""
    ignore_changes: tuple[str, ...] = ()
    """Arguments that the cloud changes by itself."""
    protected: bool = False
    """Terraform refuses to plan a destroy or a replacement; leaving the resource out of the
    configuration does not delete it.
    """
    skips: Mapping[str, str] = field(default_factory=dict)
    """Checks of Checkov that this resource fails on purpose, and why."""

    @property
    def address(self) -> str:
        return f"{self.kind}.{self.id}"


def grant(
    on: str,
    id: str,
    role: str,
    member: str,
    after: tuple[str, ...],
    condition: object = None,
    **target: object,
) -> Resource:
    """Return a grant to one member on one object: `on` is the object's kind as the provider calls
    it, `target` are the arguments that name it.
    """
    arguments = {
        **target,
        "role": role,
        "member": member,
    }
    if condition:
        arguments["condition"] = condition
    return Resource(
        kind=f"google_{on}_iam_member",
        id=id,
        arguments=arguments,
        after=after,
    )


def deletion_policy(protected: bool) -> str:
    """Return the provider's action when a resource leaves the configuration. It is in the state,
    unlike a lifecycle.
    """
    return "PREVENT" if protected else "DELETE"
