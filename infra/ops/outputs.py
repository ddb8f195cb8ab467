"""What people need after a deployment. Every name follows from the environment, so that no state is asked."""

import shlex

from holdfast.contract import roles
from holdfast.tables import print_json, print_table
from infra.contract import names
from infra.environments import Environment

CONSOLE = "https://console.cloud.google.com"


def outputs(environment: Environment) -> dict[str, str]:
    project = environment.project
    found = {
        "credentials": _command(
            ("gcloud", "container", "clusters", "get-credentials", environment.cluster_name),
            f"--region={environment.region}",
            f"--project={project}",
            # Through IAM where the DNS endpoint is open; else from inside the VPC.
            *(["--dns-endpoint"] if environment.cluster.dns_endpoint_public else ["--internal-ip"]),
        ),
        **{
            f"bucket {purpose}": f"gs://{environment.bucket(purpose)}" for purpose in ("checkpoints", "data", "exports")
        },
        "images": environment.image_registry,
        "topic": f"projects/{project}/topics/{environment.topic('work')}",
        "subscription": f"projects/{project}/subscriptions/{environment.topic('work')}",
        "dashboards": f"{CONSOLE}/monitoring/dashboards?project={project}",
        "cluster page": f"{CONSOLE}/kubernetes/clusters/details/{environment.region}/{environment.cluster_name}?project={project}",
        **{f"account {role}": environment.service_account_email(role) for role in roles.ROLES},
    }
    if environment.delivery:
        pool = names.identity_pool(environment.name_prefix, environment.name)
        pools = f"projects/{environment.project_number}/locations/global/workloadIdentityPools"
        found["HOLDFAST_IDENTITY_PROVIDER"] = f"{pools}/{pool}/providers/github"
        for role in ("planner", "deployer"):
            found[f"HOLDFAST_{role.upper()}"] = environment.service_account_email(role)
    if environment.database:
        found["database"] = environment.database_connection
    return found


def _command(arguments: tuple[str, ...], *options: str) -> str:
    return " ".join(shlex.quote(part) for part in (*arguments, *options))


def show(environment: Environment, as_json: bool = False) -> None:
    found = outputs(environment)
    if as_json:
        print_json("outputs", environment=environment.name, outputs=found)
    else:
        print_table(("OUTPUT", "VALUE"), list(found.items()))
