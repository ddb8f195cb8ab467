"""Every pod under the Pod Security Standard `restricted`, and what else this platform asks of pods and Jobs."""

import pytest

from tests.platforms import names
from tests.workloads.manifests.rendered import Body, bodies, workloads
from workloads.manifests import gpu_metrics


def containers(spec: Body) -> list[Body]:
    return [c for key in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(key) or ()]


@pytest.mark.parametrize("env", names())
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
