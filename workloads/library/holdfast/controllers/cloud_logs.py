"""Event lines from Cloud Logging, where the standard output of every pod goes on GKE.

Reads through one log view, so that its reader sees containers' output and no other log. A thread of
its own: a slow answer never delays a pass. Guarantee: a line is handed on once; one that comes up
to LATE_S late is not missed; what could not be read is logged, and read the next time.
"""

# Why it is so: infra/decisions/0105.

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import requests
from google.auth.exceptions import GoogleAuthError

from holdfast.controllers.cluster_objects import JOB_LABELS
from holdfast.controllers.controller_log import logger
from holdfast.controllers.event_lines import EVICT, FAULTY, MOVED, SCHEDULED
from holdfast.controllers.event_source import Lines
from holdfast.ledger.events import Reading, parse
from holdfast.support.errors import Unjudged
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, events_view
from holdfast.vocabulary.telemetry import EVENT_VERSION

LOG = logger("read-lines")
URL = "https://logging.googleapis.com/v2/entries:list"
EVERY_S = 15.0
LATE_S = 120.0
TIMEOUT_S = 30.0
# 60 reads a minute are all that a project has.
PAGE = 1000
PAGES_A_TURN = 5
PAGES_A_JOB = 100
LOOK_BACK_S = 6 * 3600.0
REMEMBERED = 50_000
HTTP_OK = 200
_OF_KUBERNETES = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
NO_JOB = "(a pod of no job)"
# What exporter and mover write about jobs: waits for a node, evictions, moves, and about broken
# GPUs. No job's own pod knows any of them.
OF_THE_WATCHER = (EVICT, MOVED, FAULTY, SCHEDULED)
# The log agent copies the labels of pods, with "_" in place of ".".
_JOB_LABELS = tuple(f"k8s-pod/{label.replace('.', '_')}" for label in JOB_LABELS)


