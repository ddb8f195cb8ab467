"""Who may do what: only roles that are needed, on the object that is the target."""

import re
from collections.abc import Iterator

from infra.environments import Environment
from infra.environments.runs import READERS, Run
from infra.rules.model import Facts, Finding, PlannedResource, each, of_environment, rule

# Repeated here, not read from the specs: a rule that takes the right values from the specs always
# agrees with them.
PROJECT_ROLES = {
    "roles/container.defaultNodeServiceAccount": "nodes",
    "roles/monitoring.metricWriter": "exporter",
}
READER_ROLE = "roles/monitoring.viewer"
LISTING_ROLE = "roles/storage.legacyBucketReader"
# Cloud SQL has no grants on an instance, so these are on the project, with a condition that names
# the instance.
CONDITIONAL_PROJECT_ROLES = ("roles/cloudsql.client", "roles/cloudsql.instanceUser")
BROAD_ROLES = ("roles/owner", "roles/editor", "roles/viewer")
BROAD_STORAGE_ROLES = (
    "roles/storage.admin",
    "roles/storage.objectAdmin",
    "roles/storage.legacyBucketOwner",
)
PUBLIC = ("allUsers", "allAuthenticatedUsers")
ISSUER = "https://token.actions.githubusercontent.com"
KEY_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
# Of GKE's own agent, in the host project of a Shared VPC.
HOST_ROLE = "roles/container.hostServiceAgentUser"
SERVICE_AGENT = re.compile(r"serviceAccount:service-[\w-]+@[a-z-]+\.iam\.gserviceaccount\.com")


def _grants(facts: Facts) -> list[PlannedResource]:
    return [f for f in facts.resources if f.kind.endswith(("_iam_member", "_iam_binding"))]


@rule(
    reason="a role on the project applies to every bucket, queue and cluster in it",
    source="Cloud Storage documentation on IAM roles",
)
def project_roles(facts: Facts) -> Iterator[Finding]:
    """Only nodes, metric writers and report readers have roles on the project; Cloud SQL roles have
    a condition.
    """
    for grant in facts.of("google_project_iam_member", "google_project_iam_binding"):
        wrong = sorted(m for m in _members(grant) if not _may_have(facts.environment, grant, m))
        if wrong:
            got = f"{grant.get('role')} for {', '.join(wrong)}"
            yield grant.finding(
                "role", ", ".join(PROJECT_ROLES), "grant it on the object instead", got
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
                "policy_data", "no such resource", "use an _iam_member", "a whole policy"
            )


def _members(grant: PlannedResource) -> set[str]:
    """Of a member or a binding."""
    return {str(m) for m in (grant.get("member"), *(grant.get("members") or ())) if m}


def _may_have(environment: Environment, grant: PlannedResource, member: str) -> bool:
    role = str(grant.get("role"))
    if environment.delivery and member == environment.member("planner"):
        return role.lower().endswith(("viewer", "reader", "reviewer")) and role not in BROAD_ROLES
    if environment.delivery and member == environment.member("deployer"):
        # What it deploys includes grants, so it may grant; but not as the owner, nor read what the
        # platform stores.
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
    if role == READER_ROLE:
        return member in environment.alerts.readers
    named = (
        f'resource.name == "projects/{environment.project}/instances/{environment.database_name}"'
    )
    # A condition that is always true, or that an `||` opens again, is none.
    condition = str(grant.get("condition.expression"))
    return (
        role in CONDITIONAL_PROJECT_ROLES and condition.startswith(named) and "||" not in condition
    )


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
    for grant in (grant for grant in _grants(facts) if grant.kind != "google_project_iam_member"):
        broad = (*BROAD_ROLES, *(BROAD_STORAGE_ROLES if grant.kind in BUCKET_GRANTS else ()))
        if grant.get("role") in broad:
            yield grant.finding(
                "role",
                "a narrower role, as roles/storage.objectUser",
                "grant the role that is needed",
            )


