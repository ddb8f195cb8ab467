"""What GKE itself made and leaves behind after a destroy. Read-only.

Terraform does not know these: load balancers of Services, disks of volumes, endpoint groups, firewall rules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.clients import gcloud
from infra.environments import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    kind: str
    arguments: tuple[str, ...]
    filter: str
    """gcloud's filter; {cluster} and {network} are filled in."""
    bills: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    kind: str
    name: str
    where: str
    bills: bool
    remove: str


BY_LABEL = "labels.goog-k8s-cluster-name={cluster}"
IN_NETWORK = "network~/{network}$"
SOURCES = (
    Source(kind="instance", arguments=("compute", "instances"), filter=BY_LABEL, bills=True),
    Source(kind="disk", arguments=("compute", "disks"), filter=BY_LABEL, bills=True),
    Source(kind="forwarding rule", arguments=("compute", "forwarding-rules"), filter=IN_NETWORK, bills=True),
    Source(
        # The range of VPC_PEERING belongs to private services access and is Terraform's.
        kind="address",
        arguments=("compute", "addresses"),
        filter=f"{IN_NETWORK} AND purpose!=VPC_PEERING",
        bills=True,
    ),
    Source(kind="endpoint group", arguments=("compute", "network-endpoint-groups"), filter=IN_NETWORK, bills=False),
    Source(
        kind="firewall rule",
        arguments=("compute", "firewall-rules"),
        filter=f"{IN_NETWORK} AND name~^gke-",
        bills=False,
    ),
)

Ask = Callable[..., Any]


def find(environment: Environment, ask: Ask = gcloud.ask) -> list[Leftover]:
    """Everything of the environment's cluster and network that Terraform does not hold."""
    names = {"cluster": environment.cluster_name, "network": environment.network_name}
    return [
        _leftover(source, item, environment.project)
        for source in SOURCES
        for item in ask(
            *source.arguments, "list", f"--filter={source.filter.format(**names)}", project=environment.project
        )
    ]


def _leftover(source: Source, item: dict[str, Any], project: str) -> Leftover:
    zone, region = (str(item.get(k, "")).rpartition("/")[2] for k in ("zone", "region"))
    if zone:
        scope = f"--zone={zone}"
    elif region:
        scope = f"--region={region}"
    else:
        # Firewall rules are global without saying so: gcloud knows no --global for them, and the others need it.
        scope = "" if source.kind == "firewall rule" else "--global"
    arguments = ("gcloud", *source.arguments, "delete", item["name"], scope, f"--project={project}")
    return Leftover(
        kind=source.kind,
        name=item["name"],
        where=zone or region or "global",
        bills=source.bills,
        remove=" ".join(part for part in arguments if part),
    )
