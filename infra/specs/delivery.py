"""Accounts that plan and deploy from the workflows of a repository, by exchanged tokens, never by a
key.

The pool trusts one repository, by its number: a name can be taken by somebody else once it is free.
Any of its workflows may plan, which reads; to deploy, a job must run in the protected environment
of the repository, since that is where a person agrees.
"""

# Decision: infra/decisions/0133.

from infra.environments.schema import Delivery, Environment
from infra.specs.identities import account, acting_as, project_grant, service_account
from infra.specs.network import api
from infra.specs.resource import Resource, grant

ISSUER = "https://token.actions.githubusercontent.com"
POOL = "google_iam_workload_identity_pool.github"
PLANNER = (
    "artifactregistry.reader",
    "cloudsql.viewer",
    "compute.networkViewer",
    "compute.viewer",
    "container.viewer",
    "dns.reader",
    "iam.securityReviewer",
    "iam.serviceAccountViewer",
    "iam.workloadIdentityPoolViewer",
    "logging.viewer",
    "monitoring.viewer",
    "pubsub.viewer",
    "serviceusage.serviceUsageViewer",
    "storage.bucketViewer",
)
DEPLOYER = (
    "artifactregistry.admin",
    "cloudsql.admin",
    "compute.networkAdmin",
    "compute.securityAdmin",
    "container.admin",
    "dns.admin",
    "iam.serviceAccountAdmin",
    "iam.serviceAccountUser",
    "iam.workloadIdentityPoolAdmin",
    "logging.admin",
    "monitoring.admin",
    "pubsub.admin",
    "resourcemanager.projectIamAdmin",
    "serviceusage.serviceUsageAdmin",
    "storage.admin",
)
KEY_ADMIN = "roles/cloudkms.admin"
REVIEWER = "roles/iam.securityReviewer"
PROJECT_IAM = "roles/resourcemanager.projectIamAdmin"
# IAM documentation, limits on granting roles: the holder changes bindings of this role only.
ONE_ROLE = {
    "title": "GKE host agent only",
    "expression": (
        "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', [])"
        ".hasOnly(['roles/container.hostServiceAgentUser'])"
    ),
}


def resources(environment: Environment) -> list[Resource]:
    delivery = environment.delivery
    if delivery is None:
        return []
    # Each must be able to read every resource: otherwise the refresh of the whole stack fails.
    planner_roles = PLANNER
    deployer_roles = DEPLOYER
    if environment.image_patterns is not None:
        planner_roles += ("binaryauthorization.policyViewer",)
        deployer_roles += ("binaryauthorization.policyEditor",)
    pool = _pool(environment)
    planner = f"principalSet:{pool}/attribute.repository_id/{delivery.repository_id}"
    numbered, named = (f"principal:{pool}/subject/{subject}" for subject in delivery.subjects)
    return [
        *_trust(environment, delivery),
        *_account(environment, "planner", planner_roles, "objectViewer", planner),
        *_account(environment, "deployer", deployer_roles, "objectUser", numbered),
        acting_as(
            environment,
            "workflows-deployer-by-name",
            "deployer",
            named,
            account("deployer"),
            POOL,
        ),
        *_key_grants(environment),
        *_host_grants(environment),
    ]


def _key_grants(environment: Environment) -> list[Resource]:
    """Let the accounts manage, or read, the grants of Google's services on the environment's key,
    which may belong to another project.
    """
    key = environment.security.kms_key
    if not key:
        return []
    grants = []
    for role, granted in (("deployer", KEY_ADMIN), ("planner", REVIEWER)):
        after = (account(role), *api(environment, "cloudkms"))
        member = environment.member(role)
        grants.append(
            grant("kms_crypto_key", f"{role}-key", granted, member, after, crypto_key_id=key)
        )
    return grants


def _host_grants(environment: Environment) -> list[Resource]:
    """Let the accounts manage, or read, what the environment grants in a Shared VPC host project,
    and no other role there.
    """
    existing = environment.network.existing
    if existing is None or not existing.grants:
        return []
    _, project, _, region, _, subnet = existing.subnet.split("/")
    deployer = environment.member("deployer")
    planner = environment.member("planner")
    after = (account("deployer"), account("planner"))
    return [
        grant(
            "compute_subnetwork",
            "host-deployer",
            "roles/compute.networkAdmin",
            deployer,
            after,
            project=project,
            region=region,
            subnetwork=subnet,
        ),
        grant("project", "host-deployer", PROJECT_IAM, deployer, after, ONE_ROLE, project=project),
        grant("project", "host-planner", REVIEWER, planner, after, project=project),
    ]


def _pool(environment: Environment) -> str:
    return f"//iam.googleapis.com/{environment.identity_pools}/{environment.identity_pool}"


def _trust(environment: Environment, delivery: Delivery) -> list[Resource]:
    pool = environment.identity_pool
    return [
        Resource(
            kind="google_iam_workload_identity_pool",
            id="github",
            arguments={
                "workload_identity_pool_id": pool,
                "display_name": f"{environment.cluster_name} workflows",
            },
            after=api(environment, "iam"),
        ),
        Resource(
            kind="google_iam_workload_identity_pool_provider",
            id="github",
            arguments={
                "workload_identity_pool_id": pool,
                "workload_identity_pool_provider_id": "github",
                "attribute_mapping": {
                    "google.subject": "assertion.sub",
                    "attribute.repository_id": "assertion.repository_id",
                },
                # Without it every repository of the world gets a token of this pool.
                "attribute_condition": delivery.condition,
                "oidc": {"issuer_uri": ISSUER},
            },
            after=(POOL,),
        ),
    ]


def _account(
    environment: Environment,
    role: str,
    project_roles: tuple[str, ...],
    state_role: str,
    workflows: str,
) -> list[Resource]:
    """Return an account for `workflows`, a principal, with its roles on project and state."""
    resources = [
        service_account(environment, role),
        acting_as(environment, f"workflows-{role}", role, workflows, account(role), POOL),
    ]
    for name in project_roles:
        id = f"{role}-{name.replace('.', '-')}"
        resources.append(project_grant(environment, id, role, f"roles/{name}"))
    if environment.state_bucket:
        resources.append(
            grant(
                "storage_bucket",
                f"state-{role}",
                f"roles/storage.{state_role}",
                environment.member(role),
                (account(role), *api(environment, "storage")),
                bucket=environment.state_bucket,
            )
        )
    return resources
