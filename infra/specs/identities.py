"""One Google service account per role, and only the roles each needs, on the object that is the target."""

from infra.contract import names
from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource

# The two roles that make sense on a project only: a node logs, pulls and reports under its own name;
# the exporter writes metrics, which belong to no resource.
PROJECT_ROLES = {
    "nodes": "roles/container.defaultNodeServiceAccount",
    "exporter": "roles/monitoring.metricWriter",
}
# role -> purpose of the bucket -> what it may do there
BUCKET_ROLES = {
    "trainer": {"checkpoints": "roles/storage.objectUser", "data": "roles/storage.objectViewer"},
    "batch": {
        "checkpoints": "roles/storage.objectViewer",
        "data": "roles/storage.objectViewer",
        "exports": "roles/storage.objectUser",
    },
    "server": {"checkpoints": "roles/storage.objectViewer"},
}


def account(role: str) -> str:
    return f"google_service_account.{role}"


def resources(environment: Environment) -> list[Resource]:
    accounts = [
        Resource(
            kind="google_service_account",
            id=role,
            arguments={
                "account_id": names.service_account(environment.name_prefix, environment.name, role),
                "display_name": f"{environment.cluster_name} {role}",
            },
            after=api(environment, "iam"),
        )
        for role in names.ROLES
    ]
    grants = [
        Resource(
            kind="google_project_iam_member",
            id=role,
            arguments={
                "project": environment.project,
                "role": granted,
                "member": f"serviceAccount:{environment.service_account_email(role)}",
            },
            after=(account(role),),
        )
        for role, granted in PROJECT_ROLES.items()
    ]
    return accounts + grants


def workload_bindings(environment: Environment) -> list[Resource]:
    """Pods act as their Google account. Part of the cluster stack: the workload pool exists once a cluster does."""
    return [
        Resource(
            kind="google_service_account_iam_member",
            id=f"workload-{role}",
            arguments={
                "service_account_id": (
                    f"projects/{environment.project}/serviceAccounts/{environment.service_account_email(role)}"
                ),
                "role": "roles/iam.workloadIdentityUser",
                "member": f"serviceAccount:{environment.workload_pool}[{namespace}/{role}]",
            },
            after=("google_container_cluster.cluster",),
        )
        for role, namespace in names.KSA_NAMESPACES.items()
    ]
