"""The trouble of a month that is about no job: the platform's own services, and GPUs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from holdfast.contract.pools import LABEL_SPOT
from monitoring.alerting.alert import EXAMPLE
from workloads.library.tests.month.month import Month

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


def system_pod(month: Month, at: int) -> None:
    meta = {"name": "trouble-node", "labels": {LABEL_SPOT: "true"}}
    month.script(at, shown(month.cluster.node, {"metadata": meta, "spec": {}, "status": {"conditions": []}}, 31))
    pod = {"metadata": {"uid": "dns", "name": "dns", "namespace": "kube-system"}, "spec": {"nodeName": "trouble-node"}}
    month.script(at, shown(month.cluster.pod, pod | {"status": {"phase": "Running"}}, 30))
    month.incident("DNS runs on Spot", "HoldfastSystemPodsOnSpot", "namespace=kube-system", at, 10)


def budget(month: Month, at: int) -> None:
    meta = {"namespace": "serving", "name": "trouble-server"}
    found = {"metadata": meta, "status": {"desiredHealthy": 2, "currentHealthy": 1}}
    month.script(at, shown(month.cluster.budget, found, 30))
    month.incident("a service lacks a pod", "HoldfastDisruptionBudgetViolated", "budget=trouble-server", at, 10)


def blind(month: Month, at: int) -> None:
    month.blind = range(at, at + 25)
    month.incident("the exporter is dead", "HoldfastMonitoringSilent", "", at, EXAMPLE["heartbeat_s"] // 60 + 1 + 5)


def counts(month: Month, at: int) -> None:
    """GKE counts nodes that the exporter does not know."""
    month.script(at, in_turn(lambda: month.interrupted("trouble-pool", 5.0)))
    month.incident("the counts of losses differ", "HoldfastPreemptionCountsDisagree", "", at, 60)


def _gpu(kind: str, alert: str, metric: str, values: tuple[float, ...], promise_min: int, month: Month, at: int, **labels: str) -> None:  # fmt: skip
    label = "Hostname" if "pod_name" not in labels else "pod_name"
    named = {"Hostname": f"trouble-{kind}"} | labels
    month.script(at, in_turn(*(partial(month.gauge, metric, value, **named) for value in values)))
    month.incident(kind, alert, f"{label}={named[label]}", at + sum(not v for v in values[:20]), promise_min)


IDLE = "kubernetes_io:container_accelerator_duty_cycle"
IDLE_POD = {"monitored_resource": "k8s_container", "namespace_name": "training", "pod_name": "trouble-idle"}
XID = "DCGM_FI_DEV_XID_ERRORS"
ECC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
PLATFORM: tuple[Callable[[Month, int], None], ...] = (
    system_pod, budget, blind, counts,
    partial(_gpu, "a GPU falls off the bus", "HoldfastGpuXidErrors", XID, (0.0,) * 20 + (79.0,) * 20, 1),
    partial(_gpu, "memory of a GPU is damaged", "HoldfastGpuUncorrectableEcc", ECC, (0.0,) * 5 + (1.0,) * 20, 6),
    partial(_gpu, "a GPU is held and idle", "HoldfastGpuIdle", IDLE, (1.0,) * 45, 30, **IDLE_POD),
)  # fmt: skip
