"""The alerts, as data: what is asked, from which value on, for how long, and why anybody should wake up."""

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.contract.telemetry import METRICS
from infra.contract.kubernetes import preemptions

HOUR, DAY = 3_600, 86_400


class Severity(StrEnum):
    """Cloud Monitoring's levels are CRITICAL, ERROR and WARNING, in this order."""

    PAGE = "page"  # somebody gets up
    TICKET = "ticket"  # within the working day
    INFO = "info"  # worth knowing

    @property
    def level(self) -> str:
        return {"page": "CRITICAL", "ticket": "ERROR", "info": "WARNING"}[self.value]


class Source(StrEnum):
    PROMQL = "PromQL"
    LOG = "log entries"  # where the signal exists nowhere else
    BUDGET = "billing budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The values that an environment may move; infra.environments has the same names and checks them."""

    cluster: str
    dead_letter_subscription: str
    on_demand_pending_s: int = 600
    spot_pending_s: int = 1_800
    flex_pending_s: int = 14_400
    queue_wait_s: int = 14_400
    checkpoint_age_s: int = HOUR
    preemptions_per_hour: int = 6
    goodput_min: float = 0.8
    batch_oldest_s: int = DAY
    heartbeat_s: int = 600


EXAMPLE = Limits(cluster="holdfast-example", dead_letter_subscription="holdfast-example-dead")
"""Of no environment: what the runbook, the command `alerts` and the rule cases are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    name: str
    severity: Severity
    why: str
    query: str = ""
    """PromQL that is true while the alert should fire, or a log filter. Empty for a budget."""
    hold_s: int = 0
    """How long the query must be true; a multiple of 30."""
    source: Source = Source.PROMQL

    @property
    def slug(self) -> str:
        """The heading in runbook.md: HoldfastSpotPreemptionBurst -> spot-preemption-burst."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name.removeprefix("Holdfast")).lower()


# Reasons by which the autoscaler's visibility log says that nothing will come.
NO_SCALE_UP = (
    "scale.up.error.out.of.resources",
    "scale.up.error.quota.exceeded",
    "scale.up.error.waiting.for.instances.timeout",
    "scale.up.error.ip.space.exhausted",
)
NO_PROVISIONING = (
    "no.scale.up.nap.pod.gpu.no.limit.defined",
    "no.scale.up.nap.pod.gpu.type.not.supported",
    "no.scale.up.nap.pod.machine.families.do.not.support.dws",
)


def ours(metric: str, cluster: str, labels: str = "") -> str:
    """Cloud Monitoring's PromQL name of a metric that the exporter writes."""
    assert metric in METRICS, metric
    more = f",{labels}" if labels else ""
    return f'custom_googleapis_com:holdfast_{metric}{{cluster_name="{cluster}"{more}}}'


def dcgm(field: str, cluster: str) -> str:
    """A device's series as managed Prometheus names it; which of them GKE collects depends on its release."""
    return f'DCGM_FI_DEV_{field}{{cluster="{cluster}"}}'


def duty_cycle(cluster: str) -> str:
    """Percent of the time that a container used its GPU."""
    labels = f'monitored_resource="k8s_container",cluster_name="{cluster}"'
    return f"kubernetes_io:container_accelerator_duty_cycle{{{labels}}}"


def grew(series: str, by: str, window: str, more_than: int = 0) -> str:
    """A counter rose within the window. A series that nobody saw in the window before counts with all it has:
    increase() alone would sleep through the first event ever."""
    began = f"sum by ({by}) ({series} unless max_over_time({series}[{window}] offset {window}))"
    return f"sum by ({by}) (increase({series}[{window}])) > {more_than} or {began} > {more_than}"


def alerts(limits: Limits) -> tuple[Alert, ...]:
    return (*_capacity(limits), *_queues(limits), *_gpus(limits), *_work(limits), *_batch(limits), *_platform(limits))