class CloudLogs(threading.Thread):
    def __init__(
        self,
        session: requests.Session,
        project: str,
        cluster: str,
        *,
        namespaces: Collection[str] = JOB_NAMESPACES,
        url: str = URL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="event-lines", daemon=True)
        self._session = session
        self._url = url
        self._clock = clock
        self._namespaces = namespaces
        self._view = events_view(project, cluster)
        self._cluster = cluster
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str, str], list[bytes]] = {}
        """By job, namespace and name of the pod that wrote them."""
        self._newest = rfc3339(clock() - LOOK_BACK_S)
        self._asked: dict[str, Any] = {}
        """The query whose pages are not all read."""
        self._seen: OrderedDict[str, None] = OrderedDict()

    def news(self) -> Iterable[Lines]:
        with self._lock:
            waiting = self._waiting
            self._waiting = {}
        return [Lines(lines, *writer) for writer, lines in waiting.items()]

    def of_job(self, job: str, begin_s: float, namespace: str = "") -> Reading:
        """All that a job of this namespace (empty: of any) wrote since a moment. Unjudged where it
        cannot be had whole.
        """
        if not _OF_KUBERNETES.fullmatch(job):
            # Nothing of that name can have run, and in a filter it would match something else.
            return Reading()
        query = self._query(rfc3339(begin_s - LATE_S), job)
        lines: list[bytes] = []
        for _ in range(PAGES_A_JOB):
            page = self._page(query)
            # What other pods wrote about it is none of its account.
            lines += [line for entry, line in _entries(page) if speaks_for(entry, job, namespace)]
            token = page.get("nextPageToken")
            if not token:
                reading = parse(lines, job=job, now_s=self._clock())
                return Reading(
                    [each for each in reading.events if each.t_us >= begin_s * 1e6],
                    reading.problems,
                )
            query["pageToken"] = token
        raise Unjudged(
            f"{job} wrote more than {PAGES_A_JOB * PAGE:,} lines: copy them from the log, and price"
            " them with `holdfast report`"
        )

    def run(self) -> None:
        while not self._closing.is_set():
            self.turn()
            self._closing.wait(EVERY_S)

    def close(self) -> None:
        self._closing.set()

    def turn(self) -> None:
        try:
            for _ in range(PAGES_A_TURN):
                if not self._read_page():
                    return
            LOG.warning("event lines: more than can be read at once; at %s", self._newest)
        except Unjudged as error:
            LOG.warning("event lines: %s", error)

    def _read_page(self) -> bool:
        """Whether there is another page now."""
        if not self._asked:
            since_s = unix_s(self._newest) - LATE_S
            self._asked = self._query(rfc3339(since_s))
        page = self._page(self._asked)
        fresh = [
            (entry, line) for entry, line in _entries(page) if entry["insertId"] not in self._seen
        ]
        for entry, _ in fresh:
            self._seen[entry["insertId"]] = None
            self._newest = max(self._newest, rfc3339(unix_s(entry["timestamp"])))
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        with self._lock:
            for entry, line in fresh:
                self._waiting.setdefault((job_of_pod(entry), *_pod(entry)), []).append(line)
        token = page.get("nextPageToken")
        self._asked = self._asked | {"pageToken": token} if token else {}
        return bool(token)

    def _query(self, since: str, job: str = "") -> dict[str, Any]:
        watched, jobs = (
            " OR ".join(f'"{each}"' for each in names)
            for names in (OF_THE_WATCHER, self._namespaces)
        )
        wanted = [
            'resource.type="k8s_container"',
            f'resource.labels.cluster_name="{self._cluster}"',
            f"(resource.labels.namespace_name=({jobs}) OR "
            f'(resource.labels.namespace_name="{NAMESPACE_MONITORING}" AND'
            f" jsonPayload.event=({watched})))",
            f"jsonPayload.v={EVENT_VERSION}",
            "jsonPayload.event:*",
            f'timestamp>="{since}"',
        ]
        wanted += [f'jsonPayload.job="{job}"'] if job else []
        query = {
            "resourceNames": [self._view],
            "filter": " AND ".join(wanted),
        }
        return query | {"orderBy": "timestamp asc", "pageSize": PAGE}

    def _page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._session.post(self._url, json=query, timeout=TIMEOUT_S)
            if answer.status_code == HTTP_OK:
                return answer.json()
        except (requests.RequestException, GoogleAuthError) as error:
            raise Unjudged(f"Cloud Logging did not answer: {type(error).__name__}") from error
        if answer.status_code in (403, 404):
            needs = f"; {self._view} needs roles/logging.viewAccessor"
        else:
            needs = ""
        raise Unjudged(f"Cloud Logging answered {answer.status_code}{needs}")


def job_of_pod(entry: Mapping[str, Any]) -> str:
    """The job that an entry may speak for: by what the log agent, and not the container, states in
    it.
    """
    if _pod(entry)[0] == NAMESPACE_MONITORING:
        line = entry["jsonPayload"]
        if line.get("event") == FAULTY:
            return ""  # it is about a node
        if line.get("event") in OF_THE_WATCHER:
            return str(line.get("job") or NO_JOB)
        return NO_JOB
    labels = entry.get("labels") or {}
    return next((name for label in _JOB_LABELS if (name := labels.get(label))), NO_JOB)


def speaks_for(entry: Mapping[str, Any], job: str, namespace: str = "") -> bool:
    found, _ = _pod(entry)
    return job_of_pod(entry) == job and (
        not namespace or found in (namespace, NAMESPACE_MONITORING)
    )


def _pod(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name, as the log agent states them."""
    place = (entry.get("resource") or {}).get("labels") or {}
    return str(place.get("namespace_name", "")), str(place.get("pod_name") or NO_JOB)


def _entries(page: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], bytes]]:
    for entry in page.get("entries", ()):
        yield entry, json.dumps(entry["jsonPayload"], sort_keys=True).encode()
