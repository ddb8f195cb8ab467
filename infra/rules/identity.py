"""Who may do what: only roles that are needed, on the object that is the target."""

from collections.abc import Iterator

from infra.rules.model import Facts, PlannedResource, Violation, rule
from infra.specs.identities import PROJECT_ROLES, READER_ROLE

# Cloud SQL has no grants on an instance, so these stand on the project, behind a condition that names the instance.
CONDITIONAL_PROJECT_ROLES = ("roles/cloudsql.client", "roles/cloudsql.instanceUser")
BROAD_ROLES = ("roles/owner", "roles/editor", "roles/viewer")
BROAD_STORAGE_ROLES = ("roles/storage.admin", "roles/storage.objectAdmin", "roles/storage.legacyBucketOwner")
PUBLIC = ("allUsers", "allAuthenticatedUsers")


def _grants(facts: Facts) -> list[PlannedResource]:
    return [f for f in facts.resources if f.kind.endswith(("_iam_member", "_iam_binding"))]


@rule(
    reason="a role on the project reaches every bucket, queue and cluster in it",
    source="Cloud Storage documentation on IAM roles",
)
def project_roles(facts: Facts) -> Iterator[Violation]:
    """Only nodes, metric writers and the report's readers have roles on the project; Cloud SQL behind a condition."""
    for grant in facts.of("google_project_iam_member", "google_project_iam_binding"):
        role = grant.get("role")
        conditional = role in CONDITIONAL_PROJECT_ROLES and bool(grant.get("condition.expression"))
        reads = role == READER_ROLE and grant.get("member") in facts.environment.alerts.readers
        if role not in PROJECT_ROLES.values() and not conditional and not reads:
            yield grant.violation("role", ", ".join(PROJECT_ROLES.values()), "grant it on the object instead")


@rule(reason="owner, editor and viewer hold thousands of permissions", source="CIS Google Cloud 1.5")
def no_basic_roles(facts: Facts) -> Iterator[Violation]:
    """Nobody gets a basic role."""
    for grant in _grants(facts):
        if grant.get("role") in BROAD_ROLES and grant.kind != "google_project_iam_member":
            yield grant.violation("role", "a predefined role", "name the role that is needed")


@rule(reason="the internet", source="CIS Google Cloud 5.1")
def no_public_members(facts: Facts) -> Iterator[Violation]:
    """No grant is to everybody."""
    for grant in _grants(facts):
        members = {grant.get("member"), *grant.get("members", [])}
        if members & set(PUBLIC):
            yield grant.violation("member", "an identity", "name who needs it")


@rule(
    reason="objectAdmin may set access and delete what others wrote", source="Cloud Storage documentation on IAM roles"
)
def narrow_storage_roles(facts: Facts) -> Iterator[Violation]:
    """Workloads read or use objects; none administers a bucket."""
    for grant in facts.of("google_storage_bucket_iam_member", "google_storage_bucket_iam_binding"):
        if grant.get("role") in BROAD_STORAGE_ROLES:
            yield grant.violation("role", "roles/storage.objectUser or objectViewer", "use the narrower role")


@rule(reason="a key file outlives the person who copied it", source="CIS Google Cloud 1.4")
def no_account_keys(facts: Facts) -> Iterator[Violation]:
    """No service account has a key."""
    for key in facts.of("google_service_account_key"):
        yield key.violation("service_account_id", "no such resource", "use Workload Identity")


@rule(reason="any pod of the namespace could act as the account", source="GKE documentation on Workload Identity")
def one_account_one_workload(facts: Facts) -> Iterator[Violation]:
    """Each account is acted as by one Kubernetes account of this project's pool."""
    for grant in facts.of("google_service_account_iam_member"):
        member = str(grant.get("member"))
        ours = member.startswith(f"serviceAccount:{facts.environment.workload_pool}[") and "/" in member
        if grant.get("role") != "roles/iam.workloadIdentityUser" or not ours:
            allowed = f"workloadIdentityUser for {facts.environment.workload_pool}[namespace/account]"
            yield grant.violation("member", allowed, "bind one Kubernetes account", f"{grant.get('role')} to {member}")
