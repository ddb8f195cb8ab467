"""Checks of what a deployment needs, on this machine and in the project. Read-only; gcloud reads
the project.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.clients import gcloud
from holdfast.support.checks import Answer, make_answer
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import LOCAL_SSD_GIB, STAYING
from infra.contract.versions import (
    GOOGLE_PROVIDER_SOURCE,
    GOOGLE_PROVIDER_VERSION,
    MIN_OPENTOFU,
    MIN_TERRAFORM,
)
from infra.environments import Environment
from infra.environments.capacity import NodeGroup, Reservation
from infra.ops import engine
from infra.ops.deploy import find_cdk_command
from infra.ops.provider_lock import LOCK, locks_the_registry, misfits
from infra.specs.encryption import agent
from infra.specs.network import apis, makes_peering
from infra.specs.pools import RDMA_MACHINES

ALL_REGIONS = "GPUS_ALL_REGIONS"
# Accelerator -> its word in NVIDIA_*_GPUS and PREEMPTIBLE_NVIDIA_*_GPUS, which differs from its
# label. Source: Compute Engine documentation, allocation quotas. A region lists no such quota for
# H100 and newer on demand, but GPUS_PER_GPU_FAMILY, which only the Cloud Quotas API shows.
QUOTA_WORDS = {
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100",
    "nvidia-a100-80gb": "A100_80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-rtx-pro-6000": "RTX_PRO_6000",
    "nvidia-tesla-t4": "T4",
}
# Boot disk -> its quota; persistent disks on SSD share one.
DISK_METRICS = {
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
    "hyperdisk-balanced": "HDB_TOTAL_GB",
}
ACCELERATOR_NETWORKS = 2  # a second card for hosts, and one network for all cards of GPUs
# The project's policy shows these agents, since they get a role on the project when they are
# created. Storage's agent gets none.
LISTED_AGENTS = ("artifactregistry", "container", "pubsub", "sqladmin")


def _check_command_line(_: Environment) -> Answer:
    command = find_cdk_command()
    result = f"{command.name} in .node" if command else "no cdktf command"
    return command is not None, result, "make cdktf-cli"


def _check_engine(_: Environment) -> Answer:
    name, version = engine.online().version()
    # The versions differ since the fork: OpenTofu 1.8 is not Terraform 1.8.
    minimum = MIN_OPENTOFU if name == "tofu" else MIN_TERRAFORM
    release = ".".join(map(str, version))
    fix = f"install {name} {'.'.join(map(str, minimum))} or newer"
    return version >= minimum, f"{name} {release}", fix


def _check_provider(_: Environment) -> Answer:
    folder = engine.mirror()
    if folder:
        # With a mirror, Google's provider never comes from the registry: an old mirror fails in
        # `init`.
        packages = engine.packages(folder, GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION)
        fix = f"the mirror has no google {GOOGLE_PROVIDER_VERSION}: make provider"
        return bool(packages), f"mirror {folder}", fix
    is_locked = locks_the_registry()
    defects = misfits(LOCK.read_text()) if is_locked else []
    if defects:
        return False, f"{LOCK.name}: {', '.join(defects)}", "python -m infra.ops.provider_lock"
    checksums = "" if is_locked else "; a deployment writes its checksums"
    return True, f"google {GOOGLE_PROVIDER_VERSION} from the registry{checksums}", ""


def _check_login(_: Environment) -> Answer:
    accounts = gcloud.run(
        ("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
    ).split()
    fix = "gcloud auth login && gcloud auth application-default login"
    return bool(accounts), accounts[0] if accounts else "no account", fix


def _check_project(environment: Environment) -> Answer:
    project = gcloud.ask("projects", "describe", environment.project, project=environment.project)
    # Agents and identity pools are named by number: a wrong one grants roles to the agents of
    # another project.
    number = str(project.get("projectNumber", ""))
    fix = f'project_number="{number}" in the environment'
    return number == environment.project_number, f"{environment.project} is {number}", fix


def _check_apis(environment: Environment) -> Answer:
    services = gcloud.ask("services", "list", "--enabled", project=environment.project)
    missing = set(apis(environment))
    for service in services:
        missing.discard(service["config"]["name"].removesuffix(".googleapis.com"))
    if environment.enable_apis:
        # The foundation stack enables the rest, if it may use the API that enables APIs.
        missing &= {"cloudresourcemanager"}
    return make_answer(
        [f"{name} is off" for name in sorted(missing)],
        "enabled",
        f"gcloud services enable {' '.join(sorted(missing))}",
    )


def _check_quota(environment: Environment) -> Answer:
    """Compare each accelerator's quota in the region with the maximum of pools and
    auto-provisioning.

    Raises Unjudged if the region lists no quota for one, and no other is too low.
    """
    region = gcloud.ask(
        "compute",
        "regions",
        "describe",
        environment.region,
        project=environment.project,
    )
    limits = _read_limits(region)
    low = []
    unlisted = []
    for metric, gpus in sorted(_count_gpus(environment).items()):
        if metric not in limits:
            unlisted.append(f"{metric} for {gpus}")
        elif limits[metric] < gpus:
            low.append(f"{metric} {limits[metric]:.0f} of {gpus}")
    if unlisted and not low:
        raise Unjudged(
            f"{environment.region} lists no {', '.join(unlisted)}: look at `gcloud beta quotas info"
            " list`"
        )
    return make_answer(
        low,
        "enough",
        f"request more quota in {environment.region}, or lower the limits",
    )


def _check_machine_quota(environment: Environment) -> Answer:
    """Compare vCPUs, disks, addresses and instances in the region with what the environment can
    grow to. A metric that the region does not list has no limit of its own.
    """
    region = gcloud.ask(
        "compute",
        "regions",
        "describe",
        environment.region,
        project=environment.project,
    )
    limits = _read_limits(region)
    low = []
    for metric, amount in sorted(_count_machines(environment).items()):
        if amount > limits.get(metric, amount):
            low.append(f"{metric} {limits[metric]:.0f} of {amount}")
    return make_answer(
        low,
        "enough",
        f"request more quota in {environment.region}, or lower max_nodes and disks",
    )


def _count_machines(environment: Environment) -> Counter[str]:
    """Return quota metric -> the most that pools and auto-provisioning may use of it."""
    amounts: Counter[str] = Counter({"IN_USE_ADDRESSES": 1})  # that of NAT: nodes have none
    for group in environment.groups:
        for pool in group.pools(environment.spot_window):
            nodes = pool.max_nodes
            amounts["INSTANCES"] += nodes
            amounts[_cpu_metric(pool.machine_type)] += (
                nodes * MACHINE_TYPES[pool.machine_type].vcpus
            )
            amounts[DISK_METRICS[pool.disk_type]] += nodes * pool.disk_gib
            # As for GPUs, Spot and flex-start have a quota of their own.
            prefix = "" if pool.capacity in STAYING else "PREEMPTIBLE_"
            suffix = "GB" if prefix else "TOTAL_GB"
            amounts[f"{prefix}LOCAL_SSD_{suffix}"] += nodes * group.local_ssds * LOCAL_SSD_GIB
    provisioned = environment.auto_provisioning
    amounts["INSTANCES"] += provisioned.max_nodes
    amounts[DISK_METRICS[provisioned.disk_type]] += provisioned.max_nodes * provisioned.disk_gib
    return +amounts


def _cpu_metric(machine_type: str) -> str:
    family = machine_type.partition("-")[0].upper()
    return "CPUS" if family in ("E2", "N1") else f"{family}_CPUS"


def _check_network_quota(environment: Environment) -> Answer:
    """Check that the project has room for the VPC, and for those that GKE makes for the cards of
    accelerators.
    """
    needed = 0 if environment.network.existing else 1
    networks = gcloud.ask(
        "compute",
        "networks",
        "list",
        f"--filter=name={environment.stem}",
        project=environment.project,
    )
    if networks:
        needed = 0
    for pool in environment.pools():
        needed += ACCELERATOR_NETWORKS if pool.machine_type in RDMA_MACHINES else 0
    project = gcloud.ask("compute", "project-info", "describe", project=environment.project)
    for quota in project.get("quotas", []):
        if quota["metric"] == "NETWORKS":
            free = quota["limit"] - quota.get("usage", 0)
            result = f"NETWORKS {free:.0f} free, {needed} needed"
            return free >= needed, result, "ask for more NETWORKS, or remove networks"
    return True, f"{needed} needed, no limit listed", ""


def _check_global_quota(environment: Environment) -> Answer:
    """Check the quota of GPUs in all regions: it is 0 in a fresh project, whatever a region's quota
    is.
    """
    project = gcloud.ask("compute", "project-info", "describe", project=environment.project)
    limits = _read_limits(project)
    if ALL_REGIONS not in limits:
        raise Unjudged(f"{environment.project} lists no {ALL_REGIONS}")
    gpus = sum(_count_gpus(environment).values())
    result = f"{ALL_REGIONS} {limits[ALL_REGIONS]:.0f} of {gpus}"
    return limits[ALL_REGIONS] >= gpus, result, f"ask for more {ALL_REGIONS}, or lower the limits"


def _read_limits(described: Any) -> dict[str, float]:
    """Return quota metric -> limit of a region or project, as gcloud describes it."""
    limits = {}
    for quota in described.get("quotas", []):
        limits[quota["metric"]] = quota["limit"]
    return limits


def _count_gpus(environment: Environment) -> Counter[str]:
    """Return quota metric -> GPUs of all pools at their maximum, and of auto-provisioning the part
    of its caps above them.
    """
    gpus: Counter[str] = Counter()
    for pool in environment.pools():
        if pool.gpus_per_node:
            metric = _quota_metric(pool.accelerator, pool.capacity)
            gpus[metric] += pool.max_nodes * pool.gpus_per_node
    for cap in environment.auto_provisioning.accelerators:
        metric = _quota_metric(cap.accelerator, Capacity.FLEX_START)
        gpus[metric] += environment.capacity_gpus(cap.accelerator)
    return +gpus


def _quota_metric(accelerator: str, capacity: Capacity) -> str:
    # Flex-start uses the preemptible quota too, although its nodes are not preempted.
    prefix = "" if capacity in STAYING else "PREEMPTIBLE_"
    return f"{prefix}NVIDIA_{QUOTA_WORDS[accelerator]}_GPUS"


def _check_reservations(environment: Environment) -> Answer:
    """Check that each group's reservation exists and is large enough."""
    count = 0
    defects: list[str] = []
    for group in environment.groups:
        if group.reservation:
            count += 1
            defects += _check_reservation(environment, group, group.reservation)
    return make_answer(defects, f"{count} there", "correct groups[].reservation")


