"""Grants on the environment's key: each service encrypts with it under its own agent's name."""

# Why it is so: infra/decisions/0014.

from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource, grant

# Terraform's own: a delay needs no second provider.
WAIT = "terraform_data"
# IAM's documentation: two minutes as a rule, at times seven. A service that may not use the key yet
# fails the apply.
GRANT_SETTLES_S = 420
AGENTS = {
    "artifactregistry": "gcp-sa-artifactregistry",
    "compute": "compute-system",
    "container": "container-engine-robot",
    "pubsub": "gcp-sa-pubsub",
    "sqladmin": "gcp-sa-cloud-sql",
    "storage": "gs-project-accounts",
}


def agent(environment: Environment, service: str) -> str:
    """The member name of a Google service's own account in this project."""
    number = environment.project_number.lower()
    return f"serviceAccount:service-{number}@{AGENTS[service]}.iam.gserviceaccount.com"


def encrypted(environment: Environment, argument: str) -> dict[str, str]:
    """The argument that states the environment's key; none where Google's keys encrypt."""
    if environment.security.kms_key:
        return {argument: environment.security.kms_key}
    return {}


def key_in_force(environment: Environment) -> tuple[str, ...]:
    """What a resource that is encrypted comes after."""
    return (f"{WAIT}.key-in-force",) if environment.security.kms_key else ()


def resources(environment: Environment) -> list[Resource]:
    if not environment.security.kms_key:
        return []
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    key = environment.security.kms_key
    grants = []
    for service in AGENTS:
        grants.append(
            grant(
                "kms_crypto_key",
                service,
                role,
                agent(environment, service),
                (*api(environment, "cloudkms"), *api(environment, service)),
                crypto_key_id=key,
            )
        )
    return [*grants, _settled(environment, tuple(each.address for each in grants))]


def _settled(environment: Environment, grants: tuple[str, ...]) -> Resource:
    """Waits once, when the grants are made: Terraform goes on as soon as the API has noted them."""
    return Resource(
        kind=WAIT,
        id="key-in-force",
        arguments={
            "triggers_replace": " ".join((environment.security.kms_key, *sorted(AGENTS))),
            "provisioner": [{"local-exec": {"command": f"sleep {GRANT_SETTLES_S}"}}],
        },
        after=grants,
    )
