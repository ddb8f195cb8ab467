"""Tests the exporter's two churn counters: time at risk and losses, under the same labels."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.controllers.cluster import Cluster
from workloads.library.tests.controllers.test_cluster import ENDED, node, pod
from workloads.library.tests.exporter.test_cloud import Clock

BORN_S = 1_795_219_200.0
MINUTE = 60.0
Step = tuple[float, Callable[[Cluster], object]]
"""A minute, and a change of the cluster."""
look: Callable[[Cluster], object] = lambda cluster: None  # noqa: E731


def preempt(cluster: Cluster) -> object:
    return cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))


delete: Callable[[Cluster], object] = lambda c: c.node("DELETED", node("a"))  # noqa: E731


@pytest.mark.parametrize(
    ("fields", "steps", "minutes", "losses"),
    [
        # Time before the first look does not count: a loss would not have been noticed.
        ({}, [(10, look), (14, look), (20, look)], {"0": 9, "0.25": 6}, {"0": 0, "0.25": 0}),
        ({}, [(10, preempt), (12, delete), (14, look)], {"0": 5}, {"0": 1}),
        ({}, [(14, delete), (16, preempt)], {"0": 9}, {"0": 1}),
        ({}, [(10, look), (7, look), (11, look)], {"0": 6}, {"0": 0}),
        ({"labels": {}}, [(10, look)], {}, {}),
    ],
    ids=[
        "in the band of its age",
        "lost, and at risk no longer",
        "seen after it is gone",
        "a clock that steps back",
        "not Spot",
    ],
)
def test_time_counts_from_the_first_look_and_a_loss_once(
    fields: dict[str, Any],
    steps: list[Step],
    minutes: dict[str, float],
    losses: dict[str, float],
) -> None:
    clock = Clock()
    cluster = Cluster(clock=clock)
    at_risk = dict[str, float]()
    counted_losses = dict[str, float]()
    for minute, happens in [(5.0, lambda c: c.node("ADDED", node("a", **fields))), *steps]:
        clock.now = BORN_S + minute * MINUTE
        happens(cluster)
        for sample in cluster.samples(clock.now):
            band = dict(sample.labels).get("age_h", "")
            if sample.metric == "spot_node_seconds_total":
                at_risk[band] = sample.value
            if sample.metric == "spot_node_losses_total":
                counted_losses[band] = sample.value
    assert at_risk.keys() == minutes.keys()
    for band, spent in minutes.items():
        assert at_risk[band] == spent * MINUTE
    assert counted_losses == losses
