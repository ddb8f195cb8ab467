"""Pure functions from an environment to the arguments of its cloud resources. No CDK, no I/O.

Stacks build exactly these; rules read exactly these, before Terraform starts and again in its plan.
"""

from infra.environments.schema import Environment
from infra.specs import (
    cluster,
    database,
    delivery,
    encryption,
    identities,
    network,
    pools,
    queue,
    receipts,
    storage,
)
from infra.specs.resource import Resource

__all__ = ["AREAS", "Resource", "cluster_area", "foundation_area", "resources"]


def foundation_area(environment: Environment) -> list[Resource]:
    """Return what outlives a cluster: network, identities, buckets, images, queue, database."""
    return [
        *network.resources(environment),
        *identities.resources(environment),
        *encryption.resources(environment),
        *storage.resources(environment),
        *receipts.resources(environment),
        *queue.resources(environment),
        *database.resources(environment),
        *delivery.resources(environment),
    ]


def cluster_area(environment: Environment) -> list[Resource]:
    """Return the cluster, its pools, its image policy, and the bindings that need its workload
    pool.
    """
    return [
        *cluster.image_policy(environment),
        cluster.resource(environment),
        *pools.resources(environment),
        *identities.workload_bindings(environment),
        *storage.run_grants(environment),
    ]


AREAS = {"foundation": foundation_area, "cluster": cluster_area}


def resources(environment: Environment) -> list[Resource]:
    """Return the resources of all areas, in the order in which they are deployed."""
    return [*foundation_area(environment), *cluster_area(environment)]
