"""A job followed to its end: what it waits for, its event lines, its receipt. Needs nothing but the
API server.

Guarantees: a line is kept once; a look asks for PIECE bytes of a pod, and MOST of it are kept in
all. A pod that is gone has no log any more: what it wrote after the last look is missing, and what
it wrote in one second beyond PIECE.
"""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose import explain, job_snapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.plan.pricing import bill
from holdfast.ledger.disruptions import eviction
from holdfast.manifests.pods import MAIN
from holdfast.platform import Platform
from holdfast.support.errors import Unjudged
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.vocabulary.job_identity import LABEL_RUN_PER_INDEX
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX
from holdfast.vocabulary.pools import LABEL_NODEPOOL
from holdfast.vocabulary.telemetry import EVENT_VERSION, KIND_BATCH, KIND_TRAINING

PIECE = 1 << 20
MOST = 1 << 26
SECOND = len("2026-01-01T00:00:00")


@dataclass(slots=True)
class _Mark:
    """How far a pod was read."""

    second: str = ""
    seen: set[str] = field(default_factory=set[str])
    """Lines of that second: the API takes no finer time."""
    kept: int = 0


@dataclass(slots=True)
class PodLines:
    folder: Path
    _marks: dict[str, _Mark] = field(default_factory=dict[str, _Mark])

    def look(self, api: Api, pod: Object) -> None:
        """All that is new, as far as its node answers."""
        meta = pod["metadata"]
        mark = self._marks.setdefault(meta["uid"], _Mark())
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        while mark.kept < MOST:
            since = {"sinceTime": f"{mark.second}Z"} if mark.second else {}
            try:
                text = api.text(
                    path,
                    container=MAIN,
                    timestamps="true",
                    limitBytes=PIECE,
                    **since,
                )
            except ApiError:
                return
            more = len(text.encode()) >= PIECE
            if not self._keep(meta["uid"], mark, text[: text.rfind("\n") + 1]) and more:
                mark.second = rfc3339(unix_s(f"{mark.second}Z") + 1)[:SECOND]
                mark.seen = set()
            if not more:
                break
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            mark.kept = MOST  # all that it will ever print

    def _keep(self, uid: str, mark: _Mark, text: str) -> bool:
        """Whether anything was new."""
        fresh = [
            line
            for line in text.splitlines()
            if line not in mark.seen and line[:SECOND] >= mark.second
        ]
        if not fresh:
            return False
        newest = fresh[-1][:SECOND]
        if newest != mark.second:
            mark.second = newest
            mark.seen = set()
        mark.seen |= {line for line in fresh if line.startswith(newest)}
        printed = [line.partition(" ")[2] for line in fresh]
        events = [line for line in printed if line.startswith("{") and '"event"' in line]
        written = "".join(f"{event}\n" for event in events)
        mark.kept += len(written)
        if written:
            with (self.folder / f"{uid}.jsonl").open("a", encoding="utf-8") as file:
                file.write(written)
        return True


POLL_S = 2.0
LATER_POLL_S = 15.0
YOUNG_S = 600.0
"""A look lists the cluster: often at first, while a person watches, less often when it has run for
long.
"""
PATIENCE_S = 20.0
"""So long it may wait before it is explained why."""
WATCHER = "follower"
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    evict: bool = False
    """Its first running pod is evicted, once."""
    timeout_s: float = 7200
    events: Path | None = None
    """Folder that keeps its event lines; None: they go with the command."""


@dataclass(kw_only=True)
class Followed:
    """What was seen of the job: its pods are gone when it ends."""

    lines: PodLines
    pods: dict[str, Object] = field(default_factory=dict[str, Object])
    taken: set[str] = field(default_factory=set[str])
    """Pods whose eviction has its line."""
    pool: str = ""
    """Of a node that it ran on."""
    evicted: str = ""
    """Name of the pod that was evicted."""
    waits_since: float = 0.0
    reported: list[str] = field(default_factory=list[str])


