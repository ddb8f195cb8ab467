"""The trouble of a simulated month: incidents with the alert, its subject and the time limit."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.vocabulary.pools import LABEL_ACCELERATOR, LABEL_FLEX_START, LABEL_SPOT
from monitoring.alerting.alert import EXAMPLE
from workloads.library.tests.month.month import SPOT, Month
from workloads.library.tests.month.month_jobs import Job, Kind
from workloads.library.tests.sample import line

QUEUE_MIN = EXAMPLE["queue_wait_s"] // 60
KINDS = 24
IDLE = "kubernetes_io:container_accelerator_duty_cycle"
IDLE_POD = {
    "monitored_resource": "k8s_container",
    "namespace_name": "training",
    "pod_name": "trouble-idle",
}
XID = "DCGM_FI_DEV_XID_ERRORS"
ECC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
Steps = Iterator[None]


def pass_minutes(count: int) -> Steps:
    for _ in range(count):
        yield


def in_turn(*actions: Callable[[], object]) -> Steps:
    """Runs one action a minute."""
    for action in actions:
        action()
        yield


def show(change: Callable[[str, Any], object], body: Any, minutes: int) -> Steps:
    """Adds an object and deletes it after this many minutes."""
    change("ADDED", body)
    yield from pass_minutes(minutes)
    change("DELETED", body)
    yield


def add_trouble(month: Month) -> None:
    """Adds an incident of each kind, one after the other over the whole time."""
    makers: tuple[Callable[[Month, int], None], ...] = (
        _add_hang,
        _add_job_without_save,
        _add_node_end,
        _add_crashes,
        _add_crashes_at_start,
        _add_damaged_checkpoint,
        _add_burst,
        _add_losses,
        partial(
            _add_waiting_pod,
            "on-demand pod waits",
            30,
            "HoldfastOnDemandPendingTooLong",
            EXAMPLE["on_demand_pending_s"],
            {},
            "nvidia-h100-80gb",
        ),
        partial(
            _add_waiting_pod,
            "spot drought",
            60,
            "HoldfastSpotPendingTooLong",
            EXAMPLE["spot_pending_s"],
            {LABEL_SPOT: "true"},
            "nvidia-h200-141gb",
        ),
        partial(
            _add_waiting_pod,
            "flex waits",
            270,
            "HoldfastFlexStartWaitTooLong",
            EXAMPLE["flex_pending_s"],
            {LABEL_FLEX_START: "true"},
            "nvidia-b200",
        ),
        partial(
            _add_held_job,
            "a job waits for quota",
            "reserved",
            QUEUE_MIN + 30,
            "Pending",
            "HoldfastQueueWaitTooLong",
            QUEUE_MIN + 5,
        ),
        partial(
            _add_held_job,
            "a queue admits nothing",
            "queued",
            50,
            "Inadmissible",
            "HoldfastQueueAdmitsNothing",
            30,
        ),
        _add_lost_booking,
        _add_slow_starts,
        partial(
            _add_batch_events,
            "an item is given up",
            "dead",
            "HoldfastDeadLetters",
            1,
            event="dead_lettered",
            item="i",
            reason="bad",
        ),
        partial(
            _add_batch_events,
            "results cannot be stored",
            "database",
            "HoldfastResultsDatabaseErrors",
            9,
            event="retrying",
            source="database",
        ),
        _add_system_pod,
        _add_budget_violation,
        _add_silent_exporter,
        _add_wrong_counts,
        partial(
            _add_gpu_fault,
            "a GPU falls off the bus",
            "HoldfastGpuXidErrors",
            XID,
            (0.0,) * 20 + (79.0,) * 20,
            1,
        ),
        partial(
            _add_gpu_fault,
            "memory of a GPU is damaged",
            "HoldfastGpuUncorrectableEcc",
            ECC,
            (0.0,) * 5 + (1.0,) * 20,
            6,
        ),
        partial(
            _add_gpu_fault,
            "a GPU is held and idle",
            "HoldfastGpuIdle",
            IDLE,
            (1.0,) * 45,
            30,
            **IDLE_POD,
        ),
    )
    assert len(makers) == KINDS
    first = 60
    span = month.days * 1_440 - 60 - 600
    for number, maker in enumerate(makers):
        maker(month, first + span * number // len(makers))


def _add_job(month: Month, name: str, start_min: int, kind: Kind = SPOT, **settings: Any) -> Job:
    job = Job(
        name=f"trouble-{name}",
        kind=kind,
        born_min=start_min,
        queued_min=1,
        work_min=5_000,
        rng=random.Random(1),
        **settings,
    )
    month.jobs.append(job)
    return job


def _make_kind(name: str, **settings: Any) -> Kind:
    """Makes a kind with its own queue and machines, so that no other job has its labels."""
    return Kind(queue=f"trouble-{name}", accelerator=f"trouble-{name}", **settings)


def _make_stop(month: Month, job: Job) -> Steps:
    return in_turn(lambda: month.platform.end(job, 143))


def _add_hang(month: Month, start_min: int) -> None:
    job = _add_job(month, "hang", start_min)

    def steps() -> Steps:
        job.saves = False
        yield from pass_minutes(60)
        yield from _make_stop(month, job)

    month.script(start_min + 60, steps())
    month.incident(
        "a trainer hangs", "HoldfastNoRecentCommit", f"job={job.name}", start_min + 60, 22
    )


def _add_job_without_save(month: Month, start_min: int) -> None:
    job = _add_job(month, "unsaved", start_min, saves=False)
    month.script(start_min + 100, _make_stop(month, job))
    # Two minutes of start-up, the environment's limit, and the rule's hold.
    month.incident(
        "no save ever",
        "HoldfastNoRecentCommit",
        f"job={job.name}",
        start_min + 6,
        EXAMPLE["checkpoint_age_s"] // 60 + 2,
    )


def _add_node_end(month: Month, start_min: int) -> None:
    job = _add_job(
        month,
        "ends",
        start_min,
        _make_kind("ends", flex=True),
        ends_after_min=300,
        saves=False,
    )
    month.script(start_min + 55, _make_stop(month, job))
    month.incident(
        "a node ends unsaved", "HoldfastFlexNodeEndsUnsaved", f"job={job.name}", start_min + 6, 35
    )


def _add_crashes(month: Month, start_min: int) -> None:
    job = _add_job(
        month, "crash", start_min, Kind(queue="spot", accelerator="nvidia-l4", pods=4), saves=False
    )
    _crash_three_times(month, job, start_min, 1, "a job crashes again and again", least_steps=20)


def _add_crashes_at_start(month: Month, start_min: int) -> None:
    job = _add_job(month, "import", start_min, startup_min=9_999)
    _crash_three_times(
        month, job, start_min, 70, "a job falls before its first line", least_steps=0
    )


def _crash_three_times(
    month: Month,
    job: Job,
    start_min: int,
    code: int,
    kind: str,
    *,
    least_steps: int,
) -> None:
    def steps() -> Steps:
        for _ in range(3):
            while job.step - job.saved < least_steps or job.placed_min < 0:
                yield
            month.platform.crash(job, code)
            month.incidents[number] = replace(month.incidents[number], begins_min=month.minute)
            job.step = job.saved
            yield
        yield from pass_minutes(10)
        yield from _make_stop(month, job)

    number = len(month.incidents)
    month.incident(kind, "HoldfastRestartsWithoutProgress", f"job={job.name}", start_min, 1)
    month.script(start_min + 1, steps())


def _add_damaged_checkpoint(month: Month, start_min: int) -> None:
    job = "trouble-damaged"

    def restore(*skipped: list[object]) -> None:
        fields = {
            "step": 1,
            "seconds": 1.0,
            "skipped": skipped,
        }
        event = line(month.now_s(), "restore", job, process=f"{job}-0-1-ab", **fields)
        month.written.add(event, job=job)

    month.script(start_min, in_turn(restore, partial(restore, [9, "crc"])))
    month.incident(
        "a damaged checkpoint", "HoldfastRestoreSkippedCheckpoint", f"job={job}", start_min + 1, 1
    )


def _add_burst(month: Month, start_min: int) -> None:
    pool = _evict_one_by_one(
        month,
        "burst",
        start_min,
        jobs=4,
        pods=2,
        apart_min=1,
    )
    month.incident(
        "a zone is emptied", "HoldfastSpotPreemptionBurst", f"node_pool_name={pool}", start_min, 4
    )


def _add_losses(month: Month, start_min: int) -> None:
    pool = _evict_one_by_one(
        month,
        "losses",
        start_min,
        jobs=8,
        pods=1,
        apart_min=6,
    )
    month.incident(
        "a pool loses more than usual",
        "HoldfastSpotPreemptionsAboveUsual",
        f"node_pool_name={pool}",
        start_min + 36,
        1,
    )


def _evict_one_by_one(
    month: Month,
    name: str,
    start_min: int,
    *,
    jobs: int,
    pods: int,
    apart_min: int,
) -> str:
    """Evicts jobs one after the other; returns the pool of their nodes."""
    running = []
    for n in range(jobs):
        kind = _make_kind(name, pods=pods)
        running.append(_add_job(month, f"{name}-{n}", start_min - 30, kind))

    def steps() -> Steps:
        for job in running:
            month.platform.evict(job, notice=True)
            yield from pass_minutes(apart_min)
        yield from pass_minutes(30 if apart_min == 1 else 0)
        for job in running:
            month.platform.end(job, 143)
        yield

    month.script(start_min, steps())
    return running[0].kind.pool


def _add_waiting_pod(
    name: str,
    minutes: int,
    alert: str,
    limit_s: int,
    selector: dict[str, str],
    accelerator: str,
    month: Month,
    start_min: int,
) -> None:
    """Adds a pod that stays pending; no other job of the month asks for its accelerator."""
    since = month.platform.time(start_min)
    meta = {
        "uid": f"trouble-{name}",
        "name": f"trouble-{name}",
        "namespace": "serving",
        "labels": {},
    }
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": since,
    }
    pod = {
        "metadata": meta | {"creationTimestamp": since},
        "status": {
            "phase": "Pending",
            "conditions": [waits],
        },
        "spec": {"nodeSelector": selector | {LABEL_ACCELERATOR: accelerator}},
    }
    month.script(start_min, show(month.cluster.pod, pod, minutes))
    month.incident(name, alert, f"accelerator={accelerator}", start_min, limit_s // 60 + 5)


def _add_held_job(
    kind: str,
    queue: str,
    minutes: int,
    reason: str,
    alert: str,
    promise_min: int,
    month: Month,
    start_min: int,
) -> None:
    meta = {
        "uid": f"trouble-{queue}",
        "name": f"held-{queue}",
        "creationTimestamp": month.platform.time(start_min),
    }
    spec = {
        "queueName": queue,
        "podSets": [],
        "active": True,
    }
    conditions = [
        {
            "type": "QuotaReserved",
            "status": "False",
            "reason": reason,
        }
    ]
    workload = {
        "metadata": meta,
        "spec": spec,
        "status": {"conditions": conditions},
    }
    month.script(start_min, show(month.cluster.queues.workload, workload, minutes))
    month.incident(kind, alert, f"queue={queue}", start_min, promise_min)


def _add_lost_booking(month: Month, start_min: int) -> None:
    pending = {
        "metadata": {"uid": "trouble-request", "name": "request"},
        "status": {"conditions": []},
    }
    failed = pending | {"status": {"conditions": [{"type": "BookingExpired", "status": "True"}]}}
    change = month.cluster.queues.request
    month.script(
        start_min, in_turn(partial(change, "ADDED", pending), partial(change, "MODIFIED", failed))
    )
    month.incident(
        "Google takes a booking back",
        "HoldfastProvisioningLost",
        "reason=BookingExpired",
        start_min + 1,
        1,
    )


def _add_slow_starts(month: Month, start_min: int) -> None:
    job = _add_job(
        month,
        "thrash",
        start_min,
        _make_kind("thrash", pods=1),
        unplaced_min=1,
        startup_min=13,
    )

    def steps() -> Steps:
        for n in range(80):
            yield
            if n % 20 == 19:
                month.platform.save(job)
                month.platform.evict(job, notice=True)
        yield from _make_stop(month, job)

    month.script(start_min + 5, steps())
    month.incident(
        "starting takes long",
        "HoldfastGoodputBelowBreakEven",
        f"job={job.name}",
        start_min + 12,
        75,
    )


def _add_batch_events(
    kind: str, name: str, alert: str, lines: int, month: Month, start_min: int, **fields: Any
) -> None:
    """Writes events of a batch worker after its start."""
    job = f"trouble-{name}"

    def write(count: int, event: str, **details: Any) -> None:
        for n in range(count):
            entry = line(month.now_s() + n, event, job, "batch", f"{job}-0-1-ab", **details)
            month.written.add(entry, job=job)

    month.script(
        start_min,
        in_turn(partial(write, 1, event="start", rank=0), partial(write, lines, **fields)),
    )
    month.incident(kind, alert, f"job={job}", start_min + 1, 1)


def _add_system_pod(month: Month, start_min: int) -> None:
    meta = {
        "name": "trouble-node",
        "labels": {LABEL_SPOT: "true"},
    }
    node = {
        "metadata": meta,
        "spec": {},
        "status": {"conditions": []},
    }
    month.script(start_min, show(month.cluster.node, node, 31))
    pod = {
        "metadata": {
            "uid": "dns",
            "name": "dns",
            "namespace": "kube-system",
        },
        "spec": {"nodeName": "trouble-node"},
        "status": {"phase": "Running"},
    }
    month.script(start_min, show(month.cluster.pod, pod, 30))
    month.incident(
        "DNS runs on Spot", "HoldfastSystemPodsOnSpot", "namespace=kube-system", start_min, 10
    )


def _add_budget_violation(month: Month, start_min: int) -> None:
    meta = {"namespace": "serving", "name": "trouble-server"}
    budget = {
        "metadata": meta,
        "status": {"desiredHealthy": 2, "currentHealthy": 1},
    }
    month.script(start_min, show(month.cluster.budget, budget, 30))
    month.incident(
        "a service lacks a pod",
        "HoldfastDisruptionBudgetViolated",
        "budget=trouble-server",
        start_min,
        10,
    )


def _add_silent_exporter(month: Month, start_min: int) -> None:
    month.blind = range(start_min, start_min + 25)
    month.incident(
        "the exporter is dead",
        "HoldfastMonitoringSilent",
        "",
        start_min,
        EXAMPLE["heartbeat_s"] // 60 + 1 + 5,
    )


def _add_wrong_counts(month: Month, start_min: int) -> None:
    """Lets GKE count nodes that the exporter does not know."""
    month.script(start_min, in_turn(lambda: month.count_interruptions("trouble-pool", 5.0)))
    month.incident(
        "the counts of losses differ", "HoldfastPreemptionCountsDisagree", "", start_min, 60
    )


def _add_gpu_fault(
    kind: str,
    alert: str,
    metric: str,
    values: tuple[float, ...],
    promise_min: int,
    month: Month,
    start_min: int,
    **labels: str,
) -> None:
    label = "Hostname" if "pod_name" not in labels else "pod_name"
    labels = {"Hostname": f"trouble-{kind}"} | labels
    samples = []
    for value in values:
        samples.append(partial(month.gauge, metric, value, **labels))
    month.script(start_min, in_turn(*samples))
    quiet_min = values[:20].count(0.0)
    month.incident(kind, alert, f"{label}={labels[label]}", start_min + quiet_min, promise_min)
