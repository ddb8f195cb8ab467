"""Defects of a plan and of an environment, each one change of a sound set: no recorded inventory guards a fork's."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contract.errors import InputError
from infra.environments.schema import AuthorizedRange, Quota
from infra.rules import judge
from infra.rules.model import Facts, PlannedResource, facts_of_plans
from tests.infra.rules.breaking import (
    ABORT,
    ACCESS,
    ALERT,
    CHECKPOINTS,
    CLUSTER,
    DATA,
    DATABASE,
    LIMITS,
    SERVING,
    SPOT,
    SUBNET,
    SYSTEM,
    WORK,
    sound,
)
from tests.infra.rules.edits import Edit, add, drop, group, put, some, state, without
from tests.infra.rules.test_rules import in_plan_shape
from tests.infra.samples import hardened

ANYBODY = "serviceAccount:x@p.iam.gserviceaccount.com"
ALLOW = [{"protocol": "tcp", "ports": ["22"]}]
FAR = "projects/acme/locations/europe-west4/keyRings/r/cryptoKeys/k"


def deletes(**condition: Any) -> Edit:
    return put(CHECKPOINTS, "lifecycle_rule", [ABORT, {"action": {"type": "Delete"}, "condition": condition}])


def firewall(**values: Any) -> Edit:
    return add("google_compute_firewall.any", allow=ALLOW, **values)


def project(kind: str, **values: Any) -> Edit:
    return add(f"google_project_{kind}.any", **values)


def taint(address: str, effect: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        (pool,) = [each for each in facts.resources if each.address == address]
        taints = [each | {"effect": effect} for each in pool.values["node_config"]["taint"]]
        return put(address, "node_config.taint", taints)(facts)

    return edit


def limit(index: int, most: int) -> Edit:
    return put(CLUSTER, f"{LIMITS}.{index}.maximum", most)


CLOUDSQL = {"role": "roles/cloudsql.client", "member": ANYBODY}
PLAN: dict[str, Edit] = {
    "checkpoints deleted at age 0": deletes(age=0),
    "checkpoints deleted by date": deletes(created_before="2026-01-01"),
    "checkpoints deleted by name": deletes(matches_prefix=["runs/"]),
    "checkpoints deleted by newer versions": deletes(num_newer_versions=1),
    "checkpoints deleted without a condition": deletes(),
    "checkpoints soft-deleted for a week": put(CHECKPOINTS, "soft_delete_policy.retention_duration_seconds", 604_800),
    "firewall without sources": firewall(direction="INGRESS"),
    "firewall with empty sources": firewall(source_ranges=[]),
    "firewall for IPv6": firewall(source_ranges=["::/0"]),
    "firewall for two halves": firewall(source_ranges=["0.0.0.0/1", "128.0.0.0/1"]),
    "firewall for quarters": firewall(source_ranges=["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/2"]),
    "control plane for two halves": put(CLUSTER, f"{ACCESS}.cidr_blocks", [{"cidr_block": "0.0.0.0/1"}, {"cidr_block": "128.0.0.0/1"}]),
    "Spot taint only preferred": taint(SPOT, "PREFER_NO_SCHEDULE"),
    "system taint only preferred": taint(SYSTEM, "PREFER_NO_SCHEDULE"),
    "project binding": project("iam_binding", role="roles/storage.admin", members=[ANYBODY]),
    "project policy": project("iam_policy", policy_data="{}"),
    "project owner by member": project("iam_member", role="roles/owner", member=ANYBODY),
    "bucket binding to the public": add("google_storage_bucket_iam_binding.any", role="roles/storage.objectViewer", members=["allUsers"]),
    "bucket policy": add("google_storage_bucket_iam_policy.any", bucket="b", policy_data='{"bindings":[{"role":"roles/storage.admin","members":["allUsers"]}]}'),
    "account policy": add("google_service_account_iam_policy.any", service_account_id="a", policy_data="{}"),
    "account binding to two": add("google_service_account_iam_binding.any", role="roles/iam.workloadIdentityUser", service_account_id="a", members=[ANYBODY, "user:a@b"]),
    "project role under a condition that is true": project("iam_member", **CLOUDSQL, condition={"title": "x", "expression": "true"}),
    "project role under no condition": project("iam_member", **CLOUDSQL),
    "token creator of the whole project": project("iam_member", role="roles/iam.serviceAccountTokenCreator", member=ANYBODY),
    "metric writer for another account": project("iam_member", role="roles/monitoring.metricWriter", member=ANYBODY),
    "object access to all buckets": project("iam_member", role="roles/storage.objectViewer", member=ANYBODY),
    "CPUs without end": limit(0, 999_999),
    "memory without end": limit(1, 999_999_999),
    "GPUs without end": limit(2, 999_999),
    "bucket's key of another region": put(DATA, "encryption.default_kms_key_name", FAR),
    "cluster's key of another region": put(CLUSTER, "database_encryption.key_name", FAR),
    "topic without a key": put("google_pubsub_topic.work", "kms_key_name", None),
    "node disks without a key": put(SPOT, "node_config.boot_disk_kms_key", None),
    "database without a key": put(DATABASE, "encryption_key_name", None),
    "images without a key": put("google_artifact_registry_repository.images", "kms_key_name", None),
    "nodes of the default account": put(SPOT, "node_config.service_account", None),
    "node with a public address": put(SERVING, "network_config.enable_private_nodes", False),
    "subnet without private access": put(SUBNET, "private_ip_google_access", False),
    "logs without the API server": put(CLUSTER, "logging_config.enable_components", ["SYSTEM_COMPONENTS", "WORKLOADS"]),
    "backlog for a minute": put(WORK, "message_retention_duration", "60s"),
    "database open to the world": put(DATABASE, "settings.ip_configuration.authorized_networks", [{"value": "0.0.0.0/0"}]),
    "database with one week of nothing": put(DATABASE, "settings.backup_configuration.enabled", False),
    "alert without a channel's alert": put(ALERT, "enabled", False),
    "no way out": drop("google_compute_router_nat"),
    "API left out": without("google_project_service.storage"),
}  # fmt: skip


@pytest.mark.parametrize("defect", PLAN)
def test_a_defect_of_a_plan_is_found(defect: str) -> None:
    facts = PLAN[defect](sound())
    assert judge(facts), "as specs"
    assert judge(in_plan_shape(facts)), "as a plan"


def test_a_child_module_hides_nothing() -> None:
    """Also one of its own, and a resource with `for_each`."""
    bad = PLAN["firewall with empty sources"](sound()).resources[-1]
    inner = {"resources": [{"type": bad.kind, "address": 'module.a.module.b.any["x"]', "values": dict(bad.values)}]}
    plan = {"planned_values": {"root_module": {"child_modules": [{"child_modules": [inner]}]}}}
    found = judge(facts_of_plans(hardened(), [plan]))
    assert {"no-open-firewall"} == {each.rule for each in found if "module.b" in each.violation.where}


def alerts(**fields: Any) -> Edit:
    return lambda facts: state(alerts=replace(facts.environment.alerts, **fields))(facts)


def cluster(**fields: Any) -> Edit:
    return lambda facts: state(cluster=replace(facts.environment.cluster, **fields))(facts)


def database(**fields: Any) -> Edit:
    return lambda facts: state(database=replace(some(facts.environment.database), **fields))(facts)


def ranges(*cidrs: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        named = tuple(AuthorizedRange(name=f"r{n}", cidr=cidr) for n, cidr in enumerate(cidrs))
        return state(network=replace(facts.environment.network, authorized_ranges=named))(facts)

    return edit


ENVIRONMENT: dict[str, Edit] = {
    "no budget": state(budget=None),
    "quota of 1 for a gang of 2": state(quotas=(Quota(source="spot-a100", gpus=1),)),
    "public ranges": ranges("0.0.0.0/0"),
    "a public range of a continent": ranges("34.0.0.0/8"),
    "serving base 0": group("serving", min_nodes=0),
    "system at most 1": group("system", min_nodes=0, max_nodes=1),
    "drills in production": state(allow_drills=True),
    "no standby in production": database(highly_available=False),
    "no protection of the database": database(deletion_protection=False),
    "no protection of the cluster": cluster(deletion_protection=False),
    "endpoint open in production": cluster(dns_endpoint_public=True),
    "Spot pages before on demand": alerts(spot_pending_s=60),
    "checkpoints a week old": alerts(checkpoint_age_s=7 * 86_400),
    "a backlog of a month": alerts(batch_oldest_s=30 * 86_400),
    "a hundred thousand preemptions": alerts(preemptions_per_hour=100_000),
    "useful share of nothing": alerts(goodput_min=0.01),
    "nobody hears": alerts(emails=(), channels=()),
    "state in the checkpoint bucket": lambda facts: state(state_bucket=facts.environment.bucket("checkpoints"))(facts),
    "first with bugs": cluster(release_channel="RAPID"),
}  # fmt: skip


@pytest.mark.parametrize("defect", ENVIRONMENT)
def test_a_defect_of_an_environment_is_refused(defect: str) -> None:
    """By the schema where one value shows it, by a rule where several do."""
    try:
        environment = ENVIRONMENT[defect](sound()).environment
    except InputError:
        return
    from infra.rules import judge_environment

    assert judge_environment(environment)


def test_what_is_sound_is_not_refused() -> None:
    plan = {"planned_values": {"root_module": {}}}
    assert judge(sound()) == [] == judge(facts_of_plans(hardened(), [plan]))
    firewall_of_ours = firewall(source_ranges=["10.0.0.0/8"])
    assert judge(firewall_of_ours(sound())) == []
    tagged = PlannedResource(kind="google_compute_firewall", address="google_compute_firewall.a", values={"allow": ALLOW, "source_tags": ["x"]})  # fmt: skip
    assert judge(replace(sound(), resources=(*sound().resources, tagged))) == []