def follow(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    asked: Following,
    report: Report,
) -> int:
    """Reports what changes, evicts once on request, and prints the receipt. The exit code: 0
    complete, 1 failed.
    """
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = asked.events or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-follow-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        # a folder without a file is refused, and no pod has written yet
        (folder / "none.jsonl").touch()
        seen = Followed(lines=PodLines(folder))
        while not (ended := _look(api, job, asked, seen, report)):
            took_s = time.monotonic() - begun
            if took_s > asked.timeout_s:
                raise Unjudged(
                    f"{job.name} has not ended after {asked.timeout_s:.0f} s: holdfast explain"
                    f" {job.name}"
                )
            time.sleep(POLL_S if took_s < YOUNG_S else LATER_POLL_S)
        report(ended.finished)
        print(bill(ended, platform, folder, list(seen.pods.values()), seen.pool))
    return EXIT_DONE if ended.finished == "Complete" else EXIT_FINDINGS


def _look(
    api: Api,
    job: JobSnapshot,
    asked: Following,
    seen: Followed,
    report: Report,
) -> JobSnapshot | None:
    """One look at the job; the job itself when it has ended."""
    job = job_snapshot.find(api, job.name, job.namespace)
    seen.pods |= {pod["metadata"]["uid"]: pod for pod in job.pods}
    for pod in job.pods:
        seen.lines.look(api, pod)
        _note_eviction(job, pod, seen)
    seen.pool = seen.pool or _pool(api, job)
    if job.finished:
        return job
    _report(
        explain.explain(api, job.name, job.namespace, seen.lines.folder), job, asked, seen, report
    )
    if asked.evict and not seen.evicted:
        _evict(api, job, seen, report)
    return None


def _note_eviction(job: JobSnapshot, pod: Object, seen: Followed) -> None:
    """As the node watcher does: no process can write that it is killed."""
    meta = pod["metadata"]
    reason, since_s = eviction(pod)
    if not reason or meta["uid"] in seen.taken:
        return
    seen.taken.add(meta["uid"])
    apart = meta.get("labels", {}).get(LABEL_RUN_PER_INDEX) == "true"
    index = {"index": int(meta["annotations"][ANNOTATION_INDEX])} if apart else {}
    if "batch" in (job.namespace, pod["spec"].get("serviceAccountName")):
        kind = KIND_BATCH
    else:
        kind = KIND_TRAINING
    head = {
        "v": EVENT_VERSION,
        "t": since_s,
        "event": "evict",
        "job": job.name,
        "kind": kind,
    }
    about = {
        "process": WATCHER,
        "signal": "SIGTERM",
        "target": meta["name"],
        "reason": reason,
    }
    with (seen.lines.folder / f"{WATCHER}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(head | index | about) + "\n")


def _pool(api: Api, job: JobSnapshot) -> str:
    named = next(
        (name for pod in job.phase("Running") if (name := pod["spec"].get("nodeName"))), ""
    )
    node = api.find(f"/api/v1/nodes/{named}") if named else None
    return node["metadata"].get("labels", {}).get(LABEL_NODEPOOL, "") if node else ""


def _report(
    found: explain.Explanation,
    job: JobSnapshot,
    asked: Following,
    seen: Followed,
    report: Report,
) -> None:
    """A line when the state changes; all six when it has waited for long, and again when their
    blocker changes.
    """
    lines = [found.state]
    now = time.monotonic()
    if job.phase("Running"):
        seen.waits_since = 0.0
        lines = [f"{found.state}; {found.cause.blocker}"]
    else:
        seen.waits_since = seen.waits_since or now
        if now - seen.waits_since >= PATIENCE_S:
            lines = [f"{name}: {text}" for name, text in found.lines()]
    if lines != seen.reported:
        seen.reported = lines
        for line in lines:
            report(line)


def _evict(api: Api, job: JobSnapshot, seen: Followed, report: Report) -> None:
    """If a budget refuses, the next look tries again."""
    running = job.phase("Running")
    if not running:
        return
    meta = running[0]["metadata"]
    try:
        api.evict(meta["namespace"], meta["name"])
    except ApiError as error:
        report(f"not evicted yet: {error}")
        return
    seen.evicted = meta["name"]
    report(f"evicted {meta['name']}, as requested")