def _capacity(limits: Limits) -> tuple[Alert, ...]:
    cluster, usual = limits.cluster, limits.preemptions_per_hour
    lost = preemptions(cluster)
    # The metric counts per sample, so its sum over time is the number of events, the first one included.
    return (
        Alert(
            name="HoldfastSpotPreemptionsAboveUsual",
            severity=Severity.TICKET,
            why="above its usual rate a pool loses more work than its discount saves",
            query=f"sum by (node_pool_name) (sum_over_time({lost}[1h])) > {usual}",
        ),
        Alert(
            name="HoldfastSpotPreemptionBurst",
            severity=Severity.PAGE,
            why="an hour's usual losses within ten minutes: the zone is being emptied, and the next nodes go too",
            query=f"sum by (node_pool_name) (sum_over_time({lost}[10m])) > {usual}",
        ),
        _pending(limits, "HoldfastOnDemandPendingTooLong", "on-demand", limits.on_demand_pending_s, Severity.PAGE),
        _pending(limits, "HoldfastSpotPendingTooLong", "spot", limits.spot_pending_s, Severity.TICKET),
        _pending(limits, "HoldfastFlexStartWaitTooLong", "flex-start", limits.flex_pending_s, Severity.TICKET),
        Alert(
            name="HoldfastAutoscalerCannotScale",
            severity=Severity.TICKET,
            why="quota, stock or a missing limit: waiting longer will not help, and pods show only Pending",
            query=scale_failures(cluster),
            source=Source.LOG,
        ),
        Alert(
            name="HoldfastFlexNodeEndsUnsaved",
            severity=Severity.PAGE,
            why="a flex-start node ends on a day that is known in advance; work without a recent commit ends with it",
            query=(
                f"{ours('last_commit_age_seconds', cluster)} > {HOUR // 2} and on (job, index) "
                f"min by (job, index) ({ours('node_end_seconds', cluster)}) < {6 * HOUR}"
            ),
            hold_s=300,
        ),
    )


def _pending(limits: Limits, name: str, capacity: str, most_s: int, severity: Severity) -> Alert:
    series = ours("pending_seconds", limits.cluster, f'capacity="{capacity}"')
    return Alert(
        name=name,
        severity=severity,
        why=f"pods for {capacity} capacity wait longer than was promised, and Kubernetes itself never complains",
        query=f"max by (accelerator) ({series}) > {most_s}",
        hold_s=300,
    )


def scale_failures(cluster: str) -> str:
    errors, refusals = (" OR ".join(f'"{reason}"' for reason in group) for group in (NO_SCALE_UP, NO_PROVISIONING))
    return (
        f'resource.type="k8s_cluster" AND resource.labels.cluster_name="{cluster}" AND '
        'log_id("container.googleapis.com/cluster-autoscaler-visibility") AND '
        f"(jsonPayload.resultInfo.results.errorMsg.messageId=({errors}) OR "
        f"jsonPayload.noDecisionStatus.noScaleUp.unhandledPodGroups.napFailureReasons.messageId=({refusals}))"
    )


