"""Accounts that plan and deploy from the workflows of a repository, by exchanged tokens, never by a
key.

The pool trusts one repository. Any of its workflows may plan, which reads; to deploy, a job must
run in the protected environment of the repository, since that is where a person agrees.
"""

from infra.environments.schema import Delivery, Environment
from infra.specs.identities import account, acting_as, project_grant, service_account
from infra.specs.network import api
from infra.specs.resource import Resource, grant

ISSUER = "https://token.actions.githubusercontent.com"
POOL = "google_iam_workload_identity_pool.github"
PLANNER = (
    "artifactregistry.reader",
    "cloudsql.viewer",
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
    subject = f"repo:{delivery.repository}:environment:{delivery.environment}"
    planner = f"principalSet:{pool}/attribute.repository/{delivery.repository}"
    deployer = f"principal:{pool}/subject/{subject}"
    return [
        *_trust(environment, delivery),
        *_account(environment, "planner", planner_roles, "objectViewer", planner),
        *_account(environment, "deployer", deployer_roles, "objectUser", deployer),
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
                    "attribute.repository": "assertion.repository",
                },
                # Without it every repository of the world gets a token of this pool.
                "attribute_condition": f'assertion.repository == "{delivery.repository}"',
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
