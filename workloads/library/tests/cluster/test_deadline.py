"""The planned end of a flex-start node, read from a real API server with the rights of the rendered
trainer.
"""

import base64
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager
from ruamel.yaml import YAML

from holdfast.clients.api import Api, Object
from holdfast.runtime import api_server, deadline
from holdfast.vocabulary.environment import ENV_NODE
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from tests.cluster.sim.waiting import until
from tests.workloads.manifests.rendered import load_objects, variables, workloads

END = datetime(2099, 1, 31, 12, tzinfo=UTC)
RIGHTS = ("ClusterRole", "ClusterRoleBinding")


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    """Creates a flex-start node without a simulation: the test acts as its kubelet."""
    name = f"flex-{uuid.uuid4().hex[:8]}"
    metadata = {
        "name": name,
        "annotations": {ANNOTATION_TERMINATION: END.isoformat()},
    }
    api.create(
        "/api/v1/nodes",
        {
            "metadata": metadata,
            "spec": {"unschedulable": True},
        },
    )
    yield name
    api.delete(f"/api/v1/nodes/{name}")


Become = Callable[[str, str], None]
"""Makes this process a pod of a namespace and a service account."""


@pytest.fixture
def become(
    api: Api,
    cluster: AClusterManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Become:
    """Sets up what the kubelet puts into a pod: the token, the authority, the address."""
    assert cluster.kubeconfig is not None
    kubeconfig = YAML(typ="safe", pure=True).load(cluster.kubeconfig.read_text())
    address: Object = kubeconfig["clusters"][0]["cluster"]
    inline = address.get("certificate-authority-data")

    def apply_named(kind: str, name: str, path: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name},
        }
        if api.find(path) is None:  # applied again, it would lose its labels
            api.apply(path, body)

    def become_pod(namespace: str, account: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}"
        namespace_path = path.rsplit("/", 2)[0]
        apply_named("Namespace", namespace, namespace_path)
        apply_named("ServiceAccount", account, path)
        request = api.create(f"{path}/token", {"spec": {"expirationSeconds": 600}})
        (tmp_path / "token").write_text(request["status"]["token"])
        if inline:
            authority = base64.b64decode(inline)
        else:
            authority = Path(address["certificate-authority"]).read_bytes()
        (tmp_path / "ca.crt").write_bytes(authority)
        host, _, port = address["server"].removeprefix("https://").rpartition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(api_server, "ACCOUNT", tmp_path)

    return become_pod


def read_planned_end(node: str) -> float | None:
    return deadline.find_planned_end(
        {ENV_NODE: node}, annotations=deadline.fetch_node_annotations, now=0
    )


def test_the_rendered_trainer_may_read_when_its_node_ends(
    api: Api, become: Become, node: str
) -> None:
    namespaces: list[str] = []
    for body, template in workloads("example"):
        if ENV_NODE not in variables(template):
            continue
        if template["spec"]["serviceAccountName"] == "trainer":
            namespaces.append(body["metadata"]["namespace"])
    for right in load_objects("example"):
        if right["kind"] in RIGHTS:
            api.apply(api.path_of(right), right)
    become(namespaces[0], "trainer")
    # The authorizer hears of a binding a moment after it is stored.
    assert until("the right counts", lambda: read_planned_end(node)) == END.timestamp()


def test_a_pod_without_the_right_trains_on_and_logs_it(
    become: Become, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    become("default", "nobody")
    assert read_planned_end(node) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "403" in record.getMessage()
