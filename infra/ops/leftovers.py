"""Finds and removes resources that a destroy leaves behind: those that GKE created, and those with
the label of an interrupted proof.

Terraform does not know the first: load balancers of Services, disks of volumes, endpoint groups,
firewall rules.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.clients import gcloud
from infra.contract.names import LABEL_RUN
from infra.environments import Environment


class ResourceQuery(NamedTuple):
    kind: str
    command: str
    """The words of gcloud, without the verb."""
    filter: str
    """gcloud's filter; {cluster}, {network} and {run} are filled in."""
    place: tuple[str, ...] = ("zone", "region")
    """Keys of its location, which the delete command needs; empty: it has no location."""
    bills: bool = True
    name: str = "name"
    in_host: bool = False
    """It is in the host project of a Shared VPC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    kind: str
    name: str
    where: str
    bills: bool
    remove: str


BY_LABEL = "labels.goog-k8s-cluster-name={cluster}"
IN_NETWORK = "network~/{network}$"
OF_RUN = f"{LABEL_RUN}={{run}}"
SOURCES = (
    ResourceQuery("instance", "compute instances", BY_LABEL),
    ResourceQuery("disk", "compute disks", BY_LABEL),
    ResourceQuery("forwarding rule", "compute forwarding-rules", IN_NETWORK),
    # The range of VPC_PEERING belongs to private services access and is Terraform's.
    ResourceQuery("address", "compute addresses", f"{IN_NETWORK} AND purpose!=VPC_PEERING"),
    ResourceQuery("endpoint group", "compute network-endpoint-groups", IN_NETWORK, bills=False),
    ResourceQuery(
        "firewall rule",
        "compute firewall-rules",
        f"{IN_NETWORK} AND name~^gke-",
        bills=False,
    ),
)
# In another team's network, that team's resources match the network's name too: the subnet and the
# cluster identify those of this environment.
IN_SUBNET = "subnetwork~/{subnet}$"
SOURCES_IN_EXISTING = (
    *SOURCES[:2],
    ResourceQuery("forwarding rule", "compute forwarding-rules", IN_SUBNET),
    ResourceQuery("address", "compute addresses", f"{IN_SUBNET} AND purpose!=VPC_PEERING"),
    ResourceQuery("endpoint group", "compute network-endpoint-groups", IN_SUBNET, bills=False),
    ResourceQuery(
        "firewall rule",
        "compute firewall-rules",
        f"{IN_NETWORK} AND name~^gke-{{cluster}}-",
        bills=False,
        in_host=True,
    ),
)
# In the order of their removal: machines go with their cluster, subscriptions before topics.
SOURCES_OF_RUN = (
    ResourceQuery("cluster", "container clusters", f"resourceLabels.{OF_RUN}", ("location",)),
    ResourceQuery("instance", "compute instances", f"labels.{OF_RUN}"),
    ResourceQuery("disk", "compute disks", f"labels.{OF_RUN}"),
    ResourceQuery("database", "sql instances", f"settings.userLabels.{OF_RUN}", ()),
    ResourceQuery("subscription", "pubsub subscriptions", f"labels.{OF_RUN}", ()),
    ResourceQuery("topic", "pubsub topics", f"labels.{OF_RUN}", ()),
    ResourceQuery("images", "artifacts repositories", f"labels.{OF_RUN}", ("location",)),
    ResourceQuery("bucket", "storage buckets", f"labels.{OF_RUN}", (), name="storage_url"),
)

Ask = Callable[..., Any]


def find(environment: Environment, run: str = "", ask: Ask = gcloud.ask) -> list[Leftover]:
    """List the resources that GKE created for the environment; with `run`, list all resources of
    the project with the label of that run instead.
    """
    existing = environment.network.existing
    names = {
        "cluster": environment.cluster_name,
        "network": environment.network_path.rpartition("/")[2],
        "subnet": environment.subnet_path.rpartition("/")[2],
        "run": run,
    }
    leftovers: list[Leftover] = []
    sources = SOURCES_IN_EXISTING if existing else SOURCES
    for source in SOURCES_OF_RUN if run else sources:
        project = existing.project if existing and source.in_host else environment.project
        filter_ = f"--filter={source.filter.format(**names)}"
        items = ask(*source.command.split(), "list", filter_, project=project)
        for item in items or ():
            leftovers.append(_leftover(source, item, project))
    return leftovers


def remove(leftovers: Iterable[Leftover]) -> list[str]:
    """Run the command of each. Returns the errors of those that could not be removed. Raises
    Unjudged without gcloud.
    """
    errors: list[str] = []
    for leftover in leftovers:
        try:
            gcloud.run((*leftover.remove.split()[1:], "--quiet"), timeout_s=1_800)
        except gcloud.GcloudFailed as error:
            errors.append(str(error))
    return errors


def _leftover(source: ResourceQuery, item: dict[str, Any], project: str) -> Leftover:
    location = "global"
    scope: list[str] = []
    # Firewall rules are global too, but gcloud has no --global for them.
    if source.command.startswith("compute") and source.kind != "firewall rule":
        scope = ["--global"]
    for key in source.place:
        # The API gives the whole URL of a zone.
        text = str(item.get(key, "")).rpartition("/")[2]
        if text:
            location = text
            scope = [f"--{key}={text}"]
            break
    name = str(item[source.name])
    verb = "storage rm --recursive" if source.kind == "bucket" else f"{source.command} delete"
    return Leftover(
        kind=source.kind,
        name=name,
        where=location,
        bills=source.bills,
        remove=" ".join(["gcloud", verb, name, *scope, f"--project={project}"]),
    )