def _queues(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    waits = ours("queue_wait_seconds", cluster, 'reason!="stopped"')
    pending, started = (ours(f"queue_{state}_workloads", cluster) for state in ("pending", "started"))
    return (
        Alert(
            name="HoldfastQueueWaitTooLong",
            severity=Severity.TICKET,
            why="Kueue holds a job for longer than was promised; no pod is Pending, so nothing else shows it",
            query=f"max by (queue, accelerator, reason) ({waits}) > {limits.queue_wait_s}",
            hold_s=300,
        ),
        Alert(
            name="HoldfastQueueAdmitsNothing",
            severity=Severity.TICKET,
            why="jobs wait in a queue of which nothing runs: it is stopped, misnamed, or its quota is below one job",
            query=f"max by (queue) ({pending}) > 0 and on (queue) max by (queue) ({started}) == 0",
            hold_s=1_800,
        ),
        Alert(
            name="HoldfastProvisioningLost",
            severity=Severity.TICKET,
            why="Google failed, expired or took back a request for flex-start nodes: its job starts over in the queue",
            query=grew(ours("provisioning_requests_lost_total", cluster), "reason", "1h"),
        ),
    )


def _gpus(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster

    xid = dcgm("XID_ERRORS", cluster)
    return (
        Alert(
            name="HoldfastGpuXidErrors",
            severity=Severity.TICKET,
            why="the driver reported a fault of a GPU: what it computes next may be wrong, or it may hang",
            # A gauge of the last code, never reset: only another code than before is news.
            query=f"{xid} > 0 unless {xid} == {xid} offset 15m",
        ),
        Alert(
            name="HoldfastGpuUncorrectableEcc",
            severity=Severity.PAGE,
            why="memory of a GPU lost bits that could not be restored: results of the job on it cannot be trusted",
            query=f"{dcgm('ECC_DBE_VOL_TOTAL', cluster)} > 0 or {dcgm('ROW_REMAP_FAILURE', cluster)} > 0",
        ),
        Alert(
            name="HoldfastGpuThrottled",
            severity=Severity.TICKET,
            why="a GPU runs slower because it is too hot; a gang waits for its slowest rank",
            # Microseconds in each second: a tenth of the time. Releases that count nanoseconds cross it sooner.
            query=f"rate({dcgm('THERMAL_VIOLATION', cluster)}[5m]) > 100000",
            hold_s=900,
        ),
        Alert(
            name="HoldfastGpuIdle",
            severity=Severity.TICKET,
            why="a pod holds a GPU and does not use it: it is paid in full",
            query=f"max by (namespace_name, pod_name) ({duty_cycle(cluster)}) < 5",
            hold_s=1_800,
        ),
    )


def _work(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    age = ours("last_commit_age_seconds", cluster)
    return (
        Alert(
            name="HoldfastNoRecentCommit",
            severity=Severity.PAGE,
            why="two intervals without a commit: the next eviction costs more than the job was built to lose",
            query=(
                f"{age} > on (job, index) 2 * {ours('commit_interval_seconds', cluster)} > 120 "
                f"or {age} > {limits.checkpoint_age_s}"
            ),
            hold_s=120,
        ),
        Alert(
            name="HoldfastRestoreSkippedCheckpoint",
            severity=Severity.TICKET,
            why="a checkpoint that was committed could not be verified: storage or a writer damages data",
            query=grew(ours("restores_skipped_total", cluster), "job", "1h"),
        ),
        Alert(
            name="HoldfastGoodputBelowBreakEven",
            severity=Severity.TICKET,
            why="below this share of useful time the cheaper machine is the dearer one",
            query=f"{ours('goodput_ratio', cluster)} < {limits.goodput_min}",
            hold_s=1_800,
        ),
        Alert(
            name="HoldfastRestartsWithoutProgress",
            severity=Severity.PAGE,
            why="the job fails by itself again and again: a bug burns money until somebody looks",
            query=f"{ours('fruitless_restarts', cluster)} >= 3",
        ),
    )


def _batch(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    dead = f'pubsub_googleapis_com:subscription_num_undelivered_messages{{subscription_id="{limits.dead_letter_subscription}"}}'
    return (
        Alert(
            name="HoldfastBacklogPastDeadline",
            severity=Severity.TICKET,
            why="the oldest item has waited longer than results may take",
            query=f"max by (job) ({ours('batch_oldest_seconds', cluster)}) > {limits.batch_oldest_s}",
            hold_s=300,
        ),
        Alert(
            name="HoldfastDeadLetters",
            severity=Severity.TICKET,
            why="items were given up after failures of their own; evictions never lead here",
            query=f"max by (subscription_id) ({dead}) > 0 or {grew(ours('dead_letters_total', cluster), 'job', '1h')}",
        ),
        Alert(
            name="HoldfastResultsDatabaseErrors",
            severity=Severity.PAGE,
            why="results cannot be stored: workers compute, and nothing stays",
            query=grew(ours("batch_failures_total", cluster, 'error_class="database"'), "job", "10m", more_than=5),
        ),
    )


def _platform(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    heartbeat = ours("exporter_heartbeat_seconds", cluster)
    return (
        Alert(
            name="HoldfastSystemPodsOnSpot",
            severity=Severity.TICKET,
            why="a preemption would then take the cluster's own services with it",
            query=f"max by (namespace) ({ours('system_pods_on_interruptible', cluster)}) > 0",
            hold_s=600,
        ),
        Alert(
            name="HoldfastDisruptionBudgetViolated",
            severity=Severity.TICKET,
            why="fewer pods are healthy than the budget wants; a budget does not stop Spot preemption",
            query=f"max by (namespace, budget) ({ours('disruption_budget_shortfall', cluster)}) > 0",
            hold_s=600,
        ),
        Alert(
            name="HoldfastMonitoringSilent",
            severity=Severity.PAGE,
            why="the exporter is dead or cut off, so that every alert about jobs is blind",
            query=(
                f"absent_over_time({heartbeat}[{limits.heartbeat_s}s]) "
                f"or time() - max by (cluster_name) ({heartbeat}) > {limits.heartbeat_s}"
            ),
            hold_s=60,
        ),
        Alert(
            name="HoldfastSpendOverBudget",
            severity=Severity.TICKET,
            why="the month costs more than was planned; a budget warns, it stops nothing",
            source=Source.BUDGET,
        ),
    )
