"""Serves Cloud Logging's entries:list over HTTP: filter, order, pages, and errors on demand."""

import json
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workloads.library.tests.http_server import answering

Json = dict[str, Any]
VIEW = "projects/acme-ai/locations/global/buckets/_Default/views/holdfast-example-events"
FILTER = re.compile(
    r'resource\.type="k8s_container" AND resource\.labels\.cluster_name="holdfast-example" AND '
    r'\(resource\.labels\.namespace_name=\("training" OR "batch"\) OR '
    r'\(resource\.labels\.namespace_name="monitoring" AND jsonPayload\.event=\("evict" OR "moved"'
    r' OR "node_faulty" OR "scheduled"\)\)\) AND '
    r"jsonPayload\.v=1 AND jsonPayload\.event:\* AND "
    r'timestamp>="([^"]+)"((?: AND (?:NOT )?\([^()]+\))*)(?: AND jsonPayload\.job="([^"]+)")?'
)
WRITER = re.compile(
    r' AND (NOT )?\(resource\.labels\.namespace_name="([^"]+)" AND'
    r' (?:resource\.labels\.(pod_name)|labels\."([^"]+)")="([^"]+)"\)'
)


@dataclass
class LogServer:
    page: int = 1000
    entries: list[Json] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    """Statuses of the next answers, before it works again."""
    requests: list[Json] = field(default_factory=list)
    url: str = ""
    view: str = VIEW
    writer: str = ""
    """Job whose pod writes the next rows; empty: the one that they name."""

    def add(self, rows: Iterable[Json]) -> None:
        for row in rows:
            self._add(
                row,
                {"k8s-pod/jobset_sigs_k8s_io/jobset-name": self.writer or row["job"]},
                "training",
            )

    def add_lines(
        self, lines: Iterable[bytes], labels: dict[str, str], namespace: str, pod: str = ""
    ) -> None:
        """Adds lines of one pod."""
        for line in lines:
            self._add(json.loads(line), labels, namespace, pod)

    def _add(self, row: Json, labels: dict[str, str], namespace: str, pod: str = "") -> None:
        """Adds an entry as GKE's log agent makes it: the container chooses the payload only."""
        when = (
            datetime.fromtimestamp(row["t"], UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "123Z")
        )
        place = {
            "type": "k8s_container",
            "labels": {"namespace_name": namespace} | ({"pod_name": pod} if pod else {}),
        }
        entry = {
            "insertId": f"id-{len(self.entries)}",
            "timestamp": when,
            "jsonPayload": row,
            "labels": labels,
        }
        self.entries.append(entry | {"resource": place})

    def answer(self, request: Json) -> tuple[int, Json]:
        self.requests.append(request)
        if self.faults:
            return self.faults.pop(0), {}
        matched = FILTER.fullmatch(request["filter"])
        if request["resourceNames"] != [self.view]:
            return 403, {}
        if (
            not matched
            or request["orderBy"] not in ("timestamp asc", "timestamp desc")
            or not 0 < request["pageSize"] <= 1000
        ):
            return 400, {}
        since = matched[1].replace("+00:00", "")
        writers = WRITER.findall(matched[2])
        job = matched[3]
        entries = []
        for entry in self.entries:
            is_of_job = job in (None, entry["jsonPayload"]["job"])
            if entry["timestamp"] < since or not is_of_job or not _is_visible(entry):
                continue
            if all(_has_writer(entry, *writer) for writer in writers):
                entries.append(entry)
        is_descending = request["orderBy"] == "timestamp desc"
        entries.sort(key=lambda entry: entry["timestamp"], reverse=is_descending)
        first = int(request.get("pageToken", 0))
        page: Json = {}
        if entries[first:]:
            page["entries"] = entries[first : first + self.page]
        if len(entries) > first + self.page:
            page["nextPageToken"] = str(first + self.page)
        return 200, page


def _has_writer(
    entry: Json,
    negation: str,
    namespace: str,
    pod_field: str,
    label: str,
    name: str,
) -> bool:
    """Returns whether an entry meets a condition on its writer."""
    resource = entry["resource"]["labels"]
    writer = resource.get(pod_field) if pod_field else entry["labels"].get(label)
    is_written_by = (resource["namespace_name"], writer) == (namespace, name)
    return is_written_by != bool(negation)


def _is_visible(entry: Json) -> bool:
    namespace = entry["resource"]["labels"]["namespace_name"]
    event = entry["jsonPayload"]["event"]
    watched = namespace == "monitoring" and event in ("evict", "moved", "node_faulty", "scheduled")
    return watched or namespace in ("training", "batch")


@contextmanager
def serving(server: LogServer) -> Generator[LogServer]:
    with answering(lambda path, headers, body: server.answer(json.loads(body))) as address:
        server.url = f"{address}/v2/entries:list"
        yield server
