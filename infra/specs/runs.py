"""What each run may do with the checkpoints: its pods act as themselves, without an account of Google's between."""

# Why it is so: infra/decisions/0069.

from infra.contract.names import NAMESPACE_TRAINING
from infra.environments.runs import Run
from infra.environments.schema import Environment
from infra.specs.resource import Resource

# The workload pool exists once a cluster does.
AFTER = ("google_container_cluster.cluster",)


def resources(environment: Environment) -> list[Resource]:
    """Part of the cluster's stack. None where runs are not kept apart."""
    if not environment.storage.runs:
        return []
    everyone = f"principalSet://{environment.workload_identities}/namespace/{NAMESPACE_TRAINING}"
    return [
        # A listing is asked of the bucket, whatever its prefix, so that no condition on objects admits it.
        _grant(environment, "runs-list", "checkpoints", "roles/storage.legacyBucketReader", everyone),
        _grant(environment, "runs-data", "data", "roles/storage.objectViewer", everyone),
        *(_own(environment, run) for run in environment.storage.runs),
    ]


def condition(environment: Environment, title: str, prefixes: tuple[str, ...]) -> dict[str, str]:
    """That an object of the checkpoints lies below one of them."""
    bucket = environment.bucket("checkpoints")
    below = [f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")' for prefix in prefixes]
    return {"title": title, "expression": " || ".join(below)}


def _own(environment: Environment, run: Run) -> Resource:
    member = f"principal://{environment.workload_identities}/subject/ns/{NAMESPACE_TRAINING}/sa/{run.account}"
    own = condition(environment, f"checkpoints of {run.name}", run.prefixes)
    return _grant(environment, run.account, "checkpoints", "roles/storage.objectUser", member, own)


def _grant(
    environment: Environment, id: str, purpose: str, role: str, member: str, condition: dict[str, str] | None = None
) -> Resource:
    arguments: dict[str, object] = {"bucket": environment.bucket(purpose), "role": role, "member": member}
    if condition:
        arguments["condition"] = condition
    return Resource(kind="google_storage_bucket_iam_member", id=id, arguments=arguments, after=AFTER)
