"""The stand-in refuses what Google refuses, and fills in what Google fills in."""

from typing import Any

import pytest

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Json
from tests.plan.stand_in.world import Refusal, World

pytestmark = pytest.mark.plan
CLUSTER = "projects/acme/locations/us-central1/clusters"
POOLS = f"{CLUSTER}/one/nodePools"


@pytest.fixture
def world() -> World:
    project = World(project="acme", number="1", shuffled=False)
    project.enabled |= {"container", "pubsub", "storage", "compute"}
    project.resources[f"{CLUSTER}/one"] = {"name": "one"}
    return project


def ask(
    world: World,
    verb: str,
    api: str,
    path: str,
    body: Json | None = None,
    **query: str,
) -> Json:
    base = {
        "container": "v1/",
        "pubsub": "v1/",
        "storage": "storage/v1/",
        "compute": "compute/v1/",
    }[api]
    parameters = {name: [value] for name, value in query.items()}
    call = definitions.find(api, verb, base + path, parameters, body or {}, str)
    return world.answer(verb, api, path, call)


BUCKET = {"name": "acme-data", "location": "US-CENTRAL1"}


@pytest.mark.parametrize(
    ("message", "value", "problem"),
    [
        ("NodeTaint", {"key": "a", "effect": "NoSchedule"}, "effect: 'NoSchedule' is none of"),
        (
            "NodePool",
            {"config": {"machine_type": "e2-medium"}},
            "config.machine_type: no field of NodeConfig",
        ),
        (
            "SecurityPostureConfig",
            {"vulnerabilityMode": "VULNERABILITY_BASIC"},
            "'VULNERABILITY_BASIC' is deprecated",
        ),
        ("NodePool", {"initialNodeCount": "three"}, "initialNodeCount: 'three' is no integer"),
        ("NodePool", {"locations": "us-central1-a"}, "locations: 'us-central1-a' is no list"),
    ],
)
def test_a_body_that_googles_definitions_do_not_know_is_refused(
    message: str,
    value: Any,
    problem: str,
) -> None:
    assert any(problem in defect for defect in definitions.misfits("container", message, value, ""))


def test_a_mask_changes_its_fields_alone(world: World) -> None:
    path = "projects/acme/topics/work"
    ask(
        world,
        "PUT",
        "pubsub",
        path,
        {
            "labels": {"a": "1"},
            "messageRetentionDuration": "600s",
        },
    )
    change = {
        "topic": {
            "labels": {"a": "2"},
            "messageRetentionDuration": "900s",
        },
        "updateMask": "labels",
    }
    assert ask(world, "PATCH", "pubsub", path, change)["labels"] == {"a": "2"}
    assert world.resources[path]["messageRetentionDuration"] == "600s"
    ask(world, "PATCH", "pubsub", path, {"topic": {}, "updateMask": "message_retention_duration"})
    assert "messageRetentionDuration" not in world.resources[path], (
        "a field that the request lacks is cleared"
    )
    with pytest.raises(Refusal, match="updateMask: colour is no field"):
        ask(world, "PATCH", "pubsub", path, {"topic": {}, "updateMask": "colour"})


def test_a_patch_without_a_mask_merges(world: World) -> None:
    ask(world, "POST", "storage", "b", BUCKET | {"labels": {"a": "1", "b": "2"}}, project="acme")
    ask(world, "PATCH", "storage", "b/acme-data", {"labels": {"a": None, "c": "3"}})
    assert world.resources["b/acme-data"]["labels"] == {"b": "2", "c": "3"}


def test_an_old_etag_is_refused(world: World) -> None:
    ask(world, "POST", "storage", "b", BUCKET, project="acme")
    policy = ask(world, "GET", "storage", "b/acme-data/iam")
    policy = {
        **policy,
        "bindings": [
            {
                "role": "roles/storage.objectViewer",
                "members": ["user:a@acme.example"],
            }
        ],
    }
    assert ask(world, "PUT", "storage", "b/acme-data/iam", policy)["etag"] != policy["etag"]
    with pytest.raises(Refusal, match="concurrent policy changes"):
        ask(world, "PUT", "storage", "b/acme-data/iam", policy)


def test_a_pool_gets_its_taint_label_and_strategy(world: World) -> None:
    gpu = {"acceleratorType": "nvidia-l4", "acceleratorCount": "1"}
    pool = {
        "name": "l4",
        "initialNodeCount": 0,
        "config": {
            "spot": True,
            "accelerators": [gpu],
        },
    }
    ask(world, "POST", "container", POOLS, {"nodePool": pool})
    pool = world.resources[f"{POOLS}/l4"]
    assert [taint["key"] for taint in pool["config"]["taints"]] == ["nvidia.com/gpu"]
    assert pool["config"]["resourceLabels"] == {"goog-gke-node-pool-provisioning-model": "spot"}
    assert pool["upgradeSettings"]["strategy"] == "SURGE"
