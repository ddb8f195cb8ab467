"""Commands about an environment, before anything is deployed."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cost.prices import load
from holdfast.support.checks import Status, examine
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra import effects, environments
from infra.describe import platform
from infra.environments.schema import NodeGroup
from infra.ops import prove
from infra.ops.cost import node_price
from infra.ops.doctor import OF_THE_PROJECT
from infra.ops.new import create
from tests.infra.samples import EXAMPLE, two_teams
from tests.support import program


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        ("vision@example.org", "", ["takes: team vision: vision@example.org may not submit"]),
        ("", "vision@example.org", ["gives: team vision: vision@example.org may submit"]),
        (
            "vision@example.org",
            "seeing@example.org",
            [
                "takes: team vision: vision@example.org may not submit",
                "gives: team vision: seeing@example.org may submit",
            ],
        ),
    ],
)
def test_a_teams_members_are_taken_and_given(before: str, after: str, sentences: list[str]) -> None:
    documents = []
    for members in (before, after):
        vision, *other_teams = two_teams().teams
        changed_team = replace(vision, members=members)
        environment = replace(two_teams(), teams=(changed_team, *other_teams))
        documents.append(platform(environment, {}))
    assert [str(effect) for effect in effects.compare(*documents)] == sentences


@pytest.mark.parametrize("name", ["build", "load", "names"])
def test_an_environment_is_not_named_like_a_function(name: str, tmp_path: Path) -> None:
    """Its import would put the module in the place of the function."""
    (tmp_path / "example.py").write_text(
        Path(environments.__file__).with_name("example.py").read_text()
    )
    with pytest.raises(InputError, match="environment name"):
        create(name, tmp_path)


def test_machines_with_t4_count_against_the_shared_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute Engine has no quota N1_CPUS: N1 and E2 share CPUS."""
    group = NodeGroup(
        name="spot-t4",
        role=Role.TRAINING,
        capacity=Capacity.SPOT,
        machine_types=("n1-standard-32",),
        accelerator="nvidia-tesla-t4",
        gpus_per_node=4,
        max_nodes=4,
    )
    environment = replace(EXAMPLE, groups=(*EXAMPLE.groups, group))
    region = {"quotas": [{"metric": "CPUS", "limit": 200}]}
    program(tmp_path / "gcloud", f"#!/bin/sh\necho '{json.dumps(region)}'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    checks = [probe for probe in OF_THE_PROJECT if probe[0] == "machine quota"]
    (check,) = examine(environment, checks)
    assert check.verdict is Status.BROKEN
    assert f"CPUS 200 of {12 + 8 * 8 + 4 * 32}" in check.found


def test_a_proofs_price_counts_spot_machines_that_always_run() -> None:
    groups = []
    for group in EXAMPLE.groups:
        groups.append(replace(group, min_nodes=2) if group.name == "spot-a100" else group)
    environment = replace(EXAMPLE, groups=tuple(groups))
    table = load()
    spot = prove.smallest_spot(environment, table)
    usd_by_part = dict(prove.prices(environment, spot, table))
    usd = 2 * node_price(environment, environment.pool("spot-a100"), table)
    assert usd_by_part["2 x a2-highgpu-1g (spot-a100)"] == pytest.approx(usd)
