"""The planned end of a flex-start node, read from a real API server with the rights of the rendered trainer."""

import base64
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager
from ruamel.yaml import YAML

from holdfast.clients.api import Api, Object
from holdfast.contract.environment import ENV_NODE
from holdfast.contract.lifecycle import ANNOTATION_TERMINATION
from holdfast.runtime import api_server, deadline
from tests.cluster.sim.waiting import until
from tests.workloads.manifests.rendered import bodies, variables, workloads

END = datetime(2099, 1, 31, 12, tzinfo=UTC)
RIGHTS = ("ClusterRole", "ClusterRoleBinding")


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    name = f"flex-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "annotations": {ANNOTATION_TERMINATION: END.isoformat()}}
    api.create("/api/v1/nodes", {"metadata": metadata, "spec": {"unschedulable": True}})
    yield name
    api.delete(f"/api/v1/nodes/{name}")


class Pod:
    """What the kubelet puts into a pod of a service account: the token, the authority, the address."""

    def __init__(self, api: Api, cluster: AClusterManager, folder: Path, patch: pytest.MonkeyPatch) -> None:
        assert cluster.kubeconfig is not None
        self._api, self._folder, self._patch = api, folder, patch
        kubeconfig = YAML(typ="safe", pure=True).load(cluster.kubeconfig.read_text())
        self._cluster: Object = kubeconfig["clusters"][0]["cluster"]

    def become(self, namespace: str, account: str) -> None:
        metadata = {"name": account, "namespace": namespace}
        self._api.apply(f"/api/v1/namespaces/{namespace}", _body("Namespace", {"name": namespace}))
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}"
        self._api.apply(path, _body("ServiceAccount", metadata))
        answer = self._api.create(f"{path}/token", {"spec": {"expirationSeconds": 600}})
        (self._folder / "token").write_text(answer["status"]["token"])
        (self._folder / "ca.crt").write_bytes(self._authority())
        host, _, port = self._cluster["server"].removeprefix("https://").rpartition(":")
        self._patch.setenv("KUBERNETES_SERVICE_HOST", host)
        self._patch.setenv("KUBERNETES_SERVICE_PORT", port)
        self._patch.setattr(api_server, "ACCOUNT", self._folder)

    def _authority(self) -> bytes:
        inline = self._cluster.get("certificate-authority-data")
        return base64.b64decode(inline) if inline else Path(self._cluster["certificate-authority"]).read_bytes()


def _body(kind: str, metadata: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


@pytest.fixture
def pod(api: Api, cluster: AClusterManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(api, cluster, tmp_path, monkeypatch)


def test_the_rendered_trainer_may_read_when_its_node_ends(api: Api, pod: Pod, node: str) -> None:
    body, template = next(
        (b, t)
        for b, t in workloads("example")
        if ENV_NODE in variables(t) and t["spec"]["serviceAccountName"] == "trainer"
    )
    for right in (each for each in bodies("example") if each["kind"] in RIGHTS):
        api.apply(api.path_of(right), right)
    pod.become(body["metadata"]["namespace"], template["spec"]["serviceAccountName"])
    # The authorizer hears of a binding a moment after it is stored.
    output = until(
        "the right counts", lambda: deadline.planned_end({ENV_NODE: node}, annotations=deadline.node_annotations, now=0)
    )
    assert output == END.timestamp()


def test_a_pod_without_the_right_trains_on_and_logs_it(pod: Pod, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    pod.become("default", "nobody")
    assert deadline.planned_end({ENV_NODE: node}, annotations=deadline.node_annotations, now=0) is None
    line = json.loads(capsys.readouterr().out)
    assert line["severity"] == "WARNING" and "403" in line["message"]
