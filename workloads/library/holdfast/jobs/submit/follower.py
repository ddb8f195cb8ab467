"""Follows a job to its end: what it waits for, its event lines, and its receipt.

It needs nothing but the API server. Each line is kept once. One request reads at most PIECE bytes
of a pod's log, and reading stops once MOST bytes of its event lines are kept. The log of a deleted
pod is gone: what it wrote after the last look is missing, and so is what it wrote in one second
beyond PIECE.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path

from holdfast.clients.api import Api, ApiError, Object
from holdfast.cost import prices
from holdfast.cost.receipt import receipt
from holdfast.jobs.diagnose import explain, job_snapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, get_run_s
from holdfast.jobs.plan.pricing import find_machine
from holdfast.ledger.disruptions import find_eviction
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.processes import FOREIGN_TYPES
from holdfast.manifests.pods import MAIN
from holdfast.platform import Platform
from holdfast.support.errors import Unjudged
from holdfast.support.progress import working
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.vocabulary.job_identity import LABEL_RUN_PER_INDEX, read_source
from holdfast.vocabulary.kubernetes import ANNOTATION_INDEX, ANNOTATION_SOURCE, LABEL_MACHINE_TYPE
from holdfast.vocabulary.pools import LABEL_ACCELERATOR, LABEL_COMPUTE_CLASS, LABEL_NODEPOOL
from holdfast.vocabulary.telemetry import EVENT_VERSION, KIND_BATCH, KIND_TRAINING

PIECE = 1 << 20
MOST = 1 << 26
SECOND = len("2026-01-01T00:00:00")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
POLL_S = 2.0
LATER_POLL_S = 15.0
YOUNG_S = 600.0
"""Age up to which a job is looked at often, since a person watches; a look lists the cluster."""
PATIENCE_S = 20.0
"""Time that a job waits before the reason is printed."""
WATCHER = "follower"
Report = Callable[[str], None]


@dataclass(slots=True)
class _Mark:
    """The position in a pod's log up to which it was read."""

    second: str = ""
    lines: set[str] = field(default_factory=set)
    """Lines of that second that were read: the API reads from a whole second on."""
    written_bytes: int = 0


@dataclass(slots=True)
class PodLines:
    folder: Path
    _marks: dict[str, _Mark] = field(default_factory=dict)

    def look(self, api: Api, pod: Object) -> None:
        """Read all that is new, as far as the pod's node answers."""
        meta = pod["metadata"]
        mark = self._marks.setdefault(meta["uid"], _Mark())
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        while mark.written_bytes < MOST:
            since = {"sinceTime": f"{mark.second}Z"} if mark.second else {}
            try:
                text = api.text(
                    path,
                    container=MAIN,
                    timestamps="true",
                    limitBytes=PIECE,
                    **since,
                )
            except Unjudged:
                return  # the pod is gone, or its node does not answer: the other pods go on
            is_cut = len(text.encode()) >= PIECE
            whole_lines = text[: text.rfind("\n") + 1]
            has_news = self._store(meta["uid"], mark, whole_lines)
            if not is_cut:
                break
            if not has_news:
                # Without a mark, the first line is longer than a piece.
                second = mark.second or text[:SECOND]
                next_s = unix_s(f"{second}Z") + 1
                mark.second = rfc3339(next_s)[:SECOND]
                mark.lines = set()
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            mark.written_bytes = MOST  # all that it will ever print

    def _store(self, uid: str, mark: _Mark, text: str) -> bool:
        """Write the new event lines, and return whether any line was new."""
        new_lines: list[str] = []
        # Not by splitlines: a progress bar writes carriage returns within its line.
        for line in text.split("\n"):
            # The kubelet's own messages have no time.
            is_timed = _TIME.match(line) is not None
            if is_timed and line not in mark.lines and line[:SECOND] >= mark.second:
                new_lines.append(line)
        if not new_lines:
            return False
        newest = new_lines[-1][:SECOND]
        if newest != mark.second:
            mark.second = newest
            mark.lines = set()
        mark.lines |= {line for line in new_lines if line.startswith(newest)}
        events = ""
        for line in new_lines:
            printed = line.partition(" ")[2]
            if printed.startswith("{") and '"event"' in printed:
                events += f"{printed}\n"
        mark.written_bytes += len(events)
        if events:
            with (self.folder / f"{uid}.jsonl").open("a", encoding="utf-8") as file:
                file.write(events)
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """The options of a follower."""

    evict: bool = False
    """Evict the first running pod, once."""
    timeout_s: float = 7200
    events: Path | None = None
    """Folder that keeps the event lines; None: they are deleted when the command ends."""


