"""What doctor asks of the project: access, APIs, quota, zones. All read-only, all through gcloud."""

from collections.abc import Callable

from infra.contract.capacity import Capacity
from infra.environments import Environment
from infra.ops import gcloud
from infra.specs.network import APIS

Answer = tuple[bool, str, str]


def _login(_: Environment) -> Answer:
    accounts = gcloud.run(("auth", "list", "--filter=status:ACTIVE", "--format=value(account)")).split()
    return (
        bool(accounts),
        accounts[0] if accounts else "nobody",
        "gcloud auth login && gcloud auth application-default login",
    )


def _project(environment: Environment) -> Answer:
    found = gcloud.ask("projects", "describe", environment.project, project=environment.project)
    number = str(found.get("projectNumber", ""))
    fix = f'project_number="{number}" in the environment'
    return number == environment.project_number, f"{environment.project} is {number}", fix


def _apis(environment: Environment) -> Answer:
    enabled = {s["config"]["name"].removesuffix(".googleapis.com") for s in _services(environment)}
    missing = sorted(set(APIS) - enabled)
    if environment.enable_apis:
        # The foundation stack enables the rest, if it may use the API that enables APIs.
        missing = [name for name in missing if name == "cloudresourcemanager"]
    return (
        not missing,
        ", ".join(missing) + " off" if missing else "enabled",
        f"gcloud services enable {' '.join(missing)}",
    )


def _services(environment: Environment) -> list[dict[str, dict[str, str]]]:
    return gcloud.ask("services", "list", "--enabled", project=environment.project)


def _quota(environment: Environment) -> Answer:
    """Each accelerator's quota in the region against what the caps may ask for. Spot and flex use preemptible quota."""
    region = gcloud.ask("compute", "regions", "describe", environment.region, project=environment.project)
    limits = {q["metric"]: q["limit"] for q in region.get("quotas", [])}
    lacking: list[str] = []
    for metric, needed in sorted(_wanted(environment).items()):
        if limits.get(metric, 0) < needed:
            lacking.append(f"{metric} {limits.get(metric, 0):.0f} of {needed}")
    return not lacking, "; ".join(lacking) or "enough", f"ask for more quota in {environment.region}, or lower the caps"


def _wanted(environment: Environment) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for pool in environment.pools():
        if pool.gpus_per_node:
            model = pool.accelerator.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
            paid = "" if pool.capacity is Capacity.ON_DEMAND else "PREEMPTIBLE_"
            metric = f"{paid}NVIDIA_{model}_GPUS"
            wanted[metric] = wanted.get(metric, 0) + pool.max_nodes * pool.gpus_per_node
    return wanted


def _zones(environment: Environment) -> Answer:
    """Whether each GPU pool's zones sell its accelerator today; the table of this checkout may be old."""
    sold = {
        (a["name"], str(a["zone"]).rpartition("/")[2])
        for a in gcloud.ask("compute", "accelerator-types", "list", project=environment.project)
    }
    lacking = sorted(
        f"{pool.accelerator} in {zone}"
        for pool in environment.pools()
        if pool.accelerator
        for zone in pool.zones or environment.zones
        if (pool.accelerator, zone) not in sold
    )
    return not lacking, ", ".join(lacking) + " not sold" if lacking else "sold in each zone", "change zones"


def _state_bucket(environment: Environment) -> Answer:
    if not environment.state_bucket:
        return False, "state stays on this machine", "set state_bucket, then make bootstrap"
    gcloud.ask("storage", "buckets", "describe", f"gs://{environment.state_bucket}", project=environment.project)
    return True, f"gs://{environment.state_bucket}", ""


def account_checks() -> tuple[tuple[str, Callable[[Environment], Answer]], ...]:
    return (
        ("credentials", _login),
        ("project", _project),
        ("APIs", _apis),
        ("GPU quota", _quota),
        ("GPU zones", _zones),
        ("state bucket", _state_bucket),
    )
