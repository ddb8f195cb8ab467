"""Tests that churn counts nodes at risk, and states its uncertainty."""

import math
import random

import pytest

from holdfast.cost.churn import estimate
from holdfast.cost.churn.estimate import Exposure, Group
from holdfast.ledger.events import parse
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line, line

HOUR = 3600
NOW_US = round((EPOCH + 100 * HOUR) * 1e6)
L4 = Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")


def node(event: str, hours: float, name: str, **fields: object) -> Line:
    values = {
        "pool": L4.pool,
        "machine_type": L4.machine_type,
        "zone": L4.zone,
        "capacity": "spot",
    } | fields
    return line(EPOCH + hours * HOUR, event, "nodes", "node", "watcher", node=name, **values)


def lifetimes(*rows: Line) -> list[estimate.NodeLifetime]:
    return estimate.lifetimes(parse(sample.encoded(rows)).events, NOW_US)


def test_censored_nodes_add_exposure_and_no_event() -> None:
    lives = lifetimes(
        node("node_up", 0, "taken"),
        node("node_up", 0, "scaled-down"),
        node(
            "node_down",
            10,
            "taken",
            reason="preempted",
            seconds=10 * HOUR,
        ),
        node(
            "node_down",
            20,
            "scaled-down",
            reason="AutoResize",
            seconds=20 * HOUR,
        ),
        node("node_up", 90, "alive"),
    )
    total = estimate.by_group(lives)[L4]
    assert total.events == 1
    assert total.hours == 40
    assert total.per_hour == 1 / 40
    # A node whose birth was not seen is counted by its age.
    [life] = lifetimes(
        node(
            "node_down",
            50,
            "old",
            reason="PreemptionEvent",
            seconds=6 * HOUR,
        )
    )
    assert estimate.by_group([life])[L4] == Exposure(events=1, hours=6)


@pytest.mark.parametrize(
    ("events", "hours", "low", "high"),
    [
        (1, 1, 0.0513, 4.744),
        (4, 1, 1.366, 9.154),
        (10, 1, 5.425, 16.96),
        (0, 100, 0.0, 2.3026 / 100),
        (0, 0, 0.0, math.inf),
    ],
)
def test_the_interval_equals_poisson_tables(
    events: int, hours: int, low: float, high: float
) -> None:
    exposure = Exposure(events=events, hours=hours)
    assert exposure.interval(0.9) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    assert (exposure.per_hour is None) is (hours == 0), "unknown, not zero"


def test_age_bands_add_up_to_all_exposure_and_events() -> None:
    rng = random.Random(3)
    rows = []
    for n in range(200):
        age = rng.expovariate(1 / 5)
        reason = "preempted" if n % 3 else "x"
        rows += [
            node("node_up", 0, f"n{n}"),
            node("node_down", age, f"n{n}", reason=reason, seconds=0),
        ]
    lives = lifetimes(*sorted(rows, key=lambda row: row["t"]))
    bands = estimate.by_age(lives)
    total = estimate.by_group(lives)[L4]
    hours = 0.0
    events = 0.0
    for _, _, band in bands:
        hours += band.hours
        events += band.events
    assert hours == pytest.approx(total.hours)
    assert events == total.events
