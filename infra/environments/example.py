"""The environment that tests, README and snapshots show. Copy it with `python -m infra new
NAME`.
"""

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.environments.schema import (
    AcceleratorCap,
    Alerts,
    AutoProvisioning,
    Cluster,
    Database,
    Environment,
    Network,
    NodeGroup,
    Queue,
    Security,
    Serving,
    Storage,
)

ENVIRONMENT = Environment(
    name="example",
    project_id="acme-ai-platform",
    project_number="123456789012",
    region="us-central1",
    zones=("us-central1-a", "us-central1-b", "us-central1-c"),
    network=Network(
        # Nodes: 67 in pools at their maximum, 64 of auto-provisioning, 1 for each of 13 pools while
        # it upgrades: 144, and a /22 holds 1,020. Pods: 32 a node take a /26, so 144 nodes take 144
        # x 64 = 9,216 addresses: a /18 holds 16,384.
        nodes_cidr="10.10.0.0/22",
        pods_cidr="10.20.0.0/18",
        services_cidr="10.30.0.0/22",
        database_cidr="10.40.0.0/20",
        load_balancers_cidr="10.50.0.0/24",
    ),
    cluster=Cluster(dns_endpoint_public=True, deletion_protection=False),
    groups=(
        NodeGroup(
            name="system",
            role=Role.SYSTEM,
            machine_types=("e2-standard-4",),
            min_nodes=1,
            max_nodes=3,
        ),
        NodeGroup(
            name="serving",
            role=Role.SERVING,
            machine_types=("g2-standard-8",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            min_nodes=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="spot-l4",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            # g2-standard-8 has one L4. Two L4 need g2-standard-24.
            machine_types=("g2-standard-8", "g2-standard-12", "g2-standard-16"),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=8,
        ),
        NodeGroup(
            name="spot-a100",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="flex-a100",
            role=Role.TRAINING,
            capacity=Capacity.FLEX_START,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=4,
        ),
        NodeGroup(
            # For state that is sharded over the GPUs of a machine, and over machines.
            name="spot-a100x8",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-8g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=8,
            max_nodes=2,
        ),
        NodeGroup(
            # For jobs without a GPU that resume.
            name="spot-cpu",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            machine_types=("n2-standard-8", "e2-standard-8"),
            max_nodes=8,
        ),
        NodeGroup(
            # For deadlines: jobs move here when Spot no longer keeps them. Empty, it costs nothing.
            name="demand-l4",
            role=Role.TRAINING,
            machine_types=("g2-standard-8",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="demand-a100",
            role=Role.TRAINING,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="demand-a100x8",
            role=Role.TRAINING,
            machine_types=("a2-highgpu-8g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=8,
            max_nodes=2,
        ),
    ),
    auto_provisioning=AutoProvisioning(
        max_vcpus=2_048,
        max_memory_gib=12_288,
        accelerators=(
            AcceleratorCap(accelerator="nvidia-l4", max_gpus=44),
            AcceleratorCap(accelerator="nvidia-tesla-a100", max_gpus=60),
        ),
    ),
    security=Security(secret_manager=True, ratings_every_s=1_800),
    storage=Storage(allow_destroy=True),
    queue=Queue(lanes=2),
    database=Database(deletion_protection=False),
    serving=Serving(
        promised_per_s=80,
        peak_per_s=240,
        # This is assumed for one L4: measure it with your model.
        replica_per_s=50,
        base_replicas=2,
        base_most=3,
        overflow_most=6,
    ),
    alerts=Alerts(emails=("oncall@example.org",), readers=("group:ml-platform@example.org",)),
    allow_drills=True,
)
