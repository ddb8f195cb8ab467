"""Alerts about what jobs run on: losses, waits, queues, GPUs."""

from holdfast.contract.kubernetes import preemptions
from monitoring.alerting.alert import HOUR, Alert, Limits, Severity, Source, dcgm, duty_cycle, grew, ours

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


def capacity_alerts(limits: Limits) -> tuple[Alert, ...]:
    cluster, usual = limits.cluster, limits.preemptions_per_hour
    lost = preemptions(cluster)
    # The metric counts per sample, so its sum over time is the number of events, the first one included.
    return (
        Alert(
            name="HoldfastSpotPreemptionsAboveUsual",
            severity=Severity.TICKET,
            why="this pool is preempted more often than usual: the lost work may cost more than Spot saves",
            query=f"sum by (node_pool_name) (sum_over_time({lost}[1h])) > {usual}",
        ),
        Alert(
            name="HoldfastSpotPreemptionBurst",
            severity=Severity.PAGE,
            why="a pool lost an hour's usual number of nodes within ten minutes: the zone is running out of Spot capacity, and more preemptions are likely",
            query=f"sum by (node_pool_name) (sum_over_time({lost}[10m])) > {usual}",
        ),
        _pending(limits, "HoldfastOnDemandPendingTooLong", "on-demand", limits.on_demand_pending_s, Severity.PAGE),
        _pending(limits, "HoldfastSpotPendingTooLong", "spot", limits.spot_pending_s, Severity.TICKET),
        _pending(limits, "HoldfastFlexStartWaitTooLong", "flex-start", limits.flex_pending_s, Severity.TICKET),
        Alert(
            name="HoldfastAutoscalerCannotScale",
            severity=Severity.TICKET,
            why="the autoscaler cannot add nodes (no quota, no capacity, or no limit set): waiting will not help, and the pods only show Pending",
            query=scale_failures(cluster),
            source=Source.LOG,
        ),
        Alert(
            name="HoldfastFlexNodeEndsUnsaved",
            severity=Severity.PAGE,
            why="a flex-start node reaches its planned end soon, and the job on it has no recent checkpoint: that work will be lost",
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
        why=f"pods wait for {capacity} capacity longer than the configured limit; Kubernetes itself raises no alert",
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


def queue_alerts(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    waits = ours("queue_wait_seconds", cluster, 'reason!="stopped"')
    pending, started = (ours(f"queue_{state}_workloads", cluster) for state in ("pending", "started"))
    return (
        Alert(
            name="HoldfastQueueWaitTooLong",
            severity=Severity.TICKET,
            why="Kueue has held a job longer than the configured limit; no pod is Pending, so no other alert shows it",
            query=f"max by (queue, accelerator, reason) ({waits}) > {limits.queue_wait_s}",
            hold_s=300,
        ),
        Alert(
            name="HoldfastQueueAdmitsNothing",
            severity=Severity.TICKET,
            why="jobs wait in a queue that runs nothing: the queue is stopped or misnamed, or its quota is smaller than one job",
            query=f"max by (queue) ({pending}) > 0 and on (queue) max by (queue) ({started}) == 0",
            hold_s=1_800,
        ),
        Alert(
            name="HoldfastProvisioningLost",
            severity=Severity.TICKET,
            why="a request for flex-start nodes failed, expired or was revoked: its job goes back to the end of the queue",
            query=grew(ours("provisioning_requests_lost_total", cluster), "reason", "1h"),
        ),
    )


def gpu_alerts(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster

    xid = dcgm("XID_ERRORS", cluster)
    return (
        Alert(
            name="HoldfastGpuXidErrors",
            severity=Severity.TICKET,
            why="the driver reported a GPU fault: the GPU may compute wrong results or hang",
            # A gauge of the last code, never reset: only another code than before is news.
            query=f"{xid} > 0 unless {xid} == {xid} offset 15m",
        ),
        Alert(
            name="HoldfastGpuUncorrectableEcc",
            severity=Severity.PAGE,
            why="a GPU has an uncorrectable memory error: the results of the job on it cannot be trusted",
            query=f"{dcgm('ECC_DBE_VOL_TOTAL', cluster)} > 0 or {dcgm('ROW_REMAP_FAILURE', cluster)} > 0",
        ),
        Alert(
            name="HoldfastGpuThrottled",
            severity=Severity.TICKET,
            why="a GPU is slowed down by heat; the whole gang waits for its slowest rank",
            # Microseconds in each second: a tenth of the time. Releases that count nanoseconds cross it sooner.
            query=f"rate({dcgm('THERMAL_VIOLATION', cluster)}[5m]) > 100000",
            hold_s=900,
        ),
        Alert(
            name="HoldfastGpuIdle",
            severity=Severity.TICKET,
            why="a pod holds a GPU without using it; the GPU is billed in full",
            query=f"max by (namespace_name, pod_name) ({duty_cycle(cluster)}) < 5",
            hold_s=1_800,
        ),
    )
