"""The stand-in refuses what Google refuses, and fills in what Google fills in."""

from typing import Any

import pytest

from infra.specs.delivery import ONE_ROLE
from tests.plan.stand_in import defaults, definitions
from tests.plan.stand_in.callers import find_permission
from tests.plan.stand_in.definitions import Json
from tests.plan.stand_in.objects import list_allowed
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
    *,
    token: str = "",
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
    return world.answer(verb, api, path, call, token)


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
        (
            "NodeKubeletConfig",
            {"shutdownGracePeriodCriticalPodsSeconds": 121},
            "121 is not between 0 and 120",
        ),
        (
            "NodeKubeletConfig",
            {"imageGcLowThresholdPercent": 90},
            "90 is not between 10 and 85",
        ),
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
    with pytest.raises(Refusal, match="updateMask: color is no field"):
        ask(world, "PATCH", "pubsub", path, {"topic": {}, "updateMask": "color"})


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


def test_an_old_fingerprint_is_refused(world: World) -> None:
    path = "projects/acme/regions/us-central1/subnetworks"
    ask(world, "POST", "compute", path, {"name": "nodes", "ipCidrRange": "10.10.0.0/22"})
    before = ask(world, "GET", "compute", f"{path}/nodes")["fingerprint"]
    change = {"fingerprint": before, "privateIpGoogleAccess": True}
    ask(world, "PATCH", "compute", f"{path}/nodes", change)
    assert ask(world, "GET", "compute", f"{path}/nodes")["fingerprint"] != before
    with pytest.raises(Refusal, match="fingerprint does not match") as refused:
        ask(world, "PATCH", "compute", f"{path}/nodes", change)
    assert refused.value.code == 412


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


@pytest.mark.parametrize("api", defaults.DEFAULTS)
def test_defaults_fit_their_definitions(api: str) -> None:
    for name, values in defaults.DEFAULTS[api].items():
        message, _, field = name.partition(".")
        problems = definitions.misfits(api, message, {field: values} if field else values, name)
        assert not [*problems]


def test_a_resource_is_answered_with_its_defaults(world: World) -> None:
    path = "projects/acme/subscriptions/work"
    ask(world, "PUT", "pubsub", path, {"retryPolicy": {"minimumBackoff": "20s"}})
    subscription = ask(world, "GET", "pubsub", path)
    assert subscription["retryPolicy"] == {"minimumBackoff": "20s", "maximumBackoff": "600s"}
    assert subscription["expirationPolicy"] == {"ttl": "2678400s"}
    never = {"expirationPolicy": {}}
    mask = "expirationPolicy"
    change = {"subscription": never, "updateMask": mask}
    assert ask(world, "PATCH", "pubsub", path, change)["expirationPolicy"] == {}
    change = {"subscription": {}, "updateMask": mask}
    assert ask(world, "PATCH", "pubsub", path, change)["expirationPolicy"]["ttl"] == "2678400s"
    bucket = ask(world, "POST", "storage", "b", BUCKET | UNIFORM, project="acme")
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
    assert bucket["iamConfiguration"]["uniformBucketLevelAccess"] == {"enabled": True}
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "inherited"


def test_nat_in_a_changed_router_gets_its_timeouts(world: World) -> None:
    path = "projects/acme/regions/us-central1/routers"
    ask(world, "POST", "compute", path, {"name": "nat"})
    nat = {"name": "nat", "natIpAllocateOption": "AUTO_ONLY", "udpIdleTimeoutSec": 60}
    ask(world, "PATCH", "compute", f"{path}/nat", {"nats": [nat]})
    (answered,) = ask(world, "GET", "compute", f"{path}/nat")["nats"]
    assert answered["udpIdleTimeoutSec"] == 60
    assert answered["tcpEstablishedIdleTimeoutSec"] == 1200


def test_a_caller_needs_a_role_that_holds_the_permission(world: World) -> None:
    member = "serviceAccount:planner@acme.iam.gserviceaccount.com"
    world.callers = {"planner": member}
    path = "projects/acme/topics/work"
    with pytest.raises(Refusal, match=r"'pubsub.topics.create' denied") as refused:
        ask(world, "PUT", "pubsub", path, {}, token="planner")
    assert refused.value.body["error"]["status"] == "PERMISSION_DENIED"
    ask(world, "PUT", "pubsub", path, {}, token="an owner")
    viewer = {
        "role": "roles/pubsub.viewer",
        "members": [member],
    }
    world.policies["projects/acme"] = {"bindings": [viewer]}
    assert ask(world, "GET", "pubsub", path, token="planner")["name"] == "work"
    with pytest.raises(Refusal, match=r"'pubsub.topics.update' denied"):
        ask(
            world,
            "PATCH",
            "pubsub",
            path,
            {"topic": {}, "updateMask": "labels"},
            token="planner",
        )


FOLDER = 'resource.name.startsWith("projects/_/buckets/acme-data/objects/teams/vision/")'
UNIFORM = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}


