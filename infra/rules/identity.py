"""Rules on access: identities have only roles that they need, on the object that is the target."""

import re
from collections.abc import Iterator

from infra.environments import Environment
from infra.environments.runs import READERS, Run
from infra.rules.model import (
    Facts,
    Finding,
    PlannedResource,
    check_value,
    environment_finding,
    rule,
)

# Repeated here, not read from the specs: a rule that takes the right values from the specs always
# agrees with them.
PROJECT_ROLES = {
    "roles/container.defaultNodeServiceAccount": "nodes",
    "roles/monitoring.metricWriter": "exporter",
    # Image streaming calls an API as the node's account.
    "roles/serviceusage.serviceUsageConsumer": "nodes",
}
READER_ROLE = "roles/monitoring.viewer"
RATINGS_ROLE = "roles/compute.viewer"
LISTING_ROLE = "roles/storage.legacyBucketReader"
# Cloud SQL has no grants on an instance, so these are on the project, with a condition that names
# the instance.
CONDITIONAL_PROJECT_ROLES = ("roles/cloudsql.client", "roles/cloudsql.instanceUser")
ACCOUNT_GRANTS = ("google_service_account_iam_member", "google_service_account_iam_binding")
BROAD_ROLES = ("roles/owner", "roles/editor", "roles/viewer")
BROAD_STORAGE_ROLES = (
    "roles/storage.admin",
    "roles/storage.objectAdmin",
    "roles/storage.legacyBucketOwner",
)
PUBLIC = ("allUsers", "allAuthenticatedUsers")
ISSUER = "https://token.actions.githubusercontent.com"
KEY_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
KEY_GRANTS = ("google_kms_crypto_key_iam_member", "google_kms_crypto_key_iam_binding")
# GKE's own agent has it in the host project of a Shared VPC.
HOST_ROLE = "roles/container.hostServiceAgentUser"
PROJECT_IAM = "roles/resourcemanager.projectIamAdmin"
HOST_CONDITION = (
    f"api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly(['{HOST_ROLE}'])"
)
SERVICE_AGENT = re.compile(r"serviceAccount:service-[\w-]+@[a-z-]+\.iam\.gserviceaccount\.com")


def _grants(facts: Facts) -> list[PlannedResource]:
    suffixes = ("_iam_member", "_iam_binding")
    return [resource for resource in facts.resources if resource.kind.endswith(suffixes)]


@rule(
    reason="a role on the project applies to every bucket, queue and cluster in it",
    source="Cloud Storage documentation on IAM roles",
)
def project_roles(facts: Facts) -> Iterator[Finding]:
    """Only nodes, metric writers and report readers have roles on the project; Cloud SQL roles have
    a condition.
    """
    for grant in facts.of("google_project_iam_member", "google_project_iam_binding"):
        members: list[str] = []
        for member in sorted(_members(grant)):
            if not _may_have(facts.environment, grant, member):
                members.append(member)
        if members:
            got = f"{grant.get('role')} for {', '.join(members)}"
            yield grant.finding(
                "role",
                ", ".join(PROJECT_ROLES),
                "grant it on the object instead",
                got,
            )


@rule(
    reason=(
        "an authoritative policy removes every grant that it does not list, and no rule checks its"
        " members"
    ),
    source="google provider documentation on authoritative policies",
)
def no_whole_policies(facts: Facts) -> Iterator[Finding]:
    """Grants are added one by one; nothing replaces the whole IAM policy of a project, bucket or
    account.
    """
    for policy in facts.resources:
        if policy.kind.endswith("_iam_policy"):
            yield policy.finding(
                "policy_data",
                "no such resource",
                "use an _iam_member",
                "a whole policy",
            )


def _members(grant: PlannedResource) -> set[str]:
    """Return the member of an _iam_member, or the members of an _iam_binding."""
    members = (grant.get("member"), *(grant.get("members") or ()))
    return {str(member) for member in members if member}


