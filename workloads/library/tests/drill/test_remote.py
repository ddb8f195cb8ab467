"""Tests drills on a shared cluster: names, permission, consent, and the VM that is hit."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients import gcloud
from holdfast.drill import remote
from holdfast.drill.catalogue import find
from holdfast.drill.errors import DrillError
from holdfast.drill.plan import Fault, Place
from holdfast.drill.remote import Scope, check, make_consent
from holdfast.drill.targets.cluster import Cluster, Named
from holdfast.drill.targets.evictors import NODES, TaintEvictor, VmEvictor
from holdfast.support.errors import InputError, Stopped, Unjudged
from tests import platforms

Object = dict[str, Any]
OURS = replace(
    platforms.load("example"),
    project="acme-ours",
    name="dev",
    region="europe-west4",
    cluster="holdfast-dev",
    drills=True,
)
PROD = replace(
    OURS,
    name="prod",
    cluster="holdfast-prod",
    drills=False,
)
CONTEXT = "gke_acme-ours_europe-west4_holdfast-dev"
ZONAL = "gke_acme-ours_europe-west4-a_holdfast-dev"
IN_PROD = "gke_acme-ours_europe-west4_holdfast-prod"
KNOWN = (CONTEXT, ZONAL, IN_PROD, "gke_theirs_x_prod", "kind-a")


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scope:
    documents = {
        CONTEXT: OURS,
        ZONAL: OURS,
        IN_PROD: PROD,
    }
    monkeypatch.setattr(remote, "read_published", lambda api: documents.get(api.context))
    contexts = []
    for name in KNOWN:
        contexts.append({"name": name, "context": {"cluster": "c", "user": "u"}})
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": "https://127.0.0.1:1"},
            }
        ],
        "users": [{"name": "u", "user": {}}],
        "contexts": contexts,
        "current-context": "gke_theirs_x_prod",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(body))
    return Scope(
        kubeconfig=path,
        context=CONTEXT,
        namespace="n",
        selector="a=b",
        yes=True,
    )


@pytest.mark.parametrize(
    ("place", "context", "project"),
    [
        (Place.GKE, CONTEXT, "acme-ours"),
        (Place.GKE, ZONAL, "acme-ours"),
        (Place.CLUSTER, "kind-a", ""),
    ],
    ids=["regional", "zonal", "of no environment, through its API only"],
)
def test_a_complete_scope_gets_its_project(
    scope: Scope, place: Place, context: str, project: str
) -> None:
    scope = replace(scope, context=context)
    assert check(place, scope) == replace(scope, project=project)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"context": ""}, "--context"),
        ({"namespace": ""}, "--namespace"),
        ({"selector": ""}, "--selector"),
        ({"context": "gke_theirs_x_other"}, "no such context"),
        ({"context": "gke_theirs_x_prod"}, "no platform document"),
        ({"context": "kind-a"}, "no platform document"),
        ({"yes": False}, "add --yes"),
    ],
)
def test_incomplete_and_unknown_scopes_are_refused(scope: Scope, change: Object, text: str) -> None:
    with pytest.raises(InputError) as error:
        check(Place.GKE, replace(scope, **change))
    assert text in error.value.lines()


@pytest.mark.parametrize("place", [Place.GKE, Place.CLUSTER])
def test_an_environment_that_allows_no_drills_is_not_hit_by_any(scope: Scope, place: Place) -> None:
    with pytest.raises(InputError) as error:
        check(place, replace(scope, context=IN_PROD))
    assert error.value.got == f"{IN_PROD}, which is {PROD}"
    assert "allow_drills=True" in error.value.fix


def test_only_the_context_name_confirms(scope: Scope, capsys: pytest.CaptureFixture[str]) -> None:
    asking = replace(scope, yes=False)
    make_consent(asking, lambda _: CONTEXT)(find("gke-maintenance"), ["node/a"])
    output = capsys.readouterr().err
    shown = (
        "node/a",
        CONTEXT,
        "1 Spot VM, at most 50 %",
        "at most 17 minutes and $1",
        "the pool replaces its machine",
    )
    for text in shown:
        assert text in output, output
    with pytest.raises(Stopped):
        make_consent(asking, lambda _: "y")(find("gke-maintenance"), ["node/a"])


def node(project: str, name: str = "gke-1") -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"providerID": f"gce://{project}/europe-west4-a/{name}"},
    }


class Nodes:
    """An API with nodes of two projects, and three pods, each alone on a Spot node."""

    def get(self, path: str) -> Object:
        name = path.rsplit("/", 1)[1]
        return node("theirs" if name == "alien" else "ours", name)

    def items(self, path: str, **_: object) -> Iterator[Object]:
        for name, creation_time in CREATION_TIMES.items():
            labels = {"cloud.google.com/gke-spot": "true"}
            meta = {
                "name": name,
                "namespace": "n",
                "uid": name,
                "creationTimestamp": creation_time,
                "labels": labels,
            }
            yield {
                "metadata": meta,
                "spec": {"nodeName": name},
                "status": {"phase": "Running"},
            }


def test_gcloud_preempts_only_the_vm_under_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api: Any = Nodes()
    evictor = VmEvictor(api, "ours")
    assert evictor.check(node("ours")) == ""
    assert "belongs to project theirs" in evictor.check(node("theirs"))
    assert "names no VM" in evictor.check({"spec": {"providerID": "kind://docker/a/b"}})
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(Unjudged, match="not installed"):
        gcloud.find_gcloud()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    log = tmp_path / "asked"
    fake = tmp_path / "gcloud"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$4" in gone) echo "not found" >&2; exit 1;; esac\n'
    )
    fake.chmod(0o755)
    gcloud.find_gcloud()
    with pytest.raises(DrillError, match="not all"):
        evictor.evict(["gke-1", "alien"])
    assert not log.exists()
    assert "europe-west4-a/gke-1" in evictor.evict(["gke-1"])
    words = (
        "compute instances simulate-maintenance-event gke-1 --project=ours --zone=europe-west4-a\n"
    )
    assert log.read_text() == words
    with pytest.raises(Unjudged, match="not found"):
        evictor.evict(["gone"])


# The order of the pods and nodes that a drill hits.

CREATION_TIMES = {
    "a": "2026-01-01T00:09:00Z",
    "b": "2026-01-01T00:00:00Z",
    "c": "2026-01-01T00:05:00Z",
}


@pytest.mark.parametrize(("fault", "kind"), [(Fault.EVICT, "pod"), (Fault.PREEMPT, "node")])
def test_the_oldest_pods_are_hit_first(fault: Fault, kind: str) -> None:
    api: Any = Nodes()
    cluster = Cluster(api, Named(namespace="n", selector="a=b"), fault, TaintEvictor(api))
    assert cluster.candidates() == [f"{kind}/b", f"{kind}/c", f"{kind}/a"]


class Cluster500(Nodes):
    """An API with a Job of 500 pods, which counts the requests for it."""

    requests = 0

    def find(self, path: str) -> Object:
        self.requests += 1
        return {"status": {"failed": 0}, "spec": {"completions": 500}}

    def items(self, path: str, **_: object) -> Iterator[Object]:
        for number in range(500):
            yield {
                "metadata": {
                    "name": f"train-{number}",
                    "namespace": "n",
                    "uid": f"{number}",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"batch.kubernetes.io/job-name": "train"},
                },
                "spec": {"nodeName": "a"},
                "status": {"phase": "Running"},
            }

    def evict(self, namespace: str, pod: str) -> None:
        """Evicts nothing."""


def make_cluster(api: Any, fault: Fault) -> Cluster:
    return Cluster(
        api,
        Named(namespace="n", selector="a=b"),
        fault,
        TaintEvictor(api),
    )


def test_a_job_is_read_once_however_many_pods_it_has() -> None:
    api = Cluster500()
    cluster = make_cluster(api, Fault.EVICT)
    cluster.inject(cluster.candidates()[:1])
    assert api.requests == 1
    cluster.measure("failures_charged")
    assert api.requests == 2


def test_a_node_that_is_gone_while_its_pods_remain_is_no_target() -> None:
    class Lost(Nodes):
        def items(self, path: str, **query: object) -> Iterator[Object]:
            for item in super().items(path, **query):
                if path != NODES or item["metadata"]["name"] != "b":
                    yield item

    nodes = Lost()
    assert make_cluster(nodes, Fault.PREEMPT).candidates() == ["node/c", "node/a"]


@pytest.mark.parametrize("fault", [Fault.EVICT, Fault.PREEMPT])
def test_targets_that_changed_before_the_answer_are_not_hit(fault: Fault) -> None:
    """A person may think for an hour, and other work starts on the nodes meanwhile."""

    class Changing(Nodes):
        is_late = False

        def items(self, path: str, **query: object) -> Iterator[Object]:
            for item in super().items(path, **query):
                if not self.is_late or item["metadata"]["name"] != "b":
                    yield item
            if self.is_late and path == "/api/v1/pods":
                other = {"name": "other", "namespace": "m", "uid": "o"}
                yield {"metadata": other, "spec": {"nodeName": "b"}, "status": {}}

    api = Changing()
    cluster = make_cluster(api, fault)
    victims = cluster.candidates()[:1]
    api.is_late = True
    with pytest.raises(Stopped, match="changed"):
        cluster.inject(victims)
