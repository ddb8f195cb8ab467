"""Intervals hold what they claim, and a refused request for on-demand makes a job as late as waiting would."""

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast.place import intervals
from holdfast.place.cli import app

DATED = (
    "place",
    "--gpu",
    "a100",
    "--gpus",
    "8",
    "--hours",
    "40",
    "--deadline",
    "72h",
    "--region",
    "europe-west4",
    "--json",
)


def asked(*more: str) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(app, [*DATED, *more], catch_exceptions=False)
    body = json.loads(result.stdout)
    return {option["how"]: option for option in body["options"] if not option["refused"]} | {"": body}


def test_wilson_gives_the_textbook_interval() -> None:
    hits = np.zeros(100)
    hits[:10] = 1.0
    assert intervals.of_share(hits) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert intervals.of_share(np.zeros(2_000)) == pytest.approx((0.0, 0.0019), abs=1e-4)


def test_the_true_mean_is_held_as_often_as_claimed() -> None:
    rng = np.random.default_rng(5)
    samples = rng.exponential(3.0, (1_000, 200))
    held = [low <= 3.0 <= high for low, high in map(intervals.of_mean, samples)]
    assert 0.92 <= np.mean(held) <= 0.98


def test_starts_on_few_recordings_are_not_taken_for_independent() -> None:
    rng = np.random.default_rng(6)
    recording = np.repeat(np.arange(10), 200)
    values = rng.normal(10.0, 2.0, 10)[recording] + rng.normal(0.0, 0.1, 2_000)
    alone, together = intervals.of_mean(values), intervals.of_mean(values, recording)
    assert together[1] - together[0] > 5 * (alone[1] - alone[0])
    assert intervals.of_mean(values, recording) == together, "the same question has the same answer"


def test_a_refused_request_for_on_demand_waits_to_its_end() -> None:
    never, half = asked(), asked("--on-demand-refused", "0.5")
    waits, in_time = "wait for Spot", "Spot, on-demand in time"
    assert never[""]["late_assumes"] == "on-demand is granted when asked for"
    assert never[in_time]["late"] == 0.0 < never[in_time]["late_interval"][1] < 0.003
    assert half["on-demand only"]["late"] == 0.5
    # Every run that waiting would make late has asked for on-demand before.
    assert half[in_time]["late"] == pytest.approx(0.5 * never[waits]["late"], abs=0.02)
    low, high = half[in_time]["late_interval"]
    assert low < half[in_time]["late"] < high < 0.5
    assert half[in_time]["usd"]["mean"] == never[in_time]["usd"]["mean"]
    assert half[""]["on_demand_refused"] == {"probability": 0.5, "source": "--on-demand-refused"}
    low, high = never[waits]["usd"]["mean_interval"]
    assert low < never[waits]["usd"]["mean"] < high