def _may_have(environment: Environment, grant: PlannedResource, member: str) -> bool:
    role = str(grant.get("role"))
    if environment.delivery and member == environment.member("planner"):
        return role.lower().endswith(("viewer", "reader", "reviewer")) and role not in BROAD_ROLES
    if environment.delivery and member == environment.member("deployer"):
        # The deployment includes grants, so the deployer may grant roles; it must not be an owner.
        if grant.get("project") != environment.project:
            return role == PROJECT_IAM and grant.get("condition.expression") == HOST_CONDITION
        return role not in BROAD_ROLES and role.startswith("roles/")
    if role == HOST_ROLE:
        existing = environment.network.existing
        return bool(
            existing
            and grant.get("project") == existing.project
            and SERVICE_AGENT.fullmatch(member)
        )
    if role in PROJECT_ROLES:
        return member == environment.member(PROJECT_ROLES[role])
    if role == RATINGS_ROLE:
        asks = environment.security.ratings_every_s > 0
        return asks and member == environment.member("exporter")
    if role == READER_ROLE:
        return member in environment.alerts.readers
    return role in CONDITIONAL_PROJECT_ROLES and _is_for_database(environment, grant)


def _is_for_database(environment: Environment, grant: PlannedResource) -> bool:
    """Tell whether the grant's condition names the results database and no alternative to it."""
    instance = f"projects/{environment.project}/instances/{environment.database_name}"
    condition = str(grant.get("condition.expression"))
    return condition.startswith(f'resource.name == "{instance}"') and "||" not in condition


@rule(reason="the internet", source="CIS Google Cloud 5.1")
def no_public_members(facts: Facts) -> Iterator[Finding]:
    """No grant is public."""
    for grant in _grants(facts):
        if _members(grant) & set(PUBLIC):
            yield grant.finding("member", "an identity", "grant it to the accounts that need it")


@rule(
    reason=(
        "owner, editor and viewer hold thousands of permissions; objectAdmin can change access and"
        " delete objects of others"
    ),
    source="CIS Google Cloud 1.5; Cloud Storage documentation on IAM roles",
)
def roles_are_narrow(facts: Facts) -> Iterator[Finding]:
    """No one has a basic role, or admin rights on a bucket."""
    for grant in _grants(facts):
        if grant.kind == "google_project_iam_member":
            continue
        role = grant.get("role")
        is_bucket_admin = grant.kind in BUCKET_GRANTS and role in BROAD_STORAGE_ROLES
        if role in BROAD_ROLES or is_bucket_admin:
            yield grant.finding(
                "role",
                "a narrower role, as roles/storage.objectUser",
                "grant the role that is needed",
            )


BUCKET_GRANTS = ("google_storage_bucket_iam_member", "google_storage_bucket_iam_binding")
# Every other role on a bucket may write objects.
READING = ("roles/storage.objectViewer", LISTING_ROLE, "roles/storage.legacyObjectReader")


def _folders_in_condition(environment: Environment, grant: PlannedResource) -> set[str]:
    """Return the folders of checkpoints that the grant's condition admits; none if the condition
    has any other form.
    """
    bucket = re.escape(environment.bucket("checkpoints"))
    objects = rf"projects/_/buckets/{bucket}/objects"
    term = rf'resource\.name\.startsWith\("{objects}/([^"/]+|teams/[^"/]+)/"\)'
    condition = str(grant.get("condition.expression"))
    if re.fullmatch(rf"{term}( \|\| {term})*", condition):
        return set(re.findall(term, condition))
    return set()


def _list_run_folders(run: Run) -> set[str]:
    return {prefix.removesuffix("/") for prefix in run.prefixes}


def _names_one_run(environment: Environment, grant: PlannedResource) -> bool:
    """Tell whether the grant has one run or one team as its member, and a condition for exactly
    the folders of this run or team.
    """
    folders = _folders_in_condition(environment, grant)
    members = _members(grant)
    for team in environment.teams:
        if members == {environment.member(team.role)}:
            return folders == {team.folder}
    if not environment.storage.runs:
        return members == {environment.member("trainer")} and folders == {"default"}
    if len(members) != 1 or not folders:
        return False
    account = re.sub(r".*/subject/ns/([^/]+)/sa/run-", r"\1/", members.pop())
    for run in environment.storage.runs:
        if account == f"{_find_namespace(environment, run)}/{run.name}":
            return folders == _list_run_folders(run)
    return False


def _find_namespace(environment: Environment, run: Run) -> str:
    for team in environment.teams:
        if run.name in team.runs:
            return team.spaces[0]
    return "training"


