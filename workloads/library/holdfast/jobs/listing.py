"""`list`: one row a job, evictions and crashes apart, with what its event lines and the price table add."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.contract.pools import LABEL_NODEPOOL, Pool
from holdfast.jobs import buying, cluster_snapshot, job_snapshot
from holdfast.jobs.causes import cause_of, state_of
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.explain import size_text
from holdfast.jobs.job_snapshot import JobSnapshot, held_since_s, waited_s, when
from holdfast.jobs.losses import Count, losses
from holdfast.ledger.job_summary import JobSummary, read_job_summaries
from holdfast.place.prices import Table
from holdfast.platform import Platform

SCHEMA = "holdfast.jobs/1"


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


def rows(api: Api, platform: Platform, prices: Table, events: Path | None = None, namespace: str = "") -> list[Row]:
    summaries = read_job_summaries(events) if events else {}
    cluster = cluster_snapshot.take_snapshot(api, namespace)
    return [
        _row(job, cluster.within(job.namespace), platform, prices, summaries.get(job.name))
        for job in job_snapshot.all_jobs(api, namespace)
    ]


def _row(
    job: JobSnapshot, cluster: ClusterSnapshot, platform: Platform, prices: Table, summary: JobSummary | None
) -> Row:
    pool_of = {n["metadata"]["name"]: n["metadata"].get("labels", {}).get(LABEL_NODEPOOL, "") for n in cluster.nodes}
    pools = {pool.name: pool for pool in platform.pools}
    now = time.time()
    waits = [waited_s(pod) for pod in job.pods]
    since = held_since_s(job) or when(job.body["metadata"]["creationTimestamp"])
    lost = losses(job, cluster.events, summary.orderly_exits if summary else 0)
    rate = buying.node_usd_per_hour(job.pod_spec, platform, prices)
    return Row(
        name=job.name,
        namespace=job.namespace,
        kind=job.kind,
        capacity=_capacity(job, platform),
        status=state_of(job, lost).partition(":")[0],
        why=cause_of(job, cluster).reason or (size_text(summary, now, rate) if summary else ""),
        step=summary.step if summary else None,
        saved_age_s=summary.saved_age_s(now) if summary else None,
        evicted=lost.evicted,
        crashed=lost.crashed,
        waited_s=max((now - since if wait is None else wait for wait in waits), default=now - since),
        ran_s=sum(ran_s(pod, now) for pod in job.pods),
        useful_ratio=summary.useful_ratio if summary else None,
        usd=_usd(job.pods, pool_of, pools, platform, prices, now),
    )


def _capacity(job: JobSnapshot, platform: Platform) -> str:
    """Of the first pool that the job selects; flex-start pools of auto-provisioning are in no environment."""
    fitting = buying.pools_of(job.pod_spec, platform)
    return fitting[0].capacity.value if fitting else buying.capacity_of(job.pod_spec).value


def ran_s(pod: Object, now: float) -> float:
    start = pod["status"].get("startTime")
    if not start:
        return 0.0
    ends = [
        when(status["state"]["terminated"]["finishedAt"])
        for status in pod["status"].get("containerStatuses") or ()
        if status.get("state", {}).get("terminated", {}).get("finishedAt")
    ]
    return max(0.0, (max(ends) if ends else now) - when(start))


def _usd(
    pods: list[Object], pool_of: dict[str, str], pools: dict[str, Pool], platform: Platform, prices: Table, now: float
) -> float | None:
    total = 0.0
    for pod in pods:
        hours = ran_s(pod, now) / 3600
        if hours == 0.0:
            continue
        pool = pools.get(pool_of.get(pod["spec"].get("nodeName", ""), ""))
        fitting = [pool] if pool else buying.pools_of(pod["spec"], platform)
        rate = buying.usd_per_hour(pod["spec"], fitting[0], platform, prices) if fitting else None
        if rate is None:
            return None
        total += hours * rate
    return total


def as_json(found: list[Row]) -> dict[str, Any]:
    return {"schema": SCHEMA, "jobs": [asdict(row) for row in found]}
