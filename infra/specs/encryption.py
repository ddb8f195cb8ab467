"""Grants on the environment's key: each service encrypts with it under its own agent's name."""

# Decision: infra/decisions/0014.

from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource, grant

# A kind of Terraform itself: a delay needs no second provider.
WAIT = "terraform_data"
# IAM's documentation: usually two minutes, at times seven. If a service may not use the key yet,
# the apply fails.
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
    """Return the member name of a Google service's own account in this project."""
    number = environment.project_number.lower()
    return f"serviceAccount:service-{number}@{AGENTS[service]}.iam.gserviceaccount.com"


def key_argument(environment: Environment, argument: str) -> dict[str, str]:
    """Return `argument` with the environment's key; nothing if Google's keys encrypt."""
    if environment.security.kms_key:
        return {argument: environment.security.kms_key}
    return {}


def key_in_force(environment: Environment) -> tuple[str, ...]:
    """Return the addresses that a resource with the environment's key depends on."""
    return (f"{WAIT}.key-in-force",) if environment.security.kms_key else ()


def resources(environment: Environment) -> list[Resource]:
    if not environment.security.kms_key:
        return []
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    key = environment.security.kms_key
    grants = []
    for service in AGENTS:
        member = agent(environment, service)
        after = (*api(environment, "cloudkms"), *api(environment, service))
        grants.append(
            grant("kms_crypto_key", service, role, member, after, crypto_key_id=key),
        )
    return [*grants, _wait(environment, tuple(grant.address for grant in grants))]


def _wait(environment: Environment, grants: tuple[str, ...]) -> Resource:
    """Return a delay after the first apply of the grants: the API confirms them before they
    hold.
    """
    return Resource(
        kind=WAIT,
        id="key-in-force",
        arguments={
            "triggers_replace": " ".join((environment.security.kms_key, *sorted(AGENTS))),
            "provisioner": [{"local-exec": {"command": f"sleep {GRANT_SETTLES_S}"}}],
        },
        after=grants,
    )
