"""`explain`, `list` and `submit` against the real control plane: each cause is made, then asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast.clients.api import Object
from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_BUG
from holdfast.contract.kubernetes import KUEUE_INADMISSIBLE
from holdfast.contract.pools import GPU_RESOURCE, LABEL_POOL_CLASS, SPOT_TAINT, Pool
from holdfast.jobs import explain
from holdfast.jobs.cause import Count
from holdfast.jobs.cli import submit
from holdfast.jobs.explain import Row, rows
from holdfast.place import prices
from tests import platforms
from tests.cluster.sim import flex, jobsets, queues
from tests.cluster.sim.explained import ask, one_pod
from tests.cluster.sim.stages import WAITING
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World


def test_quota_is_named_with_what_is_asked_lent_and_used(world: World, spot: Pool, kueue: None) -> None:
    world.add_nodes(spot, 1)
    queues.lend(world, spot, 1)
    queues.submit(world, spot, "first")
    ask(world, "first", "none")
    for name in ("second", "third"):
        queues.submit(world, spot, name)
        ask(world, name, "quota")
    explained = "quota: asks for 1 nvidia.com/gpu, queue team lends 1, 1 are in use"
    until("Kueue has counted", lambda: ask(world, "third", "quota").cause.blocker == explained, timeout_s=30)
    found = ask(world, "third", "quota")
    assert found.cause.position.startswith("2 of 2 waiting in queue team, for ")
    assert found.cause.evidence.startswith(f"kubectl describe workload -n {world.name} job-third")


def test_a_job_that_no_quota_will_ever_fit_does_not_wait_for_its_turn(world: World, spot: Pool, kueue: None) -> None:
    queues.lend(world, spot, 1)
    queues.submit(world, spot, "wide", pods=2)
    wanted = KUEUE_INADMISSIBLE["ExceedsMaxQuota"]
    until("it is explained", lambda: ask(world, "wide", "quota").cause.action == wanted, timeout_s=30)


def test_a_flex_queue_is_explained_by_its_request(world: World, spot: Pool, kueue: None) -> None:
    queues.lend(world, spot, 2)
    flex.check(world)
    queues.submit(world, spot, "queued")
    explained = f"quota is reserved, admission check {world.name} is Pending"
    until("Kueue has listed the check", lambda: ask(world, "queued", "gate").cause.blocker == explained, timeout_s=30)

    (workload,) = world.api.items(world.path("workloads", queues.GROUP))
    accepted = {"type": "Accepted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    waits = {"type": "Provisioned", "status": "False", "message": "Provisioning Request wasn't found."}
    flex.request(world, "queued-1", workload, accepted, waits)
    found = ask(world, "queued", "flex-queue").cause
    since = "request queued-1 accepted 2026-01-01T00:00:00Z, no nodes yet: Provisioning Request wasn't found"
    assert found.blocker == f"flex queue: 1 nvidia.com/gpu for 1 pods; {since}"
    assert found.evidence == f"kubectl describe provisioningrequest -n {world.name} queued-1"


def test_a_queue_that_admits_nothing_gives_its_reason(world: World, spot: Pool, kueue: None) -> None:
    queues.lend(world, spot, 2)
    world.api.merge(f"{queues.GROUP}/clusterqueues/{world.name}", {"spec": {"stopPolicy": "Hold"}})
    queues.submit(world, spot, "held")
    until("it is explained", lambda: "queue team admits nothing: " in ask(world, "held", "quota").cause.blocker)


def test_an_untolerated_taint_is_named(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 2)
    world.create_job("naive", one_pod(world, spot, tolerations=spot.tolerations()[1:]))
    found = ask(world, "naive", "taint")
    assert f"1 of 1 pods have no node: 2 nodes bear {SPOT_TAINT}" == found.cause.blocker


def test_a_selector_that_matches_nothing_is_shown(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    world.create_job("typo", one_pod(world, spot, nodeSelector={LABEL_POOL_CLASS: "spot-l5"}))
    assert "no node matches holdfast.dev/pool-class=spot-l5" in ask(world, "typo", "selector").cause.blocker


def test_a_full_pool_is_explained_with_its_free_gpus(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 2)
    world.create_job("wide", world.job_spec(spot, 3))
    found = ask(world, "wide", "capacity")
    assert found.cause.blocker.endswith("each wants 1 nvidia.com/gpu, the fitting nodes have 0 of 2 free")
    assert found.state.startswith("Waiting: 2 of 3 pods run")


def test_a_flex_start_wait_promises_no_time(world: World, spot: Pool) -> None:
    flex = {"cloud.google.com/gke-flex-start": "true"}
    world.create_job("queued", one_pod(world, spot, nodeSelector=flex))
    found = ask(world, "queued", "flex-queue")
    assert "no ETA" in found.similar


def test_an_image_that_cannot_be_pulled_is_named(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    world.create_job("imageless", one_pod(world, spot, {WAITING: "ImagePullBackOff"}))
    assert "ImagePullBackOff: none on " in ask(world, "imageless", "image").cause.blocker


def test_a_crash_is_counted_apart_from_evictions(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 2)
    world.create_job("crashing", world.job_spec(spot, 2, run_s=2, code=EXIT_BUG))
    found = ask(world, "crashing", "failed")
    assert f"exit code {EXIT_BUG}" in found.cause.blocker
    assert found.cause.evidence.startswith(f"kubectl logs -n {world.name} crashing-")

    world.create_job("evicted", world.job_spec(spot, 2))
    world.wait_running(2)
    world.preempt(list(world.nodes))
    back_off = ask(world, "evicted", "back-off")
    assert "2 were evicted: TerminationByKubelet" in back_off.cause.blocker
    assert "evicted 2, crashed 0" in back_off.state
    listed = {row.name: row for row in listing(world)}
    assert (listed["crashing"].evicted, listed["evicted"].evicted) == (Count(0), Count(2))
    assert (listed["crashing"].crashed.number > 0, listed["evicted"].crashed) == (True, Count(0))

    world.add_nodes(spot, 2)
    world.wait_running(2)
    for pod in world.pods("Failed"):  # as garbage collection does once their nodes are gone
        world.api.delete(f"{world.path('pods')}/{pod['metadata']['name']}")
    until("their pods are gone", lambda: not world.pods("Failed"))
    assert {row.name: row.evicted for row in listing(world)}["evicted"] == Count(2), "and still counted"


def test_a_list_prices_what_ran_and_knows_a_complete_job(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    world.create_job("short", world.job_spec(spot, 1, run_s=2))
    assert world.wait_condition("short") == "Complete"
    (row,) = listing(world)
    assert (row.status, row.why, row.capacity) == ("Complete", "done", Capacity.SPOT)
    assert row.ran_s >= 1
    assert row.usd is not None
    assert 0 < row.usd < 0.01


def listing(world: World) -> list[Row]:
    return rows(world.api, platforms.load("example"), prices.load(), namespace=world.name)


def test_submit_starts_a_job_only_below_the_cap(world: World, spot: Pool, cluster: Any, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(submit)
    meta = {"name": "bought", "namespace": world.name}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": world.job_spec(spot, 4)}
    body["spec"]["template"]["spec"]["nodeSelector"] = spot.selector()
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(body))
    jobs = world.path("jobs", "/apis/batch/v1")
    platforms.publish(world.api, platforms.load("example"))
    common = [str(manifest), "--kubeconfig", str(cluster.kubeconfig), "--yes"]

    refused = CliRunner().invoke(app, [*common, "--max-usd-per-hour", "0.50"])
    assert refused.exit_code == 4
    assert "over the cap of $0.50" in refused.stderr
    assert world.api.find(f"{jobs}/bought") is None, "nothing was sent"

    started = CliRunner().invoke(app, [*common, "--max-usd-per-hour", "50"])
    assert started.exit_code == 0, started.output
    assert world.api.find(f"{jobs}/bought") is not None


def test_an_unknown_job_gets_the_nearest_name(world: World, spot: Pool) -> None:
    world.create_job("trainer", world.job_spec(spot, 1))
    with pytest.raises(InputError, match="did you mean trainer"):
        explain.explain(world.api, "trianer", world.name)


# Pods that the real API server refuses to make: `explain` says why, though there is no pod to look at.

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
