"""Forecasts the end and the price of a running job, from its own event lines and from those of
jobs like it in this cluster.
"""

# Why it is so: infra/decisions/0147.

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import (
    JobSnapshot,
    get_place,
    read_number,
)
from holdfast.jobs.plan import pricing
from holdfast.jobs.plan.pricing import Rented
from holdfast.ledger.batch_pace import measure_batch
from holdfast.ledger.events import Event, parse, read_folder
from holdfast.ledger.job_ledger import by_run
from holdfast.ledger.pace import Pace, measure
from holdfast.manifests.pods import MAIN
from holdfast.place.forecast import SHARE, Cost, Forecast, Life, Outlook, forecast
from holdfast.place.preemption_rate import PRIOR_CHURN
from holdfast.place.scenarios import Waits, flex_waits, list_scenarios
from holdfast.support.errors import Unjudged
from holdfast.support.values import rfc3339, unix_s
from holdfast.vocabulary.capacity import ANNOTATION_HOURS, Capacity
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION, FLEX_MAX_RUN_S
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

HOUR_S = 3_600.0
CPU_CHURN = 0.05
"""Interruptions of a Spot node without GPUs an hour; an assumption, as for L4."""
LEAST_LEFT_H = 1 / 3_600
MAX_PODS = 4
"""Pods of rank 0 whose logs are read, and as many of others: any of an elastic gang may lead it."""
MAX_LINES = 5_000
MAX_BYTES = 4 << 20


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class Expectation:
    """Interruptions and waits by the platform's record, before anything was measured here."""

    per_hour: float
    waits: Waits | None
    runs_for_h: float = math.inf
    """Planned life of a machine."""


@dataclass(
    frozen=True,
    kw_only=True,
    slots=True,
)
class JobForecast:
    """The end of a job and its price. Four times in five, each pair of bounds holds the value."""

    done_from: str
    """A time of RFC 3339, like `done_to` and `done_likely`."""
    done_to: str
    done_likely: str
    undisturbed: float
    """Probability that nothing interrupts it any more."""
    usd_from: float | None
    """Dollars from its first start to its end; None without a price, or without its first lines."""
    usd_to: float | None
    usd_so_far: float | None

    def text(self) -> str:
        when = f"done {_short(self.done_from)} to {_short(self.done_to)} UTC"
        parts = [f"{when}, likely {_short(self.done_likely)}"]
        if self.usd_from is not None and self.usd_to is not None:
            price = f"for ${self.usd_from:,.2f} to ${self.usd_to:,.2f}"
            if self.usd_so_far is not None:
                price += f" (${self.usd_so_far:,.2f} so far)"
            parts.append(price)
        share = max(SHARE, self.undisturbed)
        parts.append(f"{share:.0%} sure")
        return ", ".join(parts)


def _short(time: str) -> str:
    """Return `11-28 14:05` of a time of RFC 3339."""
    return time[5:16].replace("T", " ")


