"""An environment with everything on, from `example`: forks edit dev and prod, so tests leave those
alone.
"""

from dataclasses import replace
from typing import Any

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.environments import Environment, load
from infra.environments.schema import (
    AcceleratorCap,
    AuthorizedRange,
    Budget,
    Delivery,
    ExistingNetwork,
    NodeGroup,
    Quota,
    Run,
    Security,
    Team,
)

EXAMPLE = load("example")
DELIVERY = Delivery(
    repository="acme/platform",
    repository_id="456789",
    owner_id="123456",
)


def make_shared_network() -> Environment:
    """Returns an environment in a subnet of a Shared VPC host project."""
    host = "projects/acme-host"
    existing = ExistingNetwork(
        network=f"{host}/global/networks/shared",
        subnet=f"{host}/regions/{EXAMPLE.region}/subnetworks/gpu",
        grants=True,
    )
    return replace(EXAMPLE, network=replace(EXAMPLE.network, existing=existing))


def two_teams() -> Environment:
    """Returns an environment whose cluster two teams share with the default one."""
    return replace(
        EXAMPLE,
        security=replace(EXAMPLE.security, rbac_security_group="gke-security-groups@example.org"),
        budget=Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=1_000),
        storage=replace(
            EXAMPLE.storage,
            runs=(Run(name="detector"), Run(name="train-gang", read_by=("batch", "server"))),
        ),
        teams=(
            Team(
                name="vision",
                members="vision@example.org",
                quotas=(Quota(source="nvidia-l4", gpus=4),),
                budget_usd=500,
                runs=("detector",),
            ),
            Team(
                name="speech",
                members="speech@example.org",
                namespaces=("speech", "speech-dev"),
            ),
        ),
    )


def a100(name: str, capacity: Capacity, **fields: Any) -> NodeGroup:
    """Returns a group for training of up to four A100."""
    machine: dict[str, Any] = {
        "machine_types": ("a2-highgpu-1g",),
        "accelerator": "nvidia-tesla-a100",
        "gpus_per_node": 1,
    }
    return NodeGroup(
        name=name,
        role=Role.TRAINING,
        capacity=capacity,
        max_nodes=4,
        **machine,
        **fields,
    )


def standing(group: NodeGroup) -> NodeGroup:
    on_demand = group.capacity is Capacity.ON_DEMAND
    return replace(group, min_nodes=2, max_nodes=6) if on_demand else group


def make_hardened() -> Environment:
    """Returns a production environment with extended grace and every kind of capacity."""
    gang = a100("gang", Capacity.QUEUED)
    caps = []
    for cap in EXAMPLE.auto_provisioning.accelerators:
        caps.append(AcceleratorCap(accelerator=cap.accelerator, max_gpus=128))
    return replace(
        EXAMPLE,
        production=True,
        state_bucket="acme-terraform-state",
        spot_grace_s=120,
        groups=(*(standing(g) for g in EXAMPLE.groups), gang),
        auto_provisioning=replace(EXAMPLE.auto_provisioning, accelerators=tuple(caps)),
        network=replace(
            EXAMPLE.network,
            flow_logs=True,
            authorized_ranges=(AuthorizedRange(name="bastion", cidr="10.50.0.0/28"),),
        ),
        cluster=replace(
            EXAMPLE.cluster,
            min_version="1.35",
            dns_endpoint_public=False,
            deletion_protection=True,
        ),
        security=Security(
            kms_key="projects/acme/locations/us-central1/keyRings/r/cryptoKeys/k",
            binary_authorization=True,
            rbac_security_group="gke-security-groups@example.org",
            signed_kernel_modules=True,
            secret_manager=True,
            data_access_logs=True,
        ),
        storage=replace(
            EXAMPLE.storage,
            allow_destroy=False,
            checkpoint_soft_delete_days=7,
            runs=(
                Run(name="gang", read_by=("batch", "server")),
                Run(name="gang-2", read_by=("batch",)),
                Run(name="sweep", indices=2),
            ),
        ),
        allow_drills=False,
        database=replace(EXAMPLE.database, deletion_protection=True, highly_available=True)
        if EXAMPLE.database
        else None,
        delivery=DELIVERY,
        budget=Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=1_000),
    )
