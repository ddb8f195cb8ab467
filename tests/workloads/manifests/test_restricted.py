"""Every pod against each control of the Pod Security Standard `restricted`, and against what else this platform asks.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator
from copy import deepcopy

import pytest

from holdfast.contract.kubernetes import LABEL_NAME
from holdfast.contract.roles import NAMESPACE_BATCH
from tests.platforms import names
from tests.workloads.manifests.rendered import Body, bodies, workloads
from workloads.manifests import gpu_metrics

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
HOST = ("hostNetwork", "hostPID", "hostIPC")
PROFILES = ("RuntimeDefault", "Localhost")
# The driver's folder and the devices of a node: NVIDIA's exporter needs both, and no API server or other namespace.
NEEDED_FOR_DEVICES = {
    "volume hostPath",
    *(f"main: {field}" for field in ("privileged", "allowPrivilegeEscalation", "capabilities", "seccompProfile")),
}


def containers(spec: Body) -> list[Body]:
    return [c for key in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(key) or ()]


def broken(spec: Body) -> Iterator[str]:
    """Controls that a pod breaks; settings of the pod count where a container says nothing."""
    shared = spec.get("securityContext", {})
    yield from (field for field in HOST if spec.get(field))
    if shared.get("sysctls") or spec.get("hostUsers"):
        yield "sysctls or host users"
    for volume in spec.get("volumes", ()):
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - VOLUMES)
    for container in containers(spec):
        yield from (f"{container['name']}: {control}" for control in _broken_by(container, shared))


def _broken_by(container: Body, shared: Body) -> Iterator[str]:
    own = container.get("securityContext", {})
    settings = shared | own
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "capabilities"
    if settings.get("runAsNonRoot") is not True:
        yield "runAsNonRoot"
    if settings.get("runAsUser") == 0:
        yield "runAsUser"
    if settings.get("seccompProfile", {}).get("type") not in PROFILES:
        yield "seccompProfile"
    if own.get("procMount", "Default") != "Default" or any("hostPort" in port for port in container.get("ports", ())):
        yield "procMount or hostPort"


@pytest.mark.parametrize("env", names())
def test_every_pod_meets_restricted_and_its_namespace_enforces_it(env: str) -> None:
    spaces = {b["metadata"]["name"]: b["metadata"]["labels"] for b in bodies(env) if b["kind"] == "Namespace"}
    assert len(workloads(env)) >= 9
    for body, template in workloads(env):
        privileged = body["metadata"]["name"] == gpu_metrics.NAME
        assert {*broken(template["spec"])} == (NEEDED_FOR_DEVICES if privileged else set()), body["metadata"]["name"]
        level = spaces[body["metadata"]["namespace"]]["pod-security.kubernetes.io/enforce"]
        assert level == ("privileged" if privileged else "restricted")
    (alone,) = (body for body, _ in workloads(env) if body["metadata"]["namespace"] == gpu_metrics.NAMESPACE)
    assert alone["metadata"]["name"] == gpu_metrics.NAME
    levels = {name: labels["pod-security.kubernetes.io/enforce"] for name, labels in spaces.items()}
    assert [name for name, level in levels.items() if level != "restricted"] == [gpu_metrics.NAMESPACE]


@pytest.mark.parametrize(
    ("place", "value", "control"),
    [
        ("hostNetwork", True, "hostNetwork"),
        ("volumes", [{"name": "x", "hostPath": {"path": "/"}}], "volume hostPath"),
        ("securityContext", {"runAsNonRoot": True}, "main: seccompProfile"),
    ],
)
def test_a_pod_that_breaks_a_control_is_found(place: str, value: object, control: str) -> None:
    """Else the test above could not fail."""
    spec = deepcopy(workloads("example")[0][1]["spec"])
    for container in spec["containers"]:
        container["name"] = "main"
    assert control in [*broken(spec | {place: value})]


@pytest.mark.parametrize("env", names())
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


@pytest.mark.parametrize("env", names())
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
