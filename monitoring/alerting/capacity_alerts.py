"""Alerts about what jobs run on: losses, waits, queues, GPUs."""

from holdfast.contract.kubernetes import preemptions
from monitoring.alerting.alert import DUTY_CYCLE, HOUR, Alert, AlertSource, Severity, dcgm, grew, ours

# Reasons by which the autoscaler's visibility log reports that no node will come.
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


_ERRORS, _REFUSALS = (" OR ".join(f'"{reason}"' for reason in group) for group in (NO_SCALE_UP, NO_PROVISIONING))
SCALE_FAILURES = (
    'resource.type="k8s_cluster" AND resource.labels.cluster_name="$cluster" AND '
    'log_id("container.googleapis.com/cluster-autoscaler-visibility") AND '
    f"(jsonPayload.resultInfo.results.errorMsg.messageId=({_ERRORS}) OR "
    f"jsonPayload.noDecisionStatus.noScaleUp.unhandledPodGroups.napFailureReasons.messageId=({_REFUSALS}))"
)


def _pending(name: str, capacity: str, most: str, severity: Severity) -> Alert:
    """`most`: the field of `Alerts` with the limit."""
    series = ours("pending_seconds", f'capacity="{capacity}"')
    return Alert(
        name=name,
        severity=severity,
        why=f"pods wait for {capacity} capacity longer than the configured limit; Kubernetes itself raises no alert",
        query=f"max by (accelerator) ({series}) > ${most}",
        hold_s=300,
    )


_LOST = preemptions("$cluster")
# The metric counts per sample, so its sum over time is the number of events, the first one included.
CAPACITY = (
    Alert(
        name="HoldfastSpotPreemptionsAboveUsual",
        severity=Severity.TICKET,
        why="this pool is preempted more often than usual: the lost work may cost more than Spot saves",
        query=f"sum by (node_pool_name) (sum_over_time({_LOST}[1h])) > $preemptions_per_hour",
    ),
    Alert(
        name="HoldfastSpotPreemptionBurst",
        severity=Severity.PAGE,
        why="a pool lost an hour's usual number of nodes within ten minutes: the zone is running out of Spot capacity, and more preemptions are likely",
        query=f"sum by (node_pool_name) (sum_over_time({_LOST}[10m])) > $preemptions_per_hour",
    ),
    _pending("HoldfastOnDemandPendingTooLong", "on-demand", "on_demand_pending_s", Severity.PAGE),
    _pending("HoldfastSpotPendingTooLong", "spot", "spot_pending_s", Severity.TICKET),
    _pending("HoldfastFlexStartWaitTooLong", "flex-start", "flex_pending_s", Severity.TICKET),
    Alert(
        name="HoldfastAutoscalerCannotScale",
        severity=Severity.TICKET,
        why="the autoscaler cannot add nodes (no quota, no capacity, or no limit set): waiting will not help, and the pods only show Pending",
        query=SCALE_FAILURES,
        source=AlertSource.LOG,
    ),
    Alert(
        name="HoldfastFlexNodeEndsUnsaved",
        severity=Severity.PAGE,
        why="a flex-start node reaches its planned end soon, and the job on it has no recent checkpoint: that work will be lost",
        query=(
            f"{ours('last_commit_age_seconds')} > {HOUR // 2} and on (namespace, job, index) "
            f"min by (namespace, job, index) ({ours('node_end_seconds')}) < {6 * HOUR}"
        ),
        hold_s=300,
    ),
)


_WAITS = ours("queue_wait_seconds", 'reason!="stopped"')
_PENDING, _STARTED = (ours(f"queue_{state}_workloads") for state in ("pending", "started"))
QUEUES = (
    Alert(
        name="HoldfastQueueWaitTooLong",
        severity=Severity.TICKET,
        why="Kueue has held a job longer than the configured limit; no pod is Pending, so no other alert shows it",
        query=f"max by (queue, accelerator, reason) ({_WAITS}) > $queue_wait_s",
        hold_s=300,
    ),
    Alert(
        name="HoldfastQueueAdmitsNothing",
        severity=Severity.TICKET,
        why="jobs wait in a queue that runs nothing: the queue is stopped or misnamed, or its quota is smaller than one job",
        query=f"max by (queue) ({_PENDING}) > 0 and on (queue) max by (queue) ({_STARTED}) == 0",
        hold_s=1_800,
    ),
    Alert(
        name="HoldfastProvisioningLost",
        severity=Severity.TICKET,
        why="a request for flex-start nodes failed, expired or was revoked: its job goes back to the end of the queue",
        query=grew(ours("provisioning_requests_lost_total"), "reason", "1h"),
    ),
)


_XID = dcgm("XID_ERRORS")
GPUS = (
    Alert(
        name="HoldfastGpuXidErrors",
        severity=Severity.TICKET,
        why="the driver reported a GPU fault: the GPU may compute wrong results or hang",
        # A gauge of the last code, never reset: only another code than before is news.
        query=f"{_XID} > 0 unless {_XID} == {_XID} offset 15m",
    ),
    Alert(
        name="HoldfastGpuUncorrectableEcc",
        severity=Severity.PAGE,
        why="a GPU has an uncorrectable memory error: the results of the job on it cannot be trusted",
        query=f"{dcgm('ECC_DBE_VOL_TOTAL')} > 0 or {dcgm('ROW_REMAP_FAILURE')} > 0",
        # A Spot node that the mover replaces is gone by then.
        hold_s=300,
    ),
    Alert(
        name="HoldfastGpuThrottled",
        severity=Severity.TICKET,
        why="a GPU is slowed down by heat; the whole gang waits for its slowest rank",
        # Microseconds in each second: a tenth of the time. Releases that count nanoseconds cross it sooner.
        query=f"rate({dcgm('THERMAL_VIOLATION')}[5m]) > 100000",
        hold_s=900,
    ),
    Alert(
        name="HoldfastGpuIdle",
        severity=Severity.TICKET,
        why="a pod holds a GPU without using it; the GPU is billed in full",
        query=f"max by (namespace_name, pod_name) ({DUTY_CYCLE}) < 5",
        hold_s=1_800,
    ),
)
