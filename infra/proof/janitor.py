"""Removes what an interrupted proof left: by Terraform where a record of the run is, by its label where none is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.clients import gcloud
from infra.contract.names import LABEL_RUN
from infra.environments import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    kind: str
    arguments: tuple[str, ...]
    label: str = "labels"
    """Where the API keeps labels."""
    name: str = "name"
    place: str = ""
    """The key of its zone or region, which its deletion must be given."""


# In the order of their removal: machines go with their cluster, subscriptions before topics.
SOURCES = (
    Source(kind="cluster", arguments=("container", "clusters"), label="resourceLabels", place="location"),
    Source(kind="instance", arguments=("compute", "instances"), place="zone"),
    Source(kind="disk", arguments=("compute", "disks"), place="zone"),
    Source(kind="database", arguments=("sql", "instances"), label="settings.userLabels"),
    Source(kind="subscription", arguments=("pubsub", "subscriptions")),
    Source(kind="topic", arguments=("pubsub", "topics")),
    Source(kind="images", arguments=("artifacts", "repositories"), place="location"),
    Source(kind="bucket", arguments=("storage", "buckets"), name="storage_url"),
)
Ask = Callable[..., Any]


def labelled(environment: Environment, run: str = "", ask: Ask = gcloud.ask) -> Iterator[tuple[str, ...]]:
    """A command of gcloud that removes it, for everything in the project with the label of `run`, or of any run."""
    for source in SOURCES:
        wanted = f"{source.label}.{LABEL_RUN}{f'={run}' if run else ':*'}"
        found = ask(*source.arguments, "list", f"--filter={wanted}", project=environment.project)
        for item in found or ():
            yield _removal(source, item, environment.project)


def _removal(source: Source, item: dict[str, Any], project: str) -> tuple[str, ...]:
    name, quietly = str(item[source.name]), (f"--project={project}", "--quiet")
    if source.kind == "bucket":
        return "storage", "rm", "--recursive", name, *quietly
    # The API gives the whole URL of a zone.
    where = str(item.get(source.place, "")).rpartition("/")[2]
    place = (f"--{source.place}={where}",) if where else ()
    return *source.arguments, "delete", name, *place, *quietly


def remove(commands: list[tuple[str, ...]]) -> list[str]:
    """Runs each; what was refused, with the reason."""
    refused: list[str] = []
    for command in commands:
        try:
            gcloud.run(command, timeout_s=1_800)
        except gcloud.Refused as error:
            refused.append(str(error))
    return refused
