"""What a destroy leaves behind: what GKE itself made, and what has the label of a proof that was
cut short.

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
    """Of gcloud, without the verb."""
    filter: str
    """gcloud's filter; {cluster}, {network} and {run} are filled in."""
    place: tuple[str, ...] = ("zone", "region")
    """Keys of its place, which its deletion must be given; none: it has no place."""
    bills: bool = True
    name: str = "name"


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
        "firewall rule", "compute firewall-rules", f"{IN_NETWORK} AND name~^gke-", bills=False
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
    """What GKE made for the environment; with `run` instead all in its project that has the run's
    label.
    """
    names = {
        "cluster": environment.cluster_name,
        "network": environment.stem,
        "run": run,
    }
    return [
        _leftover(source, item, environment.project)
        for source in (SOURCES_OF_RUN if run else SOURCES)
        for item in (
            ask(
                *source.command.split(),
                "list",
                f"--filter={source.filter.format(**names)}",
                project=environment.project,
            )
            or ()
        )
    ]


def remove(found: Iterable[Leftover]) -> list[str]:
    """Runs the command of each; what was refused, with the reason. Raises Unjudged without gcloud."""
    refused: list[str] = []
    for leftover in found:
        try:
            gcloud.run((*leftover.remove.split()[1:], "--quiet"), timeout_s=1_800)
        except gcloud.GcloudFailed as error:
            refused.append(str(error))
    return refused


def _leftover(source: ResourceQuery, item: dict[str, Any], project: str) -> Leftover:
    # The API gives the whole URL of a zone.
    where = {
        key: text for key in source.place if (text := str(item.get(key, "")).rpartition("/")[2])
    }
    scope = [f"--{key}={text}" for key, text in where.items()][:1]
    if source.command.startswith("compute") and not scope and source.kind != "firewall rule":
        # Firewall rules are global without saying so: gcloud knows no --global for them, and the
        # others need it.
        scope = ["--global"]
    name = str(item[source.name])
    verb = "storage rm --recursive" if source.kind == "bucket" else f"{source.command} delete"
    return Leftover(
        kind=source.kind,
        name=name,
        where=next(iter(where.values()), "global"),
        bills=source.bills,
        remove=" ".join(
            [
                "gcloud",
                verb,
                name,
                *scope,
                f"--project={project}",
            ]
        ),
    )