def bind(world: World, expression: str, version: int = 3) -> None:
    """Let the caller `vision` use objects of the bucket under a condition."""
    member = "serviceAccount:vision@acme.iam.gserviceaccount.com"
    world.callers = {"vision": member}
    world.resources["projects/acme/serviceAccounts/vision@acme.iam.gserviceaccount.com"] = {}
    binding = {
        "role": "roles/storage.objectUser",
        "members": [member],
        "condition": {"title": "own folder", "expression": expression},
    }
    ask(world, "PUT", "storage", "b/acme-data/iam", {"version": version, "bindings": [binding]})


def test_a_condition_admits_what_its_prefix_covers(world: World) -> None:
    ask(world, "POST", "storage", "b", BUCKET | UNIFORM, project="acme")
    bind(world, FOLDER)
    allowed = {}
    for folder in ("teams/vision", "teams/vision-2", "teams/speech"):
        allowed[folder] = list_allowed(world, "vision", "acme-data", f"{folder}/run/COMMIT.json")
    assert allowed == {
        "teams/vision": {"create", "get", "update", "delete"},
        "teams/vision-2": set(),
        "teams/speech": set(),
    }
    with pytest.raises(Refusal, match=r"'storage\.objects\.list' denied"):
        ask(world, "GET", "storage", "b/acme-data/o", token="vision", prefix="teams/vision/")


@pytest.mark.parametrize(
    ("expression", "version", "uniform", "reason"),
    [
        (FOLDER, 1, True, "policy version 3"),
        (FOLDER, 3, False, "uniform bucket-level access"),
        ("resource.name.beginsWith('teams')", 3, True, "condition is invalid"),
        (" || ".join([FOLDER] * 14), 3, True, "more than 12 operators"),
    ],
)
def test_conditions_that_google_refuses(
    world: World, expression: str, version: int, uniform: bool, reason: str
) -> None:
    ask(world, "POST", "storage", "b", BUCKET | (UNIFORM if uniform else {}), project="acme")
    with pytest.raises(Refusal, match=reason):
        bind(world, expression, version)


def test_a_condition_bounds_the_roles_that_a_caller_grants(world: World) -> None:
    grantor = "serviceAccount:deployer@acme.iam.gserviceaccount.com"
    world.callers = {"deployer": grantor}
    world.enabled.add("cloudresourcemanager")
    binding = {
        "role": "roles/resourcemanager.projectIamAdmin",
        "members": [grantor],
        "condition": ONE_ROLE,
    }
    world.policies["projects/acme"] = {"bindings": [binding]}

    def grant(role: str) -> None:
        added = {"role": role, "members": ["user:a@acme.example"]}
        policy = {"version": 3, "bindings": [binding, added]}
        call = definitions.find(
            "cloudresourcemanager",
            "POST",
            "v1/projects/acme:setIamPolicy",
            {},
            {"policy": policy},
            str,
        )
        world.answer("POST", "cloudresourcemanager", "projects/acme", call, "deployer")

    with pytest.raises(Refusal, match=r"'resourcemanager\.projects\.setIamPolicy' denied"):
        grant("roles/owner")
    grant("roles/container.hostServiceAgentUser")


@pytest.mark.parametrize(
    ("method", "permission"),
    [
        ("storage.buckets.insert", "storage.buckets.create"),
        ("sql.instances.get", "cloudsql.instances.get"),
        ("container.projects.locations.clusters.nodePools.update", "container.clusters.update"),
        ("logging.locations.buckets.views.getIamPolicy", "logging.views.getIamPolicy"),
        (
            "iam.projects.locations.workloadIdentityPools.providers.patch",
            "iam.googleapis.com/workloadIdentityPoolProviders.update",
        ),
    ],
)
def test_methods_ask_for_their_permission(method: str, permission: str) -> None:
    assert find_permission(method) == permission


def test_names_and_durations_are_judged_by_their_definitions() -> None:
    assert any(
        "does not match" in problem
        for problem in definitions.misfits(
            "compute",
            "Network",
            {"name": "Company"},
            "",
        )
    )
    policy = {"maximumBackoff": "601s", "minimumBackoff": "10s"}
    (problem,) = definitions.misfits("pubsub", "RetryPolicy", policy, "")
    assert problem == "maximumBackoff: '601s' is not between 0 and 600"


def test_an_immutable_field_stays(world: World) -> None:
    world.enabled.add("iam")
    path = "projects/acme/locations/global/workloadIdentityPools/ci"
    pool = {"displayName": "ci", "mode": "FEDERATION_ONLY"}
    world.resources[path] = dict(pool)

    def change(**fields: str) -> None:
        mask = {"updateMask": [",".join(fields)]}
        call = definitions.find(
            "iam",
            "PATCH",
            f"v1/{path}",
            mask,
            fields,
            str,
        )
        world.answer("PATCH", "iam", path, call)

    change(displayName="workflows", mode="FEDERATION_ONLY")
    assert world.resources[path]["displayName"] == "workflows"
    with pytest.raises(Refusal, match="mode: cannot be changed from 'FEDERATION_ONLY'"):
        change(mode="TRUST_DOMAIN")
