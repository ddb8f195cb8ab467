"""Buckets with their grants, and the image registry, all in the cluster's region."""

# Decision: infra/decisions/0069.

from holdfast.vocabulary.roles import NAMESPACE_TRAINING
from infra.contract.names import BUCKETS
from infra.environments.runs import READERS, Run, group_by_condition, readable
from infra.environments.schema import Environment, Registry, Team
from infra.environments.teams import list_team_prefixes
from infra.specs.encryption import key_argument, key_in_force
from infra.specs.identities import LIST_ROLE, account, bucket_roles
from infra.specs.network import api
from infra.specs.resource import Resource, deletion_policy, grant

DAY_S = 86_400
# Grants to pods come after the cluster, which creates the workload pool.
AFTER = ("google_container_cluster.cluster",)
OLD_VERSIONS_DAYS = SOFT_DELETE_DAYS = 7
# The writer deletes attempts that no commit names; this bounds what a killed writer leaves.
UNCOMMITTED_DAYS = 3
NO_ACCESS_LOGS = dict.fromkeys(
    ("CKV_GCP_62", "CKV_GCP_63"),
    "Audit logs of data access record who read what; usage logs need a bucket that logs itself",
)
NO_OLD_CHECKPOINTS = {
    "CKV_GCP_78": "a checkpoint lives for hours, and its old versions would be billed for days"
}


def resources(environment: Environment) -> list[Resource]:
    return [
        *(_bucket(environment, purpose) for purpose in BUCKETS),
        *_grants(environment),
        *_registry(environment),
    ]