# Of objects; every other role may write.
BUCKET_GRANTS = ("google_storage_bucket_iam_member", "google_storage_bucket_iam_binding")
READING = ("roles/storage.objectViewer", LISTING_ROLE, "roles/storage.legacyObjectReader")


def _below(environment: Environment, grant: PlannedResource) -> set[str]:
    """Runs below whose prefixes its condition admits objects; none where it admits anything else."""
    bucket = re.escape(environment.bucket("checkpoints"))
    term = rf'resource\.name\.startsWith\("projects/_/buckets/{bucket}/objects/([^"/]+|teams/[^"/]+)/"\)'
    condition = str(grant.get("condition.expression"))
    if re.fullmatch(rf"{term}( \|\| {term})*", condition):
        return set(re.findall(term, condition))
    return set()


def _folders(run: Run) -> set[str]:
    return {f"{run.name}-{index}" for index in range(run.indices)} or {run.name}


def _of_one_run(environment: Environment, grant: PlannedResource) -> bool:
    """Whether it names one run or team, and a condition for its prefixes and nothing else."""
    found = _below(environment, grant)
    teams = {
        environment.member(f"team-{team.name}"): f"teams/{team.name}" for team in environment.teams
    }
    if _members(grant) & {*teams}:
        return {teams.get(member) for member in _members(grant)} == found
    if not environment.storage.runs:
        return _members(grant) == {environment.member("trainer")} and found == {"default"}
    owners = {run.name: _folders(run) for run in environment.storage.runs}
    subjects = [
        re.sub(r".*/subject/ns/([^/]+)/sa/run-", r"\1/", member) for member in _members(grant)
    ]
    homes = {run: team.spaces[0] for team in environment.teams for run in team.runs}
    named = {f"{homes.get(name, 'training')}/{name}": prefixes for name, prefixes in owners.items()}
    return len(subjects) == 1 and bool(found) and found == named.get(subjects[0])


def _reads_what_it_may(environment: Environment, grant: PlannedResource) -> bool:
    """Whether each member reads runs that name it, or verifies all of them, or reads names alone."""
    if grant.get("role") == LISTING_ROLE:
        return True
    found = _below(environment, grant)
    named = {}
    for role in READERS:
        named[environment.member(role)] = {
            name
            for run in environment.storage.runs
            if role in run.read_by
            for name in _folders(run)
        }
    named |= _read_by_teams(environment)
    verifies = environment.member("trainer")
    return all(
        m == verifies or (found and found <= named.get(m, set[str]())) for m in _members(grant)
    )


def _read_by_teams(environment: Environment) -> dict[str, set[str]]:
    """What each team's account may read besides its own folder: what the team's runs have saved."""
    runs = environment.storage.runs
    return {
        environment.member(f"team-{team.name}"): {
            name for run in runs if run.name in team.runs for name in _folders(run)
        }
        for team in environment.teams
    }


@rule(
    reason="otherwise a compromised server or another team's batch job can copy every model",
    source="IAM conditions on Cloud Storage objects",
)
def runs_are_read_by_name(facts: Facts) -> Iterator[Finding]:
    """If runs are isolated, batch workers and servers read only the checkpoints of runs that name
    them; a team's jobs read only those of the team.
    """
    environment = facts.environment
    teams = {*_read_by_teams(environment)}
    for grant in facts.of(*BUCKET_GRANTS):
        ours = (
            grant.get("bucket") == environment.bucket("checkpoints")
            and grant.get("role") in READING
        )
        judged = bool(environment.storage.runs or _members(grant) & teams)
        if ours and judged and not _reads_what_it_may(environment, grant):
            got = f"{', '.join(sorted(_members(grant)))} if {grant.get('condition.expression')}"
            yield grant.finding(
                "condition", "runs with this role in read_by", "name the role in Run.read_by", got
            )


@rule(
    reason="otherwise servers start, have no access to any object, and never become ready",
    source="infra/decisions/0069",
)
def servers_have_a_run(facts: Facts) -> Iterator[Finding]:
    """If runs are isolated, online inference may read at least one."""
    environment = facts.environment
    runs = environment.storage.runs
    if environment.serving and runs and not any("server" in run.read_by for run in runs):
        allowed = "a run that servers read"
        fix = 'add read_by=("server",) to the run that is served'
        yield of_environment(environment, "storage.runs", "none", allowed, fix)


