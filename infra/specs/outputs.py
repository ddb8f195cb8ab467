"""What people need after a deployment, by stack. Every name follows from the environment, so that
no state is read.
"""

import json
import shlex

from holdfast.vocabulary import roles
from infra.contract import names
from infra.environments.schema import Environment

CONSOLE = "https://console.cloud.google.com"


def outputs(environment: Environment) -> dict[str, dict[str, str]]:
    """Area -> name -> value."""
    return {
        "foundation": _foundation(environment),
        "cluster": _cluster(environment),
        "monitoring": {
            "dashboards": f"{CONSOLE}/monitoring/dashboards?project={environment.project}"
        },
    }


def _cluster(environment: Environment) -> dict[str, str]:
    name = environment.cluster_name
    region = environment.region
    project = environment.project
    # Through IAM where the DNS endpoint is open; else from inside the VPC.
    way = "--dns-endpoint" if environment.cluster.dns_endpoint_public else "--internal-ip"
    command = (
        "gcloud",
        "container",
        "clusters",
        "get-credentials",
        name,
        f"--region={region}",
        f"--project={project}",
    )
    return {
        "credentials": shlex.join((*command, way)),
        "cluster page": f"{CONSOLE}/kubernetes/clusters/details/{region}/{name}?project={project}",
    }


def _foundation(environment: Environment) -> dict[str, str]:
    found = {
        **{f"bucket {purpose}": f"gs://{environment.bucket(purpose)}" for purpose in names.BUCKETS},
        "images": environment.image_registry,
        **{
            f"topic {lane}": f"projects/{environment.project}/topics/{environment.topic(lane)}"
            for lane in environment.lanes
        },
        **{f"account {role}": environment.service_account_email(role) for role in roles.ROLES},
    }
    if environment.delivery:
        entry = {"env": environment.name, "gate": environment.delivery.environment}
        entry["provider"] = (
            f"{environment.identity_pools}/{environment.identity_pool}/providers/github"
        )
        entry |= {role: environment.service_account_email(role) for role in ("planner", "deployer")}
        found["HOLDFAST_ENVIRONMENTS"] = json.dumps([entry])
    if environment.database:
        found["database"] = environment.database_connection
    return found
