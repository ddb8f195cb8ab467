"""Is everything there that a deployment needs, on this machine and in the project? Read-only;
gcloud reads the project.
"""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.clients import gcloud
from holdfast.support.checks import Answer, lacking
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import STAYING
from infra.contract.versions import GOOGLE_PROVIDER_VERSION, MIN_OPENTOFU, MIN_TERRAFORM
from infra.environments import Environment
from infra.environments.capacity import NodeGroup
from infra.ops import engine
from infra.ops.deploy import CDKTF
from infra.ops.provider_lock import LOCK, misfits
from infra.specs.encryption import agent
from infra.specs.network import apis

ALL_REGIONS = "GPUS_ALL_REGIONS"
# Accelerator -> its word in NVIDIA_*_GPUS and PREEMPTIBLE_NVIDIA_*_GPUS, which is not that of its
# label. Source: Compute Engine documentation, allocation quotas. H100 and newer on demand have no
# such figure in the list of a region, but GPUS_PER_GPU_FAMILY, which only the Cloud Quotas API
# shows.
QUOTA_WORDS = {
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100",
    "nvidia-a100-80gb": "A100_80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
}
# Agents that get a role on the project when they are made, so that its policy shows them. Storage's
# never does.
LISTED_AGENTS = ("artifactregistry", "container", "pubsub", "sqladmin")


def _command_line(_: Environment) -> Answer:
    return (
        CDKTF.exists(),
        "cdktf in .node" if CDKTF.exists() else "no cdktf command",
        "make cdktf-cli",
    )


def _engine(_: Environment) -> Answer:
    name, version = engine.connected().version()
    # The two count apart since the fork: OpenTofu 1.8 is not Terraform 1.8.
    least = MIN_OPENTOFU if name == "tofu" else MIN_TERRAFORM
    wanted = ".".join(map(str, least))
    return (
        version >= least,
        f"{name} {'.'.join(map(str, version))}",
        f"install {name} {wanted} or newer",
    )


def _provider(_: Environment) -> Answer:
    folder = engine.mirror()
    if folder is None and LOCK.exists() and (wrong := misfits(LOCK.read_text())):
        return False, f"{LOCK.name}: {', '.join(wrong)}", "python -m infra.ops.provider_lock"
    if folder is None:
        return True, f"google {GOOGLE_PROVIDER_VERSION} from the registry", ""
    # With a mirror in force Google's provider never comes from the registry, so an old mirror fails
    # in `init`.
    held = any(folder.glob(f"*/hashicorp/google/{GOOGLE_PROVIDER_VERSION}/*"))
    return (
        held,
        f"mirror {folder}",
        f"the mirror has no google {GOOGLE_PROVIDER_VERSION}: make provider",
    )


def _login(_: Environment) -> Answer:
    accounts = gcloud.run(
        ("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")
    ).split()
    fix = "gcloud auth login && gcloud auth application-default login"
    return bool(accounts), accounts[0] if accounts else "no account", fix


def _project(environment: Environment) -> Answer:
    found = gcloud.ask("projects", "describe", environment.project, project=environment.project)
    # Agents and identity pools are named by number: a wrong one grants roles to the agents of
    # another project.
    number = str(found.get("projectNumber", ""))
    fix = f'project_number="{number}" in the environment'
    return number == environment.project_number, f"{environment.project} is {number}", fix


def _apis(environment: Environment) -> Answer:
    services = gcloud.ask("services", "list", "--enabled", project=environment.project)
    missing = sorted(
        set(apis(environment))
        - {s["config"]["name"].removesuffix(".googleapis.com") for s in services}
    )
    if environment.enable_apis:
        # The foundation stack enables the rest, if it may use the API that enables APIs.
        missing = [name for name in missing if name == "cloudresourcemanager"]
    return lacking(
        [f"{name} is off" for name in missing],
        "enabled",
        f"gcloud services enable {' '.join(missing)}",
    )


def _quota(environment: Environment) -> Answer:
    """Each accelerator's quota in the region against what the pools and the caps of
    auto-provisioning may ask for.

    Unjudged where the region lists no figure for one, and no other is too low.
    """
    region = gcloud.ask(
        "compute", "regions", "describe", environment.region, project=environment.project
    )
    limits = {q["metric"]: q["limit"] for q in region.get("quotas", [])}
    wanted = sorted(_wanted(environment).items())
    low = [
        f"{m} {limits[m]:.0f} of {needed}"
        for m, needed in wanted
        if m in limits and limits[m] < needed
    ]
    unlisted = [f"{metric} for {needed}" for metric, needed in wanted if metric not in limits]
    if unlisted and not low:
        raise Unjudged(
            f"{environment.region} lists no {', '.join(unlisted)}: look at `gcloud beta quotas info"
            " list`"
        )
    return lacking(
        low, "enough", f"request more quota in {environment.region}, or lower the limits"
    )


def _quota_everywhere(environment: Environment) -> Answer:
    """GPUs of all regions together: 0 in a fresh project, and then no region's quota helps."""
    found = gcloud.ask("compute", "project-info", "describe", project=environment.project)
    limit = next((q["limit"] for q in found.get("quotas", []) if q["metric"] == ALL_REGIONS), None)
    if limit is None:
        raise Unjudged(f"{environment.project} lists no {ALL_REGIONS}")
    needed = sum(_wanted(environment).values())
    return (
        limit >= needed,
        f"{ALL_REGIONS} {limit:.0f} of {needed}",
        f"ask for more {ALL_REGIONS}, or lower the limits",
    )