def forecast_job(
    api: Api,
    job: JobSnapshot,
    rented: Rented | None,
    events: Path | None,
    now_s: float,
    nodes: Iterable[Object] = (),
) -> JobForecast | None:
    """Forecast a running job. None if it has ended or waits, or if its lines do not show enough.

    events: the folder of event lines of all jobs; None: the logs of the job's own pods are read.
    nodes: those of the cluster, whose planned ends count.
    """
    if job.outcome or job.is_suspended or job.kind == "Deployment":
        return None
    pods = list_read_pods(job)
    lines = read_folder(events).events if events else read_own_lines(api, job, pods)
    share = 1.0 if events else len(pods) / max(1, len(job.pods))
    runs_by_job: dict[str, list[Sequence[Event]]] = defaultdict(list)
    by_index = False
    lanes = 1
    for (name, index, kind), run in by_run(lines).items():
        runs_by_job[name].append(run)
        if name == job.name:
            by_index |= kind == KIND_TRAINING and index is not None
            lanes = job.size if kind == KIND_BATCH else 1
    paces = _measure_all(runs_by_job.pop(job.name, []), lanes, share)
    # Of a sweep, points that have not started yet say nothing.
    point_count = 1
    if by_index:
        point_count = int(job.body["spec"].get("completions") or job.size)
    if len(paces) < point_count:
        return None
    other_paces: list[Pace] = []
    for runs in runs_by_job.values():
        other_paces += _measure_all(runs)
    annotations = job.body["metadata"].get("annotations") or {}
    work_h = read_number(annotations.get(ANNOTATION_HOURS)) or 0.0
    capacity = rented.capacity if rented else pricing.guess_capacity(job.pod_spec)
    expected = expect(
        capacity,
        _find_accelerator(job),
        1 if by_index or lanes > 1 else job.size,
    )
    ends_s = find_planned_end_s(job, nodes)
    forecasts: list[tuple[Pace, Forecast]] = []
    for pace in paces:
        left_h = find_left_h(
            pace,
            now_s,
            work_h,
        )
        if pace.complete:
            continue
        if left_h is None:
            return None
        outlook = make_outlook(
            pace,
            select_alike(pace, other_paces),
            expected,
            left_h,
            now_s,
        )
        outlook = replace(outlook, lanes=lanes)
        if ends_s is not None:
            outlook = replace(outlook, ends_in_h=max(0.0, ends_s - now_s) / HOUR_S)
        forecasts.append((pace, forecast(outlook)))
    if not forecasts:
        return None
    pace, last = max(forecasts, key=lambda pair: pair[1].median_h)
    usd_per_hour = None
    if rented is not None and rented.usd is not None and not by_index:
        usd_per_hour = rented.usd * job.size
    return _describe(
        pace,
        last,
        usd_per_hour,
        now_s,
    )


def _describe(
    pace: Pace,
    answer: Forecast,
    usd_per_hour: float | None,
    now_s: float,
) -> JobForecast:
    low_h, high_h = answer.hours
    so_far = None
    usd_from = None
    usd_to = None
    if usd_per_hour is not None and pace.is_whole:
        so_far = find_billed_h(pace, now_s) * usd_per_hour
        low_paid_h, high_paid_h = answer.paid_hours
        usd_from = so_far + low_paid_h * usd_per_hour
        usd_to = so_far + high_paid_h * usd_per_hour
    return JobForecast(
        done_from=rfc3339(now_s + low_h * HOUR_S),
        done_to=rfc3339(now_s + high_h * HOUR_S),
        done_likely=rfc3339(now_s + answer.median_h * HOUR_S),
        undisturbed=answer.undisturbed,
        usd_from=usd_from,
        usd_to=usd_to,
        usd_so_far=so_far,
    )


def _measure_all(
    runs: Iterable[Sequence[Event]], workers: int = 1, share: float = 1.0
) -> list[Pace]:
    paces: list[Pace] = []
    for run in runs:
        is_batch = run[0].kind == KIND_BATCH
        pace = measure_batch(run, workers, share) if is_batch else measure(run)
        if pace is not None:
            paces.append(pace)
    return paces


def list_read_pods(job: JobSnapshot) -> list[Object]:
    """Return the pods whose logs are read: those that lead the job, and as many others."""
    pods = sorted(job.pods, key=_creation_time)
    leads = [pod for pod in pods if get_place(pod) <= 0]
    followers = [pod for pod in pods if get_place(pod) > 0]
    return [*leads[-MAX_PODS:], *followers[-MAX_PODS:]]


def read_own_lines(api: Api, job: JobSnapshot, pods: Iterable[Object]) -> list[Event]:
    """Return the event lines in the logs of some pods of a job; none without the right."""
    lines: list[bytes] = []
    for pod in pods:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        names = [container["name"] for container in pod["spec"]["containers"]]
        container = MAIN if MAIN in names else names[0]
        try:
            log = api.text(
                path,
                container=container,
                tailLines=MAX_LINES,
                limitBytes=MAX_BYTES,
            )
        except ApiError:
            continue  # it has not started, is gone, or the user may not read logs
        except Unjudged:
            break  # a node that is lost: the cause matters more than the forecast
        for line in log.splitlines():
            if line.startswith("{") and '"event"' in line:
                lines.append(line.encode())
    return parse(lines, job=job.name).events


def _creation_time(pod: Object) -> str:
    return pod["metadata"]["creationTimestamp"]


def _find_accelerator(job: JobSnapshot) -> str:
    selector: dict[str, str] = job.pod_spec.get("nodeSelector") or {}
    return selector.get(LABEL_ACCELERATOR, "")


