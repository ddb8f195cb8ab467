"""What must exist before what. A plan says nothing of it: the first apply on a fresh project does, after minutes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from infra.rules.model import Facts, Finding, PlannedResource, rule
from infra.specs.encryption import AGENTS

SERVICE = "google_project_service"
# First match wins. A kind that is not here needs no API that a project may lack.
API_OF_KIND = {
    "google_artifact_registry": "artifactregistry",
    "google_billing_budget": "billingbudgets",
    "google_binary_authorization": "binaryauthorization",
    "google_compute": "compute",
    "google_container": "container",
    "google_dns": "dns",
    "google_kms": "cloudkms",
    "google_logging": "logging",
    "google_monitoring": "monitoring",
    "google_iam_workload_identity": "iam",
    "google_project_iam": "cloudresourcemanager",
    "google_pubsub": "pubsub",
    "google_service_account": "iam",
    "google_service_networking": "servicenetworking",
    "google_sql": "sqladmin",
    "google_storage": "storage",
}


def _apis_of(resource: PlannedResource) -> set[str]:
    """The API that answers for it, and that of the service agent to which it grants something."""
    needed = {
        api for prefix, api in API_OF_KIND.items() if resource.kind.startswith(f"{prefix}_") or resource.kind == prefix
    }
    members = " ".join([str(resource.get("member", "")), *map(str, resource.values.get("members") or ())])
    return needed | {api for api, agent in AGENTS.items() if f"@{agent}." in members}


def _before(address: str, resources: Mapping[str, PlannedResource]) -> set[str]:
    """Everything that `address` comes after, by however many steps."""
    seen: set[str] = set()
    open_ = [address]
    while open_:
        now = resources.get(open_.pop())
        fresh = (now.after if now else frozenset[str]()) - seen
        seen |= fresh
        open_ += fresh
    return seen


@rule(reason="the first apply on a new project fails after minutes because an API is disabled", source="Service Usage")
def apis_come_first(facts: Facts) -> Iterator[Finding]:
    """Each resource depends on its API, and each grant on the API of its service agent."""
    enabled = {s.address.rpartition(".")[2]: s for s in facts.of(SERVICE)}
    if not facts.environment.enable_apis or not enabled:
        return  # the organisation enables them, or another stack was planned
    areas: dict[str, dict[str, PlannedResource]] = defaultdict(dict)
    for resource in facts.resources:
        areas[resource.area][resource.address] = resource
    for resource in facts.resources:
        before = _before(resource.address, areas[resource.area])
        for api in sorted(_apis_of(resource)):
            service = enabled.get(api)
            # Another stack is deployed as a whole, after the one that enables the APIs.
            if service is None or (service.area == resource.area and service.address not in before):
                fix = f"add the API to infra.specs.network.APIS, and api(environment, {api!r}) to `after`"
                got = "not enabled" if service is None else "enabled at any time"
                yield resource.finding("depends_on", f"after {SERVICE}.{api}", fix, got)
