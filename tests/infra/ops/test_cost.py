"""The floor and the full load of an environment, by the price table."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from holdfast.cost.prices import load
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES
from infra.__main__ import app
from infra.environments.schema import NodeGroup, Role
from infra.ops import cost
from tests.infra.samples import EXAMPLE

TABLE = load()


def find_part(parts: tuple[cost.Part, ...], word: str) -> float:
    (part,) = [part for part in parts if word in part.name]
    assert part.usd_per_hour is not None
    return part.usd_per_hour


def test_the_floor_is_what_always_runs() -> None:
    estimate = cost.estimate(EXAMPLE)
    serving = TABLE.quote(MACHINE_TYPES["g2-standard-8"], "us-central1", Capacity.ON_DEMAND)
    assert serving
    disk = 100 * cost.USD["disk"]
    assert find_part(estimate.floor, "(serving)") == pytest.approx(serving.usd + disk)
    assert find_part(estimate.floor, "(system)") == pytest.approx(4 * cost.USD["e2"] + disk)
    assert find_part(estimate.floor, "cluster fee") == cost.USD["cluster"]
    assert find_part(estimate.floor, "database") > 0
    for part in estimate.floor:
        assert "spot" not in part.name
    total = sum(part.usd_per_hour or 0 for part in estimate.floor)
    assert estimate.floor_usd_per_month == pytest.approx(730 * total)


def test_full_load_has_pools_and_caps() -> None:
    estimate = cost.estimate(EXAMPLE)
    names = " ".join(part.name for part in estimate.full)
    for pool in EXAMPLE.pools():
        assert f"{pool.max_nodes} x {pool.machine_type} {pool.capacity.value}" in names
    # 40 L4 in the cap, 28 of them in pools.
    flex = TABLE.quote(MACHINE_TYPES["g2-standard-8"], "us-central1", Capacity.FLEX_START)
    assert flex
    node = flex.usd + 100 * cost.USD["disk"]
    assert find_part(estimate.full, "12 x g2-standard-8 flex-start") == pytest.approx(12 * node)
    assert estimate.full_usd_per_hour > estimate.floor_usd_per_month / 730


def test_a_machine_without_a_price_is_named() -> None:
    group = NodeGroup(
        name="b200",
        role=Role.TRAINING,
        capacity=Capacity.SPOT,
        machine_types=("a4-highgpu-8g",),
        accelerator="nvidia-b200",
        gpus_per_node=8,
        max_nodes=1,
        disk_type="hyperdisk-balanced",
    )
    environment = replace(
        EXAMPLE,
        region="europe-west1",
        zones=("europe-west1-b",),
        groups=(*EXAMPLE.groups, group),
    )
    assert "a4-highgpu-8g" in " ".join(cost.estimate(environment).list_omissions())
    assert "not in the sums" in cost.estimate(environment).lines()[-1]


def test_check_and_outputs_print_it() -> None:
    for command in (["check", "example"], ["outputs", "example"]):
        printed = CliRunner().invoke(app, command).stdout
        assert "USD a month for what always runs" in printed
        assert "USD an hour with every pool" in printed
    body = json.loads(CliRunner().invoke(app, ["check", "example", "--json"]).stdout)
    assert body["cost"]["floor_usd_per_month"] > 500
    assert body["cost"]["full_load_usd_per_hour"] > 20
