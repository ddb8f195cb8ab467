"""Explains jobs: `explain` lists them in rows, `explain JOB` shows the cause and its evidence.

Why: infra/decisions/0100.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.clients.capacity_advice import Ask
from holdfast.cost import prices
from holdfast.cost.prices import Table
from holdfast.jobs.diagnose import cluster_snapshot, job_snapshot
from holdfast.jobs.diagnose.closed_hosts import EXPLAINABLE, explain_closed_host
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.diagnosis import describe_state, find_cause
from holdfast.jobs.diagnose.failures import Count, losses
from holdfast.jobs.diagnose.forecast import JobForecast, forecast_job
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    find_hold_start_s,
    find_limit,
    get_run_s,
    get_wait_s,
    loss_time_s,
    read_number,
    when,
)
from holdfast.jobs.diagnose.reasons import Cause, Reason
from holdfast.jobs.diagnose.sweep_price import describe_sweep_price, is_sweep
from holdfast.jobs.diagnose.wrong_result import explain_wrong_result
from holdfast.jobs.plan import obtainability, pricing
from holdfast.ledger.job_summary import JobSummary, read_job_summaries
from holdfast.platform import Platform
from holdfast.vocabulary.capacity import ANNOTATION_HOURS
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S
from holdfast.vocabulary.pools import LABEL_FLEX_START, LABEL_NODEPOOL, LABEL_POOL_CLASS

SCHEMA = "holdfast.explanation/2"
MOST_LISTED = 5
WAITS_FOR_MACHINES = (Reason.STOCK_OUT, Reason.SCALE_UP, Reason.FLEX_QUEUE, Reason.CAPACITY)
END_WARNING_S = 86_400
_CLASS = (LABEL_POOL_CLASS, LABEL_FLEX_START)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    job: str
    namespace: str
    state: str
    cause: Cause
    similar: str
    now: str = ""
    """Google's rating of the machines that it waits for, and of better ones."""
    forecast: JobForecast | None = None
    """The end and the price of a running job."""
    price: str = ""
    """The dollars that the points of a running sweep have cost, and that all of them will."""

    def lines(self) -> list[tuple[str, str]]:
        """Return name and text of each line that has a text."""
        cause = self.cause
        texts = {
            "state": self.state,
            "blocker": cause.blocker,
            "position": cause.position,
            "similar": self.similar,
            "now": self.now,
            "forecast": self.forecast.text() if self.forecast else "",
            "price": self.price,
            "do": cause.action,
            "evidence": cause.evidence,
        }
        return [(name, text) for name, text in texts.items() if text]

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def explain(
    api: Api,
    name: str,
    namespace: str = "",
    events: Path | None = None,
    platform: Platform | None = None,
    ask: Ask | None = None,
) -> Explanation:
    """Explain one job.

    ask: asks Google how obtainable machines are, if the job waits for some.
    platform: it prices the job's machines, and names the namespaces of a user who may not read all;
    None: nothing is in dollars. Raises InputError if there is no such job.
    """
    namespaces = [namespace]
    if platform:
        namespaces = job_snapshot.find_namespaces(api, platform, namespace)
    job = job_snapshot.find(api, name, *namespaces, with_servers=True)
    cluster = cluster_snapshot.take_snapshot(api, job.namespace)
    summary = read_job_summaries(events).get(job.name) if events else None
    cause = find_cause(job, cluster)
    if platform and cause.reason in EXPLAINABLE:
        cause = explain_closed_host(api, job, platform) or cause
    now = time.time()
    table = prices.load()
    machine = pricing.find_machine(job.pod_spec, platform, table) if platform else None
    usd_per_hour = machine.usd if machine else None
    if summary and summary.wrong_results:
        cause = explain_wrong_result(job, summary.wrong_results[-1], cause)
    wait = in_place_text(job, now, usd_per_hour)
    progress = progress_text(summary, now, usd_per_hour)
    if wait:
        cause = replace(cause, blocker=f"{wait}; {cause.blocker}")
    elif cause.reason is Reason.NONE and progress:
        cause = replace(cause, blocker=f"{cause.blocker}; {progress}")
    job_losses = losses(job, cluster.events, summary.orderly_exits if summary else 0)
    return Explanation(
        job=job.name,
        namespace=job.namespace,
        state=describe_state(job, job_losses) + describe_coming_end(job, now) + limit_text(job),
        cause=cause,
        similar=describe_similar_waits(job, cluster),
        now=_describe_obtainability(job, cause.reason, platform, ask) if ask else "",
        forecast=forecast_job(api, job, machine, events, now, cluster.nodes),
        price=_describe_sweep(job, cluster, platform, table, now) if platform else "",
    )


