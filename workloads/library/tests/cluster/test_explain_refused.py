"""Pods that the real API server refuses to make: `explain` says why, though there is no pod to look at."""

from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.contract.pools import GPU_RESOURCE, Pool
from tests.cluster.sim import jobsets
from tests.cluster.sim.explained import ask, one_pod
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def test_a_quota_of_the_namespace_is_explained_in_numbers(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 3)
    key = f"requests.{GPU_RESOURCE}"
    world.api.create(world.path("resourcequotas"), {"metadata": {"name": "team"}, "spec": {"hard": {key: "2"}}})
    path = f"{world.path('resourcequotas')}/team"
    until("the quota is counted", lambda: world.api.get(path).get("status", {}).get("hard"))
    world.create_job("wide", world.job_spec(spot, 3))
    world.wait_running(2)
    numbers = f"ResourceQuota team: asks for {key}=1; {key}=2 in use, {key}=2 allowed"
    explained = f"1 of 3 pods are refused: {numbers}"
    until("the third is explained", lambda: ask(world, "wide", "quota").cause.blocker == explained)
    found = ask(world, "wide", "quota")
    assert found.cause.evidence == f"kubectl describe resourcequota -n {world.name} team"
    world.api.delete(path)
    ask(world, "wide", "none")


@pytest.mark.parametrize(
    ("spec", "explained", "evidence"),
    [
        ({"serviceAccountName": "trainer"}, "service account trainer does not exist", "kubectl get serviceaccounts"),
        ({"priorityClassName": "urgent"}, "PriorityClass urgent does not exist", "kubectl get priorityclasses"),
        ({"runtimeClassName": "gvisor"}, "RuntimeClass gvisor does not exist", "kubectl get runtimeclasses"),
    ],
    ids=["service account", "priority class", "runtime class"],
)
def test_what_the_pod_names_and_the_cluster_lacks_is_named(
    world: World, spot: Pool, spec: dict[str, Any], explained: str, evidence: str
) -> None:
    world.create_job("lacking", one_pod(world, spot, **spec))
    found = ask(world, "lacking", "refused").cause
    assert found.blocker == f"1 of 1 pods are refused: {explained}"
    assert found.evidence.startswith(evidence)


def test_pod_security_is_named_with_its_level(world: World, spot: Pool) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    world.api.merge(f"/api/v1/namespaces/{world.name}", {"metadata": {"labels": labels}})
    world.create_job("root", one_pod(world, spot))
    blocker = ask(world, "root", "refused").cause.blocker
    assert "Pod Security restricted:latest: allowPrivilegeEscalation != false" in blocker


def test_a_webhook_that_does_not_answer_is_named(world: World, spot: Pool) -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": world.name}}
    hook = {
        "name": "dead.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/pods"},
        "namespaceSelector": selector,
        "rules": [PODS],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 2,
    }
    created(world, "validatingwebhookconfigurations", {"webhooks": [hook]})
    try:
        until("the API server asks it", lambda: world.try_pod("probe", world.pod_template(spot)))
        world.create_job("hooked", one_pod(world, spot))
        blocker = ask(world, "hooked", "refused").cause.blocker
        assert "webhook dead.example.com does not answer: " in blocker
    finally:
        world.api.delete(f"{ADMISSION}/validatingwebhookconfigurations/{world.name}")


def test_a_policy_that_denies_is_quoted(world: World, spot: Pool) -> None:
    rule = {"expression": "object.spec.containers.all(c, c.image.contains('@'))", "message": "images by digest only"}
    match = {"resourceRules": [PODS]}
    created(world, "validatingadmissionpolicies", {"spec": {"matchConstraints": match, "validations": [rule]}})
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.name}}}
    spec = {"policyName": world.name, "validationActions": ["Deny"], "matchResources": selector}
    created(world, "validatingadmissionpolicybindings", {"spec": spec})
    try:
        until("the policy is in force", lambda: world.try_pod("probe", world.pod_template(spot)))
        world.create_job("floating", one_pod(world, spot))
        assert f"policy {world.name}: images by digest only" in ask(world, "floating", "refused").cause.blocker
    finally:
        for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            world.api.delete(f"{ADMISSION}/{plural}/{world.name}")


def test_a_jobset_is_explained_by_the_events_of_its_jobs(world: World, spot: Pool, jobset: None) -> None:
    spec = one_pod(world, spot, serviceAccountName="trainer")
    world.api.create(world.path("jobsets", jobsets.GROUP), jobsets.jobset("gang", spec))
    assert "service account trainer does not exist" in ask(world, "gang", "refused").cause.blocker


def created(world: World, plural: str, body: Object) -> None:
    """Cluster-wide, under the world's name."""
    world.api.create(f"{ADMISSION}/{plural}", {"metadata": {"name": world.name}} | body)