@rule(
    reason="otherwise a compromised or misnamed run can delete the checkpoints of all others",
    source="IAM conditions on Cloud Storage objects",
)
def runs_write_their_own(facts: Facts) -> Iterator[Finding]:
    """Each run writes checkpoints only below its own prefix; all training below one prefix where no
    runs are listed.
    """
    environment = facts.environment
    # `production_runs_are_apart` refuses that
    if environment.production and not environment.storage.runs:
        return
    for grant in facts.of(*BUCKET_GRANTS):
        ours = grant.get("bucket") == environment.bucket("checkpoints")
        if ours and grant.get("role") not in READING and not _of_one_run(environment, grant):
            got = (
                f"{grant.get('role')} to {', '.join(sorted(_members(grant)))} if"
                f" {grant.get('condition.expression')}"
            )
            yield grant.finding(
                "condition", "one run below its own prefix", "name the run in storage.runs", got
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
    """Only Google's service agents use a key, to encrypt and decrypt."""
    for grant in facts.resources:
        if grant.kind not in (
            "google_kms_crypto_key_iam_member",
            "google_kms_crypto_key_iam_binding",
        ):
            continue
        others = sorted(m for m in _members(grant) if not SERVICE_AGENT.fullmatch(m))
        if others or grant.get("role") != KEY_ROLE:
            got = f"{grant.get('role')} to {', '.join(others or sorted(_members(grant)))}"
            yield grant.finding("role", f"{KEY_ROLE} to a service agent", "leave people out", got)


def _one_workload(environment: Environment, account: str, member: str) -> bool:
    """One Kubernetes account; for delivery accounts, one repository; to deploy, one protected
    environment.
    """
    delivery = environment.delivery
    if delivery and account.endswith(environment.service_account_email("planner")):
        return member.startswith("principalSet://") and member.endswith(
            f"/attribute.repository/{delivery.repository}"
        )
    if delivery and account.endswith(environment.service_account_email("deployer")):
        subject = f"/subject/repo:{delivery.repository}:environment:{delivery.environment}"
        return member.startswith("principal://") and member.endswith(subject)
    return member.startswith(f"serviceAccount:{environment.workload_pool}[") and "/" in member


@rule(
    reason="otherwise every GitHub repository can get a token",
    source="Workload Identity Federation documentation",
)
def one_repository_is_trusted(facts: Facts) -> Iterator[Finding]:
    """A workload identity pool admits one repository."""
    delivery = facts.environment.delivery
    wanted = f'assertion.repository == "{delivery.repository}"' if delivery else "no such resource"
    providers = facts.of("google_iam_workload_identity_pool_provider")
    yield from each(providers, "attribute_condition", wanted, "set delivery.repository")
    # The operator of the issuer can write anything into the tokens that the condition reads.
    yield from each(providers, "oidc.issuer_uri", ISSUER, "trust only GitHub's issuer")


@rule(
    reason="otherwise any pod of the namespace can act as the account",
    source="GKE documentation on Workload Identity",
)
def one_account_one_workload(facts: Facts) -> Iterator[Finding]:
    """Each service account can be used by one Kubernetes account of this project's pool."""
    for grant in facts.of(
        "google_service_account_iam_member", "google_service_account_iam_binding"
    ):
        wrong = []
        for m in _members(grant):
            if not _one_workload(facts.environment, str(grant.get("service_account_id")), m):
                wrong.append(m)
        if (
            grant.get("role") != "roles/iam.workloadIdentityUser"
            or wrong
            or len(_members(grant)) != 1
        ):
            allowed = (
                f"workloadIdentityUser for {facts.environment.workload_pool}[namespace/account]"
            )
            got = f"{grant.get('role')} to {', '.join(sorted(_members(grant)))}"
            yield grant.finding("member", allowed, "bind one Kubernetes account", got)
