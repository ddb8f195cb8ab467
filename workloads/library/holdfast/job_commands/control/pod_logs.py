"""Prints what the pods of a job wrote, and follows pods that come later.

It needs nothing but the API server, which keeps the log of a pod as long as the pod. What evicted
pods wrote is in Cloud Logging.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    condition,
    get_place,
    list_container_statuses,
)
from holdfast.manifests.pods import MAIN
from holdfast.platform import Platform
from holdfast.support.errors import InputError, Unjudged

MAX_STREAMS = 64
"""Pods that are followed at the same time, each over a connection of its own."""
POLL_S = 2.0
Print = Callable[[str], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The pods and lines that the user asked for."""

    index: int | None = None
    """Index of the only pod; None: all."""
    previous: bool = False
    """Show the attempt before the present one."""
    tail: int | None = None
    """Newest lines of each pod; None: all."""


@dataclass(frozen=True, slots=True)
class Source:
    """The log of one attempt of a pod's program."""

    pod: Object
    container: str
    previous: bool = False

    @property
    def path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"

    @property
    def key(self) -> tuple[str, int]:
        """The uid of the pod, and how often its container has been started again."""
        restarts = 0
        for status in list_container_statuses(self.pod):
            if status["name"] == self.container:
                restarts = int(status.get("restartCount", 0))
        return self.pod["metadata"]["uid"], restarts


def show(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    selection: Selection,
    show_line: Print = print,
) -> None:
    """Print the log of each pod, in the order of their indexes.

    Raises InputError if no pod of the job has started, or if the attempt is not kept.
    """
    sources = select_sources(job, selection)
    if not sources:
        raise _no_log(platform, job, selection)
    with_name = len(sources) > 1
    for source in sources:
        prefix = make_prefix(source.pod) if with_name else ""
        for line in read(api, source, tailLines=selection.tail):
            show_line(prefix + line)


def read(api: Api, source: Source, **query: object) -> Iterator[str]:
    """Yield the lines of a log by parameters of the API; none if the pod is gone or its container
    has not started.
    """
    try:
        yield from api.lines(
            source.path,
            container=source.container,
            previous="true" if source.previous else None,
            **query,
        )
    except ApiError as error:
        if error.status not in (400, 404):
            raise


def select_sources(job: JobSnapshot, selection: Selection) -> list[Source]:
    """Return the newest attempt of each index that has started, or the one before it."""
    attempts: dict[str, list[Source]] = {}
    for pod in sorted(job.pods, key=_creation_time):
        place = get_place(pod)
        if selection.index is not None and place != selection.index:
            continue
        key = str(place) if place >= 0 else pod["metadata"]["name"]
        attempts.setdefault(key, []).extend(_list_attempts(pod))
    depth = 2 if selection.previous else 1
    sources = [of_index[-depth] for of_index in attempts.values() if len(of_index) >= depth]
    return sorted(sources, key=lambda source: (get_place(source.pod), source.path))


def _creation_time(pod: Object) -> str:
    return pod["metadata"]["creationTimestamp"]


def _list_attempts(pod: Object) -> Iterator[Source]:
    """Yield the attempts of a pod whose logs the kubelet keeps, oldest first."""
    container = find_container(pod)
    for status in list_container_statuses(pod):
        if status["name"] != container:
            continue
        if status.get("restartCount"):
            yield Source(pod, container, previous=True)
        state = status.get("state", {})
        if "running" in state or "terminated" in state:
            yield Source(pod, container)


