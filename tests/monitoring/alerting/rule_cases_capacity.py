"""Cases of the alerts about queues and about the health of GPUs."""

from monitoring.alerting.alert import EXAMPLE
from tests.monitoring.alerting.promtool import History
from tests.monitoring.alerting.rule_series import OTHER, labels, make_history, ours, risen


def _wait(reason: str, accelerator: str = "nvidia-l4") -> str:
    return ours(
        "queue_wait_seconds",
        f'queue="spot",flavor="none",accelerator="{accelerator}",reason="{reason}"',
    )


def _dcgm(field: str, cluster: str = EXAMPLE["cluster"]) -> str:
    return f'DCGM_FI_DEV_{field}{{cluster="{cluster}",gpu="0",Hostname="n1"}}'


def _duty(pod: str, cluster: str = EXAMPLE["cluster"]) -> str:
    return (
        'kubernetes_io:container_accelerator_duty_cycle{monitored_resource="k8s_container",'
        f'cluster_name="{cluster}",namespace_name="training",pod_name="{pod}"}}'
    )


_OF_GPU = labels(cluster=EXAMPLE["cluster"], gpu="0", Hostname="n1")
_OF_QUOTA = labels(queue="spot", accelerator="nvidia-l4", reason="quota")
_BY_FITS = " ".join(f"{45000000 * (n // 3)}" for n in range(60))  # a minute of three
_STARTED = ours("queue_started_workloads", 'queue="spot"')
_PENDING = ours("queue_pending_workloads", 'queue="spot"')
CAPACITY: dict[str, tuple[History, ...]] = {
    "HoldfastQueueWaitTooLong": (
        make_history(
            (_wait("quota"), "14000+60x30"),
            at=13,
            fires=_OF_QUOTA,
            quiet=10,
        ),
        make_history((_wait("quota"), "14400x30"), (_wait("stopped"), "999999x30"), at=25),
        make_history(
            (ours("queue_wait_seconds", 'queue="spot",reason="quota"', OTHER), "999999x30"), at=25
        ),
    ),
    "HoldfastQueueAdmitsNothing": (
        make_history(
            (_PENDING, "0x5 1x60"),
            (_STARTED, "0x65"),
            at=40,
            fires=labels(queue="spot"),
            quiet=33,
        ),
        make_history((_PENDING, "4x60"), (_STARTED, "1x60"), at=50),  # its turn comes
        make_history((_PENDING, "0x60"), (_STARTED, "0x60"), at=50),
        make_history((_PENDING, "1x20 0x2 1x25"), (_STARTED, "0x60"), at=45),
        make_history(
            (ours("queue_pending_workloads", 'queue="spot"', OTHER), "4x60"),
            (ours("queue_started_workloads", 'queue="spot"', OTHER), "0x60"),
            at=50,
        ),
    ),
    "HoldfastProvisioningLost": risen(
        "provisioning_requests_lost_total",
        'reason="Failed"',
        labels(reason="Failed"),
    ),
    "HoldfastGpuXidErrors": (
        make_history(
            (_dcgm("XID_ERRORS"), "0x40 1x40"),
            at=51,
            fires=_OF_GPU,
            quiet=39,
        ),
        make_history((_dcgm("XID_ERRORS"), "_x40 79x40"), at=43, fires=_OF_GPU),
        make_history((_dcgm("XID_ERRORS"), "13x40 79x40"), at=43, fires=_OF_GPU),
        # The last code stays for ever: it is no news.
        make_history(
            (_dcgm("XID_ERRORS"), "0x20 31x60"),
            (_dcgm("XID_ERRORS", "x"), "0x40 79x40"),
            at=42,
        ),
    ),
    "HoldfastGpuUncorrectableEcc": (
        make_history(
            (_dcgm("ECC_DBE_VOL_TOTAL"), "0x5 1x14"),
            at=13,
            fires=_OF_GPU,
            quiet=9,
        ),
        make_history((_dcgm("ROW_REMAP_FAILURE"), "0x5 1x14"), at=13, fires=_OF_GPU),
        # its node was replaced
        make_history((_dcgm("ECC_DBE_VOL_TOTAL"), "0x5 1x3 stale _x20"), at=20),
        make_history(
            (_dcgm("ECC_DBE_VOL_TOTAL"), "0x20"),
            (_dcgm("ROW_REMAP_FAILURE"), "0x20"),
            (_dcgm("ECC_SBE_VOL_TOTAL"), "50x20"),  # corrected
            (_dcgm("ECC_DBE_VOL_TOTAL", "x"), "1x20"),
            (_dcgm("ROW_REMAP_FAILURE", "x"), "1x20"),
            at=15,
        ),
    ),
    "HoldfastGpuThrottled": (
        # 150 ms of each second
        make_history(
            (_dcgm("THERMAL_VIOLATION"), "0+9000000x60"),
            at=25,
            fires=_OF_GPU,
            quiet=14,
        ),
        make_history((_dcgm("THERMAL_VIOLATION"), _BY_FITS), at=45, fires=_OF_GPU),
        make_history((_dcgm("THERMAL_VIOLATION"), "0+4800000x60"), at=50),
        # it has cooled down
        make_history((_dcgm("THERMAL_VIOLATION"), "0+24000000x30 720000000x20"), at=36),
        make_history((_dcgm("THERMAL_VIOLATION", "x"), "0+30000000x60"), at=50),
    ),
    "HoldfastGpuIdle": (
        make_history(
            (_duty("a"), "90x10 4x60"),
            at=45,
            fires=labels(namespace_name="training", pod_name="a"),
            quiet=39,
        ),
        make_history(
            (_duty("busy"), "5x60"),
            (_duty("bursts"), "0x20 60 0x20 60 0x20"),  # between two batches
            (_duty("other", "x"), "0x60"),
            at=55,
        ),
    ),
}
