"""Which pods and nodes of a cluster a drill takes first."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.contract.errors import InputError
from holdfast.drill.catalogue import find
from holdfast.drill.plan import Fault
from holdfast.drill.remote import Where, on_each_pool
from holdfast.drill.targets.cluster import Cluster, Named
from holdfast.drill.targets.evictors import TaintEvictor, VmEvictor

MADE = {"a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-01T00:05:00Z"}


POOLS = {"a": "l4-small", "b": "l4-small", "c": "l4-large"}


class Listing:
    """An API with three pods, each alone on a Spot node of one of two pools, and none of anybody else."""

    def items(self, path: str, **_: object) -> Iterator[dict[str, Any]]:
        for name, made in MADE.items():
            labels = {"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-nodepool": POOLS[name]}
            meta = {"name": name, "namespace": "n", "uid": name, "creationTimestamp": made, "labels": labels}
            spec = {"nodeName": name, "providerID": f"gce://ours/europe-west4-a/{name}"}
            yield {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}

    def get(self, path: str) -> dict[str, Any]:
        return next(each for each in self.items("") if each["metadata"]["name"] == path.rpartition("/")[2])


def made(api: Listing) -> Callable[..., Listing]:
    """In place of the connection to a cluster."""

    def connect(*_: object) -> Listing:
        return api

    return connect


@pytest.mark.parametrize("fault", [Fault.EVICT, Fault.PREEMPT])
def test_the_oldest_goes_first_since_what_fell_lately_waits_longer_each_time(fault: Fault) -> None:
    api: Any = Listing()
    found = Cluster(api, Named(namespace="n", selector="a=b"), fault, TaintEvictor(api)).candidates()
    assert [name.split("/")[1] for name in found] == ["b", "c", "a"]


def test_on_each_pool_one_machine_of_it_is_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = Listing()
    monkeypatch.setattr("holdfast.drill.remote.Api", made(api))
    where, hit = Where(namespace="n", selector="a=b", project="ours"), list[str]()
    drills = on_each_pool([find("gke-maintenance"), find("cluster-evict")], where)
    assert [drill.pool for drill in drills] == ["l4-large", "l4-small", ""]
    for drill in drills[:2]:
        evictor = VmEvictor(api, where.project, drill.fault, lambda _, instance: hit.append(instance.name))
        target = Cluster(api, Named(namespace="n", selector="a=b"), drill.fault, evictor, drill.pool)
        found = target.candidates()
        target.inject(found[: drill.blast.size(len(found))])
    assert hit == ["c", "b"]


def test_without_a_machine_that_may_go_there_is_no_pool_to_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Standing(Listing):
        def items(self, path: str, **_: object) -> Iterator[dict[str, Any]]:
            yield from ({**each, "metadata": {**each["metadata"], "labels": {}}} for each in super().items(path))

    monkeypatch.setattr("holdfast.drill.remote.Api", made(Standing()))
    with pytest.raises(InputError, match="no pool to hit"):
        on_each_pool([find("gke-maintenance")], Where(namespace="n", selector="a=b"))
