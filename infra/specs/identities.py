"""One Google service account per role, and only the roles each needs, on the object that is the
target.
"""

# Decision: infra/decisions/0014.

import re

from holdfast.vocabulary import roles
from infra.environments.runs import READERS
from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource, grant

# Roles that exist on a project only: a node logs, pulls and reports under its own name, and streams
# images by an API of the project; the exporter writes metrics, which belong to no resource.
PROJECT_ROLES = {
    "nodes": "roles/container.defaultNodeServiceAccount",
    "exporter": "roles/monitoring.metricWriter",
}
STREAMING_ROLE = "roles/serviceusage.serviceUsageConsumer"
# To read Compute Engine's ratings: Google's narrowest role with compute.advice.capacity.
RATINGS_ROLE = "roles/compute.viewer"
# A listing with any prefix is a request to the bucket, so no condition on objects admits it.
LIST_ROLE = "roles/storage.legacyBucketReader"
# People who run the report read metrics, which belong to no resource.
READER_ROLE = "roles/monitoring.viewer"
# role -> purpose of the bucket -> what it may do there
BUCKET_ROLES = {
    # It verifies all checkpoints, and writes what infra/specs/storage.py adds.
    "trainer": {"checkpoints": "roles/storage.objectViewer", "data": "roles/storage.objectViewer"},
    "batch": {"checkpoints": "roles/storage.objectViewer", "data": "roles/storage.objectViewer"},
    # Able to read what training stored, and no more.
    "server": {"checkpoints": "roles/storage.objectViewer"},
}


def bucket_roles(environment: Environment) -> dict[str, dict[str, str]]:
    """Return role -> purpose of the bucket -> IAM role.

    If runs are listed, readers may list all of them, since a listing is a request to the bucket;
    `Run.read_by` limits what they read.
    """
    if not environment.storage.runs:
        return BUCKET_ROLES
    granted_roles = dict(BUCKET_ROLES)
    for role in READERS:
        granted_roles[role] = BUCKET_ROLES[role] | {"checkpoints": LIST_ROLE}
    return granted_roles


def account(role: str) -> str:
    return f"google_service_account.{role}"


def service_account(environment: Environment, role: str) -> Resource:
    arguments = {
        "account_id": environment.account_id(role),
        "display_name": f"{environment.cluster_name} {role}",
    }
    return Resource(
        kind="google_service_account",
        id=role,
        arguments=arguments,
        after=api(environment, "iam"),
    )


def project_grant(
    environment: Environment,
    id: str,
    role: str,
    granted: str,
    condition: object = None,
) -> Resource:
    """Grant `granted` on the project to the account of `role`."""
    after = (account(role), *api(environment, "cloudresourcemanager"))
    return grant(
        "project",
        id,
        granted,
        environment.member(role),
        after,
        condition,
        project=environment.project,
    )


def acting_as(
    environment: Environment,
    id: str,
    role: str,
    member: str,
    *after: str,
) -> Resource:
    """Let `member` act as the account of `role`."""
    path = (
        f"projects/{environment.project}/serviceAccounts/{environment.service_account_email(role)}"
    )
    return grant(
        "service_account",
        id,
        "roles/iam.workloadIdentityUser",
        member,
        after,
        service_account_id=path,
    )


def resources(environment: Environment) -> list[Resource]:
    named = [*roles.ROLES, *(team.role for team in environment.teams)]
    accounts = [service_account(environment, role) for role in named]
    grants: list[Resource] = []
    for role, granted in PROJECT_ROLES.items():
        grants.append(project_grant(environment, role, role, granted))
    grants.append(project_grant(environment, "nodes-streaming", "nodes", STREAMING_ROLE))
    if environment.security.ratings_every_s:
        grants.append(project_grant(environment, "exporter-ratings", "exporter", RATINGS_ROLE))
    return [
        *accounts,
        *grants,
        *_readers(environment),
        *_event_lines(environment),
        *_data_access_logs(environment),
    ]


def _data_access_logs(environment: Environment) -> list[Resource]:
    """Record who reads and writes objects and secrets; Google records neither by itself."""
    if not environment.security.data_access_logs:
        return []
    services = ["storage"]
    if environment.security.secret_manager:
        services.append("secretmanager")
    resources = []
    for service in services:
        arguments = {
            "project": environment.project,
            "service": f"{service}.googleapis.com",
            "audit_log_config": [{"log_type": "DATA_READ"}, {"log_type": "DATA_WRITE"}],
        }
        resources.append(
            Resource(
                kind="google_project_iam_audit_config",
                id=service,
                arguments=arguments,
                after=api(environment, "cloudresourcemanager"),
            )
        )
    return resources


def _readers(environment: Environment) -> list[Resource]:
    after = api(environment, "cloudresourcemanager")
    project = environment.project
    grants: list[Resource] = []
    for reader in environment.alerts.readers:
        # From the name, not its place in the list: a reader that is added must not move the others.
        id = f"reader-{re.sub(r'[^a-z0-9]+', '-', reader.lower())}"
        grants.append(grant("project", id, READER_ROLE, reader, after, project=project))
    return grants


def _event_lines(environment: Environment) -> list[Resource]:
    """Let exporter and mover read the output of containers, and no other log of the project."""
    bucket, _, name = roles.events_view(environment.project, environment.cluster_name).rpartition(
        "/views/"
    )
    view = Resource(
        kind="google_logging_log_view",
        id="events",
        arguments={
            "name": name,
            "bucket": bucket,
            "description": "Event lines of jobs, for the exporter",
            "filter": (
                f'SOURCE("projects/{environment.project}") AND resource.type = "k8s_container" AND'
                ' LOG_ID("stdout")'
            ),
        },
        after=api(environment, "logging"),
    )
    parent = {
        "parent": f"projects/{environment.project}",
        "location": "global",
        "bucket": "_Default",
        "name": name,
    }

    def reader(id: str, role: str) -> Resource:
        after = (account(role), view.address)
        return grant(
            "logging_log_view",
            id,
            "roles/logging.viewAccessor",
            environment.member(role),
            after,
            **parent,
        )

    # The first has no suffix: its id is an address of Terraform that must not change.
    return [view, reader("events", "exporter"), reader("events-mover", "mover")]


def workload_bindings(environment: Environment) -> list[Resource]:
    """Let pods act as their Google account. Part of the cluster's stack, which creates the workload
    pool.
    """
    pods = f"serviceAccount:{environment.workload_pool}"
    cluster = "google_container_cluster.cluster"
    bindings: list[Resource] = []
    for role, namespace in roles.KSA_NAMESPACES.items():
        member = f"{pods}[{namespace}/{role}]"
        bindings.append(acting_as(environment, f"workload-{role}", role, member, cluster))
    for team in environment.teams:
        for namespace, name in team.pod_identities:
            id = f"workload-{name}-{namespace}"
            member = f"{pods}[{namespace}/{name}]"
            bindings.append(acting_as(environment, id, team.role, member, cluster))
    return bindings
