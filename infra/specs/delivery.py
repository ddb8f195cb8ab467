"""Who may plan and deploy from the workflows of a repository: two accounts, reached by exchanged
tokens, never by a key.

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
    # Who may not read a resource cannot plan at all: the refresh of the whole stack fails.
    written = environment.image_patterns is not None
    plans = (*PLANNER, *(["binaryauthorization.policyViewer"] if written else ()))
    deploys = (*DEPLOYER, *(["binaryauthorization.policyEditor"] if written else ()))
    planner = f"Set:{_pool(environment)}/attribute.repository/{delivery.repository}"
    deployer = f":{_pool(environment)}/subject/repo:{delivery.repository}:environment:{delivery.environment}"
    return [
        *_trust(environment, delivery),
        *_account(environment, "planner", plans, "objectViewer", planner),
        *_account(environment, "deployer", deploys, "objectUser", deployer),
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
    granted: tuple[str, ...],
    state: str,
    who: str,
) -> list[Resource]:
    found = [
        service_account(environment, role),
        acting_as(environment, f"workflows-{role}", role, f"principal{who}", account(role), POOL),
        *(
            project_grant(environment, f"{role}-{name.replace('.', '-')}", role, f"roles/{name}")
            for name in granted
        ),
    ]
    if environment.state_bucket:
        after = (account(role), *api(environment, "storage"))
        bucket = environment.state_bucket
        member = environment.member(role)
        right = f"roles/storage.{state}"
        found.append(grant("storage_bucket", f"state-{role}", right, member, after, bucket=bucket))
    return found