def _describe_sweep(
    job: JobSnapshot,
    cluster: ClusterSnapshot,
    platform: Platform,
    table: Table,
    now_s: float,
) -> str:
    """Return the price of a running sweep; empty for other jobs, and without a price."""
    if job.outcome or job.is_suspended or not is_sweep(job):
        return ""
    costs = _list_costs(job.pods, cluster.nodes, platform, table, now_s)
    if costs is None:
        return ""
    annotations = job.body["metadata"].get("annotations") or {}
    hours = read_number(annotations.get(ANNOTATION_HOURS))
    machine = pricing.find_machine(job.pod_spec, platform, table)
    stated_usd = None
    if hours and machine and machine.usd is not None:
        stated_usd = hours * machine.usd
    return describe_sweep_price(job, costs, stated_usd)


def _describe_obtainability(
    job: JobSnapshot,
    reason: Reason,
    platform: Platform | None,
    ask: Ask,
) -> str:
    """Return how obtainable the machines are that a job waits for, or an empty text."""
    if platform is None or reason not in WAITS_FOR_MACHINES:
        return ""
    capacity = pricing.find_queue_capacity(job.body, platform)
    if capacity is None:
        capacity = pricing.guess_capacity(job.pod_spec)
    requests = obtainability.list_alternatives(job.pod_spec, job.size, platform, capacity)
    return obtainability.find_better(job.name, requests, capacity, ask)


def describe_coming_end(job: JobSnapshot, now_s: float) -> str:
    """Return a warning that a job is stopped within a day, or an empty text.

    Kubernetes counts from the start of the Job, which is that of its first pods. The limit of a
    gang on queued nodes is at most the life of the nodes.
    """
    limit_s = job.limit_s
    if not limit_s or job.outcome or job.is_suspended:
        return ""
    start_s = _find_start_s(job)
    if start_s is None:
        return ""
    end_s = start_s + limit_s
    left_s = end_s - now_s
    if left_s > END_WARNING_S:
        return ""
    moment = f"in {max(left_s, 0) / 3600:.1f} h"
    run_time = f"{limit_s / 3600:g} h after its start"
    if job.queues_again(end_s):
        return (
            f"; its nodes end {moment}, {run_time}: it saves, queues again by itself, and resumes"
        )
    outlives_nodes = job.has_queued_nodes and limit_s >= FLEX_MAX_RUN_S
    reason = "as its nodes end" if outlives_nodes else "by its max_hours"
    return (
        f"; stopped {moment} {reason}, {run_time}: submit it again under its name, and it resumes"
    )


def _find_start_s(job: JobSnapshot) -> float | None:
    """Return the Unix time from which Kubernetes counts the job's limit; None before it."""
    if job.kind == "Job" and job.status.get("startTime"):
        return when(job.status["startTime"])
    starts_s: list[float] = []
    for pod in job.pods:
        start = pod["status"].get("startTime")
        if start:
            starts_s.append(when(start))
    return min(starts_s, default=None)


def limit_text(job: JobSnapshot) -> str:
    """Return what a job with a limit has cost, or an empty text."""
    limit = find_limit(job)
    if limit is None:
        return ""
    return f"; ${limit.spent_usd:,.2f} of its max_usd ${limit.max_usd:,.2f} spent"


def describe_similar_waits(job: JobSnapshot, cluster: ClusterSnapshot) -> str:
    """Return how long other jobs' pods of the same class of pools waited for a node.

    Only pods that still exist count.
    """
    selector: dict[str, str] = job.pod_spec.get("nodeSelector", {})
    own_uids = {pod["metadata"]["uid"] for pod in job.pods}
    waits: list[float] = []
    for pod in cluster.pods:
        wait_s = get_wait_s(pod)
        is_other = pod["metadata"]["uid"] not in own_uids
        if wait_s is not None and is_other and _matches_class(pod, selector):
            waits.append(wait_s)
    no_eta = "; Google gives no ETA for flex-start" if LABEL_FLEX_START in selector else ""
    if not waits:
        return f"no other pod of this class has started here yet{no_eta}"
    if len(waits) == 1:
        percentiles = waits * 19
    else:
        percentiles = quantiles(waits, n=20, method="inclusive")
    return (
        f"{len(waits)} pods of this class waited p50 {percentiles[9]:.0f} s, p95"
        f" {percentiles[18]:.0f} s{no_eta}"
    )