def _reads_permitted_runs(environment: Environment, grant: PlannedResource) -> bool:
    """Tell whether each member only lists names, verifies all runs as the trainer, or reads runs
    that name its role.
    """
    if grant.get("role") == LISTING_ROLE:
        return True
    folders = _folders_in_condition(environment, grant)
    for member in _members(grant) - {environment.member("trainer")}:
        if not folders or not folders <= _readable_folders(environment, member):
            return False
    return True


def _readable_folders(environment: Environment, member: str) -> set[str]:
    folders: set[str] = set()
    for role in READERS:
        if member != environment.member(role):
            continue
        for run in environment.storage.runs:
            if role in run.read_by:
                folders |= _list_run_folders(run)
    return folders | _folders_read_by_teams(environment).get(member, set())


def _folders_read_by_teams(environment: Environment) -> dict[str, set[str]]:
    """Return, by member, what a team's account may read besides its own folder: the checkpoints of
    the team's runs.
    """
    folders: dict[str, set[str]] = {}
    for team in environment.teams:
        member = environment.member(team.role)
        folders[member] = set()
        for run in environment.storage.runs:
            if run.name in team.runs:
                folders[member] |= _list_run_folders(run)
    return folders


@rule(
    reason="otherwise a compromised server or another team's batch job can copy every model",
    source="IAM conditions on Cloud Storage objects",
)
def runs_are_read_by_name(facts: Facts) -> Iterator[Finding]:
    """If runs are isolated, batch workers and servers read only the checkpoints of runs that name
    them; a team's jobs read only those of the team.
    """
    environment = facts.environment
    team_members = set(_folders_read_by_teams(environment))
    for grant in _checkpoint_grants(facts):
        isolated = environment.storage.runs or _members(grant) & team_members
        if not isolated or grant.get("role") not in READING:
            continue
        if not _reads_permitted_runs(environment, grant):
            members = ", ".join(sorted(_members(grant)))
            got = f"{members} if {grant.get('condition.expression')}"
            yield grant.finding(
                "condition",
                "runs with this role in read_by",
                "name the role in Run.read_by",
                got,
            )


def _checkpoint_grants(facts: Facts) -> Iterator[PlannedResource]:
    bucket = facts.environment.bucket("checkpoints")
    for grant in facts.of(*BUCKET_GRANTS):
        if grant.get("bucket") == bucket:
            yield grant


@rule(
    reason="otherwise servers start, have no access to any object, and never become ready",
    source="infra/decisions/0069",
)
def servers_have_a_run(facts: Facts) -> Iterator[Finding]:
    """If runs are isolated, online inference may read at least one."""
    environment = facts.environment
    runs = environment.storage.runs
    if not environment.serving or not runs:
        return
    if not any("server" in run.read_by for run in runs):
        allowed = "a run that servers read"
        fix = 'add read_by=("server",) to the run that is served'
        yield environment_finding(environment, "storage.runs", "none", allowed, fix)


@rule(
    reason="otherwise a compromised or misnamed run can delete the checkpoints of all others",
    source="IAM conditions on Cloud Storage objects",
)
def runs_write_their_own(facts: Facts) -> Iterator[Finding]:
    """Each run writes checkpoints only below its own prefix; all training below one prefix where no
    runs are listed.
    """
    environment = facts.environment
    # The rule production-is-safe reports that production has no runs.
    if environment.production and not environment.storage.runs:
        return
    for grant in _checkpoint_grants(facts):
        if grant.get("role") not in READING and not _names_one_run(environment, grant):
            got = (
                f"{grant.get('role')} to {', '.join(sorted(_members(grant)))} if"
                f" {grant.get('condition.expression')}"
            )
            yield grant.finding(
                "condition",
                "one run below its own prefix",
                "name the run in storage.runs",
                got,
            )


@rule(reason="a copied key file stays valid after its user has left", source="CIS Google Cloud 1.4")
def no_account_keys(facts: Facts) -> Iterator[Finding]:
    """No service account has a key."""
    for key in facts.of("google_service_account_key"):
        yield key.finding("service_account_id", "no such resource", "use Workload Identity")


