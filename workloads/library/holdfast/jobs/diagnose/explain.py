"""How jobs fare: `explain` with one row a job, `explain JOB` with the cause and the command that
shows it.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.cost import prices
from holdfast.cost.prices import Table
from holdfast.jobs.diagnose import cluster_snapshot, job_snapshot
from holdfast.jobs.diagnose.cause import Cause, Count, Reason, losses
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot, gpus
from holdfast.jobs.diagnose.diagnosis import cause_of, state_of
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    held_since_s,
    lost_at_s,
    ran_s,
    waited_s,
    when,
)
from holdfast.jobs.plan import pricing
from holdfast.ledger.job_summary import JobSummary, read_job_summaries
from holdfast.platform import Platform
from holdfast.vocabulary.pools import LABEL_FLEX_START, LABEL_NODEPOOL, LABEL_POOL_CLASS

# Why it is so: infra/decisions/0100.

SCHEMA = "holdfast.explanation/2"
MOST_LISTED = 5
_CLASS = (LABEL_POOL_CLASS, LABEL_FLEX_START)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    job: str
    namespace: str
    state: str
    cause: Cause
    similar: str

    def lines(self) -> list[tuple[str, str]]:
        cause = self.cause
        rows = {
            "state": self.state,
            "blocker": cause.blocker,
            "position": cause.position,
            "similar": self.similar,
        }
        rows |= {"do": cause.action, "evidence": cause.evidence}
        return [(name, text) for name, text in rows.items() if text]

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def explain(
    api: Api,
    name: str,
    namespace: str = "",
    events: Path | None = None,
    platform: Platform | None = None,
) -> Explanation:
    """platform: where its machines have their prices; None: nothing is in dollars."""
    job = job_snapshot.find(api, name, namespace)
    cluster = cluster_snapshot.take_snapshot(api, job.namespace)
    summary = read_job_summaries(events).get(job.name) if events else None
    cause = cause_of(job, cluster)
    now = time.time()
    priced = platform and (job.missing_places or (summary and summary.size))
    if platform and priced:
        rented = pricing.rented_on(job.pod_spec, platform, prices.load())
    else:
        rented = None
    rate = rented.usd if rented else None
    waits = in_place_text(job, now, rate)
    if waits:
        cause = replace(cause, blocker=f"{waits}; {cause.blocker}")
    elif cause.reason is Reason.NONE and (text := progress_text(summary, now, rate)):
        cause = replace(cause, blocker=f"{cause.blocker}; {text}")
    lost = losses(job, cluster.events, summary.orderly_exits if summary else 0)
    return Explanation(
        job=job.name,
        namespace=job.namespace,
        state=state_of(job, lost),
        cause=cause,
        similar=similar(job, cluster),
    )


def similar(job: JobSnapshot, cluster: ClusterSnapshot) -> str:
    """What other jobs' pods of the same class of pools waited for a node, as far as the cluster
    still knows.
    """
    selector: dict[str, str] = job.pod_spec.get("nodeSelector", {})
    own = {pod["metadata"]["uid"] for pod in job.pods}
    others = [pod for pod in cluster.others if pod["metadata"]["uid"] not in own]
    same = []
    for p in others:
        if all(p["spec"].get("nodeSelector", {}).get(k) == selector.get(k) for k in _CLASS):
            same.append(p)
    waits = sorted(wait for pod in same if (wait := waited_s(pod)) is not None)
    no_eta = "; Google gives no ETA for flex-start" if LABEL_FLEX_START in selector else ""
    if not waits:
        return f"no other pod of this class has started here yet{no_eta}"
    percentiles = quantiles(waits, n=20, method="inclusive") if len(waits) > 1 else waits * 19
    return (
        f"{len(waits)} pods of this class waited p50 {percentiles[9]:.0f} s, p95"
        f" {percentiles[18]:.0f} s{no_eta}"
    )


def progress_text(
    summary: JobSummary | None, now_s: float, usd_per_hour: float | None = None
) -> str:
    """`useful 27.6 % of its time, step 1200, saved 40 s ago`; empty where it has written nothing."""
    if summary is None:
        return ""
    saved_age_s = summary.saved_age_s(now_s)
    facts = [
        (
            f"useful {100 * summary.useful_ratio:.1f} % of its time"
            if summary.useful_ratio is not None
            else ""
        ),
        f"step {summary.step}" if summary.step is not None else "",
        f"saved {saved_age_s:.0f} s ago" if saved_age_s is not None else "",
        size_text(summary, now_s, usd_per_hour),
        restarts_text(summary),
    ]
    return ", ".join(fact for fact in facts if fact)


def size_text(summary: JobSummary, now_s: float, usd_per_hour: float | None = None) -> str:
    """`7/8 nodes for 20 min (3.2 node-hours missing, $1.09 to make up)`; empty for a rigid job. The
    price is of a node.
    """
    size = summary.size
    if size is None:
        return ""
    minutes = max(0.0, now_s - size.begin_us / 1e6) / 60
    hours = summary.missing_node_s / 3600
    # A node that does not exist is not billed; its work is still to be done, at this price.
    price = f", ${hours * usd_per_hour:.2f} to make up" if usd_per_hour is not None else ""
    missing = f" ({hours:.1f} node-hours missing{price})" if hours else ""
    return f"{size.nodes}/{size.places} nodes for {minutes:.0f} min{missing}"


def restarts_text(summary: JobSummary) -> str:
    """`restarted 2 times from memory, 1 time from the bucket, the last time in 12 s`; empty for a
    gang that reads no memory.
    """
    memory = sum(restart.from_memory for restart in summary.restarts)
    if not memory:
        return ""
    store = len(summary.restarts) - memory
    times = (
        f"{n} time{'s' * (n > 1)} from {source}"
        for n, source in ((memory, "memory"), (store, "the bucket"))
        if n
    )
    return f"restarted {', '.join(times)}, the last time in {summary.restarts[-1].seconds:.0f} s"


def in_place_text(job: JobSnapshot, now_s: float, usd_per_hour: float | None = None) -> str:
    """`3 nodes wait in place for node 3 since 12:04 UTC, which costs 24 GPU-hours an hour ($9.10)`;
    empty where none waits so. The price is of a node.
    """
    missing = job.missing_places
    if not missing:
        return ""
    waiting = job.size - len(missing)
    lost = [at for place in missing if (at := lost_at_s(job, place)) is not None]
    form = "%H:%M UTC" if lost and now_s - min(lost) < 86_400 else "%Y-%m-%d %H:%M UTC"
    since = f" since {time.strftime(form, time.gmtime(min(lost)))}" if lost else ""
    who = f"{waiting} nodes wait" if waiting > 1 else "1 node waits"
    whom = (
        f"node{'s' * (len(missing) > 1)}"
        f" {', '.join(map(str, missing[:MOST_LISTED]))}{', ...' * (len(missing) > MOST_LISTED)}"
    )
    price = f" (${waiting * usd_per_hour:.2f})" if usd_per_hour is not None else ""
    hours = waiting * gpus(job.pod_spec)
    return f"{who} in place for {whom}{since}" + (
        f", which costs {hours} GPU-hours an hour{price}" if hours else ""
    )


LIST_SCHEMA = "holdfast.jobs/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    name: str
    namespace: str
    kind: str
    capacity: str
    status: str
    why: str
    step: int | None
    saved_age_s: float | None
    evicted: Count
    crashed: Count
    waited_s: float
    """Of the pod that waited longest for its node; a pod without a node counts until now."""
    ran_s: float
    """Over all pods that the cluster still knows."""
    useful_ratio: float | None
    usd: float | None
    """Of those pods; None where a machine has no price."""


def rows(
    api: Api,
    platform: Platform,
    prices: Table,
    events: Path | None = None,
    namespace: str = "",
) -> list[Row]:
    known = read_job_summaries(events) if events else {}
    cluster = cluster_snapshot.take_snapshot(api, namespace)
    return [
        _row(job, cluster, platform, prices, known.get(job.name))
        for job in job_snapshot.all_jobs(api, namespace)
    ]


def _row(
    job: JobSnapshot,
    all_: ClusterSnapshot,
    platform: Platform,
    prices: Table,
    summary: JobSummary | None,
) -> Row:
    cluster = all_.within(job.namespace)
    now = time.time()
    waits = [waited_s(pod) for pod in job.pods]
    since = held_since_s(job) or when(job.body["metadata"]["creationTimestamp"])
    lost = losses(job, cluster.events, summary.orderly_exits if summary else 0)
    rented = pricing.rented_on(job.pod_spec, platform, prices)
    rate = rented.usd if rented else None
    return Row(
        name=job.name,
        namespace=job.namespace,
        kind=job.kind,
        capacity=(rented.capacity if rented else pricing.capacity_of(job.pod_spec)).value,
        status=state_of(job, lost).partition(":")[0],
        why=_why(job, cause_of(job, cluster).reason, now, rate, summary),
        step=summary.step if summary else None,
        saved_age_s=summary.saved_age_s(now) if summary else None,
        evicted=lost.evicted,
        crashed=lost.crashed,
        waited_s=max(
            (now - since if wait is None else wait for wait in waits), default=now - since
        ),
        ran_s=sum(ran_s(pod, now) for pod in job.pods),
        useful_ratio=summary.useful_ratio if summary else None,
        usd=_usd(job.pods, cluster.nodes, platform, prices, now),
    )


def _why(
    job: JobSnapshot,
    reason: Reason,
    now: float,
    rate: float | None,
    summary: JobSummary | None,
) -> str:
    """The reason, and of a gang whose pods stay what it lacks."""
    progress = (
        summary
        and reason is Reason.NONE
        and (size_text(summary, now, rate) or restarts_text(summary))
    )
    return ": ".join(filter(None, (progress or reason, in_place_text(job, now, rate))))


def _usd(
    pods: list[Object],
    nodes: list[Object],
    platform: Platform,
    prices: Table,
    now: float,
) -> float | None:
    pools = {}
    for n in nodes:
        pools[n["metadata"]["name"]] = n["metadata"].get("labels", {}).get(LABEL_NODEPOOL, "")
    total = 0.0
    for pod in pods:
        hours = ran_s(pod, now) / 3600
        if hours:
            at = pricing.rented_on(
                pod["spec"], platform, prices, pools.get(pod["spec"].get("nodeName", ""), "")
            )
            if at is None or at.usd is None:
                return None
            total += hours * at.usd
    return total


def rows_json(found: list[Row]) -> dict[str, Any]:
    return {
        "schema": LIST_SCHEMA,
        "jobs": [asdict(row) for row in found],
    }
