"""Seeded defects of an environment, each one change of a sound one; and those that no rule can see, with the reason."""

from infra.environments.schema import AcceleratorCap, AuthorizedRange, Budget, Delivery, Quota
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
    "a public range of a continent": ranges("34.0.0.0/8"),
    "serving base 0": group("serving", min_nodes=0),
    "system at most 1": group("system", min_nodes=0, max_nodes=1),
    "drills in production": state(allow_drills=True),
    "no standby in production": database(highly_available=False),
    "no protection of the database": database(deletion_protection=False),
    "no protection of the cluster": cluster(deletion_protection=False),
    "endpoint open in production": cluster(dns_endpoint_public=True),
    "Spot pages before on demand": alerts(spot_pending_s=300),
    "on demand pages after Spot": alerts(on_demand_pending_s=3_600),
    "nobody hears": alerts(emails=(), channels=()),
    "state in the checkpoint bucket": lambda facts: state(state_bucket=facts.environment.bucket("checkpoints"))(facts),
    "first with bugs": cluster(release_channel="RAPID"),
    # What follows are values that do not fit each other.
    "a zone that sells no such GPU": group("spot-a100", zones=("us-central1-z",)),
    "an address space for ten nodes": network(nodes_cidr="10.10.0.0/27"),
    "a pod range for one pool": network(pods_cidr="10.20.0.0/22"),
    "a service range for a few": network(services_cidr="10.30.0.0/26"),
    "two minutes of grace on an old control plane": cluster(min_version="1.30"),
    "caps below the pools": caps(max_vcpus=8),
    "caps without end": caps(max_vcpus=100_000),
    "auto-provisioning of nothing": caps(accelerators=()),
    "flex-start of a GPU that no job is offered": caps(accelerators=(AcceleratorCap(accelerator="nvidia-l4", max_gpus=64),)),
    "maintenance on one day of the week": cluster(maintenance_days="FREQ=WEEKLY;BYDAY=SU"),
    "secrets under Google's key": security(kms_key=""),
    "a key of another region": security(kms_key="projects/acme/locations/europe-west4/keyRings/r/cryptoKeys/k"),
    "any image": security(binary_authorization=False),
    "people bound one by one": security(rbac_security_group=""),
    "unsigned kernel modules": security(signed_kernel_modules=False),
    "runs that share an account": storage(runs=()),
    "buckets that may be emptied": storage(allow_destroy=True),
    "a database that shares a core": database(tier="db-f1-micro"),
    "state on a laptop": state(state_bucket=""),
    "one zone": state(zones=("us-central1-a",)),
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