@rule(
    reason="anyone with access to the key can read or destroy all the data that it encrypts",
    source="CIS Google Cloud 1.11",
)
def keys_serve_agents(facts: Facts) -> Iterator[Finding]:
    """Only Google's service agents use a key, to encrypt and decrypt; deployer and planner manage
    and read the grants on it.
    """
    environment = facts.environment
    workflows = {}
    if environment.delivery:
        workflows[environment.member("deployer")] = "roles/cloudkms.admin"
        workflows[environment.member("planner")] = "roles/iam.securityReviewer"
    for grant in facts.of(*KEY_GRANTS):
        if workflows.get(str(grant.get("member"))) == grant.get("role"):
            continue
        members = sorted(_members(grant))
        strangers = [member for member in members if not SERVICE_AGENT.fullmatch(member)]
        if strangers or grant.get("role") != KEY_ROLE:
            got = f"{grant.get('role')} to {', '.join(strangers or members)}"
            yield grant.finding("role", f"{KEY_ROLE} to a service agent", "leave people out", got)


def _is_one_workload(environment: Environment, account: str, member: str) -> bool:
    """Tell whether `member` is one Kubernetes account; for the planner, the workflows of one
    repository; for the deployer, one protected environment of it.
    """
    delivery = environment.delivery
    if delivery and account.endswith(environment.service_account_email("planner")):
        return member.startswith("principalSet://") and member.endswith(
            f"/attribute.repository_id/{delivery.repository_id}"
        )
    if delivery and account.endswith(environment.service_account_email("deployer")):
        subjects = tuple(f"/subject/{subject}" for subject in delivery.subjects)
        return member.startswith("principal://") and member.endswith(subjects)
    return member.startswith(f"serviceAccount:{environment.workload_pool}[") and "/" in member


@rule(
    reason="otherwise every GitHub repository can get a token",
    source="Workload Identity Federation documentation",
)
def one_repository_is_trusted(facts: Facts) -> Iterator[Finding]:
    """A workload identity pool admits one repository."""
    delivery = facts.environment.delivery
    condition = "no such resource"
    if delivery:
        condition = (
            f'assertion.repository_id == "{delivery.repository_id}" &&'
            f' assertion.repository_owner_id == "{delivery.owner_id}"'
        )
    providers = facts.of("google_iam_workload_identity_pool_provider")
    fix = "set delivery.repository_id and owner_id"
    yield from check_value(providers, "attribute_condition", condition, fix)
    # The operator of the issuer can write anything into the tokens that the condition reads.
    yield from check_value(providers, "oidc.issuer_uri", ISSUER, "trust only GitHub's issuer")


@rule(
    reason=(
        "the subject of a repository that was made, renamed or transferred since July 2026 has its"
        " number in it, and a grant to the name never matches"
    ),
    source="https://docs.github.com/en/actions/reference/security/oidc#immutable-subject-claims",
)
def workflows_can_log_in(facts: Facts) -> Iterator[Finding]:
    """The deployer can be used by both forms of its gate's subject."""
    delivery = facts.environment.delivery
    grants = facts.of(*ACCOUNT_GRANTS)
    if delivery is None or not grants:
        return
    deployer = facts.environment.service_account_email("deployer")
    members: set[str] = set()
    for grant in grants:
        if str(grant.get("service_account_id")).endswith(deployer):
            members |= _members(grant)
    for subject in delivery.subjects:
        if not any(member.endswith(f"/subject/{subject}") for member in members):
            yield environment_finding(
                facts.environment,
                "delivery",
                ", ".join(sorted(members)) or "no grant",
                f"a grant of the deployer to {subject}",
                "grant it, as infra/specs/delivery.py does",
            )


@rule(
    reason="otherwise any pod of the namespace can act as the account",
    source="GKE documentation on Workload Identity",
)
def one_account_one_workload(facts: Facts) -> Iterator[Finding]:
    """Each service account can be used by one Kubernetes account of this project's pool."""
    environment = facts.environment
    for grant in facts.of(*ACCOUNT_GRANTS):
        account = str(grant.get("service_account_id"))
        members = sorted(_members(grant))
        is_sound = (
            grant.get("role") == "roles/iam.workloadIdentityUser"
            and len(members) == 1
            and _is_one_workload(environment, account, members[0])
        )
        if not is_sound:
            allowed = f"workloadIdentityUser for {environment.workload_pool}[namespace/account]"
            got = f"{grant.get('role')} to {', '.join(members)}"
            yield grant.finding("member", allowed, "bind one Kubernetes account", got)