def expect(
    capacity: Capacity,
    accelerator: str,
    nodes: int,
) -> Expectation:
    """Return what the record says. Only Spot is interrupted; flex-start nodes have a planned end,
    after which the job waits in Google's queue again.
    """
    if capacity.product is Capacity.FLEX_START:
        return Expectation(per_hour=0.0, waits=flex_waits(), runs_for_h=FLEX_MAX_RUN_S / HOUR_S)
    if capacity is not Capacity.SPOT:
        return Expectation(per_hour=0.0, waits=None)
    per_hour = nodes * PRIOR_CHURN.get(accelerator, CPU_CHURN)
    waits = list_scenarios(accelerator, nodes)[1].waits if accelerator else None
    return Expectation(per_hour=per_hour, waits=waits)


def find_planned_end_s(job: JobSnapshot, nodes: Iterable[Object]) -> float | None:
    """Return the first planned end of a node of the job, in Unix seconds; None without one."""
    job_nodes = {pod["spec"].get("nodeName") for pod in job.pods}
    ends_s: list[float] = []
    for node in nodes:
        meta = node["metadata"]
        end = (meta.get("annotations") or {}).get(ANNOTATION_TERMINATION)
        if meta["name"] in job_nodes and end:
            ends_s.append(unix_s(end))
    return min(ends_s, default=None)


def find_left_h(
    pace: Pace,
    now_s: float,
    work_h: float = 0.0,
) -> float | None:
    """Return the hours of work that are left, without an interruption; None if unknown.

    work_h: the work of the whole job by its file, if its program does not name its steps.
    """
    if pace.total_steps:
        left_h = (pace.total_steps - pace.step) * pace.step_h
    elif work_h:
        left_h = work_h - pace.step * pace.step_h
    else:
        return None
    if pace.down_since_s is None:
        left_h -= max(0.0, now_s - pace.last_s) / HOUR_S
    return max(LEAST_LEFT_H, left_h)


def find_billed_h(pace: Pace, now_s: float) -> float:
    """Return the hours on machines until now."""
    if pace.down_since_s is not None:
        return pace.billed_h
    return pace.billed_h + max(0.0, now_s - pace.billed_until_s) / HOUR_S


def select_alike(pace: Pace, candidates: Iterable[Pace]) -> list[Pace]:
    """Return the runs on the same capacity and GPU, of as many processes."""
    if not pace.capacity:
        return []
    own_class = _find_class(pace)
    return [other for other in candidates if _find_class(other) == own_class]


def _find_class(pace: Pace) -> tuple[str, str, int]:
    return pace.capacity, pace.accelerator, pace.world_size


def make_outlook(
    pace: Pace,
    alike: Iterable[Pace],
    expected: Expectation,
    left_h: float,
    now_s: float,
) -> Outlook:
    """Join what the job shows with what jobs like it have shown in this cluster."""
    costs: list[Cost] = []
    lives: list[Life] = []
    for run in (pace, *alike):
        for interruption in run.interruptions:
            cost = Cost(
                wait_h=interruption.wait_h,
                restart_h=interruption.restart_h,
                lost_h=interruption.lost_h,
            )
            costs.append(cost)
        # In other jobs, a person may have ended the last attempt.
        is_interrupted = run is pace and pace.down_since_s is not None
        for hours in run.closed_lives_h:
            lives.append(Life(hours, interrupted=True))
        for hours in run.open_lives_h:
            lives.append(Life(hours, interrupted=is_interrupted))
    age_h = 0.0
    down_for_h = None
    if pace.down_since_s is None:
        age_h = statistics.fmean(pace.open_lives_h or (0.0,))
        age_h += max(0.0, now_s - pace.last_s) / HOUR_S
    else:
        down_for_h = max(0.0, now_s - pace.down_since_s) / HOUR_S
    return Outlook(
        left_h=left_h,
        spread=pace.spread,
        save_every_h=pace.save_every_h,
        prior_per_hour=expected.per_hour,
        waits=expected.waits,
        lives=lives,
        age_h=age_h,
        costs=costs,
        down_for_h=down_for_h,
        runs_for_h=expected.runs_for_h,
    )
