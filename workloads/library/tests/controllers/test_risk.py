"""The exporter's two churn counters: time at risk and losses, under the same labels."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.controllers.cluster import Cluster
from workloads.library.tests.controllers.test_cluster import ENDED, node, pod
from workloads.library.tests.exporter.test_cloud import Clock

BORN_S = 1_795_219_200.0
MINUTE = 60.0
Step = tuple[float, Callable[[Cluster], object]]
"""Minute, and what happens."""
looked: Callable[[Cluster], object] = lambda cluster: None  # noqa: E731


def taken(cluster: Cluster) -> object:
    return cluster.pod("MODIFIED", pod("p", on="a", phase="Failed", conditions=ENDED))


gone: Callable[[Cluster], object] = lambda c: c.node("DELETED", node("a"))  # noqa: E731


@pytest.mark.parametrize(
    ("fields", "steps", "minutes", "losses"),
    [
        # Not from its birth: before it was looked at a loss would not have been seen.
        ({}, [(10, looked), (14, looked), (20, looked)], {"0": 9, "0.25": 6}, {"0": 0, "0.25": 0}),
        ({}, [(10, taken), (12, gone), (14, looked)], {"0": 5}, {"0": 1}),
        ({}, [(14, gone), (16, taken)], {"0": 9}, {"0": 1}),
        ({}, [(10, looked), (7, looked), (11, looked)], {"0": 6}, {"0": 0}),
        ({"labels": {}}, [(10, looked)], {}, {}),
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
    lost = dict[str, float]()
    for minute, happens in [(5.0, lambda c: c.node("ADDED", node("a", **fields))), *steps]:
        clock.now = BORN_S + minute * MINUTE
        happens(cluster)
        for each in cluster.samples(clock.now):
            held = {"spot_node_seconds_total": at_risk, "spot_node_losses_total": lost}.get(
                each.metric, {}
            )
            held[dict(each.labels).get("age_h", "")] = each.value
    assert at_risk == {band: spent * MINUTE for band, spent in minutes.items()}
    assert lost == losses
