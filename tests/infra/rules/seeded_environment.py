"""Seeded defects of an environment, each one change of a sound one; and those that no rule can see, with the reason."""

from holdfast.contract.capacity import Capacity
from infra.environments.schema import AcceleratorCap, AuthorizedRange, Budget, Delivery, Quota, Run
from infra.rules.model import Facts
from tests.infra.rules.edits import (
    Edit,
    alerts,
    caps,
    cluster,
    database,
    group,
    network,
    security,
    serving,
    state,
    storage,
)


def ranges(*cidrs: str) -> Edit:
    def edit(facts: Facts) -> Facts:
        named = tuple(AuthorizedRange(name=f"r{n}", cidr=cidr) for n, cidr in enumerate(cidrs))
        return network(authorized_ranges=named)(facts)

    return edit


ENVIRONMENT: dict[str, Edit] = {
    "no budget": state(budget=None),
    "quota of 1 for a gang of 2": state(quotas=(Quota(source="spot-a100", gpus=1),)),
    "public ranges": ranges("0.0.0.0/0"),
    "a public range of a continent": ranges("34.0.0.0/8"),
    "serving base 0": group("serving", min_nodes=0),
    "system at most 1": group("system", min_nodes=0, max_nodes=1),
    "drills in production": state(allow_drills=True),
    "no standby in production": database(highly_available=False),
    "no protection of the database": database(deletion_protection=False),
    "no protection of the cluster": cluster(deletion_protection=False),
    "endpoint open in production": cluster(dns_endpoint_public=True),
    "Spot pages before on demand": alerts(spot_pending_s=60),
    "on demand pages after Spot": alerts(on_demand_pending_s=3_600),
    "checkpoints a week old": alerts(checkpoint_age_s=7 * 86_400),
    "a backlog of a month": alerts(batch_oldest_s=30 * 86_400),
    "a hundred thousand preemptions": alerts(preemptions_per_hour=100_000),
    "useful share of nothing": alerts(goodput_min=0.01),
    "nobody hears": alerts(emails=(), channels=()),
    "state in the checkpoint bucket": lambda facts: state(state_bucket=facts.environment.bucket("checkpoints"))(facts),
    "first with bugs": cluster(release_channel="RAPID"),
    # What follows is one value of a wrong form, or values that do not fit each other.
    "a zone of another region": state(zones=("europe-west4-a",)),
    "a zone that sells no such GPU": group("spot-a100", zones=("us-central1-z",)),
    "ranges that overlap": network(pods_cidr="10.10.0.0/18"),
    "an address space for ten nodes": network(nodes_cidr="10.10.0.0/27"),
    "a pod range for one pool": network(pods_cidr="10.20.0.0/22"),
    "a service range for a few": network(services_cidr="10.30.0.0/26"),
    "a grace that GKE does not know": state(spot_grace_s=45),
    "two minutes of grace on an old control plane": cluster(min_version="1.30"),
    "two GPUs in a machine of one": group("spot-a100", gpus_per_node=2),
    "a machine that does not exist": group("spot-a100", machine_types=("a2-highgpu-3g",)),
    "system on Spot": group("system", capacity=Capacity.SPOT),
    "the serving base on Spot": group("serving", capacity=Capacity.SPOT),
    "a flex-start pool that keeps a node": group("flex-a100", min_nodes=1),
    "no system group": lambda facts: state(groups=facts.environment.groups[1:])(facts),
    "a quota for no group": lambda facts: state(quotas=(Quota(source="spot-h100", gpus=8),))(facts),
    "caps below the pools": caps(max_vcpus=8),
    "caps without end": caps(max_vcpus=100_000),
    "auto-provisioning of nothing": caps(accelerators=()),
    "flex-start of a GPU that no job is offered": caps(accelerators=(AcceleratorCap(accelerator="nvidia-l4", max_gpus=64),)),
    "a planned end on a queued pool": group("gang", max_run_s=86_400),
    "a version that is a word": cluster(min_version="latest"),
    "a maintenance window of an hour": cluster(maintenance_end="2026-01-01T03:00:00Z"),
    "maintenance on one day of the week": cluster(maintenance_days="FREQ=WEEKLY;BYDAY=SU"),
    "secrets under Google's key": security(kms_key=""),
    "a key of another region": security(kms_key="projects/acme/locations/europe-west4/keyRings/r/cryptoKeys/k"),
    "any image": security(binary_authorization=False),
    "people bound one by one": security(rbac_security_group=""),
    "unsigned kernel modules": security(signed_kernel_modules=False),
    "every image of a registry": security(image_patterns=("docker.io/library/**",)),
    "runs that share an account": storage(runs=()),
    "buckets that may be emptied": storage(allow_destroy=True),
    "two runs of one prefix": storage(runs=(Run(name="a", indices=2), Run(name="a-1"))),
    "a database that shares a core": database(tier="db-f1-micro"),
    "backups for a day": database(backup_days=1),
    "state on a laptop": state(state_bucket=""),
    "one zone": state(zones=("us-central1-a",)),
    "a budget that warns when it is spent": state(budget=Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=9, thresholds=(1.0,))),
    "an exporter that is dead for a day": alerts(heartbeat_s=86_400),
    "a job that waits for a month": alerts(queue_wait_s=30 * 86_400),
    "a useful share that nothing reaches": alerts(goodput_min=0.99),
}  # fmt: skip

# Nothing in the environment contradicts them: the form is right, and what is meant is known elsewhere only.
UNSEEN: dict[str, tuple[Edit, str]] = {
    "a project number of another project": (
        state(project_number="999999999999"),
        "only Google knows which number a project has; the grants of its agents then fail in the first apply",
    ),
    "an address that nobody reads": (alerts(emails=("gone@example.org",)), "the form is right; the drill of a page shows it"),
    "a budget ten times what is meant": (
        state(budget=Budget(billing_account="012345-6789AB-CDEF01", monthly_usd=1_000_000)),
        "what a team may spend is its own decision",
    ),
    "a range of a neighbour's network": (
        ranges("10.0.0.0/8"), "private, and perhaps the company's own: a rule that forbids it forbids peered networks",
    ),
    "a replica that is slower than stated": (
        serving(replica_per_s=500.0), "of the model: `make bench-server` measures it",
    ),
    "a repository of somebody else": (
        state(delivery=Delivery(repository="acne/platform")), "a typo in a name that exists is a name",
    ),
}  # fmt: skip
