"""Outputs that people need after a deployment, by stack. Every name follows from the environment,
so that no state is read.
"""

import json
import shlex

from holdfast.vocabulary import roles
from infra.contract import names
from infra.environments.schema import Environment

CONSOLE = "https://console.cloud.google.com"


def outputs(environment: Environment) -> dict[str, dict[str, str]]:
    """Return area -> name -> value."""
    return {
        "foundation": _foundation(environment),
        "cluster": _cluster(environment),
        "monitoring": {
            "dashboards": f"{CONSOLE}/monitoring/dashboards?project={environment.project}"
        },
    }


def credentials(environment: Environment) -> str:
    """Return the command that makes kubectl talk to the environment's cluster."""
    # IAM protects the DNS endpoint if it is open; otherwise the cluster is reached from the VPC.
    endpoint = "--dns-endpoint" if environment.cluster.dns_endpoint_public else "--internal-ip"
    command = (
        "gcloud",
        "container",
        "clusters",
        "get-credentials",
        environment.cluster_name,
        f"--region={environment.region}",
        f"--project={environment.project}",
        endpoint,
    )
    return shlex.join(command)


def _cluster(environment: Environment) -> dict[str, str]:
    place = f"{environment.region}/{environment.cluster_name}?project={environment.project}"
    return {
        "credentials": credentials(environment),
        "cluster page": f"{CONSOLE}/kubernetes/clusters/details/{place}",
    }


def _foundation(environment: Environment) -> dict[str, str]:
    values: dict[str, str] = {}
    for purpose in names.BUCKETS:
        values[f"bucket {purpose}"] = f"gs://{environment.bucket(purpose)}"
    values["images"] = environment.image_registry
    for lane in environment.lanes:
        values[f"topic {lane}"] = f"projects/{environment.project}/topics/{environment.topic(lane)}"
    for role in roles.ROLES:
        values[f"account {role}"] = environment.service_account_email(role)
    if environment.delivery:
        pool = f"{environment.identity_pools}/{environment.identity_pool}"
        entry = {
            "env": environment.name,
            "gate": environment.delivery.environment,
            "provider": f"{pool}/providers/github",
            "planner": environment.service_account_email("planner"),
            "deployer": environment.service_account_email("deployer"),
        }
        values["HOLDFAST_ENVIRONMENTS"] = json.dumps([entry])
    if environment.database:
        values["database"] = environment.database_connection
    return values
