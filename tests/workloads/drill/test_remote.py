"""Somebody else's cluster: what must be named, who is asked, and which VM is hit, with a compute client that only notes."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.contract.errors import InputError
from workloads.drill.catalogue import find
from workloads.drill.conduct import Refused
from workloads.drill.plan import Fault, Place
from workloads.drill.remote import Where, checked, consent
from workloads.drill.targets.gce import Gcloud, Instance, VmTaker
from workloads.drill.waiting import DrillError

CONTEXT = "gke_ours_europe-west4_holdfast-dev"


@pytest.fixture
def where(tmp_path: Path) -> Where:
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in (CONTEXT, "gke_theirs_x_prod")]
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": contexts,
        "current-context": "gke_theirs_x_prod",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(body))
    return Where(kubeconfig=path, context=CONTEXT, namespace="n", selector="a=b", project="ours", yes=True)


def test_what_is_named_is_taken(where: Where) -> None:
    assert checked(Place.GKE, where) == where


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"context": ""}, "--context"),
        ({"namespace": ""}, "--namespace"),
        ({"selector": ""}, "--selector"),
        ({"project": ""}, "--project"),
        ({"context": "gke_theirs_x_other"}, "no such context"),
        ({"context": "gke_theirs_x_prod"}, "not of one cluster"),
        ({"yes": False}, "add --yes"),
    ],
)
def test_what_is_not_named_or_does_not_match_is_refused(where: Where, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        checked(Place.GKE, replace(where, **change))
    assert told in error.value.lines()


def test_the_targets_are_shown_and_only_the_context_name_is_a_yes(
    where: Where, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = replace(where, yes=False)
    consent(asking, lambda _: CONTEXT)(find("gke-maintenance"), ["node/a"])
    assert "node/a" in capsys.readouterr().err
    with pytest.raises(Refused):
        consent(asking, lambda _: "y")(find("gke-maintenance"), ["node/a"])


@dataclass
class Noted:
    """A compute client that hits nothing."""

    done: list[tuple[str, Instance]] = field(default_factory=list)

    def simulate_maintenance(self, instance: Instance) -> None:
        self.done.append(("maintenance", instance))

    def delete(self, instance: Instance) -> None:
        self.done.append(("delete", instance))


class OneNode:
    """An API that knows nodes of two projects."""

    def get(self, path: str) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        return node("theirs" if name == "alien" else "ours", name)


def node(project: str, name: str = "gke-1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"providerID": f"gce://{project}/europe-west4-a/{name}"}}


@pytest.mark.parametrize(("fault", "verb"), [(Fault.PREEMPT, "maintenance"), (Fault.DELETE, "delete")])
def test_the_vm_of_the_node_is_hit_and_no_other(fault: Fault, verb: str) -> None:
    noted = Noted()
    taker = VmTaker(OneNode(), noted, "ours", fault)  # type: ignore[arg-type]
    assert "europe-west4-a/gke-1" in taker.take(["gke-1"])
    assert noted.done == [(verb, Instance("ours", "europe-west4-a", "gke-1"))]


def test_a_vm_of_another_project_is_never_hit() -> None:
    noted = Noted()
    taker = VmTaker(OneNode(), noted, "ours", Fault.PREEMPT)  # type: ignore[arg-type]
    assert taker.check(node("ours")) == ""
    assert "belongs to project theirs" in taker.check(node("theirs"))
    assert "names no VM" in taker.check({"spec": {"providerID": "kind://docker/a/b"}})
    with pytest.raises(DrillError, match="not all"):
        taker.take(["gke-1", "alien"])
    assert not noted.done


def test_gcloud_is_asked_with_project_zone_and_name(tmp_path: Path) -> None:
    log, fake = tmp_path / "asked", tmp_path / "gcloud"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$4" in gone) echo "not found" >&2; exit 1;; esac\n')
    fake.chmod(0o755)
    gcloud = Gcloud(str(fake))
    gcloud.simulate_maintenance(Instance("ours", "z-a", "vm"))
    gcloud.delete(Instance("ours", "z-a", "vm"))
    with pytest.raises(DrillError, match="not found"):
        gcloud.delete(Instance("ours", "z-a", "gone"))
    first, second, _ = log.read_text().splitlines()
    assert first == "compute instances simulate-maintenance-event vm --project=ours --zone=z-a"
    assert second == "compute instances delete vm --project=ours --zone=z-a --quiet"