@dataclass(kw_only=True)
class _Observations:
    """The observations of a job, whose pods no longer exist when it ends."""

    lines: PodLines
    pods: dict[str, tuple[Object, float]] = field(default_factory=dict)
    """Pods, and the Unix time at which each was last seen."""
    noted_evictions: set[str] = field(default_factory=set)
    """Pods whose eviction has its line."""
    pool: str = ""
    """Pool of a node that it ran on."""
    evicted_pod: str = ""
    """Name of the pod that this command evicted."""
    waits_since: float = 0.0
    reported: list[str] = field(default_factory=list)


def follow(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    following: Following,
    report: Report,
) -> int:
    """Report what changes, evict a pod once on request, and print the receipt.

    Returns the exit code: 0 complete, 1 failed. Raises Unjudged if the job has not ended in time.
    """
    start = time.monotonic()
    with ExitStack() as stack:
        folder = following.events or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-follow-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        # a folder without a file is refused, and no pod has written yet
        (folder / "none.jsonl").touch()
        observations = _Observations(lines=PodLines(folder))
        while not (final := _try_to_look(api, platform, job, following, observations, report)):
            elapsed_s = time.monotonic() - start
            if elapsed_s > following.timeout_s:
                raise Unjudged(
                    f"{job.name} has not ended after {following.timeout_s:.0f} s: holdfast explain"
                    f" {job.name}"
                )
            with working(f"follow {job.name}", since_s=start):
                time.sleep(POLL_S if elapsed_s < YOUNG_S else LATER_POLL_S)
        report(final.outcome)
        pods = list(observations.pods.values())
        print(make_bill(final, platform, folder, pods, observations.pool))
    return EXIT_DONE if final.outcome == "Complete" else EXIT_FINDINGS


def _try_to_look(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    following: Following,
    observations: _Observations,
    report: Report,
) -> JobSnapshot | None:
    """Look at the job once. Reports a cluster that is away for a while, which ends nothing."""
    try:
        return _look(api, platform, job, following, observations, report)
    except Unjudged as error:
        if isinstance(error, ApiError) and not _may_pass(error):
            raise
        _report_lines([f"{error}; asking again"], observations, report)
    return None


def _may_pass(error: ApiError) -> bool:
    return error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= 500


def _look(
    api: Api,
    platform: Platform,
    job: JobSnapshot,
    following: Following,
    observations: _Observations,
    report: Report,
) -> JobSnapshot | None:
    """Look at the job once, and return it if it has ended."""
    job = job_snapshot.find(api, job.name, job.namespace)
    for pod in job.pods:
        observations.pods[pod["metadata"]["uid"]] = (pod, time.time())
        observations.lines.look(api, pod)
        _note_eviction(job, pod, observations)
    if not observations.pool:
        labels = _find_node_labels(api, job)
        observations.pool = _find_pool(labels, platform)
        if labels.get(LABEL_ACCELERATOR):
            report(f"runs on {labels[LABEL_ACCELERATOR]}, {labels.get(LABEL_MACHINE_TYPE, '')}")
    if job.outcome:
        return job
    folder = observations.lines.folder
    explanation = explain.explain(api, job.name, job.namespace, folder)
    _report(explanation, job, observations, report)
    if following.evict and not observations.evicted_pod:
        _evict(api, job, observations, report)
    return None


