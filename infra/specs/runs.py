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
    spaces = {NAMESPACE_TRAINING: ""} | {
        team.spaces[0]: f"-{team.spaces[0]}" for team in environment.teams if team.runs
    }
    return [
        *(
            _grant(environment, f"{id_}{suffix}", purpose, role, _everyone(environment, space))
            for space, suffix in spaces.items()
            for id_, purpose, role in (
                ("runs-list", "checkpoints", LIST_ROLE),
                ("runs-data", "data", "roles/storage.objectViewer"),
            )
        ),
        *(_own(environment, run) for run in environment.storage.runs),
    ]


def _everyone(environment: Environment, namespace: str) -> str:
    return f"principalSet://{environment.workload_identities}/namespace/{namespace}"


def _own(environment: Environment, run: Run) -> Resource:
    space = next((team.spaces[0] for team in environment.teams if run.name in team.runs), NAMESPACE_TRAINING)
    member = f"principal://{environment.workload_identities}/subject/ns/{space}/sa/{run.account}"
    own = below(environment, f"checkpoints of {run.name}", run.prefixes)
    return _grant(environment, run.account, "checkpoints", "roles/storage.objectUser", member, own)


def _grant(
    environment: Environment, id: str, purpose: str, role: str, member: str, condition: dict[str, str] | None = None
) -> Resource:
    return grant(environment, id, purpose=purpose, role=role, member=member, after=AFTER, condition=condition)
