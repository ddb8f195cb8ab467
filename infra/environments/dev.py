"""Development: the cheapest cluster on which every path works. Replace each CHANGE-ME before the
first deployment.
"""

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.environments.schema import (
    AcceleratorCap,
    Alerts,
    AutoProvisioning,
    Cluster,
    Environment,
    Network,
    NodeGroup,
    Queue,
    Security,
    Serving,
    Storage,
)

ENVIRONMENT = Environment(
    name="dev",
    project_id="CHANGE-ME",
    project_number="CHANGE-ME",
    region="us-central1",
    zones=("us-central1-a", "us-central1-b", "us-central1-c"),
    state_bucket="CHANGE-ME",
    # Models and data of Hugging Face, and runs of Weights & Biases; all else is closed.
    egress=("huggingface.co", "*.hf.co", "*.wandb.ai"),
    network=Network(
        # Nodes: 29 in pools at their maximum, 16 of auto-provisioning, 1 for each of 10 pools while
        # it upgrades: 55, and a /24 holds 252.
        # Pods: 32 a node take a /26, so 55 nodes take 55 x 64 = 3,520 addresses: a /20 holds 4,096.
        nodes_cidr="10.10.0.0/24",
        pods_cidr="10.20.0.0/20",
        services_cidr="10.30.0.0/24",
        database_cidr="10.40.0.0/24",
    ),
    cluster=Cluster(dns_endpoint_public=True, deletion_protection=False),
    groups=(
        NodeGroup(
            name="system",
            role=Role.SYSTEM,
            machine_types=("e2-standard-2",),
            min_nodes=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="serving",
            role=Role.SERVING,
            machine_types=("g2-standard-4",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=2,
        ),
        NodeGroup(
            name="spot-l4",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            machine_types=("g2-standard-4", "g2-standard-8"),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=4,
        ),
        NodeGroup(
            name="spot-a100",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            # For copies of shards: `copies_in: disk` in a job file.
            local_ssds=1,
            max_nodes=2,
        ),
        NodeGroup(
            # For state that is sharded over the GPUs of a machine, and over machines.
            name="spot-a100x8",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-8g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=8,
            local_ssds=8,
            max_nodes=2,
        ),
        NodeGroup(
            # For jobs without a GPU that resume.
            name="spot-cpu",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            machine_types=("n2-standard-8", "e2-standard-8"),
            max_nodes=4,
        ),
        NodeGroup(
            # For deadlines: jobs move here when Spot no longer keeps them. Empty, it costs nothing.
            name="demand-l4",
            role=Role.TRAINING,
            machine_types=("g2-standard-8",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=2,
        ),
        NodeGroup(
            name="demand-a100",
            role=Role.TRAINING,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=2,
        ),
    ),
    auto_provisioning=AutoProvisioning(
        max_vcpus=512,
        max_memory_gib=3_072,
        accelerators=(
            AcceleratorCap(accelerator="nvidia-l4", max_gpus=18),
            AcceleratorCap(accelerator="nvidia-tesla-a100", max_gpus=36),
        ),
        max_nodes=16,
    ),
    security=Security(secret_manager=True, ratings_every_s=1_800),
    storage=Storage(allow_destroy=True),
    queue=Queue(),
    # Cloud SQL is the most expensive part of an idle cluster; batch results go to a database of
    # yours, or set one here.
    database=None,
    serving=Serving(
        promised_per_s=40,
        peak_per_s=80,
        # This is assumed for one L4: measure it with your model.
        replica_per_s=50,
        base_replicas=2,
        base_most=2,
        overflow_most=2,
    ),
    alerts=Alerts(emails=("CHANGE-ME@example.org",)),
    allow_drills=True,
)
