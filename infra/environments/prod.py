"""Production: every protection on. Replace each CHANGE-ME before the first deployment."""

from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import Role
from infra.environments.schema import (
    AcceleratorCap,
    Alerts,
    AuthorizedRange,
    AutoProvisioning,
    Budget,
    Cluster,
    Database,
    Environment,
    Network,
    NodeGroup,
    Queue,
    Quota,
    Run,
    Security,
    Serving,
    Storage,
)

ENVIRONMENT = Environment(
    name="prod",
    project_id="CHANGE-ME",
    project_number="CHANGE-ME",
    region="us-central1",
    zones=("us-central1-a", "us-central1-b", "us-central1-c"),
    state_bucket="CHANGE-ME",
    # 105 s for a pod instead of 15 s; needs the control plane version below.
    spot_grace_s=120,
    network=Network(
        # Nodes: 218 in pools at their maximum, 128 of auto-provisioning, 1 for each of 14 pools
        # while it upgrades: 360, and a /22 holds 1,020. Pods: 32 a node take a /26, so 360 nodes
        # take 360 x 64 = 23,040 addresses: a /17 holds 32,768.
        nodes_cidr="10.10.0.0/22",
        pods_cidr="10.20.0.0/17",
        services_cidr="10.30.0.0/22",
        database_cidr="10.40.0.0/20",
        authorized_ranges=(AuthorizedRange(name="bastion", cidr="10.50.0.0/28"),),
        flow_logs=True,
    ),
    cluster=Cluster(min_version="1.35"),
    groups=(
        NodeGroup(
            name="system",
            role=Role.SYSTEM,
            machine_types=("e2-standard-4",),
            min_nodes=3,
            max_nodes=6,
        ),
        NodeGroup(
            name="serving",
            role=Role.SERVING,
            machine_types=("g2-standard-8",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            min_nodes=2,
            max_nodes=12,
        ),
        NodeGroup(
            name="spot-l4",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            machine_types=("g2-standard-8", "g2-standard-12", "g2-standard-16"),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=32,
        ),
        NodeGroup(
            name="spot-a100",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=16,
        ),
        NodeGroup(
            name="flex-a100",
            role=Role.TRAINING,
            capacity=Capacity.FLEX_START,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=16,
        ),
        NodeGroup(
            name="gang-a100",
            role=Role.TRAINING,
            capacity=Capacity.QUEUED,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=16,
        ),
        NodeGroup(
            # For state that is sharded over the GPUs of a machine, and over machines.
            name="spot-a100x8",
            role=Role.TRAINING,
            capacity=Capacity.SPOT,
            machine_types=("a2-highgpu-8g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=8,
            max_nodes=4,
        ),
        NodeGroup(
            # For jobs without a GPU that resume.
            name="spot-cpu",
            role=Role.BATCH,
            capacity=Capacity.SPOT,
            machine_types=("n2-standard-8", "e2-standard-8"),
            max_nodes=16,
        ),
        NodeGroup(
            # For deadlines: jobs move here when Spot no longer keeps them. Empty, it costs nothing.
            name="demand-l4",
            role=Role.TRAINING,
            machine_types=("g2-standard-8",),
            accelerator="nvidia-l4",
            gpus_per_node=1,
            max_nodes=8,
        ),
        NodeGroup(
            name="demand-a100",
            role=Role.TRAINING,
            machine_types=("a2-highgpu-1g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=1,
            max_nodes=8,
        ),
        NodeGroup(
            name="demand-a100x8",
            role=Role.TRAINING,
            machine_types=("a2-highgpu-8g",),
            accelerator="nvidia-tesla-a100",
            gpus_per_node=8,
            max_nodes=4,
        ),
    ),
    auto_provisioning=AutoProvisioning(
        max_vcpus=5_120,
        max_memory_gib=26_624,
        accelerators=(
            AcceleratorCap(accelerator="nvidia-l4", max_gpus=168),
            AcceleratorCap(accelerator="nvidia-tesla-a100", max_gpus=152),
        ),
        max_nodes=128,
    ),
    quotas=(Quota(source="spot-l4", gpus=64), Quota(source="spot-a100", gpus=16)),
    security=Security(
        # A few dollars a key and month. Its service agents get their grants from the foundation
        # stack.
        kms_key="projects/CHANGE-ME/locations/us-central1/keyRings/holdfast/cryptoKeys/platform",
        binary_authorization=True,
        rbac_security_group="gke-security-groups@CHANGE-ME.example",
        signed_kernel_modules=True,
        signed_checkpoints=True,
        secret_manager=True,
        data_access_logs=True,
    ),
    storage=Storage(
        # A deleted checkpoint is billed for a week: 100 GB each hour are 340 dollars a month.
        checkpoint_soft_delete_days=7,
        # The samples; add each run of yours. Only listed runs can train in this environment, and
        # only roles in read_by load their checkpoints.
        runs=(
            Run(name="train-gang", read_by=("batch", "server")),
            Run(name="train-elastic"),
            Run(name="train-sharded"),
            Run(name="train-sweep", indices=2),
            Run(name="train-flex-l4", indices=4),
            Run(name="train-flex-tesla-a100", indices=4),
            Run(name="train-queued-l4"),
            Run(name="train-queued-tesla-a100"),
        ),
    ),
    queue=Queue(),
    database=Database(highly_available=True, backup_days=30),
    serving=Serving(
        promised_per_s=160,
        peak_per_s=800,
        # This is assumed for one L4: measure it with your model.
        replica_per_s=50,
        base_replicas=4,
        base_most=8,
        overflow_most=24,
    ),
    alerts=Alerts(emails=("CHANGE-ME@example.org",)),
    budget=Budget(billing_account="CHANGE-ME", monthly_usd=20_000),
    production=True,
    labels=(("cost-center", "ai-platform"),),
)
