"""GKE's own pods find a node that the environment makes: none waits, and auto-provisioning buys
nothing for them.
"""

import pytest

from holdfast.vocabulary.pools import Role
from infra.environments import load, names
from infra.specs import pools as specs

# Deployment of GKE -> the taints that its pods tolerate. Source: manifests of clusters of GKE 1.33
# to 1.35, and GKE's page on dedicated node pools for system workloads.
MANAGED = "components.gke.io/gke-managed-components"
TOLERATED = {
    "event-exporter-gke": {MANAGED},
    "l7-default-backend": {MANAGED},
    "kube-dns": {MANAGED, "CriticalAddonsOnly"},
    "konnectivity-agent": {MANAGED, "CriticalAddonsOnly"},
    "metrics-server": {MANAGED, "CriticalAddonsOnly"},
}


@pytest.mark.parametrize("name", names())
def test_gke_pods_tolerate_the_system_pool(name: str) -> None:
    environment = load(name)
    nodes = []
    for pool in environment.pools():
        if pool.role is Role.SYSTEM:
            nodes.append(pool)
    for deployment, tolerated in TOLERATED.items():
        fitting = []
        for pool in nodes:
            if {taint.key for taint in pool.taints} <= tolerated:
                fitting.append(pool)
        assert fitting, f"{deployment} waits for a node"


@pytest.mark.parametrize("name", names())
def test_pools_start_with_their_minimum(name: str) -> None:
    environment = load(name)
    for pool in environment.pools():
        arguments = specs.pool_resource(environment, pool).arguments
        zones = arguments["node_locations"]
        assert isinstance(zones, list)
        nodes = int(str(arguments["initial_node_count"])) * len(zones)
        assert pool.min_nodes <= nodes <= pool.max_nodes, pool.name
