"""The operators as `make operators` applies them, on a control plane of their own that no other
test needs.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.pools import Pool
from infra import describe
from tests import platforms, support
from tests.cluster.sim import control_plane, nodes, queues
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS
from workloads.operators import cli, install, overlay, vendor
from workloads.operators.catalogue import JOBSET, KUEUE, OPERATORS, Operator, upstream

STOCK = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    "/kueue-mutating-webhook-configuration"
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane that no other file needs, for operators that are not those of the session."""
    with control_plane.running() as control:
        yield control


@pytest.fixture(scope="module")
def own(plane: ControlPlane) -> Api:
    """Returns the API of that control plane, after adding a system pool."""
    api = Api(plane.kubeconfig("admin"))
    system = RenderContext(platforms.load("example")).system
    bodies = [nodes.node(system, f"system-{n}") for n in range(2)]
    names = nodes.add(api, bodies)
    until("the system pool is ready", lambda: nodes.ready(api, names))
    return api


def apply(plane: ControlPlane) -> None:
    cli.apply_platform(
        "example",
        operators=True,
        kubeconfig=plane.kubeconfig("admin"),
        timeout_s=2,
        yes=True,
    )


@pytest.fixture
def digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "digests.json"
    path.write_text(json.dumps({"example": {"jobset": "a" * 64, "kueue": "b" * 64}}))
    monkeypatch.setattr(describe, "DIGESTS", path)
    return path


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
def test_the_vendored_manifest_is_what_the_pinned_module_holds(operator: Operator) -> None:
    tool = TOOLS[operator.name]
    support.require(tool.binary.exists(), f"`make tools` has not built {operator.name}")
    pins = (tool.pins / "go.sum").read_text().splitlines()
    checksum = next(
        line.split()[-1]
        for line in pins
        if line.startswith(f"{operator.module} v{operator.version} ")
    )
    kubectl = str(TOOLS["kubectl"].binary)
    rendered = vendor.render(operator, tool.binary.parent, checksum, kubectl)
    assert operator.file.read_text() == rendered, (
        "run `python -m workloads.operators.vendor` and commit the result"
    )


def test_without_digests_nothing_is_applied(plane: ControlPlane, own: Api) -> None:
    with pytest.raises(InputError, match="image digests") as refused:
        apply(plane)
    assert "make operators-pin ENV=example" in str(refused.value)
    assert own.find("/api/v1/namespaces/jobset-system") is None


def test_deaf_webhooks_stop(
    plane: ControlPlane,
    own: Api,
    digests: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pods of simulated nodes serve nothing: ready and deaf, as behind a closed firewall."""
    with pytest.raises(
        Unjudged, match=r"jobset-controller-manager is rolled out|webhooks of jobset"
    ):
        apply(plane)
    assert "created Deployment/jobset-controller-manager" in capsys.readouterr().out
    until("both replicas are available", lambda: install.find_rollout_fault(own, JOBSET) is None)
    pods = own.items("/api/v1/namespaces/jobset-system/pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"system-0", "system-1"}
    with pytest.raises(Unjudged, match=r"webhooks of jobset answer.*failed calling webhook"):
        apply(plane)
    assert not capsys.readouterr().out, "a second run changes nothing"


def test_stock_webhooks_and_old_objects_are_removed_once(own: Api, digests: Path) -> None:
    stock = next(body for body in upstream(KUEUE) if body["kind"] == "MutatingWebhookConfiguration")
    own.apply(STOCK, stock, fieldManager="kubectl")
    assert judges_pods(own)
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kueue-of-an-older-version"
    labels = {"holdfast.dev/operator": "kueue"}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    own.apply(
        role,
        kind
        | {
            "metadata": {"name": "kueue-of-an-older-version", "labels": labels},
            "rules": [],
        },
    )
    bodies = overlay.objects(KUEUE, RenderContext(platforms.load("example")))

    first = list(install.apply(own, KUEUE, bodies))
    assert {change.verb for change in first} == {"created", "changed", "removed"}
    names = [change.name for change in first if change.verb == "removed"]
    assert names == ["ClusterRole/kueue-of-an-older-version"]
    assert not judges_pods(own)
    assert own.find(role) is None
    until("both replicas are available", lambda: install.find_rollout_fault(own, KUEUE) is None)
    verbs = {change.verb for change in install.apply(own, KUEUE, bodies)}
    assert verbs == {"unchanged"}


def judges_pods(api: Api) -> bool:
    """Return whether a webhook of Kueue judges pods."""
    return "pods" in {
        name
        for w in api.get(STOCK)["webhooks"]
        for rule in w["rules"]
        for name in rule["resources"]
    }


@pytest.mark.usefixtures("kueue")
def test_jobs_in_foreign_namespaces_are_left_alone(world: World, spot: Pool, api: Api) -> None:
    api.merge(
        f"/api/v1/namespaces/{world.name}",
        {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}},
    )
    spec = world.job_spec(spot, 1)
    head = {
        "metadata": {
            "name": "foreign",
            "labels": {queues.QUEUE_LABEL: "nowhere"},
        },
        "spec": spec,
    }

    def is_not_suspended() -> bool:
        job = world.api.create(world.path("jobs", "/apis/batch/v1"), head, dryRun="All")
        return not job["spec"].get("suspend")

    # The API server chooses webhooks by its own copy of the namespace, which follows the change of
    # labels.
    until("a queue that does not exist holds it no longer", is_not_suspended)
