"""Cloud Logging's entries:list in this process, over HTTP: filter, order, pages, and answers that
fail on demand.
"""

import json
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workloads.library.tests.http_server import answering

VIEW = "projects/acme-ai/locations/global/buckets/_Default/views/holdfast-example-events"
FILTER = re.compile(
    r'resource\.type="k8s_container" AND resource\.labels\.cluster_name="holdfast-example" AND '
    r'\(resource\.labels\.namespace_name=\("training" OR "batch"\) OR '
    r'\(resource\.labels\.namespace_name="monitoring" AND jsonPayload\.event=\("evict" OR "moved"'
    r' OR "node_faulty" OR "scheduled"\)\)\) AND '
    r"jsonPayload\.v=1 AND jsonPayload\.event:\* AND "
    r'timestamp>="([^"]+)"(?: AND jsonPayload\.job="([^"]+)")?'
)


@dataclass
class LogServer:
    page: int = 1000
    entries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    faults: list[int] = field(default_factory=list[int])
    """Statuses of the next answers, before it works again."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""
    view: str = VIEW
    writer: str = ""
    """Job whose pod writes the next rows; empty: the one that they name."""

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._add(
                row,
                {"k8s-pod/jobset_sigs_k8s_io/jobset-name": self.writer or row["job"]},
                "training",
            )

    def add_lines(self, lines: Iterable[bytes], labels: dict[str, str], namespace: str) -> None:
        """Of one pod."""
        for line in lines:
            self._add(json.loads(line), labels, namespace)

    def _add(self, row: dict[str, Any], labels: dict[str, str], namespace: str) -> None:
        """As GKE's log agent states it: the container chooses the payload only."""
        when = (
            datetime.fromtimestamp(row["t"], UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "123Z")
        )
        place = {
            "type": "k8s_container",
            "labels": {"namespace_name": namespace},
        }
        entry = {
            "insertId": f"id-{len(self.entries)}",
            "timestamp": when,
            "jsonPayload": row,
            "labels": labels,
        }
        self.entries.append(entry | {"resource": place})

    def answer(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(asked)
        if self.faults:
            return self.faults.pop(0), {}
        matched = FILTER.fullmatch(asked["filter"])
        if asked["resourceNames"] != [self.view]:
            return 403, {}
        if not matched or asked["orderBy"] != "timestamp asc" or not 0 < asked["pageSize"] <= 1000:
            return 400, {}
        since = matched[1].replace("+00:00", "")
        job = matched[2]
        found = []
        for e in self.entries:
            if e["timestamp"] >= since and job in (None, e["jsonPayload"]["job"]):
                found.append(e)
        found = sorted(filter(_admitted, found), key=lambda entry: entry["timestamp"])
        first = int(asked.get("pageToken", 0))
        page: dict[str, Any] = (
            {"entries": found[first : first + self.page]} if found[first:] else {}
        )
        if len(found) > first + self.page:
            page["nextPageToken"] = str(first + self.page)
        return 200, page


def _admitted(entry: dict[str, Any]) -> bool:
    namespace = entry["resource"]["labels"]["namespace_name"]
    event = entry["jsonPayload"]["event"]
    watched = namespace == "monitoring" and event in ("evict", "moved", "node_faulty", "scheduled")
    return watched or namespace in ("training", "batch")


@contextmanager
def serving(server: LogServer) -> Generator[LogServer]:
    with answering(lambda path, headers, body: server.answer(json.loads(body))) as address:
        server.url = f"{address}/v2/entries:list"
        yield server
