"""Reads event lines from Cloud Logging, where GKE sends the standard output of every pod.

Reads through one log view, so that the reader sees containers' output and no other log. Runs in its
own thread: a slow answer never delays a pass. Guarantee: a line is handed on once; a line that
comes up to LATE_S late is not missed unless more is written than can be read; a failed read is
logged and repeated. Whatever one pod writes, the newest lines of the others are read within two
turns; lines that are given up are counted.
"""

# Why it is so: infra/decisions/0105.

import json
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import requests
from google.auth.exceptions import GoogleAuthError

from holdfast.controllers.cluster_objects import JOB_LABELS
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.event_lines import EVICT, FAULTY, MOVED, SCHEDULED
from holdfast.controllers.event_source import Lines
from holdfast.controllers.fair_share import Apart, Flood, Floods, Tally
from holdfast.ledger.events import Reading, parse
from holdfast.support.errors import Unjudged
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.job_identity import is_count
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, events_view
from holdfast.vocabulary.telemetry import EVENT_VERSION

LOG = get_logger("read-lines")
URL = "https://logging.googleapis.com/v2/entries:list"
EVERY_S = 15.0
LATE_S = 120.0
# Overlap of two queries while lines wait to be read.
BUSY_LATE_S = 15.0
TIMEOUT_S = 30.0
# A project has a quota of 60 reads a minute.
PAGE = 1000
PAGES_A_TURN = 5
# After this number of turns a query is given up, and the newest lines are read.
TURNS_A_QUERY = 2
PAGES_A_JOB = 100
LOOK_BACK_S = 6 * 3600.0
# Lines from before the start delay the newest for no longer.
LOOK_BACK_PATIENCE_S = 600.0
REMEMBERED = 50_000
HTTP_OK = 200
_KUBERNETES_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
NO_JOB = "(a pod of no job)"
# Lines that only exporter and mover may write about a job: its own pod knows nothing of them.
WATCHER_EVENTS = (EVICT, MOVED, FAULTY, SCHEDULED)
# The log agent copies the labels of pods, with "_" in place of ".".
_JOB_LABELS = tuple(f"k8s-pod/{label.replace('.', '_')}" for label in JOB_LABELS)
_INDEX_LABEL = f"k8s-pod/{ANNOTATION_INDEX.replace('.', '_')}"
Entry = Mapping[str, Any]


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
        """Lines by job, namespace and name of the pod that wrote them."""
        self._indexes: dict[tuple[str, str, str], int | None] = {}
        """Completion indexes of the pods with waiting lines."""
        self._newest = rfc3339(clock() - LOOK_BACK_S)
        self._query: dict[str, Any] = {}
        """The query whose pages are not all read."""
        self._read_ids: OrderedDict[str, None] = OrderedDict()
        self._floods = Floods()
        self._tally = Tally()
        """The lines of this turn."""
        self._dropped: Counter[tuple[str, str, str]] = Counter()
        """Writer -> lines that were given up since the last call of `news`."""
        self._turns = 0
        """Turns that the present query has taken."""
        self._started_s = clock()
        self._skipped_until_s = 0.0
        """Earlier lines are given up and counted."""

    def news(self) -> Iterable[Lines]:
        with self._lock:
            waiting = self._waiting
            dropped = self._dropped
            indexes = self._indexes
            self._waiting = {}
            self._dropped = Counter()
            self._indexes = {}
        news: list[Lines] = []
        for writer in dict.fromkeys((*waiting, *dropped)):
            lines = Lines(
                waiting.get(writer, ()),
                *writer,
                dropped=dropped[writer],
                index=indexes.get(writer),
            )
            news.append(lines)
        return news

    def of_job(self, job: str, begin_s: float, namespace: str = "") -> Reading:
        """Returns all lines of a job since a moment; an empty namespace stands for any.

        Raises Unjudged if they cannot be read completely.
        """
        if not _KUBERNETES_NAME.fullmatch(job):
            # No job can have this name, and in a filter it would match something else.
            return Reading()
        query = self._make_query(rfc3339(begin_s - LATE_S), job)
        lines: list[bytes] = []
        for _ in range(PAGES_A_JOB):
            page = self._fetch_page(query)
            # Lines that other pods wrote about the job do not count for it.
            for entry in _list_entries(page):
                if speaks_for(entry, job, namespace):
                    lines.append(_make_line(entry))
            token = page.get("nextPageToken")
            if not token:
                reading = parse(lines, job=job, now_s=self._clock())
                events = [event for event in reading.events if event.t_us >= begin_s * 1e6]
                return Reading(events, reading.problems)
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
        """Reads new lines, at most PAGES_A_TURN pages and one of a writer that is set apart."""
        try:
            self._read_common()
            self._read_flood()
        except Unjudged as error:
            LOG.warning("event lines: %s", error)

    def _read_common(self) -> None:
        """Reads new lines of all writers but those that are set apart."""
        self._tally = Tally()
        for _ in range(PAGES_A_TURN):
            if not self._read_page():
                self._turns = 0
                return
            self._set_floods_apart()
        self._turns += 1
        LOG.warning("event lines: more than can be read at once; at %s", self._newest)
        if self._turns >= TURNS_A_QUERY and not self._looks_back():
            self._skip()

    def _looks_back(self) -> bool:
        """Returns whether it still reads what was written before it started."""
        is_early = self._clock() < self._started_s + LOOK_BACK_PATIENCE_S
        return is_early and unix_s(self._newest) < self._started_s

    def _set_floods_apart(self) -> None:
        floods = self._tally.find_floods()
        added = self._floods.set_apart(floods, unix_s(self._newest), self._clock())
        if added:
            names = ", ".join(f"{flood.namespace}/{flood.name}" for flood in added)
            LOG.warning("event lines: more than their share come from %s", names)
            self._query = self._make_common_query(BUSY_LATE_S)
            self._tally = Tally()

    def _skip(self) -> None:
        """Gives up the unread lines of all writers, and goes on with the newest."""
        now_s = self._clock()
        skipped_s = now_s - EVERY_S - unix_s(self._newest)
        if skipped_s <= 0:
            return
        with self._lock:
            self._dropped["", "", ""] += self._tally.estimate_lines(skipped_s)
        self._skipped_until_s = now_s - EVERY_S
        self._newest = rfc3339(self._skipped_until_s)
        self._query = {}

    def _read_flood(self) -> None:
        """Reads the newest page of one writer that is set apart, and counts what is given up."""
        taken = self._floods.take_next()
        if taken is None:
            return
        flood, apart = taken
        try:
            page = self._fetch_page(self._make_flood_query(flood, apart.read_until_s))
        except Unjudged:
            self._floods.apart[flood] = apart
            raise
        entries = _list_entries(page)
        tally = Tally()
        for entry in entries:
            tally.add((), unix_s(entry["timestamp"]))
        self._hand_on(reversed(self._pick_fresh(entries)))
        now_s = self._clock()
        unread_s = max(now_s - apart.read_until_s, EVERY_S)
        is_over = len(entries) > flood.lines_per_s * unread_s
        if page.get("nextPageToken"):
            is_over = True
            missed_s = max(0.0, tally.first_s - apart.read_until_s)
            pod = "" if flood.is_job else flood.name
            with self._lock:
                self._dropped[flood.job, flood.namespace, pod] += tally.estimate_lines(missed_s)
        # The common query reads the last LATE_S again: the flood must have left them.
        if not is_over and now_s - apart.over_s > LATE_S + EVERY_S:
            return
        self._floods.apart[flood] = Apart(
            read_until_s=max(apart.read_until_s, tally.last_s),
            over_s=now_s if is_over else apart.over_s,
        )

    def _make_flood_query(self, flood: Flood, since_s: float) -> dict[str, Any]:
        conditions = (flood.condition, *self._floods.conditions)
        query = self._make_query(rfc3339(since_s), conditions=conditions)
        return query | {"orderBy": "timestamp desc"}

    def _make_common_query(self, overlap_s: float) -> dict[str, Any]:
        since_s = max(unix_s(self._newest) - overlap_s, self._skipped_until_s)
        return self._make_query(rfc3339(since_s), conditions=self._floods.conditions)

    def _read_page(self) -> bool:
        """Reads a page. Returns whether another one is ready."""
        if not self._query:
            self._query = self._make_common_query(BUSY_LATE_S if self._turns else LATE_S)
        page = self._fetch_page(self._query)
        entries = _list_entries(page)
        for entry in entries:
            t = unix_s(entry["timestamp"])
            self._tally.add(_find_writers(entry), t)
            self._newest = max(self._newest, rfc3339(t))
        self._hand_on(self._pick_fresh(entries))
        token = page.get("nextPageToken")
        self._query = self._query | {"pageToken": token} if token else {}
        return bool(token)

    def _pick_fresh(self, entries: Iterable[Entry]) -> list[Entry]:
        """Returns the entries that were not read before, and remembers them."""
        fresh: list[Entry] = []
        for entry in entries:
            if entry["insertId"] not in self._read_ids:
                fresh.append(entry)
        for entry in fresh:
            self._read_ids[entry["insertId"]] = None
        while len(self._read_ids) > REMEMBERED:
            self._read_ids.popitem(last=False)
        return fresh

    def _hand_on(self, entries: Iterable[Entry]) -> None:
        with self._lock:
            for entry in entries:
                writer = (find_entry_job(entry), *_find_pod(entry))
                self._waiting.setdefault(writer, []).append(_make_line(entry))
                self._indexes[writer] = _find_index(entry)

    def _make_query(
        self, since: str, job: str = "", conditions: Iterable[str] = ()
    ) -> dict[str, Any]:
        events = " OR ".join(f'"{event}"' for event in WATCHER_EVENTS)
        namespaces = " OR ".join(f'"{namespace}"' for namespace in self._namespaces)
        filters = [
            'resource.type="k8s_container"',
            f'resource.labels.cluster_name="{self._cluster}"',
            f"(resource.labels.namespace_name=({namespaces}) OR "
            f'(resource.labels.namespace_name="{NAMESPACE_MONITORING}" AND'
            f" jsonPayload.event=({events})))",
            f"jsonPayload.v={EVENT_VERSION}",
            "jsonPayload.event:*",
            f'timestamp>="{since}"',
            *conditions,
        ]
        if job:
            filters.append(f'jsonPayload.job="{job}"')
        return {
            "resourceNames": [self._view],
            "filter": " AND ".join(filters),
            "orderBy": "timestamp asc",
            "pageSize": PAGE,
        }

    def _fetch_page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        try:
            response = self._session.post(self._url, json=query, timeout=TIMEOUT_S)
            if response.status_code == HTTP_OK:
                return response.json()
        except (requests.RequestException, GoogleAuthError) as error:
            raise Unjudged(f"Cloud Logging did not answer: {type(error).__name__}") from error
        fix = ""
        if response.status_code in (403, 404):
            fix = f"; {self._view} needs roles/logging.viewAccessor"
        raise Unjudged(f"Cloud Logging answered {response.status_code}{fix}")