def _check_reservation(
    environment: Environment,
    group: NodeGroup,
    reservation: Reservation,
) -> list[str]:
    project = reservation.project or environment.project
    for listed in gcloud.ask("compute", "reservations", "list", project=project):
        zone = str(listed.get("zone", "")).rpartition("/")[2]
        if zone == group.zones[0] and listed["name"] == reservation.name:
            return list(_compare_reservation(listed, group))
    return [f"{reservation.name} is not in {group.zones[0]}"]


def _compare_reservation(listed: Any, group: NodeGroup) -> Iterator[str]:
    """Yield what the group needs and its reservation does not have."""
    name = listed["name"]
    machines = listed.get("specificReservation", {})
    machine_type = machines.get("instanceProperties", {}).get("machineType")
    count = int(machines.get("count") or 0)
    if (machine_type,) != group.machine_types:
        needed_types = ", ".join(group.machine_types)
        yield f"{name} holds {machine_type}, {group.name} needs {needed_types}"
    if count < group.max_nodes:
        yield f"{name} holds {count} machines, {group.name} needs {group.max_nodes}"


def _check_zones(environment: Environment) -> Answer:
    """Check that each GPU pool's zones offer its accelerator today; the table of this checkout may
    be old.
    """
    offers = set()
    for listed in gcloud.ask("compute", "accelerator-types", "list", project=environment.project):
        zone = str(listed["zone"]).rpartition("/")[2]
        offers.add((listed["name"], zone))
    defects = set()
    for pool in environment.pools():
        for zone in pool.zones or environment.zones:
            if pool.accelerator and (pool.accelerator, zone) not in offers:
                defects.add(f"{pool.accelerator} is not available in {zone}")
    return make_answer(sorted(defects), "available in each zone", "change zones")


