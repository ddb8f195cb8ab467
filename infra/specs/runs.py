"""What each run may do with the checkpoints: its pods act as themselves, without an account of Google's between."""

# Why it is so: infra/decisions/0069.

from holdfast.contract.roles import NAMESPACE_TRAINING
from infra.environments.runs import Run
from infra.environments.schema import Environment
from infra.specs.bucket_grants import below, grant
from infra.specs.identities import LIST_ROLE
from infra.specs.resource import Resource

# The workload pool exists once a cluster does.
AFTER = ("google_container_cluster.cluster",)


def resources(environment: Environment) -> list[Resource]:
    """Part of the cluster's stack. None where runs are not kept apart."""
    if not environment.storage.runs:
        return []
    everyone = f"principalSet://{environment.workload_identities}/namespace/{NAMESPACE_TRAINING}"
    return [
        _grant(environment, "runs-list", "checkpoints", LIST_ROLE, everyone),
        _grant(environment, "runs-data", "data", "roles/storage.objectViewer", everyone),
        *(_own(environment, run) for run in environment.storage.runs),
    ]


def _own(environment: Environment, run: Run) -> Resource:
    member = f"principal://{environment.workload_identities}/subject/ns/{NAMESPACE_TRAINING}/sa/{run.account}"
    own = below(environment, f"checkpoints of {run.name}", run.prefixes)
    return _grant(environment, run.account, "checkpoints", "roles/storage.objectUser", member, own)


def _grant(
    environment: Environment, id: str, purpose: str, role: str, member: str, condition: dict[str, str] | None = None
) -> Resource:
    return grant(environment, id, purpose=purpose, role=role, member=member, after=AFTER, condition=condition)
