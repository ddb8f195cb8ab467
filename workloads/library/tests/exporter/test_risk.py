"""The exporter's two churn counters: time at risk and losses, under the same labels."""

from typing import Any

from holdfast.exporter.cluster import Cluster
from workloads.library.tests.exporter.test_cloud import Clock
from workloads.library.tests.exporter.test_cluster import ENDED, node, pod

BORN_S = 1_795_219_200.0
MINUTE = 60.0


def counted(cluster: Cluster, clock: Clock, metric: str) -> dict[str, float]:
    """By the band of age."""
    return {dict(s.labels)["age_h"]: s.value for s in cluster.samples(clock.now) if s.metric == metric}


def at(clock: Clock, minutes: float) -> None:
    clock.now = BORN_S + minutes * MINUTE


def watched(clock: Clock, minutes: float, **fields: Any) -> Cluster:
    at(clock, minutes)
    cluster = Cluster(clock=clock)
    cluster.node("ADDED", node("a", **fields))
    list(cluster.samples(clock.now))
    return cluster


def test_time_counts_from_the_first_look_in_the_band_of_the_nodes_age() -> None:
    clock = Clock()
    cluster = watched(clock, 5)  # five minutes old: before that a loss would not have been seen
    for minutes in (10, 14, 20):
        at(clock, minutes)
        seconds = counted(cluster, clock, "spot_node_seconds_total")
    assert seconds == {"0": 9 * MINUTE, "0.25": 6 * MINUTE}
    assert counted(cluster, clock, "spot_node_losses_total") == {"0": 0, "0.25": 0}


def test_a_lost_node_counts_once_and_is_no_longer_at_risk() -> None:
    clock = Clock()
    cluster = watched(clock, 5)
    at(clock, 10)
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))
    at(clock, 12)
    cluster.node("DELETED", node("a", ready="False", message="node is shutting down"))
    at(clock, 14)
    assert counted(cluster, clock, "spot_node_seconds_total") == {"0": 5 * MINUTE}
    assert counted(cluster, clock, "spot_node_losses_total") == {"0": 1}


def test_a_loss_seen_after_the_node_is_gone_counts_at_the_age_it_went() -> None:
    clock = Clock()
    cluster = watched(clock, 5)
    at(clock, 14)
    cluster.node("DELETED", node("a"))
    at(clock, 16)
    cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))
    assert counted(cluster, clock, "spot_node_seconds_total") == {"0": 9 * MINUTE}
    assert counted(cluster, clock, "spot_node_losses_total") == {"0": 1}


def test_a_clock_that_steps_back_counts_no_second_twice() -> None:
    clock = Clock()
    cluster = watched(clock, 5)
    for minutes in (10, 7, 11):
        at(clock, minutes)
        seconds = counted(cluster, clock, "spot_node_seconds_total")
    assert seconds == {"0": 6 * MINUTE}


def test_nodes_that_nobody_can_take_away_are_not_at_risk() -> None:
    clock = Clock()
    cluster = watched(clock, 5, labels={})
    at(clock, 10)
    assert counted(cluster, clock, "spot_node_seconds_total") == {}
