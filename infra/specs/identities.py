"""One Google service account per role, and only the roles each needs, on the object that is the target."""

# Why it is so: infra/decisions/0014.

import re

from holdfast.contract import roles
from infra.contract import names
from infra.environments.runs import READERS
from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource

# The two roles that make sense on a project only: a node logs, pulls and reports under its own name;
# the exporter writes metrics, which belong to no resource.
PROJECT_ROLES = {
    "nodes": "roles/container.defaultNodeServiceAccount",
    "exporter": "roles/monitoring.metricWriter",
}
# A listing is asked of the bucket, whatever its prefix, so that no condition on objects admits it.
LIST_ROLE = "roles/storage.legacyBucketReader"
# Of people who run the report; metrics too belong to no resource.
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
    """Where runs are kept apart, who loads some of them may list all, since a listing is asked of the bucket; what it
    reads follows from `Run.read_by`."""
    if not environment.storage.runs:
        return BUCKET_ROLES
    return BUCKET_ROLES | {role: BUCKET_ROLES[role] | {"checkpoints": LIST_ROLE} for role in READERS}


def account(role: str) -> str:
    return f"google_service_account.{role}"


def service_account(environment: Environment, role: str) -> Resource:
    arguments = {
        "account_id": names.service_account(environment.name_prefix, environment.name, role),
        "display_name": f"{environment.cluster_name} {role}",
    }
    return Resource(kind="google_service_account", id=role, arguments=arguments, after=api(environment, "iam"))


def project_grant(environment: Environment, id: str, role: str, granted: str) -> Resource:
    """To the account of `role`."""
    member = f"serviceAccount:{environment.service_account_email(role)}"
    return Resource(
        kind="google_project_iam_member",
        id=id,
        arguments={"project": environment.project, "role": granted, "member": member},
        after=(account(role), *api(environment, "cloudresourcemanager")),
    )


def resources(environment: Environment) -> list[Resource]:
    accounts = [service_account(environment, role) for role in roles.ROLES]
    grants = [project_grant(environment, role, role, granted) for role, granted in PROJECT_ROLES.items()]
    return [*accounts, *grants, *_readers(environment), *_event_lines(environment)]


def _readers(environment: Environment) -> list[Resource]:
    return [
        Resource(
            kind="google_project_iam_member",
            # From the name, not its place in the list: a reader that is added must not move the others.
            id=f"reader-{re.sub(r'[^a-z0-9]+', '-', reader.lower())}",
            arguments={"project": environment.project, "role": READER_ROLE, "member": reader},
            after=api(environment, "cloudresourcemanager"),
        )
        for reader in environment.alerts.readers
    ]


def _event_lines(environment: Environment) -> list[Resource]:
    """Exporter and mover read what containers print, and no other log of the project."""
    bucket, _, name = roles.events_view(environment.project, environment.cluster_name).rpartition("/views/")
    view = Resource(
        kind="google_logging_log_view",
        id="events",
        arguments={
            "name": name,
            "bucket": bucket,
            "description": "Event lines of jobs, for the exporter",
            "filter": f'SOURCE("projects/{environment.project}") AND resource.type = "k8s_container" AND LOG_ID("stdout")',
        },
        after=api(environment, "logging"),
    )
    # The first came alone, and its id is an address of Terraform.
    readers = {"events": "exporter", "events-mover": "mover"}
    return [view, *(_view_reader(environment, view, id_, role) for id_, role in readers.items())]


def _view_reader(environment: Environment, view: Resource, id_: str, role: str) -> Resource:
    return Resource(
        kind="google_logging_log_view_iam_member",
        id=id_,
        arguments={
            "parent": f"projects/{environment.project}",
            "location": "global",
            "bucket": "_Default",
            "name": view.arguments["name"],
            "role": "roles/logging.viewAccessor",
            "member": f"serviceAccount:{environment.service_account_email(role)}",
        },
        after=(account(role), view.address),
    )


def workload_bindings(environment: Environment) -> list[Resource]:
    """Pods act as their Google account. Part of the cluster stack: the workload pool exists once a cluster does."""
    places = [(role, namespace, f"workload-{role}") for role, namespace in roles.KSA_NAMESPACES.items()]
    spaces = [space for team in environment.teams for space in team.spaces]
    places += [(role, space, f"workload-{role}-{space}") for space in spaces for role in roles.JOB_ROLES]
    return [
        Resource(
            kind="google_service_account_iam_member",
            id=id_,
            arguments={
                "service_account_id": (
                    f"projects/{environment.project}/serviceAccounts/{environment.service_account_email(role)}"
                ),
                "role": "roles/iam.workloadIdentityUser",
                "member": f"serviceAccount:{environment.workload_pool}[{namespace}/{role}]",
            },
            after=("google_container_cluster.cluster",),
        )
        for role, namespace, id_ in places
    ]
