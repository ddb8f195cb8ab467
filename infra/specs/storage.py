"""Buckets for checkpoints and data, with who may do what in them, and the image registry; all in
the cluster's region.
"""

# Why it is so: infra/decisions/0069.

from holdfast.vocabulary.roles import NAMESPACE_TRAINING
from infra.contract.names import BUCKETS
from infra.environments.runs import READERS, Run, of_condition, readable
from infra.environments.schema import Environment, Team
from infra.environments.teams import prefixes_of
from infra.specs.encryption import encrypted, key_in_force
from infra.specs.identities import LIST_ROLE, account, bucket_roles
from infra.specs.network import api
from infra.specs.resource import Resource, deletion_policy, grant

DAY_S = 86_400
# Of grants to pods: the workload pool exists once a cluster does.
AFTER = ("google_container_cluster.cluster",)
OLD_VERSIONS_DAYS = SOFT_DELETE_DAYS = 7
# The writer deletes attempts that no commit names; this bounds what a killed writer leaves.
UNCOMMITTED_DAYS = 3
NO_ACCESS_LOGS = dict.fromkeys(
    ("CKV_GCP_62", "CKV_GCP_63"),
    "Cloud Audit Logs record who read what; usage logs would need a bucket that logs itself",
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
    """The condition that an object of the checkpoints is below one of them."""
    bucket = environment.bucket("checkpoints")
    places = []
    for prefix in prefixes:
        places.append(f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")')
    return {
        "title": title,
        "expression": " || ".join(places),
    }


def _bucket(environment: Environment, purpose: str) -> Resource:
    storage = environment.storage
    # A checkpoint lives for hours; soft delete would bill each for a week more. Its writer is
    # create-only, and restore falls back to the one before, so that nothing is lost by an
    # overwrite.
    soft_delete_days = 0 if purpose == "checkpoints" else SOFT_DELETE_DAYS
    arguments: dict[str, object] = {
        "name": environment.bucket(purpose),
        "location": environment.region.upper(),
        "storage_class": "STANDARD",
        "uniform_bucket_level_access": True,
        "public_access_prevention": "enforced",
        "force_destroy": storage.allow_destroy,
        "deletion_policy": deletion_policy(not storage.allow_destroy),
        "soft_delete_policy": {"retention_duration_seconds": soft_delete_days * DAY_S},
        "lifecycle_rule": _lifecycle(purpose),
        "labels": environment.all_labels(),
    }
    if purpose != "checkpoints":
        arguments["versioning"] = {"enabled": True}
    key = encrypted(environment, "default_kms_key_name")
    if key:
        arguments["encryption"] = key
    return Resource(
        kind="google_storage_bucket",
        id=purpose,
        skips=NO_ACCESS_LOGS | (NO_OLD_CHECKPOINTS if purpose == "checkpoints" else {}),
        arguments=arguments,
        after=(*api(environment, "storage"), *key_in_force(environment)),
        protected=not storage.allow_destroy,
    )


def _lifecycle(purpose: str) -> list[dict[str, object]]:
    rules: list[dict[str, object]] = [
        {
            "action": {"type": "AbortIncompleteMultipartUpload"},
            "condition": {"age": 1},
        }
    ]
    condition: dict[str, object] = {
        "days_since_noncurrent_time": OLD_VERSIONS_DAYS,
        "with_state": "ARCHIVED",
    }
    if purpose == "checkpoints":
        # A custom time marks an attempt as abandoned. Committed objects have none, so this never
        # reaches them.
        condition = {"days_since_custom_time": UNCOMMITTED_DAYS}
    return [
        *rules,
        {
            "action": {"type": "Delete"},
            "condition": condition,
        },
    ]


def _grants(environment: Environment) -> list[Resource]:
    return [
        *(
            _grant(environment, f"{purpose}-{role}", purpose, role, granted)
            for role, grants in bucket_roles(environment).items()
            for purpose, granted in grants.items()
        ),
        *(grant for role in READERS for grant in _reads(environment, role)),
        *([] if environment.storage.runs else [_shared(environment)]),
        *(grant for team in environment.teams for grant in _of_team(environment, team)),
    ]


def _of_team(environment: Environment, team: Team) -> list[Resource]:
    """Its own folder, what its listed runs have saved, and the data. A listing shows the names of
    all objects.
    """
    own = below(environment, f"checkpoints of {team.role}", (f"{team.folder}/",))
    grants = [
        _grant(environment, team.role, "checkpoints", team.role, "roles/storage.objectUser", own),
        _grant(environment, f"{team.role}-list", "checkpoints", team.role, LIST_ROLE),
        _grant(environment, f"{team.role}-data", "data", team.role, "roles/storage.objectViewer"),
    ]
    for number, prefixes in enumerate(of_condition(prefixes_of(team, environment.storage.runs)), 1):
        condition = below(environment, f"runs of {team.role} {number}", prefixes)
        id = f"{team.role}-runs-{number}"
        grants.append(
            _grant(
                environment, id, "checkpoints", team.role, "roles/storage.objectViewer", condition
            )
        )
    return grants


def _shared(environment: Environment) -> Resource:
    """All training's, where no runs are listed."""
    folder = environment.storage.default_run
    condition = below(environment, f"checkpoints of {folder}", (f"{folder}/",))
    return _grant(
        environment, "runs-trainer", "checkpoints", "trainer", "roles/storage.objectUser", condition
    )


def _reads(environment: Environment, role: str) -> list[Resource]:
    """Of the checkpoints of the runs that name it. None where runs are not kept apart."""
    return [
        _grant(
            environment,
            f"runs-{role}" + (f"-{number}" if number > 1 else ""),
            "checkpoints",
            role,
            "roles/storage.objectViewer",
            below(environment, f"checkpoints for {role} {number}", prefixes),
        )
        for number, prefixes in enumerate(readable(environment.storage.runs, role), 1)
    ]


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
        "storage_bucket", id, granted, environment.member(role), after, condition, bucket=bucket
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
        **encrypted(environment, "kms_key_name"),
    }
    images = Resource(
        kind="google_artifact_registry_repository",
        id="images",
        arguments=arguments,
        after=(*api(environment, "artifactregistry"), *key_in_force(environment)),
        protected=not environment.storage.allow_destroy,
    )
    reader = grant(
        "artifact_registry_repository",
        "images-nodes",
        "roles/artifactregistry.reader",
        environment.member("nodes"),
        (images.address, account("nodes")),
        location=environment.region,
        repository=environment.stem,
    )
    return [images, reader]


def run_grants(environment: Environment) -> list[Resource]:
    """What each run may do with the checkpoints: its pods act as themselves, without an account of
    Google's between.

    Part of the cluster's stack. None where runs are not kept apart.
    """
    if not environment.storage.runs:
        return []
    spaces = {NAMESPACE_TRAINING: ""} | {
        team.spaces[0]: f"-{team.spaces[0]}" for team in environment.teams if team.runs
    }
    everyone = {
        "checkpoints": ("runs-list", LIST_ROLE),
        "data": ("runs-data", "roles/storage.objectViewer"),
    }
    members = f"principalSet://{environment.workload_identities}/namespace"
    return [
        *(
            grant(
                "storage_bucket",
                f"{id}{suffix}",
                role,
                f"{members}/{space}",
                AFTER,
                bucket=environment.bucket(purpose),
            )
            for space, suffix in spaces.items()
            for purpose, (id, role) in everyone.items()
        ),
        *(_own(environment, run) for run in environment.storage.runs),
    ]


def _own(environment: Environment, run: Run) -> Resource:
    space = next(
        (team.spaces[0] for team in environment.teams if run.name in team.runs), NAMESPACE_TRAINING
    )
    member = f"principal://{environment.workload_identities}/subject/ns/{space}/sa/{run.account}"
    own = below(environment, f"checkpoints of {run.name}", run.prefixes)
    bucket = environment.bucket("checkpoints")
    return grant(
        "storage_bucket", run.account, "roles/storage.objectUser", member, AFTER, own, bucket=bucket
    )