def _wanted(environment: Environment) -> dict[str, int]:
    """Metric -> GPUs of all pools at their maximum, and of auto-provisioning what its caps leave
    above them.
    """
    pools = [pool for pool in environment.pools() if pool.gpus_per_node]
    found = [
        (pool.accelerator, pool.capacity, pool.max_nodes * pool.gpus_per_node) for pool in pools
    ]
    for cap in environment.auto_provisioning.accelerators:
        found.append(
            (cap.accelerator, Capacity.FLEX_START, environment.capacity_gpus(cap.accelerator))
        )
    wanted: dict[str, int] = {}
    for accelerator, capacity, gpus in found:
        # Flex-start draws on the preemptible quota too, although its nodes are not preempted.
        paid = "" if capacity in STAYING else "PREEMPTIBLE_"
        metric = f"{paid}NVIDIA_{QUOTA_WORDS[accelerator]}_GPUS"
        wanted[metric] = wanted.get(metric, 0) + gpus
    return {metric: gpus for metric, gpus in wanted.items() if gpus}


def _reservations(environment: Environment) -> Answer:
    """Each group's reservation is there and large enough."""
    groups = [(group, group.reservation) for group in environment.groups if group.reservation]
    wrong: list[str] = []
    for group, wanted in groups:
        listed = gcloud.ask(
            "compute", "reservations", "list", project=wanted.project or environment.project
        )
        here = [
            each
            for each in listed
            if str(each.get("zone", "")).rpartition("/")[2] == group.zones[0]
        ]
        mine = next((each for each in here if each["name"] == wanted.name), None)
        wrong += (
            [f"{wanted.name} is not in {group.zones[0]}"] if mine is None else _unfit(mine, group)
        )
    return lacking(wrong, f"{len(groups)} there", "correct groups[].reservation")


def _unfit(found: Any, group: NodeGroup) -> Iterator[str]:
    """What a group cannot have of its reservation."""
    held = found.get("specificReservation", {})
    machine = held.get("instanceProperties", {}).get("machineType")
    count = int(held.get("count") or 0)
    if (machine,) != group.machine_types:
        yield (
            f"{found['name']} holds {machine}, {group.name} needs {', '.join(group.machine_types)}"
        )
    if count < group.max_nodes:
        yield f"{found['name']} holds {count} machines, {group.name} needs {group.max_nodes}"


def _zones(environment: Environment) -> Answer:
    """Whether each GPU pool's zones sell its accelerator today; the table of this checkout may be
    old.
    """
    sold = set()
    for a in gcloud.ask("compute", "accelerator-types", "list", project=environment.project):
        sold.add((a["name"], str(a["zone"]).rpartition("/")[2]))
    wanted = {
        (p.accelerator, zone)
        for p in environment.pools()
        if p.accelerator
        for zone in p.zones or environment.zones
    }
    unsold = [
        f"{accelerator} is not available in {zone}" for accelerator, zone in sorted(wanted - sold)
    ]
    return lacking(unsold, "available in each zone", "change zones")


def _network(environment: Environment) -> Answer:
    """Whether an existing subnet has the ranges that the environment states, and reaches Google's
    APIs.
    """
    stated = environment.network
    existing = environment.network.existing
    if existing is None:
        return True, "made by the foundation stack", ""
    _, owner, _, region, _, subnet = existing.subnet.split("/")
    found = gcloud.ask(
        "compute", "networks", "subnets", "describe", subnet, f"--region={region}", project=owner
    )
    ranges = {str(r["rangeName"]): r["ipCidrRange"] for r in found.get("secondaryIpRanges", [])}
    wanted = {
        "nodes_cidr": (stated.nodes_cidr, found.get("ipCidrRange")),
        "pods_cidr": (stated.pods_cidr, ranges.get(existing.pods_range)),
        "services_cidr": (stated.services_cidr, ranges.get(existing.services_range)),
        "Private Google Access": (True, found.get("privateIpGoogleAccess", False)),
    }
    wrong = []
    for what, (asked, got) in wanted.items():
        if got != asked:
            wrong.append(f"{what} {got or 'missing'}, not {asked}")
    return lacking(
        wrong, f"{subnet} as stated", "state the subnet's own ranges in network, or ask its owner"
    )


def _state_bucket(environment: Environment) -> Answer:
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


def _service_agents(environment: Environment) -> Answer:
    """Google makes an agent on first use; a grant to one that is not there fails the first apply."""
    policy = gcloud.ask(
        "projects", "get-iam-policy", environment.project, project=environment.project
    )
    members = set()
    for binding in policy.get("bindings", []):
        for member in binding.get("members", []):
            members.add(member)
    missing = [
        f"{name} is missing" for name in LISTED_AGENTS if agent(environment, name) not in members
    ]
    return lacking(missing, "there", f"make bootstrap ENV={environment.name}")


def _budget_currency(environment: Environment) -> Answer:
    if environment.budget is None:
        return True, "no budget", ""
    account = environment.budget.billing_account
    found = gcloud.ask("billing", "accounts", "describe", account, project=environment.project)
    # A budget in another currency than its account is refused by the API in the middle of an apply.
    currency = str(found.get("currencyCode", ""))
    return (
        currency == environment.budget.currency,
        f"{account} is in {currency}",
        f'budget.currency="{currency}"',
    )


Probes = tuple[tuple[str, Callable[[Environment], Answer]], ...]
ON_THIS_MACHINE: Probes = (
    ("cdktf command", _command_line),
    ("engine", _engine),
    ("provider", _provider),
)
OF_THE_PROJECT: Probes = (
    ("credentials", _login),
    ("project", _project),
    ("APIs", _apis),
    ("network", _network),
    ("GPU quota", _quota),
    ("GPU quota of all regions", _quota_everywhere),
    ("GPU zones", _zones),
    ("reservations", _reservations),
    ("state bucket", _state_bucket),
    ("service agents", _service_agents),
    ("budget currency", _budget_currency),
)
