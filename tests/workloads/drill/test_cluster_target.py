"""Which pods and nodes of a cluster a drill takes first."""

from collections.abc import Iterator
from typing import Any

import pytest

from workloads.drill.plan import Fault
from workloads.drill.targets.cluster import Cluster, Named
from workloads.drill.targets.node_evictors import TaintEvictor

MADE = {"a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-01T00:05:00Z"}


class Listing:
    """An API with three pods, each alone on a Spot node, and none of anybody else."""

    def items(self, path: str, **_: object) -> Iterator[dict[str, Any]]:
        for name, made in MADE.items():
            labels = {"cloud.google.com/gke-spot": "true"}
            meta = {"name": name, "namespace": "n", "uid": name, "creationTimestamp": made, "labels": labels}
            yield {"metadata": meta, "spec": {"nodeName": name}, "status": {"phase": "Running"}}


@pytest.mark.parametrize("fault", [Fault.EVICT, Fault.PREEMPT])
def test_the_oldest_goes_first_since_what_fell_lately_waits_longer_each_time(fault: Fault) -> None:
    api: Any = Listing()
    found = Cluster(api, Named(namespace="n", selector="a=b"), fault, TaintEvictor(api)).candidates()
    assert [name.split("/")[1] for name in found] == ["b", "c", "a"]