def find_container(pod: Object) -> str:
    """Return the name of the container that does the work."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    return MAIN if MAIN in names else names[0]


def make_prefix(pod: Object) -> str:
    """Return what marks the lines of a pod: its index, or its name if it has none."""
    place = get_place(pod)
    return f"[{place if place >= 0 else pod['metadata']['name']}] "


def _no_index(job: JobSnapshot, index: int, places: list[int]) -> InputError:
    allowed = "none: the job has no pod"
    if places:
        has_index = places[-1] >= 0
        allowed = f"{places[0]} to {places[-1]}" if has_index else "none: its pods have no index"
    return InputError(
        "no pod with this index",
        got=index,
        allowed=allowed,
        fix=f"holdfast logs {job.name}",
    )


def _no_log(platform: Platform, job: JobSnapshot, selection: Selection) -> InputError:
    has_run = job.outcome or (job.workload and condition(job.workload, "Evicted"))
    if has_run and not job.pods:
        return InputError(
            "the logs of the job's pods are not in the cluster any more",
            got=f"{job.name}, which has no pod",
            allowed="a job with pods that have started",
            fix=suggest_cloud_logs(platform, job),
        )
    if selection.index is not None:
        places = sorted(get_place(pod) for pod in job.pods)
        if selection.index not in places:
            return _no_index(job, selection.index, places)
    if selection.previous:
        return InputError(
            "no earlier attempt is kept in the cluster",
            got=f"{job.name} --previous",
            allowed="a job whose failed pods still exist, or whose container was restarted",
            fix=suggest_cloud_logs(platform, job),
        )
    return InputError(
        "no pod of the job has started yet",
        got=(
            f"{job.name}{', suspended,' if job.is_suspended else ''} with {len(job.pods)} of"
            f" {job.size} pods, none of which has run"
        ),
        allowed="a job with a pod that has run",
        fix=f"holdfast explain {job.name}",
    )


def suggest_cloud_logs(platform: Platform, job: JobSnapshot) -> str:
    """Return the command that reads the logs of pods that are gone."""
    labels = [
        'resource.type="k8s_container"',
        f'resource.labels.cluster_name="{platform.cluster}"',
        f'resource.labels.namespace_name="{job.namespace}"',
        f'resource.labels.pod_name:"{job.name}-"',
    ]
    return f"gcloud logging read '{' '.join(labels)}' --project={platform.project} --order=asc"


@dataclass(kw_only=True)
class Streams:
    """Follows the logs of many pods, each in a thread, into one queue."""

    api: Api
    query: dict[str, object] = field(default_factory=dict)
    """Parameters of each request, in addition to `follow`."""
    lines: "SimpleQueue[tuple[Object, str]]" = field(
        default_factory=lambda: SimpleQueue[tuple[Object, str]]()
    )
    """Pod and line, in the order in which they came."""
    _skipped: set[tuple[str, int]] = field(default_factory=set)
    """Logs that are not followed yet, since there are too many."""
    _threads: dict[tuple[str, int], threading.Thread] = field(default_factory=dict)

    def follow(self, sources: Iterable[Source]) -> None:
        """Start to follow each log that is not followed yet."""
        for source in sources:
            if source.key in self._threads:
                continue
            if self.count_open() >= MAX_STREAMS:
                self._skip(source)
                continue
            thread = threading.Thread(target=self._follow, args=(source,), daemon=True)
            self._threads[source.key] = thread
            thread.start()

    def _skip(self, source: Source) -> None:
        """Say once that a log is not followed yet."""
        if source.key in self._skipped:
            return
        self._skipped.add(source.key)
        place = get_place(source.pod)
        hint = f"; --index {place} shows it" if place >= 0 else ""
        text = f"(not followed yet: {MAX_STREAMS} logs are followed at the same time{hint})"
        self.lines.put((source.pod, text))

    def count_open(self) -> int:
        return sum(thread.is_alive() for thread in self._threads.values())

    def wait_for_ends(self, timeout_s: float) -> None:
        """Wait until all logs have ended."""
        end = time.monotonic() + timeout_s
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))

    def take(self) -> Iterator[tuple[Object, str]]:
        """Yield the lines that have come."""
        while not self.lines.empty():
            yield self.lines.get()

    def _follow(self, source: Source) -> None:
        try:
            for line in read(self.api, source, follow="true", **self.query):
                self.lines.put((source.pod, line))
        except Unjudged as error:  # the node or the API server is lost: the other pods go on
            self.lines.put((source.pod, f"(the log ended: {error})"))


def _look_again(api: Api, job: JobSnapshot) -> JobSnapshot:
    return job_snapshot.find(api, job.name, job.namespace)


def follow(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    selection: Selection,
    show_line: Print = print,
    look_again: Callable[[Api, JobSnapshot], JobSnapshot] = _look_again,
) -> str:
    """Print the lines of the job's pods and of their replacements until the job has ended.

    Returns how it ended. Raises InputError for a job that has ended and whose logs are gone.
    """
    if job.outcome and not select_sources(job, selection):
        raise _no_log(platform, job, selection)
    streams = Streams(api=api, query={"tailLines": selection.tail})
    while True:
        streams.follow(select_sources(job, selection))
        if job.outcome:
            streams.wait_for_ends(POLL_S)
        _show_lines(streams, job, show_line)
        if job.outcome:
            return job.outcome
        # Lines are printed as they come; the pods are listed less often.
        next_look = time.monotonic() + POLL_S
        while time.monotonic() < next_look:
            time.sleep(0.1)
            _show_lines(streams, job, show_line)
        job = look_again(api, job)


def _show_lines(streams: Streams, job: JobSnapshot, show_line: Print) -> None:
    for pod, line in streams.take():
        show_line((make_prefix(pod) if job.size > 1 else "") + line)