def find_entry_job(entry: Entry) -> str:
    """Returns the job that an entry may speak for.

    The log agent's labels decide; the container cannot choose them.
    """
    namespace, _ = _find_pod(entry)
    if namespace == NAMESPACE_MONITORING:
        line = entry["jsonPayload"]
        if line.get("event") == FAULTY:
            return ""  # it is about a node
        if line.get("event") in WATCHER_EVENTS:
            return str(line.get("job") or NO_JOB)
        return NO_JOB
    labels = entry.get("labels") or {}
    for label in _JOB_LABELS:
        if labels.get(label):
            return labels[label]
    return NO_JOB


def _find_index(entry: Entry) -> int | None:
    """Returns the completion index that the pod has by its labels."""
    labels = entry.get("labels") or {}
    text = str(labels.get(_INDEX_LABEL, ""))
    return int(text) if is_count(text) else None


def speaks_for(entry: Entry, job: str, namespace: str = "") -> bool:
    if find_entry_job(entry) != job:
        return False
    writer_namespace, _ = _find_pod(entry)
    return not namespace or writer_namespace in (namespace, NAMESPACE_MONITORING)


def _find_pod(entry: Entry) -> tuple[str, str]:
    """Returns namespace and name of the pod, as the log agent states them."""
    resource = entry.get("resource") or {}
    labels = resource.get("labels") or {}
    namespace = labels.get("namespace_name", "")
    pod = labels.get("pod_name") or NO_JOB
    return str(namespace), str(pod)


def _find_writers(entry: Entry) -> list[Flood]:
    """Returns the pod that wrote an entry, and its job; none for the platform's own pods."""
    namespace, pod = _find_pod(entry)
    if namespace == NAMESPACE_MONITORING:
        return []
    job = find_entry_job(entry)
    writers = [Flood(namespace, "resource.labels.pod_name", pod, job)]
    labels = entry.get("labels") or {}
    for label in _JOB_LABELS:
        if labels.get(label):
            writers.append(Flood(namespace, f'labels."{label}"', job, job))
            break
    return writers


def _list_entries(page: Mapping[str, Any]) -> Sequence[Entry]:
    return page.get("entries", ())


def _make_line(entry: Entry) -> bytes:
    return json.dumps(entry["jsonPayload"], sort_keys=True).encode()