def _check_network(environment: Environment) -> Answer:
    """Check that an existing subnet has the stated ranges, and reaches Google's APIs."""
    network = environment.network
    existing = network.existing
    if existing is None:
        return True, "made by the foundation stack", ""
    _, owner, _, region, _, name = existing.subnet.split("/")
    subnet = gcloud.ask(
        "compute",
        "networks",
        "subnets",
        "describe",
        name,
        f"--region={region}",
        project=owner,
    )
    ranges = {}
    for secondary in subnet.get("secondaryIpRanges", []):
        ranges[str(secondary["rangeName"])] = secondary["ipCidrRange"]
    comparisons = (
        ("nodes_cidr", network.nodes_cidr, subnet.get("ipCidrRange")),
        ("pods_cidr", network.pods_cidr, ranges.get(existing.pods_range)),
        ("services_cidr", network.services_cidr, ranges.get(existing.services_range)),
        ("Private Google Access", True, subnet.get("privateIpGoogleAccess", False)),
    )
    defects = []
    for field, expected, got in comparisons:
        if got != expected:
            defects.append(f"{field} {got or 'missing'}, not {expected}")
    return make_answer(
        defects,
        f"{name} as stated",
        "state the subnet's own ranges in network, or ask its owner",
    )


def _check_peering(environment: Environment) -> Answer:
    """Check that no other peering for managed services exists where this one would be made."""
    existing = environment.network.existing
    if existing is None or not makes_peering(environment):
        return True, "of this platform, or none", ""
    name = existing.network.rpartition("/")[2]
    peerings = gcloud.ask(
        "services",
        "vpc-peerings",
        "list",
        f"--network={name}",
        project=existing.project,
    )
    defects = []
    for peering in peerings:
        # One of this platform, from a former deployment, has its range.
        ranges = peering.get("reservedPeeringRanges", [])
        if f"{environment.stem}-managed-services" not in ranges:
            defects.append(f"{name} has a peering with {', '.join(ranges)}")
    return make_answer(
        defects,
        f"none in {name}",
        "take managed-services out of network.existing.creates: the database uses the peering that"
        " is there",
    )