def _matches_class(pod: Object, selector: dict[str, str]) -> bool:
    pod_selector = pod["spec"].get("nodeSelector", {})
    return all(pod_selector.get(label) == selector.get(label) for label in _CLASS)


def progress_text(
    summary: JobSummary | None, now_s: float, usd_per_hour: float | None = None
) -> str:
    """Return `useful 27.6 % of its time, step 1200, saved 40 s ago`.

    Returns an empty text if the job has written nothing. The price is that of a node.
    """
    if summary is None:
        return ""
    facts: list[str] = []
    if summary.useful_ratio is not None:
        facts.append(f"useful {100 * summary.useful_ratio:.1f} % of its time")
    if summary.step is not None:
        facts.append(f"step {summary.step}")
    saved_age_s = summary.find_commit_age_s(now_s)
    if saved_age_s is not None:
        facts.append(f"saved {saved_age_s:.0f} s ago")
    facts.append(size_text(summary, now_s, usd_per_hour))
    facts.append(restarts_text(summary))
    return ", ".join(filter(None, facts))


def size_text(summary: JobSummary, now_s: float, usd_per_hour: float | None = None) -> str:
    """Return `7/8 nodes for 20 min (3.2 node-hours missing, $1.09 to make up)`.

    Returns an empty text for a rigid job. The price is that of a node.
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
    """Return `restarted 2 times from memory, 1 time from the bucket, the last time in 12 s`.

    Returns an empty text for a gang that has never restarted from memory.
    """
    from_memory = sum(restart.from_memory for restart in summary.restarts)
    if not from_memory:
        return ""
    counts = [f"{_times(from_memory)} from memory"]
    from_bucket = len(summary.restarts) - from_memory
    if from_bucket:
        counts.append(f"{_times(from_bucket)} from the bucket")
    seconds = summary.restarts[-1].seconds
    return f"restarted {', '.join(counts)}, the last time in {seconds:.0f} s"


def _times(count: int) -> str:
    return f"{count} times" if count > 1 else "1 time"


def in_place_text(job: JobSnapshot, now_s: float, usd_per_hour: float | None = None) -> str:
    """Return `3 nodes wait in place for node 3 since 12:04 UTC`, with what that costs.

    Returns an empty text if no node waits in place. The price is that of a node.
    """
    missing = job.missing_places
    if not missing:
        return ""
    waiting = job.size - len(missing)
    subject = f"{waiting} nodes wait" if waiting > 1 else "1 node waits"
    text = f"{subject} in place for {_list_places(missing)}{_describe_loss_time(job, now_s)}"
    gpu_hours = waiting * pricing.count_gpus(job.pod_spec)
    if gpu_hours:
        text += f", which costs {gpu_hours} GPU-hours an hour"
        if usd_per_hour is not None:
            usd = waiting * usd_per_hour
            text += f" (${usd:.2f}, ${usd / 60:.2f} a minute)"
    return text


def _list_places(places: list[int]) -> str:
    """Return `node 3`, or `nodes 1, 2, 3, 4, 5, ...`."""
    noun = "nodes" if len(places) > 1 else "node"
    numbers = [str(place) for place in places[:MOST_LISTED]]
    if len(places) > MOST_LISTED:
        numbers.append("...")
    return f"{noun} {', '.join(numbers)}"


def _describe_loss_time(job: JobSnapshot, now_s: float) -> str:
    """Return the time of the first loss, with its date if that is not in the last 24 hours."""
    times_s = [loss_time_s(job, place) for place in job.missing_places]
    known_times_s = [time_s for time_s in times_s if time_s is not None]
    if not known_times_s:
        return ""
    first_s = min(known_times_s)
    form = "%H:%M UTC" if now_s - first_s < 86_400 else "%Y-%m-%d %H:%M UTC"
    return f" since {time.strftime(form, time.gmtime(first_s))}"


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
    """Longest wait of a pod for its node; a pod without a node has waited until now."""
    ran_s: float
    """Sum over all pods that still exist."""
    useful_ratio: float | None
    usd: float | None
    """Price of these pods; None if a machine has no price."""


def rows(
    api: Api,
    platform: Platform,
    prices: Table,
    events: Path | None = None,
    namespace: str = "",
) -> list[Row]:
    """Return a row for each job of a namespace, or of all that the user may read."""
    summaries = read_job_summaries(events) if events else {}
    jobs: list[Row] = []
    for readable in job_snapshot.find_namespaces(api, platform, namespace):
        cluster = cluster_snapshot.take_snapshot(api, readable)
        for job in job_snapshot.all_jobs(api, readable):
            own_cluster = cluster.within(job.namespace)
            summary = summaries.get(job.name)
            jobs.append(_make_row(job, own_cluster, platform, prices, summary))
    return jobs


def _make_row(
    job: JobSnapshot,
    cluster: ClusterSnapshot,
    platform: Platform,
    prices: Table,
    summary: JobSummary | None,
) -> Row:
    now = time.time()
    job_losses = losses(job, cluster.events, summary.orderly_exits if summary else 0)
    machine = pricing.find_machine(job.pod_spec, platform, prices)
    capacity = machine.capacity if machine else pricing.guess_capacity(job.pod_spec)
    usd_per_hour = machine.usd if machine else None
    reason = find_cause(job, cluster).reason
    return Row(
        name=job.name,
        namespace=job.namespace,
        kind=job.kind,
        capacity=capacity.value,
        status=describe_state(job, job_losses).partition(":")[0],
        why=_describe_reason(job, reason, now, usd_per_hour, summary),
        step=summary.step if summary else None,
        saved_age_s=summary.find_commit_age_s(now) if summary else None,
        evicted=job_losses.evicted,
        crashed=job_losses.crashed,
        waited_s=_longest_wait_s(job, now),
        ran_s=sum(get_run_s(pod, now) for pod in job.pods),
        useful_ratio=summary.useful_ratio if summary else None,
        usd=_sum_usd(job.pods, cluster.nodes, platform, prices, now),
    )


def _longest_wait_s(job: JobSnapshot, now: float) -> float:
    since = find_hold_start_s(job) or when(job.body["metadata"]["creationTimestamp"])
    waits: list[float] = []
    for pod in job.pods:
        wait_s = get_wait_s(pod)
        waits.append(now - since if wait_s is None else wait_s)
    return max(waits, default=now - since)


def _describe_reason(
    job: JobSnapshot,
    reason: Reason,
    now: float,
    usd_per_hour: float | None,
    summary: JobSummary | None,
) -> str:
    """Return the reason, with the missing nodes of a gang whose pods stay."""
    text: str = reason.value
    if summary and reason is Reason.NONE:
        text = size_text(summary, now, usd_per_hour) or restarts_text(summary) or text
    wait = in_place_text(job, now, usd_per_hour)
    return f"{text}: {wait}" if wait else text


def _sum_usd(
    pods: list[Object],
    nodes: list[Object],
    platform: Platform,
    prices: Table,
    now: float,
) -> float | None:
    costs = _list_costs(pods, nodes, platform, prices, now)
    return None if costs is None else sum(costs)


def _list_costs(
    pods: list[Object],
    nodes: list[Object],
    platform: Platform,
    prices: Table,
    now: float,
) -> list[float] | None:
    """Return the dollars of each pod until now; None if a machine has no price."""
    pools: dict[str, str] = {}
    for node in nodes:
        meta = node["metadata"]
        pools[meta["name"]] = meta.get("labels", {}).get(LABEL_NODEPOOL, "")
    costs: list[float] = []
    for pod in pods:
        hours = get_run_s(pod, now) / 3600
        usd = 0.0
        if hours:
            spec = pod["spec"]
            pool = pools.get(spec.get("nodeName", ""), "")
            machine = pricing.find_machine(spec, platform, prices, pool)
            if machine is None or machine.usd is None:
                return None
            usd = hours * machine.usd
        costs.append(usd)
    return costs


def rows_json(jobs: list[Row]) -> dict[str, Any]:
    return {
        "schema": LIST_SCHEMA,
        "jobs": [asdict(job) for job in jobs],
    }
