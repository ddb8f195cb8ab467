"""Every pod under the Pod Security Standard `restricted`, and what else this platform asks of pods and Jobs."""

from holdfast.contract.kubernetes import LABEL_NAME
from holdfast.contract.roles import NAMESPACE_BATCH
from tests.workloads.manifests.rendered import Body, bodies, workloads
from workloads.manifests import gpu_metrics


def containers(spec: Body) -> list[Body]:
    return [c for key in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(key) or ()]


def test_every_namespace_but_that_of_the_devices_enforces_restricted(env: str) -> None:
    """What the level asks of pods is judged by a real API server, in tests/cluster/test_rendered.py."""
    spaces = {b["metadata"]["name"]: b["metadata"]["labels"] for b in bodies(env) if b["kind"] == "Namespace"}
    levels = {name: labels["pod-security.kubernetes.io/enforce"] for name, labels in spaces.items()}
    assert {name: level for name, level in levels.items() if level != "restricted"} == {
        gpu_metrics.NAMESPACE: "privileged"
    }
    pods = [body["metadata"] for body, _ in workloads(env)]
    assert len(pods) >= 9 and {meta["namespace"] for meta in pods} <= spaces.keys()
    assert [meta["name"] for meta in pods if meta["namespace"] == gpu_metrics.NAMESPACE] == [gpu_metrics.NAME]


def test_every_container_is_pinned_bounded_and_cannot_write_its_root(env: str) -> None:
    for body, template in workloads(env):
        spec = template["spec"]
        assert spec["serviceAccountName"] != "default" and spec["enableServiceLinks"] is False, body["metadata"]["name"]
        assert isinstance(spec["automountServiceAccountToken"], bool) and spec["priorityClassName"]
        for container in containers(spec):
            assert "@sha256:" in container["image"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
        for volume in spec["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]


def stays(body: Body) -> bool:
    """The migration says that it was done by being there: cleared away, each apply would run it anew."""
    return body["metadata"]["labels"][LABEL_NAME] == "migrate" and body["metadata"]["namespace"] == NAMESPACE_BATCH


def test_every_job_ends_and_is_cleared_away(env: str) -> None:
    seen = 0
    for body in bodies(env):
        spec = body.get("spec", {})
        if body["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if body["kind"] in ("Job", "CronJob", "JobSet"):
            seen += 1
            assert spec.get("ttlSecondsAfterFinished", 0) > 0 or stays(body)
            inner = [group["template"]["spec"] for group in spec.get("replicatedJobs", ())] or [spec]
            assert all(job["activeDeadlineSeconds"] > 0 for job in inner)
            assert all(job["template"]["spec"]["restartPolicy"] == "Never" for job in inner)
    assert seen >= 6