def below(environment: Environment, title: str, prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the condition that an object of the checkpoints is below one of the prefixes."""
    bucket = environment.bucket("checkpoints")
    terms = []
    for prefix in prefixes:
        terms.append(f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")')
    return {
        "title": title,
        "expression": " || ".join(terms),
    }


def _bucket(environment: Environment, purpose: str) -> Resource:
    storage = environment.storage
    is_checkpoints = purpose == "checkpoints"
    # A checkpoint lives for hours; soft delete bills each for days more. Nothing is overwritten:
    # the writer is create-only, and restore falls back to the checkpoint before. Soft delete helps
    # after a delete by mistake, or by an attacker who may write.
    soft_delete_days = storage.checkpoint_soft_delete_days if is_checkpoints else SOFT_DELETE_DAYS
    version_days = storage.checkpoint_version_days if is_checkpoints else OLD_VERSIONS_DAYS
    arguments: dict[str, object] = {
        "name": environment.bucket(purpose),
        "location": environment.region.upper(),
        "storage_class": "STANDARD",
        "uniform_bucket_level_access": True,
        "public_access_prevention": "enforced",
        "force_destroy": storage.allow_destroy,
        "deletion_policy": deletion_policy(not storage.allow_destroy),
        "soft_delete_policy": {"retention_duration_seconds": soft_delete_days * DAY_S},
        "lifecycle_rule": _lifecycle(purpose, version_days),
        "labels": environment.all_labels(),
    }
    if version_days:
        arguments["versioning"] = {"enabled": True}
    key = key_argument(environment, "default_kms_key_name")
    if key:
        arguments["encryption"] = key
    return Resource(
        kind="google_storage_bucket",
        id=purpose,
        skips=NO_ACCESS_LOGS | ({} if version_days else NO_OLD_CHECKPOINTS),
        arguments=arguments,
        after=(*api(environment, "storage"), *key_in_force(environment)),
        protected=not storage.allow_destroy,
    )


def _lifecycle(purpose: str, version_days: int) -> list[dict[str, object]]:
    conditions: list[dict[str, object]] = []
    if purpose == "checkpoints":
        # A custom time marks an attempt as abandoned. Committed objects have none.
        conditions.append({"days_since_custom_time": UNCOMMITTED_DAYS})
    if version_days:
        conditions.append({"days_since_noncurrent_time": version_days, "with_state": "ARCHIVED"})
    rules: list[dict[str, object]] = [
        {
            "action": {"type": "AbortIncompleteMultipartUpload"},
            "condition": {"age": 1},
        }
    ]
    for condition in conditions:
        rules.append(
            {
                "action": {"type": "Delete"},
                "condition": condition,
            }
        )
    return rules


def _grants(environment: Environment) -> list[Resource]:
    grants = []
    for role, roles in bucket_roles(environment).items():
        for purpose, granted in roles.items():
            grants.append(_grant(environment, f"{purpose}-{role}", purpose, role, granted))
    for role in READERS:
        grants += _reader_grants(environment, role)
    if not environment.storage.runs:
        grants.append(_default_run_grant(environment))
    for team in environment.teams:
        grants += _team_grants(environment, team)
    return grants


def _team_grants(environment: Environment, team: Team) -> list[Resource]:
    """Let a team's account use its own folder, and read what its listed runs have saved, and the
    data. A listing shows the names of all objects.
    """
    own_folder = below(environment, f"checkpoints of {team.role}", (f"{team.folder}/",))
    role = team.role
    grants = [
        _grant(environment, role, "checkpoints", role, "roles/storage.objectUser", own_folder),
        _grant(environment, f"{role}-list", "checkpoints", role, LIST_ROLE),
        _grant(environment, f"{role}-data", "data", role, "roles/storage.objectViewer"),
    ]
    prefixes = list_team_prefixes(team, environment.storage.runs)
    for number, group in enumerate(group_by_condition(prefixes), 1):
        grants.append(
            _grant(
                environment,
                f"{role}-runs-{number}",
                "checkpoints",
                role,
                "roles/storage.objectViewer",
                below(environment, f"runs of {role} {number}", group),
            )
        )
    return grants


def _default_run_grant(environment: Environment) -> Resource:
    """Let all training write below one folder, if no runs are listed."""
    folder = environment.storage.default_run
    condition = below(environment, f"checkpoints of {folder}", (f"{folder}/",))
    return _grant(
        environment,
        "runs-trainer",
        "checkpoints",
        "trainer",
        "roles/storage.objectUser",
        condition,
    )


def _reader_grants(environment: Environment, role: str) -> list[Resource]:
    """Let `role` read the checkpoints of runs that name it; no grants if runs are not listed."""
    grants = []
    for number, prefixes in enumerate(readable(environment.storage.runs, role), 1):
        id = f"runs-{role}" if number == 1 else f"runs-{role}-{number}"
        condition = below(environment, f"checkpoints for {role} {number}", prefixes)
        viewer = "roles/storage.objectViewer"
        grants.append(_grant(environment, id, "checkpoints", role, viewer, condition))
    return grants


def _grant(
    environment: Environment,
    id: str,
    purpose: str,
    role: str,
    granted: str,
    condition: object = None,
) -> Resource:
    after = (f"google_storage_bucket.{purpose}", account(role))
    bucket = environment.bucket(purpose)
    return grant(
        "storage_bucket",
        id,
        granted,
        environment.member(role),
        after,
        condition,
        bucket=bucket,
    )


def _registry(environment: Environment) -> list[Resource]:
    arguments: dict[str, object] = {
        "repository_id": environment.stem,
        "location": environment.region,
        "format": "DOCKER",
        "description": "Images of this platform",
        # Manifests name images by digest; a tag that moves would only mislead.
        "docker_config": {"immutable_tags": True},
        "cleanup_policies": [
            {
                "id": "delete-untagged",
                "action": "DELETE",
                "condition": {"tag_state": "UNTAGGED", "older_than": f"{30 * DAY_S}s"},
            },
            {
                "id": "keep-recent",
                "action": "KEEP",
                "most_recent_versions": {"keep_count": 20},
            },
        ],
        "labels": environment.all_labels(),
        "deletion_policy": deletion_policy(not environment.storage.allow_destroy),
        **key_argument(environment, "kms_key_name"),
    }
    images = Resource(
        kind="google_artifact_registry_repository",
        id="images",
        arguments=arguments,
        after=(*api(environment, "artifactregistry"), *key_in_force(environment)),
        protected=not environment.storage.allow_destroy,
    )
    planned = [images, _image_reader(environment, images)]
    for registry in environment.security.registries:
        remote = _remote_registry(environment, registry)
        planned += [remote, _image_reader(environment, remote)]
    return planned


def _image_reader(environment: Environment, repository: Resource) -> Resource:
    """Let the nodes pull from a repository."""
    return grant(
        "artifact_registry_repository",
        f"{repository.id}-nodes",
        "roles/artifactregistry.reader",
        environment.member("nodes"),
        (repository.address, account("nodes")),
        location=environment.region,
        repository=repository.arguments["repository_id"],
    )


def _remote_registry(environment: Environment, registry: Registry) -> Resource:
    """Return a repository that pulls from a registry elsewhere and keeps what was pulled."""
    remote: dict[str, object] = {"common_repository": {"uri": registry.upstream}}
    if registry.password:
        login = {"username": registry.user, "password_secret_version": registry.password}
        remote["upstream_credentials"] = {"username_password_credentials": login}
    arguments: dict[str, object] = {
        "repository_id": f"{environment.stem}-{registry.name}",
        "location": environment.region,
        "format": "DOCKER",
        "mode": "REMOTE_REPOSITORY",
        "description": f"Images of {registry.upstream}",
        "remote_repository_config": remote,
        "labels": environment.all_labels(),
        "deletion_policy": deletion_policy(not environment.storage.allow_destroy),
        **key_argument(environment, "kms_key_name"),
    }
    return Resource(
        kind="google_artifact_registry_repository",
        id=f"images-{registry.name}",
        arguments=arguments,
        after=(*api(environment, "artifactregistry"), *key_in_force(environment)),
        protected=not environment.storage.allow_destroy,
    )


def run_grants(environment: Environment) -> list[Resource]:
    """Return the grants of runs: pods act under their Kubernetes identity, without a Google
    account.

    They are part of the cluster's stack. There are none if runs are not listed.
    """
    if not environment.storage.runs:
        return []
    grants = _namespace_grants(environment, NAMESPACE_TRAINING, "")
    for team in environment.teams:
        if team.runs:
            namespace = team.spaces[0]
            grants += _namespace_grants(environment, namespace, f"-{namespace}")
    grants += [_run_grant(environment, run) for run in environment.storage.runs]
    return grants


def _namespace_grants(environment: Environment, namespace: str, suffix: str) -> list[Resource]:
    """Let all pods of a namespace list checkpoints and read data."""
    member = f"principalSet://{environment.workload_identities}/namespace/{namespace}"
    checkpoints = environment.bucket("checkpoints")
    data = environment.bucket("data")
    viewer = "roles/storage.objectViewer"
    return [
        grant("storage_bucket", f"runs-list{suffix}", LIST_ROLE, member, AFTER, bucket=checkpoints),
        grant("storage_bucket", f"runs-data{suffix}", viewer, member, AFTER, bucket=data),
    ]


def _run_grant(environment: Environment, run: Run) -> Resource:
    """Let the pods of one run write below its own prefixes."""
    namespace = NAMESPACE_TRAINING
    for team in environment.teams:
        if run.name in team.runs:
            namespace = team.spaces[0]
    subject = f"ns/{namespace}/sa/{run.account}"
    member = f"principal://{environment.workload_identities}/subject/{subject}"
    condition = below(environment, f"checkpoints of {run.name}", run.prefixes)
    bucket = environment.bucket("checkpoints")
    role = "roles/storage.objectUser"
    return grant("storage_bucket", run.account, role, member, AFTER, condition, bucket=bucket)
