"""Grants on the environment's key: each service encrypts with it under its own agent's name."""

# Why it is so: infra/decisions/0014.

from infra.environments.schema import Environment
from infra.specs.network import api
from infra.specs.resource import Resource

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


def key_grant(environment: Environment, service: str) -> tuple[str, ...]:
    """What a resource that is encrypted by `service` comes after."""
    return (f"google_kms_crypto_key_iam_member.{service}",) if environment.security.kms_key else ()


def resources(environment: Environment) -> list[Resource]:
    if not environment.security.kms_key:
        return []
    return [
        Resource(
            kind="google_kms_crypto_key_iam_member",
            id=service,
            arguments={
                "crypto_key_id": environment.security.kms_key,
                "role": "roles/cloudkms.cryptoKeyEncrypterDecrypter",
                "member": agent(environment, service),
            },
            after=(*api(environment, "cloudkms"), *api(environment, service)),
        )
        for service in AGENTS
    ]
