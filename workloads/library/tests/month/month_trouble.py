"""The trouble of a simulated month: each incident has its alert, whom it is about, and within how
long it must fire.
"""

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
    """One a minute."""
    for action in actions:
        action()
        yield


def shown(change: Callable[[str, Any], object], found: Any, minutes: int) -> Steps:
    """An object that is there for so long."""
    change("ADDED", found)
    yield from pass_minutes(minutes)
    change("DELETED", found)
    yield


def add_trouble(month: Month) -> None:
    """One of each kind, one after the other over the whole time."""
    makers: tuple[Callable[[Month, int], None], ...] = (
        _hangs,
        _never_saves,
        _ends_unsaved,
        _crashes,
        _crashes_at_once,
        _damaged,
        _burst,
        _losses,
        partial(
            _waits,
            "on-demand pod waits",
            30,
            "HoldfastOnDemandPendingTooLong",
            EXAMPLE["on_demand_pending_s"],
            {},
        ),
        partial(
            _waits,
            "spot drought",
            60,
            "HoldfastSpotPendingTooLong",
            EXAMPLE["spot_pending_s"],
            {LABEL_SPOT: "true"},
        ),
        partial(
            _waits,
            "flex waits",
            270,
            "HoldfastFlexStartWaitTooLong",
            EXAMPLE["flex_pending_s"],
            {LABEL_FLEX_START: "true"},
        ),
        partial(
            _held,
            "a job waits for quota",
            "quota",
            QUEUE_MIN + 30,
            "Pending",
            "HoldfastQueueWaitTooLong",
            QUEUE_MIN + 5,
        ),
        partial(
            _held,
            "a queue admits nothing",
            "misnamed",
            50,
            "Inadmissible",
            "HoldfastQueueAdmitsNothing",
            30,
        ),
        _request,
        _thrashes,
        partial(
            _item,
            "an item is given up",
            "dead",
            "HoldfastDeadLetters",
            1,
            event="dead_lettered",
            item="i",
            reason="bad",
        ),
        partial(
            _item,
            "results cannot be stored",
            "database",
            "HoldfastResultsDatabaseErrors",
            9,
            event="retrying",
            source="database",
        ),
        _system_pod,
        _budget,
        _blind,
        _counts,
        partial(
            _gpu,
            "a GPU falls off the bus",
            "HoldfastGpuXidErrors",
            XID,
            (0.0,) * 20 + (79.0,) * 20,
            1,
        ),
        partial(
            _gpu,
            "memory of a GPU is damaged",
            "HoldfastGpuUncorrectableEcc",
            ECC,
            (0.0,) * 5 + (1.0,) * 20,
            6,
        ),
        partial(
            _gpu, "a GPU is held and idle", "HoldfastGpuIdle", IDLE, (1.0,) * 45, 30, **IDLE_POD
        ),
    )
    assert len(makers) == KINDS
    first = 60
    span = month.days * 1_440 - 60 - 600
    for number, maker in enumerate(makers):
        maker(month, first + span * number // len(makers))


def _job(month: Month, name: str, at: int, kind: Kind = SPOT, **more: Any) -> Job:
    job = Job(
        name=f"trouble-{name}",
        kind=kind,
        born_min=at,
        queued_min=1,
        work_min=5_000,
        rng=random.Random(1),
        **more,
    )
    month.jobs.append(job)
    return job


def _kind(name: str, **more: Any) -> Kind:
    """On machines of its own, so that nothing else bears its labels."""
    return Kind(queue=f"trouble-{name}", accelerator=f"trouble-{name}", **more)


def _stop(month: Month, job: Job) -> Steps:
    return in_turn(lambda: month.platform.end(job, 143))


def _hangs(month: Month, at: int) -> None:
    job = _job(month, "hang", at)

    def steps() -> Steps:
        job.saves = False
        yield from pass_minutes(60)
        yield from _stop(month, job)

    month.script(at + 60, steps())
    month.incident("a trainer hangs", "HoldfastNoRecentCommit", f"job={job.name}", at + 60, 22)


def _never_saves(month: Month, at: int) -> None:
    job = _job(month, "unsaved", at, saves=False)
    month.script(at + 100, _stop(month, job))
    # Two minutes to come up, the environment's limit, the hold.
    month.incident(
        "no save ever",
        "HoldfastNoRecentCommit",
        f"job={job.name}",
        at + 6,
        EXAMPLE["checkpoint_age_s"] // 60 + 2,
    )


def _ends_unsaved(month: Month, at: int) -> None:
    job = _job(
        month,
        "ends",
        at,
        _kind("ends", flex=True),
        ends_after_min=300,
        saves=False,
    )
    month.script(at + 55, _stop(month, job))
    month.incident(
        "a node ends unsaved", "HoldfastFlexNodeEndsUnsaved", f"job={job.name}", at + 6, 35
    )


def _crashes(month: Month, at: int) -> None:
    job = _job(month, "crash", at, Kind(queue="spot", accelerator="nvidia-l4", pods=4), saves=False)
    _crash_three_times(month, job, at, 1, "a job crashes again and again", least_steps=20)


def _crashes_at_once(month: Month, at: int) -> None:
    job = _job(month, "import", at, startup_min=9_999)
    _crash_three_times(month, job, at, 70, "a job falls before its first line", least_steps=0)


def _crash_three_times(
    month: Month,
    job: Job,
    at: int,
    code: int,
    what: str,
    *,
    least_steps: int,
) -> None:
    def steps() -> Steps:
        for _ in range(3):
            while job.step - job.saved < least_steps or job.placed_min < 0:
                yield
            month.platform.crash(job, code)
            month.incidents[here] = replace(month.incidents[here], begins_min=month.minute)
            job.step = job.saved
            yield
        yield from pass_minutes(10)
        yield from _stop(month, job)

    here = len(month.incidents)
    month.incident(what, "HoldfastRestartsWithoutProgress", f"job={job.name}", at, 1)
    month.script(at + 1, steps())


def _damaged(month: Month, at: int) -> None:
    def restored(*skipped: list[object]) -> None:
        found = {
            "step": 1,
            "seconds": 1.0,
            "skipped": skipped,
        }
        month.written.add(
            line(month.now_s(), "restore", job, process=f"{job}-0-1-ab", **found), job=job
        )

    job = "trouble-damaged"
    month.script(at, in_turn(restored, partial(restored, [9, "crc"])))
    month.incident(
        "a damaged checkpoint", "HoldfastRestoreSkippedCheckpoint", f"job={job}", at + 1, 1
    )


def _burst(month: Month, at: int) -> None:
    pool = _taken_one_by_one(
        month,
        "burst",
        at,
        jobs=4,
        pods=2,
        apart_min=1,
    )
    month.incident(
        "a zone is emptied", "HoldfastSpotPreemptionBurst", f"node_pool_name={pool}", at, 4
    )


def _losses(month: Month, at: int) -> None:
    pool = _taken_one_by_one(
        month,
        "losses",
        at,
        jobs=8,
        pods=1,
        apart_min=6,
    )
    month.incident(
        "a pool loses more than usual",
        "HoldfastSpotPreemptionsAboveUsual",
        f"node_pool_name={pool}",
        at + 36,
        1,
    )


def _taken_one_by_one(
    month: Month,
    name: str,
    at: int,
    *,
    jobs: int,
    pods: int,
    apart_min: int,
) -> str:
    """The pool that they were on."""
    running = [_job(month, f"{name}-{n}", at - 30, _kind(name, pods=pods)) for n in range(jobs)]

    def steps() -> Steps:
        for job in running:
            month.platform.evict(job, notice=True)
            yield from pass_minutes(apart_min)
        yield from pass_minutes(30 if apart_min == 1 else 0)
        for job in running:
            month.platform.end(job, 143)
        yield

    month.script(at, steps())
    return running[0].kind.pool


def _waits(
    name: str,
    minutes: int,
    alert: str,
    limit_s: int,
    selector: dict[str, str],
    month: Month,
    at: int,
) -> None:
    since = month.platform.time(at)
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
    }
    pod |= {"spec": {"nodeSelector": selector | {LABEL_ACCELERATOR: f"trouble-{name}"}}}
    month.script(at, shown(month.cluster.pod, pod, minutes))
    month.incident(name, alert, f"accelerator=trouble-{name}", at, limit_s // 60 + 5)


def _held(
    kind: str,
    name: str,
    minutes: int,
    reason: str,
    alert: str,
    promise_min: int,
    month: Month,
    at: int,
) -> None:
    meta = {
        "uid": f"trouble-{name}",
        "name": name,
        "creationTimestamp": month.platform.time(at),
    }
    spec = {
        "queueName": f"trouble-{name}",
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
    month.script(at, shown(month.cluster.queues.workload, workload, minutes))
    month.incident(kind, alert, f"queue=trouble-{name}", at, promise_min)


def _request(month: Month, at: int) -> None:
    asked = {
        "metadata": {"uid": "trouble-request", "name": "request"},
        "status": {"conditions": []},
    }
    failed = asked | {"status": {"conditions": [{"type": "BookingExpired", "status": "True"}]}}
    seen = month.cluster.queues.request
    month.script(at, in_turn(partial(seen, "ADDED", asked), partial(seen, "MODIFIED", failed)))
    month.incident(
        "Google takes a booking back",
        "HoldfastProvisioningLost",
        "reason=BookingExpired",
        at + 1,
        1,
    )


def _thrashes(month: Month, at: int) -> None:
    job = _job(
        month,
        "thrash",
        at,
        _kind("thrash", pods=1),
        unplaced_min=1,
        startup_min=13,
    )

    def steps() -> Steps:
        for n in range(80):
            yield
            if n % 20 == 19:
                month.platform.save(job)
                month.platform.evict(job, notice=True)
        yield from _stop(month, job)

    month.script(at + 5, steps())
    month.incident(
        "starting takes long", "HoldfastGoodputBelowBreakEven", f"job={job.name}", at + 12, 75
    )


def _item(
    kind: str, name: str, alert: str, lines: int, month: Month, at: int, **fields: Any
) -> None:
    """What a worker of a batch writes, after its start."""
    job = f"trouble-{name}"

    def write(count: int, event: str, **more: Any) -> None:
        for n in range(count):
            found = line(month.now_s() + n, event, job, "batch", f"{job}-0-1-ab", **more)
            month.written.add(found, job=job)

    month.script(
        at, in_turn(partial(write, 1, event="start", rank=0), partial(write, lines, **fields))
    )
    month.incident(kind, alert, f"job={job}", at + 1, 1)


def _system_pod(month: Month, at: int) -> None:
    meta = {
        "name": "trouble-node",
        "labels": {LABEL_SPOT: "true"},
    }
    month.script(
        at,
        shown(
            month.cluster.node,
            {
                "metadata": meta,
                "spec": {},
                "status": {"conditions": []},
            },
            31,
        ),
    )
    pod = {
        "metadata": {
            "uid": "dns",
            "name": "dns",
            "namespace": "kube-system",
        },
        "spec": {"nodeName": "trouble-node"},
    }
    month.script(at, shown(month.cluster.pod, pod | {"status": {"phase": "Running"}}, 30))
    month.incident("DNS runs on Spot", "HoldfastSystemPodsOnSpot", "namespace=kube-system", at, 10)


def _budget(month: Month, at: int) -> None:
    meta = {"namespace": "serving", "name": "trouble-server"}
    found = {
        "metadata": meta,
        "status": {"desiredHealthy": 2, "currentHealthy": 1},
    }
    month.script(at, shown(month.cluster.budget, found, 30))
    month.incident(
        "a service lacks a pod", "HoldfastDisruptionBudgetViolated", "budget=trouble-server", at, 10
    )


def _blind(month: Month, at: int) -> None:
    month.blind = range(at, at + 25)
    month.incident(
        "the exporter is dead",
        "HoldfastMonitoringSilent",
        "",
        at,
        EXAMPLE["heartbeat_s"] // 60 + 1 + 5,
    )


def _counts(month: Month, at: int) -> None:
    """GKE counts nodes that the exporter does not know."""
    month.script(at, in_turn(lambda: month.interrupted("trouble-pool", 5.0)))
    month.incident("the counts of losses differ", "HoldfastPreemptionCountsDisagree", "", at, 60)


def _gpu(
    kind: str,
    alert: str,
    metric: str,
    values: tuple[float, ...],
    promise_min: int,
    month: Month,
    at: int,
    **labels: str,
) -> None:
    label = "Hostname" if "pod_name" not in labels else "pod_name"
    named = {"Hostname": f"trouble-{kind}"} | labels
    month.script(at, in_turn(*(partial(month.gauge, metric, value, **named) for value in values)))
    month.incident(
        kind, alert, f"{label}={named[label]}", at + sum(not v for v in values[:20]), promise_min
    )