def _note_eviction(job: JobSnapshot, pod: Object, observations: _Observations) -> None:
    """Write an event line as the node watcher does: no process can write that it is killed."""
    meta = pod["metadata"]
    reason, since_s = find_eviction(pod)
    if not reason or meta["uid"] in observations.noted_evictions:
        return
    observations.noted_evictions.add(meta["uid"])
    is_batch = "batch" in (job.namespace, pod["spec"].get("serviceAccountName"))
    event = {
        "v": EVENT_VERSION,
        "t": since_s,
        "event": "evict",
        "job": job.name,
        "kind": KIND_BATCH if is_batch else KIND_TRAINING,
    }
    if meta.get("labels", {}).get(LABEL_RUN_PER_INDEX) == "true":
        event["index"] = int(meta["annotations"][ANNOTATION_INDEX])
    event |= {
        "process": WATCHER,
        "signal": "SIGTERM",
        "target": meta["name"],
        "reason": reason,
    }
    with (observations.lines.folder / f"{WATCHER}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def _find_node_labels(api: Api, job: JobSnapshot) -> dict[str, str]:
    """Return the labels of a node on which the job runs; empty if none is known."""
    names = [pod["spec"].get("nodeName") for pod in job.phase("Running")]
    name = next(filter(None, names), None)
    if name is None:
        return {}
    node = api.find(f"/api/v1/nodes/{name}")
    return node["metadata"].get("labels", {}) if node else {}


def _find_pool(labels: Mapping[str, str], platform: Platform) -> str:
    """Return the pool of a node; of a node that GKE made, the Spot pool of its machines."""
    for pool in platform.pools:
        is_spot = pool.capacity is Capacity.SPOT
        is_alike = pool.machine_type == labels.get(LABEL_MACHINE_TYPE)
        if LABEL_COMPUTE_CLASS in labels and is_spot and is_alike:
            return pool.name
    return labels.get(LABEL_NODEPOOL, "")


def _report(
    explanation: explain.Explanation,
    job: JobSnapshot,
    observations: _Observations,
    report: Report,
) -> None:
    """Report a line when the state changes, and all six when the job has waited for long.

    The six lines are reported again when their blocker changes.
    """
    lines = [explanation.state]
    now = time.monotonic()
    if job.phase("Running"):
        observations.waits_since = 0.0
        lines = [f"{explanation.state}; {explanation.cause.blocker}"]
    else:
        observations.waits_since = observations.waits_since or now
        if now - observations.waits_since >= PATIENCE_S:
            lines = [f"{name}: {text}" for name, text in explanation.lines()]
    _report_lines(lines, observations, report)


def _report_lines(lines: list[str], observations: _Observations, report: Report) -> None:
    if lines != observations.reported:
        observations.reported = lines
        for line in lines:
            report(line)


def _evict(
    api: Api,
    job: JobSnapshot,
    observations: _Observations,
    report: Report,
) -> None:
    """Evict a running pod. If a budget refuses, the next look tries again."""
    running = job.phase("Running")
    if not running:
        return
    meta = running[0]["metadata"]
    try:
        api.evict(meta["namespace"], meta["name"])
    except ApiError as error:
        report(f"not evicted yet: {error}")
        return
    observations.evicted_pod = meta["name"]
    report(f"evicted {meta['name']}, as requested")


def make_bill(
    job: JobSnapshot,
    platform: Platform,
    events: Path,
    pods: Sequence[tuple[Object, float]],
    pool: str,
) -> str:
    """Return the receipt of a job as one line.

    pods: all that were observed, and when each was last seen: one that was deleted since shows no
    end. pool: that of a node on which the job ran; empty: the first that
    the pods fit.
    """
    machine = find_machine(job.pod_spec, platform, prices.load(), pool)
    if machine is None or machine.usd is None or machine.on_demand_usd is None:
        return (
            f"{job.name}: no receipt, since its machines have no price in {platform.price_region}"
        )
    # the pods of a gang are one lane of the ledger
    lane_pods = job.size if job.kind == "JobSet" or job.is_sharded else 1
    reading = read_folder(events)
    ledgers = [ledger for ledger in job_ledgers(reading.events) if ledger.job == job.name]
    job_events = [event for event in reading.events if event.job == job.name]
    # Lines that others wrote about its pods show neither work nor lost work.
    if any(event.type not in FOREIGN_TYPES for event in job_events):
        paid = receipt(ledgers, machine.usd * lane_pods, machine.on_demand_usd * lane_pods)
        annotations = job.body["metadata"].get("annotations") or {}
        paid = replace(paid, source=read_source(annotations.get(ANNOTATION_SOURCE)))
        lost_steps = sum(ledger.lost for ledger in ledgers)
        loss = f"{lost_steps} steps lost" if lost_steps else "no step lost"
        useful = paid.useful_hours / paid.machine_hours if paid.machine_hours else 0.0
        return f"{paid.line()}; useful {100 * useful:.1f} % of its time, {loss}"
    run_s = sum(get_run_s(pod, seen_s) for pod, seen_s in pods)
    hours = run_s / 3600
    evictions = 0
    for pod, _ in pods:
        reason, _ = find_eviction(pod)
        evictions += bool(reason)
    return (
        f"{job.name}: paid ${hours * machine.usd:.4f} for {hours * 60:.1f} minutes with {evictions}"
        f" evictions; on demand ${hours * machine.on_demand_usd:.4f}; useful time is not known,"
        " since no pod's lines could be read"
    )