def _check_state_bucket(environment: Environment) -> Answer:
    if not environment.state_bucket:
        return (
            False,
            "the state is on this machine only",
            "set state_bucket, then make bootstrap ENV=NAME",
        )
    gcloud.ask(
        "storage",
        "buckets",
        "describe",
        f"gs://{environment.state_bucket}",
        project=environment.project,
    )
    return True, f"gs://{environment.state_bucket}", ""


def _check_service_agents(environment: Environment) -> Answer:
    """Check that service agents exist: Google creates one on first use, and a grant to a missing
    one fails the first apply.
    """
    policy = gcloud.ask(
        "projects",
        "get-iam-policy",
        environment.project,
        project=environment.project,
    )
    members: set[str] = set()
    for binding in policy.get("bindings", []):
        members.update(binding.get("members", []))
    missing = []
    for name in LISTED_AGENTS:
        if agent(environment, name) not in members:
            missing.append(f"{name} is missing")
    return make_answer(missing, "there", f"make bootstrap ENV={environment.name}")


def _check_budget_currency(environment: Environment) -> Answer:
    budget = environment.budget
    if budget is None:
        return True, "no budget", ""
    account = gcloud.ask(
        "billing",
        "accounts",
        "describe",
        budget.billing_account,
        project=environment.project,
    )
    # The API refuses a budget in another currency than its account's, in the middle of an apply.
    currency = str(account.get("currencyCode", ""))
    result = f"{budget.billing_account} is in {currency}"
    return currency == budget.currency, result, f'budget.currency="{currency}"'


Probe = Callable[[Environment], Answer]
Probes = tuple[tuple[str, Probe], ...]
ON_THIS_MACHINE: Probes = (
    ("cdktf command", _check_command_line),
    ("engine", _check_engine),
    ("provider", _check_provider),
)
OF_THE_PROJECT: Probes = (
    ("credentials", _check_login),
    ("project", _check_project),
    ("APIs", _check_apis),
    ("network", _check_network),
    ("peering", _check_peering),
    ("GPU quota", _check_quota),
    ("GPU quota of all regions", _check_global_quota),
    ("machine quota", _check_machine_quota),
    ("network quota", _check_network_quota),
    ("GPU zones", _check_zones),
    ("reservations", _check_reservations),
    ("state bucket", _check_state_bucket),
    ("service agents", _check_service_agents),
    ("budget currency", _check_budget_currency),
)
