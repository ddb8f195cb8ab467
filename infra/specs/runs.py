"""What each run may do with the checkpoints: its pods act as themselves, without an account of Google's between."""

# Why it is so: infra/decisions/0069.

from holdfast.contract.roles import NAMESPACE_TRAINING
from infra.environments.runs import Run
from infra.environments.schema import Environment
from infra.specs.identities import LIST_ROLE
from infra.specs.resource import Resource, grant
from infra.specs.storage import below

# The workload pool exists once a cluster does.
AFTER = ("google_container_cluster.cluster",)


def resources(environment: Environment) -> list[Resource]:
    """Part of the cluster's stack. None where runs are not kept apart."""
    if not environment.storage.runs:
        return []
    spaces = {NAMESPACE_TRAINING: ""} | {
        team.spaces[0]: f"-{team.spaces[0]}" for team in environment.teams if team.runs
    }
    everyone = {"checkpoints": ("runs-list", LIST_ROLE), "data": ("runs-data", "roles/storage.objectViewer")}
    members = f"principalSet://{environment.workload_identities}/namespace"
    return [
        *(
            grant(
                "storage_bucket", f"{id}{suffix}", role, f"{members}/{space}", AFTER, bucket=environment.bucket(purpose)
            )
            for space, suffix in spaces.items()
            for purpose, (id, role) in everyone.items()
        ),
        *(_own(environment, run) for run in environment.storage.runs),
    ]


def _own(environment: Environment, run: Run) -> Resource:
    space = next((team.spaces[0] for team in environment.teams if run.name in team.runs), NAMESPACE_TRAINING)
    member = f"principal://{environment.workload_identities}/subject/ns/{space}/sa/{run.account}"
    own = below(environment, f"checkpoints of {run.name}", run.prefixes)
    bucket = environment.bucket("checkpoints")
    return grant("storage_bucket", run.account, "roles/storage.objectUser", member, AFTER, own, bucket=bucket)
